//! The points, the tables and the figures.

use crate::nic::loaded::Verb;
use crate::outcome::{Grid, Outcome};
use crate::report::csv::{Cell, Table};
use crate::report::human;
use crate::report::svg::{Axis, Figure, Series};

use super::points::{FEW, Machine, Measured, Of, Point};
use super::published::{PUBLISHED, Published};

/// Writes all of it.
pub(super) fn record(outcome: &mut Outcome, machines: &[Machine<'_>], measured: &Measured) {
    outcome.points = table(machines, measured);
    for (index, machine) in machines.iter().enumerate() {
        outcome.grids.push(sizes(index, machine, measured));
        outcome.figures.extend(figures(index, machine, measured));
    }
    let beside = beside(machines, measured);
    outcome.grids.extend(beside);
    for (point, why) in &measured.failures {
        let machine = &machines[point.machine].name;
        outcome.notes.push(format!(
            "{machine}, {point}: not measured, or not in every round: {why}"
        ));
    }
    outcome.notes.push(
        "A size is of the payload; bandwidth is of payloads. Beside published figures: other machines, links and \
         programs; how far ours is from the nearer end of what was published. The words of atomics begin a page, of \
         every process: on simulated devices those of different processes take the same lock. With their headers 77 \
         million WRITEs of 64 B per second fill the link of cx6-100g; of the published pair the link's rate is not \
         known. Where there are many processes they measure the same time, once all are warm."
            .into(),
    );
}

/// What was published of a point of that machine.
fn published(machine: &Machine<'_>, point: &Point) -> Option<&'static Published> {
    let same =
        |each: &&Published| each.machine == machine.name && (each.point)(point.machine) == *point;
    PUBLISHED.iter().find(same)
}

/// Millions per second, or microseconds.
fn natural(of: Of, value: f64) -> f64 {
    match of {
        Of::Rate | Of::AllCores => value * 1e-6,
        Of::Latency => value * 1e-3,
    }
}

fn table(machines: &[Machine<'_>], measured: &Measured) -> Table {
    let mut table = Table::new(&[
        "machine",
        "verb",
        "payload",
        "size [B]",
        "processes",
        "queue pairs of a process",
        "depth",
        "rate [M/s]",
        "bandwidth [Gbit/s]",
        "latency [µs]",
        "published [M/s or µs]",
        "published, at most",
        "source",
    ]);
    for point in measured.samples.keys() {
        let (Some(found), Some(machine)) = (measured.spread(point), machines.get(point.machine))
        else {
            continue;
        };
        let (load, value) = (point.load, natural(point.of, found.median));
        let (rate, latency) = match point.of {
            Of::Rate | Of::AllCores => (Some(value), None),
            Of::Latency => (None, Some(value)),
        };
        let processes = match point.of {
            Of::AllCores => machine.cores.unwrap_or(1),
            _ => 1,
        };
        let there = published(machine, point);
        let mut row: Vec<Cell> = vec![
            machine.name.as_str().into(),
            load.verb.name().into(),
            if load.inline { "inline" } else { "memory" }.into(),
        ];
        let counts = [load.size, processes, load.queue_pairs, load.depth];
        row.extend(counts.map(|count| Cell::from(count as f64)));
        row.push(rate.into());
        row.push(rate.map(|rate| rate * load.size as f64 * 8e-3).into());
        row.push(latency.into());
        row.push(there.map(|there| there.range.0).into());
        row.push(there.map(|there| there.range.1).into());
        row.push(there.map_or(Cell::Empty, |there| there.source.into()));
        table.push(row);
    }
    table
}

fn cell(measured: &Measured, point: &Point, scale: f64) -> String {
    let found = measured.spread(point);
    found.map_or_else(String::new, |found| human(found.median * scale))
}

/// A row for each verb and size.
fn sizes(index: usize, machine: &Machine<'_>, measured: &Measured) -> Grid {
    let simulated = if machine.cores.is_some() {
        " (simulated)"
    } else {
        ""
    };
    let mut rows: Vec<(Verb, bool, usize)> = measured
        .samples
        .keys()
        .filter(|point| point.machine == index)
        .map(|point| (point.load.verb, !point.load.inline, point.load.size))
        .collect();
    rows.sort_unstable();
    rows.dedup();
    let row = |(verb, from_memory, size): (Verb, bool, usize)| {
        let shaped = |point: Point| match from_memory {
            true => point,
            false => point.inline(),
        };
        let one = shaped(Point::rate(index, verb, size, 1));
        let few = shaped(Point::rate(index, verb, size, FEW));
        let bits = size as f64 * 8e-9;
        let every = shaped(Point::all_cores(index, verb, size));
        let latency = shaped(Point::latency(index, verb, size));
        let name = match from_memory {
            true => verb.name().to_owned(),
            false => format!("{} inline", verb.name()),
        };
        vec![
            name,
            size.to_string(),
            cell(measured, &one, 1e-6),
            cell(measured, &one, bits),
            cell(measured, &few, 1e-6),
            cell(measured, &few, bits),
            cell(measured, &every, 1e-6),
            cell(measured, &latency, 1e-3),
        ]
    };
    Grid {
        title: format!("{}{simulated}", machine.name),
        header: [
            "verb",
            "size [B]",
            "one queue pair [M/s]",
            "[Gbit/s]",
            "eight queue pairs [M/s]",
            "[Gbit/s]",
            "a process on every core [M/s]",
            "latency [µs]",
        ]
        .map(String::from)
        .to_vec(),
        rows: rows.into_iter().map(row).collect(),
    }
}

/// Ours beside what others published.
fn beside(machines: &[Machine<'_>], measured: &Measured) -> Option<Grid> {
    let mut rows = Vec::new();
    for there in PUBLISHED {
        let at = machines.iter().position(|each| each.name == there.machine);
        let Some(point) = at.map(there.point) else {
            continue;
        };
        let Some(found) = measured.spread(&point) else {
            continue;
        };
        let ours = natural(point.of, found.median);
        let unit = match point.of {
            Of::Rate | Of::AllCores => "M/s",
            Of::Latency => "µs",
        };
        rows.push(vec![
            there.machine.to_owned(),
            point.to_string(),
            unit.to_owned(),
            human(ours),
            there.range_text(),
            format!("{:+.0} %", 100.0 * there.off(ours)),
            there.source.to_owned(),
        ]);
    }
    (!rows.is_empty()).then(|| Grid {
        title: "Beside published figures".into(),
        header: [
            "machine",
            "what",
            "unit",
            "ours (simulated)",
            "published",
            "off",
            "source",
        ]
        .map(String::from)
        .to_vec(),
        rows,
    })
}

fn figures(index: usize, machine: &Machine<'_>, measured: &Measured) -> Vec<Figure> {
    let draw =
        |file: &str, what: &str, unit: &str, scale: fn(f64, f64) -> f64, of: fn(&Point) -> bool| {
            let file = format!("{}-{file}.svg", machine.name.replace([':', ','], "-"));
            let mut series: Vec<Series> = Vec::new();
            for point in measured.samples.keys() {
                let is_its = point.machine == index && of(point) && !point.load.verb.is_atomic();
                let Some(found) = measured.spread(point).filter(|_| is_its) else {
                    continue;
                };
                let (size, load) = (point.load.size as f64, point.load);
                let inline = if load.inline { ", inline" } else { "" };
                let name = format!("{}{inline}", load.verb.name());
                let at = (size, scale(found.median, size));
                match series.iter_mut().find(|line| line.name == name) {
                    Some(line) => line.points.push(at),
                    None => series.push(Series {
                        name,
                        points: vec![at],
                    }),
                }
            }
            Figure {
                file,
                title: format!("{}: {what}", machine.name),
                x: Axis::log("size [B]"),
                y: Axis::log(unit),
                series,
            }
        };
    vec![
        draw(
            "rate",
            "requests per second, one queue pair",
            "rate [1/s]",
            |rate, _| rate,
            |point| point.of == Of::Rate && point.load.queue_pairs == 1,
        ),
        draw(
            "bandwidth",
            "bandwidth, eight queue pairs",
            "bandwidth [Gbit/s]",
            |rate, size| rate * size * 8e-9,
            |point| point.of == Of::Rate && point.load.queue_pairs == FEW,
        ),
        draw(
            "latency",
            "latency, one request at a time",
            "latency [µs]",
            |nanos, _| nanos * 1e-3,
            |point| point.of == Of::Latency,
        ),
    ]
}
