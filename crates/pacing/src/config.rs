//! Every constant of the pacing, with its meaning, unit, range and default.
//!
//! A constant is named `pace_KEY` in a device's name: `soft:h1,pace,pace_slice_bytes=8192`.

use std::fmt;

use headworks_verbs::Duration;

use crate::monitor::Class;

pub use headworks_constants::{Constant, SetError};

/// All constants.
pub const CONSTANTS: &[Constant] = PacingConfig::CONSTANTS;

headworks_constants::constants! {
    /// The constants of the pacing of one RNIC.
    pub struct PacingConfig {
        unknown: "pacing has no constant",
        example: "slice_bytes=8192",
        columns: default,
    }

    line_rate_gbps: number "Gbit/s" 0.1..10000 [100]
        "Line rate of the RNIC. Pacing starts at this rate, returns to it after idleness, and never exceeds it (section IV-D).";
    min_rate_gbps: number "Gbit/s" 0.001..10000 [5]
        "Lowest rate. It keeps completions, and with them samples, coming. If the device's name does not set it, it is at most the line rate.";
    base_delay_ns: whole "ns" 0..1e9 [0]
        "Delay from doorbell to completion of a SEND or WRITE on the idle device, without the time its bytes take on the line. 0: the shortest delay seen.";
    base_delay_read_ns: whole "ns" 0..1e9 [0]
        "Base delay of a READ, as `base_delay_ns`.";
    base_delay_atomic_ns: whole "ns" 0..1e9 [0]
        "Base delay of an atomic, as `base_delay_ns`.";
    base_delay_ud_ns: whole "ns" 0..1e9 [0]
        "Base delay of a datagram, which waits for no answer, as `base_delay_ns`.";
    init_alpha: number "base delays" 0..1e6 [2]
        "The rate rises while the delay exceeds the base delay by no more than this, for up to `qps_per_step` active queue pairs (Eq. 3).";
    init_beta: number "base delays" 0..1e6 [4]
        "The rate falls when the delay exceeds the base delay by this or more, for up to `qps_per_step` active queue pairs (Eq. 4).";
    qps_per_step: whole "queue pairs" 1..1e6 [1024]
        "Both thresholds rise by `init_alpha` each time the active queue pairs grow by this number (N of Eq. 3).";
    inc_mbps: number "Mbit/s" 0..1e6 [6]
        "How much a completion at or below the lower threshold raises the rate.";
    dec_mbps: number "Mbit/s" 0..1e6 [12]
        "How much a completion at or above the upper threshold lowers the rate.";
    ewma_weight: number "part" 0..0.999 [0.875]
        "Weight of the old average when a sample is added to the average delay (W of Eq. 2).";
    outlier_factor: whole "times" 2..1e6 [16]
        "A sample that exceeds this multiple of the average is taken for a retransmission or a missing receive, and left out.";
    outliers_in_row: whole "samples" 1..1e6 [8]
        "After this many outliers in a row the last one counts as a sample.";
    fresh_ns: whole "ns" 0..1e9 [2000]
        "Without timestamps, a completion counts as a sample only if the queue was seen empty, or the doorbell rung, no longer ago than this; otherwise it would measure how rarely the program polls.";
    slice_bytes: whole "bytes" 256..1e9 [16384]
        "A longer WRITE or READ is posted in slices of at most this many bytes, which end at remote addresses that are multiples of 64 (section IV-D).";
    slice_imm: bool "0 or 1" [false]
        "Whether a WRITE with immediate is sliced too: the receiver's completion then counts only the bytes of the last slice.";
    overhead_bytes: whole "bytes" 0..4096 [64]
        "Cost of a request in addition to its payload: headers, and the request itself.";
    burst_bytes: whole "bytes" 0..1e9 [65536]
        "Bytes that may be posted at once to an idle RNIC.";
    quantum_bytes: whole "bytes" 0..1e9 [4096]
        "Credit that a thread takes from the shared clock at once, so that it touches the clock rarely.";
    max_in_flight: whole "requests" 16..65536 [4096]
        "Most requests that the queue pairs of one completion queue have in flight.";
    sample_every: whole "requests" 1..1e6 [8]
        "One request in this many is measured, the last of its chain. Every request is measured while requests wait or the rate is below the line rate. 1: every request always, as in the paper (section IV-B). Reading the clock costs more than a short request.";
    timestamps: bool "0 or 1" [true]
        "Whether the time of a completion is the device's timestamp rather than the time at which it is polled.";
    sync_every: whole "requests" 1..1e9 [1000]
        "The device's clock is compared with the host's after this many requests (section IV-B).";
    sync_ms: whole "ms" 1..1e6 [10]
        "The device's clock is compared with the host's after this time at the latest.";
    idle_ms: whole "ms" 1..1e6 [10]
        "After this time without a request the rate is the line rate again.";
    cut_part: number "part" 0..0.99 [0.5]
        "Factor by which a congestion signal multiplies the rate.";
    hold_us: whole "us" 0..1e6 [100]
        "For this time after a congestion signal the rate does not rise, and no further signal cuts it.";
    window: bool "0 or 1" [false]
        "Limit the bytes in flight instead of the rate: `line_rate x base_delay x (1 + alpha)`, shared by active queue pairs. Not in the paper.";
}

impl PacingConfig {
    /// Refuses constants that contradict each other.
    ///
    /// # Errors
    ///
    /// [`SetError::Contradiction`] for the first contradiction.
    pub fn check(&self) -> Result<(), SetError> {
        if self.min_rate_gbps > self.line_rate_gbps {
            return Err(SetError::Contradiction(
                "min_rate_gbps must not exceed line_rate_gbps",
            ));
        }
        if self.init_alpha > self.init_beta {
            return Err(SetError::Contradiction(
                "init_alpha must not exceed init_beta",
            ));
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
        (given > 0).then(|| Duration::from_nanos(given))
    }
}

fn bytes_per_s(gbps: f64) -> u64 {
    (gbps * 1e9 / 8.0) as u64
}

impl fmt::Display for PacingConfig {
    /// Writes the constants that are not at their defaults, as options of a device's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for constant in CONSTANTS {
            let value = self.value(constant.key);
            if let Some(value) = value.filter(|value| *value != constant.default()) {
                write!(f, ",pace_{}={value}", constant.key)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use headworks_constants::Value;

    use super::*;

    #[test]
    fn defaults_are_legal_and_every_key_can_be_set_to_its_ends() {
        let mut config = PacingConfig::default();
        assert_eq!(config.check(), Ok(()));
        for constant in CONSTANTS {
            for end in [constant.lowest, constant.highest] {
                config.set(constant.key, &end.to_string()).unwrap();
                let value = config.value(constant.key).map(Value::as_f64);
                assert_eq!(value, Some(end), "{}", constant.key);
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
        let error = config.set("window", "0.5").unwrap_err().to_string();
        assert_eq!(error, "window=\"0.5\": 0 or 1, off or on, false or true");
        assert!(config.set("window", "on").is_ok() && config.window);
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
