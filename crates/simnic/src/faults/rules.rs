//! Rules ready-made. Each is a pure function of an event and of random numbers.

use headworks_verbs::{Duration, Instant};

use super::{FaultEvent, FaultPoint, Random, Rule, Verdict};

/// A rule made from a function.
struct FnRule<F>(F);

impl<F> Rule for FnRule<F>
where
    F: Fn(&FaultEvent<'_>, &mut Random) -> Option<Verdict> + Send + Sync,
{
    fn judge(&self, event: &FaultEvent<'_>, random: &mut Random) -> Option<Verdict> {
        (self.0)(event, random)
    }
}

/// A rule made from a function.
pub fn from_fn<F>(judge: F) -> impl Rule
where
    F: Fn(&FaultEvent<'_>, &mut Random) -> Option<Verdict> + Send + Sync + 'static,
{
    FnRule(judge)
}

/// Whether packets leave, with bytes or without.
fn leaves(event: &FaultEvent<'_>) -> bool {
    matches!(event.point, FaultPoint::Packets | FaultPoint::Acknowledge)
}

/// Once in so many packets; of those that travel together, each counts.
fn hit(event: &FaultEvent<'_>, random: &mut Random, times: u64) -> bool {
    (0..event.packets.max(1)).any(|_| random.once_in(times))
}

/// One packet in `times` is lost, and with it those that travel with it.
pub fn loss(times: u64) -> impl Rule {
    from_fn(move |event, random| {
        (leaves(event) && hit(event, random, times)).then_some(Verdict::Refuse)
    })
}

/// One answer in `times` is lost: what was done is asked for once more.
pub fn lose_acknowledges(times: u64) -> impl Rule {
    from_fn(move |event, random| {
        (event.point == FaultPoint::Acknowledge && random.once_in(times)).then_some(Verdict::Refuse)
    })
}

/// One packet in `times` comes up to `by_most` later, behind what left after it.
pub fn reorder(times: u64, by_most: Duration) -> impl Rule {
    from_fn(move |event, random| {
        let overtaken = leaves(event) && hit(event, random, times);
        overtaken.then(|| Verdict::Overtaken(up_to(by_most, random)))
    })
}

/// One packet in `times` comes up to `by_most` later, and so does what is behind it.
pub fn jitter(times: u64, by_most: Duration) -> impl Rule {
    from_fn(move |event, random| {
        let waits = leaves(event) && hit(event, random, times);
        waits.then(|| Verdict::WaitFor(up_to(by_most, random)))
    })
}

fn up_to(most: Duration, random: &mut Random) -> Duration {
    Duration::from_nanos(random.within(1, most.nanos().max(1)))
}

/// The link of a host is down from `from` on, for so long: what is on it is lost.
pub fn link_down(host: &str, from: Instant, span: Duration) -> impl Rule + use<> {
    let host = host.to_owned();
    from_fn(move |event, _| {
        let own = leaves(event) && (event.host == host || event.to == host);
        let down = event.arrives >= from && event.at < from + span;
        (own && down).then_some(Verdict::Refuse)
    })
}

/// On a host no receive is found from `from` on, for so long.
pub fn no_receives(host: &str, from: Instant, span: Duration) -> impl Rule + use<> {
    let host = host.to_owned();
    from_fn(move |event, _| {
        let own = event.point == FaultPoint::Receive && event.host == host;
        (own && event.at >= from && event.at < from + span).then_some(Verdict::Refuse)
    })
}

/// Once in `times` a message that needs a receive is told that none is posted.
pub fn not_ready(times: u64) -> impl Rule {
    from_fn(move |event, random| {
        (event.point == FaultPoint::Receive && random.once_in(times)).then_some(Verdict::Refuse)
    })
}

/// One packet in `times` fails the queue pair that sends it; of those that travel together, each counts.
pub fn kill_queue_pair(times: u64) -> impl Rule {
    from_fn(move |event, random| {
        (leaves(event) && hit(event, random, times)).then_some(Verdict::Kill)
    })
}

/// Of the packets with bytes that leave a host, those that leave as number `number` fail the queue pair that
/// sends them.
pub fn kill_queue_pair_at(host: &str, number: u64) -> impl Rule + use<> {
    let host = host.to_owned();
    from_fn(move |event, _| {
        let now =
            event.point == FaultPoint::Packets && event.host == host && event.number == number;
        now.then_some(Verdict::Kill)
    })
}

/// The actors of a host do not run from `from` on, for so long.
pub fn stall_actors(host: &str, from: Instant, span: Duration) -> impl Rule + use<> {
    let host = host.to_owned();
    from_fn(move |event, _| {
        let own = event.point == FaultPoint::Step && event.host == host;
        let now = own && event.at >= from && event.at < from + span;
        now.then(|| Verdict::WaitFor((from + span).since(event.at)))
    })
}

/// The actor of that role dies at that time, whatever it is doing.
pub fn kill_actor(role: &str, at: Instant) -> impl Rule + use<> {
    let role = role.to_owned();
    ActorCrash { role, at }
}

struct ActorCrash {
    role: String,
    at: Instant,
}

impl Rule for ActorCrash {
    fn judge(&self, event: &FaultEvent<'_>, _: &mut Random) -> Option<Verdict> {
        let own = event.point == FaultPoint::Life && event.to == self.role;
        (own && event.at >= self.at).then_some(Verdict::Kill)
    }

    fn moments(&self) -> Vec<Instant> {
        vec![self.at]
    }
}

/// Of WRITEs whose bytes come in several parts, one in `times` is placed from its end to its beginning: what a
/// device may do that promises no order within a WRITE. It is done, and told of, as a whole all the same.
pub fn place_backwards(times: u64) -> impl Rule {
    from_fn(move |event, random| {
        (event.point == FaultPoint::Placing && random.once_in(times)).then_some(Verdict::Backwards)
    })
}

/// The clock of a host, and the timestamps of its completions, are too fast by so many millionths, or too
/// slow.
pub fn clock_drift(host: &str, ppm: i32) -> impl Rule + use<> {
    let host = host.to_owned();
    from_fn(move |event, _| {
        (event.point == FaultPoint::Clock && event.host == host).then_some(Verdict::Drift(ppm))
    })
}
