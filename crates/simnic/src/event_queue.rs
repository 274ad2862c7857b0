//! Pending events, ordered by time; events of the same time keep the order in which they were added. Pure.
//!
//! Most events are due soon: those of the next microseconds lie in buckets, of which only the current one is
//! sorted. Later events lie in a heap until their bucket comes near.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::hardware_units::Ps;

/// log2 of a bucket's duration in picoseconds: 262 ns.
const SHIFT: u32 = 18;
/// Number of buckets, which reach 268 µs ahead.
const BUCKETS: usize = 1024;
const WORDS: usize = BUCKETS / 64;

/// An event beyond the buckets, with the number of such events that were added before it.
#[derive(Debug)]
struct Far<E> {
    at: Ps,
    number: u64,
    event: E,
}

/// Pending events. They should be small, because they are moved.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    /// Number of the current bucket. Earlier ones are done.
    now: u64,
    /// Events up to the end of the current bucket, sorted; the first `done` of them were taken.
    open: Vec<(Ps, E)>,
    done: usize,
    /// Events of the next buckets, in the order in which they were added.
    near: Vec<Vec<(Ps, E)>>,
    /// Bitmap of the next buckets that have events.
    filled: [u64; WORDS],
    far: BinaryHeap<Reverse<Far<E>>>,
    /// Number of events added to `far` so far.
    next: u64,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self {
            now: 0,
            open: Vec::new(),
            done: 0,
            near: std::iter::repeat_with(Vec::new).take(BUCKETS).collect(),
            filled: [0; WORDS],
            far: BinaryHeap::new(),
            next: 0,
        }
    }
}

impl<E: Copy> EventQueue<E> {
    /// Adds an event, behind all earlier ones of the same time.
    #[inline]
    pub(crate) fn put(&mut self, at: Ps, event: E) {
        let bucket = at >> SHIFT;
        if bucket <= self.now {
            let rest = &self.open[self.done..];
            let place = self.done + rest.partition_point(|other| other.0 <= at);
            self.open.insert(place, (at, event));
        } else if bucket - self.now < BUCKETS as u64 {
            self.put_near(bucket, at, event);
        } else {
            let number = self.next;
            self.next += 1;
            self.far.push(Reverse(Far { at, number, event }));
        }
    }

    #[inline]
    fn put_near(&mut self, bucket: u64, at: Ps, event: E) {
        let index = bucket as usize % BUCKETS;
        self.near[index].push((at, event));
        self.filled[index / 64] |= 1 << (index % 64);
    }

    /// Returns the time of the next event.
    #[inline]
    pub(crate) fn next_at(&mut self) -> Option<Ps> {
        if self.done == self.open.len() {
            self.turn();
        }
        self.open.get(self.done).map(|entry| entry.0)
    }

    /// Takes the next event, if it is due by `limit`.
    #[inline(always)]
    pub(crate) fn take(&mut self, limit: Ps) -> Option<(Ps, E)> {
        if self.done == self.open.len() {
            self.turn();
        }
        let entry = *self.open.get(self.done)?;
        if entry.0 > limit {
            return None;
        }
        self.done += 1;
        Some(entry)
    }

    /// Makes the next bucket with events the current one, if
    /// there is any. All events of the old one were taken.
    #[inline(never)]
    fn turn(&mut self) {
        self.open.clear();
        self.done = 0;
        let near = self.next_near();
        let far = self.far.peek().map(|Reverse(entry)| entry.at >> SHIFT);
        let Some(bucket) = near.into_iter().chain(far).min() else {
            return;
        };
        self.now = bucket;
        // Far events that are near now go first: they were
        // added before any that is added to their bucket later.
        while let Some(Reverse(entry)) = self.far.peek()
            && (entry.at >> SHIFT) - bucket < BUCKETS as u64
            && let Some(Reverse(Far { at, event, .. })) = self.far.pop()
        {
            self.put_near(at >> SHIFT, at, event);
        }
        let index = bucket as usize % BUCKETS;
        std::mem::swap(&mut self.open, &mut self.near[index]);
        self.filled[index / 64] &= !(1 << (index % 64));
        // The sort is stable: events of the same time keep their order.
        self.open.sort_by_key(|entry| entry.0);
    }

    /// The number of the next bucket that has something.
    fn next_near(&self) -> Option<u64> {
        let begin = (self.now as usize + 1) % BUCKETS;
        for step in 0..=WORDS {
            let word = (begin / 64 + step) % WORDS;
            let mut bits = self.filled[word];
            match step {
                // The first word's low bits are the last buckets.
                0 => bits &= !0 << (begin % 64),
                WORDS => bits &= !(!0 << (begin % 64)),
                _ => {}
            }
            if bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                let ahead = (index + BUCKETS - begin) % BUCKETS;
                return Some(self.now + 1 + ahead as u64);
            }
        }
        None
    }
}

impl<E> Ord for Far<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> PartialOrd for Far<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Far<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Far<E> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn events_come_by_time_and_those_of_one_time_as_they_were_put() {
        let mut event_queue = EventQueue::default();
        for (at, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            event_queue.put(at, event);
        }
        assert_eq!(event_queue.next_at(), Some(3));
        assert_eq!(event_queue.take(2), None);
        let all: String = std::iter::from_fn(|| event_queue.take(5))
            .map(|(_, e)| e)
            .collect();
        assert_eq!(all, "abcd");
        assert_eq!(event_queue.next_at(), None);
    }

    proptest! {
        /// Compares with a heap, for events within a bucket, near and
        /// far ones, and ones before events of the current bucket.
        #[test]
        fn the_order_is_a_heaps(steps in proptest::collection::vec((0u32..5, any::<u64>()), 1..400)) {
            let (mut event_queue, mut oracle) = (EventQueue::default(), BinaryHeap::new());
            let (mut now, mut number) = (0, 0u32);
            for (what, draw) in steps {
                if what == 0 {
                    let limit = now + (draw >> 40);
                    let expected = oracle.peek().map(|Reverse((at, _))| *at);
                    prop_assert_eq!(event_queue.next_at(), expected);
                    let found = event_queue.take(limit);
                    let next = expected.filter(|at| *at <= limit).and_then(|_| oracle.pop());
                    prop_assert_eq!(found, next.map(|Reverse(found)| found));
                    now = found.map_or(now, |(at, _)| at);
                } else {
                    let at = now + (draw >> (23 + 10 * what));
                    event_queue.put(at, number);
                    oracle.push(Reverse((at, number)));
                    number += 1;
                }
            }
            while let Some(Reverse(next)) = oracle.pop() {
                prop_assert_eq!(event_queue.take(Ps::MAX), Some(next));
            }
        }
    }
}
