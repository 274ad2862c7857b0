//! Completions, completion queues and completion channels.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::address::{Lid, Qpn};
use crate::counters::CqCounters;
use crate::error::{PollError, ResourceError};
use crate::time::Instant;

/// How a work request ended. It is data, not an `Err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum Status {
    /// The request succeeded.
    #[default]
    Success = 0,
    /// A receive was too short, or a local buffer too long for the device.
    LocalLength = 1,
    /// The queue pair is inconsistent.
    LocalQpOperation = 2,
    /// A local key was unknown, or its bounds or access rights did not cover the request.
    LocalProtection = 4,
    /// Flushed: the queue pair was in the error state.
    Flushed = 5,
    /// The response did not fit the request.
    BadResponse = 7,
    /// The status of a receive whose WRITE with immediate was refused for its key, bounds or access.
    LocalAccess = 8,
    /// The peer found the request itself illegal (too long for its receive, misaligned atomic).
    RemoteInvalidRequest = 9,
    /// The peer refused the remote key, its bounds or its access rights.
    RemoteAccess = 10,
    /// The peer failed while executing the request.
    RemoteOperation = 11,
    /// The peer did not answer within `timeout` × (`retry_count` + 1), or it no longer exists.
    RetryExceeded = 12,
    /// The peer had no receive posted in any of `rnr_retry` + 1 tries.
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

    /// The status with libibverbs' number `code`; an unknown number gives [`Status::Fatal`].
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
            Self::RemoteInvalidRequest => "the peer rejects the request as invalid",
            Self::RemoteAccess => "the peer refuses access",
            Self::RemoteOperation => "the peer failed to execute it",
            Self::RetryExceeded => "the peer does not answer",
            Self::RnrRetryExceeded => "the peer posted no receive",
            Self::Fatal => "device failure",
        })
    }
}

/// The kind of work that completed.
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

    /// The opcode numbered `code`; an unknown number gives [`Opcode::Send`].
    pub fn from_code(code: u8) -> Self {
        Self::ALL
            .get(usize::from(code))
            .copied()
            .unwrap_or_default()
    }

    /// Whether this is the completion of a receive.
    pub const fn is_recv(self) -> bool {
        matches!(self, Self::Recv | Self::RecvWriteImm)
    }
}

/// Additional facts about a completion.
// Aligned so that one store writes all of it: completions are written by polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C, align(2))]
pub struct CompletionFlags {
    /// UD: the first 40 bytes of the receive are the GRH.
    pub grh: bool,
    /// UD: these bytes end with an IPv4 header instead ([`Grh::emit_ipv4`](crate::Grh::emit_ipv4)).
    pub ipv4: bool,
}

/// A work completion. As the specification says, only `wr_id`, `status`, `qpn` and `vendor_err` are valid when `status` is
/// not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Completion {
    /// The `wr_id` of the request.
    pub wr_id: u64,
    /// How the request ended.
    pub status: Status,
    /// The operation of the request. For a failed request a device need report neither the operation nor the
    /// queue it was posted to; find the request by its `wr_id`.
    pub opcode: Opcode,
    /// The queue pair that the request was posted to.
    pub qpn: Qpn,
    /// Of a failed request: the device's own number for the failure, for its maker; 0 if it has none.
    pub vendor_err: u32,
    /// Bytes received (for a receive) or read (for a READ or an atomic).
    pub byte_len: u32,
    /// Immediate data, if the peer sent any.
    pub imm: Option<u32>,
    /// UD: the sender's queue pair.
    pub src_qpn: Qpn,
    /// UD: the LID of the sender's port, on an InfiniBand network
    /// ([`DeviceInfo::lid`](crate::DeviceInfo::lid)). `None` elsewhere.
    pub src_lid: Option<Lid>,
    /// Additional flags.
    pub flags: CompletionFlags,
    /// When the request completed; [`Instant::ZERO`] unless the CQ was made with timestamps.
    pub timestamp: Instant,
}

/// Identifies a CQ within its device. A completion channel returns it for each event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u32);

/// Parameters of a new completion queue.
#[derive(Clone, Default)]
pub struct CqInit {
    /// Completions the queue must hold, at least 1. Devices may round up.
    pub depth: u32,
    /// The channel that receives the queue's events; `None` for a CQ that is only polled.
    pub channel: Option<Arc<dyn CompletionChannel>>,
    /// Whether to fill in [`Completion::timestamp`]. Costs a clock read per completion.
    pub timestamps: bool,
}

/// A completion queue. Several threads may poll it.
pub trait CompletionQueue: Send + Sync {
    /// Identifies it in a channel's events.
    fn id(&self) -> CqId;

    /// The largest number of completions that the queue holds.
    fn depth(&self) -> u32;

    /// Takes up to `out.len()` completions, oldest first, and returns how many. It also makes progress on the
    /// pending work of the queue pairs that complete here. Never blocks.
    fn poll(&self, out: &mut [Completion]) -> Result<usize, PollError>;

    /// Requests one event on the channel at the next completion, or at the next solicited or failed one if
    /// `solicited_only`. Poll once more after arming: earlier completions cause no event.
    fn arm(&self, solicited_only: bool);

    /// Changes the depth of the queue to `entries` or somewhat more. It holds no more than the unpolled completions that it has, and no
    /// less than the memory that it was created with.
    ///
    /// # Errors
    ///
    /// `entries` is out of that range, or the device cannot change the depth: then the range is that of the present depth.
    fn resize(&self, entries: u32) -> Result<(), ResourceError> {
        let depth = self.depth();
        ResourceError::check("CQ depth", entries, depth..=depth).map(|_| ())
    }

    /// Discards those completions that are not polled yet and that `is_gone` selects, as drivers of RNICs do with completions of a
    /// queue pair that is reset or destroyed. A device may ignore the call.
    fn discard(&self, is_gone: &dyn Fn(&Completion) -> bool) {
        let _ = is_gone;
    }

    /// Totals of this queue; `None` if the device does not count.
    fn counters(&self) -> Option<CqCounters> {
        None
    }
}

/// Receives the events of armed completion queues, and has a file descriptor to sleep on.
pub trait CompletionChannel: Send + Sync {
    /// A descriptor that is readable when an event may be waiting, and also when the device itself needs a
    /// poll (a timer expired, a peer died). Call [`CompletionChannel::next_event`] until it returns `None`.
    fn fd(&self) -> BorrowedFd<'_>;

    /// The next CQ with an event. Never blocks.
    fn next_event(&self) -> Result<Option<CqId>, ResourceError>;

    /// For providers: the concrete type.
    fn as_any(&self) -> &dyn std::any::Any;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_libibverbs_numbers() {
        // IBV_WC_FATAL_ERR. The next number is IBV_WC_RESP_TIMEOUT_ERR, which no operation here can end with.
        assert_eq!(Status::Fatal as u8, 19);
        assert_eq!(Status::RnrRetryExceeded as u8, 13);
        for status in Status::ALL {
            assert_eq!(Status::from_code(status as u8), status);
        }
        assert_eq!(Status::from_code(20), Status::Fatal);
    }
}
