//! The names that every case needs.

pub(super) use std::time::Duration as Wall;

pub(super) use headworks::verbs::Duration;

pub(super) use crate::bench::{Bench, Sweep};
pub(super) use crate::claim::Claim;
pub(super) use crate::experiment::{About, Case, Paper, RunsOn};
pub(super) use crate::outcome::Outcome;
pub(super) use crate::report::csv::Cell;
pub(super) use crate::report::human;
pub(super) use crate::report::svg::Axis;
pub(super) use crate::runner::RunError;
pub(super) use crate::stats::Spread;
pub(super) use crate::table::*;
pub(super) use crate::testbed::Testbed;
pub(super) use crate::transports::{ArmError, ArmNote};
