//! Figure 11(a): what pacing makes of the time that flows take, by the size of messages.

use headworks::verbs::Duration;

use super::arm::{self, Arm, Probed};
use super::paper;
use super::point::PAIRS;
use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::nic::flows::Flows;
use crate::nic::loaded::{Load, Verb};
use crate::nic::pingpong::half_round_trip;
use crate::outcome::{Grid, Outcome};
use crate::report::csv::Table;
use crate::report::human;
use crate::report::svg::{Axis, Figure, Series};
use crate::runner::RunError;
use crate::stats::{Spread, median};
use crate::transports::ArmError;
use crate::world::Place;

/// The experiment.
#[derive(Debug)]
pub struct Fig11a;

/// Bytes of a message.
const SIZES: [usize; 7] = [128, 256, 512, 1024, 4096, 16384, 65536];
/// Requests of a flow, of each process.
const REQUESTS: usize = 1000;
/// Queue pairs of a process.
const QUEUE_PAIRS: usize = 8;
/// Bytes of a message that goes there and back.
const BALL: usize = 512;
/// Not measured, and measured.
const TIMES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(5));
const QUICK_TIMES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(1));
/// Of what has the link for itself.
const ALONE: (Duration, Duration) = (Duration::from_micros(100), Duration::from_micros(500));
/// Flows that differ by no more take essentially the same.
const SAME: f64 = 0.05;
/// A round trip that nothing limits is to take no more than this.
const FREE: f64 = 1.03;

static ABOUT: About = About {
    name: "weir-fig11a",
    line: "What pacing makes of the time that flows, single requests and round trips take, by size.",
    measures: "Flows of 1,000 SENDs over eight queue pairs, 128 outstanding of each, of eight processes that do one \
               flow after the other, from the first doorbell until all have ended; single SENDs of one process; a \
               ping-pong of 512 B: the median of each, paced over plain, 128 B to 64 KiB.",
    paper: Some(paper("Figure 11(a)")),
    keys: &[
        "fct_paced_over_plain_128",
        "fct_paced_over_plain_256",
        "fct_paced_over_plain_512",
        "fct_paced_over_plain_1k",
        "fct_paced_over_plain_4k",
        "fct_paced_over_plain_16k",
        "fct_paced_over_plain_64k",
        "single_paced_over_plain_128",
        "single_paced_over_plain_256",
        "single_paced_over_plain_512",
        "single_paced_over_plain_1k",
        "single_paced_over_plain_4k",
        "single_paced_over_plain_16k",
        "single_paced_over_plain_64k",
        "pingpong_paced_over_plain",
    ],
    paper_values: &[],
    replays: false,
};

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timed {
    /// Flows of all processes.
    Flow(usize),
    /// One request at a time.
    Single(usize),
    /// There and back.
    PingPong,
}

impl Timed {
    fn all() -> Vec<Self> {
        let flows = SIZES.map(Self::Flow);
        let singles = SIZES.map(Self::Single);
        [&flows[..], &singles, &[Self::PingPong]].concat()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Flow(_) => "flow",
            Self::Single(_) => "single request",
            Self::PingPong => "ping-pong, one way",
        }
    }

    fn size(self) -> usize {
        match self {
            Self::Flow(size) | Self::Single(size) => size,
            Self::PingPong => BALL,
        }
    }

    fn key(self) -> String {
        let word = |size: usize| match size {
            1024.. => format!("{}k", size / 1024),
            _ => size.to_string(),
        };
        match self {
            Self::Flow(size) => format!("fct_paced_over_plain_{}", word(size)),
            Self::Single(size) => format!("single_paced_over_plain_{}", word(size)),
            Self::PingPong => "pingpong_paced_over_plain".into(),
        }
    }
}

/// What compares.
const ARMS: [Arm; 2] = [Arm::PLAIN, Arm::Paced];

impl Experiment for Fig11a {
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
        let times = match bench.options.quick {
            true => QUICK_TIMES,
            false => TIMES,
        };
        let all = Timed::all();
        let all: Vec<_> = all
            .iter()
            .flat_map(|timed| ARMS.map(|arm| (*timed, arm)))
            .collect();
        let label =
            |(timed, arm): &(Timed, Arm)| format!("{} of {} B, {arm}", timed.name(), timed.size());
        let measured = bench.alternate_arms(
            &all,
            |point| *point,
            label,
            |bench, (timed, arm)| {
                let probed = probed.as_ref().map_err(|why| ArmError(why.0.clone()))?;
                // Both ends of a ping-pong send.
                let place = arm.place(&bench.place, &[0, 1], *probed)?;
                sample(&place, *timed, *arm, bench.perftest_ns(), times)
            },
        )?;
        outcome.repeats = 1;
        for (point, why) in measured.failures {
            outcome.notes.push(format!("{}: {why}", label(&point)));
        }
        outcome.notes.extend(probed.ok().map(Probed::note));
        outcome.arms = ARMS.map(Arm::note).to_vec();
        let found = all.iter().zip(measured.samples);
        let found: Vec<_> = found
            .filter_map(|((timed, arm), samples)| {
                Some((*timed, *arm, samples.into_iter().flatten().next()?))
            })
            .collect();
        record(&mut outcome, &found);
        Ok(outcome)
    }
}

/// Nanoseconds: the median, of flows that of the processes' medians.
fn sample(
    place: &Place<'_>,
    timed: Timed,
    arm: Arm,
    work_ns: u64,
    times: (Duration, Duration),
) -> Result<Option<f64>, ArmError> {
    let load = Load {
        work_ns,
        ..Load::of(Verb::Send, timed.size())
    };
    let load = arm.load(load);
    let one_at_a_time = Load { depth: 1, ..load };
    match timed {
        Timed::Flow(_) => {
            let flows = Flows {
                load: Load {
                    queue_pairs: QUEUE_PAIRS,
                    ..load
                },
                requests: REQUESTS,
            };
            let found = flows.times(place, PAIRS, times)?;
            let medians: Vec<f64> = found.iter().map(|found| found.p50_ns).collect();
            Ok(median(&medians))
        }
        Timed::Single(_) => {
            let flows = Flows {
                load: one_at_a_time,
                requests: 1,
            };
            let found = flows.times(place, 1, ALONE)?;
            Ok(found.first().map(|found| found.p50_ns))
        }
        Timed::PingPong => {
            let found = half_round_trip(&one_at_a_time, place, ALONE)?;
            Ok(found.map(|found| found.p50_ns))
        }
    }
}

/// Nanoseconds by what was timed and by arm.
type Found = [(Timed, Arm, f64)];

fn of(found: &Found, timed: Timed, arm: Arm) -> Option<f64> {
    let mut found = found.iter();
    let found = found.find(|(what, how, _)| (*what, *how) == (timed, arm));
    found.map(|(.., nanos)| *nanos)
}

fn ratio(found: &Found, timed: Timed) -> Option<f64> {
    Some(of(found, timed, Arm::Paced)? / of(found, timed, Arm::PLAIN)?)
}

fn record(outcome: &mut Outcome, found: &Found) {
    let mut table = Table::new(&["what", "size [B]", "arm", "median [µs]"]);
    for (timed, arm, nanos) in found {
        table.push(vec![
            timed.name().into(),
            (timed.size() as f64).into(),
            arm.to_string().as_str().into(),
            (nanos * 1e-3).into(),
        ]);
    }
    outcome.points = table;
    let mut rows = Vec::new();
    for timed in Timed::all() {
        let ratio = ratio(found, timed);
        let spread = ratio.and_then(|ratio| Spread::of(&[ratio]));
        outcome.measured_or(&timed.key(), spread, "nothing was measured");
        let micros = ARMS.map(|arm| of(found, timed, arm).map(|nanos| human(nanos * 1e-3)));
        if let ([Some(plain), Some(paced)], Some(ratio)) = (micros, ratio) {
            let size = timed.size().to_string();
            rows.push(vec![timed.name().into(), size, plain, paced, human(ratio)]);
        }
    }
    let header = ["what", "B", "plain [µs]", "paced [µs]", "paced over plain"];
    outcome.grids.push(Grid {
        title: "Medians (simulated)".into(),
        header: header.map(String::from).to_vec(),
        rows,
    });
    outcome.grids.extend(statements(found));
    outcome.figures.push(figure(found));
}

/// What is said of them, beside what came of it here.
fn statements(found: &Found) -> Option<Grid> {
    let flows = SIZES.iter().filter_map(|size| {
        let ratio = ratio(found, Timed::Flow(*size))?;
        Some((*size, ratio))
    });
    let flows: Vec<_> = flows.collect();
    let off = |ratio: f64| (ratio - 1.0).abs();
    let most = flows
        .iter()
        .max_by(|one, other| off(one.1).total_cmp(&off(other.1)));
    let (size, ratio_of_flows) = *most?;
    let ball = ratio(found, Timed::PingPong)?;
    let row = |says: &str, ours: String, holds: bool| {
        let holds = if holds { "yes" } else { "no" };
        vec![says.to_owned(), ours, holds.to_owned()]
    };
    Some(Grid {
        title: "What is said of it".into(),
        header: ["said", "ours (simulated)", "the same"]
            .map(String::from)
            .to_vec(),
        rows: vec![
            row(
                "the paper (V-D): flows take essentially the same with pacing",
                format!("{} times at most, of {size} B", human(ratio_of_flows)),
                off(ratio_of_flows) <= SAME,
            ),
            row(
                "our own bar: a round trip that nothing limits takes 3 % more at most",
                format!("{} times", human(ball)),
                ball <= FREE,
            ),
        ],
    })
}

fn figure(found: &Found) -> Figure {
    let line = |arm: Arm, name: &str, timed: fn(usize) -> Timed| {
        let points = SIZES.iter().filter_map(|size| {
            let nanos = of(found, timed(*size), arm)?;
            Some((*size as f64, nanos * 1e-3))
        });
        Series {
            name: format!("{name}, {arm}"),
            points: points.collect(),
        }
    };
    Figure {
        file: "fct.svg".into(),
        title: "Flows of 1,000 requests and single requests, by size".into(),
        x: Axis::log("size [B]"),
        y: Axis::log("completion time [µs]"),
        series: vec![
            line(Arm::PLAIN, "flow", Timed::Flow),
            line(Arm::Paced, "flow", Timed::Flow),
            line(Arm::PLAIN, "single", Timed::Single),
            line(Arm::Paced, "single", Timed::Single),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::rb2::tests::assert_skipped;
    use crate::simulated::Simulated;

    #[test]
    fn what_was_not_measured_is_skipped_key_by_key() {
        let mut outcome = Outcome::default();
        record(&mut outcome, &[]);
        assert_skipped(&ABOUT, &outcome);
        let keys: Vec<_> = Timed::all().into_iter().map(Timed::key).collect();
        assert_eq!(keys, ABOUT.keys);
    }

    #[test]
    fn flows_and_round_trips_are_judged_apart() {
        let all = |flow: f64, ball: f64| {
            let of = |timed| match timed {
                Timed::Flow(1024) => flow,
                Timed::PingPong => ball,
                _ => 1.0,
            };
            let found = Timed::all().into_iter().flat_map(|timed| {
                [
                    (timed, Arm::PLAIN, 2e3),
                    (timed, Arm::Paced, 2e3 * of(timed)),
                ]
            });
            let mut outcome = Outcome::default();
            record(&mut outcome, &found.collect::<Vec<_>>());
            assert!(outcome.skipped().is_empty());
            outcome
        };
        let said = |outcome: &Outcome| {
            let rows = outcome.grids[1].rows.iter();
            rows.map(|row| row[2].clone()).collect::<Vec<_>>()
        };
        let outcome = all(1.04, 1.01);
        assert_eq!(said(&outcome), ["yes", "yes"]);
        assert_eq!(outcome.ratios()["fct_paced_over_plain_1k"].median, 1.04);
        assert_eq!(outcome.points.len(), 30);
        assert_eq!(said(&all(0.9, 1.01)), ["no", "yes"]);
        assert_eq!(said(&all(1.0, 1.04)), ["yes", "no"]);
    }

    #[test]
    fn what_pacing_costs_a_single_request_is_little_and_comes_out_the_same() {
        let device = "sim:cx6-100g".parse().unwrap();
        let machines = Simulated::on(&device, &[], None).unwrap().unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let place = machines.place(&stop);
        let probed = arm::probe(&place, 100.0).unwrap();
        let times = (Duration::from_micros(20), Duration::from_micros(100));
        let of = |timed, arm: Arm| {
            let place = arm.place(&place, &[0, 1], probed).unwrap();
            let found = sample(&place, timed, arm, 100, times).unwrap();
            found.expect("a time")
        };
        for timed in [Timed::Single(512), Timed::PingPong, Timed::Flow(512)] {
            let (plain, paced) = (of(timed, Arm::PLAIN), of(timed, Arm::Paced));
            assert_eq!(paced, of(timed, Arm::Paced), "{timed:?}");
            assert!(
                (0.9..1.2).contains(&(paced / plain)),
                "{timed:?}: {plain} {paced}"
            );
        }
    }
}
