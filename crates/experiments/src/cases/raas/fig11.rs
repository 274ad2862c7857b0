//! What the service adds to a message, and what it takes off a stream.

use std::net::SocketAddr;
use std::time::Duration;

use super::points::{Point, Points, at, drawing};
use super::{OVERHEAD, ask, counted, note, paper, pinning, served, service, sim_fig11, times};
use crate::bench::Bench;
use crate::claim::Claim;
use crate::error::RunError;
use crate::experiment::{About, Programmed};
use crate::format::svg::Axis;
use crate::measure;
use crate::nic::loaded::{Load, Verb};
use crate::outcome::{ArmNote, Outcome};
use crate::service::asking::What;
use crate::service::chain;
use crate::service::hosts::Hosts;
use crate::transports::ArmError;

const SIZES: [u64; 6] = [8, 64, 512, 4096, 65_536, 1 << 20];
/// Bytes at a time where it is measured how much goes.
const PIECE: u64 = 256 << 10;
/// Pieces under way at most.
const PIECES: usize = 8;
const SHARE: f64 = 0.85;

const SERVICE: &str = "service";
const NATIVE: &str = "native send";
const CHAIN: &str = "four processes";
const LENT: &str = "service, zero copy";
const COPIED: &str = "service, copied";
const WRITES: &str = "native write";

/// How it presents itself, its metrics and what runs it.
pub static FIG11: Programmed = Programmed {
    about: About {
        paper: Some(paper("Figure 11")),

        ..About::new(
            "raas-fig11",
            "Latency over size and throughput of 256 KiB: the service against verbs, and against processes that only hand on.",
            "There and back, one message at a time: over the service, by SEND over a queue pair of two applications' own, and \
               through four processes that hand 64 bytes on in shared memory. And bytes per second of 256 KiB at a time, \
               without copies, copied, and by WRITE.",
        )
    },
    keys: &[
        "rtt_over_bare_chain_64b",
        "throughput_over_native_256k",
        "copied_over_native_256k",
        "service_64b_us",
        "chain_64b_us",
        "native_64b_us",
        "added_over_native_64b_us",
        "zero_copy_256k_gb_per_s",
        "copied_256k_gb_per_s",
        "native_256k_gb_per_s",
        // On simulated RNICs alone.
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
    ],
    stated: &[(
        "latency_256k_over_native_copied",
        Claim::Exactly(0.63),
        "VI-A",
    )],
    figures: &["fig11.svg"],
    run: run_fig11,
};

fn run_fig11(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    if bench.place.is_simulated() {
        return sim_fig11::run(bench, FIG11.keys);
    }
    let mut outcome = bench.pinned(pinning);
    outcome.arms = notes();
    sim_fig11::skip(&mut outcome);
    let Some((hosts, to)) = served(bench, FIG11.keys, &mut outcome)? else {
        return Ok(outcome);
    };
    let sizes = SIZES
        .into_iter()
        .flat_map(|size| [at(SERVICE, size), at(NATIVE, size)]);
    let others = [
        at(CHAIN, 64),
        at(LENT, PIECE),
        at(COPIED, PIECE),
        at(WRITES, PIECE),
    ];
    let all: Vec<Point> = sizes.chain(others).collect();
    let full = Duration::from_secs(1);
    let run = bench.time_per_point(all.len(), SHARE, OVERHEAD, full);
    let points = Points::measure(bench, &all, "B", |bench, point| {
        measure(bench, &hosts, to, point, run)
    })?;
    let [service, native, chain] = [SERVICE, NATIVE, CHAIN].map(|arm| at(arm, 64));
    points.over(&mut outcome, "rtt_over_bare_chain_64b", service, chain);
    points.figure(&mut outcome, "service_64b_us", service, 1e3);
    points.figure(&mut outcome, "chain_64b_us", chain, 1e3);
    points.figure(&mut outcome, "native_64b_us", native, 1e3);
    let both = (service, native);
    points.above(&mut outcome, "added_over_native_64b_us", both, 1e3);
    let [lent, copied, writes] = [LENT, COPIED, WRITES].map(|arm| at(arm, PIECE));
    points.over(&mut outcome, "throughput_over_native_256k", lent, writes);
    points.over(&mut outcome, "copied_over_native_256k", copied, writes);
    points.figure(&mut outcome, "zero_copy_256k_gb_per_s", lent, 1e9);
    points.figure(&mut outcome, "copied_256k_gb_per_s", copied, 1e9);
    points.figure(&mut outcome, "native_256k_gb_per_s", writes, 1e9);
    let figure = drawing(
        "fig11.svg",
        "There and back by size, and 256 KiB at a time",
        Axis::log("size [B]"),
        Axis::log("median [ns], [B/s]"),
    );
    points.write(&mut outcome, figure, "median [ns], [B/s]");
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
    let size = point.x as usize;
    let nothing = || ArmError("nothing ended".to_owned());
    let ask = |what| {
        let by = service(hosts, to, false);
        ask(bench, hosts, (what, by), (warm, run))
    };
    match point.arm {
        NATIVE => {
            let load = Load::of(Verb::Send, size);
            let found = measure::half_round_trip(&load, &bench.place, counted((warm, run)))?;
            Ok(found.ok_or_else(nothing)?.p50_ns * 2.0)
        }
        CHAIN => {
            let (cpus, directory) = (bench.place.cpus, hosts.directory());
            chain::measure(size, (warm, run), cpus, directory, bench.stop())
        }
        WRITES => {
            // Each of them from a place of its own to one, as the pieces that are lent.
            let load = Load {
                queue_pairs: PIECES,
                ..Load::of(Verb::Write, size)
            };
            let rate = load.rate(&bench.place, 1, counted((warm, run)))?;
            Ok(rate.ok_or_else(nothing)? * size as f64)
        }
        LENT => ask(What::Bulk { size, lent: PIECES }),
        COPIED => ask(What::Bulk { size, lent: 0 }),
        _ => ask(What::PingPong { size }),
    }
}

fn notes() -> Vec<ArmNote> {
    vec![
        note(
            SERVICE,
            "a stream, through a daemon on each side",
            "adaptive",
            "4 each way; from 16 KiB on 3",
        ),
        note(
            NATIVE,
            "SEND between two processes with a queue pair of their own",
            "poll",
            "1 each way",
        ),
        note(
            CHAIN,
            "64 bytes handed on through rings in shared memory, two processes on each processor, which they offer to each \
             other while they wait",
            "poll",
            "3 each way",
        ),
        note(
            LENT,
            "256 KiB from memory that is lent to where it is looked at (its first byte)",
            "adaptive",
            "1",
        ),
        note(COPIED, "the same, copied into the stream", "adaptive", "2"),
        note(
            WRITES,
            "WRITEs of 256 KiB over 8 queue pairs, each between places of its own; nobody looks at the bytes",
            "poll",
            "1",
        ),
    ]
}
