//! Work requests: what is posted to a send or receive queue.

use crate::datagram::Destination;
use crate::memory_region::{RemoteAddr, Sge};

/// What a send request does (InfiniBand specification, volume 1, chapter 10.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// SEND: the peer's next receive takes the bytes.
    Send,
    /// SEND that also hands the peer 32 bits in its completion.
    SendImm(u32),
    /// A datagram (UD): SEND to the queue pair named here, as long as a packet at most.
    SendTo(Destination),
    /// A datagram that also hands the peer 32 bits.
    SendToImm(Destination, u32),
    /// RDMA WRITE into the peer's memory; the peer's CPU is not told.
    Write(RemoteAddr),
    /// RDMA WRITE that consumes a receive of the peer and hands it 32 bits.
    WriteImm(RemoteAddr, u32),
    /// RDMA READ of the peer's memory into this process's.
    Read(RemoteAddr),
    /// 64-bit compare-and-swap on the peer's memory; the old value comes back.
    CompareSwap {
        /// The aligned 8-byte word.
        remote: RemoteAddr,
        /// Swapped only if the word has this value.
        expect: u64,
        /// The new value.
        swap: u64,
    },
    /// 64-bit fetch-and-add on the peer's memory; the old value comes back.
    FetchAdd {
        /// The aligned 8-byte word.
        remote: RemoteAddr,
        /// Added, wrapping.
        add: u64,
    },
}

/// Where a send request's bytes are (for READ and atomics: where they go).
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, gathered in order. It belongs to the device until the completion.
    Gather(&'a [Sge]),
    /// Bytes copied while posting; at most the queue pair's `max_inline`. Not for READ or atomics.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// Total bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Gather(sges) => sges.iter().map(|s| u64::from(s.len)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Flags of a send request. Combine with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SendFlags(u8);

impl SendFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Wait for earlier READs and atomics of this queue pair.
    pub const FENCE: Self = Self(1);
    /// Completes into the CQ. Unsignalled requests occupy the SQ until a later signalled one
    /// completes.
    pub const SIGNALED: Self = Self(2);
    /// The peer's completion is a solicited event.
    pub const SOLICITED: Self = Self(4);

    /// Whether every flag in `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits, in libibverbs' encoding.
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }
}

impl std::ops::BitOr for SendFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A send work request. Posted in slices; a slice is one doorbell.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// The local bytes.
    pub payload: Payload<'a>,
    /// Flags.
    pub flags: SendFlags,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the bytes go, scattered in order. May be empty for WRITE with immediate.
    pub sges: &'a [Sge],
}
