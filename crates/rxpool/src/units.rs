//! Free memory of the pool: a slab allocator over units of 4 KiB (section 4.2). Pure.
//!
//! A block is 64 units, and an extent lies within a block. The free units of a block are the bits of one word. Blocks
//! are in lists by the longest run of free units that they have, in powers of two. Within a list the block that
//! changed most recently is first. So extents are taken where memory was used last, and the pool's footprint in the
//! processor's cache is about what is in use at the same time, not the pool's size. For extents of one size, a power
//! of two of units, that are released whole, it is exactly that, rounded up to blocks.
//!
//! # Fragmentation
//!
//! Units are released one by one, in any order. So free units may lie apart. [`FreeUnits::take`] of `n` units, rounded
//! up to the power of two `p`, succeeds whenever some block has `p` free units in a row. In the worst case `64 / p`
//! units in use in each block prevent that, however many units are free: for an extent of 256 KiB one unit in each
//! block, for a single unit all of them. [`FreeUnits::take_up_to`] fails only if nothing is free. So a caller that
//! takes several extents in place of one gets all free memory, however it lies.

use std::ops::Range;

/// Bytes of a unit: the granularity of the pool.
pub const UNIT: u32 = 4096;
/// Units of a block, and of the longest extent.
pub const UNITS_MAX: u32 = u64::BITS;
/// Bytes of the longest extent: 262,144. The paper's fragments are no longer (section 4.1.2).
pub const EXTENT_MAX: u32 = UNITS_MAX * UNIT;
/// Greatest number of units of a pool: 4 GiB.
pub const POOL_UNITS_MAX: u32 = 1 << 20;

/// Adjacent units of the pool's memory, within one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolExtent {
    /// Number of the first unit.
    pub first: u32,
    /// Number of units, 1 to [`UNITS_MAX`].
    pub units: u32,
}

impl PoolExtent {
    /// Offset in the pool's memory, in bytes.
    #[inline]
    pub fn offset(self) -> u64 {
        u64::from(self.first) * u64::from(UNIT)
    }

    /// Length in bytes.
    #[inline]
    pub fn len(self) -> u32 {
        self.units * UNIT
    }

    /// Always `false`: an extent has at least one unit.
    pub fn is_empty(self) -> bool {
        false
    }

    /// Returns the `units` units from the `from`th on, counted within the extent, or `None` if it does not have them.
    #[must_use]
    #[inline]
    pub fn part(self, from: u32, units: u32) -> Option<Self> {
        let fits = units > 0 && from <= self.units && units <= self.units - from;
        fits.then(|| Self {
            first: self.first + from,
            units,
        })
    }

    /// Whether the extent lies within one block.
    #[inline]
    fn is_valid(self) -> bool {
        let from = self.first % UNITS_MAX;
        (1..=UNITS_MAX - from).contains(&self.units)
    }

    #[inline]
    fn block(self) -> usize {
        (self.first / UNITS_MAX) as usize
    }

    /// The units as bits of their block's word.
    #[inline]
    fn mask(self) -> u64 {
        (u64::MAX >> (UNITS_MAX - self.units)) << (self.first % UNITS_MAX)
    }
}

/// Returns the number of units that `bytes` take.
pub fn units_of(bytes: u64) -> u64 {
    bytes.div_ceil(UNIT.into())
}

/// Error: units that are released are free already, or do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("units {first} and the {units} from it on are not all in use")]
pub struct NotInUse {
    /// The first unit.
    pub first: u32,
    /// Number of units.
    pub units: u32,
}

/// Lists of blocks: one for each power of two up to [`UNITS_MAX`].
const LISTS: usize = UNITS_MAX.ilog2() as usize + 1;
/// List of blocks without free units. No such list is kept.
const FULL: u8 = LISTS as u8;
/// Stands for no block.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Block {
    /// Free units.
    free: u64,
    next: u32,
    previous: u32,
    list: u8,
}

/// The free units of a pool.
#[derive(Clone, Debug)]
pub struct FreeUnits {
    blocks: Box<[Block]>,
    first: [u32; LISTS],
    /// Lists that have a block, as bits.
    some: u32,
    free: u32,
    units: u32,
}

impl FreeUnits {
    /// Makes a pool of `units` units, of which those in `free` are free, the first of them taken first. The others are
    /// in use.
    ///
    /// # Panics
    ///
    /// If there are more than [`POOL_UNITS_MAX`] units, or some of `free` do not exist.
    pub fn partly_free(units: u32, free: Range<u32>) -> Self {
        assert!(units <= POOL_UNITS_MAX, "a pool has at most 4 GiB");
        assert!(free.end <= units, "the pool has no such units");
        let block = Block {
            free: 0,
            next: NONE,
            previous: NONE,
            list: FULL,
        };
        let mut all = Self {
            blocks: vec![block; units.div_ceil(UNITS_MAX) as usize].into(),
            first: [NONE; LISTS],
            some: 0,
            free: 0,
            units,
        };
        let mut end = free.end;
        while end > free.start {
            // The part of the last block.
            let first = ((end - 1) / UNITS_MAX * UNITS_MAX).max(free.start);
            let units = end - first;
            let released = all.release(PoolExtent { first, units });
            debug_assert_eq!(released, Ok(()));
            end = first;
        }
        all
    }

    /// Makes a pool of `units` units, all of them free. The first are taken first.
    ///
    /// # Panics
    ///
    /// If there are more than [`POOL_UNITS_MAX`] units.
    pub fn free(units: u32) -> Self {
        Self::partly_free(units, 0..units)
    }

    /// Number of free units.
    #[inline]
    pub fn available(&self) -> u32 {
        self.free
    }

    /// Number of units, free or in use.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Takes `units` units, 1 to [`UNITS_MAX`], that lie side by side. Returns `None` if no block has as many free
    /// units in a row, rounded up to a power of two, and for any other number.
    #[inline]
    pub fn take(&mut self, units: u32) -> Option<PoolExtent> {
        if !(1..=UNITS_MAX).contains(&units) {
            return None;
        }
        let least = units.next_power_of_two().ilog2();
        let fitting = self.some >> least << least;
        if fitting == 0 {
            return None;
        }
        let at = self.first[fitting.trailing_zeros() as usize];
        let free = self.blocks[at as usize].free;
        let from = first_run(free, units);
        let mask = (u64::MAX >> (UNITS_MAX - units)) << from;
        self.set(at, free & !mask);
        self.free -= units;
        Some(PoolExtent {
            first: at * UNITS_MAX + from,
            units,
        })
    }

    /// Takes `units` units, 1 to [`UNITS_MAX`], as [`take`](Self::take) does; otherwise the greatest power of two of
    /// units that lie side by side. Returns `None` if nothing is free, and for any other number.
    pub fn take_up_to(&mut self, units: u32) -> Option<PoolExtent> {
        if !(1..=UNITS_MAX).contains(&units) {
            return None;
        }
        if let Some(all) = self.take(units) {
            return Some(all);
        }
        let longest = self.some.checked_ilog2()?;
        self.take(units.min(1 << longest))
    }

    /// Takes `units` units, 1 to [`UNITS_MAX`], that lie side by side: the first that are free from unit `from` on, or
    /// else from the beginning. Takes time in proportion to the number of blocks without as many.
    pub fn take_from(&mut self, from: u32, units: u32) -> Option<PoolExtent> {
        if !(1..=UNITS_MAX).contains(&units) {
            return None;
        }
        let count = self.blocks.len() as u32;
        let begin = (from / UNITS_MAX).min(count);
        let all = |at| (at, u64::MAX);
        let mut blocks: Range<u32> = begin..count;
        let first = blocks.next().map(|at| (at, u64::MAX << (from % UNITS_MAX)));
        let blocks = first.into_iter().chain(blocks.chain(0..count).map(all));
        for (at, mask) in blocks {
            let free = self.blocks[at as usize].free;
            let from = first_run(free & mask, units);
            if from < UNITS_MAX {
                let taken = PoolExtent {
                    first: at * UNITS_MAX + from,
                    units,
                };
                self.set(at, free & !taken.mask());
                self.free -= units;
                return Some(taken);
            }
        }
        None
    }

    /// Takes up to `units` free units that lie side by side among those from `range.start` to `range.end`. Both must
    /// be the first of a block. Takes time in proportion to the number of blocks.
    pub fn take_within(&mut self, range: Range<u32>, units: u32) -> Option<PoolExtent> {
        let first = range.start / UNITS_MAX..range.end.div_ceil(UNITS_MAX);
        let at = first.into_iter().find(|at| {
            let block = self.blocks.get(*at as usize);
            block.is_some_and(|block| block.free != 0)
        })?;
        let free = self.blocks[at as usize].free;
        let from = free.trailing_zeros();
        let taken = PoolExtent {
            first: at * UNITS_MAX + from,
            units: (free >> from).trailing_ones().min(units),
        };
        if taken.units == 0 {
            return None;
        }
        self.set(at, free & !taken.mask());
        self.free -= taken.units;
        Some(taken)
    }

    /// Takes `units` units that lie side by side, also more than a block has. Up to [`UNITS_MAX`] units are taken as by
    /// [`take`](Self::take). More units begin at a block, and take time in proportion to the number of blocks. Returns
    /// the units' numbers, or `None` if the units are not free or `units` is 0.
    pub fn take_run(&mut self, units: u32) -> Option<Range<u32>> {
        if units <= UNITS_MAX {
            let taken = self.take(units)?;
            return Some(taken.first..taken.first + taken.units);
        }
        // All blocks of the run but the last are used whole.
        let whole = (units - 1) / UNITS_MAX;
        let last = u64::MAX >> (UNITS_MAX - (units - whole * UNITS_MAX));
        let mut before = 0;
        for (at, block) in self.blocks.iter().enumerate() {
            if before >= whole && block.free & last == last {
                let first = (at as u32 - whole) * UNITS_MAX;
                let run = first..first + units;
                for part in parts_of(&run) {
                    let free = self.blocks[part.block()].free;
                    self.set(part.first / UNITS_MAX, free & !part.mask());
                }
                self.free -= units;
                return Some(run);
            }
            let is_free = block.free == u64::MAX;
            before = if is_free { before + 1 } else { 0 };
        }
        None
    }

    /// Releases units that [`take_run`](Self::take_run) returned.
    ///
    /// # Errors
    ///
    /// [`NotInUse`], and then nothing is released.
    pub fn release_run(&mut self, run: &Range<u32>) -> Result<(), NotInUse> {
        if run.is_empty() || !parts_of(run).all(|part| self.is_in_use(part)) {
            return Err(NotInUse {
                first: run.start,
                units: run.end.saturating_sub(run.start),
            });
        }
        parts_of(run).for_each(|part| self.release_in_use(part));
        Ok(())
    }

    /// Releases units. Their block becomes the first of its list.
    ///
    /// # Errors
    ///
    /// [`NotInUse`], and then nothing is released.
    pub fn release(&mut self, extent: PoolExtent) -> Result<(), NotInUse> {
        if !self.is_in_use(extent) {
            return Err(NotInUse {
                first: extent.first,
                units: extent.units,
            });
        }
        self.release_in_use(extent);
        Ok(())
    }

    /// Whether the units of an extent exist and are all in use.
    fn is_in_use(&self, extent: PoolExtent) -> bool {
        let end = extent.first.checked_add(extent.units);
        extent.is_valid()
            && end.is_some_and(|end| end <= self.units)
            && self.blocks[extent.block()].free & extent.mask() == 0
    }

    /// Releases units of which the caller knows that they are in use. Their block becomes the first of its list.
    #[inline]
    pub(crate) fn release_in_use(&mut self, extent: PoolExtent) {
        debug_assert!(self.is_in_use(extent), "{extent:?} is not in use");
        let at = extent.first / UNITS_MAX;
        let free = self.blocks[at as usize].free;
        self.set(at, free | extent.mask());
        self.free += extent.units;
    }

    /// Sets the free units of a block, and makes it the first of its list.
    #[inline]
    fn set(&mut self, at: u32, free: u64) {
        let list = list_of(free);
        let block = &mut self.blocks[at as usize];
        block.free = free;
        if list != block.list || block.previous != NONE {
            self.relink(at, list);
        }
    }

    /// Makes a block the first of a list.
    fn relink(&mut self, at: u32, list: u8) {
        let Block {
            next,
            previous,
            list: old,
            ..
        } = self.blocks[at as usize];
        if let Some(first) = self.first.get_mut(usize::from(old)) {
            match previous {
                NONE => {
                    *first = next;
                    if next == NONE {
                        self.some &= !(1 << old);
                    }
                }
                previous => self.blocks[previous as usize].next = next,
            }
            if next != NONE {
                self.blocks[next as usize].previous = previous;
            }
        }
        let mut next = NONE;
        if let Some(first) = self.first.get_mut(usize::from(list)) {
            next = std::mem::replace(first, at);
            self.some |= 1 << list;
        }
        if next != NONE {
            self.blocks[next as usize].previous = at;
        }
        let block = &mut self.blocks[at as usize];
        block.next = next;
        block.previous = NONE;
        block.list = list;
    }
}

/// Cuts units that lie side by side into one extent for each block.
fn parts_of(run: &Range<u32>) -> impl Iterator<Item = PoolExtent> + use<> {
    let run = run.clone();
    let blocks = run.start / UNITS_MAX..run.end.div_ceil(UNITS_MAX);
    blocks.map(move |block| {
        let first = (block * UNITS_MAX).max(run.start);
        let end = (block * UNITS_MAX).saturating_add(UNITS_MAX).min(run.end);
        PoolExtent {
            first,
            units: end - first,
        }
    })
}

/// Returns the list of a block: the binary logarithm of its longest run of free units, rounded down.
#[inline]
fn list_of(free: u64) -> u8 {
    match free {
        0 => return FULL,
        u64::MAX => return FULL - 1,
        _ => {}
    }
    let (mut runs, mut list) = (free, 0);
    // The bits of `runs` are the beginnings of runs of at least `2^list` units.
    while list + 1 < FULL {
        runs &= runs >> (1 << list);
        if runs == 0 {
            break;
        }
        list += 1;
    }
    list
}

/// Returns where the first run of `units` free units begins; [`UNITS_MAX`] if there is none.
#[inline]
fn first_run(free: u64, units: u32) -> u32 {
    if free == u64::MAX {
        return 0;
    }
    let (mut runs, mut len) = (free, 1);
    // The bits of `runs` are the beginnings of runs of at least `len` units.
    for log in 0..UNITS_MAX.ilog2() {
        if units < 2 << log {
            break;
        }
        runs &= runs >> (1 << log);
        len = 2 << log;
    }
    runs &= runs >> (units - len);
    runs.trailing_zeros()
}

#[cfg(test)]
#[path = "units/tests.rs"]
mod tests;
