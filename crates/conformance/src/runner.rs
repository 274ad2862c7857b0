//! Runs cases in a world and prints the results.

use headworks_runtime::testing;

use crate::{Case, CaseContext, World};

/// Returns the filter that the environment selects. `HEADWORKS_CASE` holds parts of case names, separated by
/// commas; a case matches if its name contains one of them. Long cases run only if `HEADWORKS_LONG` is set.
pub fn case_filter() -> impl Fn(&Case) -> bool {
    let names = std::env::var("HEADWORKS_CASE").unwrap_or_default();
    let long = std::env::var_os("HEADWORKS_LONG").is_some();
    let is_named = move |case: &Case| names.split(',').any(|name| case.name.contains(name));
    move |case| is_named(case) && (long || !case.long)
}

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaseTally {
    /// Number of cases that ran to the end and succeeded.
    pub ran: usize,
    /// Cases that did not apply or cannot run in their world.
    pub skipped: Vec<String>,
    /// Cases that failed, and required cases that were skipped.
    pub failed: Vec<String>,
}

impl CaseTally {
    /// Adds the results of another run.
    pub fn add(&mut self, other: Self) {
        self.ran += other.ran;
        self.skipped.extend(other.skipped);
        self.failed.extend(other.failed);
    }
}

/// Runs each of `cases` in a new world made by `world`. A case that does not apply or cannot run in this
/// world is printed as skipped, and fails if `HEADWORKS_REQUIRE` names it.
pub fn run_cases<W: World>(
    name: &str,
    cases: impl IntoIterator<Item = Case>,
    mut world: impl FnMut() -> W,
) -> CaseTally {
    let mut tally = CaseTally::default();
    let skip = |tally: &mut CaseTally, case: String, why: &str| {
        println!("{name}: {case} skipped: {why}");
        if testing::is_required(&case) {
            tally.failed.push(case.clone());
        }
        tally.skipped.push(case);
    };
    for case in cases {
        let mut world = world();
        if case.kills && !world.can_kill() {
            skip(
                &mut tally,
                case.name,
                "hosts of this world cannot be killed",
            );
            continue;
        }
        let start = world.now();
        let mut cx = CaseContext::for_case(&mut world, &case.name);
        let verdict = (case.run)(&mut cx);
        let verdict = cx.finish(verdict);
        let skipped = cx.skipped().map(str::to_owned);
        for unseen in cx.unseen_deviations() {
            println!(
                "{name}: {}: known deviation of another kernel did not show: {unseen}",
                case.name
            );
        }
        for section in cx.left_out() {
            println!("{name}: {}: section left out: {section}", case.name);
        }
        let took = cx.now().since(start).nanos() / 1_000_000;
        match (verdict, skipped) {
            (Ok(()), None) => {
                println!("{name}: {} ok, {took} ms", case.name);
                tally.ran += 1;
            }
            (Ok(()), Some(why)) => skip(&mut tally, case.name, &why),
            (Err(seen), _) => {
                println!("{name}: {} FAILED after {took} ms: {seen}", case.name);
                tally.failed.push(case.name);
            }
        }
    }
    tally
}
