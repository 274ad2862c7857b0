//! Two hosts on this machine, a daemon each, and the other processes of an example that uses them.
//!
//! A daemon is this program once more, and so is whatever else is started. None outlives whoever started it: its
//! standard input ends with that one.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks::daemon::Identity;
use headworks::daemon::limits::DaemonLimits;
use headworks::daemon::server::{DaemonServer, ServerConfig};
use headworks::net::{Interrupt, Waiter, WakeReason, clock};
use headworks::service::Service;
use headworks::verbs::Duration;
use rustix::process::{Signal, getpid, kill_process};
use tempfile::TempDir;

use crate::program::{Failure, Outcome, STARTED, say};

/// The first argument of a program that is to be a daemon; behind it its number, port and socket.
pub(crate) const DAEMON: &str = "daemon";
/// How long another process may take to say something, or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two daemons with a registry of their own, until this is dropped; what is started beside them must be dropped first.
pub struct LocalHosts {
    /// Before the folder that their sockets are in.
    _daemons: Vec<HelperProcess>,
    directory: TempDir,
}

impl LocalHosts {
    /// Both serve when this returns.
    pub fn start(interrupt: &Interrupt) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("headworks-").tempdir()?;
        // Any port, which is to be the same at both addresses: nobody has it at one of them.
        let mut port = 0;
        let mut daemons = Vec::new();
        for host in 0..2 {
            let socket = socket(directory.path(), host);
            let args = [
                DAEMON,
                &host.to_string(),
                &port.to_string(),
                &socket.to_string_lossy(),
            ];
            let mut daemon = HelperProcess::start(&args, directory.path())?;
            port = *ports(&daemon.line(interrupt)?)
                .first()
                .ok_or_else(|| failed("has no port"))?;
            daemons.push(daemon);
        }
        Ok(Self {
            _daemons: daemons,
            directory,
        })
    }

    /// Where the applications of a host, 0 or 1, attach to its daemon.
    pub fn socket(&self, host: usize) -> PathBuf {
        socket(self.directory.path(), host)
    }

    /// An application of a host's.
    pub fn attach(&self, host: usize, name: &str) -> Outcome<Service> {
        Ok(Service::attach(&self.socket(host), name)?)
    }

    /// A folder that goes with the daemons.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts this program as an application of a host's that says, in its first line, at which of its ports it can be
    /// reached. Answers where that is.
    pub fn serve(
        &self,
        host: usize,
        args: &[&str],
        interrupt: &Interrupt,
    ) -> Outcome<(HelperProcess, Vec<SocketAddr>)> {
        let socket = self.socket(host);
        let socket = socket.to_string_lossy();
        let args = [args, &["--socket", &socket]].concat();
        let mut helper = HelperProcess::start(&args, self.directory.path())?;
        let ports = ports(&helper.line(interrupt)?).into_iter();
        let at = ports.map(|port| SocketAddr::new(address(host), port));
        Ok((helper, at.collect()))
    }
}

/// The ports that a line names.
fn ports(line: &str) -> Vec<u16> {
    let words = line.split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

fn socket(directory: &Path, host: usize) -> PathBuf {
    directory.join(format!("{host}.sock"))
}

fn address(host: usize) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, host as u8 + 1).into()
}

/// This process is the daemon of a host, until it is ended.
pub(crate) fn run_daemon(host: &str, port: &str, socket: &str, interrupt: &Interrupt) -> Outcome {
    let (Ok(host), Ok(port)) = (host.parse(), port.parse()) else {
        return Err(Failure::BadInput(format!("{host} {port}: no host")));
    };
    let device = headworks::open(&format!("soft:h{}", host + 1).parse()?)?;
    let life = u64::from(std::process::id());
    let config = ServerConfig {
        identity: Identity::open(address(host), life),
        port,
        socket: socket.into(),
        is_for_all: false,
        metrics: None,
        drain: Duration::ZERO,
        daemon: DaemonLimits::default(),
    };
    let mut shell = DaemonServer::open(device, &config)?;
    say(format!("serving at port {}\n", shell.port()).as_bytes())?;
    shell.run(interrupt, |_| {})?;
    Ok(())
}

/// Another process of this program, which is ended when it is dropped.
pub struct HelperProcess(Child);

impl HelperProcess {
    fn start(args: &[&str], directory: &Path) -> Outcome<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(args)
            .env(STARTED, "1")
            .env("HEADWORKS_FABRIC", directory.join("fabric"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C at a terminal is for whoever started it, who ends it in good order.
            .process_group(0)
            .spawn()?;
        Ok(Self(child))
    }

    /// What it says next, once it does.
    fn line(&mut self, interrupt: &Interrupt) -> Outcome<String> {
        let said = self.0.stdout.as_mut().expect("a pipe");
        let until = clock::now() + PATIENCE;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let fds = [said.as_fd(), interrupt.as_fd()];
            let woken = Waiter::default().wait(&fds, Some(until), |_| false)?;
            let mut byte = [0];
            match woken {
                _ if interrupt.is_raised() => return Err(Failure::Interrupted),
                WakeReason::Deadline => return Err(failed("says nothing")),
                _ if said.read(&mut byte)? == 0 => return Err(failed("ended")),
                _ => line.extend(byte),
            }
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// Ends it: it has done what it was to do. Then it must have been right.
    pub fn finish(mut self) -> Outcome {
        match self.end()? {
            status if status.success() => Ok(()),
            status => Err(failed(&status.to_string())),
        }
    }

    fn end(&mut self) -> std::io::Result<ExitStatus> {
        drop(self.0.stdin.take());
        let until = clock::now() + PATIENCE;
        // What it says ends with it.
        if let Some(mut said) = self.0.stdout.take() {
            loop {
                let woken = Waiter::default().wait(&[said.as_fd()], Some(until), |_| false);
                match woken {
                    Ok(WakeReason::Fd) if said.read(&mut [0; 1024])? > 0 => {}
                    Ok(WakeReason::Fd) => break,
                    // It hangs.
                    _ => {
                        self.0.kill()?;
                        break;
                    }
                }
            }
        }
        self.0.wait()
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        // It is of no use any more, however it ends.
        let _ = self.end();
    }
}

fn failed(what: &str) -> Failure {
    Failure::Failed(format!("another process of this program: {what}"))
}

/// Whoever started this process, if it was one like it.
pub(crate) struct ParentWatch(Option<Arc<AtomicBool>>);

impl ParentWatch {
    /// Has this process end, as by SIGTERM, when that one is gone or closes its standard input.
    pub(crate) fn watch() -> Outcome<Self> {
        if std::env::var_os(STARTED).is_none() {
            return Ok(Self(None));
        }
        let gone = Arc::new(AtomicBool::new(false));
        let seen = gone.clone();
        let name = "starter".to_owned();
        std::thread::Builder::new().name(name).spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            seen.store(true, Ordering::Relaxed);
            kill_process(getpid(), Signal::TERM)
        })?;
        Ok(Self(Some(gone)))
    }

    /// Whether that is why it ends.
    pub(crate) fn is_gone(&self) -> bool {
        let gone = self.0.as_ref();
        gone.is_some_and(|gone| gone.load(Ordering::Relaxed))
    }

    /// The last who leaves the folder of [`LocalHosts`] removes it, where whoever made it cannot any more.
    pub(crate) fn leave(&self) {
        let registry = std::env::var_os("HEADWORKS_FABRIC").map(PathBuf::from);
        if let Some(folder) = registry.as_deref().and_then(Path::parent) {
            // Somebody has something there still.
            let _ = std::fs::remove_dir(folder);
        }
    }
}
