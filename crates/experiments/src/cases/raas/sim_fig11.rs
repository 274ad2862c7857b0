//! Figure 11 on simulated RNICs: latency by size, one message at a time.

use headworks::verbs::Duration;

use super::points::{Point, Points, at, drawing};
use super::simulated::{SERVICE, machine, measure, outcome};
use crate::bench::Bench;
use crate::error::RunError;
use crate::format::svg::Axis;
use crate::measure;
use crate::nic::loaded::{Load as Posted, Verb};
use crate::outcome::{ArmNote, ELSEWHERE, Outcome};
use crate::service::simulated::{Arm, Load, What};
use crate::transports::ArmError;

const SIZES: [u64; 8] = [8, 64, 512, 4096, 16_384, 65_536, 256 << 10, 1 << 20];
/// How long a point is measured, in virtual time.
const RUN: Duration = Duration::from_millis(20);
const NATIVE: &str = "native send";
const COPIED: &str = "native send, copied";

/// Keys that only simulated RNICs have.
pub(super) const KEYS: &[&str] = &[
    "latency_added_8b_us",
    "latency_added_64b_us",
    "latency_added_4k_us",
    "latency_added_16k_us",
    "latency_64k_over_native",
    "latency_256k_over_native",
    "latency_64k_over_native_copied",
    "latency_256k_over_native_copied",
    "latency_native_8b_us",
    "latency_service_8b_us",
];

/// Skips what only simulated RNICs have.
pub(super) fn skip(outcome: &mut Outcome) {
    KEYS.iter().for_each(|key| outcome.skip(*key, ELSEWHERE));
}

/// One way: half of there and back.
pub(super) fn run(bench: &mut Bench<'_>, all_keys: &[&str]) -> Result<Outcome, RunError> {
    let mut outcome = outcome(bench, notes());
    let note = "The paper says: 1 to 2 µs more than native below 64 KB, no more at 64 KB, and 37 % less latency at 256 KB, \
                since applications and the service work side by side on a message in pieces. What its native RDMA copies \
                it does not say.";
    outcome.notes.push(note.to_owned());
    for key in all_keys.iter().filter(|key| !KEYS.contains(key)) {
        outcome.skip(*key, ELSEWHERE);
    }
    let sizes = SIZES.into_iter();
    let all: Vec<Point> = sizes
        .flat_map(|size| [at(SERVICE, size), at(NATIVE, size), at(COPIED, size)])
        .collect();
    let points = Points::measure(bench, &all, "B", latency)?;
    for (size, name) in [(8, "8b"), (64, "64b"), (4096, "4k"), (16_384, "16k")] {
        let key = format!("latency_added_{name}_us");
        let both = (at(SERVICE, size), at(NATIVE, size));
        points.above(&mut outcome, &key, both, 1e3);
    }
    for (size, name) in [(65_536, "64k"), (256 << 10, "256k")] {
        let service = at(SERVICE, size);
        let key = format!("latency_{name}_over_native");
        points.over(&mut outcome, &key, service, at(NATIVE, size));
        let key = format!("{key}_copied");
        points.over(&mut outcome, &key, service, at(COPIED, size));
    }
    let key = "latency_native_8b_us";
    points.figure(&mut outcome, key, at(NATIVE, 8), 1e3);
    let key = "latency_service_8b_us";
    points.figure(&mut outcome, key, at(SERVICE, 8), 1e3);
    let figure = drawing(
        "fig11.svg",
        "One way by size",
        Axis::log("size [B]"),
        Axis::log("median [ns]"),
    );
    points.write(&mut outcome, figure, "median [ns]");
    Ok(outcome)
}

fn latency(bench: &Bench<'_>, point: Point) -> Result<f64, ArmError> {
    let bytes = point.x as usize;
    if point.arm == SERVICE {
        let load = Load {
            what: What::Messages { bytes },
            callers: 1,
            connections: 1,
            hosts: 1,
            outstanding: 1,
        };
        return Ok(measure(bench, load, Arm::Service, RUN)?.latency.p50_ns / 2.0);
    }
    let work_ns = match point.arm {
        COPIED => {
            let preset = machine(bench)?.preset;
            // Into registered memory before, and out of it after.
            (2.0 * (preset.copy_ns + bytes as f64 * 8.0 / preset.copy_gbps)) as u64
        }
        _ => 0,
    };
    let load = Posted {
        work_ns,
        ..Posted::of(Verb::Send, bytes)
    };
    let times = (Duration::from_micros(500), Duration::from_millis(5));
    let found = measure::half_round_trip(&load, &bench.place, times)?;
    let found = found.ok_or_else(|| ArmError("nothing ended".to_owned()))?;
    Ok(found.p50_ns)
}

fn notes() -> Vec<ArmNote> {
    let note = |name: &str, what: &str, copies: &str| ArmNote {
        name: name.to_owned(),
        what: what.to_owned(),
        waiting: "poll",
        copies: copies.to_owned(),
    };
    vec![
        note(
            SERVICE,
            "streams of the service's, both applications and both daemons looking all the time",
            "4; 2 from 16 KiB on",
        ),
        note(NATIVE, "SEND from and to memory that is registered", "0"),
        note(
            COPIED,
            "the same; each message is copied whole into such memory before and out of it after",
            "2",
        ),
    ]
}
