//! `headworks verbs`: unmodified verbs programs on software RNICs.

use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::c_library::{built_library, there_is};
use crate::test_env::{CommandProcess, TestEnv, until};

/// Whether the library is built, which `headworks verbs` finds beside the command.
fn is_built() -> bool {
    built_library("headworks-libibverbs", "libibverbs.so").is_some()
}

/// The command that runs `program` with the library, whose output is kept.
fn verbs(fabric: &TestEnv, options: &[&str], program: &[&str]) -> Command {
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

#[test]
fn two_programs_reach_each_other_and_leave_nothing() {
    if !is_built() || !there_is("ibv_rc_pingpong") {
        return;
    }
    let fabric = TestEnv::new();
    let port = {
        let free = TcpListener::bind(("127.0.0.1", 0)).expect("binds");
        free.local_addr().expect("an address").port().to_string()
    };
    let words = ["ibv_rc_pingpong", "-g", "1", "-c", "-p", &port];
    let mut server = CommandProcess::start(&mut verbs(&fabric, &[], &words));
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
    let said = good(&fabric, &[], &client);
    assert!(said.contains("1000 iters"), "{said}");
    server.expect_exit(0);
    fabric.is_clean();
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
    std::fs::copy(env!("CARGO_BIN_EXE_headworks"), &alone).expect("copies");
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
