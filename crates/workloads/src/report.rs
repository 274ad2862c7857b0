//! Reports of the actors of a pair.

use headworks::verbs::Instant;
use headworks_baselines::counting::Counts;
use serde::{Deserialize, Serialize};

use crate::error::{Result, WorkloadError};
use crate::latency::Quantiles;
use crate::stats::Shares;

/// Result of an actor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// No result: the other actor reports.
    None,
    /// The actor is connected, and waits to be told to begin. Another report follows.
    Ready,
    /// A number of messages over a time.
    Rate {
        /// Number of messages.
        messages: u64,
        /// Measured time, in nanoseconds.
        nanos: u64,
        /// Beginning of the measured time, in nanoseconds on the clock that all actors share.
        began_ns: u64,
    },
    /// Latencies, one way; or of round trips, where those were requested.
    Latency(Quantiles),
    /// Latencies from doorbell to completion, for each request in a batch.
    Delays(Vec<Quantiles>),
    /// Samples of a load over its run.
    PacingSamples(Vec<PacingSample>),
    /// Counts of many rings, phase by phase.
    Phases(Vec<PhaseResult>),
    /// Requests answered one at a time, and their latencies.
    Served {
        /// Number of messages.
        messages: u64,
        /// Measured time, in nanoseconds.
        nanos: u64,
        /// Latencies of the requests.
        latency: Quantiles,
    },
    /// Messages that a storage server received.
    Stored {
        /// Number of messages that arrived whole, and their bytes.
        messages: u64,
        /// See `messages`.
        bytes: u64,
        /// Measured time, in nanoseconds.
        nanos: u64,
        /// Latencies of the messages.
        latency: Quantiles,
        /// Samples of the receive memory.
        samples: Vec<StorageSample>,
    },
    /// Requests and completions of an end, warm-up included.
    Counted {
        /// Number of messages that the end moved.
        messages: u64,
        /// Requests and completions for all these messages.
        counts: Counts,
    },
    /// Growth of a process's memory.
    Grown {
        /// Growth of the heap, in bytes.
        heap: i64,
        /// Growth of the resident set, in bytes.
        resident: i64,
    },
}

/// Sample of a storage server's receive memory at one time. Counts begin with the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageSample {
    /// Time of the sample, on the clock that all actors share.
    pub at_ns: u64,
    /// Bytes of messages that arrived whole.
    pub bytes: u64,
    /// Bytes of the pool or of the areas that messages occupy.
    pub held: u64,
    /// Bytes of stragglers that other memory replaces now (escape).
    pub replaced: u64,
    /// Stragglers replaced so far, in the whole run.
    pub replacements: u64,
    /// Times that data was to be copied out so far, in the whole run.
    pub copies: u64,
    /// Signals to the senders so far, in the whole run.
    pub signals: u64,
}

/// Sample of a load at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PacingSample {
    /// Time of the sample, on the clock that all actors share.
    pub at_ns: u64,
    /// Number of requests completed so far.
    pub done: u64,
    /// State of the pacing; `None` if the device is not paced.
    pub pacing: Option<PacingState>,
}

/// State of an RNIC's pacing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PacingState {
    /// Rate, in bytes per second.
    pub rate: f64,
    /// Average delay, in nanoseconds.
    pub delay_ns: f64,
    /// By how many base delays `delay_ns` exceeds the base delay.
    pub ratio: f64,
    /// The rate rises for ratios up to the first, and falls for ratios from the second on.
    pub thresholds: (f64, f64),
    /// Number of active queue pairs.
    pub active: u32,
}

/// Counts of one phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    /// Number of messages, or of checks that found none, over all rings.
    pub count: u64,
    /// Measured time, in nanoseconds.
    pub nanos: u64,
    /// Fairness of the messages: over all rings, or over all except the flooding one.
    pub shares: Option<Shares>,
}

impl Report {
    /// Makes a rate from a number of messages between two times.
    pub fn rate(messages: u64, began: Instant, ended: Instant) -> Self {
        Self::Rate {
            messages,
            nanos: ended.since(began).nanos(),
            began_ns: began.nanos(),
        }
    }

    /// Encodes the report for the coordinator.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a JSON form")
    }

    /// Decodes an actor's report.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|e| WorkloadError::at("report", e))
    }

    /// Returns the messages per second, if the report has a number of messages over a time.
    pub fn per_second(&self) -> Option<f64> {
        match *self {
            Self::Rate {
                messages, nanos, ..
            }
            | Self::Served {
                messages, nanos, ..
            } if messages > 0 && nanos > 0 => Some(messages as f64 * 1e9 / nanos as f64),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_travel_and_a_rate_takes_some_time() {
        let rate = |nanos| Report::Rate {
            messages: 3,
            nanos,
            began_ns: 7,
        };
        let report = rate(1_000);
        assert_eq!(Report::from_bytes(&report.to_bytes()).unwrap(), report);
        assert_eq!(report.per_second(), Some(3e6));
        assert_eq!(rate(0).per_second(), None);
    }
}
