//! What was seen of a step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use headworks_verbs::{Opcode, QpState, Status};

use super::comparison::DivergenceRule;
use crate::call::Refusal;

/// What came of a step on one pair of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepObservation {
    /// What the call was answered with.
    pub outcome: CallOutcome,
    /// What became of requests and receives, by their numbers.
    pub fates: BTreeMap<u64, WorkFate>,
    /// Where those requests and receives are.
    pub about: BTreeMap<u64, PostedTo>,
    /// Where queue pairs are then, and what waits there.
    pub snapshots: Vec<[QpSnapshot; 2]>,
    /// Receives with something wrong, and how many bytes of them come before that.
    pub faulty_receives: BTreeMap<u64, usize>,
    /// Queue pairs, by line and end, that do not complete what is outstanding, on devices that are known for
    /// that: all that may be why.
    pub stuck: BTreeMap<(usize, usize), Vec<KnownHang>>,
    /// Requests with several things wrong.
    pub several_faults: BTreeSet<u64>,
    /// Bytes of which the specification does not say what they are.
    pub unspecified: Vec<UnspecifiedBytes>,
    /// What no device may do, whatever another does.
    pub violations: Vec<String>,
}

/// Something waits without end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHang {
    /// The case that sees it.
    pub case: &'static str,
    /// One of these requests does.
    pub among: RangeInclusive<u64>,
}

/// Where a request or a receive was posted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PostedTo {
    /// To which line.
    pub line: usize,
    /// And end.
    pub end: usize,
    /// It is a receive.
    pub is_receive: bool,
    /// Bytes that it may write, here or over there.
    pub spans: Vec<Span>,
}

/// Bytes, by host, memory and range, and why they are in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnspecifiedBytes {
    /// Which bytes.
    pub span: Span,
    /// What says so.
    pub rule: DivergenceRule,
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The host.
    pub end: usize,
    /// The memory, by its number there.
    pub memory: usize,
    /// The first byte.
    pub from: usize,
    /// Behind the last.
    pub to: usize,
}

impl Span {
    /// Whether both have a byte in common.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.end == other.end
            && self.memory == other.memory
            && self.from < other.to
            && other.from < self.to
    }
}

/// What a call was answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// It was done.
    Done,
    /// There was nothing to do it with.
    Nothing,
    /// It was refused: why, and for which request of a chain.
    Refused {
        /// The error's variant.
        kind: String,
        /// Which request.
        index: Option<usize>,
    },
}

impl From<Refusal> for CallOutcome {
    fn from(refusal: Refusal) -> Self {
        Self::Refused {
            kind: refusal.kind,
            index: refusal.index,
        }
    }
}

/// What became of a request or a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkFate {
    /// It was refused when it was posted.
    Refused(String),
    /// It is behind one that was refused.
    NotPosted,
    /// It completed with success. What means nothing is left out.
    Success {
        /// What it was.
        opcode: Opcode,
        /// Bytes, of receives and of what brings some.
        bytes: Option<u32>,
        /// Immediate.
        imm: Option<u32>,
        /// The sender of a datagram: its line and host.
        source: Option<(usize, usize)>,
        /// By which queue pair a shared receive was taken.
        by: Option<(usize, usize)>,
    },
    /// It was not signalled, and one behind it completed.
    Silent,
    /// It completed with this.
    Failed(Status),
}

impl WorkFate {
    /// In a word or two.
    pub fn name(&self) -> String {
        match self {
            Self::Refused(kind) => format!("refused: {kind}"),
            Self::NotPosted => "not posted".to_owned(),
            Self::Success { opcode, .. } => format!("{opcode:?}"),
            Self::Silent => "unsignalled".to_owned(),
            Self::Failed(status) => format!("failed: {status:?}"),
        }
    }

    /// It was executed.
    pub const fn is_good(&self) -> bool {
        matches!(self, Self::Success { .. } | Self::Silent)
    }
}

/// Where a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSnapshot {
    /// Its state; `None` if it is gone.
    pub state: Option<QpState>,
    /// Requests without a completion.
    pub sends: usize,
    /// Receives of its own, or of its shared queue, without one.
    pub receives: usize,
}

/// A status that the peer had to fail for.
pub(super) const fn is_of_the_peer(status: Status) -> bool {
    matches!(
        status,
        Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation
    )
}
