//! One side of a pipe is killed or interrupted: what the other side reports, and what is left behind.

use std::process::Stdio;
use std::time::{Duration, Instant};

use headworks::net::{Listener, WaitLimit, clock, dial};
use headworks::verbs;
use rustix::process::Signal;

use crate::test_env::{CommandProcess, NOTICE, TestEnv, bytes, create, open, sleep_for, until};
use crate::top::stdout_of;

/// Number of rounds of each kind.
fn rounds() -> u64 {
    if std::env::var_os("HEADWORKS_LONG").is_some() {
        50
    } else {
        10
    }
}

/// Starts a pair that streams endlessly or, if `idle`, whose sender has nothing to send.
fn pair(fabric: &TestEnv, idle: bool) -> (CommandProcess, CommandProcess) {
    let listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    let source = if idle {
        Stdio::piped()
    } else {
        open("/dev/zero".as_ref())
    };
    let connector = fabric.connect(&[], "a", source, Stdio::null());
    let socket = fabric.registry().join("n.a");
    until("the connection", || !socket.exists());
    (listener, connector)
}

fn killed(idle: bool) {
    let fabric = TestEnv::new();
    let mut worst = Duration::ZERO;
    for round in 0..rounds() {
        let (listener, connector) = pair(&fabric, idle);
        if idle {
            until("sleep", || connector.is_asleep() && listener.is_asleep());
        }
        let (mut victim, mut survivor) = match round % 2 {
            0 => (listener, connector),
            _ => (connector, listener),
        };
        // The kill comes at a different moment in each round; the result must not depend on it.
        sleep_for(Duration::from_micros(round * 7919 % 20_000));
        victim.signal(Signal::KILL);
        let began = Instant::now();
        survivor.expect_exit(1);
        worst = worst.max(began.elapsed());
        victim.wait();
        fabric.is_clean_after_next_user();
    }
    println!("the survivor knew after at most {worst:?} (limit {NOTICE:?}), idle {idle}");
    assert!(worst < NOTICE, "noticed after {worst:?}");
}

#[test]
fn the_survivor_of_a_kill_while_streaming_fails() {
    killed(false);
}

#[test]
fn the_survivor_of_a_kill_while_asleep_fails() {
    killed(true);
}

#[test]
fn ctrl_c_on_either_side_leaves_nothing() {
    for (idle, first) in [(true, true), (true, false), (false, true), (false, false)] {
        let fabric = TestEnv::new();
        let (listener, connector) = pair(&fabric, idle);
        if idle {
            until("sleep", || connector.is_asleep() && listener.is_asleep());
        }
        let (mut victim, mut other) = match first {
            true => (listener, connector),
            false => (connector, listener),
        };
        victim.signal(Signal::INT);
        victim.expect_exit(130);
        let complaint = other.expect_exit(1);
        assert!(complaint.contains("the other side"), "{complaint}");
        fabric.is_clean();
    }
}

#[test]
fn ctrl_c_ends_a_listener_that_waits() {
    for signal in [Signal::INT, Signal::TERM] {
        let fabric = TestEnv::new();
        let mut listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
        listener.signal(signal);
        listener.expect_exit(130);
        fabric.is_clean();
    }
}

#[test]
fn ctrl_c_ends_a_connector_that_waits_for_a_listener() {
    let fabric = TestEnv::new();
    let mut connector = fabric.connect(&[], "a", Stdio::null(), Stdio::null());
    let has_opened = |name: std::ffi::OsString| name.to_string_lossy().starts_with("c.");
    until("its device", || {
        let entries = std::fs::read_dir(fabric.registry());
        entries.is_ok_and(|dir| dir.flatten().any(|entry| has_opened(entry.file_name())))
    });
    connector.signal(Signal::INT);
    connector.expect_exit(130);
    fabric.is_clean();
}

#[test]
fn ctrl_c_ends_either_side_while_the_other_says_nothing() {
    let fabric = TestEnv::new();
    let until = || WaitLimit::deadline(clock::now() + verbs::Duration::from_secs(80));
    let silent = Listener::bind(&fabric.open_registry(), "a").expect("listens");
    let mut connector = fabric.connect(&[], "a", Stdio::null(), Stdio::null());
    let mut line = silent.accept(until()).expect("a caller");
    line.recv_control_wait(until()).expect("a greeting");
    connector.signal(Signal::INT);
    connector.expect_exit(130);
    drop((line, silent));
    fabric.is_clean();

    let mut listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    let line = dial(&fabric.open_registry(), "a").expect("a listener");
    listener.signal(Signal::INT);
    listener.expect_exit(130);
    drop(line);
    fabric.is_clean();
}

/// Returns a fabric whose programs start with the default action for SIGHUP, even if these tests run under
/// `nohup`.
fn unshielded() -> TestEnv {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.expect("a mask").trim(), 16).expect("a mask");
    match ignored & 1 {
        0 => TestEnv::new(),
        _ => TestEnv::new().with_launcher(&["env", "--default-signal=HUP"]),
    }
}

#[test]
fn a_hang_up_is_as_good_as_ctrl_c() {
    let fabric = unshielded();
    let mut listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    listener.signal(Signal::HUP);
    listener.expect_exit(130);
    fabric.is_clean();
    let (mut listener, mut connector) = pair(&fabric, true);
    connector.signal(Signal::HUP);
    connector.expect_exit(130);
    listener.expect_exit(1);
    fabric.is_clean();
}

#[test]
fn a_hang_up_that_nohup_ignores_is_ignored() {
    let fabric = TestEnv::new().with_launcher(&["sh", "-c", "trap '' HUP; exec \"$0\" \"$@\""]);
    let mut listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    listener.signal(Signal::HUP);
    let mut connector = fabric.connect(&[], "a", Stdio::null(), Stdio::null());
    connector.expect_exit(0);
    listener.expect_exit(0);
    fabric.is_clean();
}

#[test]
fn a_queue_pair_that_the_device_kills_ends_both_sides_in_one_line() {
    let mut failed = 0;
    for seed in 1..=6 {
        let fabric = TestEnv::new();
        let (from, to, sent) = (fabric.file("from"), fabric.file("to"), bytes(30_000_000));
        std::fs::write(&from, &sent).expect("writes");
        let device = |host: u8| format!("soft:h{host},hostile,seed={seed},kills=200");
        let (ours, theirs) = (device(1), device(2));
        let args = ["--device", ours.as_str()];
        let mut listener = fabric.listen(&args, "a", Stdio::null(), create(&to));
        let args = ["--device", theirs.as_str()];
        let mut connector = fabric.connect(&args, "a", open(&from), Stdio::null());
        let codes = [&mut connector, &mut listener].map(|side| side.wait().code());
        let got = std::fs::read(&to).expect("reads");
        assert!(sent.starts_with(&got), "seed {seed}: other bytes");
        match codes {
            [Some(0), Some(0)] => assert_eq!(got.len(), sent.len()),
            [Some(1), Some(1)] => {
                failed += 1;
                for side in [&mut connector, &mut listener] {
                    let said = side.stderr_line();
                    println!("{said}");
                    assert_eq!(said.trim_end().lines().count(), 1, "seed {seed}: {said}");
                }
            }
            other => panic!("seed {seed}: exit codes {other:?}"),
        }
        fabric.is_clean();
    }
    assert!(failed > 0, "not one of 6 pipes died");
}

#[test]
fn a_kill_at_the_stream_end_fails_both_ends() {
    // The only message is the end of the stream. With these seeds the device kills the queue pair while it is
    // being sent, in two different ways.
    for (seed, says) in [
        (2, "the ring is broken: device failure"),
        (1, "the connection broke before everything was delivered"),
    ] {
        let fabric = TestEnv::new();
        let mut listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
        let device = format!("soft:h2,hostile,seed={seed},kills=1");
        let args = ["--device", &device];
        let mut connector = fabric.connect(&args, "a", Stdio::piped(), Stdio::null());
        // A receiver that sleeps on its ring has finished connecting.
        until("a receiver that sleeps", || {
            stdout_of(&fabric, &["top", "--json"]).contains("\"armed\":true")
        });
        // A stopped receiver does not notice the failure, as a receiver on another host would not.
        listener.signal(Signal::STOP);
        until("a stop", || listener.stat(3) == "T");
        drop(connector.0.stdin.take());
        let complaint = connector.expect_exit(1);
        assert!(complaint.contains(says), "{complaint}");
        listener.signal(Signal::CONT);
        let complaint = listener.expect_exit(1);
        assert!(complaint.contains("the other side stopped"), "{complaint}");
        fabric.is_clean();
    }
}
