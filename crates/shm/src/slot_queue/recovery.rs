//! Looking at a queue as a whole: what is in it, and what the dead left.

use super::{
    FREE, FULL, READING, SearchStep, ShmSafe, SlotQueueRef, WRITING, lap_of, tag_of, who_of, word,
};
use crate::primitive::Ordering;

impl<T: ShmSafe> SlotQueueRef<T> {
    /// For the only consumer: shows every committed value not consumed yet, oldest first.
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

    /// Puts right what dead processes left: a slot that one was writing is skipped, a value that
    /// one was reading is handed to `read` and its slot freed. `dead` says of an owner whether it is.
    ///
    /// Several may do so at once, each value is handed out once. An owner's number may be given to
    /// another process only after every queue that it used was recovered: until then the slots that
    /// it held would seem to be held by the living.
    ///
    /// # Safety
    ///
    /// Claims made in the name of an owner of whom `dead` says so are not used any more, neither
    /// now nor later: the slots are given to others.
    pub unsafe fn recover(&self, dead: impl Fn(u16) -> bool, mut read: impl FnMut(u64, T)) {
        let start = self.header().head.get();
        for offset in 0..self.capacity as u64 {
            let near = start.wrapping_add(offset);
            let found = self.load(near);
            let tag = tag_of(found);
            if !(tag == WRITING || tag == READING) || !dead(who_of(found)) {
                continue;
            }
            let position = self.position_in_lap(near, lap_of(found));
            // Read before the slot is given away; counts only if the word has not changed since.
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

    /// How many values were ever taken out, also by those who died before they said so anywhere: the
    /// position of the oldest that was not.
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

    /// Whether `who` has reserved a slot whose value is still to come.
    pub fn is_reserved_by(&self, who: u16) -> bool {
        (0..self.capacity as u64).any(|position| {
            let found = self.load(position);
            tag_of(found) == WRITING && who_of(found) == who
        })
    }

    /// Who holds back the queue: the position at its head and its owner, if it is being written.
    pub fn blocking_push(&self) -> Option<(u64, u16)> {
        let mut position = self.header().head.get();
        for _ in 0..self.search_limit() {
            let found = self.load(position);
            match self.next_to_pop(position, found) {
                Ok(SearchStep::At(next)) => position = next,
                Ok(SearchStep::Nothing) if tag_of(found) == WRITING => {
                    return Some((position, who_of(found)));
                }
                _ => return None,
            }
        }
        None
    }

    /// The position in slot `position` whose lap is `lap`, near `position`.
    fn position_in_lap(&self, position: u64, lap: u64) -> u64 {
        self.later(position, super::laps_ahead(lap, self.lap(position)))
    }
}
