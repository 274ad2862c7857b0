//! Latency: a histogram, its quantiles, and an open-loop schedule of intended send times.

use std::fmt;

use hdrhistogram::Histogram as Hdr;
use headworks::verbs::{Instant, time::Duration};
use serde::{Deserialize, Serialize};

/// Longest latency in nanoseconds that is distinguished from longer ones.
const HIGHEST_NANOS: u64 = 60_000_000_000;

/// Histogram of latencies in nanoseconds, to three significant digits.
#[derive(Clone)]
pub struct Histogram(Hdr<u64>);

impl fmt::Debug for Histogram {
    /// Writes the quantiles: there are tens of thousands of counts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.quantiles(1.0))
    }
}

/// The quantiles that are reported.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Quantiles {
    /// Number of latencies.
    pub count: u64,
    /// Median, in nanoseconds.
    pub p50_ns: f64,
    /// 99th percentile, in nanoseconds.
    pub p99_ns: f64,
    /// 99.9th percentile, in nanoseconds.
    pub p999_ns: f64,
    /// Longest latency, in nanoseconds.
    pub max_ns: f64,
    /// Mean latency, in nanoseconds.
    pub mean_ns: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self(Hdr::new_with_max(HIGHEST_NANOS, 3).expect("constant bounds are legal"))
    }
}

impl Histogram {
    /// Adds a latency.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(latency.nanos());
    }

    /// Adds all latencies of another histogram.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        let added = self.0.add(&other.0);
        debug_assert!(added.is_ok());
    }

    /// Returns the recorded values in nanoseconds, each with its number of latencies.
    pub fn recorded(&self) -> Vec<(u64, u64)> {
        let values = self.0.iter_recorded();
        values
            .map(|value| (value.value_iterated_to(), value.count_at_value()))
            .collect()
    }

    /// Adds latencies that [`recorded`](Self::recorded) returned.
    pub fn add_recorded(&mut self, values: &[(u64, u64)]) {
        for (nanos, count) in values {
            self.0.saturating_record_n(*nanos, *count);
        }
    }

    /// Returns the number of latencies.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns whether there are no latencies.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the quantiles, each multiplied by `scale` (0.5 turns a round trip into one way).
    pub fn quantiles(&self, scale: f64) -> Quantiles {
        let at = |q: f64| self.0.value_at_quantile(q) as f64 * scale;
        Quantiles {
            count: self.0.len(),
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.0.max() as f64 * scale,
            mean_ns: self.0.mean() * scale,
        }
    }
}

/// Intended send times of an open-loop load. Latency counts from the intended time even if the sender is
/// late: a stalled system is not asked less often.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    start: Instant,
    per_second: f64,
}

impl Schedule {
    /// Makes a schedule of `per_second` messages, evenly spaced, the first at `start`.
    pub fn new(start: Instant, per_second: f64) -> Self {
        Self {
            start,
            per_second: per_second.max(1.0),
        }
    }

    /// Returns the intended send time of message `index`.
    pub fn intended(&self, index: u64) -> Instant {
        let nanos = index as f64 * 1e9 / self.per_second;
        self.start + Duration::from_nanos(nanos as u64)
    }

    /// Returns how many messages should have been sent by `now`.
    pub fn due(&self, now: Instant) -> u64 {
        if now < self.start {
            return 0;
        }
        (now.since(self.start).as_secs_f64() * self.per_second) as u64 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_known_distribution() {
        let mut h = Histogram::default();
        for n in 1..=1000 {
            h.record(Duration::from_nanos(n));
        }
        let q = h.quantiles(1.0);
        assert_eq!(
            (q.count, q.p50_ns, q.p99_ns, q.p999_ns),
            (1000, 500.0, 990.0, 999.0)
        );
        assert_eq!(h.quantiles(0.5).max_ns, 500.0);
        assert!((h.quantiles(0.5).mean_ns - 250.25).abs() < 0.5);
        assert!(Histogram::default().is_empty());
        let mut copy = Histogram::default();
        copy.add_recorded(&h.recorded());
        assert_eq!(copy.quantiles(1.0), q);
    }

    #[test]
    fn a_stall_is_seen_by_every_message_that_was_due_in_it() {
        // 1 message per microsecond; the sender stalls for 100 us, then sends every message that is due.
        let schedule = Schedule::new(Instant::from_nanos(1_000), 1e6);
        let after = Instant::from_nanos(101_000);
        assert_eq!(schedule.due(Instant::ZERO), 0);
        assert_eq!(schedule.due(after), 101);
        let mut h = Histogram::default();
        for index in 0..schedule.due(after) {
            h.record(after.since(schedule.intended(index)));
        }
        let q = h.quantiles(1.0);
        assert!((49_000.0..51_500.0).contains(&q.p50_ns), "{q:?}");
        assert!(q.max_ns >= 99_900.0, "{q:?}");
    }
}
