//! Queue pairs: creation, attributes, destruction.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Once};

use headworks_softnic::check_cross_process_copy;
use headworks_verbs::{Gid, QpAttr, QpCaps, QpInit, QpState, QpType};
use headworks_verbs_abi as abi;

use super::qp_ex::set_functions;
use crate::attributes::{modification, record, transport};
use crate::errors::{Errno, complain, object, status};
use crate::manners::{self, Manner};
use crate::objects::{
    CqObject, ExtendedQp, Front, PdObject, QpObject, QpObjectParts, SrqObject, borrow, expose,
    hold, locked, take_back, zeroed,
};
use crate::peers::is_connected_with_itself;
use crate::system::without_signals;

/// Operations of the extended interface that the device has.
const SEND_OPS: u64 = abi::QP_EX_WRITE
    | abi::QP_EX_WRITE_IMM
    | abi::QP_EX_SEND
    | abi::QP_EX_SEND_IMM
    | abi::QP_EX_READ
    | abi::QP_EX_COMPARE_SWAP
    | abi::QP_EX_FETCH_ADD;

/// Parameters of a new queue pair.
struct QpParameters<'a> {
    qp_context: *mut c_void,
    send_cq: *mut abi::Cq,
    recv_cq: *mut abi::Cq,
    srq: *mut abi::Srq,
    /// The sizes; those that the device granted are written back.
    cap: &'a mut abi::QpCap,
    qp_type: c_int,
    sq_sig_all: c_int,
    /// Whether the program will use the extended interface.
    is_extended: bool,
}

fn caps_of(cap: &abi::QpCap) -> QpCaps {
    // The device has no queues without room.
    QpCaps {
        max_send_wr: cap.max_send_wr.max(1),
        max_recv_wr: cap.max_recv_wr.max(1),
        max_send_sge: cap.max_send_sge.max(1),
        max_recv_sge: cap.max_recv_sge.max(1),
        max_inline: cap.max_inline_data,
    }
}

/// The capacities of a queue pair, as a program is told them.
fn granted(caps: &QpCaps, has_srq: bool) -> abi::QpCap {
    let of_receives = |number: u32| if has_srq { 0 } else { number };
    abi::QpCap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: of_receives(caps.max_recv_wr),
        max_send_sge: caps.max_send_sge,
        max_recv_sge: of_receives(caps.max_recv_sge),
        max_inline_data: caps.max_inline,
    }
}

/// Says once if datagrams between processes cannot reach private memory: the program would only see that none arrives.
fn warn_of_lost_datagrams() {
    static SAID: Once = Once::new();
    if let Err(error) = check_cross_process_copy() {
        SAID.call_once(|| {
            complain(&format!(
                "datagrams to memory that is not registered in whole pages will be lost: process_vm_writev: {error}; allow this system call, or register whole pages (posix_memalign)"
            ));
        });
    }
}

/// Makes a queue pair.
///
/// # Safety
///
/// The pointers are those of a program to objects, or null.
unsafe fn qp_object(pd: *mut abi::Pd, parameters: QpParameters<'_>) -> Result<*mut abi::Qp, Errno> {
    let qp_type = transport(parameters.qp_type).ok_or(Errno::UNSUPPORTED)?;
    // SAFETY: the caller says so.
    let manners = unsafe { borrow::<PdObject>(pd)? }.about.manners;
    if let Some(errno) = manners.refusal(parameters.qp_type) {
        return Err(Errno(errno));
    }
    let longest = manners.find(|it| match it {
        Manner::LongestInline(bytes) => Some(bytes),
        _ => None,
    });
    if longest.is_some_and(|longest| parameters.cap.max_inline_data > longest) {
        return Err(Errno::INVALID);
    }
    let asked_inline = parameters.cap.max_inline_data;
    if manners.has(Manner::IgnoresInline) {
        parameters.cap.max_inline_data = 0;
    }
    if qp_type == QpType::Ud {
        warn_of_lost_datagrams();
    }
    // SAFETY: the caller says so.
    let (pd, send_cq, recv_cq): (Arc<PdObject>, Arc<CqObject>, Arc<CqObject>) = unsafe {
        (
            hold(pd)?,
            hold(parameters.send_cq)?,
            hold(parameters.recv_cq)?,
        )
    };
    let srq: Option<Arc<SrqObject>> = match parameters.srq.is_null() {
        true => None,
        // SAFETY: the caller says so.
        false => Some(unsafe { hold(parameters.srq)? }),
    };
    let init = QpInit {
        qp_type,
        send_cq: send_cq.queue.clone(),
        recv_cq: recv_cq.queue.clone(),
        srq: srq.as_ref().map(|srq| srq.queue.clone()),
        caps: caps_of(parameters.cap),
        signal_all: parameters.sq_sig_all != 0,
    };
    // The first queue pair of a device starts its thread.
    let qp = without_signals(|| pd.domain.create_qp(&init))?;
    let caps = *qp.caps();
    let qpn = qp.qpn().raw();
    *parameters.cap = granted(&caps, srq.is_some());
    if manners.has(Manner::IgnoresInline) {
        parameters.cap.max_inline_data = asked_inline;
    }
    pd.count_queue_pair();
    // SAFETY: all fields are pointers that may be null, numbers, and a mutex and a condition whose initial state is zero.
    let mut base: abi::Qp = unsafe { zeroed() };
    base.context = pd.context.context();
    base.qp_context = parameters.qp_context;
    base.pd = pd.front.get();
    base.send_cq = parameters.send_cq;
    base.recv_cq = parameters.recv_cq;
    base.srq = parameters.srq;
    base.handle = pd.next_handle();
    base.qp_num = qpn;
    base.qp_type = parameters.qp_type;
    let extended = parameters.is_extended.then(|| {
        // SAFETY: as above; functions may be null too.
        let mut front: abi::QpEx = unsafe { zeroed() };
        front.qp_base = base;
        set_functions(&mut front);
        Box::new(ExtendedQp {
            front: Front::new(front),
            builder: UnsafeCell::default(),
        })
    });
    let parts = QpObjectParts {
        qp,
        qp_type,
        signal_all: parameters.sq_sig_all != 0,
        send_cq,
        recv_cq,
        srq,
        pd: pd.clone(),
    };
    let qp = QpObject::new(base, extended, parts);
    locked(&pd.context.qps).insert(qpn, Arc::downgrade(&qp));
    Ok(expose(qp))
}

pub(crate) unsafe extern "C" fn create_qp(
    pd: *mut abi::Pd,
    init: *mut abi::QpInitAttr,
) -> *mut abi::Qp {
    object(|| {
        // SAFETY: the program passes a protection domain and attributes, with objects or null in them.
        unsafe {
            let init = init.as_mut().ok_or(Errno::INVALID)?;
            let parameters = QpParameters {
                qp_context: init.qp_context,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                cap: &mut init.cap,
                qp_type: init.qp_type,
                sq_sig_all: init.sq_sig_all,
                is_extended: false,
            };
            qp_object(pd, parameters)
        }
    })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut abi::Context,
    init: *mut abi::QpInitAttrEx,
) -> *mut abi::Qp {
    object(|| {
        // SAFETY: the program passes attributes, with objects or null in them.
        unsafe {
            let init = init.as_mut().ok_or(Errno::INVALID)?;
            let known = abi::QP_INIT_PD | abi::QP_INIT_CREATE_FLAGS | abi::QP_INIT_SEND_OPS;
            let has = |bit: u32| init.comp_mask & bit != 0;
            let flags = has(abi::QP_INIT_CREATE_FLAGS) && init.create_flags != 0;
            let is_extended = has(abi::QP_INIT_SEND_OPS);
            let ops = is_extended && init.send_ops_flags & !SEND_OPS != 0;
            if init.comp_mask & !known != 0 || flags || ops {
                return Err(Errno::UNSUPPORTED);
            }
            if !has(abi::QP_INIT_PD) {
                return Err(Errno::INVALID);
            }
            let pd = init.pd;
            let parameters = QpParameters {
                qp_context: init.qp_context,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                cap: &mut init.cap,
                qp_type: init.qp_type,
                sq_sig_all: init.sq_sig_all,
                is_extended,
            };
            qp_object(pd, parameters)
        }
    })
}

/// Returns the larger struct of a queue pair that was made for the extended interface; null for others.
pub(crate) unsafe extern "C" fn qp_to_qp_ex(qp: *mut abi::Qp) -> *mut abi::QpEx {
    // SAFETY: the program passes a queue pair.
    let object = unsafe { borrow::<QpObject>(qp) };
    let extended = object.ok().and_then(|object| object.extended.as_ref());
    extended.map_or(std::ptr::null_mut(), |extended| extended.front.get())
}

fn is_own_gid(object: &QpObject, gid: Gid) -> bool {
    object.pd.about.gids().contains(&gid)
}

pub(crate) unsafe extern "C" fn modify_qp(
    qp: *mut abi::Qp,
    attr: *mut abi::QpAttr,
    bits: c_int,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a queue pair, and attributes.
        let (object, attr): (&QpObject, _) = unsafe { (borrow(qp)?, attr.as_ref()) };
        let attr = attr.ok_or(Errno::INVALID)?;
        let mut qp = locked(&object.qp);
        let changes = modification(
            (object.pd.about, object.pd.tables()),
            qp.state(),
            attr,
            bits,
        )?;
        let done = qp.modify(&changes);
        // SAFETY: the struct is the program's, and only the library writes this field.
        unsafe { (*object.base()).state = qp.state() as c_int };
        done?;
        // Under a driver's manners our own provider does so when it opens the device.
        let is_own = changes.dest_qpn == Some(qp.qpn()) && object.pd.about.manners == manners::NONE;
        if is_own && changes.dest_gid.is_some_and(|gid| is_own_gid(object, gid)) {
            is_connected_with_itself(&object.pd.about.name, qp.qpn().raw());
        }
        if changes.state == Some(QpState::Reset) {
            object.discard_completions(qp.qpn());
        }
        record(&mut locked(&object.own().attr), attr, bits);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut abi::Qp,
    attr: *mut abi::QpAttr,
    _bits: c_int,
    init: *mut abi::QpInitAttr,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a queue pair, and room for both structs.
        let (object, attr, init): (&QpObject, _, _) =
            unsafe { (borrow(qp)?, attr.as_mut(), init.as_mut()) };
        let (attr, init) = (attr.ok_or(Errno::INVALID)?, init.ok_or(Errno::INVALID)?);
        let manners = object.pd.about.manners;
        if manners.has(Manner::NoQueries) {
            return Err(Errno::UNSUPPORTED);
        }
        let (state, mut cap) = {
            let qp = locked(&object.qp);
            let cap = granted(qp.caps(), object.srq.is_some());
            (qp.state() as c_int, cap)
        };
        if manners.has(Manner::ReportsMore) {
            cap.max_send_wr *= 2;
            cap.max_recv_wr *= 2;
            cap.max_inline_data *= 2;
        }
        *attr = locked(&object.own().attr).with(state, cap);
        // SAFETY: the struct is the program's, and only the library writes these fields.
        unsafe {
            let base = object.base();
            (*base).state = state;
            *init = abi::QpInitAttr {
                qp_context: (*base).qp_context,
                send_cq: (*base).send_cq,
                recv_cq: (*base).recv_cq,
                srq: (*base).srq,
                cap: attr.cap,
                qp_type: (*base).qp_type,
                sq_sig_all: object.own().signal_all.into(),
            };
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut abi::Qp) -> c_int {
    status(|| {
        // SAFETY: the program passes a queue pair that it does not use again.
        let object = unsafe { take_back::<QpObject>(qp)? };
        let qpn = {
            let mut qp = locked(&object.qp);
            // Nothing completes on it from here on. A queue pair that cannot be reset is destroyed all the same.
            let _ = qp.modify(&QpAttr::to_state(QpState::Reset));
            qp.qpn()
        };
        locked(&object.pd.context.qps).remove(qpn.raw());
        object.events.wait();
        object.discard_completions(qpn);
        Ok(())
    })
}

/// Whether the bytes of an operation are placed in order: the device's promise is bounded in length, which the answer cannot say. With
/// a driver's manners, its answer.
pub(crate) unsafe extern "C" fn data_in_order(qp: *mut abi::Qp, _: c_int, flags: u32) -> c_int {
    // SAFETY: the program passes a queue pair.
    let Ok(object) = (unsafe { borrow::<QpObject>(qp) }) else {
        return 0;
    };
    let answers = object.pd.about.manners.has(Manner::DataInOrder);
    match answers && locked(&object.qp).state() == QpState::Rts {
        true if flags & abi::DATA_IN_ORDER_RETURN_CAPS != 0 => {
            abi::DATA_IN_ORDER_WHOLE_MSG | abi::DATA_IN_ORDER_ALIGNED_128_BYTES
        }
        true => 1,
        false => 0,
    }
}
