//! The experiments, in the order in which they are listed and run.

mod prelude;
pub mod rb2;
pub mod weir;

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
    &weir::scale::FIG2,
    &weir::delay::FIG4,
    &weir::scale::FIG7,
    &weir::scale::FIG8,
    &weir::scale::FIG9,
    &weir::delay::FIG10A,
    &weir::delay::FIG10B,
    &weir::cost::FIG11A,
    &weir::cost::OVERHEAD,
];
