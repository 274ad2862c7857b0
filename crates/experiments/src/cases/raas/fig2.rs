//! Figures 2 and 7: threads that share a queue pair under a lock, beside the same threads over the service, which shares
//! one without.

use headworks::verbs::Duration;

use super::paper;
use super::points::{Point, Points, at, drawing};
use super::simulated::{
    LOCKED, LOCKED_3, LOCKED_6, NATIVE, SERVICE, SMALL, SMALL_REGION, grid, locked_note, measure,
    native_note, outcome, service_note,
};
use crate::bench::Bench;
use crate::claim::Claim;
use crate::error::RunError;
use crate::experiment::{About, Programmed, RunsOn};
use crate::format::svg::Axis;
use crate::outcome::{ArmNote, Outcome};
use crate::service::simulated::{Arm, Load, What};
use crate::transports::ArmError;

const THREADS: [u64; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
/// Requests outstanding of each thread.
const OUTSTANDING: usize = 16;
/// The same where a READ is a page: the link is what limits then.
const PAGE: usize = 4096;
const PAGES_3: &str = "locked, q = 3, 4 KiB";
const PAGES_6: &str = "locked, q = 6, 4 KiB";
const PAGES_SERVICE: &str = "service, 4 KiB";
/// How long a point is measured, in virtual time.
const RUN: Duration = Duration::from_millis(2);
/// Threads in all where several queue pairs are shared by three or six each.
const ALL_THREADS: [u64; 3] = [6, 12, 18];

/// How it presents itself, its metrics and what runs it.
pub static FIG2: Programmed = Programmed {
    about: About {
        paper: Some(paper("Figure 2")),
        runs_on: RunsOn::Simulated,
        ..About::new(
            "raas-fig2",
            "Threads that share one queue pair under a lock: what one does alone, and 2 to 9 together.",
            "READs of 64 B at random per second, 16 outstanding of each thread: of 1 to 9 threads on one queue pair \
               under a lock, of as many that have one each, and of as many over the service. Simulated. The paper says \
               neither what its threads send nor how many are outstanding.",
        )
    },
    keys: &[
        "locked_3_over_1",
        "locked_9_over_1",
        "locked_3_over_native_3",
        "locked_9_over_native_9",
        "locked_1_million_per_s",
        "locked_3_million_per_s",
        "locked_9_million_per_s",
        "service_9_million_per_s",
    ],
    stated: &[
        ("locked_3_over_1", Claim::Exactly(0.66), "II-B"),
        ("locked_9_over_1", Claim::Exactly(0.56), "II-B"),
    ],
    figures: &["fig2.svg"],
    run: run_fig2,
};

/// How it presents itself, its metrics and what runs it.
pub static FIG7: Programmed = Programmed {
    about: About {
        paper: Some(paper("Figure 7")),
        runs_on: RunsOn::Simulated,
        ..About::new(
            "raas-fig7",
            "Threads that share queue pairs under locks, three and six to each, beside the same threads over the service.",
            "READs of 64 B at random per second, 16 outstanding of each thread: of three and six threads that share one \
               queue pair under a lock, and of 6, 12 and 18 threads that share one between three or six of them; \
               of as many that have one each; and of as many over the service, by the one queue pair that \
               its daemon has for all. For three and six threads also of 4 KiB. Simulated.",
        )
    },
    keys: &[
        "service_over_locked_q3",
        "service_over_locked_q6",
        "service_over_locked_q3_18_threads",
        "service_over_locked_q6_18_threads",
        "service_over_locked_q3_4k",
        "service_over_locked_q6_4k",
        "service_3_million_per_s",
        "service_18_million_per_s",
        "locked_q3_million_per_s",
        "locked_q6_million_per_s",
        "native_18_million_per_s",
    ],
    stated: &[],
    figures: &["fig7.svg"],
    run: run_fig7,
};

fn reads(bench: &Bench<'_>, point: Point) -> Result<f64, ArmError> {
    let threads = point.x as usize;
    let load = Load {
        what: What::Reads {
            bytes: match point.arm {
                PAGES_3 | PAGES_6 | PAGES_SERVICE => PAGE,
                _ => SMALL,
            },
            region: SMALL_REGION,
        },
        callers: threads,
        connections: threads,
        hosts: 1,
        outstanding: OUTSTANDING,
    };
    let arm = match point.arm {
        NATIVE => Arm::Native,
        SERVICE | PAGES_SERVICE => Arm::Service,
        LOCKED_3 | PAGES_3 => Arm::Locked(3),
        LOCKED_6 | PAGES_6 => Arm::Locked(6),
        _ => Arm::Locked(threads),
    };
    Ok(measure(bench, load, arm, RUN)?.per_second)
}

fn run_fig2(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    let notes = vec![locked_note(LOCKED), native_note(), service_note()];
    let mut outcome = outcome(bench, notes);
    let all = grid(&[LOCKED, NATIVE, SERVICE], &THREADS);
    let points = Points::measure(bench, &all, "threads", reads)?;
    let locked = |threads| at(LOCKED, threads);
    for threads in [3, 9] {
        let ours = locked(threads);
        let key = format!("locked_{threads}_over_1");
        points.over(&mut outcome, &key, ours, locked(1));
        let key = format!("locked_{threads}_over_native_{threads}");
        points.over(&mut outcome, &key, ours, at(NATIVE, threads));
    }
    for threads in [1, 3, 9] {
        let key = format!("locked_{threads}_million_per_s");
        points.figure(&mut outcome, &key, locked(threads), 1e6);
    }
    let key = "service_9_million_per_s";
    points.figure(&mut outcome, key, at(SERVICE, 9), 1e6);
    let figure = drawing(
        "fig2.svg",
        "READs of 64 B by threads that share a queue pair",
        Axis::linear("threads"),
        Axis::linear("[1/s]"),
    );
    points.write(&mut outcome, figure, "[1/s]");
    Ok(outcome)
}

fn run_fig7(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    let notes = [LOCKED_3, LOCKED_6, PAGES_3, PAGES_6].map(locked_note);
    let long = ArmNote {
        name: PAGES_SERVICE.to_owned(),
        ..service_note()
    };
    let notes = notes
        .into_iter()
        .chain([native_note(), service_note(), long]);
    let mut outcome = outcome(bench, notes.collect());
    let mut all = grid(&[LOCKED_3, NATIVE, SERVICE], &[3]);
    all.extend(grid(&[LOCKED_3, LOCKED_6, NATIVE, SERVICE], &ALL_THREADS));
    all.extend(grid(&[PAGES_3, PAGES_SERVICE], &[3]));
    all.extend(grid(&[PAGES_6, PAGES_SERVICE], &[6]));
    let points = Points::measure(bench, &all, "threads", reads)?;
    let both = [(3, LOCKED_3, PAGES_3), (6, LOCKED_6, PAGES_6)];
    for (q, arm, pages) in both {
        let key = format!("service_over_locked_q{q}_4k");
        points.over(&mut outcome, &key, at(PAGES_SERVICE, q), at(pages, q));
        let key = format!("service_over_locked_q{q}");
        points.over(&mut outcome, &key, at(SERVICE, q), at(arm, q));
        let key = format!("service_over_locked_q{q}_18_threads");
        points.over(&mut outcome, &key, at(SERVICE, 18), at(arm, 18));
        let key = format!("locked_q{q}_million_per_s");
        points.figure(&mut outcome, &key, at(arm, q), 1e6);
    }
    for (key, point) in [
        ("service_3_million_per_s", at(SERVICE, 3)),
        ("service_18_million_per_s", at(SERVICE, 18)),
        ("native_18_million_per_s", at(NATIVE, 18)),
    ] {
        points.figure(&mut outcome, key, point, 1e6);
    }
    let figure = drawing(
        "fig7.svg",
        "READs of 64 B by threads, three or six of which share a queue pair",
        Axis::linear("threads"),
        Axis::linear("[1/s]"),
    );
    points.write(&mut outcome, figure, "[1/s]");
    Ok(outcome)
}
