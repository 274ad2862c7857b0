//! What it costs one thread to receive from many rings.

mod keys;
mod points;

use crate::bench::Bench;
use crate::experiment::{About, Experiment};
use crate::outcome::{ArmNote, Outcome};
use crate::runner::RunError;

/// The experiment.
#[derive(Debug)]
pub struct RingFanIn;

static ABOUT: About = About {
    name: "ring-fanin",
    line: "One thread that receives from 1 to 1,000 rings: as a group, against receivers one by one.",
    measures: "At 1, 10, 100 and 1,000 rings: what a look in vain at all of them costs, the rate of \
               64-byte messages from all of them and from one of them, and how evenly the rings are \
               served when all are sent to as fast as one thread can, and when one is and the others have a \
               message now and then.",
    paper: None,
    keys: keys::KEYS,
    paper_values: &[],
    replays: false,
};

impl Experiment for RingFanIn {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn not_simulated(&self) -> Option<&'static str> {
        Some("it measures looks at memory, which take no virtual time there")
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Outcome, RunError> {
        let mut outcome = bench.pinned(|[here, there]| {
            format!(
                "the one process that holds all sending ends on cpu {here}, the receiving thread on cpu \
                 {there}, for every arm"
            )
        });
        outcome.arms = vec![
            note(
                "group",
                "a Group: tails packed on its board, eight to a cache line; one completion queue; turns \
                 of at most 32 messages",
            ),
            note(
                "separate",
                "as many receivers by themselves, each with its tail's line and its completion queue; asked \
                 one after the other, at most 32 messages at a time",
            ),
        ];
        let measured = points::measure(bench)?;
        outcome.repeats = measured.rounds();
        keys::record(&mut outcome, &measured);
        Ok(outcome)
    }
}

fn note(name: &str, what: &str) -> ArmNote {
    ArmNote {
        name: name.into(),
        what: what.into(),
        waiting: "poll",
        copies: "2".into(),
    }
}
