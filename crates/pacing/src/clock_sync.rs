//! Synchronisation of the device's clock with the host's (section IV-B), pure.
//!
//! Reading the device's clock is slow, so it is read rarely. Each reading lies between two readings of the
//! host's clock. The closer those two are, the more exact is the comparison. Between comparisons the drift is
//! assumed to be constant.

use headworks_verbs::{Duration, Instant};

use crate::config::PacingConfig;

/// Upper bound of the relative drift of two clocks. Crystals are accurate to 1e-4; a larger measured drift
/// comes from a bad comparison.
const DRIFT_MAX: f64 = 1e-3;

/// Offset and drift of the device's clock relative to the host's.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClockSync {
    last: Option<ClockPair>,
    /// Relative drift: how much faster the device's clock runs than the host's, as a fraction.
    drift: f64,
    requests: u64,
}

#[derive(Clone, Copy, Debug)]
struct ClockPair {
    host: i128,
    device: i128,
}

impl ClockSync {
    /// Counts `requests` more posted requests. Returns whether a comparison of the clocks is due.
    #[inline]
    pub fn is_due(&mut self, requests: u64, now: Instant, config: &PacingConfig) -> bool {
        self.requests += requests;
        let Some(last) = &self.last else {
            return true;
        };
        let since = i128::from(now.nanos()) - last.host;
        self.requests >= config.sync_every || since >= i128::from(config.sync_ms * 1_000_000)
    }

    /// Records a reading of the device's clock that was taken between two readings of the host's clock.
    pub fn compare(&mut self, before: Instant, device: Instant, after: Instant) {
        let host = (i128::from(before.nanos()) + i128::from(after.nanos())) / 2;
        let device = device.nanos().into();
        if let Some(last) = self.last
            && host > last.host
        {
            let span = (host - last.host) as f64;
            let drift = (device - last.device) as f64 / span - 1.0;
            // Over a short span, the duration of the readings is an error larger than any drift.
            let is_long = span > 100.0 * after.since(before).nanos() as f64;
            if is_long && drift.abs() < DRIFT_MAX {
                self.drift = drift;
            }
        }
        self.last = Some(ClockPair { host, device });
        self.requests = 0;
    }

    /// Converts an instant of the device's clock to the host's clock. `None` before the first comparison.
    #[inline]
    pub fn on_host(&self, device: Instant) -> Option<Instant> {
        let last = self.last.as_ref()?;
        let since = (i128::from(device.nanos()) - last.device) as i64 as f64;
        let host = last.host + (since - since * self.drift) as i128;
        Some(Instant::from_nanos(u64::try_from(host).unwrap_or(0)))
    }
}

/// Time from a doorbell to a completion. `None` if the completion seems to precede the doorbell.
pub fn between(doorbell: u64, completed: Instant) -> Option<Duration> {
    (completed.nanos() >= doorbell).then(|| Duration::from_nanos(completed.nanos() - doorbell))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_drifting_clock_is_followed(
            offset in -1_000_000_000_i64..1_000_000_000,
            drift in -5e-4..5e-4_f64,
            reading in 0..2_000_u64,
        ) {
            let config = PacingConfig::default();
            let start = 2_000_000_000_u64;
            let device = |host: u64| (host as f64 + offset as f64 + (host - start) as f64 * drift) as u64;
            let mut sync = ClockSync::default();
            prop_assert!(sync.is_due(0, Instant::from_nanos(start), &config));
            for round in 0..5_u64 {
                let host = start + round * 10_000_000;
                let read = Instant::from_nanos(device(host + reading / 2));
                sync.compare(Instant::from_nanos(host), read, Instant::from_nanos(host + reading));
                if round > 0 {
                    let later = host + 5_000_000;
                    let found = sync.on_host(Instant::from_nanos(device(later))).unwrap().nanos();
                    // The error is below half a microsecond five milliseconds after a comparison.
                    prop_assert!(found.abs_diff(later) < 500, "{found} for {later}");
                }
            }
        }
    }

    #[test]
    fn it_is_due_by_requests_and_by_time() {
        let config = PacingConfig::default();
        let mut sync = ClockSync::default();
        let at = Instant::from_nanos;
        sync.compare(at(0), at(0), at(0));
        assert!(!sync.is_due(999, at(5), &config));
        assert!(sync.is_due(1, at(5), &config));
        sync.compare(at(5), at(5), at(5));
        assert!(!sync.is_due(0, at(6), &config));
        assert!(sync.is_due(0, at(10_000_005), &config));
        assert_eq!(between(10, at(9)), None);
        assert_eq!(between(10, at(12)), Some(Duration::from_nanos(2)));
    }
}
