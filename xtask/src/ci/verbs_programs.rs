//! Runs programs of others on the drop-in libibverbs and compares the results with the table (`cargo xtask verbs-programs --check`).

use super::{Ended, Run};
use crate::verbs_programs;

/// Builds what the step `tests` has built, so that this builds almost nothing.
const BUILD: [&str; 7] = [
    "build",
    "--workspace",
    "--all-features",
    "--locked",
    "--lib",
    "--bin",
    "headworks",
];

/// Runs the step.
pub(super) fn run(_: &mut Run) -> Result<Ended, String> {
    let missing = verbs_programs::build_and_check(&BUILD)?;
    Ok(match missing.is_empty() {
        true => Ended::Passed,
        false => Ended::Skipped(format!(
            "{}; the other programs work",
            verbs_programs::install(&missing)
        )),
    })
}
