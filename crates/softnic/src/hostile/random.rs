//! Seeded random numbers of fault rules. Their streams are pinned: a seed that failed once fails again, also
//! with the next version.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A short stream of random numbers. Every decision has its own stream, so the draws of one rule do not
/// shift those of another.
#[derive(Clone, Debug)]
pub struct Chance(SplitMix64);

/// Increment that SplitMix64 adds to its state before each output.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64.
fn mix(word: u64) -> u64 {
    SplitMix64::seed_from_u64(word.wrapping_sub(GOLDEN)).next_u64()
}

impl Chance {
    /// Makes the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// Makes the stream of the decision that `key` identifies.
    pub fn of(seed: u64, key: &[u64]) -> Self {
        let fold = |state: u64, word: &u64| mix(state.wrapping_add(GOLDEN) ^ mix(*word));
        Self::new(key.iter().fold(mix(seed), fold))
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `lowest` to `highest`, both included.
    pub fn within(&mut self, lowest: u32, highest: u32) -> u32 {
        let span = u64::from(highest.saturating_sub(lowest)) + 1;
        lowest + self.below(span) as u32
    }

    /// Returns true with probability 1/`times`; false if `times` is 0.
    pub fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// Shuffles `list`.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        let mut chance = Chance::new(1);
        let drawn = [chance.bits(), chance.bits()];
        // The first outputs of the reference implementation.
        assert_eq!(drawn, [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67]);
        assert_eq!(Chance::of(7, &[1, 2, 3]).bits(), 0x3f2a_3084_ecfd_f0c1);
        let mut order: Vec<u8> = (0..8).collect();
        Chance::of(7, &[1, 2, 3]).shuffle(&mut order);
        assert_eq!(order, PINNED);
    }

    const PINNED: [u8; 8] = [7, 2, 4, 0, 5, 6, 3, 1];

    #[test]
    fn draws_stay_in_range_and_reach_both_ends() {
        let mut chance = Chance::new(3);
        let drawn: Vec<u32> = (0..1000).map(|_| chance.within(2, 5)).collect();
        assert!(drawn.iter().all(|one| (2..=5).contains(one)));
        assert!((2..=5).all(|one| drawn.contains(&one)));
        assert_eq!(chance.below(0), 0);
        assert!(!chance.once_in(0));
        assert!(chance.once_in(1));
    }
}
