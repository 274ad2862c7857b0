//! Shared memory segments: memory files (memfd) that can no longer change size, with a header.
//!
//! A segment is one page-sized [header](LAYOUT_VERSION) and the payload after it. It is allocated in full when made,
//! so that touching it later cannot fail (SIGBUS), and sealed against shrinking and growing, so that no
//! process that holds it can make another's access fail. Segments have no names: another process gets the
//! descriptor over a Unix socket or opens it through the owner's `/proc` entry ([`open_fd_of`]).
//!
//! One thing is left that a broken process can do to what it may write: punch holes. Only the seal against
//! writing forbids that, and it forbids all writing. A hole reads as zeros, which are values like any
//! others here, and is allocated again when it is touched; that fails (SIGBUS) only where there is no
//! memory left for it, which for huge pages is a pool that was emptied meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::fs::{Mode, OFlags, SealFlags, fcntl_get_seals, fstat, open};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::fork::ForkGeneration;

mod create;
mod header;
pub(crate) mod memory_limits;

pub use header::LAYOUT_VERSION;
use header::{HEADER_BYTES, Header};

/// The size of a huge page here.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What a new segment should be.
#[derive(Clone, Copy, Debug)]
pub struct SegmentRequest<'a> {
    /// A name for people, seen in `/proc/PID/maps`; need not be unique.
    pub name: &'a str,
    /// Payload bytes.
    pub len: usize,
    /// Whether to try for huge pages.
    pub huge_pages: HugePages,
    /// The NUMA node to place it on, if it has room; `None` leaves it to the kernel.
    pub numa_node: Option<u32>,
}

/// Whether a segment should be in huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Ordinary pages.
    #[default]
    No,
    /// Reserved 2 MiB pages if the system has free ones, else ordinary pages that the kernel may merge.
    Prefer,
}

/// What pages a segment got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Ordinary pages.
    Ordinary,
    /// Ordinary pages, the kernel advised to merge them into huge ones.
    Advised,
    /// Reserved 2 MiB pages.
    Huge,
}

/// Why a segment could not be made or attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// There is not enough memory, or a limit forbids using it.
    #[error("{}", memory_limits::no_space_line(*.wanted, *.available, .limit))]
    NoSpace {
        /// Bytes that would be enough.
        wanted: u64,
        /// Bytes there are, where known.
        available: Option<u64>,
        /// What is short.
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
    /// The operating system refused.
    #[error("shared segment: {step}: {source}")]
    Os {
        /// What was being done.
        step: &'static str,
        /// What the system said.
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

/// A sealed, fully allocated memory file, mapped here.
#[derive(Debug)]
pub struct SharedSegment {
    fd: OwnedFd,
    base: *mut u8,
    mapped: usize,
    len: usize,
    pages: PageKind,
    generation: ForkGeneration,
}

// SAFETY: the mapping belongs to the segment, not to a thread; all access is through raw pointers whose
// users bring their own synchronisation.
unsafe impl Send for SharedSegment {}
// SAFETY: as above; the methods only read fields.
unsafe impl Sync for SharedSegment {}

impl SharedSegment {
    /// Makes a segment: all of it allocated and zero.
    pub fn create(request: &SegmentRequest<'_>) -> Result<Self, SegmentError> {
        create::create(request)
    }

    /// Maps a segment that another process (or this one) made, after checking that it is one.
    pub fn attach(fd: OwnedFd) -> Result<Self, SegmentError> {
        Self::attach_as(fd, ProtFlags::READ | ProtFlags::WRITE, Header::check)
    }

    /// [`attach`](Self::attach) for who knows by other means what segment it is, and that this software's version made
    /// it. What its header says is not looked at, as whoever shares the payload may have written over it. The payload is
    /// all of the file behind it, which may be a little more than was asked for.
    pub fn attach_without_header_check(fd: OwnedFd) -> Result<Self, SegmentError> {
        let behind = |_: &Header, file: usize| Ok(file - HEADER_BYTES);
        Self::attach_as(fd, ProtFlags::READ | ProtFlags::WRITE, behind)
    }

    /// [`attach`](Self::attach) for somebody who only looks on: whoever stores to it dies of that.
    pub fn attach_read_only(fd: OwnedFd) -> Result<Self, SegmentError> {
        Self::attach_as(fd, ProtFlags::READ, Header::check)
    }

    /// `len_of`: of the header and the file's length.
    fn attach_as(
        fd: OwnedFd,
        protection: ProtFlags,
        len_of: impl Fn(&Header, usize) -> Result<usize, SegmentError>,
    ) -> Result<Self, SegmentError> {
        let required = SealFlags::SHRINK | SealFlags::GROW;
        // Not a memory file: no seals at all.
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

    /// The first byte of the payload, aligned to 4096.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the mapping is longer than a header.
        unsafe { self.base.add(HEADER_BYTES) }
    }

    /// Bytes of payload.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What pages it got.
    pub fn pages(&self) -> PageKind {
        self.pages
    }

    /// The memory file, to be passed on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedSegment {
    fn drop(&mut self) {
        if self.generation.is_foreign() {
            return;
        }
        // SAFETY: the mapping made by `map` with this length, which nothing uses after its owner.
        let _ = unsafe { munmap(self.base.cast(), self.mapped) };
    }
}

/// Opens another process's descriptor (a segment or a pipe) as a new one of ours.
///
/// Needs the same user, and that the process does not hide itself (`PR_SET_DUMPABLE`). Only memory files
/// and pipes are opened: the number may come from a peer, and opening anything else could have effects.
/// The id may have changed hands; [`ProcessId::open_fd`](crate::ProcessId::open_fd) rules that out.
pub fn open_fd_of(pid: u32, fd_number: i32) -> io::Result<OwnedFd> {
    open_fd_with(pid, fd_number, OFlags::RDWR)
}

/// [`open_fd_of`], for reading or writing or both.
pub(crate) fn open_fd_with(pid: u32, fd_number: i32, access: OFlags) -> io::Result<OwnedFd> {
    use rustix::fs::FileType;

    let path = format!("/proc/{pid}/fd/{fd_number}");
    let seen = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let kind = FileType::from_raw_mode(fstat(&seen)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Fifo) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{path} is neither a memory file nor a pipe"),
        ));
    }
    // Through the descriptor just looked at, so that it is the same file. Non-blocking: a pipe must not wait.
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&seen));
    Ok(open(&again, flags, Mode::empty())?)
}

fn map(fd: &OwnedFd, mapped: usize, protection: ProtFlags) -> Result<*mut u8, SegmentError> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { mmap(ptr::null_mut(), mapped, protection, MapFlags::SHARED, fd, 0) };
    match base {
        Ok(base) => Ok(base.cast()),
        Err(errno) => Err(memory_limits::explain(errno, "mmap", mapped as u64)),
    }
}

#[cfg(test)]
mod tests;
