//! Every constant of the pacing, with its meaning, unit, range and default.
//!
//! A constant is named `pace_KEY` in a device's name: `soft:h1,pace,pace_slice_bytes=8192`.

use std::fmt;

use headworks_verbs::Duration;

use crate::monitor::Class;

/// A constant: its key, its unit, what it is.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Constant {
    /// What it is named by.
    pub key: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What it means, and what follows from it.
    pub what: &'static str,
    /// The smallest value that makes sense.
    pub lowest: f64,
    /// The largest.
    pub highest: f64,
    /// What it is if not said.
    pub default: f64,
}

/// A constant cannot be set like this.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// There is none of that key.
    #[error("pacing has no constant {key:?}: it has {}", keys())]
    Unknown {
        /// What was asked for.
        key: String,
    },
    /// The value is none, or outside what makes sense.
    #[error("{}={value:?}: {} from {} to {}{}{}", .constant.key, kind(.constant), .constant.lowest, .constant.highest, if .constant.unit.is_empty() { "" } else { ", in " }, .constant.unit)]
    Range {
        /// The constant that was to be set.
        constant: &'static Constant,
        /// What was given.
        value: String,
    },
    /// Two constants contradict each other.
    #[error("{0}")]
    Order(&'static str),
}

fn keys() -> String {
    let keys: Vec<_> = CONSTANTS.iter().map(|constant| constant.key).collect();
    keys.join(", ")
}

fn kind(constant: &Constant) -> &'static str {
    match constant.is_whole() {
        true => "a whole number",
        false => "a number",
    }
}

impl Constant {
    /// The constant of that key.
    pub fn of(key: &str) -> Option<&'static Self> {
        CONSTANTS.iter().find(|constant| constant.key == key)
    }

    /// Whether a fraction makes no sense.
    pub fn is_whole(&self) -> bool {
        !matches!(self.unit, "Gbit/s" | "Mbit/s" | "base delays" | "part")
    }
}

macro_rules! constants {
    ($($field:ident $unit:literal $low:literal..$high:literal = $default:literal $what:literal;)*) => {
        /// The constants of the pacing of one RNIC.
        #[derive(Clone, Debug, PartialEq)]
        pub struct PacingConfig {
            $(#[doc = concat!($what, " Unit: ", $unit, ". Default: ", stringify!($default), ".")] pub $field: f64,)*
        }

        /// All constants.
        pub const CONSTANTS: &[Constant] = &[
            $(Constant {
                key: stringify!($field),
                unit: $unit,
                what: $what,
                lowest: $low as f64,
                highest: $high as f64,
                default: $default as f64,
            },)*
        ];

        impl Default for PacingConfig {
            fn default() -> Self {
                Self { $($field: $default as f64,)* }
            }
        }

        impl PacingConfig {
            fn slot(&mut self, key: &str) -> Option<&mut f64> {
                match key {
                    $(stringify!($field) => Some(&mut self.$field),)*
                    _ => None,
                }
            }

            /// The value of the constant of that key.
            pub fn value(&self, key: &str) -> Option<f64> {
                match key {
                    $(stringify!($field) => Some(self.$field),)*
                    _ => None,
                }
            }
        }
    };
}

constants! {
    line_rate_gbps "Gbit/s" 0.1..10000 = 100
        "The RNIC's line rate: what pacing starts from, starts from again after idleness, and never exceeds (section IV-D).";
    min_rate_gbps "Gbit/s" 0.001..10000 = 5
        "What the rate never falls below, so that completions, and with them samples, keep coming; where a device's name does not say it, no more than the line rate.";
    base_delay_ns "ns" 0..1e9 = 0
        "From doorbell to completion of a SEND or WRITE on the idle device, without the time its bytes take on the line; 0: the shortest seen.";
    base_delay_read_ns "ns" 0..1e9 = 0
        "The same of a READ.";
    base_delay_atomic_ns "ns" 0..1e9 = 0
        "The same of an atomic.";
    base_delay_ud_ns "ns" 0..1e9 = 0
        "The same of a datagram, which waits for no answer.";
    init_alpha "base delays" 0..1e6 = 2
        "The rate rises while the delay exceeds the base delay by no more than this, for up to `qps_per_step` active queue pairs (Eq. 3).";
    init_beta "base delays" 0..1e6 = 4
        "The rate falls when the delay exceeds the base delay by this or more, for up to `qps_per_step` active queue pairs (Eq. 4).";
    qps_per_step "queue pairs" 1..1e6 = 1024
        "Both thresholds rise by `init_alpha` with every so many active queue pairs (N of Eq. 3).";
    inc_mbps "Mbit/s" 0..1e6 = 6
        "What a completion below the lower threshold adds to the rate.";
    dec_mbps "Mbit/s" 0..1e6 = 12
        "What a completion above the upper threshold takes from the rate.";
    ewma_weight "part" 0..0.999 = 0.875
        "How much of the delay's average a sample leaves as it was (W of Eq. 2).";
    outlier_factor "times" 2..1e6 = 16
        "A sample so many times the average is taken for a retransmission or a missing receive, and left out.";
    outliers_in_row "samples" 1..1e6 = 8
        "So many of those in a row are believed.";
    fresh_ns "ns" 0..1e9 = 2000
        "Without timestamps, a completion counts as a sample if the queue was seen empty no longer ago than this: else it measures how rarely the program polls.";
    slice_bytes "bytes" 256..1e9 = 16384
        "A longer WRITE or READ is posted in slices of at most this many bytes, which end at multiples of 64 there (section IV-D).";
    slice_imm "0 or 1" 0..1 = 0
        "Whether a WRITE with immediate is sliced too: the receiver's completion then counts only the bytes of the last slice.";
    overhead_bytes "bytes" 0..4096 = 64
        "What a request costs beside its payload: headers, and the request itself.";
    burst_bytes "bytes" 0..1e9 = 65536
        "What an idle RNIC may be given at once.";
    quantum_bytes "bytes" 0..1e9 = 4096
        "What a thread takes from the shared clock at once, so as to touch it rarely.";
    max_in_flight "requests" 16..65536 = 4096
        "Requests that one completion queue's queue pairs have in flight at most.";
    sample_every "requests" 1..1e6 = 8
        "One request in so many is measured, of a chain the last; every one while requests wait, or the rate is below the line rate. 1: every one always, as in the paper (section IV-B). A look at the clock costs more than a short request.";
    timestamps "0 or 1" 0..1 = 1
        "Whether completions are taken at the device's timestamps rather than when they are polled.";
    sync_every "requests" 1..1e9 = 1000
        "The device's clock is compared with the host's after so many requests (section IV-B).";
    sync_ms "ms" 1..1e6 = 10
        "And after so long.";
    idle_ms "ms" 1..1e6 = 10
        "After so long without a request the rate is the line rate again.";
    cut_part "part" 0..0.99 = 0.5
        "What a congestion signal leaves of the rate.";
    hold_us "us" 0..1e6 = 100
        "For so long after a congestion signal the rate does not rise, and no other signal cuts it.";
    window "0 or 1" 0..1 = 0
        "Instead of the rate, limit what is in flight: `line_rate x base_delay x (1 + alpha)`, shared by active queue pairs. Not of the paper.";
}

impl PacingConfig {
    /// Sets the constant of that key.
    ///
    /// # Errors
    ///
    /// [`SetError`], and nothing is changed.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SetError> {
        let unknown = || SetError::Unknown {
            key: key.to_owned(),
        };
        let constant = Constant::of(key).ok_or_else(unknown)?;
        let legal = |found: &f64| {
            let whole = !constant.is_whole() || found.fract() == 0.0;
            whole && (constant.lowest..=constant.highest).contains(found)
        };
        let found = value.parse().ok().filter(legal);
        let found = found.ok_or_else(|| SetError::Range {
            constant,
            value: value.to_owned(),
        })?;
        *self.slot(key).ok_or_else(unknown)? = found;
        Ok(())
    }

    /// Refuses constants that contradict each other.
    ///
    /// # Errors
    ///
    /// [`SetError::Order`], of the first that do.
    pub fn check(&self) -> Result<(), SetError> {
        if self.min_rate_gbps > self.line_rate_gbps {
            return Err(SetError::Order(
                "min_rate_gbps must not exceed line_rate_gbps",
            ));
        }
        if self.init_alpha > self.init_beta {
            return Err(SetError::Order("init_alpha must not exceed init_beta"));
        }
        Ok(())
    }

    /// The line rate, in bytes a second.
    pub fn line_rate(&self) -> u64 {
        bytes_per_s(self.line_rate_gbps)
    }

    /// The lowest rate, in bytes a second.
    pub fn min_rate(&self) -> u64 {
        bytes_per_s(self.min_rate_gbps).max(1)
    }

    /// What the rate rises by, in bytes a second.
    pub fn inc(&self) -> u64 {
        bytes_per_s(self.inc_mbps / 1e3)
    }

    /// What the rate falls by, in bytes a second.
    pub fn dec(&self) -> u64 {
        bytes_per_s(self.dec_mbps / 1e3)
    }

    /// The base delay of requests of this class, if it is given.
    pub fn base_delay(&self, class: Class) -> Option<Duration> {
        let given = match class {
            Class::Datagram => self.base_delay_ud_ns,
            Class::Read => self.base_delay_read_ns,
            Class::Atomic => self.base_delay_atomic_ns,
            Class::Write => self.base_delay_ns,
        };
        (given > 0.0).then(|| Duration::from_nanos(given as u64))
    }
}

fn bytes_per_s(gbps: f64) -> u64 {
    (gbps * 1e9 / 8.0) as u64
}

impl fmt::Display for PacingConfig {
    /// The constants that are not at their defaults, as options of a device's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for constant in CONSTANTS {
            let value = self.value(constant.key).unwrap_or(constant.default);
            if value != constant.default {
                write!(f, ",pace_{}={value}", constant.key)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_legal_and_every_key_can_be_set_to_its_ends() {
        let mut config = PacingConfig::default();
        assert_eq!(config.check(), Ok(()));
        for constant in CONSTANTS {
            assert!((constant.lowest..=constant.highest).contains(&constant.default));
            for end in [constant.lowest, constant.highest] {
                config.set(constant.key, &end.to_string()).unwrap();
                assert_eq!(config.value(constant.key), Some(end), "{}", constant.key);
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_allowed() {
        let mut config = PacingConfig::default();
        let error = config.set("slice_bytes", "255").unwrap_err();
        assert_eq!(
            error.to_string(),
            "slice_bytes=\"255\": a whole number from 256 to 1000000000, in bytes"
        );
        let error = config.set("slice", "1").unwrap_err().to_string();
        assert!(error.contains("slice_bytes"), "{error}");
        assert!(config.set("window", "0.5").is_err());
        assert!(config.set("inc_mbps", "0.5").is_ok());
        assert!(config.set("inc_mbps", "NaN").is_err());
        config.set("init_beta", "1").unwrap();
        assert!(config.check().is_err());
    }

    #[test]
    fn what_differs_is_shown_as_a_name_has_it() {
        let mut config = PacingConfig::default();
        assert_eq!(config.to_string(), "");
        config.set("base_delay_ns", "2100").unwrap();
        assert_eq!(config.to_string(), ",pace_base_delay_ns=2100");
    }
}
