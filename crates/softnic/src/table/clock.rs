//! The clock of completion timestamps.

use headworks_verbs::Instant;

/// Returns the current time on CLOCK_MONOTONIC.
pub(crate) fn now() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}
