//! Daemons, and the processes beside them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headworks::daemon::config::Config;
use headworks::daemon::shell::{MetricsAt, Shell, ShellConfig};
use headworks::daemon::{Identity, metrics};
use headworks::service::{Service, metrics_of};
use headworks::stage::Interrupt;
use headworks::verbs::DeviceName;
use rustix::process::Pid;
use tempfile::TempDir;

use super::control::Told;
use super::native::open;
use super::{Found, Role, failed};
use crate::external::{ExternalError, Running};
use crate::probe;
use crate::transports::ArmError;

/// How long a process of ours may take to be there.
const PATIENCE: Duration = Duration::from_secs(20);
/// The name of a process that plays a role.
pub(crate) const NAME: &str = "service";

/// This process is a daemon, until it is ended.
pub(super) fn serve(device: &str, address: SocketAddr, socket: PathBuf) -> Result<(), ArmError> {
    let interrupt = Interrupt::install().map_err(failed("signals"))?;
    let metrics = metrics_of(&socket);
    let config = ShellConfig {
        identity: Identity::open(address.ip(), u64::from(std::process::id())),
        port: address.port(),
        socket,
        is_for_all: false,
        metrics: Some(MetricsAt::Path(metrics)),
        drain: headworks::verbs::Duration::ZERO,
        daemon: Config::default(),
    };
    let shell = Shell::open(open(device)?, &config);
    let ended = shell.map_err(failed("a daemon"))?.run(&interrupt, |_| {});
    ended.map_err(failed("a daemon")).map(drop)
}

/// A host's daemon, and where it is.
struct Host {
    address: IpAddr,
    socket: PathBuf,
    daemon: Running,
}

/// Daemons, each on a processor and with a device of its own, until they are dropped.
pub struct Hosts {
    hosts: Vec<Host>,
    devices: Vec<DeviceName>,
    cpus: Vec<usize>,
    directory: TempDir,
    /// Applications that others connect to.
    serving: Vec<Running>,
}

impl Hosts {
    /// Starts a daemon for each device and its processor, and waits until all serve.
    pub fn start(
        devices: &[DeviceName],
        cpus: &[usize],
        stop: &AtomicBool,
    ) -> Result<Self, ArmError> {
        let directory = tempfile::Builder::new().prefix("headworks-").tempdir();
        let address = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        let addresses: Vec<IpAddr> = (1..).map(address).take(devices.len()).collect();
        let port = free_port(&addresses)?;
        let mut all = Self {
            hosts: Vec::new(),
            devices: devices.to_vec(),
            cpus: cpus.to_vec(),
            directory: directory.map_err(failed("private directory"))?,
            serving: Vec::new(),
        };
        for (at, (address, cpu)) in addresses.into_iter().zip(cpus).enumerate() {
            let socket = all.directory.path().join(format!("{at}.sock"));
            let role = Role::Daemon {
                device: devices[at].to_string(),
                address: SocketAddr::new(address, port),
                socket: socket.clone(),
            };
            let mut daemon = all.begin(&role, *cpu)?;
            let is_there = || Service::attach(&socket, "looks").is_ok();
            until("a daemon", &mut daemon, stop, is_there)?;
            all.hosts.push(Host {
                address,
                socket,
                daemon,
            });
        }
        Ok(all)
    }

    /// The socket of a host's daemon.
    pub fn socket(&self, host: usize) -> PathBuf {
        self.hosts[host].socket.clone()
    }

    /// A host's device.
    pub fn device(&self, host: usize) -> &DeviceName {
        &self.devices[host]
    }

    /// A port of a host's.
    pub fn at(&self, host: usize, port: u16) -> SocketAddr {
        SocketAddr::new(self.hosts[host].address, port)
    }

    /// The process of a host's daemon.
    pub fn daemon(&self, host: usize) -> Pid {
        self.hosts[host].daemon.pid()
    }

    /// A private directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts an application at that port of a host, on the host's processor, and waits until it serves.
    pub fn serve(
        &mut self,
        host: usize,
        port: u16,
        stop: &AtomicBool,
    ) -> Result<SocketAddr, ArmError> {
        let socket = self.socket(host);
        let mut serving = self.begin(&Role::Serving { socket, port }, self.cpus[host])?;
        let at = self.at(host, port);
        let service = Service::attach(&self.socket(0), "looks").map_err(failed("attaching"))?;
        let is_there = || service.connect(at).is_ok();
        until("an application", &mut serving, stop, is_there)?;
        self.serving.push(serving);
        Ok(at)
    }

    /// Starts a TCP server on that processor, and waits until it serves.
    pub fn serve_tcp(&mut self, cpu: usize, stop: &AtomicBool) -> Result<SocketAddr, ArmError> {
        let port = self.directory.path().join(format!("tcp-{cpu}"));
        let mut serving = self.begin(&Role::ServingTcp { port: port.clone() }, cpu)?;
        let mut number = None;
        until("a TCP server", &mut serving, stop, || {
            number = std::fs::read_to_string(&port).ok();
            number.is_some()
        })?;
        self.serving.push(serving);
        let number: u16 = number.unwrap_or_default().parse().map_err(failed("port"))?;
        Ok((Ipv4Addr::LOCALHOST, number).into())
    }

    /// What a measuring process on that processor finds.
    pub fn ask(
        &self,
        role: &Role,
        cpu: usize,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<Found, ArmError> {
        found(self.begin(role, cpu)?, limit, stop)
    }

    /// Starts a process on that processor.
    pub fn begin(&self, role: &Role, cpu: usize) -> Result<Running, ArmError> {
        start(role, cpu, self.directory.path())
    }

    /// Starts a process on that processor that is told what to do.
    pub fn tell(&self, role: &Role, cpu: usize) -> Result<Told, ArmError> {
        Told::start(role, cpu, self.directory.path())
    }

    /// Queue pairs of a host's daemon, by its own metrics.
    pub fn queue_pairs(&self, host: usize) -> Result<f64, ArmError> {
        self.metric(host, "headworks_queue_pairs")
    }

    /// One metric of a host's daemon, of all users together.
    pub fn metric(&self, host: usize, name: &str) -> Result<f64, ArmError> {
        let mut stream =
            UnixStream::connect(metrics_of(&self.hosts[host].socket)).map_err(failed("metrics"))?;
        let mut answer = String::new();
        stream
            .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
            .and_then(|()| stream.read_to_string(&mut answer))
            .map_err(failed("metrics"))?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let samples = metrics::parse(body).map_err(failed("metrics"))?;
        let named = samples.iter().filter(|one| one.name == name);
        Ok(named.map(|one| one.value).sum())
    }
}

/// What a process found.
pub fn found(running: Running, limit: Duration, stop: &AtomicBool) -> Result<Found, ArmError> {
    let finished = running.finish(limit, stop)?;
    if !finished.success {
        let line = finished.err.lines().next();
        return Err(ArmError(line.unwrap_or("failed without a word").to_owned()));
    }
    serde_json::from_str(&finished.out).map_err(failed("what was found"))
}

impl From<ExternalError> for ArmError {
    fn from(error: ExternalError) -> Self {
        Self(error.0)
    }
}

/// Starts a process that plays a role, with a registry of its own kind in `directory`.
pub(super) fn start(role: &Role, cpu: usize, directory: &Path) -> Result<Running, ArmError> {
    start_with(role, cpu, directory, Stdio::null())
}

/// [`start`] with such a standard input.
pub(super) fn start_with(
    role: &Role,
    cpu: usize,
    directory: &Path,
    input: Stdio,
) -> Result<Running, ArmError> {
    let text = serde_json::to_string(role).map_err(failed("role"))?;
    let mut command = probe::probe(&[NAME, &text])?;
    command
        .env("HEADWORKS_FABRIC", directory.join("fabric"))
        .stdin(input)
        .stdout(Stdio::piped());
    Ok(Running::start(&mut command, Some(cpu))?)
}

/// A port that is free at all of them.
fn free_port(addresses: &[IpAddr]) -> Result<u16, ArmError> {
    let failed = failed::<std::io::Error>;
    for _ in 0..100 {
        let first = TcpListener::bind((addresses[0], 0)).map_err(failed("a free port"))?;
        let port = first.local_addr().map_err(failed("a free port"))?.port();
        let mut others = addresses[1..].iter();
        if others.all(|other| TcpListener::bind((*other, port)).is_ok()) {
            return Ok(port);
        }
    }
    Err(ArmError("no port is free at all addresses".into()))
}

/// Waits until `holds`, for as long as the process runs.
fn until(
    what: &str,
    running: &mut Running,
    stop: &AtomicBool,
    mut holds: impl FnMut() -> bool,
) -> Result<(), ArmError> {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        if running.has_ended() {
            return Err(ArmError(format!("{what} ended before it was there")));
        }
        if stop.load(Ordering::Relaxed) {
            return Err(ArmError("interrupted".to_owned()));
        }
        if Instant::now() > deadline {
            return Err(ArmError(format!("{what} did not begin in {PATIENCE:?}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
