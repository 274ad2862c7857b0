//! Measurements of a device itself, without message channels: one file per kind of actor pair.
//!
//! | module | what |
//! |---|---|
//! | [`one_way_messages`] | 64 bytes one way: WRITEs into polled memory, or SENDs into receives of an SRQ |
//! | [`one_sided`] | WRITEs over one queue pair or a thousand; WRITEs into any memory, or the bare system call |
//! | [`footprint`] | memory of a connected queue pair |
//! | [`wakeups`] | two ends wake each other by completion channels, or by eventfds |
//! | [`storage`] | a storage server that receives messages by READs into a receive pool or into areas |
//! | [`verb_load`] | one verb over many queue pairs with many outstanding requests, and the state of pacing meanwhile |
//! | [`request_times`] | times of requests: in batches, in flows, as ping-pong, or call by call |
//! | [`endpoint`] | opening an end's device objects, and connecting to the other end |
//! | `requester`, `repeated_work` | posting and polling; repeating a piece of work |
//! | [`rate_meter`] | warm-up and measured time |

pub mod endpoint;
pub mod footprint;
pub mod one_sided;
pub mod one_way_messages;
pub mod rate_meter;
mod repeated_work;
pub mod request_times;
pub(crate) mod requester;
pub mod storage;
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

/// Workload of a pair of actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NicWorkload {
    /// Messages of 64 bytes one way, posted in chains.
    Flow {
        /// Path of the messages.
        way: MessagePath,
        /// Requests per call, on both sides: 1 or 16.
        chain: usize,
    },
    /// WRITEs of 64 bytes, round robin over queue pairs.
    Spread {
        /// Number of queue pairs.
        queue_pairs: usize,
        /// Requests per call: 1 or 16.
        chain: usize,
    },
    /// Memory of queue pairs.
    Footprint {
        /// Number of queue pairs.
        queue_pairs: usize,
    },
    /// Writes into memory of the other end that did not come from its device.
    Foreign {
        /// Bytes per write.
        size: usize,
        /// Path of the writes.
        over: RemoteWritePath,
    },
    /// Two ends wake each other in turn.
    Wake(WakeMethod),
    /// One verb, at the highest rate.
    Loaded(VerbLoad),
    /// Requests in batches; each request is timed.
    Batches(Batches),
    /// Requests in flows; each flow is timed as a whole.
    Flows(Flows),
    /// One verb at the highest rate, sampled meanwhile.
    Sampled(SampledLoad),
    /// Ping-pong: one message at a time, there and back.
    PingPong(VerbLoad),
    /// A storage server that receives messages by READs.
    Storage(storage::StorageLoad),
    /// Short WRITEs; each call is timed.
    Posts {
        /// Requests per call: 1 or 16.
        chain: usize,
    },
}

/// How bytes get into another process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RemoteWritePath {
    /// RDMA WRITE.
    Verbs,
    /// The system call `process_vm_writev`.
    SystemCall,
}

/// Means that wakes a sleeping end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WakeMethod {
    /// A SEND whose completion raises its completion channel.
    Channel,
    /// An eventfd.
    EventFd,
}

/// Path of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MessagePath {
    /// WRITE into memory that the receiver polls.
    PolledMemory,
    /// SEND into receives of an SRQ, whose CQ the receiver polls.
    SharedReceives,
}

/// One point to measure; both actors receive it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicTask {
    /// The workload.
    pub what: NicWorkload,
    /// Measured time, in nanoseconds.
    pub run_ns: u64,
    /// Warm-up time before that, in nanoseconds.
    pub warm_ns: u64,
    /// Whether several pairs measure the same interval, which begins when all are warm. Only for
    /// [`NicWorkload::Loaded`] and [`NicWorkload::Sampled`].
    pub together: bool,
    /// A private directory for socket names.
    pub dir: PathBuf,
}

impl NicTask {
    /// Returns the measured time.
    pub fn run(&self) -> Duration {
        Duration::from_nanos(self.run_ns)
    }

    /// Returns the warm-up time before that.
    pub fn warm(&self) -> Duration {
        Duration::from_nanos(self.warm_ns)
    }
}

/// Parameters of an actor.
struct Setup<'a> {
    task: &'a NicTask,
    pair: &'a PairContext,
}

/// An actor, or the reason why it could not be made.
type Made = Result<Box<dyn Actor>>;

/// Makes the actor of `task` for the pair's role.
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
        NicWorkload::Storage(load) => storage::part(load, setup),
        NicWorkload::Posts { chain } => request_times::posts(chain, setup),
        NicWorkload::Wake(waker) => wakeups::part(waker, setup),
    }
}

/// Decodes the number in a mail.
fn number(mail: Vec<u8>) -> Result<u64> {
    let bytes = mail.try_into();
    let bytes = bytes.map_err(|_| WorkloadError("the mail holds no count".into()))?;
    Ok(u64::from_le_bytes(bytes))
}

fn bad_chain(chain: usize) -> WorkloadError {
    WorkloadError(format!(
        "chains of {chain} requests are not supported; use 1 or 16"
    ))
}

#[cfg(test)]
mod tests;
