//! Pushing and popping, whole or in two steps.

use super::{FREE, FULL, Next, READING, ShmSafe, SlotError, SlotQueueRef, WRITING, word};
use crate::primitive::Ordering;

/// A slot reserved for a value that is still to come.
#[derive(Debug)]
#[must_use = "a slot claimed and not committed wedges the queue until its owner dies"]
pub struct PushClaim {
    pub(super) position: u64,
}

/// A value taken out of the queue whose slot is not free yet.
#[derive(Debug)]
#[must_use = "a slot claimed and not finished is lost until its owner dies"]
pub struct PopClaim {
    pub(super) position: u64,
}

impl PushClaim {
    /// The value's position in the queue.
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl PopClaim {
    /// The value's position in the queue.
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl<T: ShmSafe> SlotQueueRef<T> {
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
                Ok(PushClaim { position })
            }
            Err(found) => self.search_push(who, position, found),
        }
    }

    #[cold]
    fn search_push(
        &self,
        who: u16,
        mut position: u64,
        mut found: u64,
    ) -> Result<PushClaim, SlotError> {
        for _ in 0..self.patience() {
            match self.next_to_push(position, found)? {
                Next::Here => match self.take(position, found, WRITING, who) {
                    Ok(()) => {
                        self.header().tail.advance(position.wrapping_add(1));
                        return Ok(PushClaim { position });
                    }
                    Err(changed) => found = changed,
                },
                Next::At(next) => {
                    position = next;
                    found = self.load(position);
                }
                Next::Nothing => return Err(SlotError::Full),
            }
        }
        Err(SlotError::Corrupt)
    }

    /// Puts the value into a reserved slot. Returns its position.
    #[inline]
    pub fn commit(&self, claim: PushClaim, value: &T) -> u64 {
        let slot = self.slot(claim.position);
        // SAFETY: the claim makes this thread the only one that touches the value until the store
        // below; what a broken peer writes meanwhile is plain data all the same.
        slot.value.with_mut(|cell| unsafe { cell.write(*value) });
        // Pairs with the Acquire load of the consumer: the value is there.
        slot.word
            .store(word(self.lap(claim.position), 0, FULL), Ordering::Release);
        claim.position
    }

    /// Takes the oldest value out in the name of `who`, with its position.
    #[inline]
    pub fn try_pop(&self, who: u16) -> Result<Option<(u64, T)>, SlotError> {
        let Some(claim) = self.claim_pop(who)? else {
            return Ok(None);
        };
        let taken = (claim.position, self.value(&claim));
        self.finish(claim);
        Ok(Some(taken))
    }

    /// Takes the oldest value out in the name of `who`; read it with [`SlotQueueRef::value`].
    #[inline]
    pub fn claim_pop(&self, who: u16) -> Result<Option<PopClaim>, SlotError> {
        // Each failed swap means that another consumer got on.
        for _ in 0..self.patience() {
            let Some((position, found)) = self.front()? else {
                return Ok(None);
            };
            if self.take(position, found, READING, who).is_ok() {
                self.header().head.advance(position.wrapping_add(1));
                return Ok(Some(PopClaim { position }));
            }
        }
        Err(SlotError::Corrupt)
    }

    /// The value of a claim.
    #[inline]
    pub fn value(&self, claim: &PopClaim) -> T {
        self.read(claim.position)
    }

    /// Frees the slot of a claim.
    #[inline]
    pub fn finish(&self, claim: PopClaim) {
        self.free(claim.position);
    }

    /// [`SlotQueueRef::try_pop`] without a compare-and-swap, for a queue with one consumer at a
    /// time, under a lock of its own. With several, values may be handed out twice and the queue
    /// may be found corrupt. A consumer that dies inside has not taken the value: the next one does.
    #[inline]
    pub fn pop_exclusive(&self) -> Result<Option<(u64, T)>, SlotError> {
        let Some((position, _)) = self.front()? else {
            return Ok(None);
        };
        let taken = (position, self.read(position));
        self.free(position);
        // After freeing: the hint may lag behind a death, not lead.
        self.header().head.advance(position.wrapping_add(1));
        Ok(Some(taken))
    }
}
