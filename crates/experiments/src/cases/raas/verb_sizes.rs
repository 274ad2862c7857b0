//! Figure 1: throughput of verbs over size.

use super::{paper, rows};
use crate::cases::prelude::*;
use crate::nic::{Verb, VerbLoad};

const SIZES: [u64; 7] = [8, 64, 512, 4096, 16 << 10, 128 << 10, 1 << 20];
/// Requests outstanding on the queue pair.
const DEPTH: usize = 16;
/// Warm-up of a point, and its measured time in virtual time.
const WARM: Duration = Duration::from_micros(20);
const RUN: Duration = Duration::from_millis(2);

const WRITE: &str = "RC WRITE";
const READ: &str = "RC READ";
const UC_WRITE: &str = "UC WRITE";
const UC_OVER_RC: &str = "uc_write_over_rc_write_64b";

fn bytes(arm: &'static str, size: u64) -> Expr<&'static str> {
    Expr::At(Point::at(arm, size), BYTES)
}

/// Figure 1.
pub static FIG1: Case<&str> = Case {
    about: About {
        paper: paper("Figure 1"),
        ..About::new(
            "raas-fig1",
            "WRITEs and READs over a reliable connection, and WRITEs over an unreliable one, by size.",
            "Bytes per second of WRITEs and of READs over RC, and of WRITEs over UC, from 8 B to 1 MiB, one queue pair with 16 outstanding. The \
             paper states neither sizes nor depth.",
        )
    },
    table: || {
        let axes = (Axis::log("size [B]"), Axis::log("[B/s]"));
        let mut t = rows("fig1.svg", "WRITEs and READs by size", axes, BYTES);
        t.arms = [WRITE, READ, UC_WRITE]
            .map(|name| {
                arm(
                    name,
                    "one queue pair, 16 outstanding",
                    "poll",
                    "1; simulated 0",
                )
            })
            .to_vec();
        for (size, name) in [(64, "64b"), (4096, "4k"), (1 << 20, "1m")] {
            t.metric(
                format!("read_over_write_{name}"),
                bytes(READ, size) / bytes(WRITE, size),
            );
        }
        let large = "derived: READ is close to WRITE for large messages (III-A)";
        t.of("read_over_write_1m").paper(Claim::About(1.0), large);
        t.metric("write_1m_gb_per_s", bytes(WRITE, 1 << 20) / 1e9);
        t.metric(UC_OVER_RC, bytes(UC_WRITE, 64) / bytes(WRITE, 64));
        t.metric(
            "uc_write_over_rc_write_1m",
            bytes(UC_WRITE, 1 << 20) / bytes(WRITE, 1 << 20),
        );
        t.of(UC_OVER_RC).paper(
            Claim::About(1.0),
            "derived: RC WRITE performs as well as UC WRITE (III-A)",
        );
        t
    },
    measure: |bench, _, _| {
        let points = grid("", &[WRITE, READ, UC_WRITE], &SIZES);
        let sweep = Sweep::over("B", Wall::from_millis(60), Wall::from_millis(500));
        let measured = bench.measure(points, sweep, |bench, point, time| {
            let load = VerbLoad {
                unreliable: point.arm == UC_WRITE,
                depth: DEPTH,
                work_ns: bench.perftest_ns(),
                ..VerbLoad::of(
                    match point.arm {
                        READ => Verb::Read,
                        _ => Verb::Write,
                    },
                    point.x as usize,
                )
            };
            let run = match bench.testbed.is_simulated() {
                true => RUN,
                false => Duration::from_nanos(time.as_nanos() as u64),
            };
            let rate = load.rate(&bench.testbed, 1, (WARM, run))?;
            Ok(rate.map(|rate| Sample::of([(BYTES, rate * point.x as f64)])))
        })?;
        Ok(measured.by_arm())
    },
};
