//! Speed of the RNIC simulator: work requests per second of wall time, on one core.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use headworks::sim::{Counters, Preset, SimProvider};
use headworks::verbs::Provider;
use headworks_baselines::{WriteWindow, Writes};

use super::prelude::*;
use crate::cpu_affinity::pin;

/// Bytes of a WRITE, and of a long one.
const SIZE: usize = 64;
const LONG: usize = 256 << 10;
/// Bytes and number of requests between two readings of the clock.
const BETWEEN_LOOKS: (usize, u64) = (16 << 20, 16_384);
/// Machine whose hosts' memory is modelled, and its settings.
const HOST_PRESET: &str = "cx6dx-2x100g";
const HOST_SETTINGS: [(&str, &str); 1] = [("host.antagonist", "250")];
/// Settings of the sizes of an RNIC's caches.
const CACHES: [&str; 4] = ["nic.wqe_cache", "nic.icm", "nic.mtt", "nic.mpt"];

/// Work requests per second of wall time and of virtual time, and misses of all caches for each request.
const WALL: Quantity = "wall";
const SIMULATED: Quantity = "simulated";
const MISSES: Quantity = "misses";

/// The arms. A point's x is the number of queue pairs, and its second parameter the number of requests
/// outstanding on each. One arm has more queue pairs than the caches hold. The last two model the hosts' memory.
const OFF: Point<&str> = Point::at("caches off", 1).with(128);
const ON: Point<&str> = Point::at("caches on", 1).with(128);
const MISSING: Point<&str> = Point::at("caches on, missing", 8192).with(16);
const HOST: Point<&str> = Point::at("memory of hosts", 1).with(128);
const HOST_LONG: Point<&str> = Point::at("memory of hosts, long", 32).with(4);

/// Returns the bytes of a WRITE of an arm.
fn size_of(arm: &str) -> usize {
    match arm == HOST_LONG.arm {
        true => LONG,
        false => SIZE,
    }
}

/// The experiment `sim-speed`.
pub static SIM_SPEED: Case<&str> = Case {
    about: About {
        runs_on: RunsOn::Simulated,
        ..About::new(
            "sim-speed",
            "Speed of the simulator: work requests per second of wall time (--device sim:PRESET).",
            "WRITEs of 64 B per second of wall time on one core; the thread that simulates both hosts posts and \
             polls them. All bytes of each WRITE are copied, and checked when it has completed. One queue pair with \
             128 outstanding: with caches that hold everything, and with those of the machine. 8,192 queue pairs \
             with 16 outstanding each, with the machine's caches, which lack their contexts. On cx6dx-2x100g, whose \
             hosts' memory is modelled, with an antagonist: WRITEs of 64 B over one queue pair, and of 256 KiB over 32.",
        )
    },
    table,
    measure: |bench, _, outcome| {
        bench.by_the_wall_clock();
        let [cpu, _] = bench.testbed.cpus;
        outcome.pinning = format!("one thread, on cpu {cpu}, for every arm");
        let sweep = Sweep::over("", Wall::from_millis(100), Wall::from_secs(2)).share(0.08);
        bench.measure(
            vec![OFF, ON, MISSING, HOST, HOST_LONG],
            sweep,
            |bench, point, time| sample(bench, point, time).map(Some),
        )
    },
};

fn table() -> Table<&'static str> {
    let notes = [
        (
            OFF.arm,
            "nic.wqe_cache, nic.icm, nic.mtt and nic.mpt set to 0: the caches never miss",
        ),
        (
            ON.arm,
            "the machine with the caches of its preset or of the settings",
        ),
        (
            MISSING.arm,
            "as caches on, with more queue pairs than the caches hold",
        ),
        (
            HOST.arm,
            "cx6dx-2x100g, whatever the device, with host.antagonist=250",
        ),
        (
            HOST_LONG.arm,
            "the same with WRITEs of 256 KiB over 32 queue pairs",
        ),
    ];
    let notes = notes.map(|(name, what)| arm(name, what, "poll", "1"));
    let mut t = Table::new(notes.to_vec());
    t.arm().x("queue pairs");
    t.n("depth");
    t.cell("size [B]", |point| (size_of(point.arm) as f64).into());
    t.spread("wall time: rate [1/s]", |point| Expr::At(*point, WALL));
    t.repeats(|point| Expr::At(*point, WALL));
    t.value("simulated: rate [1/s]", SIMULATED);
    t.value("simulated: misses [1/request]", MISSES);
    for (key, point) in [
        ("sim_mwr_per_s", OFF),
        ("sim_mwr_per_s_cached", ON),
        ("sim_mwr_per_s_missing", MISSING),
        ("sim_mwr_per_s_host", HOST),
    ] {
        t.metric(key, Expr::At(point, WALL) * 1e-6);
    }
    let gigabytes = LONG as f64 * 1e-9;
    t.metric(
        "sim_gb_per_s_host_256k",
        Expr::At(HOST_LONG, WALL) * gigabytes,
    );
    t.note(
        "These figures measure the simulator by the wall clock of this machine. They differ between any two runs, \
         and say nothing about an RNIC. The table beside them shows the simulated RNIC in virtual time.",
    );
    t
}

/// Returns the machine of an arm.
fn machine(mut machine: Preset, arm: &str) -> Result<Preset, WorkloadError> {
    if arm == HOST.arm || arm == HOST_LONG.arm {
        machine = Preset::named(HOST_PRESET).unwrap_or(machine);
        for (key, value) in HOST_SETTINGS {
            let set = machine.set(key, value);
            set.map_err(|e| WorkloadError::at("memory of hosts", e))?;
        }
    }
    for cache in CACHES.iter().filter(|_| arm == OFF.arm) {
        let off = machine.set(cache, "0");
        off.map_err(|e| WorkloadError::at("caches", e))?;
    }
    Ok(machine)
}

fn sample(bench: &Bench<'_>, point: &Point<&str>, time: Wall) -> Result<Sample, WorkloadError> {
    let preset = bench.options.machine();
    let preset = preset.ok_or_else(|| WorkloadError("the device is not simulated".into()))?;
    let (preset, seed) = preset.map_err(|e| WorkloadError::at("device", e))?;
    let machine = machine(preset, point.arm)?;
    let ([cpu, _], stop) = (bench.testbed.cpus, bench.stop());
    // A separate thread is pinned, so that the calling thread keeps its affinity.
    std::thread::scope(|scope| {
        let measuring = scope.spawn(move || {
            pin(cpu)?;
            measure(machine, seed, point, time, stop)
        });
        let panicked = |_| WorkloadError("the measuring thread panicked".into());
        measuring.join().map_err(panicked)?
    })
}

fn measure(
    machine: Preset,
    seed: u64,
    point: &Point<&str>,
    time: Wall,
    stop: &AtomicBool,
) -> Result<Sample, WorkloadError> {
    let preset = machine.name;
    let network = SimProvider::of(machine);
    let open = |host: &str| {
        let name = format!("sim:{preset},host={host},seed={seed}");
        let name = name.parse().map_err(|e| WorkloadError::at("device", e))?;
        network
            .open(&name)
            .map_err(|e| WorkloadError::at("device", e))
    };
    let window = WriteWindow {
        queue_pairs: point.x as usize,
        depth: point.n as usize,
        bytes: size_of(point.arm),
    };
    let between_looks = (BETWEEN_LOOKS.0 / window.bytes).clamp(1, BETWEEN_LOOKS.1 as usize) as u64;
    let at = |e| WorkloadError::at("WRITEs", e);
    let mut writes = Writes::connect([open("sender")?, open("receiver")?], window).map_err(at)?;
    // Warm-up: every buffer and every queue pair is used before the measurement.
    writes.run(2 * point.x * point.n).map_err(at)?;
    let before = misses(&network);
    let (began, start) = (Instant::now(), network.now());
    let mut done = 0;
    let wall = loop {
        writes.run(between_looks).map_err(at)?;
        done += between_looks;
        let wall = began.elapsed();
        if wall >= time || stop.load(Ordering::Relaxed) {
            break wall;
        }
    };
    let simulated = network.now().since(start).as_secs_f64();
    let done = done as f64;
    Ok(Sample::of([
        (WALL, done / wall.as_secs_f64()),
        (SIMULATED, done / simulated),
        (MISSES, (misses(&network) - before) as f64 / done),
    ]))
}

/// Returns the misses of all RNICs' caches so far.
fn misses(network: &SimProvider) -> u64 {
    let hosts = network.counters().into_iter();
    let of = |all: Counters| all.icm_misses + all.mtt_misses + all.mpt_misses + all.wqe_misses;
    hosts.map(|(_, counters)| of(counters)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_off_where_that_is_measured_and_on_elsewhere() {
        let preset = Preset::named("cx6-100g").unwrap();
        let caches = |machine: &Preset| CACHES.map(|key| machine.value(key).unwrap().as_f64());
        let as_is = caches(&preset);
        assert!(as_is.iter().all(|size| *size > 0.0));
        for (point, sizes, misses) in [
            (OFF, [0.0; 4], 0.0..=0.0),
            (ON, as_is, 0.0..=0.0),
            (MISSING, as_is, 0.5..=9.0),
            (HOST, as_is, 0.0..=0.1),
            (HOST_LONG, as_is, 1.0..=1000.0),
        ] {
            let machine = machine(preset.clone(), point.arm).unwrap();
            assert_eq!(caches(&machine), sizes, "{}", point.arm);
            let stop = AtomicBool::new(true);
            let sample = measure(machine, 1, &point, Wall::ZERO, &stop).unwrap();
            assert!(misses.contains(&sample.get(MISSES)), "{sample:?}");
            assert!(sample.get(WALL) > 0.0 && sample.get(SIMULATED) > 0.0);
        }
    }
}
