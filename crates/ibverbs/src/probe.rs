//! What a device is found to do when it is opened, by making a queue pair and registering a page.

use std::io;
use std::sync::Arc;

use headworks_verbs::{Access, AllocRequest, Psn, QpAttr, QpState, QpType, RnrTimer};

use crate::abi;
use crate::attributes::Port;
use crate::buffer::Arena;
use crate::quirks::{DataInOrder, Quirks};
use crate::raw::{Object, Raw};

/// Sizes of inline payloads to try, longest first; 101 and 96 are the limits of irdma and bnxt_re. Every device has queue pairs for the
/// last.
const INLINES: [u32; 12] = [1024, 512, 384, 256, 192, 128, 101, 96, 64, 32, 16, 0];

/// What a device was found to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Findings {
    /// The longest inline payload.
    pub(crate) max_inline: u32,
    /// Whether the device has queue pairs of type UC, and of type UD.
    pub(crate) has: [bool; 2],
    /// Whether memory can only be registered with relaxed ordering.
    pub(crate) registers_relaxed: bool,
    /// The answer on the order of data; `None` if the device was not asked.
    pub(crate) data_in_order: Option<DataInOrder>,
}

/// Why a device could not be examined.
#[derive(Debug)]
pub(crate) enum ProbeError {
    /// The device has queue pairs for datagrams only.
    NoConnections,
    /// The device has no room, or the limit of locked memory is too low.
    System(io::Error),
}

impl From<io::Error> for ProbeError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Examines a device through `port`.
pub(crate) fn examine(
    raw: &Arc<Raw>,
    port: &Port,
    quirks: &Quirks,
) -> Result<Findings, ProbeError> {
    let pd = raw.alloc_pd()?;
    let cq = raw.create_cq(headworks_verbs::CqId(0), 4, None, None)?;
    let (qp, asked) = match first_qp(&pd, &cq, abi::QPT_RC) {
        Ok((qp, asked)) => (Some(qp), asked),
        Err(error) => {
            let (_, asked) = first_qp(&pd, &cq, abi::QPT_UD).map_err(|_| refusal(&error))?;
            // A device that refuses this type at all sizes, and has another, does not have this one.
            if is_unsupported(&error) {
                return Err(ProbeError::NoConnections);
            }
            (None, asked)
        }
    };
    // An old library has no such question. A queue pair that cannot be asked is no promise.
    let has_answer = quirks.answers_data_in_order && raw.answers_data_in_order();
    let data_in_order = has_answer.then(|| {
        qp.and_then(|qp| data_in_order(&qp, port))
            .unwrap_or(DataInOrder::No)
    });
    let has = [abi::QPT_UC, abi::QPT_UD].map(|qp_type| match smallest_qp(&pd, &cq, qp_type) {
        Ok(_) => true,
        // A lack of memory says nothing of the type.
        Err(error) => {
            tracing::debug!(%error, qp_type, "the device refuses the smallest queue pair of this type");
            !is_unsupported(&error)
        }
    });
    Ok(Findings {
        has,
        max_inline: if quirks.honours_inline { asked } else { 0 },
        registers_relaxed: registers_relaxed(&pd, port),
        data_in_order,
    })
}

fn refusal(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => error.kind().into(),
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS]
        .into_iter()
        .any(|unsupported| number == Some(unsupported))
}

/// Makes a queue pair of this type with the longest inline payload that the device takes, and returns that length too. A device
/// reports it only for a queue pair.
fn first_qp(
    pd: &Object<abi::Pd>,
    cq: &Object<abi::Cq>,
    qp_type: i32,
) -> io::Result<(Object<abi::Qp>, u32)> {
    let mut refused = io::Error::from(io::ErrorKind::Other);
    for asked in INLINES {
        let mut caps = abi::QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: asked,
        };
        match pd.create_qp(qp_type, (cq, cq), None, &mut caps, false) {
            Ok(qp) => return Ok((qp, caps.max_inline_data)),
            // Mostly the payload is too long for the device.
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Makes the smallest queue pair of this type.
fn smallest_qp(
    pd: &Object<abi::Pd>,
    cq: &Object<abi::Cq>,
    qp_type: i32,
) -> io::Result<Object<abi::Qp>> {
    let mut caps = abi::QpCap {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    pd.create_qp(qp_type, (cq, cq), None, &mut caps, false)
}

/// Connects the queue pair with itself, because a device answers for a connected one only, and asks whether the bytes of a WRITE
/// become visible in order. `None` if the queue pair cannot be connected.
fn data_in_order(qp: &Object<abi::Qp>, port: &Port) -> Option<DataInOrder> {
    let steps = [
        QpAttr {
            access: Some(Access::ALL),
            ..QpAttr::to_state(QpState::Init)
        },
        QpAttr {
            dest_gid: Some(port.gid),
            dest_lid: port.lid,
            dest_qpn: Some(qp.qpn()),
            rq_psn: Some(Psn::truncated(0)),
            path_mtu: Some(port.mtu),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(RnrTimer::default()),
            ..QpAttr::to_state(QpState::Rtr)
        },
        QpAttr {
            sq_psn: Some(Psn::truncated(0)),
            timeout: Some(14),
            retry_count: Some(0),
            rnr_retry: Some(0),
            max_rd_atomic: Some(1),
            ..QpAttr::to_state(QpState::Rts)
        },
    ];
    let mut from = QpState::Reset;
    for step in steps {
        let to = step.state.unwrap_or(from);
        let (attr, mask) = port.attributes(QpType::Rc, (from, to), &step);
        if let Err(error) = qp.modify(attr, mask) {
            tracing::warn!(
                %error,
                "a queue pair cannot be connected with itself, so the device is not asked for the order of data, and promises none"
            );
            return None;
        }
        from = to;
    }
    qp.data_in_order()
}

/// Whether a page cannot be registered with the order of PCI Express, and can with relaxed ordering.
fn registers_relaxed(pd: &Object<abi::Pd>, port: &Port) -> bool {
    let Ok(page) = Arena::default().alloc(&AllocRequest::of(4096), None) else {
        return false;
    };
    let memory = headworks_verbs::Buffer::as_ptr(&*page);
    let rights = port.rights(Access::ALL);
    let register = |relaxed| pd.register((memory, 4096), rights, relaxed).map(drop);
    match register(false) {
        Ok(()) => false,
        // Relaxed ordering does not help against a lack of memory.
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => false,
        Err(_) => register(true).is_ok(),
    }
}
