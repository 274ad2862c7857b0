//! Programs: what is done on two hosts, as plain data.
//!
//! A program refers to memory and lines by numbers that are taken modulo what exists. Any numbers therefore
//! form a program, and so does a program from which parts were removed. Every fault of a request is explicit
//! ([`SliceFault`], or the access of its memory), never left to chance.
//!
//! A *line* is a pair of queue pairs, one on each host. An *end* is the index of a host.

use std::fmt;

use headworks_verbs::{Access, QpState, QpType};

/// Length of every memory in bytes.
pub const LEN: usize = 4096;
/// Boundary in every memory: requests send from below it and fetch to above it. A chain therefore never
/// writes memory that it reads locally, for which the specification would not define the result.
pub const HALF: usize = LEN / 2;
/// Maximum length of a piece (a scatter/gather entry) in bytes.
pub const PIECE_MAX: u16 = 1500;
/// Maximum length of a datagram in bytes.
pub const DATAGRAM_MAX: u16 = 300;
/// Maximum length of an inline payload in bytes.
pub const INLINE_MAX: u32 = 64;
/// Number of requests, and of receives, that a queue pair holds.
pub const DEPTH: u32 = 64;
/// Maximum number of pieces of a request.
pub const PIECES_MAX: u32 = 3;

/// Program for two hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Memory of each host at the beginning.
    pub memory: [Vec<RegionSpec>; 2],
    /// The pairs of queue pairs.
    pub lines: Vec<QpPair>,
    /// Steps in order. A step begins when the one before has come to rest.
    pub steps: Vec<ProgramStep>,
    /// Seed of the order in which all objects are destroyed at the end.
    pub teardown_seed: u64,
}

/// Memory and its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Access that the region allows.
    pub access: Access,
    /// The memory is ordinary process memory, not allocated from a device.
    pub heap: bool,
    /// The region is in another protection domain than the queue pairs.
    pub foreign: bool,
}

/// Line: a queue pair on each host. RC and UC queue pairs are connected; UD ones send datagrams to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpPair {
    /// The transport of both queue pairs.
    pub qp_type: QpType,
    /// Configuration of the queue pair on each host.
    pub ends: [QpConfig; 2],
}

/// Configuration of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Receives come from a shared receive queue.
    pub shared: bool,
    /// Sends and receives share one CQ.
    pub one_cq: bool,
    /// Every send request generates a completion.
    pub signal_all: bool,
    /// Access that the queue pair allows the peer.
    pub access: Access,
}

/// Step of a program.
#[expect(missing_docs, reason = "fields say which line, end and memory, modulo")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramStep {
    /// Posts receives. If `astray`, posts them to the queue pair itself even if it has a shared queue.
    Receive {
        line: u8,
        end: u8,
        chain: Vec<Vec<Slice>>,
        astray: bool,
    },
    /// Posts receives at the other end and send requests at this end. If `anew`, first reconnects the line
    /// unless both its queue pairs are in RTS.
    Send {
        line: u8,
        end: u8,
        anew: bool,
        receives: Vec<Vec<Slice>>,
        chain: Vec<Request>,
    },
    /// Moves a queue pair to a state, without attributes.
    Modify { line: u8, end: u8, to: QpState },
    /// Resets both ends and connects them again.
    Reconnect { line: u8 },
    /// Destroys a queue pair.
    Destroy { line: u8, end: u8 },
    /// Allocates and registers memory.
    Register { end: u8, memory: RegionSpec },
    /// Deregisters a region; its memory stays.
    Deregister { end: u8, which: u8 },
}

/// Part of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index of the memory.
    pub memory: u8,
    /// Offset, modulo the number of possible offsets.
    pub at: u16,
    /// Length in bytes.
    pub len: u16,
    /// Fault of the slice.
    pub wrong: SliceFault,
}

/// Fault of a slice, beside the access that its memory lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceFault {
    /// No fault.
    Not,
    /// The key belongs to no region.
    Key,
    /// The slice ends one byte beyond the region.
    End,
    /// The slice begins one byte before the region.
    Start,
    /// The address is far from all memory.
    Far,
    /// The region is deregistered, if there is such a region.
    Gone,
    /// The address is misaligned by half a word; only for words.
    Aside,
}

/// Send request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Operation of the request.
    pub op: Op,
    /// Local data.
    pub local: LocalData,
    /// Remote memory. Its length is that of the local data, or 8 for atomics.
    pub remote: Slice,
    /// The request is signalled; the last of a chain always is.
    pub signaled: bool,
    /// The request waits for earlier READs and atomics.
    pub fence: bool,
}

/// Operation of a request.
#[expect(missing_docs, reason = "what verbs call them")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Send,
    SendImm(u32),
    Write,
    WriteImm(u32),
    Read,
    CompareSwap {
        expect: u64,
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// Datagram.
    SendTo {
        imm: Option<u32>,
        good_qkey: bool,
    },
}

/// Local data of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalData {
    /// Pieces of registered memory.
    Gather(Vec<Slice>),
    /// Inline payload of this length.
    Inline(u8),
    /// One piece more than the queue pair allows.
    TooMany(Slice),
    /// Inline payload one byte longer than the queue pair allows.
    InlineTooLong,
}

impl Op {
    /// Returns whether it writes local memory: READs and atomics.
    pub const fn brings(self) -> bool {
        matches!(self, Self::Read) || self.is_atomic()
    }

    /// Returns whether it is an atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Returns whether it names remote memory.
    pub const fn names_memory(self) -> bool {
        !matches!(self, Self::Send | Self::SendImm(_) | Self::SendTo { .. })
    }

    /// Returns the access that the peer must allow.
    pub const fn needs(self) -> Access {
        match self {
            Self::Send | Self::SendImm(_) | Self::SendTo { .. } => Access::NONE,
            Self::Write | Self::WriteImm(_) => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Access::REMOTE_ATOMIC,
        }
    }

    /// Returns whether it takes a receive of the peer.
    pub const fn takes_receive(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImm(_) | Self::SendTo { .. } | Self::WriteImm(_)
        )
    }
}

impl Request {
    /// Returns whether a device may refuse the request when it is posted, whatever the state of the memory.
    pub fn is_refusable(&self) -> bool {
        let local = match &self.local {
            LocalData::Gather(slices) => {
                let len: usize = slices.iter().map(|slice| usize::from(slice.len)).sum();
                self.op.is_atomic() && (slices.len() != 1 || len != 8)
            }
            LocalData::Inline(_) => self.op.brings(),
            LocalData::TooMany(_) | LocalData::InlineTooLong => true,
        };
        local || (self.op.is_atomic() && self.remote.wrong != SliceFault::Not)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (host, memory) in self.memory.iter().enumerate() {
            for (number, memory) in memory.iter().enumerate() {
                writeln!(f, "host {host} memory {number}: {memory:?}")?;
            }
        }
        for (number, line) in self.lines.iter().enumerate() {
            writeln!(f, "line {number}: {}, {:?}", line.qp_type, line.ends)?;
        }
        for (number, step) in self.steps.iter().enumerate() {
            match step {
                ProgramStep::Send {
                    line,
                    end,
                    anew,
                    receives,
                    chain,
                } => {
                    let anew = if *anew {
                        ", after a reconnect if needed"
                    } else {
                        ""
                    };
                    writeln!(
                        f,
                        "step {number}: line {line} end {end} sends{anew}, to {receives:?}"
                    )?;
                    for request in chain {
                        writeln!(f, "    {request:?}")?;
                    }
                }
                other => writeln!(f, "step {number}: {other:?}")?,
            }
        }
        write!(f, "teardown_seed {}", self.teardown_seed)
    }
}
