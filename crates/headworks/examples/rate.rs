use headworks::ring::*;
use headworks::stage::{self, exchange::*};
use std::sync::Arc;
use std::time::Instant as I;
fn main() {
    let mode = std::env::args().nth(1).unwrap_or("rb2".into());
    let len: usize = std::env::args()
        .nth(2)
        .and_then(|s| s.parse().ok())
        .unwrap_or(64);
    let n: u64 = std::env::args()
        .nth(3)
        .and_then(|s| s.parse().ok())
        .unwrap_or(100_000_000);
    let slots: u32 = std::env::args()
        .nth(4)
        .and_then(|s| s.parse().ok())
        .unwrap_or(128);
    let mut config = RingConfig::fixed(slots, len);
    match mode.as_str() {
        "unbatched" => {
            config.publish_every = Some(1);
            config.transmit_every = Some(1);
        }
        "latency" | "pingpong" => config.mode = Mode::Latency,
        "notify" => config.mode = Mode::Notify,
        _ => {}
    }
    let (a, b) = Line::pair().unwrap();
    let deadline = stage::clock::now() + headworks::verbs::Duration::from_secs(5);
    let c2 = config.clone();
    let pp = mode == "pingpong";
    let t = std::thread::spawn(move || {
        stage::pin::pin_to(1).unwrap();
        let dev = headworks::open(&"soft:h2".parse().unwrap()).unwrap();
        let mut line = b;
        let mut setup = ReceiverSetup::new(&dev, &c2).unwrap();
        let (g, tu) = (setup.greeting(), setup.tuning());
        let hello = line
            .bring_up(dev.info(), setup.queue_pair(), tu, g, deadline)
            .unwrap();
        let mut rx = setup.finish(&hello.payload).unwrap();
        let mut tx = pp.then(|| {
            let mut setup = SenderSetup::new(&dev, &c2).unwrap();
            let (g, tu) = (setup.greeting(), setup.tuning());
            let hello = line
                .bring_up(dev.info(), setup.queue_pair(), tu, g, deadline)
                .unwrap();
            setup.finish(&hello.payload).unwrap()
        });
        let mut got = 0u64;
        let mut sum = 0u64;
        let mut start = I::now();
        let mut idle = 0u32;
        while got < n {
            let mut empty = true;
            if let Some(m) = rx.try_recv().unwrap() {
                empty = false;
                sum = sum.wrapping_add(u64::from_ne_bytes(m[..8].try_into().unwrap()));
                if let Some(tx) = &mut tx {
                    tx.try_send(&m).unwrap();
                }
                got += 1;
                if got == n / 10 {
                    start = I::now();
                }
            }
            if empty {
                idle += 1;
                if idle % 10000 == 0 {
                    rx.step().unwrap();
                }
                std::hint::spin_loop();
            }
        }
        let e = start.elapsed();
        println!(
            "{:.2} M/s  {:.2} GB/s sum {sum} idle {idle} {:?}",
            (n - n / 10) as f64 / e.as_secs_f64() / 1e6,
            ((n - n / 10) * len as u64) as f64 / e.as_secs_f64() / 1e9,
            rx.stats()
        );
        std::mem::forget((rx,));
        let _ = line;
        std::thread::sleep(std::time::Duration::from_millis(100));
    });
    stage::pin::pin_to(0).unwrap();
    let dev = headworks::open(&"soft:h1".parse().unwrap()).unwrap();
    let mut line = a;
    let mut setup = SenderSetup::new(&dev, &config).unwrap();
    let (g, tu) = (setup.greeting(), setup.tuning());
    let hello = line
        .bring_up(dev.info(), setup.queue_pair(), tu, g, deadline)
        .unwrap();
    let mut tx = setup.finish(&hello.payload).unwrap();
    let mut rx = pp.then(|| {
        let mut setup = ReceiverSetup::new(&dev, &config).unwrap();
        let (g, tu) = (setup.greeting(), setup.tuning());
        let hello = line
            .bring_up(dev.info(), setup.queue_pair(), tu, g, deadline)
            .unwrap();
        setup.finish(&hello.payload).unwrap()
    });
    let mut msg = vec![0u8; len];
    let s = I::now();
    let zc = len >= 1 << 20;
    for i in 0..n {
        if zc {
            loop {
                match tx.try_reserve(len) {
                    Ok(mut r) => {
                        r[0] = i as u8;
                        r.commit().unwrap();
                        break;
                    }
                    Err(SendError::Full) => std::hint::spin_loop(),
                    Err(e) => panic!("{e}"),
                }
            }
            continue;
        }
        msg[..8].copy_from_slice(&i.to_ne_bytes());
        loop {
            match tx.try_send(&msg) {
                Ok(()) => break,
                Err(SendError::Full) => {
                    std::hint::spin_loop();
                }
                Err(e) => panic!("{e}"),
            }
        }
        if let Some(rx) = &mut rx {
            loop {
                if let Some(m) = rx.try_recv().unwrap() {
                    assert_eq!(&m[..8], &i.to_ne_bytes());
                    break;
                }
                std::hint::spin_loop();
            }
        }
    }
    tx.flush().unwrap();
    if pp {
        println!(
            "RTT/2 {:.1} ns",
            s.elapsed().as_nanos() as f64 / n as f64 / 2.0
        );
    }
    println!("{:?}", tx.stats());
    t.join().unwrap();
    let _ = Arc::new(());
}
