//! Receives of one queue pair, on a device without shared receive queues: pure.
//!
//! A domain has one stock of receives ([`Receives`](crate::receives::Receives)). Each queue pair for frames holds
//! some of them. A receive goes back to the stock when it completes, or when its queue pair is destroyed.
//! [`ReceiveShares`](crate::receive_shares::ReceiveShares) counts the receives of a failed queue pair as promised until
//! then. So the stock always has the receives that are owed.

use std::collections::VecDeque;

/// Consecutive refusals after which a full receive queue counts as failed. A working one never refuses as often.
pub const REFUSALS: u32 = 1 << 20;

/// Receives that one queue pair holds and that it is owed.
#[derive(Clone, Debug, Default)]
pub struct OwnReceives {
    /// Number of the queue pair's receive queue. No other queue pair of the domain has had it.
    queue: u32,
    /// Numbers of the posted receives, in the order in which they were posted and will complete.
    posted: VecDeque<u32>,
    /// Number of receives that are to be posted.
    owed: u32,
    /// Consecutive times that the queue pair accepted no receive.
    refusals: u32,
}

impl OwnReceives {
    /// Creates the account of receive queue `queue`, which is owed `owed` receives.
    pub fn new(queue: u32, owed: u32) -> Self {
        Self {
            queue,
            owed,
            ..Self::default()
        }
    }

    /// Number of the receive queue.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Number of receives that are to be posted.
    pub fn owed(&self) -> u32 {
        self.owed
    }

    /// Number of posted receives.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.posted.len()
    }

    /// Owes the queue pair `more` receives. Returns whether it was owed none before.
    pub fn owe(&mut self, more: u32) -> bool {
        let was_owed = self.owed > 0;
        self.owed += more;
        !was_owed && more > 0
    }

    /// Records that the receives with these numbers were posted, out of those that were owed. Posting none counts as a
    /// refusal. Returns whether the queue pair has not refused too often.
    pub fn post(&mut self, numbers: &[u32]) -> bool {
        self.posted.extend(numbers);
        self.owed = self.owed.saturating_sub(numbers.len() as u32);
        self.refusals = match numbers {
            [] => self.refusals + 1,
            _ => 0,
        };
        self.refusals < REFUSALS
    }

    /// Takes back a receive that has completed on receive queue `queue`. Returns whether this queue pair held it. If not,
    /// the completion belongs to a queue pair that is gone.
    pub fn complete(&mut self, queue: u32, number: u32) -> bool {
        // Receives of a queue pair complete in order, so it is the first one.
        let at = self.posted.iter().position(|held| *held == number);
        let held = at.filter(|_| queue == self.queue);
        held.and_then(|at| self.posted.remove(at)).is_some()
    }

    /// Returns the numbers of the receives that a destroyed queue pair held.
    pub fn into_posted(self) -> impl Iterator<Item = u32> {
        self.posted.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receive_shares::ReceiveShares;
    use proptest::prelude::*;

    /// A group, as the domain has it.
    struct Group {
        own: OwnReceives,
        /// Receives that the peer was promised and has not used.
        outstanding: u64,
        /// Receives in the order in which the device has them.
        device: VecDeque<u32>,
    }

    impl Group {
        /// Posts what is owed, as far as the device takes it, and promises that.
        fn refill(&mut self, stock: &mut Vec<u32>, takes: usize) {
            let count = (self.own.owed() as usize).min(takes);
            let numbers = stock.split_off(stock.len().checked_sub(count).expect("enough in stock"));
            assert!(self.own.post(&numbers));
            self.device.extend(&numbers);
            self.outstanding += count as u64;
        }
    }

    proptest! {
        /// Groups come, receive, fail and are destroyed later, in any order. The stock always has what is owed, a group
        /// has as many posted receives as its peer was promised, and no receive is lost or posted twice.
        #[test]
        fn the_stock_always_has_what_is_owed(
            posted in 8u32..64,
            share in 1u32..40,
            acts in proptest::collection::vec((0u8..8, any::<usize>(), 0usize..4), 0..400),
        ) {
            let floor = 4;
            let mut shares = ReceiveShares::new(posted, floor, share);
            let mut stock: Vec<u32> = (0..posted).collect();
            let mut groups: Vec<Group> = Vec::new();
            let mut dying: Vec<Group> = Vec::new();
            let mut queue = 0;
            for (act, at, takes) in acts {
                let at = at % groups.len().max(1);
                match act {
                    0 => if let Some(promised) = shares.admit() {
                        queue += 1;
                        let own = OwnReceives::new(queue, promised);
                        let (outstanding, device) = (0, VecDeque::new());
                        let mut group = Group { own, outstanding, device };
                        group.refill(&mut stock, usize::MAX);
                        groups.push(group);
                    },
                    1 if !groups.is_empty() => dying.push(groups.swap_remove(at)),
                    2 => for group in dying.drain(..) {
                        let Group { own, outstanding, .. } = group;
                        shares.leave(outstanding + u64::from(own.owed()));
                        // Its completions, if they come yet, change nothing.
                        stock.extend(own.into_posted());
                    },
                    3 => for group in groups.iter_mut().filter(|one| one.own.owed() > 0) {
                        group.refill(&mut stock, takes);
                    },
                    _ => if let Some(group) = groups.get_mut(at)
                        && let Some(number) = group.device.pop_front()
                    {
                        prop_assert!(!group.own.complete(group.own.queue() + 1, number));
                        prop_assert!(group.own.complete(group.own.queue(), number));
                        prop_assert!(!group.own.complete(group.own.queue(), number));
                        group.outstanding -= 1;
                        let outstanding = group.outstanding + u64::from(group.own.owed());
                        group.own.owe(shares.used(outstanding));
                        stock.push(number);
                    },
                }
                let all = || groups.iter().chain(&dying);
                let owed: u32 = all().map(|one| one.own.owed()).sum();
                prop_assert!(stock.len() >= owed as usize);
                let spare = shares.posted() - shares.promised();
                prop_assert_eq!(stock.len(), (owed + spare) as usize);
                for group in all() {
                    prop_assert_eq!(group.outstanding, group.device.len() as u64);
                    prop_assert!(group.device.len() as u32 + group.own.owed() <= share.max(floor));
                }
                let mut each: Vec<u32> = stock.clone();
                each.extend(all().flat_map(|one| &one.own.posted));
                each.sort_unstable();
                prop_assert_eq!(each, (0..posted).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_queue_pair_that_never_accepts_a_receive_counts_as_failed() {
        let mut own = OwnReceives::new(1, 4);
        for _ in 1..REFUSALS {
            assert!(own.post(&[]));
        }
        assert!(!own.post(&[]));
        assert!(own.post(&[7]), "it accepted one");
        assert_eq!(own.owed(), 3);
    }
}
