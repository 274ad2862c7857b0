//! Bytes that a host's memory has moved, by user. Pure.
//!
//! What RNIC and processors ask for waits until memory has moved it, so no time span has more traffic than the
//! bandwidth allows. Processors come first, but the RNIC keeps its share. An antagonist gets the rest, up to its
//! demand; what it missed it makes up for within an interval.

use super::memory_bandwidth::{INTERVAL, MemoryConstants};
use crate::hardware_units::Ps;

/// Bytes by user.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MemoryBytes {
    pub(crate) rnic: f64,
    pub(crate) processors: f64,
    pub(crate) antagonist: f64,
}

/// The traffic.
#[derive(Debug)]
pub(crate) struct MemoryTraffic {
    constants: MemoryConstants,
    /// Time up to which bytes have been moved.
    at: Ps,
    waiting: MemoryBytes,
    moved: MemoryBytes,
}

impl MemoryTraffic {
    pub(crate) fn new(constants: MemoryConstants) -> Self {
        Self {
            constants,
            at: 0,
            waiting: MemoryBytes::default(),
            moved: MemoryBytes::default(),
        }
    }

    /// Adds bytes that the RNIC asks for.
    pub(crate) fn add_rnic(&mut self, bytes: u64) {
        self.waiting.rnic += bytes as f64;
    }

    /// Adds bytes that processors ask for.
    pub(crate) fn add_processors(&mut self, bytes: u64) {
        self.waiting.processors += bytes as f64;
    }

    /// Moves bytes until `now`, while an antagonist asks for `demand` bytes a picosecond.
    pub(crate) fn advance(&mut self, now: Ps, demand: f64) {
        if now <= self.at {
            return;
        }
        let span = (now - self.at) as f64;
        self.at = now;
        let room = self.constants.bandwidth * span;
        let waiting = &mut self.waiting;
        waiting.antagonist += demand * span;
        let kept = waiting.rnic.min(self.constants.rnic_share * room);
        let processors = waiting.processors.min(room - kept);
        let rnic = waiting.rnic.min(room - processors);
        let antagonist = waiting.antagonist.min(room - processors - rnic);
        waiting.processors -= processors;
        waiting.rnic -= rnic;
        waiting.antagonist = (waiting.antagonist - antagonist).min(demand * INTERVAL as f64);
        self.moved.processors += processors;
        self.moved.rnic += rnic;
        self.moved.antagonist += antagonist;
    }

    /// Returns the bytes that have been moved.
    pub(crate) fn moved(&self) -> MemoryBytes {
        self.moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware_units::NS;
    use proptest::prelude::*;

    const US: Ps = 1000 * NS;

    /// 60 GB/s, of which the RNIC keeps 10 %.
    fn traffic() -> MemoryTraffic {
        MemoryTraffic::new(MemoryConstants {
            bandwidth: 0.06,
            rnic_share: 0.1,
        })
    }

    /// Bytes of all users.
    fn sum(traffic: &MemoryTraffic) -> f64 {
        let MemoryBytes {
            rnic,
            processors,
            antagonist,
        } = traffic.moved();
        rnic + processors + antagonist
    }

    #[test]
    fn a_burst_passes_at_the_bandwidth_and_the_rnic_keeps_its_share() {
        let mut traffic = traffic();
        traffic.add_processors(600_000);
        traffic.add_rnic(60_000);
        traffic.advance(US, 0.06);
        assert_eq!(
            traffic.moved(),
            MemoryBytes {
                rnic: 6_000.0,
                processors: 54_000.0,
                antagonist: 0.0
            }
        );
        traffic.advance(100 * US, 0.06);
        let moved = traffic.moved();
        assert_eq!((moved.rnic, moved.processors), (60_000.0, 600_000.0));
        assert!((sum(&traffic) - 6_000_000.0).abs() < 1e-3, "{moved:?}");
    }

    #[test]
    fn an_antagonist_makes_up_for_what_it_missed_but_not_for_more_than_an_interval() {
        let mut traffic = traffic();
        traffic.add_processors(300_000);
        traffic.advance(5 * US, 0.03);
        assert_eq!(traffic.moved().antagonist, 0.0);
        traffic.advance(20 * US, 0.03);
        assert!((traffic.moved().antagonist - 600_000.0).abs() < 1e-3);
        traffic.add_processors(6_000_000);
        traffic.advance(120 * US, 0.03);
        traffic.advance(200 * US, 0.03);
        let most = 600_000.0 + 300_000.0 + 80.0 * 30_000.0;
        assert!(
            (traffic.moved().antagonist - most).abs() < 1e-3,
            "{:?}",
            traffic.moved()
        );
    }

    proptest! {
        /// Whoever asks for how much and when, no window has more traffic than the bandwidth allows.
        #[test]
        fn no_window_has_more_traffic_than_the_bandwidth_allows(
            steps in proptest::collection::vec(
                (0u64..20_000_000, 0u64..2_000_000, 0u64..2_000_000, 0.0f64..0.06), 1..100,
            ),
        ) {
            let (mut traffic, mut now, mut readings) = (traffic(), 0, vec![(0, 0.0)]);
            for (later, rnic, processors, demand) in steps {
                traffic.add_rnic(rnic);
                traffic.add_processors(processors);
                now += later;
                traffic.advance(now, demand);
                readings.push((now, sum(&traffic)));
            }
            for (at, (from, before)) in readings.iter().enumerate() {
                for (until, after) in &readings[at..] {
                    let most = 0.06 * (until - from) as f64;
                    prop_assert!(after - before <= most + 1e-3, "{} in {}", after - before, until - from);
                }
            }
        }
    }
}
