//! One end's registered memory of a ring: the array, after one cache line for the cursor that the peer
//! writes, unless that cursor is in a group's tail array. The only unsafe code of this crate: plain slices
//! of slots. The ring's protocol grants their exclusive use.

#![allow(
    unsafe_code,
    reason = "slices of registered memory; see the safety comments"
)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use headworks_shm::{CursorRef, View};
use headworks_verbs::{Buffer, Region, RemoteAddr, Sge};

use crate::config::LINE;

/// Bytes in front of the array: the cursor's cache line.
pub(crate) const ARRAY: usize = LINE;

/// Most bytes of a message that are prefetched. In a longer message, the processor's own prefetching has
/// started by then.
const EXPECTED_MAX: usize = 2048;

/// Registered memory of one end.
pub(crate) struct SlotArray {
    view: View,
    /// The cursor that the peer writes. `None` if the memory cannot hold the word; real memory can.
    cursor: Option<CursorRef>,
    /// Value that the word holds for a cursor of 0.
    cursor_start: u64,
    slot_size: usize,
    region: Region,
    /// Offset of this end's memory in the region, in bytes. It begins with the cursor's line.
    base: usize,
    /// Region of the cursor, if it is not in front of the array. Its registration ends with this end.
    cursor_region: Option<Box<Region>>,
}

impl SlotArray {
    /// Returns the bytes that one end needs for an array of `array` bytes.
    pub(crate) const fn bytes(array: usize) -> usize {
        ARRAY + array
    }

    /// Uses `region` from byte `base` on, with the cursor in front of the array. The cursor starts at 0, as
    /// fresh memory does.
    pub(crate) fn new(region: Region, slot_size: usize, base: usize) -> Self {
        let view = view_of(&region, base);
        let cursor = view.cursor_ref(0).ok();
        Self {
            view,
            cursor,
            cursor_start: 0,
            slot_size,
            region,
            base,
            cursor_region: None,
        }
    }

    /// Address that the peer writes to: the cursor, and the array after it.
    pub(crate) fn remote(&self) -> RemoteAddr {
        self.region.remote(self.base)
    }

    /// Moves the cursor to another word, which holds `start` for a cursor of 0.
    pub(crate) fn with_cursor(self, cursor: CursorRef, start: u64) -> Self {
        Self {
            cursor: Some(cursor),
            cursor_start: start,
            ..self
        }
    }

    /// Moves the cursor to the beginning of a region of its own, which is fresh memory. `None` if that cannot hold the word.
    pub(crate) fn with_cursor_in(self, region: Region) -> Option<Self> {
        let cursor = view_of(&region, 0).cursor_ref(0).ok()?;
        Some(Self {
            cursor: Some(cursor),
            cursor_region: Some(Box::new(region)),
            ..self
        })
    }

    /// Address that the peer writes its cursor to, if it is not in front of the array or in a group's tail array.
    pub(crate) fn cursor_apart(&self) -> Option<RemoteAddr> {
        self.cursor_region.as_ref().map(|region| region.remote(0))
    }

    /// Reads the cursor that the peer writes.
    #[inline(always)]
    pub(crate) fn cursor(&self) -> u64 {
        self.cursor
            .as_ref()
            .map_or(0, |cursor| cursor.observe().wrapping_sub(self.cursor_start))
    }

    /// Stores this end's own counters after the cursor that the peer writes, in its cache line. Only for a
    /// cursor that is in front of the array.
    #[inline(always)]
    pub(crate) fn store_beside_cursor(&self, pointers: [u64; 3]) {
        for (offset, pointer) in (8..).step_by(8).zip(pointers) {
            self.store_at(offset, pointer);
        }
    }

    #[inline(always)]
    fn word_at(&self, offset: usize) -> u64 {
        self.view
            .atomic_u64(offset)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    #[inline(always)]
    fn store_at(&self, offset: usize, value: u64) {
        if let Ok(word) = self.view.atomic_u64(offset) {
            word.store(value, Ordering::Release);
        }
    }

    /// Returns where slot `index` begins, in bytes from the start of the array.
    #[inline(always)]
    pub(crate) fn offset_of(&self, index: u64) -> usize {
        index as usize * self.slot_size
    }

    /// Reads the word at `offset` in the array, a multiple of 8.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> u64 {
        self.word_at(ARRAY + offset)
    }

    /// Stores the word at `offset` in the array.
    #[inline(always)]
    pub(crate) fn set_word(&self, offset: usize, value: u64) {
        self.store_at(ARRAY + offset, value);
    }

    /// Returns the offset of the last word of slot `index`, which latency mode polls.
    #[inline(always)]
    pub(crate) fn last_word(&self, index: u64) -> usize {
        self.offset_of(index) + self.slot_size - 8
    }

    /// Prefetches the cache line of the byte at `offset` in the array.
    #[inline(always)]
    pub(crate) fn expect(&self, offset: usize) {
        if let Some(at) = self.view.ptr_at(ARRAY + offset, 1) {
            headworks_shm::ordered_copy::prefetch_read(at);
        }
    }

    /// Prefetches the `len` bytes at `offset` except the first line, which is being read already. Otherwise
    /// the lines of a message would come from the sender's core one after the other, each when it is needed.
    /// Prefetches no more than [`EXPECTED_MAX`] bytes.
    #[inline(always)]
    pub(crate) fn expect_rest(&self, offset: usize, len: usize) {
        let end = offset + len.min(EXPECTED_MAX);
        let mut next = (offset / LINE + 1) * LINE;
        while next < end {
            self.expect(next);
            next += LINE;
        }
    }

    /// Returns bytes of the array to read: received ones, which are this end's until it releases them, or those that a sender has
    /// filled, which are its own until they are posted.
    #[inline(always)]
    pub(crate) fn bytes_at(&self, offset: usize, len: usize) -> &[u8] {
        let Some(start) = self.view.ptr_at(ARRAY + offset, len) else {
            return &[];
        };
        // SAFETY: the bytes are in bounds and mapped as long as `self`. At a receiver, the sender does not write
        // these slots before our head passes them, and moving the head needs `&mut` of the receiver that lends
        // this slice. At a sender, only `bytes_mut` and `set_word` of this end write them, which need this end,
        // too. That the peer keeps to this is the ring's contract.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Returns bytes of the array to fill. They are this end's until they are posted.
    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let Some(start) = self.view.ptr_at(ARRAY + offset, len) else {
            return &mut [];
        };
        // SAFETY: the bytes are in bounds and mapped as long as `self`, which is borrowed exclusively. The
        // device has read what was here before: a completion or its own promise said so. By the ring's
        // contract, nobody else writes to a sender's array.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Returns a scatter/gather entry for bytes of the array.
    #[inline(always)]
    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        self.region.sge(self.base + ARRAY + offset, len as u32)
    }
}

/// Returns a view of registered memory from byte `base` on. The device and peers may write to it at any
/// time, so nobody may hold references to it except to atomics; a view copies.
///
/// # Panics
///
/// If the region ends before `base`.
pub fn view_of(region: &Region, base: usize) -> View {
    assert!(base <= region.len());
    let whole = view_of_buffer(region.buffer());
    let part = whole.part(base, region.len() - base);
    part.expect("`base` is within the region or at its end")
}

/// Returns a view of all memory of a buffer, registered or not. Write to it only if the buffer's memory is
/// writable: memory of [`Device::alloc`](headworks_verbs::Device::alloc) is. Allocates nothing.
pub fn view_of_buffer(buffer: &Arc<dyn Buffer>) -> View {
    let start = NonNull::new(buffer.as_ptr()).unwrap_or(NonNull::dangling());
    let keeper: Arc<dyn Send + Sync> = buffer.clone();
    // SAFETY: a `Buffer` is mapped for its length until it is dropped, and the view keeps it alive. Slices
    // are made of slots only while the ring's protocol gives them to this end.
    unsafe { View::from_raw(start, buffer.len(), keeper) }
}

/// Stores a word in a region that only this process writes.
pub(crate) fn store_staged(region: &Region, offset: usize, value: u64) {
    assert!(offset + 8 <= region.len() && offset.is_multiple_of(8));
    // SAFETY: the word is in bounds, aligned (buffers are at least 8-byte aligned) and mapped while the
    // region is. The device only reads it.
    unsafe {
        region
            .buffer()
            .as_ptr()
            .add(offset)
            .cast::<u64>()
            .write_volatile(value)
    };
}
