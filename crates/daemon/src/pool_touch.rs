//! Chooses the part of a receive pool that the daemon reads next, so that the processor's cache keeps the pool (Jet, sections
//! 4.3 and 5).
//! Pure: the seed and the time come in.

use headworks_verbs::{Duration, Instant};

/// Chooses units of the pool at random, one each period.
#[derive(Clone, Debug)]
pub(crate) struct PoolTouch {
    /// Zero: never.
    period: Duration,
    next: Instant,
    random: u64,
}

impl PoolTouch {
    /// Makes a chooser. A period of zero chooses nothing.
    pub(crate) fn new(period: Duration, seed: u64) -> Self {
        Self {
            period,
            next: Instant::ZERO,
            random: seed,
        }
    }

    /// Returns the unit to be read now, of `units` units, if one is due. However late the call comes, it is one unit.
    pub(crate) fn due(&mut self, units: u32, now: Instant) -> Option<u32> {
        if self.period == Duration::ZERO || units == 0 || now < self.next {
            return None;
        }
        self.next = now + self.period;
        let high = self.random() >> 32;
        Some(((high * u64::from(units)) >> 32) as u32)
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_period_of_zero_chooses_nothing() {
        let mut touch = PoolTouch::new(Duration::ZERO, 1);
        assert_eq!(touch.due(100, at(5000)), None);
    }

    #[test]
    fn one_unit_is_chosen_each_period() {
        let mut touch = PoolTouch::new(Duration::from_millis(10), 1);
        assert!(touch.due(100, at(0)).is_some());
        assert_eq!(touch.due(100, at(9)), None);
        assert!(touch.due(100, at(10)).is_some());
        // Late calls are not made up for.
        assert!(touch.due(100, at(1000)).is_some());
        assert_eq!(touch.due(100, at(1009)), None);
        assert_eq!(touch.due(0, at(2000)), None, "a pool without memory");
    }

    #[test]
    fn the_same_seed_chooses_the_same_units_and_all_of_them() {
        let choose = |seed| {
            let mut touch = PoolTouch::new(Duration::from_millis(1), seed);
            let units = (0..2000).map(|ms| touch.due(80, at(ms)).expect("is due"));
            units.collect::<Vec<u32>>()
        };
        let units = choose(7);
        assert_eq!(units, choose(7));
        assert_ne!(units, choose(8));
        assert!(units.iter().all(|unit| *unit < 80));
        let all: std::collections::BTreeSet<_> = units.into_iter().collect();
        assert_eq!(all.len(), 80);
    }
}
