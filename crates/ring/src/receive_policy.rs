//! The receiver's decisions: which slots it releases, and when it pushes the head. Pure.
//!
//! This is RB², section IV-A (lazy push), with a rule that ensures liveness: after a release the head is
//! pushed if γ slots are unsynced, or if the ring is drained and the sender might lack room for the
//! longest message.

use std::collections::VecDeque;

use headworks_shm::CursorError;
use headworks_shm::cursor::check_within;

use crate::config::CheckedConfig;

/// One push of the head in this many is signalled, so that unsignalled requests alone never fill the
/// send queue.
pub const SIGNAL_EVERY: u64 = 8;

/// State of the receiver's decisions.
#[derive(Clone, Debug)]
pub struct ReceivePolicy {
    slots: u64,
    gamma: u64,
    max_slots: u64,
    /// Next slot to hand out.
    next: u64,
    /// `next` modulo N.
    index: u64,
    /// Next slot to release: every slot before it is free.
    head: u64,
    /// The head that was pushed last.
    synced: u64,
    /// Number of pushes of the head.
    pushes: u64,
    /// The peer's tail as last seen.
    tail: u64,
    /// Messages handed out, from the oldest one that is not released: number of slots, and whether the
    /// message was released.
    held: VecDeque<(u64, bool)>,
    /// Ticket of the first message in `held`. Tickets count all messages ever held.
    first_held: u64,
    /// Number of one-slot messages that need no decision; see [`ReceivePolicy::settle`].
    quiet: u64,
}

impl ReceivePolicy {
    /// Creates the state for an empty ring.
    pub fn new(ring: &CheckedConfig) -> Self {
        Self::starting_at(ring, 0)
    }

    /// Creates the state for an empty ring whose cursors stand at `start`, a multiple of N. Cursors may wrap
    /// at 2⁶⁴ for any N, because slot indices are counted separately.
    pub fn starting_at(ring: &CheckedConfig, start: u64) -> Self {
        debug_assert!(start.is_multiple_of(ring.slots));
        Self {
            slots: ring.slots,
            gamma: ring.push_every,
            max_slots: ring.max_slots,
            next: start,
            index: 0,
            head: start,
            synced: start,
            pushes: 0,
            tail: start,
            held: VecDeque::new(),
            first_held: 0,
            quiet: 0,
        }
    }

    /// Fast path, which most messages take: returns the slot index of the next message if it has arrived and
    /// its release requires no action. [`ReceivePolicy::pass_quietly`] then passes the message. Only for
    /// rings whose messages all have one slot, and which therefore have no skips.
    #[inline(always)]
    pub fn quiet_index(&self) -> Option<u64> {
        (self.quiet > 0).then_some(self.index)
    }

    /// Passes the message of [`ReceivePolicy::quiet_index`]. Returns whether there was one.
    #[inline(always)]
    pub fn pass_quietly(&mut self) -> bool {
        if self.quiet == 0 {
            return false;
        }
        self.quiet -= 1;
        self.next = self.next.wrapping_add(1);
        self.head = self.next;
        self.index += 1;
        true
    }

    /// Computes how many messages of one slot need no decision. After these messages at least one more is
    /// available, the end of the array is not reached, and fewer than γ slots are unsynced.
    #[inline(always)]
    fn settle(&mut self) {
        let unsynced = self.unsynced();
        self.quiet = if self.held.is_empty() {
            (self.available().max(1) - 1)
                .min(self.slots - self.index - 1)
                .min(self.gamma - 1 - unsynced.min(self.gamma - 1))
        } else {
            0
        };
    }

    /// Next slot to hand out, as a monotonic counter.
    #[inline(always)]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The slot index of [`ReceivePolicy::next`].
    #[inline(always)]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Next slot to release: every slot before it is free.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Number of published slots that were not handed out yet.
    #[inline(always)]
    pub fn available(&self) -> u64 {
        self.tail.wrapping_sub(self.next)
    }

    /// Number of slots before the end of the array.
    #[inline(always)]
    pub fn before_wrap(&self) -> u64 {
        self.slots - self.index
    }

    /// Number of slots after those handed out that a sender which follows the protocol can have filled.
    #[inline(always)]
    pub fn room(&self) -> u64 {
        (self.slots - 1).wrapping_sub(self.next.wrapping_sub(self.head))
    }

    /// Records the peer's tail. Returns an error if the peer cannot have reached it.
    #[inline(always)]
    pub fn observe_tail(&mut self, tail: u64) -> Result<(), CursorError> {
        let span = (self.slots - 1).wrapping_sub(self.tail.wrapping_sub(self.head));
        self.tail = check_within(tail, self.tail, span)?;
        self.settle();
        Ok(())
    }

    /// Records that a message of `count` slots was found (latency mode, which has no tail).
    #[inline(always)]
    pub fn found(&mut self, count: u64) {
        self.tail = self.next.wrapping_add(count);
    }

    #[inline(always)]
    fn step_over(&mut self, count: u64) {
        self.next = self.next.wrapping_add(count);
        self.index += count;
        if self.index >= self.slots {
            self.index -= self.slots;
        }
    }

    /// Hands out `count` slots and releases them at once.
    #[inline(always)]
    pub fn pass(&mut self, count: u64) {
        if self.held.is_empty() {
            self.step_over(count);
            self.head = self.next;
            self.settle();
        } else {
            let ticket = self.hold(count);
            self.release(ticket);
        }
    }

    /// Hands out `count` slots. Returns the ticket with which they are released.
    pub fn hold(&mut self, count: u64) -> u64 {
        self.step_over(count);
        self.held.push_back((count, false));
        self.quiet = 0;
        self.first_held + self.held.len() as u64 - 1
    }

    /// Releases the slots of a ticket. The head moves over the contiguous released prefix.
    pub fn release(&mut self, ticket: u64) {
        let Some(at) = ticket.checked_sub(self.first_held) else {
            return;
        };
        if let Some((_, released)) = self.held.get_mut(at as usize) {
            *released = true;
        }
        while let Some(&(count, true)) = self.held.front() {
            self.held.pop_front();
            self.first_held += 1;
            self.head = self.head.wrapping_add(count);
        }
        self.settle();
    }

    /// Number of released slots that the peer does not know of.
    #[inline(always)]
    pub fn unsynced(&self) -> u64 {
        self.head.wrapping_sub(self.synced)
    }

    /// Returns whether the head must be pushed now: every γ slots, and when the ring is drained while the
    /// sender may lack room for its longest message.
    #[inline(always)]
    pub fn must_push(&self) -> bool {
        let unsynced = self.unsynced();
        if unsynced >= self.gamma {
            return true;
        }
        if self.head != self.tail || unsynced == 0 {
            return false;
        }
        // The ring is drained, so the sender's tail equals our head: its longest message needs this many
        // slots from there.
        let before_wrap = self.before_wrap();
        let need = if self.max_slots <= before_wrap {
            self.max_slots
        } else {
            before_wrap + self.max_slots
        };
        unsynced + need > self.slots - 1
    }

    /// Returns whether to signal the WRITE of the next head.
    #[inline(always)]
    pub fn must_signal(&self) -> bool {
        self.pushes % SIGNAL_EVERY == SIGNAL_EVERY - 1
    }

    /// Number of pushes of the head.
    pub fn pushes(&self) -> u64 {
        self.pushes
    }

    /// Records that the head was pushed.
    #[inline(always)]
    pub fn pushed(&mut self) {
        self.synced = self.head;
        self.pushes += 1;
        self.settle();
    }
}
