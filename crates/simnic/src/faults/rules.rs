//! Rules ready-made. Each is a pure function of an event and of chance.

use headworks_verbs::{Duration, Instant};

use super::{Chance, Event, Point, Rule, Verdict};

/// A rule made from a function.
struct By<F>(F);

impl<F> Rule for By<F>
where
    F: Fn(&Event<'_>, &mut Chance) -> Option<Verdict> + Send + Sync,
{
    fn judge(&self, event: &Event<'_>, chance: &mut Chance) -> Option<Verdict> {
        (self.0)(event, chance)
    }
}

/// A rule made from a function.
pub fn by<F>(judge: F) -> impl Rule
where
    F: Fn(&Event<'_>, &mut Chance) -> Option<Verdict> + Send + Sync + 'static,
{
    By(judge)
}

/// Whether packets leave, with bytes or without.
fn leaves(event: &Event<'_>) -> bool {
    matches!(event.point, Point::Packets | Point::Answer)
}

/// Once in so many packets; of those that travel together, each counts.
fn hit(event: &Event<'_>, chance: &mut Chance, times: u64) -> bool {
    (0..event.packets.max(1)).any(|_| chance.once_in(times))
}

/// One packet in `times` is lost, and with it those that travel with it.
pub fn loss(times: u64) -> impl Rule {
    by(
        move |event, chance| {
            (leaves(event) && hit(event, chance, times)).then_some(Verdict::Refuse)
        },
    )
}

/// One answer in `times` is lost: what was done is asked for once more.
pub fn lost_answers(times: u64) -> impl Rule {
    by(move |event, chance| {
        (event.point == Point::Answer && chance.once_in(times)).then_some(Verdict::Refuse)
    })
}

/// One packet in `times` comes up to `by_most` later, behind what left after it.
pub fn reorder(times: u64, by_most: Duration) -> impl Rule {
    by(move |event, chance| {
        let overtaken = leaves(event) && hit(event, chance, times);
        overtaken.then(|| Verdict::Overtaken(up_to(by_most, chance)))
    })
}

/// One packet in `times` comes up to `by_most` later, and so does what is behind it.
pub fn jitter(times: u64, by_most: Duration) -> impl Rule {
    by(move |event, chance| {
        let waits = leaves(event) && hit(event, chance, times);
        waits.then(|| Verdict::WaitFor(up_to(by_most, chance)))
    })
}

fn up_to(most: Duration, chance: &mut Chance) -> Duration {
    Duration::from_nanos(chance.within(1, most.nanos().max(1)))
}

/// The link of a host is down from `from` on, for so long: what is on it is lost.
pub fn flap(host: &str, from: Instant, span: Duration) -> impl Rule + use<> {
    let host = host.to_owned();
    by(move |event, _| {
        let own = leaves(event) && (event.host == host || event.to == host);
        let down = event.arrives >= from && event.at < from + span;
        (own && down).then_some(Verdict::Refuse)
    })
}

/// On a host no receive is found from `from` on, for so long.
pub fn storm(host: &str, from: Instant, span: Duration) -> impl Rule + use<> {
    let host = host.to_owned();
    by(move |event, _| {
        let own = event.point == Point::Receive && event.host == host;
        (own && event.at >= from && event.at < from + span).then_some(Verdict::Refuse)
    })
}

/// Once in `times` a message that needs a receive is told that none is posted.
pub fn not_ready(times: u64) -> impl Rule {
    by(move |event, chance| {
        (event.point == Point::Receive && chance.once_in(times)).then_some(Verdict::Refuse)
    })
}

/// One packet in `times` fails the queue pair that sends it; of those that travel together, each counts.
pub fn kills(times: u64) -> impl Rule {
    by(move |event, chance| (leaves(event) && hit(event, chance, times)).then_some(Verdict::Kill))
}

/// Of the packets with bytes that leave a host, those that leave as number `number` fail the queue pair that
/// sends them.
pub fn kill_after(host: &str, number: u64) -> impl Rule + use<> {
    let host = host.to_owned();
    by(move |event, _| {
        let now = event.point == Point::Packets && event.host == host && event.number == number;
        now.then_some(Verdict::Kill)
    })
}

/// The actors of a host do not run from `from` on, for so long.
pub fn stall(host: &str, from: Instant, span: Duration) -> impl Rule + use<> {
    let host = host.to_owned();
    by(move |event, _| {
        let own = event.point == Point::Step && event.host == host;
        let now = own && event.at >= from && event.at < from + span;
        now.then(|| Verdict::WaitFor((from + span).since(event.at)))
    })
}

/// The actor of that role dies at that time, whatever it is doing.
pub fn crash(role: &str, at: Instant) -> impl Rule + use<> {
    let role = role.to_owned();
    Crash { role, at }
}

struct Crash {
    role: String,
    at: Instant,
}

impl Rule for Crash {
    fn judge(&self, event: &Event<'_>, _: &mut Chance) -> Option<Verdict> {
        let own = event.point == Point::Life && event.to == self.role;
        (own && event.at >= self.at).then_some(Verdict::Kill)
    }

    fn moments(&self) -> Vec<Instant> {
        vec![self.at]
    }
}

/// Of WRITEs whose bytes come in several parts, one in `times` is placed from its end to its beginning: what a
/// device may do that promises no order within a WRITE. It is done, and told of, as a whole all the same.
pub fn backwards(times: u64) -> impl Rule {
    by(move |event, chance| {
        (event.point == Point::Placing && chance.once_in(times)).then_some(Verdict::Backwards)
    })
}

/// The clock of a host, and the timestamps of its completions, are too fast by so many millionths, or too
/// slow.
pub fn drift(host: &str, ppm: i32) -> impl Rule + use<> {
    let host = host.to_owned();
    by(move |event, _| {
        (event.point == Point::Clock && event.host == host).then_some(Verdict::Drift(ppm))
    })
}
