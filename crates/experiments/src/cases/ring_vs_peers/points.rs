//! The closed-loop points: rate, bandwidth and ping-pong latency of every arm, taken in turn.

use std::collections::BTreeMap;
use std::time::Duration;

use super::arms::{SLOTS, channels, for_latency, name, sensible};
use super::sampling::{Buffers, choose_buffers, sample};
use crate::bench::Bench;
use crate::latency::Quantiles;
use crate::runner::RunError;
use crate::transports::job::Channel;

const SIZES: &[usize] = &[8, 64, 512, 4096, 65536, 1 << 20];
/// A quick run has fewer points, so that each is measured for long enough to mean something.
const QUICK_SIZES: &[usize] = &[64, 4096, 1 << 20];
pub(super) const LATENCY_SIZES: &[usize] = &[64, 4096];
/// A pair of processes takes about so long to start, meet and end.
const OVERHEAD: Duration = Duration::from_millis(40);
/// What of a quick run's budget goes here; the rest is for the load and the extras.
const SHARE: f64 = 0.62;

/// One point of one arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) what: What,
    pub(super) size: usize,
    pub(super) slots: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// Messages per second; touched or not.
    Rate(Channel, bool),
    Latency(Channel),
    UcxRate(Ucx),
    UcxLatency(Ucx),
    Memcpy,
    HalfCacheLine,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ucx {
    Am,
    Put,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sample {
    PerSecond(f64),
    Latency(Quantiles),
}

impl Point {
    /// The arm's name.
    pub(super) fn arm(&self) -> String {
        match self.what {
            What::Rate(channel, _) | What::Latency(channel) => name(channel),
            What::UcxRate(Ucx::Am) | What::UcxLatency(Ucx::Am) => "ucx-am".into(),
            What::UcxRate(Ucx::Put) | What::UcxLatency(Ucx::Put) => "ucx-put".into(),
            What::Memcpy => "memcpy".into(),
            What::HalfCacheLine => "c2c".into(),
        }
    }
}

/// All points with their samples, one per round, and why arms could not be measured.
#[derive(Debug, Default)]
pub(super) struct Points {
    pub(super) samples: BTreeMap<Point, Vec<Option<Sample>>>,
    pub(super) failures: BTreeMap<String, String>,
    pub(super) buffers: Buffers,
}

impl Points {
    /// Measures everything.
    pub(super) fn measure(
        bench: &mut Bench<'_>,
        ucx: Result<String, String>,
    ) -> Result<Self, RunError> {
        let mut failures = BTreeMap::new();
        if let Err(why) = ucx {
            failures.insert("ucx-am".into(), why.clone());
            failures.insert("ucx-put".into(), why);
        }
        let buffers = bench.once("choosing socket buffers", choose_buffers)??;
        let mut points = plan(bench.options.quick);
        points.retain(|p| !failures.contains_key(&p.arm()));
        let run = bench.time_per_point(points.len(), SHARE, OVERHEAD, Duration::from_millis(250));
        let rounds = bench.alternate_arms(
            &points,
            |p| p.arm(),
            |p| format!("{} {} B", p.arm(), p.size),
            |bench, point| sample(bench, point, bench.hurried(run), &buffers),
        )?;
        failures.extend(rounds.failures);
        Ok(Self {
            samples: points.into_iter().zip(rounds.samples).collect(),
            failures,
            buffers,
        })
    }

    /// How many rounds there were.
    pub(super) fn rounds(&self) -> usize {
        self.samples.values().map(Vec::len).max().unwrap_or(0)
    }

    /// The samples of a point as numbers, `NaN` where there is none, so that rounds stay aligned.
    pub(super) fn numbers(&self, point: Point, of: impl Fn(Sample) -> f64) -> Vec<f64> {
        let samples = self
            .samples
            .get(&point)
            .map(Vec::as_slice)
            .unwrap_or_default();
        samples.iter().map(|s| s.map_or(f64::NAN, &of)).collect()
    }
}

impl Sample {
    pub(super) fn per_second(self) -> f64 {
        match self {
            Self::PerSecond(x) => x,
            Self::Latency(_) => f64::NAN,
        }
    }

    pub(super) fn p50(self) -> f64 {
        self.latency(|q| q.p50_ns)
    }

    pub(super) fn latency(self, of: impl Fn(Quantiles) -> f64) -> f64 {
        match self {
            Self::PerSecond(_) => f64::NAN,
            Self::Latency(q) => of(q),
        }
    }
}

/// The points, those to be compared next to each other.
fn plan(quick: bool) -> Vec<Point> {
    let [default_slots, few_slots] = SLOTS;
    let mut points = Vec::new();
    let sizes = if quick { QUICK_SIZES } else { SIZES };
    for &size in sizes {
        let mut add = |what, slots| points.push(Point { what, size, slots });
        let touches: &[bool] = match (quick, size) {
            (true, 4096) => &[false],
            _ => &[false, true],
        };
        for &touch in touches {
            for channel in channels().into_iter().filter(|&c| sensible(c, size)) {
                add(What::Rate(channel, touch), default_slots);
                let ring = !matches!(channel, Channel::Stream(..));
                if size == 1 << 20 && ring {
                    add(What::Rate(channel, touch), few_slots);
                }
            }
        }
        add(What::UcxRate(Ucx::Am), default_slots);
        add(What::UcxRate(Ucx::Put), default_slots);
        if size == 1 << 20 {
            add(What::Memcpy, default_slots);
            add(What::Memcpy, few_slots);
        }
        if LATENCY_SIZES.contains(&size) && (!quick || size == LATENCY_SIZES[0]) {
            for channel in channels().into_iter().filter(|&c| for_latency(c)) {
                add(What::Latency(channel), default_slots);
            }
            add(What::UcxLatency(Ucx::Am), default_slots);
            add(What::UcxLatency(Ucx::Put), default_slots);
        }
        if size == 64 {
            add(What::HalfCacheLine, default_slots);
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_keeps_every_arm() {
        let arms = |quick| {
            let mut names: Vec<_> = plan(quick).iter().map(Point::arm).collect();
            names.sort();
            names.dedup();
            names
        };
        assert_eq!(arms(true), arms(false));
        assert_eq!(arms(true).len(), super::super::arms::notes().len());
        let mut points = plan(false);
        let all = points.len();
        points.sort();
        points.dedup();
        assert_eq!(points.len(), all);
    }
}
