//! Figure 13: collective operations of MPI on two simulated hosts whose memory an antagonist uses.

use std::fmt;

use super::receiving_host::{TESTBEDS, about, check_arms, machine_with, memory_of};
use super::storage::{Arm as Design, DMA_CACHE_KIB};
use crate::cases::prelude::*;
use crate::collectives::{Collective, CollectiveResult, Pattern, Placement, ReceiveWay};

/// Patterns that the paper names: the first ones.
const NAMED: usize = 3;
/// Bytes of a message (section 6.4).
const MESSAGE: u64 = 4 << 20;
/// Warm-up and measured time. At least one operation is measured.
const TIMES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(60));
const QUICK_TIMES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(10));

/// Quantities of a point.
const TIME: Quantity = "time";
const SLOWEST: Quantity = "slowest";
const RATE_IN: Quantity = "arrived";
const HIT_RATE: Quantity = "DMA hit rate";
const PAUSED: Quantity = "paused";
const MEMORY: Quantity = "memory";
const ANTAGONIST: Quantity = "antagonist";
const OPERATIONS: Quantity = "operations";

/// A design, and the way of messages into the buffer of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arm {
    design: Design,
    has_free_copies: bool,
}

impl Arm {
    const fn of(design: Design) -> Self {
        Self {
            design,
            has_free_copies: false,
        }
    }

    const O: Self = Self::of(Design::O);
    const JET: Self = Self::of(Design::JET);
    /// The areas' machine, with READs into the buffer of the operation.
    const FREE_COPIES: Self = Self {
        design: Design::O,
        has_free_copies: true,
    };
    const ALL: [Self; 6] = [
        Self::O,
        Self::FREE_COPIES,
        Self::of(Design::I),
        Self::of(Design::IF),
        Self::of(Design::IR),
        Self::JET,
    ];
    const QUICK: [Self; 3] = [Self::O, Self::FREE_COPIES, Self::JET];

    fn collective(self, pattern: Pattern, placement: Placement) -> Collective {
        let way = match (self.has_free_copies, self.design.has_pool()) {
            (true, _) => ReceiveWay::AreasFreeCopies,
            (false, true) => ReceiveWay::Pool,
            (false, false) => ReceiveWay::Areas,
        };
        Collective {
            pattern,
            bytes: MESSAGE,
            placement,
            way,
            by_slices: self.design.frees_slices(),
        }
    }

    fn note(self) -> ArmNote {
        let design = self.design;
        let memory = match self.collective(Pattern::AllToAll, Placement::Block).way {
            ReceiveWay::AreasFreeCopies => {
                "as O, but copies out of the areas cost nothing: less than any MPI can spend that READs into areas"
            }
            ReceiveWay::Areas => {
                "an area of 4 MiB for each connection, used in turn, and copied from there"
            }
            ReceiveWay::Pool => {
                "a receive pool of 8 MiB for each host, shared equally by its processes, with 32 READs and 8 MiB in \
                 flight, and copied from there"
            }
        };
        let release = match design.frees_slices() {
            true => "released by slices of 4 KiB",
            false => "released by READs of up to 256 KiB",
        };
        let isolated = match design.isolates() {
            true => "the cache for DMA is isolated from processors",
            false => "processors allocate in all of the cache",
        };
        let what = format!("{memory}; {release}; {isolated}");
        arm(
            self.to_string(),
            what,
            "poll",
            if self.has_free_copies { "0" } else { "1" },
        )
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.has_free_copies {
            true => f.write_str("O, copies not charged"),
            false => self.design.fmt(f),
        }
    }
}

fn at(arm: Arm, (pattern, placement): (Pattern, u64), quantity: Quantity) -> Expr<Arm> {
    Expr::At(Point::at(arm, number_of(pattern)).with(placement), quantity)
}

/// Numbers by which points name placements.
const BLOCK: u64 = 1;
const CYCLIC: u64 = 2;

fn placement_of(point: &Point<Arm>) -> Placement {
    match point.n {
        CYCLIC => Placement::Cyclic,
        _ => Placement::Block,
    }
}

/// Returns the number by which points name a pattern, from 1 on.
fn number_of(pattern: Pattern) -> u64 {
    let all = (1..).zip(Pattern::ALL);
    let mut found = all.filter(|(_, one)| *one == pattern);
    found.next().map_or(0, |(number, _)| number)
}

fn pattern_of(point: &Point<Arm>) -> Pattern {
    Pattern::ALL[(point.x as usize - 1) % Pattern::ALL.len()]
}

/// Figure 13.
pub static FIG13: Case<Arm> = Case {
    about: about(
        "jet-fig13",
        "Figure 13",
        "Collective operations of MPI between hosts whose memory an antagonist uses: areas and the receive pool \
         (--device sim:cx4lx-2x25g or sim:cx6dx-2x100g).",
        "Eight processes on two hosts repeat all-to-all, all-gather, all-reduce, reduce-scatter, broadcast and gather with \
         messages of 4 MiB, while an antagonist on each host would use all of its memory's bandwidth: average time of an \
         operation, arrived bytes, hits of DMA, pauses, memory traffic, and what the antagonists get.",
    ),
    table,
    measure: |bench, t, _| {
        let preset = memory_of(bench)?;
        check_arms(bench, Arm::ALL.map(|arm| arm.design.settings(&preset, 1.0)))?;
        let (arms, times) = match bench.options.quick {
            true => (&Arm::QUICK[..], QUICK_TIMES),
            false => (&Arm::ALL[..], TIMES),
        };
        t.note(format!(
            "{}: {} GB/s of memory; DMA allocates in {} MiB of the cache in every arm, as in section 6.4.",
            preset.name,
            preset.host_memory,
            DMA_CACHE_KIB >> 10
        ));
        let numbers: Vec<u64> = Pattern::ALL.into_iter().map(number_of).collect();
        let mut points: Vec<_> = grid("", arms, &numbers)
            .into_iter()
            .map(|point| point.with(BLOCK))
            .collect();
        let cyclic = match bench.options.quick {
            true => NAMED,
            false => Pattern::ALL.len(),
        };
        let cyclic = grid("", &[Arm::O, Arm::JET], &numbers[..cyclic]);
        points.extend(cyclic.into_iter().map(|point| point.with(CYCLIC)));
        let sweep = Sweep::in_virtual_time("", "");
        bench.measure(points, sweep, |bench, point, _| {
            let settings = point.arm.design.settings(&preset, 1.0);
            let machine = machine_with(bench, settings)?;
            let collective = point.arm.collective(pattern_of(point), placement_of(point));
            let found = collective.measure(&machine, times, bench.stop())?;
            Ok(Some(sample(&found)))
        })
    },
};

fn sample(found: &CollectiveResult) -> Sample {
    let per_second = |bytes: u64| bytes as f64 / found.seconds * 1e-9 / 2.0;
    let lines = (found.dma_hits + found.dma_misses).max(1) as f64;
    Sample::of([
        (TIME, found.mean_ns * 1e-3),
        (SLOWEST, found.slowest_ns * 1e-3),
        (RATE_IN, per_second(found.arrived)),
        (HIT_RATE, 100.0 * found.dma_hits as f64 / lines),
        (PAUSED, 100.0 * found.paused),
        (MEMORY, per_second(found.memory)),
        (ANTAGONIST, per_second(found.memory_antagonist)),
        (OPERATIONS, found.count as f64),
    ])
}

fn table() -> Table<Arm> {
    let mut t = Table::new(Arm::ALL.map(Arm::note).to_vec());
    t.arm();
    t.cell("operation", |point| {
        pattern_of(point).to_string().as_str().into()
    });
    t.cell("processes on hosts", |point| match placement_of(point) {
        Placement::Block => "block".into(),
        Placement::Cyclic => "cyclic".into(),
    });
    t.value("average time [µs]", TIME);
    t.value("slowest process [µs]", SLOWEST);
    t.value("arrived at a host [GB/s]", RATE_IN);
    t.value("hits of DMA [% of the lines]", HIT_RATE);
    t.value("paused [% of the time]", PAUSED);
    t.value("memory of a host, without the antagonist [GB/s]", MEMORY);
    t.value("antagonist of a host [GB/s]", ANTAGONIST);
    t.value("operations", OPERATIONS);
    let lower = |arm, at_point| {
        (Expr::Is(1.0) - at(Arm::JET, at_point, TIME) / at(arm, at_point, TIME)) * 100.0
    };
    for pattern in Pattern::ALL {
        let key = pattern.key();
        let stated = match pattern {
            Pattern::AllToAll => Some(35.1),
            Pattern::AllGather => Some(25.0),
            Pattern::AllReduce => Some(5.5),
            _ => None,
        };
        let metric = t.metric(
            format!("{key}_lower_than_areas_percent"),
            lower(Arm::O, (pattern, BLOCK)),
        );
        if let Some(stated) = stated {
            metric.paper_on(
                TESTBEDS,
                Claim::About(stated),
                "6.4, Figure 13: up to so much",
            );
        }
        t.metric(
            format!("{key}_lower_than_free_copies_percent"),
            lower(Arm::FREE_COPIES, (pattern, BLOCK)),
        );
        t.metric(
            format!("{key}_jet_us"),
            at(Arm::JET, (pattern, BLOCK), TIME),
        );
        let cyclic = lower(Arm::O, (pattern, CYCLIC));
        t.metric(format!("{key}_cyclic_lower_than_areas_percent"), cyclic);
    }
    t.note(
        "Everything is simulated, and nothing is fitted to this figure. The paper runs MVAPICH and does not say which of its \
         testbeds, how messages reach the buffers of the baseline, or which three operations it does not name. Here the \
         algorithms are those of MPICH for long messages, each host has four neighbouring processes (block) or every other process (cyclic), and each message between \
         hosts is a READ on each port. The time of an operation is the average over processes, as MPI's benchmarks print it.",
    );
    t.note(
        "MPI's receive buffers belong to the program, so everything that arrives in areas or in the pool is copied by a \
         processor. Messages within a host are copied in every arm. A processor waits for lines that are not cached. That \
         makes a copy slow while an antagonist uses the memory, and the pool does not help it.",
    );
    t.note("Processes learn of each other's messages after 4 µs, without traffic. Sums take as long as copies.");
    let axes = (
        Axis::linear("all-to-all, all-gather, all-reduce, reduce-scatter, broadcast, gather"),
        Axis::linear("time [µs]"),
    );
    let title = "Average time of collective operations of 4 MiB under memory pressure";
    t.chart("time.svg", title, axes, |point| {
        let is_drawn = point.n == BLOCK;
        is_drawn.then(|| {
            (
                point.arm.to_string(),
                point.x as f64,
                Expr::At(*point, TIME),
            )
        })
    });
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_name_patterns_by_their_number() {
        for pattern in Pattern::ALL {
            let point = Point::at(Arm::O, number_of(pattern));
            assert_eq!(pattern_of(&point), pattern);
        }
        let names = Arm::ALL.map(|arm| arm.to_string());
        assert_eq!(names[..2], ["O", "O, copies not charged"]);
        assert_eq!(names[5], "I+F+R");
    }

    #[test]
    fn only_jets_arms_use_the_pool() {
        let way = |arm: Arm| arm.collective(Pattern::Gather, Placement::Block).way;
        assert_eq!(way(Arm::O), ReceiveWay::Areas);
        assert_eq!(way(Arm::FREE_COPIES), ReceiveWay::AreasFreeCopies);
        assert_eq!(way(Arm::JET), ReceiveWay::Pool);
        let collective = Arm::JET.collective(Pattern::Gather, Placement::Cyclic);
        assert!(collective.by_slices);
    }
}
