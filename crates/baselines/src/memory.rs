//! Registered memory, to be polled and filled word by word as programs on verbs do.

use std::sync::atomic::AtomicU64;

use headworks_ring::view_of;
use headworks_shm::{Cursor, View};
use headworks_verbs::{Region, Sge};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a message that are asked for ahead, at most: as many as the ring asks for.
const EXPECTED_MAX: usize = 2048;

/// A region whose words can be read and written while peers write to it.
pub struct Memory {
    region: Region,
    view: View,
}

impl Memory {
    /// Over all of `region`.
    pub fn over(region: Region) -> Self {
        let view = view_of(&region, 0);
        Self { region, view }
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The word at `offset`.
    ///
    /// # Panics
    ///
    /// If that is outside, or no multiple of 8.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.view
            .atomic_u64(offset)
            .expect("a word of the memory that its user asked for")
    }

    /// The cursor at `offset`.
    ///
    /// # Panics
    ///
    /// If that is outside, or no multiple of 8.
    #[inline(always)]
    pub(crate) fn cursor(&self, offset: usize) -> &Cursor {
        self.view
            .cursor(offset)
            .expect("a word of the memory that its user asked for")
    }

    /// A copy of `len` bytes at `offset`.
    ///
    /// # Panics
    ///
    /// If some are outside.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes);
        bytes
    }

    /// Copies the bytes at `offset` into `into`.
    ///
    /// # Panics
    ///
    /// If some are outside.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.view
            .read(offset, into)
            .expect("bytes of the memory that its user asked for");
    }

    /// Stores `bytes` at `offset`.
    ///
    /// # Panics
    ///
    /// If some do not fit.
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        self.view
            .write(offset, bytes)
            .expect("bytes of the memory that its user asked for");
    }

    /// Hints that the bytes at `offset` will be read soon.
    #[inline(always)]
    pub(crate) fn expect(&self, offset: usize) {
        if let Some(at) = self.view.ptr_at(offset, 1) {
            headworks_shm::ordered_copy::prefetch_read(at);
        }
    }

    /// Hints that all of the `len` bytes at `offset` will be read soon, of which the first line is being
    /// read. No more than 2 KiB of them.
    #[inline(always)]
    pub(crate) fn expect_rest(&self, offset: usize, len: usize) {
        let end = offset + len.min(EXPECTED_MAX);
        let mut next = (offset / LINE + 1) * LINE;
        while next < end {
            self.expect(next);
            next += LINE;
        }
    }

    /// `len` bytes at `offset`, where they lie; none if some are outside. For the designs: their
    /// protocols say whose the bytes are.
    #[inline(always)]
    pub(crate) fn lent(&self, offset: usize, len: usize) -> &[u8] {
        let Some(start) = self.view.ptr_at(offset, len) else {
            return &[];
        };
        // SAFETY: in bounds and mapped as long as `self`. A peer that keeps to the protocol does not
        // write here before it is told that the bytes are free, which needs `&mut` of the end that
        // lends this slice; that it does keep to it is the contract of both ends.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// `len` bytes at `offset` to fill or to clear; none if some are outside.
    #[inline(always)]
    pub(crate) fn lent_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let Some(start) = self.view.ptr_at(offset, len) else {
            return &mut [];
        };
        // SAFETY: in bounds and mapped as long as `self`, which is borrowed exclusively; nobody else
        // uses the bytes now, by the same contract.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// A scatter/gather entry for `len` bytes at `offset`.
    #[inline(always)]
    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        self.region.sge(offset, len as u32)
    }
}
