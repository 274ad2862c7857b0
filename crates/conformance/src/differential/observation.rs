//! Observations of a step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use headworks_verbs::{Opcode, QpState, Status};

use super::comparison::DivergenceRule;
use crate::call::Refusal;

/// Result of a step on one pair of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepObservation {
    /// Reply to the call of the step.
    pub outcome: CallOutcome,
    /// Fates of requests and receives, by `wr_id`.
    pub fates: BTreeMap<u64, WorkFate>,
    /// Where those requests and receives were posted, by `wr_id`.
    pub about: BTreeMap<u64, PostedTo>,
    /// States of the queue pairs after the step, by line and end, and their outstanding work.
    pub snapshots: Vec<[QpSnapshot; 2]>,
    /// Faulty receives, each with the number of bytes before its fault.
    pub faulty_receives: BTreeMap<u64, usize>,
    /// Queue pairs, by line and end, that do not complete their outstanding work on devices that are known
    /// to hang, with all reasons that may apply.
    pub stuck: BTreeMap<(usize, usize), Vec<KnownHang>>,
    /// Requests with several faults.
    pub several_faults: BTreeSet<u64>,
    /// Bytes whose values the specification leaves open.
    pub unspecified: Vec<UnspecifiedBytes>,
    /// Behaviour that no device may show, whatever the other device does.
    pub violations: Vec<String>,
}

/// Known reason why work may hang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHang {
    /// Case that observes it.
    pub case: &'static str,
    /// Requests, of which one hangs.
    pub among: RangeInclusive<u64>,
}

/// Where a request or a receive was posted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PostedTo {
    /// Index of the line in the program.
    pub line: usize,
    /// Index of the host whose queue pair it is.
    pub end: usize,
    /// It is a receive, not a request.
    pub is_receive: bool,
    /// Memory that it may write, local or remote.
    pub spans: Vec<Span>,
}

/// Bytes whose values the specification leaves open, and the rule that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnspecifiedBytes {
    /// The bytes.
    pub span: Span,
    /// The rule.
    pub rule: DivergenceRule,
}

/// Range of bytes of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// End: the index of the host.
    pub end: usize,
    /// Index of the memory on that host.
    pub memory: usize,
    /// First byte.
    pub from: usize,
    /// End of the range, exclusive.
    pub to: usize,
}

impl Span {
    /// Returns whether both ranges have a byte in common.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.end == other.end
            && self.memory == other.memory
            && self.from < other.to
            && other.from < self.to
    }
}

/// Outcome of a step's call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call succeeded.
    Done,
    /// There was no object to execute it on.
    Nothing,
    /// The call was refused.
    Refused {
        /// Variant name of the error.
        kind: String,
        /// Index of the refused request in its chain.
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

/// Fate of a request or a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkFate {
    /// It was refused when posted, with this error.
    Refused(String),
    /// It was not posted, because an earlier request of its chain was refused.
    NotPosted,
    /// It completed successfully. Fields without a meaning are left out.
    Success {
        /// Opcode of the completion.
        opcode: Opcode,
        /// Length, for receives, READs and atomics.
        bytes: Option<u32>,
        /// Immediate, if there is one.
        imm: Option<u32>,
        /// Line and end of the sender of a datagram.
        source: Option<(usize, usize)>,
        /// Queue pair that took a shared receive, by line and end.
        by: Option<(usize, usize)>,
    },
    /// It is unsignalled, and a later request completed.
    Silent,
    /// It completed with this error status.
    Failed(Status),
}

impl WorkFate {
    /// Returns the fate in a word or two.
    pub fn name(&self) -> String {
        match self {
            Self::Refused(kind) => format!("refused: {kind}"),
            Self::NotPosted => "not posted".to_owned(),
            Self::Success { opcode, .. } => format!("{opcode:?}"),
            Self::Silent => "unsignalled".to_owned(),
            Self::Failed(status) => format!("failed: {status:?}"),
        }
    }

    /// Returns whether it was executed.
    pub const fn is_good(&self) -> bool {
        matches!(self, Self::Success { .. } | Self::Silent)
    }
}

/// State and outstanding work of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSnapshot {
    /// State; `None` if the queue pair was destroyed.
    pub state: Option<QpState>,
    /// Number of requests without a completion.
    pub sends: usize,
    /// Number of receives of its own or its shared queue without a completion.
    pub receives: usize,
}

/// Returns whether the status means that the peer's queue pair failed.
pub(super) const fn is_of_the_peer(status: Status) -> bool {
    matches!(
        status,
        Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation
    )
}
