//! Values that others published for comparable RNICs, if a source can be named. No test compares them: their
//! machines, links and programs were different, as far as the sources name them.

use super::{MIB, Of, Run, all_cores, latency, rate};
use crate::cases::prelude::*;
use crate::nic::Verb::{CompareSwap, FetchAdd, Read, Send, Write};
use crate::outcome::Grid;

/// A published value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    /// The corresponding run, on the preset that comes closest.
    pub(super) run: Run,
    /// The value, or the lowest of several: millions of requests per second, or microseconds of latency.
    pub(super) low: f64,
    /// The highest of several published values; otherwise equal to `low`.
    pub(super) high: f64,
    /// The publication, and the place of the value in it.
    pub(super) source: &'static str,
}

const QDR: &str = "output of perftest on mlx4, 32 Gbit/s InfiniBand, MTU 2048";
const UCX: &str = "github.com/openucx/ucx/issues/9430 (CX-3, 40 Gbit/s RoCE: 36.1 Gbit/s)";
const ISSUE: &str = "github.com/linux-rdma/perftest/issues/131 (mlx5)";
const ISSUE_AND_OUTPUT: &str =
    "github.com/linux-rdma/perftest/issues/131 (mlx5); output of perftest on CX-5 (8 B)";
const ATC: &str = "Kalia et al., Design Guidelines for High Performance RDMA Systems, ATC 2016";
const CONNECT_IB: &str = "Kalia et al., ATC 2016 (Connect-IB, one address)";
const REDN: &str = "Reda et al., RedN, NSDI 2022 (cited from memory)";
const RB2: &str = "RB², V-B, experiment 1: close to 90 Gbit/s";
const OUTPUT: &str = "output of perftest on a 100 Gbit/s card of CX-6's class, one process";
const CX6_PAIR: &str = "comments in a benchmark of two CX-6 in one host, 32 threads";

/// Lowest value, highest value, source and run.
type Row = (f64, f64, &'static str, Run);

const CX3: &[Row] = &[
    (1.16, 1.16, QDR, latency(Send, 64).inline()),
    (1.27, 1.27, QDR, latency(Send, 128).inline()),
    (1.86, 1.86, QDR, latency(Send, 256)),
    (2.43, 2.43, QDR, latency(Send, 1024)),
    (3.77, 3.77, QDR, latency(Send, 4096)),
    (1.09, 1.09, QDR, latency(Write, 64).inline()),
    (1.22, 1.22, QDR, latency(Write, 128).inline()),
    (1.84, 1.84, QDR, latency(Write, 256)),
    (2.42, 2.42, QDR, latency(Write, 1024)),
    (3.74, 3.74, QDR, latency(Write, 4096)),
    (2.02, 2.02, QDR, latency(Read, 64)),
    (2.13, 2.13, QDR, latency(Read, 256)),
    (2.70, 2.70, QDR, latency(Read, 1024)),
    (4.02, 4.02, QDR, latency(Read, 4096)),
    (2.34, 2.34, QDR, latency(FetchAdd, 8)),
    (5.37, 5.37, QDR, rate(Send, 64)),
    (3.11, 3.11, QDR, rate(Send, 1024)),
    (5.2, 5.3, QDR, rate(Write, 256)),
    (3.52, 3.52, QDR, rate(Write, 1024)),
    (4.7, 6.3, QDR, rate(Read, 64)),
    (2.447, 2.447, QDR, rate(FetchAdd, 8)),
    (2.7, 2.7, ATC, rate(FetchAdd, 8).few()),
    (0.0689, 0.0689, UCX, rate(Send, 65536)),
    (15.0, 15.0, REDN, all_cores(Write, 64)),
];
const CX5: &[Row] = &[
    (0.93, 0.99, ISSUE_AND_OUTPUT, latency(Write, 64).inline()),
    (1.32, 1.32, ISSUE, latency(Write, 64)),
    (1.91, 1.91, ISSUE, latency(Read, 64)),
    (2.24, 2.24, CONNECT_IB, rate(FetchAdd, 8)),
    (63.0, 63.0, REDN, all_cores(Write, 64)),
    (65.0, 65.0, REDN, all_cores(Read, 64)),
    (8.4, 8.4, REDN, all_cores(CompareSwap, 8)),
    (0.01073, 0.01073, RB2, rate(Write, MIB)),
];
const CX6: &[Row] = &[
    (4.58, 4.70, OUTPUT, rate(Write, 64).few()),
    (2.17, 2.17, CX6_PAIR, rate(FetchAdd, 8)),
    (2.04, 2.04, CX6_PAIR, rate(CompareSwap, 8)),
    (106.0, 123.0, CX6_PAIR, all_cores(Write, 64)),
    (65.0, 121.0, CX6_PAIR, all_cores(Read, 64)),
];

/// Returns every published value.
pub(super) fn all() -> impl Iterator<Item = Published> {
    let machines = [("cx3-40g", CX3), ("cx5-100g", CX5), ("cx6-100g", CX6)];
    machines.into_iter().flat_map(|(machine, rows)| {
        rows.iter().map(move |&(low, high, source, run)| Published {
            run: run.on(machine),
            low,
            high,
            source,
        })
    })
}

impl Published {
    /// Returns the published value of a run, if there is one.
    pub(super) fn of(run: &Run) -> Option<Self> {
        all().find(|there| there.run == *run)
    }
}

/// Makes a table of our results beside published values.
pub(super) fn beside(measured: &Measured<Run>) -> Option<Grid> {
    let row = |there: Published| {
        let Published { run, low, high, .. } = there;
        let ours = run.natural().median(measured)?;
        let what = run.on("").to_string();
        let unit = if run.of == Of::Latency { "µs" } else { "M/s" };
        let range = match low == high {
            true => low.to_string(),
            false => format!("{low} – {high}"),
        };
        let off = 100.0 * Claim::Between(low, high).off(ours);
        let (ours, off) = (human(ours), format!("{off:+.0} %"));
        let cells = [run.machine, &what, unit, &ours, &range, &off, there.source];
        Some(cells.map(String::from).to_vec())
    };
    let rows: Vec<_> = all().filter_map(row).collect();
    let header = [
        "machine",
        "what",
        "unit",
        "ours (simulated)",
        "published",
        "off",
        "source",
    ];
    Grid::of("Beside published figures", header, rows)
}
