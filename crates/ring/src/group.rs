//! Rings that one thread serves together.
//!
//! Two rings that cross each other (requests one way, answers the other) can stop each other: each
//! sender waits for space that the other thread would announce if it were not itself waiting. Such
//! rings belong to one group, and whoever finds a ring Full or Empty steps the group.

use crate::error::RingError;
use crate::{Receiver, Sender};

/// The rings of one thread.
#[derive(Default)]
pub struct Group {
    /// Rings it sends on.
    pub senders: Vec<Sender>,
    /// Rings it receives from.
    pub receivers: Vec<Receiver>,
}

impl Group {
    /// Publishes all tails; and, if a ring is full or the thread will wait now, pushes all heads.
    /// Due after every [`SendError::Full`](crate::SendError::Full) and every empty receive. Says
    /// whether something changed.
    pub fn step(&mut self, will_wait: bool) -> Result<bool, RingError> {
        let mut changed = false;
        let mut full = false;
        for sender in &mut self.senders {
            changed |= sender.step()?;
            full |= sender.is_full();
        }
        for receiver in &mut self.receivers {
            if full || will_wait {
                receiver.push_head()?;
            }
            changed |= receiver.step()?;
        }
        Ok(changed)
    }
}
