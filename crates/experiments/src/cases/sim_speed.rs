//! How fast RNICs are simulated: work requests a second of wall time, on one core.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headworks::sim::{Counters, Preset, SimProvider};
use headworks::verbs::Provider;
use headworks_baselines::{Window, Writes};

use crate::bench::Bench;
use crate::experiment::{About, Programmed, RunsOn};
use crate::outcome::{Grid, Outcome};
use crate::pin::pin;
use crate::report::csv::{Cell, Table};
use crate::report::human;
use crate::runner::RunError;
use crate::stats::Spread;
use crate::transports::ArmError;

/// Requests under way of each queue pair.
const DEPTH: usize = 128;
/// Bytes of a WRITE.
const SIZE: usize = 64;
/// Queue pairs, and requests under way of each, where there are more than the caches hold.
const MANY: (usize, usize) = (8192, 16);
/// Requests between two looks at the clock.
const BETWEEN_LOOKS: u64 = 16_384;
/// The caches of an RNIC.
const CACHES: [&str; 4] = ["nic.wqe_cache", "nic.icm", "nic.mtt", "nic.mpt"];

/// How it presents itself, its metrics and what runs it.
pub static SIM_SPEED: Programmed = Programmed {
    about: About {
        paper: None,
        runs_on: RunsOn::Simulated,
        ..About::new(
            "sim-speed",
            "The simulator itself: work requests a second of wall time (--device sim:PRESET).",
            "WRITEs of 64 B, posted and polled by the thread that simulates both hosts: how many a second of \
               wall time, on one core. All bytes of each are moved, and looked at when it is complete. One queue \
               pair with 128 outstanding, with caches that hold everything, and with those of the machine; and \
               those with 8,192 queue pairs, 16 outstanding of each, whose contexts are missing.",
        )
    },
    keys: &[
        "sim_mwr_per_s",
        "sim_mwr_per_s_cached",
        "sim_mwr_per_s_missing",
    ],
    stated: &[],
    figures: &[],
    run: run_sim_speed,
};

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    CachesOff,
    CachesOn,
    Missing,
}

impl Arm {
    const ALL: [Self; 3] = [Self::CachesOff, Self::CachesOn, Self::Missing];

    fn name(self) -> &'static str {
        match self {
            Self::CachesOff => "caches off",
            Self::CachesOn => "caches on",
            Self::Missing => "caches on, missing",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::CachesOff => "sim_mwr_per_s",
            Self::CachesOn => "sim_mwr_per_s_cached",
            Self::Missing => "sim_mwr_per_s_missing",
        }
    }

    fn window(self) -> Window {
        let (queue_pairs, depth) = match self {
            Self::CachesOff | Self::CachesOn => (1, DEPTH),
            Self::Missing => MANY,
        };
        Window {
            queue_pairs,
            depth,
            bytes: SIZE,
        }
    }

    /// What of `machine` it is measured on.
    fn machine(self, mut machine: Preset) -> Result<Preset, ArmError> {
        if self == Self::CachesOff {
            for cache in CACHES {
                let off = machine.set(cache, "0");
                off.map_err(|e| ArmError::at("caches", e))?;
            }
        }
        Ok(machine)
    }
}

fn run_sim_speed(bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
    bench.by_the_wall_clock();
    let [cpu, _] = bench.place.cpus;
    let mut outcome = bench.outcome();
    outcome.pinning = format!("one thread, on cpu {cpu}, for every arm");
    let time = bench.time_per_point(
        Arm::ALL.len(),
        0.08,
        Duration::from_millis(100),
        Duration::from_secs(2),
    );
    let measured = bench.alternate_arms(
        &Arm::ALL,
        |arm| *arm,
        |arm| arm.name().to_owned(),
        |bench, arm| sample(bench, *arm, time).map(Some),
    )?;
    for (arm, why) in measured.failures {
        outcome.skip(arm.key(), why);
    }
    let samples: Vec<_> = Arm::ALL.into_iter().zip(measured.samples).collect();
    record(&mut outcome, &samples);
    Ok(outcome)
}

/// Work requests a second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    /// Of wall time.
    wall: f64,
    /// Of virtual time: what the RNIC would do.
    simulated: f64,
    /// What its caches did not have, for each request.
    misses: f64,
}

fn sample(bench: &Bench<'_>, arm: Arm, time: Duration) -> Result<Sample, ArmError> {
    let machine = bench.options.machine();
    let machine = machine.ok_or_else(|| ArmError("the device is not simulated".into()))?;
    let (machine, seed) = machine.map_err(|e| ArmError::at("device", e))?;
    let machine = arm.machine(machine)?;
    let ([cpu, _], stop) = (bench.place.cpus, bench.stop());
    // The thread of whoever called stays where it may run.
    std::thread::scope(|scope| {
        let measuring = scope.spawn(move || {
            pin(cpu)?;
            measure(machine, seed, arm.window(), time, stop)
        });
        let panicked = |_| ArmError("the measuring thread panicked".into());
        measuring.join().map_err(panicked)?
    })
}

fn measure(
    machine: Preset,
    seed: u64,
    window: Window,
    time: Duration,
    stop: &AtomicBool,
) -> Result<Sample, ArmError> {
    let preset = machine.name;
    let network = SimProvider::of(machine);
    let open = |host: &str| {
        let name = format!("sim:{preset},host={host},seed={seed}");
        let name = name.parse().map_err(|e| ArmError::at("device", e))?;
        network.open(&name).map_err(|e| ArmError::at("device", e))
    };
    let writes = Writes::connect([open("sender")?, open("receiver")?], window);
    let at = |e| ArmError::at("WRITEs", e);
    let mut writes = writes.map_err(at)?;
    // Every place and every queue pair was used before.
    writes
        .run(2 * (window.queue_pairs * window.depth) as u64)
        .map_err(at)?;
    let before = misses(&network);
    let (began, start) = (Instant::now(), network.now());
    let mut done = 0;
    let wall = loop {
        writes.run(BETWEEN_LOOKS).map_err(at)?;
        done += BETWEEN_LOOKS;
        let wall = began.elapsed();
        if wall >= time || stop.load(Ordering::Relaxed) {
            break wall;
        }
    };
    let simulated = network.now().since(start).as_secs_f64();
    Ok(Sample {
        wall: done as f64 / wall.as_secs_f64(),
        simulated: done as f64 / simulated,
        misses: (misses(&network) - before) as f64 / done as f64,
    })
}

/// What the caches of all RNICs did not have so far.
fn misses(network: &SimProvider) -> u64 {
    let hosts = network.counters().into_iter();
    let of = |all: Counters| all.icm_misses + all.mtt_misses + all.mpt_misses + all.wqe_misses;
    hosts.map(|(_, counters)| of(counters)).sum()
}

/// Said in the report.
const NOTE: &str = "These are figures of the simulator, by the wall clock of this machine: no two runs have the same, and they \
     say nothing of an RNIC. What the simulated RNIC does in its own time is in the table beside them.";

fn record(outcome: &mut Outcome, samples: &[(Arm, Vec<Option<Sample>>)]) {
    let mut table = Table::new(&[
        "arm",
        "queue pairs",
        "depth",
        "size [B]",
        "wall time: rate [1/s]",
        "rate low [1/s]",
        "rate high [1/s]",
        "repeats",
        "simulated: rate [1/s]",
        "simulated: misses [1/request]",
    ]);
    let mut grid = Grid {
        title: "Work requests a second: median (lowest – highest repeat)".into(),
        header: [
            "arm",
            "queue pairs",
            "of wall time",
            "of virtual time (simulated)",
            "misses each request (simulated)",
        ]
        .map(String::from)
        .to_vec(),
        rows: Vec::new(),
    };
    for (arm, samples) in samples {
        let rates = |of: fn(&Sample) -> f64| {
            let rates: Vec<f64> = samples.iter().flatten().map(of).collect();
            Spread::of(&rates)
        };
        let (wall, simulated) = (rates(|s| s.wall), rates(|s| s.simulated));
        let misses = rates(|s| s.misses);
        let millions = wall.map(|rate| rate.scaled(1e-6));
        outcome.measured_or(arm.key(), millions, "nothing was measured");
        let (Some(wall), Some(simulated), Some(misses)) = (wall, simulated, misses) else {
            continue;
        };
        outcome.repeats = outcome.repeats.max(wall.repeats);
        let window = arm.window();
        let sizes = [window.queue_pairs, window.depth, window.bytes];
        let mut row: Vec<Cell> = vec![arm.name().into()];
        row.extend(sizes.map(|size| Cell::from(size as f64)));
        row.extend([wall.median, wall.low, wall.high, wall.repeats as f64].map(Cell::from));
        row.extend([simulated.median, misses.median].map(Cell::from));
        table.push(row);
        let [median, low, high] = [wall.median, wall.low, wall.high].map(human);
        grid.rows.push(vec![
            arm.name().into(),
            window.queue_pairs.to_string(),
            format!("{median} ({low} – {high})"),
            human(simulated.median),
            human(misses.median),
        ]);
    }
    outcome.points = table;
    outcome.grids.push(grid);
    outcome.notes.push(NOTE.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_of_wall_time() {
        let sample = |wall| {
            Some(Sample {
                wall,
                simulated: 9e6,
                misses: 0.5,
            })
        };
        let samples = [
            (Arm::CachesOff, vec![sample(4e6), sample(2e6), sample(3e6)]),
            (Arm::CachesOn, vec![None, sample(1e6), None]),
            (Arm::Missing, vec![None; 3]),
        ];
        let mut outcome = Outcome::default();
        outcome.skip(Arm::Missing.key(), "it broke");
        record(&mut outcome, &samples);
        let found = |key: &str| (outcome.ratios()[key].median, outcome.ratios()[key].high);
        assert_eq!(found("sim_mwr_per_s"), (3.0, 4.0));
        assert_eq!(found("sim_mwr_per_s_cached"), (1.0, 1.0));
        assert_eq!(outcome.skipped()["sim_mwr_per_s_missing"], "it broke");

        assert_eq!(outcome.repeats, 3);
        let text = outcome.points.to_csv();
        let first = text.lines().nth(1).unwrap();
        assert_eq!(
            first,
            "caches off,1,128,64,3000000,2000000,4000000,3,9000000,0.5"
        );
        assert!(outcome.notes[0].contains("wall clock"));
    }

    #[test]
    fn what_was_not_measured_is_skipped_key_by_key() {
        let mut outcome = Outcome::default();
        record(&mut outcome, &Arm::ALL.map(|arm| (arm, Vec::new())));
        assert_eq!(outcome.skipped().len(), SIM_SPEED.keys.len());
        assert!(outcome.ratios().is_empty());
    }

    #[test]
    fn caches_are_off_where_that_is_measured_and_on_elsewhere() {
        let preset = Preset::named("cx6-100g").unwrap();
        let of = |arm: Arm| {
            let machine = arm.machine(preset.clone()).unwrap();
            CACHES.map(|key| machine.value(key).unwrap())
        };
        assert_eq!(of(Arm::CachesOff), [0.0; 4]);
        for arm in [Arm::CachesOn, Arm::Missing] {
            assert_eq!(of(arm), CACHES.map(|key| preset.value(key).unwrap()));
            assert!(of(arm).iter().all(|size| *size > 0.0));
        }
        let sample = |arm: Arm| {
            let machine = arm.machine(preset.clone()).unwrap();
            let stop = AtomicBool::new(true);
            let sample = measure(machine, 1, arm.window(), Duration::ZERO, &stop);
            sample.unwrap()
        };
        let [off, on, missing] = Arm::ALL.map(sample);
        assert_eq!((off.misses, on.misses), (0.0, 0.0));
        assert!(missing.misses > 0.5, "{missing:?}");
        assert!(
            [off, on, missing]
                .iter()
                .all(|sample| sample.wall > 0.0 && sample.simulated > 0.0)
        );
    }
}
