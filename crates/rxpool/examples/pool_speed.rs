//! Prints how long it takes to get and to release an extent of the pool, as a median over rounds.

use std::hint::black_box;
use std::time::Instant as Clock;

use headworks_rxpool::admission::Class;
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::pool::{AppLimits, ReceivePool};
use headworks_rxpool::units::UNIT;
use headworks_verbs::Instant;

/// Pairs of calls in a round, and rounds.
const PAIRS: u32 = 1000;
const ROUNDS: usize = 1001;
/// Extents held at the same time.
const HELD: usize = 8;

fn main() {
    println!("get and release of an extent, {HELD} held at the same time:");
    for units in [1, 4, 16, 17, 64] {
        let mut pool = ReceivePool::new(&PoolConfig {
            budget: 12 << 20,
            ..PoolConfig::default()
        });
        let app = pool.add(AppLimits {
            class: Class::Normal,
            quota: u32::MAX,
        });
        let get = |pool: &mut ReceivePool| {
            let held = pool.get(app, units).expect("free");
            assert!(pool.arrived(app, held, Instant::ZERO));
            held
        };
        let mut held: Vec<_> = (0..HELD).map(|_| get(&mut pool)).collect();
        let mut rounds: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let began = Clock::now();
                for pair in 0..PAIRS as usize {
                    let one = &mut held[pair * 5 % HELD];
                    let released = pool.release(app, *one, 0, units);
                    assert!(black_box(released).is_ok());
                    *one = get(&mut pool);
                }
                began.elapsed().as_nanos() as f64 / f64::from(PAIRS)
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        let bytes = units * UNIT;
        println!("  {bytes:>7} bytes: {:5.1} ns", rounds[ROUNDS / 2]);
    }
}
