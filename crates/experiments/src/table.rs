//! An experiment as a table: arms, columns, metrics with the paper's values, charts and checks. One renderer
//! makes `points.csv`, the report, the charts and the summary from it.
//!
//! A case fills a [`Table`] and measures a [`Measured`]; [`Table::render`] does the rest.

mod measured;

use std::fmt;

pub use measured::{
    BYTES, COUNT, Expr, MAX, MEAN, Measured, Operator, P50, P99, P999, Point, Quantity, RATE,
    Sample, VALUE, grid,
};

use crate::claim::{Claim, PaperValue, Stated};
use crate::format::grid::{Cell, Grid};
use crate::format::human;
use crate::format::svg::{Axis, Figure, Series};
use crate::outcome::{ArmNote, Outcome};
use crate::stats::Spread;

/// Words in place of a value that the paper states for other testbeds only.
pub const NOT_STATED: &str = "no value in the paper";

/// The arms, columns, metrics, charts and checks of an experiment. It holds no results and is built anew for
/// each use.
pub struct Table<A> {
    /// The compared arms, and how each waits and copies.
    pub arms: Vec<ArmNote>,
    columns: Vec<Column<A>>,
    metrics: Vec<Metric<A>>,
    charts: Vec<Chart<A>>,
    checks: Vec<Check<A>>,
    /// Whether the report lists the points.
    is_listed: bool,
    /// Whether values and sentences are what was expected beforehand, not what a paper states.
    is_expectation: bool,
    /// Preset of the simulated device that was measured.
    preset: Option<&'static str>,
    /// Remarks for the report.
    pub notes: Vec<String>,
}

/// One column of `points.csv` and of the report's table, or three in `points.csv` for a spread.
struct Column<A> {
    header: String,
    value: Value<A>,
}

type OfPoint<A, T> = Box<dyn Fn(&Point<A>) -> T>;

enum Value<A> {
    Cell(OfPoint<A, Cell>),
    Statistic(Statistic, OfPoint<A, Expr<A>>),
}

/// The statistic over the rounds that a column shows.
#[derive(Clone, Copy)]
enum Statistic {
    Median,
    /// Median, lowest and highest round.
    Spread,
    /// Number of rounds that gave a value.
    Rounds,
}

/// A named value of the summary.
pub struct Metric<A> {
    key: String,
    expr: Expr<A>,
    stated: Stated,
}

impl<A> Metric<A> {
    /// Adds the paper's value, in the metric's unit, with the section that states it. It is judged on any device.
    pub fn paper(&mut self, claim: Claim, section: &'static str) -> &mut Self {
        self.paper_on(&[], claim, section)
    }

    /// Adds the value that the paper found on the testbeds that `presets` stand for. It is judged on simulated devices
    /// of these presets only.
    pub fn paper_on(
        &mut self,
        presets: &'static [&'static str],
        claim: Claim,
        section: &'static str,
    ) -> &mut Self {
        self.stated.add(PaperValue {
            claim,
            section,
            presets,
        });
        self
    }
}

/// A chart without its lines, and the function that makes the lines' marks from points.
struct Chart<A> {
    empty: Figure,
    marks: OfPoint<A, Vec<Mark<A>>>,
}

/// A mark of a chart: the name of its line, its x and its y.
pub type Mark<A> = (String, Expr<A>, Expr<A>);

/// A sentence of the paper that states no single value, and the function that checks it.
struct Check<A> {
    says: String,
    finding: Finding<A>,
}

/// Compares a sentence with what was measured: returns the finding in words, and whether the sentence holds.
/// The verdict is `None` unless every value of the sentence was measured; the finding is `None` if none was.
pub type Finding<A> = Box<dyn Fn(&Measured<A>) -> Option<(String, Option<bool>)>>;

impl<A: Copy + PartialEq + fmt::Display + 'static> Table<A> {
    /// Makes a table of `arms` without columns.
    pub fn new(arms: Vec<ArmNote>) -> Self {
        Self {
            arms,
            columns: Vec::new(),
            metrics: Vec::new(),
            charts: Vec::new(),
            checks: Vec::new(),
            is_listed: true,
            is_expectation: false,
            preset: None,
            notes: Vec::new(),
        }
    }

    fn column(&mut self, header: impl Into<String>, value: Value<A>) -> &mut Self {
        let header = header.into();
        self.columns.push(Column { header, value });
        self
    }

    /// Adds a column of the arms' names.
    pub fn arm(&mut self) -> &mut Self {
        self.cell("arm", |point| point.arm.to_string().as_str().into())
    }

    /// Adds a column that describes the point.
    pub fn cell(
        &mut self,
        header: impl Into<String>,
        of: impl Fn(&Point<A>) -> Cell + 'static,
    ) -> &mut Self {
        self.column(header, Value::Cell(Box::new(of)))
    }

    /// Adds a column of the swept parameter.
    pub fn x(&mut self, header: impl Into<String>) -> &mut Self {
        self.cell(header, |point| (point.x as f64).into())
    }

    /// Adds a column of the second parameter.
    pub fn n(&mut self, header: impl Into<String>) -> &mut Self {
        self.cell(header, |point| (point.n as f64).into())
    }

    /// Adds a column of medians; `header` is `name [unit]`.
    pub fn median(
        &mut self,
        header: impl Into<String>,
        of: impl Fn(&Point<A>) -> Expr<A> + 'static,
    ) -> &mut Self {
        self.column(header, Value::Statistic(Statistic::Median, Box::new(of)))
    }

    /// Adds a column of medians of one quantity of each point; `header` is `name [unit]`.
    pub fn value(&mut self, header: impl Into<String>, quantity: Quantity) -> &mut Self {
        self.median(header, move |point| Expr::At(*point, quantity))
    }

    /// Adds three columns: the median, the lowest and the highest round. `header` is that of the median,
    /// `name [unit]`.
    pub fn spread(
        &mut self,
        header: impl Into<String>,
        of: impl Fn(&Point<A>) -> Expr<A> + 'static,
    ) -> &mut Self {
        self.column(header, Value::Statistic(Statistic::Spread, Box::new(of)))
    }

    /// Adds the column `repeats`: the number of rounds that gave a value.
    pub fn repeats(&mut self, of: impl Fn(&Point<A>) -> Expr<A> + 'static) -> &mut Self {
        self.column("repeats", Value::Statistic(Statistic::Rounds, Box::new(of)))
    }

    /// Adds a metric of the summary.
    pub fn metric(&mut self, key: impl Into<String>, expr: Expr<A>) -> &mut Metric<A> {
        self.metrics.push(Metric {
            key: key.into(),
            expr,
            stated: Stated::default(),
        });
        self.metrics.last_mut().expect("just pushed")
    }

    /// Adds metrics that the measuring function records or skips itself.
    pub fn declare(&mut self, keys: impl IntoIterator<Item = impl Into<String>>) -> &mut Self {
        for key in keys {
            self.metric(key, Expr::none());
        }
        self
    }

    /// Returns the metric `key`, so that a paper's value can be added to a metric that a loop made.
    ///
    /// # Panics
    ///
    /// If there is no such metric.
    pub fn of(&mut self, key: &str) -> &mut Metric<A> {
        let found = self.metrics.iter_mut().find(|metric| metric.key == key);
        found.unwrap_or_else(|| panic!("no metric is called {key}"))
    }

    /// Adds a chart with at most one mark for each point: the name of its line, its x and its y.
    pub fn chart(
        &mut self,
        file: impl Into<String>,
        title: impl Into<String>,
        axes: (Axis, Axis),
        line: impl Fn(&Point<A>) -> Option<(String, f64, Expr<A>)> + 'static,
    ) -> &mut Self {
        let mark = move |point: &Point<A>| line(point).map(|(name, x, y)| (name, Expr::Is(x), y));
        self.marks(file, title, axes, move |point| {
            mark(point).into_iter().collect()
        })
    }

    /// Adds a chart with a line for each arm over the swept parameter.
    pub fn lines(
        &mut self,
        file: impl Into<String>,
        title: impl Into<String>,
        axes: (Axis, Axis),
        of: impl Fn(&Point<A>) -> Expr<A> + 'static,
    ) -> &mut Self {
        self.chart(file, title, axes, move |point| {
            Some((point.arm.to_string(), point.x as f64, of(point)))
        })
    }

    /// Adds a chart with any number of marks for each point. Derived points are included.
    pub fn marks(
        &mut self,
        file: impl Into<String>,
        title: impl Into<String>,
        (x, y): (Axis, Axis),
        marks: impl Fn(&Point<A>) -> Vec<Mark<A>> + 'static,
    ) -> &mut Self {
        let empty = Figure {
            file: file.into(),
            title: title.into(),
            x,
            y,
            series: Vec::new(),
        };
        let marks = Box::new(marks);
        self.charts.push(Chart { empty, marks });
        self
    }

    /// Drops the charts whose file names `keeps` refuses.
    pub fn keep_charts(&mut self, keeps: impl Fn(&str) -> bool) -> &mut Self {
        self.charts.retain(|chart| keeps(&chart.empty.file));
        self
    }

    /// Keeps the points out of the report: they are many, and `points.csv` has them.
    pub fn unlisted(&mut self) -> &mut Self {
        self.is_listed = false;
        self
    }

    /// Adds a sentence of the paper, with its section, that `finding` checks against what was measured.
    pub fn check(
        &mut self,
        says: impl Into<String>,
        finding: impl Fn(&Measured<A>) -> Option<(String, bool)> + 'static,
    ) -> &mut Self {
        self.find(says.into(), move |measured| {
            let (found, holds) = finding(measured)?;
            Some((found, Some(holds)))
        })
    }

    /// Declares that the values and sentences of this table are what was expected before the experiment was run, not
    /// what a paper states.
    pub fn expectations(&mut self) -> &mut Self {
        self.is_expectation = true;
        self
    }

    fn find(
        &mut self,
        says: String,
        finding: impl Fn(&Measured<A>) -> Option<(String, Option<bool>)> + 'static,
    ) -> &mut Self {
        let finding = Box::new(finding);
        self.checks.push(Check { says, finding });
        self
    }

    /// Adds a sentence of the paper, with its section, about several values, each with its claim. The
    /// sentence holds if every claim holds. There is no verdict unless every value was measured.
    pub fn sentence<W: Into<String>>(
        &mut self,
        says: impl Into<String>,
        parts: impl IntoIterator<Item = (W, Expr<A>, Claim)>,
    ) -> &mut Self {
        let parts = parts.into_iter();
        let parts: Vec<_> = parts
            .map(|(what, of, claim)| (what.into(), of, claim))
            .collect();
        self.find(says.into(), move |measured| {
            let found = parts
                .iter()
                .filter_map(|(what, of, claim): &(String, _, _)| {
                    let ours = of.median(measured)?;
                    let said = format!("{what} {} ({claim})", human(ours));
                    Some((said, claim.holds(ours)))
                });
            let (said, holds): (Vec<_>, Vec<_>) = found.unzip();
            let verdict =
                (holds.len() == parts.len()).then(|| holds.into_iter().all(|holds| holds));
            (!said.is_empty()).then(|| (said.join(", "), verdict))
        })
    }

    /// Drops the paper's values and sentences: the device cannot decide them.
    pub fn without_verdicts(&mut self) -> &mut Self {
        self.metrics
            .iter_mut()
            .for_each(|metric| metric.stated = Stated::default());
        self.checks.clear();
        self
    }

    /// Adds a remark for the report.
    pub fn note(&mut self, text: impl Into<String>) -> &mut Self {
        self.notes.push(text.into());
        self
    }

    /// Says of which preset the simulated device was that was measured.
    pub fn measured_on(&mut self, preset: Option<&'static str>) -> &mut Self {
        self.preset = preset;
        self
    }

    /// Returns the keys of all metrics, each with the paper's values.
    pub fn keys(&self) -> Vec<(String, Stated)> {
        let metrics = self.metrics.iter();
        metrics
            .map(|metric| (metric.key.clone(), metric.stated.clone()))
            .collect()
    }

    /// Returns the file names of all charts.
    pub fn files(&self) -> Vec<String> {
        let charts = self.charts.iter();
        charts.map(|chart| chart.empty.file.clone()).collect()
    }

    /// Writes points, report tables, metrics, checks, charts and remarks to `outcome`. Metrics that `outcome`
    /// already has, or skips, stay as they are.
    pub fn render(mut self, measured: &Measured<A>, outcome: &mut Outcome) {
        outcome.repeats = outcome.repeats.max(measured.rounds());
        outcome.points = self.csv(measured);
        outcome
            .grids
            .extend(self.grid(measured).filter(|_| self.is_listed));
        for metric in &self.metrics {
            let key = &metric.key;
            if !outcome.ratios().contains_key(key) && !outcome.skipped().contains_key(key) {
                let spread = metric.expr.spread(measured);
                outcome.measured_or(key, spread, metric.expr.why(measured));
            }
        }
        let checked = self.checked(measured, outcome);
        outcome.grids.extend(checked);
        outcome
            .figures
            .extend(self.charts.iter().map(|chart| chart.figure(measured)));
        outcome.arms.append(&mut self.arms);
        outcome.notes.append(&mut self.notes);
        for (arm, why) in &measured.failures {
            let note = format!("{arm} was not measured, or not in every round: {why}");
            outcome.notes.push(note);
        }
        if outcome.repeats > 1 {
            let note = "Ratios are medians of the ratios within each round, in which all arms take their turn.";
            outcome.notes.push(note.into());
        }
    }

    fn csv(&self, measured: &Measured<A>) -> Grid {
        let mut csv = Grid::default();
        for Column { header, value } in &self.columns {
            csv.header.push(header.clone());
            if let Value::Statistic(Statistic::Spread, _) = value {
                let sides = ["low", "high"].map(|which| beside(header, which));
                csv.header.extend(sides);
            }
        }
        for point in measured.points() {
            let columns = self.columns.iter();
            let cells = columns.flat_map(|column| column.value.cells(&point, measured));
            csv.rows.push(cells.map(|cell| cell.0).collect());
        }
        csv
    }

    /// Makes the report's table of points: numbers with few digits, and a median with its spread in one
    /// column.
    fn grid(&self, measured: &Measured<A>) -> Option<Grid> {
        let row = |point: Point<A>| {
            self.columns
                .iter()
                .map(|column| column.value.text(&point, measured))
                .collect()
        };
        let rows: Vec<Vec<String>> = measured.points().map(row).collect();
        let header = self.columns.iter().map(|column| &column.header);
        Grid::of("Points: median (lowest – highest repeat)", header, rows)
    }

    /// Makes a table of the paper's values and sentences beside the results.
    fn checked(&self, measured: &Measured<A>, outcome: &Outcome) -> Option<Grid> {
        let values = self
            .metrics
            .iter()
            .filter_map(|Metric { key, stated, .. }| {
                let ours = outcome.ratios().get(key)?.median;
                if stated.is_empty() {
                    return None;
                }
                let Some(stated) = stated.on(self.preset) else {
                    return Some((format!("{key}: {NOT_STATED}"), human(ours), None));
                };
                let says = format!("{key}: {} ({})", stated.claim, stated.section);
                let holds = stated.claim.holds(ours);
                let is_calibrated = stated.section.starts_with("calibrated");
                Some((says, human(ours), (!is_calibrated).then_some(holds)))
            });
        let sentences = self.checks.iter().filter_map(|Check { says, finding }| {
            let (ours, holds) = finding(measured)?;
            Some((says.clone(), ours, holds))
        });
        let row = |(says, ours, holds): (String, String, Option<bool>)| {
            let holds = holds.map_or("–", |holds| if holds { "yes" } else { "no" });
            vec![says, ours, holds.to_owned()]
        };
        let rows: Vec<_> = values.chain(sentences).map(row).collect();
        let (title, header) = match self.is_expectation {
            true => ("What was expected", ["expected", "found", "as expected"]),
            false => (
                "What the paper says of it",
                ["paper (section)", "ours", "the same"],
            ),
        };
        Grid::of(title, header, rows)
    }
}

/// Derives the header of a column beside the median's: `name low [unit]` from `name [unit]`, and `low [unit]`
/// from `[unit]`.
fn beside(header: &str, which: &str) -> String {
    match header.split_once('[') {
        Some(("", unit)) => format!("{which} [{unit}"),
        Some((name, unit)) => format!("{name}{which} [{unit}"),
        None => format!("{header} {which}"),
    }
}

impl<A: Copy + PartialEq + fmt::Display> Value<A> {
    fn cells(&self, point: &Point<A>, measured: &Measured<A>) -> Vec<Cell> {
        let (statistic, spread) = match self {
            Self::Cell(of) => return vec![of(point)],
            Self::Statistic(statistic, of) => (statistic, of(point).spread(measured)),
        };
        let of = |value: fn(Spread) -> f64| Cell::from(spread.map(value));
        match statistic {
            Statistic::Median => vec![of(|s| s.median)],
            Statistic::Spread => vec![of(|s| s.median), of(|s| s.low), of(|s| s.high)],
            Statistic::Rounds => vec![of(|s| s.repeats as f64)],
        }
    }

    fn text(&self, point: &Point<A>, measured: &Measured<A>) -> String {
        let (statistic, spread) = match self {
            Self::Cell(of) => return of(point).0,
            Self::Statistic(statistic, of) => (statistic, of(point).spread(measured)),
        };
        match (statistic, spread) {
            (_, None) => "–".to_owned(),
            (Statistic::Rounds, Some(spread)) => spread.repeats.to_string(),
            (Statistic::Spread, Some(s)) if s.repeats > 1 => {
                format!("{} ({} – {})", human(s.median), human(s.low), human(s.high))
            }
            (_, Some(spread)) => human(spread.median),
        }
    }
}

impl<A: Copy + PartialEq + fmt::Display> Chart<A> {
    fn figure(&self, measured: &Measured<A>) -> Figure {
        let mut figure = self.empty.clone();
        let series = &mut figure.series;
        for (name, x, y) in measured.all().flat_map(|point| (self.marks)(&point)) {
            let Some(mark) = x.median(measured).zip(y.median(measured)) else {
                continue;
            };
            match series.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(mark),
                None => series.push(Series {
                    name,
                    points: vec![mark],
                }),
            }
        }
        figure
    }
}

/// Makes an arm's note: its name, its description, whether both sides poll or block, and how often bytes are
/// copied.
pub fn arm(
    name: impl Into<String>,
    what: impl Into<String>,
    waiting: &'static str,
    copies: impl Into<String>,
) -> ArmNote {
    ArmNote {
        name: name.into(),
        what: what.into(),
        waiting,
        copies: copies.into(),
    }
}

#[cfg(test)]
mod tests;
