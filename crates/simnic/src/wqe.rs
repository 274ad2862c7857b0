//! Requests as the RNIC holds them: as they were posted, with their bytes or where those are.

use headworks_verbs::{Opcode, Payload, RecvWr, SendFlags, SendOp, SendWr, Sge};

use crate::hardware_units::Ps;
/// Longest inline payload that is stored without an allocation, in bytes.
const SHORT: usize = 24;

/// A request's bytes if they are inline, or else their location.
#[derive(Debug)]
pub(crate) enum WqeData {
    None,
    One(Sge),
    Many(Box<[Sge]>),
    Short([u8; SHORT], u8),
    Long(Box<[u8]>),
}

impl WqeData {
    fn of_sges(sges: &[Sge]) -> Self {
        match sges {
            [] => Self::None,
            [sge] => Self::One(*sge),
            sges => Self::Many(sges.into()),
        }
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        let mut short = [0; SHORT];
        match short.get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                Self::Short(short, bytes.len() as u8)
            }
            None => Self::Long(bytes.into()),
        }
    }

    /// Returns the gather list; empty for an inline payload.
    pub(crate) fn sges(&self) -> &[Sge] {
        match self {
            Self::One(sge) => std::slice::from_ref(sge),
            Self::Many(sges) => sges,
            _ => &[],
        }
    }

    /// Returns the bytes of an inline payload.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Short(bytes, len) => Some(&bytes[..usize::from(*len)]),
            Self::Long(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// A send request.
#[derive(Debug)]
pub(crate) struct Wqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) data: WqeData,
    pub(crate) len: u32,
    /// Sequence number of its first packet.
    pub(crate) psn: u64,
    pub(crate) packets: u32,
    pub(crate) signaled: bool,
    reads: bool,
    pub(crate) fenced: bool,
    /// Whether it may have to wait for READs or atomics before it.
    pub(crate) waits: bool,
    pub(crate) solicited: bool,
    /// Bytes received of a READ's or an atomic's response.
    pub(crate) returned: u32,
    /// Whether it came with its doorbell, so that it is not fetched.
    pub(crate) pushed: bool,
    /// Time at which the RNIC knows of it, if its doorbell is quiet
    /// ([`Model::ring`](crate::model::Model::ring)).
    pub(crate) known_at: Ps,
    /// Whether its whole response arrived.
    pub(crate) answered: bool,
}

impl Wqe {
    /// Creates a request of `len` bytes from a posted one.
    #[inline]
    pub(crate) fn new(wr: &SendWr<'_>, len: u32, psn: u64, mtu: u32, signal_all: bool) -> Self {
        let data = match wr.payload {
            Payload::Gather(sges) => WqeData::of_sges(sges),
            Payload::Inline(bytes) => WqeData::of_bytes(bytes),
        };
        let reads = matches!(
            wr.op,
            SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
        );
        let fenced = wr.flags.contains(SendFlags::FENCE);
        Self {
            wr_id: wr.wr_id,
            op: wr.op,
            data,
            len,
            psn,
            packets: match len <= mtu {
                true => 1,
                false => len.div_ceil(mtu),
            },
            signaled: signal_all || wr.flags.contains(SendFlags::SIGNALED),
            reads,
            fenced,
            waits: reads || fenced,
            solicited: wr.flags.contains(SendFlags::SOLICITED),
            returned: 0,
            pushed: false,
            known_at: Ps::MAX,
            answered: false,
        }
    }

    /// Whether it is a READ or an atomic.
    #[inline]
    pub(crate) fn reads(&self) -> bool {
        self.reads
    }

    /// Returns the sequence number after its last packet's.
    pub(crate) fn end(&self) -> u64 {
        self.psn + u64::from(self.packets)
    }

    pub(crate) fn opcode(&self) -> Opcode {
        match self.op {
            SendOp::Write(_) | SendOp::WriteImm(..) => Opcode::Write,
            SendOp::Read(_) => Opcode::Read,
            SendOp::CompareSwap { .. } => Opcode::CompareSwap,
            SendOp::FetchAdd { .. } => Opcode::FetchAdd,
            _ => Opcode::Send,
        }
    }

    pub(crate) fn imm(&self) -> Option<u32> {
        match self.op {
            SendOp::SendImm(imm) | SendOp::WriteImm(_, imm) | SendOp::SendToImm(_, imm) => {
                Some(imm)
            }
            _ => None,
        }
    }
}

/// Returns a request's key in the cache of requests.
pub(crate) fn cache_key(qp: u32, number: u64) -> u64 {
    (u64::from(qp) + 1) << 40 | (number & ((1 << 40) - 1))
}

/// A receive.
#[derive(Debug)]
pub(crate) struct ReceiveWqe {
    pub(crate) wr_id: u64,
    pub(crate) data: WqeData,
    /// Receives up to this number occupy no slot of the queue pair once this one is polled; 0 for an SRQ's.
    pub(crate) position: u64,
    /// Time of posting, which may be ahead of the model's time.
    pub(crate) at: Ps,
}

impl ReceiveWqe {
    pub(crate) fn new(wr: &RecvWr<'_>, position: u64, at: Ps) -> Self {
        Self {
            at,
            wr_id: wr.wr_id,
            data: WqeData::of_sges(wr.sges),
            position,
        }
    }

    /// Returns the number of bytes that fit.
    pub(crate) fn room(&self) -> u64 {
        self.data.sges().iter().map(|sge| u64::from(sge.len)).sum()
    }
}
