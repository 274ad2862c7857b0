//! The words of a connection that an application and its daemon share, and where each is.
//!
//! | bytes | written by | what |
//! |---|---|---|
//! | 0 | application | tail of the egress ring: bytes of records written, ever |
//! | 8 | application | how it wants its bytes carried ([`Transfer`]) |
//! | 64 | daemon | head of the egress ring: bytes of records that the daemon needs no more |
//! | 128 | daemon | tail of the ingress ring: bytes of the stream that have come |
//! | 136 | daemon | status: the stream's end, a reset and why ([`Status`]) |
//! | 144 | daemon | how many ingress rings there have been |
//! | 152 | daemon | how many egress rings there have been |
//! | 192 | application | head of the ingress ring: bytes of the stream that were consumed |
//! | 256 | both | the application's bells: armed by it, rung by the daemon: something has come, or the connection has ended |
//! | 264 | both | there is room for more |
//! | 320 | daemon | two places of 24 bytes: ingress rings, the latest and the one before |
//! | 384 | daemon | the same of egress rings |
//!
//! What is written on one side only shares a line with nothing that the other side writes often.

use std::sync::atomic::Ordering;

use headworks_shm::view::{CursorRef, WordRef};
use headworks_shm::{EventCount, View};

use crate::error::ContractError;
use crate::memory::{ByteRing, Extent, Slabs};

/// Bytes of a connection's words.
pub const BLOCK_BYTES: u32 = 512;

const EGRESS_TAIL: usize = 0;
const TRANSFER: usize = 8;
const EGRESS_HEAD: usize = 64;
const INGRESS_TAIL: usize = 128;
const STATUS: usize = 136;
const INGRESS_RINGS: usize = 144;
const EGRESS_RINGS: usize = 152;
const INGRESS_HEAD: usize = 192;
const BELL: usize = 256;
const ROOM_BELL: usize = 264;
const INGRESS_PLACES: usize = 320;
const EGRESS_PLACES: usize = 384;

/// Which way a stream runs, seen from the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the application to the daemon.
    Egress,
    /// From the daemon to the application.
    Ingress,
}

/// A connection's words.
#[derive(Clone, Debug)]
pub struct ControlBlock {
    view: View,
    status: WordRef,
}

impl ControlBlock {
    /// The words at `extent`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`], [`ContractError::ControlBlock`].
    pub fn at(slabs: &Slabs, extent: Extent) -> Result<Self, ContractError> {
        // On a line's boundary: what the two sides write would share lines otherwise.
        if extent.len != BLOCK_BYTES || !extent.offset.is_multiple_of(64) {
            return Err(ContractError::ControlBlock);
        }
        let view = slabs.view(extent)?;
        let status = view
            .word_ref(STATUS)
            .map_err(|_| ContractError::ControlBlock)?;
        Ok(Self { view, status })
    }

    /// All zero: for the daemon, before the application knows of it.
    pub fn clear(&self) {
        let zeros = [0; BLOCK_BYTES as usize];
        self.view.write(0, &zeros).expect("as long as a block");
    }

    /// Hints that these words will be used soon, all but the places of rings.
    #[inline]
    pub fn expect(&self) {
        for offset in (EGRESS_TAIL..INGRESS_PLACES).step_by(64) {
            self.view.prefetch(offset);
        }
    }

    fn cursor(&self, offset: usize) -> CursorRef {
        self.view.cursor_ref(offset).expect("in a block")
    }

    fn word(&self, offset: usize) -> WordRef {
        self.view.word_ref(offset).expect("in a block")
    }

    pub(crate) fn tail(&self, way: Way) -> CursorRef {
        self.cursor(match way {
            Way::Egress => EGRESS_TAIL,
            Way::Ingress => INGRESS_TAIL,
        })
    }

    pub(crate) fn head(&self, way: Way) -> CursorRef {
        self.cursor(match way {
            Way::Egress => EGRESS_HEAD,
            Way::Ingress => INGRESS_HEAD,
        })
    }

    pub(crate) fn rings(&self, way: Way) -> WordRef {
        self.word(match way {
            Way::Egress => EGRESS_RINGS,
            Way::Ingress => INGRESS_RINGS,
        })
    }

    /// How the application wants its bytes carried. What is none is [`Transfer::Any`].
    pub fn transfer(&self) -> Transfer {
        let code = self.word(TRANSFER).load(Ordering::Relaxed);
        let known = Transfer::ALL.into_iter().find(|one| *one as u64 == code);
        known.unwrap_or_default()
    }

    /// For the application: from now on, or from what the daemon has not sent yet.
    pub fn set_transfer(&self, transfer: Transfer) {
        self.word(TRANSFER)
            .store(transfer as u64, Ordering::Relaxed);
    }

    /// What waits at the application's end for something to come is woken by: armed before it sleeps, rung after
    /// something has, or after the status has changed.
    pub fn bell(&self) -> &EventCount {
        self.view.event_count(BELL).expect("in a block")
    }

    /// The same of what waits for room, in the egress ring or in the next one.
    pub fn room_bell(&self) -> &EventCount {
        self.view.event_count(ROOM_BELL).expect("in a block")
    }

    /// What the daemon says of the connection as a whole.
    pub fn status(&self) -> Status {
        // Pairs with the store in `set_status`.
        Status::from_bits(self.status.load(Ordering::Acquire))
    }

    /// For the daemon: says it.
    pub fn set_status(&self, status: Status) {
        self.status.store(status.bits(), Ordering::Release);
    }

    fn place(way: Way, number: u64) -> usize {
        let places = match way {
            Way::Egress => EGRESS_PLACES,
            Way::Ingress => INGRESS_PLACES,
        };
        places + (number % 2) as usize * 24
    }

    /// For the daemon: ring `number`, from 1 on, is there. It takes the place of the last but one, which nobody may
    /// be looking for any more.
    pub(crate) fn tell_ring(&self, way: Way, number: u64, ring: &ByteRing) {
        let extent = ring.extent();
        let shape = u64::from(extent.slab) << 32 | u64::from(extent.len);
        let words = [ring.from(), shape, extent.offset];
        for (word, at) in words.into_iter().zip([0, 8, 16]) {
            let offset = Self::place(way, number) + at;
            let to = self.view.atomic_u64(offset).expect("in a block");
            to.store(word, Ordering::Relaxed);
        }
        // Pairs with the load in `ring_told`.
        self.rings(way).store(number, Ordering::Release);
    }

    /// For the application: ring `number`, where it is there.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`].
    pub(crate) fn ring_told(
        &self,
        slabs: &Slabs,
        way: Way,
        number: u64,
    ) -> Result<Option<Told>, ContractError> {
        if self.rings(way).load(Ordering::Acquire) < number {
            return Ok(None);
        }
        let [from, shape, offset] = [0, 8, 16].map(|at| {
            let offset = Self::place(way, number) + at;
            let word = self.view.atomic_u64(offset).expect("in a block");
            word.load(Ordering::Relaxed)
        });
        let extent = Extent {
            slab: (shape >> 32) as u32,
            len: shape as u32,
            offset,
        };
        // The daemon has sent the slab; it may not have been taken off the socket yet.
        let ring = match slabs.slab(extent.slab) {
            Some(_) => Some(ByteRing::new(slabs, extent, from)?),
            None => None,
        };
        Ok(Some(Told { from, ring }))
    }
}

/// A ring that the application was told of.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    /// The first position that falls into it.
    pub(crate) from: u64,
    /// The ring; `None` while its slab has not come.
    pub(crate) ring: Option<ByteRing>,
}

/// What the daemon says of a connection as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Status {
    /// The peer sends no more: after what has come, the stream ends.
    pub is_ended: bool,
    /// The connection is no more, and why.
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

/// How bytes are carried to the other host: what RaaS's FLAGS say (section V.A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u64)]
pub enum Transfer {
    /// As the daemons decide: short pieces by SEND, others by WRITE or READ, whichever host has more time to spare.
    #[default]
    Any = 0,
    /// By SEND, in frames, which the other host's daemon copies.
    Send = 1,
    /// By WRITE, however short, which costs the other host least.
    Write = 2,
    /// By the other host's READ, however short, which costs this host least.
    Read = 3,
}

impl Transfer {
    const ALL: [Self; 4] = [Self::Any, Self::Send, Self::Write, Self::Read];
}

/// Why a connection is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reset {
    /// The application at the other end gave it up, or died, or had no use for what was sent.
    ByPeer = 1,
    /// The host at the other end, or the way there, failed.
    Unreachable = 2,
    /// This application broke the contract of the memory that it shares with the daemon.
    Misuse = 3,
    /// The daemon at one of the ends is stopping.
    Stopping = 4,
    /// The other daemon said what cannot be.
    Protocol = 5,
}

impl Reset {
    const ALL: [Self; 5] = [
        Self::ByPeer,
        Self::Unreachable,
        Self::Misuse,
        Self::Stopping,
        Self::Protocol,
    ];

    /// The reason numbered `code`; `None` for 0, and [`Reset::Protocol`] for a number that is none.
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
            Self::Protocol => "the other daemon said what cannot be",
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
            for code in 0..=5 {
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
        assert!(at(512, BLOCK_BYTES).is_ok());
        assert_eq!(at(0, 511).unwrap_err(), ContractError::ControlBlock);
        assert_eq!(at(8, BLOCK_BYTES).unwrap_err(), ContractError::ControlBlock);
        assert!(matches!(
            at(3840, BLOCK_BYTES).unwrap_err(),
            ContractError::Extent(_)
        ));
    }

    fn slabs_of_two() -> Slabs {
        slabs(&[4096, 4096])
    }

    #[test]
    fn a_ring_is_told_of_once_it_is_there() {
        let slabs = slabs(&[4096]);
        let extent = |offset, len| Extent {
            slab: 0,
            len,
            offset,
        };
        let block = ControlBlock::at(&slabs, extent(0, BLOCK_BYTES)).unwrap();
        block.clear();
        let told = |number| block.ring_told(&slabs, Way::Ingress, number);
        assert!(told(1).unwrap().is_none());
        let ring = ByteRing::new(&slabs, extent(1024, 512), 7).unwrap();
        block.tell_ring(Way::Ingress, 1, &ring);
        let seen = told(1).unwrap().unwrap();
        assert_eq!(seen.from, 7);
        assert_eq!(seen.ring.unwrap().extent(), ring.extent());
        assert!(told(2).unwrap().is_none());
        assert!(block.ring_told(&slabs, Way::Egress, 1).unwrap().is_none());
        // One of a slab that has not come.
        let other = slabs_of_two();
        let there = Extent {
            slab: 1,
            ..extent(0, 512)
        };
        let ring = ByteRing::new(&other, there, 9).unwrap();
        block.tell_ring(Way::Ingress, 2, &ring);
        let seen = told(2).unwrap().unwrap();
        assert!(seen.from == 9 && seen.ring.is_none());
    }
}
