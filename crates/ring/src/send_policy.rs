//! The sender's decisions: whether there is room, whether a skip is needed, when slots are transmitted
//! and when the tail is published. Pure arithmetic on monotonic slot counters.
//!
//! This is RB², section IV-B and algorithm 1, with two corrections: the ring is full when the *head* is
//! one lap behind (the paper prints local_tail), and slots are transmitted at `>= β`. The tail's two
//! thresholds are two variables. `attempted` keeps the cadence of α, also while publication is
//! deferred; `published` moves when a tail is posted.

use headworks_shm::CursorError;
use headworks_shm::cursor::check_within;

use crate::config::CheckedConfig;

/// State of the sender's decisions.
#[derive(Clone, Debug)]
pub struct SendPolicy {
    slots: u64,
    alpha: u64,
    beta: u64,
    /// Most slots that one WRITE carries.
    write_slots: u64,
    elastic: bool,
    /// Next slot to fill.
    tail: u64,
    /// `tail` modulo N.
    index: u64,
    /// Slots before this one are transmitted.
    sent: u64,
    attempted: u64,
    published: u64,
    /// The peer's head as last seen.
    head: u64,
    /// The device has read every slot before this one: a polled completion says so.
    completed: u64,
    /// The slot up to which slots may be filled.
    limit: u64,
    /// The tail when a request was last signalled.
    signaled: u64,
    /// Slots after which the next request is signalled.
    signal_every: u64,
    /// Number of one-slot messages that need no decision; see [`SendPolicy::settle`].
    quiet: u64,
}

/// Result of [`SendPolicy::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// There is room from this slot index on.
    At(u64),
    /// Room only after a skip: write a skip of `count` slots at `index`, [`SendPolicy::advance`] over
    /// it, and reserve again.
    Skip {
        /// Index of the slot in the array.
        index: u64,
        /// Slots up to the end of the array.
        count: u64,
    },
    /// There is no room.
    Full,
}

/// Post that a message makes due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostAction {
    /// Nothing yet.
    Nothing,
    /// The filled slots that are not transmitted yet.
    Transmit,
    /// The filled slots that are not transmitted yet, and then the tail.
    Publish,
}

impl SendPolicy {
    /// The policy of an empty ring.
    pub fn new(ring: &CheckedConfig) -> Self {
        Self::starting_at(ring, 0)
    }

    /// The policy of an empty ring whose cursors stand at `start`, a multiple of N. Cursors may wrap at
    /// 2⁶⁴ whatever N is, because slot indices are counted separately.
    pub fn starting_at(ring: &CheckedConfig, start: u64) -> Self {
        debug_assert!(start.is_multiple_of(ring.slots));
        Self {
            slots: ring.slots,
            alpha: ring.publish_every,
            beta: ring.transmit_every,
            write_slots: ring.write_slots,
            elastic: ring.elastic,
            tail: start,
            index: 0,
            sent: start,
            attempted: start,
            published: start,
            head: start,
            completed: start,
            limit: start.wrapping_add(ring.slots - 1),
            signaled: start,
            // The elastic threshold waits for the completion of every tail. Without it completions only
            // free slots: a few a lap suffice, as long as the slots not known to be complete leave room
            // for the longest message.
            signal_every: match ring.elastic {
                true => 1,
                false => (ring.slots / 4).min(ring.slots - ring.max_slots).max(1),
            },
            quiet: 0,
        }
    }

    /// Limits the distance between signalled requests, so that unsignalled requests alone never fill a
    /// send queue of `depth`: such a queue would never free a request.
    pub fn fit_queue(&mut self, depth: u64) {
        // After the last signalled request there are at most the publications of fewer than
        // `signal_every` slots, each of two requests or, at the wrap, three; and the groups of α.
        let groups = self.alpha.div_ceil(self.beta.min(self.write_slots)) + 8;
        let slots = depth.saturating_sub(groups) / 3;
        self.signal_every = self.signal_every.min(slots).max(1);
    }

    /// Returns whether to signal the request that publishes `tail`. After posting it signalled, call
    /// [`SendPolicy::signal`].
    #[inline(always)]
    pub fn must_signal(&self, tail: u64) -> bool {
        tail.wrapping_sub(self.signaled) >= self.signal_every
    }

    /// Records that a signalled request that publishes `tail` was posted.
    #[inline(always)]
    pub fn signal(&mut self, tail: u64) {
        self.signaled = tail;
    }

    /// Returns the slot index for a message of one slot if nothing is due with it: the path of most
    /// messages. [`SendPolicy::take_quietly`] takes the slot.
    #[inline(always)]
    pub fn quiet_index(&self) -> Option<u64> {
        (self.quiet > 0).then_some(self.index)
    }

    /// Takes the slot of [`SendPolicy::quiet_index`].
    #[inline(always)]
    pub fn take_quietly(&mut self) {
        self.quiet -= 1;
        self.tail = self.tail.wrapping_add(1);
        self.index += 1;
    }

    /// Computes how many messages of one slot need no decision: there is room, they do not reach the end
    /// of the array, and neither β nor α is reached. Call it after [`SendPolicy::advance`] and the posting
    /// that followed; in between the number is 0.
    #[inline(always)]
    pub fn settle(&mut self) {
        if self.beta == 1 {
            return;
        }
        let until =
            |from: u64, every: u64| (every - 1).saturating_sub(self.tail.wrapping_sub(from));
        self.quiet = self
            .free()
            .min(self.slots - self.index - 1)
            .min(until(self.sent, self.beta))
            .min(until(self.attempted, self.alpha));
    }

    /// Next slot to fill, as a monotonic counter.
    #[inline(always)]
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// The slot index of [`SendPolicy::tail`].
    #[inline(always)]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The tail that was published last.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// The peer's head as last seen: the peer has consumed every slot before it.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Returns whether everything is published.
    pub fn is_flushed(&self) -> bool {
        self.published == self.tail
    }

    /// Returns whether a published tail has not completed yet.
    #[inline(always)]
    pub fn is_publishing(&self) -> bool {
        self.completed != self.published
    }

    /// Number of slots that may be filled.
    #[inline(always)]
    pub fn free(&self) -> u64 {
        self.limit.wrapping_sub(self.tail)
    }

    /// Returns a value to compare before sleeping: if it changed, the sender must not sleep, because no
    /// further event may follow. It changes with the peer's head, with a publication, and with a
    /// completion that frees slots or, while something is held back, requests.
    pub fn news(&self) -> impl PartialEq + use<> {
        let held_back = (!self.is_flushed()).then_some(self.completed);
        (self.head, self.published, self.limit, held_back)
    }

    /// Finds room for `count` contiguous slots.
    ///
    /// A message never wraps: where it does not fit before the end of the array, the sender skips the
    /// rest. A skip is possible as soon as the skip itself fits. A message of more than N/2 slots would
    /// otherwise wait for room that never comes.
    #[inline(always)]
    pub fn reserve(&self, count: u64) -> ReserveOutcome {
        let before_wrap = self.slots - self.index;
        if count <= before_wrap {
            return if count <= self.free() {
                ReserveOutcome::At(self.index)
            } else {
                ReserveOutcome::Full
            };
        }
        if before_wrap <= self.free() {
            ReserveOutcome::Skip {
                index: self.index,
                count: before_wrap,
            }
        } else {
            ReserveOutcome::Full
        }
    }

    /// Advances the tail over `count` slots that were filled. Returns what must be posted.
    #[inline(always)]
    pub fn advance(&mut self, count: u64) -> PostAction {
        self.tail = self.tail.wrapping_add(count);
        self.index += count;
        if self.index >= self.slots {
            self.index -= self.slots;
        }
        self.quiet = 0;
        if self.tail.wrapping_sub(self.attempted) >= self.alpha {
            return PostAction::Publish;
        }
        if self.tail.wrapping_sub(self.sent) >= self.beta {
            return PostAction::Transmit;
        }
        PostAction::Nothing
    }

    /// Records that publication is due. Returns whether the tail may be posted now; otherwise it is
    /// deferred (the elastic threshold).
    #[inline(always)]
    pub fn attempt(&mut self) -> bool {
        self.attempted = self.tail;
        !(self.elastic && self.is_publishing())
    }

    /// Returns the slots to transmit, as up to two ranges of slot indices: start and count.
    #[inline(always)]
    pub fn untransmitted(&self) -> [(u64, u64); 2] {
        let count = self.tail.wrapping_sub(self.sent);
        // The slot index of the tail is known, so the ranges are counted back from it.
        if count <= self.index {
            return [(self.index - count, count), (0, 0)];
        }
        let wrapped = count - self.index;
        [(self.slots - wrapped, wrapped), (0, self.index)]
    }

    /// Records that all filled slots were posted.
    #[inline(always)]
    pub fn transmitted(&mut self) {
        self.sent = self.tail;
    }

    /// Records that only the first `count` ranges of [`SendPolicy::untransmitted`] were posted.
    #[cold]
    pub fn transmitted_pieces(&mut self, count: usize) {
        let pieces = self.untransmitted();
        for (_, slots) in pieces
            .into_iter()
            .filter(|(_, slots)| *slots > 0)
            .take(count)
        {
            self.sent = self.sent.wrapping_add(slots);
        }
    }

    /// Records that only `count` slots of the first range of [`SendPolicy::untransmitted`] were posted.
    #[cold]
    pub fn transmitted_slots(&mut self, count: u64) {
        debug_assert!(count <= self.untransmitted()[0].1);
        self.sent = self.sent.wrapping_add(count);
    }

    /// Records that the tail was posted after all filled slots.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.published = self.tail;
        self.attempted = self.tail;
    }

    /// Records that everything posted is published too: for designs whose data travels by WRITE with
    /// immediate.
    #[inline(always)]
    pub fn publish_sent(&mut self) {
        self.published = self.sent;
        self.attempted = self.sent;
    }

    /// Records that a WRITE of `tail` completed: the device has read every slot before it.
    #[inline(always)]
    pub fn complete(&mut self, tail: u64) -> Result<(), CursorError> {
        let span = self.published.wrapping_sub(self.completed);
        self.completed = check_within(tail, self.completed, span)?;
        self.set_limit();
        Ok(())
    }

    /// Records the peer's head. Refuses a head before the last seen or beyond what is published. Where
    /// heads may overtake each other, the endpoint drops the older ones.
    #[inline(always)]
    pub fn observe_head(&mut self, head: u64) -> Result<(), CursorError> {
        let span = self.published.wrapping_sub(self.head);
        self.head = check_within(head, self.head, span)?;
        self.set_limit();
        Ok(())
    }

    /// Moves the limit. A slot is free again when the peer has passed it and the device has read it.
    #[inline(always)]
    fn set_limit(&mut self) {
        let behind = |cursor: u64| self.tail.wrapping_sub(cursor);
        let reusable = if behind(self.head) >= behind(self.completed) {
            self.head
        } else {
            self.completed
        };
        self.limit = reusable.wrapping_add(self.slots - 1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::RingConfig;

    #[test]
    fn a_completion_is_news_where_it_makes_room_or_something_is_held_back() {
        let ring = RingConfig::fixed(4, 64).settle().unwrap();
        let mut policy = SendPolicy::new(&ring);
        for _ in 0..2 {
            policy.advance(1);
            policy.transmitted();
            policy.publish();
        }
        let before = policy.news();
        policy.complete(1).unwrap();
        assert!(
            before == policy.news(),
            "the head is what there is no room for"
        );
        policy.observe_head(2).unwrap();
        assert!(before != policy.news());
        let before = policy.news();
        policy.complete(2).unwrap();
        assert!(before != policy.news(), "there is room");

        // A message is held back because requests are lacking; a completion frees some.
        policy.advance(1);
        policy.transmitted();
        policy.publish();
        policy.advance(1);
        let before = policy.news();
        policy.complete(3).unwrap();
        assert!(before != policy.news(), "there are requests");
    }
}
