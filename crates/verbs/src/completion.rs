//! Completions, completion queues and completion channels.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::address::{Lid, Qpn};
use crate::counters::CqCounters;
use crate::error::{PollError, ResourceError};
use crate::time::Instant;

/// How a work request ended. A status is data, not an `Err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum Status {
    /// Done.
    #[default]
    Success = 0,
    /// A receive was too short, or a local buffer too long for the device.
    LocalLength = 1,
    /// The queue pair is inconsistent.
    LocalQpOperation = 2,
    /// A local key, its bounds or its access rights did not fit.
    LocalProtection = 4,
    /// Flushed: the queue pair was in the error state.
    Flushed = 5,
    /// The response did not fit the request.
    BadResponse = 7,
    /// The peer refused the key, bounds or access of a receive with immediate.
    LocalAccess = 8,
    /// The peer found the request itself illegal (too long for its receive, misaligned atomic).
    RemoteInvalidRequest = 9,
    /// The peer's key, bounds or access rights did not fit.
    RemoteAccess = 10,
    /// The peer failed while executing it.
    RemoteOperation = 11,
    /// The peer did not answer within `timeout` × (`retry_count` + 1), or is gone.
    RetryExceeded = 12,
    /// The peer had no receive posted, `rnr_retry` + 1 times.
    RnrRetryExceeded = 13,
    /// The device failed.
    Fatal = 19,
}

impl Status {
    const ALL: [Self; 13] = [
        Self::Success,
        Self::LocalLength,
        Self::LocalQpOperation,
        Self::LocalProtection,
        Self::Flushed,
        Self::BadResponse,
        Self::LocalAccess,
        Self::RemoteInvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperation,
        Self::RetryExceeded,
        Self::RnrRetryExceeded,
        Self::Fatal,
    ];

    /// The status with libibverbs' number `code`; one that is not known is [`Status::Fatal`].
    pub fn from_code(code: u8) -> Self {
        Self::ALL
            .into_iter()
            .find(|s| *s as u8 == code)
            .unwrap_or(Self::Fatal)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local QP operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "flushed: the queue pair is in error",
            Self::BadResponse => "bad response",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "the peer calls the request invalid",
            Self::RemoteAccess => "the peer refuses access",
            Self::RemoteOperation => "the peer failed to execute it",
            Self::RetryExceeded => "the peer does not answer",
            Self::RnrRetryExceeded => "the peer posted no receive",
            Self::Fatal => "device failure",
        })
    }
}

/// What kind of work completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum Opcode {
    /// SEND, with or without immediate.
    #[default]
    Send = 0,
    /// WRITE, with or without immediate.
    Write = 1,
    /// READ.
    Read = 2,
    /// Compare-and-swap.
    CompareSwap = 3,
    /// Fetch-and-add.
    FetchAdd = 4,
    /// A receive that a SEND consumed.
    Recv = 5,
    /// A receive that a WRITE with immediate consumed.
    RecvWriteImm = 6,
}

impl Opcode {
    const ALL: [Self; 7] = [
        Self::Send,
        Self::Write,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::Recv,
        Self::RecvWriteImm,
    ];

    /// The opcode numbered `code`; [`Opcode::Send`] where there is none such.
    pub fn from_code(code: u8) -> Self {
        Self::ALL
            .get(usize::from(code))
            .copied()
            .unwrap_or_default()
    }

    /// Whether it is the completion of a receive.
    pub const fn is_recv(self) -> bool {
        matches!(self, Self::Recv | Self::RecvWriteImm)
    }
}

/// Facts beside a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CompletionFlags {
    /// UD: the first 40 bytes of the receive are the GRH.
    pub grh: bool,
}

/// A work completion. Where `status` is not success, only `wr_id`, `status` and `qpn` mean
/// anything, as the specification has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Completion {
    /// The request's.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was. Devices need not say so of one that failed, nor by which queue it was posted: whoever
    /// has to know that finds it by `wr_id`.
    pub opcode: Opcode,
    /// The queue pair it was posted to.
    pub qpn: Qpn,
    /// Bytes received (receives), read (READ, atomics).
    pub byte_len: u32,
    /// Immediate data, where the peer sent some.
    pub imm: Option<u32>,
    /// UD: the sender's queue pair.
    pub src_qpn: Qpn,
    /// UD: the sender's port, on an InfiniBand network ([`DeviceInfo::lid`](crate::DeviceInfo::lid)). `None`
    /// elsewhere.
    pub src_lid: Option<Lid>,
    /// Further facts.
    pub flags: CompletionFlags,
    /// When it completed; [`Instant::ZERO`] unless the CQ was made with timestamps.
    pub timestamp: Instant,
}

/// Identifies a CQ within its device; what a completion channel hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u32);

/// What a completion queue is made from.
#[derive(Clone, Default)]
pub struct CqInit {
    /// Completions it must hold, at least 1. Devices round up.
    pub depth: u32,
    /// Where its events go; `None` for a CQ that is only polled.
    pub channel: Option<Arc<dyn CompletionChannel>>,
    /// Fill in [`Completion::timestamp`] (costs a clock read per completion).
    pub timestamps: bool,
}

/// A completion queue. May be polled by several threads.
pub trait CompletionQueue: Send + Sync {
    /// Identifies it in a channel's events.
    fn id(&self) -> CqId;

    /// Completions it holds at most.
    fn depth(&self) -> u32;

    /// Takes up to `out.len()` completions, oldest first, and says how many; also lets pending
    /// work of the queue pairs that complete here make progress. Never blocks.
    fn poll(&self, out: &mut [Completion]) -> Result<usize, PollError>;

    /// Asks for one event on the channel at the next completion (the next solicited or failed one
    /// if `solicited_only`). Poll once more after arming: what came before causes no event.
    fn arm(&self, solicited_only: bool);

    /// What it has seen so far; `None` where the device does not count.
    fn counters(&self) -> Option<CqCounters> {
        None
    }
}

/// Where armed completion queues put their events: a file descriptor to sleep on.
pub trait CompletionChannel: Send + Sync {
    /// Readable when an event may be waiting, and also when the device itself wants to be polled
    /// (a timer ran out, a peer died): call [`CompletionChannel::next_event`] until it says `None`.
    fn fd(&self) -> BorrowedFd<'_>;

    /// The next CQ that had an event. Never blocks.
    fn next_event(&self) -> Result<Option<CqId>, ResourceError>;

    /// For providers: the concrete type.
    fn as_any(&self) -> &dyn std::any::Any;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_libibverbs_numbers() {
        // IBV_WC_FATAL_ERR; the next is IBV_WC_RESP_TIMEOUT_ERR, which none of ours can end with.
        assert_eq!(Status::Fatal as u8, 19);
        assert_eq!(Status::RnrRetryExceeded as u8, 13);
        for status in Status::ALL {
            assert_eq!(Status::from_code(status as u8), status);
        }
        assert_eq!(Status::from_code(20), Status::Fatal);
    }
}
