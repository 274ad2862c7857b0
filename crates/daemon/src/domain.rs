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
    ProtectionDomain, QpAttr, QpCaps, QpInit, QpState, QpType, Qpn, ResourceError,
};
use slab::Slab;

use crate::channel::Channel;
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

    /// The link to a peer's domain, which begins to be brought up if there is none. `opens`: whether this side is the
    /// one that opens it.
    ///
    /// # Errors
    ///
    /// [`Refusal::Limit`] where there are too many, or no receives for another; [`Refusal::Memory`];
    /// [`Refusal::Unreachable`].
    pub fn link(&mut self, key: LinkKey, opens: bool) -> Result<usize, Refusal> {
        if let Some(link) = self.by_key.get(&key) {
            return Ok(*link);
        }
        let known = self.instances.get(&key).copied().unwrap_or(0);
        if opens {
            let at = self.add_link(key, known.wrapping_add(1).max(1))?;
            self.tell_link(at);
            return Ok(at);
        }
        let at = self.add_link(key, 0)?;
        let link = key;
        self.outputs.push_back(Output::LinkWanted { link, known });
        Ok(at)
    }

    fn add_link(&mut self, key: LinkKey, instance: u32) -> Result<usize, Refusal> {
        if self.links.len() >= self.config.links_max as usize {
            return Err(Refusal::Limit);
        }
        let promised = self.admit()?;
        let made = self.make_link(promised);
        let mut link = made.map_err(|error| {
            self.grants.leave(promised.into());
            tracing::warn!("no link to another host: {error}");
            Refusal::Memory
        })?;
        let seed = instance.wrapping_mul(0x9e37_79b9) ^ link.frames.qpn().raw();
        let bytes = self.config.frame_bytes;
        let started = link.start(self.device.info(), promised, bytes, seed);
        started.map_err(|error| {
            self.grants.leave(promised.into());
            tracing::warn!("no link to another host: {error}");
            Refusal::Unreachable
        })?;
        let qpns = [link.frames.qpn(), link.bulk.qpn()];
        let last = self.instances.entry(key).or_default();
        *last = instance.max(*last);
        let at = self.links.insert(Linked {
            key,
            instance,
            is_active: false,
            link,
        });
        self.by_key.insert(key, at);
        self.by_qpn.extend(qpns.map(|qpn| (qpn, at)));
        Ok(at)
    }

    fn admit(&mut self) -> Result<u32, Refusal> {
        loop {
            if let Some(promised) = self.grants.admit() {
                return Ok(promised);
            }
            let more = self.config.receives;
            match self.receives.grow(&*self.device, &*self.pd, more) {
                Ok(more) => self.grants.grow(more),
                Err(error) => {
                    tracing::warn!("no receives for another link: {error}; raise receives_max");
                    return Err(Refusal::Limit);
                }
            }
        }
    }

    fn make_link(&self, promised: u32) -> Result<Link, ResourceError> {
        let channel = |depth: u32, bytes: u32| {
            let qp = self.pd.create_qp(&QpInit {
                qp_type: QpType::Rc,
                send_cq: self.cq.clone(),
                recv_cq: self.cq.clone(),
                srq: Some(self.receives.srq().clone()),
                caps: QpCaps {
                    max_send_wr: depth,
                    max_recv_wr: 0,
                    max_inline: 0,
                    ..QpCaps::default()
                },
                signal_all: false,
            })?;
            Channel::new(&*self.device, &*self.pd, qp, depth, bytes)
        };
        let frames = channel(self.config.frame_depth, self.config.frame_bytes)?;
        // Its frames say what was written, and carry nothing.
        let bulk = channel(self.config.bulk_depth, 64)?;
        Ok(Link::new(frames, bulk, promised, self.config.quantum))
    }

    /// The other side wants a link that this side opens, and has lost the one numbered `known` if it had any.
    pub fn link_wanted(&mut self, key: LinkKey, known: u32) {
        let here = self.by_key.get(&key).copied();
        if let Some(at) = here.filter(|at| self.links[*at].instance == known) {
            self.fail(at, Reset::Unreachable);
        }
        if let Err(why) = self.link(key, true) {
            tracing::warn!("no link to another host that wants one: {why}");
            let (link, instance) = (key, 0);
            self.outputs.push_back(Output::LinkDown { link, instance });
        }
    }

    /// The other side of a link said this of it.
    pub fn bring_up(&mut self, key: LinkKey, instance: u32, which: Which, bytes: &[u8]) {
        let here = self.by_key.get(&key).copied();
        let known = here.map_or(0, |at| self.links[at].instance);
        let is_news = instance > self.instances.get(&key).copied().unwrap_or(0);
        let at = match here {
            Some(at) if known == instance => at,
            Some(at) if known == 0 && is_news => {
                self.links[at].instance = instance;
                self.instances.insert(key, instance);
                at
            }
            // Late, of one that is no more.
            _ if !is_news => return,
            _ => {
                // The other side has opened another, so that it has lost this one.
                here.into_iter()
                    .for_each(|at| self.fail(at, Reset::Unreachable));
                match self.add_link(key, instance) {
                    Ok(at) => at,
                    Err(why) => {
                        tracing::warn!("no link to another host that opens one: {why}");
                        let link = key;
                        self.outputs.push_back(Output::LinkDown { link, instance });
                        return;
                    }
                }
            }
        };
        let brought = self.links[at].link.input(which, bytes);
        self.tell_link(at);
        match brought {
            // Also where that was said only now.
            Ok(_) if self.links[at].link.is_up() => self.rouse(at),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!("no link to another host: {error}");
                self.fail(at, Reset::Unreachable);
            }
        }
    }

    fn tell_link(&mut self, at: usize) {
        let linked = &mut self.links[at];
        let (link, instance) = (linked.key, linked.instance);
        if instance == 0 {
            // Whoever opens it has not said which it is.
            return;
        }
        for (which, bytes) in linked.link.output() {
            self.outputs.push_back(Output::BringUp {
                link,
                instance,
                which,
                bytes,
            });
        }
    }

    /// The other side has lost the link of this number.
    pub fn link_down(&mut self, key: LinkKey, instance: u32) {
        let here = self.by_key.get(&key).copied();
        if let Some(at) = here.filter(|at| self.links[*at].instance == instance) {
            self.fail(at, Reset::Unreachable);
        }
    }

    /// The other host is gone.
    pub fn fail_peer(&mut self, peer: u64, why: Reset) {
        let keys = self.by_key.iter().filter(|(key, _)| key.peer == peer);
        let all: Vec<usize> = keys.map(|(_, at)| *at).collect();
        all.into_iter().for_each(|at| self.fail(at, why));
        // Its number may be another's next.
        self.instances.retain(|key, _| key.peer != peer);
    }

    /// A queue pair has failed by itself.
    pub(crate) fn lost(&mut self, qpn: Qpn) {
        if let Some(at) = self.by_qpn.get(&qpn).copied() {
            tracing::warn!("a link has failed: the device says so");
            self.fail(at, Reset::Unreachable);
        }
    }

    /// Takes a link out of service: its queue pairs fail, so that nobody reaches any memory by them, its connections
    /// are reset, and nothing else is touched.
    fn fail(&mut self, at: usize, why: Reset) {
        let Some(failed) = self.links.try_remove(at) else {
            return;
        };
        self.by_key.remove(&failed.key);
        self.by_qpn.retain(|_, link| *link != at);
        self.active.retain(|link| *link != at);
        self.grants.leave(failed.link.credit.outstanding());
        let (link, instance) = (failed.key, failed.instance);
        self.outputs.push_back(Output::LinkDown { link, instance });
        let mut failed = failed.link;
        for which in [Which::Frames, Which::Bulk] {
            let error = QpAttr::to_state(QpState::Error);
            if let Err(error) = failed.channel(which).qp().modify(&error) {
                tracing::warn!("a queue pair of a link that failed: {error}");
            }
        }
        // Receives that its queue pairs have taken are still to be polled.
        self.dying.push(failed);
        let numbers = self.connections_of(at);
        for number in numbers {
            if let Some(connection) = self.connections.get_mut(number) {
                connection.cut(why);
            }
            self.attend(number);
        }
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

    /// A link has nothing more to do for a connection.
    fn unlink(&mut self, at: usize, number: Vqpn) {
        if let Some(linked) = self.links.get_mut(at) {
            linked.link.rota.forget(number.place() as u32);
            linked.link.control.retain(|other| *other != number);
            linked.link.fetches.retain(|fetch| fetch.number != number);
            linked.link.waiting.retain(|other| *other != number);
        }
    }

    /// The link that carries a connection, where it has one.
    pub fn link_of(&self, number: Vqpn) -> Option<LinkKey> {
        let at = self.connections.get(number)?.place.link?;
        self.links.get(at).map(|linked| linked.key)
    }

    /// A link has something to do.
    fn activate(&mut self, link: usize) {
        let linked = self.links.get_mut(link);
        if linked.is_some_and(|linked| !std::mem::replace(&mut linked.is_active, true)) {
            self.active.push(link);
        }
    }

    /// A connection may have data to send.
    fn call(&mut self, link: usize, number: Vqpn) {
        if let Some(linked) = self.links.get_mut(link) {
            linked.link.rota.call(number.place() as u32);
            self.activate(link);
        }
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

    fn connections_of(&self, at: usize) -> Vec<Vqpn> {
        let all = self.connections.iter();
        let of_link = all.filter(|(_, one)| one.place.link == Some(at));
        of_link.map(|(number, _)| number).collect()
    }

    /// A link that was waiting for its other side has everything to do that was put off.
    fn rouse(&mut self, at: usize) {
        let numbers = self.connections_of(at);
        for number in numbers {
            self.call(at, number);
            self.attend(number);
        }
    }
}
