//! What is measured of a device itself, below any channel of messages: one file per pair of parts.
//!
//! | module | what |
//! |---|---|
//! | [`one_way_messages`] | 64 bytes one way: WRITEs into polled memory, or SENDs into receives of an SRQ |
//! | [`one_sided`] | WRITEs over one queue pair or a thousand; into memory from anywhere, or the bare call |
//! | [`footprint`] | what a connected queue pair takes |
//! | [`wakeups`] | waking each other by completion channels, or by eventfds |
//! | [`verb_load`] | one verb over so many queue pairs, each so deep in requests, and what pacing says meanwhile |
//! | [`request_times`] | requests in batches, in flows, there and back, or call by call, timed |
//! | [`endpoint`] | an end's queue pairs and what they hang on; meeting the other end |
//! | `requester`, `repeated_work` | posting and polling; working again and again |
//! | [`rate_meter`] | the measured time |

pub mod endpoint;
pub mod footprint;
pub mod one_sided;
pub mod one_way_messages;
pub mod rate_meter;
mod repeated_work;
pub mod request_times;
pub(crate) mod requester;
pub mod verb_load;
pub mod wakeups;

pub use request_times::{Batches, CHAIN_MAX, Flows};
pub use verb_load::{PostingOrder, SampledLoad, Verb, VerbLoad};

use std::path::PathBuf;

use headworks::verbs::time::Duration;
use headworks_runtime::Actor;
use serde::{Deserialize, Serialize};

use crate::actor_pair::PairContext;
use crate::error::{Result, WorkloadError};

/// What a pair of parts does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NicWorkload {
    /// Messages of 64 bytes one way, posted in chains of so many.
    Flow {
        /// How they travel.
        way: MessagePath,
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
        /// Number of queue pairs.
        queue_pairs: usize,
    },
    /// Into memory of the other end that did not come from its device.
    Foreign {
        /// Bytes at a time.
        size: usize,
        /// By which way.
        over: RemoteWritePath,
    },
    /// Waking each other in turn.
    Wake(WakeMethod),
    /// One verb, as much of it as goes.
    Loaded(VerbLoad),
    /// Requests in batches, each of which is timed.
    Batches(Batches),
    /// The same in flows, timed as a whole.
    Flows(Flows),
    /// As much of it as goes, looked at meanwhile.
    Sampled(SampledLoad),
    /// One message at a time, there and back.
    PingPong(VerbLoad),
    /// Short WRITEs, each call timed.
    Posts {
        /// Requests of a call.
        chain: usize,
    },
}

/// How bytes get into another process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RemoteWritePath {
    /// By WRITE.
    Verbs,
    /// By `process_vm_writev`.
    SystemCall,
}

/// What wakes a sleeping end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WakeMethod {
    /// A SEND whose completion raises its completion channel.
    Channel,
    /// An eventfd.
    EventFd,
}

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MessagePath {
    /// WRITE into memory that the receiver polls.
    PolledMemory,
    /// SEND into receives of an SRQ, whose CQ the receiver polls.
    SharedReceives,
}

/// One point to measure, as told to both parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicTask {
    /// What to do.
    pub what: NicWorkload,
    /// Measured time.
    pub run_ns: u64,
    /// Time before that, not measured.
    pub warm_ns: u64,
    /// Whether what is measured of several pairs begins when all are warm, and ends at the same time of all; of
    /// [`NicWorkload::Loaded`] and [`NicWorkload::Sampled`] only.
    pub together: bool,
    /// A private directory for names.
    pub dir: PathBuf,
}

impl NicTask {
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
    task: &'a NicTask,
    pair: &'a PairContext,
}

/// A part, if it could be made.
type Made = Result<Box<dyn Actor>>;

/// The actor of `task` that has the pair's role.
pub fn actor(task: &NicTask, pair: &PairContext) -> Result<Box<dyn Actor>> {
    let setup = &Setup { task, pair };
    match task.what {
        NicWorkload::Flow { way, chain } => one_way_messages::part(way, chain, setup),
        NicWorkload::Spread { queue_pairs, chain } => one_sided::spread(queue_pairs, chain, setup),
        NicWorkload::Footprint { queue_pairs } => footprint::part(queue_pairs, setup),
        NicWorkload::Foreign { size, over } => one_sided::foreign(size, over, setup),
        NicWorkload::Loaded(load) => verb_load::part(load, None, setup),
        NicWorkload::Batches(batches) => request_times::batches(batches, setup),
        NicWorkload::Flows(flows) => request_times::flows(flows, setup),
        NicWorkload::Sampled(watched) => {
            verb_load::part(watched.load, Some(watched.every_ns), setup)
        }
        NicWorkload::PingPong(load) => request_times::ping_pong(load, setup),
        NicWorkload::Posts { chain } => request_times::posts(chain, setup),
        NicWorkload::Wake(waker) => wakeups::part(waker, setup),
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
