//! Queue pair states, and the legal transitions with their attributes, for RC, UC and UD (InfiniBand
//! specification, volume 1, section 10.3.1 and table 91).

use core::fmt;

use crate::error::ModifyError;
use crate::queue_pair::{QpAttr, QpType};

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum QpState {
    /// Just made; nothing may be posted.
    #[default]
    Reset = 0,
    /// Receives may be posted; nothing arrives yet.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained.
    Sqd = 4,
    /// Send queue error (UC and UD only).
    Sqe = 5,
    /// Error: everything posted is flushed.
    Error = 6,
}

impl QpState {
    /// The state with libibverbs' number `code`.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Error,
            _ => return None,
        })
    }

    /// Whether requests from the peer are executed in this state.
    pub const fn can_receive(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERR",
        })
    }
}

/// A set of attributes of [`QpAttr`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct AttrMask(u32);

macro_rules! attributes {
    ($($konst:ident = $bit:expr, $name:literal;)*) => {
        impl AttrMask {
            $(#[doc = concat!("`", $name, "`.")] pub const $konst: Self = Self(1 << $bit);)*
            const NAMES: &'static [(Self, &'static str)] = &[$((Self::$konst, $name)),*];
        }
    };
}

attributes! {
    ACCESS = 0, "access";
    DEST_GID = 1, "dest_gid";
    DEST_QPN = 2, "dest_qpn";
    RQ_PSN = 3, "rq_psn";
    PATH_MTU = 4, "path_mtu";
    MAX_DEST_RD_ATOMIC = 5, "max_dest_rd_atomic";
    MIN_RNR_TIMER = 6, "min_rnr_timer";
    SQ_PSN = 7, "sq_psn";
    TIMEOUT = 8, "timeout";
    RETRY_COUNT = 9, "retry_count";
    RNR_RETRY = 10, "rnr_retry";
    MAX_RD_ATOMIC = 11, "max_rd_atomic";
    QKEY = 12, "qkey";
    DEST_LID = 13, "dest_lid";
}

impl AttrMask {
    /// No attribute.
    pub const NONE: Self = Self(0);

    /// The attributes in either set.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The attributes in this set that are not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Self::NAMES
            .iter()
            .filter(|(m, _)| m.0 & self.0 != 0)
            .map(|(_, n)| *n)
            .collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

impl fmt::Debug for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttrMask({self})")
    }
}

const INIT_TO_RTR: AttrMask = AttrMask::DEST_GID
    .or(AttrMask::DEST_QPN)
    .or(AttrMask::RQ_PSN)
    .or(AttrMask::PATH_MTU)
    .or(AttrMask::MAX_DEST_RD_ATOMIC)
    .or(AttrMask::MIN_RNR_TIMER);

const RTR_TO_RTS: AttrMask = AttrMask::SQ_PSN
    .or(AttrMask::TIMEOUT)
    .or(AttrMask::RETRY_COUNT)
    .or(AttrMask::RNR_RETRY)
    .or(AttrMask::MAX_RD_ATOMIC);

/// The attributes that an RC transition requires, and those that it also allows; `None` if there is no such
/// transition.
fn rc_transition(from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd};
    let tuning = AttrMask::ACCESS.or(AttrMask::MIN_RNR_TIMER);
    Some(match (from, to) {
        (_, Reset | Error) => (AttrMask::NONE, AttrMask::NONE),
        (Reset, Init) => (AttrMask::ACCESS, AttrMask::NONE),
        (Init, Init) => (AttrMask::NONE, AttrMask::ACCESS),
        (Init, Rtr) => (INIT_TO_RTR, AttrMask::ACCESS.or(AttrMask::DEST_LID)),
        (Rtr, Rts) => (RTR_TO_RTS, tuning),
        (Rts, Rts) | (Sqd, Rts) => (AttrMask::NONE, tuning),
        (Rts, Sqd) => (AttrMask::NONE, AttrMask::NONE),
        (Sqd, Sqd) => (
            AttrMask::NONE,
            tuning
                .or(AttrMask::TIMEOUT)
                .or(AttrMask::RETRY_COUNT)
                .or(AttrMask::RNR_RETRY)
                .or(AttrMask::MAX_RD_ATOMIC)
                .or(AttrMask::MAX_DEST_RD_ATOMIC),
        ),
        _ => return None,
    })
}

/// The required and optional attributes of a UC transition: those of RC without what serves acknowledgements, READs
/// and atomics. A failed request moves the queue pair to SQE, from which it can return to RTS.
fn uc_transition(from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
    Some(match (from, to) {
        (_, Reset | Error) => (AttrMask::NONE, AttrMask::NONE),
        (Reset, Init) => (AttrMask::ACCESS, AttrMask::NONE),
        (Init, Init) => (AttrMask::NONE, AttrMask::ACCESS),
        (Init, Rtr) => (
            AttrMask::DEST_GID
                .or(AttrMask::DEST_QPN)
                .or(AttrMask::RQ_PSN)
                .or(AttrMask::PATH_MTU),
            AttrMask::ACCESS.or(AttrMask::DEST_LID),
        ),
        (Rtr, Rts) => (AttrMask::SQ_PSN, AttrMask::ACCESS),
        (Rts | Sqd | Sqe, Rts) | (Sqd, Sqd) => (AttrMask::NONE, AttrMask::ACCESS),
        (Rts, Sqd) => (AttrMask::NONE, AttrMask::NONE),
        _ => return None,
    })
}

/// The required and optional attributes of a UD transition; UD has no peer, so none of them names one. A
/// failed request moves the queue pair to SQE, from which it can return to RTS.
fn ud_transition(from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
    Some(match (from, to) {
        (_, Reset | Error) => (AttrMask::NONE, AttrMask::NONE),
        (Reset, Init) => (AttrMask::QKEY, AttrMask::NONE),
        (Init, Init | Rtr) => (AttrMask::NONE, AttrMask::QKEY),
        (Rtr, Rts) => (AttrMask::SQ_PSN, AttrMask::QKEY),
        (Rts | Sqd | Sqe, Rts) | (Sqd, Sqd) => (AttrMask::NONE, AttrMask::QKEY),
        (Rts, Sqd) => (AttrMask::NONE, AttrMask::NONE),
        _ => return None,
    })
}

/// Checks a modification of a queue pair of transport `qp_type` in state `from`, and returns the state
/// it leads to.
pub fn check_transition(
    qp_type: QpType,
    from: QpState,
    attr: &QpAttr,
) -> Result<QpState, ModifyError> {
    let to = attr.state.unwrap_or(from);
    let given = attr.mask();
    let transition = match qp_type {
        QpType::Rc => rc_transition(from, to),
        QpType::Uc => uc_transition(from, to),
        QpType::Ud => ud_transition(from, to),
    };
    let (required, optional) = transition.ok_or(ModifyError::Transition { from, to })?;
    let missing = required.without(given);
    let illegal = given.without(required.or(optional));
    if !missing.is_empty() || !illegal.is_empty() {
        return Err(ModifyError::Attributes {
            from,
            to,
            missing,
            illegal,
        });
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue_pair::RnrTimer;

    fn check_rc(from: QpState, attr: &QpAttr) -> Result<QpState, ModifyError> {
        check_transition(QpType::Rc, from, attr)
    }

    use crate::{Access, Gid, Mtu, Psn, Qpn};

    fn to_rtr() -> QpAttr {
        QpAttr {
            state: Some(QpState::Rtr),
            dest_gid: Some(Gid::default()),
            dest_qpn: Qpn::new(1),
            rq_psn: Some(Psn::truncated(1)),
            path_mtu: Some(Mtu::B1024),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(RnrTimer::default()),
            ..QpAttr::default()
        }
    }

    #[test]
    fn transitions_to_rts_are_legal_in_order_only() {
        let init = QpAttr {
            state: Some(QpState::Init),
            access: Some(Access::ALL),
            ..QpAttr::default()
        };
        assert_eq!(check_rc(QpState::Reset, &init), Ok(QpState::Init));
        assert_eq!(check_rc(QpState::Init, &to_rtr()), Ok(QpState::Rtr));
        assert_eq!(
            check_rc(QpState::Reset, &to_rtr()),
            Err(ModifyError::Transition {
                from: QpState::Reset,
                to: QpState::Rtr
            })
        );
    }

    #[test]
    fn errors_name_missing_and_excess_attributes() {
        let attr = QpAttr {
            dest_qpn: None,
            timeout: Some(14),
            ..to_rtr()
        };
        let Err(ModifyError::Attributes {
            missing, illegal, ..
        }) = check_rc(QpState::Init, &attr)
        else {
            panic!("must be refused")
        };
        assert_eq!((missing, illegal), (AttrMask::DEST_QPN, AttrMask::TIMEOUT));
    }

    #[test]
    fn every_state_may_fail_or_be_reset() {
        for code in 0..=6 {
            let from = QpState::from_code(code).unwrap();
            for to in [QpState::Error, QpState::Reset] {
                let attr = QpAttr {
                    state: Some(to),
                    ..QpAttr::default()
                };
                assert_eq!(check_rc(from, &attr), Ok(to));
            }
        }
        assert_eq!(QpState::from_code(7), None);
    }

    #[test]
    fn an_unreliable_connection_has_a_peer_and_nothing_for_acknowledgements() {
        let uc = |from, attr: &QpAttr| check_transition(QpType::Uc, from, attr);
        let Err(ModifyError::Attributes {
            missing, illegal, ..
        }) = uc(QpState::Init, &to_rtr())
        else {
            panic!("must be refused")
        };
        let of_reads = AttrMask::MAX_DEST_RD_ATOMIC.or(AttrMask::MIN_RNR_TIMER);
        assert_eq!((missing, illegal), (AttrMask::NONE, of_reads));
        let rtr = QpAttr {
            max_dest_rd_atomic: None,
            min_rnr_timer: None,
            ..to_rtr()
        };
        assert_eq!(uc(QpState::Init, &rtr), Ok(QpState::Rtr));
        assert!(check_rc(QpState::Init, &rtr).is_err());
        let rts = QpAttr {
            sq_psn: Some(Psn::truncated(1)),
            ..QpAttr::to_state(QpState::Rts)
        };
        assert_eq!(uc(QpState::Rtr, &rts), Ok(QpState::Rts));
        let with_timeout = QpAttr {
            timeout: Some(14),
            ..rts
        };
        assert!(uc(QpState::Rtr, &with_timeout).is_err());
        let again = QpAttr::to_state(QpState::Rts);
        assert_eq!(uc(QpState::Sqe, &again), Ok(QpState::Rts));
        assert!(uc(QpState::Rts, &QpAttr::to_state(QpState::Sqe)).is_err());
    }

    #[test]
    fn datagrams_need_a_key_and_no_peer() {
        let ud = |from, attr: &QpAttr| check_transition(QpType::Ud, from, attr);
        let init = QpAttr {
            qkey: Some(7),
            ..QpAttr::to_state(QpState::Init)
        };
        assert_eq!(ud(QpState::Reset, &init), Ok(QpState::Init));
        assert!(check_rc(QpState::Reset, &init).is_err());
        let rtr = QpAttr::to_state(QpState::Rtr);
        assert_eq!(ud(QpState::Init, &rtr), Ok(QpState::Rtr));
        assert!(ud(QpState::Init, &to_rtr()).is_err());
        // Only a failed request leads to SQE. A modify can leave it for RTS, but cannot enter it.
        let rts = QpAttr::to_state(QpState::Rts);
        assert_eq!(ud(QpState::Sqe, &rts), Ok(QpState::Rts));
        assert!(ud(QpState::Rts, &QpAttr::to_state(QpState::Sqe)).is_err());
        assert!(check_rc(QpState::Sqe, &rts).is_err());
    }
}
