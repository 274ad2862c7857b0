//! Figures 8 and 12: the storage server of [`storage`](super::storage) with the designs that the paper adds one after the
//! other, and times in memory that vary. On simulated devices that model the memory of hosts.

use std::fmt;

use super::receiving_host::{FASTER_TESTBED, about, check_arms, memory_of, unless_set};
use super::storage::{
    Arm, DEVICE_HITS, DMA_CACHE_KIB, HITS, LARGE, LATENCY, MEMORY, SHORT, TAIL, THROUGHPUT, serve,
};
use crate::cases::prelude::*;
use crate::nic::storage::{StayTime, StorageLoad};

/// Sizes of messages in KiB. Those of 4 KiB are SENDs.
const SIZES: [u64; 3] = [SHORT, SMALL, LARGE];
const SMALL: u64 = 16;
/// Mean times in memory in microseconds.
const STAYS: [u64; 3] = [50, USUAL, 500];
const USUAL: u64 = 200;
/// Share of the memory's bandwidth that the antagonist would use.
const PRESSURE: f64 = 1.0;
const DESIGNS: [Arm; 4] = [Arm::O, Arm::I, Arm::IF, Arm::JET];

/// Designs, and how the times in memory vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Served {
    design: Arm,
    stay: StayTime,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stay = match self.stay {
            StayTime::Fixed => "fixed",
            StayTime::Exponential => "exponential",
            StayTime::Pareto => "Pareto",
        };
        write!(f, "{}, {stay}", self.design)
    }
}

impl Served {
    const fn of(design: Arm, stay: StayTime) -> Self {
        Self { design, stay }
    }

    fn load(self, kib: u64, stay_us: u64) -> StorageLoad {
        // As many bytes are under way for short messages as the links need.
        let outstanding = (1024 / kib).clamp(4, 12);
        StorageLoad {
            outstanding: outstanding as usize,
            stay_ns: stay_us * 1000,
            stay: self.stay,
            ..self.design.load(kib, outstanding)
        }
    }
}

fn at(design: Arm, kib: u64, quantity: Quantity) -> Expr<Served> {
    let arm = Served::of(design, StayTime::Exponential);
    Expr::At(Point::at(arm, kib).with(USUAL), quantity)
}

/// Returns a quantity of a design over that of the baseline.
fn gain(design: Arm, kib: u64, quantity: Quantity) -> Expr<Served> {
    at(design, kib, quantity) / at(Arm::O, kib, quantity)
}

/// Figures 8 and 12.
pub static FIG8: Case<Served> = Case {
    about: about(
        "jet-fig8",
        "Figures 8 and 12",
        "A storage server under memory pressure with Jet's designs added one after the other, and times in memory that \
         vary (--device sim:cx6dx-2x100g).",
        "The server of jet-fig6 with messages of 4 KiB (SENDs), 16 and 256 KiB that stay in memory for 50, 200 or 500 µs on average, \
         exponentially distributed; for 200 µs also always the same, and Pareto. Areas; with an isolated cache; with \
         slices, too; and with the pool, too: throughput, messages a second, latency, hits, memory traffic.",
    ),
    table,
    measure: |bench, _, _| {
        let preset = memory_of(bench)?;
        check_arms(
            bench,
            DESIGNS.map(|design| design.settings(&preset, PRESSURE)),
        )?;
        let is_quick = bench.options.quick;
        let mut points = Vec::new();
        for design in DESIGNS {
            for kib in SIZES {
                let arm = Served::of(design, StayTime::Exponential);
                let stays = STAYS.iter().filter(|stay| !is_quick || **stay == USUAL);
                points.extend(stays.map(|stay| Point::at(arm, kib).with(*stay)));
                if !is_quick {
                    let others = [StayTime::Fixed, StayTime::Pareto];
                    points.extend(
                        others.map(|stay| Point::at(Served::of(design, stay), kib).with(USUAL)),
                    );
                }
            }
        }
        let sweep = Sweep::in_virtual_time("message size [KiB]", "stay [µs]");
        bench.measure(points, sweep, |bench, point, _| {
            let settings = unless_set(bench, point.arm.design.settings(&preset, PRESSURE));
            let testbed = bench.testbed_with(&settings)?;
            serve(&testbed, &point.arm.load(point.x, point.n), is_quick)
        })
    },
};

fn table() -> Table<Served> {
    let stays = [StayTime::Exponential, StayTime::Fixed, StayTime::Pareto];
    let notes = DESIGNS.iter().flat_map(|design| {
        stays.map(|stay| {
            let note = design.note();
            arm(
                Served::of(*design, stay).to_string(),
                note.what,
                "poll",
                "0",
            )
        })
    });
    let mut t = Table::new(notes.collect());
    t.arm().x("message size [KiB]").n("stay [µs]");
    t.value("throughput [GB/s]", THROUGHPUT);
    t.median("messages [1,000/s]", |point| {
        Expr::At(*point, THROUGHPUT) * (1e6 / (point.x * 1024) as f64)
    });
    t.value("average latency [µs]", LATENCY);
    t.value("p99.9 [µs]", TAIL);
    t.value("hits of DMA [GB/s]", HITS);
    t.value("hits of the device that reads [%]", DEVICE_HITS);
    t.value("memory, without the antagonist [GB/s]", MEMORY);
    for (key, design, kib, claim) in [
        ("isolated_16k", Arm::I, SMALL, Claim::About(0.896)),
        ("isolated_256k", Arm::I, LARGE, Claim::About(0.943)),
        ("slices_16k", Arm::IF, SMALL, Claim::About(1.648)),
        ("slices_256k", Arm::IF, LARGE, Claim::About(1.205)),
        ("all_16k", Arm::JET, SMALL, Claim::About(2.11)),
        ("all_256k", Arm::JET, LARGE, Claim::About(2.11)),
    ] {
        t.metric(format!("{key}_over_areas"), gain(design, kib, THROUGHPUT))
            .paper_on(
                FASTER_TESTBED,
                claim,
                "6.3, Figures 8a and 8b: messages a second",
            );
    }
    t.metric("all_4k_over_areas", gain(Arm::JET, SHORT, THROUGHPUT));
    let lower = |kib, quantity| (Expr::Is(1.0) - gain(Arm::JET, kib, quantity)) * 100.0;
    for (key, kib, quantity, value) in [
        ("latency_lower_16k_percent", SMALL, LATENCY, 43.5),
        ("latency_lower_256k_percent", LARGE, LATENCY, 51.6),
        ("tail_lower_256k_percent", LARGE, TAIL, 86.4),
    ] {
        t.metric(key, lower(kib, quantity)).paper_on(
            FASTER_TESTBED,
            Claim::About(value),
            "6.3, Figures 8c and 8d",
        );
    }
    for (key, design, value) in [
        ("device_hits_slices_256k", Arm::IF, 4.18),
        ("device_hits_all_256k", Arm::JET, 5.06),
    ] {
        t.metric(key, gain(design, LARGE, DEVICE_HITS)).paper_on(
            FASTER_TESTBED,
            Claim::About(value),
            "6.3, Figure 12a: times the baseline's",
        );
    }
    for (key, kib, value) in [
        ("dma_hits_all_16k", SMALL, 2.32),
        ("dma_hits_all_256k", LARGE, 42.4),
    ] {
        t.metric(key, gain(Arm::JET, kib, HITS)).paper_on(
            FASTER_TESTBED,
            Claim::About(value),
            "6.3, Figure 12b: times the baseline's",
        );
    }
    t.note(format!(
        "Everything is simulated, on two hosts where the paper has 32, and the pressure on memory is a full one: the paper \
         does not state its own. DMA allocates in {} MiB of the cache in every arm. An area holds as many messages of a \
         connection as are under way.",
        DMA_CACHE_KIB >> 10
    ));
    t.note(
        "The paper's slices shorten the time in memory, because several threads process them. Here they only release \
         memory earlier: the device reads the slices of a message one after the other during the same time.",
    );
    let x = || Axis::log("average time in memory [µs]");
    for (file, title, quantity, y) in [
        (
            "throughput.svg",
            "Throughput over the time in memory, 256 KiB",
            THROUGHPUT,
            "throughput [GB/s]",
        ),
        (
            "tail.svg",
            "99.9th percentile of latency over the time in memory, 256 KiB",
            TAIL,
            "latency [µs]",
        ),
    ] {
        t.marks(file, title, (x(), Axis::linear(y)), move |point| {
            match point.x == LARGE {
                true => vec![(
                    point.arm.to_string(),
                    Expr::Is(point.n as f64),
                    Expr::At(*point, quantity),
                )],
                false => Vec::new(),
            }
        });
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_messages_have_more_under_way_and_areas_for_them() {
        let of = |kib| Served::of(Arm::O, StayTime::Pareto).load(kib, USUAL);
        let (short, long) = (of(SMALL), of(LARGE));
        assert_eq!((short.outstanding, long.outstanding), (12, 4));
        assert_eq!(short.memory, 32 * 12 * 16384);
        assert_eq!((long.stay, long.stay_ns), (StayTime::Pareto, 200_000));
    }
}
