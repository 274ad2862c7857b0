//! Descriptors of a connection: bytes of the stream that do not lie in the ingress ring, but where they were READ to: in
//! the daemon's receive pool, or in other memory of the session.
//!
//! The table has [`DESCRIPTORS`] places in the connection's control block. Descriptor `n` is in place `n` modulo that. The
//! daemon fills descriptors in the order of the stream, and publishes the ingress tail after that. The application claims
//! a descriptor before it reads ([`DescriptorWord`]). It need not release it: when its head has passed the descriptor, or a
//! part of it, the daemon uses the memory again. If it keeps the descriptor, it must release it.

use std::sync::atomic::Ordering;

use headworks_shm::view::WordRef;
use headworks_shm::{DescriptorState, DescriptorWord, View};

use crate::slabs::Extent;

/// Number of descriptors of a connection.
pub const DESCRIPTORS: usize = 16;
/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: usize = 32;
/// Bytes of a connection's table.
pub(crate) const TABLE_BYTES: usize = DESCRIPTORS * DESCRIPTOR_BYTES;

const STATE: usize = 0;
const POSITION: usize = 8;
const SHAPE: usize = 16;
const OFFSET: usize = 24;
/// Bit of the shape: the application may keep the memory.
const MAY_KEEP: u64 = 1 << 63;

/// A connection's table of descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptors<'b> {
    view: &'b View,
    /// Offset of the table in the view.
    at: usize,
}

/// A descriptor, as one side reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// Position of its first byte in the stream.
    pub(crate) position: u64,
    /// Where its bytes lie.
    pub(crate) extent: Extent,
    /// Whether the application may keep the memory.
    pub(crate) may_keep: bool,
}

impl<'b> Descriptors<'b> {
    /// The table at offset `at` of a control block, which has room for it.
    pub(crate) fn at(view: &'b View, at: usize) -> Self {
        Self { view, at }
    }

    fn offset(&self, number: u64) -> usize {
        self.at + (number % DESCRIPTORS as u64) as usize * DESCRIPTOR_BYTES
    }

    fn word(&self, number: u64) -> DescriptorWord<'b> {
        let word = self.view.atomic_u64(self.offset(number) + STATE);
        DescriptorWord(word.expect("within the block"))
    }

    /// State of descriptor `number`; `None` if its place holds another one.
    pub(crate) fn state(&self, number: u64) -> Option<DescriptorState> {
        let (found, state) = self.word(number).observe();
        (found == number && state != DescriptorState::Empty).then_some(state)
    }

    /// For the daemon: gives a descriptor to the application.
    pub(crate) fn fill(&self, number: u64, descriptor: Descriptor) {
        let Descriptor {
            position, extent, ..
        } = descriptor;
        let mut shape = u64::from(extent.slab) << 32 | u64::from(extent.len);
        if descriptor.may_keep {
            shape |= MAY_KEEP;
        }
        let words = [
            (POSITION, position),
            (SHAPE, shape),
            (OFFSET, extent.offset),
        ];
        for (at, word) in words {
            let to = self.view.atomic_u64(self.offset(number) + at);
            let to = to.expect("within the block");
            to.store(word, Ordering::Relaxed);
        }
        self.word(number).fill(number);
    }

    /// For the application: the descriptor, if it was filled. What it says may change until it is claimed.
    pub(crate) fn read(&self, number: u64) -> Option<Descriptor> {
        self.state(number)?;
        let [position, shape, offset] = [POSITION, SHAPE, OFFSET].map(|at| {
            let word = self.view.atomic_u64(self.offset(number) + at);
            word.expect("within the block").load(Ordering::Relaxed)
        });
        Some(Descriptor {
            position,
            extent: Extent {
                slab: ((shape & !MAY_KEEP) >> 32) as u32,
                len: shape as u32,
                offset,
            },
            may_keep: shape & MAY_KEEP != 0,
        })
    }

    /// For the application: claims a descriptor. Returns whether that worked.
    pub(crate) fn claim(&self, number: u64) -> bool {
        self.word(number).claim(number)
    }

    /// For the application: keeps a claimed descriptor.
    pub(crate) fn keep(&self, number: u64) -> KeptDescriptor {
        self.word(number).keep(number);
        let word = self.view.word_ref(self.offset(number) + STATE);
        KeptDescriptor {
            word: word.expect("within the block"),
            number,
        }
    }

    /// For the daemon: takes back a descriptor that was not claimed. Returns whether that worked.
    pub(crate) fn take_back(&self, number: u64) -> bool {
        self.word(number).take_back(number)
    }
}

/// A descriptor that the application keeps until it releases it.
#[derive(Debug)]
pub struct KeptDescriptor {
    word: WordRef,
    number: u64,
}

impl KeptDescriptor {
    /// Releases the memory: the application must not access it any more.
    pub fn release(self) {
        DescriptorWord(&self.word).release(self.number);
    }
}
