//! `headworks top` and `headworks devices`: what they show, and that watching disturbs no process.

use std::io::Read;
use std::process::Stdio;

use rustix::process::Signal;

use crate::test_env::{CommandProcess, TestEnv, until};

/// Runs a command that must succeed, and returns its standard output.
pub(crate) fn stdout_of(fabric: &TestEnv, args: &[&str]) -> String {
    let mut side = CommandProcess::start(fabric.headworks(args).stdout(Stdio::piped()));
    let mut text = String::new();
    let mut out = side.0.stdout.take().expect("a pipe");
    out.read_to_string(&mut text).expect("reads");
    side.expect_exit(0);
    text
}

#[test]
fn top_reports_no_process_and_creates_no_registry() {
    let fabric = TestEnv::new();
    let text = stdout_of(&fabric, &["top"]);
    assert_eq!(text, "no process has soft open\n");
    assert!(!fabric.registry().exists());
    let text = stdout_of(&fabric, &["top", "--json", "--device", "soft:h9"]);
    assert_eq!(text, "{\"contexts\":[],\"unreadable\":[]}\n");
    assert!(!fabric.registry().exists());
}

#[test]
fn a_live_process_is_seen_until_it_is_killed() {
    let fabric = TestEnv::new();
    let listener = fabric.listen(&[], "a", Stdio::piped(), Stdio::null());
    let mut connector = fabric.connect(&[], "a", Stdio::piped(), Stdio::null());
    let pids = [&listener, &connector].map(|side| format!("pid {} headworks", side.0.id()));
    until("both with a connected queue pair", || {
        let text = stdout_of(&fabric, &["top", "--qps"]);
        pids.iter().all(|pid| text.contains(pid)) && text.matches(" RTS ").count() >= 2
    });
    let line = stdout_of(
        &fabric,
        &["top", "--json", "--count", "2", "--interval", "0.1"],
    );
    assert_eq!(line.lines().count(), 2);
    assert!(line.contains("\"state\":\"RTS\"") && line.contains("\"requests_per_s\":0.0"));
    assert!(stdout_of(&fabric, &["top", "--device", "soft:h9"]).contains("no process"));
    // Neither process was disturbed. A killed one disappears at once.
    connector.0.kill().expect("kills");
    connector.wait();
    assert!(!stdout_of(&fabric, &["top"]).contains(&pids[1]));
    drop((listener, connector));
    fabric.is_clean_after_next_user();
}

#[test]
fn wrong_devices_and_numbers_are_one_line() {
    let fabric = TestEnv::new();
    for (args, says) in [
        (&["--device", "sim"][..], "soft devices only, not \"sim\""),
        (&["--device", "soft,hostile"], "soft or soft:HOST"),
        (&["--interval", "0"], "seconds, 0.1 to 3600"),
        (&["--interval", "-1"], "seconds, 0.1 to 3600"),
        (&["--interval", "nan"], "seconds, 0.1 to 3600"),
        (&["--count", "0"], "--count"),
        (&["--qps", "x"], "--qps"),
    ] {
        let all: Vec<_> = std::iter::once("top").chain(args.iter().copied()).collect();
        let mut side = CommandProcess::start(&mut fabric.headworks(&all));
        let complaint = side.expect_exit(2);
        assert!(complaint.contains(says), "{args:?}: {complaint}");
    }
    assert!(!fabric.registry().exists());
}

#[test]
fn an_interrupt_and_a_closed_output_end_it() {
    let fabric = TestEnv::new();
    let endless = ["top", "--count", "1000000", "--interval", "3600"];
    let mut side = CommandProcess::start(fabric.headworks(&endless).stdout(Stdio::piped()));
    let mut first = [0; 6];
    let mut out = side.0.stdout.take().expect("a pipe");
    out.read_exact(&mut first).expect("the first sample");
    side.signal(Signal::INT);
    assert_eq!(side.wait().code(), Some(130));
    assert_eq!(side.stderr_line(), "headworks: interrupted\n");
    let again = ["top", "--count", "1000000", "--interval", "0.1"];
    let mut side = CommandProcess::start(fabric.headworks(&again).stdout(Stdio::piped()));
    drop(side.0.stdout.take());
    side.expect_exit(0);
}

#[test]
fn devices_say_all_their_limits_and_declarations() {
    let fabric = TestEnv::new();
    let text = stdout_of(&fabric, &["devices", "-v"]);
    let line = stdout_of(&fabric, &["devices", "--json"]);
    for name in [
        "max_qp",
        "max_qp_wr",
        "max_sge",
        "max_inline",
        "max_cq",
        "max_cqe",
        "max_mr",
        "max_ah",
        "max_srq",
        "max_srq_wr",
        "max_rd_atomic",
        "max_message",
        "ordered_between_writes",
        "atomic_aligned_8",
        "in_order_within_write",
        "gid",
        "lid",
        "mtu",
        "numa_node",
    ] {
        assert!(text.contains(&format!("    {name} ")), "{name}: {text}");
        assert!(line.contains(&format!("\"{name}\":")), "{name}: {line}");
    }
}
