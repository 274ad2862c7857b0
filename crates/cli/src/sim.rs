//! `headworks sim`.

mod presets;
mod soak;

use clap::Subcommand;

/// Subcommands of `headworks sim`.
#[derive(Subcommand)]
pub(crate) enum Sim {
    /// List the constants of the simulated machines: meaning, unit, source.
    Presets(presets::Presets),
    /// Run rings on simulated RNICs with injected faults, seed by seed, and check that they keep their
    /// guarantees.
    ///
    /// Exit code 1 if a seed finds a violation. The violation is printed, with the command that runs the seed
    /// again.
    Soak(soak::Soak),
}

pub(crate) fn run(command: &Sim) -> anyhow::Result<()> {
    match command {
        Sim::Presets(command) => presets::run(command),
        Sim::Soak(command) => soak::run(command),
    }
}
