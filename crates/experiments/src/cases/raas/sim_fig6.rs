//! Figures 6 and 10 on simulated RNICs: READs at random over so many connections, to one host and to several.

use headworks::verbs::Duration;

use super::points::{Point, Points, at, drawing};
use super::simulated::{
    NATIVE, SERVICE, SMALL, SMALL_REGION, grid, measure, native_note, outcome, service_note,
};
use crate::bench::Bench;
use crate::error::RunError;
use crate::format::svg::Axis;
use crate::outcome::{ArmNote, ELSEWHERE, Outcome};
use crate::service::simulated::{Arm, Found, Load, What};
use crate::stats::Spread;
use crate::transports::ArmError;

const CONNECTIONS: [u64; 8] = [1, 10, 100, 200, 300, 400, 500, 1000];
/// Threads at most: the other cores of 24 are for a daemon, and for what else a host does. In the paper there is one for
/// each queue pair.
const CALLERS: usize = 20;
/// Bytes of a READ, and of the memory of each host that they are of.
const LARGE: usize = 64 << 10;
const LARGE_REGION: usize = 16 << 20;
/// How long a point is measured, in virtual time: a thousand long READs take the link 14 ms.
const RUN_LARGE: Duration = Duration::from_millis(120);
const RUN_SMALL: Duration = Duration::from_millis(4);
pub(super) const SMALL_NATIVE: &str = "native, 64 B";
pub(super) const SMALL_SERVICE: &str = "service, 64 B";

/// Keys that only simulated RNICs have.
pub(super) const KEYS: &[&str] = &[
    "native_1000_over_100",
    "native_1000_over_400",
    "service_1000_over_100",
    "service_over_native_100",
    "small_native_1000_over_100",
    "small_native_1000_over_400",
    "small_native_most_million_per_s",
    "small_service_1000_over_100",
    "small_service_over_native_1000",
];
/// Keys of both.
const COMMON: [&str; 7] = [
    "service_1000_over_10",
    "native_1000_over_10",
    "service_10_gb_per_s",
    "service_1000_gb_per_s",
    "native_1000_gb_per_s",
    "service_over_native_1000",
    "service_queue_pairs",
];

/// Skips what only simulated RNICs have.
pub(super) fn skip(outcome: &mut Outcome) {
    KEYS.iter().for_each(|key| outcome.skip(*key, ELSEWHERE));
}

/// One READ outstanding of each connection; `bytes` of a READ, connections of so many to each of some hosts.
fn load(bytes: usize, connections: usize, hosts: usize, callers: usize) -> Load {
    let region = match bytes {
        SMALL => SMALL_REGION,
        _ => LARGE_REGION,
    };
    Load {
        what: What::Reads { bytes, region },
        callers,
        connections,
        hosts,
        outstanding: connections / callers,
    }
}

fn reads(
    bench: &Bench<'_>,
    point: Point,
    (connections, hosts, callers): (usize, usize, usize),
) -> Result<Found, ArmError> {
    let (arm, bytes, run) = match point.arm {
        NATIVE => (Arm::Native, LARGE, RUN_LARGE),
        SERVICE => (Arm::Service, LARGE, RUN_LARGE),
        SMALL_NATIVE => (Arm::Native, SMALL, RUN_SMALL),
        _ => (Arm::Service, SMALL, RUN_SMALL),
    };
    measure(bench, load(bytes, connections, hosts, callers), arm, run)
}

fn per_second(point: Point, found: &Found) -> f64 {
    match point.arm {
        // They share the link, so that many are not whole at the end.
        NATIVE | SERVICE => found.bytes_per_second,
        _ => found.per_second * SMALL as f64,
    }
}

fn notes() -> Vec<ArmNote> {
    let small = |note: ArmNote, name: &str| ArmNote {
        name: name.to_owned(),
        what: format!("the same, READs of {SMALL} B"),
        ..note
    };
    vec![
        native_note(),
        service_note(),
        small(native_note(), SMALL_NATIVE),
        small(service_note(), SMALL_SERVICE),
    ]
}

/// Figure 6, one READ outstanding of each connection.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    let mut outcome = outcome(bench, notes());
    let all = grid(
        &[NATIVE, SERVICE, SMALL_NATIVE, SMALL_SERVICE],
        &CONNECTIONS,
    );
    let mut queue_pairs = Vec::new();
    let points = Points::measure(bench, &all, "connections", |bench, point| {
        let connections = point.x as usize;
        let found = reads(bench, point, (connections, 1, CALLERS.min(connections)))?;
        if point == at(SERVICE, 1000) {
            queue_pairs.push(found.queue_pairs as f64);
        }
        Ok(per_second(point, &found))
    })?;
    for (key, ours, theirs) in [
        ("service_1000_over_10", at(SERVICE, 1000), at(SERVICE, 10)),
        ("native_1000_over_10", at(NATIVE, 1000), at(NATIVE, 10)),
        ("native_1000_over_100", at(NATIVE, 1000), at(NATIVE, 100)),
        ("native_1000_over_400", at(NATIVE, 1000), at(NATIVE, 400)),
        ("service_1000_over_100", at(SERVICE, 1000), at(SERVICE, 100)),
        (
            "service_over_native_1000",
            at(SERVICE, 1000),
            at(NATIVE, 1000),
        ),
        ("service_over_native_100", at(SERVICE, 100), at(NATIVE, 100)),
        (
            "small_native_1000_over_100",
            at(SMALL_NATIVE, 1000),
            at(SMALL_NATIVE, 100),
        ),
        (
            "small_native_1000_over_400",
            at(SMALL_NATIVE, 1000),
            at(SMALL_NATIVE, 400),
        ),
        (
            "small_service_1000_over_100",
            at(SMALL_SERVICE, 1000),
            at(SMALL_SERVICE, 100),
        ),
        (
            "small_service_over_native_1000",
            at(SMALL_SERVICE, 1000),
            at(SMALL_NATIVE, 1000),
        ),
    ] {
        points.over(&mut outcome, key, ours, theirs);
    }
    for (key, point) in [
        ("service_10_gb_per_s", at(SERVICE, 10)),
        ("service_1000_gb_per_s", at(SERVICE, 1000)),
        ("native_1000_gb_per_s", at(NATIVE, 1000)),
    ] {
        points.figure(&mut outcome, key, point, 1e9);
    }
    let each = 1e6 * SMALL as f64;
    let key = "small_native_most_million_per_s";
    points.figure(&mut outcome, key, at(SMALL_NATIVE, 400), each);
    let seen = Spread::of(&queue_pairs);
    outcome.measured_or("service_queue_pairs", seen, "not seen at 1000 connections");
    debug_assert!(
        COMMON
            .iter()
            .all(|key| outcome.ratios().contains_key(*key) || outcome.skipped().contains_key(*key))
    );
    let figure = drawing(
        "fig6.svg",
        "READs at random, one outstanding of each connection",
        Axis::log("connections"),
        Axis::log("[B/s]"),
    );
    points.write(&mut outcome, figure, "[B/s]");
    Ok(outcome)
}

/// Threads that divide 192 connections evenly.
const CALLERS_OF_192: usize = 16;

/// Figure 10: READs per point, over so many connections to each of the other hosts; and how all of it ran.
pub(super) fn cluster(
    bench: &mut Bench<'_>,
    all: &[Point],
    each: usize,
) -> Result<(Outcome, Points), RunError> {
    let outcome = outcome(bench, notes());
    let points = Points::measure(bench, all, "hosts", |bench, point| {
        let others = point.x as usize - 1;
        let found = reads(bench, point, (each * others, others, CALLERS_OF_192))?;
        Ok(per_second(point, &found))
    })?;
    Ok((outcome, points))
}
