//! Measured values: samples by point and round, and the reasons why arms have none.

use std::collections::BTreeMap;
use std::fmt;

use crate::outcome::ELSEWHERE;
use crate::stats::Spread;

/// The name of a value in a [`Sample`], such as [`RATE`].
pub type Quantity = &'static str;

/// Messages, requests or operations per second.
pub const RATE: Quantity = "rate";
/// Payload bytes per second.
pub const BYTES: Quantity = "bytes";
/// Median time in nanoseconds.
pub const P50: Quantity = "p50";
/// 99th percentile in nanoseconds.
pub const P99: Quantity = "p99";
/// 99.9th percentile in nanoseconds.
pub const P999: Quantity = "p999";
/// Mean time in nanoseconds.
pub const MEAN: Quantity = "mean";
/// Longest time in nanoseconds.
pub const MAX: Quantity = "max";
/// Number of measured values.
pub const COUNT: Quantity = "count";
/// The quantity of a sample that holds a single value.
pub const VALUE: Quantity = "value";

/// A point of a measurement: an arm, a load, and the values of up to two parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point<A> {
    /// The arm's load, if it has several; otherwise empty.
    pub load: &'static str,
    /// The parameter of a chart's x axis: bytes, threads, queue pairs.
    pub x: u64,
    /// A second parameter; 1 where there is none.
    pub n: u64,
    /// The arm.
    pub arm: A,
}

impl<A> Point<A> {
    /// Makes a point of an arm with one load, without a second parameter.
    pub const fn at(arm: A, x: u64) -> Self {
        Self::of("", arm, x)
    }

    /// Makes a point of the load `load`, without a second parameter.
    pub const fn of(load: &'static str, arm: A, x: u64) -> Self {
        Self { load, x, n: 1, arm }
    }

    /// Sets the second parameter.
    pub const fn with(mut self, n: u64) -> Self {
        self.n = n;
        self
    }
}

/// Makes a point for every arm at every value of x, in the order of values.
pub fn grid<A: Copy>(load: &'static str, arms: &[A], xs: &[u64]) -> Vec<Point<A>> {
    let row = |x: &u64| {
        let x = *x;
        arms.iter().map(move |arm| Point::of(load, *arm, x))
    };
    xs.iter().flat_map(row).collect()
}

/// One measurement: its values by name. Of several values of one name, the first counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample(Vec<(Quantity, f64)>);

impl Sample {
    /// Makes a sample of these values.
    pub fn of(quantities: impl IntoIterator<Item = (Quantity, f64)>) -> Self {
        Self(quantities.into_iter().collect())
    }

    /// Adds a value; it replaces a value of the same name.
    pub fn with(mut self, quantity: Quantity, value: f64) -> Self {
        self.0.insert(0, (quantity, value));
        self
    }

    /// Returns the value called `quantity`; `NaN` if the sample has none.
    pub fn get(&self, quantity: Quantity) -> f64 {
        let found = self.0.iter().find(|(name, _)| *name == quantity);
        found.map_or(f64::NAN, |(_, value)| *value)
    }
}

impl From<f64> for Sample {
    fn from(value: f64) -> Self {
        Self::of([(VALUE, value)])
    }
}

impl From<crate::latency::Quantiles> for Sample {
    fn from(q: crate::latency::Quantiles) -> Self {
        Self::of([
            (COUNT, q.count as f64),
            (P50, q.p50_ns),
            (P99, q.p99_ns),
            (P999, q.p999_ns),
            (MAX, q.max_ns),
            (MEAN, q.mean_ns),
        ])
    }
}

/// A point with its samples, `None` in a round without one.
type Samples<A> = (Point<A>, Vec<Option<Sample>>);

/// The samples of every point, one a round, in the order of the rows in `points.csv`.
#[derive(Clone, Debug)]
pub struct Measured<A> {
    samples: Vec<Samples<A>>,
    /// Points that are computed from others; they have no rows.
    derived: Vec<Samples<A>>,
    /// By arm name, why the arm has no sample, or not one in every round.
    pub failures: BTreeMap<String, String>,
}

impl<A> Default for Measured<A> {
    fn default() -> Self {
        Self {
            samples: Vec::new(),
            derived: Vec::new(),
            failures: BTreeMap::new(),
        }
    }
}

impl<A: Copy + PartialEq + fmt::Display> Measured<A> {
    /// Holds the samples of those points, round by round.
    pub fn new(
        points: impl IntoIterator<Item = (Point<A>, Vec<Option<Sample>>)>,
        failures: BTreeMap<String, String>,
    ) -> Self {
        Self {
            samples: points.into_iter().collect(),
            derived: Vec::new(),
            failures,
        }
    }

    /// Returns the points that have rows, in the order of the rows.
    pub fn points(&self) -> impl Iterator<Item = Point<A>> {
        self.samples.iter().map(|(point, _)| *point)
    }

    /// Returns the points that have rows, then the derived ones.
    pub fn all(&self) -> impl Iterator<Item = Point<A>> {
        let all = self.samples.iter().chain(&self.derived);
        all.map(|(point, _)| *point)
    }

    /// Sorts the rows by point.
    pub fn sorted(mut self) -> Self
    where
        A: Ord,
    {
        self.samples.sort_by_key(|(point, _)| *point);
        self
    }

    /// Sorts the rows by arm, and within an arm by the parameter x.
    pub fn by_arm(mut self) -> Self {
        self.samples
            .sort_by_key(|(point, _)| (point.arm.to_string(), point.x));
        self
    }

    /// Adds a point with its samples.
    pub fn insert(&mut self, point: Point<A>, samples: Vec<Option<Sample>>) {
        self.samples.push((point, samples));
    }

    /// Sets a value in every sample of a point.
    pub fn extend(&mut self, point: Point<A>, quantity: Quantity, value: f64) {
        let all = self.samples.iter_mut().chain(&mut self.derived);
        for sample in all
            .filter(|(other, _)| *other == point)
            .flat_map(|(_, samples)| samples)
            .flatten()
        {
            *sample = std::mem::take(sample).with(quantity, value);
        }
    }

    /// Adds all points of `other`, and the reasons why its arms failed.
    pub fn add(&mut self, other: Self) {
        self.samples.extend(other.samples);
        self.derived.extend(other.derived);
        self.failures.extend(other.failures);
    }

    /// Makes the points that `is` accepts derived points, which have no rows. Columns of other points,
    /// metrics and charts show them.
    pub fn without_rows(mut self, is: impl Fn(&Point<A>) -> bool) -> Self {
        let without = self.samples.extract_if(.., |(point, _)| is(point));
        self.derived.extend(without);
        self
    }

    /// Adds a point that is computed from others. It has no row, and its samples need not correspond to
    /// rounds.
    pub fn derive(&mut self, point: Point<A>, samples: Vec<Option<Sample>>) {
        self.derived.push((point, samples));
    }

    /// Returns a point's samples; empty if it was not measured.
    pub fn samples(&self, point: Point<A>) -> &[Option<Sample>] {
        let mut all = self.samples.iter().chain(&self.derived);
        let found = all.find(|(other, _)| *other == point);
        found.map_or(&[], |(_, samples)| samples)
    }

    /// Returns the parameter x and the median of `quantity` of the points that `is` accepts, in the order of
    /// the rows.
    pub fn series(&self, is: impl Fn(&Point<A>) -> bool, quantity: Quantity) -> Vec<(u64, f64)> {
        let median = |point: Point<A>| Some((point.x, Expr::At(point, quantity).median(self)?));
        self.points()
            .filter(|point| is(point))
            .filter_map(median)
            .collect()
    }

    /// Returns the number of rounds.
    pub fn rounds(&self) -> usize {
        self.samples
            .iter()
            .map(|(_, samples)| samples.len())
            .max()
            .unwrap_or(0)
    }

    /// Returns a quantity of a point, round by round. It is `NaN` in a round without a value, so that rounds
    /// stay aligned.
    fn numbers(&self, point: Point<A>, quantity: Quantity) -> Vec<f64> {
        let value = |sample: &Option<Sample>| sample.as_ref().map_or(f64::NAN, |s| s.get(quantity));
        self.samples(point).iter().map(value).collect()
    }

    /// Returns why a point has no value.
    pub fn why(&self, point: Point<A>) -> String {
        let arm = point.arm.to_string();
        let none = || match self.all().any(|other| other == point) {
            true => format!("no round of {arm} gave a figure"),
            false => ELSEWHERE.to_owned(),
        };
        self.failures.get(&arm).cloned().unwrap_or_else(none)
    }
}

/// A function of two values.
pub type Operator = fn(f64, f64) -> f64;

/// An expression over measured values: the value of a metric, a column or a mark of a chart.
#[derive(Clone, Debug)]
pub enum Expr<A> {
    /// A quantity of a point.
    At(Point<A>, Quantity),
    /// The same value in every round.
    Is(f64),
    /// Computed from two expressions, round by round, because both were measured close together in each
    /// round.
    Pair(Box<Self>, Operator, Box<Self>),
    /// Computed from an expression, round by round, and a number.
    Each(Box<Self>, Operator, f64),
    /// A statistic of all rounds, which counts as the value of a single round.
    All(Box<Self>, fn(Spread) -> f64),
    /// The expression with the highest median.
    Highest(Vec<Self>),
    /// The expression with the lowest median.
    Lowest(Vec<Self>),
}

impl<A> Expr<A> {
    /// Makes an expression without a value.
    pub const fn none() -> Self {
        Self::Highest(Vec::new())
    }

    /// Keeps the value if `is` holds, and drops it otherwise.
    pub fn when(self, is: bool) -> Self {
        if is { self } else { Self::none() }
    }

    /// Makes a statistic of all rounds, which counts as the value of a single round.
    pub fn all(self, statistic: fn(Spread) -> f64) -> Self {
        Self::All(Box::new(self), statistic)
    }

    /// Makes the difference of the highest and the lowest round, divided by the median.
    pub fn fluctuation(self) -> Self {
        self.all(|spread| quotient(spread.high - spread.low, spread.median))
    }
}

/// Divides; a quotient by zero is `NaN`, which is no value.
fn quotient(a: f64, b: f64) -> f64 {
    if b == 0.0 { f64::NAN } else { a / b }
}

impl<A> std::ops::Div for Expr<A> {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        Self::Pair(Box::new(self), quotient, Box::new(other))
    }
}

impl<A> std::ops::Sub for Expr<A> {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self::Pair(Box::new(self), |a, b| a - b, Box::new(other))
    }
}

impl<A> std::ops::Mul<f64> for Expr<A> {
    type Output = Self;
    fn mul(self, by: f64) -> Self {
        Self::Each(Box::new(self), |a, by| a * by, by)
    }
}

impl<A> std::ops::Div<f64> for Expr<A> {
    type Output = Self;
    fn div(self, by: f64) -> Self {
        Self::Each(Box::new(self), |a, by| a / by, by)
    }
}

impl<A: Copy + PartialEq + fmt::Display> Expr<A> {
    /// Returns the value of each round.
    pub fn rounds(&self, of: &Measured<A>) -> Vec<f64> {
        match self {
            Self::At(point, quantity) => of.numbers(*point, quantity),
            Self::Is(value) => vec![*value; of.rounds().max(1)],
            Self::Pair(a, operator, b) => {
                let (a, b) = (a.rounds(of), b.rounds(of));
                a.into_iter().zip(b).map(|(a, b)| operator(a, b)).collect()
            }
            Self::Each(a, operator, by) => {
                let rounds = a.rounds(of).into_iter();
                rounds.map(|a| operator(a, *by)).collect()
            }
            Self::All(a, statistic) => a.spread(of).map(statistic).into_iter().collect(),
            Self::Highest(all) => Self::picked(all, of, |a, b| a > b),
            Self::Lowest(all) => Self::picked(all, of, |a, b| a < b),
        }
    }

    fn picked(all: &[Self], of: &Measured<A>, is_better: fn(f64, f64) -> bool) -> Vec<f64> {
        let mut best: Option<(f64, Vec<f64>)> = None;
        for rounds in all.iter().map(|one| one.rounds(of)) {
            let beats = |median| {
                best.as_ref()
                    .is_none_or(|(best, _)| is_better(median, *best))
            };
            if let Some(Spread { median, .. }) = Spread::of(&rounds).filter(|s| beats(s.median)) {
                best = Some((median, rounds));
            }
        }
        best.map_or_else(Vec::new, |(_, rounds)| rounds)
    }

    /// Returns the median and the spread over the rounds.
    pub fn spread(&self, of: &Measured<A>) -> Option<Spread> {
        Spread::of(&self.rounds(of))
    }

    /// Returns the median over the rounds.
    pub fn median(&self, of: &Measured<A>) -> Option<f64> {
        self.spread(of).map(|spread| spread.median)
    }

    /// Returns why there is no value: the reason of the first point that has none.
    pub fn why(&self, of: &Measured<A>) -> String {
        self.missing(of).map_or_else(
            || "no round gave a figure".to_owned(),
            |point| of.why(point),
        )
    }

    fn missing(&self, of: &Measured<A>) -> Option<Point<A>> {
        match self {
            Self::At(point, _) => self.spread(of).is_none().then_some(*point),
            Self::Is(_) => None,
            Self::Pair(a, _, b) => a.missing(of).or_else(|| b.missing(of)),
            Self::Each(a, ..) | Self::All(a, _) => a.missing(of),
            Self::Highest(all) | Self::Lowest(all) => all.iter().find_map(|one| one.missing(of)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured<&'static str> {
        let rounds = |values: [f64; 2]| values.map(|value| Some(value.into())).to_vec();
        let points = [
            (Point::at("fast", 64), rounds([30.0, 60.0])),
            (Point::at("slow", 64), rounds([10.0, 20.0])),
            (Point::at("absent", 64), vec![None, None]),
        ];
        let why = BTreeMap::from([("absent".to_owned(), "it is not installed".to_owned())]);
        Measured::new(points, why)
    }

    fn at(arm: &'static str) -> Expr<&'static str> {
        Expr::At(Point::at(arm, 64), VALUE)
    }

    #[test]
    fn expressions_are_computed_round_by_round() {
        let of = measured();
        for (expr, median) in [
            (at("fast"), Some(45.0)),
            (at("fast") / at("slow"), Some(3.0)),
            (at("fast") - at("slow"), Some(30.0)),
            (at("slow") * 2.0 / 4.0, Some(7.5)),
            (
                Expr::Highest(vec![at("slow"), at("absent"), at("fast")]),
                Some(45.0),
            ),
            (
                at("fast") / Expr::Lowest(vec![at("fast"), at("slow")]),
                Some(3.0),
            ),
            (at("fast") / at("absent"), None),
            (at("fast") / Expr::Lowest(vec![at("absent")]), None),
        ] {
            assert_eq!(expr.median(&of), median, "{expr:?}");
        }
        assert_eq!((at("fast") / at("absent")).why(&of), "it is not installed");
        assert_eq!(at("unheard of").why(&of), ELSEWHERE);
    }

    #[test]
    fn a_grid_has_every_arm_at_every_value() {
        let points = grid("", &["a", "b"], &[1, 2]);
        let points: Vec<_> = points.iter().map(|point| (point.arm, point.x)).collect();
        assert_eq!(points, [("a", 1), ("b", 1), ("a", 2), ("b", 2)]);
    }
}
