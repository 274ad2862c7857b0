//! Messages that are taken by hand of a ring of a group, held, and let go of in any order.

use headworks::ring::{ByHand, Held, RingError};
use headworks::sim::faults::Chance;

use super::HELD;

/// Those of one ring.
#[derive(Default)]
pub(in super::super) struct Hand(Vec<Held>);

impl Hand {
    /// Takes a message and holds it: whether there was one. One that was held goes where they are many.
    pub(in super::super) fn take(
        &mut self,
        ring: &mut ByHand<'_>,
        chance: &mut Chance,
        came: impl FnOnce(&[u8]),
    ) -> Result<bool, RingError> {
        if self.0.len() == HELD {
            let any = chance.below(HELD as u64) as usize;
            ring.release(self.0.swap_remove(any))?;
        }
        let Some(held) = ring.try_take()? else {
            return Ok(false);
        };
        came(ring.bytes(&held));
        self.0.push(held);
        Ok(true)
    }

    /// Lets go of all: the sender may wait for their room.
    pub(in super::super) fn release(&mut self, ring: &mut ByHand<'_>) -> Result<(), RingError> {
        self.0.drain(..).try_for_each(|held| ring.release(held))
    }

    /// The ring is gone, and they with it.
    pub(in super::super) fn clear(&mut self) {
        self.0.clear();
    }
}
