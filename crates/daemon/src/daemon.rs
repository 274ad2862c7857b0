//! The control of a host's daemon: its domains, the attached applications, the ports that they listen at, and the
//! daemons of other hosts. It only decides; the caller carries out what [`Daemon::output`] returns.
//!
//! [Workers](crate::worker) carry the bytes. Every host that a link leads to is assigned to one worker, which carries
//! all queue-pair groups to it. A session has a part at every worker that carries connections of it.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use headworks_client::socket_message::{Refusal, Reply};
use headworks_client::{Reset, Vqpn};
use headworks_runtime::ActorContext;
use headworks_shm::EventCountRef;
use headworks_verbs::{AsyncEvent, Buffer, CompletionChannel, Device, Instant, ProtectionDomain};
use slab::Slab;

use crate::auth::{Nonce, Nonces, Secret};
use crate::control::{TakenPlace, VERSION, VERSION_OLDEST};
use crate::domain::{self, DomainError};
use crate::ecn::PoolLevel;
use crate::ids::{DomainId, DomainPart, PeerId, SessionId, Signal, Tenant, WatchId, WorkerId};
use crate::limits::DaemonLimits;
use crate::session_memory::{MemoryObserver, SessionMemory};
use crate::snapshot::{
    ApplicationSnapshot, DomainSnapshot, ObjectCounts, PoolSnapshot, Snapshot, Traffic,
};
use crate::worker::SharedWorker;

mod applications;
mod connect_timeout;
mod connects;
mod handshake;
mod pairs;
mod parts;
mod peer_timeout;
mod pool_levels;
mod shutdown;

use connects::UnprovenConnections;
pub use pairs::MakeSocketPair;
use pairs::{PairKey, Pairs};
use peer_timeout::PeerWatch;

/// An action that the daemon requests from its event loop.
pub enum Output {
    /// Dial the daemon at this address, then call [`Daemon::peer_up`] or [`Daemon::dial_failed`].
    Dial(IpAddr),
    /// Send a message to another daemon.
    ToPeer {
        /// Daemon that the message goes to.
        peer: PeerId,
        /// Encoded message.
        message: Vec<u8>,
    },
    /// Send a message to another daemon, with a file.
    FileToPeer {
        /// Daemon that the message goes to.
        peer: PeerId,
        /// Encoded message.
        message: Vec<u8>,
        /// The file.
        file: OutputFile,
    },
    /// Close the stream to another daemon and report nothing more of it.
    HangUp(PeerId),
    /// Send a packet to an application.
    ToSession {
        /// Session that the packet goes to.
        session: SessionId,
        /// Encoded packet.
        packet: Vec<u8>,
        /// Slab that the packet names.
        slab: Option<Arc<dyn Buffer>>,
    },
    /// Send a packet to an application, with a file that is no slab.
    FileToSession {
        /// Session that the packet goes to.
        session: SessionId,
        /// Encoded packet.
        packet: Vec<u8>,
        /// The file.
        file: OutputFile,
    },
    /// Close the socket and the handed-over descriptors of an application, and report nothing more of it.
    EndSession(SessionId),
    /// Wake a thread that sleeps on this event count ([`EventCount::wake`](headworks_shm::EventCount::wake)), after
    /// the packets before this output were sent.
    WakeThread(EventCountRef),
    /// Wake a worker that sleeps. Only a daemon whose workers are [driven elsewhere](Daemon::drive_workers_elsewhere)
    /// requests this.
    WakeWorker(WorkerId),
    /// The level of all receive pools together has changed. Only a daemon that
    /// [reports it](DaemonLimits::reports_pool_level) requests this.
    PoolLevel(PoolLevel),
    /// Signal a change at a descriptor, after the packets before this output were sent.
    Signal {
        /// Subscription that the signal belongs to.
        watch: WatchId,
        /// Change that is signalled.
        signal: Signal,
    },
}

/// A file that the daemon hands over.
#[derive(Clone)]
pub enum OutputFile {
    /// The file of memory that the device allocated.
    Memory(Arc<dyn Buffer>),
    /// A file of another daemon, or a socket.
    File(Arc<OwnedFd>),
}

impl OutputFile {
    /// Returns the descriptor; `None` if the device's memory has no file.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Memory(buffer) => buffer.file(),
            Self::File(file) => Some(file.as_fd()),
        }
    }
}

/// State of an application that is attached or about to attach.
struct Client {
    domain: DomainId,
    /// Its session, once it is attached.
    session: Option<ClientSession>,
    /// Port of each listener, by the listener's number. Numbers are not reused.
    listeners: BTreeMap<u32, u16>,
    last_listener: u32,
    /// Connect requests that have not been answered, those whose link is not proven included.
    wishes: u32,
}

/// The session of an attached application.
struct ClientSession {
    /// Name that the application chose.
    name: String,
    memory: SessionMemory,
    /// Worker that carries the connection of each handle.
    handles: Slab<WorkerId>,
    /// Number of the session's part at each worker; `None` where there is no part yet.
    parts: Vec<Option<usize>>,
    /// Whether the application takes direct connections.
    takes_direct: bool,
    /// Number of its latest pair.
    last_pair: u32,
    /// Whether it was logged that it has as many pairs as it may.
    is_pair_limit_logged: bool,
    /// Number of its direct connections so far.
    opened_direct: u64,
    /// Traffic of its pairs that are forgotten.
    ended_pairs: Traffic,
}

/// A tenant's isolation domain.
struct TenantDomain {
    /// Protection domain that all parts of the domain share.
    pd: Arc<dyn ProtectionDomain>,
    /// Memory of its sessions, that of gone applications included, which may still be in use.
    memories: Vec<MemoryObserver>,
    /// Bytes of its receive pool.
    pool_bytes: u64,
    /// A part of the pool did not get the huge pages that it asked for, which was logged. Further parts do not ask.
    lacks_huge_pages: bool,
}

/// A port that an application listens at.
#[derive(Debug)]
struct Listener {
    client: SessionId,
    /// The application's number of the listener.
    number: u32,
    backlog: u32,
    /// Connections that the application has not taken, confirmed or not. `backlog` limits them.
    waiting: u32,
    /// Number of connections in `waiting` that the daemon has announced to the application.
    untaken: u32,
    /// Requests that wait until the backlog has room.
    requests: VecDeque<IncomingRequest>,
    watch: Option<WatchId>,
    /// Whether the descriptor is readable, as far as the daemon knows.
    is_readable: bool,
}

impl Listener {
    /// Whether the backlog has no room for another connection.
    fn is_full(&self) -> bool {
        self.waiting >= self.backlog
    }
}

/// A connect request of another daemon.
#[derive(Clone, Copy, Debug)]
struct IncomingRequest {
    peer: PeerId,
    /// The other daemon's number of the request.
    token: u32,
    /// Domain of the connecting application.
    domain: DomainId,
    /// Address and port of the connecting application's end.
    from: SocketAddr,
    /// Port of the listener.
    port: u16,
    /// The connecting application's session, if the connection may be direct.
    direct: Option<u64>,
    /// When the request is refused if it still waits. `None` until the next step, which knows the time.
    until: Option<Instant>,
}

/// An application's connect request that the other daemon has not answered.
#[derive(Clone, Copy, Debug)]
struct PendingConnect {
    client: SessionId,
    /// The application's number of the request.
    request: u32,
    local: SocketAddr,
    to: SocketAddr,
    watch: Option<WatchId>,
    /// When the request is refused if nobody has answered. `None` until the next step, which knows the time.
    until: Option<Instant>,
}

/// An end made for a connection that the other daemon has not confirmed.
#[derive(Clone, Copy, Debug)]
struct PendingAccept {
    port: u16,
    client: SessionId,
    /// The application's number of the listener.
    number: u32,
    /// Domain of the other end.
    from: DomainId,
    /// When the end is dropped if it is not confirmed. `None` until the next step, which knows the time.
    until: Option<Instant>,
    /// Whether the end was dropped, because the confirmation took too long.
    is_dropped: bool,
    /// Where this side of the connection sends, if it may be direct, and its handle.
    direct: Option<(PairKey, TakenPlace)>,
    handle: u32,
}

/// Identity of a daemon towards other daemons.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Address that the daemon serves and that other daemons dial.
    pub address: IpAddr,
    /// Number that differs each time the daemon starts.
    pub life: u64,
    /// Secret that it shares with other daemons. Without one, they serve loopback addresses only.
    pub secret: Option<Secret>,
    /// Unpredictable bytes from which nonces are derived. Needed only with a secret.
    pub entropy: [u8; 32],
    /// Latest version that it speaks: [`VERSION`], or an older supported one.
    pub version: u16,
}

impl Identity {
    /// Returns the identity of a daemon without a secret.
    pub fn open(address: IpAddr, life: u64) -> Self {
        Self {
            address,
            life,
            secret: None,
            entropy: [0; 32],
            version: VERSION,
        }
    }
}

/// A TCP stream to another daemon.
#[derive(Debug)]
struct Peer {
    /// Address and life of the other daemon, once it has introduced itself and, with a secret, authenticated
    /// itself.
    known: Option<(IpAddr, u64)>,
    /// Version that both daemons speak; 0 until the other daemon has told its versions.
    version: u16,
    /// Time at which the stream came up.
    since: Instant,
    /// Address and life that the daemon at the other end claimed when it dialed this one. It still has to
    /// prove them.
    claimed: Option<(IpAddr, u64)>,
    /// Nonce of this side. `other` is the nonce of the other side, once it was received.
    nonce: Nonce,
    other: Option<Nonce>,
    /// Address that this side dialed; `None` if the other side dialed.
    called: Option<IpAddr>,
    /// Whether the stream is a Unix socket.
    is_local: bool,
    /// Worker that carries the links to the other daemon.
    worker: WorkerId,
    /// Set while the other daemon has to react to something.
    watch: Option<PeerWatch>,
    wishes: Slab<PendingConnect>,
    accepted: BTreeMap<(DomainId, Vqpn), PendingAccept>,
}

/// State of the stream to another daemon's address.
#[derive(Debug)]
enum PeerRoute {
    /// The address is being dialed: the number of dials so far, and the requests that wait for the stream.
    Dialing(u32, Vec<PendingConnect>),
    /// The stream is up.
    Up(PeerId),
}

/// The daemon of a host.
///
/// Applications: [`session_up`](Self::session_up), [`session_packet`](Self::session_packet),
/// [`session_gone`](Self::session_gone). Other daemons: [`peer_up`](Self::peer_up),
/// [`peer_message`](Self::peer_message), [`peer_gone`](Self::peer_gone), [`dial_failed`](Self::dial_failed).
/// Ending: [`drain`](Self::drain), [`stop`](Self::stop). Driving: [`step`](Self::step). After any of these
/// calls, call [`output`](Self::output) until it returns nothing.
pub struct Daemon {
    config: DaemonLimits,
    identity: Identity,
    nonces: Nonces,
    // Workers are dropped before the protection domains, and those before the device. Threads that step workers must
    // have ended.
    workers: Vec<Arc<SharedWorker>>,
    /// Whether others step the workers.
    are_workers_elsewhere: bool,
    domains: BTreeMap<DomainId, TenantDomain>,
    device: Arc<dyn Device>,
    /// Number of the latest failure of the device's port that was logged.
    port_failures: u64,
    clients: BTreeMap<SessionId, Client>,
    /// Domain of each tenant that ever came, and tenant of each domain.
    tenants: BTreeMap<Tenant, DomainId>,
    tenant_by_domain: BTreeMap<DomainId, Tenant>,
    /// Number from which on downwards numbers for domains are free.
    next_domain: u32,
    /// Applications by the numbers of their sessions' parts.
    by_session: BTreeMap<(DomainPart, usize), SessionId>,
    ports: BTreeMap<u16, Listener>,
    peers: BTreeMap<PeerId, Peer>,
    routes: BTreeMap<IpAddr, PeerRoute>,
    /// Connections of this host's applications whose link has not carried a frame yet.
    unproven: UnprovenConnections,
    /// Makes the sockets of pairs; `None` without direct connections.
    make_socket_pair: Option<MakeSocketPair>,
    pairs: Pairs,
    next_port: u16,
    /// Whether nothing new is accepted any more.
    is_draining: bool,
    /// Outputs of workers that are being passed on: a buffer.
    passing: VecDeque<(DomainId, domain::Output)>,
    /// Time of the last step.
    now: Instant,
    /// Whether there are connect requests whose time limit is not set yet.
    has_new_requests: bool,
    /// The earliest time limit of a connect request.
    requests_until: Option<Instant>,
    /// The earliest time at which to look at a daemon that has to react to something.
    watches_until: Option<Instant>,
    /// The level of all receive pools that was reported last, and when to look at them again at the latest.
    pool_level: PoolLevel,
    pools_until: Option<Instant>,
    /// When a worker that control steps must be stepped at the latest.
    workers_until: Option<Instant>,
    steps: u32,
    /// Last number given to a session or a peer.
    numbers: u64,
    outputs: VecDeque<Output>,
}

/// Steps between two polls of the device's asynchronous events.
const EVENTS_EVERY: u32 = 64;
/// First ephemeral port: for connections, and for listeners that ask for port 0.
const EPHEMERAL: u16 = 32_768;

impl Daemon {
    /// Creates the daemon of a host, on one device.
    pub fn new(identity: Identity, device: Arc<dyn Device>, config: DaemonLimits) -> Self {
        let config = DaemonLimits {
            workers: config.workers.max(1),
            ..config
        };
        let workers = (0..config.workers).map(|_| Arc::default());
        Self {
            workers: workers.collect(),
            are_workers_elsewhere: false,
            config,
            nonces: Nonces::new(identity.entropy),
            identity,
            device,
            port_failures: 0,
            domains: BTreeMap::new(),
            clients: BTreeMap::new(),
            tenants: BTreeMap::new(),
            tenant_by_domain: BTreeMap::new(),
            next_domain: u32::MAX,
            by_session: BTreeMap::new(),
            ports: BTreeMap::new(),
            peers: BTreeMap::new(),
            routes: BTreeMap::new(),
            unproven: BTreeMap::new(),
            make_socket_pair: None,
            pairs: Pairs::default(),
            next_port: EPHEMERAL,
            is_draining: false,
            passing: VecDeque::new(),
            now: Instant::ZERO,
            has_new_requests: false,
            requests_until: None,
            watches_until: None,
            pool_level: PoolLevel::Idle,
            pools_until: None,
            workers_until: None,
            steps: 0,
            numbers: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Returns the address that the daemon serves.
    pub fn address(&self) -> IpAddr {
        self.identity.address
    }

    /// Returns the next action that the daemon requests.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when the daemon must be stepped at the latest, if nothing else happens.
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.has_new_requests {
            true => Some(self.now),
            false => {
                let all = [self.requests_until, self.watches_until, self.pools_until];
                all.into_iter().chain([self.workers_until]).flatten().min()
            }
        }
    }

    /// Returns the state of the daemon, for operators.
    pub fn snapshot(&self) -> Snapshot {
        let host_of = |peer| Some(self.peers.get(&PeerId(peer))?.known?.0);
        let mut peers: Vec<IpAddr> = self
            .peers
            .keys()
            .filter_map(|peer| host_of(peer.0))
            .collect();
        peers.dedup();
        let mut domains = Vec::new();
        for (id, counts) in self.object_counts() {
            let mut groups = Vec::new();
            let mut pool = PoolSnapshot::default();
            for (number, worker) in (0..).zip(&self.workers) {
                if let Some(part) = worker.lock_for_control().domain(id) {
                    groups.extend(part.groups(number, host_of));
                    pool += part.pool();
                }
            }
            let tenant = self.tenant_of(id);
            domains.push(DomainSnapshot {
                user: tenant.user,
                socket: tenant.socket,
                object_counts: counts,
                pool,
                groups,
                applications: self.applications_of(id),
            });
        }
        Snapshot {
            address: self.address(),
            is_draining: self.is_draining,
            domains,
            peers,
            ecn: None,
            cache: None,
        }
    }

    fn applications_of(&self, id: DomainId) -> Vec<ApplicationSnapshot> {
        let clients = self.clients.iter().filter(|(_, one)| one.domain == id);
        let attached = clients.filter_map(|(session, client)| {
            let of = client.session.as_ref()?;
            let mut traffic = Traffic {
                direct: of.opened_direct,
                ..of.ended_pairs
            };
            let mut connections = 0;
            let mut pool_held = (0, 0);
            for (worker, number) in self.workers.iter().zip(&of.parts) {
                if let (Some(number), Some(part)) = (number, worker.lock_for_control().domain(id)) {
                    let (some, carried, held) = part.traffic(*number, self.now);
                    connections += some;
                    pool_held = (pool_held.0 + held.0, pool_held.1 + held.1);
                    traffic += carried;
                }
            }
            for pair in self.pairs_of(*session) {
                traffic += pair.traffic();
            }
            let (in_use, allocated) = of.memory.bytes();
            let direct = of.memory.quota().direct();
            let (in_use, allocated) = (in_use + direct, allocated + direct);
            Some(ApplicationSnapshot {
                session: *session,
                name: of.name.clone(),
                pid: None,
                connections,
                direct: self.pairs.connections_of(*session),
                listeners: client.listeners.len(),
                traffic,
                pool_held,
                in_use,
                allocated,
            })
        });
        attached.collect()
    }

    /// Returns the number of objects in each domain.
    pub fn object_counts(&self) -> impl Iterator<Item = (DomainId, ObjectCounts)> {
        self.domains.iter().map(|(id, domain)| {
            let mut counts = ObjectCounts::default();
            for worker in &self.workers {
                if let Some(part) = worker.lock_for_control().domain(*id) {
                    counts += part.object_counts();
                }
            }
            let alive = domain.memories.iter().filter(|one| one.is_alive());
            for memory in alive.map(MemoryObserver::counts) {
                let (in_use, allocated, overwritten) = memory;
                counts += ObjectCounts {
                    sessions: 1,
                    in_use,
                    allocated,
                    overwritten,
                    ..ObjectCounts::default()
                };
            }
            (*id, counts)
        })
    }

    /// Returns the workers, so that others can drive them.
    pub fn workers(&self) -> &[Arc<SharedWorker>] {
        &self.workers
    }

    /// Leaves the workers to others from now on: [`Daemon::step`], [`Daemon::arm`] and [`Daemon::wake_fds`] do not
    /// concern them any more. Whoever steps a worker and finds that it [asks
    /// control](crate::worker::Worker::asks_control) calls [`SharedWorker::ask_control`], and then [`Daemon::step`].
    pub fn drive_workers_elsewhere(&mut self) {
        self.are_workers_elsewhere = true;
    }

    /// Does a bounded amount of work and returns whether there was any. If a domain's queues fail, that
    /// domain and its sessions are lost; the other domains go on.
    pub fn step(&mut self, cx: &mut ActorContext<'_>) -> bool {
        let mut was_busy = false;
        self.now = cx.now();
        if self.next_timeout().is_some_and(|at| at <= self.now) {
            self.give_up_requests();
            self.look_at_peers();
            if self.pools_until.is_some_and(|at| at <= self.now) {
                self.look_at_pools();
            }
        }
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(EVENTS_EVERY) {
            was_busy |= self.look_at_events();
        }
        let mut workers_until = None;
        for worker in (0..self.config.workers).map(WorkerId) {
            let shared = self.workers[worker.index()].clone();
            if self.are_workers_elsewhere {
                // The lock is not taken in vain: the worker's thread would give way for nothing.
                if shared.was_control_asked() {
                    self.pass_on(worker, shared.lock_for_control());
                }
                continue;
            }
            let mut locked = shared.lock_for_control();
            was_busy |= locked.step(cx);
            workers_until = workers_until.into_iter().chain(locked.deadline()).min();
            self.pass_on(worker, locked);
        }
        self.workers_until = workers_until;
        was_busy
    }

    /// Ends the sessions that have a part at a worker whose queues failed.
    fn lose_part(&mut self, at: DomainPart, error: &DomainError) {
        let tenant = self.tenant_of(at.domain);
        tracing::error!("the sessions of {tenant} are lost: {error}");
        let of_part = self.by_session.iter().filter(|((of, _), _)| *of == at);
        let sessions: Vec<SessionId> = of_part.map(|(_, session)| *session).collect();
        for session in sessions {
            let over = Reply::Over {
                why: Refusal::Memory,
            };
            self.send(session, over.encode(), None);
            self.outputs.push_back(Output::EndSession(session));
            self.part(session, Reset::Unreachable);
        }
        self.by_session.retain(|(of, _), _| *of != at);
    }

    /// Handles the asynchronous events of the device and returns whether there were any.
    fn look_at_events(&mut self) -> bool {
        let mut had_some = false;
        while let Some(event) = self.device.next_async_event() {
            had_some = true;
            match event {
                AsyncEvent::QpFatal(qpn) => {
                    for worker in &self.workers {
                        worker.lock_for_control().lose_qp(qpn);
                    }
                }
                // Nothing to do: the domain discards the remaining completions of a failed queue pair without
                // this event.
                AsyncEvent::QpLastWqe(_) => {}
                AsyncEvent::GidChanged(_)
                | AsyncEvent::PKeyChanged(_)
                | AsyncEvent::LidChanged(_)
                | AsyncEvent::SubnetManagerChanged(_)
                | AsyncEvent::PortDown(_) => {
                    let failure = self.device.port_failure();
                    let news = failure.filter(|failure| failure.number > self.port_failures);
                    if let Some(failure) = news {
                        self.port_failures = failure.number;
                        tracing::warn!("{}: {failure}", self.device.info().name);
                    }
                }
                event => tracing::warn!("asynchronous event of the device: {event:?}"),
            }
        }
        had_some
    }

    /// Returns whether there is no work until an event arrives.
    pub fn is_idle(&self) -> bool {
        let is_idle = |worker: &Arc<SharedWorker>| worker.lock_for_control().is_idle();
        self.are_workers_elsewhere || self.workers.iter().all(is_idle)
    }

    /// Returns whether another host's daemon has to react to something that was sent, so that an answer may come soon.
    pub fn awaits_peers(&self) -> bool {
        let awaits = |worker: &Arc<SharedWorker>| worker.lock_for_control().awaits_peers();
        !self.are_workers_elsewhere && self.workers.iter().any(awaits)
    }

    /// Arms all wake-ups before sleeping. From now on, new work makes one of [`Daemon::wake_fds`] readable or
    /// arrives with a packet. Call [`Daemon::step`] once more before sleeping, for work that arrived earlier.
    pub fn arm(&mut self) {
        if !self.are_workers_elsewhere {
            let workers = self.workers.iter();
            workers.for_each(|worker| worker.lock_for_control().arm());
        }
    }

    /// Disarms all wake-ups, after sleeping or if the caller does not sleep after all.
    pub fn disarm(&mut self) {
        if !self.are_workers_elsewhere {
            let workers = self.workers.iter();
            workers.for_each(|worker| worker.lock_for_control().disarm());
        }
    }

    /// Returns what holds the descriptors that become readable when the device has something to be polled.
    pub fn wake_fds(&self) -> Vec<Arc<dyn CompletionChannel>> {
        if self.are_workers_elsewhere {
            return Vec::new();
        }
        let workers = self.workers.iter();
        workers
            .flat_map(|worker| worker.lock_for_control().channels())
            .collect()
    }

    /// Returns how many parts of domains were ever made. Each new part adds one of [`Daemon::wake_fds`].
    pub fn domains_made(&self) -> u64 {
        let workers = self.workers.iter();
        workers
            .map(|worker| worker.lock_for_control().domains_made())
            .sum()
    }

    /// Registers a process that has connected to one of the daemon's sockets.
    ///
    /// A tenant may hold 2 × `applications_each` sockets, attached or not; more are closed at once.
    pub fn session_up(&mut self, tenant: impl Into<Tenant>) -> SessionId {
        let session = SessionId(self.number());
        let domain = self.domain_of(tenant.into());
        let of_tenant = self.clients.values().filter(|one| one.domain == domain);
        if of_tenant.count() >= 2 * self.config.applications_each as usize {
            self.outputs.push_back(Output::EndSession(session));
            return session;
        }
        let client = Client {
            domain,
            session: None,
            listeners: BTreeMap::new(),
            last_listener: 0,
            wishes: 0,
        };
        self.clients.insert(session, client);
        session
    }

    /// Returns the domain of a tenant. At the first socket that is the user's number, unless another tenant has it.
    fn domain_of(&mut self, tenant: Tenant) -> DomainId {
        if let Some(id) = self.tenants.get(&tenant) {
            return *id;
        }
        let mut id = DomainId(tenant.user);
        let is_own = tenant.socket == 0 && !self.tenant_by_domain.contains_key(&id);
        if !is_own {
            // There are fewer tenants than numbers.
            while self
                .tenant_by_domain
                .contains_key(&DomainId(self.next_domain))
            {
                self.next_domain = self.next_domain.wrapping_sub(1);
            }
            id = DomainId(self.next_domain);
        }
        self.tenants.insert(tenant, id);
        self.tenant_by_domain.insert(id, tenant);
        id
    }

    fn tenant_of(&self, id: DomainId) -> Tenant {
        let tenant = self.tenant_by_domain.get(&id).copied();
        tenant.unwrap_or_else(|| Tenant::from(id.0))
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Removes an application whose socket has closed. Its open connections are reset.
    pub fn session_gone(&mut self, session: SessionId) {
        self.part(session, Reset::ByPeer);
    }

    fn part(&mut self, session: SessionId, why: Reset) {
        let Some(client) = self.clients.remove(&session) else {
            return;
        };
        for port in client.listeners.values() {
            if let Some(gone) = self.ports.remove(port) {
                self.refuse_incoming(gone.requests, Refusal::Refused);
            }
        }
        self.unproven
            .retain(|_, connection| connection.request.client != session);
        for peer in self.peers.values_mut() {
            // The application is gone. No session has the number 0, so the answer finds no client and is
            // cancelled.
            peer.wishes.iter_mut().for_each(|(_, request_connection)| {
                if request_connection.client == session {
                    request_connection.client = SessionId(0);
                }
            });
        }
        for route in self.routes.values_mut() {
            if let PeerRoute::Dialing(_, wishes) = route {
                wishes.retain(|request_connection| request_connection.client != session);
            }
        }
        self.drop_pairs(session);
        if let Some(of) = client.session {
            self.detach_parts(client.domain, of, why);
        }
    }

    /// Removes all parts of a session.
    fn detach_parts(&mut self, domain: DomainId, session: ClientSession, why: Reset) {
        let parts = (0..).map(WorkerId).zip(session.parts);
        for (worker, number) in parts.filter_map(|(worker, part)| Some((worker, part?))) {
            let at = DomainPart { worker, domain };
            self.by_session.remove(&(at, number));
            self.in_part(at, |part| part.detach(number, why));
        }
    }
}

/// Returns the version that two daemons speak, if there is a common one: the lower of both latest versions.
/// `latest` is this daemon's; `version` and `oldest` are the other's.
fn agreed(latest: u16, version: u16, oldest: u16) -> Option<u16> {
    (oldest <= latest && version >= VERSION_OLDEST).then(|| version.min(latest))
}
