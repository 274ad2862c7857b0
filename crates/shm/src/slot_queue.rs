//! A bounded queue of many producers and many consumers in shared memory that no death wedges.
//!
//! Each slot has a word `lap << 24 | who << 4 | tag`. Reserving a slot and saying who reserved it
//! is one compare-and-swap on that word, so a process killed at any instruction leaves a slot that
//! names it, and [`SlotQueueRef::recover`] can put it right:
//!
//! ```text
//! Free(lap) ──claim_push──▶ Writing(lap, who) ──commit──▶ Full(lap)
//!     ▲                                                      │ claim_pop
//!     └─ Free(lap + 1) ◀──finish── Reading(lap, who) ◀───────┘
//! ```
//!
//! Position `p` of the queue is slot `p % capacity` in lap `p / capacity`. Head and tail are only
//! hints where to look: they may lag, by laps even, but never lead, and the words decide. A lagging
//! hint is caught up with by two facts, which also hold when deaths have left holes:
//!
//! - producers claim positions without gaps, so before a claimed position all are claimed;
//! - a slot is claimed only when free, so one lap before a claimed position all are consumed.
//!
//! Everything read from shared memory is checked, every loop is bounded, and words that no correct
//! process writes are [`SlotError::Corrupt`].

use core::marker::PhantomData;

use crate::primitive::{AtomicU64, MODELLED, Ordering, RacyCell};
use crate::segment::SharedSegment;

mod claims;
mod recovery;

pub use claims::{ConditionalPop, PopClaim, PushClaim, SingleConsumer, SingleProducer};

/// Plain data that may live in shared memory.
///
/// # Safety
///
/// The type must be `repr(C)` (or a primitive), hold no pointer, reference or handle, and give a
/// value for every bit pattern.
pub unsafe trait ShmSafe: Copy + Send + 'static {}

macro_rules! shm_safe {
    ($($integer:ty),*) => { $(
        // SAFETY: an integer: any bits are a value.
        unsafe impl ShmSafe for $integer {}
    )* };
}
shm_safe!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize
);

// SAFETY: any bits are a value of each element; arrays have no padding of their own.
unsafe impl<T: ShmSafe, const N: usize> ShmSafe for [T; N] {}

const TAG_BITS: u32 = 4;
const WHO_BITS: u32 = 20;
const LAP_SHIFT: u32 = TAG_BITS + WHO_BITS;
const FREE: u64 = 0;
const WRITING: u64 = 1;
const FULL: u64 = 2;
const READING: u64 = 3;

const fn word(lap: u64, who: u16, tag: u64) -> u64 {
    (lap << LAP_SHIFT) | ((who as u64) << TAG_BITS) | tag
}

const fn tag_of(word: u64) -> u64 {
    word & ((1 << TAG_BITS) - 1)
}

const fn who_of(word: u64) -> u16 {
    (word >> TAG_BITS) as u16
}

const fn lap_of(word: u64) -> u64 {
    word >> LAP_SHIFT
}

/// How lap `a` stands to lap `b`; laps have 40 bits and wrap.
const fn laps_ahead(a: u64, b: u64) -> i64 {
    (a.wrapping_sub(b) << LAP_SHIFT) as i64 >> LAP_SHIFT
}

/// Why an operation on a queue failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// Every slot is taken.
    #[error("the queue is full")]
    Full,
    /// A slot's word is none that a correct process writes.
    #[error("the queue is corrupt")]
    Corrupt,
}

/// A position to start from.
///
/// Release and Acquire hand on what its writer has seen: who starts from a hint sees every slot
/// before it as at least claimed, also on a processor that reorders loads. Otherwise a hint could
/// seem to lead.
#[repr(C, align(64))]
struct CursorHint(AtomicU64);

impl CursorHint {
    #[inline(always)]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Moves it to `to` if it is behind. Racing stores may move it back; the next user catches up.
    #[inline(always)]
    fn advance(&self, to: u64) {
        if (to.wrapping_sub(self.get()) as i64) > 0 {
            self.0.store(to, Ordering::Release);
        }
    }
}

#[repr(C)]
struct Header {
    /// Where producers start: all positions before it are claimed.
    tail: CursorHint,
    /// Where consumers start: all positions before it are consumed or being read.
    head: CursorHint,
}

/// On lines of its own: its neighbours are mostly in the hands of other processors.
#[repr(C, align(64))]
struct Slot<T> {
    word: AtomicU64,
    value: RacyCell<T>,
}

const _: () = assert!(MODELLED || (size_of::<Header>() == 128 && size_of::<Slot<u64>>() == 64));

/// Names the layout of a queue of `T`; see [`SlotQueueRef`] for the queue itself.
#[derive(Debug)]
pub struct SlotQueue<T>(PhantomData<T>);

impl<T: ShmSafe> SlotQueue<T> {
    /// Values aligned beyond a cache line would not fit behind the header.
    const ALIGNED: () = assert!(align_of::<T>() <= 64);

    /// The most slots that a queue can have.
    pub const CAPACITY_MAX: usize = 1 << 24;

    /// Whether a queue can have `capacity` slots: a power of two, up to
    /// [`SlotQueue::CAPACITY_MAX`]. To be asked about a number that a peer wrote.
    pub const fn is_capacity(capacity: usize) -> bool {
        capacity.is_power_of_two() && capacity <= Self::CAPACITY_MAX
    }

    /// Bytes that a queue of `capacity` slots takes, at 64-byte alignment.
    pub const fn bytes(capacity: usize) -> usize {
        let () = Self::ALIGNED;
        size_of::<Header>() + capacity * size_of::<Slot<T>>()
    }

    /// Makes an empty queue at `start`.
    ///
    /// # Safety
    ///
    /// `start` must be 64-byte aligned and point to [`SlotQueue::bytes`] bytes, mapped as long as
    /// the handle or a copy of it is used, that nobody else uses yet.
    ///
    /// # Panics
    ///
    /// If `capacity` is [not one](SlotQueue::is_capacity).
    pub unsafe fn init(start: *mut u8, capacity: usize) -> SlotQueueRef<T> {
        assert!(
            Self::is_capacity(capacity),
            "capacity {capacity}: a power of two up to 2^24"
        );
        debug_assert!(start.addr().is_multiple_of(64), "aligned by the contract");
        let header = start.cast::<Header>();
        let slots = start.wrapping_add(size_of::<Header>()).cast::<Slot<T>>();
        // SAFETY: in range, aligned and ours alone by the contract.
        unsafe {
            header.write(Header {
                tail: CursorHint(AtomicU64::new(0)),
                head: CursorHint(AtomicU64::new(0)),
            });
            for index in 0..capacity {
                (&raw mut (*slots.add(index)).word).write(AtomicU64::new(word(0, 0, FREE)));
            }
        }
        SlotQueueRef {
            header,
            capacity,
            _slots: PhantomData,
        }
    }

    /// The queue that another process made at `start`; see [`SlotQueueRef::from_raw`].
    ///
    /// # Safety
    ///
    /// As for [`SlotQueueRef::from_raw`].
    ///
    /// # Panics
    ///
    /// If `capacity` is [not one](SlotQueue::is_capacity).
    pub unsafe fn from_raw(start: *mut u8, capacity: usize) -> SlotQueueRef<T> {
        // SAFETY: the same contract.
        unsafe { SlotQueueRef::from_raw(start, capacity) }
    }
}

/// About how many values the queue of `capacity` slots of `T` at `offset` of a segment holds, for
/// somebody who looks on, also where the mapping is read-only. `None` if no such queue fits there.
pub fn len_hint_at<T: ShmSafe>(
    segment: &SharedSegment,
    offset: usize,
    capacity: usize,
) -> Option<usize> {
    if !SlotQueue::<T>::is_capacity(capacity) || !offset.is_multiple_of(64) || MODELLED {
        return None;
    }
    let end = offset.checked_add(SlotQueue::<T>::bytes(capacity))?;
    if end > segment.len() {
        return None;
    }
    // SAFETY: in range and aligned, and mapped as long as the handle, which is only read through,
    // is in use; the lengths of other things than queues are wrong and no worse.
    let queue = unsafe { SlotQueueRef::<T>::from_raw(segment.as_ptr().add(offset), capacity) };
    Some(queue.len_hint())
}

/// A handle to a queue. Copies refer to the same queue.
pub struct SlotQueueRef<T> {
    /// The slots follow it.
    header: *const Header,
    capacity: usize,
    _slots: PhantomData<*const Slot<T>>,
}

impl<T> Clone for SlotQueueRef<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SlotQueueRef<T> {}

// SAFETY: every access to what the pointers name goes through atomics and the claim protocol.
unsafe impl<T: ShmSafe> Send for SlotQueueRef<T> {}
// SAFETY: as above.
unsafe impl<T: ShmSafe> Sync for SlotQueueRef<T> {}

impl<T> core::fmt::Debug for SlotQueueRef<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("SlotQueueRef");
        fields
            .field("at", &self.header)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl<T: ShmSafe> SlotQueueRef<T> {
    /// The queue that another process made at `start`.
    ///
    /// # Safety
    ///
    /// As for [`SlotQueue::init`], except that others use the memory, all through this type and
    /// with the same `capacity`. What they write is not trusted.
    ///
    /// # Panics
    ///
    /// If `capacity` is [not one](SlotQueue::is_capacity).
    pub unsafe fn from_raw(start: *mut u8, capacity: usize) -> Self {
        let legal = SlotQueue::<T>::is_capacity(capacity);
        assert!(legal, "capacity {capacity}: a power of two up to 2^24");
        debug_assert!(start.addr().is_multiple_of(64), "aligned by the contract");
        Self {
            header: start.cast(),
            capacity,
            _slots: PhantomData,
        }
    }

    /// How many values it holds at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline(always)]
    fn header(&self) -> &Header {
        // SAFETY: mapped by the contract of the constructors; consists of atomics.
        unsafe { &*self.header }
    }

    #[inline(always)]
    fn slots(&self) -> *const Slot<T> {
        self.header.wrapping_add(1).cast()
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> &Slot<T> {
        let index = position as usize & (self.capacity - 1);
        // SAFETY: the index is below the capacity; the word is atomic and the value is in a cell
        // that only a claim's holder touches.
        unsafe { &*self.slots().add(index) }
    }

    #[inline(always)]
    fn lap(&self, position: u64) -> u64 {
        (position >> self.capacity.trailing_zeros()) & ((1 << (64 - LAP_SHIFT)) - 1)
    }

    /// The same slot `laps` later.
    #[inline(always)]
    fn later(&self, position: u64, laps: i64) -> u64 {
        position.wrapping_add((laps as u64).wrapping_mul(self.capacity as u64))
    }

    #[inline(always)]
    fn load(&self, position: u64) -> u64 {
        // Pairs with the Release stores of `commit` (the value is there) and `finish`.
        self.slot(position).word.load(Ordering::Acquire)
    }

    /// Claims a slot whose word is `found`, or says what it is instead.
    #[inline(always)]
    fn take(&self, position: u64, found: u64, tag: u64, who: u16) -> Result<(), u64> {
        // Acquire pairs with `finish` (its reader is done) or `commit`. Release hands on what the
        // caller has seen of the slots before this one, as a hint does.
        let claimed = word(lap_of(found), who, tag);
        let swapped = self.slot(position).word.compare_exchange(
            found,
            claimed,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        swapped.map(drop)
    }

    /// Rounds of a search after which only somebody who rewrites the words all the time can have
    /// kept it going: honest rivals that are faster each time would have to be so this often.
    #[inline(always)]
    fn search_limit(&self) -> usize {
        4 * self.capacity + 4096
    }

    /// Where a producer that found `found` at `position` goes on.
    #[inline(always)]
    fn next_to_push(&self, position: u64, found: u64) -> Result<SearchStep, SlotError> {
        let ahead = laps_ahead(lap_of(found), self.lap(position));
        Ok(match (tag_of(found), ahead) {
            (FREE, 0) => SearchStep::Here,
            // Consumed already: claimed in the lap before the one that it is free for.
            (FREE, 1..) => SearchStep::At(self.later(position, ahead - 1).wrapping_add(1)),
            (WRITING | FULL | READING, 0..) => {
                SearchStep::At(self.later(position, ahead).wrapping_add(1))
            }
            // Not consumed since the last lap.
            (WRITING | FULL | READING, -1) => SearchStep::Nothing,
            _ => return Err(SlotError::Corrupt),
        })
    }

    /// Where a consumer that found `found` at `position` goes on.
    #[inline(always)]
    fn next_to_pop(&self, position: u64, found: u64) -> Result<SearchStep, SlotError> {
        let ahead = laps_ahead(lap_of(found), self.lap(position));
        Ok(match (tag_of(found), ahead) {
            (FULL, 0) => SearchStep::Here,
            (FREE | WRITING, 0) => SearchStep::Nothing,
            (READING, 0) | (FREE, 1) => SearchStep::At(position.wrapping_add(1)),
            // The hint lags by laps: consumed is what lies a lap before the last claim of the slot.
            (FREE, 2..) => SearchStep::At(self.later(position, ahead - 2).wrapping_add(1)),
            (WRITING | FULL | READING, 1..) => {
                SearchStep::At(self.later(position, ahead - 1).wrapping_add(1))
            }
            // A slow reader has the slot since the last lap, so nothing was pushed here yet.
            (READING, -1) => SearchStep::Nothing,
            _ => return Err(SlotError::Corrupt),
        })
    }

    /// The first position that is not consumed nor being read, and its word if it is full.
    #[inline(always)]
    fn front(&self) -> Result<Option<(u64, u64)>, SlotError> {
        let mut position = self.header().head.get();
        for _ in 0..self.search_limit() {
            let found = self.load(position);
            match self.next_to_pop(position, found)? {
                SearchStep::Here => return Ok(Some((position, found))),
                SearchStep::At(next) => position = next,
                SearchStep::Nothing => return Ok(None),
            }
        }
        Err(SlotError::Corrupt)
    }

    /// Whether nothing can be popped now.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let position = self.header().head.get();
        // Nobody has claimed the next slot: the usual case of a queue that is polled.
        self.load(position) == word(self.lap(position), 0, FREE) || matches!(self.front(), Ok(None))
    }

    /// About how many values it holds.
    pub fn len_hint(&self) -> usize {
        let between = self
            .header()
            .tail
            .get()
            .wrapping_sub(self.header().head.get());
        between.min(self.capacity as u64) as usize
    }

    /// How many values were ever taken out, as far as consumers have said: it may lag.
    #[inline(always)]
    pub fn popped_hint(&self) -> u64 {
        self.header().head.get()
    }

    /// How many values were ever put in, as far as producers have said: it may lag.
    #[inline(always)]
    pub fn pushed_hint(&self) -> u64 {
        self.header().tail.get()
    }

    /// Asks for the line of the slot at `position`, which the caller means to claim soon.
    #[inline(always)]
    pub fn prefetch_slot(&self, position: u64) {
        let index = position as usize & (self.capacity - 1);
        crate::ordered_copy::prefetch_write(self.slots().wrapping_add(index).cast());
    }

    /// How the value at `position` begins, if it is there and nobody has claimed it: a hint. Others may
    /// claim and overwrite it while it is read.
    #[inline(always)]
    pub fn peek_prefix<P: ShmSafe>(&self, position: u64) -> Option<P> {
        const { assert!(is_prefix::<P, T>()) };
        if self.load(position) != word(self.lap(position), 0, FULL) {
            return None;
        }
        let value = &self.slot(position).value;
        // SAFETY: in the slot, and any bits that may be there while somebody writes are a value.
        Some(value.with_racing(|cell| unsafe { cell.cast::<P>().read_volatile() }))
    }

    /// Copies how the value of a slot that the caller holds begins.
    #[inline(always)]
    fn read_prefix<P: ShmSafe>(&self, position: u64) -> P {
        const { assert!(is_prefix::<P, T>()) };
        let value = &self.slot(position).value;
        // SAFETY: as for `read`; `P` is no longer than `T`, nor aligned more strictly.
        value.with(|cell| unsafe { cell.cast::<P>().read() })
    }

    /// Copies the value of a slot that the caller holds.
    #[inline(always)]
    fn read(&self, position: u64) -> T {
        let value = &self.slot(position).value;
        // SAFETY: who holds a slot keeps correct processes from writing it; whatever a broken one
        // writes, every bit pattern is a value. The copy is complete before the slot is given away.
        value.with(|cell| unsafe { cell.read() })
    }

    /// Gives a slot to the next lap.
    #[inline(always)]
    fn free(&self, position: u64) {
        let next_lap = self.lap(self.later(position, 1));
        self.slot(position)
            .word
            .store(word(next_lap, 0, FREE), Ordering::Release);
    }
}

/// Whether a value of `T` may be read as a `P` at its start.
const fn is_prefix<P, T>() -> bool {
    size_of::<P>() <= size_of::<T>() && align_of::<P>() <= align_of::<T>()
}

/// Where a search goes on.
enum SearchStep {
    /// Found.
    Here,
    /// At this position.
    At(u64),
    /// There is nothing to find.
    Nothing,
}

#[cfg(test)]
pub(crate) mod tests;
