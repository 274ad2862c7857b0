//! Figure 2: throughput and misses of the RNIC's caches against the number of queue pairs, without Weir.

use headworks::verbs::Duration;

use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::nic::loaded::{Load, Verb};
use crate::outcome::{Grid, Outcome};
use crate::report::csv::Table;
use crate::report::human;
use crate::report::svg::{Axis, Figure, Series};
use crate::runner::RunError;
use crate::stats::Spread;

use super::paper;
use super::point::{DEPTH, DROP, MISSES, NOTE, PAIRS, Point};

/// The experiment.
#[derive(Debug)]
pub struct Fig2;

/// Bytes of a message.
const SIZE: usize = 512;
/// Queue pairs of all processes together.
const QUEUE_PAIRS: &[usize] = &[8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
/// Those of a quick run.
const QUICK_QUEUE_PAIRS: &[usize] = &[64, 128, 256, 2048, 4096];
/// Not measured, and measured.
const TIMES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(5));
/// So many misses of a request are some; fewer are those of what is seen for the first time.
const MISSING: f64 = 0.01;

static ABOUT: About = About {
    name: "weir-fig2",
    line: "Throughput of an RNIC, and misses of its caches, against the number of queue pairs.",
    measures: "Eight processes on each of two servers SEND messages of 512 B, 128 outstanding of each queue \
               pair, over 8 to 16,384 queue pairs: throughput, and misses of the sending RNIC's caches.",
    paper: Some(paper("Figure 2")),
    keys: &[
        "drop_begins_at_queue_pairs",
        "no_icm_misses_up_to_queue_pairs",
        "highest_gbit_per_s",
        "lowest_over_highest",
    ],
    paper_values: &[
        ("drop_begins_at_queue_pairs", 128.0),
        ("no_icm_misses_up_to_queue_pairs", 2048.0),
    ],
    replays: false,
};

impl Experiment for Fig2 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn kind(&self) -> Option<&'static str> {
        Some(headworks::sim::KIND)
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = bench.outcome(format!(
            "{PAIRS} sending processes on one host, {PAIRS} receiving on the other, each on a simulated core"
        ));
        let queue_pairs = match bench.options.quick {
            true => QUICK_QUEUE_PAIRS,
            false => QUEUE_PAIRS,
        };
        let label = |queue_pairs: &usize| format!("{queue_pairs} queue pairs");
        let measured = bench.alternate_arms(
            queue_pairs,
            |queue_pairs| *queue_pairs,
            label,
            |bench, queue_pairs| {
                Point::sample(&bench.place, load(bench.perftest_ns()), *queue_pairs, TIMES)
            },
        )?;
        outcome.repeats = 1;
        let points: Vec<_> = measured
            .samples
            .into_iter()
            .filter_map(|samples| samples.first().copied().flatten())
            .collect();
        for (queue_pairs, why) in measured.failures {
            outcome
                .notes
                .push(format!("{queue_pairs} queue pairs: {why}"));
        }
        outcome.notes.push(NOTE.into());
        record(&mut outcome, &points);
        Ok(outcome)
    }
}

/// As many requests of each queue pair as perftest's default has.
fn load(work_ns: u64) -> Load {
    Load {
        depth: DEPTH,
        work_ns,
        ..Load::of(Verb::Send, SIZE)
    }
}

fn record(outcome: &mut Outcome, points: &[Point]) {
    let columns = ["queue pairs", "throughput [Gbit/s]"];
    let mut table = Table::new(&[&columns[..], &MISSES.map(|kind| kind.column)].concat());
    for point in points {
        let mut row = vec![(point.queue_pairs as f64).into(), point.gbit_per_s.into()];
        row.extend(point.cells());
        table.push(row);
    }
    outcome.grids.push(grid(points));
    outcome.points = table;
    let none = "nothing was measured";
    let rates = || points.iter().map(|point| point.gbit_per_s);
    let highest = rates().max_by(f64::total_cmp);
    let lowest = rates().min_by(f64::total_cmp);
    // What is less at fewer queue pairs than the most is no drop.
    let drop = highest.and_then(|highest| {
        let from = points.iter().skip_while(|point| point.gbit_per_s < highest);
        let mut low = from.filter(|point| point.gbit_per_s < DROP * highest);
        low.next().map(|point| point.queue_pairs as f64)
    });
    let missing = |point: &&Point| point.misses.is_some_and(|misses| misses.icm >= MISSING);
    let held = points.iter().take_while(|point| !missing(point));
    let held = held.last().map(|point| point.queue_pairs as f64);
    let one = |value: f64| Spread::of(&[value]);
    let none_drops = "there is no drop";
    outcome.measured_or("drop_begins_at_queue_pairs", drop.and_then(one), none_drops);
    let always = "contexts are missing from the first point on";
    let why = if points.is_empty() { none } else { always };
    outcome.measured_or("no_icm_misses_up_to_queue_pairs", held.and_then(one), why);
    outcome.measured_or("highest_gbit_per_s", highest.and_then(one), none);
    let over = highest
        .zip(lowest)
        .map(|(highest, lowest)| lowest / highest);
    outcome.measured_or("lowest_over_highest", over.and_then(one), none);
    outcome.figures = figures(points);
}

/// The points, for people.
fn grid(points: &[Point]) -> Grid {
    let row = |point: &Point| {
        let misses = MISSES.map(|kind| {
            let misses = point.misses.as_ref();
            misses.map_or_else(String::new, |misses| human((kind.of)(misses)))
        });
        let first = [point.queue_pairs.to_string(), human(point.gbit_per_s)];
        [&first[..], &misses[..]].concat()
    };
    let names = MISSES.map(|kind| format!("{} misses each request", kind.name));
    let first = ["queue pairs", "Gbit/s"].map(String::from);
    Grid {
        title: "Throughput and misses (simulated)".into(),
        header: [&first[..], &names[..]].concat(),
        rows: points.iter().map(row).collect(),
    }
}

fn figures(points: &[Point]) -> Vec<Figure> {
    let at = |point: &Point| point.queue_pairs as f64;
    let rates = points.iter().map(|point| (at(point), point.gbit_per_s));
    let misses = MISSES.map(|kind| Series {
        name: kind.name.into(),
        points: points
            .iter()
            .filter_map(|point| Some((at(point), (kind.of)(&point.misses?))))
            .collect(),
    });
    let figure = |file: &str, title: &str, y: &str, series| Figure {
        file: file.into(),
        title: title.into(),
        x: Axis::log("queue pairs"),
        y: Axis::linear(y),
        series,
    };
    let throughput = vec![Series {
        name: format!("SEND {SIZE} B, depth {DEPTH}"),
        points: rates.collect(),
    }];
    vec![
        figure(
            "throughput.svg",
            "Throughput against queue pairs",
            "throughput [Gbit/s]",
            throughput,
        ),
        figure(
            "misses.svg",
            "Misses of the sending RNIC's caches against queue pairs",
            "misses each request",
            misses.to_vec(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::weir::point::Misses;

    fn point(queue_pairs: usize, gbit_per_s: f64, icm: f64) -> Point {
        let (mtt, mpt, wqe) = (0.25, 0.5, 0.75);
        Point {
            queue_pairs,
            gbit_per_s,
            misses: Some(Misses { icm, mtt, mpt, wqe }),
        }
    }

    #[test]
    fn misses_have_columns_of_their_own() {
        let mut outcome = Outcome::default();
        record(&mut outcome, &[point(8, 50.0, 0.0)]);
        let text = outcome.points.to_csv();
        assert_eq!(text.lines().last(), Some("8,50,0,0.25,0.5,0.75"), "{text}");
    }

    /// With caches so small that few queue pairs are too many.
    fn simulated(seed: u64) -> Vec<Point> {
        use crate::simulated::Simulated;
        let device = format!("sim:cx6-100g,seed={seed}").parse().unwrap();
        let set = [
            "nic.icm=32",
            "nic.mtt=16",
            "nic.mpt=16",
            "nic.wqe_cache=128",
        ];
        let set = set.map(|setting| setting.parse().unwrap());
        let machines = Simulated::on(&device, &set, None).unwrap().unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let times = (Duration::from_micros(50), Duration::from_micros(300));
        let measured = [PAIRS, 16 * PAIRS].map(|queue_pairs| {
            let point = Point::sample(&machines.place(&stop), load(100), queue_pairs, times);
            point.unwrap().expect("a rate")
        });
        measured.to_vec()
    }

    #[test]
    fn misses_come_with_queue_pairs_and_the_same_seed_has_the_same() {
        let one = simulated(1);
        assert_eq!(one, simulated(1));
        // Which context goes is chance.
        assert_ne!(one, simulated(2));
        let (few, many) = (one[0].misses.unwrap(), one[1].misses.unwrap());
        for kind in [MISSES[0], MISSES[1], MISSES[3]] {
            let more = (kind.of)(&many) > (kind.of)(&few);
            assert!(more, "{}: {one:?}", kind.name);
        }
        assert!(one[1].gbit_per_s < one[0].gbit_per_s, "{one:?}");
    }

    #[test]
    fn a_drop_and_misses_begin_where_they_do() {
        let mut outcome = Outcome::default();
        let points = [
            point(64, 90.0, 0.0),
            point(128, 96.0, 0.004),
            point(256, 95.0, 0.2),
            point(512, 70.0, 0.0),
        ];
        record(&mut outcome, &points);
        let found = |key: &str| outcome.ratios()[key].median;
        assert_eq!(found("drop_begins_at_queue_pairs"), 512.0);
        assert_eq!(found("no_icm_misses_up_to_queue_pairs"), 128.0);
        assert_eq!(found("highest_gbit_per_s"), 96.0);
        assert!(outcome.undeclared(ABOUT.keys).is_empty());
        let files: Vec<_> = outcome
            .figures
            .iter()
            .map(|figure| figure.file.as_str())
            .collect();
        assert_eq!(files, ["throughput.svg", "misses.svg"]);
        for figure in &outcome.figures {
            figure.to_svg().expect("a figure");
        }
        assert!(outcome.grids[0].title.contains("simulated"));
    }

    #[test]
    fn what_was_not_measured_is_skipped_key_by_key() {
        let mut outcome = Outcome::default();
        record(&mut outcome, &[]);
        let all: Vec<_> = outcome.skipped().keys().collect();
        assert_eq!((all.len(), outcome.ratios().len()), (ABOUT.keys.len(), 0));
    }
}
