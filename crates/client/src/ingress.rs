//! The ingress ring: the bytes that have come for an application, as a stream (RaaS's ingress queue, section
//! IV.C, and the memory that its descriptors refer to, in one).
//!
//! The ring is the connection's receive window as well: what the peer may send is what there is room for, as a
//! position of the stream ([`IngressWriter::limit`]). So bytes are placed where they belong as they come, in
//! whatever order, by the daemon or by the RNIC itself; the tail says how many have come without a gap.

use headworks_shm::cursor::check_within;
use headworks_shm::view::CursorRef;

use crate::control_block::{ControlBlock, Told, Way};
use crate::error::ContractError;
use crate::memory::{ByteRing, Extent, Slabs};

/// The daemon's end.
#[derive(Debug)]
pub struct IngressWriter {
    block: ControlBlock,
    tail: CursorRef,
    head: CursorRef,
    ring: ByteRing,
    /// The ring that the stream goes on in, from where the first one was promised to.
    next: Option<ByteRing>,
    number: u64,
    /// Bytes that have come without a gap.
    come: u64,
    /// The head as last observed.
    consumed: u64,
}

impl IngressWriter {
    /// The writer of a new connection, whose words are clear, into the ring at `extent`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`].
    pub fn new(slabs: &Slabs, block: &ControlBlock, extent: Extent) -> Result<Self, ContractError> {
        let ring = ByteRing::new(slabs, extent, 0)?;
        block.tell_ring(Way::Ingress, 1, &ring);
        Ok(Self {
            tail: block.tail(Way::Ingress),
            head: block.head(Way::Ingress),
            block: block.clone(),
            ring,
            next: None,
            number: 1,
            come: 0,
            consumed: 0,
        })
    }

    /// Looks at what the application has consumed; says whether it is more than before.
    ///
    /// # Errors
    ///
    /// [`ContractError::Cursor`]: more than has come, or less than before.
    pub fn look(&mut self) -> Result<bool, ContractError> {
        let span = self.come - self.consumed;
        if span == 0 {
            // Nothing is there to be consumed, and where that would be said lies in a line of its own.
            return Ok(false);
        }
        let consumed = check_within(self.head.observe(), self.consumed, span)?;
        Ok(std::mem::replace(&mut self.consumed, consumed) != consumed)
    }

    /// Takes what has come for consumed: nobody reads it any more.
    pub fn discard(&mut self) {
        self.consumed = self.come;
    }

    /// What was consumed, when it was last looked.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// What has come without a gap.
    pub fn come(&self) -> u64 {
        self.come
    }

    /// The position up to which there is room. It never goes back.
    pub fn limit(&self) -> u64 {
        let last = self.next.as_ref().unwrap_or(&self.ring);
        last.from().max(self.consumed) + last.len()
    }

    /// Where bytes from position `at` on belong, as far as they do without a break: those before [`limit`] and not
    /// before [`come`].
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

    /// Copies bytes to where they belong: those before [`limit`](Self::limit) and not before
    /// [`come`](Self::come).
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

    /// Everything up to `position` is there: the application may read it.
    pub fn publish(&mut self, position: u64) {
        debug_assert!((self.come..=self.limit()).contains(&position));
        self.come = position;
        self.tail.publish(position);
    }

    /// The stream goes on at `extent`, behind all that was promised so far. `false`: the application has not left
    /// the ring before.
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
        self.block.tell_ring(Way::Ingress, self.number, &ring);
        self.next = Some(ring);
        Ok(true)
    }

    /// The memory of the ring before, once the application has consumed all of it: once.
    pub fn left(&mut self) -> Option<Extent> {
        let next = self.next.take_if(|next| next.from() <= self.consumed)?;
        Some(std::mem::replace(&mut self.ring, next).extent())
    }

    /// The rings in which the stream lies from what was consumed on.
    pub fn rings(&self) -> impl Iterator<Item = &ByteRing> {
        std::iter::once(&self.ring).chain(&self.next)
    }

    /// Whether the stream goes on in another ring before long.
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
    next: Option<Told>,
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
    /// [`ContractError::Extent`], and [`ContractError::ControlBlock`] where there is no ring.
    pub fn new(slabs: &Slabs, block: &ControlBlock) -> Result<Self, ContractError> {
        let ring = block.ring_told(slabs, Way::Ingress, 1)?;
        let ring = ring.and_then(|told| told.ring);
        Ok(Self {
            tail: block.tail(Way::Ingress),
            head: block.head(Way::Ingress),
            block: block.clone(),
            ring: ring.ok_or(ContractError::ControlBlock)?,
            next: None,
            number: 1,
            come: 0,
            at: 0,
            told: 0,
        })
    }

    /// How many bytes there are to read, looking for more only where there are none. None either where those that
    /// there are lie in a slab that has not been taken off the socket: [`IngressReader::awaits_slab`].
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
    #[inline]
    pub fn available(&mut self, slabs: &Slabs) -> Result<u64, ContractError> {
        if self.come == self.at {
            // A word that lies: what can be outstanding is as much as all rings hold.
            let span = self.ring.len() + u64::from(ByteRing::LEN_MAX);
            self.come = check_within(self.tail.observe(), self.come, span)?;
        }
        if self.next.is_none() && self.come != self.at {
            self.next = self.block.ring_told(slabs, Way::Ingress, self.number + 1)?;
        }
        if self.awaits_slab() {
            self.next = self.block.ring_told(slabs, Way::Ingress, self.number + 1)?;
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

    /// Whether what comes next lies in another ring, which may be in a slab that has not been taken off the socket.
    pub fn awaits_slab(&self) -> bool {
        self.next.as_ref().is_some_and(|next| next.from <= self.at)
    }

    /// Where the next bytes are, as many of them as there are without a break: none where there are none. They stay
    /// until they are [consumed](Self::consume).
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
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

    /// Copies as many bytes as there are and fit, and consumes them; says how many.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon is none.
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

    /// Gives back the next bytes, as many as were peeked at or fewer.
    pub fn consume(&mut self, bytes: u64) {
        assert!(bytes <= self.come - self.at, "more than there was");
        self.at += bytes;
        self.head.publish(self.at);
    }

    /// Whether so much was consumed since the last time that the daemon is to be told, so that the peer may send
    /// more. Asking counts as telling.
    pub fn is_to_tell(&mut self) -> bool {
        let is_due = self.at - self.told >= self.ring.len() / 4;
        if is_due {
            self.told = self.at;
        }
        is_due
    }

    /// Bytes consumed, ever.
    pub fn consumed(&self) -> u64 {
        self.at
    }
}

#[cfg(test)]
mod tests;
