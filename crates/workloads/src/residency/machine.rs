//! The machine itself: how fast memory of some size is read again and again, how much memory bandwidth one core and two
//! cores have, and a thread that uses memory bandwidth while something else is measured.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headworks_baselines::WordMemory;

use super::batch_times::BatchTimes;
use crate::cpu_affinity::pin;
use crate::error::{Result, WorkloadError};

/// Words of a cache line.
const LINE_WORDS: usize = 64 / size_of::<u64>();
/// Bytes of memory that [`MemoryLoad`] uses: 128 MB, as the paper's load (RDT membw).
const CHUNK: usize = 128_000_000;
/// Bytes and words between two looks at the stop flag: 1 MiB.
const BLOCK: usize = 1 << 20;
const BLOCK_WORDS: usize = BLOCK / size_of::<u64>();

/// Sets a flag when it is dropped, also by a panic.
pub(super) struct SetOnDrop<'a>(pub(super) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Reads one word of each cache line and returns the sum.
#[inline]
pub(super) fn scan(words: &[AtomicU64]) -> u64 {
    let lines = words.iter().step_by(LINE_WORDS);
    lines.fold(0, |sum, word| {
        sum.wrapping_add(word.load(Ordering::Relaxed))
    })
}

/// Reads all of `memory` again and again for `run`, on processor `cpu`. Returns bytes per second: the median over
/// passes.
pub fn scan_rate(memory: &WordMemory, cpu: usize, run: Duration) -> Result<f64> {
    let len = memory.region().len();
    let words = memory.words(0, len / size_of::<u64>());
    let measured = std::thread::scope(|scope| {
        let scanning = scope.spawn(move || -> Result<BatchTimes> {
            pin(cpu)?;
            let mut times = BatchTimes::default();
            // The first two passes bring the memory into the cache.
            let mut passes = -2;
            let mut started = Instant::now();
            loop {
                let began = Instant::now();
                black_box(scan(words));
                let nanos = began.elapsed().as_nanos() as u64;
                passes += 1;
                if passes <= 0 {
                    started = Instant::now();
                } else if !times.record(nanos) || started.elapsed() >= run {
                    return Ok(times);
                }
            }
        });
        scanning.join().map_err(|_| panicked())?
    });
    let rate = measured?.per_second(len);
    rate.ok_or_else(|| WorkloadError("nothing was scanned".into()))
}

fn panicked() -> WorkloadError {
    WorkloadError("a measuring thread panicked".into())
}

/// Bytes that a thread reads and writes per second. Each byte of memory counts twice: it is read and written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryRate {
    /// Over the whole time, also while other programs had the processor: what a measurement beside it had to bear.
    pub mean: f64,
    /// Of the median MiB: what the machine does while the thread runs.
    pub median: f64,
}

/// Memory that a thread reads and writes, to use memory bandwidth.
pub struct MemoryLoad {
    chunk: Vec<u64>,
}

impl Default for MemoryLoad {
    fn default() -> Self {
        Self {
            // Not zero, so that all of it is written now.
            chunk: vec![1; CHUNK / size_of::<u64>()],
        }
    }
}

impl MemoryLoad {
    /// Reads and writes the memory, a word of each cache line, until `over` is set. Sets `is_running` when it has begun.
    pub fn run(&mut self, is_running: &AtomicBool, over: &AtomicBool) -> MemoryRate {
        let mut times = BatchTimes::default();
        let began = Instant::now();
        let mut last = began;
        let mut count = 0_u64;
        let mut blocks = 0..0;
        while !over.load(Ordering::Relaxed) {
            if blocks.is_empty() {
                blocks = 0..self.chunk.len() / BLOCK_WORDS;
            }
            let Some(at) = blocks.next() else { break };
            let block = &mut self.chunk[at * BLOCK_WORDS..][..BLOCK_WORDS];
            for word in block.iter_mut().step_by(LINE_WORDS) {
                *word = word.wrapping_add(1);
            }
            let now = Instant::now();
            times.record((now - last).as_nanos() as u64);
            last = now;
            count += 1;
            is_running.store(true, Ordering::Relaxed);
        }
        black_box(&self.chunk);
        let bytes = (2 * count * BLOCK as u64) as f64;
        MemoryRate {
            mean: bytes / began.elapsed().as_secs_f64(),
            median: times.per_second(2 * BLOCK).unwrap_or(0.0),
        }
    }
}

/// Has each of `cpus` read and write a load's memory for `run` after all have begun. Returns the bytes that they read
/// and wrote per second: the sum of their medians.
pub fn memory_rate(loads: &mut [MemoryLoad], cpus: &[usize], run: Duration) -> Result<f64> {
    let over = AtomicBool::new(false);
    let running: Vec<AtomicBool> = loads.iter().zip(cpus).map(|_| false.into()).collect();
    std::thread::scope(|scope| {
        let over = &over;
        let each = loads.iter_mut().zip(cpus).zip(&running);
        let threads = each.map(|((load, cpu), is_running)| {
            scope.spawn(move || -> Result<f64> {
                let _running = SetOnDrop(is_running);
                pin(*cpu)?;
                Ok(load.run(is_running, over).median)
            })
        });
        let threads: Vec<_> = threads.collect();
        while !running.iter().all(|is| is.load(Ordering::Acquire)) {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(run);
        over.store(true, Ordering::Relaxed);
        let rates = threads.into_iter();
        rates
            .map(|thread| thread.join().map_err(|_| panicked())?)
            .sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_reads_one_word_of_each_line() {
        let words: Vec<AtomicU64> = (0..32).map(AtomicU64::new).collect();
        assert_eq!(scan(&words), 8 + 16 + 24);
    }

    #[test]
    fn a_load_runs_until_it_is_told_to_stop() {
        let mut loads = [MemoryLoad::default()];
        let cpus = crate::cpu_affinity::two_cpus();
        let rate = memory_rate(&mut loads, &cpus, Duration::from_millis(5));
        assert!(rate.expect("a processor") > 0.0);
    }
}
