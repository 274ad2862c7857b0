//! Runs cases in a world and prints how they went.

use crate::{Bench, Case, World};

/// Which cases to run: what `HEADWORKS_CASE` names a part of, and the long ones with
/// `HEADWORKS_LONG`.
pub fn wanted() -> impl Fn(&Case) -> bool {
    let name = std::env::var("HEADWORKS_CASE").unwrap_or_default();
    let long = std::env::var_os("HEADWORKS_LONG").is_some();
    move |case| case.name.contains(&name) && (long || !case.long)
}

/// Runs each of `cases` in a world of its own that `world` makes, and returns the names of those
/// that failed. What cannot run in this world is left out; what does not apply says so, and fails if
/// `HEADWORKS_REQUIRE` names it.
pub fn run<W: World>(
    name: &str,
    cases: impl IntoIterator<Item = Case>,
    mut world: impl FnMut() -> W,
) -> Vec<String> {
    let required = std::env::var("HEADWORKS_REQUIRE").unwrap_or_default();
    let is_required = |case: &Case| required.split(',').any(|word| word == case.name);
    let mut failed = Vec::new();
    for case in cases {
        let mut world = world();
        if case.kills && !world.can_kill() {
            continue;
        }
        let start = world.now();
        let mut bench = Bench::new(&mut world);
        let verdict = (case.run)(&mut bench);
        let skipped = bench.skipped().map(str::to_owned);
        let took = bench.now().since(start).nanos() / 1_000_000;
        match (verdict, skipped) {
            (Ok(()), None) => println!("{name}: {} ok, {took} ms", case.name),
            (Ok(()), Some(why)) => {
                println!("{name}: {} skipped: {why}", case.name);
                if is_required(&case) {
                    failed.push(case.name);
                }
            }
            (Err(seen), _) => {
                println!("{name}: {} FAILED after {took} ms: {seen}", case.name);
                failed.push(case.name);
            }
        }
    }
    failed
}
