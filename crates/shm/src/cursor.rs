//! Ring cursor, a 64-bit counter that one side writes and the other observes; and the index logic of a
//! single-producer single-consumer queue over a pair of cursors.
//!
//! A cursor counts up and wraps with `u64`; it is never taken modulo the size of a ring. The observing
//! side does not trust the other one: it checks the value's range before it uses the value.
//!
//! A cursor is 8 bytes. A cursor that is written often has a cache line for itself ([`PaddedCursor`], or
//! an offset that is a multiple of 64); an array of many cursors packs eight to a line.

use core::ops::Deref;

use crate::primitive::{AtomicU64, MODELLED, Ordering};

/// A counter in shared memory.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Cursor(AtomicU64);

/// A cursor that has a cache line for itself.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct PaddedCursor(Cursor);

const _: () = assert!(MODELLED || (size_of::<Cursor>() == 8 && size_of::<PaddedCursor>() == 64));

impl Deref for PaddedCursor {
    type Target = Cursor;

    #[inline(always)]
    fn deref(&self) -> &Cursor {
        &self.0
    }
}

impl Cursor {
    /// Makes a cursor with the value `value`.
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Publishes `value` and everything written before it (Release; pairs with [`Cursor::observe`]).
    #[inline(always)]
    pub fn publish(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// Returns the value published last and makes everything written before it visible (Acquire; pairs
    /// with [`Cursor::publish`]).
    #[inline(always)]
    pub fn observe(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Observes the cursor and refuses a value outside `lowest..=lowest + span` (wrapping).
    #[inline(always)]
    pub fn observe_within(&self, lowest: u64, span: u64) -> Result<u64, CursorError> {
        check_within(self.observe(), lowest, span)
    }
}

/// Refuses a cursor value of the other side that is outside `lowest..=lowest + span` (wrapping).
#[inline(always)]
pub fn check_within(found: u64, lowest: u64, span: u64) -> Result<u64, CursorError> {
    if found.wrapping_sub(lowest) <= span {
        return Ok(found);
    }
    Err(CursorError::OutOfRange {
        found,
        lowest,
        highest: lowest.wrapping_add(span),
    })
}

/// Error: the other side published a value that no correct process publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CursorError {
    /// A cursor value outside the possible range.
    #[error("the peer's cursor is {found}: {lowest} to {highest} are possible")]
    OutOfRange {
        /// The observed value.
        found: u64,
        /// The smallest possible value.
        lowest: u64,
        /// The largest possible value (wrapping).
        highest: u64,
    },
}

/// Producer's side of a queue of `capacity` places: owns the tail and observes the head.
#[derive(Debug)]
pub struct Producer {
    capacity: u64,
    tail: u64,
    /// The head as last observed.
    head: u64,
}

/// Consumer's side of a queue of `capacity` places: owns the head and observes the tail.
#[derive(Debug)]
pub struct Consumer {
    capacity: u64,
    head: u64,
    /// The tail as last observed.
    tail: u64,
}

impl Producer {
    /// Makes the producer of an empty queue whose cursors both stand at `start`.
    pub const fn new(capacity: u64, start: u64) -> Self {
        Self {
            capacity,
            tail: start,
            head: start,
        }
    }

    /// Returns the position of the next place to fill.
    #[inline(always)]
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Returns how many places may be filled. Observes `head` only if fewer than `want` are known to be
    /// free.
    #[inline(always)]
    pub fn acquire(&mut self, head: &Cursor, want: u64) -> Result<u64, CursorError> {
        let known = self.capacity - self.tail.wrapping_sub(self.head);
        if known >= want {
            return Ok(known);
        }
        self.head = head.observe_within(self.head, self.tail.wrapping_sub(self.head))?;
        Ok(self.capacity - self.tail.wrapping_sub(self.head))
    }

    /// Publishes `count` filled places.
    ///
    /// # Panics
    ///
    /// If that is more than the last [`Producer::acquire`] allowed.
    #[inline(always)]
    pub fn release(&mut self, tail: &Cursor, count: u64) {
        let free = self.capacity - self.tail.wrapping_sub(self.head);
        assert!(count <= free, "released more places than were acquired");
        self.tail = self.tail.wrapping_add(count);
        tail.publish(self.tail);
    }
}

impl Consumer {
    /// Makes the consumer of an empty queue whose cursors both stand at `start`.
    pub const fn new(capacity: u64, start: u64) -> Self {
        Self {
            capacity,
            head: start,
            tail: start,
        }
    }

    /// Returns the position of the next place to empty.
    #[inline(always)]
    pub fn position(&self) -> u64 {
        self.head
    }

    /// Returns how many places are filled. Observes `tail` only if fewer than `want` are known to be
    /// filled.
    #[inline(always)]
    pub fn acquire(&mut self, tail: &Cursor, want: u64) -> Result<u64, CursorError> {
        let known = self.tail.wrapping_sub(self.head);
        if known >= want {
            return Ok(known);
        }
        self.tail = tail.observe_within(self.tail, self.capacity - known)?;
        Ok(self.tail.wrapping_sub(self.head))
    }

    /// Gives back `count` emptied places.
    ///
    /// # Panics
    ///
    /// If that is more than the last [`Consumer::acquire`] allowed.
    #[inline(always)]
    pub fn release(&mut self, head: &Cursor, count: u64) {
        let filled = self.tail.wrapping_sub(self.head);
        assert!(count <= filled, "released more places than were acquired");
        self.head = self.head.wrapping_add(count);
        head.publish(self.head);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_bounded_fifo_from_any_start(
            start in any::<u64>(),
            capacity in 1u64..40,
            ops in proptest::collection::vec((any::<bool>(), 1u64..9), 0..300),
        ) {
            // Half the starts are just below the wrap of u64.
            let start = if start % 2 == 0 { start } else { u64::MAX - start % 64 };
            let (head, tail) = (Cursor::new(start), Cursor::new(start));
            let mut producer = Producer::new(capacity, start);
            let mut consumer = Consumer::new(capacity, start);
            let mut oracle = VecDeque::new();
            for (push, want) in ops {
                if push {
                    let free = producer.acquire(&head, want).unwrap();
                    prop_assert!(free <= capacity - oracle.len() as u64);
                    prop_assert!(free >= want || free == capacity - oracle.len() as u64);
                    let count = free.min(want);
                    oracle.extend((0..count).map(|n| producer.position().wrapping_add(n)));
                    producer.release(&tail, count);
                } else {
                    let filled = consumer.acquire(&tail, want).unwrap();
                    prop_assert!(filled <= oracle.len() as u64);
                    prop_assert!(filled >= want || filled == oracle.len() as u64);
                    let count = filled.min(want);
                    for n in 0..count {
                        let position = consumer.position().wrapping_add(n);
                        prop_assert_eq!(oracle.pop_front(), Some(position));
                    }
                    consumer.release(&head, count);
                }
            }
        }

        #[test]
        fn a_hostile_cursor_is_refused_or_in_range(start in any::<u64>(), found in any::<u64>()) {
            let mut consumer = Consumer::new(8, start);
            match consumer.acquire(&Cursor::new(found), 1) {
                Ok(filled) => prop_assert!(filled <= 8),
                Err(CursorError::OutOfRange { .. }) => {
                    prop_assert!(found.wrapping_sub(start) > 8);
                }
            }
            let mut producer = Producer::new(8, start);
            producer.release(&Cursor::new(start), 8);
            if let Ok(free) = producer.acquire(&Cursor::new(found), 1) {
                prop_assert!(free <= 8);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::primitive::UnsafeCell;

    struct Shared {
        head: Cursor,
        tail: Cursor,
        places: [UnsafeCell<u64>; 2],
    }

    // SAFETY: the cursors admit one thread at a time to each cell; loom checks that they do.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    /// Sends three values through two places, so that a place is reused; loom checks each access.
    #[test]
    fn loom_cursor_pair_orders_every_access() {
        loom::model(|| {
            let start = u64::MAX;
            let shared = Arc::new(Shared {
                head: Cursor::new(start),
                tail: Cursor::new(start),
                places: [UnsafeCell::new(0), UnsafeCell::new(0)],
            });
            let sender = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let mut producer = Producer::new(2, start);
                    for value in 1..=3u64 {
                        while producer.acquire(&shared.head, 1).unwrap() == 0 {
                            thread::yield_now();
                        }
                        let place = &shared.places[producer.position() as usize % 2];
                        // SAFETY: the place is acquired, so the consumer is done with it.
                        place.with_mut(|cell| unsafe { *cell = value });
                        producer.release(&shared.tail, 1);
                    }
                })
            };
            let mut consumer = Consumer::new(2, start);
            for value in 1..=3u64 {
                while consumer.acquire(&shared.tail, 1).unwrap() == 0 {
                    thread::yield_now();
                }
                let place = &shared.places[consumer.position() as usize % 2];
                // SAFETY: the place is acquired, so the producer has filled it.
                assert_eq!(place.with(|cell| unsafe { *cell }), value);
                consumer.release(&shared.head, 1);
            }
            sender.join().unwrap();
        });
    }
}
