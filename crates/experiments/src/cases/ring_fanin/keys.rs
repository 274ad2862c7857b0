//! The keys of the summary, the table and the figures.

use super::points::{Point, Points, RINGS};
use crate::fanin::{Ends, Load, Phase};
use crate::outcome::{Grid, Outcome};
use crate::report::csv::{Cell, Table};
use crate::report::svg::{Axis, Figure, Series};
use crate::stats::{Spread, paired_ratio};

macro_rules! keys {
    ($($rings:literal),*) => {
        &[$(
            concat!("group", $rings, "_idle_poll_ns"),
            concat!("group", $rings, "_idle_poll_per_ring_ns"),
            concat!("group", $rings, "_all_mmsg_per_s"),
            concat!("group", $rings, "_one_mmsg_per_s"),
            concat!("group", $rings, "_all_jain"),
            concat!("group", $rings, "_all_smallest_over_largest"),
            concat!("separate", $rings, "_idle_poll_ns"),
            concat!("separate", $rings, "_idle_poll_per_ring_ns"),
            concat!("separate", $rings, "_all_mmsg_per_s"),
            concat!("separate", $rings, "_one_mmsg_per_s"),
            concat!("separate", $rings, "_all_jain"),
            concat!("separate", $rings, "_all_smallest_over_largest"),
            concat!("idle_poll", $rings, "_cost_over_separate"),
            concat!("all", $rings, "_over_separate"),
            concat!("one", $rings, "_over_separate"),
        )*
            // With one ring there is none beside the flooding one.
            "group10_flood_jain",
            "group10_flood_smallest_over_largest",
            "group100_flood_jain",
            "group100_flood_smallest_over_largest",
            "group1000_flood_jain",
            "group1000_flood_smallest_over_largest",
            "separate10_flood_jain",
            "separate10_flood_smallest_over_largest",
            "separate100_flood_jain",
            "separate100_flood_smallest_over_largest",
            "separate1000_flood_jain",
            "separate1000_flood_smallest_over_largest",
        ]
    };
}

/// Every key of this experiment.
pub(super) const KEYS: &[&str] = keys!("1", "10", "100", "1000");

fn nanos_each(phase: &Phase) -> f64 {
    phase.nanos as f64 / phase.count as f64
}

fn mmsg_per_s(phase: &Phase) -> f64 {
    phase.count as f64 * 1e3 / phase.nanos as f64
}

fn jain(phase: &Phase) -> f64 {
    phase.shares.map_or(f64::NAN, |shares| shares.jain)
}

fn evenness(phase: &Phase) -> f64 {
    phase
        .shares
        .map_or(f64::NAN, |shares| shares.smallest_over_largest)
}

/// A figure of one point: the end of its key, of which phase, what, and its column.
type What = (&'static str, Load, fn(&Phase) -> f64, &'static str);

const FIGURES: [What; 7] = [
    ("idle_poll_ns", Load::Idle, nanos_each, "idle poll [ns]"),
    (
        "all_mmsg_per_s",
        Load::All,
        mmsg_per_s,
        "all rings [Mmsg/s]",
    ),
    ("one_mmsg_per_s", Load::One, mmsg_per_s, "one ring [Mmsg/s]"),
    ("all_jain", Load::All, jain, "Jain, all sent to"),
    (
        "all_smallest_over_largest",
        Load::All,
        evenness,
        "smallest/largest, all sent to",
    ),
    ("flood_jain", Load::Flood, jain, "Jain beside a flood"),
    (
        "flood_smallest_over_largest",
        Load::Flood,
        evenness,
        "smallest/largest beside a flood",
    ),
];

/// Computes every key, the table and the figures.
pub(super) fn record(outcome: &mut Outcome, points: &Points) {
    for rings in RINGS {
        let both = [Ends::Group, Ends::Separate].map(|ends| Point { rings, ends });
        for point in both {
            for (key, load, pick, _) in FIGURES {
                if load == Load::Flood && rings == 1 {
                    continue;
                }
                let spread = Spread::of(&points.of(point, load, pick));
                let key = format!("{}_{key}", point.name());
                outcome.measured_or(&key, spread, points.why(point));
            }
            let poll = Spread::of(&points.of(point, Load::Idle, nanos_each));
            let each = poll.map(|spread| spread.scaled(1.0 / rings as f64));
            let key = format!("{}_idle_poll_per_ring_ns", point.name());
            outcome.measured_or(&key, each, points.why(point));
        }
        for (what, load, pick) in [
            ("idle_poll", Load::Idle, nanos_each as fn(&Phase) -> f64),
            ("all", Load::All, mmsg_per_s),
            ("one", Load::One, mmsg_per_s),
        ] {
            let [group, separate] = both.map(|point| points.of(point, load, pick));
            let missing = match Spread::of(&group) {
                None => points.why(both[0]),
                Some(_) => points.why(both[1]),
            };
            let cost = if load == Load::Idle { "_cost" } else { "" };
            let key = format!("{what}{rings}{cost}_over_separate");
            outcome.measured_or(&key, paired_ratio(&group, &separate), missing);
        }
    }
    table(outcome, points);
    outcome.figures = figures(points);
    for (point, why) in &points.failures {
        outcome.notes.push(format!(
            "{} was not measured, or not in every round: {why}",
            point.name()
        ));
    }
    outcome.notes.extend(NOTES.map(String::from));
}

const NOTES: [&str; 7] = [
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
    "Ratios are medians of the ratios within each round, in which all arms take their turn.",
];

fn table(outcome: &mut Outcome, points: &Points) {
    let mut columns = vec!["arm".to_owned(), "rings".to_owned()];
    for (.., column) in FIGURES {
        let unit = if column.ends_with(']') { "" } else { " [1]" };
        columns.push(format!("{column}{unit}"));
        columns.push(match column.split_once(" [") {
            Some((name, unit)) => format!("{name} low [{unit}"),
            None => format!("{column} low [1]"),
        });
        columns.push(match column.split_once(" [") {
            Some((name, unit)) => format!("{name} high [{unit}"),
            None => format!("{column} high [1]"),
        });
    }
    columns.push("repeats".into());
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new(&names);
    let mut grid = Grid {
        title: "Medians".into(),
        header: ["arm", "rings"].map(String::from).to_vec(),
        rows: Vec::new(),
    };
    grid.header
        .extend(FIGURES.map(|(.., column)| column.to_owned()));
    for &point in points.samples.keys() {
        let mut row: Vec<Cell> = vec![point.arm().into(), (point.rings as f64).into()];
        let mut texts = vec![point.arm().to_owned(), point.rings.to_string()];
        let mut repeats = 0;
        for (_, load, pick, _) in FIGURES {
            let spread = Spread::of(&points.of(point, load, pick));
            repeats = repeats.max(spread.map_or(0, |spread| spread.repeats));
            row.push(spread.map(|spread| spread.median).into());
            row.push(spread.map(|spread| spread.low).into());
            row.push(spread.map(|spread| spread.high).into());
            texts.push(spread.map_or_else(|| "–".into(), |spread| digits(spread.median)));
        }
        row.push((repeats as f64).into());
        table.push(row);
        grid.rows.push(texts);
    }
    outcome.points = table;
    outcome.grids = vec![grid];
}

/// With three digits or so.
fn digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}

fn figures(points: &Points) -> Vec<Figure> {
    let lines = |of: &dyn Fn(Point) -> Option<f64>| {
        [Ends::Group, Ends::Separate]
            .map(|ends| Series {
                name: Point { rings: 1, ends }.arm().into(),
                points: RINGS
                    .into_iter()
                    .filter_map(|rings| Some((rings as f64, of(Point { rings, ends })?)))
                    .collect(),
            })
            .into_iter()
            .filter(|series| !series.points.is_empty())
            .collect::<Vec<_>>()
    };
    let median = |load, pick: fn(&Phase) -> f64| {
        move |point| Spread::of(&points.of(point, load, pick)).map(|spread| spread.median)
    };
    let per_ring = |point: Point| {
        let poll = median(Load::Idle, nanos_each)(point)?;
        Some(poll / point.rings as f64)
    };
    let figure = |file: &str, title: &str, y: Axis, series| Figure {
        file: file.into(),
        title: title.into(),
        x: Axis::log("rings"),
        y,
        series,
    };
    let rate = || Axis::linear("rate [Mmsg/s]");
    vec![
        figure(
            "idle-poll.svg",
            "A look in vain at all rings, for each ring",
            Axis::log("time per ring [ns]"),
            lines(&per_ring),
        ),
        figure(
            "rate-all.svg",
            "64 B from all rings",
            rate(),
            lines(&median(Load::All, mmsg_per_s)),
        ),
        figure(
            "rate-one.svg",
            "64 B from one ring of many",
            rate(),
            lines(&median(Load::One, mmsg_per_s)),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::ring_fanin::points::all;
    use crate::stats::Shares;
    use std::collections::BTreeSet;

    #[test]
    fn what_is_recorded_is_declared_and_all_of_it() {
        let shares = Shares::of(&[3, 4]);
        let phase = |nanos| Phase {
            count: 1000,
            nanos,
            shares,
        };
        let mut points = Points::default();
        for point in all() {
            let phases = vec![phase(5_000), phase(100_000), phase(50_000), phase(1)];
            points.samples.insert(point, vec![Some(phases), None]);
        }
        let mut outcome = Outcome::default();
        record(&mut outcome, &points);
        let recorded: BTreeSet<&str> = outcome.ratios().keys().map(String::as_str).collect();
        assert_eq!(recorded, KEYS.iter().copied().collect());
        let value = |key: &str| outcome.ratios()[key].median;
        assert_eq!(value("group10_idle_poll_ns"), 5.0);
        assert_eq!(value("group10_idle_poll_per_ring_ns"), 0.5);
        assert_eq!(value("separate100_all_mmsg_per_s"), 10.0);
        assert_eq!(value("one1000_over_separate"), 1.0);
        assert_eq!(outcome.points.len(), 8);
        assert!(
            outcome
                .figures
                .iter()
                .all(|figure| figure.series.len() == 2)
        );
    }
}
