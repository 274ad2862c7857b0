//! The trait of all experiments, and the type that declares one as a table.

use std::fmt;

pub use crate::about::{About, Paper, RunsOn};
use crate::bench::Bench;
use crate::claim::Stated;
use crate::error::RunError;
use crate::outcome::Outcome;
use crate::table::{Measured, Table};

/// An experiment. It measures through the [`Bench`] that it receives and writes no files itself.
pub trait Experiment: Sync {
    /// Returns the experiment's description.
    fn about(&self) -> &About;

    /// Returns the keys of all metrics of the summary, each with the paper's values.
    fn metrics(&self) -> Vec<(String, Stated)>;

    /// Returns the file names of the charts that do not depend on the device.
    fn figures(&self) -> Vec<String>;

    /// Measures everything. What cannot be measured goes to [`Outcome::skip`].
    ///
    /// # Errors
    ///
    /// An interrupt, or a failure that makes the whole experiment pointless.
    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError>;
}

/// A declared experiment: a table, and the function that measures its points.
pub struct Case<A: 'static> {
    /// The experiment's description.
    pub about: About,
    /// Makes the table of arms, columns, metrics, charts and checks.
    pub table: fn() -> Table<A>,
    /// Measures the points. It may add to the table what depends on the device, and record in the outcome
    /// what is not computed from points.
    pub measure: Measure<A>,
}

/// A function that measures the points of a table.
pub type Measure<A> =
    fn(&mut Bench<'_>, &mut Table<A>, &mut Outcome) -> Result<Measured<A>, RunError>;

impl<A: Copy + PartialEq + fmt::Display> Experiment for Case<A> {
    fn about(&self) -> &About {
        &self.about
    }

    fn metrics(&self) -> Vec<(String, Stated)> {
        (self.table)().keys()
    }

    fn figures(&self) -> Vec<String> {
        (self.table)().files()
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let (mut table, mut outcome) = ((self.table)(), bench.outcome());
        let measured = (self.measure)(bench, &mut table, &mut outcome)?;
        table.measured_on(bench.options.preset());
        table.render(&measured, &mut outcome);
        Ok(outcome)
    }
}
