//! READs at random from memory that is spread over connections: over the service, whose connections share a link, and
//! natively, a queue pair each.

use std::net::SocketAddr;
use std::time::Duration;

use super::points::{Point, Points, at, drawing};
use super::{OVERHEAD, ask, held, note, paper, pinning, served, service, sim_fig6, times};
use crate::bench::Bench;
use crate::error::RunError;
use crate::experiment::{About, Programmed};
use crate::format::svg::Axis;
use crate::outcome::{ArmNote, Outcome};
use crate::service::asking::What;
use crate::service::hosts::Hosts;
use crate::service::simulated::{self, Load};
use crate::stats::Spread;
use crate::transports::ArmError;

/// Bytes of a READ.
const SIZE: usize = 64 << 10;
/// Bytes of the memory that is read, in all.
const REGION: usize = 64 << 20;
/// READs under way, in all.
const OUTSTANDING: usize = 16;
const CONNECTIONS: [u64; 4] = [1, 10, 100, 1000];
const SHARE: f64 = 0.85;
/// Beside what is measured: so many connections are made, and their memory is.
const CONNECTING: Duration = Duration::from_millis(400);

const SERVICE: &str = "service";
const NATIVE: &str = "native";

/// How it presents itself, its metrics and what runs it.
pub static FIG6: Programmed = Programmed {
    about: About {
        paper: Some(paper("Figures 6 and 10")),

        ..About::new(
            "raas-fig6",
            "READs of 64 KiB at random over 1 to 1000 connections: the service against a queue pair each.",
            "Bytes read per second from 64 MiB of the other host's memory, spread evenly over so many connections, \
               16 READs of 64 KiB under way in all, each at a random place over a random connection.",
        )
    },
    keys: &[
        "service_1000_over_10",
        "native_1000_over_10",
        "service_10_gb_per_s",
        "service_1000_gb_per_s",
        "native_1000_gb_per_s",
        "service_over_native_1000",
        "service_queue_pairs",
        // On simulated RNICs alone.
        "native_1000_over_100",
        "native_1000_over_400",
        "service_1000_over_100",
        "service_over_native_100",
        "small_native_1000_over_100",
        "small_native_1000_over_400",
        "small_native_most_million_per_s",
        "small_service_1000_over_100",
        "small_service_over_native_1000",
    ],
    stated: &[],
    figures: &["fig6.svg"],
    run: run_fig6,
};

fn run_fig6(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    if bench.place.is_simulated() {
        return sim_fig6::run(bench);
    }
    let mut outcome = bench.pinned(pinning);
    outcome.arms = notes();
    sim_fig6::skip(&mut outcome);
    let Some((hosts, to)) = served(bench, FIG6.keys, &mut outcome)? else {
        return Ok(outcome);
    };
    let all: Vec<Point> = CONNECTIONS
        .into_iter()
        .flat_map(|connections| [at(SERVICE, connections), at(NATIVE, connections)])
        .collect();
    let full = Duration::from_secs(1);
    let overhead = OVERHEAD + CONNECTING / 4;
    let run = bench.time_per_point(all.len(), SHARE, overhead, full);
    let mut queue_pairs = Vec::new();
    let points = Points::measure(bench, &all, "connections", |bench, point| {
        let figure = measure(bench, &hosts, to, point, run)?;
        if point == at(SERVICE, 1000) {
            queue_pairs.push(hosts.queue_pairs(0)?);
        }
        Ok(figure)
    })?;
    let (few, many) = (at(SERVICE, 10), at(SERVICE, 1000));
    let native = [10, 1000].map(|connections| at(NATIVE, connections));
    points.over(&mut outcome, "service_1000_over_10", many, few);
    points.over(&mut outcome, "native_1000_over_10", native[1], native[0]);
    points.figure(&mut outcome, "service_10_gb_per_s", few, 1e9);
    points.figure(&mut outcome, "service_1000_gb_per_s", many, 1e9);
    points.figure(&mut outcome, "native_1000_gb_per_s", native[1], 1e9);
    points.over(&mut outcome, "service_over_native_1000", many, native[1]);
    let seen = Spread::of(&queue_pairs);
    outcome.measured_or("service_queue_pairs", seen, "not seen at 1000 connections");
    let figure = drawing(
        "fig6.svg",
        "READs of 64 KiB at random",
        Axis::log("connections"),
        Axis::linear("[B/s]"),
    );
    points.write(&mut outcome, figure, "[B/s]");
    Ok(outcome)
}

fn measure(
    bench: &Bench<'_>,
    hosts: &Hosts,
    to: SocketAddr,
    point: Point,
    run: Duration,
) -> Result<f64, ArmError> {
    let times = times(bench.hurried(run));
    let connections = point.x as usize;
    let what = What::Requests(Load {
        what: simulated::What::Reads {
            bytes: SIZE,
            region: REGION,
        },
        callers: 1,
        connections,
        hosts: 1,
        outstanding: OUTSTANDING,
    });
    match point.arm {
        NATIVE => {
            let (by, _held) = held(bench, hosts, &[1], connections, REGION)?;
            ask(bench, hosts, (what, by), times)
        }
        _ => ask(bench, hosts, (what, service(hosts, to, false)), times),
    }
}

fn notes() -> Vec<ArmNote> {
    let shared =
        "one-sided reads of the service's: all connections over the queue pairs of one link";
    let own = "READs of one thread over a queue pair of its own for each connection, whose completion queue it polls";
    vec![
        note(SERVICE, shared, "adaptive", "1"),
        note(NATIVE, own, "poll", "1"),
    ]
}
