//! Figure 10: READs at random in a cluster, from one host to each of the others.

use std::net::SocketAddr;
use std::time::Duration;

use headworks::verbs::DeviceName;

use super::points::{Point, Points, at, drawing};
use super::sim_fig6::{SMALL_NATIVE, SMALL_SERVICE};
use super::simulated::{NATIVE as LARGE_NATIVE, SERVICE as LARGE_SERVICE, SMALL, grid};
use super::{PORT, ask, held, note, paper, sim_fig6, times};
use crate::bench::Bench;
use crate::error::RunError;
use crate::experiment::{About, Programmed};
use crate::format::svg::Axis;
use crate::outcome::{ArmNote, Outcome};
use crate::service::asking::{By, What};
use crate::service::hosts::Hosts;
use crate::service::simulated::{self, Load};
use crate::transports::ArmError;

/// Hosts of the cluster, the one that asks among them.
const HOSTS: [u64; 3] = [2, 3, 4];
const MOST: usize = 4;
/// Connections to each of the others.
const EACH: usize = 192;
/// Bytes of a READ.
const LARGE: usize = 64 << 10;
/// Bytes of the memory of each of the others, and READs under way in all, where time is not virtual.
const REGION: usize = 64 << 20;
const OUTSTANDING: usize = 16;
const SHARE: f64 = 0.85;
/// Beside what is measured: so many connections are made, and their memory is.
const CONNECTING: Duration = Duration::from_millis(500);

/// The arms: READs of 64 KiB and of 64 B, each natively and over the service.
const ARMS: [&str; 4] = [LARGE_NATIVE, LARGE_SERVICE, SMALL_NATIVE, SMALL_SERVICE];

/// How it presents itself, its metrics and what runs it.
pub static FIG10: Programmed = Programmed {
    about: About {
        paper: Some(paper("Figure 10")),

        ..About::new(
            "raas-fig10",
            "READs at random in a cluster of 2 to 4 hosts, 192 connections to each: the service against a queue pair each.",
            "Bytes that one host READs per second from the others, over 192 connections to each: of 64 KiB, and of 64 B. On \
               simulated RNICs one READ is outstanding of each connection; on this machine 16 in all, of memory of 64 MiB of \
               each of the others.",
        )
    },
    keys: &[
        "service_over_native_2_hosts",
        "service_over_native_3_hosts",
        "service_over_native_4_hosts",
        "small_service_over_native_2_hosts",
        "small_service_over_native_3_hosts",
        "small_service_over_native_4_hosts",
        "native_4_over_2_hosts",
        "small_native_4_over_2_hosts",
        "small_service_4_over_2_hosts",
    ],
    stated: &[],
    figures: &["fig10.svg"],
    run: run_fig10,
};

fn run_fig10(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    let all = grid(&ARMS, &HOSTS);
    let (mut outcome, points) = match bench.place.is_simulated() {
        true => sim_fig6::cluster(bench, &all, EACH)?,
        false => {
            let mut outcome = bench.pinned(pinning);
            outcome.arms = notes();
            match served(bench)? {
                Ok((hosts, to)) => {
                    let full = Duration::from_secs(1);
                    let run = bench.time_per_point(all.len(), SHARE, CONNECTING, full);
                    let points = Points::measure(bench, &all, "hosts", |bench, point| {
                        measure(bench, &hosts, &to, point, run)
                    })?;
                    (outcome, points)
                }
                Err(why) => {
                    for key in FIG10.keys {
                        outcome.skip(*key, why.to_string());
                    }
                    return Ok(outcome);
                }
            }
        }
    };
    record(&mut outcome, &points);
    Ok(outcome)
}

fn record(outcome: &mut Outcome, points: &Points) {
    for hosts in HOSTS {
        let key = format!("service_over_native_{hosts}_hosts");
        let both = [LARGE_SERVICE, LARGE_NATIVE].map(|arm| at(arm, hosts));
        points.over(outcome, &key, both[0], both[1]);
        let key = format!("small_{key}");
        let both = [SMALL_SERVICE, SMALL_NATIVE].map(|arm| at(arm, hosts));
        points.over(outcome, &key, both[0], both[1]);
    }
    for (key, arm) in [
        ("native_4_over_2_hosts", LARGE_NATIVE),
        ("small_native_4_over_2_hosts", SMALL_NATIVE),
        ("small_service_4_over_2_hosts", SMALL_SERVICE),
    ] {
        points.over(outcome, key, at(arm, 4), at(arm, 2));
    }
    let figure = drawing(
        "fig10.svg",
        "READs at random, 192 connections to each host",
        Axis::linear("hosts"),
        Axis::log("[B/s]"),
    );
    points.write(outcome, figure, "[B/s]");
}

fn pinning([here, there]: [usize; 2]) -> String {
    format!(
        "whoever asks and its host's daemon on cpu {here}, all other hosts on cpu {there}, for every arm"
    )
}

/// Daemons of all hosts, and where an application of each but the first is asked.
fn served(bench: &Bench<'_>) -> Result<Result<(Hosts, Vec<SocketAddr>), ArmError>, RunError> {
    bench.check()?;
    let [here, there] = bench.place.cpus;
    let mut cpus = [there; MOST];
    cpus[0] = here;
    let start = || {
        let devices = devices(&bench.place.devices)?;
        let mut hosts = Hosts::start(&devices, &cpus, bench.stop())?;
        let serve = |host| hosts.serve(host, PORT, bench.stop());
        let to: Result<Vec<_>, _> = (1..MOST).map(serve).collect();
        Ok((hosts, to?))
    };
    let served = start();
    bench.check()?;
    Ok(served)
}

/// Devices of all hosts: other soft hosts, and of other kinds the peer's once more.
fn devices(both: &[DeviceName; 2]) -> Result<Vec<DeviceName>, ArmError> {
    let mut all = both.to_vec();
    for host in both.len()..MOST {
        let name = match both[1].kind() {
            "soft" => format!("soft:cluster{host}"),
            _ => both[1].to_string(),
        };
        let name = name.parse();
        all.push(name.map_err(|error| ArmError::at("a device's name", error))?);
    }
    Ok(all)
}

fn measure(
    bench: &Bench<'_>,
    hosts: &Hosts,
    to: &[SocketAddr],
    point: Point,
    run: Duration,
) -> Result<f64, ArmError> {
    let others: Vec<usize> = (1..point.x as usize).collect();
    let size = match point.arm {
        LARGE_NATIVE | LARGE_SERVICE => LARGE,
        _ => SMALL,
    };
    let what = What::Requests(Load {
        what: simulated::What::Reads {
            bytes: size,
            region: REGION,
        },
        callers: 1,
        connections: EACH * others.len(),
        hosts: others.len(),
        outstanding: OUTSTANDING,
    });
    let times = times(bench.hurried(run));
    match point.arm {
        LARGE_NATIVE | SMALL_NATIVE => {
            let (by, _held) = held(bench, hosts, &others, EACH, REGION)?;
            ask(bench, hosts, (what, by), times)
        }
        _ => {
            let by = By::Service {
                socket: hosts.socket(0),
                to: to[..others.len()].to_vec(),
                asleep: false,
            };
            ask(bench, hosts, (what, by), times)
        }
    }
}

fn notes() -> Vec<ArmNote> {
    let own = "READs of one thread over a queue pair of its own for each connection, whose completion queue it polls";
    let shared = "one-sided reads of the service's, of one thread: all connections to a host over the queue pairs of one link";
    let of = |bytes: &str, what: &str| format!("{what}; {bytes}");
    vec![
        note(LARGE_NATIVE, &of("64 KiB", own), "poll", "1"),
        note(LARGE_SERVICE, &of("64 KiB", shared), "adaptive", "1"),
        note(SMALL_NATIVE, &of("64 B", own), "poll", "1"),
        note(SMALL_SERVICE, &of("64 B", shared), "adaptive", "1"),
    ]
}
