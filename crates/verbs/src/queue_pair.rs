//! Queue pairs and shared receive queues.

use core::fmt;
use std::sync::Arc;

use crate::address::{Gid, Lid, Mtu, Psn, Qpn};
use crate::completion::CompletionQueue;
use crate::counters::QpCounters;
use crate::device::DeviceLimits;
use crate::error::{ModifyError, PostError, ResourceError};
use crate::memory_region::Access;
use crate::qp_state::{AttrMask, QpState};
use crate::time::Duration;
use crate::work_request::{Payload, RecvWr, SendFlags, SendOp, SendWr};

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection: SENDs and WRITEs without acknowledgement. A message that the responder cannot take
    /// (no receive is posted, a receive too short, a key or a right is missing, no such queue pair) is lost in
    /// silence. A request completes when it was sent. READs and atomics are refused.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpType {
    /// Whether a queue pair has one peer, that it is connected to.
    #[inline]
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud)
    }

    /// Whether the responder acknowledges requests: a request that it refuses ends in error, and one that is lost is
    /// repeated.
    #[inline]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc)
    }

    /// The name of libibverbs, in capitals.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Sizes of a queue pair. A device may grant more than asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCaps {
    /// Send requests outstanding: posted and not yet retired by a polled completion.
    pub max_send_wr: u32,
    /// Receive requests outstanding; ignored with an SRQ.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive request.
    pub max_recv_sge: u32,
    /// Bytes of an inline payload.
    pub max_inline: u32,
}

impl Default for QpCaps {
    fn default() -> Self {
        Self {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 64,
        }
    }
}

/// Identifies an SRQ within its device. Limit events carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u32);

/// Parameters of a new queue pair.
#[derive(Clone)]
pub struct QpInit {
    /// The transport.
    pub qp_type: QpType,
    /// The completion queue of send requests.
    pub send_cq: Arc<dyn CompletionQueue>,
    /// The completion queue of receives; may be the same as `send_cq`.
    pub recv_cq: Arc<dyn CompletionQueue>,
    /// The queue from which receives are taken, instead of the queue pair's own queue.
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
    /// The sizes asked for.
    pub caps: QpCaps,
    /// Whether every send request completes into the CQ, signalled or not.
    pub signal_all: bool,
}

/// How long a responder without a posted receive asks the initiator to wait: the specification's 5-bit code
/// (section 9.7.5.2.8, table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The timer with this code, 0 to 31.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The wait that the code encodes, 10 µs to 655.36 ms.
    pub const fn duration(self) -> Duration {
        // In units of 10 µs; code 0 is the longest.
        const UNITS: [u32; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
            1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        Duration::from_micros(UNITS[self.0 as usize] as u64 * 10)
    }
}

impl Default for RnrTimer {
    /// 640 µs, code 12, as most programs use.
    fn default() -> Self {
        Self(12)
    }
}

/// Attributes for [`QueuePair::modify`]; an attribute that is `None` is not in the mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QpAttr {
    /// The state to go to.
    pub state: Option<QpState>,
    /// Access of the peer through this queue pair.
    pub access: Option<Access>,
    /// GID of the peer's port.
    pub dest_gid: Option<Gid>,
    /// LID of the peer's port, in addition to `dest_gid`. A device on an InfiniBand network needs it, others
    /// ignore it.
    pub dest_lid: Option<Lid>,
    /// The peer's queue pair number.
    pub dest_qpn: Option<Qpn>,
    /// First packet sequence number expected from the peer.
    pub rq_psn: Option<Psn>,
    /// Path MTU.
    pub path_mtu: Option<Mtu>,
    /// READs and atomics of the peer that this side can hold as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// How long the peer is told to wait when no receive is posted.
    pub min_rnr_timer: Option<RnrTimer>,
    /// First packet sequence number sent.
    pub sq_psn: Option<Psn>,
    /// ACK timeout, 4.096 µs × 2^timeout; 0 waits for ever; at most 31.
    pub timeout: Option<u8>,
    /// Transport retries, at most 7.
    pub retry_count: Option<u8>,
    /// RNR retries, at most 7; 7 retries for ever.
    pub rnr_retry: Option<u8>,
    /// READs and atomics outstanding as initiator.
    pub max_rd_atomic: Option<u8>,
    /// UD: the Q_Key that incoming datagrams must carry.
    pub qkey: Option<u32>,
}

impl QpAttr {
    /// Attributes that change only the state.
    pub fn to_state(state: QpState) -> Self {
        Self {
            state: Some(state),
            ..Self::default()
        }
    }

    /// Refuses a value outside its encoding, or above these limits of the device.
    ///
    /// # Errors
    ///
    /// [`ModifyError::Value`], for the first such value.
    pub fn check_values(&self, limits: &DeviceLimits) -> Result<(), ModifyError> {
        let reads = limits.max_rd_atomic;
        for (attribute, value, highest) in [
            ("timeout", self.timeout, 31),
            ("retry_count", self.retry_count, 7),
            ("rnr_retry", self.rnr_retry, 7),
            ("max_rd_atomic", self.max_rd_atomic, reads),
            ("max_dest_rd_atomic", self.max_dest_rd_atomic, reads),
        ] {
            if let Some(value) = value.filter(|value| *value > highest) {
                return Err(ModifyError::Value {
                    attribute,
                    value: value.into(),
                    highest: highest.into(),
                });
            }
        }
        Ok(())
    }

    /// The attributes that are given (the state is not one of them).
    pub fn mask(&self) -> AttrMask {
        let given = [
            (self.access.is_some(), AttrMask::ACCESS),
            (self.dest_gid.is_some(), AttrMask::DEST_GID),
            (self.dest_lid.is_some(), AttrMask::DEST_LID),
            (self.dest_qpn.is_some(), AttrMask::DEST_QPN),
            (self.rq_psn.is_some(), AttrMask::RQ_PSN),
            (self.path_mtu.is_some(), AttrMask::PATH_MTU),
            (
                self.max_dest_rd_atomic.is_some(),
                AttrMask::MAX_DEST_RD_ATOMIC,
            ),
            (self.min_rnr_timer.is_some(), AttrMask::MIN_RNR_TIMER),
            (self.sq_psn.is_some(), AttrMask::SQ_PSN),
            (self.timeout.is_some(), AttrMask::TIMEOUT),
            (self.retry_count.is_some(), AttrMask::RETRY_COUNT),
            (self.rnr_retry.is_some(), AttrMask::RNR_RETRY),
            (self.max_rd_atomic.is_some(), AttrMask::MAX_RD_ATOMIC),
            (self.qkey.is_some(), AttrMask::QKEY),
        ];
        given
            .iter()
            .filter(|(yes, _)| *yes)
            .fold(AttrMask::NONE, |mask, (_, bit)| mask.or(*bit))
    }
}

/// Requests that [`QueuePair::post_send_with_wr_id`] copies and posts in one chain.
const CHAIN_MAX: usize = 16;
const EMPTY_SEND_WR: SendWr<'_> = SendWr {
    wr_id: 0,
    op: SendOp::Send,
    payload: Payload::Inline(&[]),
    flags: SendFlags::NONE,
};

/// A queue pair. Calls never block. One thread at a time posts (`&mut self`).
pub trait QueuePair: Send {
    /// Its number on this device.
    fn qpn(&self) -> Qpn;

    /// Its state now. A device may move it to [`QpState::Error`] at any time.
    fn state(&self) -> QpState;

    /// The sizes that the device granted.
    fn caps(&self) -> &QpCaps;

    /// Changes state and attributes. A call that fails changes nothing, unless the error says otherwise.
    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError>;

    /// Posts a chain of send requests with one doorbell. If a request is refused, those before it are
    /// posted and the error holds its index.
    fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError>;

    /// Posts like [`post_send`](Self::post_send), but each request completes with `wr_id` instead of its own.
    /// It serves a layer between the program and the device that has its own numbers. A provider that
    /// overrides it saves a copy of every request.
    fn post_send_with_wr_id(&mut self, wr_id: u64, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        if let [wr] = wrs {
            return self.post_send(&[SendWr { wr_id, ..*wr }]);
        }
        for (number, chain) in wrs.chunks(CHAIN_MAX).enumerate() {
            let mut renumbered = [EMPTY_SEND_WR; CHAIN_MAX];
            for (to, wr) in renumbered.iter_mut().zip(chain) {
                *to = SendWr { wr_id, ..*wr };
            }
            let posted = self.post_send(&renumbered[..chain.len()]);
            posted.map_err(|error| error.kind.at(number * CHAIN_MAX + error.index))?;
        }
        Ok(())
    }

    /// Posts receive requests. A queue pair with an SRQ refuses them.
    fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Totals of this queue pair; `None` if the device does not count.
    fn counters(&self) -> Option<QpCounters> {
        None
    }

    /// For providers: the concrete type, if a provider needs it.
    fn as_any_mut(&mut self) -> Option<&mut dyn std::any::Any> {
        None
    }
}

/// Parameters of a new shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Receives outstanding.
    pub max_wr: u32,
    /// Scatter/gather entries of a receive.
    pub max_sge: u32,
    /// Raises [`AsyncEvent::SrqLimit`](crate::AsyncEvent::SrqLimit) once, when fewer than this many
    /// receives are posted; 0 disables it.
    pub limit: u32,
}

/// A shared receive queue.
pub trait SharedReceiveQueue: Send + Sync {
    /// Its number within the device. Limit events carry it.
    fn id(&self) -> SrqId;

    /// The largest number of receives it holds: at least as many as were asked for.
    fn max_wr(&self) -> u32;

    /// Posts receive requests, as [`QueuePair::post_recv`] does.
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Arms the limit event again, at `limit` receives.
    fn set_limit(&self, limit: u32) -> Result<(), ResourceError>;

    /// For providers: the concrete type.
    fn as_any(&self) -> &dyn std::any::Any;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::PostErrorKind;
    use crate::memory_region::RemoteAddr;

    #[test]
    fn values_out_of_range_are_named() {
        let attr = QpAttr {
            max_rd_atomic: Some(17),
            ..QpAttr::default()
        };
        let device = crate::bringup::tests::device(0, 0, 0);
        let of = |max_rd_atomic| DeviceLimits {
            max_rd_atomic,
            ..device.limits
        };
        let error = attr.check_values(&of(16)).unwrap_err();
        assert_eq!(error.to_string(), "max_rd_atomic is 17: at most 16");
        assert_eq!(attr.check_values(&of(17)), Ok(()));
        let attr = QpAttr {
            timeout: Some(32),
            ..QpAttr::default()
        };
        assert!(attr.check_values(&of(17)).is_err());
    }

    /// Accepts that many requests, and records their `wr_id` and remote address.
    struct BoundedQp(usize, Vec<(u64, u64)>, QpCaps);

    impl QueuePair for BoundedQp {
        fn qpn(&self) -> Qpn {
            Qpn::default()
        }
        fn state(&self) -> QpState {
            QpState::Rts
        }
        fn caps(&self) -> &QpCaps {
            &self.2
        }
        fn modify(&mut self, _: &QpAttr) -> Result<(), ModifyError> {
            Ok(())
        }
        fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
            for (index, wr) in wrs.iter().enumerate() {
                let SendOp::Write(to) = wr.op else {
                    unreachable!("all are")
                };
                if self.1.len() == self.0 {
                    return Err(PostErrorKind::QueueFull.at(index));
                }
                self.1.push((wr.wr_id, to.addr));
            }
            Ok(())
        }
        fn post_recv(&mut self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
            Ok(())
        }
    }

    #[test]
    fn a_chain_of_any_length_is_posted_under_another_number() {
        let write = |wr_id| SendWr {
            wr_id,
            op: SendOp::Write(RemoteAddr {
                addr: wr_id,
                rkey: 0,
            }),
            ..EMPTY_SEND_WR
        };
        let chain: Vec<_> = (0..50).map(write).collect();
        for count in [0, 1, 2, 16, 17, 33, 50] {
            for room in [0, 1, 15, 16, 17, 40, 50] {
                let mut qp = BoundedQp(room, Vec::new(), QpCaps::default());
                let posted = qp.post_send_with_wr_id(7, &chain[..count]);
                let taken = count.min(room);
                let expected = match taken < count {
                    true => Err(PostErrorKind::QueueFull.at(taken)),
                    false => Ok(()),
                };
                assert_eq!(posted, expected);
                assert!(
                    qp.1.iter()
                        .copied()
                        .eq((0..taken as u64).map(|addr| (7, addr)))
                );
            }
        }
    }

    #[test]
    fn rnr_timer_codes_follow_the_table() {
        assert_eq!(
            RnrTimer::new(0).unwrap().duration(),
            Duration::from_nanos(655_360_000)
        );
        assert_eq!(
            RnrTimer::new(1).unwrap().duration(),
            Duration::from_micros(10)
        );
        assert_eq!(RnrTimer::default().duration(), Duration::from_micros(640));
        assert_eq!(
            RnrTimer::new(31).unwrap().duration(),
            Duration::from_nanos(491_520_000)
        );
        assert_eq!(RnrTimer::new(32), None);
    }
}
