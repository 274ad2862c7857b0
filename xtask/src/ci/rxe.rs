//! The suites that speak verbs, on the kernel's own devices: in a machine for that (`cargo xtask rxe`).

use std::path::Path;

use super::unprivileged::{Suite, suites};
use super::{Ended, Run};
use crate::rxe;

/// What runs inside, in this order. A minute each at most, but for the conformance suite
/// and rings.
const GUEST_JOBS: &[GuestJob] = &[
    test("ibverbs", "devices", AS_DECLARED, ""),
    test("conformance", "ibv", AS_DECLARED, IN_ONE_PROCESS),
    test("conformance", "ibv", KILL_CASES, "between_processes"),
    test("conformance", "differential", FEW_PROGRAMS, "of_libibverbs"),
    // Cursors by WRITE with immediate, as rxe is declared; and where even the order of WRITEs is denied.
    test("ring", "rings", AS_DECLARED, NOT_SOFT),
    test("ring", "rings", UNORDERED, "oracle threads"),
    // Cursors and laps that are polled for.
    test("ring", "rings", POLLED, NOT_SOFT),
    test("baselines", "paper_baselines", POLLED, NOT_SOFT),
    test("headworks", "pipe", AS_DECLARED, ""),
    test("headworks", "rdma", AS_DECLARED, "--test-threads=1"),
    test(
        "cli",
        "command",
        AS_DECLARED,
        "pipe_between_hosts:: pipe_over_rdma:: --test-threads=1",
    ),
    test("cli", "command", AS_DECLARED, DAEMON_TESTS),
    headworks("demo --device ibv:rxe0 --peer-device ibv:rxe1"),
    headworks(
        "experiment run rxe-ring --quick --device ibv:rxe0 --peer-device ibv:rxe1 --out /tmp/results",
    ),
];
/// How long the machine may take: it is emulated, and slow.
const SECONDS: u32 = 1200;

/// The two devices as they declare themselves.
const AS_DECLARED: &str = "HEADWORKS_IBV='ibv:rxe0;ibv:rxe1'";
/// Hosts that are processes are slow to start there: the cases that kill some, and a few of the others.
const KILL_CASES: &str = "HEADWORKS_IBV='ibv:rxe0;ibv:rxe1' \
                   HEADWORKS_CASE=deaths::,killed,transfers::,teardown::peer,matrix::remote_bad_key";
/// Of the programs that both devices run, the first ones: each takes seconds.
const FEW_PROGRAMS: &str = "HEADWORKS_IBV='ibv:rxe0;ibv:rxe1' PROPTEST_CASES=15";
/// All cases, where hosts need no process of their own.
const IN_ONE_PROCESS: &str = "--test-threads=1 between_two_devices on_one_device";
/// The two devices without the only promise that rxe makes.
const UNORDERED: &str =
    "HEADWORKS_IBV='ibv:rxe0,ordered_between_writes=no;ibv:rxe1,ordered_between_writes=no'";
/// The same with what rxe keeps in this machine, whose kernel copies by words: all that a ring can use.
const POLLED: &str = "HEADWORKS_IBV='ibv:rxe0,atomic_aligned_8=yes,in_order_within_write=all;\
                      ibv:rxe1,atomic_aligned_8=yes,in_order_within_write=all'";
/// Leaves out what is about soft hosts: those that misbehave, and what is done to their memory.
const NOT_SOFT: &str = "--test-threads=1 --skip hostile:: --skip unruly --skip killed:: \
                        --skip group_peers:: --skip whatever_the_device_does \
                        --skip a_device_that_orders_nothing --skip full_until_completions_come \
                        --skip completions_are_late";

/// Daemons and their applications: streams, messages, memory of others', what is polled, who is killed, who means no
/// good, and of C what goes ways of its own. Left out is what opens no device, or the soft one by name: the unit for
/// systemd, what the service manager is told, files and command lines.
const DAEMON_TESTS: &str = "daemon:: daemon_operation:: daemon_polling:: daemon_remote_memory:: daemon_datagrams:: kills:: hostile_clients:: \
                       c_library::c_uses_memory c_library::c_sends_and_receives --test-threads=1 \
                       --skip the_unit_is_one --skip the_service_manager --skip a_file_says \
                       --skip what_cannot_be_served";

/// One thing that runs inside.
#[derive(Clone, Copy)]
enum GuestJob {
    /// A program of a package's tests, with these variables.
    Test {
        folder: &'static str,
        program: &'static str,
        variables: &'static str,
        args: &'static str,
    },
    /// The program that users have, with these arguments.
    Headworks(&'static str),
}

const fn test(
    folder: &'static str,
    program: &'static str,
    variables: &'static str,
    args: &'static str,
) -> GuestJob {
    GuestJob::Test {
        folder,
        program,
        variables,
        args,
    }
}

const fn headworks(args: &'static str) -> GuestJob {
    GuestJob::Headworks(args)
}

/// The step.
pub(super) fn run(run: &mut Run) -> Result<Ended, String> {
    if let Err(why) = rxe::missing_programs() {
        let required = std::env::var("HEADWORKS_REQUIRE").unwrap_or_default();
        return match required.split(',').any(|word| word == "rxe") {
            true => Err(format!("rxe is required: {why}")),
            false => Ok(Ended::Skipped(why)),
        };
    }
    let suites = suites(run)?;
    let script = script(&suites)?;
    // Inside, nothing that needs a device may be skipped.
    let variables = [("HEADWORKS_REQUIRE", "ibv"), ("RUST_BACKTRACE", "1")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let status = rxe::run_script(&script, SECONDS, &variables, |command| {
        run.pass_on_quietly(command).map(|(status, _)| status)
    })?;
    match status {
        0 => Ok(Ended::Passed),
        _ => Err("some of it failed: see the lines that begin with \"rxe:\"".to_owned()),
    }
}

/// A script that runs all of [`GUEST_JOBS`], whichever of them fails.
fn script(suites: &[Suite]) -> Result<String, String> {
    let mut script = "failed=0\n\
                      began=$(date +%s)\n\
                      ended() { echo \"rxe: $1: $2, $(($(date +%s) - began)) s after the beginning\"; }\n"
        .to_owned();
    for inside in GUEST_JOBS {
        let (what, line) = match *inside {
            GuestJob::Test {
                folder,
                program,
                variables,
                args,
            } => {
                let suite = find(suites, folder, program)?;
                let [at, path] = [&suite.folder, &suite.program].map(|path| word(path));
                let line = format!("cd {at} && {variables} {path} {args}");
                let on = variables.replace('\'', "");
                (format!("{on} {folder}/{program} {args}"), line)
            }
            GuestJob::Headworks(args) => {
                // Beside the folder of the test programs, as cargo builds it for those of its package.
                let command = find(suites, "cli", "command")?;
                let target = command.program.parent().and_then(Path::parent);
                let target = target.ok_or("a test program in no folder")?;
                let program = target.join("headworks");
                let line = format!("{} {args}", word(&program));
                (format!("headworks {args}"), line)
            }
        };
        script.push_str(&format!(
            "if ({line}); then ended '{what}' passed; else failed=1; ended '{what}' FAILED; fi\n"
        ));
    }
    script.push_str("exit $failed\n");
    Ok(script)
}

/// A path as one word of a shell.
fn word(path: &Path) -> String {
    rxe::quoted(&path.display().to_string())
}

fn find<'s>(suites: &'s [Suite], folder: &str, program: &str) -> Result<&'s Suite, String> {
    let is_it = |suite: &&Suite| {
        let name = suite.program.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        // Cargo adds a hash.
        suite.folder.ends_with(Path::new("crates").join(folder))
            && name
                .rsplit_once('-')
                .is_some_and(|(stem, _)| stem == program)
    };
    let suite = suites.iter().find(is_it);
    suite.ok_or_else(|| format!("no program {program} of crates/{folder}"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn suite(program: &str, folder: &str) -> Suite {
        Suite {
            program: format!("/t/debug/deps/{program}").into(),
            folder: folder.into(),
        }
    }

    fn all() -> Vec<Suite> {
        vec![
            suite("devices-11", "/w/crates/cli"),
            suite("devices-22", "/w/crates/ibverbs"),
            suite("ibv-33", "/w/crates/conformance"),
            suite("differential-99", "/w/crates/conformance"),
            suite("rings-44", "/w/crates/ring"),
            suite("paper_baselines-55", "/w/crates/baselines"),
            suite("pipe-66", "/w/crates/headworks"),
            suite("rdma-88", "/w/crates/headworks"),
            suite("command-77", "/w/crates/cli"),
        ]
    }

    #[test]
    fn the_programs_are_found_in_their_packages() {
        let mut suites = all();
        let script = script(&suites).unwrap();
        for program in ["devices-22", "ibv-33", "rings-44", "paper_baselines-55"] {
            assert!(script.contains(&format!("'/t/debug/deps/{program}'")));
        }
        assert!(!script.contains("devices-11"));
        assert!(script.contains("'/t/debug/headworks' demo "));
        suites.remove(2);
        assert!(super::script(&suites).unwrap_err().contains("conformance"));
    }

    #[test]
    fn whatever_fails_the_rest_runs_and_it_fails() {
        let script = script(&all()).unwrap();
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        // None of those programs is there.
        assert_eq!(said.matches("FAILED").count(), GUEST_JOBS.len(), "{said}");
        assert_eq!(output.status.code(), Some(1));
    }
}
