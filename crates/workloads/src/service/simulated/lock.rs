//! A lock in virtual time. Pure.

use std::collections::VecDeque;

use headworks::sim::Preset;
use headworks::verbs::{Duration, Instant};

/// How soon a thread looks again that waits behind others: sooner than any of them can be done.
const LOOK: Duration = Duration::from_nanos(20);

/// What a lock costs when it changes hands, beside the wait for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handing {
    /// From one core to another: the constant `cpu.lock`.
    pub(super) over: Duration,
    /// More for each other thread that waits for it then: `cpu.lock_waiter`.
    pub(super) waiter: Duration,
}

impl Handing {
    /// On a machine like this.
    pub(super) fn of(machine: &Preset) -> Self {
        let nanos = |nanos: f64| Duration::from_nanos(nanos.round() as u64);
        Self {
            over: nanos(machine.lock_ns),
            waiter: nanos(machine.lock_waiter_ns),
        }
    }
}

/// The answer to a thread that wants the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The thread has it once that is over. In the same step it uses it, and [releases](Lock::release) it.
    Has(Duration),
    /// The thread stands in line, and is to ask again then.
    Waits(Instant),
}

/// A ticket lock: threads have it in the order in which they asked; a thread that waits spins.
#[derive(Debug)]
pub(super) struct Lock {
    handing: Handing,
    free_at: Instant,
    owner: Option<usize>,
    line: VecDeque<usize>,
}

impl Lock {
    /// A lock that no thread has had.
    pub(super) fn new(handing: Handing) -> Self {
        Self {
            handing,
            free_at: Instant::ZERO,
            owner: None,
            line: VecDeque::new(),
        }
    }

    /// Thread `who` wants it `now`.
    pub(super) fn ask(&mut self, who: usize, now: Instant) -> Answer {
        if !self.line.contains(&who) {
            self.line.push_back(who);
        }
        if self.free_at > now {
            return Answer::Waits(self.free_at);
        }
        if self.line.front() != Some(&who) {
            return Answer::Waits(now + LOOK);
        }
        self.line.pop_front();
        let is_own = self.owner.replace(who).is_none_or(|owner| owner == who);
        let others = self.line.len() as u64;
        Answer::Has(match is_own {
            true => Duration::ZERO,
            false => self.handing.over + self.handing.waiter.times(others),
        })
    }

    /// [`ask`](Self::ask) of a thread that does not stand in line if the lock is not free.
    pub(super) fn try_now(&mut self, who: usize, now: Instant) -> Answer {
        match self.line.is_empty() && self.free_at <= now {
            true => self.ask(who, now),
            false => Answer::Waits(self.free_at.max(now + LOOK)),
        }
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
        let at = Instant::from_nanos;
        let after = |nanos| Answer::Has(Duration::from_nanos(nanos));
        let mut lock = Lock::new(Handing {
            over: Duration::from_nanos(150),
            waiter: Duration::from_nanos(10),
        });
        assert_eq!(lock.ask(1, at(100)), after(0));
        lock.release(at(200));
        assert_eq!(lock.ask(1, at(200)), after(0), "it is here still");
        lock.release(at(300));
        assert_eq!(lock.ask(3, at(210)), Answer::Waits(at(300)));
        assert_eq!(lock.ask(2, at(220)), Answer::Waits(at(300)));
        assert_eq!(lock.ask(2, at(300)), Answer::Waits(at(320)));
        assert_eq!(lock.try_now(4, at(300)), Answer::Waits(at(320)));
        assert_eq!(lock.ask(3, at(300)), after(160), "one more waits");
        lock.release(at(500));
        assert_eq!(lock.ask(2, at(320)), Answer::Waits(at(500)));
        assert_eq!(lock.try_now(4, at(320)), Answer::Waits(at(500)));
        assert_eq!(lock.ask(2, at(500)), after(150));
        lock.release(at(700));
        assert_eq!(lock.try_now(4, at(900)), after(150));
    }
}
