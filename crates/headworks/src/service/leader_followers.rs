//! Leader/followers: of a session's sleeping threads, one, the leader, listens to the daemon for all.

/// The threads that sleep or are about to, each with what wakes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeaderFollowers<W> {
    asleep: Vec<WaitingThread<W>>,
    leader: Option<u64>,
    /// Number of the thread that entered last.
    number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct WaitingThread<W> {
    number: u64,
    on: Option<u32>,
    wake: W,
}

impl<W> LeaderFollowers<W> {
    pub(super) fn new() -> Self {
        Self {
            asleep: Vec::new(),
            leader: None,
            number: 0,
        }
    }

    /// Adds a thread that is about to sleep on a connection, or on an answer or a listener (`None`). Returns
    /// its number until it [leaves](Self::leave).
    pub(super) fn enter(&mut self, on: Option<u32>, wake: W) -> u64 {
        self.number += 1;
        let number = self.number;
        self.asleep.push(WaitingThread { number, on, wake });
        number
    }

    /// Whether this thread listens to the daemon; it becomes the leader if there is none. Call it before each
    /// sleep.
    pub(super) fn is_leader(&mut self, number: u64) -> bool {
        *self.leader.get_or_insert(number) == number
    }

    /// Removes a thread that sleeps no more. If there is no leader now, wakes the next thread: it takes over, or leaves
    /// too. That holds even if the leaving thread was not the leader: it may have been woken to take over, and have
    /// given up.
    ///
    /// `wake` is called before the lock is released. A thread that has become the leader meanwhile must not be woken as a
    /// follower: that would disarm what the daemon wakes it by.
    pub(super) fn leave(&mut self, number: u64, wake: impl FnOnce(&W)) {
        self.asleep.retain(|sleeper| sleeper.number != number);
        self.leader.take_if(|leader| *leader == number);
        if self.leader.is_none()
            && let Some(next) = self.asleep.first()
        {
            wake(&next.wake);
        }
    }

    /// Iterates over all threads: whether it is the leader, what it sleeps on, and what wakes it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (bool, Option<u32>, &W)> {
        self.asleep.iter().map(|sleeper| {
            let is_leader = self.leader == Some(sleeper.number);
            (is_leader, sleeper.on, &sleeper.wake)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::LeaderFollowers;

    /// The next action of a thread. Each is done under the lock.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum At {
        Outside,
        Looks(u64),
        Sleeps(u64),
        Leaves(u64),
        Gone,
    }

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Threads {
        waiters: LeaderFollowers<usize>,
        at: Vec<At>,
        is_woken: Vec<bool>,
        /// Whether the daemon wakes the thread when there is news.
        is_armed: Vec<bool>,
    }

    impl Threads {
        /// Returns the state after one more step of thread `own`, other than giving up, which no thread has
        /// to do.
        fn steps(&self, own: usize) -> Option<Self> {
            let mut next = self.clone();
            next.at[own] = match self.at[own] {
                At::Outside => At::Looks(next.waiters.enter(None, own)),
                At::Looks(number) => {
                    next.waiters.is_leader(number);
                    next.is_armed[own] = true;
                    At::Sleeps(number)
                }
                At::Sleeps(number) if self.is_woken[own] => {
                    next.is_woken[own] = false;
                    At::Looks(number)
                }
                At::Leaves(number) => {
                    let (is_woken, is_armed) = (&mut next.is_woken, &mut next.is_armed);
                    // A leader sleeps elsewhere, so it would be disarmed and not woken.
                    next.waiters.leave(number, |&other| {
                        (is_woken[other], is_armed[other]) = (true, false);
                    });
                    At::Gone
                }
                At::Sleeps(_) | At::Gone => return None,
            };
            Some(next)
        }

        /// The thread has what it waited for, or waits no longer; it finds that without the lock.
        fn gives_up(&self, own: usize) -> Option<Self> {
            let (At::Looks(number) | At::Sleeps(number)) = self.at[own] else {
                return None;
            };
            let mut next = self.clone();
            next.at[own] = At::Leaves(number);
            Some(next)
        }
    }

    #[test]
    fn there_is_a_leader_wherever_threads_are_left_asleep() {
        let all = 4;
        let begin = Threads {
            waiters: LeaderFollowers::new(),
            at: vec![At::Outside; all],
            is_woken: vec![false; all],
            is_armed: vec![false; all],
        };
        let (mut seen, mut open) = (HashSet::from([begin.clone()]), vec![begin]);
        let mut rests = 0;
        while let Some(threads) = open.pop() {
            let steps = || (0..all).filter_map(|own| threads.steps(own));
            let sleeping = || {
                let numbers = threads.at.iter().filter_map(|at| match at {
                    At::Sleeps(number) => Some(*number),
                    _ => None,
                });
                numbers.collect::<Vec<_>>()
            };
            for (own, at) in threads.at.iter().enumerate() {
                let is_heard = threads.is_armed[own] || threads.is_woken[own];
                assert!(
                    is_heard || !matches!(at, At::Sleeps(_)),
                    "the daemon cannot wake thread {own}: {threads:?}"
                );
            }
            if steps().next().is_none() && !sleeping().is_empty() {
                rests += 1;
                let leader = threads.waiters.leader;
                assert!(
                    leader.is_some_and(|leader| sleeping().contains(&leader)),
                    "nobody listens: {threads:?}"
                );
            }
            for next in steps().chain((0..all).filter_map(|own| threads.gives_up(own))) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        assert!(rests > 1, "no state with only sleeping threads was reached");
    }
}
