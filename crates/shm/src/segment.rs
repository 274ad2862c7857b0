//! Shared memory segments: memory files (memfd) with a header, sealed so that they cannot change size.
//!
//! A segment is one page-sized [header](LAYOUT_VERSION) and the payload after it. It is allocated in full
//! when made, so that touching it later cannot fail (SIGBUS). The exception is [`HugePages::OnDemand`]: call
//! [`reserve`] before a part of such a segment is touched. A segment is sealed against shrinking and growing,
//! so that no process that holds it can make another's access fail. Segments have no names: another process
//! gets the descriptor over a Unix socket.
//!
//! A broken process that may write to a segment can still punch holes. Only the seal against writing forbids
//! that, and it forbids all writing. A hole reads as zeros, which are values like any others here, and is
//! allocated again when touched. That fails (SIGBUS) only if no memory is left for it; for huge pages, if
//! the pool has been emptied meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::fork::ForkGeneration;

mod create;
mod header;
pub(crate) mod memory_limits;

pub use header::LAYOUT_VERSION;
use header::{HEADER_BYTES, Header};

/// Size in bytes of a huge page that segments use.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Properties of a segment to be made.
#[derive(Clone, Copy, Debug)]
pub struct SegmentRequest<'a> {
    /// Name for people, shown in `/proc/PID/maps`; need not be unique.
    pub name: &'a str,
    /// Payload size in bytes.
    pub len: usize,
    /// Whether to try for huge pages.
    pub huge_pages: HugePages,
    /// The NUMA node to prefer while it has room; `None` leaves the choice to the kernel.
    pub numa_node: Option<u32>,
    /// Whether no process can map it writable from now on, or write to its file: its maker alone writes, through the
    /// mapping that it has (`F_SEAL_FUTURE_WRITE`).
    pub is_sealed: bool,
}

/// Whether a segment is to use huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Ordinary pages.
    #[default]
    No,
    /// Reserved 2 MiB pages if enough are free, else ordinary pages that the kernel may merge.
    Prefer,
    /// Ordinary pages, each of which gets memory when it is first used or [reserved](reserve). The first use raises SIGBUS if no
    /// memory is left. Segments of the other kinds get all memory at once.
    OnDemand,
}

/// Kind of pages that a segment got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Ordinary pages.
    Ordinary,
    /// Ordinary pages that the kernel was advised to merge into huge ones.
    Advised,
    /// Reserved 2 MiB pages.
    Huge,
}

/// Error of making or attaching a segment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// There is not enough memory, or a limit forbids using it.
    #[error("{}", memory_limits::no_space_line(*.wanted, *.available, .limit))]
    NoSpace {
        /// Bytes that are needed.
        wanted: u64,
        /// Bytes that are available, where known and less than needed.
        available: Option<u64>,
        /// Name of the resource or limit that is too small.
        limit: &'static str,
    },
    /// The segment was laid out by another version of this software.
    #[error("the shared segment has layout version {found}, this is version {expected}")]
    Layout {
        /// The segment's version.
        found: u32,
        /// This software's version.
        expected: u32,
    },
    /// The descriptor is not one of our segments.
    #[error("not a shared segment: {0}")]
    Foreign(&'static str),
    /// The operating system refused a step.
    #[error("shared segment: {step}: {source}")]
    Os {
        /// The step that failed.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl SegmentError {
    pub(crate) fn os(step: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::Os {
            step,
            source: errno.into(),
        }
    }
}

/// A sealed memory file, allocated as [`HugePages`] says, mapped into this process.
#[derive(Debug)]
pub struct SharedSegment {
    fd: OwnedFd,
    base: *mut u8,
    mapped: usize,
    len: usize,
    pages: PageKind,
    generation: ForkGeneration,
}

// SAFETY: the mapping belongs to the segment, not to a thread. All access is through raw pointers, whose
// users bring their own synchronisation.
unsafe impl Send for SharedSegment {}
// SAFETY: as above; the methods only read fields.
unsafe impl Sync for SharedSegment {}

impl SharedSegment {
    /// Makes a segment of zeros, allocated as [`SegmentRequest::huge_pages`] says.
    pub fn create(request: &SegmentRequest<'_>) -> Result<Self, SegmentError> {
        create::create(request)
    }

    /// Checks that `fd` is a segment, made by this or another process, and maps it.
    pub fn attach(fd: OwnedFd) -> Result<Self, SegmentError> {
        Self::attach_as(fd, ProtFlags::READ | ProtFlags::WRITE, Header::check)
    }

    /// Like [`attach`](Self::attach), for a caller that knows by other means which segment it is, and that
    /// this software's version made it. The header is not checked, as any process that shares the payload
    /// may have overwritten it. The payload is the rest of the file, which may be a little longer than was
    /// requested.
    pub fn attach_without_header_check(fd: OwnedFd) -> Result<Self, SegmentError> {
        let behind = |_: &Header, file: usize| Ok(file - HEADER_BYTES);
        Self::attach_as(fd, ProtFlags::READ | ProtFlags::WRITE, behind)
    }

    /// Like [`attach`](Self::attach), but read-only, for observers. A store to the mapping raises SIGSEGV.
    pub fn attach_read_only(fd: OwnedFd) -> Result<Self, SegmentError> {
        Self::attach_as(fd, ProtFlags::READ, Header::check)
    }

    /// `len_of` returns the payload's length, given the header and the file's length.
    fn attach_as(
        fd: OwnedFd,
        protection: ProtFlags,
        len_of: impl Fn(&Header, usize) -> Result<usize, SegmentError>,
    ) -> Result<Self, SegmentError> {
        let required = SealFlags::SHRINK | SealFlags::GROW;
        // Fails if it is not a memory file: other files have no seals.
        let seals = fcntl_get_seals(&fd).map_err(|_| SegmentError::Foreign("not a memory file"))?;
        if !seals.contains(required) {
            return Err(SegmentError::Foreign("not sealed against changing size"));
        }
        let stat = fstat(&fd).map_err(SegmentError::os("fstat"))?;
        let mapped = usize::try_from(stat.st_size).unwrap_or(0);
        if mapped < HEADER_BYTES {
            return Err(SegmentError::Foreign("smaller than a header"));
        }
        let header = Header::read(&fd).map_err(SegmentError::os("reading the header"))?;
        let len = len_of(&header, mapped)?;
        let pages = if stat.st_blksize as u64 >= HUGE_PAGE_BYTES as u64 {
            PageKind::Huge
        } else {
            header.pages()
        };
        let base = map(&fd, mapped, protection)?;
        Ok(Self {
            fd,
            base,
            mapped,
            len,
            pages,
            generation: ForkGeneration::current(),
        })
    }

    /// Returns a pointer to the first byte of the payload, aligned to 4096.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the mapping is longer than a header.
        unsafe { self.base.add(HEADER_BYTES) }
    }

    /// Returns where the payload begins in the file, in bytes.
    pub fn payload_offset(&self) -> u64 {
        HEADER_BYTES as u64
    }

    /// Returns the payload's size in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the kind of pages that it got.
    pub fn pages(&self) -> PageKind {
        self.pages
    }

    /// Returns the memory file's descriptor, for passing to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedSegment {
    fn drop(&mut self) {
        if self.generation.is_foreign() {
            return;
        }
        // SAFETY: `map` made the mapping with this length, and nothing uses it after its owner.
        let _ = unsafe { munmap(self.base.cast(), self.mapped) };
    }
}

/// Allocates the pages of a range of a segment's payload, so that touching them cannot fail. Use it for segments with
/// [`HugePages::OnDemand`]. `fd` is the file of the segment.
///
/// # Errors
///
/// Whatever the operating system reports: no memory is left, or the range is not part of the segment.
pub fn reserve(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let at = offset.checked_add(HEADER_BYTES as u64);
    let at = at.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(create::allocate(fd, at, len)?)
}

/// Gives the pages of a range of a segment's payload back to the operating system. The range becomes zeros, and touching it
/// takes memory again, as with [`HugePages::OnDemand`].
///
/// # Errors
///
/// Whatever the operating system reports: the range is not part of the segment.
pub fn release(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let at = offset.checked_add(HEADER_BYTES as u64);
    let at = at.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(create::deallocate(fd, at, len)?)
}

fn map(fd: &OwnedFd, mapped: usize, protection: ProtFlags) -> Result<*mut u8, SegmentError> {
    // SAFETY: the call makes a new mapping at an address of the kernel's choice.
    let base = unsafe { mmap(ptr::null_mut(), mapped, protection, MapFlags::SHARED, fd, 0) };
    match base {
        Ok(base) => Ok(base.cast()),
        Err(errno) => Err(memory_limits::explain(errno, "mmap", mapped as u64)),
    }
}

#[cfg(test)]
mod tests;
