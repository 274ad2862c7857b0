//! Runs the examples that use a daemon, with two daemons of their own and with two that run already.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::test_env::{ExampleProcess, TestEnv, wait_until};

const EXAMPLES: [&str; 3] = ["service_key_value", "parameter_server", "migration"];
/// Bytes of the file that is sent.
const LEN: usize = 3_000_001;

fn content() -> Vec<u8> {
    (0..LEN).map(|at| (at ^ at >> 7 ^ at >> 15) as u8).collect()
}

/// Fails if anything started here has left a process, a temporary file or a registry entry.
fn is_clean(env: &TestEnv) {
    env.assert_nobody_left();
    for folder in [env.temporary(), env.registry()] {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let left: Vec<_> = entries.map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn both_sides_and_their_daemons_do_their_work() {
    let env = TestEnv::new();
    let file = env.dir.path().join("file");
    fs::write(&file, content()).expect("writes");
    let file = file.to_str().expect("a path");
    for (name, arg, said) in [
        (
            EXAMPLES[0],
            "2000",
            &["2000 requests over 4 connections in "][..],
        ),
        (
            EXAMPLES[1],
            "50",
            &["1 x 1: 50 rounds of 1000 pairs ", "4 x 4: 50 rounds of "],
        ),
        (EXAMPLES[2], file, &["3000001 bytes in "]),
    ] {
        let (code, out, complaint) = env.run(name, &[arg]);
        assert_eq!((code, &*complaint), (Some(0), ""), "{name}");
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(lines.len(), said.len(), "{name}: {out}");
        for (line, said) in lines.iter().zip(said) {
            assert!(line.starts_with(said), "{name}: {out}");
        }
        is_clean(&env);
    }
}

#[test]
fn a_file_that_is_empty_is_one_too() {
    let env = TestEnv::new();
    let file = env.dir.path().join("file");
    fs::write(&file, b"").expect("writes");
    let (code, out, complaint) = env.run("migration", &[file.to_str().expect("a path")]);
    assert_eq!((code, &*complaint), (Some(0), ""));
    assert!(out.starts_with("0 bytes in "), "{out}");
    is_clean(&env);
}

/// Two daemons that run before the examples start.
struct Daemons {
    sides: Vec<ExampleProcess>,
    sockets: [String; 2],
}

impl Daemons {
    fn start(env: &TestEnv) -> Self {
        let free = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = free.local_addr().expect("an address").port().to_string();
        drop(free);
        let socket = |host| env.dir.path().join(format!("{host}.sock"));
        let sockets = [0, 1].map(|host| socket(host).display().to_string());
        let start = |(host, socket): (usize, &String)| {
            let args = ["daemon", &host.to_string(), &port, socket];
            let side = env.start("migration", &args);
            line(&side);
            side
        };
        let sides = sockets.iter().enumerate().map(start).collect();
        Self { sides, sockets }
    }

    /// Starts an application of the second host. Returns it with the addresses at which it can be reached.
    fn serve(&self, env: &TestEnv, name: &str, args: &[&str]) -> (ExampleProcess, String) {
        let args = [args, &["--socket", &self.sockets[1]]].concat();
        let side = env.start(name, &args);
        let said = line(&side);
        let ports = said.split(' ').filter(|word| word.parse::<u16>().is_ok());
        let to: Vec<_> = ports.map(|port| format!("127.0.0.2:{port}")).collect();
        (side, to.join(","))
    }

    /// Runs an application of the first host that connects to `to`.
    fn ask(
        &self,
        env: &TestEnv,
        name: &str,
        args: &[&str],
        to: &str,
    ) -> (Option<i32>, String, String) {
        let others = ["--socket", &self.sockets[0], "--to", to];
        env.run(name, &[args, &others].concat())
    }

    fn end(self) {
        for side in self.sides {
            side.signal(Signal::TERM);
            assert_eq!(side.end().0, Some(0));
        }
    }
}

/// Waits for the first line that a side prints.
fn line(side: &ExampleProcess) -> String {
    let mut said = String::new();
    wait_until("a line", || {
        [said, _] = side.output();
        said.ends_with('\n')
    });
    said.trim_end().to_owned()
}

fn ctrl_c(name: &str, side: ExampleProcess) {
    side.signal(Signal::INT);
    let (code, _, complaint) = side.end();
    assert_eq!(
        (code, complaint),
        (Some(130), format!("{name}: interrupted\n"))
    );
}

#[test]
fn sides_use_daemons_that_run_already() {
    let env = TestEnv::new();
    let daemons = Daemons::start(&env);

    let name = "service_key_value";
    let (server, to) = daemons.serve(&env, name, &["serve"]);
    for _ in 0..2 {
        let args = ["ask", "999", "--connections", "7"];
        let (code, out, complaint) = daemons.ask(&env, name, &args, &to);
        assert_eq!((code, &*complaint), (Some(0), ""));
        assert!(
            out.starts_with("999 requests over 7 connections in "),
            "{out}"
        );
    }
    ctrl_c(name, server);

    let name = "parameter_server";
    let (servers, to) = daemons.serve(&env, name, &["serve", "--servers", "3"]);
    for workers in ["1", "2"] {
        let args = ["work", "20", "--workers", workers];
        let (code, out, complaint) = daemons.ask(&env, name, &args, &to);
        assert_eq!((code, &*complaint), (Some(0), ""));
        assert!(
            out.starts_with(&format!("{workers} x 3: 20 rounds of ")),
            "{out}"
        );
    }
    ctrl_c(name, servers);

    daemons.end();
    is_clean(&env);
}

#[test]
fn a_file_has_its_name_when_it_is_whole() {
    let env = TestEnv::new();
    let daemons = Daemons::start(&env);
    let folder = env.dir.path().join("there");
    fs::create_dir(&folder).expect("a folder");
    let (file, into) = (env.dir.path().join("file"), folder.join("copy"));
    fs::write(&file, content()).expect("writes");
    let [from, to_file] = [&file, &into].map(|path| path.to_str().expect("a path"));
    // The received file must replace this one once it is complete.
    fs::write(&into, b"other").expect("writes");
    let entries = |folder: &Path| fs::read_dir(folder).expect("a folder").count();

    let (receiver, _) = daemons.serve(&env, "migration", &["receive", to_file]);
    assert_eq!(entries(&folder), 2);
    ctrl_c("migration", receiver);
    assert_eq!(
        (entries(&folder), &*fs::read(&into).expect("a file")),
        (1, &b"other"[..])
    );

    let (receiver, to) = daemons.serve(&env, "migration", &["receive", to_file]);
    let (code, out, complaint) = daemons.ask(&env, "migration", &["send", from], &to);
    assert_eq!((code, &*complaint), (Some(0), ""));
    assert!(out.starts_with("3000001 bytes in "), "{out}");
    assert_eq!(receiver.end().0, Some(0));
    assert!(
        fs::read(&into).expect("a file") == content(),
        "the file has other content"
    );
    assert_eq!(entries(&folder), 1);

    // The sender is killed during the transfer.
    let endless = endless(&env);
    let (receiver, to) = daemons.serve(&env, "migration", &["receive", to_file]);
    let args = [
        "send",
        &*endless,
        "--socket",
        &daemons.sockets[0],
        "--to",
        &to,
    ];
    let mut sender = env.start("migration", &args);
    wait_until("the beginning", || {
        let entries = fs::read_dir(&folder).expect("a folder").flatten();
        let lens = entries.map(|entry| entry.metadata().map_or(0, |data| data.len()));
        lens.max().unwrap_or_default() > LEN as u64
    });
    sender.signal(Signal::KILL);
    assert_eq!(sender.wait(), None);
    let (code, _, complaint) = receiver.end();
    assert_eq!(
        (code, complaint.lines().count()),
        (Some(1), 1),
        "{complaint}"
    );
    assert!(
        fs::read(&into).expect("a file") == content(),
        "the file has other content"
    );
    assert_eq!(entries(&folder), 1);

    daemons.end();
    is_clean(&env);
}

#[test]
fn bad_input_is_one_line_and_exit_code_2() {
    let env = TestEnv::new();
    let daemons = Daemons::start(&env);
    let [first, second] = &daemons.sockets;
    let (_server, to) = daemons.serve(&env, "service_key_value", &["serve"]);
    let port = to.rsplit(':').next().expect("a port");
    let taken = ["serve", "--socket", second, "--port", port];
    let nowhere = env.dir.path().join("nowhere").display().to_string();
    let fifo = env.dir.path().join("fifo");
    mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).expect("a FIFO");
    let fifo = fifo.to_str().expect("a path");
    let [kv, ps, mg] = EXAMPLES;
    let mut wrong: Vec<(&str, Vec<&str>, &str)> = vec![
        (kv, taken.to_vec(), "the port is taken"),
        (kv, vec!["0"], "\"0\" is no count: 1 or more"),
        (
            kv,
            vec!["--connections", "0"],
            "\"0\" is no count: 1 or more",
        ),
        (
            kv,
            vec!["serve", "--port", "65536"],
            "\"65536\" is no port: 0 to 65535",
        ),
        (kv, vec!["serve", "--socket", &nowhere], "no daemon at "),
        (kv, vec!["ask", "--socket", first], "--to \"\": no IP:PORT"),
        (ps, vec!["0"], "\"0\" is no count: 1 or more"),
        (
            ps,
            vec!["serve", "--servers", "65"],
            "--servers 65: 1 to 64",
        ),
        (ps, vec!["work", "--to", "x,y"], "--to \"x\": no IP:PORT"),
        (mg, vec!["no/such/file"], "no/such/file: "),
        (mg, vec!["/dev/null"], "/dev/null: not a regular file"),
        (mg, vec![fifo], "fifo: not a regular file"),
        (
            mg,
            vec!["send", fifo, "--to", &to],
            "fifo: not a regular file",
        ),
        (
            mg,
            vec!["receive", "no/such/file", "--socket", second],
            "no/such/file: INTO is in a folder that cannot be written to, no/such: ",
        ),
    ];
    let folder = env.dir.path().to_str().expect("a path");
    let within = format!("{folder}/copy/");
    // No user can create these files, not even root.
    for into in ["", "..", folder, &within, fifo, "/proc/copy"] {
        wrong.push((mg, vec!["receive", into, "--socket", second], "INTO is "));
    }
    for name in EXAMPLES {
        wrong.push((name, vec!["--help"], "usage: "));
        wrong.push((name, vec!["--to"], "usage: "));
        wrong.push((name, vec!["too", "many", "words"], "usage: "));
    }
    for (name, args, said) in wrong {
        let (code, out, complaint) = env.run(name, &args);
        assert_eq!((code, &*out), (Some(2), ""), "{name} {args:?}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        assert!(complaint.contains(said), "{name} {args:?}: {complaint}");
    }
    let refused = daemons.ask(&env, kv, &["ask"], "127.0.0.2:1");
    let complaint = format!("{kv}: connection refused\n");
    assert_eq!(refused, (Some(1), String::new(), complaint));
}

/// A sparse file so large that sending it takes hours.
fn endless(env: &TestEnv) -> String {
    let path = env.dir.path().join("endless");
    let file = File::create(&path).expect("creates");
    file.set_len(1 << 40).expect("a length");
    path.display().to_string()
}

/// Starts an example with hours of work, in a process group of its own, and waits until all four processes
/// run.
fn busy(env: &TestEnv, name: &str) -> ExampleProcess {
    let endless = endless(env);
    let work = match name {
        "migration" => &*endless,
        _ => "100000000000",
    };
    let side = env.start_with(name, &[work], |command| {
        command.process_group(0);
    });
    wait_until("all processes", || env.users().len() == 4);
    side
}

/// Ctrl-C comes from a terminal, to the whole group, or from elsewhere, to one process.
#[test]
fn ctrl_c_leaves_nothing() {
    for name in EXAMPLES {
        for at_terminal in [true, false] {
            let env = TestEnv::new();
            let side = busy(&env, name);
            if at_terminal {
                let group = Pid::from_child(&side.child);
                kill_process_group(group, Signal::INT).expect("signals");
            } else {
                side.signal(Signal::INT);
            }
            let (code, out, complaint) = side.end();
            let line = format!("{name}: interrupted\n");
            assert_eq!((code, out, complaint), (Some(130), String::new(), line));
            is_clean(&env);
        }
    }
}

/// The other processes end by themselves. One that was just starting may report that its peer is gone.
#[test]
fn one_that_is_killed_leaves_nothing() {
    for name in EXAMPLES {
        let env = TestEnv::new();
        let mut side = busy(&env, name);
        side.signal(Signal::KILL);
        assert_eq!(side.wait(), None);
        is_clean(&env);
        let [out, complaint] = side.output();
        assert_eq!(
            (&*out, complaint.lines().count() <= 1),
            ("", true),
            "{complaint}"
        );
    }
}
