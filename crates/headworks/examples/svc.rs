use headworks::service::Service;
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let service = Service::attach(a[2].as_ref(), "svc").unwrap();
    match a[1].as_str() {
        "serve" => {
            let l = service.listen(7000, 4096).unwrap();
            loop {
                let mut s = l.accept().unwrap();
                std::thread::spawn(move || {
                    let mut b = vec![0; 1 << 20];
                    loop {
                        let Ok(n) = s.recv(&mut b) else { return };
                        if n == 0 {
                            return;
                        }
                        if s.send_all(&b[..n]).is_err() {
                            return;
                        }
                    }
                });
            }
        }
        "sink" => {
            let l = service.listen(7001, 4096).unwrap();
            loop {
                let mut s = l.accept().unwrap();
                std::thread::spawn(move || {
                    let mut b = vec![0; 1 << 20];
                    while s.recv(&mut b).is_ok_and(|n| n > 0) {}
                });
            }
        }
        "ping" => {
            let n: usize = a[4].parse().unwrap();
            let len: usize = a[5].parse().unwrap();
            let mut s = service.connect(a[3].parse().unwrap()).unwrap();
            let msg = vec![7; len];
            let mut b = vec![0; len];
            let mut times = Vec::new();
            for _ in 0..n {
                let t = Instant::now();
                s.send_all(&msg).unwrap();
                let mut got = 0;
                while got < len {
                    got += s.recv(&mut b[got..]).unwrap();
                }
                times.push(t.elapsed().as_nanos());
            }
            times.sort();
            println!(
                "rtt ns: median {} p99 {}",
                times[n / 2],
                times[n * 99 / 100]
            );
        }
        "bulk" => {
            let mut s = service.connect(a[3].parse().unwrap()).unwrap();
            let len: usize = a[4].parse().unwrap();
            let msg = vec![7; len];
            let t = Instant::now();
            let total = 4u64 << 30;
            let mut sent = 0;
            while sent < total {
                s.send_all(&msg).unwrap();
                sent += len as u64;
            }
            println!("{} GB/s", total as f64 / t.elapsed().as_nanos() as f64);
        }
        "open" => {
            let n: usize = a[4].parse().unwrap();
            let t = Instant::now();
            let all: Vec<_> = (0..n)
                .map(|_| service.connect(a[3].parse().unwrap()).unwrap())
                .collect();
            println!("{n} opened in {:?}", t.elapsed());
            let t = Instant::now();
            drop(all);
            println!("closed in {:?}", t.elapsed());
        }
        _ => {}
    }
}
