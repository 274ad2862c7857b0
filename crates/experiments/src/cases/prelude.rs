//! Names that every case imports, and helpers to measure one point.

pub(super) use std::time::Duration as Wall;

pub(super) use headworks::verbs::Duration;

pub(super) use crate::bench::{Bench, Sweep};
pub(super) use crate::claim::Claim;
pub(super) use crate::error::RunError;
pub(super) use crate::experiment::{About, Case, Paper, RunsOn};
pub(super) use crate::format::grid::Cell;
pub(super) use crate::format::human;
pub(super) use crate::format::svg::Axis;
pub(super) use crate::outcome::Outcome;
pub(super) use crate::stats::Spread;
pub(super) use crate::table::*;
pub(super) use crate::testbed::Testbed;
pub(super) use crate::transports::job::{Channel, Job, Report, Workload};
pub(super) use crate::transports::{ArmNote, WorkloadError};

/// Size of a 1 MiB message in bytes.
pub(super) const MIB: u64 = 1 << 20;

/// Most attempts to measure a point. Each takes longer than the one before.
const TRIES: u32 = 3;

/// Measures for `run`, and again for four times as long while nothing completes. On a busy machine the
/// scheduler may keep an actor off its processor for the whole time.
pub(super) fn patiently<T>(
    mut run: Wall,
    mut measure: impl FnMut(Wall) -> Result<Option<T>, WorkloadError>,
) -> Result<Option<T>, WorkloadError> {
    for _ in 0..TRIES {
        let found = measure(run)?;
        if found.is_some() {
            return Ok(found);
        }
        run *= 4;
    }
    Ok(None)
}

/// Makes a temporary directory for one measurement.
pub(super) fn private_dir() -> Result<tempfile::TempDir, WorkloadError> {
    let dir = tempfile::Builder::new().prefix("headworks-").tempdir();
    dir.map_err(|why| WorkloadError::at("private directory", why))
}

/// Divides `run` into warm-up and measured time, in nanoseconds. The warm-up is a fifth.
pub(super) fn warm_and_run(run: Wall) -> (u64, u64) {
    let fifth = run.as_nanos() as u64 / 5;
    (fifth, 4 * fifth)
}

/// Makes the job of both actors of a pair: messages of `size` bytes over `slots` slots for `run`.
pub(super) fn job(
    channel: Channel,
    workload: Workload,
    [size, slots]: [u64; 2],
    run: Wall,
    dir: &tempfile::TempDir,
) -> Job {
    let slots = slots as u32;
    Job {
        slots,
        ..Job::new(channel, workload, size, run, dir.path())
    }
}
