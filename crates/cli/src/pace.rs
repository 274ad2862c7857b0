//! `headworks pace`.

mod calibrate;
mod constants;
mod status;
mod trace;

use clap::Subcommand;
use headworks::pace::{Observer, Observers, PaceStatus};

/// Subcommands of `headworks pace`.
#[derive(Subcommand)]
pub(crate) enum Pace {
    /// Measure the base delays of an idle device, and print them as options to add to its name.
    ///
    /// Requests are small and sent one at a time, each timed from its doorbell to its completion, as pacing
    /// does: SENDs and WRITEs (by WRITEs), READs, atomics and datagrams, as far as the device has them. On
    /// sim:PRESET the delays are simulated.
    Calibrate(calibrate::Calibrate),
    /// Show each RNIC that processes of this user pace now: rate, delay, thresholds, processes.
    ///
    /// Simulated RNICs are paced within one process and not visible here.
    Status(status::Status),
    /// Sample what is paced until Ctrl-C or for a time, and write a table and a figure.
    ///
    /// If nothing is paced yet, it waits. Simulated RNICs are paced within one process and not visible here.
    Trace(trace::Trace),
    /// List the constants of pacing: meaning, unit, range.
    Constants(constants::Constants),
}

pub(crate) fn run(command: &Pace) -> anyhow::Result<()> {
    match command {
        Pace::Calibrate(command) => calibrate::run(command),
        Pace::Status(command) => status::run(command),
        Pace::Trace(command) => trace::run(command),
        Pace::Constants(command) => constants::run(command),
    }
}

fn gbps(bytes_per_s: u64) -> f64 {
    bytes_per_s as f64 * 8.0 / 1e9
}

/// Whether pacing limits the bytes in flight instead of the rate.
fn is_window(observer: &Observer) -> bool {
    observer.constants().window
}

fn micros(status: &PaceStatus) -> f64 {
    status.delay.nanos() as f64 / 1e3
}

/// Returns the line about the processes whose pacing cannot be read, with the reason of the first; `None` if there are
/// none.
fn unreadable_line(all: &Observers) -> Option<String> {
    let reason = all.unreadable.first()?;
    let more = if all.rnics.is_empty() { "" } else { " more" };
    Some(format!(
        "{}{more} cannot be read: {reason}",
        all.unreadable.len()
    ))
}
