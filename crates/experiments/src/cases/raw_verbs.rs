//! Plain verbs on one device: requests per second, bandwidth, latency. The experiment runs on every simulated
//! preset, or on the device that the user names.
//!
//! | module | content |
//! |---|---|
//! | `published_figures` | values that others published for comparable RNICs |

mod published_figures;

use std::fmt;

use headworks::sim::Preset;
use headworks::verbs::DeviceName;

use super::prelude::*;
use crate::nic::Verb::{self, FetchAdd, Read, Send, Write};
use crate::nic::{Batches, VerbLoad};
use crate::nic_measurements::half_round_trip;
use crate::outcome::{ELSEWHERE, Grid};
use crate::simulated_machine::SimulatedMachine;

use published_figures::Published;

/// Requests outstanding on a queue pair with one process. The next constant is that with a process on every
/// core; it is lower, so that no RNIC's cache of work requests overflows.
const DEPTH: usize = 128;
const DEPTH_OF_MANY: usize = 32;
/// The number of queue pairs of an arm with a few of them.
const FEW: usize = 8;
/// Sizes of messages from memory in bytes, for a full and for a quick run; and of inline messages.
const SIZES: &[usize] = &[64, 256, 1024, 4096, 16384, 65536, MIB];
const QUICK_SIZES: &[usize] = &[64, 4096, MIB];
const INLINE_SIZES: &[usize] = &[64, 128];
const MIB: usize = 1 << 20;
/// Number of processes that measured a point.
const PROCESSES: Quantity = "processes";
/// Name in metrics of a device that is not a preset.
const DEVICE: &str = "device";

/// The quantity that is measured for a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    /// Requests per second of one process.
    Rate,
    /// Requests per second of all processes, with a process on every core.
    AllCores,
    /// Latency in nanoseconds.
    Latency,
}

/// A load on a machine. The machine is a preset's name or `DEVICE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    machine: &'static str,
    of: Of,
    load: VerbLoad,
}

impl Run {
    /// Makes a run with one queue pair, which is not yet assigned to a machine.
    const fn of(of: Of, verb: Verb, size: usize) -> Self {
        let mut load = VerbLoad::of(verb, size);
        load.depth = match of {
            Of::Rate => DEPTH,
            Of::AllCores => DEPTH_OF_MANY,
            Of::Latency => 1,
        };
        let machine = "";
        Self { machine, of, load }
    }

    const fn few(mut self) -> Self {
        self.load.queue_pairs = FEW;
        self
    }

    const fn inline(mut self) -> Self {
        self.load.inline = true;
        self
    }

    const fn on(self, machine: &'static str) -> Self {
        Self { machine, ..self }
    }

    /// Returns millions of requests per second, or microseconds of latency.
    fn natural(self) -> Expr<Self> {
        let scale = if self.of == Of::Latency { 1e-3 } else { 1e-6 };
        value(self) * scale
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (load, colon) = (self.load, if self.machine.is_empty() { "" } else { ": " });
        write!(f, "{}{colon}", self.machine)?;
        match self.of {
            Of::Rate => write!(f, "rate of {load}"),
            Of::AllCores => write!(f, "rate of {load}, a process on every core"),
            Of::Latency => write!(f, "latency of {load}"),
        }
    }
}

fn value(run: Run) -> Expr<Run> {
    Expr::At(Point::at(run, 0), VALUE)
}

const fn rate(verb: Verb, size: usize) -> Run {
    Run::of(Of::Rate, verb, size)
}

const fn latency(verb: Verb, size: usize) -> Run {
    Run::of(Of::Latency, verb, size)
}

const fn all_cores(verb: Verb, size: usize) -> Run {
    Run::of(Of::AllCores, verb, size)
}

/// The metrics of a machine.
const METRICS: [(&str, Run); 16] = [
    ("send64_mmsg_per_s", rate(Send, 64)),
    ("write64_mmsg_per_s", rate(Write, 64)),
    ("read64_mmsg_per_s", rate(Read, 64)),
    ("fetch_add_mop_per_s", rate(FetchAdd, 8)),
    ("write64_8qp_mmsg_per_s", rate(Write, 64).few()),
    ("fetch_add_8qp_mop_per_s", rate(FetchAdd, 8).few()),
    ("write64_all_cores_mmsg_per_s", all_cores(Write, 64)),
    ("read64_all_cores_mmsg_per_s", all_cores(Read, 64)),
    ("send1m_gbit_per_s", rate(Send, MIB).few()),
    ("write1m_gbit_per_s", rate(Write, MIB).few()),
    ("read1m_gbit_per_s", rate(Read, MIB).few()),
    ("send64_inline_latency_ns", latency(Send, 64).inline()),
    ("write64_inline_latency_ns", latency(Write, 64).inline()),
    ("write64_latency_ns", latency(Write, 64)),
    ("read64_latency_ns", latency(Read, 64)),
    ("fetch_add_latency_ns", latency(FetchAdd, 8)),
];

/// Returns the metrics of all machines.
fn metrics() -> impl Iterator<Item = (String, Run)> {
    let machines = Preset::NAMES.into_iter().chain([DEVICE]);
    machines.flat_map(|machine| {
        let prefix = machine.replace('-', "_");
        METRICS.map(|(name, run)| (format!("{prefix}_{name}"), run.on(machine)))
    })
}

/// The experiment `raw-verbs`.
pub static RAW_VERBS: Case<Run> = Case {
    about: About::new(
        "raw-verbs",
        "Plain verbs by size: requests per second, bandwidth, latency; on every simulated preset, or on one named \
         device.",
        "SEND, WRITE, WRITE with immediate, READ, compare-and-swap and fetch-and-add, 64 B to 1 MiB: requests per \
         second and Gbit/s of one process, with one and with eight queue pairs and 128 requests outstanding on each; \
         and the latency with one request outstanding. On simulated devices also the rate with a process on every \
         core, each with 32 outstanding.",
    ),
    table,
    measure,
};

fn table() -> Table<Run> {
    let notes = [
        (
            "rate",
            "128 requests outstanding on each queue pair, 32 where every core has a process; each request is posted \
             by a separate call and signalled, as perftest does it; in virtual time the program takes the constant \
             cpu.bench for a request beside the verbs. SENDs and WRITEs with immediate use an SRQ with 4,096 \
             receives",
        ),
        (
            "latency of SEND, WRITE, WRITE with immediate",
            "ping-pong: half a round trip. The receiver detects a WRITE by polling its last word, the others by \
             their completions",
        ),
        (
            "latency of READ and atomics",
            "from the call that posts it to its polled completion, one at a time",
        ),
    ];
    let notes = notes.map(|(name, what)| arm(name, what, "poll", "0"));
    let mut t = Table::new(notes.to_vec());
    t.unlisted();
    for (key, run) in metrics() {
        let scaled = match (run.of, run.load.size) {
            (Of::Latency, _) => value(run),
            (_, MIB) => value(run) * (MIB as f64 * 8e-9),
            _ => value(run) * 1e-6,
        };
        t.metric(key, scaled);
    }
    for preset in Preset::NAMES {
        charts(&mut t, preset, preset);
    }
    t.note(
        "Sizes and bandwidth count payloads only. Published figures are from other machines, links and programs; \
         they stand beside ours with the distance to the nearer end of the published range. The words of atomics \
         begin a page in every process, so on simulated devices the atomics of different processes take the same \
         lock. With headers, 77 million WRITEs of 64 B per second fill the link of cx6-100g; the link rate of the \
         published pair of CX-6 is not known. Several processes measure the same period, which begins when all are \
         warm.",
    );
    t
}

/// Adds the charts of a machine. The file names contain `device`.
fn charts(t: &mut Table<Run>, machine: &'static str, device: &str) {
    for (what, unit, how) in [
        ("rate", "1/s", "one queue pair"),
        ("bandwidth", "Gbit/s", "eight queue pairs"),
        ("latency", "µs", "one request at a time"),
    ] {
        let file = format!("{}-{what}.svg", device.replace([':', ','], "-"));
        let title = format!("{device}: {what}, {how}");
        let axes = (
            Axis::log("size [B]"),
            Axis::log(&format!("{what} [{unit}]")),
        );
        t.chart(file, title, axes, move |point| {
            let (run, load) = (point.arm, point.arm.load);
            let y = match (what, run.of, load.queue_pairs) {
                ("rate", Of::Rate, 1) => value(run),
                ("bandwidth", Of::Rate, FEW) => value(run) * load.size as f64 * 8e-9,
                ("latency", Of::Latency, _) => run.natural(),
                _ => return None,
            };
            let inline = if load.inline { ", inline" } else { "" };
            let name = format!("{}{inline}", load.verb.name());
            let is_its = run.machine == machine && !load.verb.is_atomic();
            is_its.then_some((name, load.size as f64, y))
        });
    }
}

/// A machine on which runs are measured.
struct Machine<'a> {
    /// The preset's name, or [`DEVICE`].
    name: &'static str,
    /// The preset's name, or the device's.
    device: String,
    testbed: Testbed<'a>,
    /// Processor time that perftest takes for a request, in nanoseconds; zero on a real device.
    work_ns: u64,
    /// Number of cores, and so of processes, if they are simulated.
    cores: Option<usize>,
}

impl<'a> Machine<'a> {
    fn new(device: &DeviceName, place: Testbed<'a>, preset: Option<&Preset>) -> Self {
        let name = preset.map_or(DEVICE, |preset| preset.name);
        Self {
            name,
            device: preset.map_or_else(|| device.to_string(), |_| name.to_owned()),
            testbed: place,
            work_ns: preset.map_or(0, |preset| preset.bench_ns as u64),
            cores: preset.map(|preset| preset.cores as usize),
        }
    }

    /// Returns all runs on this machine.
    fn runs(&self, is_quick: bool) -> Vec<Run> {
        let sizes = if is_quick { QUICK_SIZES } else { SIZES };
        let mut all = Vec::new();
        for verb in Verb::ALL {
            let sizes = if verb.is_atomic() { &[8][..] } else { sizes };
            for &size in sizes {
                let one = rate(verb, size);
                all.extend([one, one.few(), latency(verb, size)]);
            }
            if self.cores.is_some() {
                all.push(all_cores(verb, sizes[0]));
            }
            for &size in INLINE_SIZES.iter().filter(|_| !verb.is_answered()) {
                all.extend([rate(verb, size).inline(), latency(verb, size).inline()]);
            }
        }
        all.into_iter().map(|run| run.on(self.name)).collect()
    }

    /// Measures a run once: requests per second or nanoseconds, and the number of processes. Returns `None`
    /// if nothing completed in time.
    fn sample(&self, run: &Run, time: Wall) -> Result<Option<Sample>, WorkloadError> {
        let (warm, time) = match self.cores {
            Some(_) => virtual_times(run),
            None => warm_and_run(time),
        };
        let processes = self.cores.filter(|_| run.of == Of::AllCores).unwrap_or(1);
        patiently(Wall::from_nanos(time), |time| {
            let times = [warm, time.as_nanos() as u64].map(Duration::from_nanos);
            let found = self.sample_over(run, processes, times.into())?;
            Ok(found.map(|found| Sample::from(found).with(PROCESSES, processes as f64)))
        })
    }

    fn sample_over(
        &self,
        run: &Run,
        processes: usize,
        times: (Duration, Duration),
    ) -> Result<Option<f64>, WorkloadError> {
        let (load, place, work_ns) = (run.load, &self.testbed, self.work_ns);
        let found = match run.of {
            Of::Rate | Of::AllCores => {
                return VerbLoad { work_ns, ..load }.rate(place, processes, times);
            }
            Of::Latency if load.verb.is_answered() => {
                let batches = Batches { load, pause_ns: 0 };
                batches.batch_delays(place, times)?.into_iter().next()
            }
            Of::Latency => half_round_trip(&load, place, times)?,
        };
        Ok(found.map(|found| found.p50_ns))
    }
}

/// Returns the warm-up and the measured time, in nanoseconds of virtual time. Both can be short, because
/// every message takes the same time.
fn virtual_times(run: &Run) -> (u64, u64) {
    let bytes = (run.load.size * run.load.queue_pairs) as u64;
    let shortest = match run.of {
        Of::Rate => 300_000,
        Of::AllCores => 250_000,
        Of::Latency => 100_000,
    };
    // 8 ns for each byte is the time of 40 messages on each queue pair at 40 Gbit/s. The queue pairs take
    // turns, so a message of each completes at about the same time.
    (20_000, shortest.max(8 * bytes))
}

fn measure(
    bench: &mut Bench<'_>,
    t: &mut Table<Run>,
    outcome: &mut Outcome,
) -> Result<Measured<Run>, RunError> {
    let presets = match bench.options.is_named {
        true => Vec::new(),
        false => SimulatedMachine::all(),
    };
    let stop = bench.testbed.stop;
    let machines = presets.iter();
    let machines =
        machines.map(|each| Machine::new(each.device(), each.testbed(stop), Some(each.preset())));
    let mut machines: Vec<Machine<'_>> = machines.collect();
    if machines.is_empty() {
        let device = &bench.options.device;
        let machine = bench.options.machine().and_then(Result::ok);
        let preset = machine.as_ref().map(|(preset, _)| preset);
        machines.push(Machine::new(device, bench.testbed.clone(), preset));
    }
    // On a simulated testbed the bench measures a single round.
    bench.testbed = machines[0].testbed.clone();
    *outcome = bench
        .pinned(|[here, there]| format!("initiator on cpu {here}, the other end on cpu {there}"));
    outcome.devices = presets.iter().map(|each| each.device().clone()).collect();
    declare(t, &machines);
    let is_quick = bench.options.quick;
    let runs = machines.iter().flat_map(|machine| machine.runs(is_quick));
    let points = runs.map(|run| Point::at(run, 0)).collect();
    let sweep = Sweep::over("", Wall::from_millis(60), Wall::from_millis(300)).share(0.8);
    let of = |run: &Run| machines.iter().find(|machine| machine.name == run.machine);
    let measured = bench.measure(points, sweep, |_, point, time| match of(&point.arm) {
        Some(machine) => machine.sample(&point.arm, time),
        None => Ok(None),
    })?;
    let measured = measured.sorted();
    for (key, run) in metrics() {
        let cores =
            "only where cores are simulated: on a real machine other programs use the cores too";
        match of(&run) {
            None => outcome.skip(key, ELSEWHERE),
            Some(here) if here.runs(false).contains(&run) => {}
            Some(_) => outcome.skip(key, cores),
        }
    }
    let grids = machines.iter();
    let grids = grids.filter_map(|machine| sizes(machine, &measured));
    outcome.grids.extend(grids);
    outcome.grids.extend(published_figures::beside(&measured));
    Ok(measured)
}

/// Adds the charts and the name of a device that is not a preset, and drops the charts of machines that are
/// not measured.
fn declare(t: &mut Table<Run>, machines: &[Machine<'_>]) {
    t.keep_charts(|file| machines.iter().any(|each| file.starts_with(each.name)));
    let mut named = machines.iter().filter(|each| each.name == DEVICE);
    let device = named.next().map(|machine| machine.device.clone());
    if let Some(device) = &device {
        charts(t, DEVICE, device);
    }
    t.cell("machine", move |point| match (&device, point.arm.machine) {
        (Some(device), _) => device.as_str().into(),
        (None, preset) => preset.into(),
    });
    columns(t);
}

fn columns(t: &mut Table<Run>) {
    t.cell("verb", |point| point.arm.load.verb.name().into());
    t.cell("payload", |point| match point.arm.load.inline {
        true => "inline".into(),
        false => "memory".into(),
    });
    t.cell("size [B]", |point| (point.arm.load.size as f64).into());
    t.value("processes", PROCESSES);
    t.cell("queue pairs of a process", |point| {
        (point.arm.load.queue_pairs as f64).into()
    });
    t.cell("depth", |point| (point.arm.load.depth as f64).into());
    let rate = |run: Run| run.natural().when(run.of != Of::Latency);
    t.median("rate [M/s]", move |point| rate(point.arm));
    t.median("bandwidth [Gbit/s]", move |point| {
        rate(point.arm) * point.arm.load.size as f64 * 8e-3
    });
    t.median("latency [µs]", |point| {
        point.arm.natural().when(point.arm.of == Of::Latency)
    });
    let there = |point: &Point<Run>| Published::of(&point.arm);
    t.cell("published [M/s or µs]", move |point| {
        there(point).map(|there| there.low).into()
    });
    t.cell("published, at most", move |point| {
        there(point).map(|there| there.high).into()
    });
    t.cell("source", move |point| {
        there(point).map_or_else(Cell::default, |there| there.source.into())
    });
}

/// Makes a table with a row for each verb and size of a machine.
fn sizes(machine: &Machine<'_>, measured: &Measured<Run>) -> Option<Grid> {
    let simulated = machine.cores.map_or("", |_| " (simulated)");
    let runs = measured.points().map(|point| point.arm);
    let mine = runs.filter(|run| run.machine == machine.name);
    let mut rows: Vec<_> = mine
        .map(|run| (run.load.verb, !run.load.inline, run.load.size))
        .collect();
    rows.sort_unstable();
    rows.dedup();
    let row = |(verb, from_memory, size): (Verb, bool, usize)| {
        let cell = |run: Run, scale: f64| {
            let mut run = run.on(machine.name);
            run.load.inline = !from_memory;
            let found = value(run).median(measured);
            found.map_or_else(String::new, |found| human(found * scale))
        };
        let (one, bits) = (rate(verb, size), size as f64 * 8e-9);
        let inline = if from_memory { "" } else { " inline" };
        vec![
            format!("{}{inline}", verb.name()),
            size.to_string(),
            cell(one, 1e-6),
            cell(one, bits),
            cell(one.few(), 1e-6),
            cell(one.few(), bits),
            cell(all_cores(verb, size), 1e-6),
            cell(latency(verb, size), 1e-3),
        ]
    };
    let header = [
        "verb",
        "size [B]",
        "one queue pair [M/s]",
        "[Gbit/s]",
        "eight queue pairs [M/s]",
        "[Gbit/s]",
        "a process on every core [M/s]",
        "latency [µs]",
    ];
    let title = format!("{}{simulated}", machine.device);
    Grid::of(title, header, rows.into_iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn points_have_distinct_names_and_published_figures_are_measured() {
        let stop = AtomicBool::new(false);
        let presets = SimulatedMachine::all();
        let machines = presets.iter();
        let runs = machines.flat_map(|there| {
            Machine::new(there.device(), there.testbed(&stop), Some(there.preset())).runs(false)
        });
        let runs: Vec<_> = runs.collect();
        let words: BTreeSet<_> = runs.iter().map(ToString::to_string).collect();
        assert_eq!(words.len(), runs.len(), "{words:?}");
        for wanted in [
            "cx5-100g: rate of write 64 B, 1 QP, depth 32, a process on every core",
            "cx5-100g: latency of send inline 128 B, 1 QP, depth 1",
        ] {
            assert!(words.contains(wanted), "{wanted}");
        }
        for (key, run) in metrics().filter(|(_, run)| run.machine != DEVICE) {
            assert!(runs.contains(&run), "{key}");
        }
        for there in published_figures::all() {
            assert!(runs.contains(&there.run), "{:?}", there.run);
            assert!(there.low <= there.high && !there.source.is_empty());
        }
    }
}
