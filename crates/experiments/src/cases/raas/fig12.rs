//! Figure 12: atomics by the RNIC, and by the daemon of the host whose memory it is.

use headworks::verbs::Duration;

use super::paper;
use super::points::{Point, Points, at, drawing};
use super::simulated::{NATIVE, SERVICE, grid, measure, native_note, outcome, service_note};
use crate::arms::ArmError;
use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::Outcome;
use crate::report::svg::Axis;
use crate::runner::RunError;
use crate::service::simulated::{Arm, Load, What};

/// The experiment.
#[derive(Debug)]
pub struct Fig12;

const COUNTERS: [u64; 5] = [1, 2, 5, 10, 20];
/// Threads, and atomics outstanding of each: the paper does not say how many.
const CALLERS: usize = 8;
const OUTSTANDING: usize = 16;
/// How long a point is measured, in virtual time.
const RUN: Duration = Duration::from_millis(2);

static ABOUT: About = About {
    name: "raas-fig12",
    line: "Atomics on 1 to 20 counters: by the RNIC, and by the daemon of the host where they are.",
    measures: "Fetch-and-adds per second of eight threads, 16 outstanding of each, on counters that are drawn: by verbs over a \
               queue pair each, and over the service. In the end the counters say how many there were. Simulated.",
    paper: Some(paper("Figure 12")),
    keys: &[
        "atomics_native_1_million_per_s",
        "atomics_native_20_million_per_s",
        "atomics_service_1_million_per_s",
        "atomics_service_20_million_per_s",
        "atomics_service_over_native_1",
        "atomics_service_over_native_20",
    ],
    // Of the service it says 3.7 to 5.5, not at which number of counters.
    paper_values: &[
        ("atomics_native_1_million_per_s", 2.4),
        ("atomics_native_20_million_per_s", 2.4),
    ],
    replays: false,
};

impl Experiment for Fig12 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn kind(&self) -> Option<&'static str> {
        Some(headworks::sim::KIND)
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = outcome(bench, vec![native_note(), service_note()]);
        let note = "The paper's service does 3.7 to 5.5 M atomics/s with regard to different numbers of counters; its \
                    text does not say which.";
        outcome.notes.push(note.to_owned());
        let all = grid(&[NATIVE, SERVICE], &COUNTERS);
        let points = Points::measure(bench, &all, "counters", adds)?;
        for counters in [1, 20] {
            let [native, service] = [NATIVE, SERVICE].map(|arm| at(arm, counters));
            for point in [native, service] {
                let key = format!("atomics_{}_{counters}_million_per_s", point.arm);
                points.figure(&mut outcome, &key, point, 1e6);
            }
            let key = format!("atomics_service_over_native_{counters}");
            points.over(&mut outcome, &key, service, native);
        }
        let figure = drawing(
            "fig12.svg",
            "Atomics by the RNIC and by daemons",
            Axis::linear("counters"),
            Axis::linear("[1/s]"),
        );
        points.write(&mut outcome, figure, "[1/s]");
        Ok(outcome)
    }
}

fn adds(bench: &Bench<'_>, point: Point) -> Result<f64, ArmError> {
    let load = Load {
        what: What::Adds {
            words: point.x as usize,
        },
        callers: CALLERS,
        connections: CALLERS,
        hosts: 1,
        outstanding: OUTSTANDING,
    };
    let arm = match point.arm {
        NATIVE => Arm::Native,
        _ => Arm::Service,
    };
    Ok(measure(bench, load, arm, RUN)?.per_second)
}
