//! Protection domains, thread domains and parent domains.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use headworks_verbs_abi as abi;

use crate::errors::{Errno, object, status};
use crate::objects::{ContextObject, Front, PdObject, TdObject, expose, hold, take_back};

pub(crate) unsafe extern "C" fn alloc_pd(context: *mut abi::Context) -> *mut abi::Pd {
    object(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { ContextObject::hold(context)? };
        let domain = context.device.alloc_pd()?;
        Ok(expose(Arc::new(PdObject {
            front: Front::new(abi::Pd {
                context: context.context(),
                handle: context.next_handle(),
            }),
            domain,
            parent_of: None,
            context,
        })))
    })
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut abi::Pd) -> c_int {
    // SAFETY: the program passes a domain that it does not use again.
    status(|| unsafe { take_back::<PdObject>(pd) }.map(drop))
}

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut abi::Context,
    init: *mut abi::TdInitAttr,
) -> *mut abi::Td {
    object(|| {
        // SAFETY: the program passes an open context, and attributes.
        let (context, init) = unsafe { (ContextObject::hold(context)?, init.as_ref()) };
        if init.ok_or(Errno::INVALID)?.comp_mask != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        Ok(expose(Arc::new(TdObject {
            front: Front::new(abi::Td {
                context: context.context(),
            }),
            context,
        })))
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut abi::Td) -> c_int {
    // SAFETY: the program passes a domain that it does not use again.
    status(|| unsafe { take_back::<TdObject>(td) }.map(drop))
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut abi::Context,
    init: *mut abi::ParentDomainInitAttr,
) -> *mut abi::Pd {
    object(|| {
        // SAFETY: the program passes an open context, and attributes.
        let (context, init) = unsafe { (ContextObject::hold(context)?, init.as_ref()) };
        let init = init.ok_or(Errno::INVALID)?;
        /// The program's own allocator of memory for queues, and a value for it.
        const ALLOCATORS_AND_CONTEXT: u32 = 3;
        if init.comp_mask & !ALLOCATORS_AND_CONTEXT != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        // SAFETY: the program passes a protection domain.
        let parent: Arc<PdObject> = unsafe { hold(init.pd)? };
        Ok(expose(Arc::new(PdObject {
            front: Front::new(abi::Pd {
                context: context.context(),
                handle: context.next_handle(),
            }),
            domain: parent.domain.clone(),
            parent_of: Some(parent),
            context,
        })))
    })
}
