//! An RNIC's caches: which entries of the tables in host memory are on the chip. Pure.

use headworks_faults::{Random, mix};

/// Replacement policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The least recently used entry is replaced.
    LeastRecent,
    /// A random entry is replaced.
    Random,
}

/// Mapping of keys to sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Index {
    /// By its low bits: neighbouring keys are in neighbouring sets.
    Low,
    /// By a hash: sets fill unevenly.
    Hashed,
}

/// A set-associative cache of keys; key 0 is a free entry.
#[derive(Debug)]
pub(crate) struct Cache {
    ways: usize,
    sets: u64,
    /// Keys, set after set. With [`Policy::LeastRecent`] the most recently used of a set is first.
    keys: Vec<u64>,
    policy: Policy,
    index: Index,
    random: Random,
}

impl Cache {
    /// Creates a cache of `entries`, rounded down to whole
    /// sets (at least one). With 0 entries it never misses.
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

    /// Returns the index in `keys` at which a key's set begins.
    #[inline]
    fn set_of(&self, key: u64) -> usize {
        let index = match self.index {
            Index::Low => key % self.sets,
            // The hash as a fraction of one, times the sets.
            Index::Hashed => ((u128::from(mix(key)) * u128::from(self.sets)) >> 64) as u64,
        };
        index as usize * self.ways
    }

    /// Whether it is unlimited and never misses.
    #[inline(always)]
    pub(crate) fn is_endless(&self) -> bool {
        self.keys.is_empty()
    }

    /// Uses the entry of `key`, which must not be 0, and adds
    /// it if it is missing. Returns whether it was there.
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

    /// Removes an entry. Returns whether it was there.
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

    /// Counts the misses of twenty rounds over all keys.
    fn misses(policy: Policy, index: Index, entries: u64, keys: u64) -> usize {
        let mut cache = Cache::new(entries, 8, policy, index, 1);
        let uses = (0..20).flat_map(|_| 1..=keys);
        uses.filter(|key| !cache.touch(*key)).count()
    }

    #[test]
    fn a_fitting_working_set_misses_only_once_per_entry() {
        for policy in [Policy::LeastRecent, Policy::Random] {
            assert_eq!(misses(policy, Index::Low, 512, 512), 512);
            // Sets fill unevenly, so only a small share of the entries can be used without misses.
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
    fn the_least_recent_entry_is_evicted_first() {
        let mut cache = Cache::new(2, 2, Policy::LeastRecent, Index::Low, 1);
        assert!(!cache.touch(1) && !cache.touch(2) && cache.touch(1));
        assert!(!cache.touch(3));
        assert!(cache.touch(1) && !cache.touch(2));
        cache.forget(1);
        assert!(!cache.touch(1));
    }
}
