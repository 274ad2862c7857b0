//! Question and answer between two hosts' applications, over the service and over TCP.

use std::net::SocketAddr;

use super::points::{Point, Points, at, drawing};
use super::{OVERHEAD, PROCESSES, ask, note, pinning, served, service, times};
use crate::bench::Bench;
use crate::error::RunError;
use crate::experiment::{About, Programmed, RunsOn};
use crate::format::svg::Axis;
use crate::outcome::{ArmNote, Outcome};
use crate::service::asking::{By, What};
use crate::service::hosts::Hosts;
use crate::transports::ArmError;

const SIZE: usize = 64;
/// Of the time there is.
const SHARE: f64 = 0.85;
/// Questions a second, whatever comes back.
const LOADS: [u64; 3] = [1000, 5000, 20_000];

const SERVICE: &str = "service";
const ASLEEP: &str = "service, asleep";
const TCP: &str = "tcp, blocking, two cores";
const TCP_ONE: &str = "tcp, blocking, one core";
const TCP_SPINNING: &str = "tcp, spinning, two cores";
const LOADED: &str = "service, loaded";
const TCP_LOADED: &str = "tcp, blocking, two cores, loaded";

/// How it presents itself, its metrics and what runs it.
pub static VS_TCP: Programmed = Programmed {
    about: About {
        paper: None,
        runs_on: RunsOn::Real(PROCESSES),
        ..About::new(
            "service-vs-tcp",
            "Question and answer through two daemons, against TCP on loopback.",
            "64 bytes there and back, one at a time: over the service as it waits by default, with both \
               applications asleep in poll(2) between messages, and over TCP with blocking and with spinning sockets; \
               and the same at a rate, whatever comes back, from when each message should have been sent (median).",
        )
    },
    keys: &[
        "median_over_tcp_64b",
        "asleep_over_tcp_64b",
        "median_over_tcp_one_core_64b",
        "median_over_tcp_spinning_64b",
        "service_64b_us",
        "service_asleep_64b_us",
        "tcp_blocking_64b_us",
        "tcp_blocking_one_core_64b_us",
        "tcp_spinning_64b_us",
        "loaded_over_tcp_1000_per_s",
        "loaded_over_tcp_5000_per_s",
        "loaded_over_tcp_20000_per_s",
    ],
    stated: &[],
    figures: &["latency.svg"],
    run: run_vs_tcp,
};

fn run_vs_tcp(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    let mut outcome = bench.pinned(pinning);
    outcome.arms = notes();
    let [here, there] = bench.place.cpus;
    let Some((mut hosts, to)) = served(bench, VS_TCP.keys, &mut outcome)? else {
        return Ok(outcome);
    };
    let mut tcp = |cpu| hosts.serve_tcp(cpu, bench.stop());
    let servers = match (tcp(here), tcp(there)) {
        (Ok(same), Ok(other)) => [to, same, other],
        (Err(why), _) | (_, Err(why)) => {
            for key in VS_TCP.keys {
                outcome.skip(*key, why.to_string());
            }
            return Ok(outcome);
        }
    };
    let alone = [SERVICE, ASLEEP, TCP, TCP_ONE, TCP_SPINNING].map(|arm| at(arm, 0));
    let loads = LOADS
        .into_iter()
        .flat_map(|load| [at(LOADED, load), at(TCP_LOADED, load)]);
    let all: Vec<Point> = alone.into_iter().chain(loads).collect();
    let full = std::time::Duration::from_secs(1);
    let run = bench.time_per_point(all.len(), SHARE, OVERHEAD, full);
    let points = Points::measure(bench, &all, "per s", |bench, point| {
        measure(bench, &hosts, servers, point, run)
    })?;
    let (tcp, service) = (at(TCP, 0), at(SERVICE, 0));
    points.over(&mut outcome, "median_over_tcp_64b", service, tcp);
    points.over(&mut outcome, "asleep_over_tcp_64b", at(ASLEEP, 0), tcp);
    let one_core = at(TCP_ONE, 0);
    points.over(
        &mut outcome,
        "median_over_tcp_one_core_64b",
        service,
        one_core,
    );
    let spinning = at(TCP_SPINNING, 0);
    points.over(
        &mut outcome,
        "median_over_tcp_spinning_64b",
        service,
        spinning,
    );
    for (key, arm) in [
        ("service_64b_us", SERVICE),
        ("service_asleep_64b_us", ASLEEP),
        ("tcp_blocking_64b_us", TCP),
        ("tcp_blocking_one_core_64b_us", TCP_ONE),
        ("tcp_spinning_64b_us", TCP_SPINNING),
    ] {
        points.figure(&mut outcome, key, at(arm, 0), 1e3);
    }
    for load in LOADS {
        let key = format!("loaded_over_tcp_{load}_per_s");
        points.over(&mut outcome, &key, at(LOADED, load), at(TCP_LOADED, load));
    }
    let figure = drawing(
        "latency.svg",
        "64 bytes there and back (0: one at a time)",
        Axis::linear("load [msg/s]"),
        Axis::log("median [ns]"),
    );
    points.write(&mut outcome, figure, "median [ns]");
    Ok(outcome)
}

fn measure(
    bench: &Bench<'_>,
    hosts: &Hosts,
    [to, same, other]: [SocketAddr; 3],
    point: Point,
    run: std::time::Duration,
) -> Result<f64, ArmError> {
    let service = |asleep| service(hosts, to, asleep);
    let tcp = |to, spinning| By::Tcp { to, spinning };
    let by = match point.arm {
        SERVICE | LOADED => service(false),
        ASLEEP => service(true),
        TCP_ONE => tcp(same, false),
        TCP_SPINNING => tcp(other, true),
        _ => tcp(other, false),
    };
    let what = match point.x {
        0 => What::PingPong { size: SIZE },
        load => What::Load {
            size: SIZE,
            per_second: load as f64,
        },
    };
    ask(bench, hosts, (what, by), times(bench.hurried(run)))
}

fn notes() -> Vec<ArmNote> {
    vec![
        note(
            SERVICE,
            "streams of the service, through a daemon on each side; all four look around for a bounded time, offering \
             their processor to each other, and then sleep",
            "adaptive",
            "4 each way",
        ),
        note(
            ASLEEP,
            "the same, but both applications sleep in poll(2) whenever nothing is there",
            "block",
            "4 each way",
        ),
        note(
            TCP,
            "a TCP connection on loopback, TCP_NODELAY, between the two processors",
            "block",
            "2 each way",
        ),
        note(
            TCP_ONE,
            "the same, both on the first processor",
            "block",
            "2 each way",
        ),
        note(
            TCP_SPINNING,
            "the same between the two processors, with sockets that do not block, read in a circle",
            "poll",
            "2 each way",
        ),
        note(
            LOADED,
            "the service; one thread sends when it is time to, another receives",
            "adaptive",
            "4 each way",
        ),
        note(TCP_LOADED, "TCP, in the same way", "block", "2 each way"),
    ]
}
