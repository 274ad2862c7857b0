//! Random numbers that mean the same for ever: a seed that failed once fails again, also with the
//! next version.

/// A short stream of random numbers, of which every decision gets one of its own: what one rule
/// draws moves no other.
#[derive(Clone, Debug)]
pub struct Chance(u64);

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Chance {
    /// The stream of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The stream of a decision: which one it is, is said by `key`.
    pub fn of(seed: u64, key: &[u64]) -> Self {
        let fold = |state: u64, word: &u64| mix(state.wrapping_add(GOLDEN) ^ mix(*word));
        Self(key.iter().fold(mix(seed), fold))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// One of 0 up to `bound`, without `bound` itself; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// One of `lowest` to `highest`, both included.
    pub fn within(&mut self, lowest: u32, highest: u32) -> u32 {
        let span = u64::from(highest.saturating_sub(lowest)) + 1;
        lowest + self.below(span) as u32
    }

    /// Yes, once in so many times on average; never for 0.
    pub fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// Puts a list into any order.
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
        // The first outputs of SplitMix64 from 1, as everybody's.
        assert_eq!(drawn, [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67]);
        let mut order: Vec<u8> = (0..8).collect();
        Chance::of(7, &[1, 2, 3]).shuffle(&mut order);
        assert_eq!(order, PINNED);
    }

    const PINNED: [u8; 8] = [7, 2, 4, 0, 5, 6, 3, 1];

    #[test]
    fn what_is_drawn_lies_in_its_range_and_reaches_its_ends() {
        let mut chance = Chance::new(3);
        let drawn: Vec<u32> = (0..1000).map(|_| chance.within(2, 5)).collect();
        assert!(drawn.iter().all(|one| (2..=5).contains(one)));
        assert!((2..=5).all(|one| drawn.contains(&one)));
        assert_eq!(chance.below(0), 0);
        assert!(!chance.once_in(0));
        assert!(chance.once_in(1));
    }
}
