//! Daemons, and the processes beside them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headworks::daemon::config::Config;
use headworks::daemon::shell::{Shell, ShellConfig};
use headworks::daemon::{Identity, metrics};
use headworks::service::{Service, metrics_of};
use headworks::stage::Interrupt;
use headworks::verbs::DeviceName;
use rustix::process::Pid;
use tempfile::TempDir;

use super::control::Told;
use super::{Found, Role};
use crate::external::{ExternalError, Running};
use crate::probe;
use crate::transports::ArmError;

/// How long a process of ours may take to be there.
const PATIENCE: Duration = Duration::from_secs(20);
/// The name of a process that plays a role.
pub(crate) const NAME: &str = "service";

/// This process is a daemon, until it is ended.
pub(super) fn serve(device: &str, address: SocketAddr, socket: PathBuf) -> Result<(), ArmError> {
    let interrupt = Interrupt::install().map_err(|error| ArmError::at("signals", error))?;
    let name: DeviceName = device
        .parse()
        .map_err(|error| ArmError::at("device", error))?;
    let device = headworks::open(&name).map_err(|error| ArmError::at("device", error))?;
    let life = u64::from(std::process::id());
    let metrics = metrics_of(&socket);
    let config = ShellConfig {
        identity: Identity::open(address.ip(), life),
        port: address.port(),
        socket,
        is_for_all: false,
        metrics: Some(headworks::daemon::shell::MetricsAt::Path(metrics)),
        drain: headworks::verbs::Duration::ZERO,
        daemon: Config::default(),
    };
    let shell = Shell::open(device, &config);
    let mut shell = shell.map_err(|error| ArmError::at("a daemon", error))?;
    let ended = shell.run(&interrupt, |_| {});
    ended.map_err(|error| ArmError::at("a daemon", error))?;
    Ok(())
}

/// A daemon's process, and where it is.
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
    /// Daemons on the devices and processors, which are there: as many as there are of both.
    ///
    /// # Errors
    ///
    /// One does not begin to serve.
    pub fn start(
        devices: &[DeviceName],
        cpus: &[usize],
        stop: &AtomicBool,
    ) -> Result<Self, ArmError> {
        let directory = tempfile::Builder::new().prefix("headworks-").tempdir();
        let directory = directory.map_err(|error| ArmError::at("private directory", error))?;
        let address = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        let addresses: Vec<IpAddr> = (1..).map(address).take(devices.len()).collect();
        let port = free_port(&addresses)?;
        let mut all = Self {
            hosts: Vec::new(),
            devices: devices.to_vec(),
            cpus: cpus.to_vec(),
            directory,
            serving: Vec::new(),
        };
        for (at, (address, cpu)) in addresses.into_iter().zip(cpus).enumerate() {
            let socket = all.directory.path().join(format!("{at}.sock"));
            let role = Role::Daemon {
                device: devices[at].to_string(),
                address: SocketAddr::new(address, port),
                socket: socket.clone(),
            };
            let mut daemon = start(&role, Some(*cpu), all.directory.path())?;
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

    /// A private place.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// An application of a host's at a port there, on its processor.
    ///
    /// # Errors
    ///
    /// It does not begin to.
    pub fn serve(
        &mut self,
        host: usize,
        port: u16,
        stop: &AtomicBool,
    ) -> Result<SocketAddr, ArmError> {
        let socket = self.socket(host);
        let role = Role::Serving { socket, port };
        let mut serving = start(&role, Some(self.cpus[host]), self.directory.path())?;
        let at = self.at(host, port);
        let service = Service::attach(&self.socket(0), "looks");
        let service = service.map_err(super::failed("attaching"))?;
        let is_there = || service.connect(at).is_ok();
        until("an application", &mut serving, stop, is_there)?;
        self.serving.push(serving);
        Ok(at)
    }

    /// One that serves over TCP, on that processor.
    ///
    /// # Errors
    ///
    /// It does not begin to.
    pub fn serve_tcp(&mut self, cpu: usize, stop: &AtomicBool) -> Result<SocketAddr, ArmError> {
        let port = self.directory.path().join(format!("tcp-{cpu}"));
        let role = Role::ServingTcp { port: port.clone() };
        let mut serving = start(&role, Some(cpu), self.directory.path())?;
        let mut number = None;
        until("a TCP server", &mut serving, stop, || {
            number = std::fs::read_to_string(&port).ok();
            number.is_some()
        })?;
        self.serving.push(serving);
        let number = number.unwrap_or_default().parse();
        let number: u16 = number.map_err(|error| ArmError::at("port", error))?;
        Ok((Ipv4Addr::LOCALHOST, number).into())
    }

    /// What a process on that processor finds that asks.
    ///
    /// # Errors
    ///
    /// It failed, or took too long.
    pub fn ask(
        &self,
        role: &Role,
        cpu: usize,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<Found, ArmError> {
        found(self.begin(role, cpu)?, limit, stop)
    }

    /// The same, which is not waited for.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub fn begin(&self, role: &Role, cpu: usize) -> Result<Running, ArmError> {
        start(role, Some(cpu), self.directory.path())
    }

    /// One that is told what to do, on that processor.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub fn tell(&self, role: &Role, cpu: usize) -> Result<Told, ArmError> {
        Told::start(role, cpu, self.directory.path())
    }

    /// Queue pairs of a host's daemon, as it says itself.
    ///
    /// # Errors
    ///
    /// It does not.
    pub fn queue_pairs(&self, host: usize) -> Result<f64, ArmError> {
        self.metric(host, "headworks_queue_pairs")
    }

    /// One of a daemon's metrics, of all users together.
    ///
    /// # Errors
    ///
    /// It does not say.
    pub fn metric(&self, host: usize, name: &str) -> Result<f64, ArmError> {
        let samples = self.metrics(host)?;
        let own = samples.iter().filter(|one| one.name == name);
        Ok(own.map(|one| one.value).sum())
    }

    /// What a host's daemon says of itself.
    ///
    /// # Errors
    ///
    /// It does not.
    pub fn metrics(&self, host: usize) -> Result<Vec<metrics::Sample>, ArmError> {
        use std::io::{Read, Write};
        let at = metrics_of(&self.hosts[host].socket);
        let failed = |error: std::io::Error| ArmError::at("metrics", error);
        let mut stream = std::os::unix::net::UnixStream::connect(at).map_err(failed)?;
        stream
            .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
            .map_err(failed)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(failed)?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        metrics::parse(body).map_err(|error| ArmError::at("metrics", error))
    }
}

/// What a process found.
///
/// # Errors
///
/// It failed, or took too long.
pub fn found(running: Running, limit: Duration, stop: &AtomicBool) -> Result<Found, ArmError> {
    let finished = running.finish(limit, stop).map_err(external)?;
    if !finished.success {
        let line = finished
            .err
            .lines()
            .next()
            .unwrap_or("failed without a word");
        return Err(ArmError(line.to_owned()));
    }
    serde_json::from_str(&finished.out).map_err(|error| ArmError::at("what was found", error))
}

fn external(error: ExternalError) -> ArmError {
    ArmError(error.0)
}

/// Starts a process that plays a role, with a registry of its own kind in `directory`.
pub(super) fn start(
    role: &Role,
    cpu: Option<usize>,
    directory: &Path,
) -> Result<Running, ArmError> {
    start_with(role, cpu, directory, Stdio::null())
}

/// The same, with such a standard input.
pub(super) fn start_with(
    role: &Role,
    cpu: Option<usize>,
    directory: &Path,
    input: Stdio,
) -> Result<Running, ArmError> {
    let text = serde_json::to_string(role).map_err(|error| ArmError::at("role", error))?;
    let mut command = probe::probe(&[NAME, &text]).map_err(external)?;
    command
        .env("HEADWORKS_FABRIC", directory.join("fabric"))
        .stdin(input)
        .stdout(Stdio::piped());
    Running::start(&mut command, cpu).map_err(external)
}

/// A port that is free at all of them.
fn free_port(addresses: &[IpAddr]) -> Result<u16, ArmError> {
    let failed = |error: std::io::Error| ArmError::at("a free port", error);
    for _ in 0..100 {
        let first = TcpListener::bind((addresses[0], 0)).map_err(failed)?;
        let port = first.local_addr().map_err(failed)?.port();
        let mut others = addresses[1..].iter();
        if others.all(|other| TcpListener::bind((*other, port)).is_ok()) {
            return Ok(port);
        }
    }
    Err(ArmError("no port is free at all addresses".into()))
}

/// Waits until a process of ours is where it should be.
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
