//! The `headworks` command.
#![forbid(unsafe_code)]

mod args;
mod daemon;
mod demo;
mod devices;
mod doctor;
mod exit_status;
mod experiment;
mod interruptible_sleep;
mod pace;
mod patterns;
mod pipe;
mod progress;
mod rdma_facts;
mod sim;
mod stderr_log;
mod system_files;
mod top;
mod verbs;

use std::process::ExitCode;

use clap::Parser;
use headworks::runtime::{ActorRegistry, child_entry};
use tracing_subscriber::fmt::MakeWriter;

use args::{Args, Command};

fn main() -> ExitCode {
    // This program is also the child process of its own experiments.
    let mut actors = ActorRegistry::new();
    headworks_experiments::register(&mut actors, None);
    let opener = headworks::opener();
    if let Some(code) = headworks_experiments::child_main(&opener) {
        return code;
    }
    if let Some(code) = child_entry(&actors, opener) {
        return code;
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return exit_status::usage(&error),
    };
    // A daemon's log level can also come from its configuration file, so `daemon::run` sets up its own log.
    if !matches!(args.command, Command::Daemon(_)) {
        log(level(args.verbose), std::io::stderr);
    }
    let done = match args.command {
        Command::Pipe(command) => pipe::run(&command),
        Command::Demo {
            path,
            device,
            peer_device,
        } => demo::run(path, device, peer_device),
        Command::DemoChild {
            role,
            place,
            pieces,
            address,
            device,
        } => demo::run_child(&role, &place, pieces, address, &device),
        Command::Devices { json } => devices::list(args.verbose > 0, json),
        Command::Doctor(command) => doctor::run(&command),
        Command::Top(command) => top::run(&command),
        Command::Experiment(command) => experiment::run(command),
        Command::Sim(command) => sim::run(&command),
        Command::Pace(command) => pace::run(&command),
        Command::Patterns(command) => patterns::run(&command),
        Command::Advise(command) => patterns::advise_design(&command),
        Command::Verbs(command) => verbs::run(&command),
        Command::Daemon(command) => daemon::run(&command, args.verbose),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit_status::report(&error),
    }
}

/// Log level selected by the number of `-v` flags.
fn level(verbose: u8) -> tracing::Level {
    match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        2 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    }
}

/// Installs the log of the libraries, which writes to `writer`.
fn log(level: tracing::Level, writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(writer)
        // Otherwise a failed write to standard error is itself reported on standard error, which panics.
        .log_internal_errors(false)
        .init();
}
