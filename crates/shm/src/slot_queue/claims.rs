//! Pushing and popping values, in one step or in two.

use super::{FREE, FULL, READING, SearchStep, ShmSafe, SlotError, SlotQueueRef, WRITING, word};
use crate::primitive::{Ordering, fence};

/// A reserved slot whose value is not committed yet.
#[derive(Debug)]
#[must_use = "a slot claimed and not committed wedges the queue until its owner dies"]
pub struct PushClaim {
    position: u64,
    queue: QueueId,
}

/// A value taken out of the queue whose slot is not freed yet.
#[derive(Debug)]
#[must_use = "a slot claimed and not finished is lost until its owner dies"]
pub struct PopClaim {
    position: u64,
    queue: QueueId,
}

/// Result of [`SlotQueueRef::claim_pop_if`].
#[derive(Debug)]
#[must_use = "what was taken is lost until its owner dies"]
pub enum ConditionalPop {
    /// The oldest value fits, and the caller holds it now.
    Taken(PopClaim),
    /// The oldest value does not fit, and stays the oldest.
    Rejected,
    /// The queue is empty.
    Empty,
}

/// Identifies the queue of a claim by the queue's address. A claim gives access to a slot, so it must not
/// be used with another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueueId(usize);

impl PushClaim {
    /// Returns the value's position in the queue.
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl PopClaim {
    /// Returns the value's position in the queue.
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl<T: ShmSafe> SlotQueueRef<T> {
    #[inline(always)]
    fn queue_id(&self) -> QueueId {
        QueueId(self.header.addr())
    }

    /// Appends `value` in the name of `who`. Returns its position.
    #[inline]
    pub fn push(&self, who: u16, value: &T) -> Result<u64, SlotError> {
        let claim = self.claim_push(who)?;
        Ok(self.commit(claim, value))
    }

    /// Reserves the next slot in the name of `who`.
    #[inline]
    pub fn claim_push(&self, who: u16) -> Result<PushClaim, SlotError> {
        let position = self.header().tail.get();
        match self.take(position, word(self.lap(position), 0, FREE), WRITING, who) {
            Ok(()) => {
                self.header().tail.advance(position.wrapping_add(1));
                Ok(self.push_claim(position))
            }
            Err(found) => self.search_push(who, position, found),
        }
    }

    #[inline(always)]
    fn push_claim(&self, position: u64) -> PushClaim {
        let queue = self.queue_id();
        PushClaim { position, queue }
    }

    #[cold]
    fn search_push(
        &self,
        who: u16,
        mut position: u64,
        mut found: u64,
    ) -> Result<PushClaim, SlotError> {
        for _ in 0..self.search_limit() {
            match self.next_to_push(position, found)? {
                SearchStep::Here => match self.take(position, found, WRITING, who) {
                    Ok(()) => {
                        self.header().tail.advance(position.wrapping_add(1));
                        return Ok(self.push_claim(position));
                    }
                    Err(changed) => found = changed,
                },
                SearchStep::At(next) => {
                    position = next;
                    found = self.load(position);
                }
                SearchStep::Nothing => return Err(SlotError::Full),
            }
        }
        Err(SlotError::Corrupt)
    }

    /// Writes the value into a reserved slot and makes it visible. Returns its position.
    ///
    /// # Panics
    ///
    /// If the claim belongs to another queue.
    #[inline]
    pub fn commit(&self, claim: PushClaim, value: &T) -> u64 {
        assert!(claim.queue == self.queue_id(), "{FOREIGN}");
        let slot = self.slot(claim.position);
        // SAFETY: the claim makes this thread the only one that accesses the value until the store below.
        // If a broken peer writes meanwhile, that is still plain data.
        slot.value.with_mut(|cell| unsafe { cell.write(*value) });
        // Pairs with the consumer's Acquire load, which then sees the value.
        slot.word
            .store(word(self.lap(claim.position), 0, FULL), Ordering::Release);
        claim.position
    }

    /// Takes the oldest value out in the name of `who` and returns it with its position.
    #[inline]
    pub fn try_pop(&self, who: u16) -> Result<Option<(u64, T)>, SlotError> {
        let Some(claim) = self.claim_pop(who)? else {
            return Ok(None);
        };
        let taken = (claim.position, self.value(&claim));
        self.finish(claim);
        Ok(Some(taken))
    }

    /// Takes the oldest value out in the name of `who`. Read it with [`SlotQueueRef::value`].
    #[inline]
    pub fn claim_pop(&self, who: u16) -> Result<Option<PopClaim>, SlotError> {
        // Each failed swap means that another consumer made progress.
        for _ in 0..self.search_limit() {
            let Some((position, found)) = self.front()? else {
                return Ok(None);
            };
            if self.take(position, found, READING, who).is_ok() {
                self.header().head.advance(position.wrapping_add(1));
                let queue = self.queue_id();
                return Ok(Some(PopClaim { position, queue }));
            }
        }
        Err(SlotError::Corrupt)
    }

    /// Takes the oldest value out in the name of `who` if `fits` returns true for it.
    pub fn claim_pop_if(
        &self,
        who: u16,
        mut fits: impl FnMut(&T) -> bool,
    ) -> Result<ConditionalPop, SlotError> {
        for _ in 0..self.search_limit() {
            let Some((position, found)) = self.front()? else {
                return Ok(ConditionalPop::Empty);
            };
            // Others may take the slot and fill it again meanwhile. The value read counts only if the word,
            // which holds the lap of each use of the slot, is the same afterwards.
            let Some(value) = self.peek_prefix::<T>(position) else {
                continue;
            };
            fence(Ordering::Acquire);
            if fits(&value) {
                if self.take(position, found, READING, who).is_ok() {
                    self.header().head.advance(position.wrapping_add(1));
                    let queue = self.queue_id();
                    return Ok(ConditionalPop::Taken(PopClaim { position, queue }));
                }
            } else if self.is_still(position, found) {
                return Ok(ConditionalPop::Rejected);
            }
        }
        Err(SlotError::Corrupt)
    }

    /// Returns whether a slot's word still is `found`, ordered after all earlier reads of the slot. A plain
    /// load might return the old word although the value read is from the slot's next use. A swap does not.
    #[inline]
    fn is_still(&self, position: u64, found: u64) -> bool {
        let word = &self.slot(position).word;
        word.compare_exchange(found, found, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Returns the value of a claim.
    ///
    /// # Panics
    ///
    /// If the claim belongs to another queue.
    #[inline]
    pub fn value(&self, claim: &PopClaim) -> T {
        assert!(claim.queue == self.queue_id(), "{FOREIGN}");
        self.read(claim.position)
    }

    /// Returns the start of a claim's value. If it tells how much of the rest is meaningful, the caller need
    /// not fetch the rest.
    ///
    /// # Panics
    ///
    /// If the claim belongs to another queue.
    #[inline(always)]
    pub fn value_prefix<P: ShmSafe>(&self, claim: &PopClaim) -> P {
        assert!(claim.queue == self.queue_id(), "{FOREIGN}");
        self.read_prefix(claim.position)
    }

    /// Frees the slot of a claim.
    ///
    /// # Panics
    ///
    /// If the claim belongs to another queue.
    #[inline]
    pub fn finish(&self, claim: PopClaim) {
        assert!(claim.queue == self.queue_id(), "{FOREIGN}");
        self.free(claim.position);
    }

    /// Returns the queue's only consumer, which needs no compare-and-swap.
    ///
    /// # Safety
    ///
    /// While it lives nobody else consumes from the queue, in any process, through any handle: neither
    /// another of these nor [`SlotQueueRef::claim_pop`] or [`SlotQueueRef::try_pop`]. With several
    /// consumers, a value is read while it is overwritten, and is handed out twice.
    pub unsafe fn single_consumer(&self) -> SingleConsumer<T> {
        SingleConsumer { queue: *self }
    }

    /// Returns the queue's only producer, which needs no compare-and-swap. The queue must be newly made.
    ///
    /// # Safety
    ///
    /// Nobody else ever appends to the queue, in any process, through any handle: neither another of these
    /// nor [`SlotQueueRef::claim_push`] or [`SlotQueueRef::push`]. With several producers, values overwrite
    /// each other while they are read.
    pub unsafe fn single_producer(&self) -> SingleProducer<T> {
        SingleProducer {
            queue: *self,
            position: 0,
        }
    }
}

/// Panic message for a claim that belongs to another queue.
const FOREIGN: &str = "the claim belongs to another queue";

/// The only producer of a queue; see [`SlotQueueRef::single_producer`].
#[derive(Debug)]
pub struct SingleProducer<T> {
    queue: SlotQueueRef<T>,
    /// Position of the next value.
    position: u64,
}

impl<T: ShmSafe> SingleProducer<T> {
    /// Returns the queue that it fills.
    #[inline(always)]
    pub fn queue(&self) -> &SlotQueueRef<T> {
        &self.queue
    }

    /// Returns how many values it has put in.
    #[inline(always)]
    pub fn pushed(&self) -> u64 {
        self.position
    }

    /// Returns whether `most` of its values or more are not claimed yet. Values are claimed in the order in
    /// which they were put in. So the slot of the value put in `most` values ago answers that, without
    /// loading words that consumers write all the time.
    #[inline]
    pub fn has_unclaimed(&self, most: u64) -> bool {
        let Some(position) = self.position.checked_sub(most) else {
            return false;
        };
        self.queue.load(position) == word(self.queue.lap(position), 0, FULL)
    }

    /// Appends `value`. Returns its position.
    #[inline]
    pub fn push(&mut self, value: &T) -> Result<u64, SlotError> {
        let (queue, position) = (self.queue, self.position);
        let found = queue.load(position);
        if found != word(queue.lap(position), 0, FREE) {
            return Err(match queue.next_to_push(position, found) {
                Ok(SearchStep::Nothing) => SlotError::Full,
                _ => SlotError::Corrupt,
            });
        }
        queue.prefetch_slot(position.wrapping_add(2));
        let slot = queue.slot(position);
        // SAFETY: the slot is free, and nobody else fills slots.
        slot.value.with_mut(|cell| unsafe { cell.write(*value) });
        // Pairs with the consumer's Acquire load, which then sees the value.
        slot.word
            .store(word(queue.lap(position), 0, FULL), Ordering::Release);
        self.position = position.wrapping_add(1);
        queue
            .header()
            .tail
            .0
            .store(self.position, Ordering::Release);
        Ok(position)
    }
}

/// The only consumer of a queue; see [`SlotQueueRef::single_consumer`].
#[derive(Debug)]
pub struct SingleConsumer<T> {
    queue: SlotQueueRef<T>,
}

impl<T: ShmSafe> SingleConsumer<T> {
    /// Returns the queue that it consumes.
    #[inline(always)]
    pub fn queue(&self) -> &SlotQueueRef<T> {
        &self.queue
    }

    /// Takes the oldest value out and returns it with its position. A consumer that dies in this call before
    /// it frees the slot has not taken the value: the next consumer gets it.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<(u64, T)>, SlotError> {
        let queue = &self.queue;
        let Some((position, _)) = queue.front()? else {
            return Ok(None);
        };
        let taken = (position, queue.read(position));
        queue.free(position);
        // The slot is freed first: after a death the hint may lag, but must not lead.
        queue.header().head.advance(position.wrapping_add(1));
        Ok(Some(taken))
    }

    /// Calls `f` for every committed value not consumed yet, oldest first.
    pub fn for_each_full(&mut self, f: impl FnMut(u64, T)) {
        self.queue.for_each_full(f);
    }
}
