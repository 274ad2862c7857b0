//! Generates new inputs from known ones, with a seeded random number generator.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// Random number generator. A seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// Creates the generator of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// Returns the next 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a random number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.word() % limit.max(1) as u64) as usize
    }
}

/// Boundary values: code often behaves differently on either side of them.
const CORNERS: [u64; 14] = [
    0,
    1,
    2,
    7,
    63,
    64,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 63,
    u64::MAX,
];

/// Generates an input of at most `longest` bytes. Mostly changes a few places of one of `known`; one time in
/// eight, or if nothing is known, the bytes are random.
pub fn next_input(rng: &mut Rng, known: &[Vec<u8>], longest: usize) -> Vec<u8> {
    if known.is_empty() || rng.below(8) == 0 {
        let len = 1 << rng.below(longest.max(2).ilog2() as usize + 1);
        return (0..len).map(|_| rng.word() as u8).collect();
    }
    let mut input = known[rng.below(known.len())].clone();
    for _ in 0..1 + rng.below(6) {
        change(rng, &mut input, known);
    }
    input.truncate(longest);
    input
}

fn change(rng: &mut Rng, input: &mut Vec<u8>, known: &[Vec<u8>]) {
    let at = rng.below(input.len() + 1);
    let len = (1 + rng.below(16)).min(input.len() - at);
    match rng.below(9) {
        0 if len > 0 => input[at] ^= 1 << rng.below(8),
        1 if len > 0 => input[at] = rng.word() as u8,
        2 if len > 0 => input[at] = input[at].wrapping_add((rng.below(17) as u8).wrapping_sub(8)),
        3 => {
            let corner = CORNERS[rng.below(CORNERS.len())].to_le_bytes();
            let len = len.min(1 << rng.below(4)).min(corner.len());
            input[at..at + len].copy_from_slice(&corner[..len]);
        }
        4 => drop(input.drain(at..at + len)),
        5 => {
            let new: Vec<_> = (0..1 + rng.below(12)).map(|_| rng.word() as u8).collect();
            drop(input.splice(at..at, new));
        }
        6 => {
            let again = input[at..at + len].to_vec();
            let to = rng.below(input.len() + 1);
            drop(input.splice(to..to, again));
        }
        7 => input.truncate(at),
        _ => {
            let other = &known[rng.below(known.len())];
            let from = rng.below(other.len() + 1);
            let len = rng.below(other.len() - from + 1);
            let until = (at + rng.below(len + 1)).min(input.len());
            drop(input.splice(at..until, other[from..from + len].iter().copied()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_for_ever() {
        let mut rng = Rng::new(1);
        // The first outputs of the reference implementation for this seed.
        let first = [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67];
        assert_eq!([rng.word(), rng.word()], first);
    }
}
