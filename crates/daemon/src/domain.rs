//! An isolation domain: the sessions of one user's applications, their connections, and the links that carry them.
//! Domains share no queue pair, completion queue, receive or key with each other.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks_client::message::{End, Refusal, Reply};
use headworks_client::{BLOCK_BYTES, Block, EgressReader, IngressWriter, Reset, Vqpn};
use headworks_verbs::{
    Buffer, Completion, CompletionChannel, CompletionQueue, CqInit, Device, OpenError, PollError,
    ProtectionDomain, Qpn, ResourceError,
};
use slab::Slab;

use crate::config::Config;
use crate::connection::{Connection, Place};
use crate::frame::Remote;
use crate::grants::Grants;
use crate::inlet::Inlet;
use crate::link::{Link, Which};
use crate::outlet::Outlet;
use crate::receives::Receives;
use crate::session::Session;
use crate::table::Table;

mod carry;
mod hear;
mod links;

/// Which domain of a host: a user's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainId(pub u32);

/// Which link of a domain: the peer, as whoever holds the domain numbers it, and the domain there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkKey {
    /// The other host.
    pub peer: u64,
    /// The domain there.
    pub domain: DomainId,
}

/// What a domain wants done. Of the two sides of a link one opens it, and numbers those that there are one after the
/// other; what is said of a link names that number, so that nothing late is taken for news of the next.
#[derive(Debug)]
pub enum Output {
    /// The side that opens a link is to open one: this side has none, or has lost the one of this number.
    LinkWanted {
        /// Which link.
        link: LinkKey,
        /// The last one that this side knew of; 0 for none.
        known: u32,
    },
    /// A link's other side is to hear this, so that a queue pair can be connected.
    BringUp {
        /// Which link.
        link: LinkKey,
        /// Which of those that there have been between the two.
        instance: u32,
        /// Which of its queue pairs.
        which: Which,
        /// What.
        bytes: Vec<u8>,
    },
    /// A link has failed: the other side is to know.
    LinkDown {
        /// Which link.
        link: LinkKey,
        /// Which of those that there have been.
        instance: u32,
    },
    /// An application is to be handed slabs: at once, since it may see already what lies there.
    Slabs {
        /// Its session.
        session: usize,
    },
    /// An application sleeps on one of its connections and is to be woken.
    Wake {
        /// Its session.
        session: usize,
        /// What it calls the connection.
        handle: u32,
    },
}

/// Why a domain cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It has not what is needed.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// Its receives cannot be posted.
    #[error(transparent)]
    Grow(#[from] crate::receives::GrowError),
    /// It cannot be polled any more.
    #[error(transparent)]
    Poll(#[from] PollError),
}

/// How busy the domain is: of 255, as a mean over steps.
#[derive(Clone, Copy, Debug, Default)]
struct Load(u32);

impl Load {
    fn step(&mut self, was_busy: bool) {
        // Over about 256 steps; in 1/256 of a point.
        let target = if was_busy { 255 << 8 } else { 0 };
        self.0 = (self.0 * 255 + target) / 256;
    }

    fn of_255(self) -> u8 {
        (self.0 >> 8) as u8
    }
}

/// A link and what it is called.
struct Linked {
    key: LinkKey,
    /// Which of those that there have been; 0 until whoever opens it has said so.
    instance: u32,
    /// Whether it stands among those that have something to do.
    is_active: bool,
    link: Link,
}

/// The end of a connection as the peer is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its number.
    pub number: Vqpn,
    /// Its first ring.
    pub ring: Remote,
}

/// What there is of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Applications.
    pub sessions: usize,
    /// Ends of connections.
    pub connections: usize,
    /// Links.
    pub links: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Receives posted, and of those promised to peers.
    pub receives: u32,
    /// See above.
    pub promised: u32,
    /// Bytes of shared memory in use, and allocated.
    pub in_use: u64,
    /// See above.
    pub allocated: u64,
    /// How often free memory had been written to ([`Config::poison`]).
    pub overwritten: u64,
}

/// An isolation domain.
///
/// Sessions: [`attach`](Self::attach), [`detach`](Self::detach), [`close`](Self::close), [`reply`](Self::reply),
/// [`new_slabs`](Self::new_slabs). Links: [`link`](Self::link), [`link_wanted`](Self::link_wanted),
/// [`bring_up`](Self::bring_up), [`link_down`](Self::link_down), [`fail_peer`](Self::fail_peer). Connections: [`open`](Self::open), then
/// [`connect`](Self::connect) or [`refuse`](Self::refuse). Driving: [`step`](Self::step), then
/// [`output`](Self::output) until there is none.
pub struct Domain {
    id: DomainId,
    config: Config,
    // Connections and links before the memory and queues that they use.
    links: Slab<Linked>,
    /// Links that have failed, until nothing of them is left to be polled.
    dying: Vec<Link>,
    by_key: BTreeMap<LinkKey, usize>,
    by_qpn: BTreeMap<Qpn, usize>,
    connections: Table<Box<Connection>>,
    sessions: Slab<Session>,
    receives: Receives,
    grants: Grants,
    cq: Arc<dyn CompletionQueue>,
    channel: Arc<dyn CompletionChannel>,
    pd: Arc<dyn ProtectionDomain>,
    device: Arc<dyn Device>,
    /// The last instance of each link.
    instances: BTreeMap<LinkKey, u32>,
    load: Load,
    outputs: VecDeque<Output>,
    /// Places of completions.
    completions: Vec<Completion>,
    /// Links that have something to do.
    active: Vec<usize>,
    copied: u64,
}

/// Completions that are taken at a time.
const POLL: usize = 64;

impl Domain {
    /// A domain of nobody's yet.
    ///
    /// # Errors
    ///
    /// [`DomainError`].
    pub fn new(
        id: DomainId,
        device: &Arc<dyn Device>,
        config: &Config,
    ) -> Result<Self, DomainError> {
        let pd = device.alloc_pd()?;
        let limits = device.info().limits;
        let most = config.receives_max.min(limits.max_srq_wr);
        let of_links = u64::from(config.links_max)
            * (u64::from(config.frame_depth) + u64::from(config.bulk_depth));
        let depth = (of_links + u64::from(most)).min(limits.max_cqe.into());
        let channel = device.create_channel()?;
        let cq = device.create_cq(&CqInit {
            depth: depth as u32,
            channel: Some(channel.clone()),
            ..CqInit::default()
        })?;
        let mut receives = Receives::new(&*pd, config.frame_bytes, most)?;
        let posted = receives.grow(&**device, &*pd, config.receives)?;
        Ok(Self {
            id,
            config: config.clone(),
            links: Slab::new(),
            by_key: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            connections: Table::default(),
            sessions: Slab::new(),
            receives,
            grants: Grants::new(posted, config.link_floor, config.link_share),
            cq,
            channel,
            pd,
            device: device.clone(),
            instances: BTreeMap::new(),
            dying: Vec::new(),
            load: Load::default(),
            outputs: VecDeque::new(),
            completions: vec![Completion::default(); POLL],
            active: Vec::new(),
            copied: 0,
        })
    }

    /// Which it is.
    pub fn id(&self) -> DomainId {
        self.id
    }

    /// What is to be done next.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// See [`Daemon::arm`](crate::Daemon::arm).
    pub fn arm(&self) {
        self.cq.arm(false);
        for (_, session) in &self.sessions {
            session.board.bell().arm(false);
        }
    }

    /// See [`Daemon::disarm`](crate::Daemon::disarm).
    pub fn disarm(&self) {
        for (_, session) in &self.sessions {
            session.board.bell().disarm();
        }
        while let Ok(Some(_)) = self.channel.next_event() {}
    }

    /// Readable when the completion queue is to be polled.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// What there is.
    pub fn census(&self) -> Census {
        let memory = self.sessions.iter().map(|(_, one)| one.memory.bytes());
        let (in_use, allocated) = memory.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Census {
            sessions: self.sessions.len(),
            connections: self.connections.len(),
            links: self.links.len(),
            queue_pairs: 2 * self.links.len(),
            receives: self.grants.posted(),
            promised: self.grants.promised(),
            in_use,
            allocated,
            overwritten: self
                .sessions
                .iter()
                .map(|(_, one)| one.memory.overwritten())
                .sum(),
        }
    }

    /// An application is there; says which session it has.
    ///
    /// # Errors
    ///
    /// [`Refusal::Limit`], [`Refusal::Memory`].
    pub fn attach(&mut self, name: String, version: u16) -> Result<usize, Refusal> {
        let session = Session::new(&self.device, &self.pd, &self.config, name, version)?;
        Ok(self.sessions.insert(session))
    }

    /// What a session's application is to be told next. Slabs first.
    pub fn reply(&mut self, session: usize) -> Option<Reply> {
        self.sessions.get_mut(session)?.replies.pop_front()
    }

    /// Has a session's application told something.
    pub fn tell(&mut self, session: usize, reply: Reply) {
        if let Some(session) = self.sessions.get_mut(session).filter(|one| !one.is_gone) {
            session.replies.push_back(reply);
        }
    }

    /// Slabs of a session that its application has not been handed, and their numbers.
    pub fn new_slabs(&mut self, session: usize) -> Vec<(u32, Arc<dyn Buffer>)> {
        let session = self.sessions.get_mut(session);
        session.map_or_else(Vec::new, |session| session.memory.new_slabs())
    }

    /// Memory for a session's application to lend, or back.
    pub fn memory(&mut self, session: usize) -> Option<&mut crate::memory::Memory> {
        let session = self.sessions.get_mut(session).filter(|one| !one.is_gone)?;
        Some(&mut session.memory)
    }

    /// An application is gone, or broke the contract: its connections are reset. Its memory stays until nobody can
    /// reach it any more.
    pub fn detach(&mut self, session: usize, why: Reset) {
        let Some(gone) = self.sessions.get_mut(session).filter(|one| !one.is_gone) else {
            return;
        };
        gone.is_gone = true;
        gone.replies.clear();
        let numbers: Vec<Vqpn> = gone.handles.iter().map(|(_, number)| *number).collect();
        for number in numbers {
            if let Some(connection) = self.connections.get_mut(number) {
                connection.reset(why, false);
                connection.leave(true);
            }
            self.attend(number);
        }
        self.bury(session);
    }

    /// Lets a session go of which nothing is left.
    fn bury(&mut self, session: usize) {
        let is_over = |one: &Session| one.is_gone && one.handles.is_empty();
        if self.sessions.get(session).is_some_and(is_over) {
            self.sessions.remove(session);
        }
    }

    /// The application has no more use for a connection; where it gives it up, the peer sees a reset. Says whether it
    /// had such a connection.
    pub fn close(&mut self, session: usize, handle: u32, gives_up: bool) -> bool {
        let Some(number) = self.number_of(session, handle) else {
            return false;
        };
        let Some(connection) = self.connections.get_mut(number) else {
            return false;
        };
        if connection.is_left() {
            return false;
        }
        connection.leave(gives_up);
        let link = connection.place.link;
        if let Some(link) = link {
            // What was written is still to be sent, and then the end.
            self.call(link, number);
        }
        self.attend(number);
        true
    }

    fn number_of(&self, session: usize, handle: u32) -> Option<Vqpn> {
        let session = self.sessions.get(session)?;
        session.handles.get(handle as usize).copied()
    }

    /// Makes this end of a connection over a link.
    ///
    /// # Errors
    ///
    /// [`Refusal::Limit`], [`Refusal::Memory`].
    pub fn open(
        &mut self,
        link: usize,
        session: usize,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<Offer, Refusal> {
        let of = self.sessions.get_mut(session).ok_or(Refusal::Refused)?;
        if !of.has_room() {
            return Err(Refusal::Limit);
        }
        let mut extents = Vec::new();
        let ring = self.config.ring_bytes;
        for bytes in [BLOCK_BYTES, ring, ring] {
            match of.memory.take(bytes) {
                Ok(extent) => extents.push(extent),
                Err(why) => {
                    extents.into_iter().for_each(|taken| of.memory.give(taken));
                    return Err(why);
                }
            }
        }
        let [block, egress, ingress] = extents[..] else {
            return Err(Refusal::Memory);
        };
        let slabs = of.memory.slabs();
        let made = Block::at(slabs, block).and_then(|words| {
            words.clear();
            let egress = EgressReader::new(slabs, &words, egress)?;
            let ingress = IngressWriter::new(slabs, &words, ingress)?;
            Ok((words, Outlet::new(egress), Inlet::new(ingress)))
        });
        let (words, outlet, inlet) = made.map_err(|_| Refusal::Memory)?;
        let ring = of.memory.remote(ingress);
        let entry = of.handles.vacant_entry();
        let place = Place {
            link: Some(link),
            session,
            handle: entry.key() as u32,
            block,
            local,
            peer,
        };
        let number = self.connections.insert(|number| {
            let new = Connection::new(number, place, words, outlet, inlet);
            Box::new(new)
        });
        let Some(number) = number else {
            [block, egress, ingress]
                .into_iter()
                .for_each(|taken| of.memory.give(taken));
            return Err(Refusal::Limit);
        };
        entry.insert(number);
        Ok(Offer { number, ring })
    }

    /// The other end of a connection is there. Says which session and end that is, for the application to be told;
    /// `None` where this end is gone meanwhile.
    pub fn connect(&mut self, number: Vqpn, remote: Offer) -> Option<(usize, End)> {
        let connection = self.connections.get_mut(number)?;
        connection.connect(remote.number, remote.ring);
        let place = connection.place;
        if let Some(link) = place.link {
            // It may have been given up before.
            self.call(link, number);
        }
        self.attend(number);
        let end = End {
            handle: place.handle,
            block: place.block,
            local: place.local,
            peer: place.peer,
        };
        Some((place.session, end))
    }

    /// There is no other end: this one goes too.
    pub fn refuse(&mut self, number: Vqpn) {
        if let Some(connection) = self.connections.get_mut(number) {
            connection.leave(true);
            if let Some(at) = connection.place.link {
                self.unlink(at, number);
            }
        }
        if let Some(connection) = self.connections.get_mut(number) {
            connection.cut(Reset::ByPeer);
        }
        self.attend(number);
    }

    /// The other end of a connection is no more, and was never on the link that this one has.
    pub fn miss(&mut self, number: Vqpn) {
        if let Some(connection) = self.connections.get_mut(number) {
            connection.miss();
        }
        self.attend(number);
    }

    /// Looks after a connection of which something changed: control frames, a sleeping application, its end.
    fn attend(&mut self, number: Vqpn) {
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        connection.settle();
        if let Some(at) = connection.place.link
            && let Some(linked) = self.links.get_mut(at)
        {
            connection.queue(&mut linked.link);
            self.activate(at);
        }
        let Some(connection) = self.connections.get(number) else {
            return;
        };
        let (session, handle) = (connection.place.session, connection.place.handle);
        let of = self.sessions.get(session);
        if of.is_some_and(|of| !of.is_gone && of.memory.has_new_slabs()) {
            self.outputs.push_back(Output::Slabs { session });
        }
        if connection.ring_bell() {
            self.outputs.push_back(Output::Wake { session, handle });
        }
        if connection.is_over() {
            self.forget(number);
        }
    }

    /// Nothing of a connection is needed any more.
    fn forget(&mut self, number: Vqpn) {
        let Some(over) = self.connections.remove(number) else {
            return;
        };
        if let Some(at) = over.place.link {
            self.unlink(at, number);
        }
        let session = over.place.session;
        let memory = over.memory();
        let handle = over.place.handle;
        drop(over);
        if let Some(of) = self.sessions.get_mut(session) {
            memory.into_iter().for_each(|extent| of.memory.give(extent));
            of.handles.try_remove(handle as usize);
        }
        self.bury(session);
    }
}
