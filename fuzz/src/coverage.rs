//! Which edges of the code an input went over, where the build counts them.
//!
//! `cargo xtask fuzz` builds with the compiler's own pass for that (`sancov-module` with inline 8-bit
//! counters), which the stable compiler has. An ordinary build counts nothing.
#![allow(
    unsafe_code,
    reason = "the counters are memory that the linker lays out"
)]

use std::sync::OnceLock;

/// Where the counters are: all modules' lie in one section.
static COUNTERS: OnceLock<(usize, usize)> = OnceLock::new();

/// Called by every instrumented module before `main`, with the bounds of the section.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    COUNTERS.get_or_init(|| (start.addr(), stop.addr() - start.addr()));
}

/// Whether this build counts edges.
pub fn is_counted() -> bool {
    COUNTERS.get().is_some_and(|(_, len)| *len > 0)
}

fn counters() -> &'static [std::sync::atomic::AtomicU8] {
    let Some(&(start, len)) = COUNTERS.get() else {
        return &[];
    };
    let start = std::ptr::with_exposed_provenance(start);
    // SAFETY: the section that the instrumented modules told of, there for ever. They count without
    // atomic instructions, and two that count at once lose one.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// Everything seen so far: per edge, which magnitudes of counts.
#[derive(Debug, Default)]
pub struct EdgeCoverage(Vec<u8>);

impl EdgeCoverage {
    /// Forgets what was counted until now.
    pub fn start() {
        for counter in counters() {
            counter.store(0, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Adds what was counted since; says whether there was something new.
    pub fn add(&mut self) -> bool {
        let counters = counters();
        self.0.resize(counters.len(), 0);
        let mut new = false;
        for (seen, counter) in self.0.iter_mut().zip(counters) {
            let count = counter.load(std::sync::atomic::Ordering::Relaxed);
            let magnitude = match count {
                0 => continue,
                1 => 1,
                2..8 => 2,
                8..64 => 4,
                _ => 8,
            };
            new |= *seen & magnitude == 0;
            *seen |= magnitude;
        }
        new
    }

    /// How many edges were seen.
    pub fn edges(&self) -> usize {
        self.0.iter().filter(|seen| **seen != 0).count()
    }
}
