//! Figure 12: atomics by the RNIC, and by the daemon of the host that holds the memory.

use super::one_sided::{self, Arm, at};
use super::{OVERHEAD, paper, rows};
use crate::cases::prelude::*;
use crate::service::virtual_time::{OneSidedLoad, OneSidedOp};

const COUNTERS: [u64; 5] = [1, 2, 5, 10, 20];
/// Threads, and atomics outstanding for each; the paper does not state these.
const CALLERS: usize = 8;
const OUTSTANDING: usize = 16;
/// Measured time of a point in virtual time.
const RUN: Duration = Duration::from_millis(2);

const NATIVE: Arm = Arm::native("native", 8);
const SERVICE: Arm = Arm::service("service", 8);

/// Figure 12.
pub static FIG12: Case<Arm> = Case {
    about: About {
        paper: paper("Figure 12"),
        ..About::new(
            "raas-fig12",
            "Atomics on 1 to 20 counters: by the RNIC, and by the daemon of the host that holds the counters.",
            "Fetch-and-adds per second on counters chosen at random, 128 outstanding: by verbs over eight queue \
             pairs, and over the service. At the end the counters are compared with the number of requests. On this \
             machine one thread posts all requests, over one connection of the service. On simulated RNICs eight \
             threads have 16 outstanding each, and each thread has its own queue pair or connection.",
        )
    },
    table: || {
        let axes = (Axis::linear("counters"), Axis::linear("[1/s]"));
        let mut t = rows(
            "fig12.svg",
            "Atomics by the RNIC and by daemons",
            axes,
            RATE,
        );
        let by_daemons = Claim::Between(3.7, 5.5);
        for counters in [1, 20] {
            let rate = |arm| at(arm, counters, RATE);
            for (arm, claim, section) in [
                (NATIVE, Claim::Exactly(2.4), "calibrated: nic.atomic, VI-A"),
                (SERVICE, by_daemons, "VI-A"),
            ] {
                let key = format!("atomics_{arm}_{counters}_million_per_s");
                t.metric(key, rate(arm) / 1e6).paper(claim, section);
            }
            let key = format!("atomics_service_over_native_{counters}");
            t.metric(key, rate(SERVICE) / rate(NATIVE));
        }
        t.note(
            "The paper's service does \"up to 3.7-5.5 million operations per second with regard to different \
             counters\". The text does not say which number of counters each value belongs to.",
        );
        t
    },
    measure: |bench, t, outcome| {
        let points = grid("", &[NATIVE, SERVICE], &COUNTERS);
        let sweep = Sweep::over("counters", OVERHEAD, Wall::from_secs(1));
        let is_simulated = bench.testbed.is_simulated();
        one_sided::measure(bench, t, outcome, (points, sweep), |point| {
            let (callers, connections) = match (is_simulated, point.arm.is_service()) {
                (true, _) => (CALLERS, CALLERS),
                (false, true) => (1, 1),
                (false, false) => (1, CALLERS),
            };
            let load = OneSidedLoad {
                what: OneSidedOp::Adds {
                    words: point.x as usize,
                },
                callers,
                connections,
                hosts: 1,
                outstanding: CALLERS * OUTSTANDING / callers,
            };
            (load, RUN)
        })
    },
};
