//! Memory of a program that peers reach without system calls: its pages are replaced by shared ones when it is registered.
//!
//! # How it works
//!
//! A region of whole pages of ordinary memory (private, anonymous, readable and writable) is copied to memory of the device, and the
//! device's file is then mapped over the program's pages. The program sees the same bytes at the same addresses. Peers map the file.
//!
//! # Rules
//!
//! - A region that does not consist of whole pages, or whose pages are of another kind, stays private: peers reach it by system calls.
//!   A page that the region shares with other data is never replaced, because other threads may write that data meanwhile.
//! - What another thread writes to the region itself during the registration may be lost.
//! - The pages stay shared when the region is deregistered, and serve the next registration. A program that unmaps them, as `free`
//!   does, gives the memory back at the next registration or deregistration of any memory.
//! - A child of `fork` has private pages again. It sees its own writes, and the parent's until it writes to a page itself.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use headworks_verbs::{AllocRequest, Buffer, Device, Pages};

const PAGE: usize = 4096;

/// Pages that were replaced.
struct SharedPages {
    len: usize,
    /// Inode of the file that is mapped over them.
    inode: u64,
    /// The device's memory that they are.
    memory: Arc<dyn Buffer>,
    /// The device, whose peers map this memory.
    device: usize,
}

/// A part of replaced pages, as the device registers it.
pub(crate) struct SharedMemory {
    addr: NonNull<u8>,
    len: usize,
    /// Where the part begins in `memory`.
    offset: usize,
    memory: Arc<dyn Buffer>,
}

// SAFETY: the value is an address and a length. Devices and peers access the memory by address.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

// SAFETY: the interface demands of the program that the memory stays mapped until it has deregistered it. `memory` is mapped as long as
// the value lives.
unsafe impl Buffer for SharedMemory {
    fn as_ptr(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn device_ptr(&self) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(self.offset)
    }
}

/// The replaced pages of this process, by their first address.
static REPLACED: Mutex<BTreeMap<usize, SharedPages>> = Mutex::new(BTreeMap::new());

fn replaced() -> MutexGuard<'static, BTreeMap<usize, SharedPages>> {
    REPLACED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the `len` bytes at `addr` as memory of `device`, after replacing their pages if need be. `None` if they stay private.
pub(crate) fn share(
    device: &Arc<dyn Device>,
    addr: *mut c_void,
    len: usize,
) -> Option<SharedMemory> {
    let start = addr as usize;
    let end = start.checked_add(len)?;
    let name = Arc::as_ptr(device).cast::<()>() as usize;
    let mut pages = replaced();
    let maps = Mappings::read()?;
    forget_unmapped(&mut pages, &maps);
    if let Some(found) = find(&pages, name, (start, end)) {
        return Some(found);
    }
    if !start.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) || !maps.is_ordinary(start, end) {
        return None;
    }
    let memory = device
        .alloc(&AllocRequest {
            align: PAGE,
            pages: Pages::OnDemand,
            has_own_file: true,
            ..AllocRequest::of(len)
        })
        .ok()?;
    let inode = replace(&*memory, start, len)?;
    prepare_for_fork();
    let made = SharedPages {
        len,
        inode,
        memory,
        device: name,
    };
    pages.insert(start, made);
    find(&pages, name, (start, end))
}

/// Forgets pages that the program has unmapped.
pub(crate) fn sweep() {
    let mut pages = replaced();
    if !pages.is_empty()
        && let Some(maps) = Mappings::read()
    {
        forget_unmapped(&mut pages, &maps);
    }
}

fn forget_unmapped(pages: &mut BTreeMap<usize, SharedPages>, maps: &Mappings) {
    pages.retain(|start, found| maps.has_file(*start, start + found.len, found.inode));
}

/// Returns a range that lies in replaced pages.
fn find(
    pages: &BTreeMap<usize, SharedPages>,
    device: usize,
    (start, end): (usize, usize),
) -> Option<SharedMemory> {
    let (first, found) = pages.range(..=start).next_back()?;
    if found.device != device || end > first + found.len {
        return None;
    }
    Some(SharedMemory {
        addr: NonNull::new(start as *mut u8)?,
        len: end - start,
        offset: start - first,
        memory: found.memory.clone(),
    })
}

/// Copies the pages at `start` to `memory`, and maps its file over them. Returns the file's inode. After a failure the pages are as
/// before.
fn replace(memory: &dyn Buffer, start: usize, len: usize) -> Option<u64> {
    let fd = memory.file()?;
    let inode = inode_of(fd)?;
    copy_used_pages(memory.as_ptr(), start, len);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: the program registers these pages as memory for a device to write to; all of them are mapped, private and anonymous. The
    // new mapping holds the same bytes.
    let mapped = unsafe {
        libc::mmap(
            start as *mut c_void,
            len,
            protection,
            how,
            fd.as_raw_fd(),
            memory.file_offset() as i64,
        )
    };
    (mapped != libc::MAP_FAILED).then_some(inode)
}

fn inode_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let file = File::from(fd.try_clone_to_owned().ok()?);
    Some(file.metadata().ok()?.ino())
}

/// Copies the pages at `start` that have ever been written to. The others are zero, as the target is.
fn copy_used_pages(to: *mut u8, start: usize, len: usize) {
    /// Bits of an entry of the page map: the page is in memory, or in swap space.
    const USED: u64 = 3 << 62;
    const AT_ONCE: usize = 512;
    let map = File::open("/proc/self/pagemap").ok();
    let mut entries = [0; 8 * AT_ONCE];
    for first in (0..len / PAGE).step_by(AT_ONCE) {
        let count = AT_ONCE.min(len / PAGE - first);
        let entries = &mut entries[..8 * count];
        let at = (start / PAGE + first) as u64 * 8;
        let is_known = map
            .as_ref()
            .is_some_and(|map| map.read_exact_at(entries, at).is_ok());
        for (page, entry) in entries.as_chunks::<8>().0.iter().enumerate() {
            if is_known && u64::from_ne_bytes(*entry) & USED == 0 {
                continue;
            }
            let offset = (first + page) * PAGE;
            // SAFETY: both ranges are mapped and have `len` bytes, and do not overlap. Peers do not know the target yet. The program
            // does not write to the source meanwhile, as the module's rules say.
            unsafe {
                std::ptr::copy_nonoverlapping((start + offset) as *const u8, to.add(offset), PAGE);
            }
        }
    }
}

/// The mappings of this process.
struct Mappings(Vec<Mapping>);

struct Mapping {
    from: usize,
    to: usize,
    /// Whether the mapping is private, readable and writable, and not executable.
    is_private_data: bool,
    inode: u64,
    /// Whether it is memory that the program got from the kernel for itself: without a file, or the heap.
    is_anonymous: bool,
}

impl Mappings {
    fn read() -> Option<Self> {
        let mut text = String::new();
        File::open("/proc/self/maps")
            .ok()?
            .read_to_string(&mut text)
            .ok()?;
        Some(Self(text.lines().filter_map(Mapping::parse).collect()))
    }

    /// Returns whether each part of a range is in a mapping with this property.
    fn all(&self, start: usize, end: usize, has: impl Fn(&Mapping) -> bool) -> bool {
        let mut next = start;
        for mapping in &self.0 {
            if mapping.to <= next {
                continue;
            }
            if next >= end || mapping.from > next || !has(mapping) {
                break;
            }
            next = mapping.to;
        }
        next >= end
    }

    fn is_ordinary(&self, start: usize, end: usize) -> bool {
        self.all(start, end, |mapping| {
            mapping.is_private_data && mapping.is_anonymous && mapping.inode == 0
        })
    }

    fn has_file(&self, start: usize, end: usize, inode: u64) -> bool {
        self.all(start, end, |mapping| mapping.inode == inode)
    }
}

impl Mapping {
    /// Parses a line of the file `maps`: range, rights, offset, device, inode, name.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (from, to) = (number(from)?, number(to)?);
        let rights = words.next()?;
        let inode = words.nth(2)?.parse().ok()?;
        let name = words.next().unwrap_or_default();
        Some(Self {
            from,
            to,
            is_private_data: rights == "rw-p",
            inode,
            is_anonymous: name.is_empty() || name == "[heap]" || name.starts_with("[anon"),
        })
    }
}

/// Has children of `fork` get private pages.
fn prepare_for_fork() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions are valid as long as the library is loaded, and it is never unloaded once it has started a thread.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
}

type ReplacedGuard = MutexGuard<'static, BTreeMap<usize, SharedPages>>;

thread_local! {
    /// The lock that this thread holds while it forks, so that the child finds the list whole.
    static HELD: RefCell<Option<ReplacedGuard>> = const { RefCell::new(None) };
}

extern "C" fn before_fork() {
    HELD.set(Some(replaced()));
}

extern "C" fn in_parent() {
    drop(HELD.take());
}

extern "C" fn in_child() {
    let Some(mut pages) = HELD.take() else {
        return;
    };
    for (start, found) in pages.iter() {
        let Some(fd) = found.memory.file() else {
            continue;
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_PRIVATE | libc::MAP_FIXED;
        // SAFETY: the range is mapped to the same file, unless the program has unmapped it since, and then its address belongs to
        // whatever the program mapped there: `has_file` was true at the last registration, and a mapping of another kind is left alone.
        unsafe {
            if is_mapped_shared(*start, found.len, found.inode) {
                libc::mmap(
                    *start as *mut c_void,
                    found.len,
                    protection,
                    how,
                    fd.as_raw_fd(),
                    found.memory.file_offset() as i64,
                );
            }
        }
    }
    // The child's pages are ordinary again. The list is forgotten and not freed: its memory belongs to the parent's device.
    std::mem::forget(std::mem::take(&mut *pages));
}

/// Returns whether a range is mapped to the file.
fn is_mapped_shared(start: usize, len: usize, inode: u64) -> bool {
    Mappings::read().is_some_and(|maps| maps.has_file(start, start + len, inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_told_apart() {
        let text = "\
1000-3000 rw-p 00000000 00:00 0
3000-4000 rw-p 00000000 00:00 0          [heap]
4000-5000 r--p 00000000 00:00 0
5000-6000 rw-p 00000000 08:01 77         /lib/x
6000-8000 rw-s 00000000 00:05 99         /memfd:headworks (deleted)
9000-a000 rw-p 00000000 00:00 0          [stack]
";
        let maps = Mappings(text.lines().filter_map(Mapping::parse).collect());
        assert_eq!(maps.0.len(), 6);
        assert!(maps.is_ordinary(0x1000, 0x4000));
        for (start, end) in [
            (0x1000, 0x5000),
            (0x5000, 0x6000),
            (0x6000, 0x8000),
            (0x9000, 0xa000),
            (0x0, 0x2000),
            (0x8000, 0x9000),
        ] {
            assert!(!maps.is_ordinary(start, end), "{start:x}");
        }
        assert!(maps.has_file(0x6000, 0x8000, 99));
        assert!(!maps.has_file(0x6000, 0x9000, 99) && !maps.has_file(0x5000, 0x6000, 99));
    }
}
