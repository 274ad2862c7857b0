//! Seeded random numbers, identical on every machine.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Random number generator: SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Random(pub(crate) SplitMix64);

impl Random {
    /// Makes the generator of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// Returns the next 64 random bits.
    #[inline]
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a random number below `limit`; 0 if `limit` is 0.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns a random number from 0 (inclusive) to 1 (exclusive).
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Mixes the bits of a word: the output function of SplitMix64. A bijection.
#[inline]
pub fn mix(word: u64) -> u64 {
    SplitMix64::seed_from_u64(word.wrapping_sub(0x9E37_79B9_7F4A_7C15)).next_u64()
}

/// A map whose keys hash as one word, with look-ups of a few instructions. Its hash is not keyed, so it is
/// only for keys that no adversary chooses, or where slow look-ups do no harm.
pub(crate) type MixedMap<K, V> = HashMap<K, V, BuildHasherDefault<Mixed>>;

/// The hasher of a [`MixedMap`].
#[derive(Clone, Default)]
pub(crate) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0 ^ word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        let mut random = Random::new(1_234_567);
        let numbers = [(); 3].map(|()| random.word());
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(numbers, published);
        assert_eq!(mix(5), 0xb6bf_613d_bebb_45dc);
        let mut random = Random::new(7);
        assert_eq!([(); 4].map(|()| random.below(10)), [3, 0, 9, 5]);
        assert_eq!(Random::new(7).unit(), 0.389_829_748_391_271_5);
    }

    #[test]
    fn ranges_are_kept() {
        let mut random = Random::new(7);
        for limit in [0, 1, 2, 10, u64::MAX] {
            for _ in 0..100 {
                assert!(random.below(limit) < limit.max(1));
                assert!((0.0..1.0).contains(&random.unit()));
            }
        }
    }
}
