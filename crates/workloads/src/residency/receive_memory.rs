//! Where messages land: a ring of any length, or the receive pool of `headworks-rxpool`. Pure: it knows offsets, not
//! addresses.

use headworks::verbs::Instant;
use headworks_rxpool::admission::Class;
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::holdings::{AppId, HeldExtent};
use headworks_rxpool::pool::{AppLimits, ReceivePool};
use headworks_rxpool::units::{EXTENT_MAX, UNIT, UNITS_MAX};

/// Most pieces of a message.
pub const PIECES_MAX: usize = 4;
/// Bytes of the longest message: 1 MiB.
pub const MESSAGE_MAX: usize = PIECES_MAX * EXTENT_MAX as usize;

/// Kind of receive memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    /// The receive pool with its default sizes.
    Pool,
    /// An area of this many bytes that is used round robin: a multiple of all message sizes.
    Ring(usize),
}

impl MemoryKind {
    /// Bytes of memory that must be registered for it.
    pub fn registered_bytes(self) -> usize {
        match self {
            Self::Pool => PoolConfig::default().memory_units() as usize * UNIT as usize,
            Self::Ring(len) => len,
        }
    }

    /// Bytes that messages may take at the same time.
    pub fn capacity(self) -> usize {
        match self {
            Self::Pool => PoolConfig::default().budget as usize,
            Self::Ring(len) => len,
        }
    }
}

/// Adjacent bytes of the registered memory. Both fields are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Offset of the first byte.
    pub offset: u32,
    /// Length.
    pub len: u32,
}

/// Memory of one message.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pieces: [Piece; PIECES_MAX],
    /// The pool's extents, in the order of the pieces. A ring has none.
    held: [Option<HeldExtent>; PIECES_MAX],
    count: u32,
}

impl Place {
    fn empty() -> Self {
        Self {
            pieces: [Piece::default(); PIECES_MAX],
            held: [None; PIECES_MAX],
            count: 0,
        }
    }

    fn push(&mut self, piece: Piece, held: Option<HeldExtent>) {
        let at = self.count as usize;
        self.pieces[at] = piece;
        self.held[at] = held;
        self.count += 1;
    }

    /// The pieces, in the order of the message's bytes.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.count as usize]
    }
}

enum Kind {
    Pool(Box<ReceivePool>, AppId),
    /// Length of the ring, and offset of the next message.
    Ring(usize, usize),
}

/// Receive memory for messages of one size, which are released in the order in which they came.
pub struct ReceiveMemory {
    kind: Kind,
    /// Bytes of a message.
    message: usize,
    /// Bytes of the longest piece of a message in a ring.
    longest: usize,
    /// Bytes in use, and most that may be in use.
    used: usize,
    capacity: usize,
}

impl ReceiveMemory {
    /// Makes receive memory of which nothing is in use. A message in a ring is divided into pieces of up to `longest`
    /// bytes. In the pool a piece is an extent.
    ///
    /// # Panics
    ///
    /// If a message is longer than [`MESSAGE_MAX`], is no multiple of a pool's unit, does not divide the ring, or has
    /// more than [`PIECES_MAX`] pieces.
    pub fn new(kind: MemoryKind, message: usize, longest: usize) -> Self {
        let capacity = kind.capacity();
        assert!((1..=MESSAGE_MAX).contains(&message), "no legal message");
        assert!(message.is_multiple_of(UNIT as usize), "no whole units");
        assert!(capacity.is_multiple_of(message), "messages do not wrap");
        assert!(message.div_ceil(longest) <= PIECES_MAX, "too many pieces");
        let kind = match kind {
            MemoryKind::Ring(len) => Kind::Ring(len, 0),
            MemoryKind::Pool => {
                let mut pool = Box::new(ReceivePool::new(&PoolConfig::default()));
                let app = pool.add(AppLimits {
                    class: Class::Normal,
                    quota: u32::MAX,
                });
                Kind::Pool(pool, app)
            }
        };
        Self {
            kind,
            message,
            longest,
            used: 0,
            capacity,
        }
    }

    /// Takes memory for a message, or returns `None` if too little is free.
    #[inline]
    pub fn get(&mut self) -> Option<Place> {
        if self.capacity - self.used < self.message {
            return None;
        }
        let mut place = Place::empty();
        match &mut self.kind {
            Kind::Ring(len, next) => {
                let end = *next + self.message;
                while *next < end {
                    let piece = Piece {
                        offset: *next as u32,
                        len: self.longest.min(end - *next) as u32,
                    };
                    place.push(piece, None);
                    *next += piece.len as usize;
                }
                *next %= *len;
            }
            Kind::Pool(pool, app) => {
                let mut left = self.message as u32 / UNIT;
                while left > 0 {
                    // Messages are powers of two of units and released whole, so free memory is never scattered.
                    let held = pool.get(*app, left.min(UNITS_MAX)).ok()?;
                    let piece = Piece {
                        offset: held.extent.offset() as u32,
                        len: held.extent.len(),
                    };
                    place.push(piece, Some(held));
                    left -= held.extent.units;
                }
            }
        }
        self.used += self.message;
        Some(place)
    }

    /// Records that the bytes of a message have arrived.
    #[inline]
    pub fn arrived(&mut self, place: &Place) {
        if let Kind::Pool(pool, app) = &mut self.kind {
            for held in place.held.iter().flatten() {
                pool.arrived(*app, *held, Instant::ZERO);
            }
        }
    }

    /// Releases the memory of a message. Messages must be released in the order in which they came.
    #[inline]
    pub fn release(&mut self, place: &Place) {
        if let Kind::Pool(pool, app) = &mut self.kind {
            for held in place.held.iter().flatten() {
                let released = pool.release(*app, *held, 0, held.extent.units);
                debug_assert!(released.is_ok(), "the place was not released before");
            }
        }
        self.used -= self.message;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, VecDeque};

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;

    /// Receives `count` messages of which `held` are held at the same time. Returns the offsets of all pieces.
    fn offsets(memory: &mut ReceiveMemory, held: usize, count: usize) -> Vec<u32> {
        let (mut places, mut offsets) = (VecDeque::new(), Vec::new());
        for _ in 0..count {
            let place = memory.get().expect("free memory");
            memory.arrived(&place);
            offsets.extend(place.pieces().iter().map(|piece| piece.offset));
            places.push_back(place);
            if places.len() > held {
                memory.release(&places.pop_front().expect("a message"));
            }
        }
        offsets
    }

    #[test]
    fn a_ring_is_used_from_end_to_end() {
        let mut ring = ReceiveMemory::new(MemoryKind::Ring(MIB), 256 * KIB, 256 * KIB);
        let of = |quarters: [u32; 6]| quarters.map(|quarter| quarter * 256 * KIB as u32);
        assert_eq!(offsets(&mut ring, 1, 6), of([0, 1, 2, 3, 0, 1]));
    }

    #[test]
    fn a_message_in_a_ring_has_pieces_of_the_length_that_was_asked_for() {
        for (longest, pieces) in [(MIB, 1), (256 * KIB, 4)] {
            let mut ring = ReceiveMemory::new(MemoryKind::Ring(4 * MIB), MIB, longest);
            let place = ring.get().expect("free memory");
            assert_eq!(place.pieces().len(), pieces);
            let bytes: u32 = place.pieces().iter().map(|piece| piece.len).sum();
            assert_eq!(bytes as usize, MIB);
        }
    }

    #[test]
    fn the_pool_uses_no_more_memory_than_is_held() {
        for (message, held, at_most) in [
            (256 * KIB, 9, 10 * 256 * KIB),
            (MIB, 2, 3 * MIB),
            (4 * KIB, 600, 601 * 4 * KIB + 256 * KIB),
        ] {
            let mut pool = ReceiveMemory::new(MemoryKind::Pool, message, 256 * KIB);
            let used: BTreeSet<u32> = offsets(&mut pool, held, 5000).into_iter().collect();
            let piece = message.min(256 * KIB);
            assert!(used.len() * piece <= at_most, "{message}: {}", used.len());
        }
    }

    #[test]
    fn nothing_is_handed_out_beyond_the_capacity() {
        for kind in [MemoryKind::Pool, MemoryKind::Ring(8 * MIB)] {
            let mut memory = ReceiveMemory::new(kind, MIB, 256 * KIB);
            let places: Vec<Place> = std::iter::from_fn(|| memory.get()).collect();
            assert_eq!(places.len(), 8, "{kind:?}");
            memory.arrived(&places[0]);
            memory.release(&places[0]);
            assert!(memory.get().is_some() && memory.get().is_none());
        }
    }
}
