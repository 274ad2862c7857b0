//! Making a segment. The steps, in this order: size, place, allocate, write the header, seal.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::header::{HEADER_BYTES, Header};
use super::{
    HUGE_PAGE_BYTES, HugePages, PageKind, SegmentError, SegmentRequest, SharedSegment, map,
    memory_limits,
};
use crate::fork::ForkGeneration;

pub(super) fn create(request: &SegmentRequest<'_>) -> Result<SharedSegment, SegmentError> {
    let ordinary = file_bytes(request.len, rustix::param::page_size())?;
    if request.huge_pages == HugePages::Prefer {
        let huge = file_bytes(request.len, HUGE_PAGE_BYTES)?;
        memory_limits::check_file_size(huge)?;
        // On any failure here, use ordinary pages: reserved ones may be too few, or forbidden.
        if let Ok(segment) = build(request, huge, PageKind::Huge) {
            return Ok(segment);
        }
        memory_limits::check(ordinary)?;
        return build(request, ordinary, PageKind::Advised);
    }
    if request.huge_pages == HugePages::OnDemand {
        memory_limits::check_file_size(ordinary)?;
    } else {
        memory_limits::check(ordinary)?;
    }
    build(request, ordinary, PageKind::Ordinary)
}

/// Returns the size of the file for a payload: header and payload, rounded up to whole pages.
fn file_bytes(payload: usize, page: usize) -> Result<usize, SegmentError> {
    payload
        .checked_add(HEADER_BYTES)
        .and_then(|bytes| bytes.checked_next_multiple_of(page))
        .filter(|&bytes| i64::try_from(bytes).is_ok())
        .ok_or(SegmentError::NoSpace {
            wanted: payload as u64,
            available: None,
            limit: "the address space",
        })
}

fn build(
    request: &SegmentRequest<'_>,
    bytes: usize,
    pages: PageKind,
) -> Result<SharedSegment, SegmentError> {
    let fd = memory_file(request.name, pages)?;
    let explain = |step| move |errno: Errno| memory_limits::explain(errno, step, bytes as u64);
    ftruncate(&fd, bytes as u64).map_err(explain("ftruncate"))?;
    let base = Mapping {
        base: map(&fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?,
        bytes,
    };
    if let Some(node) = request.numa_node {
        prefer_node(base.base, bytes, node)?;
    }
    if pages == PageKind::Advised {
        // Both calls only advise, and the kernel can follow only when pages are touched. Pages that are still
        // missing afterwards are allocated below.
        // SAFETY: it is our own fresh mapping, whose content neither call changes.
        let _ = unsafe { madvise(base.base.cast(), bytes, Advice::LinuxHugepage) };
        // SAFETY: as above.
        let _ = unsafe { madvise(base.base.cast(), bytes, Advice::LinuxPopulateWrite) };
    }
    if request.huge_pages != HugePages::OnDemand {
        allocate(fd.as_fd(), 0, bytes as u64).map_err(explain("fallocate"))?;
    }
    label(&fd, base.base, &Header::new(request.len, pages), pages)?;
    let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if request.is_sealed {
        seals |= SealFlags::FUTURE_WRITE;
    }
    fcntl_add_seals(&fd, seals).map_err(SegmentError::os("sealing"))?;
    if request.is_sealed && pages == PageKind::Huge {
        check_sealed(&fd, bytes)?;
    }
    Ok(SharedSegment {
        fd,
        base: base.keep(),
        mapped: bytes,
        len: request.len,
        pages,
        generation: ForkGeneration::current(),
    })
}

/// Checks that nobody can map a sealed file of huge pages writable: older kernels take the seal for such files, and ignore
/// it.
fn check_sealed(fd: &OwnedFd, bytes: usize) -> Result<(), SegmentError> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the call makes a new mapping at an address of the kernel's choice.
    let mapped = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0) };
    match mapped {
        Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(SegmentError::os("trying the seal")(errno)),
        Ok(base) => {
            let base = base.cast();
            drop(Mapping { base, bytes });
            Err(SegmentError::Foreign("this kernel ignores its seal"))
        }
    }
}

fn memory_file(name: &str, pages: PageKind) -> Result<OwnedFd, SegmentError> {
    // The kernel accepts up to 249 bytes without NUL.
    let name: Vec<u8> = name.bytes().filter(|&byte| byte != 0).take(200).collect();
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if pages == PageKind::Huge {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    // Newer kernels expect a flag that says that the file is not a program; older ones do not know it.
    match memfd_create(&name[..], flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(&name[..], flags),
        made => made,
    }
    .map_err(SegmentError::os("memfd_create"))
}

/// Allocates every page of a range now. Continues when a signal interrupts it.
pub(super) fn allocate(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<(), Errno> {
    loop {
        match fallocate(fd, FallocateFlags::empty(), offset, bytes) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Frees every page of a range. Continues when a signal interrupts it.
pub(super) fn deallocate(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match fallocate(fd, flags, offset, bytes) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Writes the header: through the mapping for huge pages, whose files cannot be written, else to the file.
fn label(
    fd: &OwnedFd,
    base: *mut u8,
    header: &Header,
    pages: PageKind,
) -> Result<(), SegmentError> {
    if pages == PageKind::Huge {
        // SAFETY: the mapping is at least a page, aligned to one, allocated, and known to no one else.
        unsafe { base.cast::<Header>().write(*header) };
        return Ok(());
    }
    header
        .write(fd)
        .map_err(SegmentError::os("writing the header"))
}

/// Asks the kernel to take the memory from `node` while that node has any.
fn prefer_node(base: *mut u8, bytes: usize, node: u32) -> Result<(), SegmentError> {
    const NODES: usize = 1024;
    const WORD: usize = usize::BITS as usize;
    let mut mask = [0usize; NODES / WORD];
    let node = node as usize;
    if node >= NODES {
        return Err(SegmentError::os("placing on a NUMA node (0 to 1023)")(
            Errno::INVAL,
        ));
    }
    mask[node / WORD] |= 1 << (node % WORD);
    // SAFETY: mbind reads a mask of NODES bits (it subtracts one from the number) and changes only the policy
    // of our own mapping.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            base,
            bytes,
            libc::MPOL_PREFERRED,
            mask.as_ptr(),
            NODES + 1,
            0,
        )
    };
    if done == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error() {
        // A kernel without NUMA support has one node, number 0.
        error if error.raw_os_error() == Some(libc::ENOSYS) && node == 0 => Ok(()),
        error => Err(SegmentError::Os {
            step: "placing on a NUMA node",
            source: error,
        }),
    }
}

/// A mapping that is unmapped when dropped, unless kept.
struct Mapping {
    base: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn keep(self) -> *mut u8 {
        std::mem::ManuallyDrop::new(self).base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping with this length, and it was never handed out.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}
