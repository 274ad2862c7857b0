//! The caches of an RNIC: which entries of the host's tables are on the chip. Pure.

use crate::random::{Random, mix};

/// Which entry goes when there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The one that was not used for longest.
    LeastRecent,
    /// Any one.
    Random,
}

/// How a key finds its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Index {
    /// By its low bits: neighbours are in neighbouring sets.
    Low,
    /// By all of them: sets fill unevenly.
    Hashed,
}

/// A set-associative cache of keys; 0 is none.
#[derive(Debug)]
pub(crate) struct Cache {
    ways: usize,
    sets: u64,
    /// Set after set; with [`Policy::LeastRecent`] the most recent of a set first.
    keys: Vec<u64>,
    policy: Policy,
    index: Index,
    random: Random,
}

impl Cache {
    /// One of so many entries, less what makes no whole set. With none, nothing ever misses.
    pub(crate) fn new(entries: u64, ways: usize, policy: Policy, index: Index, seed: u64) -> Self {
        let ways = ways.max(1);
        let sets = match entries {
            0 => 0,
            _ => (entries / ways as u64).max(1),
        };
        Self {
            ways,
            sets,
            keys: vec![0; sets as usize * ways],
            policy,
            index,
            random: Random::new(seed),
        }
    }

    /// Where the set of a key begins.
    #[inline]
    fn set_of(&self, key: u64) -> usize {
        let index = match self.index {
            Index::Low => key % self.sets,
            // The hash as a fraction of one, times the sets.
            Index::Hashed => ((u128::from(mix(key)) * u128::from(self.sets)) >> 64) as u64,
        };
        index as usize * self.ways
    }

    /// Whether it holds everything there ever is.
    #[inline(always)]
    pub(crate) fn is_endless(&self) -> bool {
        self.keys.is_empty()
    }

    /// Uses the entry of `key`, which is not 0: whether it was there. It is afterwards.
    #[inline(always)]
    pub(crate) fn touch(&mut self, key: u64) -> bool {
        self.is_endless() || self.use_entry(key)
    }

    fn use_entry(&mut self, key: u64) -> bool {
        let set = self.set_of(key);
        let set = &mut self.keys[set..set + self.ways];
        match set.iter().position(|found| *found == key) {
            Some(at) => {
                if self.policy == Policy::LeastRecent {
                    set[..=at].rotate_right(1);
                }
                true
            }
            None => {
                let free = set.iter().position(|found| *found == 0);
                match self.policy {
                    Policy::LeastRecent => {
                        set.rotate_right(1);
                        set[0] = key;
                    }
                    Policy::Random => {
                        let at =
                            free.unwrap_or_else(|| self.random.below(self.ways as u64) as usize);
                        set[at] = key;
                    }
                }
                false
            }
        }
    }

    /// Forgets an entry: whether it was there.
    #[inline(always)]
    pub(crate) fn forget(&mut self, key: u64) -> bool {
        self.is_endless() || self.drop_entry(key)
    }

    fn drop_entry(&mut self, key: u64) -> bool {
        let set = self.set_of(key);
        let set = &mut self.keys[set..set + self.ways];
        let found = set.iter_mut().find(|found| **found == key);
        found.is_some_and(|found| std::mem::take(found) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of twenty rounds of uses miss.
    fn misses(policy: Policy, index: Index, entries: u64, keys: u64) -> usize {
        let mut cache = Cache::new(entries, 8, policy, index, 1);
        let uses = (0..20).flat_map(|_| 1..=keys);
        uses.filter(|key| !cache.touch(*key)).count()
    }

    #[test]
    fn what_fits_misses_once_and_what_does_not_again_and_again() {
        for policy in [Policy::LeastRecent, Policy::Random] {
            assert_eq!(misses(policy, Index::Low, 512, 512), 512);
            // Sets fill unevenly, so not to the brim.
            assert_eq!(
                misses(policy, Index::Hashed, 1 << 14, 256),
                256,
                "{policy:?}"
            );
            let full = misses(policy, Index::Hashed, 512, 512);
            assert!((1024..8192).contains(&full), "{policy:?}: {full}");
            for index in [Index::Low, Index::Hashed] {
                let missed = misses(policy, index, 512, 4096);
                assert!(missed > 20 * 4096 * 8 / 10, "{policy:?}: {missed}");
            }
        }
    }

    #[test]
    fn a_cache_of_no_entries_is_one_that_has_all() {
        let mut cache = Cache::new(0, 4, Policy::LeastRecent, Index::Low, 1);
        assert!((1..1000).all(|key| cache.touch(key)));
    }

    #[test]
    fn the_least_recent_goes_first_and_what_is_forgotten_misses() {
        let mut cache = Cache::new(2, 2, Policy::LeastRecent, Index::Low, 1);
        assert!(!cache.touch(1) && !cache.touch(2) && cache.touch(1));
        assert!(!cache.touch(3));
        assert!(cache.touch(1) && !cache.touch(2));
        cache.forget(1);
        assert!(!cache.touch(1));
    }
}
