//! Registered memory whose words a program polls and fills one by one, as programs on verbs do.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use headworks_ring::view_of;
use headworks_shm::{Cursor, View, WordsRef};
use headworks_verbs::{Region, Sge};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Upper limit for prefetching a message, in bytes; the same as the ring's.
const EXPECTED_MAX: usize = 2048;

/// A registered region whose words can be read and written while peers write to it. Clones share the region: an end
/// that lends bytes in place keeps its only handle to itself.
#[derive(Clone)]
pub struct WordMemory {
    region: Arc<Region>,
    /// The region's first byte.
    start: Sge,
    view: View,
    words: WordsRef,
}

impl WordMemory {
    /// Wraps all of `region`.
    ///
    /// # Panics
    ///
    /// If the region does not begin at a multiple of 8.
    pub fn over(region: Region) -> Self {
        let view = view_of(&region, 0);
        let words = view.words_ref().expect("regions begin at a multiple of 8");
        Self {
            start: region.sge(0, 0),
            region: Arc::new(region),
            view,
            words,
        }
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The word at `offset`.
    ///
    /// # Panics
    ///
    /// If `offset` is out of bounds or not a multiple of 8.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.words
            .at(offset)
            .expect("offset must be in bounds and a multiple of 8")
    }

    /// The `count` words from `offset` on.
    ///
    /// # Panics
    ///
    /// If some are out of bounds, or `offset` is not a multiple of 8.
    #[inline]
    pub fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let words = self.view.words(offset, count);
        words.expect("words must be in bounds, from a multiple of 8 on")
    }

    /// The cursor at `offset`.
    ///
    /// # Panics
    ///
    /// If `offset` is out of bounds or not a multiple of 8.
    #[inline(always)]
    pub(crate) fn cursor(&self, offset: usize) -> &Cursor {
        self.view
            .cursor(offset)
            .expect("offset must be in bounds and a multiple of 8")
    }

    /// Returns a copy of `len` bytes at `offset`.
    ///
    /// # Panics
    ///
    /// If the range is out of bounds.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes);
        bytes
    }

    /// Copies the bytes at `offset` into `into`.
    ///
    /// # Panics
    ///
    /// If the range is out of bounds.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.view
            .read(offset, into)
            .expect("range must be in bounds");
    }

    /// Stores `bytes` at `offset`.
    ///
    /// # Panics
    ///
    /// If the range is out of bounds.
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        self.view
            .write(offset, bytes)
            .expect("range must be in bounds");
    }

    /// Prefetches the cache line at `offset`.
    #[inline(always)]
    pub(crate) fn expect(&self, offset: usize) {
        if let Some(at) = self.view.ptr_at(offset, 1) {
            headworks_shm::ordered_copy::prefetch_read(at);
        }
    }

    /// Prefetches the `len` bytes at `offset`, at most 2 KiB, except the first cache line, which the caller
    /// is reading already.
    #[inline(always)]
    pub(crate) fn expect_rest(&self, offset: usize, len: usize) {
        let end = offset + len.min(EXPECTED_MAX);
        let mut next = (offset / LINE + 1) * LINE;
        while next < end {
            self.expect(next);
            next += LINE;
        }
    }

    /// Returns `len` bytes at `offset` in place; empty if the range is out of bounds. Call it only from a
    /// design's sender or receiver: the design's protocol determines which end may write these bytes.
    #[inline(always)]
    pub(crate) fn lent(&self, offset: usize, len: usize) -> &[u8] {
        let Some(start) = self.view.ptr_at(offset, len) else {
            return &[];
        };
        // SAFETY: the range is in bounds and mapped as long as `self`. The peer may write here only after this
        // end has told it that the bytes are free. The method that tells it needs `&mut` of this end, which the
        // returned slice still borrows. By contract, both ends keep to the protocol, and no clone of a lending end's
        // handle exists.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Returns `len` bytes at `offset` for filling or clearing; empty if the range is out of bounds.
    #[inline(always)]
    pub(crate) fn lent_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let Some(start) = self.view.ptr_at(offset, len) else {
            return &mut [];
        };
        // SAFETY: the range is in bounds and mapped as long as `self`, which is borrowed exclusively and, by the
        // contract of `lent`, has no clone. By the same contract the peer does not write to the bytes now.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Returns a scatter/gather entry for `len` bytes at `offset`. The device checks the bounds.
    #[inline(always)]
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge {
            addr: self.start.addr + offset as u64,
            len: len as u32,
            lkey: self.start.lkey,
        }
    }
}
