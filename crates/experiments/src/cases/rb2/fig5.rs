//! Figure 5: throughput over the message size, RB² against the designs that it beats.

use std::time::Duration;

use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::Outcome;
use crate::report::svg::{Axis, Figure};
use crate::runner::RunError;
use crate::stats::Spread;
use crate::transports::job::Channel;

use super::sweep::{Point, Sample, Sweep, What};
use super::{FARM, L5, MIB, RAW, RB2, SOCKSDIRECT, begin, counts, key, paper, simulated, sizes};

/// The experiment.
#[derive(Debug)]
pub struct Fig5;

const ARMS: [Channel; 5] = [RB2, FARM, SOCKSDIRECT, L5, RAW];
const RIVALS: [Channel; 3] = [FARM, SOCKSDIRECT, L5];

static ABOUT: About = About {
    name: "rb2-fig5",
    line: "RB² against FaRM-, SocksDirect- and L5-style rings and raw WRITEs: throughput over size.",
    measures: "Messages per second one way, 64 B to 1 MiB, in rings of 128 messages; and what each \
               design posts, completes and copies for a message.",
    paper: Some(paper("Figure 5 (Exp#1), Table I")),
    keys: &[
        "rb2_over_l5_64",
        "rb2_over_farm_64",
        "rb2_over_socksdirect_64",
        "rb2_over_raw_64",
        "rb2_over_fastest_64",
        "rb2_over_slowest_64",
        "rb2_over_l5_1m",
        "rb2_over_farm_1m",
        "rb2_over_socksdirect_1m",
        "rb2_over_raw_1m",
        "rb2_over_fastest_1m",
        "rb2_over_slowest_1m",
        "rb2_64_mmsg_per_s",
        "farm_64_mmsg_per_s",
        "socksdirect_64_mmsg_per_s",
        "l5_64_mmsg_per_s",
        "raw_64_mmsg_per_s",
        "rb2_1m_gb_per_s",
        "farm_1m_gb_per_s",
        "socksdirect_1m_gb_per_s",
        "l5_1m_gb_per_s",
        "raw_1m_gb_per_s",
    ],
    paper_values: &[
        ("rb2_over_fastest_64", 2.5),
        ("rb2_over_slowest_64", 7.5),
        ("rb2_over_fastest_1m", 1.8),
        ("rb2_over_slowest_1m", 8.5),
        ("rb2_over_raw_64", 2.0),
        ("l5_1m_gb_per_s", 1.25),
        ("rb2_1m_gb_per_s", 11.25),
        ("raw_1m_gb_per_s", 11.25),
    ],
    replays: false,
};

const fn rate(channel: Channel, size: usize) -> Point {
    Point::new(What::Rate, channel, size)
}

impl Experiment for Fig5 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = begin(bench, &ARMS);
        let points = sizes(bench)
            .iter()
            .flat_map(|&size| ARMS.map(|channel| rate(channel, size)));
        let points = points.collect();
        let sweep = Sweep::measure(bench, points, 0.8, Duration::from_millis(700))?;
        sweep.record(&mut outcome);
        record(&mut outcome, &sweep);
        counts::record(bench, &mut outcome, &ARMS[..4], &[64, MIB])?;
        let mut note =
            "The application writes and reads one word of a message. Designs that copy touch all of it, at \
             either end; those that do not leave it where the device put it. RB² has fixed framing, without \
             a header: a message of 64 B is one line. The rivals that pack messages have a header of 8 \
             bytes. Every arm has ordinary pages, also FaRM, which Table I gives huge ones. \
             Nobody takes what the raw WRITEs bring: their rate is the sender's own, and the lines stay in \
             its cache. The paper's values \
             of rates at 1 MiB are its \"close to 90 Gbps\" and \"around 10 Gbps\", on a link of 100 Gbps"
                .to_owned();
        note += match bench.options.device.kind() {
            "soft" => {
                "; here there is no link, and what bounds large messages is the machine's memory."
            }
            _ => ".",
        };
        outcome.notes.push(note);
        simulated::note(bench, &mut outcome, simulated::FIG5);
        Ok(outcome)
    }
}

fn per_second(sample: &Sample) -> f64 {
    sample.per_second
}

fn record(outcome: &mut Outcome, sweep: &Sweep) {
    for (size, suffix) in [(64, "64"), (MIB, "1m")] {
        for channel in [FARM, SOCKSDIRECT, L5, RAW] {
            let name = key(channel);
            let ratio = sweep.ratio(rate(RB2, size), rate(channel, size), per_second);
            let why = sweep.why(rate(channel, size));
            outcome.measured_or(&format!("rb2_over_{name}_{suffix}"), ratio, why);
        }
        // By the medians: which rival it is does not change from round to round.
        let median = |channel: &Channel| sweep.spread(rate(*channel, size), per_second);
        let mut rivals = RIVALS.to_vec();
        rivals.retain(|channel| median(channel).is_some());
        rivals.sort_by(|a, b| {
            let of = |channel| median(channel).map_or(0.0, |s: Spread| s.median);
            of(a).total_cmp(&of(b))
        });
        for (which, rival) in [("slowest", rivals.first()), ("fastest", rivals.last())] {
            let ratio =
                rival.and_then(|&r| sweep.ratio(rate(RB2, size), rate(r, size), per_second));
            let key = format!("rb2_over_{which}_{suffix}");
            outcome.measured_or(&key, ratio, "no rival was measured");
        }
        for channel in ARMS {
            let name = key(channel);
            let (unit, scale) = match size {
                64 => ("mmsg", 1e-6),
                _ => ("gb", size as f64 * 1e-9),
            };
            let spread = sweep.spread(rate(channel, size), |s| s.per_second * scale);
            let key = format!("{name}_{suffix}_{unit}_per_s");
            outcome.measured_or(&key, spread, sweep.why(rate(channel, size)));
        }
    }
    outcome.figures = figures(sweep, &ARMS);
}

/// The rate over the size, and the bandwidth.
pub(super) fn figures(sweep: &Sweep, channels: &[Channel]) -> Vec<Figure> {
    let figure = |file: &str, title: &str, y: &str, series| Figure {
        file: file.into(),
        title: title.into(),
        x: Axis::log("message size [B]"),
        y: Axis::log(y),
        series,
    };
    let rate = sweep.lines(channels, What::Rate, |s, _| s.per_second);
    let bandwidth = sweep.lines(channels, What::Rate, |s, size| {
        s.per_second * size as f64 / 1e9
    });
    vec![
        figure("rate.svg", "Messages over size", "rate [msg/s]", rate),
        figure(
            "bandwidth.svg",
            "Throughput over size",
            "throughput [GB/s]",
            bandwidth,
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
