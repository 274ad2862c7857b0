//! Ingress ring: the bytes that arrived for an application, as a stream. It combines RaaS's ingress queue
//! (section IV.C) and the memory that the queue's descriptors refer to.
//!
//! The ring is also the connection's receive window: the peer may send as much as there is room for, up to a
//! position of the stream ([`IngressWriter::limit`]). So the daemon or the RNIC places bytes at their final
//! place as they arrive, in any order. The tail says how many have arrived without a gap.

use headworks_shm::cursor::check_within;
use headworks_shm::view::CursorRef;

use crate::control_block::{ControlBlock, Direction, RingAnnouncement};
use crate::error::ContractError;
use crate::slabs::{ByteRing, Extent, Slabs};

/// The daemon's end.
#[derive(Debug)]
pub struct IngressWriter {
    block: ControlBlock,
    tail: CursorRef,
    head: CursorRef,
    ring: ByteRing,
    /// The ring in which the stream continues, after the last position that was promised in `ring`.
    next: Option<ByteRing>,
    number: u64,
    /// Bytes that have arrived without a gap.
    come: u64,
    /// The head as last observed.
    consumed: u64,
}

impl IngressWriter {
    /// The writer of a new connection, whose control block is clear, into the ring at `extent`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`].
    pub fn new(slabs: &Slabs, block: &ControlBlock, extent: Extent) -> Result<Self, ContractError> {
        let ring = ByteRing::new(slabs, extent, 0)?;
        block.publish_ring(Direction::Ingress, 1, &ring);
        Ok(Self {
            tail: block.tail(Direction::Ingress),
            head: block.head(Direction::Ingress),
            block: block.clone(),
            ring,
            next: None,
            number: 1,
            come: 0,
            consumed: 0,
        })
    }

    /// Reads how much the application has consumed. Returns whether that is more than before.
    ///
    /// # Errors
    ///
    /// [`ContractError::Cursor`]: the application claims more than has arrived, or less than before.
    pub fn look(&mut self) -> Result<bool, ContractError> {
        let span = self.come - self.consumed;
        if span == 0 {
            // Nothing can be consumed. The head lies in another cache line; do not fetch it.
            return Ok(false);
        }
        let consumed = check_within(self.head.observe(), self.consumed, span)?;
        Ok(std::mem::replace(&mut self.consumed, consumed) != consumed)
    }

    /// Counts all bytes that have arrived as consumed, because nobody reads them any more.
    pub fn discard(&mut self) {
        self.consumed = self.come;
    }

    /// Bytes consumed, as of the last look.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Bytes that have arrived without a gap.
    pub fn come(&self) -> u64 {
        self.come
    }

    /// The position up to which there is room. It never decreases.
    pub fn limit(&self) -> u64 {
        let last = self.next.as_ref().unwrap_or(&self.ring);
        last.from().max(self.consumed) + last.len()
    }

    /// Memory for the bytes from position `at` on: `len` bytes, or fewer if the ring wraps before. All
    /// positions must be at least [`come`] and below [`limit`].
    ///
    /// [`limit`]: Self::limit
    /// [`come`]: Self::come
    pub fn place(&self, at: u64, len: usize) -> Extent {
        match &self.next {
            Some(next) if at >= next.from() => next.stretch(at, len),
            Some(next) => {
                let here = (next.from() - at).min(len as u64) as usize;
                self.ring.stretch(at, here)
            }
            None => self.ring.stretch(at, len),
        }
    }

    /// Copies bytes to their place in the ring. All positions must be at least [`come`](Self::come) and below
    /// [`limit`](Self::limit).
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let here = match &self.next {
            Some(next) => next.from().saturating_sub(at).min(bytes.len() as u64) as usize,
            None => bytes.len(),
        };
        let (here, there) = bytes.split_at(here);
        self.ring.write(at, here);
        if let Some(next) = &self.next {
            next.write(at + here.len() as u64, there);
        }
    }

    /// Publishes all bytes up to `position`, which must have been placed: the application may read them.
    pub fn publish(&mut self, position: u64) {
        debug_assert!((self.come..=self.limit()).contains(&position));
        self.come = position;
        self.tail.publish(position);
    }

    /// Makes the stream continue in the ring at `extent`, after all positions promised so far. Returns `false`
    /// if the application still reads the ring before it.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`].
    pub fn extend(&mut self, slabs: &Slabs, extent: Extent) -> Result<bool, ContractError> {
        if self.next.is_some() {
            return Ok(false);
        }
        let ring = ByteRing::new(slabs, extent, self.limit())?;
        self.number += 1;
        self.block
            .publish_ring(Direction::Ingress, self.number, &ring);
        self.next = Some(ring);
        Ok(true)
    }

    /// Returns the memory of the previous ring, once, when the application has consumed all of it.
    pub fn left(&mut self) -> Option<Extent> {
        let next = self.next.take_if(|next| next.from() <= self.consumed)?;
        Some(std::mem::replace(&mut self.ring, next).extent())
    }

    /// The rings that hold the stream from the consumed position on.
    pub fn rings(&self) -> impl Iterator<Item = &ByteRing> {
        std::iter::once(&self.ring).chain(&self.next)
    }

    /// Whether the stream continues in a second ring.
    pub fn is_extended(&self) -> bool {
        self.next.is_some()
    }
}

/// The application's end.
#[derive(Debug)]
pub struct IngressReader {
    block: ControlBlock,
    tail: CursorRef,
    head: CursorRef,
    ring: ByteRing,
    next: Option<RingAnnouncement>,
    number: u64,
    /// The tail as last observed.
    come: u64,
    /// Bytes consumed.
    at: u64,
    /// Bytes consumed when the daemon was last told.
    told: u64,
}

impl IngressReader {
    /// The reader of a new connection.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`], and [`ContractError::ControlBlock`] if the daemon has published no ring.
    pub fn new(slabs: &Slabs, block: &ControlBlock) -> Result<Self, ContractError> {
        let ring = block.published_ring(slabs, Direction::Ingress, 1)?;
        let ring = ring.and_then(|told| told.ring);
        Ok(Self {
            tail: block.tail(Direction::Ingress),
            head: block.head(Direction::Ingress),
            block: block.clone(),
            ring: ring.ok_or(ContractError::ControlBlock)?,
            next: None,
            number: 1,
            come: 0,
            at: 0,
            told: 0,
        })
    }

    /// Number of bytes to read. Reads the tail only if there are none. Returns 0 also while the bytes lie in
    /// a slab that the session has not read from the socket: see [`IngressReader::awaits_slab`].
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    #[inline]
    pub fn available(&mut self, slabs: &Slabs) -> Result<u64, ContractError> {
        if self.come == self.at {
            // The tail may be wrong. No more can be outstanding than all rings hold.
            let span = self.ring.len() + u64::from(ByteRing::LEN_MAX);
            self.come = check_within(self.tail.observe(), self.come, span)?;
        }
        if self.next.is_none() && self.come != self.at {
            self.next = self
                .block
                .published_ring(slabs, Direction::Ingress, self.number + 1)?;
        }
        if self.awaits_slab() {
            self.next = self
                .block
                .published_ring(slabs, Direction::Ingress, self.number + 1)?;
            let next = self.next.as_mut().and_then(|next| next.ring.take());
            let Some(next) = next else {
                return Ok(0);
            };
            self.ring = next;
            self.next = None;
            self.number += 1;
        }
        Ok(self.come - self.at)
    }

    /// Whether the next bytes lie in another ring, whose slab the session may not have read from the socket.
    pub fn awaits_slab(&self) -> bool {
        self.next.as_ref().is_some_and(|next| next.from <= self.at)
    }

    /// Memory of the next contiguous bytes; empty if there are none. They stay until they are
    /// [consumed](Self::consume).
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn peek(&mut self, slabs: &Slabs) -> Result<Extent, ContractError> {
        let available = self.available(slabs)?;
        let here = match &self.next {
            Some(next) => available.min(next.from.saturating_sub(self.at)),
            None => available,
        };
        let here = usize::try_from(here).unwrap_or(usize::MAX);
        Ok(self
            .ring
            .stretch(self.at, here.min(self.ring.len() as usize)))
    }

    /// Copies as many bytes as have arrived and fit into `into`, consumes them, and returns their number.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn read(&mut self, slabs: &Slabs, into: &mut [u8]) -> Result<usize, ContractError> {
        let mut read = 0;
        while read < into.len() {
            let here = self.peek(slabs)?.len as usize;
            let here = here.min(into.len() - read);
            if here == 0 {
                break;
            }
            self.ring.read(self.at, &mut into[read..read + here]);
            self.consume(here as u64);
            read += here;
        }
        Ok(read)
    }

    /// Consumes the next bytes, at most as many as were peeked at.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    pub fn consume(&mut self, bytes: u64) {
        assert!(bytes <= self.come - self.at, "consumed more than there is");
        self.at += bytes;
        self.head.publish(self.at);
    }

    /// Whether the caller must notify the daemon of consumed bytes, so that the peer may send more. True once
    /// enough bytes were consumed since the last call that returned `true`.
    pub fn is_update_due(&mut self) -> bool {
        let is_due = self.at - self.told >= self.ring.len() / 4;
        if is_due {
            self.told = self.at;
        }
        is_due
    }

    /// Total number of bytes consumed.
    pub fn consumed(&self) -> u64 {
        self.at
    }
}

#[cfg(test)]
mod tests;
