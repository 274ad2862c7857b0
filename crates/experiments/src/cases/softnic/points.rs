//! Measuring every arm, in turn.

use std::collections::BTreeMap;
use std::time::Duration;

use super::arms::{all, name};
use crate::bench::Bench;
use crate::nic::{Task, What};
use crate::runner::RunError;
use crate::transports::ArmError;
use crate::transports::job::Report;

/// A pair of processes takes about so long to start, meet and end.
const OVERHEAD: Duration = Duration::from_millis(60);
/// What of a quick run's budget goes here.
const SHARE: f64 = 0.8;
/// How often an arm is tried that measured nothing in its time, each time for longer.
const TRIES: u32 = 3;

/// What every arm reported, round by round, and why some could not be measured.
#[derive(Debug, Default)]
pub(super) struct Points {
    pub(super) samples: BTreeMap<What, Vec<Option<[Report; 2]>>>,
    pub(super) failures: BTreeMap<What, String>,
}

/// Measures every arm.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<Points, RunError> {
    let arms = all();
    let run = bench.time_per_point(arms.len(), SHARE, OVERHEAD, Duration::from_millis(500));
    let rounds = bench.alternate_arms(
        &arms,
        |what| *what,
        |what| name(*what),
        |bench, what| sample(bench, *what, bench.hurried(run)),
    )?;
    Ok(Points {
        samples: arms.into_iter().zip(rounds.samples).collect(),
        failures: rounds.failures,
    })
}

/// Measures one arm once; nothing if the time was too short.
fn sample(
    bench: &Bench<'_>,
    what: What,
    mut run: Duration,
) -> Result<Option<[Report; 2]>, ArmError> {
    for _ in 0..TRIES {
        let dir = tempfile::Builder::new()
            .prefix("headworks-")
            .tempdir()
            .map_err(|e| ArmError::at("private directory", e))?;
        let run_ns = run.as_nanos() as u64;
        let reports = bench.place.run_task(&Task {
            what,
            run_ns: run_ns / 5 * 4,
            warm_ns: run_ns / 5,
            together: false,
            dir: dir.path().to_owned(),
        })?;
        let empty = |report: &Report| matches!(report, Report::Rate { messages: 0, .. });
        if !reports.iter().any(empty) {
            return Ok(Some(reports));
        }
        // On a busy machine the part may have slept all that time.
        run *= 4;
    }
    Ok(None)
}

impl Points {
    /// How many rounds there were.
    pub(super) fn rounds(&self) -> usize {
        self.samples.values().map(Vec::len).max().unwrap_or(0)
    }

    /// What an arm counted per second, round by round; `NaN` where it did not, so that rounds stay
    /// aligned.
    pub(super) fn rates(&self, what: What) -> Vec<f64> {
        let per_second = |reports: &[Report; 2]| reports.iter().find_map(Report::per_second);
        let samples = self
            .samples
            .get(&what)
            .map(Vec::as_slice)
            .unwrap_or_default();
        samples
            .iter()
            .map(|s| s.as_ref().and_then(per_second).unwrap_or(f64::NAN))
            .collect()
    }

    /// Why an arm has no figure.
    pub(super) fn why(&self, what: What) -> String {
        let none = || format!("no round of {} gave a figure", name(what));
        self.failures.get(&what).cloned().unwrap_or_else(none)
    }
}
