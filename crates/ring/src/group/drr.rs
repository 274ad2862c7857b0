//! Whose turn it is among many rings. Pure.
//!
//! Turns go in rounds. A round is made of the rings in which something was seen before it began, and
//! of those that had more than their share in the round before; each has one turn of at most `quantum`
//! messages. So whatever one ring brings, no other waits for more than one turn of each.
//!
//! Where what is served is not all of one size a quantum is one of cost ([`DeficitRoundRobin::spent`]; deficit round robin):
//! what costs more than is left of a turn ends it, and what it costs too much is taken off the next ones.

use std::collections::VecDeque;

/// The order of turns.
#[derive(Clone, Debug)]
pub struct DeficitRoundRobin {
    quantum: u32,
    /// What is left of the turn: messages, or cost.
    left: u32,
    /// The rings of this round that have not had their turn, the one whose turn it is first.
    now: VecDeque<u32>,
    /// Those of the next.
    next: VecDeque<u32>,
    /// Whether a ring is in either.
    queued: Vec<bool>,
    /// What a ring's turns have cost too much.
    owed: Vec<u32>,
}

impl Default for DeficitRoundRobin {
    fn default() -> Self {
        Self::new(super::config::QUANTUM)
    }
}

impl DeficitRoundRobin {
    /// Nobody; each turn is `quantum` messages, at least 1.
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

    /// Something was seen in this ring: it has a turn in the next round, unless it is still to have
    /// one in this.
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

    /// Whose turn it is; `None` once the round is over.
    #[inline(always)]
    pub fn current(&self) -> Option<u32> {
        self.now.front().copied()
    }

    /// It has given a message.
    #[inline(always)]
    pub fn served(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.pause();
        }
    }

    /// It has taken so much of its turn.
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

    /// Its share is used up: it goes on in the next round.
    fn pause(&mut self) {
        if let Some(ring) = self.now.pop_front() {
            self.next.push_back(ring);
        }
        self.settle();
    }

    /// A turn begins: of the first that does not owe all of it.
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

    /// It has no more.
    #[inline]
    pub fn exhausted(&mut self) {
        if let Some(ring) = self.now.pop_front() {
            self.queued[ring as usize] = false;
        }
        self.settle();
    }

    /// The round is over and the next one begins; says whether anybody is in it.
    pub fn begin(&mut self) -> bool {
        // Where all owe a whole turn, the next round may be over as it begins.
        while self.now.is_empty() && !self.next.is_empty() {
            std::mem::swap(&mut self.now, &mut self.next);
            self.settle();
        }
        !self.now.is_empty()
    }

    /// Whether anybody waits for a turn.
    pub fn is_waited_for(&self) -> bool {
        !(self.now.is_empty() && self.next.is_empty())
    }

    /// The ring is gone.
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

    /// Serves everything there is in `waiting`; the order in which it was.
    fn serve(rota: &mut DeficitRoundRobin, waiting: &mut [u32], most: usize) -> Vec<u32> {
        let mut order = Vec::new();
        while order.len() < most {
            let Some(ring) = rota.current() else {
                if !rota.begin() {
                    break;
                }
                continue;
            };
            match &mut waiting[ring as usize] {
                0 => rota.exhausted(),
                left => {
                    *left -= 1;
                    rota.served();
                    order.push(ring);
                }
            }
        }
        order
    }

    #[test]
    fn turns_are_of_a_quantum_and_go_round() {
        let mut rota = DeficitRoundRobin::new(2);
        for ring in [5, 1, 5] {
            rota.call(ring);
        }
        let mut waiting = [0, 3, 0, 0, 0, 5];
        let order = serve(&mut rota, &mut waiting, 100);
        assert_eq!(order, [5, 5, 1, 1, 5, 5, 1, 5]);
        assert!(!rota.is_waited_for());
    }

    #[test]
    fn who_is_forgotten_has_no_turn_and_may_come_back() {
        let mut rota = DeficitRoundRobin::new(2);
        rota.call(0);
        rota.call(1);
        assert_eq!(serve(&mut rota, &mut [9, 9], 1), [0]);
        rota.forget(0);
        assert_eq!(serve(&mut rota, &mut [9, 3], 100), [1, 1, 1]);
        rota.call(0);
        assert_eq!(serve(&mut rota, &mut [1, 0], 100), [0]);
    }

    #[test]
    fn what_cost_too_much_is_taken_off_the_next_turns() {
        let mut rota = DeficitRoundRobin::new(10);
        rota.call(0);
        rota.call(1);
        // One takes 35 at a time, the other 5: over time both have the same.
        let mut spent = [0, 0];
        for _ in 0..1000 {
            while rota.current().is_none() {
                assert!(rota.begin());
            }
            let ring = rota.current().unwrap();
            let cost = [35, 5][ring as usize];
            rota.spent(cost);
            spent[ring as usize] += cost;
            assert!(spent[0].abs_diff(spent[1]) <= 45, "{spent:?}");
        }
        // Alone, it has all its turns.
        rota.forget(1);
        rota.spent(35);
        assert!(rota.begin() && rota.current() == Some(0));
    }

    proptest! {
        /// Whatever is waiting, between two turns of a ring every other that waits has one.
        #[test]
        fn nobody_has_a_second_turn_before_all_had_one(
            quantum in 1u32..5,
            waiting in proptest::collection::vec(0u32..40, 1..12),
        ) {
            let mut rota = DeficitRoundRobin::new(quantum);
            for ring in 0..waiting.len() {
                rota.call(ring as u32);
            }
            let order = serve(&mut rota, &mut waiting.clone(), usize::MAX);
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
