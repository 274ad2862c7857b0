//! Virtual queue pair numbers: which connection of a daemon's.

use std::fmt;

/// Bits of the place in the table.
const PLACE_BITS: u32 = 20;

/// The number of a connection's end: a place in its daemon's table, and which of those that ever had the place
/// it is. It travels in the immediate of what is sent to that end (RaaS, section IV.A), so what comes late for a
/// connection that is gone never reaches the next one of the same place: not before the place has changed hands
/// [`Vqpn::GENERATIONS`] times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Vqpn(u32);

impl Vqpn {
    /// Places that can be told apart.
    pub const PLACES: u32 = 1 << PLACE_BITS;
    /// Connections of one place that can be.
    pub const GENERATIONS: u32 = 1 << (32 - PLACE_BITS);

    /// The end at `place`, below [`Vqpn::PLACES`], in its `generation`, which is taken modulo
    /// [`Vqpn::GENERATIONS`].
    pub const fn new(place: u32, generation: u32) -> Self {
        Self((place % Self::PLACES) | (generation << PLACE_BITS))
    }

    /// The number as it travels.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The number that travelled.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The place in the table.
    pub const fn place(self) -> usize {
        (self.0 % Self::PLACES) as usize
    }

    /// Which of those that had the place.
    pub const fn generation(self) -> u32 {
        self.0 >> PLACE_BITS
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
    fn place_and_generation_are_told_apart() {
        let last = Vqpn::new(Vqpn::PLACES - 1, Vqpn::GENERATIONS + 7);
        assert_eq!((last.place(), last.generation()), (0xf_ffff, 7));
        assert_eq!(Vqpn::from_bits(last.bits()), last);
        assert_eq!(last.to_string(), "1048575.7");
        assert_ne!(Vqpn::new(3, 0), Vqpn::new(3, 1));
    }
}
