//! Figure 12: atomics by the RNIC, and by the daemon of the host whose memory it is.

use std::net::SocketAddr;

use headworks::verbs::Duration;

use super::points::{Point, Points, at, drawing};
use super::simulated::{NATIVE, SERVICE, grid, measure, native_note, outcome, service_note};
use super::{OVERHEAD, ask, held, note, paper, pinning, served, service, times};
use crate::bench::Bench;
use crate::claim::Claim;
use crate::error::RunError;
use crate::experiment::{About, Programmed};
use crate::format::svg::Axis;
use crate::outcome::{ArmNote, Outcome};
use crate::service::asking;
use crate::service::hosts::Hosts;
use crate::service::simulated::{Arm, Load, What};
use crate::transports::ArmError;

const COUNTERS: [u64; 5] = [1, 2, 5, 10, 20];
/// Threads, and atomics outstanding of each: the paper does not say how many.
const CALLERS: usize = 8;
const OUTSTANDING: usize = 16;
/// How long a point is measured, in virtual time.
const RUN: Duration = Duration::from_millis(2);
/// Of the time there is, where time is not virtual.
const SHARE: f64 = 0.85;

/// How it presents itself, its metrics and what runs it.
pub static FIG12: Programmed = Programmed {
    about: About {
        paper: Some(paper("Figure 12")),

        ..About::new(
            "raas-fig12",
            "Atomics on 1 to 20 counters: by verbs, and by the daemon of the host where they are.",
            "Fetch-and-adds per second on counters that are drawn, 128 outstanding: by verbs over eight queue pairs, and over \
               the service. In the end the counters say how many there were. On this machine one thread asks for all of \
               them, over the service by one connection; on simulated RNICs eight threads for 16 each, over a queue pair or \
               connection of each one's own.",
        )
    },
    keys: &[
        "atomics_native_1_million_per_s",
        "atomics_native_20_million_per_s",
        "atomics_service_1_million_per_s",
        "atomics_service_20_million_per_s",
        "atomics_service_over_native_1",
        "atomics_service_over_native_20",
    ],
    stated: &[
        (
            "atomics_native_1_million_per_s",
            Claim::Exactly(2.4),
            "VI-A",
        ),
        (
            "atomics_native_20_million_per_s",
            Claim::Exactly(2.4),
            "VI-A",
        ),
    ],
    figures: &["fig12.svg"],
    run: run_fig12,
};

fn run_fig12(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    let is_simulated = bench.place.is_simulated();
    let mut outcome = match is_simulated {
        true => outcome(bench, vec![native_note(), service_note()]),
        false => bench.pinned(pinning),
    };
    let note = "The paper's service does 3.7 to 5.5 M atomics/s with regard to different numbers of counters; its \
                    text does not say which.";
    outcome.notes.push(note.to_owned());
    let all = grid(&[NATIVE, SERVICE], &COUNTERS);
    let points = if is_simulated {
        Points::measure(bench, &all, "counters", adds)?
    } else {
        outcome.arms = notes();
        let Some((hosts, to)) = served(bench, FIG12.keys, &mut outcome)? else {
            return Ok(outcome);
        };
        let full = std::time::Duration::from_secs(1);
        let run = bench.time_per_point(all.len(), SHARE, OVERHEAD, full);
        Points::measure(bench, &all, "counters", |bench, point| {
            counted(bench, &hosts, to, point, run)
        })?
    };
    record(&mut outcome, &points);
    Ok(outcome)
}

fn record(outcome: &mut Outcome, points: &Points) {
    for counters in [1, 20] {
        let [native, service] = [NATIVE, SERVICE].map(|arm| at(arm, counters));
        for point in [native, service] {
            let key = format!("atomics_{}_{counters}_million_per_s", point.arm);
            points.figure(outcome, &key, point, 1e6);
        }
        let key = format!("atomics_service_over_native_{counters}");
        points.over(outcome, &key, service, native);
    }
    let figure = drawing(
        "fig12.svg",
        "Atomics by the RNIC and by daemons",
        Axis::linear("counters"),
        Axis::linear("[1/s]"),
    );
    points.write(outcome, figure, "[1/s]");
}

/// By processes of this machine.
fn counted(
    bench: &Bench<'_>,
    hosts: &Hosts,
    to: SocketAddr,
    point: Point,
    run: std::time::Duration,
) -> Result<f64, ArmError> {
    let words = point.x as usize;
    let adds = |connections| {
        asking::What::Requests(Load {
            what: What::Adds { words },
            callers: 1,
            connections,
            hosts: 1,
            outstanding: CALLERS * OUTSTANDING,
        })
    };
    let times = times(bench.hurried(run));
    match point.arm {
        NATIVE => {
            let (by, _held) = held(bench, hosts, &[1], CALLERS, words * 8)?;
            ask(bench, hosts, (adds(CALLERS), by), times)
        }
        _ => {
            let by = service(hosts, to, false);
            ask(bench, hosts, (adds(1), by), times)
        }
    }
}

fn notes() -> Vec<ArmNote> {
    vec![
        note(
            NATIVE,
            "fetch-and-adds of one thread over 8 queue pairs of its own, whose completion queue it polls",
            "poll",
            "0",
        ),
        note(
            SERVICE,
            "fetch-and-adds of one thread over a connection: the other host's daemon does them",
            "adaptive",
            "0",
        ),
    ]
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
