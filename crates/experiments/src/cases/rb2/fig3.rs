//! Figure 3: the head pulled or pushed, the tail by completion or by a second WRITE.

use std::time::Duration;

use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::Outcome;
use crate::runner::RunError;
use crate::stats::Spread;
use crate::transports::job::{Channel, Combination, Rival};

use super::sweep::{Point, Sample, Sweep, What};
use super::{MIB, begin, counts, fig5, fig6, key, paper, simulated, sizes};

/// The experiment.
#[derive(Debug)]
pub struct Fig3;

/// Slots of a batch, and what the head is behind (section IV-A).
const THRESHOLD: u32 = 16;

const fn combination(pull: bool, cq: bool, batch: u32) -> Channel {
    Channel::Rival(Rival::Points(Combination {
        pull,
        cq,
        batch,
        lazy: THRESHOLD,
    }))
}

const fn combinations(batch: u32) -> [Channel; 4] {
    [
        combination(true, true, batch),
        combination(true, false, batch),
        combination(false, true, batch),
        combination(false, false, batch),
    ]
}

/// For throughput, in batches; for latency every message at once, heads as lazy as before.
const BATCHED: [Channel; 4] = combinations(THRESHOLD);
const UNBATCHED: [Channel; 4] = combinations(1);

static ABOUT: About = About {
    name: "rb2-fig3",
    line: "Head pulled or pushed, tail by completion or write twice: throughput and round trips.",
    measures: "The four combinations on rings of 128 slots, 64 B to 1 MiB: throughput in batches of 16 \
               slots; round trips without batches, mean and 99.9th percentile. Heads are 16 slots behind.",
    paper: Some(paper("Figure 3")),
    keys: &[
        "push_over_pull_64_lowest",
        "push_over_pull_64_highest",
        "push_wt_over_push_cq_64",
        "push_wt_over_push_cq_1m",
        "push_cq_over_push_wt_rtt64_mean",
        "push_cq_over_push_wt_rtt64_p999",
        "pull_cq_64_mmsg_per_s",
        "pull_wt_64_mmsg_per_s",
        "push_cq_64_mmsg_per_s",
        "push_wt_64_mmsg_per_s",
        "pull_cq_rtt64_mean_ns",
        "pull_wt_rtt64_mean_ns",
        "push_cq_rtt64_mean_ns",
        "push_wt_rtt64_mean_ns",
    ],
    paper_values: &[
        ("push_over_pull_64_lowest", 1.359),
        ("push_over_pull_64_highest", 1.517),
    ],
    replays: false,
};

impl Experiment for Fig3 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = begin(bench, &BATCHED);
        let points = points(sizes(bench));
        let sweep = Sweep::measure(bench, points, 0.7, Duration::from_millis(500))?;
        sweep.record(&mut outcome);
        record(&mut outcome, &sweep);
        counts::record(bench, &mut outcome, &BATCHED, &[64])?;
        let mut note =
            "Round trips are of the same combinations with batches of one slot.".to_owned();
        if bench.options.device.kind() == "soft" {
            note += " What the paper sees in them, the completions that a receiver polls and the receives that \
                     it posts for each, costs here what the software RNIC's queues cost.";
        }
        outcome.notes.push(note);
        simulated::note(bench, &mut outcome, simulated::FIG3);
        Ok(outcome)
    }
}

pub(super) fn points(sizes: &[usize]) -> Vec<Point> {
    let points = sizes.iter().flat_map(|&size| {
        let rates = BATCHED.map(|channel| Point::new(What::Rate, channel, size));
        let trips = UNBATCHED.map(|channel| Point::new(What::RoundTrip, channel, size));
        rates.into_iter().chain(trips)
    });
    points.collect()
}

fn per_second(sample: &Sample) -> f64 {
    sample.per_second
}

fn record(outcome: &mut Outcome, sweep: &Sweep) {
    let rate = |channel, size| Point::new(What::Rate, channel, size);
    let trip = |channel| Point::new(What::RoundTrip, channel, 64);
    let [_, _, push_cq, push_wt] = BATCHED;
    let mut ratios: Vec<Spread> = Vec::new();
    for push in &BATCHED[2..] {
        for pull in &BATCHED[..2] {
            ratios.extend(sweep.ratio(rate(*push, 64), rate(*pull, 64), per_second));
        }
    }
    ratios.sort_by(|a, b| a.median.total_cmp(&b.median));
    let why = sweep.why(rate(push_wt, 64));
    outcome.measured_or("push_over_pull_64_lowest", ratios.first().copied(), &*why);
    outcome.measured_or("push_over_pull_64_highest", ratios.last().copied(), &*why);
    for (key, size) in [
        ("push_wt_over_push_cq_64", 64),
        ("push_wt_over_push_cq_1m", MIB),
    ] {
        let ratio = sweep.ratio(rate(push_wt, size), rate(push_cq, size), per_second);
        outcome.measured_or(key, ratio, sweep.why(rate(push_cq, size)));
    }
    let [_, _, slow, fast] = UNBATCHED;
    let of = |of: fn(&Sample) -> f64| sweep.ratio(trip(slow), trip(fast), of);
    let why = sweep.why(trip(slow));
    let mean = of(|sample| sample.round_trip.mean_ns);
    outcome.measured_or("push_cq_over_push_wt_rtt64_mean", mean, &*why);
    let tail = of(|sample| sample.round_trip.p999_ns);
    outcome.measured_or("push_cq_over_push_wt_rtt64_p999", tail, &*why);
    for (batched, unbatched) in BATCHED.into_iter().zip(UNBATCHED) {
        let name = key(batched);
        let point = rate(batched, 64);
        let millions = sweep.spread(point, |sample| sample.per_second * 1e-6);
        outcome.measured_or(&format!("{name}_64_mmsg_per_s"), millions, sweep.why(point));
        let point = trip(unbatched);
        let mean = sweep.spread(point, |sample| sample.round_trip.mean_ns);
        outcome.measured_or(&format!("{name}_rtt64_mean_ns"), mean, sweep.why(point));
    }
    outcome.figures = fig5::figures(sweep, &BATCHED);
    outcome.figures.extend(fig6::figures(sweep, &UNBATCHED));
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
