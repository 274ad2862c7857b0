//! A lane beside a queue: the way of one producer and the consumer of a [`SlotQueue`] within this
//! process that takes no atomic instruction.
//!
//! A queue of many producers takes one per value, and that waits until all that was stored before
//! is visible everywhere. The one producer that is in a hurry goes without, by way of the lane;
//! what others complete for it, and what it completes itself until all that is consumed, takes the
//! queue. Values of that producer never overtake each other:
//!
//! - from the lane to the queue: [`pop_in_order`] looks at the queue, then empties the lane, and
//!   only then takes from the queue;
//! - from the queue to the lane: the [`LaneBypass`] is over when its last value was [consumed](retire).
//!
//! [`SlotQueue`]: crate::SlotQueue

use crate::cursor::{Consumer, PaddedCursor, Producer};
use crate::primitive::{AtomicBool, AtomicU64, Ordering, UnsafeCell};
use crate::slot_queue::{ShmSafe, SingleConsumer, SlotError};

/// A queue of one producer and one consumer.
#[derive(Debug)]
pub struct Lane<T> {
    claimed: AtomicBool,
    tail: PaddedCursor,
    head: PaddedCursor,
    producer: UnsafeCell<Producer>,
    consumer: UnsafeCell<Consumer>,
    slots: Box<[UnsafeCell<T>]>,
}

// SAFETY: by the contracts of `push` and `pop`, `producer` and `consumer` are each used by one
// thread at a time; a slot by whoever the cursors say.
unsafe impl<T: Send> Sync for Lane<T> {}

impl<T: Default> Lane<T> {
    /// An empty lane that nobody has claimed.
    ///
    /// # Panics
    ///
    /// If `capacity` is not a power of two.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two(), "capacity {capacity}");
        Self {
            claimed: AtomicBool::new(false),
            tail: PaddedCursor::default(),
            head: PaddedCursor::default(),
            producer: UnsafeCell::new(Producer::new(capacity as u64, 0)),
            consumer: UnsafeCell::new(Consumer::new(capacity as u64, 0)),
            slots: (0..capacity)
                .map(|_| UnsafeCell::new(T::default()))
                .collect(),
        }
    }
}

impl<T> Lane<T> {
    /// Lends the producer's end to the first who asks. Says whether that was the caller.
    pub fn claim(&self) -> bool {
        // Pairs with `release`: the next producer goes on where this one stopped.
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// Takes the producer's end back; what is in the lane is consumed all the same.
    pub fn release(&self) {
        self.claimed.store(false, Ordering::Release);
    }

    /// Appends what `fill` makes; says whether there was room.
    ///
    /// # Safety
    ///
    /// For whoever has [claimed](Lane::claim) it, one thread at a time.
    #[inline(always)]
    pub unsafe fn push(&self, fill: impl FnOnce(&mut T)) -> bool {
        // SAFETY: only the claimant's thread is here. (Work done within the cell's closure is not
        // inlined, which costs a tenth of a small WRITE.)
        let producer = unsafe { &mut *self.producer.with_mut(|producer| producer) };
        if !producer.acquire(&self.head, 1).is_ok_and(|free| free > 0) {
            return false;
        }
        let index = producer.position() as usize & (self.slots.len() - 1);
        // SAFETY: acquired: the consumer has read it.
        fill(unsafe { &mut *self.slots[index].with_mut(|slot| slot) });
        producer.release(&self.tail, 1);
        true
    }

    /// Takes the oldest, shown to `read`.
    ///
    /// # Safety
    ///
    /// For one thread at a time.
    #[inline(always)]
    pub unsafe fn pop<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        // SAFETY: only the one consumer is here.
        let consumer = unsafe { &mut *self.consumer.with_mut(|consumer| consumer) };
        if !consumer
            .acquire(&self.tail, 1)
            .is_ok_and(|filled| filled > 0)
        {
            return None;
        }
        let index = consumer.position() as usize & (self.slots.len() - 1);
        // SAFETY: acquired: the producer has filled it.
        let shown = read(unsafe { &*self.slots[index].with(|slot| slot) });
        consumer.release(&self.head, 1);
        Some(shown)
    }

    /// About how many are in it; may be asked by anybody.
    pub fn len_hint(&self) -> usize {
        let between = self.tail.observe().wrapping_sub(self.head.observe());
        between.min(self.slots.len() as u64) as usize
    }

    /// How many were taken, ever; may be asked by anybody.
    #[inline(always)]
    pub fn popped(&self) -> u64 {
        self.head.observe()
    }

    /// Whether there is nothing to take; may be asked by anybody.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.tail.observe() == self.head.observe()
    }
}

/// Takes up to `most` values from a lane and the queue beside it, each shown to `take` with how
/// many were before it. `queued` is whether the queue held something when somebody looked last.
///
/// # Safety
///
/// For one thread at a time, as [`Lane::pop`].
#[inline(always)]
pub unsafe fn pop_in_order<T: ShmSafe>(
    lane: &Lane<T>,
    queue: &mut SingleConsumer<T>,
    queued: bool,
    most: usize,
    mut take: impl FnMut(usize, &T),
) -> Result<usize, SlotError> {
    // Another consumer may have taken what was there: look again, before the lane is.
    let mut queued = queued && !queue.queue().is_empty();
    let mut count = 0;
    while count < most {
        // A producer whose values are in both places put those in the lane first: so the queue is
        // looked at, the lane emptied, and only then is the queue taken from.
        // SAFETY: the same contract.
        while count < most && unsafe { lane.pop(|value| take(count, value)) }.is_some() {
            count += 1;
        }
        if !queued || count == most {
            break;
        }
        let Some((_, value)) = queue.pop()? else {
            break;
        };
        take(count, &value);
        count += 1;
        queued = !queue.queue().is_empty();
    }
    Ok(count)
}

/// How far the producer that has the lane sent values past it: the number of the last one.
#[derive(Debug)]
pub struct LaneBypass(AtomicU64);

impl Default for LaneBypass {
    fn default() -> Self {
        Self::new()
    }
}

impl LaneBypass {
    /// None yet.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Value `number` is about to take the queue.
    #[inline]
    pub fn record(&self, number: u64) {
        self.0.store(number, Ordering::Release);
    }

    /// Whether all that took the queue is consumed, going by the word that [`retire`] moves: the
    /// next value may take the lane.
    #[inline(always)]
    pub fn is_over(&self, retired: &AtomicU64) -> bool {
        let last = self.0.load(Ordering::Acquire);
        retired.load(Ordering::Acquire) >= last
    }
}

/// Notes that the producer's values up to `number` are consumed. For the consumer.
#[inline(always)]
pub fn retire(retired: &AtomicU64, number: u64) {
    // What is from before a reset is behind what that has retired.
    if number > retired.load(Ordering::Relaxed) {
        // Pairs with `LaneBypass::is_over`.
        retired.store(number, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod models;
