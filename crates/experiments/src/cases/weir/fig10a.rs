//! Figure 10(a): where the delay settles, by the base delay that pacing compares it with.

use super::arm::{self, Probed};
use super::paper;
use super::timeline::{self, COLUMNS, Moment, Shape};
use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::{Grid, Outcome};
use crate::report::csv::Table;
use crate::report::human;
use crate::report::svg::{Axis, Figure};
use crate::runner::RunError;
use crate::stats::Spread;
use crate::transports::ArmError;

/// The experiment.
#[derive(Debug)]
pub struct Fig10a;

/// Base delays, as multiples of what is measured.
const TIMES: [u64; 4] = [1, 2, 4, 8];
/// One delay is as the other up to this part of it.
const SAME: f64 = 0.05;

static ABOUT: About = About {
    name: "weir-fig10a",
    line: "Where the delay of paced requests settles, by the base delay that pacing is told.",
    measures: "Eight processes SEND messages of 512 B over 1,024 queue pairs (256 in a quick run), 128 outstanding of \
               each, with paced doorbells, against the base delay that was measured, and twice, four and eight times \
               that: the delay that the pacing finds, every 50 µs.",
    paper: Some(paper("Figure 10(a)")),
    keys: &[
        "settled_delay_us_x1",
        "settled_delay_us_x2",
        "settled_delay_us_x4",
        "settled_delay_us_x8",
        "settled_gbps_x1",
        "settled_gbps_x2",
        "settled_gbps_x4",
        "settled_gbps_x8",
        "delay_grows_with_base",
    ],
    paper_values: &[],
    replays: false,
};

impl Experiment for Fig10a {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn kind(&self) -> Option<&'static str> {
        Some(headworks::sim::KIND)
    }

    fn paces(&self) -> bool {
        true
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = bench.outcome(arm::PINNING.to_owned());
        let probed = bench.once("base delay", arm::base_delay)?;
        let shape = Shape::new(bench.options.quick, bench.perftest_ns());
        let measured = bench.alternate_arms(
            &TIMES,
            |times| *times,
            |times| name(*times),
            |bench, times| {
                let probed = probed.as_ref().map_err(|why| ArmError(why.0.clone()))?;
                let base = probed.times(*times);
                timeline::measure(&bench.place, shape, base, "").map(Some)
            },
        )?;
        outcome.repeats = 1;
        for (times, why) in measured.failures {
            outcome.notes.push(format!("{}: {why}", name(times)));
        }
        outcome.notes.extend(probed.ok().map(Probed::note));
        let arms = measured.samples.into_iter();
        let arms: Vec<_> = arms
            .map(|samples| samples.into_iter().flatten().next().unwrap_or_default())
            .collect();
        record(&mut outcome, &arms);
        Ok(outcome)
    }
}

fn name(times: u64) -> String {
    format!("base delay x{times}")
}

/// Everything from the moments by arm; none of an arm that was not measured.
fn record(outcome: &mut Outcome, arms: &[Vec<Moment>]) {
    let of = |index: usize| arms.get(index).map(Vec::as_slice).unwrap_or_default();
    let none = "nothing was measured";
    let mut table = Table::new(&[&["base delay [measured ones]"][..], &COLUMNS].concat());
    let mut rows = Vec::new();
    let mut delays = Vec::new();
    for (index, times) in TIMES.into_iter().enumerate() {
        let moments = of(index);
        for moment in moments {
            let mut row = vec![(times as f64).into()];
            row.extend(moment.cells());
            table.push(row);
        }
        let delay = timeline::settled_at(moments, Moment::delay_us);
        let delivered = timeline::settled_at(moments, |moment| moment.gbit_per_s);
        rows.extend(delay.zip(delivered).map(|(delay, delivered)| {
            let span = format!("{} to {}", human(delay.low), human(delay.high));
            vec![
                name(times),
                human(delay.median),
                span,
                human(delivered.median),
            ]
        }));
        outcome.measured_or(&format!("settled_delay_us_x{times}"), delay, none);
        outcome.measured_or(&format!("settled_gbps_x{times}"), delivered, none);
        delays.push(delay.map(|delay| delay.median));
    }
    let ends = delays.first().copied().flatten();
    let ends = ends.zip(delays.last().copied().flatten());
    let grows = ends.and_then(|(first, last)| Spread::of(&[last / first]));
    outcome.measured_or("delay_grows_with_base", grows, none);
    outcome.points = table;
    outcome.arms = vec![arm::Arm::Paced.note()];
    let header = [
        "arm",
        "delay, median [µs]",
        "lowest to highest [µs]",
        "delivered as the port counts [Gbit/s]",
    ];
    outcome.grids.push(Grid {
        title: "The second half of the time (simulated)".into(),
        header: header.map(String::from).to_vec(),
        rows,
    });
    outcome.grids.extend(statement(&delays));
    let series = TIMES.into_iter().enumerate();
    let series =
        series.map(|(index, times)| timeline::series(&name(times), of(index), Moment::delay_us));
    outcome.figures.push(Figure {
        file: "delay.svg".into(),
        title: "Delay of paced requests against time, by base delay".into(),
        x: Axis::linear("time [ms]"),
        y: Axis::linear("delay [µs]"),
        series: series.collect(),
    });
}

/// What the text says of the figure, beside what came of it here.
fn statement(delays: &[Option<f64>]) -> Option<Grid> {
    let delays: Option<Vec<f64>> = delays.iter().copied().collect();
    let delays = delays.filter(|delays| !delays.is_empty())?;
    let rises = delays
        .windows(2)
        .all(|pair| pair[1] > pair[0] * (1.0 + SAME));
    let said: Vec<_> = delays.iter().map(|delay| human(*delay)).collect();
    let holds = if rises { "yes" } else { "no" };
    Some(Grid {
        title: "What the paper says of it".into(),
        header: ["paper", "ours (simulated)", "the same"]
            .map(String::from)
            .to_vec(),
        rows: vec![vec![
            "the larger the base delay, the higher where the cache's occupancy, by the delay, settles (V-C)".into(),
            format!("{} µs", said.join(", ")),
            holds.into(),
        ]],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::rb2::tests::assert_skipped;
    use crate::cases::weir::timeline::tests::told;

    #[test]
    fn what_was_not_measured_is_skipped_key_by_key() {
        for nothing in [vec![], vec![Vec::new(); 4]] {
            let mut outcome = Outcome::default();
            record(&mut outcome, &nothing);
            assert_skipped(&ABOUT, &outcome);
        }
    }

    #[test]
    fn delays_are_those_of_the_second_half() {
        let arm = |delay| told(&[(100.0, 50.0), (90.0, 1.0), (80.0, delay), (80.0, delay)]);
        let mut outcome = Outcome::default();
        record(&mut outcome, &[arm(3.0), arm(6.0), arm(9.0), arm(12.0)]);
        let found = |key: &str| outcome.ratios()[key].median;
        assert_eq!(found("settled_delay_us_x1"), 3.0);
        assert_eq!(found("settled_gbps_x8"), 80.0);
        assert_eq!(found("delay_grows_with_base"), 4.0);
        assert_eq!(outcome.grids[1].rows[0][2], "yes");
        assert_eq!(outcome.points.len(), 16);
        assert!(outcome.undeclared(ABOUT.keys).is_empty());
        let mut outcome = Outcome::default();
        record(&mut outcome, &[arm(3.0), arm(6.0), arm(6.1), arm(12.0)]);
        assert_eq!(outcome.grids[1].rows[0][2], "no");
    }
}
