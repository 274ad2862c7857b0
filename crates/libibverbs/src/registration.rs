//! Memory of a program, as a device registers it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use headworks_verbs::{Access, Buffer, Device, Region};
use headworks_verbs_abi as abi;

use crate::attributes::access;
use crate::errors::Errno;
use crate::shared_memory::{self, Mappings};
use crate::system::is_mapped;

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

/// Memory that requests name by addresses of their own (iova).
struct MovedMemory {
    iova: u64,
    memory: Arc<dyn Buffer>,
}

// SAFETY: the device accesses the memory at `device_ptr`, as the buffer inside provides it. `as_ptr` is a name in requests, at which nothing
// is accessed.
unsafe impl Buffer for MovedMemory {
    fn as_ptr(&self) -> *mut u8 {
        self.iova as *mut u8
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    fn device_ptr(&self) -> *mut u8 {
        self.memory.device_ptr()
    }
}

/// Memory of a region: where the program has it, and the address of its first byte in requests.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) addr: *mut c_void,
    pub(crate) len: usize,
    pub(crate) iova: u64,
}

impl Range {
    /// The memory of a registration without an address of its own for requests.
    pub(crate) fn plain(addr: *mut c_void, len: usize, flags: u32) -> Self {
        let iova = match flags & abi::ACCESS_ZERO_BASED {
            0 => addr as u64,
            _ => 0,
        };
        Self { addr, len, iova }
    }
}

/// The use of shared pages, ended when dropped.
pub(crate) struct SharedUse(usize);

impl Drop for SharedUse {
    fn drop(&mut self) {
        shared_memory::release(self.0 as *mut c_void);
    }
}

/// A registration. The device leaves the memory before the pages are given back.
pub(crate) struct Registered {
    pub(crate) region: Region,
    /// The program's address of the memory.
    pub(crate) addr: usize,
    pub(crate) flags: u32,
    pub(crate) shared: Option<SharedUse>,
}

/// Memory that can be registered.
pub(crate) struct Prepared {
    pub(crate) buffer: Arc<dyn Buffer>,
    pub(crate) rights: Access,
    pub(crate) shared: Option<SharedUse>,
}

/// Prepares memory for a registration with these flags.
pub(crate) fn prepare(
    device: &Arc<dyn Device>,
    range: Range,
    flags: u32,
) -> Result<Prepared, Errno> {
    let Range { addr, len, iova } = range;
    if flags & abi::ACCESS_ON_DEMAND != 0 && len == usize::MAX {
        // All of the address space.
        return Err(Errno::UNSUPPORTED);
    }
    if addr.is_null() || len == 0 || iova.checked_add(len as u64).is_none() {
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
    let memory = maps.and_then(|maps| shared_memory::share(device, &maps, (addr, len)));
    let shared = memory.as_ref().map(|_| SharedUse(addr as usize));
    let memory: Arc<dyn Buffer> = match memory {
        Some(memory) => Arc::new(memory),
        None => Arc::new(ProgramMemory { addr, len }),
    };
    let buffer = match iova == addr as u64 {
        true => memory,
        false => Arc::new(MovedMemory { iova, memory }),
    };
    Ok(Prepared {
        buffer,
        rights,
        shared,
    })
}
