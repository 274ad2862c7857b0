//! Messages to and from many peers, over connections that are made as needed.
//!
//! RaaS maps messages to the UD transport (section V.A), which loses them, reorders them and carries at most
//! one MTU, over queue pairs that every application would need for itself. Here a message travels over a
//! connection of the daemon, which costs little more than the memory of its rings. So no message is lost
//! while both sides live, messages from one socket to another stay in order, and a slow receiver slows its
//! senders down (back-pressure).
//!
//! The side that made a connection sends a stream: eight bytes of magic, two bytes with the port at which it
//! receives, then messages, each after its length in four bytes. Nothing goes back over that connection. The
//! port is only the sender's claim; an answer must reach the process that really receives there, so it goes
//! over a connection of its own.

mod peer;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use headworks_net::{WaitPhase, Waiter, WakeReason};
use headworks_verbs::{Duration, Instant};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use slab::Slab;

use super::shared_session::SharedSession;
use super::stream_half::CallLimits;
use super::{Listener, Peeked, PendingConnection, ServiceError, system};

pub use peer::MESSAGE_MAX;
use peer::{LENGTH, Peer, PeerConnection, PeerStatus};

/// Limit on connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Limit on addresses whose connect error is kept for the next send.
const UNREACHABLE_KEPT_MAX: usize = 1024;
/// Messages taken from peers known to be ready before all peers are polled again.
const POLL_PEERS_EVERY: u32 = 32;
/// Event number of the listener.
const LISTENER: u64 = u64::MAX;
/// Event number of the descriptor for room.
const ROOM: u64 = u64::MAX - 1;
const EVENTS: usize = 64;

/// A port that messages are sent from and come to. Each message arrives whole, once, and in the order of its
/// sender; or not at all, if either end or the network between them fails.
pub struct Datagrams {
    shared: Arc<SharedSession>,
    listener: Listener,
    epoll: OwnedFd,
    /// Watches the peers that wait for room.
    room: OwnedFd,
    peers: Slab<Peer>,
    /// Keys of the peers that this side sends to.
    addresses: HashMap<SocketAddr, usize>,
    /// Errors of addresses that could not be reached, for calls that did not wait. The next send to the address
    /// reports the error.
    unreached: HashMap<SocketAddr, ServiceError>,
    /// Keys of the peers that may have a message.
    ready: VecDeque<usize>,
    since_look: u32,
    /// The peer and message that were lent last and not consumed yet.
    shown: Option<(usize, PeerStatus)>,
    read_limits: CallLimits,
    write_limits: CallLimits,
}

impl Datagrams {
    pub(super) fn bind(shared: &Arc<SharedSession>, port: u16) -> Result<Self, ServiceError> {
        let mut listener = Listener::open(shared, port, BACKLOG)?;
        let create = || epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed);
        let (epoll, room) = (create()?, create()?);
        watch(&epoll, listener.fd()?, LISTENER, EventFlags::IN)?;
        watch(&epoll, room.as_fd(), ROOM, EventFlags::IN)?;
        Ok(Self {
            shared: shared.clone(),
            listener,
            epoll,
            room,
            peers: Slab::new(),
            addresses: HashMap::new(),
            unreached: HashMap::new(),
            ready: VecDeque::new(),
            since_look: 0,
            shown: None,
            read_limits: CallLimits::default(),
            write_limits: CallLimits::default(),
        })
    }

    /// Returns the port that messages come to.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// Returns the address that messages come to: that of the daemon, with the port. The address is unspecified if the
    /// daemon is too old to tell its own.
    ///
    /// # Errors
    ///
    /// [`ServiceError::Forked`].
    pub fn local_addr(&self) -> Result<SocketAddr, ServiceError> {
        self.listener.local_addr()
    }

    /// Sets the instant until which calls may wait; `None` for no limit.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.read_limits.deadline = deadline;
        self.write_limits.deadline = deadline;
    }

    /// Sets how long each call that receives may wait; `None` for no limit. A call that waits longer fails with
    /// [`ServiceError::Deadline`].
    pub fn set_read_timeout(&mut self, timeout: Option<std::time::Duration>) {
        self.read_limits.timeout = timeout.map(Duration::from);
    }

    /// Sets how long each call that sends or flushes may wait; `None` for no limit. A call that waits longer fails with
    /// [`ServiceError::Deadline`].
    pub fn set_write_timeout(&mut self, timeout: Option<std::time::Duration>) {
        self.write_limits.timeout = timeout.map(Duration::from);
    }

    /// Sets whether calls that would wait fail with [`ServiceError::WouldBlock`] instead.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.read_limits.is_nonblocking = nonblocking;
        self.write_limits.is_nonblocking = nonblocking;
    }

    /// Returns a descriptor to poll: readable while a message may have arrived, or while a send that was
    /// [refused](ServiceError::WouldBlock) for lack of room may be retried. Readiness may be spurious; it
    /// ends when [`recv_from`](Self::recv_from) finds nothing.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns a descriptor for callers that only send: readable while a send that was refused for lack of
    /// room may be retried, whatever has arrived. It becomes unready when that is done.
    pub fn room_fd(&self) -> BorrowedFd<'_> {
        self.room.as_fd()
    }

    /// Sends a message of at most [`MESSAGE_MAX`] bytes to the process that receives at `to`. If that has
    /// left and come back since the last message, this connects again; what it had not received is lost.
    ///
    /// # Errors
    ///
    /// [`ServiceError::TooLong`]. [`ServiceError::Refused`]: nobody receives there, the host cannot be
    /// reached, or there are too many connections. If the call did not wait, the next call to the same
    /// address reports that. [`ServiceError::Reset`], [`ServiceError::DaemonGone`],
    /// [`ServiceError::Deadline`]. Nothing was sent, except perhaps after a deadline.
    pub fn send_to(&mut self, bytes: &[u8], to: SocketAddr) -> Result<(), ServiceError> {
        if bytes.len() > MESSAGE_MAX {
            return Err(ServiceError::TooLong(bytes.len()));
        }
        self.wait(WaitTarget::Room, |own| own.try_send(bytes, to))?;
        match self.write_limits.is_nonblocking {
            true => Ok(()),
            // A blocking caller need not flush, so the rest of the message must go now.
            false => self.flush_to(to),
        }
    }

    /// Receives a message, as much of it as fits. Returns its full length and its sender: the host is
    /// certain, the port is the sender's claim.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`], [`ServiceError::Deadline`].
    pub fn recv_from(&mut self, into: &mut [u8]) -> Result<(usize, SocketAddr), ServiceError> {
        self.recv_from_with(|bytes, from| {
            let len = bytes.len().min(into.len());
            into[..len].copy_from_slice(&bytes[..len]);
            (bytes.len(), from)
        })
    }

    /// Passes a message to `see` in place, mostly without a copy, and consumes it.
    ///
    /// # Errors
    ///
    /// As [`Datagrams::recv_from`].
    pub fn recv_from_with<R>(
        &mut self,
        see: impl FnOnce(&[u8], SocketAddr) -> R,
    ) -> Result<R, ServiceError> {
        let (message, from) = self.peek_from()?;
        let seen = see(&message, from);
        drop(message);
        self.consume()?;
        Ok(seen)
    }

    /// Lends a message in place, mostly without a copy; the same one until it is [consumed](Self::consume).
    ///
    /// # Errors
    ///
    /// As [`Datagrams::recv_from`].
    pub fn peek_from(&mut self) -> Result<(Message<'_>, SocketAddr), ServiceError> {
        let (at, found) = match self.shown {
            Some(shown) => shown,
            None => self.wait(WaitTarget::Any, Self::try_find)?,
        };
        self.shown = Some((at, found));
        let peer = &mut self.peers[at];
        let from = peer.address.expect("its hello has arrived");
        Ok((peer.show(found)?, from))
    }

    /// Consumes the message that was lent.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`].
    pub fn consume(&mut self) -> Result<(), ServiceError> {
        self.shared.check()?;
        let Some((at, found)) = self.shown.take() else {
            return Ok(());
        };
        let consumed = self.peers[at].consume(found);
        if self.peers[at].is_over {
            self.remove(at);
        }
        consumed
    }

    /// Waits until every accepted message is on its way. Only nonblocking calls leave anything to flush.
    ///
    /// # Errors
    ///
    /// [`ServiceError::WouldBlock`], [`ServiceError::Deadline`].
    pub fn flush(&mut self) -> Result<(), ServiceError> {
        let to: Vec<SocketAddr> = self.addresses.keys().copied().collect();
        to.into_iter().try_for_each(|to| self.flush_to(to))
    }

    /// Flushes the messages to one address. Does not wait for other addresses, nor fail because of them.
    ///
    /// # Errors
    ///
    /// As [`Datagrams::send_to`], and [`ServiceError::WouldBlock`].
    pub fn flush_to(&mut self, to: SocketAddr) -> Result<(), ServiceError> {
        self.wait(WaitTarget::Room, |own| own.try_flush(to))
    }

    /// Retries `attempt` until it returns something.
    fn wait<T>(
        &mut self,
        on: WaitTarget,
        mut attempt: impl FnMut(&mut Self) -> Result<Option<T>, ServiceError>,
    ) -> Result<T, ServiceError> {
        // Checked before the descriptors are used: a forked child shares its parent's.
        self.shared.check()?;
        let mut attempt = |own: &mut Self| match attempt(own)? {
            // Room events are served first, so that the descriptor becomes ready again for new ones.
            None if on == WaitTarget::Room && own.serve_room()? => attempt(own),
            tried => Ok(tried),
        };
        if let Some(done) = attempt(self)? {
            return Ok(done);
        }
        let limits = match on {
            WaitTarget::Room => self.write_limits,
            WaitTarget::Any => self.read_limits,
        };
        if limits.is_nonblocking {
            return Err(ServiceError::WouldBlock);
        }
        let fd = match on {
            WaitTarget::Room => &self.room,
            WaitTarget::Any => &self.epoll,
        };
        let fd = fd.try_clone().map_err(system("epoll"))?;
        let (mut waiter, deadline) = (Waiter::default(), limits.until());
        loop {
            let mut found = Ok(None);
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            let mut look = |phase: WaitPhase| {
                // The descriptor shows what arrived meanwhile; one more attempt before a sleep makes sure.
                if phase == WaitPhase::Arm {
                    found = attempt(self);
                }
                !matches!(found, Ok(None))
            };
            let woken = waiter.wait_polling(&mut fds, deadline, &mut look);
            if let Some(found) = found? {
                return Ok(found);
            }
            match woken.map_err(system("waiting"))? {
                WakeReason::Deadline => return Err(ServiceError::Deadline),
                WakeReason::Fd | WakeReason::Ready => {
                    if let Some(found) = attempt(self)? {
                        return Ok(found);
                    }
                }
            }
        }
    }

    /// Polls for peers that have something, and accepts new ones.
    fn poll_peers(&mut self) -> Result<(), ServiceError> {
        self.since_look = 0;
        let (mut has_callers, mut has_room) = (false, false);
        for event in events(&self.epoll)? {
            match event {
                LISTENER => has_callers = true,
                ROOM => has_room = true,
                at => {
                    if let Some(peer) = self.peers.get_mut(at as usize)
                        && !peer.is_ready
                    {
                        peer.is_ready = true;
                        self.ready.push_back(at as usize);
                    }
                }
            }
        }
        if has_room {
            self.serve_room()?;
        }
        while has_callers && let Some(mut stream) = self.listener.try_accept()? {
            stream.set_nonblocking(true);
            let at = self.peers.vacant_key();
            // A connection that cannot be polled is dropped.
            if let Ok(fd) = stream.fd() {
                watch(&self.epoll, fd, at as u64, EventFlags::IN)?;
                self.peers
                    .insert(Peer::new(PeerConnection::Up(Box::new(stream)), None));
            }
        }
        Ok(())
    }

    /// Continues with the peers that have room by now: completes connections or removes refused ones, and
    /// sends the rest of accepted messages. Returns whether there were any.
    fn serve_room(&mut self) -> Result<bool, ServiceError> {
        let all = events(&self.room)?;
        for at in &all {
            let at = *at as usize;
            let served = self.connected(at).and_then(|is_up| match is_up {
                true => self.flush_peer(at).map(|_| ()),
                false => Ok(()),
            });
            // Other errors concern one peer: the next send there reports them, or connects again.
            if let Err(error @ (ServiceError::DaemonGone | ServiceError::System { .. })) = served {
                return Err(error);
            }
        }
        Ok(!all.is_empty())
    }

    /// Sets whether the descriptor for room watches this peer.
    fn want_room(&mut self, at: usize, wants_room: bool) -> Result<(), ServiceError> {
        let peer = &mut self.peers[at];
        let PeerConnection::Up(stream) = &mut peer.connection else {
            return Ok(());
        };
        if std::mem::replace(&mut peer.wants_room, wants_room) == wants_room {
            return Ok(());
        }
        match wants_room {
            true => watch(&self.room, stream.fd()?, at as u64, EventFlags::OUT),
            false => epoll::delete(&self.room, stream.fd()?).map_err(failed),
        }
    }

    fn remove(&mut self, at: usize) {
        if let Some(address) = self.peers[at].address
            && self.addresses.get(&address) == Some(&at)
        {
            self.addresses.remove(&address);
        }
        self.ready.retain(|other| *other != at);
        match self.shown {
            // A C caller may still read the lent message, since no lifetime prevents it.
            Some((shown, _)) if shown == at => self.peers[at].is_over = true,
            _ => drop(self.peers.remove(at)),
        }
    }

    /// Completes a pending connection, if it is established by now. Returns whether it is.
    fn connected(&mut self, at: usize) -> Result<bool, ServiceError> {
        let port = self.port();
        let Some(peer) = self.peers.get_mut(at) else {
            return Ok(false);
        };
        let PeerConnection::Connecting(connecting) = &mut peer.connection else {
            return Ok(true);
        };
        match connecting.finish() {
            Ok(None) => Ok(false),
            Ok(Some(mut stream)) => {
                let watched = stream.fd().and_then(|fd| {
                    // The only event that such a stream can deliver is its end.
                    watch(&self.epoll, fd, at as u64, EventFlags::IN)
                });
                peer.connection = PeerConnection::Up(Box::new(stream));
                peer.send_hello(port);
                watched.and_then(|()| self.want_room(at, false))?;
                Ok(true)
            }
            Err(error) => {
                let address = peer.address;
                self.remove(at);
                // Whichever call found the refusal, the next send to the address reports it.
                if let (Some(address), ServiceError::Refused(why)) = (address, &error) {
                    if self.unreached.len() >= UNREACHABLE_KEPT_MAX {
                        self.unreached.clear();
                    }
                    self.unreached.insert(address, ServiceError::Refused(*why));
                }
                Err(error)
            }
        }
    }

    /// Sends a message, if there is room for its beginning.
    fn try_send(&mut self, bytes: &[u8], to: SocketAddr) -> Result<Option<()>, ServiceError> {
        if let Some(why) = self.unreached.remove(&to) {
            return Err(why);
        }
        let was_known = self.addresses.contains_key(&to);
        let sent = match self.try_send_once(bytes, to) {
            // The peer has gone; another process may receive there by now.
            Err(ServiceError::Reset(_) | ServiceError::Ended) if was_known => {
                self.try_send_once(bytes, to)
            }
            sent => sent,
        };
        if sent.is_err() {
            // This call reports the error itself.
            self.unreached.remove(&to);
        }
        sent
    }

    fn try_send_once(&mut self, bytes: &[u8], to: SocketAddr) -> Result<Option<()>, ServiceError> {
        let at = match self.addresses.get(&to) {
            Some(at) => *at,
            None => self.find_or_connect(to)?,
        };
        if !self.connected(at)? {
            return Ok(None);
        }
        let sent = self.peers[at].send(bytes);
        let sent = self.then_wants_room(at, sent)?;
        Ok(sent.then_some(()))
    }

    /// Starts a connection to `to`.
    fn find_or_connect(&mut self, to: SocketAddr) -> Result<usize, ServiceError> {
        let connecting = PendingConnection::start(&self.shared, to)?;
        let at = self.peers.vacant_key();
        watch(&self.room, connecting.as_fd(), at as u64, EventFlags::OUT)?;
        let mut peer = Peer::new(PeerConnection::Connecting(connecting), Some(to));
        peer.wants_room = true;
        self.peers.insert(peer);
        self.addresses.insert(to, at);
        Ok(at)
    }

    /// Handles the result of a send: removes a peer that failed; watches one for room if not everything was
    /// sent.
    fn then_wants_room(
        &mut self,
        at: usize,
        sent: Result<bool, ServiceError>,
    ) -> Result<bool, ServiceError> {
        match sent {
            Ok(sent) => {
                let is_full = !sent || !self.peers[at].rest.is_empty();
                self.want_room(at, is_full)?;
                Ok(sent)
            }
            Err(error) => {
                self.remove(at);
                Err(error)
            }
        }
    }

    /// Sends the rest of the accepted messages to a connected peer. Returns whether all of it was sent.
    fn flush_peer(&mut self, at: usize) -> Result<bool, ServiceError> {
        let flushed = self.peers[at].flush();
        self.then_wants_room(at, flushed)
    }

    /// Sends the rest of the accepted messages to `to`.
    fn try_flush(&mut self, to: SocketAddr) -> Result<Option<()>, ServiceError> {
        let Some(at) = self.addresses.get(&to).copied() else {
            return Ok(Some(()));
        };
        let flushed = self
            .connected(at)
            .and_then(|is_up| Ok(is_up && self.flush_peer(at)?));
        if flushed.is_err() {
            self.unreached.remove(&to);
        }
        Ok(flushed?.then_some(()))
    }

    /// Looks for a message of any peer.
    fn try_find(&mut self) -> Result<Option<(usize, PeerStatus)>, ServiceError> {
        self.since_look += 1;
        if self.ready.is_empty() || self.since_look >= POLL_PEERS_EVERY {
            self.poll_peers()?;
        }
        while let Some(at) = self.ready.pop_front() {
            self.peers[at].is_ready = false;
            match self.peers[at].poll()? {
                PeerStatus::Nothing => {}
                PeerStatus::Gone => self.remove(at),
                found => {
                    self.peers[at].is_ready = true;
                    self.ready.push_back(at);
                    return Ok(Some((at, found)));
                }
            }
        }
        Ok(None)
    }
}

/// Events that a call waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitTarget {
    /// Messages and room.
    Any,
    /// Room alone: messages that were not received yet must not wake the call.
    Room,
}

fn failed(errno: Errno) -> ServiceError {
    system("epoll")(errno.into())
}

fn watch(
    epoll: &OwnedFd,
    fd: BorrowedFd<'_>,
    number: u64,
    flags: EventFlags,
) -> Result<(), ServiceError> {
    epoll::add(epoll, fd, EventData::new_u64(number), flags).map_err(failed)
}

/// Returns the numbers of the descriptors that are ready now.
fn events(epoll: &OwnedFd) -> Result<Vec<u64>, ServiceError> {
    let mut events = [const { MaybeUninit::uninit() }; EVENTS];
    match epoll::wait(epoll, &mut events, Some(&Timespec::default())) {
        Ok((events, _)) => Ok(events.iter().map(|event| event.data.u64()).collect()),
        Err(Errno::INTR) => Ok(Vec::new()),
        Err(errno) => Err(failed(errno)),
    }
}

/// A received message.
pub enum Message<'d> {
    /// The message in place, after its length prefix; the number is its length in bytes.
    #[doc(hidden)]
    InPlace(Peeked<'d>, usize),
    /// The message arrived in pieces and was copied together.
    #[doc(hidden)]
    Copied(&'d [u8]),
}

impl std::ops::Deref for Message<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::InPlace(peeked, len) => &peeked[LENGTH..LENGTH + len],
            Self::Copied(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes)", self.len())
    }
}

impl AsFd for Datagrams {
    /// Returns the descriptor of [`Datagrams::fd`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Datagrams({}, {} peers)", self.port(), self.peers.len())
    }
}
