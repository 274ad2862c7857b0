//! Connections that wait for memory of the receive pool although their applications have read everything, and which of them
//! have waited too long. Pure.

use std::collections::BTreeMap;

use headworks_client::Vqpn;
use headworks_rxpool::admission::Class;
use headworks_rxpool::holdings::AppId;
use headworks_verbs::{Duration, Instant};

/// How long a connection waits for the pool before it does without. Much longer than a READ takes.
pub(crate) const PATIENCE: Duration = Duration::from_millis(2);
/// How long a connection waits for which the pool had no memory before.
const SHORT_PATIENCE: Duration = Duration::from_micros(125);
/// How long a connection waits at most if it is [overtaken](OVERTAKEN), although its application gets memory for other
/// connections.
const LONGEST: Duration = Duration::from_millis(20);
/// How often all connections are looked at, at least.
const LOOK_EVERY: Duration = Duration::from_millis(4);
/// A connection is overtaken when this many times as many READs have begun as connections wait, and as many more.
const OVERTAKEN: u64 = 8;

/// A connection's wait for memory.
#[derive(Clone, Copy, Debug)]
struct Wait {
    app: AppId,
    /// Since when it waits; [`Instant::ZERO`] if the pool had no memory for its latest piece either.
    since: Instant,
    /// [`PoolWaiters::reads_begun`] when it began to wait.
    reads_begun: u64,
}

/// Connections that wait for memory.
#[derive(Debug, Default)]
pub(crate) struct PoolWaiters {
    waiting: BTreeMap<Vqpn, Wait>,
    /// READs into the pool that have begun.
    reads_begun: u64,
    /// When to look at the connections next.
    look_at: Instant,
    /// The connection at which the next look begins.
    from: Vqpn,
}

impl PoolWaiters {
    /// Notes that a connection waits for memory, since `now`. `did_without_pool`: the pool had no memory for its latest piece.
    pub(crate) fn wait(&mut self, number: Vqpn, app: AppId, did_without_pool: bool, now: Instant) {
        if self.waiting.is_empty() {
            self.look_at = now + PATIENCE;
        }
        if did_without_pool {
            self.look_at = self.look_at.min(now + SHORT_PATIENCE);
        }
        let wait = Wait {
            app,
            since: if did_without_pool { Instant::ZERO } else { now },
            reads_begun: self.reads_begun,
        };
        self.waiting.insert(number, wait);
    }

    /// Whether a connection is known to wait.
    pub(crate) fn is_waiting(&self, number: Vqpn) -> bool {
        self.waiting.contains_key(&number)
    }

    /// Notes that a connection does not wait any more.
    pub(crate) fn stop_waiting(&mut self, number: Vqpn) {
        self.waiting.remove(&number);
    }

    /// Counts a READ into the pool.
    pub(crate) fn read_begun(&mut self) {
        self.reads_begun += 1;
    }

    /// Notes the connection that is looked at first the next time.
    pub(crate) fn look_from(&mut self, number: Vqpn) {
        self.from = number;
    }

    /// Returns when the connections are to be looked at, if any waits.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.look_at)
    }

    /// Returns the connections that have waited too long, and those of a low class if the pool `is_short`. `of_app` tells an
    /// application's class, and when it last got memory or had no transfer that waited.
    pub(crate) fn waited_too_long(
        &mut self,
        now: Instant,
        is_short: bool,
        of_app: impl Fn(AppId) -> Option<(Class, Instant)>,
    ) -> Vec<Vqpn> {
        if self.waiting.is_empty() || now < self.look_at {
            return Vec::new();
        }
        // Connections get memory in turn. A connection is overtaken if many times as many READs have begun as connections
        // wait: then transfers that are much longer are before its own.
        let turns = OVERTAKEN * (self.waiting.len() as u64 + OVERTAKEN);
        let overtaken = self.reads_begun.checked_sub(turns);
        let mut look_at = now + LOOK_EVERY;
        let mut is_too_long = |wait: &Wait| {
            let (class, progress) = of_app(wait.app).unwrap_or((Class::Normal, wait.since));
            if is_short && class == Class::Low {
                return true;
            }
            let mut ends_at = progress.max(wait.since) + PATIENCE;
            if wait.since == Instant::ZERO || overtaken.is_some_and(|at| wait.reads_begun <= at) {
                ends_at = ends_at.min(wait.since + LONGEST);
            }
            if ends_at > now {
                look_at = look_at.min(ends_at);
            }
            ends_at <= now
        };
        let all = self.waiting.range(self.from..);
        let all = all.chain(self.waiting.range(..self.from));
        let too_long = all.filter(|(_, wait)| is_too_long(wait));
        let too_long: Vec<Vqpn> = too_long.map(|(number, _)| *number).collect();
        // Connections that were returned may have to wait for their turns.
        self.look_at = match too_long.is_empty() {
            true => look_at,
            false => look_at.min(now + PATIENCE),
        };
        too_long
    }
}

#[cfg(test)]
mod tests {
    use headworks_rxpool::holdings::Holdings;

    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// Connections `0..count` of one application that wait since 1 ms.
    fn waiters(count: u32) -> (PoolWaiters, AppId) {
        let app = Holdings::new(64, PATIENCE).add();
        let mut waiters = PoolWaiters::default();
        for place in 0..count {
            waiters.wait(Vqpn::new(place, 0), app, false, at(1000));
        }
        (waiters, app)
    }

    fn count(waiters: &mut PoolWaiters, now: Instant, class: Class, progress: Instant) -> usize {
        let is_short = class == Class::Low;
        let of_app = |_| Some((class, progress));
        waiters.waited_too_long(now, is_short, of_app).len()
    }

    #[test]
    fn connections_of_an_application_without_progress_do_without_after_a_while() {
        let (mut waiters, _) = waiters(3);
        let due = waiters.deadline().unwrap();
        assert_eq!(due, at(3000));
        assert_eq!(count(&mut waiters, at(2999), Class::Normal, at(0)), 0);
        // It got memory at 2.5 ms.
        assert_eq!(count(&mut waiters, due, Class::Normal, at(2500)), 0);
        assert_eq!(waiters.deadline(), Some(at(4500)));
        assert_eq!(count(&mut waiters, at(4500), Class::Normal, at(2500)), 3);
        waiters.stop_waiting(Vqpn::new(1, 0));
        let again = waiters.deadline().unwrap();
        assert_eq!(count(&mut waiters, again, Class::Normal, at(2500)), 2);
    }

    #[test]
    fn a_long_wait_among_many_is_not_too_long_as_turns_are_fair() {
        for (reads, expected) in [(8 * 1008 - 1, 0), (8 * 1008, 1000)] {
            let (mut waiters, _) = waiters(1000);
            (0..reads).for_each(|_| waiters.read_begun());
            // The application goes on all the time.
            let now = at(60_000);
            assert_eq!(count(&mut waiters, now, Class::Normal, now), expected);
        }
    }

    #[test]
    fn a_connection_that_did_without_waits_no_longer_than_needed_and_a_low_class_not_at_all() {
        let (mut waiters, app) = waiters(1);
        waiters.wait(Vqpn::new(7, 0), app, true, at(1000));
        let due = waiters.deadline().unwrap();
        assert_eq!(due, at(1125));
        // The world's time begins long before.
        let later = due + LONGEST;
        assert_eq!(count(&mut waiters, later, Class::Normal, later), 1);
        let next = waiters.deadline().unwrap();
        assert_eq!(count(&mut waiters, next, Class::Low, next), 2);
    }

    #[test]
    fn the_next_look_begins_where_the_latest_ended() {
        let (mut waiters, _) = waiters(4);
        waiters.look_from(Vqpn::new(2, 0));
        let of_app = |_| Some((Class::Normal, Instant::ZERO));
        let too_long = waiters.waited_too_long(at(10_000), false, of_app);
        let places: Vec<usize> = too_long.iter().map(|number| number.place()).collect();
        assert_eq!(places, [2, 3, 0, 1]);
    }
}
