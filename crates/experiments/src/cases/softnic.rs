//! What the software RNIC costs, against what it stands on.

mod arms;
mod keys;
mod points;

use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::Outcome;
use crate::runner::RunError;

/// The experiment.
#[derive(Debug)]
pub struct SoftNic;

static ABOUT: About = About {
    name: "softnic",
    line: "The software RNIC itself, against the memory and the system calls that it stands on.",
    measures: "Memory of a connected queue pair; WRITEs spread over a thousand queue pairs against \
               one; WRITEs into memory from anywhere against the bare system call; a wake-up \
               through a completion channel against one through an eventfd; SEND and RECV through \
               a shared receive queue against WRITEs into polled memory.",
    paper: None,
    keys: keys::KEYS,
    paper_values: &[],
    replays: false,
};

impl Experiment for SoftNic {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn not_simulated(&self) -> Option<&'static str> {
        Some("it measures what the software RNIC costs on this machine, by the wall clock")
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = bench.pinned(|[here, there]| {
            format!("initiator on cpu {here}, the other end on cpu {there}, for every arm")
        });
        outcome.arms = arms::notes();
        let measured = points::measure(bench)?;
        outcome.repeats = measured.rounds();
        keys::record(&mut outcome, &measured);
        Ok(outcome)
    }
}
