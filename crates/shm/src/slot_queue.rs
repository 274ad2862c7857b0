//! A bounded multi-producer multi-consumer queue in shared memory that no death blocks for good.
//!
//! Each slot has a word `lap << 24 | who << 4 | tag`. One compare-and-swap on that word both reserves
//! the slot and records its owner. So a process killed at any instruction leaves a slot that names it,
//! and [`SlotQueueRef::recover`] can repair it:
//!
//! ```text
//! Free(lap) ──claim_push──▶ Writing(lap, who) ──commit──▶ Full(lap)
//!     ▲                                                      │ claim_pop
//!     └─ Free(lap + 1) ◀──finish── Reading(lap, who) ◀───────┘
//! ```
//!
//! Position `p` of the queue is slot `p % capacity` in lap `p / capacity`. Head and tail are only hints
//! where to start looking. They may lag, even by laps, but never lead; the words decide. A search that
//! starts from a lagging hint catches up by two facts, which also hold after deaths have left holes:
//!
//! - producers claim positions without gaps, so all positions before a claimed one are claimed;
//! - a slot is claimed only when free, so all positions up to one lap before a claimed one are consumed.
//!
//! Everything read from shared memory is checked, every loop is bounded, and a word that no correct
//! process writes is reported as [`SlotError::Corrupt`].

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
/// The type must be `repr(C)` (or a primitive), hold no pointer, reference or handle, and every bit
/// pattern must be a valid value.
pub unsafe trait ShmSafe: Copy + Send + 'static {}

macro_rules! shm_safe {
    ($($integer:ty),*) => { $(
        // SAFETY: it is an integer, so every bit pattern is a value.
        unsafe impl ShmSafe for $integer {}
    )* };
}
shm_safe!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize
);

// SAFETY: any bits are a value of each element, and arrays have no padding of their own.
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

const fn owner_of_word(word: u64) -> u16 {
    (word >> TAG_BITS) as u16
}

const fn lap_of(word: u64) -> u64 {
    word >> LAP_SHIFT
}

/// Number of laps that lap `a` is ahead of lap `b` (negative: behind). Laps have 40 bits and wrap.
const fn laps_ahead(a: u64, b: u64) -> i64 {
    (a.wrapping_sub(b) << LAP_SHIFT) as i64 >> LAP_SHIFT
}

/// Failure of an operation on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// Every slot is taken.
    #[error("the queue is full")]
    Full,
    /// A slot's word is one that no correct process writes.
    #[error("the queue is corrupt")]
    Corrupt,
}

/// A position to start a search from.
///
/// Release and Acquire hand on what the hint's writer has seen. A search that starts from a hint sees every
/// slot before it as at least claimed, also on a processor that reorders loads. Otherwise a hint could
/// seem to lead.
#[repr(C, align(64))]
struct CursorHint(AtomicU64);

impl CursorHint {
    #[inline(always)]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Moves the hint to `to` if it is behind. Racing stores may move it back; the next user catches up.
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

/// One slot, on cache lines of its own, because other processors mostly hold the neighbouring slots.
#[repr(C, align(64))]
struct Slot<T> {
    word: AtomicU64,
    value: RacyCell<T>,
}

const _: () = assert!(MODELLED || (size_of::<Header>() == 128 && size_of::<Slot<u64>>() == 64));

/// Describes the layout of a queue of `T`; [`SlotQueueRef`] is the queue itself.
#[derive(Debug)]
pub struct SlotQueue<T>(PhantomData<T>);

impl<T: ShmSafe> SlotQueue<T> {
    /// Compile-time check: values aligned beyond a cache line would not fit behind the header.
    const ALIGNED: () = assert!(align_of::<T>() <= 64);

    /// Maximum number of slots of a queue.
    pub const CAPACITY_MAX: usize = 1 << 24;

    /// Returns whether a queue can have `capacity` slots: a power of two, up to
    /// [`SlotQueue::CAPACITY_MAX`]. A caller must check a number that a peer wrote with this.
    pub const fn is_capacity(capacity: usize) -> bool {
        capacity.is_power_of_two() && capacity <= Self::CAPACITY_MAX
    }

    /// Returns the size in bytes of a queue of `capacity` slots, which must be aligned to 64 bytes.
    pub const fn bytes(capacity: usize) -> usize {
        let () = Self::ALIGNED;
        size_of::<Header>() + capacity * size_of::<Slot<T>>()
    }

    /// Makes an empty queue at `start`.
    ///
    /// # Safety
    ///
    /// `start` must be 64-byte aligned and point to [`SlotQueue::bytes`] bytes that nobody else uses yet.
    /// They must stay mapped as long as the handle or a copy of it is used.
    ///
    /// # Panics
    ///
    /// If `capacity` is [not a legal one](SlotQueue::is_capacity).
    pub unsafe fn init(start: *mut u8, capacity: usize) -> SlotQueueRef<T> {
        assert!(
            Self::is_capacity(capacity),
            "capacity {capacity}: a power of two up to 2^24"
        );
        debug_assert!(start.addr().is_multiple_of(64), "aligned by the contract");
        let header = start.cast::<Header>();
        let slots = start.wrapping_add(size_of::<Header>()).cast::<Slot<T>>();
        // SAFETY: the memory is in range, aligned and ours alone by the contract.
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

    /// Returns the queue that another process made at `start`; see [`SlotQueueRef::from_raw`].
    ///
    /// # Safety
    ///
    /// As for [`SlotQueueRef::from_raw`].
    ///
    /// # Panics
    ///
    /// If `capacity` is [not a legal one](SlotQueue::is_capacity).
    pub unsafe fn from_raw(start: *mut u8, capacity: usize) -> SlotQueueRef<T> {
        // SAFETY: this function has the same contract.
        unsafe { SlotQueueRef::from_raw(start, capacity) }
    }
}

/// Returns approximately how many values the queue of `capacity` slots of `T` at `offset` of a segment holds.
/// It is for observers, and also works on a read-only mapping. `None` if no such queue fits there.
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
    // SAFETY: the queue is in range and aligned, and mapped as long as the handle is in use. The handle is
    // only read through. If something else than a queue is there, only the returned length is wrong.
    let queue = unsafe { SlotQueueRef::<T>::from_raw(segment.as_ptr().add(offset), capacity) };
    Some(queue.len_hint())
}

/// A handle to a queue. Copies refer to the same queue.
pub struct SlotQueueRef<T> {
    /// Start of the queue; the slots follow the header.
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
    /// Returns the queue that another process made at `start`.
    ///
    /// # Safety
    ///
    /// As for [`SlotQueue::init`], except that others may use the memory, all through this type and with the
    /// same `capacity`. Their writes are not trusted.
    ///
    /// # Panics
    ///
    /// If `capacity` is [not a legal one](SlotQueue::is_capacity).
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

    /// Returns the maximum number of values it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline(always)]
    fn header(&self) -> &Header {
        // SAFETY: the header is mapped by the contract of the constructors, and consists of atomics.
        unsafe { &*self.header }
    }

    #[inline(always)]
    fn slots(&self) -> *const Slot<T> {
        self.header.wrapping_add(1).cast()
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> &Slot<T> {
        let index = position as usize & (self.capacity - 1);
        // SAFETY: the index is below the capacity. The word is atomic, and the value is in a cell that only
        // a claim's holder touches.
        unsafe { &*self.slots().add(index) }
    }

    #[inline(always)]
    fn lap(&self, position: u64) -> u64 {
        (position >> self.capacity.trailing_zeros()) & ((1 << (64 - LAP_SHIFT)) - 1)
    }

    /// Returns the position of the same slot `laps` laps later.
    #[inline(always)]
    fn later(&self, position: u64, laps: i64) -> u64 {
        position.wrapping_add((laps as u64).wrapping_mul(self.capacity as u64))
    }

    #[inline(always)]
    fn load(&self, position: u64) -> u64 {
        // Pairs with the Release stores of `commit` (the value is there) and `finish`.
        self.slot(position).word.load(Ordering::Acquire)
    }

    /// Claims a slot whose word is `found`; if the word has changed, returns the new one.
    #[inline(always)]
    fn take(&self, position: u64, found: u64, tag: u64, who: u16) -> Result<(), u64> {
        // Acquire pairs with `finish` (the slot's reader is done) or `commit`. Release hands on what the
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

    /// Rounds after which a search reports corruption. Honest rivals would have to be faster this many times
    /// in a row; only a process that rewrites the words all the time can keep a search going so long.
    #[inline(always)]
    fn search_limit(&self) -> usize {
        4 * self.capacity + 4096
    }

    /// Decides where a producer continues that found the word `found` at `position`.
    #[inline(always)]
    fn next_to_push(&self, position: u64, found: u64) -> Result<SearchStep, SlotError> {
        let ahead = laps_ahead(lap_of(found), self.lap(position));
        Ok(match (tag_of(found), ahead) {
            (FREE, 0) => SearchStep::Here,
            // Consumed already, so it was claimed in the lap before the one that it is free for.
            (FREE, 1..) => SearchStep::At(self.later(position, ahead - 1).wrapping_add(1)),
            (WRITING | FULL | READING, 0..) => {
                SearchStep::At(self.later(position, ahead).wrapping_add(1))
            }
            // Not consumed since the last lap: the queue is full.
            (WRITING | FULL | READING, -1) => SearchStep::Nothing,
            _ => return Err(SlotError::Corrupt),
        })
    }

    /// Decides where a consumer continues that found the word `found` at `position`.
    #[inline(always)]
    fn next_to_pop(&self, position: u64, found: u64) -> Result<SearchStep, SlotError> {
        let ahead = laps_ahead(lap_of(found), self.lap(position));
        Ok(match (tag_of(found), ahead) {
            (FULL, 0) => SearchStep::Here,
            (FREE | WRITING, 0) => SearchStep::Nothing,
            (READING, 0) | (FREE, 1) => SearchStep::At(position.wrapping_add(1)),
            // The hint lags by laps. All positions up to a lap before the slot's last claim are consumed.
            (FREE, 2..) => SearchStep::At(self.later(position, ahead - 2).wrapping_add(1)),
            (WRITING | FULL | READING, 1..) => {
                SearchStep::At(self.later(position, ahead - 1).wrapping_add(1))
            }
            // A slow reader has held the slot since the last lap, so nothing was pushed here yet.
            (READING, -1) => SearchStep::Nothing,
            _ => return Err(SlotError::Corrupt),
        })
    }

    /// Returns the first position that is neither consumed nor being read, with its word, if it is full.
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

    /// Returns whether nothing can be popped now.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let position = self.header().head.get();
        // The first test is the usual case of a queue that is polled: nobody has claimed the next slot.
        self.load(position) == word(self.lap(position), 0, FREE) || matches!(self.front(), Ok(None))
    }

    /// Returns approximately how many values it holds.
    pub fn len_hint(&self) -> usize {
        self.between(self.header().head.get())
    }

    /// Returns how many values it holds, but for those whose push is not known yet. Values that were consumed before the call never
    /// count.
    pub fn held(&self) -> usize {
        let mut head = self.header().head.get();
        // The hint may lag. The word of a consumed slot is of a later lap.
        for _ in 0..self.capacity {
            if laps_ahead(lap_of(self.load(head)), self.lap(head)) <= 0 {
                break;
            }
            head = head.wrapping_add(1);
        }
        self.between(head)
    }

    /// The number of positions from `head` to the tail hint, which may lag behind it.
    fn between(&self, head: u64) -> usize {
        let between = self.header().tail.get().wrapping_sub(head) as i64;
        between.clamp(0, self.capacity as i64) as usize
    }

    /// Returns how many values were ever taken out, according to the head hint, which may lag.
    #[inline(always)]
    pub fn popped_hint(&self) -> u64 {
        self.header().head.get()
    }

    /// Returns how many values were ever put in, according to the tail hint, which may lag.
    #[inline(always)]
    pub fn pushed_hint(&self) -> u64 {
        self.header().tail.get()
    }

    /// Prefetches the line of the slot at `position` for writing; the caller means to claim it soon.
    #[inline(always)]
    pub fn prefetch_slot(&self, position: u64) {
        let index = position as usize & (self.capacity - 1);
        crate::ordered_copy::prefetch_write(self.slots().wrapping_add(index).cast());
    }

    /// Returns the start of the value at `position` if it is there and unclaimed. It is only a hint: others
    /// may claim and overwrite the value while it is read.
    #[inline(always)]
    pub fn peek_prefix<P: ShmSafe>(&self, position: u64) -> Option<P> {
        const { assert!(is_prefix::<P, T>()) };
        if self.load(position) != word(self.lap(position), 0, FULL) {
            return None;
        }
        let value = &self.slot(position).value;
        // SAFETY: the read is within the slot, and any bits there during a racing write are a value.
        Some(value.with_racing(|cell| unsafe { cell.cast::<P>().read_volatile() }))
    }

    /// Copies the start of the value of a slot that the caller holds.
    #[inline(always)]
    fn read_prefix<P: ShmSafe>(&self, position: u64) -> P {
        const { assert!(is_prefix::<P, T>()) };
        let value = &self.slot(position).value;
        // SAFETY: as for `read`; `P` is no longer than `T` and not aligned more strictly.
        value.with(|cell| unsafe { cell.cast::<P>().read() })
    }

    /// Copies the value of a slot that the caller holds.
    #[inline(always)]
    fn read(&self, position: u64) -> T {
        let value = &self.slot(position).value;
        // SAFETY: holding a slot keeps correct processes from writing to it. Whatever a broken one writes,
        // every bit pattern is a value. The copy is complete before the slot is given away.
        value.with(|cell| unsafe { cell.read() })
    }

    /// Frees a slot for the next lap.
    #[inline(always)]
    fn free(&self, position: u64) {
        let next_lap = self.lap(self.later(position, 1));
        self.slot(position)
            .word
            .store(word(next_lap, 0, FREE), Ordering::Release);
    }
}

/// Returns whether a `P` may be read at the start of a value of `T`.
const fn is_prefix<P, T>() -> bool {
    size_of::<P>() <= size_of::<T>() && align_of::<P>() <= align_of::<T>()
}

/// Next step of a search for a slot.
enum SearchStep {
    /// The slot at this position is the one searched for.
    Here,
    /// Continue at this position.
    At(u64),
    /// There is nothing to find.
    Nothing,
}

#[cfg(test)]
pub(crate) mod tests;
