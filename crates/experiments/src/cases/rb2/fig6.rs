//! Figure 6: round trips over the message size.

use std::time::Duration;

use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::Outcome;
use crate::report::svg::{Axis, Figure};
use crate::runner::RunError;
use crate::stats::Spread;
use crate::transports::job::Channel;

use super::sweep::{Point, Sample, Sweep, What};
use super::{
    FARM, L5, MIB, RAW, RB2, RB2_LATENCY, SOCKSDIRECT, begin, key, paper, simulated, sizes,
};

/// The experiment.
#[derive(Debug)]
pub struct Fig6;

const ARMS: [Channel; 6] = [RB2, RB2_LATENCY, FARM, SOCKSDIRECT, L5, RAW];
const RIVALS: [Channel; 3] = [FARM, SOCKSDIRECT, L5];

static ABOUT: About = About {
    name: "rb2-fig6",
    line: "RB² against FaRM-, SocksDirect- and L5-style rings and raw WRITEs: round trips over size.",
    measures: "A message there and back, one at a time, 64 B to 1 MiB: mean and 99.9th percentile of \
               300,000 round trips after 100,000, divided among the repeats.",
    paper: Some(paper("Figure 6 (Exp#2)")),
    keys: &[
        "rb2_rtt64_mean_ns",
        "rb2_latency_rtt64_mean_ns",
        "farm_rtt64_mean_ns",
        "socksdirect_rtt64_mean_ns",
        "l5_rtt64_mean_ns",
        "raw_rtt64_mean_ns",
        "rb2_rtt64_p999_ns",
        "rb2_latency_rtt64_p999_ns",
        "farm_rtt64_p999_ns",
        "socksdirect_rtt64_p999_ns",
        "l5_rtt64_p999_ns",
        "raw_rtt64_p999_ns",
        "rb2_rtt64_below_socksdirect_p999_ns",
        "rb2_rtt1m_p999_over_slowest",
        "rb2_rtt1m_p999_over_fastest",
        "l5_rtt1m_p999_ns",
    ],
    paper_values: &[
        ("rb2_rtt64_mean_ns", 4000.0),
        ("l5_rtt64_mean_ns", 2500.0),
        ("rb2_rtt64_below_socksdirect_p999_ns", 6000.0),
        ("rb2_rtt1m_p999_over_slowest", 0.06),
        ("rb2_rtt1m_p999_over_fastest", 0.23),
        ("l5_rtt1m_p999_ns", 4e6),
    ],
    replays: false,
};

const fn trip(channel: Channel, size: usize) -> Point {
    Point::new(What::RoundTrip, channel, size)
}

impl Experiment for Fig6 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = begin(bench, &ARMS);
        let points = sizes(bench)
            .iter()
            .flat_map(|&size| ARMS.map(|channel| trip(channel, size)));
        let points = points.collect();
        let sweep = Sweep::measure(bench, points, 0.9, Duration::from_millis(500))?;
        sweep.record(&mut outcome);
        record(&mut outcome, &sweep);
        simulated::note(bench, &mut outcome, simulated::FIG6);
        Ok(outcome)
    }
}

fn mean(sample: &Sample) -> f64 {
    sample.round_trip.mean_ns
}

fn tail(sample: &Sample) -> f64 {
    sample.round_trip.p999_ns
}

fn record(outcome: &mut Outcome, sweep: &Sweep) {
    for channel in ARMS {
        let name = key(channel);
        let point = trip(channel, 64);
        for (which, of) in [("mean", mean as fn(&Sample) -> f64), ("p999", tail)] {
            let key = format!("{name}_rtt64_{which}_ns");
            outcome.measured_or(&key, sweep.spread(point, of), sweep.why(point));
        }
    }
    let (ours, theirs) = (
        sweep.numbers(trip(RB2, 64), tail),
        sweep.numbers(trip(SOCKSDIRECT, 64), tail),
    );
    let below: Vec<f64> = ours.iter().zip(&theirs).map(|(o, t)| t - o).collect();
    outcome.measured_or(
        "rb2_rtt64_below_socksdirect_p999_ns",
        Spread::of(&below),
        sweep.why(trip(SOCKSDIRECT, 64)),
    );
    let mut rivals: Vec<(f64, Channel)> = RIVALS
        .into_iter()
        .filter_map(|rival| Some((sweep.spread(trip(rival, MIB), tail)?.median, rival)))
        .collect();
    rivals.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (which, rival) in [("fastest", rivals.first()), ("slowest", rivals.last())] {
        let ratio = rival.and_then(|(_, r)| sweep.ratio(trip(RB2, MIB), trip(*r, MIB), tail));
        let key = format!("rb2_rtt1m_p999_over_{which}");
        outcome.measured_or(&key, ratio, "no rival was measured");
    }
    let l5 = trip(L5, MIB);
    outcome.measured_or("l5_rtt1m_p999_ns", sweep.spread(l5, tail), sweep.why(l5));
    outcome.figures = figures(sweep, &ARMS);
}

/// Mean and 99.9th percentile over the size.
pub(super) fn figures(sweep: &Sweep, channels: &[Channel]) -> Vec<Figure> {
    let figure = |file: &str, title: &str, of: fn(&Sample) -> f64| Figure {
        file: file.into(),
        title: title.into(),
        x: Axis::log("message size [B]"),
        y: Axis::log("round trip [µs]"),
        series: sweep.lines(channels, What::RoundTrip, |sample, _| of(sample) / 1e3),
    };
    vec![
        figure("rtt-mean.svg", "Round trip over size: mean", mean),
        figure(
            "rtt-p999.svg",
            "Round trip over size: 99.9th percentile",
            tail,
        ),
    ]
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
