//! The cost for one thread of receiving from many rings.

use super::prelude::*;
use crate::fanin::{FaninLoad, FaninTask, PhaseResult, RingLayout};
use crate::stats::Shares;

/// The experiment `ring-fanin`.
pub static RING_FANIN: Case<&str> = Case {
    about: About {
        runs_on: RunsOn::Real("it measures looks at memory, which take no virtual time there"),
        ..About::new(
            "ring-fanin",
            "One thread that receives from 1 to 1,000 rings: as a group, against receivers one by one.",
            "At 1, 10, 100 and 1,000 rings: what a look in vain at all of them costs, the rate of \
             64-byte messages from all of them and from one of them, and how evenly the rings are \
             served when all are sent to as fast as one thread can, and when one is and the others have a \
             message now and then.",
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
            "a Group: tails packed on its board, eight to a cache line; one completion queue; turns \
             of at most 32 messages",
            "poll",
            "2",
        ),
        arm(
            SEPARATE,
            "as many receivers by themselves, each with its tail's line and its completion queue; asked \
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
        "A look in vain at all rings, for each ring",
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
    "Rings of 128 slots, messages of 64 B, default α, β, γ. The first and the last word of each \
     message are its number in its ring; the receiver checks both where it lies.",
    "idle_poll: one look at all rings while nothing comes (Group::try_recv, or Receiver::try_recv of \
     each), again and again, no step. _per_ring: that, divided by the rings. Nobody writes what is looked \
     at meanwhile: it comes from whichever cache of the receiver's holds it all.",
    "A look in vain is not the same work in both arms: a receiver by itself reads its tail's line and asks \
     for the line of its next message ahead of time; the group reads an eighth of the lines and nothing of a \
     ring whose tail has not moved, and so, but at the end of a ring's turn, fetches a message's line only \
     behind its tail.",
    "all: the sending thread goes round all rings and puts messages into each, 32 at a time or as many as \
     there is room for. one: the same into one ring, while the others are silent. One core sends: rates \
     are those of the slower side, and rings are full only where that is the receiver.",
    "After 64 looks in vain in a row, other than when idle, the receiving thread steps: every receiver by \
     itself, which takes its completions and asks its queue pair; the group takes the completions of all, \
     and asks 8 queue pairs, others each time.",
    "Fairness is of the messages received of each ring over the measured time: of all rings when all \
     are sent to; and when one is flooded, of the others, each of which is offered one message in turn, \
     published at once, after every burst of up to 32 of the flooding ring. Shares are counted in whole \
     bursts: over a short time many rings cannot have quite the same.",
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
