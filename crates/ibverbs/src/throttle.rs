//! Limits how often something is done, by the clock: pure.

use std::sync::atomic::{AtomicU64, Ordering};

/// A rate limiter that lets one caller through per period.
pub(crate) struct Throttle {
    period_ms: u64,
    opens_ms: AtomicU64,
}

impl Throttle {
    /// Creates a throttle that is open.
    pub(crate) const fn new(period_ms: u64) -> Self {
        Self {
            period_ms,
            opens_ms: AtomicU64::new(0),
        }
    }

    /// Returns whether a caller at `now_ms` may pass. If so, the throttle closes for a period.
    #[inline]
    pub(crate) fn passes(&self, now_ms: u64) -> bool {
        let opens = self.opens_ms.load(Ordering::Relaxed);
        now_ms >= opens && self.pass(opens, now_ms)
    }

    #[cold]
    fn pass(&self, opens: u64, now_ms: u64) -> bool {
        let next = now_ms.saturating_add(self.period_ms);
        self.opens_ms
            .compare_exchange(opens, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Closes the throttle for a period from `now_ms`.
    pub(crate) fn close(&self, now_ms: u64) {
        let next = now_ms.saturating_add(self.period_ms);
        self.opens_ms.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_passes_per_period() {
        let gate = Throttle::new(100);
        let passed: Vec<_> = (7..500).filter(|&now| gate.passes(now)).collect();
        assert_eq!(passed, [7, 107, 207, 307, 407]);
        assert!(gate.passes(5_000) && !gate.passes(5_000));
        gate.close(6_000);
        assert!(!gate.passes(6_099) && gate.passes(6_100));
    }
}
