//! The part of an isolation domain that one worker carries: sessions of one tenant's applications, their connections
//! over the worker's links, and the queue-pair groups that carry them. Domains share no queue pair, completion queue,
//! receive or key with each other. The parts of a domain share its protection domain and the memory of its sessions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use headworks_client::socket_message::{End, Refusal, Reply};
use headworks_client::{
    BLOCK_BYTES, ByteRing, ControlBlock, EgressReader, Extent, IngressWriter, Reset, Rights, Vqpn,
};
use headworks_rxpool::holdings::{AppId, HeldExtent};
use headworks_shm::EventCountRef;
use headworks_verbs::{
    Completion, CompletionChannel, CompletionQueue, CqInit, Device, Instant, OpenError, PollError,
    ProtectionDomain, Qpn, ResourceError,
};
use slab::Slab;

use crate::connection::{Connection, ConnectionOwner};
use crate::connection_table::ConnectionTable;
use crate::control::Offer;
use crate::control::PlaceId;
use crate::copy_log::CopyLog;
use crate::egress::EgressHalf;
use crate::ids::{DomainId, QpGroupKey, Signal, Tenant, WatchId, WorkerId};
use crate::ingress::IngressHalf;
use crate::limits::DaemonLimits;
use crate::pair_memory::PairMemory;
use crate::pool::DomainPool;
use crate::qp_group::{QpGroup, QpRole};
use crate::receive_shares::ReceiveShares;
use crate::receives::{self, Receives};
use crate::session::Session;
use crate::session_memory::SessionMemory;

mod context;
mod draining;
mod landing;
mod qp_groups;
mod receive;
mod snapshot;
mod step;

use draining::DrainingQps;

/// An action that a domain requests.
///
/// One side of a queue-pair group opens it and numbers the successive groups between the two domains
/// (`instance`). Every message about a group names its instance, so that a late one is never taken for news
/// of the next group.
#[derive(Debug)]
pub enum Output {
    /// Ask the side that opens groups for a new one: this side has none, or has lost the one numbered
    /// `known`.
    QpGroupWanted {
        /// Key of the group.
        group: QpGroupKey,
        /// Last instance that this side knew of; 0 for none.
        known: u32,
    },
    /// Send these bring-up bytes to the other side, so that a queue pair can be connected.
    BringUp {
        /// Key of the group.
        group: QpGroupKey,
        /// Instance of the group.
        instance: u32,
        /// Queue pair of the group.
        qp_role: QpRole,
        /// Bytes of the bring-up.
        bytes: Vec<u8>,
    },
    /// The group is up and has carried a frame: connections over it work.
    QpGroupProven {
        /// Key of the group.
        group: QpGroupKey,
    },
    /// The other side's daemon has to react to something, and may be stopped or gone: see
    /// [`Domain::awaited`].
    AwaitsPeer {
        /// Number of the other side's daemon.
        peer: u64,
    },
    /// Tell the other side that a group has failed.
    QpGroupDown {
        /// Key of the group.
        group: QpGroupKey,
        /// Instance of the group.
        instance: u32,
    },
    /// Hand new slabs to an application at once: it may see references to them already.
    Slabs {
        /// Session of the application.
        session: usize,
    },
    /// Send a reply to an application.
    Reply {
        /// Session of the application.
        session: usize,
        /// The reply.
        reply: Reply,
    },
    /// A connection is gone: its handle may be used again.
    HandleFreed {
        /// Session of the application.
        session: usize,
        /// Handle of the connection.
        handle: u32,
    },
    /// Signal a change at a descriptor.
    Signal {
        /// Subscription that the signal belongs to.
        watch: WatchId,
        /// Change that is signalled.
        signal: Signal,
    },
    /// The level of this part's receive pool has changed: see [`Domain::pool_level`].
    PoolLevel,
    /// Wake a thread of an application that sleeps on this event count.
    WakeThread(EventCountRef),
    /// Send a message to an application that sleeps on one of its connections.
    Wake {
        /// Session of the application.
        session: usize,
        /// Handle of the connection.
        handle: u32,
    },
}

/// A wake-up of an application that a worker's thread carries out by itself.
#[derive(Debug)]
pub enum WakeUp {
    /// Wake a thread that sleeps on this event count.
    Thread(EventCountRef),
    /// Signal a change at a descriptor.
    Signal(WatchId, Signal),
}

/// Error of creating or driving a domain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A resource cannot be allocated.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// Receives cannot be posted.
    #[error(transparent)]
    Grow(#[from] crate::receives::GrowError),
    /// The completion queue cannot be polled any more.
    #[error(transparent)]
    Poll(#[from] PollError),
}

/// A queue-pair group with its identity.
struct QpGroupEntry {
    key: QpGroupKey,
    /// Instance; 0 until the side that opens the group has announced it.
    instance: u32,
    /// Whether the group is in `active`.
    is_active: bool,
    group: QpGroup,
}

/// A queue-pair group that has failed.
struct FailedGroup {
    /// Kept until it is drained.
    group: QpGroup,
    /// Number of receives that it counts for in [`ReceiveShares`], until it is drained if they are its own.
    held: u64,
    /// Memory of the receive pool that it may still write to.
    lost: Vec<(AppId, HeldExtent)>,
}

/// The part of an isolation domain that one worker carries.
///
/// Sessions: [`attach`](Self::attach), [`detach`](Self::detach), [`close`](Self::close). Queue-pair groups: [`qp_group`](Self::qp_group),
/// [`qp_group_wanted`](Self::qp_group_wanted), [`bring_up`](Self::bring_up), [`qp_group_down`](Self::qp_group_down),
/// [`fail_peer`](Self::fail_peer). Connections: [`open`](Self::open), then [`connect`](Self::connect) or
/// [`refuse`](Self::refuse). Driving: [`step`](Self::step), then [`output`](Self::output) until it returns
/// nothing.
pub struct Domain {
    id: DomainId,
    tenant: Tenant,
    config: DaemonLimits,
    // Connections and groups are dropped before the memory and queues that they use.
    groups: Slab<QpGroupEntry>,
    /// Groups that have failed, kept until none of their completions is left to be polled.
    dying: DrainingQps<FailedGroup>,
    by_key: BTreeMap<QpGroupKey, usize>,
    by_qpn: BTreeMap<Qpn, usize>,
    connections: ConnectionTable<Box<Connection>>,
    sessions: Slab<Session>,
    receives: Receives,
    receive_shares: ReceiveShares,
    /// Groups whose queue pair is owed receives. Empty if there is a shared receive queue.
    refill: Vec<usize>,
    cq: Arc<dyn CompletionQueue>,
    channel: Arc<dyn CompletionChannel>,
    pd: Arc<dyn ProtectionDomain>,
    device: Arc<dyn Device>,
    /// Last instance of each group.
    instances: BTreeMap<QpGroupKey, u32>,
    outputs: VecDeque<Output>,
    /// Buffer for polled completions.
    completions: Vec<Completion>,
    /// Groups that have something to do.
    active: Vec<usize>,
    copies: CopyLog,
    steps: u32,
    pool: DomainPool,
    /// Groups whose rate is limited, or is to be.
    slowed: BTreeSet<usize>,
    /// Connections whose bytes are moved out of the pool.
    moving_out: VecDeque<Vqpn>,
    /// Time of the latest step in which something depended on it.
    now: Instant,
}

/// Maximum number of completions polled at a time.
const POLL: usize = 64;

impl Domain {
    /// Creates the part of a domain that worker `worker` carries, without sessions. `pd` is the domain's protection domain.
    ///
    /// # Errors
    ///
    /// [`DomainError`].
    pub fn new(
        id: DomainId,
        tenant: Tenant,
        worker: WorkerId,
        (device, pd): (&Arc<dyn Device>, &Arc<dyn ProtectionDomain>),
        config: &DaemonLimits,
    ) -> Result<Self, DomainError> {
        let limits = device.info().limits;
        let most = receives::most_on(&limits, config.receives_max);
        let of_group = u64::from(config.qp_groups_max)
            * (u64::from(config.frame_depth) + u64::from(config.bulk_depth));
        let depth = (of_group + u64::from(most)).min(limits.max_cqe.into());
        let channel = device.create_channel()?;
        let cq = device.create_cq(&CqInit {
            depth: depth as u32,
            channel: Some(channel.clone()),
            ..CqInit::default()
        })?;
        let mut receives = Receives::new(&limits, &**pd, config.frame_bytes, most)?;
        let pool = DomainPool::new(&**device, &**pd, worker.0.into(), config)?;
        let posted = receives.grow(&**device, &**pd, config.receives)?;
        let (floor, share) = config.receives_of_group(receives.srq().is_none(), &limits);
        Ok(Self {
            id,
            tenant,
            config: config.clone(),
            groups: Slab::new(),
            by_key: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            connections: ConnectionTable::default(),
            sessions: Slab::new(),
            receives,
            receive_shares: ReceiveShares::new(posted, floor, share),
            refill: Vec::new(),
            dying: DrainingQps::new(cq.depth()),
            cq,
            channel,
            pd: pd.clone(),
            device: device.clone(),
            instances: BTreeMap::new(),
            outputs: VecDeque::new(),
            completions: vec![Completion::default(); POLL],
            active: Vec::new(),
            copies: CopyLog::default(),
            steps: 0,
            pool,
            slowed: BTreeSet::new(),
            moving_out: VecDeque::new(),
            now: Instant::ZERO,
        })
    }

    /// Returns the number of the domain.
    pub fn id(&self) -> DomainId {
        self.id
    }

    /// Returns whose domain it is.
    pub fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// Returns the next action that the domain requests.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the next action if it is a wake-up of an application.
    pub(crate) fn wake_up(&mut self) -> Option<WakeUp> {
        match self.outputs.pop_front()? {
            Output::WakeThread(event_count) => Some(WakeUp::Thread(event_count)),
            Output::Signal { watch, signal } => Some(WakeUp::Signal(watch, signal)),
            other => {
                self.outputs.push_front(other);
                None
            }
        }
    }

    /// Returns whether the domain requests actions.
    pub(crate) fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Returns all actions that the domain requests.
    pub(crate) fn take_outputs(&mut self) -> impl Iterator<Item = Output> {
        self.outputs.drain(..)
    }

    /// Arms the wake-ups of the domain. See [`Daemon::arm`](crate::Daemon::arm).
    pub fn arm(&mut self) {
        self.watch_peers();
        self.cq.arm(false);
        let wants_memory = self.pool.wants_memory();
        for (_, session) in &self.sessions {
            session.doorbell.event_count().arm(false);
            if wants_memory {
                session.doorbell.memory_event_count().arm(false);
            }
        }
    }

    /// Disarms the wake-ups of the domain. See [`Daemon::disarm`](crate::Daemon::disarm).
    pub fn disarm(&mut self) {
        for (_, session) in &self.sessions {
            session.doorbell.event_count().disarm();
            session.doorbell.memory_event_count().disarm();
        }
        while let Ok(Some(_)) = self.channel.next_event() {}
    }

    /// Returns the channel whose descriptor becomes readable when the completion queue is to be polled.
    pub fn channel(&self) -> &Arc<dyn CompletionChannel> {
        &self.channel
    }

    /// Adds the part of an application's session that this worker carries, and returns its number. `is_first` tells
    /// whether the application attaches just now, and is told of this part's doorbell.
    ///
    /// # Errors
    ///
    /// [`Refusal::Limit`], [`Refusal::Memory`].
    pub fn attach(
        &mut self,
        memory: SessionMemory,
        name: String,
        is_first: bool,
    ) -> Result<usize, Refusal> {
        let handles = self.config.connections_each as usize;
        let class = self.config.classes.get(&name).copied();
        let app = self.pool.add_app(class.unwrap_or_default().into());
        let session = Session::new(memory, name, app, handles, is_first);
        let mut session = session.inspect_err(|_| self.pool.remove_app(app))?;
        let pool = &self.pool;
        session.memory.add_pool(pool.slab(), pool.buffer());
        Ok(self.sessions.insert(session))
    }

    /// Returns the number of sessions, including those of gone applications that still have connections.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the memory of a session's doorbell.
    pub fn doorbell(&self, session: usize) -> Option<Extent> {
        Some(self.sessions.get(session)?.doorbell_extent)
    }

    /// Adds slabs to the list of a session that others have allocated for it.
    pub fn refresh(&mut self, session: usize) {
        if let Some(session) = self.sessions.get_mut(session) {
            session.memory.refresh();
        }
    }

    /// Removes an application that exited or broke the contract, and resets its connections. If it merely
    /// exited, connections that it had already closed still deliver what it sent. Its memory stays until
    /// nothing can reach it.
    pub fn detach(&mut self, session: usize, why: Reset) {
        let Some(gone) = self.sessions.get_mut(session).filter(|one| !one.is_gone) else {
            return;
        };
        gone.is_gone = true;
        let numbers: Vec<Vqpn> = gone.handles.iter().collect();
        for number in numbers {
            match self.connections.get_mut(number) {
                // After that data, a reset tells the peer that the application is gone.
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
        self.clean_up(session);
    }

    /// Removes the session of a gone application once it has no connection left.
    fn clean_up(&mut self, session: usize) {
        let is_over = |one: &Session| one.is_gone && one.handles.len() == 0;
        if self.sessions.get(session).is_some_and(is_over) {
            let gone = self.sessions.remove(session);
            self.pool.remove_app(gone.app);
        }
    }

    /// Closes a connection for its application. With `gives_up`, unsent data is dropped and the peer sees a
    /// reset. Returns whether the application had such an open connection.
    pub fn close(&mut self, session: usize, handle: u32, gives_up: bool) -> bool {
        let Some(number) = self.number_of(session, handle) else {
            return false;
        };
        let Some(mut context) = self.context(number) else {
            return false;
        };
        if context.connection.is_left() {
            return false;
        }
        context.connection.leave(gives_up);
        context.hang_up();
        // The data written so far is still to be sent, and then the end of the stream.
        context.schedule();
        self.attend(number);
        true
    }

    fn number_of(&self, session: usize, handle: u32) -> Option<Vqpn> {
        let session = self.sessions.get(session)?;
        session.handles.get(handle)
    }

    /// Makes this host's end of a connection over a queue-pair group, with a handle that the session does not use.
    ///
    /// # Errors
    ///
    /// [`Refusal::Limit`], [`Refusal::Memory`].
    pub fn open(
        &mut self,
        group: usize,
        session: usize,
        handle: u32,
        (local, peer): (SocketAddr, SocketAddr),
        direct: Option<(Arc<PairMemory>, PlaceId)>,
    ) -> Result<Offer, Refusal> {
        let of = self.sessions.get_mut(session).ok_or(Refusal::Refused)?;
        if of.is_gone {
            return Err(Refusal::Refused);
        }
        let mut extents = Vec::new();
        // Little of a direct connection goes through its rings here. They grow if more does.
        let (ring, ingress) = match direct {
            Some(_) => (ByteRing::LEN_MIN, ByteRing::LEN_MIN),
            None => (self.config.ring_bytes, self.config.ingress_bytes),
        };
        for bytes in [BLOCK_BYTES, ring, ingress] {
            match of.memory.take(bytes) {
                Ok(extent) => extents.push(extent),
                Err(why) => {
                    extents.into_iter().for_each(|taken| of.memory.give(taken));
                    of.memory.report_refusal(&of.name, why);
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
        let (words, egress_half, ingress_half) = made.map_err(|_| Refusal::Memory)?;
        let window = ingress_half.window() as u32;
        let place = ConnectionOwner {
            group: Some(group),
            session,
            handle,
            block,
            local,
            peer,
        };
        let number = self.connections.insert(|number| {
            let mut new = Connection::new(number, place, words, egress_half, ingress_half);
            new.direct = direct;
            Box::new(new)
        });
        let Some(number) = number else {
            [block, egress, ingress]
                .into_iter()
                .for_each(|taken| of.memory.give(taken));
            return Err(Refusal::Limit);
        };
        of.handles.insert(handle, number);
        of.traffic.opened += 1;
        Ok(Offer { number, window })
    }

    /// Connects an end to the other end. Returns its session and a description for the application, or `None`
    /// if this end is gone.
    pub fn connect(&mut self, number: Vqpn, remote: Offer) -> Option<(usize, End)> {
        let mut context = self.context(number)?;
        context.connection.connect(remote.number, remote.window);
        let place = context.connection.place;
        let doorbell = match context.session.is_first {
            true => None,
            false => Some(context.session.doorbell_extent),
        };
        // The application may have closed the connection already.
        context.schedule();
        self.attend(number);
        let end = End {
            handle: place.handle,
            block: place.block,
            doorbell,
            direct: None,
            local: place.local,
            peer: place.peer,
        };
        Some((place.session, end))
    }

    /// Has all bytes of an end go through the daemons. Its application has not been told of it.
    pub(crate) fn not_direct(&mut self, number: Vqpn) {
        if let Some(connection) = self.connections.get_mut(number) {
            connection.direct = None;
        }
    }

    /// Removes an end that has no other end.
    pub fn refuse(&mut self, number: Vqpn) {
        let Some(context) = self.context(number) else {
            return;
        };
        let connection = context.connection;
        connection.refuse();
        if let Some(group) = context.group {
            group.entry.group.forget(number);
        }
        self.attend(number);
    }

    /// Resets a connection whose other end is gone and was never on this end's group.
    pub fn miss(&mut self, number: Vqpn) {
        if let Some(connection) = self.connections.get_mut(number) {
            connection.miss();
        }
        self.attend(number);
    }

    /// Sets the descriptor that signals events of a connection to the application from now on. Returns whether
    /// the application has this connection open.
    pub fn watch(&mut self, session: usize, handle: u32, watch: Option<WatchId>) -> bool {
        let Some(number) = self.number_of(session, handle) else {
            return false;
        };
        let Some(mut context) = self.context(number) else {
            return false;
        };
        context.hang_up();
        if context.connection.is_left() {
            return false;
        }
        context.connection.watch = watch;
        // The application may have missed earlier events, so signal both.
        let signals = [Signal::Writable, Signal::Readable].into_iter();
        let signals = signals.flat_map(|signal| {
            Some(Output::Signal {
                watch: watch?,
                signal,
            })
        });
        context.outputs.extend(signals);
        self.attend(number);
        true
    }

    /// Exports memory of an application to the other end of a connection. Returns the number of the export.
    ///
    /// # Errors
    ///
    /// [`Refusal::Misuse`]: no such connection, or no such memory. [`Refusal::Limit`]: too many exports.
    pub fn export(
        &mut self,
        session: usize,
        handle: u32,
        extent: Extent,
        rights: Rights,
    ) -> Result<u32, Refusal> {
        let number = self.number_of(session, handle).ok_or(Refusal::Misuse)?;
        let context = self.context(number).ok_or(Refusal::Misuse)?;
        let (connection, of) = (context.connection, context.session);
        if connection.is_left() || !of.memory.pin(extent) {
            return Err(Refusal::Misuse);
        }
        let export_id = connection.exports.add(extent, rights);
        match export_id {
            // Data sent from now on must follow the frame that announces the export.
            Some(_) => connection.egress.exporting(false),
            None => of.memory.unpin(extent),
        }
        self.attend(number);
        export_id.ok_or(Refusal::Limit)
    }

    /// Returns the queue-pair group that carries a session's connection.
    pub fn group_of_handle(&self, session: usize, handle: u32) -> Option<QpGroupKey> {
        self.qp_group_of(self.number_of(session, handle)?)
    }

    /// Revokes an export. Returns whether there is such an export. The application is answered once nothing
    /// touches the memory any more.
    pub fn revoke(&mut self, session: usize, handle: u32, export_id: u32, request: u32) -> bool {
        let number = self.number_of(session, handle);
        let connection = number.and_then(|number| self.connections.get_mut(number));
        let Some(connection) = connection.filter(|one| !one.is_left()) else {
            return false;
        };
        let number = connection.number;
        let had = connection.exports.revoke(export_id, request);
        self.attend(number);
        had
    }

    /// Removes a connection that nothing needs any more, and frees its memory.
    fn forget(&mut self, number: Vqpn) {
        let Some(mut context) = self.context(number) else {
            return;
        };
        context.hang_up();
        for (extent, request) in context.connection.exports.end() {
            context.unexport(extent, request);
        }
        if let Some(group) = &mut context.group {
            group.entry.group.forget(number);
        }
        let app = context.session.app;
        let memory = &mut context.session.memory;
        let ingress = &mut context.connection.ingress;
        ingress.release_all(number, (context.pool, app), memory);
        context.pool.stop_waiting(number);
        let Some(mut over) = self.connections.remove(number) else {
            return;
        };
        let (session, handle) = (over.place.session, over.place.handle);
        let (memory, was_reset) = (over.memory(), over.note_reset());
        // Its views of the memory are dropped before the memory is given back.
        drop(over);
        if let Some(of) = self.sessions.get_mut(session) {
            of.traffic.reset += u64::from(was_reset);
            memory.into_iter().for_each(|extent| of.memory.give(extent));
            of.handles.remove(handle);
            let freed = Output::HandleFreed { session, handle };
            self.outputs.push_back(freed);
        }
        self.clean_up(session);
    }
}
