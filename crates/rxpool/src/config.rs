//! Sizes and parameters of the pool: meaning, unit, range, default. The paper states the sizes and the windows; the
//! five parameters of Algorithm 1 have values of ours.

use headworks_verbs::Duration;

use crate::units::{EXTENT_MAX, UNIT, UNITS_MAX, units_of};

/// Sizes and parameters of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolConfig {
    /// Bytes of the pool: 262,144 to 1,073,741,824, a multiple of 4,096. Default 8,388,608 (section 4.1.3: 32
    /// transfers of 256 KiB). Choose about what is in use at the same time: rate times the time that data stays.
    pub budget: u64,
    /// READs in flight, and transfers admitted, at most: 1 to 1,024. Default 32 (section 4.1.2).
    pub reads: u32,
    /// Bytes of READs in flight at most: 262,144 to 1,073,741,824. Default 8,388,608 (section 4.1.2).
    pub read_bytes: u64,
    /// Bytes of a READ at most: 4,096 to 262,144, a multiple of 4,096. Default 262,144 (section 4.1.2).
    pub fragment: u32,
    /// CACHE_SAFE: the pool is short when fewer bytes are free: 8,192 to the budget, a multiple of 4,096. Default a
    /// quarter of the budget.
    pub cache_safe: Option<u64>,
    /// CACHE_DANGER: the pool is in danger when fewer bytes are free: less than `cache_safe`, a multiple of 4,096.
    /// Default a quarter of `cache_safe`.
    pub cache_danger: Option<u64>,
    /// MEM_ESC: bytes of ordinary memory that may replace stragglers at the same time, 0 to the budget, a multiple of
    /// 4,096. Default a quarter of the budget.
    pub mem_esc: Option<u64>,
    /// CREDIT: part of what an application holds, in percent, above which stragglers make it a slow one: 0 to 100.
    /// Default 50.
    pub credit: u32,
    /// Straggler time: how long an extent may be held before it counts as a straggler: 10 µs to 10 s. Default 2 ms.
    /// The paper's data stays for hundreds of microseconds (section 2.2).
    pub straggler_time: Duration,
    /// How long an application may go on holding most of what it has as stragglers after it was to be copied out, while the
    /// pool is short: 10 µs to 1 h. Then its connections are to be reset. Default 10 s.
    pub reset_time: Duration,
    /// Least time between two signals to the senders: 10 µs to 10 s. Default 1 ms.
    pub signal_interval: Duration,
    /// For comparison: memory is handed out in turn, from the pool's first unit to its last, instead of where it was
    /// released most recently. A pool that is longer than the processor's cache then behaves as rings of that length.
    /// Default no.
    pub is_in_turn: bool,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            budget: 8 << 20,
            reads: 32,
            read_bytes: 8 << 20,
            fragment: EXTENT_MAX,
            cache_safe: None,
            cache_danger: None,
            mem_esc: None,
            credit: 50,
            straggler_time: Duration::from_micros(2000),
            reset_time: Duration::from_secs(10),
            signal_interval: Duration::from_micros(1000),
            is_in_turn: false,
        }
    }
}

/// Error: a value that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}: {allowed}")]
pub struct PoolConfigError {
    /// Key of the setting.
    pub key: &'static str,
    /// Value that was given.
    pub value: u64,
    /// Values that are allowed.
    pub allowed: String,
}

/// Least and greatest budget in bytes.
const BUDGET: (u64, u64) = (EXTENT_MAX as u64, 1 << 30);
/// Least and greatest time in nanoseconds.
const TIME: (u64, u64) = (10_000, 10_000_000_000);
/// Longest [`PoolConfig::reset_time`] in nanoseconds.
const RESET_TIME_MAX: u64 = 3_600_000_000_000;

/// Checks that a value is from `least` to `most`, and a multiple of `multiple`.
pub(crate) fn check_number(
    key: &'static str,
    value: u64,
    least: u64,
    most: u64,
    multiple: u64,
) -> Result<(), PoolConfigError> {
    if (least..=most).contains(&value) && value.is_multiple_of(multiple) {
        return Ok(());
    }
    let of = match multiple {
        1 => String::new(),
        _ => format!(", a multiple of {multiple}"),
    };
    let allowed = format!("{least} to {most}{of}");
    Err(PoolConfigError {
        key,
        value,
        allowed,
    })
}

/// Rounds bytes down to whole units.
fn whole_units(bytes: u64) -> u64 {
    bytes / u64::from(UNIT) * u64::from(UNIT)
}

impl PoolConfig {
    /// Checks that all values are allowed.
    ///
    /// # Errors
    ///
    /// [`PoolConfigError`] for the first value that is not.
    pub fn check(&self) -> Result<(), PoolConfigError> {
        let unit = u64::from(UNIT);
        let (safe, danger) = (self.safe_bytes(), self.danger_bytes());
        // Key, value, least, greatest, and what the value must be a multiple of.
        let numbers = [
            ("budget", self.budget, BUDGET.0, BUDGET.1, unit),
            ("reads", self.reads.into(), 1, 1024, 1),
            (
                "read_bytes",
                self.read_bytes,
                EXTENT_MAX.into(),
                BUDGET.1,
                1,
            ),
            (
                "fragment",
                self.fragment.into(),
                unit,
                EXTENT_MAX.into(),
                unit,
            ),
            ("cache_safe", safe, 2 * unit, self.budget, unit),
            ("cache_danger", danger, 0, safe.saturating_sub(unit), unit),
            ("mem_esc", self.mem_esc_bytes(), 0, self.budget, unit),
            ("credit", self.credit.into(), 0, 100, 1),
            (
                "straggler_time",
                self.straggler_time.nanos(),
                TIME.0,
                TIME.1,
                1,
            ),
            (
                "reset_time",
                self.reset_time.nanos(),
                TIME.0,
                RESET_TIME_MAX,
                1,
            ),
            (
                "signal_interval",
                self.signal_interval.nanos(),
                TIME.0,
                TIME.1,
                1,
            ),
        ];
        for (key, value, least, most, multiple) in numbers {
            check_number(key, value, least, most, multiple)?;
        }
        Ok(())
    }

    fn safe_bytes(&self) -> u64 {
        self.cache_safe
            .unwrap_or_else(|| whole_units(self.budget / 4))
    }

    fn danger_bytes(&self) -> u64 {
        let quarter = whole_units(self.safe_bytes() / 4);
        self.cache_danger.unwrap_or(quarter)
    }

    /// Bytes of ordinary memory that may replace stragglers.
    pub fn mem_esc_bytes(&self) -> u64 {
        self.mem_esc.unwrap_or_else(|| whole_units(self.budget / 4))
    }

    /// Units of the pool.
    pub fn budget_units(&self) -> u32 {
        units_of(self.budget) as u32
    }

    /// The first unit of those that may replace stragglers: the first of a block, behind the pool's own.
    pub fn reserve_from(&self) -> u32 {
        self.budget_units().next_multiple_of(UNITS_MAX)
    }

    /// Units of memory that the pool needs: its own, and those that may replace stragglers.
    pub fn memory_units(&self) -> u32 {
        self.reserve_from() + units_of(self.mem_esc_bytes()) as u32
    }

    /// Parameters of the escape controller.
    pub fn escape(&self) -> EscapeConfig {
        let (safe, danger) = (self.safe_bytes(), self.danger_bytes());
        EscapeConfig {
            cache_safe_units: units_of(safe) as u32,
            cache_danger_units: units_of(danger) as u32,
            mem_esc_units: units_of(self.mem_esc_bytes()) as u32,
            credit: self.credit,
            straggler_time: self.straggler_time,
            // A quarter of the distance between the thresholds, and no more than an empty pool has.
            margin_units: units_of(((safe - danger.min(safe)) / 4).min(self.budget - safe)) as u32,
            signal_interval: self.signal_interval,
        }
    }
}

/// Parameters of the escape controller. Lengths are in [units](UNIT) of the pool, not in bytes as in [`PoolConfig`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EscapeConfig {
    /// Units: the pool is short when fewer are free. See [`PoolConfig::cache_safe`].
    pub cache_safe_units: u32,
    /// Units: the pool is in danger when fewer are free. See [`PoolConfig::cache_danger`].
    pub cache_danger_units: u32,
    /// Units of ordinary memory that may replace stragglers at the same time. See [`PoolConfig::mem_esc`].
    pub mem_esc_units: u32,
    /// Percent of what an application holds. See [`PoolConfig::credit`].
    pub credit: u32,
    /// How long an extent may be held before it counts as a straggler. See [`PoolConfig::straggler_time`].
    pub straggler_time: Duration,
    /// Units by which the level must rise above a threshold before it counts as being above (hysteresis).
    pub margin_units: u32,
    /// Least time between two signals to the senders. See [`PoolConfig::signal_interval`].
    pub signal_interval: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_named_with_what_is_allowed() {
        let wrong = |change: fn(&mut PoolConfig)| {
            let mut config = PoolConfig::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(
            wrong(|config| config.budget = 5000),
            "budget is 5000: 262144 to 1073741824, a multiple of 4096"
        );
        assert_eq!(
            wrong(|config| config.fragment = 4097),
            "fragment is 4097: 4096 to 262144, a multiple of 4096"
        );
        assert_eq!(
            wrong(|config| config.cache_danger = Some(2 << 20)),
            "cache_danger is 2097152: 0 to 2093056, a multiple of 4096"
        );
        assert_eq!(
            wrong(|config| config.credit = 101),
            "credit is 101: 0 to 100"
        );
    }
}
