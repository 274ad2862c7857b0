//! `headworks pace`.

mod calibrate;
mod constants;
mod status;
mod trace;

use clap::Subcommand;
use headworks::pace::{Observer, PaceStatus};

/// What to do with pacing.
#[derive(Subcommand)]
pub(crate) enum Pace {
    /// Measure the base delays of an idle device, and print them as options to add to its name.
    ///
    /// One small request at a time, from its doorbell to its completion, as pacing measures: SENDs and WRITEs (by WRITEs),
    /// READs, atomics and datagrams, as far as the device has them. On sim:PRESET the delays are simulated.
    Calibrate(calibrate::Calibrate),
    /// Show each RNIC that processes of this user pace now: its rate, delay, thresholds, who paces it.
    ///
    /// Simulated RNICs are paced within their process, and not seen here.
    Status(status::Status),
    /// Watch what is paced until Ctrl-C, or for a time, and write a table and a figure of it.
    ///
    /// Nothing needs to be paced yet: it waits. Simulated RNICs are paced within their process, and not seen here.
    Trace(trace::Trace),
    /// List the constants of pacing: what each is, its unit, what it may be.
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

/// Whether it limits what is in flight, not the rate.
fn is_window(observer: &Observer) -> bool {
    observer.constants().window != 0.0
}

fn micros(status: &PaceStatus) -> f64 {
    status.delay.nanos() as f64 / 1e3
}
