//! Limits of the machine itself, without any channel: a cache line's round trip between two processors, and a
//! copy between two arrays. Threads suffice: processes would see the same.

use std::any::Any;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::cpu_affinity::pin;
use crate::error::{Result, WorkloadError};
use crate::stats::median;

/// Round trips between two clock reads.
const BATCH: u64 = 200;

/// A flag on its own cache line (two lines, because the prefetcher takes them in pairs).
#[repr(align(128))]
struct Flag(AtomicU64);

/// Returns the nanoseconds that a cache line takes from one processor to another: half of its round trip,
/// measured for `run`, as the median over batches.
pub fn half_cache_line_round_trip(cpus: [usize; 2], run: Duration) -> Result<f64> {
    let flags = [Flag(AtomicU64::new(0)), Flag(AtomicU64::new(0))];
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = pin(cpus[1]);
            let mut expected = 1;
            loop {
                let seen = flags[0].0.load(Ordering::Acquire);
                if seen == u64::MAX {
                    return pinned;
                }
                if seen == expected {
                    flags[1].0.store(seen, Ordering::Release);
                    expected += 1;
                } else {
                    spin_loop();
                }
            }
        });
        let ask = scope.spawn(|| {
            let pinned = pin(cpus[0]);
            let (mut samples, mut next) = (Vec::new(), 1);
            let began = Instant::now();
            while began.elapsed() < run || samples.len() < 8 {
                let start = Instant::now();
                for _ in 0..BATCH {
                    flags[0].0.store(next, Ordering::Release);
                    while flags[1].0.load(Ordering::Acquire) != next {
                        spin_loop();
                    }
                    next += 1;
                }
                samples.push(start.elapsed().as_nanos() as f64 / BATCH as f64 / 2.0);
            }
            flags[0].0.store(u64::MAX, Ordering::Release);
            pinned.map(|()| median(&samples).unwrap_or(f64::NAN))
        });
        echo.join().map_err(failed)??;
        ask.join().map_err(failed)?
    })
}

/// Returns copies of `size` bytes per second, slot by slot from one array of `slots` slots to another, again
/// and again: the upper bound for a ring's own copy.
pub fn array_to_array(cpu: usize, size: usize, slots: usize, run: Duration) -> Result<f64> {
    let work = || {
        pin(cpu)?;
        let from = vec![1_u8; size * slots];
        let mut to = vec![0_u8; size * slots];
        let mut lap = || {
            for (from, to) in from.chunks_exact(size).zip(to.chunks_exact_mut(size)) {
                black_box(&mut *to).copy_from_slice(black_box(from));
            }
        };
        lap();
        let (began, mut copies) = (Instant::now(), 0);
        while copies == 0 || began.elapsed() < run {
            lap();
            copies += slots;
        }
        Ok(copies as f64 / began.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| scope.spawn(work).join().map_err(failed)?)
}

fn failed(_: Box<dyn Any + Send>) -> WorkloadError {
    WorkloadError("a measuring thread failed".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measure_something() {
        let copies = array_to_array(0, 4096, 4, Duration::from_millis(2)).unwrap();
        assert!(copies > 0.0);
        if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
            let nanos = half_cache_line_round_trip([0, 1], Duration::from_millis(2)).unwrap();
            assert!(nanos > 0.0);
        }
    }
}
