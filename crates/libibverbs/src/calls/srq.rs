//! Shared receive queues.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use headworks_verbs::SrqInit;
use headworks_verbs_abi as abi;

use crate::errors::{Errno, object, status};
use crate::manners::Manner;
use crate::objects::{
    EventCount, Front, PdObject, SrqObject, borrow, expose, hold, locked, take_back, zeroed,
};

/// Makes a shared receive queue, and writes its sizes to `asked`.
fn srq_object(
    pd: Arc<PdObject>,
    srq_context: *mut c_void,
    asked: &mut abi::SrqAttr,
) -> Result<*mut abi::Srq, Errno> {
    let init = SrqInit {
        max_wr: asked.max_wr.max(1),
        max_sge: asked.max_sge.max(1),
        // The limit is set later: creation ignores it.
        limit: 0,
    };
    if pd.about.manners.has(Manner::NoSharedReceiveQueues) {
        return Err(Errno::UNSUPPORTED);
    }
    let queue = pd.domain.create_srq(&init)?;
    asked.max_wr = queue.max_wr();
    asked.max_sge = init.max_sge;
    // SAFETY: all fields are pointers that may be null, numbers, and a mutex and a condition whose initial state is zero.
    let mut front: abi::Srq = unsafe { zeroed() };
    front.context = pd.context.context();
    front.srq_context = srq_context;
    front.pd = pd.front.get();
    front.handle = pd.next_handle();
    let id = queue.id().0;
    let srq = Arc::new(SrqObject {
        front: Front::new(front),
        attr: Mutex::new(abi::SrqAttr {
            srq_limit: 0,
            ..*asked
        }),
        events: EventCount::default(),
        queue,
        pd: pd.clone(),
    });
    locked(&pd.context.srqs).insert(id, Arc::downgrade(&srq));
    Ok(expose(srq))
}

pub(crate) unsafe extern "C" fn create_srq(
    pd: *mut abi::Pd,
    init: *mut abi::SrqInitAttr,
) -> *mut abi::Srq {
    object(|| {
        // SAFETY: the program passes a protection domain, and attributes.
        let (pd, init) = unsafe { (hold(pd)?, init.as_mut()) };
        let init = init.ok_or(Errno::INVALID)?;
        srq_object(pd, init.srq_context, &mut init.attr)
    })
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut abi::Context,
    init: *mut abi::SrqInitAttrEx,
) -> *mut abi::Srq {
    object(|| {
        // SAFETY: the program passes attributes.
        let init = unsafe { init.as_mut() }.ok_or(Errno::INVALID)?;
        let is_basic = init.comp_mask & abi::SRQ_INIT_TYPE == 0 || init.srq_type == abi::SRQT_BASIC;
        if init.comp_mask & !(abi::SRQ_INIT_TYPE | abi::SRQ_INIT_PD) != 0 || !is_basic {
            return Err(Errno::UNSUPPORTED);
        }
        if init.comp_mask & abi::SRQ_INIT_PD == 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: the program passes a protection domain.
        let pd = unsafe { hold(init.pd)? };
        srq_object(pd, init.srq_context, &mut init.attr)
    })
}

/// Only shared receive queues of other transports have a number.
pub(crate) unsafe extern "C" fn get_srq_num(_: *mut abi::Srq, _: *mut u32) -> c_int {
    status(|| Err(Errno::UNSUPPORTED))
}

pub(crate) unsafe extern "C" fn modify_srq(
    srq: *mut abi::Srq,
    attr: *mut abi::SrqAttr,
    bits: c_int,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a shared receive queue, and attributes.
        let (srq, attr): (&SrqObject, _) = unsafe { (borrow(srq)?, attr.as_ref()) };
        let attr = attr.ok_or(Errno::INVALID)?;
        if bits & !(abi::SRQ_MAX_WR | abi::SRQ_LIMIT) != 0 {
            return Err(Errno::INVALID);
        }
        let mut known = locked(&srq.attr);
        if bits & abi::SRQ_MAX_WR != 0 && attr.max_wr > known.max_wr {
            return Err(Errno::UNSUPPORTED);
        }
        if bits & abi::SRQ_LIMIT != 0 {
            if attr.srq_limit > known.max_wr {
                return Err(Errno::INVALID);
            }
            srq.queue.set_limit(attr.srq_limit)?;
            known.srq_limit = attr.srq_limit;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_srq(srq: *mut abi::Srq, attr: *mut abi::SrqAttr) -> c_int {
    status(|| {
        // SAFETY: the program passes a shared receive queue, and room for the attributes.
        let (srq, attr): (&SrqObject, _) = unsafe { (borrow(srq)?, attr.as_mut()) };
        *attr.ok_or(Errno::INVALID)? = *locked(&srq.attr);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut abi::Srq) -> c_int {
    status(|| {
        // SAFETY: the program passes a shared receive queue that it does not use again.
        let srq = unsafe { take_back::<SrqObject>(srq)? };
        locked(&srq.pd.context.srqs).remove(srq.queue.id().0);
        srq.events.wait();
        Ok(())
    })
}
