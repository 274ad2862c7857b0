//! Runs the same random programs on two pairs of devices and checks that they do the same.
//!
//! A [`Program`] is a sequence of legal and illegal verbs, as plain data. [`run`] executes it on two worlds
//! at the same time, step by step. After each step it compares the results: the reply to every call, the
//! status of every request and receive, the states of queue pairs, every byte of memory, and the
//! asynchronous events. Behaviour that no device may show is detected on each device separately, because two
//! devices of the same make would agree on it. What the specification leaves open is a [`DivergenceRule`]
//! with its reason. [`search`] generates programs from seeds, and minimises one on which the devices
//! disagree.
//!
//! | module | contents |
//! |---|---|
//! | [`program`] | programs |
//! | [`generate`] | generates programs |
//! | [`observation`] | what is observed of a step |
//! | [`comparison`] | decides whether two observations agree |
//! | [`search`] | tries many programs, and minimises one that disagrees |

use std::collections::BTreeMap;
use std::fmt;

use headworks_verbs::Duration;

use crate::CaseContext;

pub mod comparison;
pub mod generate;
pub mod observation;
mod outstanding;
pub mod program;
mod runner;
pub mod search;
mod shrink;

pub use comparison::{AllowedDivergence, DivergenceRule, RuleUses};
pub use program::Program;

use observation::{Span, UnspecifiedBytes};
use runner::{ProgramRunner, ReportedEvent};

/// Disagreement of two worlds on a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// Index of the step; the number of steps if it is the teardown.
    pub step: usize,
    /// Differences between the left and the right world, one per line.
    pub lines: Vec<String>,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.lines.join("; "))
    }
}

/// Statistics of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of programs.
    pub programs: u64,
    /// Number of steps after which everything was compared.
    pub steps: u64,
    /// Number of requests and receives by fate.
    pub fates: BTreeMap<String, u64>,
    /// Number of uses of each rule that was needed.
    pub uses: RuleUses,
}

/// Maximum time that an event may be later on one of the two devices.
const EVENT_TIMEOUT: Duration = Duration::from_millis(2_000);

/// Runs a program on both worlds and compares them.
pub fn run(
    program: &Program,
    left: &mut CaseContext<'_>,
    right: &mut CaseContext<'_>,
    tally: &mut Tally,
) -> Result<(), Disagreement> {
    let allowed = AllowedDivergence {
        behaviour: [left.behaviour(), right.behaviour()],
        known: [left.deviations().to_vec(), right.deviations().to_vec()],
    };
    let failed = |step: usize, whose: &'static str| {
        move |line: String| Disagreement {
            step,
            lines: vec![format!("{whose}: {line}")],
        }
    };
    let mut left = ProgramRunner::new(left, 0, program).map_err(failed(0, "left"))?;
    let mut right = ProgramRunner::new(right, 1, program).map_err(failed(0, "right"))?;
    tally.programs += 1;
    for (number, step) in program.steps.iter().enumerate() {
        let ours = left.step(step, &allowed).map_err(failed(number, "left"))?;
        let theirs = right
            .step(step, &allowed)
            .map_err(failed(number, "right"))?;
        let mut verdict = comparison::compare(&ours, &theirs, &allowed, &mut tally.uses);
        if verdict.differences.is_empty() {
            let doubts = [&ours.unspecified, &theirs.unspecified, &verdict.unspecified];
            let doubts = doubts.into_iter().flatten().copied().collect();
            let differences = memory(&mut left, &mut right, doubts, &mut tally.uses);
            verdict.differences = differences.map_err(failed(number, "memory"))?;
        }
        if !verdict.differences.is_empty() {
            return Err(Disagreement {
                step: number,
                lines: verdict.differences,
            });
        }
        tally.steps += 1;
        for fate in ours.fates.values() {
            *tally.fates.entry(fate.name()).or_default() += 1;
        }
        if verdict.is_last {
            break;
        }
        events(&mut left, &mut right, &allowed, &mut tally.uses).map_err(|line| Disagreement {
            step: number,
            lines: vec![line],
        })?;
    }
    let end = program.steps.len();
    left.destroy_all(program.teardown_seed)
        .map_err(failed(end, "left"))?;
    right
        .destroy_all(program.teardown_seed)
        .map_err(failed(end, "right"))
}

/// Compares all memory except unspecified bytes, which it sets to the same values.
fn memory(
    left: &mut ProgramRunner<'_, '_>,
    right: &mut ProgramRunner<'_, '_>,
    doubts: Vec<UnspecifiedBytes>,
    uses: &mut RuleUses,
) -> Result<Vec<String>, String> {
    let (ours, theirs) = (left.memory()?, right.memory()?);
    let mut differences = Vec::new();
    for (end, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        for (memory, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            let bytes = ours.iter().zip(theirs).enumerate();
            let differing = bytes.filter(|(_, (ours, theirs))| ours != theirs);
            for (at, (our, their)) in differing {
                let byte = Span {
                    end,
                    memory,
                    from: at,
                    to: at + 1,
                };
                match doubts.iter().find(|doubt| doubt.span.overlaps(&byte)) {
                    Some(doubt) => {
                        *uses.entry(doubt.rule).or_default() += 1;
                    }
                    None => {
                        differences.push(format!(
                            "host {end} memory {memory} byte {at}: {our:#04x} / {their:#04x}"
                        ));
                        break;
                    }
                }
            }
        }
    }
    for doubt in &doubts {
        left.equalise(doubt.span)?;
        right.equalise(doubt.span)?;
    }
    Ok(differences)
}

/// Compares asynchronous events. Waits for events that may still be on their way.
fn events(
    left: &mut ProgramRunner<'_, '_>,
    right: &mut ProgramRunner<'_, '_>,
    allowed: &AllowedDivergence,
    uses: &mut RuleUses,
) -> Result<(), String> {
    let until = left.now() + EVENT_TIMEOUT;
    let twice = allowed
        .behaviour
        .iter()
        .all(|behaviour| behaviour.reports_failure_twice);
    let counts = |told: &ReportedEvent| {
        !(0..2).any(|device| allowed.keeps(device, told.what))
            && (twice || !(told.was_reported && told.what == "QpFatal"))
    };
    loop {
        let (all_ours, all_theirs) = (left.events()?, right.events()?);
        let [ours, theirs] = [&all_ours, &all_theirs]
            .map(|told| told.iter().filter(|told| counts(told)).collect::<Vec<_>>());
        if ours == theirs {
            if all_ours != all_theirs {
                *uses.entry(DivergenceRule::ToldTwice).or_default() += 1;
            }
            return Ok(());
        }
        if left.now() > until {
            return Err(format!("events: {ours:?} / {theirs:?}"));
        }
        left.advance();
        right.advance();
    }
}
