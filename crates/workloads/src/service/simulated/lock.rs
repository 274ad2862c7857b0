//! A lock in virtual time. Pure.

use std::collections::VecDeque;

use headworks::verbs::{Duration, Instant};

/// How soon a thread looks again that waits behind others: sooner than any of them can be done.
const LOOK: Duration = Duration::from_nanos(20);

/// A ticket lock: threads have it in the order in which they asked; a thread that waits spins.
#[derive(Debug)]
pub(super) struct Lock {
    /// What it costs to change hands between two cores, and more for each other thread that waits then.
    costs: [Duration; 2],
    free_at: Instant,
    owner: Option<usize>,
    line: VecDeque<usize>,
}

impl Lock {
    pub(super) fn new(costs: [Duration; 2]) -> Self {
        Self {
            costs,
            free_at: Instant::ZERO,
            owner: None,
            line: VecDeque::new(),
        }
    }

    /// Thread `who` wants it `now`, and stands in line if it `queues`. It has the lock after that time, uses it in the same
    /// step, and [releases](Self::release) it; or it is to ask again then.
    pub(super) fn ask(
        &mut self,
        who: usize,
        now: Instant,
        queues: bool,
    ) -> Result<Duration, Instant> {
        if !queues && (!self.line.is_empty() || self.free_at > now) {
            return Err(self.free_at.max(now + LOOK));
        }
        if !self.line.contains(&who) {
            self.line.push_back(who);
        }
        if self.free_at > now {
            return Err(self.free_at);
        }
        if self.line.front() != Some(&who) {
            return Err(now + LOOK);
        }
        self.line.pop_front();
        let is_own = self.owner.replace(who).is_none_or(|owner| owner == who);
        let [over, waiter] = self.costs;
        Ok(match is_own {
            true => Duration::ZERO,
            false => over + waiter.times(self.line.len() as u64),
        })
    }

    /// Its owner lets go of it.
    pub(super) fn release(&mut self, now: Instant) {
        self.free_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_had_in_the_order_of_asking_and_is_dearer_the_more_wait() {
        let (has, waits) = (Duration::from_nanos, Instant::from_nanos);
        let mut lock = Lock::new([has(150), has(10)]);
        // Who asks when, and whether it stands in line; and when the lock is released, if the thread has it.
        let trace = [
            ((1, 100, true), Ok(0), 200),
            ((1, 200, true), Ok(0), 300),
            ((3, 210, true), Err(300), 0),
            ((2, 220, true), Err(300), 0),
            ((2, 300, true), Err(320), 0),
            ((4, 300, false), Err(320), 0),
            ((3, 300, true), Ok(160), 500),
            ((2, 320, true), Err(500), 0),
            ((4, 320, false), Err(500), 0),
            ((2, 500, true), Ok(150), 700),
            ((4, 900, false), Ok(150), 950),
        ];
        for ((who, now, queues), answer, released) in trace {
            let asked = lock.ask(who, waits(now), queues);
            assert_eq!(asked, answer.map(has).map_err(waits), "{who} at {now}");
            if asked.is_ok() {
                lock.release(waits(released));
            }
        }
    }
}
