//! What is measured on each machine, and measuring it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration as Wall;

use headworks::sim::Preset;
use headworks::verbs::{DeviceName, Duration};

use crate::bench::Bench;
use crate::nic::batches::Batches;
use crate::nic::loaded::{Load, Verb};
use crate::nic::pingpong::half_round_trip;
use crate::runner::RunError;
use crate::stats::Spread;
use crate::transports::ArmError;
use crate::world::Place;

/// Requests outstanding of a queue pair, where rates are measured.
pub(super) const DEPTH: usize = 128;
/// The same where a process on every core has one: fewer than any cache of requests has room for.
pub(super) const DEPTH_OF_MANY: usize = 32;
/// A few queue pairs.
pub(super) const FEW: usize = 8;
/// Bytes of messages from memory.
const SIZES: &[usize] = &[64, 256, 1024, 4096, 16384, 65536, 1 << 20];
const QUICK_SIZES: &[usize] = &[64, 4096, 1 << 20];
/// Bytes of messages that come with their requests.
const INLINE_SIZES: &[usize] = &[64, 128];
/// A pair of processes takes about so long to start, meet and end.
const OVERHEAD: Wall = Wall::from_millis(60);
/// What of a quick run's budget goes here.
const SHARE: f64 = 0.8;
/// How often a point is tried at which nothing ended in its time, each time for longer.
const TRIES: u32 = 3;

/// Where it is measured.
pub(super) struct Machine<'a> {
    /// What it is called: a preset, or the device.
    pub(super) name: String,
    pub(super) place: Place<'a>,
    /// What perftest does for a request.
    work_ns: u64,
    /// Processes that there are cores for, where those are simulated.
    pub(super) cores: Option<usize>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(device: &DeviceName, place: Place<'a>, preset: Option<&Preset>) -> Self {
        Self {
            name: preset.map_or_else(|| device.to_string(), |preset| preset.name.to_owned()),
            place,
            work_ns: preset.map_or(0, |preset| preset.bench_ns as u64),
            cores: preset.map(|preset| preset.cores as usize),
        }
    }
}

/// What is measured of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Of {
    /// Requests per second, of one process.
    Rate,
    /// The same of a process on every core.
    AllCores,
    /// Nanoseconds.
    Latency,
}

/// One point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    /// Which machine.
    pub(super) machine: usize,
    pub(super) of: Of,
    pub(super) load: Load,
}

impl Point {
    pub(super) fn rate(machine: usize, verb: Verb, size: usize, queue_pairs: usize) -> Self {
        let load = Load {
            queue_pairs,
            depth: DEPTH,
            ..Load::of(verb, size)
        };
        let of = Of::Rate;
        Self { machine, of, load }
    }

    pub(super) fn all_cores(machine: usize, verb: Verb, size: usize) -> Self {
        let load = Load {
            depth: DEPTH_OF_MANY,
            ..Load::of(verb, size)
        };
        let of = Of::AllCores;
        Self { machine, of, load }
    }

    pub(super) fn latency(machine: usize, verb: Verb, size: usize) -> Self {
        let (of, load) = (Of::Latency, Load::of(verb, size));
        Self { machine, of, load }
    }

    pub(super) fn inline(mut self) -> Self {
        self.load.inline = true;
        self
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = &self.load;
        match self.of {
            Of::Rate => write!(f, "rate of {load}"),
            Of::AllCores => write!(f, "rate of {load}, a process on every core"),
            Of::Latency => write!(f, "latency of {load}"),
        }
    }
}

/// Every point of a machine.
pub(super) fn all(index: usize, machine: &Machine<'_>, quick: bool) -> Vec<Point> {
    let sizes = if quick { QUICK_SIZES } else { SIZES };
    let mut all = Vec::new();
    for verb in Verb::ALL {
        let sizes = if verb.is_atomic() { &[8][..] } else { sizes };
        for &size in sizes {
            all.push(Point::rate(index, verb, size, 1));
            all.push(Point::rate(index, verb, size, FEW));
            all.push(Point::latency(index, verb, size));
        }
        if machine.cores.is_some() {
            all.push(Point::all_cores(index, verb, sizes[0]));
        }
        if verb.is_answered() {
            continue;
        }
        for &size in INLINE_SIZES {
            all.push(Point::rate(index, verb, size, 1).inline());
            all.push(Point::latency(index, verb, size).inline());
        }
    }
    all
}

/// What was measured at every point, round by round, and why not.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) samples: BTreeMap<Point, Vec<Option<f64>>>,
    pub(super) failures: BTreeMap<Point, String>,
}

impl Measured {
    pub(super) fn rounds(&self) -> usize {
        self.samples.values().map(Vec::len).max().unwrap_or(0)
    }

    /// Requests per second, or nanoseconds.
    pub(super) fn spread(&self, point: &Point) -> Option<Spread> {
        let samples = self.samples.get(point)?;
        let samples: Vec<f64> = samples.iter().flatten().copied().collect();
        Spread::of(&samples)
    }
}

/// Measures all points of all machines.
pub(super) fn measure(
    bench: &mut Bench<'_>,
    machines: &[Machine<'_>],
) -> Result<Measured, RunError> {
    let points: Vec<Point> = machines
        .iter()
        .enumerate()
        .flat_map(|(index, machine)| all(index, machine, bench.options.quick))
        .collect();
    let run = bench.time_per_point(points.len(), SHARE, OVERHEAD, Wall::from_millis(300));
    let label = |point: &Point| {
        let machine = &machines[point.machine].name;
        format!("{machine}: {point}")
    };
    let rounds = bench.alternate_arms(
        &points,
        |point| *point,
        label,
        |bench, point| {
            let machine = &machines[point.machine];
            sample(machine, point, bench.hurried(run))
        },
    )?;
    Ok(Measured {
        samples: points.into_iter().zip(rounds.samples).collect(),
        failures: rounds.failures,
    })
}

/// Measures a point once; nothing if nothing ended in its time.
fn sample(machine: &Machine<'_>, point: &Point, run: Wall) -> Result<Option<f64>, ArmError> {
    let mut times = match machine.cores {
        Some(_) => virtual_times(point),
        None => {
            let fifth = Duration::from_nanos(run.as_nanos() as u64 / 5);
            (fifth, fifth.times(4))
        }
    };
    for _ in 0..TRIES {
        let found = sample_over(machine, point, times)?;
        if found.is_some() {
            return Ok(found);
        }
        // On a busy machine a part may have slept all that time.
        times = (times.0, times.1.times(4));
    }
    Ok(None)
}

/// Not measured, and measured: in virtual time what comes once comes always.
fn virtual_times(point: &Point) -> (Duration, Duration) {
    let bytes = (point.load.size * point.load.queue_pairs) as u64;
    let shortest = match point.of {
        Of::Rate => 300_000,
        Of::AllCores => 250_000,
        Of::Latency => 100_000,
    };
    // Some 40 messages of each queue pair at 40 Gbit/s: theirs end together.
    let run = shortest.max(8 * bytes);
    (Duration::from_micros(20), Duration::from_nanos(run))
}

fn sample_over(
    machine: &Machine<'_>,
    point: &Point,
    times: (Duration, Duration),
) -> Result<Option<f64>, ArmError> {
    let place = &machine.place;
    let perftest = Load {
        work_ns: machine.work_ns,
        ..point.load
    };
    match point.of {
        Of::Rate => perftest.rate(place, 1, times),
        Of::AllCores => perftest.rate(place, machine.cores.unwrap_or(1), times),
        Of::Latency if point.load.verb.is_answered() => {
            let batches = Batches {
                load: point.load,
                pause_ns: 0,
            };
            let delays = batches.delays(place, times)?;
            Ok(delays.first().map(|each| each.p50_ns))
        }
        Of::Latency => {
            let found = half_round_trip(&point.load, place, times)?;
            Ok(found.map(|found| found.p50_ns))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::Simulated;
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn points_are_told_apart_in_words() {
        let stop = AtomicBool::new(false);
        let there = Simulated::named("cx5-100g").unwrap();
        let machine = Machine::new(there.device(), there.place(&stop), Some(there.preset()));
        let points = all(0, &machine, false);
        let words: BTreeSet<_> = points.iter().map(ToString::to_string).collect();
        assert_eq!(words.len(), points.len(), "{words:?}");
        assert!(words.contains("rate of write 64 B, 1 QP, depth 32, a process on every core"));
        assert!(words.contains("latency of send inline 128 B, 1 QP, depth 1"));
    }
}
