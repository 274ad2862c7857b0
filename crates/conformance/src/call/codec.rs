//! Serialization of the types of `verbs`, as their numeric codes.

use headworks_verbs::{
    Abilities, Access, Atomics, DeviceLimits, Instant, Mtu, Opcode, Promises, QpAttr, QpCaps,
    QpState, QpType, RnrTimer, Status,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! written {
    ($module:ident: $type:ty as $plain:ty, $to:expr, $from:expr) => {
        pub(super) mod $module {
            use super::*;

            pub(in crate::call) fn serialize<S: Serializer>(
                value: &$type,
                to: S,
            ) -> Result<S::Ok, S::Error> {
                let plain: fn(&$type) -> $plain = $to;
                plain(value).serialize(to)
            }

            pub(in crate::call) fn deserialize<'de, D: Deserializer<'de>>(
                from: D,
            ) -> Result<$type, D::Error> {
                let value: fn($plain) -> Option<$type> = $from;
                let plain = <$plain>::deserialize(from)?;
                value(plain).ok_or_else(|| D::Error::custom(concat!("no ", stringify!($module))))
            }
        }
    };
}

/// The transports, by the numbers that stand for them in messages.
const QP_TYPES: [QpType; 3] = [QpType::Rc, QpType::Ud, QpType::Uc];

written!(access: Access as u32, |a| a.bits(), |n| Some(Access::from_bits_truncate(n)));
written!(state: QpState as u8, |s| *s as u8, QpState::from_code);
written!(status: Status as u8, |s| *s as u8, |n| Some(Status::from_code(n)));
written!(opcode: Opcode as u8, |o| *o as u8, |n| Some(Opcode::from_code(n)));
written!(mtu: Mtu as u8, |m| m.code(), Mtu::from_code);
written!(instant: Instant as u64, |i| i.nanos(), |n| Some(Instant::from_nanos(n)));
written!(qp_type: QpType as u8, |t| QP_TYPES.iter().position(|is| is == t).unwrap_or(0) as u8,
|number| QP_TYPES.get(usize::from(number)).copied());
written!(promises: Promises as (bool, bool, u32),
|p| (p.ordered_between_writes, p.atomic_aligned_8, p.in_order_within_write),
|(ordered_between_writes, atomic_aligned_8, in_order_within_write)| Some(Promises {
    ordered_between_writes,
    atomic_aligned_8,
    in_order_within_write,
}));
written!(abilities: Abilities as (bool, bool, u8),
|a| (a.uc, a.ud, match a.atomics {
    Atomics::None => 0,
    Atomics::Device => 1,
    Atomics::Global => 2,
}),
|(uc, ud, atomics)| Some(Abilities {
    uc,
    ud,
    atomics: match atomics {
        0 => Atomics::None,
        1 => Atomics::Device,
        2 => Atomics::Global,
        _ => return None,
    },
}));
written!(caps: QpCaps as [u32; 5],
|c| [c.max_send_wr, c.max_recv_wr, c.max_send_sge, c.max_recv_sge, c.max_inline],
|[max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline]| Some(QpCaps {
    max_send_wr,
    max_recv_wr,
    max_send_sge,
    max_recv_sge,
    max_inline,
}));
written!(limits: DeviceLimits as [u32; 12],
|l| [
    l.max_qp, l.max_qp_wr, l.max_sge, l.max_inline, l.max_cq, l.max_cqe, l.max_mr, l.max_ah,
    l.max_srq, l.max_srq_wr, l.max_rd_atomic.into(), l.max_message,
],
|[max_qp, max_qp_wr, max_sge, max_inline, max_cq, max_cqe, max_mr, max_ah, max_srq, max_srq_wr,
    max_rd_atomic, max_message]| Some(DeviceLimits {
    max_qp,
    max_qp_wr,
    max_sge,
    max_inline,
    max_cq,
    max_cqe,
    max_mr,
    max_ah,
    max_srq,
    max_srq_wr,
    max_rd_atomic: u8::try_from(max_rd_atomic).ok()?,
    max_message,
}));

/// Queue pair attributes without the destination, which `Call::Modify` carries in `peer`.
#[derive(Serialize, Deserialize)]
struct Attr {
    state: Option<u8>,
    access: Option<u32>,
    rq_psn: Option<u32>,
    path_mtu: Option<u8>,
    max_dest_rd_atomic: Option<u8>,
    min_rnr_timer: Option<u8>,
    sq_psn: Option<u32>,
    timeout: Option<u8>,
    retry_count: Option<u8>,
    rnr_retry: Option<u8>,
    max_rd_atomic: Option<u8>,
    qkey: Option<u32>,
}

impl Attr {
    fn of(attr: &QpAttr) -> Self {
        // The pattern names every field, so that a new one cannot be forgotten here.
        let QpAttr {
            state,
            access,
            dest_gid: _,
            dest_lid: _,
            dest_qpn: _,
            rq_psn,
            path_mtu,
            max_dest_rd_atomic,
            min_rnr_timer,
            sq_psn,
            timeout,
            retry_count,
            rnr_retry,
            max_rd_atomic,
            qkey,
        } = *attr;
        Self {
            state: state.map(|state| state as u8),
            access: access.map(|access| access.bits()),
            rq_psn: rq_psn.map(|psn| psn.raw()),
            path_mtu: path_mtu.map(Mtu::code),
            max_dest_rd_atomic,
            min_rnr_timer: min_rnr_timer.map(RnrTimer::code),
            sq_psn: sq_psn.map(|psn| psn.raw()),
            timeout,
            retry_count,
            rnr_retry,
            max_rd_atomic,
            qkey,
        }
    }

    fn read(self) -> QpAttr {
        use headworks_verbs::Psn;
        QpAttr {
            state: self.state.and_then(QpState::from_code),
            access: self.access.map(Access::from_bits_truncate),
            rq_psn: self.rq_psn.map(Psn::truncated),
            path_mtu: self.path_mtu.and_then(Mtu::from_code),
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer.and_then(RnrTimer::new),
            sq_psn: self.sq_psn.map(Psn::truncated),
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.max_rd_atomic,
            qkey: self.qkey,
            dest_gid: None,
            dest_lid: None,
            dest_qpn: None,
        }
    }
}

written!(attr: QpAttr as Attr, Attr::of, |plain| Some(plain.read()));
