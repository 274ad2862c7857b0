//! What a part is told to do and what it reports, as both travel between processes.

use std::path::PathBuf;

use headworks::verbs::time::Duration;
use headworks_baselines::counting::Counts;
use serde::{Deserialize, Serialize};

use super::ArmError;
use crate::latency::Quantiles;
use crate::pages::HugePages;

/// A message channel that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Channel {
    /// A kernel's byte stream.
    Stream(Transport, Waiting, Buffering),
    /// The ring on verbs.
    Ring(RingMode),
    /// The same ring without verbs.
    Bare,
    /// A design that the ring is compared with, on the same verbs.
    Rival(Rival),
}

/// Which design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Rival {
    /// FaRM's message buffers.
    Farm,
    /// SocksDirect's ring.
    SocksDirect,
    /// L5's ring.
    L5,
    /// WRITEs without a protocol.
    Raw,
    /// A combination of the RB² paper's Figure 3.
    Points(Combination),
}

/// How head and tail are synchronised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Combination {
    /// Whether the sender pulls the head; otherwise the receiver pushes it.
    pub pull: bool,
    /// Whether the receiver polls its CQ; otherwise the tail is written.
    pub cq: bool,
    /// Slots of a batch of messages.
    pub batch: u32,
    /// Slots that the head is behind.
    pub lazy: u32,
}

/// Which byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Transport {
    /// TCP over the loopback, without Nagle's delay.
    Tcp,
    /// A Unix stream socket.
    Unix,
    /// A pipe each way.
    Pipe,
}

/// How both ends wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Waiting {
    /// Non-blocking calls in a loop.
    Spinning,
    /// In the kernel.
    Blocking,
}

/// Whether messages are gathered in the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Buffering {
    /// One message per call.
    None,
    /// 64 KiB on either side.
    Buffered,
}

/// How the ring is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RingMode {
    /// Publish every 32, transmit every 16, push every 32.
    Default,
    /// Publish and transmit every message.
    Unbatched,
    /// Latency mode.
    Latency,
    /// As the RB² paper evaluates it, messages written and read in place; or but for one thing.
    Paper(Variant),
}

/// RB² in full, or with one of its optimisations switched off (the paper's Table II).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Variant {
    /// Everything, on ordinary pages: RB² in the figures.
    Full,
    /// M1: everything, on huge pages where the machine has some.
    HugePages,
    /// M2: α = β = γ = 1, no gate.
    NoBatching,
    /// M3: β = α.
    NoEarlyTransmission,
    /// M4: the tail is published every α slots whatever is under way.
    NoElasticThreshold,
    /// M5: γ = 1.
    NoLazyPush,
    /// M6: messages are copied in and out.
    Copies,
    /// M7: the arrays do not begin on a cache line.
    Unaligned,
    /// M8: on ordinary pages. As `Full`, but for its name.
    OrdinaryPages,
    /// M9: on huge pages, with the memory on another NUMA node.
    WrongNode(u32),
    /// α = β = 1 and the lazy head of the default: batching of messages off, for latency.
    Unbatched,
    /// Latency mode.
    Latency,
}

impl Variant {
    /// Whether it is a row of the paper's Table II that has huge pages: all but M8.
    pub fn is_row(self) -> bool {
        !matches!(
            self,
            Self::Full | Self::OrdinaryPages | Self::Unbatched | Self::Latency
        )
    }
}

#[cfg(test)]
impl Variant {
    /// Each of them.
    pub(super) const ALL: [Self; 12] = [
        Self::Full,
        Self::HugePages,
        Self::NoBatching,
        Self::NoEarlyTransmission,
        Self::NoElasticThreshold,
        Self::NoLazyPush,
        Self::Copies,
        Self::Unaligned,
        Self::OrdinaryPages,
        Self::WrongNode(1),
        Self::Unbatched,
        Self::Latency,
    ];
}

impl Channel {
    /// Whether messages of `size` bytes are written where they are sent from, if the channel has such
    /// a place, rather than copied there from the application's memory.
    pub fn in_place(self, size: usize) -> bool {
        match self {
            Self::Ring(RingMode::Paper(variant)) => variant != Variant::Copies,
            Self::Rival(_) => true,
            _ => size >= IN_PLACE,
        }
    }
}

/// Messages of so many bytes and more are written in place, but for arms that say otherwise.
pub const IN_PLACE: usize = 64 * 1024;

/// What a pair of parts does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Workload {
    /// As many messages as possible, one way.
    Rate,
    /// A message there and back, one at a time, for a time.
    PingPong,
    /// The same for so many round trips, or until the time is up.
    Rounds {
        /// Not measured, or not for longer than the time before.
        warm: u64,
        /// Measured after them, at most.
        measured: u64,
    },
    /// So many messages per second, whether or not they are taken in time.
    Load {
        /// Messages per second.
        per_second: f64,
    },
}

/// One point to measure, as told to both parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Through what.
    pub channel: Channel,
    /// Doing what.
    pub workload: Workload,
    /// Bytes of a message, at least 8 (16 under load).
    pub size: usize,
    /// Slots of a ring.
    pub slots: usize,
    /// Whether every byte is written by the sender and read by the receiver.
    pub touch: bool,
    /// Measured time.
    pub run_ns: u64,
    /// Time before that, not measured.
    pub warm_ns: u64,
    /// Kernel buffer of a stream in bytes; unset: the system's default.
    pub buffer: Option<usize>,
    /// Whether an end with nothing to do offers its processor to others: parts outnumber processors.
    pub yields: bool,
    /// Whether requests and completions are counted instead.
    pub counted: bool,
    /// Whether the sending part begins when it is told to, with those of other pairs.
    pub together: bool,
    /// A private directory for names.
    pub dir: PathBuf,
}

/// What a part found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// Nothing: the other part reports.
    None,
    /// Connected, and waiting to be told to begin. Another report follows.
    Ready,
    /// Messages in a time.
    Rate {
        /// How many.
        messages: u64,
        /// In how many nanoseconds.
        nanos: u64,
        /// When they began, in nanoseconds on the clock that all parts share.
        began_ns: u64,
    },
    /// Latencies, one way; or of round trips, where those were asked for.
    Latency(Quantiles),
    /// From the doorbell to the completion, of each request in a batch.
    Delays(Vec<Quantiles>),
    /// What was seen of a load while it ran.
    Looks(Vec<crate::nic::watched::Look>),
    /// What was counted of many rings, phase by phase.
    Phases(Vec<crate::fanin::Phase>),
    /// Requests answered in a time, one after the other, and how long each took.
    Served {
        /// How many.
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
        /// What huge pages its process had.
        pages: HugePages,
    },
    /// What a process's memory grew by.
    Grown {
        /// Bytes from the heap.
        heap: i64,
        /// Bytes resident.
        resident: i64,
    },
}

impl Job {
    /// For the other process.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a JSON form")
    }

    /// From the director.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ArmError> {
        let job: Self = serde_json::from_slice(bytes).map_err(|e| ArmError::at("job", e))?;
        if job.size < 8 || job.slots == 0 {
            return Err(ArmError(format!(
                "job: size {} or slots {}",
                job.size, job.slots
            )));
        }
        Ok(job)
    }

    /// Messages that one step moves: enough that a step's own cost does not count.
    pub fn batch(&self) -> usize {
        (256 * 1024 / self.size).clamp(1, 1024)
    }

    /// Measured time.
    pub fn run(&self) -> Duration {
        Duration::from_nanos(self.run_ns)
    }

    /// Time before that.
    pub fn warm(&self) -> Duration {
        Duration::from_nanos(self.warm_ns)
    }

    /// Whether something is sent back.
    pub fn is_two_way(&self) -> bool {
        matches!(self.workload, Workload::PingPong | Workload::Rounds { .. })
    }

    /// Messages before the measured ones, at least: every slot is then in memory.
    pub fn warm_messages(&self) -> u64 {
        2 * self.slots as u64
    }
}

impl Report {
    /// For the director.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a JSON form")
    }

    /// From a part.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ArmError> {
        serde_json::from_slice(bytes).map_err(|e| ArmError::at("report", e))
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
    fn jobs_and_reports_travel() {
        let job = Job {
            channel: Channel::Stream(Transport::Tcp, Waiting::Blocking, Buffering::Buffered),
            workload: Workload::Load { per_second: 1.5e6 },
            size: 64,
            slots: 128,
            touch: true,
            run_ns: 10,
            warm_ns: 2,
            buffer: Some(4096),
            yields: true,
            counted: false,
            together: false,
            dir: "/tmp/x".into(),
        };
        assert_eq!(Job::from_bytes(&job.to_bytes()).unwrap(), job);
        assert!(Job::from_bytes(b"{}").is_err());
        assert!(Job::from_bytes(&Job { size: 1, ..job }.to_bytes()).is_err());
        let report = Report::Rate {
            messages: 3,
            nanos: 1_000,
            began_ns: 7,
        };
        assert_eq!(Report::from_bytes(&report.to_bytes()).unwrap(), report);
        assert_eq!(report.per_second(), Some(3e6));
        assert_eq!(
            Report::Rate {
                messages: 3,
                nanos: 0,
                began_ns: 7,
            }
            .per_second(),
            None
        );
    }
}
