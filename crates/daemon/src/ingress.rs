//! The receiving half of a connection's end. It places arriving bytes where its application reads them, and
//! tells the peer how much more it may send.
//!
//! The peer's frames arrive in the order of the stream. They bring bytes, which are copied into the connection's ring at
//! once, or announce a transfer, which waits for memory and is READ. READs of a connection complete in order too. So what
//! has not all arrived is a queue, and the application may read what is before its first entry.

use std::collections::VecDeque;

use headworks_client::{ContractError, Extent, IngressWriter, Vqpn};
use headworks_rxpool::holdings::{AppId, HeldExtent};
use headworks_rxpool::landing::{Grant, Landing, LandingStep};
use headworks_rxpool::units::UNIT;
use headworks_shm::View;
use headworks_verbs::{Instant, RemoteAddr};

use crate::copy_log::CopyLog;
use crate::frame::Remote;
use crate::pool::{DomainPool, Turn};
use crate::session_memory::SessionMemory;

/// Most transfers of one connection that wait to be READ. A correct peer never announces more.
pub(crate) const ANNOUNCED_MAX: usize = 32;
/// Length of the longest transfer in bytes.
pub(crate) const TRANSFER_MAX: u32 = 1 << 30;
/// Factor by which the next egress ring is longer.
pub(crate) const GROWTH: u32 = 16;
/// Factor by which the next ingress ring is longer.
const INGRESS_GROWTH: u32 = 32;

/// Error: the peer sent bytes that it must not send, or at a position where they do not belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes cannot come at position {at} of a stream of which {end} bytes had been sent")]
pub(crate) struct InvalidSegment {
    /// Position of the bytes.
    pub(crate) at: u64,
    /// Number of bytes.
    pub(crate) len: u64,
    /// Position at which the peer must go on.
    pub(crate) end: u64,
}

/// A part of the stream that has not all arrived, or that lies behind one.
#[derive(Clone, Copy, Debug)]
enum Coming {
    /// Bytes of a transfer that have not arrived, and the position of its end.
    Transfer { left: u64, end: u64 },
    /// Bytes in line up to this position.
    InLine { end: u64 },
}

/// Memory that a piece of a transfer is READ into.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// In the receive pool.
    Pool(HeldExtent),
    /// In ordinary memory of the session.
    Memory(Extent),
    /// In the part of the connection's ring that is not promised to the peer.
    Reserve(Extent),
}

impl Place {
    pub(crate) fn is_in_pool(self) -> bool {
        matches!(self, Self::Pool(_))
    }
}

/// A READ in flight.
#[derive(Clone, Copy, Debug)]
struct PendingRead {
    place: Place,
    bytes: u32,
    since: Instant,
}

/// Memory that a descriptor describes.
#[derive(Clone, Copy, Debug)]
struct Described {
    number: u64,
    place: Place,
    bytes: u32,
    /// Units of the pool that were released.
    released: u32,
    /// When the bytes arrived.
    since: Instant,
}

/// The receiving half of a connection's end.
pub(crate) struct IngressHalf {
    ingress: IngressWriter,
    /// Position up to which the peer has sent bytes or announced them.
    end: u64,
    /// The window announced to the peer: bytes in line, from the first on, that it may send.
    told: u64,
    ended: Option<u64>,
    /// Nobody reads any more: arriving bytes are discarded, and their room is free again at once.
    is_discarding: bool,
    coming: VecDeque<Coming>,
    landing: Landing,
    /// Where the transfers lie for which not all READs have begun. `len` is what is left.
    transfers: VecDeque<Remote>,
    reads: VecDeque<PendingRead>,
    /// Whether the READs are lost, because their queue pair is gone.
    is_lost: bool,
    /// Transfers given up that the pool still counts.
    given_up: u32,
    described: VecDeque<Described>,
    /// How far the connection is with the memory for its first transfer.
    pub(crate) turn: Turn,
    /// Whether the latest piece did not land in the pool, because that had no memory for it.
    pub(crate) did_without_pool: bool,
    /// Number of descriptors whose bytes were moved.
    moved: u32,
    /// Position up to which all transfers were READ, and the one that the peer knows.
    acknowledged: u64,
    told_acknowledged: u64,
}

impl IngressHalf {
    /// Creates the half that places bytes into `ingress`. The peer knows the window of its first ring.
    pub(crate) fn new(ingress: IngressWriter) -> Self {
        Self {
            told: ingress.limit(),
            ingress,
            end: 0,
            ended: None,
            is_discarding: false,
            coming: VecDeque::new(),
            landing: Landing::default(),
            transfers: VecDeque::new(),
            reads: VecDeque::new(),
            is_lost: false,
            given_up: 0,
            described: VecDeque::new(),
            turn: Turn::None,
            did_without_pool: false,
            moved: 0,
            acknowledged: 0,
            told_acknowledged: 0,
        }
    }

    fn check(&self, at: u64, len: u32) -> Result<(), InvalidSegment> {
        let (end, len) = (self.end, u64::from(len));
        // Positions cannot wrap: a stream of 2^63 bytes takes years.
        let is_legal = at == end && len > 0 && self.ended.is_none() && end < 1 << 63;
        match is_legal {
            true => Ok(()),
            false => Err(InvalidSegment { at, len, end }),
        }
    }

    /// Copies bytes of the stream from a frame to their place. Returns whether more can be read than before.
    ///
    /// # Errors
    ///
    /// [`InvalidSegment`]: the position is not allowed, or the window is too small.
    pub(crate) fn data(
        &mut self,
        at: u64,
        len: u32,
        memory: &SessionMemory,
        frame: (&View, usize),
        copies: &mut CopyLog,
    ) -> Result<bool, InvalidSegment> {
        self.check(at, len)?;
        if self.told - self.ingress.placed() < u64::from(len) {
            let (len, end) = (len.into(), self.end);
            return Err(InvalidSegment { at, len, end });
        }
        let mut done = 0;
        while done < len {
            let to = self.ingress.place((len - done) as usize);
            let (from, offset) = frame;
            if !self.is_discarding {
                let copied = memory.slab(to.slab).map(|slab| {
                    let from = (from, offset + done as usize);
                    copies.copy(from, (slab, to.offset as usize), to.len as usize)
                });
                debug_assert_eq!(copied, Some(Ok(())), "both were checked");
            }
            self.ingress.advance(to.len);
            done += to.len;
        }
        self.end += u64::from(len);
        self.landing.came(len.into());
        if self.coming.is_empty() {
            self.publish(self.end);
            return Ok(true);
        }
        match self.coming.back_mut() {
            Some(Coming::InLine { end }) => *end = self.end,
            _ => self.coming.push_back(Coming::InLine { end: self.end }),
        }
        Ok(false)
    }

    /// Publishes the stream up to a position. Nobody reads it any more if it is discarded.
    fn publish(&mut self, position: u64) {
        let before = self.ingress.come();
        self.ingress.publish(position);
        if self.is_discarding {
            let consumed = self.landing.consumed(position - before);
            debug_assert_eq!(consumed, Ok(()));
        }
    }

    /// Takes a transfer that the peer announced.
    ///
    /// # Errors
    ///
    /// [`InvalidSegment`]: the position or the length is not allowed, or there are too many.
    pub(crate) fn announce(&mut self, at: u64, from: Remote) -> Result<(), InvalidSegment> {
        self.check(at, from.len)?;
        if self.transfers.len() >= ANNOUNCED_MAX || from.len > TRANSFER_MAX {
            let (len, end) = (from.len.into(), self.end);
            return Err(InvalidSegment { at, len, end });
        }
        self.end += u64::from(from.len);
        let announced = self.landing.announced(from.len.into());
        debug_assert_eq!(announced, Ok(()));
        self.transfers.push_back(from);
        self.coming.push_back(Coming::Transfer {
            left: from.len.into(),
            end: self.end,
        });
        Ok(())
    }

    /// Bytes of the first transfer for which no READ has begun. `None`: nothing can be READ now.
    pub(crate) fn first(&self) -> Option<u64> {
        let has_descriptor = self.reads.len() < self.ingress.descriptors_left();
        self.landing.first().filter(|_| has_descriptor)
    }

    /// Whether a transfer waits for memory although the application has read everything before it.
    pub(crate) fn is_blocked_on_memory(&self) -> bool {
        self.landing.unread() == 0 && self.first().is_some()
    }

    /// Where the next bytes of the first transfer lie.
    pub(crate) fn source(&self) -> Option<RemoteAddr> {
        self.transfers.front().map(|from| RemoteAddr {
            addr: from.addr,
            rkey: from.rkey,
        })
    }

    /// Memory for the next piece of the first transfer, where the pool has none and the application has read everything.
    /// `None`: there is no transfer, or the memory is in use.
    pub(crate) fn reserve(&self, fragment: u32) -> Option<Extent> {
        self.first()?;
        let reserve = self.ingress.reserve();
        let grant = Grant::Short;
        match self.landing.next(grant, fragment, reserve.len) {
            LandingStep::Ring(bytes) => Some(reserve.part(0, bytes)),
            _ => None,
        }
    }

    /// Records that a READ of the first transfer's next bytes has begun. Returns whether it is the transfer's last.
    pub(crate) fn read_begun(&mut self, place: Place, bytes: u32, since: Instant) -> bool {
        let is_last = self.landing.begun(bytes);
        if let Some(first) = self.transfers.front_mut() {
            // The peer's address may be wrong and wrap: its device refuses access to what is not its memory.
            first.addr = first.addr.wrapping_add(bytes.into());
            first.len -= bytes;
        }
        if is_last {
            self.transfers.pop_front();
        }
        self.did_without_pool = !matches!(place, Place::Pool(_));
        self.reads.push_back(PendingRead {
            place,
            bytes,
            since,
        });
        is_last
    }

    /// Handles the completion of the oldest READ: gives its bytes to the application, unless the connection `is_over`.
    /// Returns their number.
    pub(crate) fn read_done(
        &mut self,
        is_over: bool,
        (pool, app): (&mut DomainPool, AppId),
        memory: &mut SessionMemory,
        now: Instant,
    ) -> u32 {
        let Some(read) = self.reads.pop_front() else {
            return 0;
        };
        let PendingRead {
            place,
            bytes,
            since,
        } = read;
        pool.read_ended(bytes, place.is_in_pool());
        let extent = match place {
            Place::Pool(held) => {
                pool.arrived(app, held, bytes, since, now);
                pool.extent(held, bytes)
            }
            Place::Memory(extent) | Place::Reserve(extent) => extent.part(0, bytes),
        };
        if is_over {
            free(place, 0, (pool, app), memory, None);
            return 0;
        }
        if self.is_discarding {
            free(place, 0, (pool, app), memory, None);
        } else {
            let may_keep = matches!(place, Place::Pool(_)) && pool.may_keep(app);
            let position = self.ingress.come();
            let number = self.ingress.describe(position, extent, may_keep);
            self.described.push_back(Described {
                number,
                place,
                bytes,
                released: 0,
                since: now,
            });
        }
        if let Some(Coming::Transfer { left, .. }) = self.coming.front_mut() {
            *left -= u64::from(bytes);
        }
        self.publish(self.ingress.come() + u64::from(bytes));
        self.settle();
        bytes
    }

    /// Publishes what has arrived completely.
    fn settle(&mut self) {
        while let Some(first) = self.coming.front() {
            let end = match *first {
                Coming::Transfer { left: 0, end } => {
                    self.acknowledged = end;
                    end
                }
                Coming::Transfer { .. } => return,
                Coming::InLine { end } => end,
            };
            self.coming.pop_front();
            if end > self.ingress.come() {
                self.publish(end);
            }
        }
    }

    /// Gives up the transfers that no READ has begun for: nobody reads the stream any more, or it was reset. If it is
    /// discarded, they count as READ.
    pub(crate) fn give_up(&mut self) {
        self.given_up += self.transfers.len() as u32;
        self.transfers.clear();
        while let Some(left) = self.landing.first() {
            let part = left.min(TRANSFER_MAX.into()) as u32;
            self.landing.begun(part);
        }
        if !self.is_discarding {
            self.coming.clear();
            return;
        }
        let mut in_flight: u64 = self.reads.iter().map(|read| u64::from(read.bytes)).sum();
        for coming in &mut self.coming {
            if let Coming::Transfer { left, .. } = coming {
                // READs in flight are of the first transfers.
                *left = in_flight.min(*left);
                in_flight -= *left;
            }
        }
        self.settle();
    }

    /// Discards the bytes that have arrived and those that will. The peer sends on as if they were read.
    pub(crate) fn discard(&mut self) {
        if std::mem::replace(&mut self.is_discarding, true) {
            return;
        }
        let consumed = self.ingress.come() - self.ingress.consumed();
        self.ingress.discard();
        let consumed = self.landing.consumed(consumed);
        debug_assert_eq!(consumed, Ok(()));
        self.give_up();
    }

    /// Forgets the READs in flight, because the queue pairs are gone. Their memory is free at the next
    /// [`collect`](Self::collect).
    pub(crate) fn abandon(&mut self) {
        self.give_up();
        self.is_lost = true;
    }

    /// Whether no transfer waits to be READ or is being READ.
    pub(crate) fn is_idle(&self) -> bool {
        self.transfers.is_empty() && (self.reads.is_empty() || self.is_lost)
    }

    /// Sets the position at which the stream ends.
    ///
    /// # Errors
    ///
    /// [`InvalidSegment`]: it is not the position up to which the peer has sent, or the stream has ended
    /// before.
    pub(crate) fn end(&mut self, at: u64) -> Result<(), InvalidSegment> {
        let (end, len) = (self.end, 0);
        if at != end || self.ended.is_some() {
            return Err(InvalidSegment { at, len, end });
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
        self.ended == Some(self.ingress.come())
    }

    /// Reads how much the application has consumed.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the application broke the contract.
    pub(crate) fn look(&mut self) -> Result<(), ContractError> {
        let before = self.ingress.consumed();
        self.ingress.look()?;
        let consumed = self.landing.consumed(self.ingress.consumed() - before);
        debug_assert_eq!(consumed, Ok(()), "no more than had arrived");
        Ok(())
    }

    /// Frees the memory that nobody uses any more, and the turn of a connection that has no transfer. `number` is the
    /// connection's.
    pub(crate) fn collect(
        &mut self,
        number: Vqpn,
        (pool, app): (&mut DomainPool, AppId),
        memory: &mut SessionMemory,
        now: Option<Instant>,
    ) {
        pool.begun(std::mem::take(&mut self.given_up) as usize);
        if self.transfers.is_empty() {
            pool.withdraw(number, app, std::mem::take(&mut self.turn));
        }
        let lost = if self.is_lost { self.reads.len() } else { 0 };
        for lost in self.reads.drain(..lost) {
            pool.read_ended(lost.bytes, lost.place.is_in_pool());
            match lost.place {
                Place::Pool(held) => pool.lose(app, held),
                // Only this session can be harmed, whose queue pair has failed.
                place => free(place, 0, (pool, app), memory, None),
            }
        }
        if self.described.is_empty() {
            return;
        }
        let described = &mut self.described;
        self.ingress.collect(|freed| {
            let found = described.iter_mut().find(|one| one.number == freed.number);
            let Some(one) = found else { return };
            match one.place {
                _ if freed.is_all => {
                    free(one.place, one.released, (pool, app), memory, now);
                    one.number = u64::MAX;
                }
                Place::Pool(held) => {
                    let units = freed.bytes / UNIT;
                    let more = units - one.released;
                    pool.release(app, held, (one.released, more), now);
                    one.released = units;
                }
                Place::Memory(_) | Place::Reserve(_) => {}
            }
        });
        described.retain(|one| one.number != u64::MAX);
    }

    /// Frees all memory of descriptors: the application is gone, or does not access it any more.
    pub(crate) fn release_all(
        &mut self,
        number: Vqpn,
        (pool, app): (&mut DomainPool, AppId),
        memory: &mut SessionMemory,
    ) {
        self.collect(number, (pool, app), memory, None);
        for one in self.described.drain(..) {
            free(one.place, one.released, (pool, app), memory, None);
        }
    }

    /// Moves up to `most` descriptors' bytes that the application has not claimed out of the pool, into ordinary memory of
    /// its session. Returns how many were moved, and how many bytes.
    pub(crate) fn move_out(
        &mut self,
        most: usize,
        (pool, app): (&mut DomainPool, AppId),
        memory: &mut SessionMemory,
        copies: &mut CopyLog,
    ) -> (usize, u64) {
        let (mut moved, mut bytes) = (0, 0);
        for one in &mut self.described {
            let Place::Pool(held) = one.place else {
                continue;
            };
            if moved == most || one.released > 0 || !self.ingress.take_back(one.number) {
                continue;
            }
            let from = pool.extent(held, one.bytes);
            let Ok(to) = memory.take(one.bytes) else {
                // The application is at the limit of its memory.
                self.moved = self.moved.wrapping_add(1);
                self.ingress.give_again(one.number, from);
                break;
            };
            let target = to.part(0, one.bytes);
            let copied = memory.slab(to.slab).map(|slab| {
                let from = (pool.view(), from.offset as usize);
                copies.copy(from, (slab, to.offset as usize), one.bytes as usize)
            });
            debug_assert_eq!(copied, Some(Ok(())), "both were taken");
            self.ingress.give_again(one.number, target);
            free(one.place, 0, (pool, app), memory, None);
            one.place = Place::Memory(to);
            moved += 1;
            bytes += u64::from(one.bytes);
        }
        self.moved = self.moved.wrapping_add(moved as u32);
        (moved, bytes)
    }

    /// Whether the application has claimed memory of the pool that arrived by `until`, and has not released it.
    pub(crate) fn keeps_pool(&self, until: Instant) -> bool {
        let mut old = self.described.iter().filter(|one| one.since <= until);
        old.any(|one| one.place.is_in_pool() && self.ingress.is_claimed(one.number))
    }

    /// Number of descriptors whose bytes were moved. An application that looked meanwhile must look again.
    pub(crate) fn moved(&self) -> u32 {
        self.moved
    }

    /// Whether there are bytes that the application has not consumed, as last observed.
    pub(crate) fn has_unread(&self) -> bool {
        self.ingress.come() > self.ingress.consumed()
    }

    /// Continues bytes in line in a longer ring if the peer uses up its window, and frees a ring that the
    /// application has left.
    pub(crate) fn grow(&mut self, memory: &mut SessionMemory, most: u32) {
        if let Some(left) = self.ingress.left() {
            memory.give(left);
        }
        let len = self.ring_len();
        let is_used_up = self.told - self.ingress.placed() < self.promised() / 4;
        if !self.ingress.can_extend()
            || len >= u64::from(most)
            || !is_used_up
            || self.ended.is_some()
        {
            return;
        }
        let longer = (len as u32).saturating_mul(INGRESS_GROWTH).min(most);
        let Ok(extent) = memory.take_longer_ring(len as u32, longer) else {
            return;
        };
        if !matches!(self.ingress.extend(memory.slabs(), extent), Ok(true)) {
            memory.give(extent);
        }
    }

    /// Bytes of the latest ring that may be promised to the peer.
    fn promised(&self) -> u64 {
        self.ring_len() - u64::from(self.ingress.reserve_len())
    }

    fn ring_len(&self) -> u64 {
        self.ingress.rings().last().map_or(1, |ring| ring.len())
    }

    /// Bytes in line, from the first on, that the peer may be allowed to send.
    pub(crate) fn window(&self) -> u64 {
        self.ingress.limit()
    }

    /// Records that the window is announced to the peer, and returns it.
    pub(crate) fn tell(&mut self) -> u64 {
        self.told = self.window();
        self.told
    }

    /// Whether the window must be announced to the peer by a separate frame.
    pub(crate) fn is_update_due(&self) -> bool {
        self.ended.is_none() && self.window() - self.told >= self.promised() / 2
    }

    /// Position up to which the peer's transfers were READ, if the peer must be told.
    pub(crate) fn acknowledgement(&self) -> Option<u64> {
        (self.acknowledged > self.told_acknowledged).then_some(self.acknowledged)
    }

    /// Records that the peer is told of all transfers that were READ.
    pub(crate) fn tell_acknowledged(&mut self) {
        self.told_acknowledged = self.acknowledged;
    }

    /// Returns all memory of the rings.
    pub(crate) fn memory(&self) -> impl Iterator<Item = Extent> {
        self.ingress.rings().map(|ring| ring.extent())
    }
}

/// Frees memory that a piece was READ into, of which `released` units of the pool are free already.
fn free(
    place: Place,
    released: u32,
    (pool, app): (&mut DomainPool, AppId),
    memory: &mut SessionMemory,
    now: Option<Instant>,
) {
    match place {
        Place::Pool(held) => {
            let units = held.extent.units - released;
            pool.release(app, held, (released, units), now);
        }
        Place::Memory(extent) => memory.give(extent),
        Place::Reserve(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::DaemonLimits;

    #[test]
    fn a_segment_belongs_where_the_peer_went_on() {
        let limits = DaemonLimits::default();
        assert!(limits.bulk_max <= TRANSFER_MAX);
        assert!(
            InvalidSegment {
                at: 1,
                len: 2,
                end: 3
            }
            .to_string()
            .contains("position 1")
        );
    }
}
