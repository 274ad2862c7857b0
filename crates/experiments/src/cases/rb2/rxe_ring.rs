//! What batching is worth on real verbs without an RDMA NIC: the kernel's rxe, where every request
//! costs a packet and its acknowledgement.

use std::time::Duration;

use crate::arms::job::{Channel, RingMode};
use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::Outcome;
use crate::runner::RunError;

use super::sweep::{Point, Sample, Sweep, What};
use super::{begin, counts, paper};

/// The experiment.
#[derive(Debug)]
pub struct RxeRing;

const RING: Channel = Channel::Ring(RingMode::Default);
const UNBATCHED: Channel = Channel::Ring(RingMode::Unbatched);
const ARMS: [Channel; 2] = [RING, UNBATCHED];
const SIZE: usize = 64;

static ABOUT: About = About {
    name: "rxe-ring",
    line: "Short messages with and without batching, meant for the kernel's rxe (--device ibv:rxe0).",
    measures: "Messages of 64 B per second, one way, in a ring of 128 slots: with its default settings, and \
               with α = β = 1, so that every message is sent by itself. On any device; on one of libibverbs \
               every request costs what the device makes of it.",
    paper: Some(paper("Section V-C, Table II (M2)")),
    keys: &[
        "ring64_over_unbatched",
        "ring64_kmsg_per_s",
        "unbatched64_kmsg_per_s",
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
    let ratio = sweep.ratio(rate(RING), rate(UNBATCHED), per_second);
    outcome.measured_or("ring64_over_unbatched", ratio, sweep.why(rate(UNBATCHED)));
    for (channel, key) in [
        (RING, "ring64_kmsg_per_s"),
        (UNBATCHED, "unbatched64_kmsg_per_s"),
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
