//! Operations on a queue as a whole: listing its values, and recovering slots of dead processes.

use super::{
    FREE, FULL, READING, SearchStep, ShmSafe, SlotQueueRef, WRITING, lap_of, owner_of_word, tag_of,
    word,
};
use crate::primitive::Ordering;

impl<T: ShmSafe> SlotQueueRef<T> {
    /// For the only consumer: calls `f` for every committed value not consumed yet, oldest first.
    pub(super) fn for_each_full(&self, mut f: impl FnMut(u64, T)) {
        let start = self.header().head.get();
        for offset in 0..self.capacity as u64 {
            let position = start.wrapping_add(offset);
            let found = self.load(position);
            if tag_of(found) == FULL {
                f(
                    self.position_in_lap(position, lap_of(found)),
                    self.read(position),
                );
            }
        }
    }

    /// Repairs slots that dead processes left. A slot that one was writing is skipped. A value that one was
    /// reading is handed to `read` and its slot freed. `dead` returns whether an owner is dead.
    ///
    /// Several threads or processes may recover at once; each value is handed out once. An owner's number
    /// may be given to another process only after every queue that it used was recovered. Until then the
    /// dead owner's slots would seem to be held by the new one.
    /// it held would seem to be held by the living.
    ///
    /// # Safety
    ///
    /// Claims made in the name of an owner for which `dead` returns true are not used any more, neither now
    /// nor later: the slots are given to others.
    pub unsafe fn recover(&self, dead: impl Fn(u16) -> bool, mut read: impl FnMut(u64, T)) {
        let start = self.header().head.get();
        for offset in 0..self.capacity as u64 {
            let near = start.wrapping_add(offset);
            let found = self.load(near);
            let tag = tag_of(found);
            if !(tag == WRITING || tag == READING) || !dead(owner_of_word(found)) {
                continue;
            }
            let position = self.position_in_lap(near, lap_of(found));
            // Read before the slot is freed; the value counts only if the word has not changed since.
            let value = (tag == READING).then(|| self.read(position));
            let next_lap = self.lap(self.later(position, 1));
            let freed = self.slot(near).word.compare_exchange(
                found,
                word(next_lap, 0, FREE),
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if let (Ok(_), Some(value)) = (freed, value) {
                read(position, value);
            }
        }
    }

    /// Returns how many values were ever taken out, including by consumers that died before they advanced the
    /// head hint. It is the position of the oldest value not taken out.
    pub fn popped(&self) -> u64 {
        let mut position = self.header().head.get();
        for _ in 0..self.search_limit() {
            match self.next_to_pop(position, self.load(position)) {
                Ok(SearchStep::At(next)) => position = next,
                _ => break,
            }
        }
        position
    }

    /// Returns whether `who` has reserved a slot and not committed its value yet.
    pub fn is_reserved_by(&self, who: u16) -> bool {
        (0..self.capacity as u64).any(|position| {
            let found = self.load(position);
            tag_of(found) == WRITING && owner_of_word(found) == who
        })
    }

    /// Returns the position at the queue's head and its owner if it is being written. Until its owner commits
    /// it, it blocks the queue.
    pub fn blocking_push(&self) -> Option<(u64, u16)> {
        let mut position = self.header().head.get();
        for _ in 0..self.search_limit() {
            let found = self.load(position);
            match self.next_to_pop(position, found) {
                Ok(SearchStep::At(next)) => position = next,
                Ok(SearchStep::Nothing) if tag_of(found) == WRITING => {
                    return Some((position, owner_of_word(found)));
                }
                _ => return None,
            }
        }
        None
    }

    /// Returns the position in the same slot as `position` whose lap is `lap`.
    fn position_in_lap(&self, position: u64, lap: u64) -> u64 {
        self.later(position, super::laps_ahead(lap, self.lap(position)))
    }
}
