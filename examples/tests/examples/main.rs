//! Runs every example as a user does: both processes, a small workload, and wrong input.

mod test_env;
mod with_daemons;

use std::os::unix::process::CommandExt;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};

use test_env::{ExampleProcess, TestEnv, wait_until};

const EXAMPLES: [&str; 3] = ["flow_meter", "key_value", "http_server"];

#[test]
fn both_sides_do_their_work() {
    for (name, said) in [
        ("flow_meter", "20000 packets of "),
        ("key_value", "20000 requests in "),
        ("http_server", "20000 requests in "),
    ] {
        let (code, out, complaint) = TestEnv::new().run(name, &["20000"]);
        assert_eq!((code, &*complaint), (Some(0), ""), "{name}");
        assert!(out.starts_with(said), "{name}: {out}");
    }
}

#[test]
fn sides_meet_under_a_name() {
    let env = TestEnv::new();
    let listener = env.listen("http_server", &[]);
    let (code, file, complaint) = env.run("http_server", &["get", "here", "/file"]);
    assert_eq!((code, &*complaint), (Some(0), ""));
    assert_eq!(
        file.len(),
        1024 + file.bytes().filter(|byte| *byte > 127).count()
    );
    assert_eq!(listener.end().0, Some(0));
    let listener = env.listen("http_server", &[]);
    let got = env.run("http_server", &["get", "here", "/other"]);
    let complaint = "http_server: /other: 404\n".to_owned();
    assert_eq!(got, (Some(1), String::new(), complaint));
    assert_eq!(listener.end().0, Some(0));
}

/// A pcap file with two UDP packets, an ARP packet, and the beginning of another packet.
fn trace() -> Vec<u8> {
    let mut file: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let mut add = |ethertype: [u8; 2], rest: &[u8], size: u32| {
        let frame = [&[0xee; 12], &ethertype[..], rest].concat();
        for word in [9, 0, frame.len() as u32, size] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&frame);
    };
    let mut ip = vec![
        0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 2, 3, 10, 4, 5, 6,
    ];
    ip.extend_from_slice(&[0, 53, 4, 0]);
    add([8, 0], &ip, 100);
    add([8, 6], &[0; 28], 42);
    add([8, 0], &ip, 1400);
    file.extend_from_slice(&[1; 20]);
    file
}

#[test]
fn a_trace_is_sent_and_counted() {
    let env = TestEnv::new();
    let path = env.dir.path().join("trace.pcap");
    std::fs::write(&path, trace()).expect("writes");
    let path = path.to_str().expect("a path");
    let listener = env.listen("flow_meter", &[]);
    let sent = env.run("flow_meter", &["send", "here", path]);
    assert_eq!(sent, (Some(0), String::new(), String::new()));
    let (code, out, _) = listener.end();
    assert_eq!(code, Some(0));
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[0].starts_with("2 packets of 1 flows in "), "{out}");
    assert!(
        lines[1].starts_with("10.1.2.3:53 > 10.4.5.6:1024 protocol 17 "),
        "{out}"
    );
    assert!(lines[1].ends_with(" 2 packets         1500 bytes"), "{out}");
}

#[test]
fn bad_input_is_one_line_and_exit_code_2() {
    let env = TestEnv::new();
    let trace = env.dir.path().join("none.pcap");
    std::fs::write(&trace, [0; 100]).expect("writes");
    let trace = trace.to_str().expect("a path");
    let mut wrong: Vec<(&str, Vec<&str>, &str)> = vec![
        (
            "flow_meter",
            vec!["send", "x", "no/such/file"],
            "no/such/file: ",
        ),
        ("flow_meter", vec!["send", "x", trace], "not a pcap file"),
    ];
    for name in EXAMPLES {
        wrong.push((name, vec!["0"], "\"0\" is no count: 1 or more"));
        wrong.push((name, vec!["--help"], "usage: "));
        wrong.push((name, vec!["listen"], "usage: "));
        wrong.push((name, vec!["--help", "me", "out", "of", "here"], "usage: "));
        wrong.push((name, vec!["listen", "no/name"], "no/name"));
    }
    for (name, args, said) in wrong {
        let (code, out, complaint) = env.run(name, &args);
        assert_eq!((code, &*out), (Some(2), ""), "{name} {args:?}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        assert!(complaint.contains(said), "{name} {args:?}: {complaint}");
    }
    let _listener = env.listen("key_value", &[]);
    let (code, _, complaint) = env.run("key_value", &["listen", "here"]);
    assert_eq!(
        (code, complaint.lines().count()),
        (Some(2), 1),
        "{complaint}"
    );
}

#[test]
fn ctrl_c_ends_a_side_that_waits() {
    for name in EXAMPLES {
        let env = TestEnv::new();
        let listener = env.listen(name, &[]);
        listener.signal(Signal::INT);
        let (code, out, complaint) = listener.end();
        let line = format!("{name}: interrupted\n");
        assert_eq!((code, out, complaint), (Some(130), String::new(), line));
    }
}

/// Starts both sides with hours of work, in a process group of their own, and waits until they are connected.
fn busy(env: &TestEnv, name: &str) -> ExampleProcess {
    let side = env.start_with(name, &["100000000000"], |command| {
        command.process_group(0);
    });
    // The listener registers its name before the other side calls, and frees it once connected.
    env.until("both sides", |entries| {
        let devices = entries.iter().filter(|entry| entry.starts_with("c."));
        devices.count() == 2 && !entries.iter().any(|entry| entry.starts_with("n."))
    });
    side
}

#[test]
fn peer_death_is_reported_in_one_line() {
    for name in EXAMPLES {
        let env = TestEnv::new();
        let mut caller = busy(&env, name);
        caller.signal(Signal::KILL);
        assert_eq!(caller.wait(), None);
        env.assert_nobody_left();
        let line = format!("{name}: the other side is gone\n");
        assert_eq!(caller.output(), [String::new(), line]);
    }
}

#[test]
fn ctrl_c_ends_both_sides_at_work() {
    for name in EXAMPLES {
        let env = TestEnv::new();
        let mut caller = busy(&env, name);
        caller.signal(Signal::INT);
        let code = caller.wait();
        env.assert_nobody_left();
        let [out, complaint] = caller.output();
        assert_eq!((code, &*out), (Some(130), ""), "{complaint}");
        let line = format!("{name}: interrupted\n");
        assert!(complaint.contains(&line), "{complaint}");
    }
}

/// Sends the signal to both sides, as a terminal does. Neither may report the other's end as a failure.
#[test]
fn ctrl_c_at_a_terminal_is_nobodys_failure() {
    for name in EXAMPLES {
        for _ in 0..5 {
            let env = TestEnv::new();
            let mut caller = busy(&env, name);
            kill_process_group(Pid::from_child(&caller.child), Signal::INT).expect("signals");
            let code = caller.wait();
            env.assert_nobody_left();
            let [out, complaint] = caller.output();
            assert_eq!((code, &*out), (Some(130), ""), "{complaint}");
            let line = format!("{name}: interrupted");
            assert!(!complaint.is_empty());
            for said in complaint.lines() {
                assert_eq!(said, line);
            }
        }
    }
}

/// The caller dies before it calls. The listener notices that through its standard input, a pipe from the
/// caller.
#[test]
fn a_listener_that_was_started_for_a_caller_does_not_wait_for_ever() {
    let env = TestEnv::new();
    let mut listener = env.start_with("key_value", &["listen", "here"], |command| {
        command
            .env("HEADWORKS_EXAMPLE_STARTED", "1")
            .stdin(Stdio::piped());
    });
    env.until("a listener", |entries| {
        entries.iter().any(|entry| entry == "n.here")
    });
    assert!(listener.child.try_wait().expect("ours").is_none(), "waits");
    drop(listener.child.stdin.take());
    assert_eq!(listener.wait(), Some(1));
    let [out, complaint] = listener.output();
    let line = "key_value: the other side is gone\n";
    assert_eq!((&*out, &*complaint), ("", line));
}

/// Several callers connect before the first is answered. Each needs two control streams. One caller is served
/// and gets both, although the first streams of the others arrive before its second.
#[test]
fn of_many_that_call_at_once_one_is_served() {
    const CALLERS: usize = 4;
    let env = TestEnv::new();
    let listener = env.listen("http_server", &[]);
    // Stop the listener only once it waits for callers. Before that it may hold the registry's lock, which
    // they need.
    wait_until("a listener at rest", || listener.is_idle());
    listener.signal(Signal::STOP);
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| env.start("http_server", &["get", "here"]))
        .collect();
    // The listener's socket, and one socket for each caller that was not accepted.
    wait_until("a call of each", || env.sockets() == 1 + CALLERS);
    listener.signal(Signal::CONT);
    let (code, out, complaint) = listener.end();
    assert_eq!((code, &*out, &*complaint), (Some(0), "", ""));
    drop(callers);
}
