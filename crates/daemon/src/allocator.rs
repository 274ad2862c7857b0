//! Buddy allocator for the slabs of a session, pure. The length of an extent is a power of two, and its
//! offset is a multiple of its length.

use std::collections::{BTreeMap, BTreeSet};

use headworks_client::Extent;

/// Binary logarithm of the shortest extent's length: 256 bytes, the shortest ring.
pub const LEAST_LOG: u32 = 8;

/// Allocator over several slabs.
#[derive(Debug, Default)]
pub struct ExtentAllocator {
    /// Free extents as (slab, offset), by the binary logarithm of their length.
    free: BTreeMap<u32, BTreeSet<(u32, u64)>>,
    /// Binary logarithm of each slab's length.
    slabs: BTreeMap<u32, u32>,
    in_use: u64,
}

/// Returns the binary logarithm of the shortest extent that holds `bytes`; at least [`LEAST_LOG`].
pub fn log_of(bytes: u32) -> u32 {
    bytes
        .max(1)
        .next_power_of_two()
        .trailing_zeros()
        .max(LEAST_LOG)
}

impl ExtentAllocator {
    /// Adds a slab of `2^log` bytes, all of it free.
    pub fn add(&mut self, slab: u32, log: u32) {
        self.slabs.insert(slab, log);
        self.free.entry(log).or_default().insert((slab, 0));
    }

    /// Allocates `2^log` bytes. Returns `None` if no slab has that much in one piece.
    pub fn take(&mut self, log: u32) -> Option<Extent> {
        debug_assert!((LEAST_LOG..32).contains(&log));
        let from = self.free.range(log..).find(|(_, free)| !free.is_empty());
        let (mut of, mut place) =
            from.map(|(of, free)| (*of, *free.first().expect("not empty")))?;
        self.forget(of, place);
        while of > log {
            of -= 1;
            // The upper half stays free.
            let upper = (place.0, place.1 + (1 << of));
            self.free.entry(of).or_default().insert(upper);
        }
        self.in_use += 1 << log;
        place.1 &= !((1 << log) - 1);
        Some(Extent {
            slab: place.0,
            len: 1 << log,
            offset: place.1,
        })
    }

    fn forget(&mut self, log: u32, place: (u32, u64)) -> bool {
        self.free
            .get_mut(&log)
            .is_some_and(|free| free.remove(&place))
    }

    /// Frees an extent, which must be allocated. The caller must first check an extent that an application
    /// names.
    pub fn give(&mut self, extent: Extent) {
        let whole = self.slabs.get(&extent.slab).copied().unwrap_or(0);
        let mut log = extent.len.trailing_zeros();
        self.in_use -= u64::from(extent.len);
        let mut offset = extent.offset;
        while log < whole && self.forget(log, (extent.slab, offset ^ 1 << log)) {
            offset &= !(1 << log);
            log += 1;
        }
        let is_new = self
            .free
            .entry(log)
            .or_default()
            .insert((extent.slab, offset));
        debug_assert!(is_new, "freed twice");
    }

    /// Total length of the allocated extents, in bytes.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// Total length of all slabs, in bytes.
    pub fn bytes(&self) -> u64 {
        self.slabs.values().map(|log| 1 << log).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stretches_do_not_overlap_and_come_together_again(
            acts in proptest::collection::vec((any::<bool>(), 8u32..15, any::<usize>()), 0..300),
        ) {
            let mut pool = ExtentAllocator::default();
            pool.add(0, 14);
            pool.add(5, 13);
            let mut taken: Vec<Extent> = Vec::new();
            for (take, log, qp_role) in acts {
                if take {
                    let Some(new) = pool.take(log) else { continue };
                    prop_assert_eq!(new.len, 1 << log);
                    prop_assert_eq!(new.offset % u64::from(new.len), 0);
                    let whole = if new.slab == 0 { 1 << 14 } else { 1 << 13 };
                    prop_assert!(new.offset + u64::from(new.len) <= whole);
                    for old in taken.iter().filter(|old| old.slab == new.slab) {
                        let apart = old.offset + u64::from(old.len) <= new.offset
                            || new.offset + u64::from(new.len) <= old.offset;
                        prop_assert!(apart, "{:?} {:?}", old, new);
                    }
                    taken.push(new);
                } else if !taken.is_empty() {
                    let at = qp_role % taken.len();
                    pool.give(taken.swap_remove(at));
                }
                let sum: u64 = taken.iter().map(|one| u64::from(one.len)).sum();
                prop_assert_eq!(pool.in_use(), sum);
            }
            taken.into_iter().for_each(|one| pool.give(one));
            prop_assert!(pool.take(14).is_some() && pool.take(13).is_some());
            prop_assert!(pool.take(LEAST_LOG).is_none());
        }
    }

    #[test]
    fn lengths_are_rounded_up() {
        assert_eq!([0, 1, 512, 513, 4096].map(log_of), [8, 8, 9, 10, 12]);
    }
}
