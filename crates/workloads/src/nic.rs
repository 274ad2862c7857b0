//! What is measured of a device itself, below any channel of messages: one file per pair of parts.
//!
//! | module | what |
//! |---|---|
//! | [`flow`] | 64 bytes one way: WRITEs into polled memory, or SENDs into receives of an SRQ |
//! | [`one_sided`] | WRITEs over one queue pair or a thousand; into memory from anywhere, or the bare call |
//! | [`footprint`] | what a connected queue pair takes |
//! | [`wake`] | waking each other by completion channels, or by eventfds |
//! | [`loaded`] | one verb over so many queue pairs, each so deep in requests, and what pacing says meanwhile |
//! | [`timed`] | requests in batches, in flows, there and back, or call by call, timed |
//! | [`end`] | an end's queue pairs and what they hang on; meeting the other end |
//! | `source`, `work` | posting and polling; working again and again |
//! | [`meter`] | the measured time |

pub mod end;
pub mod flow;
pub mod footprint;
pub mod loaded;
pub mod meter;
pub mod one_sided;
pub(crate) mod source;
pub mod timed;
pub mod wake;
mod work;

pub use loaded::{Gait, Load, Verb, Watched};
pub use timed::{Batches, CHAIN_MAX, Flows};

use std::path::PathBuf;

use headworks::verbs::time::Duration;
use headworks_runtime::Actor;
use serde::{Deserialize, Serialize};

use crate::error::{Result, WorkloadError};
use crate::pair::PairContext;

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
    /// WRITEs of 64 bytes, round robin.
    Spread {
        /// Over how many queue pairs.
        queue_pairs: usize,
        /// Requests per call: 1 or 16.
        chain: usize,
    },
    /// What queue pairs take.
    Footprint {
        /// How many of them.
        queue_pairs: usize,
    },
    /// Into memory of the other end that did not come from its device.
    Foreign {
        /// Bytes at a time.
        size: usize,
        /// By which way.
        over: Over,
    },
    /// Waking each other in turn.
    Wake(Waker),
    /// One verb, as much of it as goes.
    Loaded(Load),
    /// The same, timed.
    Batches(Batches),
    /// The same in flows, timed as a whole.
    Flows(Flows),
    /// As much of it as goes, looked at meanwhile.
    Watched(Watched),
    /// One message at a time, there and back.
    PingPong(Load),
    /// Short WRITEs, each call timed.
    Posts {
        /// Requests of a call.
        chain: usize,
    },
}

/// How bytes get into another process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Over {
    /// By WRITE.
    Verbs,
    /// By `process_vm_writev`.
    SystemCall,
}

/// What wakes a sleeping end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Waker {
    /// A SEND whose completion raises its completion channel.
    Channel,
    /// An eventfd.
    EventFd,
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
    /// Whether what is measured of several pairs begins when all are warm, and ends at the same time of all; of
    /// [`What::Loaded`] and [`What::Watched`] only.
    pub together: bool,
    /// A private directory for names.
    pub dir: PathBuf,
}

impl Task {
    /// Measured time.
    pub fn run(&self) -> Duration {
        Duration::from_nanos(self.run_ns)
    }

    /// Time before that.
    pub fn warm(&self) -> Duration {
        Duration::from_nanos(self.warm_ns)
    }
}

/// What a part is made of.
struct Setup<'a> {
    task: &'a Task,
    pair: &'a PairContext,
}

/// A part, if it could be made.
type Made = Result<Box<dyn Actor>>;

/// The actor of `task` that has the pair's role.
pub fn actor(task: &Task, pair: &PairContext) -> Result<Box<dyn Actor>> {
    let setup = &Setup { task, pair };
    match task.what {
        What::Flow { way, chain } => flow::part(way, chain, setup),
        What::Spread { queue_pairs, chain } => one_sided::spread(queue_pairs, chain, setup),
        What::Footprint { queue_pairs } => footprint::part(queue_pairs, setup),
        What::Foreign { size, over } => one_sided::foreign(size, over, setup),
        What::Loaded(load) => loaded::part(load, None, setup),
        What::Batches(batches) => timed::batches(batches, setup),
        What::Flows(flows) => timed::flows(flows, setup),
        What::Watched(watched) => loaded::part(watched.load, Some(watched.every_ns), setup),
        What::PingPong(load) => timed::ping_pong(load, setup),
        What::Posts { chain } => timed::posts(chain, setup),
        What::Wake(waker) => wake::part(waker, setup),
    }
}

/// The number in a mail.
fn number(mail: Vec<u8>) -> Result<u64> {
    let bytes = mail.try_into();
    let bytes = bytes.map_err(|_| WorkloadError("no count in the mail".into()))?;
    Ok(u64::from_le_bytes(bytes))
}

fn bad_chain(chain: usize) -> WorkloadError {
    WorkloadError(format!("chains of {chain} requests: 1 or 16"))
}

#[cfg(test)]
mod tests;
