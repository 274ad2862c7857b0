//! Messages to and from many, over connections that are made where they are needed.
//!
//! RaaS maps these to the UD transport (section V.A), which loses messages, keeps no order and carries no more than an
//! MTU, over queue pairs that every application would need for itself. Here a message goes over a connection of the
//! daemon's, which costs little more than the memory of its rings: so none is lost while both sides live, those from
//! one socket to another keep their order, and a receiver that is slow slows its senders down.
//!
//! A stream begins, from who made it, with eight bytes that no other protocol begins with and the port that it
//! receives at, in two; then come messages, each behind its length in four. Nothing goes back over it: the port is
//! what the other end says, and what is sent there must reach whoever really receives there.

mod peer;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use headworks_net::{WaitPhase, Waiter, WakeReason};
use headworks_verbs::Instant;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use slab::Slab;

use super::{Listener, Peeked, Service, ServiceError, system};

pub use peer::MESSAGE_MAX;
use peer::{LENGTH, Peer, PeerConnection, PeerStatus};

/// Who may wait to be taken.
const BACKLOG: u32 = 1024;
/// Addresses of which it is kept why they could not be reached.
const UNREACHABLE_KEPT_MAX: usize = 1024;
/// Messages from those that are known to have some, after which it is looked who else has.
const POLL_PEERS_EVERY: u32 = 32;
/// The number by which the listener is told apart from peers.
const LISTENER: u64 = u64::MAX;
/// The number of the descriptor for room, likewise.
const ROOM: u64 = u64::MAX - 1;
const EVENTS: usize = 64;

/// A port that messages are sent from and come to: each arrives whole, once, and in the order that its sender sent, or
/// not at all where either end, or the way between them, fails.
pub struct Datagrams {
    service: Service,
    listener: Listener,
    epoll: OwnedFd,
    /// Of those that are waited for until there is room.
    room: OwnedFd,
    peers: Slab<Peer>,
    /// Those that messages are sent to.
    addresses: HashMap<SocketAddr, usize>,
    /// Why those could not be reached that were asked for by calls that did not wait.
    unreached: HashMap<SocketAddr, ServiceError>,
    /// Those that may have something.
    ready: VecDeque<usize>,
    since_look: u32,
    /// What was shown, and of whom, until it is taken.
    shown: Option<(usize, PeerStatus)>,
    deadline: Option<Instant>,
    is_nonblocking: bool,
}

impl Datagrams {
    pub(super) fn bind(service: &Service, port: u16) -> Result<Self, ServiceError> {
        let mut listener = service.listen(port, BACKLOG)?;
        let create = || epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed);
        let (epoll, room) = (create()?, create()?);
        watch(&epoll, listener.fd()?, LISTENER, EventFlags::IN)?;
        watch(&epoll, room.as_fd(), ROOM, EventFlags::IN)?;
        Ok(Self {
            service: service.clone(),
            listener,
            epoll,
            room,
            peers: Slab::new(),
            addresses: HashMap::new(),
            unreached: HashMap::new(),
            ready: VecDeque::new(),
            since_look: 0,
            shown: None,
            deadline: None,
            is_nonblocking: false,
        })
    }

    /// The port that messages come to.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// Calls wait no longer than until then.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Whether calls that would wait say [`ServiceError::WouldBlock`] instead.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.is_nonblocking = nonblocking;
    }

    /// A descriptor to poll: readable while a message may have come, or what was [refused](ServiceError::WouldBlock)
    /// for want of room may be tried again. It may be ready in vain, and becomes unready when
    /// [`recv_from`](Self::recv_from) finds nothing.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// A descriptor to poll by who only sends: readable while what was refused for want of room may be tried again,
    /// whatever has come. It becomes unready when that is done.
    pub fn room_fd(&self) -> BorrowedFd<'_> {
        self.room.as_fd()
    }

    /// Sends a message, of [`MESSAGE_MAX`] bytes at most, to whoever receives there. Where that one has gone away and
    /// come back since the last, it is looked for again; what it had not received is lost.
    ///
    /// # Errors
    ///
    /// [`ServiceError::TooLong`]; [`ServiceError::Refused`]: nobody receives there, the host cannot be reached, too many
    /// connections; of a call that did not wait, that is said by the next one to there. [`ServiceError::Reset`],
    /// [`ServiceError::DaemonGone`], [`ServiceError::Deadline`]. Nothing was sent, or, where the time was up, perhaps.
    pub fn send_to(&mut self, bytes: &[u8], to: SocketAddr) -> Result<(), ServiceError> {
        if bytes.len() > MESSAGE_MAX {
            return Err(ServiceError::TooLong(bytes.len()));
        }
        self.wait(WaitTarget::Room, |own| own.try_send(bytes, to))?;
        match self.is_nonblocking {
            true => Ok(()),
            // Nobody else sends the rest of it.
            false => self.flush_to(to),
        }
    }

    /// Receives a message, as much of it as fits; how long it was, and where from: the host for certain, the port as the
    /// sender says.
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

    /// Has a message seen where it lies, mostly without a copy.
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

    /// Shows a message where it lies, mostly without a copy; the same one until it is [consumed](Self::consume).
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
        let from = peer.address.expect("it has said so");
        Ok((peer.show(found)?, from))
    }

    /// The message that was shown is not needed any more.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`].
    pub fn consume(&mut self) -> Result<(), ServiceError> {
        self.service.0.check()?;
        let Some((at, found)) = self.shown.take() else {
            return Ok(());
        };
        let consumed = self.peers[at].consume(found);
        if self.peers[at].is_over {
            self.remove(at);
        }
        consumed
    }

    /// Waits until everything that was accepted of a message is on its way; only where calls do not wait there is
    /// anything left.
    ///
    /// # Errors
    ///
    /// [`ServiceError::WouldBlock`], [`ServiceError::Deadline`].
    pub fn flush(&mut self) -> Result<(), ServiceError> {
        let to: Vec<SocketAddr> = self.addresses.keys().copied().collect();
        to.into_iter().try_for_each(|to| self.flush_to(to))
    }

    /// The same of messages to one address alone: others that there is no room for, or that have failed, are no reason
    /// to wait, or to fail.
    ///
    /// # Errors
    ///
    /// As [`Datagrams::send_to`], and [`ServiceError::WouldBlock`].
    pub fn flush_to(&mut self, to: SocketAddr) -> Result<(), ServiceError> {
        self.wait(WaitTarget::Room, |own| own.try_flush(to))
    }

    /// Tries until it is done.
    fn wait<T>(
        &mut self,
        on: WaitTarget,
        mut attempt: impl FnMut(&mut Self) -> Result<Option<T>, ServiceError>,
    ) -> Result<T, ServiceError> {
        // Before the descriptors: a forked child has those of its parent.
        self.service.0.check()?;
        let mut attempt = |own: &mut Self| match attempt(own)? {
            // The descriptor for room is to be ready for what is new.
            None if on == WaitTarget::Room && own.serve_room()? => attempt(own),
            tried => Ok(tried),
        };
        if let Some(done) = attempt(self)? {
            return Ok(done);
        }
        if self.is_nonblocking {
            return Err(ServiceError::WouldBlock);
        }
        let fd = match on {
            WaitTarget::Room => &self.room,
            WaitTarget::Any => &self.epoll,
        };
        let fd = fd.try_clone().map_err(system("epoll"))?;
        let (mut waiter, deadline) = (Waiter::default(), self.deadline);
        loop {
            let mut found = Ok(None);
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            let mut look = |phase: WaitPhase| {
                // What has come in the meantime is told by the descriptor; to be sure it is looked before a sleep.
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

    /// Looks who has something.
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
            // One that cannot be polled is not kept.
            if let Ok(fd) = stream.fd() {
                watch(&self.epoll, fd, at as u64, EventFlags::IN)?;
                self.peers
                    .insert(Peer::new(PeerConnection::Up(Box::new(stream)), None));
            }
        }
        Ok(())
    }

    /// Goes on with those that were waited for and that there is room for by now: connections are there, or are refused,
    /// and what was accepted is sent. Says whether there were any.
    fn serve_room(&mut self) -> Result<bool, ServiceError> {
        let all = events(&self.room)?;
        for at in &all {
            let at = *at as usize;
            let served = self.connected(at).and_then(|is_up| match is_up {
                true => self.flush_peer(at).map(|_| ()),
                false => Ok(()),
            });
            // Of others, who sends there next is told, or looks for it again.
            if let Err(error @ (ServiceError::DaemonGone | ServiceError::System { .. })) = served {
                return Err(error);
            }
        }
        Ok(!all.is_empty())
    }

    /// Has the descriptor for room be ready when there is some for it, or not any more.
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
            // Somebody may be looking at its memory still, whom no lifetime keeps from that: C.
            Some((shown, _)) if shown == at => self.peers[at].is_over = true,
            _ => drop(self.peers.remove(at)),
        }
    }

    /// Goes on with a connection that is being made, if it is there by now; says whether it is.
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
                    // What comes from there is its end.
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
                // By whomever it was found: it is told whoever sends there.
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

    /// Sends a message, if there is room for the beginning of it.
    fn try_send(&mut self, bytes: &[u8], to: SocketAddr) -> Result<Option<()>, ServiceError> {
        if let Some(why) = self.unreached.remove(&to) {
            return Err(why);
        }
        let was_known = self.addresses.contains_key(&to);
        let sent = match self.try_send_once(bytes, to) {
            // It has gone; somebody else may be there by now.
            Err(ServiceError::Reset(_) | ServiceError::Ended) if was_known => {
                self.try_send_once(bytes, to)
            }
            sent => sent,
        };
        if sent.is_err() {
            // This call has told it.
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

    /// Begins a connection to there.
    fn find_or_connect(&mut self, to: SocketAddr) -> Result<usize, ServiceError> {
        let connecting = self.service.connect_start(to)?;
        let at = self.peers.vacant_key();
        watch(&self.room, connecting.as_fd(), at as u64, EventFlags::OUT)?;
        let mut peer = Peer::new(PeerConnection::Connecting(connecting), Some(to));
        peer.wants_room = true;
        self.peers.insert(peer);
        self.addresses.insert(to, at);
        Ok(at)
    }

    /// What came of an attempt to send: one who failed is removed, others are waited for where there was no room for it,
    /// or for all of it.
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

    /// Sends the rest of what was accepted for a peer that there is a connection to; says whether all of it went.
    fn flush_peer(&mut self, at: usize) -> Result<bool, ServiceError> {
        let flushed = self.peers[at].flush();
        self.then_wants_room(at, flushed)
    }

    /// Sends the rest of what was accepted for there.
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

    /// Looks for a message of any peer's.
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

/// What is waited on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitTarget {
    /// Messages, and room.
    Any,
    /// Room alone: messages that nobody has received are no reason to look again.
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

/// The numbers of those that are ready now.
fn events(epoll: &OwnedFd) -> Result<Vec<u64>, ServiceError> {
    let mut events = [const { MaybeUninit::uninit() }; EVENTS];
    match epoll::wait(epoll, &mut events, Some(&Timespec::default())) {
        Ok((events, _)) => Ok(events.iter().map(|event| event.data.u64()).collect()),
        Err(Errno::INTR) => Ok(Vec::new()),
        Err(errno) => Err(failed(errno)),
    }
}

/// A message that has come.
pub enum Message<'d> {
    /// It lies where it came, so many bytes of what is there behind its length.
    #[doc(hidden)]
    InPlace(Peeked<'d>, usize),
    /// It came in pieces, and was put together.
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

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Datagrams({}, {} peers)", self.port(), self.peers.len())
    }
}
