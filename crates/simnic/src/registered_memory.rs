//! Registered memory: maps keys to regions, and copies between two hosts of one process. (`xtask/src/tidy.rs`
//! lists the files of this crate that may have unsafe code.)
//!
//! A region is looked up each time that bytes move, under the model's lock. Deregistering takes the same
//! lock, so the memory of a span stays valid while the span is used.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_shm::ordered_copy::copy_in_order;
use headworks_verbs::{Access, AllocRequest, Buffer, Pages, Sge, Status};

/// Memory of a simulated host.
pub(crate) struct SimBuffer {
    start: NonNull<u8>,
    layout: Layout,
    pages: Pages,
}

impl SimBuffer {
    /// Allocates zeroed memory; `None` if there is not enough.
    pub(crate) fn new(request: &AllocRequest) -> Option<Self> {
        // Aligned to whole cache lines, as the pointers of queues need.
        let align = request.align.max(64);
        let layout = Layout::from_size_align(request.len.max(1), align).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self {
            start,
            layout,
            pages: request.pages,
        })
    }
}

impl Drop for SimBuffer {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout. Its users hold this value, so none is left.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

// SAFETY: the pointer is to an allocation of this length, which neither moves nor is freed before the value
// is dropped.
unsafe impl Buffer for SimBuffer {
    fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn len(&self) -> usize {
        self.layout.size()
    }

    fn pages(&self) -> Pages {
        self.pages
    }
}

// SAFETY: the value holds only an address. Users of the bytes must keep the contract of `Buffer`.
unsafe impl Send for SimBuffer {}
// SAFETY: as above.
unsafe impl Sync for SimBuffer {}

/// Number of low bits of a key that hold the region's number. The bits above hold the number's generation.
const REGION_NUMBER_BITS: u32 = 22;

/// A registered region.
struct RegisteredRegion {
    buffer: Arc<dyn Buffer>,
    start: *mut u8,
    len: u64,
    access: Access,
    pd: u32,
    host: u32,
    /// log2 of its page size.
    page: u32,
    /// Number of its first page's translation. An address would not do, because it differs in the next run.
    translation: u64,
    /// Its first byte among all memory ([`Regions::place_of`]), and the key of its entry there.
    place: u64,
    memory: u64,
}

// SAFETY: the pointer is the buffer's, which may be sent.
// Users of the bytes must keep the contract of `Buffer`.
unsafe impl Send for RegisteredRegion {}

/// All regions of all hosts.
#[derive(Default)]
pub(crate) struct Regions {
    slots: Vec<(u32, Option<RegisteredRegion>)>,
    free: Vec<u32>,
    /// Number of translations made so far.
    translations: u64,
    /// Registered memory by its address. Regions that overlap share an entry, if the first contains the others.
    memories: BTreeMap<u64, Memory>,
    /// First place that no memory has had.
    next_place: u64,
}

/// Memory that is registered at least once.
struct Memory {
    len: u64,
    place: u64,
    regions: u32,
}

/// A region that was removed.
pub(crate) struct Removed {
    /// Its memory, which may be freed once the lock is released.
    _buffer: Arc<dyn Buffer>,
    /// Host, place and length of memory that is not registered any more.
    pub(crate) gone: Option<(u32, u64, u64)>,
}

/// Alignment of the places of different memory.
const PLACE_ALIGN: u64 = 4096;

/// A request for access to memory: protection domain, host and rights.
#[derive(Clone, Copy)]
pub(crate) struct AccessRequest {
    pub(crate) pd: u32,
    pub(crate) host: u32,
    pub(crate) access: Access,
}

/// Bytes of registered memory, with the entries of the RNIC's tables for them.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    start: *mut u8,
    pub(crate) len: u64,
    /// Protection entry of the region.
    pub(crate) protection: u64,
    /// Number of the translation of the region's first page, offset
    /// of the bytes in the region, and log2 of its page size.
    base: u64,
    offset: u64,
    page: u32,
    /// Place of the region's first byte.
    region_place: u64,
}

impl Regions {
    pub(crate) fn add(
        &mut self,
        buffer: Arc<dyn Buffer>,
        pd: u32,
        host: u32,
        access: Access,
        page: u32,
    ) -> Option<u32> {
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.slots.len() >= 1 << REGION_NUMBER_BITS => return None,
            None => {
                self.slots.push((1, None));
                self.slots.len() as u32 - 1
            }
        };
        let translation = self.translations + 1;
        self.translations += (buffer.len() as u64).div_ceil(1 << page).max(1);
        let (memory, place) = self.place(buffer.as_ptr().addr() as u64, buffer.len() as u64);
        let slot = &mut self.slots[number as usize];
        slot.1 = Some(RegisteredRegion {
            translation,
            place,
            memory,
            start: buffer.as_ptr(),
            len: buffer.len() as u64,
            buffer,
            access,
            pd,
            host,
            page,
        });
        Some(slot.0 << REGION_NUMBER_BITS | number)
    }

    /// Counts a region of memory at this address. Returns the key of the memory's entry, and the region's place.
    fn place(&mut self, start: u64, len: u64) -> (u64, u64) {
        if let Some((&first, memory)) = self.memories.range_mut(..=start).next_back()
            && start + len <= first + memory.len
        {
            memory.regions += 1;
            return (first, memory.place + (start - first));
        }
        let place = self.next_place;
        self.next_place += len.max(1).next_multiple_of(PLACE_ALIGN);
        // Longer memory at the same address takes the place of the entry.
        let regions = 1 + self.memories.get(&start).map_or(0, |memory| memory.regions);
        let memory = Memory {
            len,
            place,
            regions,
        };
        self.memories.insert(start, memory);
        (start, place)
    }

    /// Returns where `len` bytes at this address are among all registered memory: the place of the first, and how
    /// many of them are registered. Unlike an address, a place is the same in every run. `None` if the first is
    /// not registered.
    pub(crate) fn place_of(&self, addr: u64, len: u64) -> Option<(u64, u64)> {
        let (first, memory) = self.memories.range(..=addr).next_back()?;
        let offset = addr - first;
        let left = memory.len.checked_sub(offset).filter(|left| *left > 0)?;
        Some((memory.place + offset, len.min(left)))
    }

    /// Counts a region less of memory. Returns place and length of memory that is not registered any more.
    fn release_place(&mut self, first: u64) -> Option<(u64, u64)> {
        let memory = self.memories.get_mut(&first)?;
        memory.regions -= 1;
        if memory.regions > 0 {
            return None;
        }
        let memory = self.memories.remove(&first)?;
        Some((memory.place, memory.len))
    }

    /// Removes a region. Returns its memory, with host, place and length if it is not registered any more.
    pub(crate) fn remove(&mut self, key: u32) -> Option<Removed> {
        let number = key & ((1 << REGION_NUMBER_BITS) - 1);
        let slot = self.slots.get_mut(number as usize)?;
        if slot.0 != key >> REGION_NUMBER_BITS {
            return None;
        }
        let entry = slot.1.take()?;
        // The generation keeps old keys from matching the next region.
        slot.0 = match slot.0 + 1 {
            next if next < 1 << (32 - REGION_NUMBER_BITS) => next,
            _ => 1,
        };
        self.free.push(number);
        let gone = self.release_place(entry.memory);
        Some(Removed {
            _buffer: entry.buffer,
            gone: gone.map(|(place, len)| (entry.host, place, len)),
        })
    }

    /// Number of registered regions.
    pub(crate) fn len(&self) -> usize {
        self.slots
            .iter()
            .filter(|(_, entry)| entry.is_some())
            .count()
    }

    /// Returns the bytes from `addr` on under `key`, if the key is valid and allows this access.
    #[inline]
    pub(crate) fn find(&self, key: u32, addr: u64, len: u64, asks: AccessRequest) -> Option<Span> {
        let number = key & ((1 << REGION_NUMBER_BITS) - 1);
        let (generation, entry) = self.slots.get(number as usize)?;
        let entry = entry
            .as_ref()
            .filter(|_| *generation == key >> REGION_NUMBER_BITS)?;
        let offset = addr.checked_sub(entry.start.addr() as u64)?;
        let fits = offset.checked_add(len)? <= entry.len;
        let may = entry.access.contains(asks.access);
        if !fits || !may || entry.pd != asks.pd || entry.host != asks.host {
            return None;
        }
        Some(Span {
            start: entry.start.wrapping_add(offset as usize),
            len,
            protection: u64::from(key),
            base: entry.translation,
            offset,
            page: entry.page,
            region_place: entry.place,
        })
    }

    /// Calls `piece` for each span of a gather list, for the `len` bytes from byte `skip` on.
    pub(crate) fn gather(
        &self,
        sges: &[Sge],
        mut skip: u64,
        mut len: u64,
        asks: AccessRequest,
        mut piece: impl FnMut(Span),
    ) -> Result<(), Status> {
        for sge in sges {
            let own = u64::from(sge.len);
            if skip >= own {
                skip -= own;
                continue;
            }
            if len == 0 {
                break;
            }
            let part = (own - skip).min(len);
            let found = self.find(sge.lkey, sge.addr.wrapping_add(skip), part, asks);
            piece(found.ok_or(Status::LocalProtection)?);
            (skip, len) = (0, len - part);
        }
        match len {
            0 => Ok(()),
            _ => Err(Status::LocalLength),
        }
    }
}

impl Span {
    /// Returns a span of bytes that are not registered, to copy from.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            start: bytes.as_ptr().cast_mut(),
            len: bytes.len() as u64,
            protection: 0,
            base: 0,
            offset: 0,
            page: 0,
            region_place: 0,
        }
    }

    /// Returns a span of bytes that are not registered, to copy to.
    pub(crate) fn of_mut(bytes: &mut [u8]) -> Self {
        Self {
            start: bytes.as_mut_ptr(),
            ..Self::of(bytes)
        }
    }

    /// Returns the numbers of its pages' translations.
    pub(crate) fn translations(&self) -> std::ops::RangeInclusive<u64> {
        let last = self.offset + self.len.max(1) - 1;
        self.base + (self.offset >> self.page)..=self.base + (last >> self.page)
    }

    /// Returns its position among the bytes of all regions. Unlike its address it is the same in every run.
    pub(crate) fn place(&self) -> u64 {
        (self.base << self.page) + self.offset
    }

    /// Returns its first byte's place and its length ([`Regions::place_of`]).
    pub(crate) fn in_memory(&self) -> (u64, u64) {
        (self.region_place + self.offset, self.len)
    }

    /// Returns the `len` bytes of it from `skip` on.
    pub(crate) fn part(&self, skip: u64, len: u64) -> Self {
        assert!(skip + len <= self.len);
        Self {
            start: self.start.wrapping_add(skip as usize),
            offset: self.offset + skip,
            len,
            ..*self
        }
    }

    pub(crate) fn is_aligned_word(&self) -> bool {
        self.len == 8 && self.start.addr().is_multiple_of(8)
    }

    fn word(&self) -> &AtomicU64 {
        assert!(self.is_aligned_word());
        // SAFETY: the span has 8 bytes, is aligned, and is mapped while it is used. Here the word is only
        // accessed as an atomic; any other writer races as on any RDMA target.
        unsafe { AtomicU64::from_ptr(self.start.cast()) }
    }

    /// Replaces the word with `change` of it. Returns the old value.
    pub(crate) fn fetch_update(&self, change: impl FnOnce(u64) -> u64) -> u64 {
        let old = self.word().load(Ordering::Acquire);
        self.word().store(change(old), Ordering::Release);
        old
    }
}

/// Copies from one span to another of the same length.
pub(crate) fn copy(to: Span, from: Span) {
    assert_eq!(to.len, from.len);
    let apart = to.start.addr().abs_diff(from.start.addr()) as u64 >= to.len;
    if apart {
        // SAFETY: both spans are mapped for their length while they are used, and do not overlap.
        unsafe { copy_in_order(to.start, from.start, from.len as usize) };
    } else {
        // SAFETY: as above, but they overlap, which `copy` allows: a program may write a region onto itself.
        unsafe { std::ptr::copy(from.start, to.start, from.len as usize) };
    }
}

// SAFETY: a span is only a checked address. Its user holds the lock under which it was found.
unsafe impl Send for Span {}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_verbs::HeapBuffer;

    const ASKS: AccessRequest = AccessRequest {
        pd: 1,
        host: 0,
        access: Access::REMOTE_WRITE,
    };

    #[test]
    fn keys_lead_to_their_region_and_nowhere_once_it_is_gone() {
        let mut regions = Regions::default();
        let buffer: Arc<dyn Buffer> = HeapBuffer::new(100);
        let start = buffer.as_ptr() as u64;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let key = regions.add(buffer.clone(), 1, 0, access, 12).expect("room");
        let found =
            |regions: &Regions, key, at, len, asks| regions.find(key, at, len, asks).is_some();
        assert!(found(&regions, key, start, 100, ASKS));
        assert!(found(&regions, key, start + 100, 0, ASKS));
        for (at, len) in [
            (start, 101),
            (start - 1, 1),
            (start + 1, u64::MAX),
            (u64::MAX, 8),
        ] {
            assert!(!found(&regions, key, at, len, ASKS), "{len}");
        }
        for asks in [
            AccessRequest { pd: 2, ..ASKS },
            AccessRequest { host: 1, ..ASKS },
            AccessRequest {
                access: Access::REMOTE_READ,
                ..ASKS
            },
        ] {
            assert!(!found(&regions, key, start, 1, asks));
        }
        assert!(!found(
            &regions,
            key ^ 1 << REGION_NUMBER_BITS,
            start,
            1,
            ASKS
        ));
        assert!(regions.remove(key).is_some() && regions.remove(key).is_none());
        assert!(!found(&regions, key, start, 1, ASKS));
        let next = regions.add(buffer, 1, 0, access, 12).expect("room");
        assert_ne!(next, key);
    }

    #[test]
    fn places_follow_memory_and_not_regions() {
        let mut regions = Regions::default();
        let [first, second] = [100, 5000].map(|len| -> Arc<dyn Buffer> { HeapBuffer::new(len) });
        let at = |buffer: &Arc<dyn Buffer>| buffer.as_ptr().addr() as u64;
        let mut add =
            |buffer: &Arc<dyn Buffer>| regions.add(buffer.clone(), 1, 0, Access::NONE, 12);
        let keys = [&first, &first, &second].map(|buffer| add(buffer).expect("room"));
        assert_eq!(regions.place_of(at(&first) + 10, 200), Some((10, 90)));
        assert_eq!(
            regions.place_of(at(&second) + 4999, 1),
            Some((4096 + 4999, 1))
        );
        let asks = AccessRequest {
            access: Access::NONE,
            ..ASKS
        };
        let span = regions
            .find(keys[1], at(&first) + 20, 5, asks)
            .expect("found");
        assert_eq!(span.in_memory(), (20, 5));
        assert!(regions.remove(keys[0]).expect("a region").gone.is_none());
        let gone = regions.remove(keys[1]).expect("a region").gone;
        assert_eq!(gone, Some((0, 0, 100)));
        assert_eq!(regions.place_of(at(&first), 1), None);
        let again = regions
            .add(first.clone(), 1, 0, Access::NONE, 12)
            .expect("room");
        assert_eq!(regions.place_of(at(&first), 1), Some((3 * 4096, 1)));
        assert_ne!(again, keys[0]);
    }

    #[test]
    fn words_are_changed_whole_and_copies_may_overlap() {
        let mut bytes = [1u8, 2, 3, 4, 5, 6, 7, 8];
        let all = Span::of(&bytes);
        copy(all.part(1, 7), all.part(0, 7));
        assert_eq!(
            std::hint::black_box(&mut bytes)[..],
            [1, 1, 2, 3, 4, 5, 6, 7]
        );
    }
}
