//! Time that the receive pool takes for an extent.

use std::hint::black_box;
use std::time::{Duration, Instant as Clock};

use headworks::verbs::Instant;
use headworks_rxpool::admission::Class;
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::holdings::{AppId, HeldExtent};
use headworks_rxpool::pool::{AppLimits, ReceivePool};
use headworks_rxpool::units::UNITS_MAX;

use super::batch_times::BatchTimes;
use crate::error::{Result, WorkloadError};

/// Extents in a batch.
const BATCH: usize = 1000;
/// Extents held at the same time.
const HELD: usize = 8;

/// Gets an extent of 256 KiB whose bytes have arrived.
#[inline]
fn get(pool: &mut ReceivePool, app: AppId) -> Option<HeldExtent> {
    let held = pool.get(app, UNITS_MAX).ok()?;
    pool.arrived(app, held, Instant::ZERO).then_some(held)
}

/// Measures for `run` how long it takes to get an extent of 256 KiB, to record its arrival and to release it, while 8
/// extents are held. Returns nanoseconds: the median over batches of 1,000.
pub fn pool_op_ns(run: Duration) -> Result<f64> {
    let failed = || WorkloadError("the receive pool refused an extent".into());
    let mut pool = ReceivePool::new(&PoolConfig::default());
    let app = pool.add(AppLimits {
        class: Class::Normal,
        quota: u32::MAX,
    });
    let mut held = Vec::with_capacity(HELD);
    for _ in 0..HELD {
        held.push(get(&mut pool, app).ok_or_else(failed)?);
    }
    let (mut times, started) = (BatchTimes::default(), Clock::now());
    loop {
        let began = Clock::now();
        for number in 0..BATCH {
            // Not in the order in which they were taken.
            let one = &mut held[number * 5 % HELD];
            let released = pool.release(app, *one, 0, UNITS_MAX);
            if black_box(released).is_err() {
                return Err(failed());
            }
            *one = get(&mut pool, app).ok_or_else(failed)?;
        }
        let has_room = times.record(began.elapsed().as_nanos() as u64);
        if !has_room || started.elapsed() >= run {
            let per_second = times.per_second(BATCH).ok_or_else(failed)?;
            return Ok(1e9 / per_second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_extent_is_measured() {
        let nanos = pool_op_ns(Duration::ZERO).expect("the pool has free memory");
        assert!(nanos > 0.0, "{nanos}");
    }
}
