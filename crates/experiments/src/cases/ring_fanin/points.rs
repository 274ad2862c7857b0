//! Measuring both arms at every number of rings, in turn.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bench::Bench;
use crate::fanin::{Ends, Load, Phase, Task};
use crate::runner::RunError;
use crate::transports::ArmError;
use crate::transports::job::Report;

/// How many rings.
pub(super) const RINGS: [usize; 4] = [1, 10, 100, 1000];
/// A pair of processes takes about so long to start, connect and end, on the average of all points.
const OVERHEAD: Duration = Duration::from_millis(250);
/// What of a quick run's budget goes here.
const SHARE: f64 = 0.8;

/// One arm at one number of rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) rings: usize,
    pub(super) ends: Ends,
}

impl Point {
    pub(super) fn arm(self) -> &'static str {
        match self.ends {
            Ends::Group => "group",
            Ends::Separate => "separate",
        }
    }

    pub(super) fn name(self) -> String {
        format!("{}{}", self.arm(), self.rings)
    }
}

/// Every point, those to be compared next to each other.
pub(super) fn all() -> Vec<Point> {
    let both = |rings| [Ends::Group, Ends::Separate].map(|ends| Point { rings, ends });
    RINGS.into_iter().flat_map(both).collect()
}

/// What every point reported, round by round, and why some could not be measured.
#[derive(Debug, Default)]
pub(super) struct Points {
    pub(super) samples: BTreeMap<Point, Vec<Option<Vec<Phase>>>>,
    pub(super) failures: BTreeMap<Point, String>,
}

/// Measures every point.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<Points, RunError> {
    let points = all();
    let phases = Load::ALL.len() as u32;
    let full = Duration::from_millis(500) * phases;
    let time = bench.time_per_point(points.len(), SHARE, OVERHEAD, full) / phases;
    let rounds = bench.alternate_arms(
        &points,
        |point| *point,
        |point| point.name(),
        |bench, point| sample(bench, *point, bench.hurried(time)).map(Some),
    )?;
    Ok(Points {
        samples: points.into_iter().zip(rounds.samples).collect(),
        failures: rounds.failures,
    })
}

fn sample(bench: &Bench<'_>, point: Point, time: Duration) -> Result<Vec<Phase>, ArmError> {
    let time_ns = time.as_nanos() as u64;
    let [_, got] = bench.place.run_fan_in(&Task {
        rings: point.rings,
        ends: point.ends,
        run_ns: time_ns / 5 * 4,
        warm_ns: time_ns / 5,
    })?;
    match got {
        Report::Phases(phases) if phases.len() == Load::ALL.len() => Ok(phases),
        other => Err(ArmError(format!("the receiver reports {other:?}"))),
    }
}

impl Points {
    /// How many rounds there were.
    pub(super) fn rounds(&self) -> usize {
        self.samples.values().map(Vec::len).max().unwrap_or(0)
    }

    /// A figure of the phase of `load`, round by round; `NaN` where there is none, so that rounds stay
    /// aligned.
    pub(super) fn of(&self, point: Point, load: Load, pick: fn(&Phase) -> f64) -> Vec<f64> {
        let at = Load::ALL.iter().position(|other| *other == load);
        let samples = self.samples.get(&point).map(Vec::as_slice);
        let phase = |phases: &Vec<Phase>| phases.get(at?).filter(|phase| phase.count > 0).map(pick);
        samples
            .unwrap_or_default()
            .iter()
            .map(|sample| sample.as_ref().and_then(phase).unwrap_or(f64::NAN))
            .collect()
    }

    /// Why a point has no figure.
    pub(super) fn why(&self, point: Point) -> String {
        let none = || format!("no round of {} gave a figure", point.name());
        self.failures.get(&point).cloned().unwrap_or_else(none)
    }
}
