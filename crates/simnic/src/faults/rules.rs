//! Ready-made rules. Each is a pure function of an event and of random numbers.

use headworks_verbs::{Duration, Instant};

use super::{FaultEvent, FaultPoint, NetworkFaults, Random, Rule, Verdict};

/// Makes a rule from a function.
pub fn from_fn<F>(judge: F) -> impl Rule<NetworkFaults> + use<F>
where
    F: Fn(&FaultEvent<'_>, &mut Random) -> Option<Verdict> + Send + Sync + 'static,
{
    headworks_faults::from_fn::<NetworkFaults, F>(judge)
}

/// Whether the event is that packets leave, with or without payload.
fn leaves(event: &FaultEvent<'_>) -> bool {
    matches!(event.point, FaultPoint::Packets | FaultPoint::Acknowledge)
}

/// Draws with probability 1/`times` for each packet of the event. Returns whether any was drawn.
fn hit(event: &FaultEvent<'_>, random: &mut Random, times: u64) -> bool {
    (0..event.packets.max(1)).any(|_| random.once_in(times))
}

/// Loses one packet in `times`, together with the packets that travel with it.
pub fn loss(times: u64) -> impl Rule<NetworkFaults> {
    from_fn(move |event, random| {
        (leaves(event) && hit(event, random, times)).then_some(Verdict::Refuse)
    })
}

/// Loses one acknowledgement in `times`, so that what was done already is requested again.
pub fn lose_acknowledges(times: u64) -> impl Rule<NetworkFaults> {
    from_fn(move |event, random| {
        (event.point == FaultPoint::Acknowledge && random.once_in(times)).then_some(Verdict::Refuse)
    })
}

/// Loses one notification of congestion in `times`.
pub fn lose_notifications(times: u64) -> impl Rule<NetworkFaults> {
    from_fn(move |event, random| {
        (event.point == FaultPoint::Notification && random.once_in(times))
            .then_some(Verdict::Refuse)
    })
}

/// Pauses a host's link for `span` from `from` on, as PFC does: packets to the host arrive after that, and those
/// behind them later.
pub fn pause_link(host: &str, from: Instant, span: Duration) -> impl Rule<NetworkFaults> + use<> {
    let host = host.to_owned();
    from_fn(move |event, _| {
        let is_paused = event.point == FaultPoint::Packets
            && event.to == host
            && (from..from + span).contains(&event.arrives);
        is_paused.then(|| Verdict::WaitFor((from + span).since(event.arrives)))
    })
}

/// Has a program use up to `gb_per_s` of the bandwidth of a host's memory for `span` from `from` on, as `membw` does.
/// It has no effect on hosts whose memory is not modelled.
pub fn antagonist(
    host: &str,
    from: Instant,
    span: Duration,
    gb_per_s: u32,
) -> impl Rule<NetworkFaults> + use<> {
    let (host, until) = (host.to_owned(), from + span);
    Antagonist {
        host,
        from,
        until,
        gb_per_s,
    }
}

struct Antagonist {
    host: String,
    from: Instant,
    until: Instant,
    gb_per_s: u32,
}

impl Rule<NetworkFaults> for Antagonist {
    fn judge(&self, event: &FaultEvent<'_>, _: &mut Random) -> Option<Verdict> {
        let own = event.point == FaultPoint::Memory && event.host == self.host;
        let runs = own && (self.from..self.until).contains(&event.at);
        runs.then_some(Verdict::Antagonist(self.gb_per_s))
    }

    fn moments(&self) -> Vec<Instant> {
        vec![self.from, self.until]
    }
}

/// Delays one packet in `times` by up to `by_most`, and lets packets that leave later overtake it.
pub fn reorder(times: u64, by_most: Duration) -> impl Rule<NetworkFaults> {
    from_fn(move |event, random| {
        let overtaken = leaves(event) && hit(event, random, times);
        overtaken.then(|| Verdict::Overtaken(up_to(by_most, random)))
    })
}

/// Delays one packet in `times` by up to `by_most`, and with it the packets behind it.
pub fn jitter(times: u64, by_most: Duration) -> impl Rule<NetworkFaults> {
    from_fn(move |event, random| {
        let waits = leaves(event) && hit(event, random, times);
        waits.then(|| Verdict::WaitFor(up_to(by_most, random)))
    })
}

fn up_to(most: Duration, random: &mut Random) -> Duration {
    Duration::from_nanos(random.within(1, most.nanos().max(1)))
}

/// Takes all links of a host down for `span` from `from` on. Packets that are on a link then are lost.
pub fn link_down(host: &str, from: Instant, span: Duration) -> impl Rule<NetworkFaults> + use<> {
    let host = host.to_owned();
    from_fn(move |event, _| {
        let own = leaves(event) && (event.host == host || event.to == host);
        let down = event.arrives >= from && event.at < from + span;
        (own && down).then_some(Verdict::Refuse)
    })
}

/// Has a host find no receives for `span` from `from` on.
pub fn no_receives(host: &str, from: Instant, span: Duration) -> impl Rule<NetworkFaults> + use<> {
    let host = host.to_owned();
    from_fn(move |event, _| {
        let own = event.point == FaultPoint::Receive && event.host == host;
        (own && event.at >= from && event.at < from + span).then_some(Verdict::Refuse)
    })
}

/// Has one message in `times` that needs a receive find none.
pub fn not_ready(times: u64) -> impl Rule<NetworkFaults> {
    from_fn(move |event, random| {
        (event.point == FaultPoint::Receive && random.once_in(times)).then_some(Verdict::Refuse)
    })
}

/// Has one packet in `times` fail the queue pair that sends
/// it. Packets that travel together are drawn one by one.
pub fn kill_queue_pair(times: u64) -> impl Rule<NetworkFaults> {
    from_fn(move |event, random| {
        (leaves(event) && hit(event, random, times)).then_some(Verdict::Kill)
    })
}

/// Gives this verdict on the packets of event `number` at a host.
fn at_packets(host: &str, number: u64, verdict: Verdict) -> impl Rule<NetworkFaults> + use<> {
    let host = host.to_owned();
    from_fn(move |event, _| {
        let now =
            event.point == FaultPoint::Packets && event.host == host && event.number == number;
        now.then_some(verdict)
    })
}

/// Fails the queue pair that sends the packets of event `number` at a host. Events of [`FaultPoint::Packets`]
/// are counted, so acknowledgements are not.
pub fn kill_queue_pair_at(host: &str, number: u64) -> impl Rule<NetworkFaults> + use<> {
    at_packets(host, number, Verdict::Kill)
}

/// Overruns the completion queue of the queue pair that sends the packets of event `number` at a host, counted as by
/// [`kill_queue_pair_at`].
pub fn overrun_completion_queue_at(host: &str, number: u64) -> impl Rule<NetworkFaults> + use<> {
    at_packets(host, number, Verdict::Overrun)
}

/// Stalls all actors of a host for `span` from `from` on.
pub fn stall_actors(host: &str, from: Instant, span: Duration) -> impl Rule<NetworkFaults> + use<> {
    let host = host.to_owned();
    from_fn(move |event, _| {
        let own = event.point == FaultPoint::Step && event.host == host;
        let now = own && event.at >= from && event.at < from + span;
        now.then(|| Verdict::WaitFor((from + span).since(event.at)))
    })
}

/// Kills the actor of role `role` at time `at`, whatever it is doing.
pub fn kill_actor(role: &str, at: Instant) -> impl Rule<NetworkFaults> + use<> {
    let role = role.to_owned();
    ActorCrash { role, at }
}

struct ActorCrash {
    role: String,
    at: Instant,
}

impl Rule<NetworkFaults> for ActorCrash {
    fn judge(&self, event: &FaultEvent<'_>, _: &mut Random) -> Option<Verdict> {
        let own = event.point == FaultPoint::Life && event.to == self.role;
        (own && event.at >= self.at).then_some(Verdict::Kill)
    }

    fn moments(&self) -> Vec<Instant> {
        vec![self.at]
    }
}

/// Places one in `times` of the WRITEs that arrive in several parts from its end to its beginning. A device
/// that promises no order within a WRITE may do that. The WRITE still completes as a whole.
pub fn place_backwards(times: u64) -> impl Rule<NetworkFaults> {
    from_fn(move |event, random| {
        (event.point == FaultPoint::Placing && random.once_in(times)).then_some(Verdict::Backwards)
    })
}

/// Makes a host's clock, and the timestamps of its completions,
/// run fast by `ppm` parts per million; slow if it is negative.
pub fn clock_drift(host: &str, ppm: i32) -> impl Rule<NetworkFaults> + use<> {
    let host = host.to_owned();
    from_fn(move |event, _| {
        (event.point == FaultPoint::Clock && event.host == host).then_some(Verdict::Drift(ppm))
    })
}
