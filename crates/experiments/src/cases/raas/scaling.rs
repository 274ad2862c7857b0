//! Requests per second over the number of a daemon's workers.

use super::one_sided::{self, Arm, at};
use super::rows;
use crate::cases::prelude::*;
use crate::service::virtual_time::OneSidedLoad;

const WORKERS: [u64; 5] = [1, 2, 4, 8, 16];
/// Other hosts, each of which is carried by one worker.
const HOSTS: usize = 16;
/// Applications, two for each other host: more than enough to occupy the workers.
const CALLERS: usize = 32;
/// Requests outstanding for each application.
const OUTSTANDING: usize = 16;
/// Bytes of each host's memory that is read.
const REGION: usize = 1 << 20;
/// Measured time of a point.
const RUN: Duration = Duration::from_millis(1);

const SMALL: Arm = Arm::workers("64 B", 64).to(HOSTS);
const PAGE: Arm = Arm::workers("4 KiB", 4096).to(HOSTS);

/// Scaling with workers.
pub static SCALING: Case<Arm> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        ..About::new(
            "service-scaling",
            "READs of 64 B and 4 KiB from 16 hosts, carried by 1 to 16 workers of one daemon.",
            "READs per second at random addresses of 16 other hosts, by 32 applications of one host with 16 outstanding \
             each. Their daemon has 1 to 16 workers with a core each. Simulated. A worker is charged for each step \
             (60 ns, 12 ns for its lock, 6 ns for each session), for a step with work (350 ns), for a request (82 ns \
             until it is posted, and 82 ns from its completion on), and for each cache line that it reads from an \
             application's core: a mark in the doorbell, a cursor, and each record. The device's model charges for \
             posting and polling.",
        )
    },
    table: || {
        let axes = (Axis::log("workers"), Axis::log("[1/s]"));
        let title = "READs per second over the number of workers";
        let mut t = rows("scaling.svg", title, axes, RATE);
        for (name, arm) in [("64b", SMALL), ("4k", PAGE)] {
            let rate = |workers| at(arm, workers, RATE);
            for workers in WORKERS {
                let key = format!("rate_{workers}_{name}_million_per_s");
                t.metric(key, rate(workers) / 1e6);
            }
            t.metric(format!("rate_8_over_1_{name}"), rate(8) / rate(1));
            t.metric(format!("rate_16_over_1_{name}"), rate(16) / rate(1));
        }
        t.metric("bytes_8_4k_gb_per_s", at(PAGE, 8, BYTES) / 1e9);
        t
    },
    measure: |bench, t, outcome| {
        let points = grid("", &[SMALL, PAGE], &WORKERS);
        let sweep = Sweep::over("workers", Wall::ZERO, Wall::from_secs(1));
        one_sided::measure(bench, t, outcome, (points, sweep), |point| {
            let load = OneSidedLoad {
                outstanding: OUTSTANDING,
                ..point.arm.reads(REGION, CALLERS, CALLERS)
            };
            (load, RUN)
        })
    },
};
