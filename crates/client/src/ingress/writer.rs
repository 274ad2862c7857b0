//! The daemon's end of a stream to an application; on the direct path, the sending application's.

use std::collections::VecDeque;

use headworks_shm::DescriptorState;
use headworks_shm::cursor::check_within;

use super::state;
use crate::control_block::{ControlBlock, Direction};
use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::error::ContractError;
use crate::slabs::{ByteRing, Extent, Slabs};

/// Longest reserve of a ring, in bytes.
const RESERVE_MAX: u64 = 4096;

/// A descriptor that the daemon has given.
#[derive(Clone, Copy, Debug)]
struct Given {
    number: u64,
    position: u64,
    len: u32,
    /// Bytes from its beginning that the application no longer uses.
    free: u32,
    /// Whether the application may keep its memory.
    may_keep: bool,
    /// Whether its memory is a ring's.
    is_in_ring: bool,
    /// Whether the head has passed it.
    is_passed: bool,
}

/// Memory of a descriptor that the application no longer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// Number of the descriptor.
    pub number: u64,
    /// Bytes from the beginning of the descriptor's memory.
    pub bytes: u32,
    /// Whether these are all of its bytes.
    pub is_all: bool,
}

/// The daemon's end.
#[derive(Debug)]
pub struct IngressWriter {
    block: ControlBlock,
    ring: ByteRing,
    /// The rings in which bytes in line continue, each after the last position that was promised in the one before.
    later: VecDeque<ByteRing>,
    /// Number of the latest ring.
    number: u64,
    /// Bytes that have arrived without a gap.
    come: u64,
    /// The head as last observed.
    consumed: u64,
    /// Descriptors that are not free again, in order.
    given: VecDeque<Given>,
    next_descriptor: u64,
    /// Bytes of descriptors that the head has passed.
    passed: u64,
    /// Bytes in line that were placed.
    placed: u64,
    /// Whether nobody reads any more.
    is_discarding: bool,
    /// Bytes of a ring that are never promised to the peer, at most.
    reserve_max: u64,
}

impl IngressWriter {
    /// The writer of a new connection, whose control block is clear, into the ring at `extent`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`].
    pub fn new(slabs: &Slabs, block: &ControlBlock, extent: Extent) -> Result<Self, ContractError> {
        Self::with_reserve(slabs, block, extent, RESERVE_MAX)
    }

    /// Like [`new`](Self::new), without a [reserve](Self::reserve): for streams of which every byte comes in line.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn without_reserve(
        slabs: &Slabs,
        block: &ControlBlock,
        extent: Extent,
    ) -> Result<Self, ContractError> {
        Self::with_reserve(slabs, block, extent, 0)
    }

    fn with_reserve(
        slabs: &Slabs,
        block: &ControlBlock,
        extent: Extent,
        reserve_max: u64,
    ) -> Result<Self, ContractError> {
        let ring = ByteRing::new(slabs, extent, 0)?;
        block.publish_ring(Direction::Ingress, 1, &ring);
        Ok(Self {
            reserve_max,
            block: block.clone(),
            ring,
            later: VecDeque::new(),
            number: 1,
            come: 0,
            consumed: 0,
            given: VecDeque::new(),
            next_descriptor: 1,
            passed: 0,
            placed: 0,
            is_discarding: false,
        })
    }

    /// Bytes of a ring that are never promised to the peer.
    fn reserve_of(&self, ring: &ByteRing) -> u64 {
        (ring.len() / 2).min(self.reserve_max)
    }

    /// Number of the latest ring; the first is 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Number of the first ring that is in use.
    pub fn first_number(&self) -> u64 {
        self.number - self.later.len() as u64
    }

    /// The latest ring.
    fn last(&self) -> &ByteRing {
        self.later.back().unwrap_or(&self.ring)
    }

    /// Reads how much the application has consumed. Returns whether that is more than before.
    ///
    /// # Errors
    ///
    /// [`ContractError::Cursor`]: the application claims more than has arrived, or less than before.
    pub fn look(&mut self) -> Result<bool, ContractError> {
        let span = self.come - self.consumed;
        if span == 0 || self.is_discarding {
            // Nothing can be consumed. The head lies in another cache line; do not fetch it.
            return Ok(false);
        }
        let consumed = check_within(
            self.block.head(Direction::Ingress).observe(),
            self.consumed,
            span,
        )?;
        let is_more = consumed != self.consumed;
        self.consume_to(consumed);
        Ok(is_more)
    }

    fn consume_to(&mut self, consumed: u64) {
        self.consumed = consumed;
        for given in self.given.iter_mut().filter(|given| !given.is_passed) {
            if given.position + u64::from(given.len) > consumed {
                break;
            }
            given.is_passed = true;
            self.passed += u64::from(given.len);
        }
    }

    /// Counts all bytes that have arrived, and that will, as consumed, because nobody reads them any more.
    pub fn discard(&mut self) {
        self.is_discarding = true;
        self.consume_to(self.come);
    }

    /// Bytes consumed, as of the last look.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Bytes in line that were consumed, as of the last look.
    fn consumed_in_line(&self) -> u64 {
        let current = self.given.iter().find(|given| !given.is_passed);
        let part = current.map_or(0, |given| self.consumed.saturating_sub(given.position));
        self.consumed - self.passed - part
    }

    /// Bytes that have arrived without a gap.
    pub fn come(&self) -> u64 {
        self.come
    }

    /// Bytes in line that were placed in the ring.
    pub fn placed(&self) -> u64 {
        self.placed
    }

    /// Bytes in line, from the first on, for which there is room that may be promised to the peer. It never decreases.
    pub fn limit(&self) -> u64 {
        let last = self.last();
        last.from().max(self.consumed_in_line()) + last.len() - self.reserve_of(last)
    }

    /// Memory for the next bytes in line: `len` bytes, or fewer if the ring wraps before. No more than up to the
    /// [limit](Self::limit) may be placed.
    pub fn place(&self, len: usize) -> Extent {
        let (ring, until) = self.ring_of_next();
        let here = (until - self.placed).min(len as u64) as usize;
        ring.stretch(self.placed, here)
    }

    /// The ring of the next bytes in line, and the position up to which they go there.
    fn ring_of_next(&self) -> (&ByteRing, u64) {
        let mut ring = &self.ring;
        for later in &self.later {
            if self.placed < later.from() {
                return (ring, later.from());
            }
            ring = later;
        }
        (ring, u64::MAX)
    }

    /// Records that bytes in line were copied to their [place](Self::place).
    pub fn advance(&mut self, len: u32) {
        self.placed += u64::from(len);
    }

    /// Copies bytes to their place in the ring. There must be room for them.
    pub fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = self.placed;
            let len = self.place(bytes.len()).len as usize;
            let (ring, _) = self.ring_of_next();
            ring.write(at, &bytes[..len]);
            self.placed += len as u64;
            bytes = &bytes[len..];
        }
    }

    /// Memory of a ring that is not promised to the peer. It may be used for one descriptor at a time, and only while the
    /// application has consumed everything before that.
    pub fn reserve(&self) -> Extent {
        let last = self.last();
        let (limit, len) = (self.limit(), self.reserve_of(last) as usize);
        let first = last.stretch(limit, len);
        // Where the ring wraps, the longer part.
        let behind = last.stretch(limit + u64::from(first.len), len - first.len as usize);
        match behind.len > first.len {
            true => behind,
            false => first,
        }
    }

    /// Bytes of the latest ring that are not promised.
    pub fn reserve_len(&self) -> u32 {
        self.reserve_of(self.last()) as u32
    }

    /// Publishes all bytes up to `position`, which must have been placed: the application may read them.
    pub fn publish(&mut self, position: u64) {
        debug_assert!(position >= self.come);
        self.come = position;
        self.block.tail(Direction::Ingress).publish(position);
        if self.is_discarding {
            self.consume_to(position);
        }
    }

    /// Whether there is room for another descriptor.
    pub fn has_descriptor(&self) -> bool {
        self.descriptors_left() > 0
    }

    /// Number of descriptors for which there is room. One that the application keeps takes the place of later ones.
    pub fn descriptors_left(&self) -> usize {
        let all = self.block.descriptors().map_or(0, |_| DESCRIPTORS);
        all - self.given.len()
    }

    /// Gives the application a descriptor of bytes of the stream from `position` on, which lie at `extent`, and which it
    /// may keep or not. Memory of a ring must not be kept. Publish the bytes after that. Returns the descriptor's number.
    ///
    /// # Panics
    ///
    /// If there is no [room](Self::has_descriptor).
    pub fn describe(&mut self, position: u64, extent: Extent, may_keep: bool) -> u64 {
        assert!(self.has_descriptor(), "no room for a descriptor");
        let number = self.next_descriptor;
        self.next_descriptor += 1;
        let is_in_ring = self.rings().any(|ring| {
            let ring = ring.extent();
            let end = ring.offset + u64::from(ring.len);
            ring.slab == extent.slab && (ring.offset..end).contains(&extent.offset)
        });
        self.given.push_back(Given {
            number,
            position,
            len: extent.len,
            free: 0,
            may_keep,
            is_in_ring,
            is_passed: false,
        });
        let descriptor = Descriptor {
            position,
            extent,
            may_keep,
        };
        if let Some(descriptors) = self.block.descriptors() {
            descriptors.fill(number, descriptor);
        }
        number
    }

    /// Calls `each` for memory of descriptors that the application no longer uses, since the last call. Call
    /// [`look`](Self::look) before.
    pub fn collect(&mut self, mut each: impl FnMut(Freed)) {
        for given in &mut self.given {
            if given.free == given.len {
                continue;
            }
            // The head was read before the state: a reader keeps a descriptor before its head passes it.
            let free = match given.is_passed {
                true if given.may_keep
                    && !self.is_discarding
                    && state(&self.block, given.number) == Some(DescriptorState::Kept) =>
                {
                    given.free
                }
                true => given.len,
                // No more than a part, since the head has not passed it.
                false => self.consumed.saturating_sub(given.position) as u32,
            };
            if free > given.free {
                given.free = free;
                each(Freed {
                    number: given.number,
                    bytes: free,
                    is_all: free == given.len,
                });
            }
        }
        let is_over = |first: &Given| first.is_passed && first.free == first.len;
        while self.given.front().is_some_and(is_over) {
            self.given.pop_front();
        }
    }

    /// Numbers of the descriptors whose memory the application may still use, in order.
    pub fn in_use(&self) -> impl Iterator<Item = u64> {
        let in_use = self.given.iter().filter(|given| given.free < given.len);
        in_use.map(|given| given.number)
    }

    /// Whether the application has claimed a descriptor, or keeps its memory, so that its bytes cannot be moved.
    pub fn is_claimed(&self, number: u64) -> bool {
        matches!(
            state(&self.block, number),
            Some(DescriptorState::Claimed | DescriptorState::Kept)
        )
    }

    /// Takes back a descriptor that the application has not claimed, to move its bytes. Returns whether that worked: then
    /// [give](Self::give_again) it again soon.
    pub fn take_back(&self, number: u64) -> bool {
        let descriptors = self.block.descriptors();
        descriptors.is_some_and(|descriptors| descriptors.take_back(number))
    }

    /// Gives a descriptor again, whose bytes now lie at `extent`.
    pub fn give_again(&self, number: u64, extent: Extent) {
        let Some(given) = self.given.iter().find(|given| given.number == number) else {
            return;
        };
        let descriptor = Descriptor {
            position: given.position,
            extent,
            may_keep: given.may_keep,
        };
        if let Some(descriptors) = self.block.descriptors() {
            descriptors.fill(number, descriptor);
        }
    }

    /// Makes bytes in line continue in the ring at `extent`, after all positions promised so far. Returns `false`
    /// if the application still reads earlier rings: see [`can_extend`](Self::can_extend).
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`].
    pub fn extend(&mut self, slabs: &Slabs, extent: Extent) -> Result<bool, ContractError> {
        if !self.can_extend() {
            return Ok(false);
        }
        let ring = ByteRing::new(slabs, extent, self.limit())?;
        self.number += 1;
        self.block
            .publish_ring(Direction::Ingress, self.number, &ring);
        self.later.push_back(ring);
        Ok(true)
    }

    /// Returns the memory of the first ring, once, when later ones have followed it, the application has consumed all of it, and no descriptor
    /// describes a part of a ring.
    pub fn left(&mut self) -> Option<Extent> {
        let consumed = self.consumed_in_line();
        let is_free = !self.given.iter().any(|given| given.is_in_ring);
        let next = self.later.front()?;
        if !is_free || next.from() > consumed {
            return None;
        }
        let next = self.later.pop_front()?;
        Some(std::mem::replace(&mut self.ring, next).extent())
    }

    /// The rings that hold bytes in line from the consumed position on.
    pub fn rings(&self) -> impl Iterator<Item = &ByteRing> {
        std::iter::once(&self.ring).chain(&self.later)
    }

    /// Whether bytes in line can continue in another ring. At most two rings are in use, because the block announces no more.
    /// On the direct path there may be a third while the application still reads the very first one, which it does not
    /// look up in the block. So a stream that nobody reads yet can hold what a short second ring does not.
    pub fn can_extend(&self) -> bool {
        self.later.is_empty()
            || self.later.len() == 1 && self.first_number() == 1 && self.block.is_direct()
    }
}
