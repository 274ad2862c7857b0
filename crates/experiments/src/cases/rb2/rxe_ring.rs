//! What batching is worth on real verbs without an RDMA NIC: the kernel's rxe, where every request
//! costs a packet and its acknowledgement.

use std::time::Duration;

use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::Outcome;
use crate::runner::RunError;
use crate::transports::job::{Channel, RingMode, Variant};

use super::sweep::{Point, Sample, Sweep, What};
use super::{RB2, begin, counts, paper};

/// The experiment.
#[derive(Debug)]
pub struct RxeRing;

/// M2 of the paper: a WRITE, a tail and a head for every message.
const UNBATCHED: Channel = Channel::Ring(RingMode::Paper(Variant::NoBatching));
/// The same with the lazy head, which is no batching of messages.
const LAZY: Channel = Channel::Ring(RingMode::Paper(Variant::Unbatched));
const ARMS: [Channel; 3] = [RB2, UNBATCHED, LAZY];
const SIZE: usize = 64;

static ABOUT: About = About {
    name: "rxe-ring",
    line: "Short messages with and without batching, meant for the kernel's rxe (--device ibv:rxe0).",
    measures: "Messages of 64 B per second, one way, in a ring of 128 slots, written and read in place: with its \
               default settings; without any batching (the paper's M2: α = β = γ = 1, no gate), so that every \
               message is a WRITE, one of the tail and one of the head; and so but for the lazy head. On a \
               device of libibverbs: every request costs what the device makes of it.",
    paper: Some(paper("Section V-C, Table II (M2)")),
    keys: &[
        "ring64_over_unbatched",
        "ring64_over_unbatched_lazy_head",
        "ring64_kmsg_per_s",
        "unbatched64_kmsg_per_s",
        "unbatched64_lazy_head_kmsg_per_s",
    ],
    // "Without all the batching mechanisms (M2), the throughput of small messages drops by 67%."
    paper_values: &[("ring64_over_unbatched", 3.0)],
    replays: false,
};

const fn rate(channel: Channel) -> Point {
    Point::new(What::Rate, channel, SIZE)
}

impl Experiment for RxeRing {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn kind(&self) -> Option<&'static str> {
        Some("ibv")
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = begin(bench, &ARMS);
        let points = ARMS.map(rate).to_vec();
        let sweep = Sweep::measure(bench, points, 0.8, Duration::from_secs(3))?;
        sweep.record(&mut outcome);
        record(&mut outcome, &sweep);
        counts::record(bench, &mut outcome, &ARMS, &[SIZE])?;
        Ok(outcome)
    }
}

fn record(outcome: &mut Outcome, sweep: &Sweep) {
    let per_second = |sample: &Sample| sample.per_second;
    for (channel, key) in [
        (UNBATCHED, "ring64_over_unbatched"),
        (LAZY, "ring64_over_unbatched_lazy_head"),
    ] {
        let ratio = sweep.ratio(rate(RB2), rate(channel), per_second);
        outcome.measured_or(key, ratio, sweep.why(rate(channel)));
    }
    for (channel, key) in [
        (RB2, "ring64_kmsg_per_s"),
        (UNBATCHED, "unbatched64_kmsg_per_s"),
        (LAZY, "unbatched64_lazy_head_kmsg_per_s"),
    ] {
        let spread = sweep.spread(rate(channel), |sample| sample.per_second * 1e-3);
        outcome.measured_or(key, spread, sweep.why(rate(channel)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::rb2::tests::assert_nothing_is_skipped;

    #[test]
    fn what_was_not_measured_is_skipped_key_by_key() {
        assert_nothing_is_skipped(&ABOUT, record);
    }
}
