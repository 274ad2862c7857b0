//! What others published of such RNICs, where a source can be named. Nothing here is compared by a test: machines,
//! links and programs were others, as far as the source says which.

use crate::nic::loaded::Verb;

use super::points::{FEW, Point};

/// A figure that somebody published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    /// The preset that comes nearest.
    pub(super) machine: &'static str,
    /// What it is of, on the machine of that index.
    pub(super) point: fn(usize) -> Point,
    /// Lowest and highest, in millions of requests per second; of latency in microseconds.
    pub(super) range: (f64, f64),
    /// Where.
    pub(super) source: &'static str,
}

const QDR: &str = "output of perftest on mlx4, 32 Gbit/s InfiniBand, MTU 2048";
const ISSUE: &str = "github.com/linux-rdma/perftest/issues/131 (mlx5)";
const ATC: &str = "Kalia et al., Design Guidelines for High Performance RDMA Systems, ATC 2016";
const REDN: &str = "Reda et al., RedN, NSDI 2022 (cited from memory)";
const CX6_PAIR: &str = "comments in a benchmark of two CX-6 in one host, 32 threads";

macro_rules! published {
    ($($machine:literal $low:literal..$high:literal $source:expr, $point:expr;)*) => {
        /// All of them.
        pub(super) const PUBLISHED: &[Published] = &[$(Published {
            machine: $machine,
            point: $point,
            range: ($low, $high),
            source: $source,
        }),*];
    };
}

published! {
    "cx3-40g" 1.16..1.16 QDR, |at| Point::latency(at, Verb::Send, 64).inline();
    "cx3-40g" 1.27..1.27 QDR, |at| Point::latency(at, Verb::Send, 128).inline();
    "cx3-40g" 1.86..1.86 QDR, |at| Point::latency(at, Verb::Send, 256);
    "cx3-40g" 2.43..2.43 QDR, |at| Point::latency(at, Verb::Send, 1024);
    "cx3-40g" 3.77..3.77 QDR, |at| Point::latency(at, Verb::Send, 4096);
    "cx3-40g" 1.09..1.09 QDR, |at| Point::latency(at, Verb::Write, 64).inline();
    "cx3-40g" 1.22..1.22 QDR, |at| Point::latency(at, Verb::Write, 128).inline();
    "cx3-40g" 1.84..1.84 QDR, |at| Point::latency(at, Verb::Write, 256);
    "cx3-40g" 2.42..2.42 QDR, |at| Point::latency(at, Verb::Write, 1024);
    "cx3-40g" 3.74..3.74 QDR, |at| Point::latency(at, Verb::Write, 4096);
    "cx3-40g" 2.02..2.02 QDR, |at| Point::latency(at, Verb::Read, 64);
    "cx3-40g" 2.13..2.13 QDR, |at| Point::latency(at, Verb::Read, 256);
    "cx3-40g" 2.70..2.70 QDR, |at| Point::latency(at, Verb::Read, 1024);
    "cx3-40g" 4.02..4.02 QDR, |at| Point::latency(at, Verb::Read, 4096);
    "cx3-40g" 2.34..2.34 QDR, |at| Point::latency(at, Verb::FetchAdd, 8);
    "cx3-40g" 5.37..5.37 QDR, |at| Point::rate(at, Verb::Send, 64, 1);
    "cx3-40g" 3.11..3.11 QDR, |at| Point::rate(at, Verb::Send, 1024, 1);
    "cx3-40g" 5.2..5.3 QDR, |at| Point::rate(at, Verb::Write, 256, 1);
    "cx3-40g" 3.52..3.52 QDR, |at| Point::rate(at, Verb::Write, 1024, 1);
    "cx3-40g" 4.7..6.3 QDR, |at| Point::rate(at, Verb::Read, 64, 1);
    "cx3-40g" 2.447..2.447 QDR, |at| Point::rate(at, Verb::FetchAdd, 8, 1);
    "cx3-40g" 2.7..2.7 ATC, |at| Point::rate(at, Verb::FetchAdd, 8, FEW);
    "cx3-40g" 0.0689..0.0689 "github.com/openucx/ucx/issues/9430 (CX-3, 40 Gbit/s RoCE: 36.1 Gbit/s)",
        |at| Point::rate(at, Verb::Send, 65536, 1);
    "cx3-40g" 15.0..15.0 REDN, |at| Point::all_cores(at, Verb::Write, 64);
    "cx5-100g" 0.93..0.99 "github.com/linux-rdma/perftest/issues/131 (mlx5); output of perftest on CX-5 (8 B)",
        |at| Point::latency(at, Verb::Write, 64).inline();
    "cx5-100g" 1.32..1.32 ISSUE, |at| Point::latency(at, Verb::Write, 64);
    "cx5-100g" 1.91..1.91 ISSUE, |at| Point::latency(at, Verb::Read, 64);
    "cx5-100g" 2.24..2.24 "Kalia et al., ATC 2016 (Connect-IB, one address)", |at| Point::rate(at, Verb::FetchAdd, 8, 1);
    "cx5-100g" 63.0..63.0 REDN, |at| Point::all_cores(at, Verb::Write, 64);
    "cx5-100g" 65.0..65.0 REDN, |at| Point::all_cores(at, Verb::Read, 64);
    "cx5-100g" 8.4..8.4 REDN, |at| Point::all_cores(at, Verb::CompareSwap, 8);
    "cx5-100g" 0.01073..0.01073 "RB², V-B, experiment 1: close to 90 Gbit/s", |at| Point::rate(at, Verb::Write, 1 << 20, 1);
    "cx6-100g" 4.58..4.70 "output of perftest on a 100 Gbit/s card of CX-6's class, one process",
        |at| Point::rate(at, Verb::Write, 64, FEW);
    "cx6-100g" 2.17..2.17 CX6_PAIR, |at| Point::rate(at, Verb::FetchAdd, 8, 1);
    "cx6-100g" 2.04..2.04 CX6_PAIR, |at| Point::rate(at, Verb::CompareSwap, 8, 1);
    "cx6-100g" 106.0..123.0 CX6_PAIR, |at| Point::all_cores(at, Verb::Write, 64);
    "cx6-100g" 65.0..121.0 CX6_PAIR, |at| Point::all_cores(at, Verb::Read, 64);
}

impl Published {
    /// How far a value is from the range: 0 within, -0.1 a tenth below its lower end.
    pub(super) fn off(&self, ours: f64) -> f64 {
        let (low, high) = self.range;
        match ours {
            _ if ours < low => ours / low - 1.0,
            _ if ours > high => ours / high - 1.0,
            _ => 0.0,
        }
    }

    /// One figure, or two.
    pub(super) fn range_text(&self) -> String {
        match self.range {
            (low, high) if low == high => low.to_string(),
            (low, high) => format!("{low} – {high}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::raw_verbs::points::{Machine, all};
    use crate::simulated::Simulated;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn distance_is_from_the_nearer_end() {
        let range = |range| Published {
            range,
            ..PUBLISHED[0]
        };
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(range((2.0, 4.0)).off(3.0), 0.0));
        assert!(close(range((2.0, 4.0)).off(1.0), -0.5));
        assert!(close(range((2.0, 4.0)).off(5.0), 0.25));
        assert_eq!(range((2.0, 4.0)).range_text(), "2 – 4");
        assert_eq!(range((2.5, 2.5)).range_text(), "2.5");
    }

    #[test]
    fn every_published_figure_is_of_a_point_that_is_measured() {
        let stop = AtomicBool::new(false);
        for found in PUBLISHED {
            let there = Simulated::named(found.machine).expect(found.machine);
            let machine = Machine::new(there.device(), there.place(&stop), Some(there.preset()));
            let points = all(0, &machine, false);
            let point = (found.point)(0);
            assert!(points.contains(&point), "{} {point:?}", found.machine);
            assert!(found.range.0 <= found.range.1 && !found.source.is_empty());
        }
    }
}
