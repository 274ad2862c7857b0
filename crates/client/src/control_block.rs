//! Control block: the words that an application and its daemon share for one connection, and their layout.
//!
//! | offset | written by | what |
//! |---|---|---|
//! | 0 | application | tail of the egress ring: total bytes of records written |
//! | 8 | application | how it wants its bytes carried ([`Transfer`]) |
//! | 16 | application | on the [direct path](crate::direct): the longer ring that it asks for |
//! | 24 | application | on the direct path: number of the first ring that is in use |
//! | 64 | daemon | head of the egress ring: total bytes of records that the daemon no longer needs |
//! | 128 | daemon | tail of the ingress ring: total bytes of the stream that have arrived |
//! | 136 | daemon | status: end of the stream, and the reason of a reset ([`Status`]) |
//! | 144 | daemon | number of the latest ingress ring |
//! | 152 | daemon | number of the latest egress ring |
//! | 192 | application | head of the ingress ring: total bytes of the stream that the application consumed |
//! | 256 | both | event count: armed by the application, notified by the daemon on data or a new status |
//! | 264 | both | event count: armed by the application, notified by the daemon when there is room |
//! | 320 | daemon | two entries of 24 bytes: the latest ingress ring and the one before |
//! | 384 | daemon | two entries of 24 bytes: the latest egress ring and the one before |
//! | 448 | daemon | on the direct path: number, length and offset of the latest ring |
//! | 512 | both | [descriptors](crate::descriptors), 32 bytes each |
//!
//! The offsets 32, 160 to 176 and 200 are used only in [blocks of the direct path](crate::direct), which end before the
//! descriptors.
//!
//! Words that only one side writes share no cache line with words that the other side writes often.

use std::sync::atomic::{AtomicU64, Ordering};

use headworks_shm::cursor::Cursor;
use headworks_shm::{EventCount, EventCountRef, View};

use crate::descriptors::{Descriptors, TABLE_BYTES};
use crate::error::ContractError;
use crate::slabs::{ByteRing, Extent, Slabs};

/// Bytes of a control block.
pub const BLOCK_BYTES: u32 = 1024;
/// Bytes of a block of the [direct path](crate::direct). It has no descriptors.
pub const DIRECT_BLOCK_BYTES: u32 = DESCRIPTOR_TABLE as u32;

const EGRESS_TAIL: usize = 0;
const TRANSFER: usize = 8;
const RING_WANTED: usize = 16;
const RING_LEFT: usize = 24;
const RECEIVED: usize = 32;
const EGRESS_HEAD: usize = 64;
const INGRESS_TAIL: usize = 128;
const STATUS: usize = 136;
const INGRESS_RINGS: usize = 144;
const EGRESS_RINGS: usize = 152;
const DIVERSIONS: usize = 160;
const TAKEN: usize = 168;
const CLOSED: usize = 176;
const INGRESS_HEAD: usize = 192;
const CONSUMED_THERE: usize = 200;
const EVENT_COUNT: usize = 256;
const ROOM_EVENT_COUNT: usize = 264;
const INGRESS_RING_ENTRIES: usize = 320;
const EGRESS_RING_ENTRIES: usize = 384;
const DIRECT_RING: usize = 448;
const DESCRIPTOR_TABLE: usize = 512;
const _: () = assert!(DESCRIPTOR_TABLE + TABLE_BYTES == BLOCK_BYTES as usize);

/// Direction of a stream, seen from the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the application to the daemon.
    Egress,
    /// From the daemon to the application.
    Ingress,
}

/// A connection's control block.
#[derive(Clone, Debug)]
pub struct ControlBlock {
    view: View,
}

impl ControlBlock {
    /// The control block at `extent`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`], [`ContractError::ControlBlock`].
    pub fn at(slabs: &Slabs, extent: Extent) -> Result<Self, ContractError> {
        Self::with_len(slabs, extent, BLOCK_BYTES)
    }

    /// The block of the direct path at `extent`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`], [`ContractError::ControlBlock`].
    pub fn direct_at(slabs: &Slabs, extent: Extent) -> Result<Self, ContractError> {
        Self::with_len(slabs, extent, DIRECT_BLOCK_BYTES)
    }

    fn with_len(slabs: &Slabs, extent: Extent, len: u32) -> Result<Self, ContractError> {
        // Aligned to a cache line: otherwise words of the two sides would share lines.
        if extent.len != len || !extent.offset.is_multiple_of(64) {
            return Err(ContractError::ControlBlock);
        }
        let view = slabs.view(extent)?;
        // Refuses memory that is not aligned to words, so that the look-ups below cannot fail.
        view.atomic_u64(STATUS)
            .map_err(|_| ContractError::ControlBlock)?;
        Ok(Self { view })
    }

    /// Sets all words to zero: for the daemon, before it tells the application of the block.
    pub fn clear(&self) {
        let zeros = [0; BLOCK_BYTES as usize];
        let zeros = &zeros[..self.view.len()];
        self.view.write(0, zeros).expect("fills the block");
    }

    /// Prefetches the words, except the entries of rings: they will be used soon.
    #[inline]
    pub fn expect(&self) {
        for offset in (EGRESS_TAIL..INGRESS_RING_ENTRIES).step_by(64) {
            self.view.prefetch(offset);
        }
    }

    #[inline]
    fn cursor(&self, offset: usize) -> &Cursor {
        self.view.cursor(offset).expect("within the block")
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        self.view.atomic_u64(offset).expect("within the block")
    }

    #[inline]
    pub(crate) fn tail(&self, way: Direction) -> &Cursor {
        self.cursor(match way {
            Direction::Egress => EGRESS_TAIL,
            Direction::Ingress => INGRESS_TAIL,
        })
    }

    #[inline]
    pub(crate) fn head(&self, way: Direction) -> &Cursor {
        self.cursor(match way {
            Direction::Egress => EGRESS_HEAD,
            Direction::Ingress => INGRESS_HEAD,
        })
    }

    fn rings(&self, way: Direction) -> &AtomicU64 {
        self.word(match way {
            Direction::Egress => EGRESS_RINGS,
            Direction::Ingress => INGRESS_RINGS,
        })
    }

    /// Number of the latest ring that was published.
    #[inline]
    pub(crate) fn latest_ring(&self, way: Direction) -> u64 {
        // Pairs with the store in `publish_ring`.
        self.rings(way).load(Ordering::Acquire)
    }

    /// The descriptors; `None` in a block of the direct path.
    #[inline]
    pub(crate) fn descriptors(&self) -> Option<Descriptors<'_>> {
        let has_table = !self.is_direct();
        has_table.then(|| Descriptors::at(&self.view, DESCRIPTOR_TABLE))
    }

    /// Whether it is a block of the direct path.
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        self.view.len() <= DESCRIPTOR_TABLE
    }

    /// Bytes of the stream that have arrived, as the writer says.
    pub(crate) fn arrived(&self) -> u64 {
        self.word(INGRESS_TAIL).load(Ordering::Acquire)
    }

    /// Bytes of the stream that the reader has consumed, as it says.
    pub(crate) fn consumed(&self) -> u64 {
        self.word(INGRESS_HEAD).load(Ordering::Acquire)
    }

    /// The room that the daemon has made for what the application sends.
    pub(crate) fn room(&self) -> Room {
        Room {
            freed: self.word(EGRESS_HEAD).load(Ordering::Acquire),
            ring: self.word(EGRESS_RINGS).load(Ordering::Acquire),
            direct: 0,
            direct_ring: 0,
        }
    }

    /// On the direct path: how often the sender changed between that path and the daemons.
    pub(crate) fn diversions(&self) -> u64 {
        self.word(DIVERSIONS).load(Ordering::Acquire)
    }

    /// For the sender: changes the path.
    pub(crate) fn set_diversions(&self, diversions: u64) {
        self.word(DIVERSIONS).store(diversions, Ordering::Release);
    }

    /// On the direct path: whether the sender's application has connected or accepted the connection.
    pub(crate) fn is_taken(&self) -> bool {
        self.word(TAKEN).load(Ordering::Acquire) != 0
    }

    /// For the sender: it has connected or accepted the connection.
    pub(crate) fn take(&self) {
        self.word(TAKEN).store(1, Ordering::Release);
    }

    /// Undoes [`take`](Self::take).
    #[cfg(test)]
    pub(crate) fn untake(&self) {
        self.word(TAKEN).store(0, Ordering::Release);
    }

    /// On the direct path: whether the sender has closed the connection.
    pub(crate) fn is_closed(&self) -> bool {
        self.word(CLOSED).load(Ordering::Acquire) != 0
    }

    /// For the sender: closes the connection.
    pub(crate) fn close(&self) {
        self.word(CLOSED).store(1, Ordering::Release);
    }

    /// On the direct path: bytes that the receiver has received through the daemons.
    pub(crate) fn consumed_there(&self) -> &AtomicU64 {
        self.word(CONSUMED_THERE)
    }

    /// On the direct path: bytes that the sender has received in the other direction.
    pub(crate) fn received(&self) -> &AtomicU64 {
        self.word(RECEIVED)
    }

    /// For the daemon of the sender: bytes that it sent directly, and bytes that it received in any way. The applications
    /// may have written any numbers.
    pub fn direct_traffic(&self) -> (u64, u64) {
        let received = self.word(RECEIVED).load(Ordering::Relaxed);
        (self.arrived(), received)
    }

    /// For the application: asks for ring `number` of the direct path, of `len` bytes.
    pub(crate) fn want_ring(&self, number: u64, len: u32) {
        let word = number << 32 | u64::from(len);
        self.word(RING_WANTED).store(word, Ordering::Release);
    }

    /// For the daemon: the lower 32 bits of the number of the ring of the direct path that the application asks for, and its
    /// length.
    pub fn wanted_ring(&self) -> (u32, u32) {
        let word = self.word(RING_WANTED).load(Ordering::Acquire);
        ((word >> 32) as u32, word as u32)
    }

    /// For the application: gives back the rings of the direct path before `number`.
    pub(crate) fn leave_rings(&self, number: u64) {
        self.word(RING_LEFT).store(number, Ordering::Release);
    }

    /// For the daemon: number of the first ring of the direct path that is in use.
    pub fn left_rings(&self) -> u64 {
        self.word(RING_LEFT).load(Ordering::Acquire)
    }

    /// For the daemon: hands out ring `number` of the direct path.
    pub fn offer_ring(&self, number: u64, ring: Extent) {
        self.word(DIRECT_RING + 8)
            .store(ring.len.into(), Ordering::Relaxed);
        self.word(DIRECT_RING + 16)
            .store(ring.offset, Ordering::Relaxed);
        // Pairs with the load in `offered_ring`.
        self.word(DIRECT_RING).store(number, Ordering::Release);
    }

    /// For the application: number and memory of the latest ring of the direct path that the daemon handed out.
    pub(crate) fn offered_ring(&self) -> (u64, Extent) {
        let number = self.word(DIRECT_RING).load(Ordering::Acquire);
        let len = self.word(DIRECT_RING + 8).load(Ordering::Relaxed) as u32;
        let offset = self.word(DIRECT_RING + 16).load(Ordering::Relaxed);
        let slab = 0;
        (number, Extent { slab, len, offset })
    }

    /// How the application wants its bytes carried. An unknown value counts as [`Transfer::Any`].
    pub fn transfer(&self) -> Transfer {
        let code = self.word(TRANSFER).load(Ordering::Relaxed);
        Transfer::from_code(code)
    }

    /// For the application: sets how bytes are carried that the daemon has not sent yet, and all later ones.
    pub fn set_transfer(&self, transfer: Transfer) {
        self.word(TRANSFER)
            .store(transfer as u64, Ordering::Relaxed);
    }

    /// Event count that wakes the application when data arrives or the status changes. The application arms
    /// it before it sleeps; the daemon notifies it after the change. If the application armed it
    /// [in a set](EventCount::arm_in_set), the daemon inserts the connection into
    /// [`Doorbell::ready`](crate::Doorbell::ready).
    pub fn event_count(&self) -> &EventCount {
        self.view
            .event_count(EVENT_COUNT)
            .expect("within the block")
    }

    /// Event count that wakes the application when there is room, in the egress ring or in the next one.
    pub fn room_event_count(&self) -> &EventCount {
        self.view
            .event_count(ROOM_EVENT_COUNT)
            .expect("within the block")
    }

    /// [`ControlBlock::event_count`], and [`ControlBlock::room_event_count`] if `for_room`, for whoever wakes the
    /// application or sleeps.
    pub fn event_count_ref(&self, for_room: bool) -> EventCountRef {
        let offset = if for_room {
            ROOM_EVENT_COUNT
        } else {
            EVENT_COUNT
        };
        self.view.event_count_ref(offset).expect("within the block")
    }

    /// The status that the daemon last wrote.
    pub fn status(&self) -> Status {
        // Pairs with the store in `set_status`.
        Status::from_bits(self.word(STATUS).load(Ordering::Acquire))
    }

    /// For the daemon: writes the status.
    pub fn set_status(&self, status: Status) {
        self.word(STATUS).store(status.bits(), Ordering::Release);
    }

    fn place(way: Direction, number: u64) -> usize {
        let places = match way {
            Direction::Egress => EGRESS_RING_ENTRIES,
            Direction::Ingress => INGRESS_RING_ENTRIES,
        };
        places + (number % 2) as usize * 24
    }

    /// For the daemon: publishes ring `number`; the first is 1. It overwrites the entry of ring `number - 2`,
    /// which the application must not need any more.
    pub(crate) fn publish_ring(&self, way: Direction, number: u64, ring: &ByteRing) {
        let extent = ring.extent();
        let shape = u64::from(extent.slab) << 32 | u64::from(extent.len);
        let words = [ring.from(), shape, extent.offset];
        for (word, at) in words.into_iter().zip([0, 8, 16]) {
            let offset = Self::place(way, number) + at;
            self.word(offset).store(word, Ordering::Relaxed);
        }
        // Pairs with the load in `latest_ring`.
        self.rings(way).store(number, Ordering::Release);
    }

    /// For the application: ring `number`, or `None` if the daemon has not published it yet. The ring is missing in the
    /// announcement while its slab is missing, which does not happen on the direct path.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`].
    pub(crate) fn published_ring(
        &self,
        slabs: &Slabs,
        way: Direction,
        number: u64,
    ) -> Result<Option<RingAnnouncement>, ContractError> {
        if self.latest_ring(way) < number {
            return Ok(None);
        }
        let [from, shape, offset] = [0, 8, 16].map(|at| {
            let offset = Self::place(way, number) + at;
            self.word(offset).load(Ordering::Relaxed)
        });
        let extent = Extent {
            slab: (shape >> 32) as u32,
            len: shape as u32,
            offset,
        };
        let ring = match slabs.slab(extent.slab) {
            // The daemon has sent the slab, but the application may not have read it from the socket yet. The memory of a
            // direct connection is there from the start.
            None if !self.is_direct() => None,
            _ => Some(ByteRing::new(slabs, extent, from)?),
        };
        Ok(Some(RingAnnouncement { from, ring }))
    }
}

/// A ring that the daemon has published.
#[derive(Clone, Debug)]
pub(crate) struct RingAnnouncement {
    /// The position from which the ring holds the stream.
    pub(crate) from: u64,
    /// The ring; `None` until its slab arrives.
    pub(crate) ring: Option<ByteRing>,
}

/// Received bytes and status of a connection. A poller compares two of these to find news.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Arrived {
    /// Bytes of the stream that have arrived; on the direct path, in both ways. Others may have written any numbers.
    pub bytes: u64,
    /// Whether the application has not consumed all of them.
    pub is_some: bool,
    /// The status.
    pub status: Status,
}

/// Room for sending. A poller compares two of these: a different value means that room was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Room {
    /// Bytes of records that the daemon no longer needs.
    pub freed: u64,
    /// Number of the latest ring.
    pub ring: u64,
    /// On the direct path: bytes that the receiver has consumed.
    pub direct: u64,
    /// On the direct path: number of the latest ring that the daemon handed out.
    pub direct_ring: u64,
}

/// State of a connection, as the daemon publishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Status {
    /// Whether the peer has ended its stream: the stream ends after the bytes that have arrived.
    pub is_ended: bool,
    /// Reason of the connection's reset; `None` without a reset.
    pub reset: Option<Reset>,
}

impl Status {
    fn bits(self) -> u64 {
        let reset = self.reset.map_or(0, |reset| reset as u64);
        u64::from(self.is_ended) | reset << 8
    }

    fn from_bits(bits: u64) -> Self {
        Self {
            is_ended: bits & 1 != 0,
            reset: Reset::from_code((bits >> 8) as u8),
        }
    }
}

/// How bytes are carried to the other host: the FLAGS of RaaS (section V.A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u64)]
pub enum Transfer {
    /// The daemon decides: short pieces go by SEND, others by the other host's READ.
    #[default]
    Any = 0,
    /// By SEND, in frames that the other host's daemon copies.
    Send = 1,
    /// By the other host's READ into its receive pool, even if short.
    Read = 2,
}

impl Transfer {
    const ALL: [Self; 3] = [Self::Any, Self::Send, Self::Read];

    /// The transfer with this number; [`Transfer::Any`] if there is none.
    pub(crate) fn from_code(code: u64) -> Self {
        let known = Self::ALL.into_iter().find(|one| *one as u64 == code);
        known.unwrap_or_default()
    }
}

/// Reason of a connection's reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reset {
    /// The application at the other end aborted the connection, died, or closed it before it had received all
    /// data.
    ByPeer = 1,
    /// The other host, or the path to it, failed.
    Unreachable = 2,
    /// This application broke the contract of the memory that it shares with the daemon.
    Misuse = 3,
    /// The daemon at one of the ends is stopping.
    Stopping = 4,
    /// The other daemon broke the protocol between daemons.
    Protocol = 5,
    /// This application kept what it had received for too long while the receive pool was short.
    Kept = 6,
}

impl Reset {
    const ALL: [Self; 6] = [
        Self::ByPeer,
        Self::Unreachable,
        Self::Misuse,
        Self::Stopping,
        Self::Protocol,
        Self::Kept,
    ];

    /// The reason with number `code`: `None` for 0, [`Reset::Protocol`] for an unknown number.
    pub fn from_code(code: u8) -> Option<Self> {
        let known = Self::ALL.into_iter().find(|reset| *reset as u8 == code);
        known.or_else(|| (code != 0).then_some(Self::Protocol))
    }
}

impl std::fmt::Display for Reset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ByPeer => "reset by peer",
            Self::Unreachable => "the other host cannot be reached any more",
            Self::Misuse => "this application broke the contract of shared memory",
            Self::Stopping => "a daemon is stopping",
            Self::Protocol => "the other daemon broke the protocol",
            Self::Kept => "this application kept received memory for too long",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::slabs;

    #[test]
    fn status_is_one_word() {
        for is_ended in [false, true] {
            for code in 0..=6 {
                let reset = Reset::from_code(code);
                let status = Status { is_ended, reset };
                assert_eq!(Status::from_bits(status.bits()), status);
            }
        }
        assert_eq!(Reset::from_code(77), Some(Reset::Protocol));
    }

    #[test]
    fn blocks_are_where_they_fit() {
        let slabs = slabs(&[4096]);
        let at = |offset, len| {
            let slab = 0;
            ControlBlock::at(&slabs, Extent { slab, len, offset })
        };
        assert!(at(1024, BLOCK_BYTES).is_ok());
        assert_eq!(
            at(1024, DIRECT_BLOCK_BYTES).unwrap_err(),
            ContractError::ControlBlock
        );
        let extent = |len| Extent {
            slab: 0,
            len,
            offset: 1024,
        };
        let direct = ControlBlock::direct_at(&slabs, extent(DIRECT_BLOCK_BYTES)).unwrap();
        direct.clear();
        assert!(direct.descriptors().is_none());
        assert!(ControlBlock::direct_at(&slabs, extent(BLOCK_BYTES)).is_err());
        assert_eq!(at(0, 1023).unwrap_err(), ContractError::ControlBlock);
        assert_eq!(at(8, BLOCK_BYTES).unwrap_err(), ContractError::ControlBlock);
        assert!(matches!(
            at(3328, BLOCK_BYTES).unwrap_err(),
            ContractError::Extent(_)
        ));
    }

    fn slabs_of_two() -> Slabs {
        slabs(&[4096, 4096])
    }

    #[test]
    fn a_ring_is_announced_once_it_exists() {
        let slabs = slabs(&[4096]);
        let extent = |offset, len| Extent {
            slab: 0,
            len,
            offset,
        };
        let block = ControlBlock::at(&slabs, extent(0, BLOCK_BYTES)).unwrap();
        block.clear();
        let told = |number| block.published_ring(&slabs, Direction::Ingress, number);
        assert!(told(1).unwrap().is_none());
        let ring = ByteRing::new(&slabs, extent(2048, 512), 7).unwrap();
        block.publish_ring(Direction::Ingress, 1, &ring);
        let seen = told(1).unwrap().unwrap();
        assert_eq!(seen.from, 7);
        assert_eq!(seen.ring.unwrap().extent(), ring.extent());
        assert!(told(2).unwrap().is_none());
        assert!(
            block
                .published_ring(&slabs, Direction::Egress, 1)
                .unwrap()
                .is_none()
        );
        // A ring in a slab that has not arrived.
        let other = slabs_of_two();
        let there = Extent {
            slab: 1,
            ..extent(0, 512)
        };
        let ring = ByteRing::new(&other, there, 9).unwrap();
        block.publish_ring(Direction::Ingress, 2, &ring);
        let seen = told(2).unwrap().unwrap();
        assert!(seen.from == 9 && seen.ring.is_none());
    }
}
