//! `headworks verbs`: unmodified verbs programs on software RNICs.

use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use headworks_runtime::testing::copy_program;
use rustix::process::Signal;

use crate::c_library::{built_library, there_is};
use crate::test_env::{CommandProcess, TestEnv, until};

/// Whether the library is built, which `headworks verbs` finds beside the command.
pub(crate) fn is_built() -> bool {
    built_library("headworks-libibverbs", "libibverbs.so").is_some()
}

/// The command that runs `program` with the library, whose output is kept.
pub(crate) fn verbs(fabric: &TestEnv, options: &[&str], program: &[&str]) -> Command {
    let mut args = vec!["verbs"];
    args.extend(options);
    args.push("--");
    args.extend(program);
    let mut command = fabric.headworks(&args);
    command.stdout(Stdio::piped());
    command
}

/// Standard output of a program that must succeed.
fn good(fabric: &TestEnv, options: &[&str], program: &[&str]) -> String {
    let done = verbs(fabric, options, program).output().expect("runs");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success(),
        "{program:?}: {}: {errors}",
        done.status
    );
    String::from_utf8(done.stdout).expect("text")
}

fn refused(command: &mut Command, says: &str) {
    let complaint = CommandProcess::start(command).expect_exit(2);
    assert!(complaint.contains(says), "{complaint}");
}

#[test]
fn a_program_sees_the_devices_that_the_options_name() {
    if !is_built() || !there_is("ibv_devices") {
        return;
    }
    let fabric = TestEnv::new();
    let listed = good(&fabric, &[], &["ibv_devices"]);
    assert!(listed.contains("headworks_0"), "{listed}");
    let listed = good(
        &fabric,
        &["--name", "mlx5_9", "--devices", "2"],
        &["ibv_devices"],
    );
    assert!(
        listed.contains("mlx5_9") && listed.contains("mlx5_10"),
        "{listed}"
    );
    let described = good(&fabric, &["--link", "infiniband"], &["ibv_devinfo"]);
    for expected in ["PORT_ACTIVE", "InfiniBand"] {
        assert!(described.contains(expected), "{described}");
    }
}

/// Runs `ibv_rc_pingpong` with itself. The client has these options of `headworks verbs`. Returns the exit code of both and what the client
/// said.
fn pingpong(fabric: &TestEnv, options: &[&str]) -> ([Option<i32>; 2], Output) {
    let port = {
        let free = TcpListener::bind(("127.0.0.1", 0)).expect("binds");
        free.local_addr().expect("an address").port().to_string()
    };
    let words = ["ibv_rc_pingpong", "-g", "1", "-c", "-p", &port];
    let mut server = CommandProcess::start(&mut verbs(fabric, &[], &words));
    let wanted = format!(":{:04X} ", port.parse::<u16>().expect("a port"));
    until("the server", || {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
        let text: String = tables
            .iter()
            .map(|table| std::fs::read_to_string(table).unwrap_or_default())
            .collect();
        text.lines()
            .any(|line| line.contains(&wanted) && line.contains(" 0A "))
    });
    let client = [&words[..], &["localhost"]].concat();
    let client = verbs(fabric, options, &client).output().expect("runs");
    ([server.wait().code(), client.status.code()], client)
}

#[test]
fn two_programs_reach_each_other_and_leave_nothing() {
    if !is_built() || !there_is("ibv_rc_pingpong") {
        return;
    }
    let fabric = TestEnv::new();
    let (codes, client) = pingpong(&fabric, &[]);
    let said = String::from_utf8_lossy(&client.stdout);
    assert!(said.contains("1000 iters"), "{said}");
    assert_eq!((codes, client.stderr.is_empty()), ([Some(0); 2], true));
    fabric.is_clean();
}

#[test]
fn a_fault_fails_a_request_of_a_program() {
    if !is_built() || !there_is("ibv_rc_pingpong") {
        return;
    }
    let fabric = TestEnv::new();
    let (codes, client) = pingpong(&fabric, &["--fault", "rem_op@op=send,after=100"]);
    let errors = String::from_utf8_lossy(&client.stderr);
    assert!(errors.contains("remote operation error"), "{errors}");
    assert!(
        errors.contains("faults injected: 1, with seed 1"),
        "{errors}"
    );
    assert_eq!(codes, [Some(1); 2]);
}

#[test]
fn the_same_seed_has_the_same_faults() {
    if !is_built() || !there_is("ibv_rc_pingpong") {
        return;
    }
    let fabric = TestEnv::new();
    let plan = fabric.file("plan.toml");
    let text =
        "seed = 7\n[[fault]]\nkind = 'slow'\nrate = '20%'\nus = 10\n[[fault]]\nkind = 'scatter'\n";
    std::fs::write(&plan, text).expect("writes");
    let plan = plan.to_str().expect("a path");
    let summary = |options: &[&str]| {
        let (codes, client) = pingpong(&fabric, options);
        let errors = String::from_utf8(client.stderr).expect("text");
        assert_eq!(codes, [Some(0); 2], "{errors}");
        let line = errors.lines().find(|line| line.contains("digest"));
        line.expect("a summary").to_owned()
    };
    let first = summary(&["--fault-plan", plan]);
    assert!(first.contains("with seed 7"), "{first}");
    let on_command_line = [
        "--fault",
        "slow=20%@us=10",
        "--fault",
        "scatter",
        "--seed",
        "7",
    ];
    assert_eq!(first, summary(&on_command_line));
    assert_ne!(first, summary(&["--fault-plan", plan, "--seed", "8"]));
}

#[test]
fn exit_code_and_signals_are_those_of_the_program() {
    if !is_built() {
        return;
    }
    let fabric = TestEnv::new();
    let code = verbs(&fabric, &[], &["sh", "-c", "exit 7"]).status();
    assert_eq!(code.expect("runs").code(), Some(7));
    let killed = verbs(&fabric, &[], &["sh", "-c", "kill -9 $$"]).status();
    assert_eq!(killed.expect("runs").signal(), Some(Signal::KILL.as_raw()));
    // The program is this process: no other waits for it.
    let mut sleeper = CommandProcess::start(&mut verbs(&fabric, &[], &["sleep", "1000"]));
    let comm = format!("/proc/{}/comm", sleeper.pid().as_raw_nonzero());
    until("the program", || {
        std::fs::read_to_string(&comm).is_ok_and(|name| name == "sleep\n")
    });
    sleeper.signal(Signal::TERM);
    assert_eq!(sleeper.wait().signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn what_cannot_run_is_one_line() {
    if !is_built() {
        return;
    }
    let fabric = TestEnv::new();
    refused(
        &mut verbs(&fabric, &[], &["no-such-program"]),
        "no-such-program in PATH",
    );
    refused(
        &mut verbs(&fabric, &[], &["/no/such"]),
        "there is no program /no/such",
    );
    refused(
        &mut verbs(&fabric, &["--name", "a b"], &["true"]),
        "60 letters",
    );
    refused(
        &mut verbs(&fabric, &["--devices", "0"], &["true"]),
        "1..=64",
    );
    refused(
        &mut verbs(&fabric, &["--link", "x"], &["true"]),
        "infiniband",
    );
    refused(
        &mut verbs(&fabric, &["--fault", "what"], &["true"]),
        "there are rnr, loss",
    );
    refused(
        &mut verbs(&fabric, &["--fault", "rnr=0%"], &["true"]),
        "100, or 1/N",
    );
    refused(
        &mut verbs(&fabric, &["--seed", "7"], &["true"]),
        "give --fault",
    );
    refused(
        &mut verbs(&fabric, &["--fault-plan", "/no/such"], &["true"]),
        "fault plan /no/such",
    );
    refused(&mut fabric.headworks(&["verbs"]), "PROGRAM");
    let mut absent = verbs(&fabric, &[], &["true"]);
    refused(
        absent.env("HEADWORKS_LIBIBVERBS", "/no/such"),
        "there is no such file",
    );
    let spaced = fabric.file("a b.so");
    std::fs::write(&spaced, "").expect("writes");
    let mut command = verbs(&fabric, &[], &["true"]);
    refused(
        command.env("HEADWORKS_LIBIBVERBS", &spaced),
        "space or colon",
    );
    // Alone in a folder, the command does not find the library.
    let alone = fabric.file("headworks");
    copy_program(Path::new(env!("CARGO_BIN_EXE_headworks")), &alone);
    let mut lost = Command::new(alone);
    lost.args(["verbs", "--", "true"]).stderr(Stdio::piped());
    refused(&mut lost, "cargo build -p headworks-libibverbs");
    if there_is("cc") {
        let (source, program) = (fabric.file("static.c"), fabric.file("static"));
        std::fs::write(&source, "int main(void) { return 0; }\n").expect("writes");
        let mut cc = Command::new("cc");
        let compiled = cc
            .arg("-static")
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .output();
        if compiled.is_ok_and(|compiled| compiled.status.success()) {
            let program = program.to_str().expect("a path");
            refused(&mut verbs(&fabric, &[], &[program]), "is linked statically");
        }
    }
}
