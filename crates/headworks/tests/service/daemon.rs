//! A daemon in a process of its own: this test binary again, told to run one test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use headworks::daemon::Identity;
use headworks::daemon::config::MetricsAt;
use headworks::daemon::limits::DaemonLimits;
use headworks::daemon::server::{DaemonServer, ServerConfig};
use headworks::net::Interrupt;
use headworks::service::{Service, metrics_of};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::LIMIT;

/// Directory in which a child is to run a daemon.
const DIRECTORY: &str = "HEADWORKS_TEST_DIRECTORY";
/// Address to which a child is to connect, and whether it drops its stream before it exits.
const TO: &str = "HEADWORKS_TEST_TO";
const DROPS: &str = "HEADWORKS_TEST_DROPS";
const STAYS: &str = "HEADWORKS_TEST_STAYS";
const DIRECT: &str = "HEADWORKS_TEST_DIRECT";
/// Connections that an application may have.
const CONNECTIONS: &str = "HEADWORKS_TEST_CONNECTIONS";
/// Bytes that [`DaemonProcess::start_sender`] sends.
pub(crate) const SENT: usize = 1 << 20;

/// Waits until `done` returns true.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LIMIT, "{what}: it takes too long");
        thread::yield_now();
    }
}

/// Waits until a thread of this process sleeps.
pub(crate) fn until_asleep(thread: i32) {
    until("a thread sleeps", || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        let stat = stat.expect("the thread lives");
        let state = stat.rsplit(") ").next().expect("a state");
        state.starts_with('S')
    });
}

/// A daemon that serves 127.0.0.1, with a fabric and a directory of its own.
pub(crate) struct DaemonProcess {
    child: Child,
    directory: TempDir,
    limits: Limits,
}

/// Limits of a daemon that tests choose.
#[derive(Clone, Copy)]
struct Limits {
    is_direct: bool,
    connections_each: u32,
}

impl DaemonProcess {
    /// Starts a daemon, and returns when it serves.
    pub(crate) fn start() -> Self {
        Self::start_with(false)
    }

    /// Starts a daemon as [`start`](Self::start) does, whose connections are direct if `is_direct`.
    pub(crate) fn start_with(is_direct: bool) -> Self {
        Self::start_limited(is_direct, DaemonLimits::default().connections_each)
    }

    /// Starts a daemon as [`start_with`](Self::start_with) does, at which an application has `connections_each` at most.
    pub(crate) fn start_limited(is_direct: bool, connections_each: u32) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let limits = Limits {
            is_direct,
            connections_each,
        };
        let child = start_daemon(&directory, limits);
        Self {
            child,
            directory,
            limits,
        }
    }

    /// Returns the values of a metric, one for each combination of its labels.
    pub(crate) fn metrics(&self, name: &str) -> Vec<u64> {
        let mut stream = UnixStream::connect(metrics_of(&self.socket())).expect("serves metrics");
        let request = b"GET /metrics HTTP/1.0\r\n\r\n";
        stream.write_all(request).expect("asks");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let values = answer.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let value = rest
                .starts_with(['{', ' '])
                .then(|| rest.rsplit(' ').next())?;
            value?.parse::<f64>().ok()
        });
        values.map(|value| value as u64).collect()
    }

    /// Returns the sum of a metric over all its labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        self.metrics(name).iter().sum()
    }

    /// Waits until no application has a connection.
    pub(crate) fn rests(&self) {
        until("connections are gone", || {
            self.metric("headworks_connections") == 0
        });
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("daemon.sock")
    }

    pub(crate) fn attach(&self) -> Service {
        Service::attach(self.socket(), "test").expect("a daemon")
    }

    /// Stops all threads of the daemon for good.
    pub(crate) fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("signals");
        let tasks = format!("/proc/{}/task", self.child.id());
        until("the daemon is stopped", || {
            std::fs::read_dir(&tasks).expect("it lives").all(|task| {
                let stat = task.expect("a thread").path().join("stat");
                let stat = std::fs::read_to_string(stat).unwrap_or_default();
                stat.rsplit(") ")
                    .next()
                    .is_some_and(|state| state.starts_with('T'))
            })
        });
    }

    /// Ends the daemon by a signal.
    pub(crate) fn end(&mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signals");
        self.child.wait().expect("ends");
    }

    /// Starts a daemon in place of the one that has ended.
    pub(crate) fn restart(&mut self) {
        self.child = start_daemon(&self.directory, self.limits);
    }

    /// Starts a process that uses direct connections until it is killed: it connects to `to`, or without that listens at the
    /// address that this returns.
    pub(crate) fn start_victim(&self, to: Option<SocketAddr>) -> (Child, Option<SocketAddr>) {
        let mut command = this_test("victim_process_entry");
        command.env(DIRECTORY, self.directory.path());
        if let Some(to) = to {
            command.env(TO, to.to_string());
            return (command.spawn().expect("starts"), None);
        }
        let mut child = command.spawn().expect("starts");
        let lines = BufReader::new(child.stdout.as_mut().expect("a pipe")).lines();
        let mut found = lines.map_while(Result::ok);
        let at = found.find_map(|line| line.split("listens at ").nth(1)?.parse().ok());
        (child, Some(at.expect("it listens")))
    }

    /// Starts a process that connects, sends [`SENT`] bytes, drops its stream if it `drops`, and exits, or lives on if it
    /// `stays`.
    pub(crate) fn start_sender(&self, to: SocketAddr, drops: bool, stays: bool) -> Child {
        let mut command = this_test("sender_process_entry");
        command.env(DIRECTORY, self.directory.path());
        command
            .env(TO, to.to_string())
            .env(DROPS, drops.to_string())
            .env(STAYS, stays.to_string());
        command.spawn().expect("starts")
    }
}

impl Drop for DaemonProcess {
    fn drop(&mut self) {
        // A daemon that has ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command that runs only test `name` of this binary.
fn this_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    let name = format!("daemon::{name}");
    command.args(["--exact", &name, "--ignored", "--nocapture"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn start_daemon(directory: &TempDir, limits: Limits) -> Child {
    let mut command = this_test("daemon_process_entry");
    if limits.is_direct {
        command.env(DIRECT, "yes");
    }
    command.env(CONNECTIONS, limits.connections_each.to_string());
    command.env(DIRECTORY, directory.path());
    command.env("HEADWORKS_FABRIC", directory.path().join("fabric"));
    let mut child = command.spawn().expect("starts");
    let mut lines = BufReader::new(child.stdout.as_mut().expect("a pipe")).lines();
    let serves = lines.any(|line| line.expect("a line").ends_with("serves"));
    assert!(serves, "the daemon ended early");
    child
}

#[test]
#[ignore = "the program of a daemon process, run by other tests"]
fn daemon_process_entry() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("a directory"));
    // The standard input ends with the parent.
    thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let interrupt = Interrupt::install().expect("signals");
    let socket = directory.join("daemon.sock");
    let connections_each = std::env::var(CONNECTIONS).expect("a limit");
    let config = ServerConfig {
        identity: Identity::open(Ipv4Addr::LOCALHOST.into(), u64::from(std::process::id())),
        port: 0,
        metrics: Some(MetricsAt::Path(metrics_of(&socket))),
        sockets: vec![socket],
        is_for_all: false,
        registry: headworks::registry().ok(),
        ecn: None,
        resctrl: None,
        numa: Default::default(),
        drain: headworks::verbs::Duration::ZERO,
        daemon: DaemonLimits {
            direct: std::env::var_os(DIRECT).is_some(),
            connections_each: connections_each.parse().expect("a number"),
            ..DaemonLimits::default()
        },
    };
    let device = headworks::open("soft:h1").expect("a device");
    let mut server = DaemonServer::open(device, &config).expect("a daemon");
    println!("serves");
    server.run(&interrupt, |_| {}).expect("serves");
}

#[test]
#[ignore = "the program of a sender process, run by other tests"]
fn sender_process_entry() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("a directory"));
    let to = std::env::var(TO).expect("an address");
    let service = Service::attach(directory.join("daemon.sock"), "sender").expect("a daemon");
    let mut stream = service.connect(to).expect("connects");
    stream.send_all(&vec![7; SENT]).expect("sends");
    if std::env::var(DROPS).is_ok_and(|drops| drops == "true") {
        drop(stream);
    } else if std::env::var(STAYS).is_ok_and(|stays| stays == "true") {
        // Until the parent ends this process.
        let _ = std::io::stdin().read(&mut [0]);
    }
    std::process::exit(0);
}

#[test]
#[ignore = "the program of a process that is killed, run by other tests"]
fn victim_process_entry() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("a directory"));
    let to = std::env::var(TO).ok();
    // The standard input ends with the parent.
    thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let service = Service::attach(directory.join("daemon.sock"), "victim").expect("a daemon");
    let to = to.map(|to| to.parse().expect("an address"));
    crate::direct_kills::run_victim(&service, to);
}
