//! Memory regions.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use headworks_verbs::{Access, Buffer, Region};
use headworks_verbs_abi as abi;

use crate::attributes::access;
use crate::errors::{Errno, object, status};
use crate::objects::{Front, MrObject, PdObject, borrow, expose, hold, locked, take_back};
use crate::shared_memory::{self, Mappings};
use crate::system::{is_mapped, set_errno};

/// Memory of the program, which it keeps mapped while it is registered.
struct ProgramMemory {
    addr: *mut c_void,
    len: usize,
}

// SAFETY: the value is an address and a length. Devices and peers access the memory by address.
unsafe impl Send for ProgramMemory {}
// SAFETY: as above.
unsafe impl Sync for ProgramMemory {}

// SAFETY: the interface demands of the program that the memory stays mapped until it has deregistered it. The range was mapped when it
// was registered.
unsafe impl Buffer for ProgramMemory {
    fn as_ptr(&self) -> *mut u8 {
        self.addr.cast()
    }

    fn len(&self) -> usize {
        self.len
    }
}

fn register(pd: &PdObject, addr: *mut c_void, len: usize, flags: u32) -> Result<Region, Errno> {
    if flags & (abi::ACCESS_ZERO_BASED | abi::ACCESS_ON_DEMAND) != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    if addr.is_null() || len == 0 {
        return Err(Errno::INVALID);
    }
    let rights = access(flags);
    if !rights.is_consistent() {
        return Err(Errno::INVALID);
    }
    let end = (addr as usize).checked_add(len).ok_or(Errno::INVALID)?;
    let maps = Mappings::read();
    let is_allowed = match &maps {
        Some(maps) => maps.allow(addr as usize, end, rights.contains(Access::LOCAL_WRITE)),
        // Without /proc only this is known.
        None => is_mapped(addr, len),
    };
    if !is_allowed {
        return Err(Errno(libc::EFAULT));
    }
    let device = &pd.context.device;
    let shared = maps.and_then(|maps| shared_memory::share(device, &maps, (addr, len)));
    let is_shared = shared.is_some();
    let memory: Arc<dyn Buffer> = match shared {
        Some(shared) => Arc::new(shared),
        None => Arc::new(ProgramMemory { addr, len }),
    };
    pd.domain.register(&memory, rights).map_err(|error| {
        if is_shared {
            shared_memory::release(addr);
        }
        error.into()
    })
}

/// Deregisters memory.
fn end(region: Region) {
    let memory = region.buffer();
    let addr = memory.as_ptr();
    let is_shared = memory.device_ptr() != addr;
    drop(region);
    if is_shared {
        shared_memory::release(addr.cast());
    }
}

fn region_object(
    pd: Arc<PdObject>,
    addr: *mut c_void,
    len: usize,
    flags: u32,
) -> Result<*mut abi::Mr, Errno> {
    let region = register(&pd, addr, len, flags)?;
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
        region: Mutex::new(Some(region)),
        pd: Mutex::new(pd),
    })))
}

pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    len: usize,
    flags: c_int,
) -> *mut abi::Mr {
    // SAFETY: the program passes a protection domain.
    object(|| region_object(unsafe { hold(pd)? }, addr, len, flags as u32))
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
        // The device has no second address for the memory.
        if iova != addr as u64 {
            return Err(Errno::UNSUPPORTED);
        }
        // SAFETY: the program passes a protection domain.
        region_object(unsafe { hold(pd)? }, addr, len, flags)
    })
}

pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut abi::Mr) -> c_int {
    // SAFETY: the program passes a region that it does not use again.
    status(|| {
        // SAFETY: as above.
        let object = unsafe { take_back::<MrObject>(mr) }?;
        if let Some(region) = locked(&object.region).take() {
            end(region);
        }
        Ok(())
    })
}

/// Changes memory, domain or rights of a region. The region gets new keys, as the interface allows.
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
        let mut region = locked(&object.region);
        let old = region.as_ref().ok_or(Errno::INVALID)?;
        let (addr, len) = match changes(abi::REREG_TRANSLATION) {
            true => (addr, len),
            false => (old.addr(0) as *mut c_void, old.len()),
        };
        let flags = match changes(abi::REREG_ACCESS) {
            true => flags as u32,
            false => old.access().bits(),
        };
        failed = abi::REREG_ERR_CMD;
        let new = register(new_pd.as_ref().unwrap_or(&holder), addr, len, flags)?;
        // SAFETY: the region's struct is the program's, and only this call writes its fields.
        unsafe {
            let front = object.front.get();
            (*front).addr = addr;
            (*front).length = len;
            (*front).lkey = new.lkey();
            (*front).rkey = new.rkey();
            if let Some(pd) = &new_pd {
                (*front).pd = pd.front.get();
            }
        }
        if let Some(old) = region.replace(new) {
            end(old);
        }
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
