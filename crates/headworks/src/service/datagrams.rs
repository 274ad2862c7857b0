//! Messages to and from many, over connections that are made where they are needed.
//!
//! RaaS maps these to the UD transport (section V.A), which loses messages, keeps no order and carries no more than an
//! MTU, over queue pairs that every application would need for itself. Here a message goes over a connection of the
//! daemon's, which costs little more than the memory of its rings: so none is lost while both sides live, those from
//! one socket to another keep their order, and a receiver that is slow slows its senders down.
//!
//! A stream begins, from who made it, with eight bytes that no other protocol begins with and the port that it
//! receives at, in two; then come messages, each behind its length in four.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use headworks_stage::{Phase, Waiter, Woken};
use headworks_verbs::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;
use slab::Slab;

use super::{Connecting, Listener, Peeked, Service, ServiceError, Stream, system};

/// Bytes of a message at most.
pub const MESSAGE_MAX: usize = 1 << 20;

const MAGIC: [u8; 8] = *b"hwdgram1";
/// Bytes that a stream begins with.
const GREETING: usize = MAGIC.len() + 2;
/// Bytes in front of a message.
const LENGTH: usize = 4;
/// Messages up to this length go together with their length.
const SHORT: usize = 4096;
/// Who may wait to be taken.
const BACKLOG: u32 = 1024;
/// Messages from those that are known to have some, after which it is looked who else has.
const LOOKS_EVERY: u32 = 32;
/// The number by which the listener is told apart from peers.
const LISTENER: u64 = u64::MAX;
const EVENTS: usize = 64;

/// A port that messages are sent from and come to: each arrives whole, once, and in the order that its sender sent, or
/// not at all where either end, or the way between them, fails.
pub struct Datagrams {
    service: Service,
    listener: Listener,
    epoll: OwnedFd,
    peers: Slab<Peer>,
    /// Those that messages are sent to.
    addresses: HashMap<SocketAddr, usize>,
    /// Those that may have something.
    ready: VecDeque<usize>,
    since_look: u32,
    /// What was shown, and of whom, until it is taken.
    shown: Option<(usize, Found)>,
    deadline: Option<Instant>,
    is_nonblocking: bool,
}

/// Somebody that messages are sent to, or come from.
struct Peer {
    way: Way,
    /// Where it receives; `None` until it has said so.
    address: Option<SocketAddr>,
    /// It is among the ready ones.
    is_ready: bool,
    /// It is waited for until there is room.
    wants_room: bool,
    /// What there was no room for.
    rest: Vec<u8>,
    /// What has come of a message that lay in pieces.
    got: Vec<u8>,
}

enum Way {
    Connecting(Connecting),
    Up(Box<Stream>),
}

/// What was found of a peer.
#[derive(Clone, Copy)]
enum Found {
    /// A message: so many bytes, where they came, or put together.
    Lies(usize),
    Whole,
    Nothing,
    /// It is gone, or is none of ours.
    Gone,
}

impl Peer {
    fn new(way: Way, address: Option<SocketAddr>) -> Self {
        Self {
            way,
            address,
            is_ready: false,
            wants_room: false,
            rest: Vec::new(),
            got: Vec::new(),
        }
    }

    /// Sends what there was no room for; says whether all of it went.
    fn flush(&mut self) -> Result<bool, ServiceError> {
        let Way::Up(stream) = &mut self.way else {
            return Ok(false);
        };
        let sent = send_some(stream, &self.rest)?;
        self.rest.drain(..sent);
        Ok(self.rest.is_empty())
    }

    /// Looks for a message. What it needs that has come so far is put together.
    fn look(&mut self) -> Result<Found, ServiceError> {
        let Way::Up(stream) = &mut self.way else {
            return Ok(Found::Nothing);
        };
        loop {
            let peeked = match stream.peek() {
                Ok(peeked) if peeked.is_empty() => return Ok(Found::Gone),
                Ok(peeked) => peeked,
                Err(ServiceError::WouldBlock) => return Ok(Found::Nothing),
                Err(ServiceError::Reset(_)) => return Ok(Found::Gone),
                Err(error) => return Err(error),
            };
            let is_greeted = self.address.is_some();
            if is_greeted && self.got.is_empty() {
                match length(&peeked) {
                    Some(Err(())) => return Ok(Found::Gone),
                    Some(Ok(len)) if peeked.len() - LENGTH >= len => return Ok(Found::Lies(len)),
                    _ => {}
                }
            }
            // Piece by piece, no further than what is looked for.
            let want = match (is_greeted, length(&self.got)) {
                (false, _) => GREETING,
                (true, None) => LENGTH,
                (true, Some(Ok(len))) => LENGTH + len,
                (true, Some(Err(()))) => return Ok(Found::Gone),
            };
            let piece = peeked.len().min(want - self.got.len());
            self.got.extend_from_slice(&peeked[..piece]);
            peeked.consume(piece)?;
            if self.got.len() < want {
                continue;
            }
            match is_greeted {
                false => {
                    let (magic, port) = self.got.split_at(MAGIC.len());
                    if magic != MAGIC {
                        return Ok(Found::Gone);
                    }
                    let port = u16::from_le_bytes([port[0], port[1]]);
                    self.address = Some(SocketAddr::new(stream.peer().ip(), port));
                    self.got.clear();
                }
                true if length(&self.got) == Some(Ok(want - LENGTH)) => return Ok(Found::Whole),
                true => {}
            }
        }
    }

    /// The message that was found is not needed any more.
    fn consume(&mut self, found: Found) -> Result<(), ServiceError> {
        match (found, &mut self.way) {
            (Found::Lies(len), Way::Up(stream)) => stream.peek()?.consume(LENGTH + len),
            _ => {
                self.got.clear();
                // One long message is no reason to keep as much for ever.
                self.got.shrink_to(SHORT);
                Ok(())
            }
        }
    }
}

/// How long the message is that begins there, where that is known; one that is too long is none.
fn length(bytes: &[u8]) -> Option<Result<usize, ()>> {
    let length = bytes.first_chunk::<LENGTH>()?;
    let len = u32::from_le_bytes(*length) as usize;
    Some(if len <= MESSAGE_MAX { Ok(len) } else { Err(()) })
}

/// Sends as much as there is room for.
fn send_some(stream: &mut Stream, bytes: &[u8]) -> Result<usize, ServiceError> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.send(&bytes[sent..]) {
            Ok(more) => sent += more,
            Err(ServiceError::WouldBlock) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

impl Datagrams {
    pub(super) fn bind(service: &Service, port: u16) -> Result<Self, ServiceError> {
        let mut listener = service.listen(port, BACKLOG)?;
        let made = epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = made.map_err(|errno| system("epoll")(errno.into()))?;
        let data = epoll::EventData::new_u64(LISTENER);
        let added = epoll::add(&epoll, listener.fd()?, data, epoll::EventFlags::IN);
        added.map_err(|errno| system("epoll")(errno.into()))?;
        Ok(Self {
            service: service.clone(),
            listener,
            epoll,
            peers: Slab::new(),
            addresses: HashMap::new(),
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

    /// Sends a message, of [`MESSAGE_MAX`] bytes at most, to whoever receives there. Where that one has gone away and
    /// come back since the last, it is looked for again; what it had not received is lost.
    ///
    /// # Errors
    ///
    /// [`ServiceError::TooLong`]; [`ServiceError::Refused`]: nobody receives there, the host cannot be reached, too many
    /// connections. [`ServiceError::Reset`], [`ServiceError::DaemonGone`], [`ServiceError::Deadline`]. Nothing was sent,
    /// or, where the time was up, perhaps.
    pub fn send_to(&mut self, bytes: &[u8], to: SocketAddr) -> Result<(), ServiceError> {
        if bytes.len() > MESSAGE_MAX {
            return Err(ServiceError::TooLong(bytes.len()));
        }
        self.wait(|own| own.try_send(bytes, to))?;
        match self.is_nonblocking {
            true => Ok(()),
            // Nobody else sends the rest of it.
            false => self.wait(|own| own.try_flush(to)),
        }
    }

    /// Receives a message, as much of it as fits; how long it was, and where from.
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
            None => self.wait(Self::try_find)?,
        };
        self.shown = Some((at, found));
        let peer = &mut self.peers[at];
        let from = peer.address.expect("it has said so");
        let message = match (found, &mut peer.way) {
            (Found::Lies(len), Way::Up(stream)) => Message::Lies(stream.peek()?, len),
            _ => Message::Whole(peer.got.get(LENGTH..).unwrap_or_default()),
        };
        Ok((message, from))
    }

    /// The message that was shown is not needed any more.
    ///
    /// # Errors
    ///
    /// [`ServiceError::DaemonGone`].
    pub fn consume(&mut self) -> Result<(), ServiceError> {
        match self.shown.take() {
            Some((at, found)) => self.peers[at].consume(found),
            None => Ok(()),
        }
    }

    /// Waits until everything that was accepted of a message is on its way; only where calls do not wait there is
    /// anything left.
    ///
    /// # Errors
    ///
    /// [`ServiceError::WouldBlock`], [`ServiceError::Deadline`].
    pub fn flush(&mut self) -> Result<(), ServiceError> {
        let to: Vec<SocketAddr> = self.addresses.keys().copied().collect();
        to.into_iter()
            .try_for_each(|to| self.wait(|own| own.try_flush(to)))
    }

    /// Tries until it is done.
    fn wait<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<Option<T>, ServiceError>,
    ) -> Result<T, ServiceError> {
        if let Some(done) = attempt(self)? {
            return Ok(done);
        }
        if self.is_nonblocking {
            return Err(ServiceError::WouldBlock);
        }
        let epoll = self.epoll.try_clone().map_err(system("epoll"))?;
        let (mut waiter, deadline) = (Waiter::default(), self.deadline);
        loop {
            let mut found = Ok(None);
            let mut fds = [PollFd::new(&epoll, PollFlags::IN)];
            let mut look = |phase: Phase| {
                // What has come in the meantime is told by the descriptor; to be sure it is looked before a sleep.
                if phase == Phase::Arm {
                    found = attempt(self);
                }
                !matches!(found, Ok(None))
            };
            let woken = waiter.wait_polling(&mut fds, deadline, &mut look);
            if let Some(found) = found? {
                return Ok(found);
            }
            match woken.map_err(system("waiting"))? {
                Woken::Deadline => return Err(ServiceError::Deadline),
                Woken::Fd | Woken::Ready => {
                    if let Some(found) = attempt(self)? {
                        return Ok(found);
                    }
                }
            }
        }
    }

    /// Looks who has something.
    fn look_around(&mut self) -> Result<(), ServiceError> {
        self.since_look = 0;
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        let now = Timespec::default();
        let events = match epoll::wait(&self.epoll, &mut events, Some(&now)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(system("epoll")(errno.into())),
        };
        let mut has_callers = false;
        for event in events {
            match event.data.u64() {
                LISTENER => has_callers = true,
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
        if !has_callers {
            return Ok(());
        }
        while let Some(mut stream) = self.listener.try_accept()? {
            stream.set_nonblocking(true);
            // One that cannot be polled is not kept.
            if stream.fd().is_ok() {
                self.keep(Peer::new(Way::Up(Box::new(stream)), None))?;
            }
        }
        Ok(())
    }

    fn keep(&mut self, mut peer: Peer) -> Result<usize, ServiceError> {
        let entry = self.peers.vacant_entry();
        let at = entry.key();
        let data = epoll::EventData::new_u64(at as u64);
        let added = match &mut peer.way {
            Way::Connecting(connecting) => {
                peer.wants_room = true;
                epoll::add(&self.epoll, &*connecting, data, epoll::EventFlags::OUT)
            }
            Way::Up(stream) => epoll::add(&self.epoll, stream.fd()?, data, epoll::EventFlags::IN),
        };
        added.map_err(|errno| system("epoll")(errno.into()))?;
        entry.insert(peer);
        Ok(at)
    }

    /// Has the descriptor be ready for room as well, or not any more.
    fn want_room(&mut self, at: usize, wants_room: bool) -> Result<(), ServiceError> {
        let peer = &mut self.peers[at];
        let Way::Up(stream) = &mut peer.way else {
            return Ok(());
        };
        if std::mem::replace(&mut peer.wants_room, wants_room) == wants_room {
            return Ok(());
        }
        let flags = match wants_room {
            true => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            false => epoll::EventFlags::IN,
        };
        let data = epoll::EventData::new_u64(at as u64);
        let changed = epoll::modify(&self.epoll, stream.fd()?, data, flags);
        changed.map_err(|errno| system("epoll")(errno.into()))
    }

    fn remove(&mut self, at: usize) {
        self.shown.take_if(|(shown, _)| *shown == at);
        let peer = self.peers.remove(at);
        if let Some(address) = peer.address
            && self.addresses.get(&address) == Some(&at)
        {
            self.addresses.remove(&address);
        }
        self.ready.retain(|other| *other != at);
    }

    /// Goes on with a connection that is being made, if it is there by now; says whether it is.
    fn connected(&mut self, at: usize) -> Result<bool, ServiceError> {
        let port = self.port();
        let Some(peer) = self.peers.get_mut(at) else {
            return Ok(false);
        };
        let Way::Connecting(connecting) = &mut peer.way else {
            return Ok(true);
        };
        match connecting.finish() {
            Ok(None) => Ok(false),
            Ok(Some(stream)) => {
                peer.way = Way::Up(Box::new(stream));
                peer.rest = [&MAGIC[..], &port.to_le_bytes()].concat();
                self.want_room(at, false)?;
                Ok(true)
            }
            Err(error) => {
                self.remove(at);
                Err(error)
            }
        }
    }

    /// Sends a message, if there is room for the beginning of it.
    fn try_send(&mut self, bytes: &[u8], to: SocketAddr) -> Result<Option<()>, ServiceError> {
        let was_known = self.addresses.contains_key(&to);
        match self.try_send_once(bytes, to) {
            // It has gone; somebody else may be there by now.
            Err(ServiceError::Reset(_) | ServiceError::Ended) if was_known => {
                self.try_send_once(bytes, to)
            }
            sent => sent,
        }
    }

    fn try_send_once(&mut self, bytes: &[u8], to: SocketAddr) -> Result<Option<()>, ServiceError> {
        let at = match self.addresses.get(&to) {
            Some(at) => *at,
            None => {
                let connecting = self.service.connect_start(to)?;
                let at = self.keep(Peer::new(Way::Connecting(connecting), Some(to)))?;
                self.addresses.insert(to, at);
                at
            }
        };
        if !self.connected(at)? {
            return Ok(None);
        }
        match self.send_on(at, bytes) {
            Ok(sent) => {
                let is_full = !sent || !self.peers[at].rest.is_empty();
                self.want_room(at, is_full)?;
                Ok(sent.then_some(()))
            }
            Err(error) => {
                self.remove(at);
                Err(error)
            }
        }
    }

    /// `false`: something before it is still to be sent.
    fn send_on(&mut self, at: usize, bytes: &[u8]) -> Result<bool, ServiceError> {
        let peer = &mut self.peers[at];
        let length = (bytes.len() as u32).to_le_bytes();
        let is_greeting = peer.rest.len() == GREETING && bytes.len() <= SHORT;
        if is_greeting {
            // The first message goes with it.
            peer.rest.extend_from_slice(&length);
            peer.rest.extend_from_slice(bytes);
            peer.flush()?;
            return Ok(true);
        }
        if !peer.flush()? {
            return Ok(false);
        }
        let Way::Up(stream) = &mut peer.way else {
            return Ok(false);
        };
        if bytes.len() <= SHORT {
            let whole = [&length[..], bytes].concat();
            let sent = send_some(stream, &whole)?;
            if sent == 0 {
                return Ok(false);
            }
            peer.rest.extend_from_slice(&whole[sent..]);
            return Ok(true);
        }
        let sent = send_some(stream, &length)?;
        if sent == 0 {
            return Ok(false);
        }
        peer.rest.extend_from_slice(&length[sent..]);
        let sent = match sent == LENGTH {
            true => send_some(stream, bytes)?,
            false => 0,
        };
        peer.rest.extend_from_slice(&bytes[sent..]);
        Ok(true)
    }

    /// Sends the rest of what was accepted for there.
    fn try_flush(&mut self, to: SocketAddr) -> Result<Option<()>, ServiceError> {
        let Some(at) = self.addresses.get(&to).copied() else {
            return Ok(Some(()));
        };
        if !self.connected(at)? {
            return Ok(None);
        }
        match self.peers[at].flush() {
            Ok(is_empty) => {
                self.want_room(at, !is_empty)?;
                Ok(is_empty.then_some(()))
            }
            Err(error) => {
                self.remove(at);
                Err(error)
            }
        }
    }

    /// Looks for a message of any peer's.
    fn try_find(&mut self) -> Result<Option<(usize, Found)>, ServiceError> {
        self.since_look += 1;
        if self.ready.is_empty() || self.since_look >= LOOKS_EVERY {
            self.look_around()?;
        }
        while let Some(at) = self.ready.pop_front() {
            self.peers[at].is_ready = false;
            match self.connected(at) {
                Ok(true) => {}
                Ok(false) => continue,
                // Who sent there is told by his next message.
                Err(ServiceError::Refused(_)) => continue,
                Err(error) => return Err(error),
            }
            if self.peers[at].wants_room {
                match self.peers[at].flush() {
                    Ok(is_empty) => self.want_room(at, !is_empty)?,
                    Err(_) => {
                        self.remove(at);
                        continue;
                    }
                }
            }
            let had_address = self.peers[at].address.is_some();
            let found = self.peers[at].look()?;
            if !had_address && let Some(address) = self.peers[at].address {
                // What is sent there goes over this connection, unless there is one already.
                self.addresses.entry(address).or_insert(at);
            }
            match found {
                Found::Nothing => {}
                Found::Gone => self.remove(at),
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

/// A message that has come.
pub enum Message<'d> {
    /// It lies where it came, so many bytes of what is there behind its length.
    #[doc(hidden)]
    Lies(Peeked<'d>, usize),
    /// It came in pieces, and was put together.
    #[doc(hidden)]
    Whole(&'d [u8]),
}

impl std::ops::Deref for Message<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Lies(peeked, len) => &peeked[LENGTH..LENGTH + len],
            Self::Whole(bytes) => bytes,
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
