//! The sender's decisions: is there room, is a skip needed, what is transmitted when, and when is
//! the tail published. Pure arithmetic on monotonic slot counters.
//!
//! RB², section IV-B and algorithm 1, with two corrections: the ring is full when the *head* is one
//! lap behind (the paper prints local_tail), and slots are transmitted at `>= β`. The tail's two
//! thresholds are two variables: `attempted` keeps the cadence of α, also when publication is
//! deferred, `published` moves when a tail is really posted.

use headworks_shm::CursorError;
use headworks_shm::cursor::check_within;

use crate::config::Settled;

/// What the sender knows and may decide from.
#[derive(Clone, Debug)]
pub struct SendPolicy {
    slots: u64,
    alpha: u64,
    beta: u64,
    /// Slots that go into one WRITE at most.
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
    /// Slots before this one have been read by the device: a polled completion says so.
    completed: u64,
    /// Slots may be filled up to here.
    limit: u64,
    /// The tail when a request was last signalled, and how many slots later the next is due.
    signaled: u64,
    signal_every: u64,
    /// One-slot messages that can be taken before anything has to be decided again.
    quiet: u64,
}

/// The answer to [`SendPolicy::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Fill from this slot index.
    At(u64),
    /// Write a skip of `count` slots at `index` first, [`SendPolicy::advance`] over it, ask again.
    Skip {
        /// Index of the slot, counted from the first message on.
        index: u64,
        /// Slots up to the end of the array.
        count: u64,
    },
    /// No room.
    Full,
}

/// What is to be posted after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing yet.
    Nothing,
    /// The slots that are not transmitted.
    Transmit,
    /// Those, and then the tail.
    Publish,
}

impl SendPolicy {
    /// The policy of an empty ring.
    pub fn new(ring: &Settled) -> Self {
        Self::starting_at(ring, 0)
    }

    /// The policy of an empty ring whose cursors stand at `start`, a multiple of N. Cursors may wrap
    /// with u64 whatever N is: slot indices are counted apart from them.
    pub fn starting_at(ring: &Settled, start: u64) -> Self {
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
            // The gate waits for every tail's completion. Without it completions only free slots:
            // a few a lap suffice, as long as those that are not known complete leave room for the
            // longest message.
            signal_every: match ring.elastic {
                true => 1,
                false => (ring.slots / 4).min(ring.slots - ring.max_slots).max(1),
            },
            quiet: 0,
        }
    }

    /// Has requests signalled so often that a send queue of `depth` never fills with requests of
    /// which none says that it completed.
    pub fn fit_queue(&mut self, depth: u64) {
        // Behind the last signalled request there are at most the publications of fewer than
        // `signal_every` slots, of two requests each, three where they wrap, and the groups of α.
        let groups = self.alpha.div_ceil(self.beta.min(self.write_slots)) + 8;
        let slots = depth.saturating_sub(groups) / 3;
        self.signal_every = self.signal_every.min(slots).max(1);
    }

    /// Whether the request that publishes `tail` is to be signalled; [`SendPolicy::signal`] once it is.
    #[inline(always)]
    pub fn must_signal(&self, tail: u64) -> bool {
        tail.wrapping_sub(self.signaled) >= self.signal_every
    }

    /// A signalled request that publishes `tail` was posted.
    #[inline(always)]
    pub fn signal(&mut self, tail: u64) {
        self.signaled = tail;
    }

    /// The slot index for a message of one slot, if nothing at all is due with it: the path of most
    /// messages. [`SendPolicy::take_quietly`] takes it.
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

    /// Finds out how many messages of one slot need no decision: there is room, the array does not
    /// end, and neither β nor α is reached. Due after [`SendPolicy::advance`] and what it led to; until
    /// then there is none.
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

    /// Next slot to fill, counted from the beginning.
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

    /// The peer's head as last seen: it has consumed everything before.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Whether everything is published.
    pub fn is_flushed(&self) -> bool {
        self.published == self.tail
    }

    /// Whether a published tail has not completed yet.
    #[inline(always)]
    pub fn is_publishing(&self) -> bool {
        self.completed != self.published
    }

    /// Slots that may be filled.
    #[inline(always)]
    pub fn free(&self) -> u64 {
        self.limit.wrapping_sub(self.tail)
    }

    /// Differs once there is something that a sender that sleeps must wake for: it may be told nothing of it
    /// again. A completion is, as soon as it frees slots, or requests while something is held back.
    pub fn news(&self) -> impl PartialEq + use<> {
        let held_back = (!self.is_flushed()).then_some(self.completed);
        (self.head, self.published, self.limit, held_back)
    }

    /// Room for `count` contiguous slots?
    ///
    /// A message never wraps. Where it does not fit before the end of the array, the rest is
    /// skipped; the skip alone suffices as soon as *it* fits, so that a message of more than N/2
    /// slots does not wait for room that can never be there.
    #[inline(always)]
    pub fn reserve(&self, count: u64) -> Reserve {
        let before_wrap = self.slots - self.index;
        if count <= before_wrap {
            return if count <= self.free() {
                Reserve::At(self.index)
            } else {
                Reserve::Full
            };
        }
        if before_wrap <= self.free() {
            Reserve::Skip {
                index: self.index,
                count: before_wrap,
            }
        } else {
            Reserve::Full
        }
    }

    /// `count` slots from the tail were filled. Says what is due.
    #[inline(always)]
    pub fn advance(&mut self, count: u64) -> Due {
        self.tail = self.tail.wrapping_add(count);
        self.index += count;
        if self.index >= self.slots {
            self.index -= self.slots;
        }
        self.quiet = 0;
        if self.tail.wrapping_sub(self.attempted) >= self.alpha {
            return Due::Publish;
        }
        if self.tail.wrapping_sub(self.sent) >= self.beta {
            return Due::Transmit;
        }
        Due::Nothing
    }

    /// Publication is due: may the tail be posted now, or is it deferred (the elastic threshold)?
    #[inline(always)]
    pub fn attempt(&mut self) -> bool {
        self.attempted = self.tail;
        !(self.elastic && self.is_publishing())
    }

    /// The slots to transmit, as up to two ranges of slot indices.
    #[inline(always)]
    pub fn untransmitted(&self) -> [(u64, u64); 2] {
        let count = self.tail.wrapping_sub(self.sent);
        // The tail's index is known: count back from it.
        if count <= self.index {
            return [(self.index - count, count), (0, 0)];
        }
        let wrapped = count - self.index;
        [(self.slots - wrapped, wrapped), (0, self.index)]
    }

    /// Everything filled was posted.
    #[inline(always)]
    pub fn transmitted(&mut self) {
        self.sent = self.tail;
    }

    /// Only the first `count` ranges of [`SendPolicy::untransmitted`] were posted.
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

    /// Only so many slots were posted, of the first range of [`SendPolicy::untransmitted`].
    #[cold]
    pub fn transmitted_slots(&mut self, count: u64) {
        debug_assert!(count <= self.untransmitted()[0].1);
        self.sent = self.sent.wrapping_add(count);
    }

    /// The tail was posted behind everything filled.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.published = self.tail;
        self.attempted = self.tail;
    }

    /// Everything posted announced itself: for designs whose data travels by WRITE with immediate.
    #[inline(always)]
    pub fn publish_sent(&mut self) {
        self.published = self.sent;
        self.attempted = self.sent;
    }

    /// A tail WRITE completed: the device has read every slot before it.
    #[inline(always)]
    pub fn complete(&mut self, tail: u64) -> Result<(), CursorError> {
        let span = self.published.wrapping_sub(self.completed);
        self.completed = check_within(tail, self.completed, span)?;
        self.set_limit();
        Ok(())
    }

    /// The peer's head as found. One before the last seen, or beyond what is published, is refused:
    /// where heads may overtake each other, the wire passes only new ones on.
    #[inline(always)]
    pub fn observe_head(&mut self, head: u64) -> Result<(), CursorError> {
        let span = self.published.wrapping_sub(self.head);
        self.head = check_within(head, self.head, span)?;
        self.set_limit();
        Ok(())
    }

    /// A slot is free again when the peer has passed it and the device has read it.
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

        // Held back, for want of requests: one that completes makes some.
        policy.advance(1);
        policy.transmitted();
        policy.publish();
        policy.advance(1);
        let before = policy.news();
        policy.complete(3).unwrap();
        assert!(before != policy.news(), "there are requests");
    }
}
