//! Daemons in the process of a test.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use headworks_daemon::Identity;
use headworks_daemon::config::{DaemonConfig, Metrics};
use headworks_daemon::limits::DaemonLimits;
use headworks_daemon::server::{DaemonServer, MetricsReader, ServerConfig, ServerError};
use headworks_shm::RegistryError;
use headworks_softnic::SoftProvider;
use headworks_verbs::{Device, DeviceName, Duration, OpenError};

use super::{Fabric, Rules};
use crate::service::{Service, ServiceError};

/// How often another port is tried if one of the hosts cannot have it.
const PORTS_TRIED: u32 = 100;

/// Number that no other daemon of this process has, and no other directory.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Error that keeps the daemons of a test from starting, or that ended one of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonsError {
    /// The private directory cannot be made.
    #[error("no directory for the daemons can be made below {}: {source}", .parent.display())]
    Directory {
        /// Directory in which it was to be.
        parent: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The private fabric cannot be made.
    #[error(transparent)]
    Fabric(#[from] RegistryError),
    /// A device cannot be opened.
    #[error(transparent)]
    Device(#[from] OpenError),
    /// A daemon cannot start, or has failed.
    #[error(transparent)]
    Daemon(#[from] ServerError),
    /// No thread can be started, or its descriptors cannot be made.
    #[error("no thread can be started for a daemon: {0}")]
    Thread(io::Error),
}

/// Daemons of several hosts in this process, for tests of programs that use a
/// [`Service`]. Nothing needs to be installed, and nothing is left behind.
///
/// Each host has a device on a private [`Fabric`], a daemon on a thread of its own, an address in 127.0.0.0/8, and a
/// socket in a private directory. Different `Daemons` do not reach each other, so tests may run in parallel. The
/// [module documentation](super#streams) has examples. As every daemon, they raise this process's limit of open files as
/// far as that is allowed.
///
/// Dropping it ends all daemons as [`Daemons::kill`] does, and removes the directory. Threads of the devices may end a
/// little later.
pub struct Daemons {
    hosts: Vec<Host>,
    limits: DaemonLimits,
    /// Whether the hosts count as one machine.
    is_direct: bool,
    /// Port of the streams between daemons: the same on all hosts.
    port: u16,
    fabric: Fabric,
    /// Dropped last: the fabric and the sockets are in it.
    directory: Directory,
}

/// Configuration of [`Daemons`]: see [`Daemons::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct DaemonsBuilder {
    hosts: Vec<HostConfig>,
    limits: DaemonLimits,
    is_direct: bool,
    parent: PathBuf,
}

#[derive(Clone, Debug, Default)]
struct HostConfig {
    /// Options of the device, as in its name.
    options: String,
    /// Rules of the device, if they are not those of its options.
    rules: Option<Rules>,
    /// Configuration of the daemon, if it has one of its own.
    settings: Option<DaemonConfig>,
}

/// A host: what outlives its daemon.
struct Host {
    address: IpAddr,
    socket: PathBuf,
    device: DeviceName,
    rules: Option<Rules>,
    settings: Option<DaemonConfig>,
    /// The daemon, if it runs.
    daemon: Mutex<Option<RunningDaemon>>,
}

/// A daemon on its thread.
struct RunningDaemon {
    thread: JoinHandle<Result<(), ServerError>>,
    request: Arc<AtomicU8>,
    /// The daemon looks at `request` once this is closed.
    wakes: UnixStream,
    metrics: MetricsReader,
}

/// Ways to end a daemon, as stored in [`RunningDaemon::request`]. 0 means that it goes on.
const STOP: u8 = 1;
const KILL: u8 = 2;

impl DaemonsBuilder {
    /// Gives the device of a host these options, as in the device's name: for example `hostile,seed=7,kills=100`.
    ///
    /// # Panics
    ///
    /// If there is no such host.
    pub fn options(mut self, host: usize, options: impl Into<String>) -> Self {
        self.hosts[host].options = options.into();
        self
    }

    /// Makes the device of a host inject faults by these rules, instead of those that its options select. The same
    /// rules serve each daemon of the host: after a restart, the faults are those of the first life.
    ///
    /// # Panics
    ///
    /// If there is no such host.
    pub fn rules(mut self, host: usize, rules: Rules) -> Self {
        self.hosts[host].rules = Some(rules);
        self
    }

    /// Sets the sizes and limits of all daemons.
    pub fn limits(mut self, limits: DaemonLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Has all hosts count as one machine: their applications may use the direct path, as `direct = true` in a daemon's
    /// configuration has it. Without this, each host stands for a machine of its own, whatever the limits say.
    pub fn direct(mut self) -> Self {
        self.is_direct = true;
        self
    }

    /// Gives the daemon of a host the limits, the metrics endpoint and the sections `[ecn]` and `[resctrl]` of a
    /// configuration. It has no effect on what else the configuration sets.
    ///
    /// # Panics
    ///
    /// If there is no such host, or the section `[ecn]` is not legal.
    pub fn configure(mut self, host: usize, settings: DaemonConfig) -> Self {
        let hook = settings.ecn_hook();
        assert!(hook.is_ok(), "{hook:?}");
        self.hosts[host].settings = Some(settings);
        self
    }

    /// Makes the private directory below `parent`, and not below the system's directory for temporary files.
    pub fn below(mut self, parent: impl Into<PathBuf>) -> Self {
        self.parent = parent.into();
        self
    }

    /// Starts the daemons. Applications can attach when this returns.
    ///
    /// # Errors
    ///
    /// [`DaemonsError`].
    pub fn start(self) -> Result<Daemons, DaemonsError> {
        let directory = Directory::below(&self.parent)?;
        let fabric = Fabric::new(&directory.path)?;
        let hosts = (1u8..).zip(self.hosts).map(|(number, config)| {
            let options = config.options.trim_matches(',');
            let comma = if options.is_empty() { "" } else { "," };
            let device: DeviceName = format!("soft:h{number}{comma}{options}")
                .parse()
                .map_err(OpenError::from)?;
            let rules = match config.rules {
                None => SoftProvider::rules(&device)?,
                rules => rules,
            };
            Ok(Host {
                address: directory.address(number).into(),
                socket: directory.path.join(format!("{number}.sock")),
                device,
                rules,
                settings: config.settings,
                daemon: Mutex::new(None),
            })
        });
        let hosts = hosts.collect::<Result<_, DaemonsError>>()?;
        let mut daemons = Daemons {
            hosts,
            limits: self.limits,
            is_direct: self.is_direct,
            port: 0,
            fabric,
            directory,
        };
        let mut tried = 1;
        while let Err(error) = daemons.start_all() {
            let is_taken = matches!(&error, DaemonsError::Daemon(ServerError::Listen(error))
                if error.is_address_unavailable());
            if tried == PORTS_TRIED || !is_taken {
                return Err(error);
            }
            // The next try takes another port.
            tried += 1;
            for host in 0..daemons.hosts.len() {
                daemons.kill(host)?;
            }
        }
        Ok(daemons)
    }
}

impl Daemons {
    /// Starts the daemons of this many hosts, which are numbered from 0, without faults.
    ///
    /// # Errors
    ///
    /// [`DaemonsError`].
    ///
    /// # Panics
    ///
    /// As [`Daemons::builder`].
    pub fn start(hosts: usize) -> Result<Self, DaemonsError> {
        Self::builder(hosts).start()
    }

    /// Begins to configure the daemons of this many hosts, 1 to 254.
    ///
    /// # Panics
    ///
    /// If there are to be more hosts, or none.
    pub fn builder(hosts: usize) -> DaemonsBuilder {
        assert!(
            (1..=254).contains(&hosts),
            "{hosts} hosts: 1 to 254 are allowed"
        );
        DaemonsBuilder {
            hosts: vec![HostConfig::default(); hosts],
            limits: DaemonLimits::default(),
            is_direct: false,
            parent: std::env::temp_dir(),
        }
    }

    /// Attaches to the daemon of a host, as an application called `name`.
    ///
    /// # Errors
    ///
    /// As [`Service::attach`]: [`ServiceError::NoDaemon`] while the host's daemon does not run.
    ///
    /// # Panics
    ///
    /// If there is no such host.
    pub fn attach(&self, host: usize, name: &str) -> Result<Service, ServiceError> {
        Service::attach(self.socket(host), name)
    }

    /// Returns the address of a port of a host, to [connect](Service::connect) to.
    ///
    /// # Panics
    ///
    /// If there is no such host.
    pub fn address(&self, host: usize, port: u16) -> SocketAddr {
        SocketAddr::new(self.hosts[host].address, port)
    }

    /// Returns the path of the socket of a host's daemon: the value of `HEADWORKS_DAEMON` for a program that calls
    /// [`Service::open`].
    ///
    /// # Panics
    ///
    /// If there is no such host.
    pub fn socket(&self, host: usize) -> &Path {
        &self.hosts[host].socket
    }

    /// Returns the private directory, which is removed when this is dropped. A test may keep files of its own there.
    pub fn directory(&self) -> &Path {
        &self.directory.path
    }

    /// Returns how many faults the rules of a host's device have asked for since the first start
    /// ([`Rules::verdicts`]); 0 if the device is not hostile.
    ///
    /// # Panics
    ///
    /// If there is no such host.
    pub fn faults(&self, host: usize) -> u64 {
        self.hosts[host].rules.as_ref().map_or(0, Rules::verdicts)
    }

    /// Returns the metrics of a host's daemon in Prometheus's text format, as `headworks daemon` serves them. `None` if
    /// the daemon does not run. [`parse`](crate::daemon::metrics::parse) parses them.
    ///
    /// # Panics
    ///
    /// If there is no such host.
    pub fn metrics(&self, host: usize) -> Option<String> {
        // The daemon may be ended by another thread meanwhile.
        let metrics = self.hosts[host].daemon().as_ref()?.metrics.clone();
        metrics.text()
    }

    /// Returns whether the daemon of a host runs.
    ///
    /// # Panics
    ///
    /// If there is no such host.
    pub fn is_running(&self, host: usize) -> bool {
        let daemon = self.hosts[host].daemon();
        daemon
            .as_ref()
            .is_some_and(|daemon| !daemon.thread.is_finished())
    }

    /// Ends the daemon of a host as a crash does, without a word to anybody, and returns when it is gone. Its
    /// applications see [`ServiceError::DaemonGone`], and connections of other hosts to it are reset. Does nothing if
    /// the daemon does not run.
    ///
    /// Its socket is gone too. A daemon that is killed by a signal leaves the file, which the next daemon replaces.
    ///
    /// # Errors
    ///
    /// [`DaemonsError::Daemon`] if the daemon had failed before.
    ///
    /// # Panics
    ///
    /// If there is no such host, or the daemon has panicked.
    pub fn kill(&self, host: usize) -> Result<(), DaemonsError> {
        self.end(host, KILL)
    }

    /// Ends the daemon of a host in order, without draining, and returns when it is gone. Connections are reset, and
    /// applications and other daemons are told. Does nothing if the daemon does not run.
    ///
    /// # Errors
    ///
    /// As [`Daemons::kill`].
    ///
    /// # Panics
    ///
    /// As [`Daemons::kill`].
    pub fn stop(&self, host: usize) -> Result<(), DaemonsError> {
        self.end(host, STOP)
    }

    fn end(&self, host: usize, how: u8) -> Result<(), DaemonsError> {
        match self.hosts[host].daemon().take() {
            Some(daemon) => daemon.end(how),
            None => Ok(()),
        }
    }

    /// Starts the daemon of a host again, at the same address and socket. [Kills](Daemons::kill) it first if it runs.
    /// Applications can attach when this returns.
    ///
    /// # Errors
    ///
    /// [`DaemonsError`].
    ///
    /// # Panics
    ///
    /// As [`Daemons::kill`].
    pub fn restart(&self, host: usize) -> Result<(), DaemonsError> {
        let host = &self.hosts[host];
        let mut daemon = host.daemon();
        if let Some(daemon) = daemon.take() {
            daemon.end(KILL)?;
        }
        *daemon = Some(self.start_one(host, self.port)?.1);
        Ok(())
    }

    /// Starts the daemons of all hosts. The first takes any free port, which the others then take at their addresses.
    fn start_all(&mut self) -> Result<(), DaemonsError> {
        self.port = 0;
        for at in 0..self.hosts.len() {
            let host = &self.hosts[at];
            let (port, daemon) = self.start_one(host, self.port)?;
            *host.daemon() = Some(daemon);
            self.port = port;
        }
        Ok(())
    }

    /// Starts a daemon. Returns the port of the streams between daemons too.
    fn start_one(&self, host: &Host, port: u16) -> Result<(u16, RunningDaemon), DaemonsError> {
        let device = self.open(host)?;
        let limits = host.settings.as_ref().map(|settings| &settings.limits);
        let settings = host.settings.clone().unwrap_or_default();
        let config = ServerConfig {
            identity: Identity::open(host.address, NEXT.fetch_add(1, Ordering::Relaxed)),
            port,
            sockets: vec![host.socket.clone()],
            is_for_all: false,
            metrics: match settings.metrics.clone() {
                Some(Metrics::At(at)) => Some(at),
                Some(Metrics::Off) | None => None,
            },
            registry: Some(self.fabric.fabric.clone()),
            // It was checked when it was given.
            ecn: settings.ecn_hook().unwrap_or_default(),
            resctrl: settings.resctrl,
            numa: settings.numa.unwrap_or_default(),
            drain: Duration::ZERO,
            daemon: DaemonLimits {
                direct: self.is_direct,
                ..limits.unwrap_or(&self.limits).clone()
            },
        };
        let server = DaemonServer::open(device, &config)?;
        let port = server.port();
        let name = format!("daemon of {}", host.device.name().unwrap_or_default());
        Ok((port, RunningDaemon::start(name, server)?))
    }

    fn open(&self, host: &Host) -> Result<Arc<dyn Device>, OpenError> {
        let name = host.device.to_string();
        match &host.rules {
            Some(rules) => self.fabric.open_with_rules(rules.clone(), &name),
            None => self.fabric.open(&name),
        }
    }
}

impl Drop for Daemons {
    /// # Panics
    ///
    /// If a daemon has failed or panicked, unless this thread panics already.
    fn drop(&mut self) {
        // All daemons end before one of them makes this thread panic.
        let hosts = 0..self.hosts.len();
        let ended: Vec<_> = hosts.map(|host| self.end(host, KILL)).collect();
        for (host, ended) in ended.into_iter().enumerate() {
            if let Err(error) = ended
                && !std::thread::panicking()
            {
                panic!("the daemon of host {host} has failed: {error}");
            }
        }
    }
}

impl fmt::Debug for Daemons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sockets: Vec<_> = self.hosts.iter().map(|host| &host.socket).collect();
        f.debug_struct("Daemons")
            .field("sockets", &sockets)
            .finish_non_exhaustive()
    }
}

impl Host {
    fn daemon(&self) -> MutexGuard<'_, Option<RunningDaemon>> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunningDaemon {
    fn start(name: String, mut server: DaemonServer) -> Result<Self, DaemonsError> {
        let (wakes, woken) = UnixStream::pair().map_err(DaemonsError::Thread)?;
        let request = Arc::new(AtomicU8::new(0));
        let requested = request.clone();
        let metrics = server.metrics();
        let serve = move || {
            server.run_until(&woken, || requested.load(Ordering::Acquire) != 0)?;
            match requested.load(Ordering::Acquire) {
                STOP => server.shut_down(),
                _ => Ok(()),
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(serve);
        Ok(Self {
            thread: thread.map_err(DaemonsError::Thread)?,
            request,
            wakes,
            metrics,
        })
    }

    /// Ends the daemon and waits until its thread has ended.
    fn end(self, how: u8) -> Result<(), DaemonsError> {
        self.request.store(how, Ordering::Release);
        drop(self.wakes);
        match self.thread.join() {
            Ok(ended) => Ok(ended?),
            // A panic while another is handled would abort the process and hide both.
            Err(_) if std::thread::panicking() => Ok(()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// A private directory, which is removed when this is dropped.
struct Directory {
    path: PathBuf,
    number: u64,
}

impl Directory {
    fn below(parent: &Path) -> Result<Self, DaemonsError> {
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("headworks-daemons-{}-{number}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, number }),
                // A process that had the same id was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    let parent = parent.to_owned();
                    return Err(DaemonsError::Directory { parent, source });
                }
            }
        }
    }

    /// Returns the address of a host. Processes and directories mostly have addresses of their own, so that few ports
    /// are found taken.
    fn address(&self, host: u8) -> Ipv4Addr {
        let mixed = u64::from(std::process::id()).wrapping_mul(251) + self.number;
        Ipv4Addr::new(127, 1 + (mixed >> 8) as u8 % 250, mixed as u8, host)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A file that cannot be removed stays in the directory of temporary files.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
