//! Allocator of shared memory for queues and small buffers. Small allocations are cut from a few segments,
//! so thousands of queue pairs do not cost thousands of file descriptors.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headworks_shm::fork::ForkGeneration;
use headworks_shm::{HugePages, SegmentRequest, SharedSegment};
use headworks_verbs::ResourceError;

use crate::table::rows::{IN_USE, MAX_SEGMENT, SegmentOffset, Table};

/// Bytes of a slab: a segment from which small allocations are cut.
const SLAB: usize = 1 << 20;
/// Largest allocation that is cut from a slab, in bytes. A larger one gets its own segment.
const PIECE_MAX: usize = SLAB / 4;
/// Granularity of allocations, in bytes.
const UNIT: usize = 64;

/// What an allocation demands of the segment that holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentKind {
    pub(crate) huge: HugePages,
    pub(crate) numa_node: Option<u32>,
    /// Whether other processes may only read the segment.
    pub(crate) is_sealed: bool,
    /// Whether the segment must hold nothing else.
    pub(crate) has_own_file: bool,
}

impl SegmentKind {
    /// Ordinary memory, which may share its segment.
    pub(crate) const SHARED: Self = Self {
        huge: HugePages::No,
        numa_node: None,
        is_sealed: false,
        has_own_file: false,
    };

    /// Whether the allocation may be cut from a slab.
    fn may_share(self) -> bool {
        let is_special = self.is_sealed || self.has_own_file || self.numa_node.is_some();
        self.huge == HugePages::No && !is_special
    }
}

/// The segments of one context: slabs for small allocations, and one segment for each large allocation.
pub(crate) struct Arena {
    table: Table,
    made_by: ForkGeneration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    slabs: Vec<Slab>,
    /// Segments by table row, with their generation. The allocations keep the segments alive.
    rows: BTreeMap<u32, (u32, Weak<SharedSegment>)>,
    next_generation: u32,
    /// Every row before this one is in use.
    first_free: u32,
}

struct Slab {
    segment: Arc<SharedSegment>,
    row: u32,
    generation: u32,
    /// Free ranges: offset to length. No two are adjacent.
    free: BTreeMap<usize, usize>,
    /// Requests of at least this length are known not to fit, so a full slab is not searched for each.
    too_long: usize,
}

/// An allocation of shared memory, freed when dropped.
pub(crate) struct ArenaAllocation {
    arena: Arc<Arena>,
    segment: Arc<SharedSegment>,
    at: SegmentOffset,
    len: usize,
}

impl Arena {
    pub(crate) fn new(table: Table) -> Arc<Self> {
        Arc::new(Self {
            table,
            made_by: ForkGeneration::current(),
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates `len` zeroed bytes, aligned to `align` (at most a page).
    pub(crate) fn take(
        self: &Arc<Self>,
        len: usize,
        align: usize,
        kind: SegmentKind,
    ) -> Result<ArenaAllocation, ResourceError> {
        let len = len.max(1).next_multiple_of(UNIT);
        let align = align.max(UNIT);
        if len > PIECE_MAX || !kind.may_share() {
            // Made without the lock, because that takes long for a large one.
            let segment = new_segment(len, kind)?;
            let (segment, row, generation) = self.publish(&mut self.lock(), segment)?;
            let at = SegmentOffset {
                segment: row,
                generation,
                offset: 0,
            };
            return Ok(ArenaAllocation {
                arena: self.clone(),
                segment,
                at,
                len,
            });
        }
        let mut state = self.lock();
        for slab in &mut state.slabs {
            if let Some(piece) = slab.cut(self, len, align) {
                return Ok(piece);
            }
        }
        let segment = new_segment(SLAB, SegmentKind::SHARED)?;
        let (segment, row, generation) = self.publish(&mut state, segment)?;
        let mut slab = Slab {
            segment,
            row,
            generation,
            free: BTreeMap::from([(0, SLAB)]),
            too_long: usize::MAX,
        };
        let piece = slab.cut(self, len, align);
        state.slabs.push(slab);
        piece.ok_or(ResourceError::Exhausted {
            what: "arena space",
            limit: SLAB as u64,
        })
    }

    /// Publishes a segment in the table. Returns it with its row and generation.
    fn publish(
        &self,
        state: &mut State,
        segment: SharedSegment,
    ) -> Result<(Arc<SharedSegment>, u32, u32), ResourceError> {
        let row = (state.first_free..MAX_SEGMENT as u32)
            .find(|row| !state.rows.contains_key(row))
            .ok_or(ResourceError::Exhausted {
                what: "shared-memory segments",
                limit: MAX_SEGMENT as u64,
            })?;
        state.first_free = row + 1;
        state.next_generation = state.next_generation.wrapping_add(1);
        let generation = state.next_generation;
        let segment = Arc::new(segment);
        state
            .rows
            .insert(row, (generation, Arc::downgrade(&segment)));
        let entry = self.table.segment(row);
        entry.len.store(segment.len() as u64, Ordering::Relaxed);
        entry
            .life
            .store(u64::from(generation) << 32 | IN_USE, Ordering::Release);
        Ok((segment, row, generation))
    }

    /// Returns whether this process is a forked child of the one that made the arena, which must not touch it.
    pub(crate) fn is_foreign(&self) -> bool {
        self.made_by.is_foreign()
    }

    /// Returns this context's segment `row`, if it still has this generation.
    pub(crate) fn find(&self, row: u32, generation: u32) -> Option<Arc<SharedSegment>> {
        let state = self.lock();
        let (known, segment) = state.rows.get(&row)?;
        if *known == generation {
            segment.upgrade()
        } else {
            None
        }
    }

    fn give_back(&self, at: SegmentOffset, len: usize) {
        let mut state = self.lock();
        if let Some(slab) = state.slabs.iter_mut().find(|s| s.row == at.segment) {
            return slab.give_back(at.offset, len);
        }
        // The allocation had its own segment.
        let row = self.table.segment(at.segment);
        row.life.store(0, Ordering::Release);
        state.rows.remove(&at.segment);
        state.first_free = state.first_free.min(at.segment);
    }
}

fn new_segment(len: usize, kind: SegmentKind) -> Result<SharedSegment, ResourceError> {
    let request = SegmentRequest {
        name: "headworks",
        len,
        huge_pages: kind.huge,
        numa_node: kind.numa_node,
        is_sealed: kind.is_sealed,
    };
    SharedSegment::create(&request).map_err(|error| ResourceError::NoSpace(error.to_string()))
}

impl Slab {
    fn cut(&mut self, arena: &Arc<Arena>, len: usize, align: usize) -> Option<ArenaAllocation> {
        if len >= self.too_long {
            return None;
        }
        let found = self.free.iter().find_map(|(start, room)| {
            let offset = start.next_multiple_of(align);
            (offset + len <= start + room).then_some((start, room, offset))
        });
        let Some((&start, &room, offset)) = found else {
            // A request with a smaller alignment might still fit; `UNIT` is the smallest.
            if align == UNIT {
                self.too_long = len;
            }
            return None;
        };
        self.free.remove(&start);
        if offset > start {
            self.free.insert(start, offset - start);
        }
        let end = start + room;
        if offset + len < end {
            self.free.insert(offset + len, end - offset - len);
        }
        let at = SegmentOffset {
            segment: self.row,
            generation: self.generation,
            offset,
        };
        let piece = ArenaAllocation {
            arena: arena.clone(),
            segment: self.segment.clone(),
            at,
            len,
        };
        // SAFETY: the allocation lies inside the segment, and nobody else uses it until it is returned.
        unsafe { piece.as_ptr().write_bytes(0, len) };
        Some(piece)
    }

    fn give_back(&mut self, mut offset: usize, mut len: usize) {
        if let Some((&before, &room)) = self.free.range(..offset).next_back()
            && before + room == offset
        {
            self.free.remove(&before);
            offset = before;
            len += room;
        }
        if let Some(room) = self.free.remove(&(offset + len)) {
            len += room;
        }
        self.free.insert(offset, len);
        self.too_long = usize::MAX;
    }
}

impl ArenaAllocation {
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        // In range: the arena cut the allocation inside the segment.
        self.segment.as_ptr().wrapping_add(self.at.offset)
    }

    pub(crate) fn place(&self) -> SegmentOffset {
        self.at
    }

    pub(crate) fn segment(&self) -> &Arc<SharedSegment> {
        &self.segment
    }

    /// Returns whether the allocation has its own segment.
    pub(crate) fn is_alone(&self) -> bool {
        // No allocation fills a slab: `PIECE_MAX` is smaller than `SLAB`.
        self.at.offset == 0 && self.len == self.segment.len()
    }
}

impl Drop for ArenaAllocation {
    fn drop(&mut self) {
        if !self.arena.made_by.is_foreign() {
            self.arena.give_back(self.at, self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arena() -> Arc<Arena> {
        let segment = crate::table::rows::empty_segment();
        Arena::new(Table::new(segment).unwrap())
    }

    #[test]
    fn memory_with_a_file_of_its_own_shares_no_segment_whatever_its_length() {
        let arena = arena();
        let kind = SegmentKind {
            has_own_file: true,
            ..SegmentKind::SHARED
        };
        for len in [64, 4096, 64 << 10, PIECE_MAX, PIECE_MAX + 64, SLAB] {
            let alone = arena.take(len, 4096, kind).unwrap();
            let other = arena.take(64, 64, SegmentKind::SHARED).unwrap();
            assert!(alone.is_alone() && !other.is_alone(), "{len} bytes");
            assert_ne!(alone.at.segment, other.at.segment, "{len} bytes");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn pieces_never_overlap_and_all_space_comes_back(
            ops in proptest::collection::vec((1usize..20_000, 0u32..4, any::<bool>()), 1..120),
        ) {
            let arena = arena();
            let mut held: Vec<ArenaAllocation> = Vec::new();
            for (len, align, drop_one) in ops {
                if drop_one && !held.is_empty() {
                    held.swap_remove(len % held.len());
                } else {
                    let piece =
                        arena.take(len, 64 << (align * 2), SegmentKind::SHARED).unwrap();
                    prop_assert_eq!(piece.as_ptr() as usize % (64 << (align * 2)), 0);
                    held.push(piece);
                }
                let mut spans: Vec<_> =
                    held.iter().map(|p| (p.at.segment, p.at.offset, p.len)).collect();
                spans.sort_unstable();
                for pair in spans.windows(2) {
                    prop_assert!(pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1);
                }
            }
            drop(held);
            for slab in &arena.lock().slabs {
                prop_assert_eq!(slab.free.clone(), BTreeMap::from([(0, SLAB)]));
            }
        }
    }
}
