//! Figures 6 and 10: READs at random from memory that is spread over connections, of one host and in a
//! cluster. The service shares one link to a host among all connections; native verbs have a queue pair for
//! each.

use super::one_sided::{self, Arm, QUEUE_PAIRS, at};
use super::{OVERHEAD, paper, rows};
use crate::cases::prelude::*;
use crate::service::virtual_time::OneSidedLoad;

const SMALL: usize = 64;
const LARGE: usize = 64 << 10;
/// Bytes of each host's memory that is read: by short READs and by longer ones in virtual time, and on this
/// machine.
const REGIONS: [usize; 3] = [1 << 20, 16 << 20, 64 << 20];
/// READs outstanding in total where time is real.
const OUTSTANDING: usize = 16;
/// Numbers of connections in virtual time, and on this machine.
const CONNECTIONS: [u64; 8] = [1, 10, 100, 200, 300, 400, 500, 1000];
const CONNECTIONS_HERE: [u64; 4] = [1, 10, 100, 1000];
/// Most threads in virtual time. The other cores of 24 are for a daemon and for the rest of the host's work.
/// The paper has one thread for each queue pair.
const CALLERS: usize = 20;
/// Hosts of a cluster, including the reading one; connections to each of the others; and threads, a divisor
/// of the connections.
const HOSTS: [u64; 3] = [2, 3, 4];
const EACH: usize = 192;
const CALLERS_OF_192: usize = 16;
/// A throughput below this fraction is a drop.
const DROP: f64 = 0.95;

const NATIVE: Arm = Arm::native("native", LARGE);
const SERVICE: Arm = Arm::service("service", LARGE);
const SMALL_NATIVE: Arm = Arm::native("native, 64 B", SMALL);
const SMALL_SERVICE: Arm = Arm::service("service, 64 B", SMALL);
const ALL: [Arm; 4] = [NATIVE, SERVICE, SMALL_NATIVE, SMALL_SERVICE];
/// The number of hosts that are read from in the paper's setting of four hosts.
const TARGETS: usize = 3;
const CLUSTER: [Arm; 2] = [NATIVE.to(TARGETS), SERVICE.to(TARGETS)];

fn bytes(arm: Arm, x: u64) -> Expr<Arm> {
    at(arm, x, BYTES)
}

fn over_connections(file: &str, title: &str) -> Table<Arm> {
    rows(
        file,
        title,
        (Axis::log("connections"), Axis::log("[B/s]")),
        BYTES,
    )
}

/// Figure 6.
pub static FIG6: Case<Arm> = Case {
    about: About {
        paper: paper("Figure 6"),
        ..About::new(
            "raas-fig6",
            "READs of 64 KiB at random over 1 to 1000 connections: the service against a queue pair each.",
            "Bytes per second that one host READs at random addresses of other hosts' memory, spread evenly over 1 \
             to 1000 connections. On simulated RNICs one READ is outstanding on each connection: of 64 KiB, from one \
             other host and from three as in the paper, and of 64 B. On this machine 16 READs of 64 KiB are \
             outstanding in all, from 64 MiB of one other host.",
        )
    },
    table: || {
        let mut t = over_connections("fig6.svg", "READs of 64 KiB, and of 64 B, at random");
        for (arm, of, base) in [(SERVICE, "service", 10), (NATIVE, "native", 10)] {
            t.metric(
                format!("{of}_1000_over_{base}"),
                bytes(arm, 1000) / bytes(arm, base),
            );
            t.metric(format!("{of}_1000_gb_per_s"), bytes(arm, 1000) / 1e9);
        }
        t.metric("service_10_gb_per_s", bytes(SERVICE, 10) / 1e9);
        let queue_pairs = at(SERVICE, 1000, QUEUE_PAIRS);
        t.metric("service_queue_pairs", queue_pairs);
        for (of, native, service) in [
            ("", NATIVE, SERVICE),
            ("small_", SMALL_NATIVE, SMALL_SERVICE),
            ("cluster_", CLUSTER[0], CLUSTER[1]),
        ] {
            for base in [100, 400] {
                for (name, arm) in [("native", native), ("service", service)] {
                    let drop = bytes(arm, 1000) / bytes(arm, base);
                    t.metric(format!("{of}{name}_1000_over_{base}"), drop);
                }
            }
            for x in [100, 400, 1000] {
                let ratio = bytes(service, x) / bytes(native, x);
                t.metric(format!("{of}service_over_native_{x}"), ratio);
            }
        }
        let most = CONNECTIONS.map(|connections| at(SMALL_NATIVE, connections, RATE));
        let most = Expr::Highest(most.to_vec()) / 1e6;
        t.metric("small_native_most_million_per_s", most);
        let drops =
            "derived: starts to drop beyond 400 connections (VI-A), with a drop read as 5 %";
        t.of("cluster_native_1000_over_400")
            .paper(Claim::Below(DROP), drops);
        let stable = "derived: stable (VI-A)";
        t.of("cluster_service_1000_over_400")
            .paper(Claim::About(1.0), stable);
        let above = "derived: the service is above native RDMA, also with fewer than 400 connections (VI-A)";
        for connections in [100, 400, 1000] {
            let key = format!("cluster_service_over_native_{connections}");
            t.of(&key).paper(Claim::More(1.0), above);
        }
        t
    },
    measure: |bench, t, outcome| {
        let points = match bench.testbed.is_simulated() {
            true => [
                grid("", &ALL, &CONNECTIONS),
                grid("", &CLUSTER, &CONNECTIONS[2..]),
            ]
            .concat(),
            false => grid("", &[SERVICE, NATIVE], &CONNECTIONS_HERE),
        };
        measure(bench, t, outcome, points)
    },
};

const PAGES_NATIVE: Arm = Arm::native("native", 4096);
const PAGES_SERVICE: Arm = Arm::service("service", 4096);

/// Figure 6 with READs of 4 KiB, which the paper does not show.
pub static FIG6_4K: Case<Arm> = Case {
    about: About::new(
        "raas-fig6-4k",
        "READs of 4 KiB at random over 1 to 1000 connections: the service against a queue pair each.",
        "As raas-fig6, but from one other host only and with READs of 4 KiB.",
    ),
    table: || {
        let mut t = over_connections("fig6-4k.svg", "READs of 4 KiB at random");
        let (native, service) = (PAGES_NATIVE, PAGES_SERVICE);
        for (key, arm) in [("native", native), ("service", service)] {
            let drop = bytes(arm, 1000) / bytes(arm, 100);
            t.metric(format!("{key}_1000_over_100"), drop);
        }
        for x in [100, 1000] {
            let ratio = bytes(service, x) / bytes(native, x);
            t.metric(format!("service_over_native_{x}"), ratio);
        }
        t
    },
    measure: |bench, t, outcome| {
        let points = grid("", &[PAGES_SERVICE, PAGES_NATIVE], &CONNECTIONS_HERE);
        measure(bench, t, outcome, points)
    },
};

/// Measures points whose x is the total number of connections.
fn measure(
    bench: &mut Bench<'_>,
    t: &mut Table<Arm>,
    outcome: &mut Outcome,
    points: Vec<Point<Arm>>,
) -> Result<Measured<Arm>, RunError> {
    let overhead = OVERHEAD + Wall::from_millis(100);
    let sweep = Sweep::over("connections", overhead, Wall::from_secs(1));
    let is_simulated = bench.testbed.is_simulated();
    one_sided::measure(bench, t, outcome, (points, sweep), |point| {
        let connections = point.x as usize;
        load(
            point.arm,
            is_simulated,
            connections,
            CALLERS.min(connections),
        )
    })
}

/// Returns the load of `connections` connections, and its time in virtual time. There one READ is outstanding
/// on each, and a thousand long READs take 14 ms on the link.
fn load(
    arm: Arm,
    is_simulated: bool,
    connections: usize,
    callers: usize,
) -> (OneSidedLoad, Duration) {
    let (region, run) = match arm.bytes {
        SMALL => (REGIONS[0], 4),
        LARGE => (REGIONS[1], 120),
        _ => (REGIONS[1], 12),
    };
    let load = match is_simulated {
        true => arm.reads(region, callers, connections),
        false => OneSidedLoad {
            outstanding: OUTSTANDING,
            ..arm.reads(REGIONS[2], 1, connections)
        },
    };
    (load, Duration::from_millis(run))
}

/// Figure 10.
pub static FIG10: Case<Arm> = Case {
    about: About {
        paper: paper("Figure 10"),
        ..About::new(
            "raas-fig10",
            "READs at random in a cluster of 2 to 4 hosts, 192 connections to each: the service against a queue pair each.",
            "Bytes per second that one host READs from the others over 192 connections to each, by READs of 64 KiB \
             and of 64 B. On simulated RNICs one READ is outstanding on each connection. On this machine 16 are \
             outstanding in all, from 64 MiB of memory of each other host.",
        )
    },
    table: || {
        let title = "READs at random, 192 connections to each host";
        let axes = (Axis::linear("hosts"), Axis::log("[B/s]"));
        let mut t = rows("fig10.svg", title, axes, BYTES);
        for hosts in HOSTS {
            let key = format!("service_over_native_{hosts}_hosts");
            let small = bytes(SMALL_SERVICE, hosts) / bytes(SMALL_NATIVE, hosts);
            t.metric(format!("small_{key}"), small);
            t.metric(key, bytes(SERVICE, hosts) / bytes(NATIVE, hosts))
                .paper(
                    Claim::More(1.0),
                    "derived: above native RDMA whatever the size of the cluster (VI-A)",
                );
        }
        for (key, arm) in [
            ("native_4_over_2_hosts", NATIVE),
            ("small_native_4_over_2_hosts", SMALL_NATIVE),
            ("small_service_4_over_2_hosts", SMALL_SERVICE),
        ] {
            t.metric(key, bytes(arm, 4) / bytes(arm, 2));
        }
        t
    },
    measure: |bench, t, outcome| {
        let overhead = Wall::from_millis(500);
        let sweep = Sweep::over("hosts", overhead, Wall::from_secs(1));
        let is_simulated = bench.testbed.is_simulated();
        one_sided::measure(
            bench,
            t,
            outcome,
            (grid("", &ALL, &HOSTS), sweep),
            |point| {
                let others = point.x as usize - 1;
                load(
                    point.arm.to(others),
                    is_simulated,
                    EACH * others,
                    CALLERS_OF_192,
                )
            },
        )
    },
};
