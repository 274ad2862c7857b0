//! Which of many were touched: a set of numbers in shared memory that any number of processes put numbers
//! into and one takes them all out of, in time that depends on how many there are and not on how many
//! there could be.
//!
//! Two levels of bits: one for each number, and above them one for each word of those. Who marks sets the
//! lower bit and then the upper one; who takes clears the upper word and then the lower ones. So a mark whose
//! upper bit is not set yet is found by the next take, and what was stored before [`DirtySet::insert`] is seen by
//! whoever took the mark. A process killed between the two leaves a mark that the next one of its word takes
//! along; bits that stand for nothing are the taker's to ignore.

use crate::primitive::{AtomicU64, Ordering};

/// Numbers that one word of the upper level stands for.
const NUMBERS_PER_UPPER_WORD: usize = 64 * 64;

/// The set, over words that lie elsewhere, all zero when it is empty.
#[derive(Clone, Copy, Debug)]
pub struct DirtySet<'m> {
    upper: &'m [AtomicU64],
    lower: &'m [AtomicU64],
}

impl<'m> DirtySet<'m> {
    /// Words that a set of numbers below `count` takes.
    pub const fn word_count(count: usize) -> usize {
        Self::upper_words(count) + count.div_ceil(64)
    }

    const fn upper_words(count: usize) -> usize {
        count.div_ceil(NUMBERS_PER_UPPER_WORD)
    }

    /// The set of numbers below `count` in [`words`](Self::word_count) words; `None` where there are fewer.
    #[inline]
    pub fn from_words(words: &'m [AtomicU64], count: usize) -> Option<Self> {
        let words = words.get(..Self::word_count(count))?;
        let (upper, lower) = words.split_at(Self::upper_words(count));
        Some(Self { upper, lower })
    }

    /// Puts `number` in; one that is too large is not.
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

    /// Takes all there are out, and shows them.
    #[inline]
    pub fn drain(&self, mut each: impl FnMut(usize)) {
        for (group, upper) in self.upper.iter().enumerate() {
            if upper.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // The upper word first: whoever marks after the lower one is cleared sets this one again.
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

    /// Whether a take would find nothing, as far as marks are complete.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.upper
            .iter()
            .all(|word| word.load(Ordering::Relaxed) == 0)
    }
}

/// The numbers of the bits that are set, ascending.
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
        fn holds_what_was_inserted_until_drained(
            count in 1usize..10_000,
            numbers in proptest::collection::vec((any::<bool>(), 0usize..12_000), 0..200),
        ) {
            let words = zeros(DirtySet::word_count(count));
            let dirty = DirtySet::from_words(&words, count).unwrap();
            let mut oracle = BTreeSet::new();
            for (is_set, number) in numbers {
                if is_set {
                    dirty.insert(number);
                    // The last word may stand for some more.
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

    /// Two mark, of one word or of two, and what they stored before is seen by whoever takes the mark;
    /// none is lost.
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
