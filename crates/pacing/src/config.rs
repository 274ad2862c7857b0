//! Every constant of the pacing, with its meaning, unit, range and default.
//!
//! A constant is named `pace_KEY` in a device's name: `soft:h1,pace,pace_slice_bytes=8192`.

use std::fmt;

use headworks_verbs::Duration;

use crate::monitor::Class;

/// A constant of the pacing: its key, unit, meaning, range and default.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Constant {
    /// The name by which it is set.
    pub key: &'static str,
    /// Unit of its value.
    pub unit: &'static str,
    /// Its meaning and effect.
    pub what: &'static str,
    /// Smallest allowed value.
    pub lowest: f64,
    /// Largest allowed value.
    pub highest: f64,
    /// Value if none is set.
    pub default: f64,
}

/// Error of setting a constant.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// No constant has this key.
    #[error("pacing has no constant {key:?}: it has {}", keys())]
    Unknown {
        /// The key that was given.
        key: String,
    },
    /// The value is not a number, or it is out of range.
    #[error("{}={value:?}: {} from {} to {}{}{}", .constant.key, kind(.constant), .constant.lowest, .constant.highest, if .constant.unit.is_empty() { "" } else { ", in " }, .constant.unit)]
    Range {
        /// The constant that was to be set.
        constant: &'static Constant,
        /// The value that was given.
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
    /// Returns the constant with this key.
    pub fn of(key: &str) -> Option<&'static Self> {
        CONSTANTS.iter().find(|constant| constant.key == key)
    }

    /// Whether the value must be a whole number.
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

            /// Value of the constant with this key.
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
        "Line rate of the RNIC. Pacing starts at this rate, returns to it after idleness, and never exceeds it (section IV-D).";
    min_rate_gbps "Gbit/s" 0.001..10000 = 5
        "Lowest rate. It keeps completions, and with them samples, coming. If the device's name does not set it, it is at most the line rate.";
    base_delay_ns "ns" 0..1e9 = 0
        "Delay from doorbell to completion of a SEND or WRITE on the idle device, without the time its bytes take on the line. 0: the shortest delay seen.";
    base_delay_read_ns "ns" 0..1e9 = 0
        "Base delay of a READ, as `base_delay_ns`.";
    base_delay_atomic_ns "ns" 0..1e9 = 0
        "Base delay of an atomic, as `base_delay_ns`.";
    base_delay_ud_ns "ns" 0..1e9 = 0
        "Base delay of a datagram, which waits for no answer, as `base_delay_ns`.";
    init_alpha "base delays" 0..1e6 = 2
        "The rate rises while the delay exceeds the base delay by no more than this, for up to `qps_per_step` active queue pairs (Eq. 3).";
    init_beta "base delays" 0..1e6 = 4
        "The rate falls when the delay exceeds the base delay by this or more, for up to `qps_per_step` active queue pairs (Eq. 4).";
    qps_per_step "queue pairs" 1..1e6 = 1024
        "Both thresholds rise by `init_alpha` each time the active queue pairs grow by this number (N of Eq. 3).";
    inc_mbps "Mbit/s" 0..1e6 = 6
        "How much a completion at or below the lower threshold raises the rate.";
    dec_mbps "Mbit/s" 0..1e6 = 12
        "How much a completion at or above the upper threshold lowers the rate.";
    ewma_weight "part" 0..0.999 = 0.875
        "Weight of the old average when a sample is added to the average delay (W of Eq. 2).";
    outlier_factor "times" 2..1e6 = 16
        "A sample that exceeds this multiple of the average is taken for a retransmission or a missing receive, and left out.";
    outliers_in_row "samples" 1..1e6 = 8
        "After this many outliers in a row the last one counts as a sample.";
    fresh_ns "ns" 0..1e9 = 2000
        "Without timestamps, a completion counts as a sample only if the queue was seen empty, or the doorbell rung, no longer ago than this; otherwise it would measure how rarely the program polls.";
    slice_bytes "bytes" 256..1e9 = 16384
        "A longer WRITE or READ is posted in slices of at most this many bytes, which end at remote addresses that are multiples of 64 (section IV-D).";
    slice_imm "0 or 1" 0..1 = 0
        "Whether a WRITE with immediate is sliced too: the receiver's completion then counts only the bytes of the last slice.";
    overhead_bytes "bytes" 0..4096 = 64
        "Cost of a request in addition to its payload: headers, and the request itself.";
    burst_bytes "bytes" 0..1e9 = 65536
        "Bytes that may be posted at once to an idle RNIC.";
    quantum_bytes "bytes" 0..1e9 = 4096
        "Credit that a thread takes from the shared clock at once, so that it touches the clock rarely.";
    max_in_flight "requests" 16..65536 = 4096
        "Most requests that the queue pairs of one completion queue have in flight.";
    sample_every "requests" 1..1e6 = 8
        "One request in this many is measured, the last of its chain. Every request is measured while requests wait or the rate is below the line rate. 1: every request always, as in the paper (section IV-B). Reading the clock costs more than a short request.";
    timestamps "0 or 1" 0..1 = 1
        "Whether the time of a completion is the device's timestamp rather than the time at which it is polled.";
    sync_every "requests" 1..1e9 = 1000
        "The device's clock is compared with the host's after this many requests (section IV-B).";
    sync_ms "ms" 1..1e6 = 10
        "The device's clock is compared with the host's after this time at the latest.";
    idle_ms "ms" 1..1e6 = 10
        "After this time without a request the rate is the line rate again.";
    cut_part "part" 0..0.99 = 0.5
        "Factor by which a congestion signal multiplies the rate.";
    hold_us "us" 0..1e6 = 100
        "For this time after a congestion signal the rate does not rise, and no further signal cuts it.";
    window "0 or 1" 0..1 = 0
        "Limit the bytes in flight instead of the rate: `line_rate x base_delay x (1 + alpha)`, shared by active queue pairs. Not in the paper.";
}

impl PacingConfig {
    /// Sets the constant with this key.
    ///
    /// # Errors
    ///
    /// [`SetError`]; nothing is changed then.
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
    /// [`SetError::Order`] for the first contradiction.
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

    /// By how much the rate rises at once, in bytes a second.
    pub fn inc(&self) -> u64 {
        bytes_per_s(self.inc_mbps / 1e3)
    }

    /// By how much the rate falls at once, in bytes a second.
    pub fn dec(&self) -> u64 {
        bytes_per_s(self.dec_mbps / 1e3)
    }

    /// The configured base delay of requests of this class; `None` if it is to be learnt.
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
    /// Writes the constants that are not at their defaults, as options of a device's name.
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
    fn a_wrong_setting_is_named_with_the_allowed_values() {
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
    fn only_nondefault_settings_are_shown_as_options() {
        let mut config = PacingConfig::default();
        assert_eq!(config.to_string(), "");
        config.set("base_delay_ns", "2100").unwrap();
        assert_eq!(config.to_string(), ",pace_base_delay_ns=2100");
    }
}
