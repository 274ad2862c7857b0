//! What was measured, by arm and size.

use std::collections::BTreeMap;

use crate::bench::{Bench, Rounds};
use crate::error::RunError;
use crate::format::csv::{Cell, Table};
use crate::format::svg::{Axis, Figure, Series};
use crate::outcome::Outcome;
use crate::stats::{Spread, paired_ratio};
use crate::transports::ArmError;

/// A point: an arm, and what it is measured over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) arm: &'static str,
    pub(super) x: u64,
}

/// A point.
pub(super) const fn at(arm: &'static str, x: u64) -> Point {
    Point { arm, x }
}

/// Figures of points, round by round; `NaN` where there was none, so that rounds stay aligned.
pub(super) struct Points {
    samples: BTreeMap<Point, Vec<f64>>,
    failures: BTreeMap<&'static str, String>,
}

/// Samples all points in turn.
pub(super) fn sampled<S>(
    bench: &mut Bench<'_>,
    points: &[Point],
    x: &str,
    mut measure: impl FnMut(&Bench<'_>, Point) -> Result<S, ArmError>,
) -> Result<Rounds<&'static str, S>, RunError> {
    bench.alternate_arms(
        points,
        |point| point.arm,
        |point| format!("{}, {} {x}", point.arm, point.x),
        |bench, point| measure(bench, *point).map(Some),
    )
}

impl Points {
    /// Measures all points in turn.
    pub(super) fn measure(
        bench: &mut Bench<'_>,
        points: &[Point],
        x: &str,
        mut measure: impl FnMut(&Bench<'_>, Point) -> Result<f64, ArmError>,
    ) -> Result<Self, RunError> {
        let rounds = sampled(bench, points, x, &mut measure)?;
        Ok(Self::of(points, &rounds, |figure| *figure))
    }

    /// A figure of what was sampled.
    pub(super) fn of<S>(
        points: &[Point],
        rounds: &Rounds<&'static str, S>,
        figure: impl Fn(&S) -> f64,
    ) -> Self {
        let figures = rounds.samples.iter().map(|samples| {
            let one = |one: &Option<S>| one.as_ref().map_or(f64::NAN, &figure);
            samples.iter().map(one).collect()
        });
        Self {
            samples: points.iter().copied().zip(figures).collect(),
            failures: rounds.failures.clone(),
        }
    }

    fn numbers(&self, point: Point) -> &[f64] {
        self.samples.get(&point).map_or(&[], Vec::as_slice)
    }

    pub(super) fn repeats(&self) -> usize {
        self.samples.values().map(Vec::len).max().unwrap_or(0)
    }

    /// Records a point's figure, in units that are so many times as large.
    pub(super) fn figure(&self, outcome: &mut Outcome, key: &str, point: Point, unit: f64) {
        let spread = Spread::of(self.numbers(point));
        let spread = spread.map(|spread| spread.scaled(1.0 / unit));
        outcome.measured_or(key, spread, self.why(&[point]));
    }

    /// Records a point's figure over another's, round by round.
    pub(super) fn over(&self, outcome: &mut Outcome, key: &str, ours: Point, theirs: Point) {
        let ratio = paired_ratio(self.numbers(ours), self.numbers(theirs));
        outcome.measured_or(key, ratio, self.why(&[ours, theirs]));
    }

    /// Records how much a point's figure is above another's, in units that are so many times as large.
    pub(super) fn above(
        &self,
        outcome: &mut Outcome,
        key: &str,
        (ours, theirs): (Point, Point),
        unit: f64,
    ) {
        let mut above = self.growth([theirs, ours]);
        above.iter_mut().for_each(|one| *one /= unit);
        outcome.measured_or(key, Spread::of(&above), self.why(&[ours, theirs]));
    }

    /// How much a point's figures are above another's, round by round.
    pub(super) fn growth(&self, [from, to]: [Point; 2]) -> Vec<f64> {
        let both = self.numbers(to).iter().zip(self.numbers(from));
        both.map(|(to, from)| to - from).collect()
    }

    /// Why points have no figure.
    pub(super) fn why(&self, points: &[Point]) -> String {
        let failed = points.iter().find_map(|point| self.failures.get(point.arm));
        failed
            .cloned()
            .unwrap_or_else(|| "no round gave a figure".to_owned())
    }

    /// Has all of them written down, and drawn.
    pub(super) fn write(&self, outcome: &mut Outcome, figure: Figure, unit: &str) {
        let x = figure.x.title.clone();
        let columns = [
            unit.to_owned(),
            format!("low {unit}"),
            format!("high {unit}"),
        ];
        let [median, low, high] = columns.each_ref().map(String::as_str);
        let mut table = Table::new(&["arm", &x, median, low, high, "repeats"]);
        let mut series: Vec<Series> = Vec::new();
        for (point, samples) in &self.samples {
            let spread = Spread::of(samples);
            let of = |value: fn(Spread) -> f64| Cell::from(spread.map(value));
            table.push(vec![
                point.arm.into(),
                (point.x as f64).into(),
                of(|spread| spread.median),
                of(|spread| spread.low),
                of(|spread| spread.high),
                of(|spread| spread.repeats as f64),
            ]);
            let Some(spread) = spread else { continue };
            let drawn = (point.x as f64, spread.median);
            match series.iter_mut().find(|line| line.name == point.arm) {
                Some(line) => line.points.push(drawn),
                None => series.push(Series {
                    name: point.arm.to_owned(),
                    points: vec![drawn],
                }),
            }
        }
        outcome.points = table;
        outcome.repeats = self.repeats();
        outcome.figures.push(Figure { series, ..figure });
    }
}

/// A figure without lines yet.
pub(super) fn drawing(file: &str, title: &str, x: Axis, y: Axis) -> Figure {
    Figure {
        file: file.to_owned(),
        title: title.to_owned(),
        x,
        y,
        series: Vec::new(),
    }
}
