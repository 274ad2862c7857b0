//! Memory regions.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use headworks_verbs_abi as abi;

use crate::errors::{Errno, object, status};
use crate::manners::Manner;
use crate::objects::{Front, MrObject, PdObject, borrow, expose, hold, locked, take_back};
use crate::registration::{Range, Registered, prepare};
use crate::system::set_errno;

fn region_object(pd: Arc<PdObject>, range: Range, flags: u32) -> Result<*mut abi::Mr, Errno> {
    let manners = pd.about.manners;
    let is_refused = manners.find(|it| match it {
        Manner::RefusesAccess(refused) => (flags & refused != 0).then_some(()),
        Manner::OnlyRelaxed => (flags & abi::ACCESS_RELAXED_ORDERING == 0).then_some(()),
        _ => None,
    });
    if is_refused.is_some() {
        return Err(Errno::INVALID);
    }
    let prepared = prepare(&pd.context.device, range, flags)?;
    let region = pd.domain.register(&prepared.buffer, prepared.rights)?;
    let Range { addr, len, .. } = range;
    Ok(expose(Arc::new(MrObject {
        front: Front::new(abi::Mr {
            context: pd.context.context(),
            pd: pd.front.get(),
            addr,
            length: len,
            handle: pd.next_handle(),
            lkey: region.lkey(),
            rkey: region.rkey(),
        }),
        registered: Mutex::new(Some(Registered {
            region,
            addr: addr as usize,
            flags,
            shared: prepared.shared,
        })),
        pd: Mutex::new(pd),
    })))
}

pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    len: usize,
    flags: c_int,
) -> *mut abi::Mr {
    let flags = flags as u32;
    // SAFETY: the program passes a protection domain.
    object(|| region_object(unsafe { hold(pd)? }, Range::plain(addr, len, flags), flags))
}

pub(crate) unsafe extern "C" fn reg_mr_iova(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    flags: c_int,
) -> *mut abi::Mr {
    // SAFETY: as this function.
    unsafe { reg_mr_iova2(pd, addr, len, iova, flags as u32) }
}

pub(crate) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    flags: u32,
) -> *mut abi::Mr {
    object(|| {
        // The C header calls this function for a plain registration too, unless the compiler knows the flags.
        let range = match iova == addr as u64 {
            true => Range::plain(addr, len, flags),
            false => Range { addr, len, iova },
        };
        // The kernel demands the same place within a page.
        if range.iova != 0 && (iova ^ addr as u64) & 0xfff != 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: the program passes a protection domain.
        region_object(unsafe { hold(pd)? }, range, flags)
    })
}

pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut abi::Mr) -> c_int {
    // SAFETY: the program passes a region that it does not use again.
    status(|| {
        // SAFETY: as above.
        let object = unsafe { take_back::<MrObject>(mr) }?;
        drop(locked(&object.registered).take());
        Ok(())
    })
}

/// Changes memory, domain or rights of a region. It keeps its keys, at least 16,000 times: programs read them again from the region.
pub(crate) unsafe extern "C" fn rereg_mr(
    mr: *mut abi::Mr,
    changes: c_int,
    pd: *mut abi::Pd,
    addr: *mut c_void,
    len: usize,
    flags: c_int,
) -> c_int {
    let mut failed = abi::REREG_ERR_INPUT;
    let done = status(|| {
        let known = abi::REREG_TRANSLATION | abi::REREG_PD | abi::REREG_ACCESS;
        if changes & !known != 0 || changes == 0 {
            return Err(Errno::INVALID);
        }
        let changes = |what: c_int| changes & what != 0;
        // SAFETY: the program passes a region.
        let object: &MrObject = unsafe { borrow(mr)? };
        let new_pd = match changes(abi::REREG_PD) {
            // SAFETY: the program passes a protection domain.
            true => Some(unsafe { hold::<PdObject>(pd)? }),
            false => None,
        };
        let mut holder = locked(&object.pd);
        let is_of_another_device = |pd: &Arc<PdObject>| !Arc::ptr_eq(&pd.context, &holder.context);
        if new_pd.as_ref().is_some_and(is_of_another_device) {
            return Err(Errno::INVALID);
        }
        let mut registered = locked(&object.registered);
        let old = registered.as_ref().ok_or(Errno::INVALID)?;
        let flags = match changes(abi::REREG_ACCESS) {
            true => flags as u32,
            false => old.flags,
        };
        let range = match changes(abi::REREG_TRANSLATION) {
            true => Range::plain(addr, len, flags),
            false => Range {
                addr: old.addr as *mut c_void,
                len: old.region.len(),
                iova: old.region.addr(0),
            },
        };
        failed = abi::REREG_ERR_CMD;
        let pd = new_pd.as_ref().unwrap_or(&holder);
        let prepared = prepare(&pd.context.device, range, flags)?;
        // Held until the new region exists: it may lie in the same pages.
        let Some(Registered {
            region: old,
            addr: old_addr,
            flags: old_flags,
            shared: old_shared,
        }) = registered.take()
        else {
            return Err(Errno::INVALID);
        };
        let again = pd
            .domain
            .register_again(old, &prepared.buffer, prepared.rights);
        let region = match again {
            Ok(region) => region,
            Err((error, region)) => {
                *registered = Some(Registered {
                    region,
                    addr: old_addr,
                    flags: old_flags,
                    shared: old_shared,
                });
                return Err(error.into());
            }
        };
        // SAFETY: the region's struct is the program's, and only this call writes its fields.
        unsafe {
            let front = object.front.get();
            (*front).addr = range.addr;
            (*front).length = range.len;
            (*front).lkey = region.lkey();
            (*front).rkey = region.rkey();
            if let Some(pd) = &new_pd {
                (*front).pd = pd.front.get();
            }
        }
        *registered = Some(Registered {
            region,
            addr: range.addr as usize,
            flags,
            shared: prepared.shared,
        });
        drop(old_shared);
        if let Some(pd) = new_pd {
            *holder = pd;
        }
        Ok(())
    });
    match done {
        0 => 0,
        errno => {
            set_errno(errno);
            failed
        }
    }
}
