//! Random numbers of which every decision has its own: a seed that failed once fails again.

use crate::cache::Chance as Stream;

/// A short stream of random numbers.
#[derive(Clone, Debug)]
pub struct Chance(Stream);

impl Chance {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Stream::new(seed))
    }

    /// The stream of a decision: which one it is, is said by `key`.
    pub fn of(seed: u64, key: &[u64]) -> Self {
        let fold = |state: u64, word: &u64| {
            let word = Stream::new(*word).next();
            Stream::new(state ^ word).next()
        };
        Self::new(key.iter().fold(seed, fold))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next()
    }

    /// One of 0 up to `bound`, without `bound` itself; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// One of `lowest` to `highest`, both included.
    pub fn within(&mut self, lowest: u64, highest: u64) -> u64 {
        lowest + self.below(highest.saturating_sub(lowest).saturating_add(1))
    }

    /// Yes, once in so many times on average; never for 0.
    pub fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// One of a list, which has some.
    pub fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        // The first outputs of SplitMix64 from 1, as everybody's.
        let mut chance = Chance::new(1);
        let drawn = [chance.bits(), chance.bits()];
        assert_eq!(drawn, [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67]);
    }

    #[test]
    fn what_is_drawn_lies_in_its_range_and_reaches_its_ends() {
        let mut chance = Chance::of(3, &[1, 2]);
        let drawn: Vec<u64> = (0..1000).map(|_| chance.within(2, 5)).collect();
        assert!(drawn.iter().all(|one| (2..=5).contains(one)));
        assert!((2..=5).all(|one| drawn.contains(&one)));
        assert_eq!(chance.below(0), 0);
        assert!(!chance.once_in(0) && chance.once_in(1));
    }
}
