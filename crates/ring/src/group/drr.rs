//! Deficit round robin: decides whose turn it is among many rings. Pure.
//!
//! Turns go in rounds. A round consists of the rings in which something was seen before it began, and of
//! those that used up their share in the round before. Each has one turn of at most `quantum` messages.
//! So no ring waits for more than one turn of every other, whatever the others receive.
//!
//! Where messages differ in size, the quantum is one of cost ([`DeficitRoundRobin::spent`]). A message
//! that costs more than is left of a turn ends it, and the excess is taken off the ring's next turns.

use std::collections::VecDeque;

/// The order of turns among rings.
#[derive(Clone, Debug)]
pub struct DeficitRoundRobin {
    quantum: u32,
    /// Rest of the current turn, in messages or in cost.
    left: u32,
    /// Rings that still have a turn in this round. The first has the current turn.
    now: VecDeque<u32>,
    /// Rings that have a turn in the next round.
    next: VecDeque<u32>,
    /// Whether each ring is in `now` or `next`.
    queued: Vec<bool>,
    /// Cost of each ring's turns in excess of their quantum.
    owed: Vec<u32>,
}

impl Default for DeficitRoundRobin {
    fn default() -> Self {
        Self::new(super::config::QUANTUM)
    }
}

impl DeficitRoundRobin {
    /// An order without rings. Each turn is `quantum` messages, at least 1.
    pub fn new(quantum: u32) -> Self {
        let quantum = quantum.max(1);
        Self {
            quantum,
            left: quantum,
            now: VecDeque::new(),
            next: VecDeque::new(),
            queued: Vec::new(),
            owed: Vec::new(),
        }
    }

    /// Queues a ring in which something was seen: it has a turn in the next round, unless it still has
    /// one in this round.
    pub fn call(&mut self, ring: u32) {
        let at = ring as usize;
        if at >= self.queued.len() {
            self.queued.resize(at + 1, false);
            self.owed.resize(at + 1, 0);
        }
        if !std::mem::replace(&mut self.queued[at], true) {
            self.next.push_back(ring);
        }
    }

    /// Returns the ring whose turn it is; `None` once the round is over.
    #[inline(always)]
    pub fn current(&self) -> Option<u32> {
        self.now.front().copied()
    }

    /// Takes one message off the current turn.
    #[inline(always)]
    pub fn served(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.pause();
        }
    }

    /// Takes `cost` off the current turn.
    #[inline]
    pub fn spent(&mut self, cost: u32) {
        match self.left.checked_sub(cost) {
            Some(left @ 1..) => self.left = left,
            left => {
                if let (None, Some(ring)) = (left, self.now.front()) {
                    self.owed[*ring as usize] += cost - self.left;
                }
                self.pause();
            }
        }
    }

    /// Ends the turn of a ring that used up its share. The ring goes on in the next round.
    fn pause(&mut self) {
        if let Some(ring) = self.now.pop_front() {
            self.next.push_back(ring);
        }
        self.settle();
    }

    /// Begins the turn of the first ring that owes less than a quantum. A ring that owes more pays with
    /// its turn in this round.
    fn settle(&mut self) {
        self.left = self.quantum;
        while let Some(ring) = self.now.front() {
            let owed = &mut self.owed[*ring as usize];
            if *owed < self.quantum {
                self.left -= std::mem::take(owed);
                break;
            }
            *owed -= self.quantum;
            self.next.extend(self.now.pop_front());
        }
    }

    /// Ends the turn of a ring that has nothing more.
    #[inline]
    pub fn exhausted(&mut self) {
        if let Some(ring) = self.now.pop_front() {
            self.queued[ring as usize] = false;
        }
        self.settle();
    }

    /// Begins the next round if this one is over. Returns whether a ring has a turn in it.
    pub fn begin(&mut self) -> bool {
        // Where all rings owe a whole turn, a round may be over as it begins.
        while self.now.is_empty() && !self.next.is_empty() {
            std::mem::swap(&mut self.now, &mut self.next);
            self.settle();
        }
        !self.now.is_empty()
    }

    /// Returns whether any ring waits for a turn.
    pub fn is_waited_for(&self) -> bool {
        !(self.now.is_empty() && self.next.is_empty())
    }

    /// Removes a ring that is gone.
    pub fn forget(&mut self, ring: u32) {
        let was_first = self.now.front() == Some(&ring);
        self.now.retain(|other| *other != ring);
        self.next.retain(|other| *other != ring);
        if let Some(queued) = self.queued.get_mut(ring as usize) {
            *queued = false;
            self.owed[ring as usize] = 0;
        }
        if was_first {
            self.settle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Serves what is in `waiting`, up to `most` messages. Returns the rings in the order served.
    fn serve(drr: &mut DeficitRoundRobin, waiting: &mut [u32], most: usize) -> Vec<u32> {
        let mut order = Vec::new();
        while order.len() < most {
            let Some(ring) = drr.current() else {
                if !drr.begin() {
                    break;
                }
                continue;
            };
            match &mut waiting[ring as usize] {
                0 => drr.exhausted(),
                left => {
                    *left -= 1;
                    drr.served();
                    order.push(ring);
                }
            }
        }
        order
    }

    #[test]
    fn turns_are_of_a_quantum_and_go_round() {
        let mut drr = DeficitRoundRobin::new(2);
        for ring in [5, 1, 5] {
            drr.call(ring);
        }
        let mut waiting = [0, 3, 0, 0, 0, 5];
        let order = serve(&mut drr, &mut waiting, 100);
        assert_eq!(order, [5, 5, 1, 1, 5, 5, 1, 5]);
        assert!(!drr.is_waited_for());
    }

    #[test]
    fn a_forgotten_ring_loses_its_turn_and_may_return() {
        let mut drr = DeficitRoundRobin::new(2);
        drr.call(0);
        drr.call(1);
        assert_eq!(serve(&mut drr, &mut [9, 9], 1), [0]);
        drr.forget(0);
        assert_eq!(serve(&mut drr, &mut [9, 3], 100), [1, 1, 1]);
        drr.call(0);
        assert_eq!(serve(&mut drr, &mut [1, 0], 100), [0]);
    }

    #[test]
    fn an_overspent_turn_is_deducted_from_later_turns() {
        let mut drr = DeficitRoundRobin::new(10);
        drr.call(0);
        drr.call(1);
        // Ring 0 costs 35 a turn, ring 1 costs 5: over time both spend the same.
        let mut spent = [0, 0];
        for _ in 0..1000 {
            while drr.current().is_none() {
                assert!(drr.begin());
            }
            let ring = drr.current().unwrap();
            let cost = [35, 5][ring as usize];
            drr.spent(cost);
            spent[ring as usize] += cost;
            assert!(spent[0].abs_diff(spent[1]) <= 45, "{spent:?}");
        }
        // Alone, a ring has every turn.
        drr.forget(1);
        drr.spent(35);
        assert!(drr.begin() && drr.current() == Some(0));
    }

    proptest! {
        /// Whatever is waiting, between two turns of a ring every other waiting ring has one.
        #[test]
        fn nobody_has_a_second_turn_before_all_had_one(
            quantum in 1u32..5,
            waiting in proptest::collection::vec(0u32..40, 1..12),
        ) {
            let mut drr = DeficitRoundRobin::new(quantum);
            for ring in 0..waiting.len() {
                drr.call(ring as u32);
            }
            let order = serve(&mut drr, &mut waiting.clone(), usize::MAX);
            let total: u32 = waiting.iter().sum();
            prop_assert_eq!(order.len(), total as usize);
            for (ring, all) in waiting.iter().enumerate() {
                let others: u32 = waiting
                    .iter()
                    .enumerate()
                    .filter(|(other, _)| *other != ring)
                    .map(|(_, count)| (*count).min(all.div_ceil(quantum) * quantum))
                    .sum();
                let last = order.iter().rposition(|one| *one == ring as u32);
                if let Some(last) = last {
                    prop_assert!(last < (others + all) as usize, "{ring} waits: {order:?}");
                }
            }
        }
    }
}
