//! The receiving half of a connection's end. It places arriving bytes where its application reads them, and
//! tells the peer how much more it may send.

use std::collections::BTreeMap;

use headworks_client::{ContractError, Extent, IngressWriter};
use headworks_shm::View;

use crate::reassembly::{InvalidSegment, Reassembly};
use crate::session_memory::SessionMemory;

/// Most transfers of one connection that wait to be READ or are being READ. A correct peer never offers more.
pub(crate) const FETCHING_MAX: usize = 32;

/// A transfer that is to be READ, or is being READ.
#[derive(Clone, Copy, Debug)]
struct PendingRead {
    len: u32,
    /// Bytes that are neither READ nor given up yet.
    left: u32,
    /// Whether all of it is READ. If not, the bytes that were READ are ignored.
    is_wanted: bool,
}

/// Factor by which the next ring is longer.
pub(crate) const GROWTH: u32 = 16;

/// The receiving half of a connection's end.
pub(crate) struct IngressHalf {
    ingress: IngressWriter,
    order: Reassembly,
    /// The window announced to the peer: the position up to which it may send.
    told: u64,
    /// Whether the ring in which the stream continues is to be announced to the peer.
    is_ring_news: bool,
    ended: Option<u64>,
    /// Nobody reads any more: arriving bytes are discarded, and their room is free again at once.
    is_discarding: bool,
    /// Whether the peer waits for a frame of this end before it WRITEs.
    is_to_greet: bool,
    fetching: BTreeMap<u64, PendingRead>,
}

impl IngressHalf {
    /// Creates the half that places bytes into `ingress`. The peer knows its first ring.
    pub(crate) fn new(ingress: IngressWriter) -> Self {
        Self {
            told: ingress.limit(),
            ingress,
            order: Reassembly::default(),
            is_ring_news: false,
            ended: None,
            is_discarding: false,
            is_to_greet: true,
            fetching: BTreeMap::new(),
        }
    }

    /// Copies bytes of the stream from a frame to their place. Returns whether more can be read than before.
    ///
    /// # Errors
    ///
    /// [`InvalidSegment`]: the position is not allowed.
    pub(crate) fn data(
        &mut self,
        at: u64,
        len: u32,
        memory: &SessionMemory,
        frame: (&View, usize),
    ) -> Result<bool, InvalidSegment> {
        self.check(at, len)?;
        let mut done = 0;
        while done < len as usize {
            let to = self.ingress.place(at + done as u64, len as usize - done);
            let (from, offset) = frame;
            let copied = memory.slab(to.slab).map(|slab| {
                let here = to.offset as usize;
                from.copy(offset + done, slab, here, to.len as usize)
            });
            debug_assert_eq!(copied, Some(Ok(())), "both were checked");
            done += to.len as usize;
        }
        Ok(self.add(at, len))
    }

    /// Handles bytes of the stream that were WRITTEN to their place. Returns whether more can be read than
    /// before.
    ///
    /// # Errors
    ///
    /// [`InvalidSegment`]: the position is not allowed.
    pub(crate) fn wrote(&mut self, at: u64, len: u32) -> Result<bool, InvalidSegment> {
        self.check(at, len)?;
        Ok(self.add(at, len))
    }

    fn check(&self, at: u64, len: u32) -> Result<(), InvalidSegment> {
        let limit = self.ended.map_or(self.told, |end| end.min(self.told));
        self.order.check(at, len.into(), limit)
    }

    fn add(&mut self, at: u64, len: u32) -> bool {
        let is_more = self.order.add(at, len.into());
        if is_more {
            self.ingress.publish(self.order.come());
        }
        if self.is_discarding {
            self.ingress.discard();
        }
        is_more
    }

    /// Discards the bytes that have arrived and those that will. The peer sends on as if they were read.
    pub(crate) fn discard(&mut self) {
        self.is_discarding = true;
        self.ingress.discard();
    }

    /// Starts a transfer that is to be READ. Returns the memory that it goes to, in order.
    ///
    /// # Errors
    ///
    /// [`InvalidSegment`]: the position is not allowed, the transfer overlaps another, or there are too many.
    pub(crate) fn fetch(&mut self, at: u64, len: u32) -> Result<Vec<Extent>, InvalidSegment> {
        self.check(at, len)?;
        let before = self.fetching.range(..at + u64::from(len)).next_back();
        let overlaps = before.is_some_and(|(start, one)| start + u64::from(one.len) > at);
        if overlaps || self.fetching.len() >= FETCHING_MAX {
            let come = self.order.come();
            let len = len.into();
            return Err(InvalidSegment { at, len, come });
        }
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < len {
            let to = self
                .ingress
                .place(at + u64::from(done), (len - done) as usize);
            done += to.len;
            pieces.push(to);
        }
        let fetching = PendingRead {
            len,
            left: len,
            is_wanted: true,
        };
        self.fetching.insert(at, fetching);
        Ok(pieces)
    }

    /// Records that the last `unread` bytes of a transfer will not be READ, because the connection is reset.
    /// The rest of the transfer is ignored.
    pub(crate) fn give_up(&mut self, at: u64, unread: u32) {
        if let Some(one) = self.fetching.get_mut(&at) {
            one.is_wanted = false;
            one.left -= unread;
            if one.left == 0 {
                self.fetching.remove(&at);
            }
        }
    }

    /// Handles a READ of `bytes` of a transfer. Once the transfer is complete, returns its length, and
    /// whether more can be read than before.
    ///
    /// # Errors
    ///
    /// [`InvalidSegment`]: other bytes have arrived at its place meanwhile.
    pub(crate) fn fetched(
        &mut self,
        at: u64,
        bytes: u32,
    ) -> Result<Option<(u32, bool)>, InvalidSegment> {
        let Some(one) = self.fetching.get_mut(&at) else {
            return Ok(None);
        };
        one.left -= bytes;
        if one.left > 0 {
            return Ok(None);
        }
        let (len, is_wanted) = (one.len, one.is_wanted);
        self.fetching.remove(&at);
        if !is_wanted {
            return Ok(None);
        }
        self.check(at, len)?;
        Ok(Some((len, self.add(at, len))))
    }

    /// Drops all transfers that are being READ, because the queue pairs are gone.
    pub(crate) fn abandon(&mut self) {
        self.fetching.clear();
    }

    /// Whether no transfer waits to be READ or is being READ.
    pub(crate) fn is_idle(&self) -> bool {
        self.fetching.is_empty()
    }

    /// Sets the position at which the stream ends.
    ///
    /// # Errors
    ///
    /// [`InvalidSegment`]: bytes after it have arrived, it is beyond the window, or the stream has ended
    /// before.
    pub(crate) fn end(&mut self, at: u64) -> Result<(), InvalidSegment> {
        let (come, len) = (self.order.come(), 0);
        if at < self.order.highest() || at > self.told || self.ended.is_some() {
            return Err(InvalidSegment { at, len, come });
        }
        self.ended = Some(at);
        Ok(())
    }

    /// Bytes that have arrived without a gap.
    pub(crate) fn come(&self) -> u64 {
        self.ingress.come()
    }

    /// Whether the whole stream has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.ended == Some(self.order.come())
    }

    /// Reads how much the application has consumed.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the application broke the contract.
    pub(crate) fn look(&mut self) -> Result<(), ContractError> {
        self.ingress.look().map(drop)
    }

    /// Whether there are bytes that the application has not consumed, as last observed.
    pub(crate) fn has_unread(&self) -> bool {
        self.ingress.come() > self.ingress.consumed()
    }

    /// Continues the stream in a longer ring if the peer uses up its window, and frees a ring that the
    /// application has left.
    pub(crate) fn grow(&mut self, memory: &mut SessionMemory, most: u32) {
        if let Some(left) = self.ingress.left() {
            memory.give(left);
        }
        let Some(len) = self.ingress.rings().last().map(|ring| ring.len()) else {
            return;
        };
        let is_used_up = self.told - self.ingress.come() < len / 4;
        if self.ingress.is_extended()
            || self.is_ring_news
            || len >= u64::from(most)
            || !is_used_up
            || self.ended.is_some()
        {
            return;
        }
        let longer = (len as u32).saturating_mul(GROWTH).min(most);
        let Ok(extent) = memory.take_longer_ring(len as u32, longer) else {
            return;
        };
        match self.ingress.extend(memory.slabs(), extent) {
            Ok(true) => self.is_ring_news = true,
            _ => memory.give(extent),
        }
    }

    /// Position up to which the peer may be allowed to send. It does not reach into a ring that the peer does
    /// not know.
    pub(crate) fn window(&self) -> u64 {
        match self.ingress.rings().nth(1) {
            Some(next) if self.is_ring_news => next.from(),
            _ => self.ingress.limit(),
        }
    }

    /// Records that the window is announced to the peer, and returns it.
    pub(crate) fn tell(&mut self) -> u64 {
        self.told = self.window();
        self.is_to_greet = false;
        self.told
    }

    /// Whether the window must be announced to the peer by a separate frame.
    pub(crate) fn is_update_due(&self) -> bool {
        let len = self.ingress.rings().last().map_or(1, |ring| ring.len());
        self.ended.is_none()
            && (self.is_to_greet || self.is_ring_news || self.window() - self.told >= len / 2)
    }

    /// Returns, once, the ring to announce to the peer, and the position from which it holds the stream.
    pub(crate) fn ring_news(&mut self) -> Option<(Extent, u64)> {
        let is_news = std::mem::take(&mut self.is_ring_news);
        let ring = self.ingress.rings().last().filter(|_| is_news)?;
        Some((ring.extent(), ring.from()))
    }

    /// Returns all memory of the half.
    pub(crate) fn memory(&self) -> impl Iterator<Item = Extent> {
        self.ingress.rings().map(|ring| ring.extent())
    }
}
