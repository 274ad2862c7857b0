//! `headworks experiment`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use headworks::stage::{Interrupt, Processes, World};
use headworks_experiments::{Options, registry};

use crate::args;

/// How soon an interrupt is passed on.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Lists or runs experiments.
pub(crate) fn run(command: args::Experiment) -> anyhow::Result<()> {
    match command {
        args::Experiment::List => list(),
        args::Experiment::Run(run) => {
            let options = Options {
                device: run.device,
                peer_device: run.peer_device,
                quick: run.quick,
                trace: run.trace,
                out: run.out,
            };
            let names = run.names;
            run_all(&names, &options)
        }
    }
}

fn list() -> anyhow::Result<()> {
    let mut text = String::new();
    for experiment in registry() {
        let about = experiment.about();
        text.push_str(&format!("{}\n    {}\n", about.name, about.line));
    }
    crate::fail::print(&text)
}

fn run_all(names: &[String], options: &Options) -> anyhow::Result<()> {
    // Before anything that a signal could leave behind.
    let interrupt = Interrupt::install().context("catching signals")?;
    for device in std::iter::once(&options.device).chain(&options.peer_device) {
        headworks::open(device)?;
    }
    let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let world: Arc<dyn World> = Arc::new(Processes::of_this_program());
    let written = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                stop.fetch_or(interrupt.is_raised(), Ordering::Relaxed);
                std::thread::sleep(LOOK_EVERY);
            }
        });
        // What an interrupt comes too late for stays, and is told of.
        let mut tell = |directory: &Path| {
            crate::fail::tell(format_args!("written: {}", directory.display()));
        };
        let written = headworks_experiments::run(names, options, &world, &stop, &mut tell);
        over.store(true, Ordering::Relaxed);
        written
    });
    // Parts that were killed leave their entries.
    drop(world);
    if written.is_err() {
        let _ = headworks::fabric().map(|fabric| fabric.remove_dead());
    }
    Ok(written?)
}
