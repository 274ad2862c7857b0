//! `headworks experiment`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use headworks::net::Interrupt;
use headworks::runtime::{Processes, World};
use headworks::sim::trace::TRACE_ENTRIES_MAX;
use headworks::sim::{Setting, Tracer, is_simulated};
use headworks_experiments::atomic_file::AtomicFile;
use headworks_experiments::simulated_machine::SimulatedMachine;
use headworks_experiments::{Options, registry};

use crate::args;
use crate::exit_status::{BAD_INPUT, bad_input, code_of};

/// Interval at which an interrupt is looked for and passed on to the experiments.
const INTERRUPT_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Lists or runs experiments.
pub(crate) fn run(command: args::Experiment) -> anyhow::Result<()> {
    match command {
        args::Experiment::List => list(),
        args::Experiment::Run(run) => {
            let options = Options {
                is_named: run.device.is_some(),
                device: match run.device {
                    Some(device) => device,
                    None => headworks::DEFAULT_DEVICE.parse()?,
                },
                peer_device: run.peer_device,
                quick: run.quick,
                trace: run.trace,
                set: run.set,
                usage_monitor: None,
                out: run.out,
            };
            only_simulated("--set", !options.set.is_empty(), &options)?;
            only_simulated("--sim-trace", run.sim_trace.is_some(), &options)?;
            only_once(&options.set)?;
            let trace = run.sim_trace.as_deref().map(TraceFile::new).transpose()?;
            let ran = run_all(&run.names, options, trace.as_ref());
            let was_refused = ran.as_ref().is_err_and(|why| code_of(why) == BAD_INPUT);
            // A failed run is traced, too: it needs its trace most. A refused one did not begin and has no
            // trace.
            let trace = trace.filter(|_| !was_refused);
            let written = trace.map_or(Ok(()), TraceFile::write);
            ran.and(written)
        }
    }
}

fn list() -> anyhow::Result<()> {
    let mut text = String::new();
    for experiment in registry() {
        let about = experiment.about();
        text.push_str(&format!("{}\n    {}\n", about.name, about.line));
    }
    crate::exit_status::print(&text)
}

/// Refuses an option that only simulated devices have if the device is another.
fn only_simulated(option: &str, given: bool, options: &Options) -> anyhow::Result<()> {
    let device = &options.device;
    match given && !is_simulated(device) {
        true => Err(bad_input(format_args!(
            "{option} needs a simulated device, and {device} is none: name one with --device sim:PRESET"
        ))),
        false => Ok(()),
    }
}

/// Refuses two values for one constant.
fn only_once(set: &[Setting]) -> anyhow::Result<()> {
    let keys = set.iter().map(|setting| setting.constant().key);
    let mut seen = BTreeSet::new();
    match keys.into_iter().find(|key| !seen.insert(*key)) {
        Some(key) => Err(bad_input(format_args!(
            "--set {key} is given twice: a constant has one value"
        ))),
        None => Ok(()),
    }
}

/// Trace of simulated devices, and the file that it is written to.
struct TraceFile {
    tracer: Tracer,
    path: PathBuf,
    replacement: AtomicFile,
}

impl TraceFile {
    /// Reports a file that cannot be written now, not after the measurements. An existing file stays until
    /// the trace replaces it.
    fn new(path: &Path) -> anyhow::Result<Self> {
        let replacement = AtomicFile::of(path);
        let replacement = replacement
            .map_err(|why| bad_input(format_args!("--sim-trace: {}: {why}", path.display())))?;
        Ok(Self {
            tracer: Tracer::new(TRACE_ENTRIES_MAX),
            path: path.to_owned(),
            replacement,
        })
    }

    fn write(self) -> anyhow::Result<()> {
        let written = self.replacement.write(|out| self.tracer.write(out));
        written.with_context(|| format!("writing {}", self.path.display()))?;
        if let Some(notice) = self.tracer.notice() {
            crate::exit_status::write_line(notice);
        }
        crate::exit_status::write_line(format_args!("written: {}", self.path.display()));
        Ok(())
    }
}

/// Returns the world that the experiments run in: processes, or virtual time if the device is simulated. For
/// virtual time, also sets the usage monitor of `options`.
fn world(options: &mut Options, trace: Option<&TraceFile>) -> anyhow::Result<Arc<dyn World>> {
    let tracer = trace.map(|trace| trace.tracer.clone());
    let Some(simulated) = SimulatedMachine::on(&options.device, &options.set, tracer) else {
        return Ok(Arc::new(Processes::of_this_program()));
    };
    let simulated = simulated?;
    options.usage_monitor = Some(simulated.usage_monitor().clone());
    Ok(simulated.world().clone())
}

fn run_all(
    names: &[String],
    mut options: Options,
    trace: Option<&TraceFile>,
) -> anyhow::Result<()> {
    // Installed before anything exists that a signal could leave behind.
    let interrupt = Interrupt::install().context("catching signals")?;
    for device in std::iter::once(&options.device).chain(&options.peer_device) {
        headworks::open(device)?;
    }
    let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let world = world(&mut options, trace)?;
    let written = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                stop.fetch_or(interrupt.is_raised(), Ordering::Relaxed);
                std::thread::sleep(INTERRUPT_CHECK_INTERVAL);
            }
        });
        // Results that are written before an interrupt arrives stay, and are reported.
        let mut write_line = |directory: &Path| {
            crate::exit_status::write_line(format_args!("written: {}", directory.display()));
        };
        let written = headworks_experiments::run(names, &options, &world, &stop, &mut write_line);
        over.store(true, Ordering::Relaxed);
        written
    });
    // Killed child processes leave entries in the registry. Those are removed once the world has ended.
    drop(world);
    if written.is_err() {
        let _ = headworks::registry().map(|fabric| fabric.remove_dead());
    }
    Ok(written?)
}
