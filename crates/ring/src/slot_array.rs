//! One end's part of the ring in registered memory: the array, behind a line for the cursor that the
//! peer writes, unless that is on a group's board. The only unsafe code of this crate: plain slices of slots, whose exclusive use the
//! protocol of the ring grants.

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

/// Bytes in front of the array: the cursor's line.
pub(crate) const ARRAY: usize = LINE;

/// Bytes of a message that are asked for together: who reads more has the processor's own guesses by then.
const EXPECTED_MAX: usize = 2048;

/// Registered memory of one end.
pub(crate) struct SlotArray {
    view: View,
    /// The cursor that the peer writes; `None` where there is no such word, as in no real memory.
    cursor: Option<CursorRef>,
    /// What it holds for a cursor of 0.
    cursor_start: u64,
    slot_size: usize,
    region: Region,
    /// Where in the region the cursor is.
    base: usize,
}

/// Keeps a buffer alive for a view.
struct KeepAlive(#[allow(dead_code, reason = "held, not read")] Arc<dyn Buffer>);

impl SlotArray {
    /// Bytes that one end needs.
    pub(crate) const fn bytes(array: usize) -> usize {
        ARRAY + array
    }

    /// In `region` from byte `base` on, with the cursor in front of the array. It starts at 0, as fresh
    /// memory does.
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
        }
    }

    /// Where the peer writes: the cursor, and the array behind it.
    pub(crate) fn remote(&self) -> RemoteAddr {
        self.region.remote(self.base)
    }

    /// With the cursor elsewhere, where it holds `start` for 0.
    pub(crate) fn with_cursor(self, cursor: CursorRef, start: u64) -> Self {
        Self {
            cursor: Some(cursor),
            cursor_start: start,
            ..self
        }
    }

    /// The cursor that the peer writes.
    #[inline(always)]
    pub(crate) fn cursor(&self) -> u64 {
        self.cursor
            .as_ref()
            .map_or(0, |cursor| cursor.observe().wrapping_sub(self.cursor_start))
    }

    /// Stores an end's own pointers behind the cursor that the peer writes, in its line. Only for a cursor that is in
    /// front of the array.
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

    /// Where slot `index` begins, in bytes from the start of the array.
    #[inline(always)]
    pub(crate) fn offset_of(&self, index: u64) -> usize {
        index as usize * self.slot_size
    }

    /// The word at `offset` in the array, a multiple of 8.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> u64 {
        self.word_at(ARRAY + offset)
    }

    /// Stores the word at `offset` in the array.
    #[inline(always)]
    pub(crate) fn set_word(&self, offset: usize, value: u64) {
        self.store_at(ARRAY + offset, value);
    }

    /// The last word of slot `index`: where latency mode polls.
    #[inline(always)]
    pub(crate) fn last_word(&self, index: u64) -> usize {
        self.offset_of(index) + self.slot_size - 8
    }

    /// Hints that the bytes at `offset` will be read soon.
    #[inline(always)]
    pub(crate) fn expect(&self, offset: usize) {
        if let Some(at) = self.view.ptr_at(ARRAY + offset, 1) {
            headworks_shm::ordered_copy::prefetch_read(at);
        }
    }

    /// Hints that all of the `len` bytes at `offset` will be read soon, of which the first line is being
    /// read: the lines of a message come from the sender's core one after the other where each is
    /// asked for when it is needed. No more than [`EXPECTED_MAX`] bytes.
    #[inline(always)]
    pub(crate) fn expect_rest(&self, offset: usize, len: usize) {
        let end = offset + len.min(EXPECTED_MAX);
        let mut next = (offset / LINE + 1) * LINE;
        while next < end {
            self.expect(next);
            next += LINE;
        }
    }

    /// Bytes of the array to read. They are this end's until it releases them.
    #[inline(always)]
    pub(crate) fn bytes_at(&self, offset: usize, len: usize) -> &[u8] {
        let Some(start) = self.view.ptr_at(ARRAY + offset, len) else {
            return &[];
        };
        // SAFETY: in bounds and mapped as long as `self`. The sender does not write these slots
        // before our head passes them, which needs `&mut` of the receiver that lends this slice;
        // that the peer keeps to this is the ring's contract.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Bytes of the array to fill. They are this end's until they are posted.
    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let Some(start) = self.view.ptr_at(ARRAY + offset, len) else {
            return &mut [];
        };
        // SAFETY: in bounds and mapped as long as `self`, which is borrowed exclusively. The device
        // has read what was here before: a completion or its own promise said so. Nobody else
        // writes to a sender's array by the ring's contract.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// A scatter/gather entry for bytes of the array.
    #[inline(always)]
    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        self.region.sge(self.base + ARRAY + offset, len as u32)
    }
}

/// Registered memory from byte `base` on. The device and peers may write to it at any time, so that nobody may hold
/// references to it but to atomics: a view copies.
///
/// # Panics
///
/// If the region ends before `base`.
pub fn view_of(region: &Region, base: usize) -> View {
    assert!(base <= region.len());
    // SAFETY: within the region, as just checked, or at its end.
    let start = unsafe { region.buffer().as_ptr().add(base) };
    let start = NonNull::new(start).unwrap_or(NonNull::dangling());
    let keep = Arc::new(KeepAlive(region.buffer().clone()));
    // SAFETY: a `Buffer` is mapped for its length until it is dropped, and the view keeps it.
    // Slices are made of slots only while the ring's protocol gives them to this end.
    unsafe { View::from_raw(start, region.len() - base, keep) }
}

/// Stores a word in a region that only this process writes.
pub(crate) fn store_staged(region: &Region, offset: usize, value: u64) {
    assert!(offset + 8 <= region.len() && offset.is_multiple_of(8));
    // SAFETY: in bounds, aligned (buffers are at least 8-byte aligned) and mapped while the region
    // is; the device only reads it.
    unsafe {
        region
            .buffer()
            .as_ptr()
            .add(offset)
            .cast::<u64>()
            .write_volatile(value)
    };
}
