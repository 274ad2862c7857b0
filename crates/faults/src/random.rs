//! Seeded random numbers, identical on every machine. Their streams are pinned: a seed that failed once fails again, also
//! with the next version.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A stream of random numbers: SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

/// The output function of SplitMix64: spreads the bits of `word` over all of the result. A bijection.
#[inline]
pub fn mix(word: u64) -> u64 {
    SplitMix64::seed_from_u64(word.wrapping_sub(0x9e37_79b9_7f4a_7c15)).next_u64()
}

impl Random {
    /// Makes the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// Makes the stream of the decision that `key` identifies, so that the draws of one decision do not shift those of another.
    pub fn of(seed: u64, key: &[u64]) -> Self {
        Self::of_words(seed, key.iter().copied())
    }

    /// Makes the stream of the decision that the words of `key` identify.
    pub(crate) fn of_words(seed: u64, key: impl Iterator<Item = u64>) -> Self {
        let first = |seed| Self::new(seed).bits();
        Self::new(key.fold(seed, |seed, word| first(seed ^ first(word))))
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `lowest` to `highest`, both included.
    pub fn within(&mut self, lowest: u64, highest: u64) -> u64 {
        lowest + self.below(highest.saturating_sub(lowest).saturating_add(1))
    }

    /// Returns a number from `lowest` to `highest`, both included.
    pub fn within_u32(&mut self, lowest: u32, highest: u32) -> u32 {
        // The number is not above `highest`, or is `lowest`.
        self.within(lowest.into(), highest.into()) as u32
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
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

    /// Returns the generator itself, for crates that draw from one.
    pub fn generator(&mut self) -> &mut SplitMix64 {
        &mut self.0
    }

    /// Returns the generator itself, in its present state.
    pub fn into_generator(self) -> SplitMix64 {
        self.0
    }

    /// Returns an element of `list`, which must not be empty.
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
        let mut order: Vec<u8> = (0..8).collect();
        Random::of(7, &[1, 2, 3]).shuffle(&mut order);
        assert_eq!(order, [5, 7, 3, 1, 2, 4, 6, 0]);
        let mut random = Random::new(7);
        assert_eq!([(); 4].map(|()| random.below(10)), [3, 0, 9, 5]);
        assert_eq!(Random::new(7).unit(), 0.389_829_748_391_271_5);
    }

    #[test]
    fn draws_stay_in_range_and_reach_both_ends() {
        let mut random = Random::of(3, &[1, 2]);
        let drawn: Vec<u64> = (0..1000).map(|_| random.within(2, 5)).collect();
        assert!(drawn.iter().all(|one| (2..=5).contains(one)));
        assert!((2..=5).all(|one| drawn.contains(&one)));
        let drawn: Vec<u32> = (0..1000).map(|_| random.within_u32(2, 5)).collect();
        assert!((2..=5).all(|one| drawn.contains(&one)));
        assert!((0..100).all(|_| (0.0..1.0).contains(&random.unit())));
        assert_eq!(random.below(0), 0);
        assert!(!random.once_in(0) && random.once_in(1));
    }
}
