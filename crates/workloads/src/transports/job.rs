//! What a part is told to do and what it reports, as both travel between processes.

use std::path::{Path, PathBuf};

use headworks::verbs::time::Duration;
use serde::{Deserialize, Serialize};

pub use crate::report::Report;

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
    /// FaRM's message buffers, filled in place, any number under way.
    Farm,
    /// SocksDirect's ring.
    SocksDirect,
    /// L5's ring.
    L5,
    /// WRITEs without a protocol.
    Raw,
    /// A combination of the RB² paper's Figure 3.
    Points(Combination),
    /// FaRM's message buffers as the RB² paper's Table I has them: the message is copied, one is under way at a time, on
    /// huge pages where the machine has some.
    FarmAsPublished,
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
    /// As `HugePages`, but for its name: RB² on huge pages in the figures.
    Huge,
    /// M7 whole: as `Unaligned`, and each end keeps its own pointers in the cache line that its peer's WRITEs go to.
    NotCacheFriendly,
    /// M9 with the threads elsewhere: memory on this NUMA node, which the processors do not belong to.
    WrongThreads(u32),
}

impl Variant {
    /// Whether its memory is on huge pages where the machine has some: the rows of the paper's Table II, but for M8.
    pub fn is_huge(self) -> bool {
        !matches!(
            self,
            Self::Full | Self::OrdinaryPages | Self::Unbatched | Self::Latency
        )
    }
}

#[cfg(test)]
impl Variant {
    /// Each of them.
    pub(super) const ALL: [Self; 15] = [
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
        Self::Huge,
        Self::NotCacheFriendly,
        Self::WrongThreads(1),
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
    /// As many messages as possible, one way, for a time.
    Rate,
    /// As many messages as possible, one way, until so many were sent after the warm-up, or until the time is up.
    Volume {
        /// Messages sent after the warm-up, at most.
        messages: u64,
    },
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

impl Workload {
    /// Messages after the warm-up that end it before its time is up, if some do.
    pub fn volume(self) -> Option<u64> {
        match self {
            Self::Volume { messages } => Some(messages),
            _ => None,
        }
    }

    /// Messages per second of a load; as many as possible otherwise.
    pub(super) fn per_second(self) -> f64 {
        match self {
            Self::Load { per_second } => per_second,
            _ => f64::INFINITY,
        }
    }
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
    pub slots: u32,
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

impl Job {
    /// Messages of so many bytes in 128 slots, for `run`, of which a fifth is the warm-up, and without anything that is
    /// special.
    pub fn new(
        channel: Channel,
        workload: Workload,
        size: u64,
        run: std::time::Duration,
        dir: &Path,
    ) -> Self {
        let run_ns = run.as_nanos() as u64;
        Self {
            channel,
            workload,
            size: size as usize,
            slots: 128,
            touch: false,
            run_ns: run_ns / 5 * 4,
            warm_ns: run_ns / 5,
            buffer: None,
            yields: false,
            counted: false,
            together: false,
            dir: dir.to_owned(),
        }
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
        2 * u64::from(self.slots)
    }
}
