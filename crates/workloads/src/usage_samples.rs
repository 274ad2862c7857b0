//! Samples of a simulated machine's counters over a run, from which the usage of a measured interval is
//! computed.

use headworks::sim::{Usage, UsageMonitor};

/// Maximum number of samples kept. When it is reached, every other sample is dropped, and samples are taken
/// half as often.
const LOOKS: usize = 64;
/// Time between the first samples, in picoseconds: 20 µs.
const FIRST_EVERY: u64 = 20_000_000;
/// Picoseconds in a nanosecond.
const NS: u64 = 1_000;

/// Samples of the usage, at about equal intervals.
#[derive(Debug)]
pub struct UsageSamples {
    every: u64,
    taken: Vec<Usage>,
}

impl Default for UsageSamples {
    fn default() -> Self {
        Self {
            every: FIRST_EVERY,
            taken: Vec::new(),
        }
    }
}

impl UsageSamples {
    /// Returns the time until the next sample is due, in nanoseconds.
    pub fn pause_ns(&self) -> u64 {
        self.every / NS
    }

    /// Takes a sample if one is due.
    pub fn sample(&mut self, usage_monitor: &UsageMonitor) {
        if let Some(usage) = usage_monitor.now() {
            self.note(usage);
        }
    }

    fn note(&mut self, usage: Usage) {
        let last = self.taken.last().map(|usage| usage.over);
        if last.is_some_and(|last| usage.over.saturating_sub(last) < self.every) {
            return;
        }
        self.taken.push(usage);
        if self.taken.len() > LOOKS {
            let mut number = 0;
            self.taken.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
    }

    /// Returns the usage between the first and the last sample in an interval, in nanoseconds. If there are
    /// no two samples in it, returns the usage between the last sample before it, or the beginning, and the
    /// first after it, or the last of all. `None` without any sample.
    pub fn between(&self, began_ns: u64, ended_ns: u64) -> Option<Usage> {
        let within = |usage: &&Usage| (began_ns..=ended_ns).contains(&(usage.over / NS));
        let first = self.taken.iter().find(within);
        let last = self.taken.iter().rfind(within);
        match (first, last) {
            (Some(first), Some(last)) if last.over > first.over => Some(last.since(first)),
            _ => self.around(began_ns, ended_ns),
        }
    }

    fn around(&self, began_ns: u64, ended_ns: u64) -> Option<Usage> {
        let behind = self.taken.iter().find(|usage| usage.over / NS > ended_ns);
        let behind = behind.or_else(|| self.taken.last())?;
        let is_before = |usage: &&Usage| usage.over / NS < began_ns && usage.over < behind.over;
        Some(match self.taken.iter().rfind(is_before) {
            Some(before) => behind.since(before),
            None => behind.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::sim::Counters;
    use headworks::sim::utilisation::HostUsage;

    /// Usage of a machine that has counted one request per microsecond.
    fn up_to(micros: u64) -> Usage {
        let counters = Counters {
            requests: micros,
            ..Counters::default()
        };
        Usage {
            over: micros * 1_000_000,
            hosts: vec![HostUsage {
                host: "a".to_owned(),
                counters,
                receiving: None,
                units: Vec::new(),
            }],
            actors: Vec::new(),
        }
    }

    #[test]
    fn usage_samples_stay_few_and_within_the_requested_span() {
        let mut looks = UsageSamples::default();
        for micros in 0..100_000 {
            looks.note(up_to(micros));
        }
        assert!((LOOKS / 2..=LOOKS).contains(&looks.taken.len()));
        assert!(looks.taken.is_sorted_by_key(|usage| usage.over));
        let found = looks.between(20_000_000, 60_000_000).unwrap();
        let micros = found.over / 1_000_000;
        assert!((34_000..=40_000).contains(&micros), "{micros}");
        assert_eq!(found.hosts[0].counters.requests, micros);
        // Too short to hold two samples: those on either side are used.
        let every = looks.every / 1_000_000;
        let around = looks.between(20_000_000, 20_000_001).unwrap();
        let micros = around.over / 1_000_000;
        assert!((every..=2 * every + 40).contains(&micros), "{micros}");
        assert_eq!(around.hosts[0].counters.requests, micros);
        // No sample after the interval, or none before it.
        let last = looks.between(99_999_999, u64::MAX).unwrap();
        assert!(last.over < 100_000_000 * 1_000 / 2, "{}", last.over);
        let first = looks.between(0, 1).unwrap();
        assert_eq!(first.over / 1_000_000, looks.taken[1].over / 1_000_000);
        assert_eq!(UsageSamples::default().between(0, u64::MAX), None);
    }
}
