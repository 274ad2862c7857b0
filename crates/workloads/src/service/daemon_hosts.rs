//! Daemons and the processes that use them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use headworks::daemon::config::DaemonConfig;
use headworks::daemon::limits::DaemonLimits;
use headworks::daemon::server::{DaemonServer, MetricsAt, ServerConfig};
use headworks::daemon::{Identity, metrics};
use headworks::net::Interrupt;
use headworks::service::metrics_of;
use headworks::verbs::DeviceName;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::control::{ControlledChild, reply};
use super::controlled_app::AppReply;
use super::load::LoadFigure;
use super::native_verbs::open;
use super::{Result, Role, failed};
use crate::error::WorkloadError;

/// How long a child process may take until it is ready.
const PATIENCE: Duration = Duration::from_secs(20);

/// Settings of a daemon, beside its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonOptions {
    /// Text of its configuration file.
    pub config: String,
    /// Whether its applications may use the direct path. Else its host stands for a machine of its own.
    pub is_direct: bool,
    /// Whether it hands out the memory of its receive pool in turn, instead of where it was released most recently.
    pub is_pool_in_turn: bool,
}

/// Runs a daemon in this process until it is told to end.
pub(super) fn serve(
    device: &str,
    address: SocketAddr,
    socket: PathBuf,
    options: &DaemonOptions,
) -> Result<()> {
    let settings = DaemonConfig::parse(&options.config).map_err(failed("a daemon's settings"))?;
    let interrupt = Interrupt::install().map_err(failed("signals"))?;
    let metrics = metrics_of(&socket);
    let config = ServerConfig {
        identity: Identity::open(address.ip(), u64::from(std::process::id())),
        port: address.port(),
        sockets: vec![socket],
        is_for_all: false,
        metrics: Some(MetricsAt::Path(metrics)),
        // As usual: daemons of one machine meet over a Unix socket.
        registry: Some(headworks::registry().map_err(failed("the registry"))?),
        ecn: None,
        resctrl: None,
        numa: Default::default(),
        drain: headworks::verbs::Duration::ZERO,
        daemon: DaemonLimits {
            direct: options.is_direct,
            is_pool_in_turn: options.is_pool_in_turn,
            ..settings.limits
        },
    };
    let shell = DaemonServer::open(open(device)?, &config);
    let mut shell = shell.map_err(failed("a daemon"))?;
    reply(&AppReply::Ready)?;
    let ended = shell.run(&interrupt, |_| {});
    ended.map_err(failed("a daemon")).map(drop)
}

/// A host's daemon and where it runs.
struct DaemonHost {
    address: IpAddr,
    socket: PathBuf,
    device: DeviceName,
    cpu: usize,
    daemon: ControlledChild,
}

/// Daemons, each on a processor and with a device of its own. They end when this is dropped.
pub struct DaemonHosts {
    /// Applications that others connect to. Drop order matters: applications, daemons, directory.
    serving: Vec<ControlledChild>,
    hosts: Vec<DaemonHost>,
    directory: TempDir,
}

impl DaemonHosts {
    /// Starts a daemon for each device on its processor, and waits until all serve.
    pub fn start(devices: &[DeviceName], cpus: &[usize], stop: &AtomicBool) -> Result<Self> {
        let options = vec![DaemonOptions::default(); devices.len()];
        Self::start_with(devices, cpus, &options, stop)
    }

    /// Starts a daemon for each device as [`start`](Self::start) does, each with settings of its own.
    pub fn start_with(
        devices: &[DeviceName],
        cpus: &[usize],
        options: &[DaemonOptions],
        stop: &AtomicBool,
    ) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("headworks-").tempdir();
        let address = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        let addresses: Vec<IpAddr> = (1..).map(address).take(devices.len()).collect();
        let port = free_port(&addresses)?;
        let mut all = Self {
            hosts: Vec::new(),
            directory: directory.map_err(failed("private directory"))?,
            serving: Vec::new(),
        };
        let places = addresses.into_iter().zip(cpus);
        for ((address, cpu), (device, options)) in places.zip(devices.iter().zip(options)) {
            let socket = all.directory().join(format!("{address}.sock"));
            let role = Role::Daemon {
                device: device.to_string(),
                address: SocketAddr::new(address, port),
                socket: socket.clone(),
                options: options.clone(),
            };
            let mut daemon = all.spawn_child(&role, *cpu)?;
            daemon.expect_reply(AppReply::Ready, PATIENCE, stop)?;
            all.hosts.push(DaemonHost {
                address,
                socket,
                device: device.clone(),
                cpu: *cpu,
                daemon,
            });
        }
        Ok(all)
    }

    /// Returns the socket of a host's daemon.
    pub fn socket(&self, host: usize) -> PathBuf {
        self.hosts[host].socket.clone()
    }

    /// Returns a host's device.
    pub fn device(&self, host: usize) -> &DeviceName {
        &self.hosts[host].device
    }

    /// Returns the address of a port of a host.
    pub fn at(&self, host: usize, port: u16) -> SocketAddr {
        SocketAddr::new(self.hosts[host].address, port)
    }

    /// Returns the process id of a host's daemon.
    pub fn daemon(&self, host: usize) -> Pid {
        self.hosts[host].daemon.pid()
    }

    /// Returns a private directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the process ids of all daemons and of the applications that others connect to.
    pub fn pids(&self) -> Vec<Pid> {
        let daemons = self.hosts.iter().map(|host| host.daemon.pid());
        let serving = self.serving.iter().map(ControlledChild::pid);
        daemons.chain(serving).collect()
    }

    /// Starts an application at a port of a host, on the host's processor, and waits until it serves.
    pub fn serve(&mut self, host: usize, port: u16, stop: &AtomicBool) -> Result<SocketAddr> {
        let socket = self.socket(host);
        let mut serving =
            self.spawn_child(&Role::Serving { socket, port }, self.hosts[host].cpu)?;
        serving.expect_reply(AppReply::Ready, PATIENCE, stop)?;
        self.serving.push(serving);
        Ok(self.at(host, port))
    }

    /// Starts a TCP server on processor `cpu`, and waits until it serves.
    pub fn serve_tcp(&mut self, cpu: usize, stop: &AtomicBool) -> Result<SocketAddr> {
        let mut serving = self.spawn_child(&Role::ServingTcp, cpu)?;
        let port: u16 = serving.receive(PATIENCE, stop)?;
        self.serving.push(serving);
        Ok((Ipv4Addr::LOCALHOST, port).into())
    }

    /// Runs a process that plays [`Role::Load`] on processor `cpu`, and returns its figure.
    pub fn run_child(
        &self,
        role: &Role,
        cpu: usize,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<LoadFigure> {
        self.spawn_child(role, cpu)?.receive(limit, stop)
    }

    /// Starts a process on processor `cpu`.
    pub fn spawn_child(&self, role: &Role, cpu: usize) -> Result<ControlledChild> {
        ControlledChild::start(role, cpu, self.directory())
    }

    /// Returns the number of queue pairs of a host's daemon, from its metrics.
    pub fn queue_pairs(&self, host: usize) -> Result<f64> {
        self.metric(host, "headworks_queue_pairs")
    }

    /// Returns one metric of a host's daemon, summed over all users.
    pub fn metric(&self, host: usize, name: &str) -> Result<f64> {
        let samples = self.metrics(host)?;
        let named = samples.iter().filter(|one| one.name == name);
        Ok(named.map(|one| one.value).sum())
    }

    /// Returns all metrics of a host's daemon.
    pub fn metrics(&self, host: usize) -> Result<Vec<metrics::Sample>> {
        let at = metrics_of(&self.hosts[host].socket);
        let mut answer = String::new();
        let asked = UnixStream::connect(at).and_then(|mut stream| {
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            stream.read_to_string(&mut answer)
        });
        asked.map_err(failed("metrics"))?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        metrics::parse(body).map_err(failed("metrics"))
    }
}

/// Returns a port that is free at all the addresses.
fn free_port(addresses: &[IpAddr]) -> Result<u16> {
    for _ in 0..100 {
        let first = TcpListener::bind((addresses[0], 0));
        let first = first.and_then(|first| Ok((first.local_addr()?.port(), first)));
        let (port, _first) = first.map_err(failed("a free port"))?;
        let mut others = addresses[1..].iter();
        if others.all(|other| TcpListener::bind((*other, port)).is_ok()) {
            return Ok(port);
        }
    }
    Err(WorkloadError("no port is free at all addresses".into()))
}
