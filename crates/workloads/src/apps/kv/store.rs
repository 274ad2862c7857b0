//! The table: every key with a value of 112 bytes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::zipf::scramble;
use crate::random::mix;

/// Bytes of a value.
pub const VALUE: usize = 112;
/// A value.
pub type Value = [u8; VALUE];

/// The key of record `record`: hashed, as YCSB's keys are, so that neighbours are none.
#[inline]
pub fn key_of(record: u64) -> u64 {
    scramble(record)
}

/// The value of a key: whoever knows the key can tell whether it is right.
#[inline]
pub fn value_of(key: u64) -> Value {
    let mut value = [0; VALUE];
    for (at, word) in value.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_of(key, at as u64).to_le_bytes());
    }
    value
}

#[inline]
fn word_of(key: u64, at: u64) -> u64 {
    (key ^ at << 56)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(29)
        ^ key
}

/// Whether `value` is [`value_of`] `key`.
#[inline]
pub fn is_value_of(value: &Value, key: u64) -> bool {
    let words = value.chunks_exact(8).enumerate();
    let wrong = words.fold(0, |wrong, (at, chunk)| {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        wrong | (u64::from_le_bytes(word) ^ word_of(key, at as u64))
    });
    wrong == 0
}

/// A table of records. The values lie one behind the other, and an index says where.
#[derive(Clone)]
pub struct Store {
    index: HashMap<u64, u32, BuildHasherDefault<Mixed>>,
    values: Vec<Value>,
}

impl Store {
    /// With the records 0 up to `records`, which is at most 2^32.
    pub fn of(records: u64) -> Self {
        let records = records.min(1 << 32);
        let keys = || (0..records).map(key_of);
        Self {
            index: keys().zip(0..).collect(),
            values: keys().map(value_of).collect(),
        }
    }

    /// The value of a key, if there is one.
    #[inline]
    pub fn get(&self, key: u64) -> Option<&Value> {
        self.values.get(*self.index.get(&key)? as usize)
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("len", &self.len()).finish()
    }
}

/// Hashes a key of eight bytes in a few instructions. Not keyed: for tables that nobody attacks.
#[derive(Default)]
struct Mixed(u64);

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
    fn every_record_is_found_and_nothing_else() {
        let store = Store::of(10_000);
        assert_eq!((store.len(), store.is_empty()), (10_000, false));
        for record in 0..10_000 {
            let key = key_of(record);
            let value = store.get(key).expect("a record");
            assert_eq!(*value, value_of(key));
            assert!(is_value_of(value, key));
            assert!(!is_value_of(value, key_of(record + 1)));
        }
        for record in 10_000..20_000 {
            assert_eq!(store.get(key_of(record)), None);
        }
    }

    #[test]
    fn a_value_with_one_wrong_bit_is_wrong() {
        for bit in 0..VALUE * 8 {
            let mut value = value_of(9);
            value[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_value_of(&value, 9), "bit {bit}");
        }
    }
}
