//! What the actors of a pair report.

use headworks::verbs::Instant;
use headworks_baselines::counting::Counts;
use serde::{Deserialize, Serialize};

use crate::error::{Result, WorkloadError};
use crate::latency::Quantiles;
use crate::stats::Shares;

/// What an actor found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// Nothing: the other actor reports.
    None,
    /// Connected, and waiting to be told to begin. Another report follows.
    Ready,
    /// Messages in a time.
    Rate {
        /// Number of messages.
        messages: u64,
        /// In how many nanoseconds.
        nanos: u64,
        /// When they began, in nanoseconds on the clock that all actors share.
        began_ns: u64,
    },
    /// Latencies, one way; or of round trips, where those were asked for.
    Latency(Quantiles),
    /// From the doorbell to the completion, of each request in a batch.
    Delays(Vec<Quantiles>),
    /// What was seen of a load while it ran.
    PacingSamples(Vec<PacingSample>),
    /// What was counted of many rings, phase by phase.
    Phases(Vec<PhaseResult>),
    /// Requests answered in a time, one after the other, and how long each took.
    Served {
        /// Number of messages.
        messages: u64,
        /// In how many nanoseconds.
        nanos: u64,
        /// Of each.
        latency: Quantiles,
    },
    /// What an end posted and polled for so many messages, warm-up included.
    Counted {
        /// Messages that it moved.
        messages: u64,
        /// For all of them.
        counts: Counts,
    },
    /// What a process's memory grew by.
    Grown {
        /// Bytes from the heap.
        heap: i64,
        /// Bytes resident.
        resident: i64,
    },
}

/// What was seen at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PacingSample {
    /// When, on the clock that all parts share.
    pub at_ns: u64,
    /// Requests that have ended so far.
    pub done: u64,
    /// What the pacing says; `None` where there is none.
    pub pacing: Option<PacingState>,
}

/// What the pacing of an RNIC said.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PacingState {
    /// Bytes a second.
    pub rate: f64,
    /// The average delay, in nanoseconds.
    pub delay_ns: f64,
    /// How many base delays that is beyond the first.
    pub ratio: f64,
    /// The rate rises up to that many, and falls from that many on.
    pub thresholds: (f64, f64),
    /// Active queue pairs.
    pub active: u32,
}

/// What was counted in one phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    /// Messages, or looks in vain, each over all rings.
    pub count: u64,
    /// In this time.
    pub nanos: u64,
    /// How evenly the messages came: from all rings, or from all but the flooding one.
    pub shares: Option<Shares>,
}

impl Report {
    /// Computes a rate from a count of messages between two times.
    pub fn rate(messages: u64, began: Instant, ended: Instant) -> Self {
        Self::Rate {
            messages,
            nanos: ended.since(began).nanos(),
            began_ns: began.nanos(),
        }
    }

    /// For the coordinator.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a JSON form")
    }

    /// From an actor.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|e| WorkloadError::at("report", e))
    }

    /// Messages per second, if it is a rate over some time.
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
