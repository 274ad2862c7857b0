//! Connections through the daemon of this host: a stream of bytes to a port of another host's application, over few
//! queue pairs that all share (RaaS, section V.A). Who uses it knows sockets, and nothing of RDMA.
//!
//! ```no_run
//! use headworks::service::Service;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = Service::attach("/run/user/1000/headworks.sock".as_ref(), "example")?;
//! let mut stream = service.connect("10.0.0.2:7000".parse()?)?;
//! stream.send_all(b"over the weir")?;
//! let mut answer = [0; 64];
//! let len = stream.recv(&mut answer)?;
//! # let _ = len;
//! # Ok(())
//! # }
//! ```
//!
//! A call that waits looks around for a bounded time, offering its core to others, and then sleeps. While neither side
//! sleeps, sending and receiving take no lock and no system call.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_client::message::{Refusal, Request};
use headworks_client::session::{Connection, Event, Received};
use headworks_client::{ContractError, Reset, Session};
use headworks_shm::{SegmentError, SharedSegment, View};
use headworks_stage::packets::{Came, PacketSocket};
use headworks_stage::{Phase, Spin, Waiter, Woken};
use headworks_verbs::{Duration, Instant};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

/// Why something cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// There is no daemon there.
    #[error("no daemon at {path}: {source}")]
    NoDaemon {
        /// Where.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The daemon says no.
    #[error("{0}")]
    Refused(Refusal),
    /// The connection is no more.
    #[error("{0}")]
    Reset(Reset),
    /// The stream was ended by this side.
    #[error("the stream was ended: nothing can be sent any more")]
    Ended,
    /// The daemon is gone.
    #[error("the daemon is gone")]
    DaemonGone,
    /// The time is up.
    #[error("the time is up")]
    Deadline,
    /// What the daemon shares makes no sense.
    #[error("the daemon does not keep to the contract: {0}")]
    Contract(#[from] ContractError),
    /// Memory that the daemon shares cannot be mapped.
    #[error(transparent)]
    Memory(#[from] SegmentError),
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServiceError {
    move |source| ServiceError::System { what, source }
}

impl From<ServiceError> for io::Error {
    fn from(error: ServiceError) -> Self {
        use io::ErrorKind;
        let kind = match &error {
            ServiceError::Refused(Refusal::Refused) => ErrorKind::ConnectionRefused,
            ServiceError::Refused(Refusal::Unreachable) => ErrorKind::HostUnreachable,
            ServiceError::Refused(Refusal::TimedOut) | ServiceError::Deadline => {
                ErrorKind::TimedOut
            }
            ServiceError::Refused(Refusal::PortTaken) => ErrorKind::AddrInUse,
            ServiceError::Refused(Refusal::Memory) => ErrorKind::OutOfMemory,
            ServiceError::Refused(Refusal::Denied) => ErrorKind::PermissionDenied,
            ServiceError::Reset(_) => ErrorKind::ConnectionReset,
            ServiceError::Ended => ErrorKind::BrokenPipe,
            ServiceError::DaemonGone => ErrorKind::ConnectionAborted,
            ServiceError::NoDaemon { source, .. } => source.kind(),
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// What all of a session's connections and threads share.
struct Shared {
    socket: PacketSocket,
    state: Mutex<State>,
}

struct State {
    session: Session,
    /// Answers that nobody has taken.
    answers: BTreeMap<u32, Result<Answer, Refusal>>,
    /// Connections that came and nobody has taken, by listener.
    incoming: BTreeMap<u32, VecDeque<Box<Connection>>>,
    /// Threads that sleep or are about to: on a connection, or on an answer or a listener (`None`), each with what
    /// wakes it.
    asleep: Vec<(Option<u32>, Arc<OwnedFd>)>,
    /// Whether one of them listens to the daemon, for all.
    is_led: bool,
    is_gone: bool,
}

enum Answer {
    Connected(Box<Connection>),
    Listening { listener: u32, port: u16 },
}

/// An application's way to the daemon of its host. Clones are the same one.
#[derive(Clone)]
pub struct Service(Arc<Shared>);

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what is to be said, takes what has come.
    fn exchange(&self, state: &mut State) -> Result<(), ServiceError> {
        while let Some(packet) = state.session.output() {
            self.send(&packet)?;
        }
        loop {
            match self.socket.recv() {
                Ok(Came::Packet(packet)) => {
                    let view = match packet.file {
                        Some(file) => {
                            let segment = Arc::new(SharedSegment::attach(file)?);
                            Some(View::from(segment))
                        }
                        None => None,
                    };
                    state.session.input(&packet.bytes, view)?;
                }
                Ok(Came::Nothing) => break,
                Ok(Came::Ended) => {
                    state.is_gone = true;
                    break;
                }
                Err(error) => return Err(system("the daemon's socket")(error)),
            }
        }
        let mut rang = Vec::new();
        let mut others = state.is_gone;
        while let Some(event) = state.session.event() {
            match event {
                Event::Rang { handle } => {
                    rang.push(handle);
                    continue;
                }
                Event::Connected {
                    request,
                    connection,
                } => {
                    let answer = Ok(Answer::Connected(connection));
                    state.answers.insert(request, answer);
                }
                Event::Listening {
                    request,
                    listener,
                    port,
                } => {
                    let answer = Ok(Answer::Listening { listener, port });
                    state.answers.insert(request, answer);
                }
                Event::Refused { request, why } => drop(state.answers.insert(request, Err(why))),
                Event::Incoming {
                    listener,
                    connection,
                } => state
                    .incoming
                    .entry(listener)
                    .or_default()
                    .push_back(connection),
                Event::Attached | Event::Allocated { .. } | Event::Over(_) => {}
            }
            others = true;
        }
        for (handle, wake) in &state.asleep {
            let is_rung = handle.is_some_and(|handle| rang.contains(&handle));
            if is_rung || others {
                rouse(wake)?;
            }
        }
        Ok(())
    }

    fn send(&self, packet: &[u8]) -> Result<(), ServiceError> {
        loop {
            match self.socket.send(packet, None) {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
                    match poll(&mut fds, None) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(system("waiting")(error.into())),
                    }
                }
                Err(_) => return Err(ServiceError::DaemonGone),
            }
        }
    }

    /// Wakes a daemon that sleeps. Where there is no room for that it has enough to wake for.
    fn wake(&self) -> Result<(), ServiceError> {
        let sent = self.socket.send(&Request::Wake.encode(), None);
        sent.map(drop).map_err(|_| ServiceError::DaemonGone)
    }

    /// Waits until `look` has something. It is called with the session before each sleep.
    ///
    /// Of the threads that sleep one listens to the daemon and wakes the others, each by a descriptor of its own, so
    /// that a packet wakes whom it is for and nobody else. When that one has what it waited for, another listens.
    fn wait<T>(
        &self,
        sleeps_on: Option<u32>,
        deadline: Option<Instant>,
        mut look: impl FnMut(Option<&mut State>) -> Result<Option<T>, ServiceError>,
    ) -> Result<T, ServiceError> {
        let mut waiter = Waiter::default();
        // First looking around, without a descriptor of its own: mostly that is enough.
        loop {
            let mut found = Ok(None);
            let mut at = |phase| {
                found = match phase {
                    Phase::Look => look(None),
                    Phase::Arm => return true,
                };
                !matches!(found, Ok(None))
            };
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            let woken = waiter.wait_polling(&mut fds, deadline, &mut at);
            if let Some(found) = found.transpose() {
                return found;
            }
            match woken.map_err(system("waiting"))? {
                Woken::Deadline => return Err(ServiceError::Deadline),
                Woken::Ready => break,
                // Mostly a bell that has rung in vain, since what it rang for was seen before.
                Woken::Fd => {
                    let mut state = self.lock();
                    self.exchange(&mut state)?;
                    if state.is_gone {
                        break;
                    }
                }
            }
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|errno| system("eventfd")(errno.into()))?;
        let wake = Arc::new(wake);
        self.lock().asleep.push((sleeps_on, wake.clone()));
        let mut leads = false;
        let waited = self.sleep(&wake, &mut leads, deadline, look);
        let mut state = self.lock();
        state.asleep.retain(|(_, other)| !Arc::ptr_eq(other, &wake));
        if leads {
            state.is_led = false;
            if let Some((_, next)) = state.asleep.first() {
                rouse(next)?;
            }
        }
        waited
    }

    fn sleep<T>(
        &self,
        wake: &OwnedFd,
        leads: &mut bool,
        deadline: Option<Instant>,
        mut look: impl FnMut(Option<&mut State>) -> Result<Option<T>, ServiceError>,
    ) -> Result<T, ServiceError> {
        let mut waiter = Waiter::new(Duration::ZERO, Spin::Yield);
        loop {
            {
                let mut state = self.lock();
                *leads |= !std::mem::replace(&mut state.is_led, true);
                self.exchange(&mut state)?;
                if let Some(found) = look(Some(&mut state))? {
                    return Ok(found);
                }
                if state.is_gone {
                    return Err(ServiceError::DaemonGone);
                }
            }
            let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
            if *leads {
                fds.push(PollFd::new(&self.socket, PollFlags::IN));
            }
            // What was armed above wakes it: there is nothing to look at.
            let woken = waiter.wait_polling(&mut fds, deadline, &mut |_| false);
            if woken.map_err(system("waiting"))? == Woken::Deadline {
                return Err(ServiceError::Deadline);
            }
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
    }

    fn answer(
        &self,
        deadline: Option<Instant>,
        ask: impl FnOnce(&mut Session) -> u32,
    ) -> Result<Answer, ServiceError> {
        let request = {
            let mut state = self.lock();
            let request = ask(&mut state.session);
            self.exchange(&mut state)?;
            request
        };
        self.wait(None, deadline, |state| {
            // Other threads may have taken it off the socket.
            let answer = match state {
                Some(state) => state.answers.remove(&request),
                None => self.lock().answers.remove(&request),
            };
            answer.transpose().map_err(ServiceError::Refused)
        })
    }
}

/// Wakes a thread.
fn rouse(wake: &OwnedFd) -> Result<(), ServiceError> {
    match rustix::io::write(wake, &1u64.to_ne_bytes()) {
        // It has been woken often enough.
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(system("waking a thread")(errno.into())),
    }
}

impl Service {
    /// Attaches to the daemon whose socket is at `path`, as `name` in its logs.
    ///
    /// # Errors
    ///
    /// [`ServiceError::NoDaemon`], [`ServiceError::Refused`].
    pub fn attach(path: &Path, name: &str) -> Result<Self, ServiceError> {
        let socket = PacketSocket::dial(path).map_err(|source| ServiceError::NoDaemon {
            path: path.display().to_string(),
            source,
        })?;
        let shared = Shared {
            socket,
            state: Mutex::new(State {
                session: Session::new(name),
                answers: BTreeMap::new(),
                incoming: BTreeMap::new(),
                asleep: Vec::new(),
                is_led: false,
                is_gone: false,
            }),
        };
        shared.exchange(&mut shared.lock())?;
        shared.wait(None, None, |state| {
            let Some(state) = state else { return Ok(None) };
            match state.session.over() {
                Some(why) => Err(ServiceError::Refused(why)),
                None => Ok(state.session.board().map(drop)),
            }
        })?;
        Ok(Self(Arc::new(shared)))
    }

    /// Connects to whoever listens there.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`], [`ServiceError::DaemonGone`].
    pub fn connect(&self, to: SocketAddr) -> Result<Stream, ServiceError> {
        self.connect_by(to, None)
    }

    /// The same, no later than `deadline`.
    ///
    /// # Errors
    ///
    /// As [`Service::connect`], and [`ServiceError::Deadline`].
    pub fn connect_by(
        &self,
        to: SocketAddr,
        deadline: Option<Instant>,
    ) -> Result<Stream, ServiceError> {
        match self.0.answer(deadline, |session| session.connect(to))? {
            Answer::Connected(connection) => Ok(Stream::new(&self.0, connection)),
            Answer::Listening { .. } => Err(ContractError::Message("another answer").into()),
        }
    }

    /// Listens at `port`, 0 for any that is free; `backlog` callers may wait to be accepted.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Refused`], [`ServiceError::DaemonGone`].
    pub fn listen(&self, port: u16, backlog: u32) -> Result<Listener, ServiceError> {
        match self
            .0
            .answer(None, |session| session.listen(port, backlog))?
        {
            Answer::Listening { listener, port } => Ok(Listener {
                shared: self.0.clone(),
                listener,
                port,
            }),
            Answer::Connected(_) => Err(ContractError::Message("another answer").into()),
        }
    }
}

/// A port that others connect to, until it is dropped.
pub struct Listener {
    shared: Arc<Shared>,
    listener: u32,
    port: u16,
}

impl Listener {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`].
    pub fn accept(&self) -> Result<Stream, ServiceError> {
        self.accept_by(None)
    }

    /// The same, no later than `deadline`.
    ///
    /// # Errors
    ///
    /// As [`Listener::accept`], and [`ServiceError::Deadline`].
    pub fn accept_by(&self, deadline: Option<Instant>) -> Result<Stream, ServiceError> {
        let take = |state: &mut State| {
            let next = state.incoming.get_mut(&self.listener)?.pop_front()?;
            state.session.took(self.listener);
            Some(next)
        };
        let connection = self.shared.wait(None, deadline, |state| {
            Ok(match state {
                Some(state) => take(state),
                None => take(&mut self.shared.lock()),
            })
        })?;
        Ok(Stream::new(&self.shared, connection))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.session.unlisten(self.listener);
        for connection in state.incoming.remove(&self.listener).unwrap_or_default() {
            state.session.abort(connection);
        }
        let _ = self.shared.exchange(&mut state);
    }
}

/// A connection: a stream of bytes each way. Dropping it closes it; what was sent still arrives.
pub struct Stream {
    shared: Arc<Shared>,
    /// There until it is dropped.
    connection: Option<Box<Connection>>,
    deadline: Option<Instant>,
}

impl Stream {
    fn new(shared: &Arc<Shared>, connection: Box<Connection>) -> Self {
        Self {
            shared: shared.clone(),
            connection: Some(connection),
            deadline: None,
        }
    }

    fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("there until it is dropped")
    }

    /// This end's address and port.
    pub fn local(&self) -> SocketAddr {
        self.connection().local()
    }

    /// The other's.
    pub fn peer(&self) -> SocketAddr {
        self.connection().peer()
    }

    /// Calls wait no longer than until then.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Does something with the connection once it can be done.
    fn wait<T>(
        &mut self,
        mut act: impl FnMut(&mut Connection) -> Result<(Option<T>, bool), ServiceError>,
    ) -> Result<T, ServiceError> {
        let Some(connection) = &mut self.connection else {
            return Err(ServiceError::Ended);
        };
        let shared = &*self.shared;
        let mut act = |connection: &mut Connection| -> Result<Option<T>, ServiceError> {
            let (done, wakes) = act(connection)?;
            if wakes {
                shared.wake()?;
            }
            Ok(done)
        };
        if let Some(done) = act(connection)? {
            return Ok(done);
        }
        let handle = connection.handle();
        shared.wait(Some(handle), self.deadline, |state| {
            if let Some(state) = state {
                connection.refresh(&state.session);
                connection.block().bell().arm(false);
            }
            act(connection)
        })
    }

    /// Sends as many of the bytes as there is room for, at least one; says how many.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Reset`], [`ServiceError::Ended`], [`ServiceError::DaemonGone`], [`ServiceError::Deadline`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<usize, ServiceError> {
        self.wait(|connection| {
            let (sent, wakes) = connection.send(bytes)?;
            if sent > 0 || bytes.is_empty() {
                return Ok((Some(sent), wakes));
            }
            match connection.status().reset {
                Some(why) => Err(ServiceError::Reset(why)),
                None if connection.is_ended() => Err(ServiceError::Ended),
                None => Ok((None, wakes)),
            }
        })
    }

    /// Sends all of the bytes.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`]; some may have been sent.
    pub fn send_all(&mut self, mut bytes: &[u8]) -> Result<(), ServiceError> {
        while !bytes.is_empty() {
            let sent = self.send(bytes)?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Receives as many bytes as have come and fit, at least one; 0 where the stream has ended.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Reset`], [`ServiceError::DaemonGone`], [`ServiceError::Deadline`].
    pub fn recv(&mut self, into: &mut [u8]) -> Result<usize, ServiceError> {
        self.wait(|connection| {
            // Before it is looked for bytes: what came before a reset can still be received.
            let reset = connection.status().reset;
            let (received, wakes) = connection.recv(into)?;
            match (received, reset) {
                (Received::Bytes(len), _) => Ok((Some(len), wakes)),
                (Received::Ended, _) => Ok((Some(0), wakes)),
                (Received::Nothing, Some(why)) if !connection.awaits_slab() => {
                    Err(ServiceError::Reset(why))
                }
                (Received::Nothing, _) => Ok((None, wakes)),
            }
        })
    }

    /// Ends the stream to the peer, who has all that was sent first. It can still be received.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn end(&mut self) -> Result<(), ServiceError> {
        self.wait(|connection| {
            let (is_ended, wakes) = connection.end()?;
            match connection.status().reset {
                Some(why) if !is_ended => Err(ServiceError::Reset(why)),
                _ => Ok((is_ended.then_some(()), wakes)),
            }
        })
    }
}

impl io::Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv(into)?)
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.send(bytes)?)
    }

    /// What was written is on its way already.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let mut state = self.shared.lock();
        state.session.close(connection);
        let _ = self.shared.exchange(&mut state);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} to {})", self.local(), self.peer())
    }
}
