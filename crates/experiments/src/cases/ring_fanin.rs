//! The cost for one thread of receiving from many rings.

use super::prelude::*;
use crate::fanin::{FaninLoad, FaninTask, PhaseResult, RingLayout};
use crate::stats::Shares;

/// The experiment `ring-fanin`.
pub static RING_FANIN: Case<&str> = Case {
    about: About {
        runs_on: RunsOn::Real("it measures polls of memory, which take no virtual time"),
        ..About::new(
            "ring-fanin",
            "One thread that receives from 1 to 1,000 rings: as a group, against receivers one by one.",
            "At 1, 10, 100 and 1,000 rings: the cost of an unsuccessful poll of all rings; the rate of 64-byte \
             messages from all rings and from one; and how evenly the rings are served, both when one thread sends \
             to all as fast as it can and when it floods one ring and the others get a message now and then.",
        )
    },
    table,
    measure: |bench, _, outcome| {
        outcome.pinning += "; the sender is one process that holds all sending ends";
        let points = grid("", &ARMS, &RINGS);
        let full = Wall::from_millis(500) * PHASES;
        let sweep = Sweep::over("rings", Wall::from_millis(250), full);
        bench.measure(points, sweep, |bench, point, time| {
            sample(bench, *point, time / PHASES).map(Some)
        })
    },
};

const GROUP: &str = "group";
const SEPARATE: &str = "separate";
const ARMS: [&str; 2] = [GROUP, SEPARATE];
const RINGS: [u64; 4] = [1, 10, 100, 1000];
const PHASES: u32 = FaninLoad::ALL.len() as u32;

fn nanos_each(phase: &PhaseResult) -> f64 {
    phase.nanos as f64 / phase.count as f64
}

fn mmsg_per_s(phase: &PhaseResult) -> f64 {
    phase.count as f64 * 1e3 / phase.nanos as f64
}

/// Returns a measure of how evenly the rings are served; `NaN` if the phase has none.
fn share(phase: &PhaseResult, measure: fn(Shares) -> f64) -> f64 {
    phase.shares.map_or(f64::NAN, measure)
}

fn jain(phase: &PhaseResult) -> f64 {
    share(phase, |shares| shares.jain)
}

fn evenness(phase: &PhaseResult) -> f64 {
    share(phase, |shares| shares.smallest_over_largest)
}

/// A quantity, which is also the suffix of its metrics' keys; its phase; the function that computes it; its
/// column.
type Row = (Quantity, FaninLoad, fn(&PhaseResult) -> f64, &'static str);

const QUANTITIES: [Row; 7] = [
    (IDLE, FaninLoad::Idle, nanos_each, "idle poll [ns]"),
    (ALL, FaninLoad::All, mmsg_per_s, "all rings [Mmsg/s]"),
    (ONE, FaninLoad::One, mmsg_per_s, "one ring [Mmsg/s]"),
    ("all_jain", FaninLoad::All, jain, "Jain, all sent to [1]"),
    (
        "all_smallest_over_largest",
        FaninLoad::All,
        evenness,
        "smallest/largest, all sent to [1]",
    ),
    (
        "flood_jain",
        FaninLoad::Flood,
        jain,
        "Jain beside a flood [1]",
    ),
    (
        "flood_smallest_over_largest",
        FaninLoad::Flood,
        evenness,
        "smallest/largest beside a flood [1]",
    ),
];
const IDLE: Quantity = "idle_poll_ns";
const ALL: Quantity = "all_mmsg_per_s";
const ONE: Quantity = "one_mmsg_per_s";

fn table() -> Table<&'static str> {
    let mut t = Table::new(vec![
        arm(
            GROUP,
            "a Group: its tail array has eight tails to a cache line; one completion queue; turns of at most 32 \
             messages",
            "poll",
            "2",
        ),
        arm(
            SEPARATE,
            "the same number of separate receivers, each with its own tail's cache line and completion queue; polled \
             one after the other, at most 32 messages at a time",
            "poll",
            "2",
        ),
    ]);
    t.arm().x("rings");
    for (quantity, .., column) in QUANTITIES {
        t.spread(column, move |point| Expr::At(*point, quantity));
    }
    t.repeats(|point| Expr::At(*point, IDLE));
    for rings in RINGS {
        let at = |arm, quantity| Expr::At(Point::at(arm, rings), quantity);
        for name in ARMS {
            for (quantity, load, ..) in QUANTITIES {
                // With one ring there is no other ring beside the flooding one.
                if load != FaninLoad::Flood || rings > 1 {
                    t.metric(format!("{name}{rings}_{quantity}"), at(name, quantity));
                }
            }
            let each = at(name, IDLE) / rings as f64;
            t.metric(format!("{name}{rings}_idle_poll_per_ring_ns"), each);
        }
        for (key, quantity) in [("idle_poll", IDLE), ("all", ALL), ("one", ONE)] {
            let cost = if quantity == IDLE { "_cost" } else { "" };
            let ratio = at(GROUP, quantity) / at(SEPARATE, quantity);
            t.metric(format!("{key}{rings}{cost}_over_separate"), ratio);
        }
    }
    let axes = |y: Axis| (Axis::log("rings"), y);
    let (each, time) = (
        "Unsuccessful poll of all rings, per ring",
        "time per ring [ns]",
    );
    t.lines("idle-poll.svg", each, axes(Axis::log(time)), |point| {
        Expr::At(*point, IDLE) / point.x as f64
    });
    for (file, title, quantity) in [
        ("rate-all.svg", "64 B from all rings", ALL),
        ("rate-one.svg", "64 B from one ring of many", ONE),
    ] {
        let axes = axes(Axis::linear("rate [Mmsg/s]"));
        t.lines(file, title, axes, move |point| Expr::At(*point, quantity));
    }
    t.notes.extend(NOTES.map(String::from));
    t
}

const NOTES: [&str; 6] = [
    "Rings of 128 slots, messages of 64 B, default α, β, γ. The first and the last word of each message are its \
     number in its ring. The receiver checks both in place.",
    "idle_poll: one poll of all rings while nothing arrives (Group::try_recv, or Receiver::try_recv of each), \
     repeated, without step. _per_ring: that, divided by the number of rings. Nobody writes the polled lines \
     meanwhile, so they come from the smallest cache of the receiver that holds them all.",
    "An unsuccessful poll is not the same work in both arms. A separate receiver reads its tail's line and \
     prefetches the line of its next message. The group reads an eighth of the lines, and nothing of a ring whose \
     tail has not moved. It therefore reads a message's line only after the tail, except at the end of a ring's \
     turn.",
    "all: the sending thread visits all rings in turn and puts messages into each, 32 at a time or as many as there \
     is room for. one: the same into one ring, while the others are silent. One core sends. Rates are those of the \
     slower side, and rings are full only if the receiver is the slower one.",
    "After 64 unsuccessful polls in a row, except in idle_poll, the receiving thread calls step. A separate receiver \
     takes its completions and checks its queue pair. The group takes the completions of all rings and checks 8 \
     queue pairs, different ones each time.",
    "Fairness compares the numbers of messages received from each ring in the measured time. In the phase all, it \
     covers all rings. In the flood, it covers the rings that are not flooded: the sender offers each of them one \
     message in turn, published at once, after every burst of up to 32 messages into the flooded ring. Shares are \
     counted in whole bursts, so over a short time many rings cannot have exactly equal shares.",
];

fn sample(bench: &Bench<'_>, point: Point<&str>, time: Wall) -> Result<Sample, WorkloadError> {
    let (warm_ns, run_ns) = warm_and_run(time);
    let [_, got] = bench.testbed.run_pair(FaninTask {
        rings: point.x as usize,
        ends: if point.arm == GROUP {
            RingLayout::Group
        } else {
            RingLayout::Separate
        },
        run_ns,
        warm_ns,
    })?;
    match got {
        Report::Phases(phases) if phases.len() == FaninLoad::ALL.len() => Ok(quantities(&phases)),
        other => Err(WorkloadError(format!("the receiver reports {other:?}"))),
    }
}

/// Makes a sample of the results of the phases, which are in the order of [`FaninLoad::ALL`]. A phase in
/// which nothing was counted gives no value.
fn quantities(phases: &[PhaseResult]) -> Sample {
    let of = |(quantity, load, pick, _): Row| {
        let at = FaninLoad::ALL.iter().position(|other| *other == load)?;
        let phase = phases.get(at).filter(|phase| phase.count > 0)?;
        Some((quantity, pick(phase)))
    };
    Sample::of(QUANTITIES.into_iter().filter_map(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quantity_is_read_off_its_phase() {
        let shares = Shares::of(&[3, 4]);
        let phase = |count, nanos| PhaseResult {
            count,
            nanos,
            shares,
        };
        let sample = quantities(&[
            phase(1000, 5_000),
            phase(1000, 100_000),
            phase(1000, 50_000),
            phase(0, 1),
        ]);
        let values =
            [IDLE, ALL, ONE, "all_smallest_over_largest"].map(|quantity| sample.get(quantity));
        assert_eq!(values, [5.0, 10.0, 20.0, 0.75]);
        assert!(sample.get("flood_jain").is_nan());
    }
}
