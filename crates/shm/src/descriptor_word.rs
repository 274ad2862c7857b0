//! State of a descriptor that one process fills and another uses: who may use the memory that it describes.
//!
//! The *writer* fills a descriptor, and the *reader* claims it before it reads the memory. As long as it is not claimed,
//! the writer may take it back, move the bytes elsewhere, and give it again. A claim and a take-back exclude each other
//! by compare-and-swap. The state carries the descriptor's number, so that neither side mistakes a descriptor for a
//! later one in the same place.
//!
//! ```text
//! Empty ─fill─► Filled ─claim─► Claimed ─keep─► Kept ─release─► Released
//!                 ▲ │
//!      give again │ │ take back
//!                 │ ▼
//!                Moving
//! ```
//!
//! A reader that consumes a stream in order need not release: the writer learns from its cursor that it has left the
//! descriptor. A reader that keeps a descriptor beyond that says so before it moves its cursor, and releases it later.

use crate::primitive::{AtomicU64, Ordering};

/// State of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorState {
    /// It was never filled.
    Empty = 0,
    /// The reader may claim it, and the writer may take it back.
    Filled = 1,
    /// The reader uses it until its cursor has left it.
    Claimed = 2,
    /// The reader uses it until it releases it, wherever its cursor is.
    Kept = 3,
    /// The reader has released it.
    Released = 4,
    /// The writer moves the bytes elsewhere. It gives the descriptor again soon.
    Moving = 5,
}

const BITS: u32 = 3;

/// The word of a descriptor, which may be in shared memory.
#[derive(Debug)]
#[repr(transparent)]
pub struct DescriptorWord<'w>(pub &'w AtomicU64);

impl DescriptorWord<'_> {
    const fn word(number: u64, state: DescriptorState) -> u64 {
        number << BITS | state as u64
    }

    /// Returns the number of the descriptor, of which the highest three bits are lost, and its state. An unknown state
    /// counts as [`DescriptorState::Kept`]: the writer then leaves the memory alone.
    pub fn observe(&self) -> (u64, DescriptorState) {
        let word = self.0.load(Ordering::Acquire);
        let state = match word & ((1 << BITS) - 1) {
            0 => DescriptorState::Empty,
            1 => DescriptorState::Filled,
            2 => DescriptorState::Claimed,
            4 => DescriptorState::Released,
            5 => DescriptorState::Moving,
            _ => DescriptorState::Kept,
        };
        (word >> BITS, state)
    }

    /// For the writer: gives descriptor `number` to the reader, after its place was written.
    pub fn fill(&self, number: u64) {
        let word = Self::word(number, DescriptorState::Filled);
        self.0.store(word, Ordering::Release);
    }

    /// For the writer: takes back a descriptor that the reader has not claimed. Returns whether that worked: the reader
    /// then does not use the memory until the descriptor is [filled](Self::fill) again.
    pub fn take_back(&self, number: u64) -> bool {
        self.swap(number, DescriptorState::Filled, DescriptorState::Moving)
    }

    /// For the reader: claims a descriptor. Returns whether that worked: the writer then leaves the memory alone. Read
    /// its place after that.
    pub fn claim(&self, number: u64) -> bool {
        self.swap(number, DescriptorState::Filled, DescriptorState::Claimed)
    }

    /// For the reader: keeps a claimed descriptor. Call it before the cursor leaves it.
    pub fn keep(&self, number: u64) {
        let word = Self::word(number, DescriptorState::Kept);
        self.0.store(word, Ordering::Release);
    }

    /// For the reader: releases a descriptor that it kept, after its last access to the memory.
    pub fn release(&self, number: u64) {
        let word = Self::word(number, DescriptorState::Released);
        self.0.store(word, Ordering::Release);
    }

    fn swap(&self, number: u64, from: DescriptorState, to: DescriptorState) -> bool {
        let (from, to) = (Self::word(number, from), Self::word(number, to));
        self.0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_claimed_or_taken_back() {
        let word = AtomicU64::new(0);
        let word = DescriptorWord(&word);
        assert_eq!(word.observe(), (0, DescriptorState::Empty));
        assert!(!word.claim(0) && !word.take_back(0));
        word.fill(7);
        assert!(!word.claim(6) && !word.take_back(8));
        assert!(word.claim(7) && !word.claim(7) && !word.take_back(7));
        assert_eq!(word.observe(), (7, DescriptorState::Claimed));
        word.keep(7);
        assert_eq!(word.observe(), (7, DescriptorState::Kept));
        word.release(7);
        assert_eq!(word.observe(), (7, DescriptorState::Released));
        word.fill(8);
        assert!(word.take_back(8) && !word.claim(8));
        assert_eq!(word.observe(), (8, DescriptorState::Moving));
        word.fill(8);
        assert!(word.claim(8));
        word.0.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(word.observe().1, DescriptorState::Kept);
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::primitive::UnsafeCell;

    struct Shared {
        word: AtomicU64,
        /// Which of the two memories the descriptor describes.
        place: AtomicU64,
        /// Memory that is read, and moved. The cells check that no access is beside a write.
        memory: [UnsafeCell<u64>; 2],
        head: AtomicU64,
    }

    /// A writer fills a descriptor, tries to move its bytes, and uses the first memory again once it is free. A reader
    /// claims the descriptor, reads and leaves it, by its cursor or by a release.
    fn check(keeps: bool) {
        loom::model(move || {
            let shared = Arc::new(Shared {
                word: AtomicU64::new(0),
                place: AtomicU64::new(0),
                memory: [UnsafeCell::new(0), UnsafeCell::new(0)],
                head: AtomicU64::new(0),
            });
            let reader = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let word = DescriptorWord(&shared.word);
                    if !word.claim(1) {
                        return;
                    }
                    let place = shared.place.load(Ordering::Relaxed) as usize;
                    // SAFETY: loom checks that nobody writes meanwhile.
                    let read = shared.memory[place].with(|at| unsafe { *at });
                    assert_eq!(read, 77);
                    if keeps {
                        word.keep(1);
                    }
                    shared.head.store(1, Ordering::Release);
                    if keeps {
                        // SAFETY: as above.
                        let read = shared.memory[place].with(|at| unsafe { *at });
                        assert_eq!(read, 77);
                        word.release(1);
                    }
                })
            };
            let word = DescriptorWord(&shared.word);
            // SAFETY: loom checks that nobody reads meanwhile.
            shared.memory[0].with_mut(|at| unsafe { *at = 77 });
            shared.place.store(0, Ordering::Relaxed);
            word.fill(1);
            let was_moved = word.take_back(1);
            if was_moved {
                // SAFETY: as above, for the other memory.
                let bytes = shared.memory[0].with(|at| unsafe { *at });
                shared.memory[1].with_mut(|at| unsafe { *at = bytes });
                shared.place.store(1, Ordering::Relaxed);
                word.fill(1);
            }
            let has_left = shared.head.load(Ordering::Acquire) == 1;
            let is_free = match word.observe().1 {
                DescriptorState::Released => true,
                DescriptorState::Claimed => has_left,
                _ => false,
            };
            if was_moved || is_free {
                // SAFETY: as above.
                shared.memory[0].with_mut(|at| unsafe { *at = 0 });
            }
            reader.join().unwrap();
        });
    }

    #[test]
    fn loom_memory_is_moved_or_used_again_only_when_nobody_reads_it() {
        check(false);
    }

    #[test]
    fn loom_kept_memory_stays_until_it_is_released() {
        check(true);
    }
}
