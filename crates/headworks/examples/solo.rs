use headworks::ring::*;
use headworks::stage::{self, exchange::*};
use std::time::Instant as I;
fn main() {
    let which = std::env::args().nth(1).unwrap();
    let n: u64 = std::env::args()
        .nth(2)
        .and_then(|s| s.parse().ok())
        .unwrap_or(50_000_000);
    let msg = [7u8; 64];
    stage::pin::pin_to(0).unwrap();
    if false {
    }
    let mut config = RingConfig::fixed(128, 64);
    if std::env::args().nth(3).is_some() {
        config.publish_every = Some(1);
        config.transmit_every = Some(1);
    }
    let deadline = stage::clock::now() + headworks::verbs::Duration::from_secs(5);
    let (mut a, mut b) = Line::pair().unwrap();
    let c2 = config.clone();
    let t = std::thread::spawn(move || {
        let dev = headworks::open(&"soft:h2".parse().unwrap()).unwrap();
        let mut setup = ReceiverSetup::new(&dev, &c2).unwrap();
        let (g, tu) = (setup.greeting(), setup.tuning());
        let hello = b
            .bring_up(dev.info(), setup.queue_pair(), tu, g, deadline)
            .unwrap();
        (setup.finish(&hello.payload).unwrap(), dev)
    });
    let dev = headworks::open(&"soft:h1".parse().unwrap()).unwrap();
    let mut setup = SenderSetup::new(&dev, &config).unwrap();
    let (g, tu) = (setup.greeting(), setup.tuning());
    let hello = a
        .bring_up(dev.info(), setup.queue_pair(), tu, g, deadline)
        .unwrap();
    let mut tx = setup.finish(&hello.payload).unwrap();
    let (mut rx, _d) = t.join().unwrap();
    let s = I::now();
    let (mut ts, mut sum) = (0u128, 0u64);
    for _ in 0..n / 32 {
        let t = I::now();
        for _ in 0..32 {
            tx.try_send(&msg).unwrap();
        }
        ts += t.elapsed().as_nanos();
        for _ in 0..32 {
            let mut k = 0;
            while let None = rx.try_recv().unwrap().map(|m| sum += m[0] as u64) {
                k += 1;
                let r = tx.step();
                if k > 3 {
                    panic!(
                        "{:?} {:?} {} {}",
                        tx.stats(),
                        r,
                        tx.published(),
                        tx.consumed()
                    )
                }
            }
        }
    }
    println!(
        "ring total {:.2} ns, send {:.2} {sum}",
        s.elapsed().as_nanos() as f64 / n as f64,
        ts as f64 / n as f64
    );
}
