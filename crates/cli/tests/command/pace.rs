//! `headworks pace`: what it shows of processes that pace, and what it measures.

use std::io::Read;
use std::process::Stdio;

use rustix::process::Signal;

use crate::test_env::{CommandProcess, TestEnv, open, until};

/// Runs a command that must succeed, and returns its standard output.
fn stdout_of(fabric: &TestEnv, args: &[&str]) -> String {
    let all: Vec<_> = std::iter::once("pace")
        .chain(args.iter().copied())
        .collect();
    let mut side = CommandProcess::start(fabric.headworks(&all).stdout(Stdio::piped()));
    let mut text = String::new();
    let mut out = side.0.stdout.take().expect("a pipe");
    out.read_to_string(&mut text).expect("reads");
    side.expect_exit(0);
    text
}

/// Two processes. The second keeps a device busy; both of them or it alone pace it.
struct StreamingPipe {
    listener: CommandProcess,
    connector: CommandProcess,
}

impl StreamingPipe {
    fn on(fabric: &TestEnv, listening: &str, connecting: &str) -> Self {
        let args = ["--device", listening];
        let listener = fabric.listen(&args, "busy", Stdio::null(), Stdio::null());
        let args = ["--device", connecting];
        let zeros = open("/dev/zero".as_ref());
        let connector = fabric.connect(&args, "busy", zeros, Stdio::null());
        Self {
            listener,
            connector,
        }
    }
}

#[test]
fn pace_status_reports_no_process_and_creates_no_registry() {
    let fabric = TestEnv::new();
    let text = stdout_of(&fabric, &["status"]);
    assert_eq!(text, "no process of this user paces an RNIC now\n");
    assert_eq!(stdout_of(&fabric, &["status", "--json"]), "[]\n");
    assert!(!fabric.registry().exists());
}

#[test]
fn pacing_processes_are_shown_with_constants_until_killed() {
    let fabric = TestEnv::new();
    // The listener does not pace, and must not be shown.
    let paced =
        "soft:h1,pace_line_rate_gbps=4,pace_min_rate_gbps=1,pace_init_alpha=3,pace_init_beta=8";
    let mut busy = StreamingPipe::on(&fabric, "soft:h2", paced);
    let pid = busy.connector.0.id();
    until("the RNIC at work", || {
        let text = stdout_of(&fabric, &["status"]);
        text.contains("active queue pairs 1,") && !text.contains("no delay")
    });
    let text = stdout_of(&fabric, &["status"]);
    for wanted in [
        "soft:h1\n",
        "Gbit/s, of 1 to 4;",
        "rises up to 3 and falls from 8 on",
        &format!("completion queues 1; pid {pid}\n"),
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert!(!text.contains("soft:h2"), "{text}");
    let json = stdout_of(&fabric, &["status", "--json"]);
    for wanted in [
        "\"rnic\": \"soft:h1\"",
        "\"line_rate_bytes_per_s\": 500000000",
        "\"lower_above\": 8.0",
        "\"window\": false",
    ] {
        assert!(json.contains(wanted), "{wanted}: {json}");
    }
    // Neither process was disturbed: both go on.
    assert!(!busy.connector.has_ended() && !busy.listener.has_ended());
    busy.connector.0.kill().expect("kills");
    busy.connector.wait();
    assert!(stdout_of(&fabric, &["status"]).starts_with("no process"));
    drop(busy);
    fabric.is_clean_after_next_user();
}

#[test]
fn processes_that_pace_one_rnic_are_seen_together() {
    let fabric = TestEnv::new();
    let busy = StreamingPipe::on(&fabric, "soft:h2,pace_window=1", "soft:h2,pace_window=1");
    let mut pids = [busy.listener.0.id(), busy.connector.0.id()];
    pids.sort_unstable();
    let wanted = format!("completion queues 2; pid {}, {}\n", pids[0], pids[1]);
    until("both", || stdout_of(&fabric, &["status"]).contains(&wanted));
    let text = stdout_of(&fabric, &["status"]);
    assert_eq!(text.lines().next(), Some("soft:h2"));
    // With a window there is no rate.
    assert!(
        text.contains("(pace_window)") && !text.contains("Gbit/s"),
        "{text}"
    );
}

#[test]
fn a_stopped_pacing_process_is_counted_with_the_reason() {
    let fabric = TestEnv::new();
    let paced = "soft:h1,pace_line_rate_gbps=4,pace_min_rate_gbps=1";
    let busy = StreamingPipe::on(&fabric, "soft:h2", paced);
    // Bytes flow. If the process were stopped before its pipe is connected, the other end would give it up.
    until("the RNIC at work", || {
        let text = stdout_of(&fabric, &["status"]);
        text.contains("active queue pairs 1,") && !text.contains("no delay")
    });
    busy.connector.signal(Signal::STOP);
    let line = format!(
        "1 cannot be read: process {} (headworks) did not answer within 2000 ms: is it stopped?\n",
        busy.connector.0.id()
    );
    // The signal may arrive a little later.
    until("the line", || stdout_of(&fabric, &["status"]) == line);
    busy.connector.signal(Signal::CONT);
    until("the RNIC again", || {
        stdout_of(&fabric, &["status"]).starts_with("soft:h1\n")
    });
}

/// Checks the header of a table, and returns its other rows.
fn rows(fabric: &TestEnv, dir: &str) -> Vec<Vec<String>> {
    let path = fabric.file(dir).join("pace.csv");
    let text = std::fs::read_to_string(path).expect("a table");
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some(
            "time [s],rnic,rate [Gbit/s],delay [us],ratio [base delays],raise_below [base delays],\
             lower_above [base delays],active [queue pairs]"
        )
    );
    let cells = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
    lines.map(cells).collect()
}

fn files(fabric: &TestEnv, dir: &str) -> Vec<String> {
    let all = std::fs::read_dir(fabric.file(dir)).expect("a directory");
    let names = all.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = names
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_trace_records_pacing_until_an_interrupt() {
    let fabric = TestEnv::new();
    let out = fabric.file("out");
    let out = out.to_str().expect("a path");
    let mut trace = CommandProcess::start(&mut fabric.headworks(&[
        "pace",
        "trace",
        "--interval-ms",
        "1",
        "--out",
        out,
        "--device",
        "soft:h1",
    ]));
    // Before anything is paced, it says that it waits.
    let mut stderr = trace.0.stderr.take().expect("a pipe");
    let waits = "soft:h1 is not paced yet: waiting\n";
    let mut first = vec![0; waits.len()];
    stderr.read_exact(&mut first).expect("a line");
    assert_eq!(String::from_utf8_lossy(&first), waits);
    let mut busy = StreamingPipe::on(
        &fabric,
        "soft:h2,pace",
        "soft:h1,pace_line_rate_gbps=4,pace_min_rate_gbps=1",
    );
    let seen = "soft:h1 is paced: watching\n";
    let mut second = vec![0; seen.len()];
    stderr.read_exact(&mut second).expect("a line");
    assert_eq!(String::from_utf8_lossy(&second), seen);
    trace.signal(Signal::INT);
    assert_eq!(trace.wait().code(), Some(130));
    let mut text = String::new();
    stderr.read_to_string(&mut text).expect("reads");
    assert_eq!(
        text,
        format!("written: {out}/pace.csv, pace.svg\nheadworks: interrupted\n")
    );
    assert!(!busy.connector.has_ended() && !busy.listener.has_ended());
    assert_eq!(files(&fabric, "out"), ["pace.csv", "pace.svg"]);
    let rows = rows(&fabric, "out");
    assert!(!rows.is_empty());
    let number = |text: &str| text.parse::<f64>().expect("a number");
    assert!(rows.is_sorted_by(|a, b| number(&a[0]) <= number(&b[0])));
    for row in &rows {
        assert_eq!(row[1], "soft:h1");
        assert!((1.0..=4.0).contains(&number(&row[2])), "{row:?}");
    }
    let svg = std::fs::read_to_string(fabric.file("out").join("pace.svg")).expect("a figure");
    for wanted in ["<svg", "rate, soft:h1", "delay, soft:h1", "time [s]"] {
        assert!(svg.contains(wanted), "{wanted}");
    }
}

#[test]
fn a_trace_removes_files_of_killed_traces_only() {
    let fabric = TestEnv::new();
    let out = fabric.file("out");
    let out = out.to_str().expect("a path");
    let args = ["pace", "trace", "--out", out];
    let has = |most: usize| {
        let all = std::fs::read_dir(fabric.file("out"));
        let all = all.map(|all| all.flatten().count());
        all.unwrap_or(0) >= most
    };
    let mut killed = CommandProcess::start(&mut fabric.headworks(&args));
    until("its files", || has(2));
    killed.signal(Signal::KILL);
    killed.wait();
    assert_eq!(files(&fabric, "out").len(), 2);
    let mut living = CommandProcess::start(&mut fabric.headworks(&args));
    // It prints a line once it has its own files.
    let mut stderr = living.0.stderr.take().expect("a pipe");
    stderr.read_exact(&mut [0; 1]).expect("a line");
    assert_eq!(files(&fabric, "out").len(), 2);
    let for_a_second = ["pace", "trace", "--out", out, "--for", "1"];
    let mut next = CommandProcess::start(&mut fabric.headworks(&for_a_second));
    assert_eq!(next.wait().code(), Some(0));
    assert_eq!(files(&fabric, "out").len(), 4);
    living.signal(Signal::INT);
    assert_eq!(living.wait().code(), Some(130));
    assert_eq!(files(&fabric, "out"), ["pace.csv", "pace.svg"]);
}

#[test]
fn a_trace_of_nothing_is_an_empty_table() {
    let fabric = TestEnv::new();
    let out = fabric.file("out");
    let out = out.to_str().expect("a path");
    let mut trace = CommandProcess::start(
        &mut fabric.headworks(&["pace", "trace", "--for", "1", "--out", out]),
    );
    assert_eq!(trace.wait().code(), Some(0));
    assert_eq!(
        trace.stderr_line(),
        format!(
            "nothing is paced yet: waiting\nnothing was paced meanwhile: the table is empty\n\
             written: {out}/pace.csv, pace.svg\n"
        )
    );
    assert!(rows(&fabric, "out").is_empty());
    assert!(!fabric.registry().exists());
}

#[test]
fn base_delays_of_the_software_rnic_are_options_that_open_it() {
    let fabric = TestEnv::new();
    let mut side = CommandProcess::start(
        fabric
            .headworks(&["pace", "calibrate"])
            .stdout(Stdio::piped()),
    );
    let mut text = String::new();
    let mut out = side.0.stdout.take().expect("a pipe");
    out.read_to_string(&mut text).expect("reads");
    assert_eq!(side.wait().code(), Some(0));
    // If the machine is busy with other tests, a warning is printed.
    let complaint = side.stderr_line();
    assert!(
        complaint.is_empty() || complaint.starts_with("warning: soft seems not to be idle"),
        "{complaint}"
    );
    assert!(complaint.lines().count() <= 1, "{complaint}");
    for wanted in [
        "soft to soft:h2",
        "the poll that finds it",
        "SEND, WRITE",
        "READ",
        "atomic",
        "datagram",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let options = text.lines().last().expect("options");
    for key in ["", "_read", "_atomic", "_ud"] {
        assert!(
            options.contains(&format!("pace_base_delay{key}_ns=")),
            "{options}"
        );
    }
    let device = format!("soft:h1,pace,{options}");
    let mut listener = fabric.listen(&["--device", &device], "a", Stdio::null(), Stdio::null());
    let mut connector = fabric.connect(&["--device", "soft:h2"], "a", Stdio::null(), Stdio::null());
    connector.expect_exit(0);
    listener.expect_exit(0);
    fabric.is_clean();
}

#[test]
fn a_device_that_has_less_room_than_it_says_now_and_then_is_measured_all_the_same() {
    let fabric = TestEnv::new();
    for seed in 1..=3 {
        let device = format!("soft:h1,hostile,seed={seed}");
        let args = ["pace", "calibrate", "--device", &device];
        let mut side = CommandProcess::start(fabric.headworks(&args).stdout(Stdio::piped()));
        let mut text = String::new();
        let mut out = side.0.stdout.take().expect("a pipe");
        out.read_to_string(&mut text).expect("reads");
        let code = side.wait().code();
        let complaint = side.stderr_line();
        assert_eq!(code, Some(0), "{complaint}");
        assert!(text.contains("pace_base_delay_ud_ns="), "{text}");
        // A hostile device is late at random, which looks like a busy one.
        assert!(complaint.lines().count() <= 1, "{complaint}");
    }
    fabric.is_clean();
}

#[test]
fn ctrl_c_ends_a_measurement() {
    let fabric = TestEnv::new();
    let args = ["pace", "calibrate", "--device", "soft:h1,hostile"];
    // A measurement that ends before the signal does not report an interrupt; then it is tried again.
    until("an interrupt in time", || {
        let mut side = CommandProcess::start(&mut fabric.headworks(&args));
        let has_opened = |name: std::ffi::OsString| name.to_string_lossy().starts_with("c.");
        until("its device", || {
            let entries = std::fs::read_dir(fabric.registry());
            let opened = |entry: std::fs::DirEntry| has_opened(entry.file_name());
            side.has_ended() || entries.is_ok_and(|dir| dir.flatten().any(opened))
        });
        if side.has_ended() {
            return false;
        }
        side.signal(Signal::INT);
        let code = side.wait().code();
        let complaint = side.stderr_line();
        assert!(matches!(code, Some(0 | 130)), "{complaint}");
        code == Some(130) && complaint == "headworks: interrupted\n"
    });
    fabric.is_clean();
}

#[test]
fn simulated_calibration_is_labelled_and_reproducible() {
    let fabric = TestEnv::new();
    let device = ["calibrate", "--device", "sim:cx6-100g,seed=3"];
    let text = stdout_of(&fabric, &device);
    assert!(
        text.starts_with("simulated: sim:cx6-100g,seed=3 to sim:cx6-100g,host=h2,seed=3:"),
        "{text}"
    );
    assert!(text.contains("the device's timestamp"), "{text}");
    assert_eq!(stdout_of(&fabric, &device), text);
    let json = stdout_of(&fabric, &[&device[..], &["--json"]].concat());
    let options = text.lines().last().expect("options");
    assert!(
        json.contains("\"simulated\": true")
            && json.contains(&format!("\"options\": \"{options}\"")),
        "{json}"
    );
    assert!(!fabric.registry().exists());
}

#[test]
fn every_constant_is_listed() {
    let fabric = TestEnv::new();
    let text = stdout_of(&fabric, &["constants"]);
    let json = stdout_of(&fabric, &["constants", "--json"]);
    for key in [
        "line_rate_gbps",
        "base_delay_ud_ns",
        "qps_per_step",
        "slice_bytes",
        "window",
    ] {
        assert!(
            text.lines()
                .any(|line| line.starts_with(&format!("{key} "))),
            "{key}: {text}"
        );
        assert!(
            json.contains(&format!("\"key\": \"{key}\"")),
            "{key}: {json}"
        );
    }
}

#[test]
fn wrong_options_are_one_line() {
    let fabric = TestEnv::new();
    let file = fabric.file("file");
    std::fs::write(&file, "").expect("writes");
    let (file, below) = (file.to_str().expect("a path"), file.join("below"));
    let below = below.to_str().expect("a path");
    let taken = fabric.file("taken");
    std::fs::create_dir_all(taken.join("pace.svg")).expect("makes");
    let taken = taken.to_str().expect("a path");
    for (args, says) in [
        (
            &["trace", "--interval-ms", "0"][..],
            "whole milliseconds, 1 to 60000",
        ),
        (
            &["trace", "--interval-ms", "-1"],
            "whole milliseconds, 1 to 60000",
        ),
        (&["trace", "--for", "0.5"], "whole seconds, 1 to 31536000"),
        (&["trace", "--out", file], "--out"),
        (&["trace", "--out", below], "--out"),
        (&["trace", "--out", taken], "pace.svg: Is a directory"),
        // The directory exists, but nobody can create a file in it.
        (
            &["trace", "--out", "/proc/self/net"],
            "--out: /proc/self/net",
        ),
        (
            &["trace", "--device", "sim:cx5-100g"],
            "paced within its process only",
        ),
        (&["trace", "--device", "nope"], "no device kind \"nope\""),
        (
            &["trace", "--device", "soft:h1,x=1"],
            "device option \"x=1\" is not legal for soft: hostile, seed=N",
        ),
        (
            &["trace", "--device", "soft:h1,hostile,seed=x"],
            "device option \"seed=x\"",
        ),
        (
            &["trace", "--device", "ibv:mlx5_0,pace,mtu=7"],
            "device option \"mtu=7\"",
        ),
        (
            &["trace", "--device", "soft,pace_x=1"],
            "pacing has no constant \"x\"",
        ),
        (
            &["calibrate", "--device", "soft,pace=1"],
            "device option \"pace=1\" is not legal for pacing: pace takes no value; pace_KEY=VALUE sets",
        ),
        (
            &["calibrate", "--device", "nope"],
            "no device kind \"nope\" (known: soft, ibv, sim)",
        ),
        (&["calibrate", "--device", "soft,x=1"], "x"),
        (
            &["calibrate", "--device", "soft,pace_x=1"],
            "pacing has no constant \"x\"",
        ),
        (&["calibrate", "--device", "sim:nope"], "presets are"),
        (
            &["calibrate", "--peer-device", "sim"],
            "of another kind than soft",
        ),
        (
            &[
                "calibrate",
                "--device",
                "sim",
                "--peer-device",
                "sim:cx6-100g",
            ],
            "another simulated network",
        ),
        (&["status", "--bogus"], "--bogus"),
        (&["constants", "x"], "x"),
    ] {
        let all: Vec<_> = std::iter::once("pace")
            .chain(args.iter().copied())
            .collect();
        let mut side = CommandProcess::start(&mut fabric.headworks(&all));
        let complaint = side.expect_exit(2);
        assert!(complaint.contains(says), "{args:?}: {complaint}");
    }
    assert!(!fabric.registry().exists());
}

#[test]
fn experiments_that_compare_pacing_refuse_a_device_that_is_paced_already() {
    let fabric = TestEnv::new();
    for (name, devices) in [
        ("weir-overhead", &["--device", "soft:h1,pace"][..]),
        (
            "weir-overhead",
            &["--device", "soft", "--peer-device", "soft:h2,pace_window=1"],
        ),
        (
            "weir-fig7",
            &["--device", "sim:cx6-100g,pace_sample_every=8"],
        ),
    ] {
        let args = ["experiment", "run", name, "--quick", "--out", "/nowhere"];
        let args = [&args[..], devices].concat();
        let said = CommandProcess::start(&mut fabric.headworks(&args)).expect_exit(2);
        let paced = devices.last().expect("one");
        for part in [name, *paced, "paces devices itself"] {
            assert!(said.contains(part), "{args:?}: {said}");
        }
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    fabric.is_clean();
}
