//! Fault injection for a simulated network, by rules and a seed.
//!
//! The model shows a [`Rule`] each [`FaultEvent`] (packets leave, a receive is needed, an actor is due for a
//! step) with its facts and a [`Random`]. The rule may answer with a [`Verdict`].
//!
//! All rules of a list are asked, and their verdicts are combined. A kill overrides every other verdict, and
//! a refusal overrides a delay. Delays of packets add up; of an actor's stalls the longest counts. Packets
//! that arrive later for any reason are judged once more with the new time, so a link that is down by then
//! loses them.
//!
//! A rule has no state, no clock and no I/O: time is a fact of the event. Its random numbers depend only on
//! the seed, the host, the kind and number of the event there, and the rule's place in the list. So a rule
//! that is appended to the list does not change what other rules draw.
//!
//! Reliable connections recover what is lost, duplicated or overtaken, within their retries and whatever the
//! rules say. The model implements that, and the rules test it.
//!
//! ```
//! use headworks_simnic::faults::{Rules, rules};
//! use headworks_verbs::{Duration, Instant};
//!
//! let at = |micros| Instant::ZERO + Duration::from_micros(micros);
//! let rules = Rules::new(7)
//!     .with(rules::loss(1_000))
//!     .with(rules::link_down("receiver", at(50), Duration::from_micros(20)))
//!     .with(rules::kill_actor("sender", at(900)));
//! assert_eq!(rules.moments(), [at(900)]);
//! ```

use std::collections::BTreeMap;

use headworks_faults::FaultModel;
use headworks_verbs::{Duration, Instant};

use crate::hardware_units::{NS, Ps, later};

pub mod rules;
pub(crate) mod run_digest;
mod verdict;

pub use headworks_faults::{Random, Rule, RuleList, mix};
use run_digest::RunDigest;
pub(crate) use verdict::CombinedVerdict;

/// Kind of event that rules are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultPoint {
    /// Packets of a request, a response or a datagram leave. [`Verdict::Refuse`] loses them,
    /// [`Verdict::WaitFor`] and [`Verdict::Overtaken`] delay them, [`Verdict::Kill`] fails their queue pair,
    /// [`Verdict::Overrun`] its completion queue.
    /// If the packets arrive later than without faults, rules are asked once more, with the new time of
    /// arrival.
    Packets,
    /// An acknowledgement or a NAK leaves. Verdicts are as for [`FaultPoint::Packets`].
    Acknowledge,
    /// A message needs a receive. [`Verdict::Refuse`]: it finds none.
    Receive,
    /// An actor is due for a step. [`Verdict::WaitFor`] delays it.
    Step,
    /// One of the [moments](Rule::moments) has come. [`Verdict::Kill`] kills the actor.
    Life,
    /// A host is created. [`Verdict::Drift`] sets its clock's error.
    Clock,
    /// Bytes of a WRITE that arrives in several parts are placed. [`Verdict::Backwards`] reverses the parts.
    /// Rules are asked for each part with the number of the WRITE, so the verdict is the same for all parts.
    Placing,
    /// A notification of congestion (CNP) leaves. [`Verdict::Refuse`] loses it.
    Notification,
    /// A host whose memory is modelled is created, or one of the [moments](Rule::moments) has come.
    /// [`Verdict::Antagonist`] has programs use the memory of that host until the next moment.
    Memory,
}

/// Number of fault points.
const FAULT_POINTS: usize = 9;

/// An event and its facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultEvent<'e> {
    /// Kind of the event.
    pub point: FaultPoint,
    /// Host of the event: where packets leave, a receive is needed, bytes are placed, or an actor runs.
    pub host: &'e str,
    /// Host that packets go to, or that placed bytes came from; the role of an actor; otherwise empty.
    pub to: &'e str,
    /// Number of the event among those of its kind on the
    /// host, from 1. For [`FaultPoint::Placing`], the WRITE's.
    pub number: u64,
    /// Number of packets that travel together.
    pub packets: u32,
    /// Virtual time of the event.
    pub at: Instant,
    /// Time at which packets would arrive, behind those that are held on the same path; otherwise equal to `at`.
    pub arrives: Instant,
}

/// Effect that a rule wants. One that does not suit the event acts as [`Verdict::Pass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// No effect.
    Pass,
    /// Packets are lost, or no receive is found.
    Refuse,
    /// A delay. Packets that leave later on the same path do not overtake the delayed ones.
    WaitFor(Duration),
    /// A delay. Packets that leave later overtake the delayed ones, which themselves overtake nothing.
    Overtaken(Duration),
    /// The queue pair goes to the error state, or the actor dies.
    Kill,
    /// The completion queue of the queue pair's requests overruns, and all queue pairs that use it fail.
    Overrun,
    /// The host's clock is fast by this many parts per million; slow if negative.
    Drift(i32),
    /// The last bytes are placed first.
    Backwards,
    /// A program on the host uses so much of the memory's bandwidth, in GB/s, as far as the others leave it. Several
    /// add up, also with the preset's own.
    Antagonist(u32),
}

/// The faults of a simulated network, for [`Rule`] and [`RuleList`].
#[derive(Clone, Copy, Debug)]
pub struct NetworkFaults;

impl FaultModel for NetworkFaults {
    type Event<'e> = FaultEvent<'e>;
    type Verdict = Verdict;
}

/// Rules, and the seed of their random numbers. All are asked, and their verdicts are combined. The
/// [moments](Rule::moments) of a rule are the times at which it wants to be asked about every actor's life and every host's
/// memory.
pub type Rules = RuleList<NetworkFaults>;

/// Combines the verdicts of all rules. `stream` selects the random numbers: the host's number, or for
/// [`FaultPoint::Placing`] the queue pair's.
fn combined(rules: &Rules, event: &FaultEvent<'_>, stream: u64) -> CombinedVerdict {
    let mut all = CombinedVerdict::default();
    for verdict in rules.answers(event, [stream, event.point as u64, event.number]) {
        all.add(event.point, verdict);
    }
    all
}

/// Facts of an event, with times in picoseconds.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'e> {
    pub(crate) host: (u32, &'e str),
    pub(crate) to: &'e str,
    pub(crate) packets: u32,
    pub(crate) at: Ps,
    pub(crate) arrives: Ps,
}

/// Fault injection of a network.
pub(crate) struct Faults {
    rules: Rules,
    /// Number of events so far, by host and point.
    asked: Vec<[u64; FAULT_POINTS]>,
    /// Earliest arrival on a path, by sending and receiving host, after a [`Verdict::WaitFor`].
    held: BTreeMap<(u32, u32), Ps>,
    pub(crate) run_digest: RunDigest,
}

impl Faults {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            asked: Vec::new(),
            held: BTreeMap::new(),
            run_digest: RunDigest::default(),
        }
    }

    /// Returns all moments at which rules want to be asked, in order.
    pub(crate) fn moments(&self) -> impl Iterator<Item = Ps> + use<> {
        let all = self.rules.moments().into_iter();
        all.map(|at| at.nanos().saturating_mul(NS))
    }

    /// Returns the rules' verdict on an event.
    pub(crate) fn judge(&mut self, point: FaultPoint, facts: Facts<'_>) -> CombinedVerdict {
        let number = self.count(point, facts.host.0);
        let event = event(point, number, &facts);
        let said = combined(&self.rules, &event, facts.host.0.into());
        self.run_digest.note(&[point as u64, number, said.digest()]);
        said
    }

    /// Decides what happens to packets on their way to a host.
    pub(crate) fn packet_outcome(
        &mut self,
        point: FaultPoint,
        mut facts: Facts<'_>,
        to: u32,
    ) -> PacketOutcome {
        let (stream, way) = (facts.host.0.into(), (facts.host.0, to));
        let number = self.count(point, facts.host.0);
        let would = facts.arrives;
        let behind = self.held.get(&way).map_or(would, |held| would.max(*held));
        facts.arrives = behind;
        let mut said = combined(&self.rules, &event(point, number, &facts), stream);
        let held = said.waits;
        let in_turn = later(behind, held.map_or(0, ps));
        facts.arrives = later(in_turn, said.overtaken.map_or(0, ps));
        if facts.arrives > behind {
            said.unite(combined(&self.rules, &event(point, number, &facts), stream));
        }
        let fate = match (said.kills, said.refuses) {
            _ if said.overruns => PacketOutcome::Overruns,
            (true, _) => PacketOutcome::Kills,
            (_, true) => PacketOutcome::Lost,
            _ => PacketOutcome::Arrives(facts.arrives),
        };
        if held.is_some() && matches!(fate, PacketOutcome::Arrives(_)) {
            self.held.insert(way, in_turn);
        }
        let at = match fate {
            PacketOutcome::Arrives(at) => at,
            _ => 0,
        };
        let words = [point as u64, number, said.digest(), at, to.into()];
        self.run_digest.note(&words);
        fate
    }

    /// Whether a WRITE is placed from its end. `stream` identifies its queue pair.
    pub(crate) fn is_backwards(&mut self, facts: Facts<'_>, stream: u64, number: u64) -> bool {
        let event = event(FaultPoint::Placing, number, &facts);
        let said = combined(&self.rules, &event, stream);
        let words = [FaultPoint::Placing as u64, stream, number, said.digest()];
        self.run_digest.note(&words);
        said.backwards
    }

    /// Counts an event, and returns its number on the host.
    fn count(&mut self, point: FaultPoint, host: u32) -> u64 {
        if self.asked.len() <= host as usize {
            self.asked.resize(host as usize + 1, [0; FAULT_POINTS]);
        }
        let number = &mut self.asked[host as usize][point as usize];
        *number += 1;
        *number
    }
}

/// Outcome for packets on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketOutcome {
    /// They arrive at that time.
    Arrives(Ps),
    Lost,
    /// The queue pair that sent them fails.
    Kills,
    /// The completion queue of that queue pair's requests overruns.
    Overruns,
}

fn event<'e>(point: FaultPoint, number: u64, facts: &Facts<'e>) -> FaultEvent<'e> {
    FaultEvent {
        point,
        host: facts.host.1,
        to: facts.to,
        number,
        packets: facts.packets,
        at: Instant::from_nanos(facts.at / NS),
        arrives: Instant::from_nanos(facts.arrives / NS),
    }
}

/// Converts a duration to picoseconds.
pub(crate) fn ps(span: Duration) -> Ps {
    span.nanos().saturating_mul(NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(point: FaultPoint, number: u64) -> FaultEvent<'static> {
        FaultEvent {
            point,
            host: "a",
            to: "b",
            number,
            packets: 1,
            at: Instant::from_nanos(10_000 * number),
            arrives: Instant::from_nanos(10_000 * number + 500),
        }
    }

    /// Counts the refused ones of `times` events.
    fn refused(rules: &Rules, point: FaultPoint, times: u64) -> u64 {
        let all = (1..=times).map(|number| combined(rules, &event(point, number), 0));
        all.filter(|said| said.refuses).count() as u64
    }

    #[test]
    fn packets_are_lost_at_the_rate_and_bursts_more() {
        let rules = Rules::new(1).with(rules::loss(50));
        for point in [FaultPoint::Packets, FaultPoint::Acknowledge] {
            assert!((120..300).contains(&refused(&rules, point, 10_000)));
        }
        assert_eq!(refused(&rules, FaultPoint::Receive, 1000), 0);
        let burst = |number| FaultEvent {
            packets: 4,
            ..event(FaultPoint::Packets, number)
        };
        let lost = (1..=10_000).filter(|n| combined(&rules, &burst(*n), 0).refuses);
        assert!((600..1000).contains(&lost.count()));
    }

    #[test]
    fn packets_kill_at_the_rate_and_bursts_more() {
        let rules = Rules::new(1).with(rules::kill_queue_pair(50));
        let killed = |point, packets| {
            let of = |number| FaultEvent {
                packets,
                ..event(point, number)
            };
            let killed = (1..=10_000).filter(|number| combined(&rules, &of(*number), 0).kills);
            killed.count()
        };
        for point in [FaultPoint::Packets, FaultPoint::Acknowledge] {
            assert!((120..300).contains(&killed(point, 1)));
            assert!((600..1000).contains(&killed(point, 4)));
        }
        assert_eq!(killed(FaultPoint::Receive, 1), 0);
        let never = Rules::new(1).with(rules::kill_queue_pair(0));
        assert!(!combined(&never, &event(FaultPoint::Packets, 1), 0).kills);
    }

    #[test]
    fn every_verdict_is_in_the_run_digest() {
        // Every method that asks the rules adds their verdict to the digest.
        let judged = |verdict| {
            let says = rules::from_fn(move |_, _| Some(verdict));
            let mut faults = Faults::new(Rules::new(1).with(says));
            faults.judge(FaultPoint::Packets, facts(0));
            faults.is_backwards(facts(0), 1, 1);
            faults.packet_outcome(FaultPoint::Packets, facts(0), 1);
            (faults.run_digest.digest(), faults.run_digest.len)
        };
        let all = [
            Verdict::Pass,
            Verdict::Refuse,
            Verdict::WaitFor(Duration::from_nanos(0)),
            Verdict::Overtaken(Duration::from_nanos(0)),
            Verdict::Kill,
            Verdict::Drift(0),
            Verdict::Backwards,
            Verdict::Antagonist(0),
            Verdict::Antagonist(1),
        ];
        let notes: std::collections::BTreeSet<_> = all.map(judged).into_iter().collect();
        assert_eq!(notes.len(), all.len());
        assert!(notes.iter().all(|(_, len)| *len == 3));
    }

    #[test]
    fn a_downed_link_loses_packets_in_both_directions() {
        let (from, span) = (Instant::from_nanos(50_000), Duration::from_micros(20));
        let down = |name: &str| Rules::new(1).with(rules::link_down(name, from, span));
        for name in ["a", "b"] {
            // The packets that leave at 50 and 60 µs are lost.
            let lost = refused(&down(name), FaultPoint::Packets, 20);
            assert_eq!(lost, 2, "{name}");
        }
        assert_eq!(refused(&down("c"), FaultPoint::Packets, 20), 0);
        let long = FaultEvent {
            arrives: Instant::from_nanos(51_000),
            ..event(FaultPoint::Packets, 4)
        };
        assert!(combined(&down("a"), &long, 0).refuses);
    }

    #[test]
    fn random_draws_are_separate_per_host_and_rule() {
        let draws = |seed| Rules::new(seed).with(rules::loss(3));
        let more = draws(1).with(rules::not_ready(2));
        let fates = |rules: &Rules, host| -> Vec<CombinedVerdict> {
            let all = 1..200;
            all.map(|number| combined(rules, &event(FaultPoint::Packets, number), host))
                .collect()
        };
        assert_eq!(fates(&draws(1), 0), fates(&more, 0));
        assert_ne!(fates(&draws(1), 0), fates(&draws(1), 1));
        assert_ne!(fates(&draws(1), 0), fates(&draws(2), 0));
    }

    fn facts(at: Ps) -> Facts<'static> {
        Facts {
            host: (0, "a"),
            to: "b",
            packets: 1,
            at,
            arrives: at + 500 * NS,
        }
    }

    const MICRO: Ps = 1_000 * NS;

    #[test]
    fn a_downed_link_also_loses_delayed_packets() {
        let span = Duration::from_micros(20);
        let from = Instant::from_nanos(50_000);
        for late in [Verdict::WaitFor, Verdict::Overtaken] {
            let delay = move || rules::from_fn(move |_, _| Some(late(Duration::from_micros(30))));
            let down = || rules::link_down("b", from, span);
            for rules in [
                Rules::new(1).with(delay()).with(down()),
                Rules::new(1).with(down()).with(delay()),
            ] {
                let mut faults = Faults::new(rules);
                let mut carry =
                    |at| faults.packet_outcome(FaultPoint::Packets, facts(at * MICRO), 1);
                // The packets arrive at 49.5, 50.5 and 90.5 µs;
                // the last of these leave while the link is down.
                assert!(matches!(carry(19), PacketOutcome::Arrives(_)));
                assert_eq!([carry(20), carry(60)], [PacketOutcome::Lost; 2]);
                assert!(matches!(carry(80), PacketOutcome::Arrives(_)));
            }
        }
    }

    #[test]
    fn verdicts_of_several_rules_are_combined() {
        let one = |verdict| rules::from_fn(move |_, _| Some(verdict));
        let micros = Duration::from_micros;
        let both = Rules::new(1)
            .with(one(Verdict::WaitFor(micros(3))))
            .with(one(Verdict::Overtaken(micros(4))))
            .with(one(Verdict::WaitFor(micros(5))));
        let at = Faults::new(both.clone()).packet_outcome(FaultPoint::Packets, facts(0), 1);
        assert_eq!(at, PacketOutcome::Arrives(500 * NS + 12 * MICRO));
        let lost = both.with(one(Verdict::Refuse));
        let fate = |rules| Faults::new(rules).packet_outcome(FaultPoint::Packets, facts(0), 1);
        assert_eq!(fate(lost.clone()), PacketOutcome::Lost);
        assert_eq!(fate(lost.with(one(Verdict::Kill))), PacketOutcome::Kills);
        let stalls = Rules::new(1)
            .with(one(Verdict::WaitFor(micros(3))))
            .with(one(Verdict::WaitFor(micros(2))));
        let said = Faults::new(stalls).judge(FaultPoint::Step, facts(0));
        assert_eq!(said.waits, Some(micros(3)));
    }

    #[test]
    fn an_overtaken_packet_does_not_overtake_held_packets() {
        let says = |event: &FaultEvent<'_>, _: &mut Random| match event.number {
            1 => Some(Verdict::WaitFor(Duration::from_micros(50))),
            2 => Some(Verdict::Overtaken(Duration::from_micros(1))),
            _ => None,
        };
        let mut faults = Faults::new(Rules::new(1).with(rules::from_fn(says)));
        let mut carry = |at| faults.packet_outcome(FaultPoint::Packets, facts(at * MICRO), 1);
        let waits = 50 * MICRO + 500 * NS;
        assert_eq!(carry(0), PacketOutcome::Arrives(waits));
        assert_eq!(carry(2), PacketOutcome::Arrives(waits + MICRO));
        // Packets that leave behind both are held by the first alone.
        assert_eq!(carry(3), PacketOutcome::Arrives(waits));
        assert_eq!(carry(60), PacketOutcome::Arrives(60 * MICRO + 500 * NS));
    }
}
