//! The command `headworks demo`: what it sends, and Ctrl-C in each of its phases.

use std::io::{BufRead, BufReader, PipeReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::test_env::{CommandProcess, LIMIT, TestEnv, bytes, until};

/// A running demonstration in a process group of its own. `lines` are those of its standard output and
/// standard error.
struct Demo {
    side: CommandProcess,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Demo {
    fn start(fabric: &TestEnv, args: &[&str]) -> Self {
        let args: Vec<_> = ["demo"].iter().chain(args).copied().collect();
        let (from, to) = std::io::pipe().expect("a pipe");
        let errors = to.try_clone().expect("a descriptor");
        let mut command = fabric.headworks(&args);
        std::fs::create_dir_all(temporary(fabric)).expect("makes");
        command
            .env("TMPDIR", temporary(fabric))
            .stdout(Stdio::from(to))
            .stderr(Stdio::from(errors))
            .process_group(0);
        Self {
            side: CommandProcess::start(&mut command),
            lines: lines(from),
            said: Vec::new(),
        }
    }

    /// Waits for a line that contains `words`, and returns it.
    fn until_it_says(&mut self, words: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(LIMIT);
            let line = line.unwrap_or_else(|_| panic!("not said: {words}: {:#?}", self.said));
            self.said.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Waits until it exits, reads the rest of its output, and returns the exit code. The output ends only once
    /// no process of the demonstration holds it open.
    fn end(&mut self) -> Option<i32> {
        let status = self.side.wait();
        while let Ok(line) = self.lines.recv_timeout(LIMIT) {
            self.said.push(line);
        }
        status.code()
    }

    /// Presses Ctrl-C once it has printed `words`: at its terminal, which signals the process group, or as a
    /// signal to the first process alone. Returns whether Ctrl-C came before the demonstration ended.
    fn interrupt_at(mut self, words: &str, at_terminal: bool) -> bool {
        self.until_it_says(words);
        if at_terminal {
            kill_process_group(self.side.pid(), Signal::INT).expect("signals");
        } else {
            self.side.signal(Signal::INT);
        }
        let code = self.end();
        if code == Some(0) {
            return false;
        }
        let said = &self.said;
        assert_eq!(code, Some(130), "at {words}, {at_terminal}: {said:#?}");
        let ends = said.iter().filter(|line| line.starts_with("headworks: "));
        let ends: Vec<_> = ends.collect();
        // The other process may also report an error: it may notice that the first one is gone before it is
        // killed itself.
        assert!(
            ends.iter().any(|line| *line == "headworks: interrupted") && ends.len() <= 2,
            "at {words}: {said:#?}"
        );
        true
    }
}

/// Returns the directory of a demonstration's temporary files.
fn temporary(fabric: &TestEnv) -> PathBuf {
    fabric.file("tmp")
}

/// Checks that nothing is left in the registry or in the temporary directory.
fn is_clean(fabric: &TestEnv) {
    fabric.is_clean();
    let left = std::fs::read_dir(temporary(fabric)).into_iter().flatten();
    let left: Vec<_> = left.flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "left: {left:?}");
}

/// Returns the process that currently runs the demonstration's role `role`, if there is one.
fn player(demo: &Demo, role: &str) -> Option<Pid> {
    let parent = demo.side.0.id().to_string();
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let mut numbers = numbers.filter(|number: &i32| {
        let read = |what| std::fs::read_to_string(format!("/proc/{number}/{what}"));
        let (Ok(stat), Ok(command)) = (read("stat"), read("cmdline")) else {
            return false;
        };
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ours = after_name.split(' ').nth(2) == Some(&parent);
        ours && command.split('\0').any(|word| word == role)
    });
    numbers.next().and_then(Pid::from_raw)
}

/// Returns the lines read from `from`, up to its end.
fn lines(from: PipeReader) -> Receiver<String> {
    let (to, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// Returns the line that part 1 prints about the bytes that arrived.
fn verdict(sent: &[u8]) -> String {
    let hash = crc32fast::hash(sent);
    let len = sent.len();
    format!("   {len} bytes, CRC-32 {hash:08x} at both ends: the same.")
}

/// Sends `path`, and interrupts the demonstration after part 1.
fn sends(fabric: &TestEnv, path: &Path, sent: &[u8]) {
    let mut demo = Demo::start(fabric, &[path.to_str().expect("UTF-8")]);
    assert_eq!(demo.until_it_says("at both ends"), verdict(sent));
    demo.side.signal(Signal::INT);
    assert_eq!(demo.end(), Some(130), "{:#?}", demo.said);
    is_clean(fabric);
}

#[test]
fn a_file_and_a_directory_arrive() {
    let fabric = TestEnv::new();
    let (file, directory) = (fabric.file("file"), fabric.file("directory"));
    let content = bytes(3_000_001);
    std::fs::write(&file, &content).expect("writes");
    sends(&fabric, &file, &content);

    std::fs::create_dir_all(directory.join("below")).expect("makes");
    std::fs::write(directory.join("below/a"), &content).expect("writes");
    std::fs::write(directory.join("b"), b"").expect("writes");
    std::os::unix::fs::symlink("nowhere", directory.join("c")).expect("links");
    let mut tar = tar::Builder::new(Vec::new());
    tar.follow_symlinks(false);
    tar.append_dir_all(".", &directory).expect("packs");
    sends(&fabric, &directory, &tar.into_inner().expect("packs"));
}

#[test]
fn an_empty_file_arrives_and_everything_is_shown() {
    let fabric = TestEnv::new();
    let file = fabric.file("empty");
    std::fs::write(&file, b"").expect("writes");
    let mut demo = Demo::start(&fabric, &[file.to_str().expect("UTF-8")]);
    assert_eq!(demo.until_it_says("at both ends"), verdict(b""));
    for row in ["headworks  ", "TCP loopback", "Unix socket", "OS pipe"] {
        demo.until_it_says(&format!("   {row}"));
    }
    demo.until_it_says("4. 300 connections between two applications");
    for (row, queue_pairs) in [("by daemons", "2"), ("direct", "–"), ("TCP loopback", "–")] {
        let line = demo.until_it_says(&format!("   {row}"));
        let words: Vec<_> = line
            .replace(row, "")
            .split(' ')
            .map(str::to_owned)
            .collect();
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        assert_eq!((&*words[0], &*words[1]), ("300", queue_pairs), "{line}");
        let moved = words[2].parse::<f64>().expect("bytes") > 0.0;
        let trip = words[6].parse::<f64>().expect("a round trip") > 0.0;
        assert!(moved && trip, "{line}");
    }
    assert_eq!(demo.end(), Some(0), "{:#?}", demo.said);
    is_clean(&fabric);
}

#[test]
fn a_path_that_cannot_be_sent_is_one_line() {
    let fabric = TestEnv::new();
    let missing = fabric.file("missing");
    for (path, says) in [
        (missing.to_str().expect("UTF-8"), "No such file"),
        ("/dev/null", "neither a file nor a directory"),
    ] {
        let mut side = CommandProcess::start(&mut fabric.headworks(&["demo", path]));
        let complaint = side.expect_exit(2);
        assert!(
            complaint.contains(path) && complaint.contains(says),
            "{complaint}"
        );
    }
    is_clean(&fabric);
}

/// The two ways to press Ctrl-C: at the terminal, and as a signal to the first process alone.
const BOTH_WAYS: &[bool] = &[true, false];

/// Presses Ctrl-C in the phase that begins with `words`, while `args` are sent.
fn ctrl_c(args: &[&str], words: &str, ways: &[bool]) {
    let fabric = TestEnv::new();
    for &at_terminal in ways {
        // On a busy machine the demonstration may end before the key is pressed; then it is tried again.
        let pressed = (0..10).any(|_| Demo::start(&fabric, args).interrupt_at(words, at_terminal));
        assert!(pressed, "{words} is always over too soon");
        is_clean(&fabric);
    }
}

/// Presses Ctrl-C in a phase after the stream. An empty file is sent, so that the phase comes soon.
fn ctrl_c_later(words: &str, ways: &[bool]) {
    let short = tempfile::NamedTempFile::new().expect("a file");
    ctrl_c(&[short.path().to_str().expect("UTF-8")], words, ways);
}

#[test]
fn ctrl_c_while_it_begins() {
    ctrl_c(&[], "Headworks on", BOTH_WAYS);
}

#[test]
fn ctrl_c_in_the_stream() {
    ctrl_c(&[], "1. ", BOTH_WAYS);
}

#[test]
fn ctrl_c_among_many_messages() {
    ctrl_c_later("2. ", BOTH_WAYS);
}

#[test]
fn ctrl_c_between_messages_there_and_back() {
    ctrl_c_later("single messages there and back", BOTH_WAYS);
}

/// The other process is stopped, so no wait for it ends by itself: each must notice the signal.
#[test]
fn ctrl_c_while_the_other_process_stands_still() {
    let fabric = TestEnv::new();
    let empty = fabric.file("empty");
    std::fs::write(&empty, b"").expect("writes");
    let empty = [empty.to_str().expect("UTF-8")];
    for (words, role) in [
        ("2. ", "rings"),
        ("single messages there and back", "rings"),
        ("measuring 300 connections", "echo-service"),
        ("measuring 300 direct connections", "echo"),
        ("measuring 300 connections of TCP", "echo"),
    ] {
        let stopped = |_| {
            let mut demo = Demo::start(&fabric, &empty);
            demo.until_it_says(words);
            let mut other = None;
            until("the other process", || {
                other = player(&demo, role);
                other.is_some() || demo.side.has_ended()
            });
            // On a busy machine the phase may be over already.
            let Some(other) = other else {
                return false;
            };
            // It may have ended since; otherwise it is stopped from here on.
            let _ = kill_process(other, Signal::STOP);
            if player(&demo, role).is_none() {
                return false;
            }
            demo.side.signal(Signal::INT);
            assert_eq!(demo.end(), Some(130), "at {words}: {:#?}", demo.said);
            true
        };
        assert!((0..10).any(stopped), "{words} is always over too soon");
        is_clean(&fabric);
    }
}

#[test]
fn ctrl_c_in_each_measurement() {
    // Each phase takes a while to reach, so only long runs press Ctrl-C in both ways.
    let ways = |at_terminal| match std::env::var_os("HEADWORKS_LONG") {
        Some(_) => BOTH_WAYS.to_vec(),
        None => vec![at_terminal],
    };
    ctrl_c_later("measuring headworks", &ways(true));
    ctrl_c_later("measuring TCP", &ways(false));
    ctrl_c_later("measuring Unix", &ways(true));
    ctrl_c_later("measuring OS pipe", &ways(false));
    ctrl_c_later("starting two daemons", &ways(true));
    ctrl_c_later("measuring 300 connections", &ways(false));
    ctrl_c_later("measuring 300 connections of TCP", &ways(true));
}
