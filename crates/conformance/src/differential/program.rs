//! Programs: what is done on two hosts, as plain data.
//!
//! A program names memory and queue pairs by numbers that are taken modulo what there is, so that any
//! numbers are a program, and what is left when some of it is taken away is one, too. Everything
//! that is wrong with a request is said ([`SliceFault`], or what its memory allows), never left to chance.

use std::fmt;

use headworks_verbs::{Access, QpState};

/// Bytes of every piece of memory.
pub const LEN: usize = 4096;
/// Requests send from below this and bring to what is above, so that a chain never writes what it
/// reads here: the specification would not say what comes of it.
pub const HALF: usize = LEN / 2;
/// Bytes of the longest piece.
pub const PIECE_MAX: u16 = 1500;
/// Bytes of the longest datagram.
pub const DATAGRAM_MAX: u16 = 300;
/// Bytes of the longest inline payload.
pub const INLINE_MAX: u32 = 64;
/// Requests and receives that a queue pair has room for.
pub const DEPTH: u32 = 64;
/// Pieces of a request.
pub const PIECES_MAX: u32 = 3;

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Memory that each host has from the beginning.
    pub memory: [Vec<RegionSpec>; 2],
    /// Pairs of queue pairs, one on each host.
    pub lines: Vec<QpPair>,
    /// One after the other: the next begins when everything has come to rest.
    pub steps: Vec<ProgramStep>,
    /// In which order everything is destroyed in the end.
    pub teardown_seed: u64,
}

/// Memory, registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// What it allows.
    pub access: Access,
    /// Ordinary memory, which no device gave.
    pub heap: bool,
    /// Of another protection domain than the queue pairs.
    pub foreign: bool,
}

/// A queue pair on each host, connected with each other, or sending datagrams to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpPair {
    /// UD; RC if not.
    pub datagrams: bool,
    /// On each host.
    pub ends: [QpConfig; 2],
}

/// How a queue pair is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Receives come from a shared receive queue.
    pub shared: bool,
    /// Sends and receives complete into one CQ.
    pub one_cq: bool,
    /// Every send completes.
    pub signal_all: bool,
    /// What the peer may do.
    pub access: Access,
}

/// What is done in a step.
#[expect(missing_docs, reason = "fields say which line, end and memory, modulo")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramStep {
    /// Receives are posted; to the queue pair itself, though it has a shared queue, if `astray`.
    Receive {
        line: u8,
        end: u8,
        chain: Vec<Vec<Slice>>,
        astray: bool,
    },
    /// Receives are posted over there and send requests here; if `anew`, on a line that is brought up
    /// again first where it needs that.
    Send {
        line: u8,
        end: u8,
        anew: bool,
        receives: Vec<Vec<Slice>>,
        chain: Vec<Request>,
    },
    /// A queue pair is moved, with no attributes.
    Modify { line: u8, end: u8, to: QpState },
    /// Both ends are reset and brought up again.
    Reconnect { line: u8 },
    /// A queue pair is destroyed.
    Destroy { line: u8, end: u8 },
    /// Memory is registered.
    Register { end: u8, memory: RegionSpec },
    /// Memory is deregistered; it stays.
    Deregister { end: u8, which: u8 },
}

/// Bytes of some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which memory.
    pub memory: u8,
    /// From where on, modulo what is left of it.
    pub at: u16,
    /// Bytes.
    pub len: u16,
    /// What is wrong.
    pub wrong: SliceFault,
}

/// What is wrong with a slice, beside what its memory does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceFault {
    /// The request is sound.
    Not,
    /// The key is no region's.
    Key,
    /// It ends a byte behind the region.
    End,
    /// It begins a byte before the region.
    Start,
    /// It is nowhere near.
    Far,
    /// The region is gone, if one is.
    Gone,
    /// Half a word aside: where words are asked for.
    Aside,
}

/// A send request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Operation of the request.
    pub op: Op,
    /// Its bytes here.
    pub local: LocalData,
    /// Where over there; its length is that of the bytes here.
    pub remote: Slice,
    /// Completes; the last of a chain always does.
    pub signaled: bool,
    /// Waits for what was brought before.
    pub fence: bool,
}

/// What a request does.
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
    /// A datagram.
    SendTo {
        imm: Option<u32>,
        good_qkey: bool,
    },
}

/// A request's bytes here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalData {
    /// Pieces of registered memory.
    Gather(Vec<Slice>),
    /// In the request.
    Inline(u8),
    /// One piece more than the queue pair takes.
    TooMany(Slice),
    /// A byte more than the queue pair takes in a request.
    InlineTooLong,
}

impl Op {
    /// It brings something here.
    pub const fn brings(self) -> bool {
        matches!(self, Self::Read) || self.is_atomic()
    }

    /// On a word.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// It names memory over there.
    pub const fn names_memory(self) -> bool {
        !matches!(self, Self::Send | Self::SendImm(_) | Self::SendTo { .. })
    }

    /// What the peer must allow.
    pub const fn needs(self) -> Access {
        match self {
            Self::Send | Self::SendImm(_) | Self::SendTo { .. } => Access::NONE,
            Self::Write | Self::WriteImm(_) => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Access::REMOTE_ATOMIC,
        }
    }

    /// It takes a receive over there.
    pub const fn takes_receive(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImm(_) | Self::SendTo { .. } | Self::WriteImm(_)
        )
    }
}

impl Request {
    /// A device may refuse it when it is posted, whatever the memory is.
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
            let transport = if line.datagrams { "UD" } else { "RC" };
            writeln!(f, "line {number}: {transport}, {:?}", line.ends)?;
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
                        ", brought up anew if need be"
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
