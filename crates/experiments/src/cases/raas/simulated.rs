//! Frames of this paper's simulated experiments: who is compared, how long it is measured, what reports say of it.

use headworks::verbs::Duration;

use super::points::{Point, at};
use crate::bench::Bench;
use crate::outcome::{ArmNote, Outcome};
use crate::service::simulated::{Arm, Found, Load, Machine};
use crate::transports::ArmError;

/// READs of 64 B: the paper does not say how long those of its comparisons with locks are, and long ones fill the link
/// whoever posts them.
pub(super) const SMALL: usize = 64;
/// Bytes of the memory that short ones are of.
pub(super) const SMALL_REGION: usize = 1 << 20;

pub(super) const NATIVE: &str = "native";
pub(super) const SERVICE: &str = "service";
pub(super) const LOCKED: &str = "locked";
pub(super) const LOCKED_3: &str = "locked, q = 3";
pub(super) const LOCKED_6: &str = "locked, q = 6";

/// Where parts run.
pub(super) const PINNING: &str = "each daemon, thread and application on a simulated core of its own, as long as a host has any; then they take turns";

/// The machines of the device.
pub(super) fn machine(bench: &Bench<'_>) -> Result<Machine, ArmError> {
    let machine = bench.options.machine();
    let machine = machine.ok_or_else(|| ArmError("the device is not simulated".to_owned()))?;
    let (preset, seed) = machine.map_err(|why| ArmError::at("device", why))?;
    Ok(Machine { preset, seed })
}

/// Measures a point: `run` long in full, and a part of that in a quick run; after a fifth of `run` in either, since what is
/// outstanding takes as long to come into its order.
pub(super) fn measure(
    bench: &Bench<'_>,
    load: Load,
    arm: Arm,
    run: Duration,
) -> Result<Found, ArmError> {
    let warm = Duration::from_nanos(run.nanos() / 5);
    let run = match bench.options.quick {
        true => Duration::from_nanos(run.nanos() / QUICK),
        false => run,
    };
    load.measure(arm, &machine(bench)?, (warm, run), bench.stop())
}

/// How many times as short what is measured is in a quick run.
const QUICK: u64 = 4;

/// Points of each arm over the same.
pub(super) fn grid(arms: &[&'static str], over: &[u64]) -> Vec<Point> {
    let of = |x: &u64| arms.iter().map(|arm| at(arm, *x)).collect::<Vec<_>>();
    over.iter().flat_map(of).collect()
}

/// An outcome that says where everything ran, and how.
pub(super) fn outcome(bench: &Bench<'_>, arms: Vec<ArmNote>) -> Outcome {
    let mut outcome = bench.outcome();
    outcome.pinning = PINNING.to_owned();
    outcome.arms = arms;
    outcome.notes.push(NOTE.to_owned());
    outcome
}

/// Said in reports.
const NOTE: &str = "All of it is simulated, in virtual time. The service is the daemon's own core with the application's side of it; \
     what its code takes of a processor, beside copies and calls of verbs, was measured elsewhere and is charged. What the \
     paper's figures show is known only as far as its text says it.";

fn note(name: &str, what: &str, copies: &str) -> ArmNote {
    super::note(name, what, "poll", copies)
}

/// The arm without sharing.
pub(super) fn native_note() -> ArmNote {
    let what = "verbs: each thread has queue pairs of its own, one for each connection, and posts each request by a call of \
                its own, as perftest does";
    note(NATIVE, what, "0")
}

/// The arm that shares under a lock.
pub(super) fn locked_note(name: &str) -> ArmNote {
    let what = "verbs: threads share a queue pair and its completion queue under a lock that is had in the order of asking; \
                whoever has it takes what has ended, whosever it is, and posts a request";
    note(name, what, "0")
}

/// The arm over daemons.
pub(super) fn service_note() -> ArmNote {
    let what = "applications of one thread each, over the queue pairs that their host's daemon shares among all, by \
                one-sided operations on memory that the other end exports";
    note(SERVICE, what, "0")
}
