//! Seeded random numbers, and maps that hash with them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub use headworks::sim::faults::{Random, mix};

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
