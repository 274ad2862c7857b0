//! An isolation domain: the sessions of one user's applications, their connections, and the links that carry them.
//! Domains share no queue pair, completion queue, receive or key with each other.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks_client::socket_message::{End, Refusal, Reply};
use headworks_client::{
    BLOCK_BYTES, ControlBlock, EgressReader, Extent, IngressWriter, Reset, Rights, Vqpn,
};
use headworks_verbs::{
    Buffer, Completion, CompletionChannel, CompletionQueue, CqInit, Device, OpenError, PollError,
    ProtectionDomain, Qpn, ResourceError,
};
use slab::Slab;

use crate::connection::{Connection, Place};
use crate::connection_table::Table;
use crate::daemon::{Signal, WatchId};
use crate::egress::EgressHalf;
use crate::frame::Remote;
use crate::ingress::IngressHalf;
use crate::limits::Config;
use crate::qp_group::{QpGroup, Which};
use crate::receive_shares::ReceiveShares;
use crate::receives::Receives;
use crate::session::Session;

mod draining;
mod qp_groups;
mod receive;
mod snapshot;
mod step;

use draining::Dying;
pub use snapshot::ObjectCounts;

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
        /// Bytes of the frame.
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
    /// Something is to be seen at a descriptor.
    Signal {
        /// Subscription that the signal belongs to.
        watch: WatchId,
        /// Change that is signalled.
        signal: Signal,
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

/// How busy the domain is: of 255, as a mean over steps. Who sleeps makes none, and is not busy.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// In 1/256 of a point.
    mean: u32,
    is_armed: bool,
    /// Whether nothing was to be done since it was armed: then it may have slept since.
    has_rested: bool,
}

impl Load {
    fn step(&mut self, was_busy: bool) {
        // Over about 256 steps.
        let target = if was_busy { 255 << 8 } else { 0 };
        self.mean = (self.mean * 255 + target) / 256;
        self.has_rested |= self.is_armed && !was_busy;
    }

    /// It is about to sleep, unless there is something to do.
    fn arm(&mut self) {
        self.is_armed = true;
        self.has_rested = false;
    }

    /// It does not sleep any more; says whether it may have.
    fn disarm(&mut self) -> bool {
        let has_slept = std::mem::take(&mut self.is_armed) && self.has_rested;
        if has_slept {
            self.mean = 0;
        }
        has_slept
    }

    fn of_255(self) -> u8 {
        (self.mean >> 8) as u8
    }
}

/// A link and what it is called.
struct Linked {
    key: LinkKey,
    /// Which of those that there have been; 0 until whoever opens it has said so.
    instance: u32,
    /// Whether it stands among those that have something to do.
    is_active: bool,
    link: QpGroup,
}

/// The end of a connection as the peer is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its number.
    pub number: Vqpn,
    /// Its first ring.
    pub ring: Remote,
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
    dying: Dying<QpGroup>,
    by_key: BTreeMap<LinkKey, usize>,
    by_qpn: BTreeMap<Qpn, usize>,
    connections: Table<Box<Connection>>,
    sessions: Slab<Session>,
    receives: Receives,
    grants: ReceiveShares,
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
            grants: ReceiveShares::new(posted, config.link_floor, config.link_share),
            dying: Dying::new(cq.depth()),
            cq,
            channel,
            pd,
            device: device.clone(),
            instances: BTreeMap::new(),
            load: Load::default(),
            outputs: VecDeque::new(),
            completions: vec![Completion::default(); POLL],
            active: Vec::new(),
            copied: 0,
        })
    }

    /// Number of the domain.
    pub fn id(&self) -> DomainId {
        self.id
    }

    /// What is to be done next.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// See [`Daemon::arm`](crate::Daemon::arm).
    pub fn arm(&mut self) {
        self.load.arm();
        self.cq.arm(false);
        for (_, session) in &self.sessions {
            session.board.bell().arm(false);
        }
    }

    /// See [`Daemon::disarm`](crate::Daemon::disarm).
    pub fn disarm(&mut self) {
        if self.load.disarm() {
            // What peers had said of theirs before is as old.
            let links = self.links.iter_mut();
            links.for_each(|(_, linked)| linked.link.peer_load = 0);
        }
        for (_, session) in &self.sessions {
            session.board.bell().disarm();
        }
        while let Ok(Some(_)) = self.channel.next_event() {}
    }

    /// Readable when the completion queue is to be polled.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
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

    /// Sessions, also of applications that are gone and of which something is left to be done.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// What a session's application calls itself.
    pub fn name(&self, session: usize) -> Option<&str> {
        Some(&self.sessions.get(session)?.name)
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

    /// An application is gone, or broke the contract: its connections are reset, but for those of one that is merely gone
    /// which it had closed before: what it had sent over them still arrives. Its memory stays until nobody can reach it
    /// any more.
    pub fn detach(&mut self, session: usize, why: Reset) {
        let Some(gone) = self.sessions.get_mut(session).filter(|one| !one.is_gone) else {
            return;
        };
        gone.is_gone = true;
        gone.replies.clear();
        let numbers: Vec<Vqpn> = gone.handles.iter().map(|(_, number)| *number).collect();
        for number in numbers {
            match self.connections.get_mut(number) {
                // Once that has, the peer is told that nobody is there.
                Some(connection) if connection.is_left() && why == Reset::ByPeer => {
                    connection.comes_late();
                }
                Some(connection) => {
                    connection.reset(why, false);
                    connection.leave(true);
                }
                None => {}
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
        self.hang_up(number);
        let link = self.connections.get(number).and_then(|one| one.place.link);
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
            let (name, most) = (&of.name, self.config.connections_each);
            tracing::warn!(
                "application {name:?} has {most} connections: raise connections_each for more"
            );
            return Err(Refusal::Limit);
        }
        let mut extents = Vec::new();
        let ring = self.config.ring_bytes;
        for bytes in [BLOCK_BYTES, ring, ring] {
            match of.memory.take(bytes) {
                Ok(extent) => extents.push(extent),
                Err(why) => {
                    extents.into_iter().for_each(|taken| of.memory.give(taken));
                    of.memory.refuses(why);
                    return Err(why);
                }
            }
        }
        let [block, egress, ingress] = extents[..] else {
            return Err(Refusal::Memory);
        };
        let slabs = of.memory.slabs();
        let made = ControlBlock::at(slabs, block).and_then(|words| {
            words.clear();
            let egress = EgressReader::new(slabs, &words, egress)?;
            let ingress = IngressWriter::new(slabs, &words, ingress)?;
            Ok((words, EgressHalf::new(egress), IngressHalf::new(ingress)))
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
        of.traffic.opened += 1;
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
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        connection.refuse();
        if let Some(at) = connection.place.link {
            // What it was offered and has not asked for. READs that are under way still land in its memory.
            if let Some(linked) = self.links.get_mut(at) {
                let offered = linked.link.fetches.iter();
                let offered = offered.filter(|fetch| fetch.number == number);
                offered.for_each(|fetch| connection.inlet.give_up(fetch.at, fetch.left()));
            }
            self.unlink(at, number);
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
        if connection.is_refused() {
            connection.cut(Reset::ByPeer);
        }
        if connection.is_untouched() {
            let session = connection.place.session;
            for (extent, request) in connection.exports.end() {
                self.unexport(session, extent, request);
            }
        }
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
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
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        let (has_more, has_room) = connection.ring_bells();
        let signals = [(has_more, Signal::Readable), (has_room, Signal::Writable)];
        match connection.watch {
            None if has_more || has_room => {
                self.outputs.push_back(Output::Wake { session, handle });
            }
            None => {}
            Some(watch) => {
                let signals = signals.into_iter().filter(|(is_due, _)| *is_due);
                let signals = signals.map(|(_, signal)| Output::Signal { watch, signal });
                self.outputs.extend(signals);
            }
        }
        if !connection.is_alive() {
            self.hang_up(number);
        }
        let Some(connection) = self.connections.get(number) else {
            return;
        };
        if connection.is_over() {
            self.forget(number);
        }
    }

    /// Whoever polls a connection's descriptor sees that there is no more to it.
    fn hang_up(&mut self, number: Vqpn) {
        let connection = self.connections.get_mut(number);
        if let Some(watch) = connection.and_then(|one| one.watch.take()) {
            let signal = Signal::HungUp;
            self.outputs.push_back(Output::Signal { watch, signal });
        }
    }

    /// An application has handed over a descriptor for a connection, by which it is told of it from now on. Says
    /// whether it has such a connection.
    pub fn watch(&mut self, session: usize, handle: u32, watch: Option<WatchId>) -> bool {
        let Some(number) = self.number_of(session, handle) else {
            return false;
        };
        self.hang_up(number);
        let Some(connection) = self.connections.get_mut(number) else {
            return false;
        };
        if connection.is_left() {
            return false;
        }
        connection.watch = watch;
        // It is not known what there was before.
        let signals = [Signal::Writable, Signal::Readable].into_iter();
        let signals = signals.flat_map(|signal| {
            Some(Output::Signal {
                watch: watch?,
                signal,
            })
        });
        self.outputs.extend(signals);
        self.attend(number);
        true
    }

    /// The other end of a connection may use memory that an application asked for. Says what it is called.
    ///
    /// # Errors
    ///
    /// [`Refusal::Misuse`]: there is no such connection, or memory. [`Refusal::Limit`].
    pub fn export(
        &mut self,
        session: usize,
        handle: u32,
        extent: Extent,
        rights: Rights,
    ) -> Result<u32, Refusal> {
        let number = self.number_of(session, handle).ok_or(Refusal::Misuse)?;
        let connection = self.connections.get_mut(number).ok_or(Refusal::Misuse)?;
        let of = self.sessions.get_mut(session).ok_or(Refusal::Misuse)?;
        if connection.is_left() || !of.memory.pin(extent) {
            return Err(Refusal::Misuse);
        }
        let window = connection.exports.add(extent, rights);
        match window {
            // What is sent from now on goes behind the frame that tells of it.
            Some(_) => connection.outlet.exporting(false),
            None => of.memory.unpin(extent),
        }
        self.attend(number);
        window.ok_or(Refusal::Limit)
    }

    /// The other daemon, of a connection that has a link.
    pub fn peer_of(&self, session: usize, handle: u32) -> Option<u64> {
        let number = self.number_of(session, handle)?;
        let link = self.connections.get(number)?.place.link?;
        Some(self.links.get(link)?.key.peer)
    }

    /// It may not any more. Says whether there is such memory; the answer comes once nothing touches it.
    pub fn revoke(&mut self, session: usize, handle: u32, window: u32, request: u32) -> bool {
        let number = self.number_of(session, handle);
        let connection = number.and_then(|number| self.connections.get_mut(number));
        let Some(connection) = connection.filter(|one| !one.is_left()) else {
            return false;
        };
        let number = connection.number;
        let had = connection.exports.revoke(window, request);
        self.attend(number);
        had
    }

    /// Memory is not used by the other end any more.
    fn unexport(&mut self, session: usize, extent: Extent, request: Option<u32>) {
        let Some(of) = self.sessions.get_mut(session) else {
            return;
        };
        of.memory.unpin(extent);
        if let Some(request) = request.filter(|_| !of.is_gone) {
            of.replies.push_back(Reply::Revoked { request });
            self.outputs.push_back(Output::Slabs { session });
        }
    }

    /// Nothing of a connection is needed any more.
    fn forget(&mut self, number: Vqpn) {
        self.hang_up(number);
        let Some(mut over) = self.connections.remove(number) else {
            return;
        };
        if let Some(at) = over.place.link {
            self.unlink(at, number);
        }
        let session = over.place.session;
        let memory = over.memory();
        let handle = over.place.handle;
        let was_reset = !over.is_alive();
        let exports = over.exports.end();
        drop(over);
        for (extent, request) in exports {
            self.unexport(session, extent, request);
        }
        if let Some(of) = self.sessions.get_mut(session) {
            of.traffic.reset += u64::from(was_reset);
            memory.into_iter().for_each(|extent| of.memory.give(extent));
            of.handles.try_remove(handle as usize);
        }
        self.bury(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_slept_is_not_busy_any_more() {
        let mut load = Load::default();
        let burst = |load: &mut Load| {
            (0..2000).for_each(|_| load.step(true));
            assert!(load.of_255() > 250, "{load:?}");
        };
        burst(&mut load);
        load.arm();
        load.step(false);
        assert!(load.disarm());
        assert_eq!(load.of_255(), 0);
        // There was something to do instead.
        burst(&mut load);
        load.arm();
        load.step(true);
        assert!(!load.disarm());
        assert!(load.of_255() > 250, "{load:?}");
        // Nor by a look that nobody slept before.
        load.step(false);
        assert!(!load.disarm());
        assert!(load.of_255() > 250, "{load:?}");
    }
}
