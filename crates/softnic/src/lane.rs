//! A queue of send completions with one producer and one consumer, within this process.
//!
//! A completion queue is filled by any number of processes, and that takes an atomic instruction
//! per completion, which waits until all that the request stored is visible to the peer. The one
//! queue pair that usually completes into a CQ goes without, by way of this lane.

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicBool;

use headworks_shm::cursor::{Consumer, Cursor, Producer};

use crate::table::CqSlot;

/// The lane of a completion queue.
pub(crate) struct Lane {
    /// Whether a queue pair has it.
    pub(crate) claimed: AtomicBool,
    tail: Cursor,
    head: Cursor,
    producer: UnsafeCell<Producer>,
    consumer: UnsafeCell<Consumer>,
    slots: Box<[UnsafeCell<CqSlot>]>,
}

// SAFETY: `producer` is used by the one queue pair that has claimed the lane, whose posting needs
// `&mut`; `consumer` by the holder of the CQ's polling lock; a slot by whoever the cursors say.
unsafe impl Sync for Lane {}
// SAFETY: it holds plain data only.
unsafe impl Send for Lane {}

impl Lane {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            claimed: AtomicBool::new(false),
            tail: Cursor::new(0),
            head: Cursor::new(0),
            producer: UnsafeCell::new(Producer::new(capacity as u64, 0)),
            consumer: UnsafeCell::new(Consumer::new(capacity as u64, 0)),
            slots: (0..capacity)
                .map(|_| UnsafeCell::new(CqSlot::default()))
                .collect(),
        }
    }

    /// Appends what `fill` makes; says whether there was room. For the queue pair that has claimed
    /// the lane.
    #[inline(always)]
    pub(crate) fn push(&self, fill: impl FnOnce(&mut CqSlot)) -> bool {
        // SAFETY: only the claimant's posting thread is here.
        let producer = unsafe { &mut *self.producer.get() };
        if !producer.acquire(&self.head, 1).is_ok_and(|free| free > 0) {
            return false;
        }
        let index = producer.position() as usize & (self.slots.len() - 1);
        // SAFETY: acquired: the consumer has read it.
        fill(unsafe { &mut *self.slots[index].get() });
        producer.release(&self.tail, 1);
        true
    }

    /// Takes the oldest, shown to `read`. For the holder of the polling lock.
    #[inline(always)]
    pub(crate) fn pop<R>(&self, read: impl FnOnce(&CqSlot) -> R) -> Option<R> {
        // SAFETY: only the holder of the polling lock is here.
        let consumer = unsafe { &mut *self.consumer.get() };
        if !consumer
            .acquire(&self.tail, 1)
            .is_ok_and(|filled| filled > 0)
        {
            return None;
        }
        let index = consumer.position() as usize & (self.slots.len() - 1);
        // SAFETY: acquired: the producer has filled it.
        let shown = read(unsafe { &*self.slots[index].get() });
        consumer.release(&self.head, 1);
        Some(shown)
    }

    /// Whether there is nothing to take; may be asked by anybody.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.tail.observe() == self.head.observe()
    }
}
