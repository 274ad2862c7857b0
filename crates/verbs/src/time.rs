//! Time as an argument: integer nanoseconds, of a real clock or of virtual time.
//!
//! Decision code never reads a clock; it is given an [`Instant`]. A simulation starts at
//! [`Instant::ZERO`]. A real clock is CLOCK_MONOTONIC, which only the outer layers read.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A point in time: nanoseconds since the clock's own beginning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(u64);

impl Instant {
    /// The beginning of the clock.
    pub const ZERO: Self = Self(0);
    /// Later than every other instant; "never" as a deadline.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the clock's beginning.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's beginning.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`, zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Duration {
    /// A span of 0 nanoseconds.
    pub const ZERO: Self = Self(0);

    /// A span of `n` nanoseconds.
    pub const fn from_nanos(n: u64) -> Self {
        Self(n)
    }

    /// A span of `n` microseconds.
    pub const fn from_micros(n: u64) -> Self {
        Self(n.saturating_mul(1_000))
    }

    /// A span of `n` milliseconds.
    pub const fn from_millis(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// A span of `n` seconds.
    pub const fn from_secs(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }

    /// The span in nanoseconds.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The span in seconds, as a floating-point number.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// `n` times `self`, saturating.
    pub const fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }
}

impl From<Duration> for core::time::Duration {
    fn from(d: Duration) -> Self {
        Self::from_nanos(d.0)
    }
}

impl From<core::time::Duration> for Duration {
    /// Converts a span of the standard library. One of more than 584 years becomes the longest span.
    fn from(d: core::time::Duration) -> Self {
        Self(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Add<core::time::Duration> for Instant {
    type Output = Self;
    fn add(self, d: core::time::Duration) -> Self {
        self + Duration::from(d)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(d.0))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Add for Duration {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Duration {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::FAR_FUTURE {
            return f.write_str("never");
        }
        write!(f, "{:?}@", Duration(self.0))
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        match n {
            0..1_000 => write!(f, "{n} ns"),
            1_000..1_000_000 => write!(f, "{:.2} us", n as f64 / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.2} ms", n as f64 / 1e6),
            _ => write!(f, "{:.2} s", n as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_saturate_instead_of_wrapping() {
        let late = Instant::FAR_FUTURE + Duration::from_secs(1);
        assert_eq!(late, Instant::FAR_FUTURE);
        assert_eq!(Instant::ZERO.since(Instant::from_nanos(7)), Duration::ZERO);
        assert_eq!(Duration::from_secs(u64::MAX).nanos(), u64::MAX);
    }

    #[test]
    fn spans_of_the_standard_library_convert_both_ways_and_saturate() {
        let span = core::time::Duration::from_micros(1500);
        assert_eq!(Duration::from(span), Duration::from_micros(1500));
        assert_eq!(core::time::Duration::from(Duration::from(span)), span);
        assert_eq!(Instant::ZERO + span, Instant::from_nanos(1_500_000));
        // 2⁶³ seconds, whose nanoseconds modulo 2⁶⁴ are 0.
        let long = core::time::Duration::from_secs(1 << 63);
        assert_eq!(Duration::from(long).nanos(), u64::MAX);
    }

    #[test]
    fn durations_print_with_a_unit() {
        assert_eq!(Duration::from_nanos(280).to_string(), "280 ns");
        assert_eq!(Duration::from_micros(50).to_string(), "50.00 us");
        assert_eq!(Duration::from_secs(2).to_string(), "2.00 s");
    }
}
