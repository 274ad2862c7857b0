//! Lane: a queue beside a [`SlotQueue`] for the one producer that shares the consumer's process. Pushing
//! and popping take no atomic read-modify-write.
//!
//! A queue of many producers takes one for each value, and such an instruction waits until all earlier
//! stores are visible everywhere. The latency-critical producer avoids that with the lane. Values that
//! others complete for it go through the queue. Its own values then do so too, until all of those are
//! consumed. Values of that producer never overtake each other:
//!
//! - from the lane to the queue: [`pop_in_order`] looks at the queue, then empties the lane, and
//!   only then takes from the queue;
//! - from the queue to the lane: the [`LaneBypass`] is over when its last value was [consumed](retire).
//!
//! [`SlotQueue`]: crate::SlotQueue

use crate::cursor::{Consumer, PaddedCursor, Producer};
use crate::primitive::{AtomicBool, AtomicU64, Ordering, UnsafeCell};
use crate::slot_queue::{ShmSafe, SingleConsumer, SlotError};

/// A single-producer single-consumer queue.
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
// thread at a time. The cursors admit one of the two to a slot at a time.
unsafe impl<T: Send> Sync for Lane<T> {}

impl<T: Default> Lane<T> {
    /// Makes an empty lane whose producer's end is not claimed.
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
    /// Claims the producer's end for the first caller. Returns whether the caller got it.
    pub fn claim(&self) -> bool {
        // Pairs with `release`: the next producer continues where the previous one stopped.
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// Releases the producer's end. Values still in the lane are consumed all the same.
    pub fn release(&self) {
        self.claimed.store(false, Ordering::Release);
    }

    /// Appends the value that `fill` writes. Returns whether there was room.
    ///
    /// # Safety
    ///
    /// Only the thread that has [claimed](Lane::claim) the lane may call this, one thread at a time.
    #[inline(always)]
    pub unsafe fn push(&self, fill: impl FnOnce(&mut T)) -> bool {
        // SAFETY: only the claimant's thread is here. (Work within the cell's closure is not inlined, which
        // costs a tenth of a small WRITE's time.)
        let producer = unsafe { &mut *self.producer.with_mut(|producer| producer) };
        if !producer.acquire(&self.head, 1).is_ok_and(|free| free > 0) {
            return false;
        }
        let index = producer.position() as usize & (self.slots.len() - 1);
        // SAFETY: the slot is acquired, so the consumer has read it.
        fill(unsafe { &mut *self.slots[index].with_mut(|slot| slot) });
        producer.release(&self.tail, 1);
        true
    }

    /// Takes the oldest value out after showing it to `read`.
    ///
    /// # Safety
    ///
    /// One thread at a time may call this.
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
        // SAFETY: the slot is acquired, so the producer has filled it.
        let shown = read(unsafe { &*self.slots[index].with(|slot| slot) });
        consumer.release(&self.head, 1);
        Some(shown)
    }

    /// Returns approximately how many values the lane holds. Any thread may ask.
    pub fn len_hint(&self) -> usize {
        // The owner may move both between the two looks.
        let between = self.tail.observe().wrapping_sub(self.head.observe()) as i64;
        between.clamp(0, self.slots.len() as i64) as usize
    }

    /// Returns how many values were ever taken out. Any thread may ask.
    #[inline(always)]
    pub fn popped(&self) -> u64 {
        self.head.observe()
    }

    /// Returns how many values were ever put in. Any thread may ask.
    #[inline(always)]
    pub fn pushed(&self) -> u64 {
        self.tail.observe()
    }

    /// Returns whether there is nothing to take. Any thread may ask.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.tail.observe() == self.head.observe()
    }
}

/// How far a consumer of a lane and of the queue beside it takes values before it looks at the other again. Without it, the queue
/// would wait for ever while the lane is never empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneTurn(Option<Turn>);

#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Position in the lane up to which values are taken first.
    lane: u64,
    /// Position in the queue up to which values are taken then. Whoever put them there put nothing later than `lane` into the lane
    /// before.
    queue: u64,
}

/// Takes up to `most` values from a lane and the queue beside it, and returns how many. Calls `take` for
/// each, with the number of values before it. `queued` says whether the queue was seen to hold something. `turn` is the
/// same at each call.
///
/// # Safety
///
/// One thread at a time may call this, as for [`Lane::pop`].
#[inline(always)]
pub unsafe fn pop_in_order<T: ShmSafe>(
    lane: &Lane<T>,
    queue: &mut SingleConsumer<T>,
    turn: &mut LaneTurn,
    queued: bool,
    most: usize,
    mut take: impl FnMut(usize, &T),
) -> Result<usize, SlotError> {
    if queued || turn.0.is_some() {
        // SAFETY: this function has the same contract.
        return unsafe { pop_by_turns(lane, queue, turn, most, take) };
    }
    let mut count = 0;
    // SAFETY: this function has the same contract.
    while count < most && unsafe { lane.pop(|value| take(count, value)) }.is_some() {
        count += 1;
    }
    Ok(count)
}

/// Does what [`pop_in_order`] does, where the queue may hold something.
///
/// # Safety
///
/// As [`pop_in_order`].
#[inline]
unsafe fn pop_by_turns<T: ShmSafe>(
    lane: &Lane<T>,
    queue: &mut SingleConsumer<T>,
    turn: &mut LaneTurn,
    most: usize,
    mut take: impl FnMut(usize, &T),
) -> Result<usize, SlotError> {
    let mut count = 0;
    while count < most {
        if turn.0.is_none() && !queue.queue().is_empty() {
            // A producer with values in both places put those in the lane first. So look at the queue first: of what it held then,
            // all that is older in the lane is seen now.
            let pushed = queue.queue().pushed_hint();
            turn.0 = Some(Turn {
                lane: lane.pushed(),
                queue: pushed,
            });
        }
        let until = turn.0.map(|turn| turn.lane);
        let is_before = || until.is_none_or(|until| (until.wrapping_sub(lane.popped()) as i64) > 0);
        while count < most && is_before() {
            // SAFETY: this function has the same contract.
            if unsafe { lane.pop(|value| take(count, value)) }.is_none() {
                break;
            }
            count += 1;
        }
        let Some(Turn { queue: until, .. }) = turn.0 else {
            break;
        };
        if count == most {
            break;
        }
        // At least one, since the hint may lag behind the value that was seen.
        loop {
            let Some((position, value)) = queue.pop()? else {
                // A producer has reserved the first slot of the queue and has not written it yet.
                turn.0 = None;
                // SAFETY: this function has the same contract.
                while count < most && unsafe { lane.pop(|value| take(count, value)) }.is_some() {
                    count += 1;
                }
                return Ok(count);
            };
            take(count, &value);
            count += 1;
            if (until.wrapping_sub(position.wrapping_add(1)) as i64) <= 0 {
                turn.0 = None;
                break;
            }
            if count == most {
                return Ok(count);
            }
        }
    }
    Ok(count)
}

/// Number of the last value that the lane's producer sent through the queue instead of the lane.
#[derive(Debug)]
pub struct LaneBypass(AtomicU64);

impl Default for LaneBypass {
    fn default() -> Self {
        Self::new()
    }
}

impl LaneBypass {
    /// Makes one for a producer that has sent no value through the queue.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Records that value `number` is about to go through the queue.
    #[inline]
    pub fn record(&self, number: u64) {
        self.0.store(number, Ordering::Release);
    }

    /// Returns whether all values that went through the queue are consumed, judging by `retired`, which
    /// [`retire`] advances. The next value may then go through the lane.
    #[inline(always)]
    pub fn is_over(&self, retired: &AtomicU64) -> bool {
        let last = self.0.load(Ordering::Acquire);
        retired.load(Ordering::Acquire) >= last
    }
}

/// Records that the producer's values up to `number` are consumed. The consumer calls this.
#[inline(always)]
pub fn retire(retired: &AtomicU64, number: u64) {
    // A value from before a reset has a lower number than the reset has retired: never go back.
    if number > retired.load(Ordering::Relaxed) {
        // Pairs with `LaneBypass::is_over`.
        retired.store(number, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod turn_tests {
    use super::*;
    use crate::slot_queue::tests::HeapQueue;

    #[test]
    fn the_queue_is_served_although_the_lane_is_never_empty() {
        const LANE: usize = 8;
        for most in [1, 3, LANE] {
            let (lane, heap) = (Lane::<u64>::new(LANE), HeapQueue::<u64>::new(4));
            let mut turn = LaneTurn::default();
            let (mut sent, mut next_in_lane, mut next_in_queue) = (0, 0, 0);
            for number in 0..4 {
                heap.queue.push(1, &(1000 + number)).unwrap();
            }
            let mut polls = 0;
            while next_in_queue < 4 {
                polls += 1;
                assert!(polls < 100, "starved with polls of {most}");
                // SAFETY: this is the only thread.
                unsafe {
                    while lane.push(|slot| *slot = sent) {
                        sent += 1;
                    }
                    let mut queue = heap.queue.single_consumer();
                    let queued = !heap.queue.is_empty();
                    let took =
                        pop_in_order(&lane, &mut queue, &mut turn, queued, most, |_, value| {
                            let next = match *value >= 1000 {
                                true => &mut next_in_queue,
                                false => &mut next_in_lane,
                            };
                            assert_eq!(*value % 1000, *next, "each in order");
                            *next += 1;
                        });
                    assert_eq!(took, Ok(most));
                }
            }
            // The consumer took the values first that the lane held when it saw the queue.
            assert!(next_in_lane >= LANE as u64);
        }
    }
}
