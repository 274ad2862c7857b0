//! State that an application's threads share in a session: packets to and from the daemon, and sleeping
//! threads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Thread;

use headworks_client::connection::Connection;
use headworks_client::session::Event;
use headworks_client::socket_message::{Reply, Request};
use headworks_client::{Extent, Session};
use headworks_net::packets::{PacketSocket, RecvOutcome};
use headworks_net::waiting::PollHistory;
use headworks_net::{WaitPhase, Waiter, WakeReason, clock};
use headworks_shm::fork::ForkGeneration;
use headworks_shm::{EventCountRef, SharedSegment, View, WakeBy};
use headworks_verbs::{Duration, Instant};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::descriptor_thread::DescriptorThread;
use super::leader_followers::LeaderFollowers;
use super::pair_socket::PairSockets;
use super::poller::{PollerTable, PollerWaker};
use super::{Refusal, ServiceError, system};

/// How long the daemon has to answer a request that it can answer by itself, and to take packets from a full socket.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Looks at a direct connection before a wait yields its core for the first time, if the wait before was prompt. A look is
/// much shorter than a yield, during which the thread sees nothing. But the peer may need this core.
const PROMPT_LOOKS: u32 = 16;

/// The session as all its connections and threads share it.
pub(super) struct SharedSession {
    socket: PacketSocket,
    /// How long the daemon may leave a request without an answer, and a full socket full.
    patience: Duration,
    pub(super) path: PathBuf,
    state: Mutex<SessionState>,
    /// Wakes the leader of the sleeping threads.
    leader_wake: OwnedFd,
    /// Number of times that packets were handled.
    packets: AtomicU64,
    /// Whether the daemon has hung up.
    is_hung_up: AtomicBool,
    /// The thread that makes the descriptors of direct connections ready.
    pub(super) descriptor_thread: DescriptorThread,
    /// Table of the session's streams, with the poller that each is in.
    pub(super) poller_table: PollerTable,
    /// A duplicate of the descriptor of `pairs`, to sleep on without the lock.
    pairs_fd: OwnedFd,
    made_by: ForkGeneration,
}

/// Event count on which a thread sleeps while it waits for a connection.
pub(super) struct SleepsOn {
    /// The connection's handle.
    pub(super) handle: u32,
    /// Event count that the daemon or, on the direct path, the peer notifies.
    pub(super) event_count: EventCountRef,
    /// Whether the wait goes on when the daemon is gone.
    pub(super) is_direct: bool,
}

/// Phase in which a waiter calls its condition.
pub(super) enum LookFor<'s> {
    /// To check the condition.
    Poll,
    /// The thread is about to sleep: the condition must arm what wakes it in this way, and then check once more.
    Sleep(&'s mut SessionState, WakeBy),
}

/// Means to wake a sleeping thread that is not the leader.
#[derive(Clone)]
enum Waker {
    /// The thread sleeps on an event count. The daemon wakes it there, too.
    EventCount(EventCountRef),
    /// The thread is parked.
    Thread(Thread),
}

impl Waker {
    /// Wakes a thread that is not the leader. Call it with the session locked: the leader's event count must stay armed.
    fn wake(&self) {
        match self {
            Self::EventCount(event_count) => {
                event_count.disarm();
                event_count.wake();
            }
            Self::Thread(thread) => thread.unpark(),
        }
    }
}

pub(super) struct SessionState {
    pub(super) session: Session,
    /// Answers that no caller has taken yet, by request.
    pub(super) answers: BTreeMap<u32, Result<Answer, Refusal>>,
    /// Connections that wait to be accepted, by listener. Every open listener has an entry.
    pub(super) incoming: BTreeMap<u32, VecDeque<Box<Connection>>>,
    /// Requests whose answers no caller wants any more.
    given_up: BTreeSet<u32>,
    /// Descriptors to send along, by request.
    files: BTreeMap<u32, OwnedFd>,
    /// Packet that the socket had no room for, with its descriptor. It precedes the session's other packets.
    unsent: Option<(Vec<u8>, Option<OwnedFd>)>,
    /// Whether the socket has stayed full for as long as the daemon may leave it so.
    is_stuck: bool,
    waiters: LeaderFollowers<Waker>,
    /// The sockets of the session's pairs.
    pub(super) pairs: PairSockets,
    /// The pollers of the session, each of which may sleep until packets come.
    pub(super) pollers: Vec<Weak<PollerWaker>>,
    pub(super) is_gone: bool,
}

/// An answer of the daemon to a request.
pub(super) enum Answer {
    Connected(Box<Connection>),
    Listening { listener: u32, port: u16 },
    Allocated(Extent),
    Exported(u32),
    Revoked,
    Watched,
}

impl fmt::Debug for SharedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl SessionState {
    /// Records the answer to a request.
    fn settle(&mut self, request: u32, answer: Result<Answer, Refusal>) {
        if let Ok(Answer::Listening { listener, .. }) = &answer {
            // Connections may arrive before the answer is taken.
            self.incoming.insert(*listener, VecDeque::new());
        }
        match self.given_up.remove(&request) {
            true => self.discard(answer),
            false => drop(self.answers.insert(request, answer)),
        }
    }

    /// Returns to the daemon what an unwanted answer granted.
    fn discard(&mut self, answer: Result<Answer, Refusal>) {
        match answer {
            Ok(Answer::Connected(connection)) => self.session.abort(connection.handle()),
            Ok(Answer::Listening { listener, .. }) => self.unlisten(listener),
            Ok(Answer::Allocated(extent)) => self.session.free(extent),
            Ok(Answer::Watched | Answer::Exported(_) | Answer::Revoked) | Err(_) => {}
        }
    }

    /// Returns the error for a daemon that has hung up.
    fn why_gone(&self) -> ServiceError {
        match self.session.over() {
            // The daemon has stopped. It stopped taking requests before, and refused them for the same reason.
            Some(Refusal::Stopping) if self.session.doorbell().is_some() => {
                ServiceError::DaemonGone
            }
            Some(why) => ServiceError::Refused(why),
            None => ServiceError::DaemonGone,
        }
    }

    /// Queues a new connection for its listener.
    fn on_incoming(&mut self, listener: u32, connection: Box<Connection>) {
        match self.incoming.get_mut(&listener) {
            Some(waiting) => waiting.push_back(connection),
            // The connection was on its way when the listener was closed.
            None => self.session.abort(connection.handle()),
        }
    }

    /// Closes a listener and aborts its connections that were not accepted.
    pub(super) fn unlisten(&mut self, listener: u32) {
        self.session.unlisten(listener);
        for connection in self.incoming.remove(&listener).unwrap_or_default() {
            self.session.abort(connection.handle());
        }
    }
}

impl SharedSession {
    /// Attaches to the daemon whose socket is at `path`.
    pub(super) fn attach(path: &Path, name: &str) -> Result<Arc<Self>, ServiceError> {
        Self::attach_within(path, name, ANSWER_TIMEOUT)
    }

    /// Attaches as [`SharedSession::attach`] does, to a daemon that may be silent for `patience`.
    pub(super) fn attach_within(
        path: &Path,
        name: &str,
        patience: Duration,
    ) -> Result<Arc<Self>, ServiceError> {
        let until = clock::now() + patience;
        let socket =
            PacketSocket::dial_within(path, patience).map_err(|source| match source.kind() {
                io::ErrorKind::WouldBlock => silent(path, patience),
                _ => ServiceError::NoDaemon {
                    path: path.display().to_string(),
                    source,
                },
            })?;
        let pairs = PairSockets::new()?;
        let pairs_fd = pairs.as_fd().try_clone_to_owned();
        let shared = Self {
            pairs_fd: pairs_fd.map_err(system("a descriptor"))?,
            socket,
            patience,
            path: path.to_owned(),
            state: Mutex::new(SessionState {
                session: Session::new(name).with_direct_path(),
                pairs,
                answers: BTreeMap::new(),
                incoming: BTreeMap::new(),
                given_up: BTreeSet::new(),
                files: BTreeMap::new(),
                unsent: None,
                is_stuck: false,
                waiters: LeaderFollowers::new(),
                pollers: Vec::new(),
                is_gone: false,
            }),
            leader_wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|errno| system("eventfd")(errno.into()))?,
            packets: AtomicU64::new(0),
            is_hung_up: AtomicBool::new(false),
            descriptor_thread: DescriptorThread::default(),
            poller_table: PollerTable::default(),
            made_by: ForkGeneration::current(),
        };
        shared.exchange(&mut *shared.lock()?)?;
        let attached = shared.wait(Some(until), |look| {
            let LookFor::Sleep(state, _) = look else {
                return Ok(None);
            };
            match state.session.over() {
                Some(why) => Err(ServiceError::Refused(why)),
                None => Ok(state.session.doorbell().map(drop)),
            }
        });
        match attached {
            Ok(()) => Ok(Arc::new(shared)),
            Err(ServiceError::Deadline) => Err(silent(path, patience)),
            Err(error) => Err(error),
        }
    }

    /// Refuses calls in a forked child: the daemon would take its packets for its parent's.
    pub(super) fn check(&self) -> Result<(), ServiceError> {
        match self.made_by.is_foreign() {
            true => Err(ServiceError::Forked),
            false => Ok(()),
        }
    }

    /// Locks the state. Refuses a forked child, in which the lock may be held by a thread that does not exist
    /// there.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, SessionState>, ServiceError> {
        self.check()?;
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Handles what has come at the sockets of the session's pairs: wakes everyone who may wait for it.
    pub(super) fn drain_pairs(&self, state: &mut SessionState) -> Result<(), ServiceError> {
        if state.pairs.is_empty() {
            return Ok(());
        }
        let (had_some, gone) = state.pairs.drain();
        gone.iter()
            .for_each(|pair| state.session.forget_pair(*pair));
        if !had_some {
            return Ok(());
        }
        self.packets.fetch_add(1, Ordering::Release);
        let pollers = state.pollers.iter().filter_map(Weak::upgrade);
        pollers.for_each(|poller| poller.wake_if_asleep());
        for (is_leader, _, waker) in state.waiters.iter() {
            match is_leader {
                true => self.wake_leader()?,
                // The others are woken by their event counts, but not by the end of a peer.
                false if gone.is_empty() => {}
                false => waker.wake(),
            }
        }
        Ok(())
    }

    /// Returns the descriptor that is readable while something has come at the sockets of the session's pairs.
    pub(super) fn pairs_fd(&self) -> BorrowedFd<'_> {
        self.pairs_fd.as_fd()
    }

    /// Returns the address that the daemon serves, if it tells.
    pub(super) fn address(&self) -> Result<Option<IpAddr>, ServiceError> {
        Ok(self.lock()?.session.address())
    }

    /// Returns the port of the first address of `at` that is unspecified or the daemon's own.
    pub(super) fn own_port(&self, at: &[SocketAddr]) -> Result<u16, ServiceError> {
        let own = self.address()?;
        let is_own = |at: &&SocketAddr| {
            let at = at.ip().to_canonical();
            at.is_unspecified() || own == Some(at)
        };
        match at.iter().find(is_own) {
            Some(at) => Ok(at.port()),
            None => Err(ServiceError::NotOwnAddress { own }),
        }
    }

    /// Whether no request is possible any more.
    pub(super) fn is_gone(&self) -> bool {
        let Ok(mut state) = self.lock() else {
            return true;
        };
        let exchanged = self.exchange_now(&mut state);
        let is_refused = matches!(
            exchanged,
            Err(ServiceError::Refused(_) | ServiceError::DaemonGone)
        );
        is_refused || state.is_gone || state.session.over().is_some()
    }

    /// Wakes a daemon that sleeps. If the socket is full, the daemon has enough packets to wake for.
    pub(super) fn wake(&self) -> Result<(), ServiceError> {
        self.check()?;
        let sent = self.socket.send(&Request::Wake.encode(), None);
        sent.map(drop).map_err(|_| ServiceError::DaemonGone)
    }

    /// Waits until `look` returns something. `history` decides for a connection whether the thread polls before it
    /// sleeps.
    ///
    /// One of the sleeping threads, the leader, listens to the daemon for all. The others sleep on their connections'
    /// event counts, on which the daemon wakes them, or are parked until the leader has their answers. When the
    /// leader has what it waited for, another thread becomes the leader.
    pub(super) fn wait_on<T>(
        &self,
        sleeps_on: &SleepsOn,
        history: &mut PollHistory,
        deadline: Option<Instant>,
        mut look: impl FnMut(LookFor<'_>) -> Result<Option<T>, ServiceError>,
    ) -> Result<T, ServiceError> {
        let (began, polls) = (clock::now(), history.polls());
        if sleeps_on.is_direct && history.is_prompt() {
            for _ in 0..PROMPT_LOOKS {
                if let Some(found) = look(LookFor::Poll)? {
                    history.ended(polls, clock::now().since(began));
                    return Ok(found);
                }
                std::hint::spin_loop();
            }
        }
        let waited = self.wait_for(Some(sleeps_on), polls, deadline, look);
        history.ended(polls, clock::now().since(began));
        waited
    }

    /// Does what [`SharedSession::wait_on`] does, for an answer or a listener.
    pub(super) fn wait<T>(
        &self,
        deadline: Option<Instant>,
        look: impl FnMut(LookFor<'_>) -> Result<Option<T>, ServiceError>,
    ) -> Result<T, ServiceError> {
        self.wait_for(None, true, deadline, look)
    }

    fn wait_for<T>(
        &self,
        sleeps_on: Option<&SleepsOn>,
        polls: bool,
        deadline: Option<Instant>,
        mut look: impl FnMut(LookFor<'_>) -> Result<Option<T>, ServiceError>,
    ) -> Result<T, ServiceError> {
        // Polls first: mostly that is enough.
        if polls && let Some(found) = self.poll(sleeps_on, deadline, &mut look)? {
            return Ok(found);
        }
        let (on, waker) = match sleeps_on {
            Some(on) => (Some(on.handle), Waker::EventCount(on.event_count.clone())),
            None => (None, Waker::Thread(std::thread::current())),
        };
        let mut state = self.lock()?;
        let number = state.waiters.enter(on, waker.clone());
        drop(state);
        let is_direct = sleeps_on.is_some_and(|on| on.is_direct);
        let waited = self.sleep(&waker, (number, is_direct), deadline, look);
        self.lock()?.waiters.leave(number, Waker::wake);
        waited
    }

    /// Polls for a short time. Returns `None` if the thread must sleep.
    fn poll<T>(
        &self,
        sleeps_on: Option<&SleepsOn>,
        deadline: Option<Instant>,
        look: &mut impl FnMut(LookFor<'_>) -> Result<Option<T>, ServiceError>,
    ) -> Result<Option<T>, ServiceError> {
        let mut waiter = Waiter::default();
        loop {
            let mut found = Ok(None);
            let mut at = |phase| {
                found = match phase {
                    WaitPhase::Poll => look(LookFor::Poll),
                    WaitPhase::Arm => return true,
                };
                !matches!(found, Ok(None))
            };
            // A connection's news are in its memory; whatever else the daemon says is handled before the thread sleeps.
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            let fds = if sleeps_on.is_some() {
                &mut []
            } else {
                &mut fds[..]
            };
            let woken = waiter.wait_polling(fds, deadline, &mut at);
            if let Some(found) = found.transpose() {
                return found.map(Some);
            }
            match woken.map_err(system("waiting"))? {
                WakeReason::Deadline => return Err(ServiceError::Deadline),
                WakeReason::Ready => return Ok(None),
                // Mostly a spurious wake-up, for something that polling has already seen.
                WakeReason::Fd => {
                    let mut state = self.lock()?;
                    self.exchange(&mut state)?;
                    if state.is_gone {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn sleep<T>(
        &self,
        waker: &Waker,
        (number, is_direct): (u64, bool),
        deadline: Option<Instant>,
        mut look: impl FnMut(LookFor<'_>) -> Result<Option<T>, ServiceError>,
    ) -> Result<T, ServiceError> {
        let mut has_pairs = false;
        loop {
            let (is_leader, is_gone);
            {
                let mut state = self.lock()?;
                is_leader = state.waiters.is_leader(number);
                if is_leader {
                    match self.exchange(&mut state) {
                        Err(ServiceError::DaemonGone | ServiceError::Refused(_)) if is_direct => {}
                        exchanged => exchanged?,
                    }
                    if std::mem::take(&mut has_pairs) {
                        self.drain_pairs(&mut state)?;
                    }
                }
                let by = match waker {
                    Waker::EventCount(_) if !is_leader => WakeBy::Word,
                    _ => WakeBy::Message,
                };
                if let Some(found) = look(LookFor::Sleep(&mut state, by))? {
                    return Ok(found);
                }
                is_gone = state.is_gone;
                if is_gone && !is_direct {
                    return Err(ServiceError::DaemonGone);
                }
            }
            let left = deadline.map(|deadline| deadline.since(clock::now()));
            if left == Some(Duration::ZERO) {
                return Err(ServiceError::Deadline);
            }
            let left = left.map(|left| std::time::Duration::from_nanos(left.nanos()));
            match waker {
                _ if is_leader => {
                    // The socket of a daemon that is gone is readable for good.
                    let mut fds = [
                        PollFd::new(&self.leader_wake, PollFlags::IN),
                        PollFd::new(&self.pairs_fd, PollFlags::IN),
                        PollFd::new(&self.socket, PollFlags::IN),
                    ];
                    let fds = if is_gone { &mut fds[..2] } else { &mut fds[..] };
                    headworks_net::waiting::sleep(fds, deadline).map_err(system("waiting"))?;
                    has_pairs = !fds[1].revents().is_empty();
                    if !fds[0].revents().is_empty() {
                        let _ = rustix::io::read(&self.leader_wake, &mut [0; 8]);
                    }
                }
                Waker::EventCount(event_count) => event_count.sleep(left),
                Waker::Thread(_) => match left {
                    Some(left) => std::thread::park_timeout(left),
                    None => std::thread::park(),
                },
            }
        }
    }

    /// Wakes the leader of the sleeping threads.
    fn wake_leader(&self) -> Result<(), ServiceError> {
        match rustix::io::write(&self.leader_wake, &1u64.to_ne_bytes()) {
            // The eventfd is at its limit, so the thread will wake.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(system("waking a thread")(errno.into())),
        }
    }

    /// Sends a request to the daemon and waits for the answer: until `deadline`, or as long as the daemon may be
    /// silent.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Deadline`], or without a deadline [`ServiceError::DaemonSilent`]; and others.
    pub(super) fn answer(
        &self,
        deadline: Option<Instant>,
        ask: impl FnOnce(&mut Session) -> u32,
    ) -> Result<Answer, ServiceError> {
        self.answer_with(None, deadline, self.patience, ask)
    }

    /// Asks for a connection, as [`SharedSession::answer`] does.
    pub(super) fn answer_connect(
        &self,
        deadline: Option<Instant>,
        to: SocketAddr,
    ) -> Result<Answer, ServiceError> {
        self.answer_with(None, deadline, super::CONNECT_TIMEOUT, |session| {
            session.connect(to)
        })
    }

    fn answer_with(
        &self,
        file: Option<OwnedFd>,
        deadline: Option<Instant>,
        patience: Duration,
        ask: impl FnOnce(&mut Session) -> u32,
    ) -> Result<Answer, ServiceError> {
        let request = self.request(file, ask)?;
        let until = deadline.unwrap_or_else(|| clock::now() + patience);
        let answer = match self.await_answer(request, Some(until)) {
            Err(ServiceError::Deadline) if deadline.is_none() => Err(silent(&self.path, patience)),
            answer => answer,
        };
        match &answer {
            // The request is answered, or never will be.
            Ok(_) | Err(ServiceError::Refused(_) | ServiceError::DaemonGone) => {}
            // The answer may still come, and what it grants must then be returned.
            Err(_) => self.abandon_request(request),
        }
        answer
    }

    /// Waits for the answer to a request.
    pub(super) fn await_answer(
        &self,
        request: u32,
        deadline: Option<Instant>,
    ) -> Result<Answer, ServiceError> {
        self.wait(deadline, |look| {
            // Another thread may have read the answer from the socket.
            let answer = match look {
                LookFor::Sleep(state, _) => state.answers.remove(&request),
                LookFor::Poll => self.lock()?.answers.remove(&request),
            };
            answer.transpose().map_err(ServiceError::Refused)
        })
    }

    /// Marks the answer to a request as unwanted.
    pub(super) fn abandon_request(&self, request: u32) {
        let Ok(mut state) = self.lock() else {
            return;
        };
        match state.answers.remove(&request) {
            Some(answer) => state.discard(answer),
            None => drop(state.given_up.insert(request)),
        }
        // The next call notices if the daemon is gone.
        let _ = self.exchange(&mut state);
    }

    /// Sends a request to the daemon, with a descriptor if it needs one. Returns the request's number.
    pub(super) fn request(
        &self,
        file: Option<OwnedFd>,
        ask: impl FnOnce(&mut Session) -> u32,
    ) -> Result<u32, ServiceError> {
        let mut state = self.lock()?;
        let request = ask(&mut state.session);
        if let Some(file) = file {
            state.files.insert(request, file);
        }
        let exchanged = self.exchange(&mut state);
        drop(state);
        match exchanged {
            Ok(()) => Ok(request),
            Err(error) => {
                // The request may have been sent all the same.
                self.abandon_request(request);
                Err(error)
            }
        }
    }

    /// Hands the daemon its end of a socket pair, and waits until the daemon has it.
    pub(super) fn request_with_fd(
        &self,
        file: OwnedFd,
        ask: impl FnOnce(&mut Session) -> u32,
    ) -> Result<(), ServiceError> {
        match self.answer_with(Some(file), None, self.patience, ask)? {
            Answer::Watched => Ok(()),
            _ => Err(super::UNEXPECTED_ANSWER.into()),
        }
    }

    /// Returns the answer to a request, if it has arrived.
    pub(super) fn answered(&self, request: u32) -> Result<Option<Answer>, ServiceError> {
        let mut state = self.lock()?;
        self.exchange_now(&mut state)?;
        let answer = state.answers.remove(&request);
        match answer.transpose().map_err(ServiceError::Refused)? {
            None if state.is_gone => Err(ServiceError::DaemonGone),
            answer => Ok(answer),
        }
    }
}

/// Returns the error for a daemon at `path` that was silent for `patience`.
fn silent(path: &Path, patience: Duration) -> ServiceError {
    ServiceError::DaemonSilent {
        path: path.display().to_string(),
        patience,
    }
}

mod packets;
#[cfg(test)]
mod tests;
