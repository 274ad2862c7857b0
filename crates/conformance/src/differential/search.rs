//! Many programs, and the smallest that disagrees.

use std::fmt::Write as _;

use headworks_verbs::Duration;

use super::{Disagreement, Program, Tally, draw, less, run};
use crate::{Bench, World};

/// How long such are tried: each may wait in vain.
const SMALLER_TIME: Duration = Duration::from_millis(60_000);

/// Which programs are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// The seed of the first; the next has the next.
    pub first: u64,
    /// How many.
    pub programs: u64,
    /// Whether one that disagrees is made smaller.
    pub makes_small: bool,
}

/// A seed whose program two worlds disagree on.
#[derive(Clone, Debug)]
pub struct Found {
    /// The seed.
    pub seed: u64,
    /// The smallest program found.
    pub program: Program,
    /// What they disagree on there.
    pub disagreement: Disagreement,
}

impl Found {
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
) -> (Tally, Option<Found>) {
    let mut tally = Tally::default();
    let (mut first, mut second) = (left(), right());
    let (mut ours, mut theirs) = (Bench::new(&mut first), Bench::new(&mut second));
    for seed in (search.first..).take(search.programs as usize) {
        let program = draw::nth(seed);
        let Err(disagreement) = run(&program, &mut ours, &mut theirs, &mut tally) else {
            continue;
        };
        if !search.makes_small {
            let found = Found {
                seed,
                program,
                disagreement,
            };
            return (tally, Some(found));
        }
        println!("seed {seed} disagrees, {disagreement}; looking for a smaller program");
        let until = ours.now() + SMALLER_TIME;
        // Whoever disagreed may be in any state: on new worlds from now on.
        let again = |program: &Program| {
            let (mut first, mut second) = (left(), right());
            let (mut ours, mut theirs) = (Bench::new(&mut first), Bench::new(&mut second));
            if ours.now() > until {
                return None;
            }
            run(program, &mut ours, &mut theirs, &mut Tally::default()).err()
        };
        let (program, disagreement) = smallest(program, disagreement, again);
        let found = Found {
            seed,
            program,
            disagreement,
        };
        return (tally, Some(found));
    }
    (tally, None)
}

/// The smallest program on which `again` still finds a disagreement, of those that are the given one
/// without some of it.
fn smallest(
    program: Program,
    disagreement: Disagreement,
    mut again: impl FnMut(&Program) -> Option<Disagreement>,
) -> (Program, Disagreement) {
    let mut best = (program, disagreement);
    'smaller: loop {
        for program in less::less(&best.0) {
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
    use crate::differential::program::Step;

    #[test]
    fn what_disagrees_is_made_small() {
        let none = || Disagreement {
            step: 0,
            lines: Vec::new(),
        };
        let is_deed = |step: &Step| matches!(step, Step::Send { chain, .. } if chain.len() > 1);
        let first = (1..)
            .map(draw::nth)
            .find(|program| program.steps.iter().any(is_deed));
        let disagrees = |program: &Program| program.steps.iter().any(is_deed).then(none);
        let (program, _) = smallest(first.unwrap(), none(), disagrees);
        let [Step::Send { chain, .. }] = &program.steps[..] else {
            panic!("{program}")
        };
        assert_eq!((chain.len(), program.lines.len()), (2, 1), "{program}");
        assert_eq!(program.memory.each_ref().map(Vec::len), [1, 1]);
    }
}
