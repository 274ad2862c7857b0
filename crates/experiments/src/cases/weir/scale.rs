//! Figures 7 to 9: throughput and misses of the RNIC's caches against the number of queue pairs, of plain verbs with
//! fewer requests outstanding and with paced doorbells, by the size of messages.

mod findings;
mod statements;
#[cfg(test)]
mod tests;

use headworks::verbs::Duration;

use super::arm::{self, Arm, Probed};
use super::paper;
use super::point::{COUNTED, NOTE, Point};
use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::nic::loaded::{Load, Verb};
use crate::outcome::Outcome;
use crate::runner::RunError;
use crate::transports::ArmError;
use crate::world::Place;

/// One of the figures.
#[derive(Debug)]
pub struct Scale {
    /// Bytes of a message.
    size: usize,
    about: &'static About,
}

/// Queue pairs of all processes together.
const QUEUE_PAIRS: &[usize] = &[8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, MOST];
/// What keys are about.
const MOST: usize = 16384;
/// Those of a quick run.
const QUICK_QUEUE_PAIRS: &[usize] = &[64, QUICK_ALL, MOST];
/// Where it has all arms: elsewhere only those that keys compare.
const QUICK_ALL: usize = 1024;

/// How much of each point is measured.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// So many requests of each process have ended before, or all twice. With the most queue pairs that is long after
    /// they were filled: what ended meanwhile lies there to be taken, and is posted again faster than the RNIC sends it.
    warm_requests: usize,
    /// Not measured then, and measured.
    times: (Duration, Duration),
}

impl Extent {
    const FULL: Self = Self {
        warm_requests: 262_144,
        times: (SETTLES, Duration::from_millis(5)),
    };
    const QUICK: Self = Self {
        warm_requests: 163_840,
        times: (SETTLES, Duration::from_micros(500)),
    };
}

/// Pacing has settled some 3 ms after the queue pairs were filled, which weir-fig10b shows: many requests end at once
/// then, and the rate falls to its lowest and rises again.
const SETTLES: Duration = Duration::from_millis(5);

const KEYS: &[&str] = &[
    "paced_gbps_16k_qps",
    "plain_gbps_16k_qps",
    "paced_over_plain_16k_qps",
    "windowed_gbps_16k_qps",
    "icm_miss_plain_over_paced_16k",
    "mtt_miss_plain_over_paced_16k",
    "mpt_miss_plain_over_paced_16k",
];

/// What all three have in common, but for the size in the text.
macro_rules! about {
    ($name:literal, $figure:literal, $size:literal, $paper_values:expr) => {
        About {
            name: $name,
            line: concat!(
                "Throughput and misses of an RNIC's caches against the number of queue pairs, paced and not, ",
                $size,
                " B."
            ),
            measures: concat!(
                "Eight processes on each of two servers SEND messages of ",
                $size,
                " B over 8 to 16,384 queue pairs: with 128, 64, 32 and 16 outstanding of each, and with 128 and paced \
                 doorbells, by the paper's rate and by a window. Throughput, as the port counts it, and misses of the sending RNIC's caches."
            ),
            paper: Some(paper($figure)),
            keys: KEYS,
            paper_values: $paper_values,
            replays: false,
        }
    };
}

static FIG7: About = about!(
    "weir-fig7",
    "Figure 7",
    "512",
    &[("paced_gbps_16k_qps", 97.0)]
);
static FIG8: About = about!("weir-fig8", "Figure 8", "256", &[]);
static FIG9: About = about!("weir-fig9", "Figure 9", "128", &[]);

impl Scale {
    /// Of 512 B.
    pub const FIG7: Self = Self {
        size: 512,
        about: &FIG7,
    };
    /// Of 256 B.
    pub const FIG8: Self = Self {
        size: 256,
        about: &FIG8,
    };
    /// Of 128 B.
    pub const FIG9: Self = Self {
        size: 128,
        about: &FIG9,
    };
}

impl Experiment for Scale {
    fn about(&self) -> &'static About {
        self.about
    }

    fn kind(&self) -> Option<&'static str> {
        Some(headworks::sim::KIND)
    }

    fn paces(&self) -> bool {
        true
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = bench.outcome(arm::PINNING.to_owned());
        let is_quick = bench.options.quick;
        let (queue_pairs, extent) = match is_quick {
            true => (QUICK_QUEUE_PAIRS, Extent::QUICK),
            false => (QUEUE_PAIRS, Extent::FULL),
        };
        let probed = bench.once("base delay", arm::base_delay)?;
        let all = queue_pairs
            .iter()
            .flat_map(|queue_pairs| Arm::ALL.map(|arm| (arm, *queue_pairs)));
        let is_compared = |arm| [Arm::PLAIN, Arm::Paced].contains(&arm);
        let all = all.filter(|(arm, count)| !is_quick || *count == QUICK_ALL || is_compared(*arm));
        let all: Vec<_> = all.collect();
        let measured = bench.alternate_arms(
            &all,
            |point| *point,
            |(arm, queue_pairs)| format!("{queue_pairs} queue pairs, {arm}"),
            |bench, (arm, queue_pairs)| {
                let probed = probed.as_ref().map_err(|why| ArmError(why.0.clone()))?;
                let load = Load {
                    work_ns: bench.perftest_ns(),
                    warm_requests: extent.warm_requests,
                    ..Load::of(Verb::Send, self.size)
                };
                sample(
                    &bench.place,
                    *arm,
                    load,
                    *probed,
                    *queue_pairs,
                    extent.times,
                )
            },
        )?;
        outcome.repeats = 1;
        for ((arm, queue_pairs), why) in measured.failures {
            let note = format!("{queue_pairs} queue pairs, {arm}: {why}");
            outcome.notes.push(note);
        }
        let points = all.iter().zip(measured.samples);
        let points = points.filter_map(|((arm, _), samples)| {
            let point = samples.into_iter().flatten().next()?;
            Some((*arm, point))
        });
        outcome.notes.push(NOTE.into());
        outcome.notes.extend(probed.ok().map(Probed::note));
        let warm_us = extent.times.0.nanos() / 1000;
        outcome.notes.push(format!(
            "Every arm posts all that may be outstanding, queue pair after queue pair, waits until {} requests of each \
             process have ended, or all twice, and then for {warm_us} µs before it is measured. Throughput is what the \
             sending RNIC counted, as the paper's is.",
            extent.warm_requests
        ));
        self.record(&mut outcome, &points.collect::<Vec<_>>());
        Ok(outcome)
    }
}

/// One point of an arm.
fn sample(
    place: &Place<'_>,
    arm: Arm,
    load: Load,
    probed: Probed,
    queue_pairs: usize,
    times: (Duration, Duration),
) -> Result<Option<Point>, ArmError> {
    let place = arm.place(place, &[0], probed)?;
    Point::counted(&place, arm.load(load), queue_pairs, times)
}

impl Scale {
    /// What ports count of so much payload.
    fn port(&self, gbit_per_s: f64) -> f64 {
        gbit_per_s * (self.size as f64 + COUNTED) / self.size as f64
    }
}
