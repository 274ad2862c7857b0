//! `points.csv` and the tables of the report.

use super::arms::SLOTS;
use super::load::Loaded;
use super::points::{Point, Points, Sample, What};
use crate::outcome::{Grid, Outcome};
use crate::report::csv::{Cell, Table};
use crate::report::human;
use crate::stats::Spread;

/// Every point with its spread.
pub(super) fn table(outcome: &mut Outcome, points: &Points, loads: &[Loaded]) {
    let mut table = Table::new(&[
        "arm",
        "kind",
        "size [B]",
        "slots",
        "plain [msg/s]",
        "plain low [msg/s]",
        "plain high [msg/s]",
        "touched [msg/s]",
        "touched low [msg/s]",
        "touched high [msg/s]",
        "plain [GB/s]",
        "touched [GB/s]",
        "p50 [ns]",
        "p99 [ns]",
        "p99.9 [ns]",
        "load [%]",
        "offered [msg/s]",
        "repeats",
    ]);
    let three = |s: Option<Spread>| {
        [s.map(|s| s.median), s.map(|s| s.low), s.map(|s| s.high)].map(Cell::from)
    };
    for &point in points.samples.keys() {
        let mut row: Vec<Cell> = vec![point.arm().as_str().into()];
        let repeats = Spread::of(&points.numbers(point, |_| 1.0)).map(|s| s.repeats as f64);
        let gb = |s: Option<Spread>| Cell::from(s.map(|s| s.median * point.size as f64 / 1e9));
        match point.what {
            What::Rate(_, true) => continue,
            What::Rate(..) | What::UcxRate(_) | What::Memcpy => {
                let plain = Spread::of(&points.numbers(point, Sample::per_second));
                let touched = touched(points, point);
                row.extend([
                    "rate".into(),
                    (point.size as f64).into(),
                    (point.slots as f64).into(),
                ]);
                row.extend(three(plain));
                row.extend(three(touched));
                row.extend([gb(plain), gb(touched)]);
                row.resize(17, Cell::Empty);
            }
            What::Latency(_) | What::UcxLatency(_) | What::HalfCacheLine => {
                let q = |of: fn(crate::latency::Quantiles) -> f64| {
                    let spread = Spread::of(&points.numbers(point, |s| s.latency(of)));
                    Cell::from(spread.map(|s| s.median).filter(|&x| x > 0.0))
                };
                row.extend([
                    "latency".into(),
                    (point.size as f64).into(),
                    (point.slots as f64).into(),
                ]);
                row.resize(12, Cell::Empty);
                row.extend([q(|q| q.p50_ns), q(|q| q.p99_ns), q(|q| q.p999_ns)]);
                row.resize(17, Cell::Empty);
            }
        }
        row.push(repeats.into());
        table.push(row);
    }
    for load in loads {
        let mut row: Vec<Cell> = vec![
            load.arm.as_str().into(),
            "load".into(),
            64.0.into(),
            (SLOTS[0] as f64).into(),
        ];
        row.resize(12, Cell::Empty);
        row.extend(
            [
                load.at(|q| q.p50_ns),
                load.at(|q| q.p99_ns),
                load.at(|q| q.p999_ns),
            ]
            .map(|s| Cell::from(s.map(|s| s.median))),
        );
        row.extend([f64::from(load.percent).into(), load.per_second.into()]);
        row.push(load.at(|_| 1.0).map(|s| s.repeats as f64).into());
        table.push(row);
    }
    outcome.points = table;
}

fn touched(points: &Points, point: Point) -> Option<Spread> {
    let What::Rate(channel, _) = point.what else {
        return None;
    };
    let point = Point {
        what: What::Rate(channel, true),
        ..point
    };
    Spread::of(&points.numbers(point, Sample::per_second))
}

/// `median (low – high)`.
fn spread(value: Option<Spread>) -> String {
    value.map_or_else(
        || "–".to_owned(),
        |s| format!("{} ({} – {})", human(s.median), human(s.low), human(s.high)),
    )
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&w| w.to_owned()).collect()
}

/// Rates, latencies, and latencies under load.
pub(super) fn grids(outcome: &mut Outcome, points: &Points, loads: &[Loaded]) {
    let mut rates = Grid {
        title: "Messages per second: median (lowest – highest repeat)".into(),
        header: strings(&["arm", "size [B]", "slots", "plain", "touched"]),
        rows: Vec::new(),
    };
    let mut latencies = Grid {
        title: "One-way latency by ping-pong [ns]: median over repeats".into(),
        header: strings(&["arm", "size [B]", "p50", "p99", "p99.9"]),
        rows: Vec::new(),
    };
    for &point in points.samples.keys() {
        let numbers = |of: fn(Sample) -> f64| Spread::of(&points.numbers(point, of));
        match point.what {
            What::Rate(_, true) => {}
            What::Rate(..) | What::UcxRate(_) | What::Memcpy => rates.rows.push(vec![
                point.arm(),
                point.size.to_string(),
                point.slots.to_string(),
                spread(numbers(Sample::per_second)),
                spread(touched(points, point)),
            ]),
            What::Latency(_) | What::UcxLatency(_) | What::HalfCacheLine => {
                let tail = |of: fn(Sample) -> f64| spread(numbers(of).filter(|s| s.median > 0.0));
                latencies.rows.push(vec![
                    point.arm(),
                    point.size.to_string(),
                    spread(numbers(Sample::p50)),
                    tail(|s| s.latency(|q| q.p99_ns)),
                    tail(|s| s.latency(|q| q.p999_ns)),
                ]);
            }
        }
    }
    let loaded = Grid {
        title: "One-way latency of 64 B under load [ns], from the intended send time".into(),
        header: strings(&["arm", "load [%]", "offered [msg/s]", "p50", "p99", "p99.9"]),
        rows: loads
            .iter()
            .map(|l| {
                vec![
                    l.arm.clone(),
                    l.percent.to_string(),
                    human(l.per_second),
                    spread(l.at(|q| q.p50_ns)),
                    spread(l.at(|q| q.p99_ns)),
                    spread(l.at(|q| q.p999_ns)),
                ]
            })
            .collect(),
    };
    outcome.grids = vec![rates, latencies, loaded];
}
