//! `headworks sim`.

mod presets;
mod soak;

use clap::Subcommand;

/// What to do with simulated devices.
#[derive(Subcommand)]
pub(crate) enum Sim {
    /// List the constants of the simulated machines: what each is, its unit, where it comes from.
    Presets(presets::Presets),
    /// Run rings on simulated RNICs on which things go wrong, by seeds, and look whether they keep what they promise.
    ///
    /// Exit code 1 if a seed finds that they do not: what it stands for is said, and how to run it again.
    Soak(soak::Soak),
}

pub(crate) fn run(command: &Sim) -> anyhow::Result<()> {
    match command {
        Sim::Presets(command) => presets::run(command),
        Sim::Soak(command) => soak::run(command),
    }
}
