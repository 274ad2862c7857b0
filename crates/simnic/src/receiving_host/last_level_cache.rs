//! A host's last-level cache with ways for DMA (Intel's DDIO). Pure.
//!
//! The cache is kept in lines of 64 bytes, in blocks of 4 KiB: a block has a mask of the lines that are cached
//! and one of those that are dirty. Two parts share the capacity: the ways that DMA allocates in, and the rest.
//!
//! - Whoever finds a line in either part uses it there.
//! - DMA that writes a line which is not cached allocates it in the DMA part, and reads nothing from memory.
//! - A processor that misses allocates in any way, or only in the rest if the DMA part is isolated (CAT).
//! - A new line takes an empty place, or else a random place of its part. What was there is evicted, and a
//!   dirty line is written back to memory.
//!
//! An antagonist streams through memory and fills the cache as a fluid ([`LastLevelCache::fill`]): a line that
//! was not touched while `f` lines were filled survives with probability `exp(-f / capacity)`. That is drawn
//! when its block is touched next, once for the whole block.
//!
//! Real sets would add conflicts that depend on the physical pages, which the model does not know. So each part
//! is fully associative.

use std::collections::HashMap;

use headworks_faults::Random;

/// Bytes of a line.
pub(crate) const LINE_BYTES: u64 = 64;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Largest number of draws for a victim. A block with few lines is taken rarely, as often as its lines weigh.
const DRAWS: u32 = 16;

/// User of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheUser {
    /// A device, by DMA.
    Dma,
    /// A processor.
    Processor,
}

/// Effect of an access, in lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheOutcome {
    /// Lines that were cached.
    pub(crate) hits: u64,
    /// Lines that were not.
    pub(crate) misses: u64,
    /// Dirty lines that were evicted to make room.
    pub(crate) write_backs: u64,
    /// Dirty lines that the antagonist had evicted since they were touched last.
    pub(crate) lost: u64,
}

impl std::ops::AddAssign for CacheOutcome {
    fn add_assign(&mut self, other: Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.write_backs += other.write_backs;
        self.lost += other.lost;
    }
}

/// A block of which some lines are cached.
#[derive(Clone, Copy, Debug)]
struct Block {
    number: u64,
    present: u64,
    dirty: u64,
    /// Lines that the antagonist had filled into this part when the block was last touched.
    touched: f64,
}

/// A part of the cache.
#[derive(Debug)]
struct Part {
    /// Capacity in lines.
    capacity: u64,
    /// Lines of `blocks`, some of which an antagonist may have evicted since.
    used: u64,
    blocks: Vec<Block>,
    /// Lines that the antagonist has filled so far.
    filled: f64,
}

/// The cache.
#[derive(Debug)]
pub(crate) struct LastLevelCache {
    /// Part of the DMA ways, then the rest.
    parts: [Part; 2],
    /// Part and index of each block.
    index: HashMap<u64, (u8, u32)>,
    /// Whether processors do not allocate in the DMA part.
    is_isolated: bool,
    random: Random,
}

const DMA: usize = 0;
const REST: usize = 1;

/// Returns the blocks of `len` bytes from byte `begin` on, each with the mask of its lines.
pub(crate) fn blocks_of(begin: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = begin + len;
    let numbers = begin / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES).max(begin / BLOCK_BYTES);
    numbers.map(move |number| {
        let start = number * BLOCK_BYTES;
        let first = begin.max(start).saturating_sub(start) / LINE_BYTES;
        let after = (end.min(start + BLOCK_BYTES) - start).div_ceil(LINE_BYTES);
        let count = after - first;
        let mask = match count {
            64 => u64::MAX,
            count => ((1 << count) - 1) << first,
        };
        (number, mask)
    })
}

impl Part {
    fn new(bytes: u64) -> Self {
        Self {
            capacity: bytes / LINE_BYTES,
            used: 0,
            blocks: Vec::new(),
            filled: 0.0,
        }
    }

    /// Share of the places not taken by `blocks` that the antagonist has filled.
    fn filled_share(&self) -> f64 {
        1.0 - (-self.filled / self.capacity as f64).exp()
    }

    /// Number of empty places.
    fn empty(&self) -> u64 {
        let left = self.capacity.saturating_sub(self.used);
        (left as f64 * (1.0 - self.filled_share())) as u64
    }

    /// Draws whether a block that was not touched for some time is still cached.
    fn survives(&self, at: usize, random: &mut Random) -> bool {
        let since = self.filled - self.blocks[at].touched;
        if since <= 0.0 {
            return true;
        }
        let chance = (-since / self.capacity as f64).exp();
        (random.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64) < chance
    }

    /// Returns the index of a random block other than `but`, in proportion to the blocks' lines.
    fn victim(&self, but: u64, random: &mut Random) -> usize {
        let count = self.blocks.len();
        let mut at = 0;
        for _ in 0..DRAWS {
            at = random.below(count as u64) as usize;
            if random.below(64) < u64::from(self.blocks[at].present.count_ones()) {
                break;
            }
        }
        match self.blocks[at].number == but {
            true => (at + 1) % count,
            false => at,
        }
    }
}

impl LastLevelCache {
    /// Creates a cache of `bytes`, of which DMA allocates in `dma_bytes`.
    pub(crate) fn new(bytes: u64, dma_bytes: u64, is_isolated: bool, random: Random) -> Self {
        let dma_bytes = dma_bytes.min(bytes);
        Self {
            parts: [Part::new(dma_bytes), Part::new(bytes - dma_bytes)],
            index: HashMap::new(),
            is_isolated,
            random,
        }
    }

    /// Lets the antagonist fill this many lines. They are spread over the ways that processors allocate in.
    pub(crate) fn fill(&mut self, lines: f64) {
        let open = |part: usize| part == REST || !self.is_isolated;
        let total: u64 = (0..2)
            .filter(|part| open(*part))
            .map(|part| self.parts[part].capacity)
            .sum();
        for number in 0..2 {
            if open(number) && total > 0 {
                let part = &mut self.parts[number];
                part.filled += lines * part.capacity as f64 / total as f64;
            }
        }
    }

    /// Writes `len` bytes from byte `begin` on.
    pub(crate) fn write(&mut self, user: CacheUser, begin: u64, len: u64) -> CacheOutcome {
        let mut sum = CacheOutcome::default();
        for (number, mask) in blocks_of(begin, len) {
            sum += self.access(user, number, mask, mask);
        }
        sum
    }

    /// Reads `len` bytes from byte `begin` on. DMA that reads leaves the cache as it is.
    pub(crate) fn read(&mut self, user: CacheUser, begin: u64, len: u64) -> CacheOutcome {
        let mut sum = CacheOutcome::default();
        for (number, mask) in blocks_of(begin, len) {
            sum += self.access(user, number, mask, 0);
        }
        sum
    }

    /// Forgets the lines of `len` bytes from byte `begin` on, without writing them back: their memory is gone.
    pub(crate) fn forget(&mut self, begin: u64, len: u64) {
        for (number, mask) in blocks_of(begin, len) {
            if let Some(&(part, at)) = self.index.get(&number) {
                self.remove_lines(usize::from(part), at as usize, mask);
            }
        }
    }

    /// Uses the lines `mask` of a block, and makes the lines `dirty` of them dirty.
    fn access(&mut self, user: CacheUser, number: u64, mask: u64, dirty: u64) -> CacheOutcome {
        let mut outcome = CacheOutcome::default();
        let mut found = self.index.get(&number).copied();
        if let Some((part, at)) = found {
            let (part_number, at) = (usize::from(part), at as usize);
            let part = &mut self.parts[part_number];
            if part.survives(at, &mut self.random) {
                part.blocks[at].touched = part.filled;
            } else {
                outcome.lost = u64::from(part.blocks[at].dirty.count_ones());
                self.remove_lines(part_number, at, u64::MAX);
                found = None;
            }
        }
        let present = found.map_or(0, |(part, at)| {
            self.parts[usize::from(part)].blocks[at as usize].present
        });
        outcome.hits = u64::from((present & mask).count_ones());
        let missing = mask & !present;
        outcome.misses = u64::from(missing.count_ones());
        let allocates = user == CacheUser::Processor || dirty != 0;
        if missing != 0 && allocates {
            let part = found.map_or_else(|| self.part_for(user), |(part, _)| part.into());
            outcome.write_backs += self.allocate(part, number, missing);
        }
        if dirty != 0
            && let Some(&(part, at)) = self.index.get(&number)
        {
            let block = &mut self.parts[usize::from(part)].blocks[at as usize];
            block.dirty |= dirty & block.present;
        }
        outcome
    }

    /// Chooses the part in which a block is allocated.
    fn part_for(&mut self, user: CacheUser) -> usize {
        let [dma, rest] = [DMA, REST].map(|part| self.parts[part].capacity);
        match user {
            CacheUser::Dma => DMA,
            CacheUser::Processor if self.is_isolated => REST,
            CacheUser::Processor => match self.random.below(dma + rest) < dma {
                true => DMA,
                false => REST,
            },
        }
    }

    /// Adds lines to a block, and evicts as many as there is no room for. Returns the number of write-backs.
    fn allocate(&mut self, number: usize, block: u64, missing: u64) -> u64 {
        let lines = u64::from(missing.count_ones());
        // Lines of this block are no victims: they are in use.
        let own = self.index.get(&block).map_or(0, |(_, at)| {
            u64::from(self.parts[number].blocks[*at as usize].present.count_ones())
        });
        if self.parts[number].capacity < own + lines {
            // DMA without ways, for example: the lines go to memory.
            return lines;
        }
        let mut write_backs = 0;
        let mut found = lines.min(self.parts[number].empty());
        while found < lines {
            let part = &mut self.parts[number];
            let needed = lines - found;
            let others = part.capacity - part.used - found;
            let used = part.used - own;
            let count = match self.random.below(used + others) < used {
                true => {
                    let at = part.victim(block, &mut self.random);
                    let victim = part.blocks[at];
                    let evicted = lowest(victim.present, needed);
                    write_backs += u64::from((victim.dirty & evicted).count_ones());
                    self.remove_lines(number, at, evicted);
                    u64::from(evicted.count_ones())
                }
                false => {
                    // Lines of others: an antagonist writes all that it reads.
                    let count = needed.min(others);
                    write_backs += (count as f64 * part.filled_share()).round() as u64;
                    count
                }
            };
            found += count;
        }
        let part = &mut self.parts[number];
        match self.index.get(&block) {
            Some(&(_, at)) => part.blocks[at as usize].present |= missing,
            None => {
                self.index
                    .insert(block, (number as u8, part.blocks.len() as u32));
                part.blocks.push(Block {
                    number: block,
                    present: missing,
                    dirty: 0,
                    touched: part.filled,
                });
            }
        }
        part.used += lines;
        write_backs
    }

    /// Removes lines of a block, and the block with its last line.
    fn remove_lines(&mut self, number: usize, at: usize, lines: u64) {
        let part = &mut self.parts[number];
        let block = &mut part.blocks[at];
        part.used -= u64::from((block.present & lines).count_ones());
        block.present &= !lines;
        block.dirty &= !lines;
        if block.present == 0 {
            self.index.remove(&block.number);
            part.blocks.swap_remove(at);
            if let Some(moved) = part.blocks.get(at) {
                self.index.insert(moved.number, (number as u8, at as u32));
            }
        }
    }
}

/// Returns the lowest `count` bits that are set in `mask`, or all of them.
fn lowest(mask: u64, count: u64) -> u64 {
    if u64::from(mask.count_ones()) <= count {
        return mask;
    }
    let rest = (0..count).fold(mask, |rest, _| rest & (rest - 1));
    mask & !rest
}

#[cfg(test)]
mod tests;
