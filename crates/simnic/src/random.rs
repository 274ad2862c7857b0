//! Seeded random numbers of fault rules, caches and hosts. Their
//! streams are pinned: a seed that failed once fails again.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A short stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

/// The output function of SplitMix64: spreads the bits of `word` over all of the result.
#[inline]
pub(crate) fn mix(word: u64) -> u64 {
    SplitMix64::seed_from_u64(word.wrapping_sub(0x9e37_79b9_7f4a_7c15)).next_u64()
}

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// The stream of the decision that `key` identifies.
    pub fn of(seed: u64, key: &[u64]) -> Self {
        let first = |seed| Self::new(seed).bits();
        Self::new(
            key.iter()
                .fold(seed, |seed, word| first(seed ^ first(*word))),
        )
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `lowest` to `highest`, both included.
    pub fn within(&mut self, lowest: u64, highest: u64) -> u64 {
        lowest + self.below(highest.saturating_sub(lowest).saturating_add(1))
    }

    /// True with probability 1/`times`; false if `times` is 0.
    pub fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// An element of `list`, which must not be empty.
    pub fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        // The first outputs of the reference implementation.
        let mut random = Random::new(1);
        let drawn = [random.bits(), random.bits()];
        assert_eq!(drawn, [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67]);
        assert_eq!(Random::of(7, &[1, 2, 3]).bits(), 0x1a50_8b8d_b63a_61e3);
        assert_eq!(mix(5), 0xb6bf_613d_bebb_45dc);
    }

    #[test]
    fn draws_stay_in_range_and_reach_both_ends() {
        let mut random = Random::of(3, &[1, 2]);
        let drawn: Vec<u64> = (0..1000).map(|_| random.within(2, 5)).collect();
        assert!(drawn.iter().all(|one| (2..=5).contains(one)));
        assert!((2..=5).all(|one| drawn.contains(&one)));
        assert_eq!(random.below(0), 0);
        assert!(!random.once_in(0) && random.once_in(1));
    }
}
