//! Keys whose popularity follows Zipf's law.
//!
//! As in YCSB's "scrambled Zipfian", a rank is drawn with exponent 0.99 from 10^10 ranks, by the formula of Gray and
//! others ("Quickly generating billion-record synthetic databases", SIGMOD 1994, section 3.2). FNV-1a hashes it into
//! the records. Popular ones therefore lie all over the table, and their popularity does not depend on its size.

use crate::random::Random;

/// YCSB's exponent.
const EXPONENT: f64 = 0.99;
/// YCSB's number of ranks.
const RANKS: u64 = 10_000_000_000;

/// Draws records. Some 40 ns each: draw them before anything is measured.
#[derive(Clone, Debug)]
pub struct Zipf {
    random: Random,
    records: u64,
    /// Sum of all ranks' weights, 1/rank^[`EXPONENT`].
    total: f64,
    /// The formula's η.
    eta: f64,
}

impl Zipf {
    /// Of `records` records, at least 1.
    pub fn new(seed: u64, records: u64) -> Self {
        let total = weights(RANKS);
        let eta = (1.0 - (2.0 / RANKS as f64).powf(1.0 - EXPONENT)) / (1.0 - weights(2) / total);
        Self {
            random: Random::new(seed),
            records: records.max(1),
            total,
            eta,
        }
    }

    /// The next record.
    pub fn record(&mut self) -> u64 {
        scramble(self.rank()) % self.records
    }

    /// The next rank, from 0, the most popular one.
    fn rank(&mut self) -> u64 {
        let uniform = self.random.unit();
        let weight = uniform * self.total;
        if weight < 1.0 {
            return 0;
        }
        if weight < weights(2) {
            return 1;
        }
        let share = self.eta * uniform - self.eta + 1.0;
        let rank = (RANKS as f64 * share.powf(1.0 / (1.0 - EXPONENT))) as u64;
        rank.min(RANKS - 1)
    }
}

/// Sum of 1/rank^[`EXPONENT`] over the first so many ranks: one by one at first, the rest as the
/// integral with the first terms of Euler and Maclaurin's correction.
fn weights(ranks: u64) -> f64 {
    const ONE_BY_ONE: u64 = 10_000;
    let weight = |rank: f64| rank.powf(-EXPONENT);
    let first = (1..=ranks.min(ONE_BY_ONE)).map(|rank| weight(rank as f64));
    let first: f64 = first.sum();
    if ranks <= ONE_BY_ONE {
        return first;
    }
    let (from, to) = (ONE_BY_ONE as f64, ranks as f64);
    let integral = |rank: f64| rank.powf(1.0 - EXPONENT) / (1.0 - EXPONENT);
    let slope = |rank: f64| -EXPONENT * weight(rank) / rank;
    first + integral(to) - integral(from)
        + (weight(to) - weight(from)) / 2.0
        + (slope(to) - slope(from)) / 12.0
}

/// FNV-1a of the number's bytes.
pub(super) fn scramble(number: u64) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let bytes = number.to_le_bytes().into_iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that `found` is `expected`, but for a part of it.
    fn assert_near(found: f64, expected: f64, part: f64) {
        let near = (found / expected - 1.0).abs() < part;
        assert!(near, "{found} instead of {expected}");
    }

    #[test]
    fn sums_are_those_of_the_benchmark() {
        // The constant that YCSB has for 10^10 ranks.
        assert_near(weights(RANKS), 26.469_028_201_783_02, 1e-8);
        let weight = |rank: u32| f64::from(rank).powf(-EXPONENT);
        assert_near(weights(30_000), (1..=30_000).map(weight).sum(), 1e-11);
        assert_near(weights(2), 1.503_477_8, 1e-7);
    }

    #[test]
    fn hashes_are_those_of_fnv() {
        // FNV-1a of eight zero bytes.
        assert_eq!(scramble(0), 0xa8c7_f832_281a_39c5);
        assert_ne!(scramble(1), scramble(1 << 56));
    }

    #[test]
    fn ranks_are_as_frequent_as_zipf_has_it() {
        let mut zipf = Zipf::new(3, 1000);
        let (draws, mut seen, mut beyond) = (400_000, [0u32; 100], 0);
        for _ in 0..draws {
            let rank = zipf.rank();
            assert!(rank < RANKS);
            match seen.get_mut(rank as usize) {
                Some(count) => *count += 1,
                None => beyond += u32::from(rank > 1_000_000),
            }
        }
        let share = |count: u32| f64::from(count) / f64::from(draws) * weights(RANKS);
        // The two most popular are drawn exactly, the others by a formula that is nearly right.
        assert_near(share(seen[0]), 1.0, 0.05);
        assert_near(share(seen[1]), 2f64.powf(-EXPONENT), 0.05);
        assert_near(share(seen.iter().sum()), weights(100), 0.1);
        let rest = weights(RANKS) - weights(1_000_000);
        assert_near(share(beyond), rest, 0.05);
    }

    #[test]
    fn records_are_the_same_from_the_same_seed_and_all_there() {
        let (mut one, mut same, mut other) = (Zipf::new(1, 7), Zipf::new(1, 7), Zipf::new(2, 7));
        let (mut seen, mut differ) = ([0; 7], 0);
        for _ in 0..10_000 {
            let record = one.record();
            assert_eq!(record, same.record());
            differ += u32::from(record != other.record());
            seen[record as usize] += 1;
        }
        assert!(seen.iter().all(|count| *count > 500), "{seen:?}");
        assert!(differ > 1000);
        assert_eq!(Zipf::new(1, 0).record(), 0);
    }
}
