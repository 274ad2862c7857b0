//! Runs the test suites that use verbs on the kernel's own devices, in a virtual machine (`cargo xtask rxe`).

use std::path::Path;

use super::unprivileged::{Suite, suites};
use super::{Ended, Run};
use crate::rxe;

/// The jobs that run in the machine, in this order. Each takes at most a minute, except the conformance suite
/// and the daemons.
const GUEST_JOBS: &[GuestJob] = &[
    test("ibverbs", "devices", AS_DECLARED, ""),
    test("conformance", "ibv", AS_DECLARED, IN_ONE_PROCESS),
    test("conformance", "ibv", KILL_CASES, "between_processes"),
    test("conformance", "differential", FEW_PROGRAMS, "of_libibverbs"),
    // Cursors by WRITE with immediate: once as rxe declares itself, once without even the order of WRITEs. Tests that do not
    // depend on the way of the cursors run once, below.
    test("ring", "rings", AS_DECLARED, CURSORS),
    test("ring", "rings", UNORDERED, "oracle threads"),
    // Cursors and laps that are polled in memory.
    test("ring", "rings", POLLED, NOT_SOFT),
    test("baselines", "paper_baselines", POLLED, NOT_SOFT),
    // Designs that rely on more than rxe declares are refused; then all of them.
    test("patterns", "designs", AS_DECLARED, "rdma_devices"),
    test("patterns", "designs", POLLED, "rdma_devices"),
    test("patterns", "dispatchers", POLLED, "rdma_devices"),
    test("headworks", "pipe", AS_DECLARED, ""),
    test("headworks", "rdma", AS_DECLARED, "--test-threads=1"),
    test(
        "cli",
        "command",
        AS_DECLARED,
        "pipe_between_hosts:: pipe_over_rdma:: on_rdma_devices --test-threads=1",
    ),
    test("cli", "command", AS_DECLARED, DAEMON_TESTS),
    headworks("demo --device ibv:rxe0 --peer-device ibv:rxe1"),
    headworks(
        "experiment run rxe-ring --quick --device ibv:rxe0 --peer-device ibv:rxe1 --out /tmp/results",
    ),
];
/// Time limit of the machine, which is emulated and slow.
const SECONDS: u32 = 1500;
/// Time limit of one job. The longest takes three minutes.
const JOB_SECONDS: u32 = 500;

/// The two devices with their own promises.
const AS_DECLARED: &str = "HEADWORKS_IBV='ibv:rxe0;ibv:rxe1'";
/// The cases that kill hosts, and a few others. Hosts that are processes start slowly in the machine.
const KILL_CASES: &str = "HEADWORKS_IBV='ibv:rxe0;ibv:rxe1' \
                   HEADWORKS_CASE=deaths::,killed,transfers::,teardown::peer,matrix::remote_bad_key";
/// Only the first of the programs that both devices run, because each takes seconds.
const FEW_PROGRAMS: &str = "HEADWORKS_IBV='ibv:rxe0;ibv:rxe1' PROPTEST_CASES=15";
/// All cases in which a host needs no process of its own.
const IN_ONE_PROCESS: &str = "--test-threads=1 between_two_devices on_one_device";
/// The two devices without the order of WRITEs, the only promise that rxe makes.
const UNORDERED: &str =
    "HEADWORKS_IBV='ibv:rxe0,ordered_between_writes=no;ibv:rxe1,ordered_between_writes=no'";
/// The two devices with all promises that a ring can use. rxe keeps them in this machine, because its kernel
/// copies by words.
const POLLED: &str = "HEADWORKS_IBV='ibv:rxe0,atomic_aligned_8=yes,in_order_within_write=all;\
                      ibv:rxe1,atomic_aligned_8=yes,in_order_within_write=all'";
/// Skips tests of soft hosts: of hostile devices, and of damage to a soft host's memory.
const NOT_SOFT: &str = "--test-threads=1 --skip hostile --skip killed:: \
                        --skip group_peers:: --skip whatever_the_device_does \
                        --skip a_device_that_orders_nothing --skip full_until_completions_come \
                        --skip completions_are_late";

/// Tests of what depends on how a ring learns of cursors: the oracle's programs, concurrent ends, ends that sleep, ends in
/// other processes, and ends that die.
const CURSORS: &str = "--test-threads=1 oracle:: threads:: sleeping_ends:: between_processes:: death:: --skip hostile";

/// Tests of daemons and their applications: streams, messages, remote memory, polling, kills, hostile
/// clients, and those parts of the C library that have code of their own. Skipped are tests that open no
/// device or name `soft` themselves: the systemd unit, notifications of the service manager, files and
/// command lines. Skipped is also the second run of tests that run both ways: bytes of direct connections use no device.
const DAEMON_TESTS: &str = "daemon:: daemon_operation:: daemon_polling:: daemon_remote_memory:: daemon_datagrams:: kills:: hostile_clients:: \
                       c_library::c_uses_memory c_library::c_sends_and_receives --test-threads=1 --skip pipe_kills:: \
                       --skip ::direct --skip the_unit_is_one --skip the_service_manager --skip the_configuration_file \
                       --skip a_daemon_that_cannot_serve";

/// A job that runs in the machine.
#[derive(Clone, Copy)]
enum GuestJob {
    /// A test program of a package, run with these variables.
    Test {
        folder: &'static str,
        program: &'static str,
        variables: &'static str,
        args: &'static str,
    },
    /// The `headworks` program, run with these arguments.
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

/// Runs the step.
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
    // In the machine, no test that needs a device may be skipped.
    let variables = [("HEADWORKS_REQUIRE", "ibv"), ("RUST_BACKTRACE", "1")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let status = rxe::run_script(&script, SECONDS, &variables, |command| {
        run.pass_on_quietly(command).map(|(status, _)| status)
    });
    if status != Ok(0) {
        run.failures.keep_unfinished();
    }
    match status? {
        0 => Ok(Ended::Passed),
        _ => Err("some jobs failed: see the lines that begin with \"rxe:\"".to_owned()),
    }
}

/// A script that runs all of [`GUEST_JOBS`], also after one fails.
fn script(suites: &[Suite]) -> Result<String, String> {
    let mut script = include_str!("guest_jobs.sh").to_owned();
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
                // cargo builds it beside the folder of the test programs.
                let command = find(suites, "cli", "command")?;
                let target = command.program.parent().and_then(Path::parent);
                let target = target.ok_or("a test program in no folder")?;
                let program = target.join("headworks");
                let line = format!("{} {args}", word(&program));
                (format!("headworks {args}"), line)
            }
        };
        script.push_str(&format!(
            "if within {JOB_SECONDS} sh -c {}; then ended '{what}' passed; \
             else ended '{what}' \"FAILED with $?\"; failed=1; fi\n",
            rxe::quoted(&line),
        ));
    }
    script.push_str("exit $failed\n");
    Ok(script)
}

/// Quotes a path as one word of a shell.
fn word(path: &Path) -> String {
    rxe::quoted(&path.display().to_string())
}

fn find<'s>(suites: &'s [Suite], folder: &str, program: &str) -> Result<&'s Suite, String> {
    let suite = suites.iter().find(|suite| suite.is(folder, program));
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
            suite("designs-67", "/w/crates/patterns"),
            suite("dispatchers-69", "/w/crates/patterns"),
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
            assert!(script.contains(&format!("/t/debug/deps/{program}'")));
        }
        assert!(!script.contains("devices-11"));
        assert!(script.contains("/t/debug/headworks'\\'' demo "));
        suites.remove(2);
        assert!(super::script(&suites).unwrap_err().contains("conformance"));
    }

    #[test]
    fn whatever_fails_the_rest_runs_and_it_fails() {
        let script = script(&all()).unwrap();
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        // None of the programs exists, so every job fails.
        assert_eq!(said.matches("FAILED").count(), GUEST_JOBS.len(), "{said}");
        assert_eq!(output.status.code(), Some(1));
    }
}
