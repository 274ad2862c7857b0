//! Jobs of an actor and their reports, in the form in which they travel between processes.

use std::path::{Path, PathBuf};

use headworks::verbs::time::Duration;
use serde::{Deserialize, Serialize};

pub use crate::report::Report;

/// A message channel that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Channel {
    /// A byte stream of the kernel.
    Stream(StreamKind, Waiting, Buffering),
    /// The ring on verbs.
    Ring(RingMode),
    /// The same ring without verbs.
    Bare,
    /// A baseline design on the same verbs.
    Baseline(PaperBaseline),
}

/// Defines kinds of channels, each with its name in the points and a note on how it works.
macro_rules! named {
    (
        $(#[$meta:meta])*
        $of:ident { $($kind:ident $(($field:ty: $one:expr))? = $name:literal, $what:literal;)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $of {
            $(#[doc = $what] $kind $(($field))?,)*
        }

        impl $of {
            /// One of each kind.
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$kind $(($one))?,)*];

            /// Returns its name in the points, and how it works.
            pub(super) fn about(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$kind { .. } => ($name, $what),)*
                }
            }
        }
    };
}

named! {
    /// A baseline design that the ring is compared with.
    PaperBaseline {
        Farm = "farm", "FaRM-style: WRITE of the bytes, WRITE of the length; the receiver polls that \
            and clears";
        SocksDirect = "socksdirect", "SocksDirect-style: WRITE with immediate, all signalled, 10 in \
            flight, then batches";
        L5 = "l5", "L5-style: WRITE of the bytes, WRITE of the tail, for every message";
        Raw = "raw-write", "WRITEs without a protocol; one way nobody reads them, there and back the \
            last word is polled";
        SyncVariant(Combination: Combination { pull: true, cq: true, batch: 3, lazy: 2 }) = "points", "a \
            combination of the RB² paper's Figure 3";
        FarmAsPublished = "farm-as-published", "as farm, but the message is copied into the memory \
            that is sent, the next one waits for its completion, and huge pages if there are any";
    }
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
    /// Slots by which the head that the sender knows may lag behind.
    pub lazy: u32,
}

/// Kind of byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StreamKind {
    /// TCP over the loopback, without Nagle's delay.
    Tcp,
    /// A Unix stream socket.
    Unix,
    /// Two pipes, one for each direction.
    Pipe,
}

/// How both ends of a stream wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Waiting {
    /// By nonblocking calls in a loop.
    Spinning,
    /// In the kernel.
    Blocking,
}

/// Whether the application gathers messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Buffering {
    /// One message per call.
    None,
    /// 64 KiB gathered on either side.
    Buffered,
}

named! {
    /// How the ring is set up.
    RingMode {
        Default = "rb2", "publish every 32, transmit every 16, push every 32 of 128 slots; every 1 of \
            4 slots";
        Unbatched = "rb2-unbatched", "publish and transmit every message";
        Latency = "rb2-latency", "latency mode: one WRITE a message, whose last word is polled";
        Paper(Variant: Variant::Full) = "paper", "as the RB² paper evaluates it, in place";
    }
}

named! {
    /// RB² in full, or with one of its optimisations switched off. M1 to M9 are the rows of the paper's Table
    /// II, the others appear in its figures. Rows other than M8 use huge pages where the machine has some.
    Variant {
        Full = "rb2-in-place", "publish every 32, transmit every 16, push every 32; in place";
        HugePages = "M1-full", "publish every 32, transmit every 16, push every 32; in place; huge \
            pages if there are any";
        NoBatching = "M2-no-batching", "publish, transmit and push every message, no gate";
        NoEarlyTransmission = "M3-no-early-transmission", "transmit when publishing";
        NoElasticThreshold = "M4-no-elastic-threshold", "publish although an earlier tail is under way";
        NoLazyPush = "M5-no-lazy-push", "push the head for every message";
        Copies = "M6-copies", "copied into the slot and out of it";
        Unaligned = "M7-unaligned", "arrays begin 8 bytes behind a cache line";
        OrdinaryPages = "M8-ordinary-pages", "as M1 on ordinary pages";
        WrongNode(u32: 1) = "M9-wrong-node", "memory on another NUMA node";
        Unbatched = "rb2-in-place-unbatched", "publish and transmit every message, push every 32; in \
            place";
        Latency = "rb2-in-place-latency", "latency mode: one WRITE a message, whose last word is polled";
        Huge = "rb2-in-place-huge", "publish every 32, transmit every 16, push every 32; in place; \
            huge pages if there are any";
        NotCacheFriendly = "M7-not-cache-friendly", "as M7-unaligned, and the pointers of an end \
            share one cache line";
        WrongThreads(u32: 1) = "M9-wrong-threads", "threads on another NUMA node";
    }
}

impl Variant {
    /// Returns whether its memory is on huge pages where the machine has some.
    pub fn is_huge(self) -> bool {
        !matches!(
            self,
            Self::Full | Self::OrdinaryPages | Self::Unbatched | Self::Latency
        )
    }
}

impl Channel {
    /// Returns whether messages of `size` bytes are written in place, if the channel supports it, rather than
    /// copied from the application's memory.
    pub fn in_place(self, size: usize) -> bool {
        match self {
            Self::Ring(RingMode::Paper(variant)) => variant != Variant::Copies,
            Self::Baseline(_) => true,
            _ => size >= IN_PLACE,
        }
    }
}

/// Messages of at least this many bytes are written in place, except on channels that decide otherwise.
pub const IN_PLACE: usize = 64 * 1024;

/// Workload of a pair of actors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Workload {
    /// As many messages as possible, one way, for a time.
    Rate,
    /// As many messages as possible, one way, until a number was sent after the warm-up, or until the time is
    /// up.
    Volume {
        /// Maximum number of messages sent after the warm-up.
        messages: u64,
    },
    /// Round trips, one message at a time, for a time.
    PingPong,
    /// Round trips, one message at a time, until a number was measured or the time is up.
    Rounds {
        /// Round trips of the warm-up, which also ends when its time is up.
        warm: u64,
        /// Maximum number of round trips measured after that.
        measured: u64,
    },
    /// One-way messages at a rate, whether or not they are taken in time (open loop).
    Load {
        /// Messages per second.
        per_second: f64,
    },
}

impl Workload {
    /// Returns the number of messages after the warm-up that ends the workload early, if there is one.
    pub fn volume(self) -> Option<u64> {
        match self {
            Self::Volume { messages } => Some(messages),
            _ => None,
        }
    }

    /// Returns the messages per second of a load; infinity for other workloads.
    pub(super) fn per_second(self) -> f64 {
        match self {
            Self::Load { per_second } => per_second,
            _ => f64::INFINITY,
        }
    }
}

/// One point to measure; both actors are given it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Channel to measure.
    pub channel: Channel,
    /// Workload to run.
    pub workload: Workload,
    /// Bytes of a message, at least 8 (16 under load).
    pub size: usize,
    /// Slots of a ring.
    pub slots: u32,
    /// Whether every byte is written by the sender and read by the receiver.
    pub touch: bool,
    /// Duration of the measurement in nanoseconds.
    pub run_ns: u64,
    /// Duration of the warm-up in nanoseconds.
    pub warm_ns: u64,
    /// Kernel buffer of a stream in bytes; unset: the system's default.
    pub buffer: Option<usize>,
    /// Whether an idle end yields its processor: set if actors outnumber processors.
    pub yields: bool,
    /// Whether requests and completions are counted instead.
    pub counted: bool,
    /// Whether the sending actor waits for a signal, so that it begins together with those of other pairs.
    pub together: bool,
    /// Private directory for names.
    pub dir: PathBuf,
}

impl Job {
    /// Makes a job of messages of `size` bytes in 128 slots, with defaults otherwise. A fifth of `run` is
    /// warm-up.
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

    /// Returns the number of messages per step: enough that a step's own cost does not matter.
    pub fn batch(&self) -> usize {
        (256 * 1024 / self.size).clamp(1, 1024)
    }

    /// Returns the duration of the measurement.
    pub fn run(&self) -> Duration {
        Duration::from_nanos(self.run_ns)
    }

    /// Returns the duration of the warm-up.
    pub fn warm(&self) -> Duration {
        Duration::from_nanos(self.warm_ns)
    }

    /// Returns whether the workload sends messages back.
    pub fn is_two_way(&self) -> bool {
        matches!(self.workload, Workload::PingPong | Workload::Rounds { .. })
    }

    /// Returns the minimum number of messages before the measured ones. After that, every slot is in memory.
    pub fn warm_messages(&self) -> u64 {
        2 * u64::from(self.slots)
    }
}
