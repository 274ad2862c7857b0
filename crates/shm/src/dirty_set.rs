//! Dirty set: a two-level bitmap in shared memory. Any number of processes insert numbers, and one takes
//! all of them out, in time that depends on how many were inserted and not on how many are possible.
//!
//! The lower level has one bit for each number, the upper level one for each word of the lower. Inserting
//! sets the lower bit, then the upper one. Draining clears an upper word, then the lower words that it
//! names. So a number whose upper bit is not set yet is found by a later drain, and a drain that takes a
//! number sees what was stored before its [`DirtySet::insert`]. A process killed between the two steps
//! leaves a lower bit that is drained with the next number inserted into the same word. The caller of
//! [`DirtySet::drain`] must ignore numbers that have no meaning.

use crate::primitive::{AtomicU64, Ordering};

/// Numbers covered by one word of the upper level.
const NUMBERS_PER_UPPER_WORD: usize = 64 * 64;

/// The set, over borrowed words; all words are zero when it is empty.
#[derive(Clone, Copy, Debug)]
pub struct DirtySet<'m> {
    upper: &'m [AtomicU64],
    lower: &'m [AtomicU64],
}

impl<'m> DirtySet<'m> {
    /// Returns the number of words that a set of numbers below `count` takes.
    pub const fn word_count(count: usize) -> usize {
        Self::upper_words(count) + count.div_ceil(64)
    }

    const fn upper_words(count: usize) -> usize {
        count.div_ceil(NUMBERS_PER_UPPER_WORD)
    }

    /// Returns the set of numbers below `count` over the first [`word_count`](Self::word_count) of
    /// `words`; `None` if there are fewer.
    #[inline]
    pub fn from_words(words: &'m [AtomicU64], count: usize) -> Option<Self> {
        let words = words.get(..Self::word_count(count))?;
        let (upper, lower) = words.split_at(Self::upper_words(count));
        Some(Self { upper, lower })
    }

    /// Inserts `number`; ignores one that is too large.
    #[inline]
    pub fn insert(&self, number: usize) {
        let at = number / 64;
        let Some(word) = self.lower.get(at) else {
            return;
        };
        // Both pair with the swaps in `drain`.
        word.fetch_or(1 << (number % 64), Ordering::Release);
        self.upper[at / 64].fetch_or(1 << (at % 64), Ordering::Release);
    }

    /// Takes all numbers out and calls `each` for every one.
    #[inline]
    pub fn drain(&self, mut each: impl FnMut(usize)) {
        for (group, upper) in self.upper.iter().enumerate() {
            if upper.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // The upper word is cleared first: an insert after the lower word is cleared sets it again.
            for at in bits(upper.swap(0, Ordering::Acquire)) {
                let at = group * 64 + at;
                let Some(word) = self.lower.get(at) else {
                    continue;
                };
                for bit in bits(word.swap(0, Ordering::Acquire)) {
                    each(at * 64 + bit);
                }
            }
        }
    }

    /// Returns whether a drain would find nothing. It does not see an insert that has not set its upper
    /// bit yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.upper
            .iter()
            .all(|word| word.load(Ordering::Relaxed) == 0)
    }
}

/// Iterates over the numbers of the set bits, ascending.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn zeros(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    proptest! {
        #[test]
        fn inserted_numbers_are_held_until_drained(
            count in 1usize..10_000,
            numbers in proptest::collection::vec((any::<bool>(), 0usize..12_000), 0..200),
        ) {
            let words = zeros(DirtySet::word_count(count));
            let dirty = DirtySet::from_words(&words, count).unwrap();
            let mut oracle = BTreeSet::new();
            for (is_set, number) in numbers {
                if is_set {
                    dirty.insert(number);
                    // The last word has bits for some numbers beyond `count`.
                    if number < count.div_ceil(64) * 64 {
                        oracle.insert(number);
                    }
                } else {
                    let mut taken = Vec::new();
                    dirty.drain(|number| taken.push(number));
                    prop_assert!(taken.iter().eq(oracle.iter()));
                    oracle.clear();
                }
                prop_assert_eq!(dirty.is_empty(), oracle.is_empty());
            }
        }

        #[test]
        fn any_bits_are_numbers_in_range(bits in proptest::collection::vec(any::<u64>(), 5)) {
            let words: Vec<_> = bits.into_iter().map(AtomicU64::new).collect();
            let dirty = DirtySet::from_words(&words, 200).unwrap();
            dirty.drain(|number| assert!(number < 256));
        }
    }

    #[test]
    fn too_few_words_are_no_set() {
        assert!(DirtySet::from_words(&zeros(4), 200).is_none());
        assert!(DirtySet::from_words(&zeros(5), 200).is_some());
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Two threads insert, into one word or into two. Checks that no number is lost, and that the thread
    /// that takes a number sees what was stored before.
    fn check(numbers: [usize; 2]) {
        loom::model(move || {
            let words = || (0..3).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
            let shared = Arc::new((words(), [AtomicU64::new(0), AtomicU64::new(0)]));
            let markers = [0, 1].map(|who| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (words, stored) = &*shared;
                    stored[who].store(1, Ordering::Relaxed);
                    DirtySet::from_words(words, 128)
                        .unwrap()
                        .insert(numbers[who]);
                })
            });
            let mut taken = Vec::new();
            let mut take = |shared: &(Vec<AtomicU64>, [AtomicU64; 2])| {
                DirtySet::from_words(&shared.0, 128)
                    .unwrap()
                    .drain(|number| {
                        let who = usize::from(number == numbers[1]);
                        assert_eq!(shared.1[who].load(Ordering::Relaxed), 1, "not seen");
                        taken.push(number);
                    });
            };
            take(&shared);
            for marker in markers {
                marker.join().unwrap();
            }
            take(&shared);
            taken.sort_unstable();
            assert_eq!(taken, numbers);
        });
    }

    #[test]
    fn loom_numbers_of_one_word_are_drained_once() {
        check([3, 5]);
    }

    #[test]
    fn loom_numbers_of_two_words_are_drained_once() {
        check([3, 70]);
    }
}
