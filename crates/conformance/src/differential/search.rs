//! Many programs, and the minimise that disagrees.

use std::fmt::Write as _;

use headworks_verbs::Duration;

use super::{Disagreement, Program, Tally, generate, run, shrink};
use crate::{CaseContext, World};

/// How long such are tried: each may wait in vain.
const SHRINK_TIME_MAX: Duration = Duration::from_millis(60_000);

/// Which programs are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// The seed of the first; the next has the next.
    pub first: u64,
    /// Number of programs that were run.
    pub programs: u64,
    /// Whether one that disagrees is made smaller.
    pub shrinks: bool,
}

/// A seed whose program two worlds disagree on.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The seed.
    pub seed: u64,
    /// The minimise program found.
    pub program: Program,
    /// What they disagree on there.
    pub disagreement: Disagreement,
}

impl Counterexample {
    /// In some lines, for somebody who wants to see it again by this command.
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

/// Tries programs on pairs of worlds until one disagrees.
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
        // Whoever disagreed may be in any state: on new worlds from now on.
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

/// The minimise program on which `again` still finds a disagreement, of those that are the given one
/// without some of it.
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
