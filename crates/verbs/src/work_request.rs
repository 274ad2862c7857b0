//! Work requests: the entries that are posted to a send or receive queue.

use crate::datagram::Destination;
use crate::memory_region::{RemoteAddr, Sge};

/// Operation of a send request (InfiniBand specification, volume 1, chapter 10.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// SEND: the peer's next receive takes the bytes.
    Send,
    /// SEND that also delivers 32 bits in the peer's completion.
    SendImm(u32),
    /// A datagram (UD): a SEND of at most one packet to this destination.
    SendTo(Destination),
    /// A datagram that also delivers 32 bits in the receiver's completion.
    SendToImm(Destination, u32),
    /// RDMA WRITE into the peer's memory; the peer gets no completion.
    Write(RemoteAddr),
    /// RDMA WRITE that consumes a receive of the peer and delivers 32 bits in its completion.
    WriteImm(RemoteAddr, u32),
    /// RDMA READ of the peer's memory into this process's memory.
    Read(RemoteAddr),
    /// 64-bit compare-and-swap on the peer's memory. It returns the old value.
    CompareSwap {
        /// The aligned 8-byte word.
        remote: RemoteAddr,
        /// The word is swapped only if it has this value.
        expect: u64,
        /// The new value.
        swap: u64,
    },
    /// 64-bit fetch-and-add on the peer's memory. It returns the old value.
    FetchAdd {
        /// The aligned 8-byte word.
        remote: RemoteAddr,
        /// The addend; the addition wraps.
        add: u64,
    },
}

/// The local bytes of a send request: the source, or the destination of a READ or an atomic.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, gathered in order. The device owns it until the completion.
    Gather(&'a [Sge]),
    /// Bytes copied while posting; at most the queue pair's `max_inline`. Not for READ or atomics.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// Total length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Gather(sges) => sges.iter().map(|s| u64::from(s.len)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

bitflags::bitflags! {
    /// Flags of a send request, in libibverbs' encoding. Combine with `|`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u8 {
        /// No flag.
        const NONE = 0;
        /// Wait for earlier READs and atomics of this queue pair.
        const FENCE = 1;
        /// The request completes into the CQ. Unsignalled requests occupy the SQ until a later signalled one
        /// completes.
        const SIGNALED = 2;
        /// The peer's completion is a solicited event.
        const SOLICITED = 4;
    }
}

/// A send work request. Requests are posted in slices; a slice is one doorbell.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The local bytes.
    pub payload: Payload<'a>,
    /// Flags.
    pub flags: SendFlags,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the received bytes are scattered, in order. May be empty for WRITE with immediate.
    pub sges: &'a [Sge],
}
