//! Ready-made rules. Each is a pure function of an event and of random numbers.

use headworks_faults::{Random, Rule, from_fn};
use headworks_verbs::{Duration, Opcode, Status};

use super::{FaultEvent, FaultPoint, SoftFaults, Verdict};

/// Makes a rule from a function.
pub fn by<F>(judge: F) -> impl Rule<SoftFaults> + use<F>
where
    F: Fn(&FaultEvent, &mut Random) -> Option<Verdict> + Send + Sync + 'static,
{
    from_fn::<SoftFaults, F>(judge)
}

/// Places the bytes of every message in any order, over 1 to `steps` steps.
pub fn scatter(steps: u32) -> impl Rule<SoftFaults> {
    by(move |event, random| {
        let first = event.point == FaultPoint::Place && event.turn == 0;
        first.then(|| Verdict::Scatter(random.within_u32(1, steps.max(1))))
    })
}

/// Refuses one in `times` posts, of sends and of receives, as if the queue were full.
pub fn full(times: u64) -> impl Rule<SoftFaults> {
    by(move |event, random| {
        let posts = matches!(event.point, FaultPoint::Post | FaultPoint::PostReceive);
        (posts && random.once_in(times)).then_some(Verdict::Refuse)
    })
}

/// Once in `times`, a request that needs a receive finds none posted.
pub fn not_ready(times: u64) -> impl Rule<SoftFaults> {
    by(move |event, random| {
        (event.point == FaultPoint::Receive && random.once_in(times)).then_some(Verdict::Refuse)
    })
}

/// Once in `times`, delays completions for up to `polls` polls. Equally often, shows only the first one or
/// two.
pub fn late(times: u64, polls: u32) -> impl Rule<SoftFaults> {
    by(move |event, random| {
        if event.point != FaultPoint::Poll {
            return None;
        }
        if random.once_in(times) {
            return Some(Verdict::Wait(random.within_u32(1, polls.max(1))));
        }
        let few = random.once_in(times);
        few.then(|| Verdict::AtMost(random.within_u32(1, 2)))
    })
}

/// Once in `times`, delays the beginning of a request for up to `steps` steps. About half of the queue pairs,
/// by their stream, are slow: four times as often, for up to four times as many steps, and sometimes for 20
/// to 200 µs instead.
pub fn slow(times: u64, steps: u32) -> impl Rule<SoftFaults> {
    by(move |event, random| {
        if event.point != FaultPoint::Begin {
            return None;
        }
        let is_slow = event.stream & 1 == 1;
        let (times, steps) = match is_slow {
            true => ((times / 4).max(1), steps.saturating_mul(4)),
            false => (times, steps),
        };
        if !random.once_in(times) {
            return None;
        }
        if is_slow && random.once_in(32) {
            let micros = random.within_u32(20, 200);
            return Some(Verdict::WaitFor(Duration::from_micros(micros.into())));
        }
        Some(Verdict::Wait(random.within_u32(1, steps.max(1))))
    })
}

/// About one request in `mean` kills its queue pair: half of them before anything is placed, half at their
/// second step. A request that takes one step is killed half as often.
pub fn kills(mean: u64) -> impl Rule<SoftFaults> {
    by(move |event, random| {
        let here = event.point == FaultPoint::Begin
            || (event.point == FaultPoint::Place && event.turn == 1);
        if !here || !random.once_in(mean.max(1).saturating_mul(2)) {
            return None;
        }
        let fatal = random.once_in(2);
        let status = if fatal {
            Status::Fatal
        } else {
            Status::RetryExceeded
        };
        Some(Verdict::Kill(status))
    })
}

/// Loses about one datagram, or message of an unreliable connection, in `mean`.
pub fn losses(mean: u64) -> impl Rule<SoftFaults> {
    by(move |event, random| {
        let here = event.point == FaultPoint::Datagram && random.once_in(mean.max(1));
        here.then_some(Verdict::Refuse)
    })
}

/// Kills every queue pair with its request number `number`.
pub fn kill_after(number: u64) -> impl Rule<SoftFaults> {
    by(move |event, _| {
        let now = event.point == FaultPoint::Begin && event.number == number;
        now.then_some(Verdict::Kill(Status::RetryExceeded))
    })
}

/// Delays every request that completes as `op` for `steps` steps before it begins.
pub fn rest(op: Opcode, steps: u32) -> impl Rule<SoftFaults> {
    by(move |event, _| {
        (event.point == FaultPoint::Begin && event.op == op).then_some(Verdict::Wait(steps))
    })
}
