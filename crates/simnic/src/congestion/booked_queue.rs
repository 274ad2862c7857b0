//! A queue of bytes whose departures are known when they enter: a switch's port or an RNIC's receive buffer.
//! Pure.
//!
//! Bytes leave in the order in which they entered. So the queue can say how many bytes it will hold at a later
//! time, and when it will hold few enough.

use std::collections::VecDeque;

use crate::hardware_units::Ps;

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct BookedQueue {
    /// Time at which each entry leaves, ascending, and its bytes.
    entries: VecDeque<(Ps, u64)>,
    bytes: u64,
}

impl BookedQueue {
    /// Forgets what has left by `now`. Later questions must be about `now` or later times.
    pub(crate) fn advance(&mut self, now: Ps) {
        while let Some(&(leaves, bytes)) = self.entries.front()
            && leaves <= now
        {
            self.entries.pop_front();
            self.bytes -= bytes;
        }
    }

    /// Returns the number of bytes that will be left at that time, of those that have entered so far.
    pub(crate) fn bytes_at(&self, at: Ps) -> u64 {
        let gone = self.entries.iter().take_while(|(leaves, _)| *leaves <= at);
        self.bytes - gone.map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Returns the time from which at most `limit` bytes will be left; `None` if there are no more now.
    pub(crate) fn falls_to(&self, limit: u64) -> Option<Ps> {
        let mut left = self.bytes;
        let mut at = None;
        for (leaves, bytes) in &self.entries {
            if left <= limit {
                break;
            }
            left -= bytes;
            at = Some(*leaves);
        }
        at
    }

    /// Adds bytes that leave at that time, but not before earlier ones.
    pub(crate) fn put(&mut self, leaves: Ps, bytes: u64) {
        let leaves = self
            .entries
            .back()
            .map_or(leaves, |(last, _)| leaves.max(*last));
        self.entries.push_back((leaves, bytes));
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The queue agrees with a list of all entries.
        #[test]
        fn it_agrees_with_a_list(
            puts in proptest::collection::vec((0u64..100, 1u64..50), 1..60), now in 0u64..3000, limit in 0u64..500,
        ) {
            let (mut queue, mut list, mut leaves) = (BookedQueue::default(), Vec::new(), 0);
            for (later, bytes) in puts {
                leaves += later;
                queue.put(leaves, bytes);
                list.push((leaves, bytes));
            }
            let left = |at: u64| list.iter().filter(|(leaves, _)| *leaves > at).map(|(_, bytes)| bytes).sum::<u64>();
            queue.advance(now);
            for at in [now, now + 1, now + 100, now + 1000] {
                prop_assert_eq!(queue.bytes_at(at), left(at));
            }
            match queue.falls_to(limit) {
                None => prop_assert!(left(now) <= limit),
                Some(at) => prop_assert!(left(at) <= limit && left(at - 1) > limit),
            }
        }
    }
}
