//! The daemon as a program: its sockets, its clock, its sleep. Everything that is decided is decided by [`Daemon`].
//!
//! One thread steps the daemon for as long as there is something to do, yields for a while when there is not
//! ([`net::waiting`](headworks_net::waiting)), then has everything armed that can wake it, and sleeps. Calls to
//! other daemons are made by a thread each, as they may take as long as the network likes; whoever asks for
//! [`metrics`] is answered by another, since he may be slow.
//!
//! Much of what it says others can provoke: whoever writes it down is to do so [seldom](crate::log_ratelimit), and without
//! waiting for who reads it.
//!
//! Told to terminate it drains: nothing new is taken, and it ends when the last connection has, or when
//! [`ServerConfig::drain`] is over.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

use headworks_net::packets::PacketListener;
use headworks_net::{Interrupt, Line, Listener, NetError, WaitPhase, Waiter, WakeReason, clock};
use headworks_runtime::{ActorContext, StandaloneContext};
use headworks_verbs::{Device, Duration, Instant};
use rustix::event::{PollFd, PollFlags, epoll};
use rustix::io::Errno;

use crate::daemon::{Daemon, Identity, Output, PeerId, SessionId};
use crate::limits::{DaemonLimits, LimitsError};
use crate::metrics::{self, ProcessMetrics};
use crate::snapshot::Snapshot;

mod applications;
mod close_queue;
mod daemons;
mod metrics_endpoint;
pub mod notify;
mod subscriptions;

use applications::Attached;
use daemons::Dialed;
pub use metrics_endpoint::MetricsAt;
use metrics_endpoint::MetricsServer;
use subscriptions::Subscriptions;

/// Packets and messages that are taken from one socket in a row.
const BATCH: usize = 64;
/// Busy turns after which the sockets are looked at.
const SOCKETS_EVERY: u32 = 64;
/// Of so many turns that leave something to do one is followed by an offer of this core to others, as each is that leaves
/// nothing: an application that shares it is whom the turn was for, or has something to say, too.
const OFFERED_EVERY: u32 = 8;
/// How long nobody is let in once there is no descriptor for whoever calls.
const PAUSE: Duration = Duration::from_millis(20);
/// How long those who are to hear that the daemon ends are told.
const FAREWELL: Duration = Duration::from_millis(200);

/// Where a daemon is, and what it is.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address and name of this daemon.
    pub identity: Identity,
    /// The port of the TCP stream between daemons: the same on all hosts.
    pub port: u16,
    /// The path of the socket that applications attach to.
    pub socket: PathBuf,
    /// Whether every user's applications may attach, or those of the daemon's own user alone.
    pub is_for_all: bool,
    /// Where whoever likes is told what there is, in Prometheus's text.
    pub metrics: Option<MetricsAt>,
    /// How long connections may go on when the daemon is told to terminate.
    pub drain: Duration,
    /// Sizes and limits.
    pub daemon: DaemonLimits,
}

/// How a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonExit {
    /// It was told to terminate, and every connection had ended.
    Drained,
    /// It was told to terminate, and as many ends of connections were reset.
    Cut(usize),
    /// It was interrupted.
    Interrupted,
}

/// Why a daemon does not start, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A size or limit that is not legal.
    #[error(transparent)]
    DaemonLimits(#[from] LimitsError),
    /// Applications cannot attach there.
    #[error("applications cannot attach at {}: {}", .path.display(), reason(.source, "another daemon serves there"))]
    Socket {
        /// The path.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Other daemons cannot call there.
    #[error(transparent)]
    Listen(#[from] NetError),
    /// Nobody can ask for metrics there.
    #[error("metrics cannot be had at {at}: {}", reason(.source, "somebody listens there already"))]
    Metrics {
        /// Socket or port of the metrics.
        at: MetricsAt,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What it said.
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

/// What an event of epoll is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Applications,
    Daemons,
    Device,
    Threads,
    Session(SessionId),
    Peer(PeerId),
}

impl Token {
    fn bits(self) -> u64 {
        match self {
            Self::Applications => 0,
            Self::Daemons => 1,
            Self::Device => 2,
            Self::Threads => 3,
            // Sessions and peers are numbered from one row, from 1 on.
            Self::Session(session) => session.0 << 2 | 1 << 63,
            Self::Peer(peer) => peer.0 << 2 | 1 << 62,
        }
    }

    fn from_bits(bits: u64) -> Self {
        let number = bits << 2 >> 4;
        match bits {
            0 => Self::Applications,
            1 => Self::Daemons,
            2 => Self::Device,
            3 => Self::Threads,
            _ if bits >> 63 == 1 => Self::Session(SessionId(number)),
            _ => Self::Peer(PeerId(number)),
        }
    }
}

/// What the daemon steps with.
const ALONE: StandaloneContext = StandaloneContext {
    role: "daemon",
    clock: clock::now,
};

/// What other threads have for this one.
enum ServerMessage {
    /// A call to another daemon has ended.
    Dialed(Dialed),
    /// Somebody wants to know what there is.
    Look(mpsc::Sender<String>),
}

/// Where other threads tell this one, which wakes.
#[derive(Clone)]
struct ServerSender {
    told: mpsc::Sender<ServerMessage>,
    wake: Arc<OwnedFd>,
}

impl ServerSender {
    /// Says whether there is anybody to be told.
    fn tell(&self, what: ServerMessage) -> bool {
        let is_there = self.told.send(what).is_ok();
        // A full pipe wakes as well.
        let _ = rustix::io::write(&*self.wake, &[0]);
        is_there
    }
}

/// A daemon with its sockets.
pub struct DaemonServer {
    inner: Inner,
    epoll: Arc<OwnedFd>,
    drain: Duration,
    _scrapes: Option<MetricsServer>,
}

struct Inner {
    daemon: Daemon,
    epoll: Arc<OwnedFd>,
    applications: PacketListener,
    daemons: Listener,
    port: u16,
    sessions: BTreeMap<SessionId, Attached>,
    watches: Subscriptions,
    peers: BTreeMap<PeerId, Line>,
    /// Those that something is to be sent to.
    unsent: BTreeSet<SessionId>,
    unsaid: BTreeSet<PeerId>,
    /// Those that may have said more than was heard.
    half_heard: BTreeSet<PeerId>,
    told: mpsc::Receiver<ServerMessage>,
    woken: OwnedFd,
    teller: ServerSender,
    /// Domains whose wake-ups are watched.
    watched: u64,
    is_armed: bool,
    /// Until when nobody is let in.
    closed_until: Option<Instant>,
    since: Instant,
    device: String,
    sleeps: u64,
}

impl DaemonServer {
    /// A daemon that listens.
    ///
    /// # Errors
    ///
    /// [`ServerError`].
    pub fn open(device: Arc<dyn Device>, config: &ServerConfig) -> Result<Self, ServerError> {
        config.daemon.check()?;
        let path = &config.socket;
        let mode = if config.is_for_all { 0o666 } else { 0o600 };
        let applications = PacketListener::bind(path, mode);
        let applications = applications.map_err(|source| ServerError::Socket {
            path: path.clone(),
            source,
        })?;
        let listen = SocketAddr::new(config.identity.address, config.port);
        let daemons = Listener::bind_tcp(&listen.to_string())?;
        // Where any port was asked for.
        let port = daemons.address().map_or(config.port, |at| at.port());
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
        let daemon = Daemon::new(
            config.identity.clone(),
            device.clone(),
            config.daemon.clone(),
        );
        let mut inner = Inner {
            daemon,
            epoll: epoll.clone(),
            applications,
            daemons,
            port,
            sessions: BTreeMap::new(),
            watches: Subscriptions::default(),
            peers: BTreeMap::new(),
            unsent: BTreeSet::new(),
            unsaid: BTreeSet::new(),
            half_heard: BTreeSet::new(),
            told,
            woken,
            teller,
            watched: 0,
            is_armed: false,
            closed_until: None,
            since: clock::now(),
            device: device.info().name.to_string(),
            sleeps: 0,
        };
        inner.watch(&inner.woken, Token::Threads)?;
        inner.watch(device.async_fd(), Token::Device)?;
        inner.let_in()?;
        Ok(Self {
            inner,
            epoll,
            drain: config.drain,
            _scrapes: scrapes.transpose()?,
        })
    }

    /// The port of the stream between daemons.
    pub fn port(&self) -> u16 {
        self.inner.port
    }

    /// The path of the socket that applications attach to.
    pub fn socket(&self) -> &Path {
        self.inner.applications.path()
    }

    /// Serves until it is interrupted, or told to terminate and drained. `draining` is called when that begins.
    ///
    /// # Errors
    ///
    /// [`ServerError`]: the system does not let it wait.
    pub fn run(
        &mut self,
        interrupt: &Interrupt,
        draining: impl FnOnce(&Snapshot),
    ) -> Result<DaemonExit, ServerError> {
        self.serve(None, &[interrupt.as_fd()], |_| interrupt.is_raised())?;
        let mut ended = DaemonExit::Interrupted;
        if interrupt.is_termination() {
            self.inner.daemon.drain();
            self.inner.obey();
            draining(&self.inner.daemon.snapshot());
            let until = clock::now() + self.drain;
            // Another signal ends that, and the one after it the program.
            interrupt.rearm();
            self.serve(Some(until), &[interrupt.as_fd()], |inner| {
                inner.daemon.is_drained() || interrupt.is_raised()
            })?;
            ended = match self.inner.daemon.ends() {
                0 => DaemonExit::Drained,
                left => DaemonExit::Cut(left),
            };
        }
        self.inner.daemon.stop();
        self.inner.obey();
        let until = clock::now() + FAREWELL;
        self.serve(Some(until), &[], |inner| {
            inner.unsent.is_empty() && inner.unsaid.is_empty()
        })?;
        Ok(ended)
    }

    /// Serves until `is_done` says so, or until then. It is asked again when one of `others` is readable.
    fn serve(
        &mut self,
        until: Option<Instant>,
        others: &[BorrowedFd<'_>],
        mut is_done: impl FnMut(&mut Inner) -> bool,
    ) -> Result<(), ServerError> {
        let mut waiter = Waiter::default();
        let mut turns = 0u32;
        let own = PollFd::new(&self.epoll, PollFlags::IN);
        let others = others
            .iter()
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = std::iter::once(own).chain(others).collect();
        while !is_done(&mut self.inner) {
            let inner = &mut self.inner;
            let deadline = inner.closed_until.into_iter().chain(until).min();
            let mut turn = |phase| inner.turn(phase);
            let woken = waiter.wait_polling(&mut fds, deadline, &mut turn);
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
            if has_events || turns.is_multiple_of(SOCKETS_EVERY) {
                self.inner.look_at_sockets()?;
            }
            // Who is never idle is not told of a deadline.
            let is_over = |at: Option<Instant>| at.is_some_and(|at| clock::now() >= at);
            if is_over(self.inner.closed_until) {
                self.inner.let_in()?;
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

    /// Lets in who calls, from now on.
    fn let_in(&mut self) -> Result<(), ServerError> {
        self.closed_until = None;
        self.watch(&self.applications, Token::Applications)?;
        self.watch(&self.daemons, Token::Daemons)
    }

    /// There is no descriptor for whoever calls, who stays: nobody is let in for a while.
    fn let_nobody_in(&mut self, who: &str, error: &dyn std::fmt::Display) {
        tracing::warn!("{who}: {error}; raise the limit of open files");
        let listeners = [self.applications.as_fd(), self.daemons.as_fd()];
        for listener in listeners {
            // Where it is not watched there is nothing to end.
            let _ = epoll::delete(&*self.epoll, listener);
        }
        self.closed_until = Some(clock::now() + PAUSE);
    }

    /// Has this thread woken when a socket has room again, or not any more.
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

    /// One turn; says whether there was something to do.
    fn turn(&mut self, phase: WaitPhase) -> bool {
        if phase == WaitPhase::Arm {
            self.sleeps += 1;
            self.daemon.arm();
            self.is_armed = true;
        }
        let stepped = self.daemon.step(&mut ActorContext::new(&mut { ALONE }));
        let was_busy = self.obey() | self.hear_rest() | stepped || !self.daemon.is_idle();
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
                Token::Applications => self.greet_applications(),
                Token::Daemons => self.greet_daemons(),
                Token::Threads => self.hear_threads(),
                // The next step polls it. A completion queue stays armed where something else had woken this thread, so
                // its event may come while nothing is armed here: left there, it would be seen at every look, and this
                // thread would look around for ever instead of sleeping.
                Token::Device => self.daemon.disarm(),
                Token::Session(session) => self.hear_session(session),
                Token::Peer(peer) => self.hear_peer(peer),
            }
        }
        self.obey();
        Ok(())
    }

    fn hear_threads(&mut self) {
        let mut bytes = [0; 64];
        while rustix::io::read(&self.woken, &mut bytes).is_ok_and(|read| read > 0) {}
        while let Ok(told) = self.told.try_recv() {
            match told {
                ServerMessage::Dialed(dialed) => self.take_dialed(dialed),
                ServerMessage::Look(to) => drop(to.send(self.look())),
            }
        }
    }

    /// What there is, in Prometheus's text.
    fn look(&self) -> String {
        let mut snapshot = self.daemon.snapshot();
        let all = snapshot
            .domains
            .iter_mut()
            .flat_map(|one| &mut one.applications);
        for application in all {
            let attached = self.sessions.get(&application.session);
            application.pid = attached.and_then(|one| one.socket.pid().ok());
        }
        let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let process = ProcessMetrics {
            device: self.device.clone(),
            up: clock::now().since(self.since),
            cpu: Duration::from_nanos(usage.tv_sec as u64 * 1_000_000_000 + usage.tv_nsec as u64),
            sleeps: self.sleeps,
        };
        metrics::text(&snapshot, &process)
    }

    /// Does what the daemon wants done; says whether there was something.
    fn obey(&mut self) -> bool {
        let mut did = false;
        let mut signals = Vec::new();
        while let Some(output) = self.daemon.output() {
            did = true;
            match output {
                Output::Dial(to) => self.dial(to),
                Output::ToPeer { peer, message } => self.say(peer, &message),
                Output::HangUp(peer) => {
                    if let Some(mut line) = self.peers.remove(&peer) {
                        // What was said before is still sent, if the socket takes it.
                        let _ = line.flush();
                    }
                }
                Output::ToSession {
                    session,
                    packet,
                    slab,
                } => self.send(session, packet, slab),
                Output::EndSession(session) => self.end_session(session),
                Output::Signal { watch, signal } => signals.push((watch, signal)),
            }
        }
        did |= self.resend();
        // Behind the packets that say more.
        for (watch, signal) in signals {
            self.watches.signal(watch, signal);
        }
        self.resay();
        if self.daemon.domains_made() > self.watched {
            self.watched = self.daemon.domains_made();
            for fd in self.daemon.wake_fds() {
                // Those that are watched already say so.
                let _ = self.watch(fd, Token::Device);
            }
        }
        did
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_told_apart() {
        for token in [
            Token::Applications,
            Token::Daemons,
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
