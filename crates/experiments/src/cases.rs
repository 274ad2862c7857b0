//! The experiments, in the order in which they are listed and run.

pub mod rb2;

use crate::experiment::Experiment;

/// All of them.
pub const ALL: &[&dyn Experiment] = &[
    &rb2::figures::FIG3,
    &rb2::figures::FIG5,
    &rb2::figures::FIG6,
    &rb2::figures::FIG7,
    &rb2::table2::TABLE2,
    &rb2::figures::RXE_RING,
    &rb2::studies::CASE1,
    &rb2::studies::CASE2,
    &rb2::studies::CASE3,
];
