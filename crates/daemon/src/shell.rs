//! The daemon as a program: its sockets, its clock, its sleep. Everything that is decided is decided by [`Daemon`].
//!
//! One thread steps the daemon for as long as there is something to do, yields for a while when there is not
//! ([`stage::waiting`](headworks_stage::waiting)), then has everything armed that can wake it, and sleeps. Calls to
//! other daemons are made by a thread each, as they may take as long as the network likes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

use headworks_client::message::Refusal;
use headworks_stage::packets::{Came, PacketListener, PacketSocket};
use headworks_stage::{
    Cx, CxBackend, ExchangeError, Interrupt, Line, Listener, Mail, MailError, Phase, Waiter, clock,
    dial_at,
};
use headworks_verbs::{Buffer, Device, Duration, Instant};
use rustix::event::{PollFd, PollFlags, epoll};
use rustix::io::Errno;

use crate::config::{Config, ConfigError};
use crate::control;
use crate::daemon::{Daemon, Output, PeerId, SessionId};

/// Packets and messages that are taken from one socket in a row.
const BATCH: usize = 64;
/// Busy turns after which the sockets are looked at.
const SOCKETS_EVERY: u32 = 64;
/// Packets for an application that has no room for them: more, and it is turned away.
const UNSENT_MAX: usize = 65_536;
/// How long another host may take to answer a call.
const DIAL: Duration = Duration::from_secs(5);

/// Where a daemon is, and what it is.
#[derive(Clone, Debug)]
pub struct ShellConfig {
    /// The address it serves, and other daemons call it at.
    pub address: IpAddr,
    /// The port of the TCP stream between daemons: the same on all hosts.
    pub port: u16,
    /// The path of the socket that applications attach to.
    pub socket: PathBuf,
    /// Sizes and limits.
    pub daemon: Config,
}

/// Why a daemon does not start, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShellError {
    /// A size or limit that is not legal.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Applications cannot attach there.
    #[error("applications cannot attach at {}: {}", .path.display(), reason(.source, "another daemon serves there"))]
    Socket {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Other daemons cannot call there.
    #[error(transparent)]
    Listen(#[from] ExchangeError),
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

fn system(what: &'static str) -> impl FnOnce(Errno) -> ShellError {
    move |errno| ShellError::System {
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
    Dialed,
    Session(SessionId),
    Peer(PeerId),
}

impl Token {
    fn bits(self) -> u64 {
        match self {
            Self::Applications => 0,
            Self::Daemons => 1,
            Self::Device => 2,
            Self::Dialed => 3,
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
            3 => Self::Dialed,
            _ if bits >> 63 == 1 => Self::Session(SessionId(number)),
            _ => Self::Peer(PeerId(number)),
        }
    }
}

/// A packet, and the memory that it names.
type Outgoing = (Vec<u8>, Option<Arc<dyn Buffer>>);

/// An application's socket, and what it has had no room for.
struct Attached {
    socket: PacketSocket,
    unsent: VecDeque<Outgoing>,
    is_full: bool,
}

/// The clock, for steps of the daemon.
struct Clock;

impl CxBackend for Clock {
    fn role(&self) -> &str {
        "daemon"
    }
    fn now(&mut self) -> Instant {
        clock::now()
    }
    fn send(&mut self, to: &str, _: &[u8]) -> Result<(), MailError> {
        Err(MailError::NoSuchRole(to.to_owned()))
    }
    fn receive(&mut self) -> Option<Mail> {
        None
    }
    fn report(&mut self, _: &[u8]) -> Result<(), MailError> {
        Err(MailError::NoDirector)
    }
    fn interrupted(&self) -> bool {
        false
    }
}

type Dialed = (IpAddr, Result<Line, ExchangeError>);

/// A daemon with its sockets.
pub struct Shell {
    inner: Inner,
    epoll: Arc<OwnedFd>,
}

struct Inner {
    daemon: Daemon,
    epoll: Arc<OwnedFd>,
    applications: PacketListener,
    daemons: Listener,
    port: u16,
    sessions: BTreeMap<SessionId, Attached>,
    peers: BTreeMap<PeerId, Line>,
    /// Those that something is to be sent to.
    unsent: BTreeSet<SessionId>,
    unsaid: BTreeSet<PeerId>,
    dialed: mpsc::Receiver<Dialed>,
    /// For threads that call, and what they wake this one by.
    dials: mpsc::Sender<Dialed>,
    dial_wake: Arc<OwnedFd>,
    dial_woken: OwnedFd,
    /// Domains whose wake-ups are watched.
    watched: usize,
    is_armed: bool,
}

impl Shell {
    /// A daemon that listens. `life` is another number each time a daemon starts.
    ///
    /// # Errors
    ///
    /// [`ShellError`].
    pub fn open(
        device: Arc<dyn Device>,
        config: &ShellConfig,
        life: u64,
    ) -> Result<Self, ShellError> {
        config.daemon.check()?;
        let path = &config.socket;
        let applications = PacketListener::bind(path).map_err(|source| ShellError::Socket {
            path: path.clone(),
            source,
        })?;
        let listen = SocketAddr::new(config.address, config.port);
        let daemons = Listener::at(&listen.to_string())?;
        // Where any port was asked for.
        let port = daemons.address().map_or(config.port, |at| at.port());
        let made = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        let epoll = Arc::new(made);
        let pipe = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
        let (dial_woken, dial_wake) = rustix::pipe::pipe_with(pipe).map_err(system("a pipe"))?;
        let (dials, dialed) = mpsc::channel();
        let daemon = Daemon::new(config.address, life, device.clone(), config.daemon.clone());
        let inner = Inner {
            daemon,
            epoll: epoll.clone(),
            applications,
            daemons,
            port,
            sessions: BTreeMap::new(),
            peers: BTreeMap::new(),
            unsent: BTreeSet::new(),
            unsaid: BTreeSet::new(),
            dialed,
            dials,
            dial_wake: Arc::new(dial_wake),
            dial_woken,
            watched: 0,
            is_armed: false,
        };
        let fds = [
            (inner.applications.as_fd(), Token::Applications),
            (inner.daemons.as_fd(), Token::Daemons),
            (inner.dial_woken.as_fd(), Token::Dialed),
            (device.async_fd(), Token::Device),
        ];
        for (fd, token) in fds {
            inner.watch(fd, token)?;
        }
        Ok(Self { inner, epoll })
    }

    /// The port of the stream between daemons.
    pub fn port(&self) -> u16 {
        self.inner.port
    }

    /// The path of the socket that applications attach to.
    pub fn socket(&self) -> &Path {
        self.inner.applications.path()
    }

    /// Serves until it is interrupted.
    ///
    /// # Errors
    ///
    /// [`ShellError`]: the system does not let it wait.
    pub fn run(&mut self, interrupt: &Interrupt) -> Result<(), ShellError> {
        let mut waiter = Waiter::default();
        let mut turns = 0u32;
        while !interrupt.is_raised() {
            let mut fds = [
                PollFd::new(&self.epoll, PollFlags::IN),
                PollFd::new(interrupt, PollFlags::IN),
            ];
            let inner = &mut self.inner;
            let mut turn = |phase| inner.turn(phase);
            let waited = waiter.wait_polling(&mut fds, None, &mut turn);
            waited.map_err(|source| ShellError::System {
                what: "waiting",
                source,
            })?;
            let has_events = fds[0].revents().contains(PollFlags::IN);
            turns = turns.wrapping_add(1);
            if has_events || turns.is_multiple_of(SOCKETS_EVERY) {
                self.inner.look_at_sockets()?;
            }
        }
        Ok(())
    }
}

impl Inner {
    fn watch(&self, fd: impl AsFd, token: Token) -> Result<(), ShellError> {
        let data = epoll::EventData::new_u64(token.bits());
        let added = epoll::add(&*self.epoll, fd, data, epoll::EventFlags::IN);
        added.map_err(system("watching a descriptor"))
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
    fn turn(&mut self, phase: Phase) -> bool {
        if phase == Phase::Arm {
            self.daemon.arm();
            self.is_armed = true;
        }
        let stepped = self.daemon.step(&mut Cx::new(&mut Clock));
        let was_busy = self.obey() || stepped || !self.daemon.is_idle();
        if was_busy && self.is_armed {
            self.daemon.disarm();
            self.is_armed = false;
        }
        was_busy
    }

    fn look_at_sockets(&mut self) -> Result<(), ShellError> {
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
                Token::Dialed => self.take_dialed(),
                // The next step polls it.
                Token::Device => {}
                Token::Session(session) => self.hear_session(session),
                Token::Peer(peer) => self.hear_peer(peer),
            }
        }
        self.obey();
        Ok(())
    }

    fn greet_applications(&mut self) {
        for _ in 0..BATCH {
            let socket = match self.applications.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(
                        "an application cannot attach: {error}; raise the limit of open files"
                    );
                    return;
                }
            };
            let user = match socket.user() {
                Ok(user) => user,
                Err(error) => {
                    tracing::warn!("an application cannot attach: {error}");
                    continue;
                }
            };
            let session = self.daemon.session_up(user);
            if self.watch(&socket, Token::Session(session)).is_err() {
                self.daemon.session_gone(session);
                continue;
            }
            let attached = Attached {
                socket,
                unsent: VecDeque::new(),
                is_full: false,
            };
            self.sessions.insert(session, attached);
        }
    }

    fn hear_session(&mut self, session: SessionId) {
        for _ in 0..BATCH {
            let Some(attached) = self.sessions.get(&session) else {
                return;
            };
            match attached.socket.recv() {
                Ok(Came::Packet(packet)) => self.daemon.session_packet(session, &packet.bytes),
                Ok(Came::Nothing) => return,
                Ok(Came::Ended) => return self.part(session),
                Err(error) => {
                    tracing::warn!("an application is turned away: {error}");
                    return self.part(session);
                }
            }
            self.obey();
        }
    }

    fn part(&mut self, session: SessionId) {
        self.daemon.session_gone(session);
        // Closed, it is watched no more.
        self.sessions.remove(&session);
    }

    fn greet_daemons(&mut self) {
        loop {
            match self.daemons.try_accept() {
                Ok(Some(line)) => {
                    let peer = self.daemon.peer_up(None);
                    self.meet(peer, line);
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!("another daemon cannot be answered: {error}");
                    return;
                }
            }
        }
    }

    fn meet(&mut self, peer: PeerId, line: Line) {
        if self.watch(&line, Token::Peer(peer)).is_err() {
            self.daemon.peer_gone(peer);
            return;
        }
        self.peers.insert(peer, line);
    }

    /// Has a thread of its own call another daemon.
    fn dial(&mut self, to: IpAddr) {
        let at = SocketAddr::new(to, self.port).to_string();
        let (dials, wake) = (self.dials.clone(), self.dial_wake.clone());
        let call = move || {
            let line = dial_at(&at, clock::now() + DIAL);
            if dials.send((to, line)).is_ok() {
                // A full pipe wakes as well.
                let _ = rustix::io::write(&*wake, &[0]);
            }
        };
        let name = "headworks-dial".to_owned();
        if let Err(error) = std::thread::Builder::new().name(name).spawn(call) {
            tracing::warn!("no thread to call another daemon: {error}");
            self.daemon.dial_failed(to, Refusal::Unreachable);
        }
    }

    fn take_dialed(&mut self) {
        let mut bytes = [0; 64];
        while rustix::io::read(&self.dial_woken, &mut bytes).is_ok_and(|read| read > 0) {}
        while let Ok((to, line)) = self.dialed.try_recv() {
            match line {
                Ok(line) => {
                    let peer = self.daemon.peer_up(Some(to));
                    self.meet(peer, line);
                }
                Err(error) => {
                    tracing::info!("no daemon answers at {to}: {error}");
                    let why = match error {
                        ExchangeError::Deadline { .. } => Refusal::TimedOut,
                        _ => Refusal::Unreachable,
                    };
                    self.daemon.dial_failed(to, why);
                }
            }
        }
    }

    fn hear_peer(&mut self, peer: PeerId) {
        for _ in 0..BATCH {
            let Some(line) = self.peers.get_mut(&peer) else {
                return;
            };
            match line.recv_small() {
                Ok(Some(message)) if message.len() <= control::MESSAGE_MAX => {
                    self.daemon.peer_message(peer, &message);
                }
                Ok(None) => return,
                Ok(Some(_)) | Err(_) => return self.lose(peer),
            }
            self.obey();
        }
    }

    /// Does what the daemon wants done; says whether there was something.
    fn obey(&mut self) -> bool {
        let mut did = false;
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
                Output::EndSession(session) => drop(self.sessions.remove(&session)),
            }
        }
        self.resend();
        self.resay();
        if self.daemon.domains() > self.watched {
            self.watched = self.daemon.domains();
            for fd in self.daemon.wake_fds() {
                // Those that are watched already say so.
                let _ = self.watch(fd, Token::Device);
            }
        }
        did
    }

    fn say(&mut self, peer: PeerId, message: &[u8]) {
        let Some(line) = self.peers.get_mut(&peer) else {
            return;
        };
        match line.send_small(message) {
            Ok(()) => drop(self.unsaid.insert(peer)),
            Err(error) => {
                tracing::warn!("another daemon cannot be told: {error}");
                self.lose(peer);
            }
        }
    }

    fn lose(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.unsaid.remove(&peer);
        self.daemon.peer_gone(peer);
    }

    /// Says what lines have room for.
    fn resay(&mut self) {
        for peer in std::mem::take(&mut self.unsaid) {
            let Some(line) = self.peers.get_mut(&peer) else {
                continue;
            };
            let flushed = line.flush();
            let Some(line) = self.peers.get(&peer) else {
                continue;
            };
            match flushed {
                Ok(is_empty) => {
                    self.watch_room(line, Token::Peer(peer), !is_empty);
                    if !is_empty {
                        self.unsaid.insert(peer);
                    }
                }
                Err(_) => self.lose(peer),
            }
        }
    }

    fn send(&mut self, session: SessionId, packet: Vec<u8>, slab: Option<Arc<dyn Buffer>>) {
        let Some(attached) = self.sessions.get_mut(&session) else {
            return;
        };
        attached.unsent.push_back((packet, slab));
        self.unsent.insert(session);
        if attached.unsent.len() > UNSENT_MAX {
            tracing::warn!("an application that does not listen is turned away");
            self.part(session);
        }
    }

    /// Sends what applications have room for.
    fn resend(&mut self) {
        for session in std::mem::take(&mut self.unsent) {
            let Some(attached) = self.sessions.get_mut(&session) else {
                continue;
            };
            let was_full = std::mem::take(&mut attached.is_full);
            let mut is_gone = false;
            while let Some((packet, slab)) = attached.unsent.front() {
                let file = slab.as_ref().and_then(|slab| slab.file());
                if slab.is_some() && file.is_none() {
                    tracing::warn!("the device's memory cannot be shared with applications");
                    is_gone = true;
                    break;
                }
                match attached.socket.send(packet, file) {
                    Ok(true) => drop(attached.unsent.pop_front()),
                    Ok(false) => {
                        attached.is_full = true;
                        break;
                    }
                    Err(_) => {
                        is_gone = true;
                        break;
                    }
                }
            }
            if is_gone {
                self.part(session);
                continue;
            }
            let is_full = attached.is_full;
            if is_full {
                self.unsent.insert(session);
            }
            if is_full != was_full
                && let Some(attached) = self.sessions.get(&session)
            {
                self.watch_room(&attached.socket, Token::Session(session), is_full);
            }
        }
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
            Token::Dialed,
            Token::Session(SessionId(1)),
            Token::Session(SessionId(1 << 50)),
            Token::Peer(PeerId(1)),
            Token::Peer(PeerId(1 << 50)),
        ] {
            assert_eq!(Token::from_bits(token.bits()), token);
        }
    }
}
