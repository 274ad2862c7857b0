//! The suites that speak verbs, on the kernel's own devices: in a machine for that (`cargo xtask rxe`).

use std::path::Path;
use std::process::Command;

use super::unprivileged::{Suite, suites};
use super::{Ended, Run};
use crate::rxe;

/// What runs inside: the folder of a package, a program of its tests, and what that is told.
const INSIDE: &[(&str, &str, &[&str])] = &[
    ("ibverbs", "devices", &[]),
    ("conformance", "ibv", &["--test-threads=1"]),
];
/// How long the machine may take: it is emulated, and slow.
const SECONDS: u32 = 600;

/// The step.
pub(super) fn run(run: &mut Run) -> Result<Ended, String> {
    if let Err(why) = rxe::missing() {
        let required = std::env::var("HEADWORKS_REQUIRE").unwrap_or_default();
        return match required.split(',').any(|word| word == "rxe") {
            true => Err(format!("rxe is required: {why}")),
            false => Ok(Ended::Skipped(why)),
        };
    }
    let suites = suites(run)?;
    let script = script(&suites)?;
    let this = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut command = Command::new(this);
    command
        .args(["rxe", "--seconds", &SECONDS.to_string(), "--"])
        .args(["sh", "-c", &script])
        .current_dir(&run.root)
        // Inside, nothing that needs a device may be skipped.
        .env("HEADWORKS_REQUIRE", "ibv")
        .env("HEADWORKS_IBV", "ibv:rxe0;ibv:rxe1");
    run.pass_on(&mut command)?;
    Ok(Ended::Passed)
}

/// A script that runs all of [`INSIDE`], whichever of them fails.
fn script(suites: &[Suite]) -> Result<String, String> {
    let mut script = "failed=0\n".to_owned();
    for (folder, program, args) in INSIDE {
        let is_it = |suite: &&Suite| {
            let name = suite.program.file_name().unwrap_or_default();
            let name = name.to_string_lossy();
            // Cargo adds a hash.
            suite.folder.ends_with(Path::new("crates").join(folder))
                && name
                    .rsplit_once('-')
                    .is_some_and(|(stem, _)| stem == *program)
        };
        let suite = suites.iter().find(is_it);
        let suite = suite.ok_or_else(|| format!("no program {program} of crates/{folder}"))?;
        let (folder, program) = (suite.folder.display(), suite.program.display());
        let args = args.join(" ");
        script.push_str(&format!(
            "(cd '{folder}' && '{program}' {args}) || failed=1\n"
        ));
    }
    script.push_str("exit $failed\n");
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(program: &str, folder: &str) -> Suite {
        Suite {
            program: program.into(),
            folder: folder.into(),
        }
    }

    #[test]
    fn the_programs_are_found_in_their_packages() {
        let mut suites = vec![
            suite("/t/devices-11", "/w/crates/cli"),
            suite("/t/devices-22", "/w/crates/ibverbs"),
            suite("/t/ibv-33", "/w/crates/conformance"),
        ];
        let script = script(&suites).unwrap();
        assert!(script.contains("'/t/devices-22'") && script.contains("'/t/ibv-33'"));
        assert!(!script.contains("devices-11"));
        suites.pop();
        assert!(super::script(&suites).unwrap_err().contains("conformance"));
    }
}
