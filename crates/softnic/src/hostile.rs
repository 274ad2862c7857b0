//! Fault injection: a device that misbehaves on purpose, within what it declares and what the specification
//! leaves open (`soft:h1,hostile,seed=7`).
//!
//! From a seed, it violates every assumption that a program must not make: the order in which the bytes of a
//! message are placed, when a request begins, when a completion becomes visible, whether a posted receive is
//! found at the first try, whether a post finds room at the first try. If asked to, it also kills queue
//! pairs. A program that relies on such an assumption fails once a month with a NIC. Here it fails within
//! seconds, and again with the same seed.
//!
//! # Rules
//!
//! Pure code decides what happens. A [`Rule`] is given a [`FaultEvent`] with its facts and a [`Random`], and
//! may answer with a [`Verdict`]. In a list of rules, the first to answer decides. A rule has no state, no
//! clock and no I/O. Its draws depend only on the seed, the soft host's name, the queue pair's ordinal on the
//! device, the request's number, and how often the rules were asked about that request. So the fate of a
//! request does not depend on threads and their timing. Only what happens *between* its steps does.
//!
//! # What no rule can do
//!
//! The device keeps these promises, whatever the rules say:
//!
//! - Completions of a queue pair come in posting order, each once. A request completes only when it and all
//!   requests before it are placed.
//! - With `ordered_between_writes`, a WRITE's first byte is placed after the last byte of the WRITE before, unless it is to a
//!   region with [`Access::RELAXED_ORDERING`](headworks_verbs::Access::RELAXED_ORDERING): such a WRITE mixes with those before it.
//!   Without it, WRITEs of a queue pair mix, but only with each other: SENDs, immediates and atomics wait for
//!   the requests before them. Later WRITEs that are not fenced may overtake a READ, as the specification
//!   allows.
//! - With `atomic_aligned_8`, an aligned word of 8 bytes is never placed in parts.
//! - An empty queue has room. Room is refused only while a signalled request is outstanding (or a receive is
//!   posted), and at most three times for the same request. So a program that waits for a completion before
//!   its next try does not wait in vain.
//! - A receive is denied only if the queue pair's `rnr_retry` leaves a try, and the denial does not count as
//!   one.
//! - A delayed completion is shown after a bounded number of polls, and a thread that sleeps on a channel is
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
//! # let registry = headworks_shm::Registry::open_at(dir.path().join("registry"))?;
//! // Bytes in any order, and every queue pair dies with its hundredth request.
//! let rules = Rules::new(7).with(rules::scatter(4)).with(rules::kill_after(100));
//! let provider = SoftProvider::on(registry).with_rules(rules);
//! let device = provider.open(&"soft:h1".parse()?)?;
//! assert_eq!(device.info().promises.in_order_within_write, 0);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_faults::FaultModel;
use headworks_verbs::SendOp::{Read, Write};
use headworks_verbs::{AsyncEvent, DeviceInfo, Duration, Opcode, Qpn, SendOp, Status};

pub(crate) mod hold;
pub(crate) mod options;
pub mod plan;
pub mod rules;
mod scatter;

pub use headworks_faults::{Digest, Random, Rule, RuleList};
pub use scatter::{Extent, Scatter};

/// The point at which the rules are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultPoint {
    /// A send request is posted. [`Verdict::Refuse`]: the queue counts as full.
    Post,
    /// A receive is posted to a queue pair's own receive queue; shared receive queues are never asked about.
    /// [`Verdict::Refuse`]: the queue counts as full.
    PostReceive,
    /// A request is about to begin. [`Verdict::Wait`] and [`Verdict::WaitFor`] delay it, [`Verdict::Kill`]
    /// ends it. The only point of [`Verdict::Port`].
    Begin,
    /// A request needs a receive. [`Verdict::Refuse`]: none counts as posted.
    Receive,
    /// A part of a request is about to be placed. [`Verdict::Scatter`] counts at the first turn,
    /// [`Verdict::Kill`] at any.
    Place,
    /// A poll of a CQ would find completions. [`Verdict::Wait`]: that many polls, this one included, find
    /// nothing. [`Verdict::AtMost`] limits how many this poll finds.
    Poll,
    /// A datagram or a message of an unreliable connection is being sent. [`Verdict::Refuse`]: it is lost.
    Datagram,
}

/// An event and its facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultEvent {
    /// The point at which the rules are asked.
    pub point: FaultPoint,
    /// Identifies the queue pair (or CQ): random bits drawn from the device's soft host and the object's
    /// ordinal on the device. The same in every run.
    pub stream: u64,
    /// Ordinal of the queue pair (at polls, of the CQ) among those that this process made on the device, from 1.
    pub ordinal: u64,
    /// Number of the queue pair; 0 at polls. May differ between runs.
    pub qpn: Qpn,
    /// Opcode of the request's completion; [`Opcode::Recv`] for receives and polls.
    pub op: Opcode,
    /// The request's `wr_id`; 0 at polls.
    pub wr_id: u64,
    /// Bytes of the request; 0 for receives and polls.
    pub len: u64,
    /// Ordinal, from 1: of the request or receive within the queue pair, or of the poll, among those of the
    /// CQ that would find completions.
    pub number: u64,
    /// How often the rules were asked at this point before, for the same request.
    pub turn: u32,
}

/// The answer of a rule. An answer that makes no sense at a point counts as [`Verdict::Pass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// No fault.
    Pass,
    /// The queue is full, no receive is posted, or the message is lost.
    Refuse,
    /// A delay of this many steps or polls.
    Wait(u32),
    /// A delay of this time.
    WaitFor(Duration),
    /// All bytes are placed in any order, over this many steps.
    Scatter(u32),
    /// At most this many completions.
    AtMost(u32),
    /// The queue pair goes to the error state; the request ends with this status.
    Kill(Status),
    /// Something happens to the port before a request begins, once. It decides nothing about the request: other rules are asked, too.
    Port(PortFault),
}

/// Fault of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortFault {
    /// It goes down. From now on, requests of connections end as if their retries were used up.
    Down,
    /// It has another GID in place of the one that it had.
    NewGid,
    /// It has another partition key in place of the one that it had.
    NewPKey,
}

impl PortFault {
    /// The device's event.
    fn event(self) -> AsyncEvent {
        match self {
            Self::Down => AsyncEvent::PortDown(PORT),
            Self::NewGid => AsyncEvent::GidChanged(PORT),
            Self::NewPKey => AsyncEvent::PKeyChanged(PORT),
        }
    }
}

/// Number of the only port of a soft device.
const PORT: u8 = 1;

/// The faults of soft devices, for [`Rule`] and [`RuleList`].
#[derive(Clone, Copy, Debug)]
pub struct SoftFaults;

impl FaultModel for SoftFaults {
    type Event<'e> = FaultEvent;
    type Verdict = Verdict;
}

/// An ordered list of rules, the seed that they draw from, and what they did. The first rule to answer decides. Clones share
/// the counts.
#[derive(Clone)]
pub struct Rules {
    list: RuleList<SoftFaults>,
    tally: Arc<Tally>,
}

/// Verdicts so far, except [`Verdict::Pass`]. No decision depends on them.
#[derive(Default)]
struct Tally {
    verdicts: AtomicU64,
    /// Sum of the digests of verdicts that do not depend on threads and their timing.
    digest: AtomicU64,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list.fmt(f)
    }
}

impl Rules {
    /// Makes an empty list of rules.
    pub fn new(seed: u64) -> Self {
        Self {
            list: RuleList::new(seed),
            tally: Arc::default(),
        }
    }

    /// Returns the rules that `hostile` in a device's name selects: all legal faults short of killing queue
    /// pairs and losing messages.
    pub fn all(seed: u64) -> Self {
        Self::new(seed).with_all()
    }

    /// Appends the rules of [`Rules::all`].
    pub(crate) fn with_all(self) -> Self {
        self.with(rules::full(16))
            .with(rules::not_ready(24))
            .with(rules::late(4, 6))
            .with(rules::slow(8, 3))
            .with(rules::scatter(4))
    }

    /// Appends `rule`. It is asked when no rule before it has answered.
    #[must_use]
    pub fn with(mut self, rule: impl Rule<SoftFaults> + 'static) -> Self {
        self.list = self.list.with(rule);
        self
    }

    /// Prepends `rule`. The other rules are asked when it does not answer.
    #[must_use]
    pub fn first(mut self, rule: impl Rule<SoftFaults> + 'static) -> Self {
        self.list = self.list.first(rule);
        self
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.list.seed()
    }

    /// Returns how many verdicts other than [`Verdict::Pass`] these rules and their clones have given, on all devices
    /// that use them. A test that expects faults checks that this is not 0.
    pub fn verdicts(&self) -> u64 {
        self.tally.verdicts.load(Ordering::Relaxed)
    }

    /// Returns a digest of the verdicts on requests, in whatever order they were given. It is equal in two runs with the same seed
    /// in which the same queue pairs executed the same requests. Refused posts and delayed completions do not count,
    /// because they depend on how often a program asks.
    pub fn digest(&self) -> u64 {
        self.tally.digest.load(Ordering::Relaxed)
    }

    /// Returns the verdict on an event: that of the first rule that answers.
    pub fn judge(&self, event: &FaultEvent) -> Verdict {
        let key = [
            event.stream,
            event.point as u64,
            event.number,
            event.turn.into(),
        ];
        let mut verdicts = self.list.answers(event, key);
        let verdict = verdicts.find(|verdict| !matches!(verdict, Verdict::Port(_)));
        let verdict = verdict.unwrap_or(Verdict::Pass);
        if verdict != Verdict::Pass {
            self.tally.verdicts.fetch_add(1, Ordering::Relaxed);
            if event.point.is_of_requests() {
                let words = [key[0], key[1], key[2], key[3], verdict.word()];
                let digest = Digest::of(&words);
                self.tally.digest.fetch_add(digest, Ordering::Relaxed);
            }
        }
        verdict
    }

    /// Calls `occurs` for what happens to the port before a request begins. It returns whether that is news. The other rules are asked
    /// all the same.
    pub(crate) fn port(&self, event: &FaultEvent, mut occurs: impl FnMut(PortFault) -> bool) {
        let key = [event.stream, event.point as u64, event.number, 0];
        for verdict in self.list.answers(event, key) {
            if let Verdict::Port(fault) = verdict
                && occurs(fault)
            {
                self.tally.verdicts.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the random stream for the order in which the bytes of the event's request are placed.
    pub(crate) fn order_of(&self, event: &FaultEvent) -> Random {
        let (point, turn) = (event.point as u64, event.turn.into());
        Random::of(self.seed(), &[event.stream, point, event.number, turn])
    }
}

impl FaultPoint {
    /// Returns whether the event belongs to the execution of a request. Posts and polls do not.
    fn is_of_requests(self) -> bool {
        matches!(
            self,
            Self::Begin | Self::Receive | Self::Place | Self::Datagram
        )
    }
}

impl Verdict {
    /// Returns a word that differs between verdicts.
    fn word(self) -> u64 {
        let of = |kind: u64, value: u64| value << 3 | kind;
        match self {
            Self::Pass => 0,
            Self::Refuse => 1,
            Self::Wait(steps) => of(2, steps.into()),
            Self::WaitFor(time) => of(3, time.nanos()),
            Self::Scatter(steps) => of(4, steps.into()),
            Self::AtMost(most) => of(5, most.into()),
            Self::Kill(status) => of(6, status as u64),
            Self::Port(fault) => of(7, fault as u64),
        }
    }
}

/// Fault injection of one device: its rules, and what the device promises.
pub(crate) struct HostileMode {
    pub(crate) rules: Arc<Rules>,
    pub(crate) ordered_between_writes: bool,
    pub(crate) atomic_aligned_8: bool,
    host: u64,
    qps: AtomicU64,
    cqs: AtomicU64,
    /// The faults of the port that have occurred, as bits.
    port: AtomicU64,
}

/// A queue pair or CQ of a hostile device.
#[derive(Clone, Copy)]
pub(crate) struct HostileObject {
    /// From 1, among those of its kind on the device in this process.
    pub(crate) ordinal: u64,
    /// Random bits: the same in every run that makes the same objects in order.
    pub(crate) stream: u64,
}

impl HostileMode {
    /// Injects the faults of `rules` on the device `info` of the soft host with the key `host`.
    pub(crate) fn new(rules: Rules, info: &DeviceInfo, host: u64) -> Self {
        Self {
            rules: Arc::new(rules),
            ordered_between_writes: info.promises.ordered_between_writes,
            atomic_aligned_8: info.promises.atomic_aligned_8,
            host,
            qps: AtomicU64::new(0),
            cqs: AtomicU64::new(0),
            port: AtomicU64::new(0),
        }
    }

    /// Whether the port has gone down.
    pub(crate) fn is_port_down(&self) -> bool {
        self.port.load(Ordering::Relaxed) & 1 << PortFault::Down as u32 != 0
    }

    /// Records that a fault of the port occurs. Returns the device's event the first time.
    pub(crate) fn port_fails(&self, fault: PortFault) -> Option<AsyncEvent> {
        let bit = 1 << fault as u32;
        let is_first = self.port.fetch_or(bit, Ordering::Relaxed) & bit == 0;
        is_first.then(|| fault.event())
    }

    pub(crate) fn next_qp(&self) -> HostileObject {
        self.next(&self.qps, 0)
    }

    pub(crate) fn next_cq(&self) -> HostileObject {
        self.next(&self.cqs, 1)
    }

    fn next(&self, count: &AtomicU64, kind: u64) -> HostileObject {
        let ordinal = count.fetch_add(1, Ordering::Relaxed) + 1;
        HostileObject {
            ordinal,
            stream: Random::of(self.host, &[kind, ordinal]).bits(),
        }
    }
}

/// Returns whether a request may begin while an earlier one is not placed completely.
///
/// `ordered` tells whether WRITEs keep their order. All other requests wait for those before them.
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

    fn event(point: FaultPoint, stream: u64, number: u64) -> FaultEvent {
        FaultEvent {
            point,
            stream,
            ordinal: 1,
            qpn: Qpn::default(),
            op: Opcode::Write,
            wr_id: 0,
            len: 64,
            number,
            turn: 0,
        }
    }

    /// Returns for how many of `times` events of a queue pair the verdict satisfies `what`.
    fn said(
        rules: &Rules,
        point: FaultPoint,
        stream: u64,
        times: u64,
        what: fn(&Verdict) -> bool,
    ) -> u64 {
        let all = (1..=times).map(|number| rules.judge(&event(point, stream, number)));
        all.filter(what).count() as u64
    }

    #[test]
    fn a_hostile_device_injects_every_fault_except_kills() {
        let all = Rules::all(1);
        let often = |point, what| said(&all, point, 0, 2000, what);
        let refused = |verdict: &Verdict| *verdict == Verdict::Refuse;
        let waits = |verdict: &Verdict| matches!(verdict, Verdict::Wait(1..));
        for point in [
            FaultPoint::Post,
            FaultPoint::PostReceive,
            FaultPoint::Receive,
        ] {
            assert!((40..300).contains(&often(point, refused)), "{point:?}");
        }
        assert!((300..800).contains(&often(FaultPoint::Poll, waits)));
        let few = |verdict: &Verdict| matches!(verdict, Verdict::AtMost(1..=2));
        assert!((200..700).contains(&often(FaultPoint::Poll, few)));
        assert!((120..500).contains(&often(FaultPoint::Begin, waits)));
        let scattered = |verdict: &Verdict| matches!(verdict, Verdict::Scatter(1..));
        assert_eq!(often(FaultPoint::Place, scattered), 2000);
        let killed = |verdict: &Verdict| matches!(verdict, Verdict::Kill(_));
        for point in [FaultPoint::Begin, FaultPoint::Place] {
            assert_eq!(often(point, killed), 0);
        }
    }

    #[test]
    fn clones_count_their_verdicts_together_and_no_pass() {
        let rules = Rules::new(1).with(rules::kill_after(3));
        let clone = rules.clone();
        for number in 1..=5 {
            rules.judge(&event(FaultPoint::Begin, 0, number));
            clone.judge(&event(FaultPoint::Begin, 1, number));
        }
        assert_eq!((rules.verdicts(), clone.verdicts()), (2, 2));
    }

    #[test]
    fn every_other_queue_pair_is_slow() {
        let rules = Rules::new(1).with(rules::slow(8, 3));
        let count = |stream, what| said(&rules, FaultPoint::Begin, stream, 4000, what);
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
            let all = (1..=4000).map(|number| rules.judge(&event(FaultPoint::Begin, 0, number)));
            let killed = all.filter(|verdict| *verdict == Verdict::Kill(status));
            // Half of the kills happen here, the other half in the middle of a request.
            assert!((60..150).contains(&killed.count()), "{status:?}");
        }
    }

    #[test]
    fn the_first_rule_to_answer_decides_and_moves_no_other() {
        let refuses = || rules::by(|_, _| Some(Verdict::Refuse));
        let passes = || rules::by(|_, _| Some(Verdict::Pass));
        let one = event(FaultPoint::Post, 0, 1);
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
        // A prepended rule does not change what the others draw.
        let draws = || {
            Rules::new(1)
                .with(rules::late(2, 1000))
                .with(rules::full(2))
        };
        let more = draws().first(rules::by(|_, _| None));
        for number in 1..100 {
            let of = event(FaultPoint::Poll, 0, number);
            assert_eq!(draws().judge(&of), more.judge(&of));
        }
    }
}
