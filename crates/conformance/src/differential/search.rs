//! Tries many programs, and minimises one that disagrees.

use std::fmt::Write as _;

use headworks_verbs::Duration;

use super::{Disagreement, Program, Tally, generate, run, shrink};
use crate::{CaseContext, World};

/// Time limit for minimising: each program tried may wait for a timeout.
const SHRINK_TIME_MAX: Duration = Duration::from_millis(60_000);

/// Programs to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// Seed of the first program; each further program has the next seed.
    pub first: u64,
    /// Number of programs to try.
    pub programs: u64,
    /// Whether a program that disagrees is minimised.
    pub shrinks: bool,
}

/// Program on which two worlds disagree.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// Seed of the original program.
    pub seed: u64,
    /// Smallest program found.
    pub program: Program,
    /// Disagreement on that program.
    pub disagreement: Disagreement,
}

impl Counterexample {
    /// Returns a report of several lines, with the command that reproduces it.
    pub fn report(&self, left: &str, right: &str, command: &str) -> String {
        let Self {
            seed,
            program,
            disagreement,
        } = self;
        let mut text = format!("{left} / {right} disagree, {disagreement}\n");
        let _ = writeln!(text, "{program}");
        let _ = write!(
            text,
            "seed {seed}; once more: HEADWORKS_SEED={seed} {command}"
        );
        text
    }
}

/// Tries programs on a pair of worlds until one disagrees.
pub fn search<L: World, R: World>(
    search: Search,
    mut left: impl FnMut() -> L,
    mut right: impl FnMut() -> R,
) -> (Tally, Option<Counterexample>) {
    let mut tally = Tally::default();
    let (mut first, mut second) = (left(), right());
    let (mut ours, mut theirs) = (CaseContext::new(&mut first), CaseContext::new(&mut second));
    for seed in (search.first..).take(search.programs as usize) {
        let program = generate::program_of_seed(seed);
        let Err(disagreement) = run(&program, &mut ours, &mut theirs, &mut tally) else {
            continue;
        };
        if !search.shrinks {
            let found = Counterexample {
                seed,
                program,
                disagreement,
            };
            return (tally, Some(found));
        }
        println!("seed {seed} disagrees, {disagreement}; looking for a smaller program");
        let until = ours.now() + SHRINK_TIME_MAX;
        // The worlds that disagreed may be in any state, so each further program gets new ones.
        let again = |program: &Program| {
            let (mut first, mut second) = (left(), right());
            let (mut ours, mut theirs) =
                (CaseContext::new(&mut first), CaseContext::new(&mut second));
            if ours.now() > until {
                return None;
            }
            run(program, &mut ours, &mut theirs, &mut Tally::default()).err()
        };
        let (program, disagreement) = minimise(program, disagreement, again);
        let found = Counterexample {
            seed,
            program,
            disagreement,
        };
        return (tally, Some(found));
    }
    (tally, None)
}

/// Returns the smallest program found by removing parts of `program`, such that `again` still finds a
/// disagreement.
fn minimise(
    program: Program,
    disagreement: Disagreement,
    mut again: impl FnMut(&Program) -> Option<Disagreement>,
) -> (Program, Disagreement) {
    let mut best = (program, disagreement);
    'smaller: loop {
        for program in shrink::smaller_programs(&best.0) {
            if let Some(disagreement) = again(&program) {
                best = (program, disagreement);
                continue 'smaller;
            }
        }
        return best;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::program::ProgramStep;

    #[test]
    fn a_counterexample_is_minimised() {
        let none = || Disagreement {
            step: 0,
            lines: Vec::new(),
        };
        let is_action =
            |step: &ProgramStep| matches!(step, ProgramStep::Send { chain, .. } if chain.len() > 1);
        let first = (1..)
            .map(generate::program_of_seed)
            .find(|program| program.steps.iter().any(is_action));
        let disagrees = |program: &Program| program.steps.iter().any(is_action).then(none);
        let (program, _) = minimise(first.unwrap(), none(), disagrees);
        let [ProgramStep::Send { chain, .. }] = &program.steps[..] else {
            panic!("{program}")
        };
        assert_eq!((chain.len(), program.lines.len()), (2, 1), "{program}");
        assert_eq!(program.memory.each_ref().map(Vec::len), [1, 1]);
    }
}
