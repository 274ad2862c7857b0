//! Figure 4: from the doorbell to the completion of each request in a batch, by size.

use headworks::verbs::Duration;

use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::latency::Quantiles;
use crate::nic::batches::Batches;
use crate::nic::loaded::{Load, Verb};
use crate::outcome::{ArmNote, Grid, Outcome};
use crate::report::csv::Table;
use crate::report::human;
use crate::report::svg::{Axis, Figure, Series};
use crate::runner::RunError;
use crate::stats::Spread;
use crate::transports::ArmError;

use super::paper;

/// The experiment.
#[derive(Debug)]
pub struct Fig4;

/// Requests of a batch, and the pause behind it (section III-C).
pub(crate) const BATCH: usize = 100;
/// In nanoseconds.
pub(crate) const PAUSE_NS: u64 = 1_000_000;
/// Bytes of a message.
const SIZES: [usize; 3] = [64, 4096, 8192];
/// Some twenty batches, after one or two that find nothing on the chip.
const WARM: Duration = Duration::from_millis(2);
const RUN: Duration = Duration::from_millis(20);
/// The last request of a batch takes so many times as long as the first, and no more, where the delay is stable.
const STABLE: f64 = 1.15;

static ABOUT: About = About {
    name: "weir-fig4",
    line: "From the doorbell to the completion of each request in a batch, by size: what queues on an RNIC.",
    measures: "One process SENDs 100 messages of 64 B, 4 KiB or 8 KiB on one queue pair as fast as it can, each with a \
               doorbell of its own, pauses for 1 ms, and begins again: the time from each request's doorbell to its \
               polled completion.",
    paper: Some(paper("Figure 4")),
    keys: &[
        "delay64_first_us",
        "delay64_last_us",
        "delay4k_first_us",
        "delay4k_last_us",
        "delay8k_first_us",
        "delay8k_last_us",
        "last_over_first_64",
        "last_over_first_4k",
        "last_over_first_8k",
        "growth_8k_over_growth_4k",
        "first_8k_slowest_batch_over_median",
    ],
    paper_values: &[],
    replays: false,
};

impl Experiment for Fig4 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn kind(&self) -> Option<&'static str> {
        Some(headworks::sim::KIND)
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome =
            bench.outcome("one sending process on a core, one receiving on another host".into());
        let measured = bench.alternate_arms(
            &SIZES,
            |size| *size,
            |size| format!("{size} B"),
            |bench, size| sample(bench, *size).map(Some),
        )?;
        outcome.repeats = 1;
        for (size, why) in measured.failures {
            outcome.notes.push(format!("{size} B: {why}"));
        }
        let delays = measured.samples.into_iter().map(|samples| {
            let first = samples.into_iter().flatten().next();
            first.unwrap_or_default()
        });
        record(&mut outcome, &delays.collect::<Vec<_>>());
        Ok(outcome)
    }
}

fn sample(bench: &Bench<'_>, size: usize) -> Result<Vec<Quantiles>, ArmError> {
    let batches = Batches {
        load: Load {
            depth: BATCH,
            work_ns: bench.perftest_ns(),
            ..Load::of(Verb::Send, size)
        },
        pause_ns: PAUSE_NS,
    };
    batches.delays(&bench.place, (WARM, RUN))
}

/// What a size is called in keys.
fn name(size: usize) -> String {
    match size {
        1024.. => format!("{}k", size / 1024),
        _ => size.to_string(),
    }
}

/// The first request of a batch and the last, in microseconds.
fn ends(delays: &[Quantiles]) -> Option<(f64, f64)> {
    let (first, last) = (delays.first()?, delays.last()?);
    Some((first.p50_ns * 1e-3, last.p50_ns * 1e-3))
}

/// Everything from the delays by size and request; none of a size that was not measured.
fn record(outcome: &mut Outcome, delays: &[Vec<Quantiles>]) {
    let of = |index: usize| delays.get(index).map(Vec::as_slice).unwrap_or_default();
    let none = "nothing was measured";
    let one = |value: f64| Spread::of(&[value]);
    let all: Vec<_> = (0..SIZES.len()).map(|index| ends(of(index))).collect();
    for (size, ends) in SIZES.into_iter().zip(&all) {
        let (size, ends) = (name(size), *ends);
        let first = ends.and_then(|(first, _)| one(first));
        outcome.measured_or(&format!("delay{size}_first_us"), first, none);
        let last = ends.and_then(|(_, last)| one(last));
        outcome.measured_or(&format!("delay{size}_last_us"), last, none);
        let ratio = ends.and_then(|(first, last)| one(last / first));
        outcome.measured_or(&format!("last_over_first_{size}"), ratio, none);
    }
    let growth = |index: usize| all[index].map(|(first, last)| last - first);
    let faster = growth(2)
        .zip(growth(1))
        .and_then(|(large, small)| one(large / small));
    outcome.measured_or("growth_8k_over_growth_4k", faster, none);
    let drained = of(2)
        .first()
        .and_then(|first| one(first.max_ns / first.p50_ns));
    outcome.measured_or("first_8k_slowest_batch_over_median", drained, none);
    outcome.arms = vec![ArmNote {
        name: "SEND".into(),
        what: "100 requests of one queue pair, each posted by a call of its own and signalled; between two posts the \
               program looks for completions once, and takes the constant cpu.bench. The paper does not say which \
               verb: perftest's SENDs, as in its evaluation"
            .into(),
        waiting: "poll",
        copies: "0".into(),
    }];
    table(outcome, delays);
    statements(outcome, &all, drained);
    outcome.figures.push(Figure {
        file: "delay.svg".into(),
        title: "From doorbell to completion, by request in a batch".into(),
        x: Axis::linear("request in the batch"),
        y: Axis::linear("delay [µs]"),
        series: SIZES
            .into_iter()
            .enumerate()
            .map(|(index, size)| Series {
                name: format!("{size} B"),
                points: (1..)
                    .zip(of(index))
                    .map(|(at, each)| (f64::from(at), each.p50_ns * 1e-3))
                    .collect(),
            })
            .collect(),
    });
}

fn table(outcome: &mut Outcome, delays: &[Vec<Quantiles>]) {
    let mut table = Table::new(&[
        "size [B]",
        "request in the batch",
        "delay, median of all batches [µs]",
        "delay, longest [µs]",
        "batches",
    ]);
    for (size, delays) in SIZES.into_iter().zip(delays) {
        for (at, each) in (1..).zip(delays) {
            let figures = [
                size as f64,
                f64::from(at),
                each.p50_ns * 1e-3,
                each.max_ns * 1e-3,
                each.count as f64,
            ];
            table.push(figures.map(Into::into).to_vec());
        }
    }
    outcome.points = table;
}

/// What the text says of the figure, beside what came of it here.
fn statements(outcome: &mut Outcome, ends: &[Option<(f64, f64)>], drained: Option<Spread>) {
    let [Some(tiny), Some(small), Some(large)] = *ends else {
        return;
    };
    let Some(drained) = drained else {
        return;
    };
    let span = |(first, last): (f64, f64)| format!("{} to {} µs", human(first), human(last));
    let grows = |(first, last): (f64, f64)| last > first * STABLE;
    let row = |says: &str, ours: String, holds: bool| {
        let holds = if holds { "yes" } else { "no" };
        vec![says.to_owned(), ours, holds.to_owned()]
    };
    outcome.grids.push(Grid {
        title: "What the paper says of it".into(),
        header: ["paper (III-C)", "ours (simulated)", "the same"]
            .map(String::from)
            .to_vec(),
        rows: vec![
            row(
                "4 KB and 8 KB: the time grows continuously within a batch of 100",
                format!("4 KiB {}; 8 KiB {}", span(small), span(large)),
                grows(small) && grows(large),
            ),
            row(
                "8 KB grows faster, as it takes longer to serialise",
                format!(
                    "8 KiB by {} µs, 4 KiB by {} µs",
                    human(large.1 - large.0),
                    human(small.1 - small.0)
                ),
                large.1 - large.0 > small.1 - small.0,
            ),
            row(
                "64 B: one core does not reach the line rate, the time remains stable",
                span(tiny),
                !grows(tiny),
            ),
            row(
                "after a pause of 1 ms it increases again from the smaller value: the batch before is consumed",
                format!(
                    "the last of 8 KiB ends after {} µs, and the first takes at most {} times its median",
                    human(large.1),
                    human(drained.median)
                ),
                large.1 * 1e3 < PAUSE_NS as f64 && drained.median < STABLE,
            ),
        ],
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::rb2::tests::assert_skipped;

    #[test]
    fn what_was_not_measured_is_skipped_key_by_key() {
        for nothing in [vec![], vec![Vec::new(); 3]] {
            let mut outcome = Outcome::default();
            record(&mut outcome, &nothing);
            assert_skipped(&ABOUT, &outcome);
        }
    }

    /// Delays that begin at `first` and grow by `each`, in microseconds.
    fn grown(first: f64, each: f64) -> Vec<Quantiles> {
        let at = |index: u32| (first + each * f64::from(index)) * 1e3;
        let delay = |index| Quantiles {
            count: 20,
            p50_ns: at(index),
            max_ns: at(index) * 1.01,
            ..Quantiles::default()
        };
        (0..BATCH as u32).map(delay).collect()
    }

    fn said(delays: &[Vec<Quantiles>]) -> Vec<String> {
        let mut outcome = Outcome::default();
        record(&mut outcome, delays);
        assert_eq!(outcome.points.len(), SIZES.len() * BATCH);
        let rows = &outcome.grids[0].rows;
        rows.iter().map(|row| row[2].clone()).collect()
    }

    #[test]
    fn every_statement_is_judged_by_itself() {
        let (flat, small, large) = (grown(2.0, 0.0), grown(3.0, 0.1), grown(4.0, 0.5));
        let as_said = [flat.clone(), small.clone(), large.clone()];
        assert_eq!(said(&as_said), ["yes"; 4]);
        assert_eq!(
            said(&[large.clone(), small.clone(), large.clone()])[2],
            "no"
        );
        assert_eq!(said(&[flat.clone(), large.clone(), small.clone()])[1], "no");
        assert_eq!(said(&[flat.clone(), flat.clone(), large.clone()])[0], "no");
        let mut slow = large;
        slow[0].max_ns *= 2.0;
        assert_eq!(said(&[flat.clone(), small.clone(), slow])[3], "no");
        // Not over when the next batch is due.
        assert_eq!(said(&[flat, small, grown(4.0, 20.0)])[3], "no");
    }
}
