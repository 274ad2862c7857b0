//! The daemon as a program: its sockets, its clock, its sleep. [`Daemon`] makes all decisions.
//!
//! One thread steps the daemon while there is something to do. When there is not, it yields for a while
//! ([`net::waiting`](headworks_net::waiting)), then arms everything that can wake it, and sleeps. If the daemon has
//! several workers, each has a thread of its own that does the same, and the first thread serves applications and other
//! daemons. Each dial to another daemon runs on its own thread, because it may take as long as the network likes. Another
//! thread serves [`metrics`], because a client may be slow.
//!
//! Others can provoke much of what the daemon logs. The subscriber must limit these lines
//! ([`log_ratelimit`](crate::log_ratelimit)), and must not wait for the reader of the log.
//!
//! A daemon that is told to terminate drains: it accepts nothing new, and ends when the last connection has
//! ended or when [`ServerConfig::drain`] is over.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use headworks_net::packets::PacketListener;
use headworks_net::{
    ControlStream, Interrupt, Listener, NetError, WaitPhase, Waiter, WakeReason, clock,
};
use headworks_runtime::{ActorContext, StandaloneContext};
use headworks_shm::{Registry, process_limits};
use headworks_verbs::{Device, Duration, Instant};
use rustix::event::{PollFd, PollFlags, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::config::NumaChoice;
use crate::daemon::{Daemon, Identity, Output, OutputFile};
use crate::ecn_settings::EcnHook;
#[cfg(doc)]
use crate::ids::Tenant;
use crate::ids::{PeerId, SessionId};
use crate::limits::{DaemonLimits, LimitsError};
use crate::metrics::{self, ProcessMetrics};
use crate::resctrl::ResctrlSettings;
use crate::snapshot::{CacheSnapshot, Snapshot};

mod applications;
mod close_queue;
mod daemons;
mod ecn_command;
mod messages;
mod metrics_endpoint;
pub mod notify;
mod numa;
mod poll_budget;
mod resctrl;
mod subscriptions;
mod worker_threads;

pub use crate::config::MetricsAt;
use applications::Attached;
use ecn_command::{EcnCommands, EcnThread};
pub use messages::MetricsReader;
use messages::{ServerMessage, ServerSender};
use metrics_endpoint::MetricsServer;
use poll_budget::PollBudget;
use subscriptions::Subscriptions;
use worker_threads::WorkerThreads;

/// Maximum number of packets or messages taken from one socket in a row.
const BATCH: usize = 64;
/// Busy turns between two looks at the sockets.
const SOCKETS_EVERY: u32 = 64;
/// While work is left, the daemon yields the core every this many turns; after a turn that leaves none,
/// always. An application that shares the core can then read what the turn brought, or send more.
const OFFERED_EVERY: u32 = 8;
/// How long the daemon accepts no callers after it ran out of descriptors.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the daemon, when it ends, tries to send the last messages.
const FAREWELL: Duration = Duration::from_millis(200);

/// Configuration of a daemon: its identity, sockets and limits.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address and identity of this daemon.
    pub identity: Identity,
    /// TCP port of the streams between daemons: the same on all hosts.
    pub port: u16,
    /// Paths of the sockets that applications attach to, at least one. The applications of a user at each of them are a
    /// [tenant](Tenant).
    pub sockets: Vec<PathBuf>,
    /// Whether applications of every user may attach, or only those of the daemon's own user.
    pub is_for_all: bool,
    /// Where metrics are served in Prometheus's text format, if anywhere.
    pub metrics: Option<MetricsAt>,
    /// Registry in which daemons of this machine find each other, if there is one: those in it meet over a Unix
    /// socket, wherever their network namespaces are.
    pub registry: Option<Arc<Registry>>,
    /// Commands that lower and restore the RNIC's threshold for congestion marks, if there are any.
    pub ecn: Option<EcnHook>,
    /// The daemon's part of the last-level cache, if it is to have one.
    pub resctrl: Option<ResctrlSettings>,
    /// Processors on which the daemon's threads run. Its memory is on the device's node.
    pub numa: NumaChoice,
    /// How long connections may go on after the daemon is told to terminate.
    pub drain: Duration,
    /// Sizes and limits.
    pub daemon: DaemonLimits,
}

/// How a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonExit {
    /// It was told to terminate, and every connection had ended.
    Drained,
    /// It was told to terminate, and reset this many ends of connections.
    Cut(usize),
    /// It was interrupted.
    Interrupted,
}

/// Error that keeps a daemon from starting, or ends it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A size or limit is illegal.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// A command for the RNIC's threshold asks for a name that the device does not have, or its program cannot be run.
    #[error("{key}: {why}")]
    Ecn {
        /// The key.
        key: &'static str,
        /// The name or the program, and what is wrong with it.
        why: String,
    },
    /// The socket for applications cannot be opened.
    #[error("applications cannot attach at {}: {}", .path.display(), reason(.source, "another daemon serves there"))]
    Socket {
        /// The path.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The port for other daemons cannot be opened.
    #[error(transparent)]
    Listen(#[from] NetError),
    /// The socket for metrics cannot be opened.
    #[error("metrics cannot be served at {at}: {}", reason(.source, "another process listens there"))]
    Metrics {
        /// Socket or port of the metrics.
        at: MetricsAt,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// Operation of the daemon that failed.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

fn reason(source: &io::Error, taken: &str) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => taken.to_owned(),
        _ => source.to_string(),
    }
}

fn system(what: &'static str) -> impl FnOnce(Errno) -> ServerError {
    move |errno| ServerError::System {
        what,
        source: errno.into(),
    }
}

/// Makes the two ends of the socket of a pair of applications.
fn socket_pair() -> Option<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    made.inspect_err(|errno| {
        tracing::warn!(
            "applications cannot be connected directly: {errno}; raise the limit of open files"
        );
    })
    .ok()
}

/// Source of an epoll event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    /// The listening socket with this index.
    Applications(u16),
    Daemons,
    /// Daemons of this machine.
    LocalDaemons,
    Device,
    Threads,
    Session(SessionId),
    Peer(PeerId),
}

impl Token {
    fn bits(self) -> u64 {
        match self {
            Self::Daemons => 1,
            Self::Device => 2,
            Self::Threads => 3,
            Self::LocalDaemons => 4,
            Self::Applications(at) => 1 << 32 | u64::from(at),
            // Sessions and peers share one sequence of numbers, which begins at 1.
            Self::Session(session) => session.0 << 2 | 1 << 63,
            Self::Peer(peer) => peer.0 << 2 | 1 << 62,
        }
    }

    fn from_bits(bits: u64) -> Self {
        let number = bits << 2 >> 4;
        match bits {
            1 => Self::Daemons,
            2 => Self::Device,
            3 => Self::Threads,
            4 => Self::LocalDaemons,
            _ if bits >> 16 == 1 << 16 => Self::Applications(bits as u16),
            _ if bits >> 63 == 1 => Self::Session(SessionId(number)),
            _ => Self::Peer(PeerId(number)),
        }
    }
}

/// Context that the daemon steps with.
const ALONE: StandaloneContext = StandaloneContext {
    role: "daemon",
    clock: clock::now,
};

/// A daemon with its sockets.
pub struct DaemonServer {
    inner: Inner,
    epoll: Arc<OwnedFd>,
    drain: Duration,
    _scrapes: Option<MetricsServer>,
    // Dropped after everything that starts threads.
    _cache: Option<resctrl::CacheGroup>,
}

struct Inner {
    /// Threads of the workers, if the daemon has several. They end before the daemon is dropped.
    workers: WorkerThreads,
    daemon: Daemon,
    cache: Option<CacheSnapshot>,
    epoll: Arc<OwnedFd>,
    /// Where applications attach, in the order of [`ServerConfig::sockets`].
    applications: Vec<PacketListener>,
    daemons: Listener,
    /// Where daemons of this machine call.
    local_daemons: Option<Listener>,
    registry: Option<Arc<Registry>>,
    port: u16,
    sessions: BTreeMap<SessionId, Attached>,
    subscriptions: Arc<Mutex<Subscriptions>>,
    peers: BTreeMap<PeerId, ControlStream>,
    /// Sessions with packets to send. `unsaid`: peers with messages to send.
    unsent: BTreeSet<SessionId>,
    unsaid: BTreeSet<PeerId>,
    /// Peers whose sockets were full at the last attempt, and are watched for room.
    full: BTreeSet<PeerId>,
    /// Peers whose control streams may hold messages that were received and not handled.
    half_heard: BTreeSet<PeerId>,
    told: mpsc::Receiver<ServerMessage>,
    woken: OwnedFd,
    teller: ServerSender,
    /// Number of domains whose wake-up descriptors are in epoll.
    watched: u64,
    is_armed: bool,
    /// Whether the daemon says farewell.
    is_ending: bool,
    /// Time until which no callers are accepted.
    closed_until: Option<Instant>,
    since: Instant,
    device: String,
    sleeps: u64,
    /// Error of a worker's thread.
    failed: Option<io::Error>,
    /// Runs the commands for the RNIC's threshold, if there are any. Dropping it waits for the last command, so the sockets
    /// are closed before.
    ecn: Option<EcnThread>,
}

impl DaemonServer {
    /// Checks a configuration for a device, without an effect.
    ///
    /// # Errors
    ///
    /// [`ServerError::Limits`] and [`ServerError::Ecn`].
    pub fn check_config(device: &dyn Device, config: &ServerConfig) -> Result<(), ServerError> {
        Self::check(device, config).map(drop)
    }

    fn check(
        device: &dyn Device,
        config: &ServerConfig,
    ) -> Result<Option<EcnCommands>, ServerError> {
        config.daemon.check()?;
        let of_device = |hook| EcnCommands::of(hook, &device.info().name);
        config.ecn.as_ref().map(of_device).transpose()
    }

    /// Creates a daemon and opens its sockets.
    ///
    /// # Errors
    ///
    /// [`ServerError`].
    pub fn open(device: Arc<dyn Device>, config: &ServerConfig) -> Result<Self, ServerError> {
        let ecn = Self::check(&*device, config)?;
        // Each connection that is watched, each peer and each slab takes descriptors.
        if let Some((before, after)) = process_limits::raise_open_files()
            && after > before
        {
            tracing::info!("raised the limit of open files from {before} to {after}");
        }
        let mode = if config.is_for_all { 0o666 } else { 0o600 };
        let bind = |path: &PathBuf| {
            PacketListener::bind(path, mode).map_err(|source| ServerError::Socket {
                path: path.clone(),
                source,
            })
        };
        let applications = config.sockets.iter().map(bind);
        let applications = applications.collect::<Result<Vec<_>, _>>()?;
        let listen = SocketAddr::new(config.identity.address, config.port);
        let daemons = Listener::bind_tcp(&listen.to_string())?;
        // The configuration may ask for any port.
        let port = daemons.address().map_or(config.port, |at| at.port());
        let local_name = daemons::local_name(SocketAddr::new(config.identity.address, port));
        let local_daemons = match &config.registry {
            Some(registry) => Some(Listener::bind(registry, &local_name)?),
            None => None,
        };
        // After the sockets: a daemon that cannot serve must not change another one's part of the cache. Before the threads,
        // which have the part of the thread that starts them.
        let cache = config.resctrl.as_ref().map(resctrl::enter);
        let (group, cache) = cache.map_or((None, None), |(group, state)| (group, Some(state)));
        // Before the threads, for the same reason.
        numa::keep_near(config.numa, device.info());
        let made = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        let epoll = Arc::new(made);
        let pipe = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
        let (woken, wake) = rustix::pipe::pipe_with(pipe).map_err(system("a pipe"))?;
        let (sender, told) = mpsc::channel();
        let teller = ServerSender {
            told: sender,
            wake: Arc::new(wake),
        };
        let scrapes = config.metrics.as_ref().map(|at| {
            let scrapes = MetricsServer::start(at, teller.clone());
            scrapes.map_err(|source| ServerError::Metrics {
                at: at.clone(),
                source,
            })
        });
        let mut daemon = Daemon::new(
            config.identity.clone(),
            device.clone(),
            DaemonLimits {
                reports_pool_level: ecn.is_some(),
                ..config.daemon.clone()
            },
        );
        daemon.enable_direct_path(Box::new(socket_pair));
        let ecn = ecn.map(EcnThread::start).transpose();
        let ecn = ecn.map_err(|source| ServerError::System {
            what: "a thread for the commands of [ecn]",
            source,
        })?;
        let subscriptions = Arc::new(Mutex::new(Subscriptions::new(config.sockets.len())));
        let mut workers = WorkerThreads::default();
        if config.daemon.workers > 1 {
            daemon.drive_workers_elsewhere();
            let started = WorkerThreads::start(daemon.workers(), &subscriptions, &teller);
            workers = started.map_err(|source| ServerError::System {
                what: "a thread for a worker",
                source,
            })?;
        }
        let mut inner = Inner {
            daemon,
            ecn,
            cache,
            epoll: epoll.clone(),
            applications,
            daemons,
            local_daemons,
            registry: config.registry.clone(),
            port,
            sessions: BTreeMap::new(),
            subscriptions,
            workers,
            peers: BTreeMap::new(),
            unsent: BTreeSet::new(),
            unsaid: BTreeSet::new(),
            full: BTreeSet::new(),
            half_heard: BTreeSet::new(),
            told,
            woken,
            teller,
            watched: 0,
            is_armed: false,
            is_ending: false,
            closed_until: None,
            since: clock::now(),
            device: device.info().name.to_string(),
            sleeps: 0,
            failed: None,
        };
        inner.watch(&inner.woken, Token::Threads)?;
        inner.watch(device.async_fd(), Token::Device)?;
        inner.accept_daemon()?;
        Ok(Self {
            inner,
            epoll,
            drain: config.drain,
            _cache: group,
            _scrapes: scrapes.transpose()?,
        })
    }

    /// Returns the port of the streams between daemons.
    pub fn port(&self) -> u16 {
        self.inner.port
    }

    /// Returns a reader of the daemon's metrics, for another thread.
    pub fn metrics(&self) -> MetricsReader {
        MetricsReader(self.inner.teller.clone())
    }

    /// Returns the paths of the sockets that applications attach to.
    pub fn sockets(&self) -> impl Iterator<Item = &Path> {
        self.inner.socket_paths()
    }

    /// Serves until it is interrupted, or told to terminate and drained. Calls `draining` when draining
    /// begins.
    ///
    /// # Errors
    ///
    /// [`ServerError`]: a system call that waiting needs has failed.
    pub fn run(
        &mut self,
        interrupt: &Interrupt,
        draining: impl FnOnce(&Snapshot),
    ) -> Result<DaemonExit, ServerError> {
        self.serve(None, &[interrupt.as_fd()], |_| interrupt.is_raised())?;
        let mut ended = DaemonExit::Interrupted;
        if interrupt.is_termination() {
            self.inner.daemon.drain();
            self.inner.apply();
            draining(&self.inner.daemon.snapshot());
            let until = clock::now() + self.drain;
            // A second signal ends the draining, and a third one the process.
            interrupt.rearm();
            self.serve(Some(until), &[interrupt.as_fd()], |inner| {
                inner.daemon.is_drained() || interrupt.is_raised()
            })?;
            ended = match self.inner.daemon.ends() {
                0 => DaemonExit::Drained,
                left => DaemonExit::Cut(left),
            };
        }
        self.shut_down()?;
        Ok(ended)
    }

    /// Serves until `is_stopped` returns true, for a daemon on a thread of a larger program, which leaves signals
    /// alone. The daemon calls `is_stopped` again when `wakes` is readable or hung up.
    ///
    /// If the caller then drops the daemon, it has crashed as far as others can tell. To end in order, call
    /// [`shut_down`](Self::shut_down) first.
    ///
    /// # Errors
    ///
    /// As [`DaemonServer::run`].
    pub fn run_until(
        &mut self,
        wakes: impl AsFd,
        mut is_stopped: impl FnMut() -> bool,
    ) -> Result<(), ServerError> {
        self.serve(None, &[wakes.as_fd()], |_| is_stopped())
    }

    /// Resets all connections, and tells applications and other daemons that this daemon stops.
    ///
    /// # Errors
    ///
    /// As [`DaemonServer::run`].
    pub fn shut_down(&mut self) -> Result<(), ServerError> {
        self.inner.is_ending = true;
        self.inner.daemon.stop();
        self.inner.apply();
        let until = clock::now() + FAREWELL;
        self.serve(Some(until), &[], |inner| {
            inner.unsent.is_empty() && inner.unsaid.is_empty()
        })
    }

    /// Serves until `is_done` returns true, or until the time `until`. A readable descriptor of `others`
    /// makes it call `is_done` again.
    fn serve(
        &mut self,
        until: Option<Instant>,
        others: &[BorrowedFd<'_>],
        mut is_done: impl FnMut(&mut Inner) -> bool,
    ) -> Result<(), ServerError> {
        let mut waiter = Waiter::default();
        let mut budget = PollBudget::default();
        let mut turns = 0u32;
        let own = PollFd::new(&self.epoll, PollFlags::IN);
        let others = others
            .iter()
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = std::iter::once(own).chain(others).collect();
        while !is_done(&mut self.inner) {
            let inner = &mut self.inner;
            let timeouts = [inner.closed_until, inner.daemon.next_timeout(), until];
            let deadline = timeouts.into_iter().flatten().min();
            let (polls, looks) = budget.begin(inner.daemon.awaits_peers(), clock::now());
            waiter.set_polling(polls, looks);
            let mut turn = |phase| inner.turn(phase);
            let woken = waiter.wait_polling(&mut fds, deadline, &mut turn);
            let has_slept = !matches!(woken, Ok(WakeReason::Ready));
            budget.end(has_slept, clock::now());
            let woken = woken.map_err(|source| ServerError::System {
                what: "waiting",
                source,
            })?;
            let has_events = woken == WakeReason::Fd && fds[0].revents().contains(PollFlags::IN);
            turns = turns.wrapping_add(1);
            if woken == WakeReason::Ready
                && (self.inner.daemon.is_idle() || turns.is_multiple_of(OFFERED_EVERY))
            {
                waiter.spin_once();
            }
            let is_due = |at: Option<Instant>| at.is_some_and(|at| clock::now() >= at);
            if has_events && !is_due(self.inner.daemon.next_timeout()) {
                // Most wake-ups are doorbells or completions, which a turn serves without a look at the sockets. If a time
                // limit is due, the sockets come first, because a message that came in time may lie in one.
                self.inner.turn(WaitPhase::Poll);
            }
            if has_events || turns.is_multiple_of(SOCKETS_EVERY) {
                self.inner.look_at_sockets()?;
            }
            if let Some(source) = self.inner.failed.take() {
                let what = "a worker's thread";
                return Err(ServerError::System { what, source });
            }
            // A waiter that is never idle does not report deadlines.
            let is_over = |at: Option<Instant>| at.is_some_and(|at| clock::now() >= at);
            if is_over(self.inner.closed_until) {
                self.inner.accept_daemon()?;
            }
            if is_over(until) {
                break;
            }
        }
        Ok(())
    }
}

impl Inner {
    fn watch(&self, fd: impl AsFd, token: Token) -> Result<(), ServerError> {
        let data = epoll::EventData::new_u64(token.bits());
        let added = epoll::add(&*self.epoll, fd, data, epoll::EventFlags::IN);
        added.map_err(system("watching a descriptor"))
    }

    fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        let subscriptions = self.subscriptions.lock();
        subscriptions.unwrap_or_else(PoisonError::into_inner)
    }

    fn socket_paths(&self) -> impl Iterator<Item = &Path> {
        self.applications.iter().map(PacketListener::path)
    }

    /// Accepts callers from now on.
    fn accept_daemon(&mut self) -> Result<(), ServerError> {
        self.closed_until = None;
        for (at, listener) in (0..).zip(&self.applications) {
            self.watch(listener, Token::Applications(at))?;
        }
        self.watch(&self.daemons, Token::Daemons)?;
        match &self.local_daemons {
            Some(listener) => self.watch(listener, Token::LocalDaemons),
            None => Ok(()),
        }
    }

    /// Stops accepting callers for a while, since there is no descriptor for the next one. It stays in the
    /// backlog, and would keep the listener readable.
    fn pause_accepting(&mut self, who: &str, error: &dyn std::fmt::Display) {
        tracing::warn!("{who}: {error}; raise the limit of open files");
        let applications = self.applications.iter().map(AsFd::as_fd);
        let local = self.local_daemons.as_ref().map(AsFd::as_fd);
        for listener in applications.chain([self.daemons.as_fd()]).chain(local) {
            // This fails for a listener that is not watched, which is what is wanted.
            let _ = epoll::delete(&*self.epoll, listener);
        }
        self.closed_until = Some(clock::now() + PAUSE);
    }

    /// Watches a socket for room if it is full, and stops doing so if it is not.
    fn watch_room(&self, fd: impl AsFd, token: Token, is_full: bool) {
        let data = epoll::EventData::new_u64(token.bits());
        let flags = match is_full {
            true => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            false => epoll::EventFlags::IN,
        };
        if let Err(error) = epoll::modify(&*self.epoll, fd, data, flags) {
            tracing::warn!("a socket cannot be watched: {error}");
        }
    }

    /// Runs one turn and returns whether there was something to do.
    fn turn(&mut self, phase: WaitPhase) -> bool {
        if phase == WaitPhase::Arm {
            self.sleeps += 1;
            self.daemon.arm();
            self.is_armed = true;
        }
        let before = self.daemon.next_timeout();
        let stepped = self.daemon.step(&mut ActorContext::new(&mut { ALONE }));
        let did = self.apply() | self.receive_rest() | stepped;
        // A new time limit must be known to the wait before it sleeps.
        let is_new = self.daemon.next_timeout() != before;
        let was_busy = did || is_new || !self.daemon.is_idle();
        if was_busy && self.is_armed {
            self.daemon.disarm();
            self.is_armed = false;
        }
        was_busy
    }

    fn look_at_sockets(&mut self) -> Result<(), ServerError> {
        if self.is_armed {
            self.daemon.disarm();
            self.is_armed = false;
        }
        let mut events = Vec::with_capacity(BATCH);
        let timeout = rustix::event::Timespec::default();
        let into = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&*self.epoll, into, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(system("epoll")(error)),
        }
        for event in events {
            match Token::from_bits(event.data.u64()) {
                Token::Applications(at) => self.greet_applications(at),
                Token::Daemons => self.greet_daemons(false),
                Token::LocalDaemons => self.greet_daemons(true),
                Token::Threads => self.handle_thread_messages(),
                // The next step polls the device. A completion queue stays armed if something else woke this
                // thread, so its event may arrive while nothing is armed here. Disarming consumes the event.
                // Otherwise every look would find it again, and this thread would never sleep.
                Token::Device => self.daemon.disarm(),
                Token::Session(session) => self.receive_from_session(session),
                Token::Peer(peer) => self.receive_from_peer(peer),
            }
        }
        self.apply();
        Ok(())
    }

    fn handle_thread_messages(&mut self) {
        let mut bytes = [0; 64];
        while rustix::io::read(&self.woken, &mut bytes).is_ok_and(|read| read > 0) {}
        while let Ok(told) = self.told.try_recv() {
            match told {
                ServerMessage::Dialed(dialed) => self.take_dialed(*dialed),
                ServerMessage::Look(to) => drop(to.send(self.look())),
                ServerMessage::WorkerFailed(source) => self.failed = Some(source),
            }
        }
    }

    /// Returns the daemon's state in Prometheus's text format.
    fn look(&self) -> String {
        let mut snapshot = self.daemon.snapshot();
        snapshot.ecn = self.ecn.as_ref().map(EcnThread::snapshot);
        snapshot.cache.clone_from(&self.cache);
        let all = snapshot
            .domains
            .iter_mut()
            .flat_map(|one| &mut one.applications);
        for application in all {
            let attached = self.sessions.get(&application.session);
            application.pid = attached.and_then(|one| one.socket.pid().ok()?);
        }
        let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let process = ProcessMetrics {
            device: self.device.clone(),
            up: clock::now().since(self.since),
            cpu: Duration::from_nanos(usage.tv_sec as u64 * 1_000_000_000 + usage.tv_nsec as u64),
            sleeps: self.sleeps + self.workers.sleeps(),
            sockets: self
                .socket_paths()
                .map(|path| path.display().to_string())
                .collect(),
        };
        metrics::text(&snapshot, &process)
    }

    /// Carries out the daemon's outputs and returns whether there were any.
    fn apply(&mut self) -> bool {
        let mut did = false;
        let (mut signals, mut sleepers) = (Vec::new(), Vec::new());
        while let Some(output) = self.daemon.output() {
            did = true;
            match output {
                Output::Dial(to) => self.dial(to),
                Output::ToPeer { peer, message } => self.say(peer, &message),
                Output::HangUp(peer) => {
                    self.full.remove(&peer);
                    if let Some(mut control) = self.peers.remove(&peer) {
                        // Earlier messages are still sent, if the socket takes them.
                        let _ = control.flush();
                    }
                }
                Output::ToSession {
                    session,
                    packet,
                    slab,
                } => self.send(session, packet, slab.map(OutputFile::Memory)),
                Output::FileToSession {
                    session,
                    packet,
                    file,
                } => self.send(session, packet, Some(file)),
                Output::FileToPeer {
                    peer,
                    message,
                    file,
                } => self.say_with_file(peer, &message, &file),
                Output::EndSession(session) => self.end_session(session),
                Output::Signal { watch, signal } => signals.push((watch, signal)),
                Output::WakeThread(event_count) => sleepers.push(event_count),
                Output::WakeWorker(worker) => self.workers.wake(worker),
                Output::PoolLevel(level) => {
                    if let Some(ecn) = &self.ecn {
                        ecn.set_level(level);
                    }
                }
            }
        }
        did |= self.resend();
        // Signals and wake-ups follow the packets that say more.
        for (watch, signal) in signals {
            self.subscriptions().signal(watch, signal);
        }
        for event_count in sleepers {
            event_count.wake();
        }
        self.resay();
        if self.daemon.domains_made() > self.watched {
            self.watched = self.daemon.domains_made();
            for fd in self.daemon.wake_fds() {
                // This fails for a descriptor that is watched already, which is fine.
                let _ = self.watch(fd.fd(), Token::Device);
            }
        }
        did
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip_through_their_bits() {
        for token in [
            Token::Applications(0),
            Token::Applications(u16::MAX),
            Token::Daemons,
            Token::LocalDaemons,
            Token::Device,
            Token::Threads,
            Token::Session(SessionId(1)),
            Token::Session(SessionId(1 << 50)),
            Token::Peer(PeerId(1)),
            Token::Peer(PeerId(1 << 50)),
        ] {
            assert_eq!(Token::from_bits(token.bits()), token);
        }
    }
}
