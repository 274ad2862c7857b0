//! Keys, tables and drawings of the points.

use super::{KEYS, MOST, Scale, statements};
use crate::cases::weir::arm::Arm;
use crate::cases::weir::point::{Kind, MISSES, Point};
use crate::outcome::{Grid, Outcome};
use crate::report::csv::Table;
use crate::report::human;
use crate::report::svg::{Axis, Figure, Series};
use crate::stats::Spread;

/// Points by arm.
pub(super) type Points = [(Arm, Point)];

impl Scale {
    /// Everything from the points.
    pub(super) fn record(&self, outcome: &mut Outcome, points: &Points) {
        outcome.arms = Arm::ALL.map(Arm::note).to_vec();
        outcome.points = self.table(points);
        self.keys(outcome, points);
        outcome.grids.push(self.grid(points));
        outcome.grids.extend(statements::grid(self.size, points));
        outcome.figures = self.figures(points);
    }

    fn table(&self, points: &Points) -> Table {
        let columns = [
            "arm",
            "queue pairs",
            "throughput [Gbit/s]",
            "throughput as the port counts [Gbit/s]",
        ];
        let mut table = Table::new(&[&columns[..], &MISSES.map(|kind| kind.column)].concat());
        for (arm, point) in points {
            let mut row = vec![
                arm.to_string().as_str().into(),
                (point.queue_pairs as f64).into(),
                point.gbit_per_s.into(),
                self.port(point.gbit_per_s).into(),
            ];
            row.extend(point.cells());
            table.push(row);
        }
        table
    }

    fn keys(&self, outcome: &mut Outcome, points: &Points) {
        let none = "nothing was measured";
        let one = |value: f64| Spread::of(&[value]);
        let [plain, paced] = [Arm::PLAIN, Arm::Paced].map(|arm| at(points, arm, MOST));
        let port = |point: &Point| one(self.port(point.gbit_per_s));
        let [paced_key, plain_key, over_key, windowed_key, misses @ ..] = KEYS else {
            return;
        };
        outcome.measured_or(paced_key, paced.as_ref().and_then(port), none);
        outcome.measured_or(plain_key, plain.as_ref().and_then(port), none);
        let over = paced.zip(plain).and_then(|both| one(gain(both)));
        outcome.measured_or(over_key, over, none);
        let windowed = at(points, Arm::Windowed, MOST);
        let why = match paced {
            Some(_) => "not measured in a quick run",
            None => none,
        };
        outcome.measured_or(windowed_key, windowed.as_ref().and_then(port), why);
        for (key, kind) in misses.iter().zip(MISSES) {
            match fewer(plain, paced, kind) {
                None => outcome.skip(*key, none),
                Some(Fewer::Times(times)) => outcome.measured_or(key, one(times), none),
                Some(Fewer::All(plain)) => outcome.skip(
                    *key,
                    format!(
                        "none is missed with pacing, {} a request without",
                        human(plain)
                    ),
                ),
            }
        }
    }

    /// The points, for people: a row for so many queue pairs.
    fn grid(&self, points: &Points) -> Grid {
        let cell = |arm: Arm, queue_pairs: usize| {
            let point = at(points, arm, queue_pairs);
            let port = point.map(|point| human(self.port(point.gbit_per_s)));
            port.unwrap_or_default()
        };
        let rows = counts(points).into_iter().map(|queue_pairs| {
            let mut row = vec![queue_pairs.to_string()];
            row.extend(Arm::ALL.map(|arm| cell(arm, queue_pairs)));
            row
        });
        let mut header = vec!["queue pairs".to_owned()];
        header.extend(Arm::ALL.map(|arm| format!("{arm} [Gbit/s]")));
        Grid {
            title: "Throughput as the port counts (simulated)".into(),
            header,
            rows: rows.collect(),
        }
    }

    fn figures(&self, points: &Points) -> Vec<Figure> {
        let series = |of: &dyn Fn(&Point) -> Option<f64>| {
            let series = Arm::ALL.map(|arm| {
                let mine = points.iter().filter(|(of, _)| *of == arm);
                let mine =
                    mine.filter_map(|(_, point)| Some((point.queue_pairs as f64, of(point)?)));
                Series {
                    name: arm.to_string(),
                    points: mine.collect(),
                }
            });
            series.to_vec()
        };
        let figure = |file: String, title: String, y: &str, series| Figure {
            file,
            title,
            x: Axis::log("queue pairs"),
            y: Axis::linear(y),
            series,
        };
        let mut figures = vec![figure(
            "throughput.svg".into(),
            format!("Throughput against queue pairs, SEND {} B", self.size),
            "throughput as the port counts [Gbit/s]",
            series(&|point| Some(self.port(point.gbit_per_s))),
        )];
        figures.extend(MISSES.map(|kind| {
            let word = kind.name.split(' ').next().unwrap_or_default();
            figure(
                format!("{}.svg", word.to_lowercase()),
                format!(
                    "Misses of {} against queue pairs, SEND {} B",
                    kind.name, self.size
                ),
                "misses each request",
                series(&|point| point.misses.as_ref().map(kind.of)),
            )
        }));
        figures
    }
}

/// The point of an arm at so many queue pairs.
pub(super) fn at(points: &Points, arm: Arm, queue_pairs: usize) -> Option<Point> {
    let mut points = points.iter();
    let found = points.find(|(of, point)| *of == arm && point.queue_pairs == queue_pairs);
    found.map(|(_, point)| *point)
}

/// All numbers of queue pairs, in order.
pub(super) fn counts(points: &Points) -> Vec<usize> {
    let counts = points.iter().map(|(_, point)| point.queue_pairs);
    counts
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// What pacing has of what plain verbs have.
pub(super) fn gain((paced, plain): (Point, Point)) -> f64 {
    paced.gbit_per_s / plain.gbit_per_s
}

/// How many fewer misses a request has with pacing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fewer {
    /// So many times.
    Times(f64),
    /// It has none, and so many without.
    All(f64),
}

pub(super) fn fewer(plain: Option<Point>, paced: Option<Point>, kind: Kind) -> Option<Fewer> {
    let of = |point: Option<Point>| Some((kind.of)(&point?.misses?));
    let (plain, paced) = (of(plain)?, of(paced)?);
    Some(match paced > 0.0 {
        true => Fewer::Times(plain / paced),
        false => Fewer::All(plain),
    })
}
