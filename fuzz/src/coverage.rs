//! Edge coverage: which edges of the code an input took. Only instrumented builds count edges.
//!
//! `cargo xtask fuzz` makes an instrumented build with a pass of the stable compiler (`sancov-module` with
//! inline 8-bit counters). An ordinary build counts nothing.
#![allow(
    unsafe_code,
    reason = "the counters are memory that the linker lays out"
)]

use std::sync::OnceLock;

/// Start and length of the section in which the linker puts the counters of all modules.
static COUNTERS: OnceLock<(usize, usize)> = OnceLock::new();

/// Receives the bounds of the section. Every instrumented module calls it before `main`.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    COUNTERS.get_or_init(|| (start.addr(), stop.addr() - start.addr()));
}

/// Returns whether this build counts edges.
pub fn is_counted() -> bool {
    COUNTERS.get().is_some_and(|(_, len)| *len > 0)
}

fn counters() -> &'static [std::sync::atomic::AtomicU8] {
    let Some(&(start, len)) = COUNTERS.get() else {
        return &[];
    };
    let start = std::ptr::with_exposed_provenance(start);
    // SAFETY: the instrumented modules passed the bounds of this section, which exists until the process ends.
    // The instrumentation counts without atomic instructions, so of two simultaneous counts one may be lost.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// Coverage of all inputs so far: for each edge, a bit set of the magnitudes of its counts.
#[derive(Debug, Default)]
pub struct EdgeCoverage(Vec<u8>);

impl EdgeCoverage {
    /// Resets the counters.
    pub fn start() {
        for counter in counters() {
            counter.store(0, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Adds the counts since [`start`](Self::start). Returns whether they contain an edge or a magnitude that is
    /// new.
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

    /// Returns the number of edges that were taken.
    pub fn edges(&self) -> usize {
        self.0.iter().filter(|seen| **seen != 0).count()
    }
}
