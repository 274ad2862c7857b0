//! The application's end of a stream.

use headworks_shm::DescriptorState;
use headworks_shm::cursor::check_within;

use super::state;
use crate::control_block::{ControlBlock, Direction, RingAnnouncement};
use crate::descriptors::{DESCRIPTORS, Descriptor, KeptDescriptor};
use crate::error::ContractError;
use crate::slabs::{ByteRing, Extent, Slabs};

/// A descriptor that the application has claimed.
#[derive(Clone, Copy, Debug)]
struct ClaimedDescriptor {
    number: u64,
    descriptor: Descriptor,
}

impl ClaimedDescriptor {
    fn end(&self) -> u64 {
        self.descriptor.position + u64::from(self.descriptor.extent.len)
    }

    /// Memory from position `at` of the stream on.
    fn rest(&self, at: u64) -> Extent {
        let from = (at - self.descriptor.position) as u32;
        let extent = self.descriptor.extent;
        extent.part(from, extent.len - from)
    }
}

/// Where the next bytes of a stream lie.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// Nowhere: none have arrived, or they cannot be read now.
    Nothing,
    /// In the ring, up to this position of the stream.
    InLine(u64),
    Described(ClaimedDescriptor),
}

/// News for the daemon after bytes were consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumeNotice {
    /// Nothing has changed that the daemon needs to know.
    None,
    /// Memory became free. A sleeping daemon needs it only if it waits for memory.
    Memory,
    /// The peer may be promised more. A sleeping daemon must be woken.
    Window,
}

/// The application's end.
#[derive(Debug)]
pub struct IngressReader {
    pub(super) block: ControlBlock,
    ring: ByteRing,
    next: Option<Box<RingAnnouncement>>,
    number: u64,
    next_descriptor: u64,
    claimed: Option<ClaimedDescriptor>,
    /// Whether bytes have arrived that cannot be read yet.
    is_withheld: bool,
    /// The tail as last observed.
    come: u64,
    /// Bytes consumed.
    at: u64,
    /// Bytes in line consumed, and those when the daemon was last told.
    in_line: u64,
    told: u64,
    /// Whether the application has left a descriptor since the daemon was last told.
    has_left: bool,
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
        let ring = ring.ok_or(ContractError::ControlBlock)?;
        Ok(Self::from_ring(block, ring))
    }

    /// The reader of a new connection whose first ring lies at `extent`. The block may announce the second one already, and the
    /// third one in place of the first.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`], and [`ContractError::ControlBlock`] if the block announces no ring, or one that cannot be.
    pub(crate) fn of_ring_at(
        slabs: &Slabs,
        block: &ControlBlock,
        extent: Extent,
    ) -> Result<Self, ContractError> {
        match block.latest_ring(Direction::Ingress) {
            1..=3 => Ok(Self::from_ring(block, ByteRing::new(slabs, extent, 0)?)),
            _ => Err(ContractError::ControlBlock),
        }
    }

    fn from_ring(block: &ControlBlock, ring: ByteRing) -> Self {
        Self {
            block: block.clone(),
            ring,
            next: None,
            number: 1,
            next_descriptor: 1,
            claimed: None,
            is_withheld: false,
            come: 0,
            at: 0,
            in_line: 0,
            told: 0,
            has_left: false,
        }
    }

    /// Number of bytes to read. Reads the tail only if there are none. Returns 0 also while the bytes lie in
    /// a slab that the session has not read from the socket (see [`IngressReader::is_withheld`]), and while the daemon
    /// moves them.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    #[inline]
    pub fn available(&mut self, slabs: &Slabs) -> Result<u64, ContractError> {
        Ok(match self.locate(slabs)? {
            Next::Nothing => 0,
            Next::InLine(_) | Next::Described(_) => self.come - self.at,
        })
    }

    /// Finds the next bytes. Claims the descriptor that describes them.
    #[inline]
    fn locate(&mut self, slabs: &Slabs) -> Result<Next, ContractError> {
        self.is_withheld = false;
        if self.come == self.at {
            // The tail may be wrong. No more can be outstanding than all rings and descriptors hold.
            let span = (DESCRIPTORS as u64 + 2) * u64::from(ByteRing::LEN_MAX);
            self.come = check_within(
                self.block.tail(Direction::Ingress).observe(),
                self.come,
                span,
            )?;
            if self.come == self.at {
                return Ok(Next::Nothing);
            }
        }
        if self.claimed.is_none()
            && let Some(descriptors) = self.block.descriptors()
            && let Some(found) = descriptors.read(self.next_descriptor)
        {
            if found.position > self.at {
                let until = found.position.min(self.come);
                return self.locate_in_line(slabs, until);
            }
            if !descriptors.claim(self.next_descriptor) {
                // The daemon moves the bytes, and notifies the application after that.
                self.is_withheld = true;
                return Ok(Next::Nothing);
            }
            let number = self.next_descriptor;
            let descriptor = descriptors.read(number);
            let descriptor = descriptor.ok_or(ContractError::ControlBlock)?;
            let end = descriptor
                .position
                .checked_add(descriptor.extent.len.into());
            if descriptor.position != self.at || end.is_none_or(|end| end <= self.at) {
                return Err(ContractError::ControlBlock);
            }
            self.claimed = Some(ClaimedDescriptor { number, descriptor });
        }
        let Some(claimed) = self.claimed else {
            return self.locate_in_line(slabs, self.come);
        };
        let extent = claimed.descriptor.extent;
        self.is_withheld = slabs.slab(extent.slab).is_none();
        if self.is_withheld {
            return Ok(Next::Nothing);
        }
        slabs.view(extent)?;
        Ok(Next::Described(claimed))
    }

    fn next_ring(&self, slabs: &Slabs) -> Result<Option<Box<RingAnnouncement>>, ContractError> {
        let next = self
            .block
            .published_ring(slabs, Direction::Ingress, self.number + 1)?;
        Ok(next.map(Box::new))
    }

    fn locate_in_line(&mut self, slabs: &Slabs, until: u64) -> Result<Next, ContractError> {
        let is_next = |next: &RingAnnouncement, at| next.from <= at;
        let has_next = |this: &Self| {
            this.next
                .as_ref()
                .is_some_and(|next| is_next(next, this.in_line))
        };
        if self.next.is_none() || has_next(self) {
            self.next = self.next_ring(slabs)?;
        }
        if has_next(self) {
            let next = self.next.as_mut().and_then(|next| next.ring.take());
            let Some(next) = next else {
                self.is_withheld = true;
                return Ok(Next::Nothing);
            };
            self.ring = next;
            self.number += 1;
            self.next = self.next_ring(slabs)?;
        }
        Ok(Next::InLine(until))
    }

    /// Whether bytes have arrived that cannot be read yet: they lie in a slab that the session has not read from the
    /// socket, or the daemon is moving them.
    pub fn is_withheld(&self) -> bool {
        self.is_withheld
    }

    /// Memory of the next contiguous bytes; empty if there are none. They stay until they are
    /// [consumed](Self::consume).
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn peek(&mut self, slabs: &Slabs) -> Result<Extent, ContractError> {
        Ok(match self.locate(slabs)? {
            Next::Nothing => Extent::default(),
            Next::Described(claimed) => {
                // A descriptor is published as a whole. So no more than the tail is a fault of the daemon.
                let rest = claimed.rest(self.at);
                let published = (self.come - self.at).min(rest.len.into()) as u32;
                rest.part(0, published)
            }
            Next::InLine(until) => self.stretch(until),
        })
    }

    /// Memory of the next bytes in line, up to position `until` of the stream.
    fn stretch(&self, until: u64) -> Extent {
        let mut here = until - self.at;
        if let Some(next) = &self.next {
            here = here.min(next.from.saturating_sub(self.in_line));
        }
        let here = here.min(self.ring.len()) as usize;
        self.ring.stretch(self.in_line, here)
    }

    /// Copies as many bytes as have arrived and fit into `into`, consumes them, and returns their number.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn read(&mut self, slabs: &Slabs, into: &mut [u8]) -> Result<usize, ContractError> {
        let mut read = 0;
        while read < into.len() {
            let here = self.peek(slabs)?;
            let len = (here.len as usize).min(into.len() - read);
            if len == 0 {
                break;
            }
            slabs.read(here.part(0, len as u32), &mut into[read..read + len])?;
            self.consume(len as u64);
            read += len;
        }
        Ok(read)
    }

    /// Copies and consumes bytes of a stream that has no descriptors, if they lie in the present ring and no other was
    /// published. Returns 0 if there are none, or if [`read`](Self::read) must decide.
    #[inline]
    pub(crate) fn read_in_ring(&mut self, into: &mut [u8]) -> usize {
        if self.come == self.at {
            let come = self.block.tail(Direction::Ingress).observe();
            if come.wrapping_sub(self.at) > self.ring.len() {
                return 0;
            }
            self.come = come;
        }
        let available = self.come - self.at;
        let is_alone = self.next.is_none()
            && self.claimed.is_none()
            && self.block.latest_ring(Direction::Ingress) == self.number;
        if !is_alone || available > self.ring.len() {
            return 0;
        }
        let len = into.len().min(available as usize);
        if len > 0 {
            self.ring.read(self.in_line, &mut into[..len]);
            self.at += len as u64;
            self.in_line += len as u64;
            self.block.head(Direction::Ingress).publish(self.at);
        }
        len
    }

    /// Consumes the next bytes, at most as many as were peeked at.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    pub fn consume(&mut self, bytes: u64) {
        assert!(bytes <= self.come - self.at, "consumed more than there is");
        self.at += bytes;
        match self.claimed {
            Some(claimed) => {
                assert!(self.at <= claimed.end(), "consumed more than was peeked at");
                if self.at == claimed.end() {
                    self.leave_descriptor();
                }
            }
            None => self.in_line += bytes,
        }
        self.block.head(Direction::Ingress).publish(self.at);
    }

    fn leave_descriptor(&mut self) {
        self.claimed = None;
        self.next_descriptor += 1;
        self.has_left = true;
    }

    /// Consumes the next bytes if a descriptor describes them, and keeps their memory until the caller releases it.
    /// Returns the memory. `None` if there are no bytes, or if they lie where they cannot be kept: read them.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn keep(
        &mut self,
        slabs: &Slabs,
    ) -> Result<Option<(Extent, KeptDescriptor)>, ContractError> {
        let here = self.peek(slabs)?;
        let claimed = self.claimed.filter(|claimed| claimed.descriptor.may_keep);
        let Some(claimed) = claimed.filter(|_| here.len > 0) else {
            return Ok(None);
        };
        if self.at + u64::from(here.len) != claimed.end() {
            return Err(ContractError::ControlBlock);
        }
        let descriptors = self.block.descriptors();
        let descriptors = descriptors.ok_or(ContractError::ControlBlock)?;
        let kept = descriptors.keep(claimed.number);
        self.at = claimed.end();
        self.leave_descriptor();
        self.block.head(Direction::Ingress).publish(self.at);
        Ok(Some((here, kept)))
    }

    /// Whether no further bytes can arrive by a descriptor until the application releases one that it keeps:
    /// [`DESCRIPTORS`] later ones were left.
    pub fn is_blocked(&self) -> bool {
        let before = self.next_descriptor.checked_sub(DESCRIPTORS as u64);
        before.and_then(|before| state(&self.block, before)) == Some(DescriptorState::Kept)
    }

    /// Returns the news that the caller must tell the daemon. A window is due once enough bytes in line were consumed
    /// since the last time that it was.
    pub fn notice(&mut self) -> ConsumeNotice {
        let has_left = std::mem::take(&mut self.has_left);
        if self.in_line - self.told >= self.ring.len() / 4 {
            self.told = self.in_line;
            return ConsumeNotice::Window;
        }
        match has_left {
            true => ConsumeNotice::Memory,
            false => ConsumeNotice::None,
        }
    }

    /// Total number of bytes consumed.
    pub fn consumed(&self) -> u64 {
        self.at
    }
}
