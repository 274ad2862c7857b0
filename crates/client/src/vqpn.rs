//! Virtual queue pair numbers: the numbers of connections in a daemon.

use std::fmt;

/// Bits of the place in the daemon's table.
const INDEX_BITS: u32 = 20;

/// Number of a connection's end: its place in the daemon's table, and the generation of that place. It
/// travels in the immediate data of messages to that end (RaaS, section IV.A). So a late message for a closed
/// connection never reaches the next one at the same place, until the place has been reused
/// [`Vqpn::GENERATIONS`] times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Vqpn(u32);

impl Vqpn {
    /// Number of places.
    pub const INDEXES: u32 = 1 << INDEX_BITS;
    /// Number of generations of a place.
    pub const GENERATIONS: u32 = 1 << (32 - INDEX_BITS);

    /// The number for `place`, which is below [`Vqpn::INDEXES`], and `generation`, which is taken modulo
    /// [`Vqpn::GENERATIONS`].
    pub const fn new(place: u32, generation: u32) -> Self {
        Self((place % Self::INDEXES) | (generation << INDEX_BITS))
    }

    /// The number as sent on the wire.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The number received from the wire.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The place in the table.
    pub const fn place(self) -> usize {
        (self.0 % Self::INDEXES) as usize
    }

    /// The generation of the place.
    pub const fn generation(self) -> u32 {
        self.0 >> INDEX_BITS
    }
}

impl fmt::Debug for Vqpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.place(), self.generation())
    }
}

impl fmt::Display for Vqpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vqpn_keeps_place_and_generation_apart() {
        let last = Vqpn::new(Vqpn::INDEXES - 1, Vqpn::GENERATIONS + 7);
        assert_eq!((last.place(), last.generation()), (0xf_ffff, 7));
        assert_eq!(Vqpn::from_bits(last.bits()), last);
        assert_eq!(last.to_string(), "1048575.7");
        assert_ne!(Vqpn::new(3, 0), Vqpn::new(3, 1));
    }
}
