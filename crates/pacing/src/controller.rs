//! The rate controller (section IV-D, Algorithm 1): additive increase, additive decrease, pure.

use headworks_verbs::Duration;

use crate::config::PacingConfig;

/// Between these delays the rate stays as it is. Each is a multiple of the base delay, beyond the base delay
/// itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thresholds {
    /// α: the rate rises for delays up to this.
    pub raise_below: f64,
    /// β: the rate falls for delays of this or more.
    pub lower_above: f64,
}

impl Thresholds {
    /// The thresholds for `active` active queue pairs (Eq. 3 and 4).
    ///
    /// β keeps the distance `init_beta − init_alpha` from α. The paper prints β = α + init_α − init_β and
    /// states neither value. That β is above α only if init_α > init_β. The reversed sign is our reading;
    /// with it β starts at `init_beta`.
    pub fn of(config: &PacingConfig, active: u32) -> Self {
        let steps = (f64::from(active) / config.qps_per_step as f64)
            .ceil()
            .max(1.0);
        let raise_below = steps * config.init_alpha;
        Self {
            raise_below,
            lower_above: raise_below + (config.init_beta - config.init_alpha),
        }
    }

    /// Change of the rate, in bytes a second, for a delay that exceeds the base delay by `ratio` base delays.
    pub fn change(&self, config: &PacingConfig, ratio: f64) -> i64 {
        if ratio <= self.raise_below {
            config.inc() as i64
        } else if ratio >= self.lower_above {
            -(config.dec() as i64)
        } else {
            0
        }
    }
}

/// By how many base delays a delay exceeds the base delay. The ratio is 0 if the base delay is zero, which
/// means unknown.
pub fn ratio(delay: Duration, base: Duration) -> f64 {
    match base.nanos() {
        0 => 0.0,
        base => delay.nanos() as f64 / base as f64 - 1.0,
    }
}

/// The rate changed by `by` and clamped to its bounds, in bytes a second.
pub fn changed(config: &PacingConfig, rate: u64, by: i64) -> u64 {
    bounded(config, rate.saturating_add_signed(by))
}

/// The rate clamped to its bounds. A rate that was read from shared memory may have any value.
pub fn bounded(config: &PacingConfig, rate: u64) -> u64 {
    rate.clamp(config.min_rate(), config.line_rate().max(config.min_rate()))
}

/// The rate after a congestion signal.
pub fn cut(config: &PacingConfig, rate: u64) -> u64 {
    bounded(config, (rate as f64 * config.cut_part) as u64)
}

/// Bytes that `active` of `all` active queue pairs may have in flight together if pacing limits the bytes in
/// flight. This is their share of the bytes that are in flight at the line rate with the longest delay for
/// which the rate would rise.
pub fn window(
    config: &PacingConfig,
    base: Duration,
    thresholds: &Thresholds,
    active: u32,
    all: u32,
) -> u64 {
    let delay = base.nanos() as f64 * 1e-9 * (1.0 + thresholds.raise_below);
    let part = f64::from(active) / f64::from(all.max(active).max(1));
    (config.line_rate() as f64 * delay * part) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn thresholds_rise_with_active_queue_pairs_and_keep_their_distance() {
        let config = PacingConfig::default();
        let at = |active| {
            let t = Thresholds::of(&config, active);
            (t.raise_below, t.lower_above)
        };
        assert_eq!(at(0), (2.0, 4.0));
        assert_eq!(at(1024), (2.0, 4.0));
        assert_eq!(at(1025), (4.0, 6.0));
        assert_eq!(at(16_384), (32.0, 34.0));
    }

    #[test]
    fn the_rate_moves_as_algorithm_1_says() {
        let config = PacingConfig::default();
        let t = Thresholds::of(&config, 1);
        assert_eq!(t.change(&config, 2.0), config.inc() as i64);
        assert_eq!(t.change(&config, 3.0), 0);
        assert_eq!(t.change(&config, 4.0), -(config.dec() as i64));
        let us = Duration::from_micros;
        assert_eq!(ratio(us(6), us(2)), 2.0);
        assert_eq!(ratio(us(6), Duration::ZERO), 0.0);
    }

    /// Simulates a delay that grows linearly with the rate, and returns the lowest and the highest rate after
    /// it settled.
    fn settle(config: &PacingConfig, base_us: u64, slope: f64, start: u64) -> (u64, u64) {
        let t = Thresholds::of(config, 1);
        let base = Duration::from_micros(base_us);
        let delay = |rate: u64| {
            Duration::from_nanos((base.nanos() as f64 * (1.0 + slope * rate as f64)) as u64)
        };
        let mut rate = start;
        for _ in 0..200_000 {
            rate = changed(config, rate, t.change(config, ratio(delay(rate), base)));
        }
        let (mut low, mut high) = (rate, rate);
        for _ in 0..1_000 {
            rate = changed(config, rate, t.change(config, ratio(delay(rate), base)));
            (low, high) = (low.min(rate), high.max(rate));
        }
        (low, high)
    }

    proptest! {
        #[test]
        fn the_rate_stays_in_its_bounds_for_any_delays(
            ratios in proptest::collection::vec(-1.0..1e9_f64, 1..200),
            start in any::<u64>(),
            active in 0..100_000_u32,
            cuts in proptest::collection::vec(any::<bool>(), 200),
        ) {
            let config = PacingConfig::default();
            let t = Thresholds::of(&config, active);
            prop_assert!(t.raise_below <= t.lower_above);
            let mut rate = bounded(&config, start);
            for (ratio, is_cut) in ratios.into_iter().zip(cuts) {
                rate = match is_cut {
                    true => cut(&config, rate),
                    false => changed(&config, rate, t.change(&config, ratio)),
                };
                prop_assert!((config.min_rate()..=config.line_rate()).contains(&rate));
            }
        }

        #[test]
        fn it_settles_when_delay_rises_with_rate(
            base_us in 1..50_u64,
            // The range covers delays that never reach the thresholds and delays that exceed them at the
            // lowest rate.
            slope in 1e-11..1e-7_f64,
            start in 0..12_500_000_000_u64,
        ) {
            let config = PacingConfig { min_rate_gbps: 0.01, ..PacingConfig::default() };
            let (low, high) = settle(&config, base_us, slope, bounded(&config, start));
            prop_assert!(high - low <= config.inc().max(config.dec()), "{low} to {high}");
        }

        #[test]
        fn windows_of_all_together_are_one_window(parts in proptest::collection::vec(1..1000_u32, 1..20)) {
            let config = PacingConfig::default();
            let all: u32 = parts.iter().sum();
            let t = Thresholds::of(&config, all);
            let base = Duration::from_micros(2);
            let whole = window(&config, base, &t, all, all);
            let sum: u64 = parts.iter().map(|part| window(&config, base, &t, *part, all)).sum();
            prop_assert!(sum <= whole, "{sum} of {whole}");
        }
    }
}
