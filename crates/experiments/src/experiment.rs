//! What an experiment is.

use std::fmt;

pub use crate::about::{About, Paper, RunsOn};
use crate::bench::Bench;
use crate::claim::PaperValue;
use crate::error::RunError;
use crate::outcome::Outcome;
use crate::table::{Measured, Table};

/// One experiment. It measures through the [`Bench`] it is handed and writes nothing itself.
pub trait Experiment: Sync {
    /// How it presents itself.
    fn about(&self) -> &About;

    /// Every metric of its summary, with what the paper states of it.
    fn metrics(&self) -> Vec<(String, Option<PaperValue>)>;

    /// The files of its figures, where they do not depend on the device.
    fn figures(&self) -> Vec<String>;

    /// Measures everything. What could not be measured goes to [`Outcome::skip`]; an error is for
    /// an interrupt or for what makes the whole experiment pointless.
    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError>;
}

/// An experiment that is declared: a table, and what measures its points.
pub struct Case<A: 'static> {
    /// How it presents itself.
    pub about: About,
    /// What it compares and reports.
    pub table: fn() -> Table<A>,
    /// Measures the points. It may add to the table what depends on the device, and record in the outcome what is not
    /// computed from points.
    pub measure: Measure<A>,
}

/// Measures the points of a table.
pub type Measure<A> =
    fn(&mut Bench<'_>, &mut Table<A>, &mut Outcome) -> Result<Measured<A>, RunError>;

impl<A: Copy + PartialEq + fmt::Display> Experiment for Case<A> {
    fn about(&self) -> &About {
        &self.about
    }

    fn metrics(&self) -> Vec<(String, Option<PaperValue>)> {
        (self.table)().keys()
    }

    fn figures(&self) -> Vec<String> {
        (self.table)().files()
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let (mut table, mut outcome) = ((self.table)(), bench.outcome());
        let measured = (self.measure)(bench, &mut table, &mut outcome)?;
        table.render(&measured, &mut outcome);
        Ok(outcome)
    }
}
