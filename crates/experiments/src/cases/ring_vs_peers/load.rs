//! Latency at a fixed load, in percent of what each arm reached at its best.

use std::time::Duration;

use super::arms::{LOADED, SLOTS, name};
use super::points::{Point, Points, Sample, What};
use super::sampling::{buffer, pair};
use crate::bench::Bench;
use crate::latency::Quantiles;
use crate::runner::RunError;
use crate::stats::{Spread, median};
use crate::transports::job::{Channel, Report, Workload};

const PERCENT: [u32; 5] = [10, 30, 50, 70, 90];
const OVERHEAD: Duration = Duration::from_millis(40);
/// Of what is left of a quick run's budget.
const SHARE: f64 = 0.5;
/// Bytes of a message.
const SIZE: usize = 64;

/// One arm at one load.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    pub(super) arm: String,
    pub(super) percent: u32,
    pub(super) per_second: f64,
    pub(super) samples: Vec<Option<Quantiles>>,
}

impl Loaded {
    /// A quantile over the repeats.
    pub(super) fn at(&self, of: impl Fn(Quantiles) -> f64) -> Option<Spread> {
        let samples: Vec<f64> = self.samples.iter().flatten().map(|q| of(*q)).collect();
        Spread::of(&samples)
    }
}

/// Measures every arm that could be measured without load.
pub(super) fn measure(bench: &mut Bench<'_>, measured: &Points) -> Result<Vec<Loaded>, RunError> {
    let mut plan: Vec<(Channel, u32, f64)> = Vec::new();
    for percent in PERCENT {
        for channel in LOADED {
            let point = Point {
                what: What::Rate(channel, false),
                size: SIZE,
                slots: SLOTS[0],
            };
            if let Some(peak) = median(&measured.numbers(point, Sample::per_second)) {
                plan.push((channel, percent, peak * f64::from(percent) / 100.0));
            }
        }
    }
    let run = bench.time_per_point(plan.len(), SHARE, OVERHEAD, Duration::from_millis(500));
    let samples = bench.alternate(
        &plan,
        |(channel, percent, _)| format!("{} at {percent} %", name(*channel)),
        |bench, &(channel, _, per_second)| {
            let point = Point {
                what: What::Latency(channel),
                size: SIZE,
                slots: SLOTS[0],
            };
            let buffer = buffer(&measured.buffers, channel, SIZE);
            let workload = Workload::Load { per_second };
            let reports = pair(
                bench,
                channel,
                workload,
                &point,
                false,
                bench.hurried(run),
                buffer,
            );
            Ok(match reports {
                Ok([_, Report::Latency(q)]) if q.count > 0 => Some(q),
                // The figures of this load stay empty; the rates of the arm stand.
                _ => None,
            })
        },
    )?;
    let loaded = plan
        .into_iter()
        .zip(samples)
        .map(|((channel, percent, per_second), samples)| Loaded {
            arm: name(channel),
            percent,
            per_second,
            samples,
        });
    Ok(loaded.collect())
}
