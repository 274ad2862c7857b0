//! The real clock: the one place that reads it.

use headworks_verbs::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Reads CLOCK_MONOTONIC. All processes of one machine can compare its times until the next boot.
pub fn now() -> Instant {
    let t = clock_gettime(ClockId::Monotonic);
    // Neither part is ever negative on this clock.
    Instant::from_nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn does_not_go_back() {
        let first = super::now();
        assert!(super::now() >= first);
    }
}
