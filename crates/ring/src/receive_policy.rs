//! The receiver's decisions: what is released, and when its head is pushed. Pure.
//!
//! RB², section IV-A (lazy push), with the rule that makes it live: after a release the head is
//! pushed if γ slots are unsynced, or if the ring is drained and the sender might not have room for
//! the longest message.

use std::collections::VecDeque;

use headworks_shm::CursorError;
use headworks_shm::cursor::check_within;

use crate::config::Settled;

/// Pushes of the head from one that is signalled to the next: few enough that the send queue never
/// fills with requests of which none says that it completed.
pub const SIGNAL_EVERY: u64 = 8;

/// What the receiver knows and may decide from.
#[derive(Clone, Debug)]
pub struct ReceivePolicy {
    slots: u64,
    gamma: u64,
    max_slots: u64,
    /// Next slot to hand out.
    next: u64,
    /// `next` modulo N.
    index: u64,
    /// Next slot to release: every slot before it is free again.
    head: u64,
    /// The head that was pushed last.
    synced: u64,
    /// How often the head was pushed.
    pushes: u64,
    /// The peer's tail as last seen.
    tail: u64,
    /// Messages handed out and not all released, oldest first: slots, and whether released.
    held: VecDeque<(u64, bool)>,
    /// Which of all messages ever held is the first in `held`.
    first_held: u64,
    /// One-slot messages that can be passed before anything has to be decided again.
    quiet: u64,
}

impl ReceivePolicy {
    /// The state of an empty ring.
    pub fn new(ring: &Settled) -> Self {
        Self::starting_at(ring, 0)
    }

    /// The state of an empty ring whose cursors stand at `start`, a multiple of N. Cursors may wrap
    /// with u64 whatever N is: slot indices are counted apart from them.
    pub fn starting_at(ring: &Settled, start: u64) -> Self {
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

    /// The slot index of the next message, if it is there and nothing at all is due when it is
    /// released: the path of most messages. [`ReceivePolicy::pass_quietly`] passes it. Only for rings whose
    /// messages all have one slot, and so skip nothing.
    #[inline(always)]
    pub fn quiet_index(&self) -> Option<u64> {
        (self.quiet > 0).then_some(self.index)
    }

    /// Passes the message of [`ReceivePolicy::quiet_index`]; says whether there was one.
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

    /// Finds out how many messages of one slot need no decision: more are there, the array does not
    /// end, and γ is not reached.
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

    /// Next slot to hand out, counted from the beginning.
    #[inline(always)]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The slot index of [`ReceivePolicy::next`].
    #[inline(always)]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Every slot before it is released.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Published slots that were not handed out.
    #[inline(always)]
    pub fn available(&self) -> u64 {
        self.tail.wrapping_sub(self.next)
    }

    /// Slots before the end of the array.
    #[inline(always)]
    pub fn before_wrap(&self) -> u64 {
        self.slots - self.index
    }

    /// Slots that a sender that keeps the rules can have filled beyond those handed out.
    #[inline(always)]
    pub fn room(&self) -> u64 {
        (self.slots - 1).wrapping_sub(self.next.wrapping_sub(self.head))
    }

    /// The peer's tail as found.
    #[inline(always)]
    pub fn observe_tail(&mut self, tail: u64) -> Result<(), CursorError> {
        let span = (self.slots - 1).wrapping_sub(self.tail.wrapping_sub(self.head));
        self.tail = check_within(tail, self.tail, span)?;
        self.settle();
        Ok(())
    }

    /// A message of `count` slots was found behind the tail (latency mode, which has no tail).
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

    /// Hands out `count` slots and releases them in one go.
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

    /// Hands out `count` slots; they are released with the ticket.
    pub fn hold(&mut self, count: u64) -> u64 {
        self.step_over(count);
        self.held.push_back((count, false));
        self.quiet = 0;
        self.first_held + self.held.len() as u64 - 1
    }

    /// Releases what a ticket stands for; the head moves over the contiguous released prefix.
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

    /// Released slots that the peer does not know of.
    #[inline(always)]
    pub fn unsynced(&self) -> u64 {
        self.head.wrapping_sub(self.synced)
    }

    /// Whether the head must be pushed now: every γ slots, and when the ring is drained while the
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
        // Drained, so the sender's tail is our head: what would its longest message need there?
        let before_wrap = self.before_wrap();
        let need = if self.max_slots <= before_wrap {
            self.max_slots
        } else {
            before_wrap + self.max_slots
        };
        unsynced + need > self.slots - 1
    }

    /// Whether the WRITE of the next head is to be signalled.
    #[inline(always)]
    pub fn must_signal(&self) -> bool {
        self.pushes % SIGNAL_EVERY == SIGNAL_EVERY - 1
    }

    /// How often the head was pushed.
    pub fn pushes(&self) -> u64 {
        self.pushes
    }

    /// The head was pushed.
    #[inline(always)]
    pub fn pushed(&mut self) {
        self.synced = self.head;
        self.pushes += 1;
        self.settle();
    }
}
