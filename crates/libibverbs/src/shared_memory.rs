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
//! - A large block of glibc's malloc has pages of its own, because malloc maps it by itself. A region that is such a block, but for less than
//!   a page at its end, is shared with all pages of the block.
//! - The pages are private again when the last region in them is deregistered. So freed memory behaves as before.
//! - What other threads or peers write to the pages during the first registration or the last deregistration may be lost.
//! - The program keeps the memory mapped while it is registered, as the interface demands. If it does not, peers still reach the device's
//!   memory, and nothing else.
//! - A child of `fork` has private pages. It sees its own writes, and those of others to pages that it has not written to.
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
use rustix::process::{Resource, getrlimit};

use crate::errors::complain;

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
    /// Regions in the pages.
    regions: usize,
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
/// [`release`] gives the memory back.
pub(crate) fn share(
    device: &Arc<dyn Device>,
    maps: &Mappings,
    (addr, len): (*mut c_void, usize),
) -> Option<SharedMemory> {
    let start = addr as usize;
    let end = start.checked_add(len)?;
    let name = Arc::as_ptr(device).cast::<()>() as usize;
    let mut pages = replaced();
    if let Some(found) = take(&mut pages, name, (start, end)) {
        return Some(found);
    }
    let is_whole = start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
    let (first, last) = match is_whole {
        true => (start, end),
        false => malloc_pages(maps, start, end)?,
    };
    if !maps.is_ordinary(first, last) {
        return None;
    }
    let len = last - first;
    let memory = device
        .alloc(&AllocRequest {
            align: PAGE,
            pages: Pages::OnDemand,
            has_own_file: true,
            ..AllocRequest::of(len)
        })
        .ok()?;
    if !leaves_descriptors(memory.file()?) {
        return None;
    }
    let inode = replace(&*memory, first, len)?;
    let made = SharedPages {
        len,
        inode,
        memory,
        device: name,
        regions: 0,
    };
    pages.insert(first, made);
    take(&mut pages, name, (start, end))
}

/// Returns the pages of the malloc block that begins at `start`, if it is one that glibc mapped by itself and that ends at `end` or
/// less than a page later. So no page holds data that is not of the region. Two words before the block say so: how far the mapping begins before them, and the rest of its length with a mark.
fn malloc_pages(maps: &Mappings, start: usize, end: usize) -> Option<(usize, usize)> {
    const WORDS: usize = 2 * size_of::<usize>();
    const IS_MAPPED: usize = 2;
    const FLAGS: usize = 7;
    let words = start.checked_sub(WORDS)?;
    if !words.is_multiple_of(WORDS) || !maps.is_ordinary(words, end) {
        return None;
    }
    // SAFETY: the mapping was just checked: both words are readable and aligned. They are words of malloc's, or the program's own data.
    let (before, size) = unsafe {
        let words = words as *const usize;
        (words.read_volatile(), words.add(1).read_volatile())
    };
    let first = words.checked_sub(before)?;
    let last = words.checked_add(size & !FLAGS)?;
    let is_block = size & FLAGS == IS_MAPPED
        && first.is_multiple_of(PAGE)
        && last.is_multiple_of(PAGE)
        && before < last - first
        && end <= last
        && last - end < PAGE;
    (is_block && maps.is_ordinary(first, last)).then_some((first, last))
}

/// Returns whether the program still has a quarter of its descriptors for itself, now that the library has this one. If not, says once what to
/// change.
fn leaves_descriptors(newest: BorrowedFd<'_>) -> bool {
    static SAID: Once = Once::new();
    let Some(limit) = getrlimit(Resource::Nofile).current else {
        return true;
    };
    let enough = (newest.as_raw_fd() as u64) < limit - limit / 4;
    if !enough {
        SAID.call_once(|| {
            complain(&format!(
                "further memory stays private, and requests to it are slower: each shared region takes a descriptor, and three quarters of {limit} are in use; raise the limit with ulimit -n, or register fewer and larger regions"
            ));
        });
    }
    enough
}

/// Ends the use of memory that [`share`] returned. The device accesses it no longer.
pub(crate) fn release(addr: *mut c_void) {
    let mut pages = replaced();
    let Some((start, found)) = pages.range_mut(..=addr as usize).next_back() else {
        return;
    };
    found.regions = found.regions.saturating_sub(1);
    if found.regions > 0 {
        return;
    }
    let start = *start;
    let Some(found) = pages.remove(&start) else {
        return;
    };
    // A program that has unmapped the pages, or mapped others, gets nothing back.
    let is_there = Mappings::read().is_some_and(|maps| {
        let is_ours = |mapping: &Mapping| mapping.is_of(&[found.inode]);
        maps.all(start, start + found.len, is_ours)
    });
    if is_there {
        // Without memory for it the pages are still those of the file, which stays mapped without the device.
        put_back(&*found.memory, start, found.len);
    }
}

/// Takes a range that lies in replaced pages.
fn take(
    pages: &mut BTreeMap<usize, SharedPages>,
    device: usize,
    (start, end): (usize, usize),
) -> Option<SharedMemory> {
    let (first, found) = pages.range_mut(..=start).next_back()?;
    if found.device != device || end > first + found.len {
        return None;
    }
    found.regions += 1;
    Some(SharedMemory {
        addr: NonNull::new(start as *mut u8)?,
        len: end - start,
        offset: start - first,
        memory: found.memory.clone(),
    })
}

const DATA: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Copies the pages at `start` to `memory`, and maps its file over them. Returns the file's inode. After a failure the pages are as
/// before.
fn replace(memory: &dyn Buffer, start: usize, len: usize) -> Option<u64> {
    let fd = memory.file()?;
    let inode = inode_of(fd)?;
    copy_used_pages(memory.as_ptr(), start, len);
    let (fd, offset) = (fd.as_raw_fd(), memory.file_offset() as i64);
    let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: the program registers these pages as memory for a device to write to; all of them are mapped, private and anonymous. The
    // new mapping holds the same bytes.
    let mapped = unsafe { libc::mmap(start as *mut c_void, len, DATA, fixed, fd, offset) };
    if mapped != libc::MAP_FAILED {
        return Some(inode);
    }
    // The call may have unmapped the pages before it failed.
    let is_there = crate::system::is_mapped(start as *mut c_void, len);
    assert!(
        is_there || put_back(memory, start, len),
        "no memory to map registered pages again"
    );
    None
}

/// Maps anonymous pages with the contents of `memory` at `start`. Returns false, and leaves what is mapped there, if there is no memory.
fn put_back(memory: &dyn Buffer, start: usize, len: usize) -> bool {
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the pages are new. They are filled before they get to the address, where the same bytes are mapped, or nothing.
    unsafe {
        let fresh = libc::mmap(std::ptr::null_mut(), len, DATA, how, -1, 0);
        if fresh == libc::MAP_FAILED {
            return false;
        }
        copy_used_pages(fresh.cast(), memory.as_ptr() as usize, len);
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let moved = libc::mremap(fresh, len, len, how, start as *mut c_void);
        if moved == libc::MAP_FAILED {
            libc::munmap(fresh, len);
        }
        moved != libc::MAP_FAILED
    }
}

fn inode_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let file = File::from(fd.try_clone_to_owned().ok()?);
    Some(file.metadata().ok()?.ino())
}

/// Copies the pages at `start` that were ever touched. Others are zero, as the target is.
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
pub(crate) struct Mappings(Vec<Mapping>);

struct Mapping {
    from: usize,
    to: usize,
    is_readable: bool,
    is_writable: bool,
    is_executable: bool,
    is_private: bool,
    /// Where the mapping begins in its file.
    offset: u64,
    inode: u64,
    /// Whether it is memory that the program got from the kernel for itself: without a file, or the heap.
    is_anonymous: bool,
}

impl Mappings {
    pub(crate) fn read() -> Option<Self> {
        let mut text = Vec::new();
        File::open("/proc/self/maps")
            .ok()?
            .read_to_end(&mut text)
            .ok()?;
        Some(Self::parse(&String::from_utf8_lossy(&text)))
    }

    fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(Mapping::parse).collect())
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

    /// Returns whether a range may be read and, if `writes`, written.
    pub(crate) fn allow(&self, start: usize, end: usize, writes: bool) -> bool {
        self.all(start, end, |mapping| {
            mapping.is_readable && (mapping.is_writable || !writes)
        })
    }

    fn is_ordinary(&self, start: usize, end: usize) -> bool {
        self.all(start, end, |mapping| {
            mapping.is_readable
                && mapping.is_writable
                && !mapping.is_executable
                && mapping.is_private
                && mapping.is_anonymous
                && mapping.inode == 0
        })
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
        let offset = u64::from_str_radix(words.next()?, 16).ok()?;
        let inode = words.nth(1)?.parse().ok()?;
        let name = words.next().unwrap_or_default();
        Some(Self {
            from,
            to,
            is_readable: rights.contains('r'),
            is_writable: rights.contains('w'),
            is_executable: rights.contains('x'),
            is_private: rights.ends_with('p'),
            offset,
            inode,
            is_anonymous: name.is_empty() || name == "[heap]" || name.starts_with("[anon"),
        })
    }

    /// Returns whether it is a shared mapping of one of these files.
    fn is_of(&self, inodes: &[u64]) -> bool {
        !self.is_private && self.inode != 0 && inodes.contains(&self.inode)
    }
}

/// Has children of `fork` get private pages. The dynamic linker calls it when it loads the library. Later would be too late: a child that another
/// thread forks while the list is locked for the first time would find it locked for ever.
extern "C" fn prepare_for_fork() {
    // SAFETY: the functions are valid as long as the library is loaded, and it is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

// SAFETY: the section lists functions that are called when the library is loaded. This one needs nothing that is set up later.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = prepare_for_fork;

type ReplacedGuard = MutexGuard<'static, BTreeMap<usize, SharedPages>>;

thread_local! {
    /// The lock that this thread holds while it forks, so that the child finds the list whole.
    static HELD: RefCell<Option<ReplacedGuard>> = const { RefCell::new(None) };
}

extern "C" fn before_fork() {
    // A thread that is ending has no such place any more. Its child may find the list locked, and then does not use it.
    let _ = HELD.try_with(|held| held.replace(Some(replaced())));
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(|held| drop(held.take()));
}

extern "C" fn in_child() {
    let Ok(Some(mut pages)) = HELD.try_with(RefCell::take) else {
        return;
    };
    // The list is forgotten and not dropped: its memory belongs to the parent's device.
    let shared = std::mem::ManuallyDrop::new(std::mem::take(&mut *pages));
    drop(pages);
    if shared.is_empty() {
        return;
    }
    let inodes: Vec<u64> = shared.values().map(|found| found.inode).collect();
    let Some(maps) = Mappings::read() else {
        // The addresses are those of the registered regions, which the program keeps mapped.
        for (start, found) in shared.iter() {
            make_private(
                &*found.memory,
                (*start, found.len),
                DATA,
                found.memory.file_offset(),
            );
        }
        return;
    };
    for mapping in maps.0.iter().filter(|mapping| mapping.is_of(&inodes)) {
        let found = shared.iter().find(|(start, found)| {
            let is_device_own = mapping.from
                == found.memory.as_ptr() as usize - found.memory.file_offset() as usize;
            found.inode == mapping.inode && !is_device_own && **start <= mapping.from
        });
        let Some((_, found)) = found else {
            continue;
        };
        let rights = [
            (mapping.is_readable, libc::PROT_READ),
            (mapping.is_writable, libc::PROT_WRITE),
        ];
        let rights = rights.iter().filter(|(has, _)| *has);
        let rights = rights.fold(0, |rights, (_, bit)| rights | bit);
        let range = (mapping.from, mapping.to - mapping.from);
        make_private(&*found.memory, range, rights, mapping.offset);
    }
}

/// Maps the file of `memory` privately over a range.
fn make_private(memory: &dyn Buffer, (start, len): (usize, usize), rights: i32, offset: u64) {
    let how = libc::MAP_PRIVATE | libc::MAP_FIXED;
    if let Some(fd) = memory.file() {
        let fd = fd.as_raw_fd();
        // SAFETY: the range is mapped to the same bytes of the same file. Only this thread exists, and it holds no reference there.
        unsafe { libc::mmap(start as *mut c_void, len, rights, how, fd, offset as i64) };
    }
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
        let maps = Mappings::parse(text);
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
        let has_file = |start, end, inode| maps.all(start, end, |one| one.is_of(&[inode]));
        assert!(has_file(0x6000, 0x8000, 99));
        assert!(!has_file(0x6000, 0x9000, 99) && !has_file(0x5000, 0x6000, 99));
        assert!(!has_file(0x5000, 0x6000, 77), "it is private");
        assert!(maps.allow(0x3000, 0x5000, false) && !maps.allow(0x3000, 0x5000, true));
        assert!(!maps.allow(0x8000, 0x9000, false));
    }
}
