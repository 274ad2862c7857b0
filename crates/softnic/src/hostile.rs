//! A device that misbehaves on purpose, within what it declares and what the specification leaves
//! open: `soft:h1,hostile,seed=7`.
//!
//! It breaks, from a seed, whatever a program may not rely on: in which order the bytes of a
//! message are placed, when a request begins, when a completion is seen, whether a receive counts
//! as posted at the first look, whether there is room at the first try, and, where that is switched
//! on, whether the queue pair lives. A program that relies on such a thing, and goes wrong with a NIC once
//! in a month, goes wrong here in a second, and again with the same seed.
//!
//! # Rules
//!
//! What happens is decided by pure code. A [`Rule`] is shown an [`Event`] with its facts and some
//! [`Chance`], and may answer with a [`Verdict`]; of a list of rules the first to answer decides.
//! No rule has a state, a clock or I/O: what is drawn depends on the seed, on the device's name, on
//! which of the device's queue pairs it is, on the request's number and on how often was asked, and
//! on nothing else. So the fate of a request does not depend on threads and their timing; only what
//! happens *between* its steps does.
//!
//! # What no rule can do
//!
//! The device holds to what is promised, whatever the rules say:
//!
//! - completions of a queue pair come in posting order, each once, and a request completes only when
//!   it and all before it are placed;
//! - with `ordered_between_writes` a WRITE's first byte is placed after the last one of the WRITE
//!   before; without it WRITEs of a queue pair mix, but only with each other: SENDs, immediates and
//!   atomics wait for what is before them. A READ may be overtaken by later WRITEs that are not
//!   fenced, as the specification allows;
//! - with `atomic_aligned_8` no aligned word of 8 bytes is placed in parts;
//! - there is room in an empty queue, and room is refused only while a signalled request is
//!   outstanding (or a receive posted), at most three times for the same request: who waits for a
//!   completion before the next try does not wait in vain;
//! - a receive is denied only where the queue pair's `rnr_retry` leaves a try, and that does not
//!   count as one;
//! - what is held back is shown after a bounded number of polls, and whoever sleeps on a channel is
//!   woken for it.
//!
//! # Example
//!
//! ```
//! use headworks_softnic::SoftProvider;
//! use headworks_softnic::hostile::{Rules, rules};
//! use headworks_verbs::Provider;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let fabric = headworks_shm::Registry::open_at(dir.path().join("fabric"))?;
//! // Bytes in any order, and every queue pair dies with its hundredth request.
//! let rules = Rules::new(7).with(rules::scatter(4)).with(rules::kill_after(100));
//! let provider = SoftProvider::on(fabric).with_rules(rules);
//! let device = provider.open(&"soft:h1".parse()?)?;
//! assert_eq!(device.info().promises.in_order_within_write, 0);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_verbs::SendOp::{Read, Write};
use headworks_verbs::{DeviceInfo, Duration, Opcode, Qpn, SendOp, Status};

pub(crate) mod hold;
pub(crate) mod options;
mod random;
pub mod rules;
mod scatter;

pub use random::Chance;
pub use scatter::{Extent, Scatter};

/// What is about to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Point {
    /// A send request is posted. [`Verdict::Refuse`]: there is no room.
    Post,
    /// A receive is posted to a queue pair of its own; shared receive queues are never denied room.
    /// [`Verdict::Refuse`]: there is no room.
    PostReceive,
    /// A request is next. [`Verdict::Wait`] and [`Verdict::WaitFor`]: it rests; [`Verdict::Kill`].
    Begin,
    /// A request needs a receive. [`Verdict::Refuse`]: none is posted.
    Receive,
    /// A part of a request is placed. At the first turn [`Verdict::Scatter`], at any
    /// [`Verdict::Kill`].
    Place,
    /// A poll of a CQ would find something. [`Verdict::Wait`]: so many polls do not, this one
    /// included; [`Verdict::AtMost`].
    Poll,
    /// A datagram is on its way. [`Verdict::Refuse`]: it is lost.
    Datagram,
}

/// An event and its facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// What is about to happen.
    pub point: Point,
    /// Whose: random bits of the device and of which of its queue pairs (or CQs) it is, in the order
    /// in which they were made. The same in every run.
    pub stream: u64,
    /// The queue pair's number; 0 at polls. Not the same in every run.
    pub qpn: Qpn,
    /// What completes; [`Opcode::Recv`] for receives and polls.
    pub op: Opcode,
    /// The request's.
    pub wr_id: u64,
    /// Bytes of the request.
    pub len: u64,
    /// Which request of the queue pair it is, which receive, or which poll of the CQ that found
    /// something: from 1.
    pub number: u64,
    /// How often this was asked before, for the same request.
    pub turn: u32,
}

/// What a rule wants to happen. Where it makes no sense, it is [`Verdict::Pass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// As on an ordinary device.
    Pass,
    /// No room, no receive, or no arrival.
    Refuse,
    /// So many steps or polls later.
    Wait(u32),
    /// So much later.
    WaitFor(Duration),
    /// All bytes in any order, over so many steps.
    Scatter(u32),
    /// At most so many completions.
    AtMost(u32),
    /// The queue pair goes to the error state; the request ends with this status.
    Kill(Status),
}

/// A rule of misbehaviour: pure.
pub trait Rule: Send + Sync {
    /// What is to happen, if that is this rule's business. `chance` is this decision's own.
    fn judge(&self, event: &Event, chance: &mut Chance) -> Option<Verdict>;
}

/// Rules and the seed that they draw from.
#[derive(Clone)]
pub struct Rules {
    seed: u64,
    list: Vec<Arc<dyn Rule>>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rules from seed {}", self.list.len(), self.seed)
    }
}

impl Rules {
    /// None yet.
    pub fn new(seed: u64) -> Self {
        let list = Vec::new();
        Self { seed, list }
    }

    /// What `hostile` in a device's name means: everything that is legal on a device that works.
    pub fn all(seed: u64) -> Self {
        Self::new(seed)
            .with(rules::full(16))
            .with(rules::not_ready(24))
            .with(rules::late(4, 6))
            .with(rules::slow(8, 3))
            .with(rules::scatter(4))
    }

    /// These and `rule`, which is asked when none before it has answered.
    #[must_use]
    pub fn with(mut self, rule: impl Rule + 'static) -> Self {
        self.list.push(Arc::new(rule));
        self
    }

    /// `rule`, and these where it does not answer.
    #[must_use]
    pub fn first(mut self, rule: impl Rule + 'static) -> Self {
        self.list.insert(0, Arc::new(rule));
        self
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The verdict on an event.
    pub fn judge(&self, event: &Event) -> Verdict {
        for (at, rule) in self.list.iter().enumerate() {
            // From the end, so that a rule put in front does not move what the others draw.
            let rank = (self.list.len() - at) as u64;
            if let Some(verdict) = rule.judge(event, &mut self.chance(event, rank)) {
                return verdict;
            }
        }
        Verdict::Pass
    }

    /// The chance of one decision about an event.
    pub(crate) fn chance(&self, event: &Event, decision: u64) -> Chance {
        let (point, turn) = (event.point as u64, event.turn.into());
        let key = [event.stream, point, event.number, turn, decision];
        Chance::of(self.seed, &key)
    }
}

/// How the objects of a device misbehave.
pub(crate) struct Hostility {
    pub(crate) rules: Arc<Rules>,
    pub(crate) ordered_between_writes: bool,
    pub(crate) atomic_aligned_8: bool,
    host: u64,
    next: AtomicU64,
}

impl Hostility {
    pub(crate) fn new(rules: Rules, info: &DeviceInfo) -> Self {
        Self {
            rules: Arc::new(rules),
            ordered_between_writes: info.promises.ordered_between_writes,
            atomic_aligned_8: info.promises.atomic_aligned_8,
            host: crate::device::host_of(info.gid),
            next: AtomicU64::new(0),
        }
    }

    /// Random bits for the next object: the same in every run that makes the same objects.
    pub(crate) fn stream(&self) -> u64 {
        let ordinal = self.next.fetch_add(1, Ordering::Relaxed);
        Chance::of(self.host, &[ordinal]).bits()
    }
}

/// Whether a request may be begun while one before it is not all placed.
///
/// `ordered` is whether WRITEs keep their order. Everything else waits for what is before it.
pub(crate) fn may_pass(later: &SendOp, fenced: bool, earlier: &SendOp, ordered: bool) -> bool {
    match (later, earlier) {
        (Write(_), Write(_)) => !ordered,
        (Write(_), Read(_)) => !fenced,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(point: Point, stream: u64, number: u64) -> Event {
        Event {
            point,
            stream,
            qpn: Qpn::default(),
            op: Opcode::Write,
            wr_id: 0,
            len: 64,
            number,
            turn: 0,
        }
    }

    /// How often each is said to `times` events of a queue pair.
    fn said(
        rules: &Rules,
        point: Point,
        stream: u64,
        times: u64,
        what: fn(&Verdict) -> bool,
    ) -> u64 {
        let all = (1..=times).map(|number| rules.judge(&event(point, stream, number)));
        all.filter(what).count() as u64
    }

    #[test]
    fn a_device_called_hostile_does_all_there_is_and_kills_nobody() {
        let all = Rules::all(1);
        let often = |point, what| said(&all, point, 0, 2000, what);
        let refused = |verdict: &Verdict| *verdict == Verdict::Refuse;
        let waits = |verdict: &Verdict| matches!(verdict, Verdict::Wait(1..));
        for point in [Point::Post, Point::PostReceive, Point::Receive] {
            assert!((40..300).contains(&often(point, refused)), "{point:?}");
        }
        assert!((300..800).contains(&often(Point::Poll, waits)));
        let few = |verdict: &Verdict| matches!(verdict, Verdict::AtMost(1..=2));
        assert!((200..700).contains(&often(Point::Poll, few)));
        assert!((120..500).contains(&often(Point::Begin, waits)));
        let scattered = |verdict: &Verdict| matches!(verdict, Verdict::Scatter(1..));
        assert_eq!(often(Point::Place, scattered), 2000);
        let killed = |verdict: &Verdict| matches!(verdict, Verdict::Kill(_));
        for point in [Point::Begin, Point::Place] {
            assert_eq!(often(point, killed), 0);
        }
    }

    #[test]
    fn every_other_queue_pair_is_slow() {
        let rules = Rules::new(1).with(rules::slow(8, 3));
        let count = |stream, what| said(&rules, Point::Begin, stream, 4000, what);
        let few = |verdict: &Verdict| matches!(verdict, Verdict::Wait(1..=3));
        let many = |verdict: &Verdict| matches!(verdict, Verdict::Wait(4..=12));
        let long = |verdict: &Verdict| matches!(verdict, Verdict::WaitFor(_));
        assert!((350..700).contains(&count(2, few)));
        assert_eq!((count(2, many), count(2, long)), (0, 0));
        assert!((1000..2000).contains(&count(3, many)));
        assert!((20..200).contains(&count(3, long)));
    }

    #[test]
    fn kills_end_requests_in_either_way_and_about_as_often_as_asked_for() {
        let rules = Rules::new(1).with(rules::kills(10));
        for status in [Status::Fatal, Status::RetryExceeded] {
            let all = (1..=4000).map(|number| rules.judge(&event(Point::Begin, 0, number)));
            let killed = all.filter(|verdict| *verdict == Verdict::Kill(status));
            // Half of them here, and half in the middle.
            assert!((60..150).contains(&killed.count()), "{status:?}");
        }
    }

    #[test]
    fn the_first_rule_to_answer_decides_and_moves_no_other() {
        let refuses = || rules::by(|_, _| Some(Verdict::Refuse));
        let passes = || rules::by(|_, _| Some(Verdict::Pass));
        let one = event(Point::Post, 0, 1);
        let verdict = |rules: Rules| rules.judge(&one);
        assert_eq!(verdict(Rules::new(1)), Verdict::Pass);
        assert_eq!(
            verdict(Rules::new(1).with(refuses()).with(passes())),
            Verdict::Refuse
        );
        assert_eq!(
            verdict(Rules::new(1).with(refuses()).first(passes())),
            Verdict::Pass
        );
        // What is drawn is the same, whatever stands in front.
        let draws = || {
            Rules::new(1)
                .with(rules::late(2, 1000))
                .with(rules::full(2))
        };
        let more = draws().first(rules::by(|_, _| None));
        for number in 1..100 {
            let of = event(Point::Poll, 0, number);
            assert_eq!(draws().judge(&of), more.judge(&of));
        }
    }
}
