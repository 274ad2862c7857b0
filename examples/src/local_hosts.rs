//! Two hosts on this machine, a daemon each, and the other processes of an example that uses them.
//!
//! Each daemon, and every other process started here, runs this program again. None outlives its parent: its
//! standard input ends with the parent.

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

/// First argument of a program that is to be a daemon. Host number, port and socket follow.
pub(crate) const DAEMON: &str = "daemon";
/// How long another process may take to print a line, or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two running daemons with a registry of their own. Drop the processes that use them first.
pub struct LocalHosts {
    /// Dropped before the folder that holds their sockets.
    _daemons: Vec<HelperProcess>,
    directory: TempDir,
}

impl LocalHosts {
    /// Starts both daemons and returns when both serve.
    pub fn start(interrupt: &Interrupt) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("headworks-").tempdir()?;
        // The first daemon takes any free port. The second uses the same port at its own address.
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
                .ok_or_else(|| failed("printed no port"))?;
            daemons.push(daemon);
        }
        Ok(Self {
            _daemons: daemons,
            directory,
        })
    }

    /// The socket at which applications of host 0 or 1 attach to its daemon.
    pub fn socket(&self, host: usize) -> PathBuf {
        socket(self.directory.path(), host)
    }

    /// Attaches to the daemon of a host as an application called `name`.
    pub fn attach(&self, host: usize, name: &str) -> Outcome<Service> {
        Ok(Service::attach(self.socket(host), name)?)
    }

    /// A folder that is removed with the daemons.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts this program as an application of a host. The first line it prints must contain its ports.
    /// Returns the process and the addresses at which it can be reached.
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

/// The ports in a line.
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

/// Runs the daemon of a host in this process, until it is interrupted.
pub(crate) fn run_daemon(host: &str, port: &str, socket: &str, interrupt: &Interrupt) -> Outcome {
    let (Ok(host), Ok(port)) = (host.parse(), port.parse()) else {
        return Err(Failure::BadInput(format!(
            "{host} {port}: not a host number and a port"
        )));
    };
    let device = headworks::open(&format!("soft:h{}", host + 1))?;
    let life = u64::from(std::process::id());
    let config = ServerConfig {
        identity: Identity::open(address(host), life),
        port,
        sockets: vec![socket.into()],
        is_for_all: false,
        metrics: None,
        registry: Some(headworks::registry()?),
        ecn: None,
        resctrl: None,
        numa: Default::default(),
        drain: Duration::ZERO,
        daemon: DaemonLimits {
            // Both hosts are this machine.
            direct: true,
            ..DaemonLimits::default()
        },
    };
    let mut shell = DaemonServer::open(device, &config)?;
    say(format!("serving at port {}\n", shell.port()).as_bytes())?;
    shell.run(interrupt, |_| {})?;
    Ok(())
}

/// Another process of this program. Dropping it ends the process.
pub struct HelperProcess(Child);

impl HelperProcess {
    fn start(args: &[&str], directory: &Path) -> Outcome<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(args)
            .env(STARTED, "1")
            .env("HEADWORKS_FABRIC", directory.join("fabric"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C at a terminal must reach only the parent, which ends this process in an orderly way.
            .process_group(0)
            .spawn()?;
        Ok(Self(child))
    }

    /// Waits for the next line that the process prints.
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
                WakeReason::Deadline => return Err(failed("printed no line in time")),
                _ if said.read(&mut byte)? == 0 => return Err(failed("ended")),
                _ => line.extend(byte),
            }
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// Ends the process, whose work is done. Fails if its exit status is not success.
    pub fn finish(mut self) -> Outcome {
        match self.end()? {
            status if status.success() => Ok(()),
            status => Err(failed(&status.to_string())),
        }
    }

    fn end(&mut self) -> std::io::Result<ExitStatus> {
        drop(self.0.stdin.take());
        let until = clock::now() + PATIENCE;
        // Its output ends when it does.
        if let Some(mut said) = self.0.stdout.take() {
            loop {
                let woken = Waiter::default().wait(&[said.as_fd()], Some(until), |_| false);
                match woken {
                    Ok(WakeReason::Fd) if said.read(&mut [0; 1024])? > 0 => {}
                    Ok(WakeReason::Fd) => break,
                    // The process hangs.
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
        // The process is no longer needed, so its exit status does not matter.
        let _ = self.end();
    }
}

fn failed(what: &str) -> Failure {
    Failure::Failed(format!("another process of this program: {what}"))
}

/// Watches the parent, if another process of this program started this one.
pub(crate) struct ParentWatch(Option<Arc<AtomicBool>>);

impl ParentWatch {
    /// Makes this process end as by SIGTERM when the parent is gone or closes this process's standard input.
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

    /// Whether the parent's end is the reason why this process ends.
    pub(crate) fn is_gone(&self) -> bool {
        let gone = self.0.as_ref();
        gone.is_some_and(|gone| gone.load(Ordering::Relaxed))
    }

    /// Removes the folder of [`LocalHosts`] if nothing is in it any more: its owner is gone. The last process that
    /// leaves succeeds. Does nothing in a process that no other process of this program started.
    pub(crate) fn leave(&self) {
        if self.0.is_none() {
            return;
        }
        let registry = std::env::var_os("HEADWORKS_FABRIC").map(PathBuf::from);
        if let Some(folder) = registry.as_deref().and_then(Path::parent) {
            // Another process still has files there.
            let _ = std::fs::remove_dir(folder);
        }
    }
}
