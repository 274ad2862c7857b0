//! Figure 7: pairs of senders and receivers beside each other.

use std::time::Duration;

use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::Outcome;
use crate::pin::allowed_cpus;
use crate::report::svg::{Axis, Figure};
use crate::runner::RunError;
use crate::transports::job::Channel;

use super::sweep::{Point, Sweep, What};
use super::{FARM, L5, RAW, RB2, SOCKSDIRECT, begin, key, paper, simulated};

/// The experiment.
#[derive(Debug)]
pub struct Fig7;

const ARMS: [Channel; 5] = [RB2, FARM, SOCKSDIRECT, L5, RAW];
const PAIRS: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8];
const QUICK_PAIRS: &[usize] = &[1, 2, 8];
const SIZE: usize = 64;

static ABOUT: About = About {
    name: "rb2-fig7",
    line: "RB² against FaRM-, SocksDirect- and L5-style rings and raw WRITEs: 1 to 8 pairs at once.",
    measures: "Messages of 64 B per second of all pairs together, and the slowest pair's 99.9th \
               percentile of round trips, for 1 to 8 pairs of a sending and a receiving process.",
    paper: Some(paper("Figure 7 (Exp#3)")),
    keys: &[
        "rb2_1_pair_mmsg_per_s",
        "rb2_8_pairs_mmsg_per_s",
        "rb2_8_pairs_over_1",
        "farm_8_pairs_over_1",
        "socksdirect_8_pairs_over_1",
        "l5_8_pairs_over_1",
        "raw_8_pairs_over_1",
        "rb2_over_l5_8_pairs",
        "rb2_over_farm_8_pairs",
        "rb2_over_socksdirect_8_pairs",
        "rb2_8_pairs_p999_ns",
    ],
    paper_values: &[("rb2_8_pairs_p999_ns", 7000.0)],
    replays: false,
};

const fn point(what: What, channel: Channel, pairs: usize) -> Point {
    Point {
        what,
        size: SIZE,
        pairs,
        channel,
    }
}

impl Experiment for Fig7 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = begin(bench, &ARMS);
        let cores = allowed_cpus().len();
        if !bench.place.is_simulated() {
            outcome.pinning = format!(
                "{cores} processors; the parts of a pair on two of them, one pair after the other until \
                 there are none left, then from the first again"
            );
        }
        let crowded: Vec<&usize> = PAIRS
            .iter()
            .filter(|&&n| bench.place.is_crowded(n))
            .collect();
        outcome.notes.push(
            "The senders of all pairs are told to begin once all pairs are connected. Each pair then warms \
             up and measures for the same time; the rate is all messages that were received (raw WRITEs: \
             posted) while their pair measured, divided by the time from the first pair that began to \
             measure to the last that ended. So a pair that is late lowers it."
                .into(),
        );
        if let Some(first) = crowded.first() {
            outcome.notes.push(format!(
                "From {first} pairs on there are more parts than processors ({cores}): a part that has \
                 nothing to do offers its processor to the others. What grows with pairs then is not \
                 throughput, which the processors bound; what is seen is what it costs that rings share \
                 them: how much a sender hands over before another one runs, which for RB² is its whole \
                 ring. Round trips include the wait for a processor. Whether it scales has to be seen on \
                 a machine with two processors to a pair."
            ));
        }
        let pairs = match bench.options.quick {
            true => QUICK_PAIRS,
            false => PAIRS,
        };
        let sweep = Sweep::measure(bench, points(pairs), 0.9, Duration::from_millis(300))?;
        sweep.record(&mut outcome);
        record(&mut outcome, &sweep);
        simulated::note(bench, &mut outcome, simulated::FIG7);
        Ok(outcome)
    }
}

pub(super) fn points(pairs: &[usize]) -> Vec<Point> {
    let points = pairs.iter().flat_map(|&pairs| {
        let rates = ARMS.map(|channel| point(What::Rate, channel, pairs));
        let trips = ARMS.map(|channel| point(What::RoundTrip, channel, pairs));
        rates.into_iter().chain(trips)
    });
    points.collect()
}

fn record(outcome: &mut Outcome, sweep: &Sweep) {
    let rate = |channel, pairs| point(What::Rate, channel, pairs);
    for (key, pairs) in [("rb2_1_pair_mmsg_per_s", 1), ("rb2_8_pairs_mmsg_per_s", 8)] {
        let millions = sweep.spread(rate(RB2, pairs), |sample| sample.per_second * 1e-6);
        outcome.measured_or(key, millions, sweep.why(rate(RB2, pairs)));
    }
    for channel in ARMS {
        let name = key(channel);
        let why = sweep.why(rate(channel, 8));
        let of = |sample: &super::sweep::Sample| sample.per_second;
        let ratio = sweep.ratio(rate(channel, 8), rate(channel, 1), of);
        outcome.measured_or(&format!("{name}_8_pairs_over_1"), ratio, &*why);
        if [L5, FARM, SOCKSDIRECT].contains(&channel) {
            let ratio = sweep.ratio(rate(RB2, 8), rate(channel, 8), of);
            outcome.measured_or(&format!("rb2_over_{name}_8_pairs"), ratio, why);
        }
    }
    let trip = point(What::RoundTrip, RB2, 8);
    let tail = sweep.spread(trip, |sample| sample.round_trip.p999_ns);
    outcome.measured_or("rb2_8_pairs_p999_ns", tail, sweep.why(trip));
    let over_pairs = |point: &Point| point.pairs as f64;
    let figure = |file: &str, title: &str, y: Axis, series| Figure {
        file: file.into(),
        title: title.into(),
        x: Axis::linear("pairs"),
        y,
        series,
    };
    let rates = sweep.series(&ARMS, What::Rate, over_pairs, |s, _| s.per_second / 1e6);
    let tails = sweep.series(&ARMS, What::RoundTrip, over_pairs, |s, _| {
        s.round_trip.p999_ns / 1e3
    });
    outcome.figures = vec![
        figure(
            "rate.svg",
            "64 B messages of all pairs",
            Axis::linear("rate [Mmsg/s]"),
            rates,
        ),
        figure(
            "rtt-p999.svg",
            "Round trip of 64 B, 99.9th percentile of the slowest pair",
            Axis::log("round trip [µs]"),
            tails,
        ),
    ];
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
