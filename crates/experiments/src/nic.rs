//! What is measured of a device itself, below any channel of messages: one file per pair of parts.
//!
//! | module | what |
//! |---|---|
//! | [`flow`] | 64 bytes one way: WRITEs into polled memory, or SENDs into receives of an SRQ |
//! | [`end`] | an end's queue pairs and what they hang on; meeting the other end |
//! | [`meter`] | counting over the measured time |

pub mod end;
pub mod flow;
pub mod meter;

use std::path::PathBuf;

use headworks::verbs::time::Duration;
use serde::{Deserialize, Serialize};

use crate::arms::ArmError;
use crate::arms::connect::Role;
use crate::arms::part::Part;
use crate::world::Handed;

/// What a pair of parts does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum What {
    /// Messages of 64 bytes one way, posted in chains of so many.
    Flow {
        /// How they travel.
        way: Way,
        /// Requests per call, on both sides: 1 or 16.
        chain: usize,
    },
}

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Way {
    /// WRITE into memory that the receiver polls.
    PolledMemory,
    /// SEND into receives of an SRQ, whose CQ the receiver polls.
    SharedReceives,
}

/// One point to measure, as told to both parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// What to do.
    pub what: What,
    /// Measured time.
    pub run_ns: u64,
    /// Time before that, not measured.
    pub warm_ns: u64,
    /// A private directory for names.
    pub dir: PathBuf,
}

impl Task {
    /// For the other process.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a JSON form")
    }

    /// From the director.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ArmError> {
        serde_json::from_slice(bytes).map_err(|e| ArmError::at("task", e))
    }

    /// Measured time.
    pub fn run(&self) -> Duration {
        Duration::from_nanos(self.run_ns)
    }

    /// Time before that.
    pub fn warm(&self) -> Duration {
        Duration::from_nanos(self.warm_ns)
    }
}

/// The part of `task` that has `role`.
pub fn part(task: &Task, role: Role, handed: &Handed) -> Result<Box<dyn Part>, ArmError> {
    match task.what {
        What::Flow { way, chain } => flow::part(task, way, chain, role, handed),
    }
}

#[cfg(test)]
mod tests;
