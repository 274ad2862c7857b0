//! Question and answer beside a stream that sends all it can, between the same two hosts and over the same link.

use std::net::SocketAddr;
use std::time::Duration;

use super::points::{Point, Points, at, drawing};
use super::{HUNG, OVERHEAD, PROCESSES, asking, note, pinning, served, service, times};
use crate::bench::Bench;
use crate::error::RunError;
use crate::experiment::{About, Programmed, RunsOn};
use crate::format::svg::Axis;
use crate::outcome::{ArmNote, Outcome};
use crate::service::asking::What;
use crate::service::hosts::Hosts;
use crate::transports::ArmError;

const SIZE: usize = 64;
const PIECE: usize = 256 << 10;
/// Pieces of memory that the stream sends from.
const LENT: usize = 8;
const SHARE: f64 = 0.85;

const IDLE: &str = "ping-pong alone";
const LOADED: &str = "ping-pong beside the stream";
const ALONE: &str = "stream alone";
const BESIDE: &str = "stream beside the ping-pong";

/// How it presents itself, its metrics and what runs it.
pub static FAIRNESS: Programmed = Programmed {
    about: About {
        paper: None,
        runs_on: RunsOn::Real(PROCESSES),
        ..About::new(
            "service-fairness",
            "Question and answer beside a stream that sends all it can, over one link.",
            "64 bytes there and back, one at a time, with nothing beside it and beside a stream without copies of 256 KiB \
               at a time; and what that stream carries alone and beside them.",
        )
    },
    keys: &[
        "pingpong_loaded_over_idle",
        "bulk_beside_over_alone",
        "pingpong_idle_us",
        "pingpong_loaded_us",
        "bulk_alone_gb_per_s",
        "bulk_beside_gb_per_s",
    ],
    stated: &[],
    figures: &["fairness.svg"],
    run: run_fairness,
};

fn run_fairness(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    let mut outcome = bench.pinned(pinning);
    outcome.arms = notes();
    let Some((hosts, to)) = served(bench, FAIRNESS.keys, &mut outcome)? else {
        return Ok(outcome);
    };
    let all = [IDLE, ALONE, LOADED, BESIDE].map(|arm| at(arm, SIZE as u64));
    let full = Duration::from_secs(2);
    let run = bench.time_per_point(all.len(), SHARE, OVERHEAD, full);
    let points = Points::measure(bench, &all, "B", |bench, point| {
        measure(bench, &hosts, to, point, run)
    })?;
    let of = |arm| at(arm, SIZE as u64);
    points.over(
        &mut outcome,
        "pingpong_loaded_over_idle",
        of(LOADED),
        of(IDLE),
    );
    points.over(
        &mut outcome,
        "bulk_beside_over_alone",
        of(BESIDE),
        of(ALONE),
    );
    points.figure(&mut outcome, "pingpong_idle_us", of(IDLE), 1e3);
    points.figure(&mut outcome, "pingpong_loaded_us", of(LOADED), 1e3);
    points.figure(&mut outcome, "bulk_alone_gb_per_s", of(ALONE), 1e9);
    points.figure(&mut outcome, "bulk_beside_gb_per_s", of(BESIDE), 1e9);
    let figure = drawing(
        "fairness.svg",
        "Ping-pong (median) and stream, alone and beside each other",
        Axis::linear("size of the ping-pong's messages [B]"),
        Axis::log("[ns], [B/s]"),
    );
    points.write(&mut outcome, figure, "[ns], [B/s]");
    Ok(outcome)
}

fn measure(
    bench: &Bench<'_>,
    hosts: &Hosts,
    to: SocketAddr,
    point: Point,
    run: Duration,
) -> Result<f64, ArmError> {
    let (warm, run) = times(bench.hurried(run));
    // What is beside goes on for longer on both sides.
    let asking = |what, before: Duration, after: Duration| {
        asking(
            what,
            service(hosts, to, false),
            (warm + before, run + after),
        )
    };
    let pingpong = What::PingPong { size: SIZE };
    let bulk = What::Bulk {
        size: PIECE,
        lent: LENT,
    };
    let (measured, beside) = match point.arm {
        IDLE => (pingpong, None),
        LOADED => (pingpong, Some(bulk)),
        ALONE => (bulk, None),
        _ => (bulk, Some(pingpong)),
    };
    let cpu = bench.place.cpus[0];
    let limit = warm + run + HUNG;
    let beside = match beside {
        Some(what) => Some(hosts.begin(&asking(what, Duration::ZERO, warm + OVERHEAD), cpu)?),
        None => None,
    };
    let before = if beside.is_some() {
        OVERHEAD
    } else {
        Duration::ZERO
    };
    let measured = asking(measured, before, Duration::ZERO);
    let figure = hosts.ask(&measured, cpu, limit, bench.stop())?;
    if let Some(mut beside) = beside {
        // It was there all the time.
        beside.hear::<f64>(limit, bench.stop())?;
    }
    Ok(figure)
}

fn notes() -> Vec<ArmNote> {
    let note = |name, what, copies| note(name, what, "adaptive", copies);
    vec![
        note(IDLE, "64 bytes there and back, one at a time", "4 each way"),
        note(
            ALONE,
            "256 KiB at a time from memory that is lent, looked at where it lies",
            "1",
        ),
        note(
            LOADED,
            "the first, measured while the second goes on",
            "4 each way",
        ),
        note(BESIDE, "the second, measured while the first goes on", "1"),
    ]
}
