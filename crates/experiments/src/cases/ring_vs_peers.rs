//! The ring against the same ring without verbs, UCX and the kernel's byte streams.

mod arms;
mod drawings;
mod extras;
mod findings;
mod keys;
mod load;
mod points;
mod sampling;
mod tables;

use crate::bench::Bench;
use crate::experiment::{About, Programmed, RunsOn};
use crate::outcome::Outcome;
use crate::runner::RunError;
use crate::ucx;

use points::Points;

/// How it presents itself, its metrics and what runs it.
pub static RING_VS_PEERS: Programmed = Programmed {
    about: About {
        paper: None,
        runs_on: RunsOn::Real(
            "it measures sockets, pipes and memory of this machine beside the ring, by the wall clock",
        ),
        ..About::new(
            "ring-vs-peers",
            "The ring between two processes of one machine, against what else could carry its messages.",
            "Message rate and bandwidth over size, plain (the receiver reads a word of each \
               message) and touched (the sender writes and the receiver sums every byte), one-way \
               latency by ping-pong, and latency under an open-loop load.",
        )
    },
    keys: keys::KEYS,
    stated: &[],
    figures: &[
        "rate.svg",
        "bandwidth.svg",
        "bandwidth-touched.svg",
        "latency-under-load.svg",
    ],
    run: run_ring_vs_peers,
};

fn run_ring_vs_peers(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    let mut outcome = bench.pinned(|[here, there]| {
        format!("sender on cpu {here}, receiver on cpu {there}, for every arm and external program")
    });
    let ucx = ucx::version(bench.stop());
    bench.check()?;
    match &ucx {
        Ok(version) => outcome.versions.push((
            "UCX (ucx_perftest)".into(),
            format!("{version}, UCX_TLS={}", ucx::TRANSPORTS),
        )),
        Err(why) => outcome
            .versions
            .push(("UCX".into(), format!("skipped: {why}"))),
    }
    outcome.arms = arms::notes();
    let measured = Points::measure(bench, ucx.map_err(|e| e.to_string()))?;
    outcome.repeats = measured.rounds();
    let loads = load::measure(bench, &measured)?;
    findings::record(&mut outcome, &measured, &loads);
    extras::measure(bench, &mut outcome)?;
    Ok(outcome)
}
