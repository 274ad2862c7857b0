//! The daemon of a host: its domains, the applications that are attached, the ports they listen at, and the other
//! hosts' daemons. It decides; what it wants done it says by [`Daemon::output`].

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks_client::socket_message::{Refusal, Reply};
use headworks_client::{Reset, Vqpn};
use headworks_runtime::ActorContext;
use headworks_verbs::{AsyncEvent, Buffer, Device, Instant};
use slab::Slab;

use crate::auth::{Nonce, Nonces, Secret};
use crate::control::{Between, Message, VERSION, VERSION_OLDEST};
use crate::domain::{self, Domain, DomainError, DomainId, LinkKey, ObjectCounts};
use crate::limits::Config;
use crate::snapshot::Snapshot;

mod applications;
mod end;
mod handshake;

/// An attached application, or one that is about to attach. No two ever have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Another host's daemon, or one stream to it. No two ever have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// A descriptor that an application has handed over, as whoever keeps it numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(pub u64);

/// What whoever polls the other end of such a descriptor is to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It is readable: a byte is to be written.
    Readable,
    /// It is writable: all that was written is to be read.
    Writable,
    /// It is hung up: the descriptor is to be closed, and is not spoken of again.
    HungUp,
}

/// What a daemon wants done.
pub enum Output {
    /// The daemon at this address is to be called: [`Daemon::peer_up`], or [`Daemon::dial_failed`].
    Dial(IpAddr),
    /// A message for another daemon.
    ToPeer {
        /// Daemon that the message goes to.
        peer: PeerId,
        /// The message, encoded.
        message: Vec<u8>,
    },
    /// The stream to another daemon is to be closed; nothing is heard of it any more.
    HangUp(PeerId),
    /// A packet for an application.
    ToSession {
        /// Session that the packet goes to.
        session: SessionId,
        /// The packet, encoded.
        packet: Vec<u8>,
        /// The memory that it names.
        slab: Option<Arc<dyn Buffer>>,
    },
    /// The socket of an application is to be closed; nothing is heard of it any more. Its descriptors, too.
    EndSession(SessionId),
    /// Something is to be seen at a descriptor: once the packets before were sent.
    Signal {
        /// Subscription that the signal belongs to.
        watch: WatchId,
        /// Change that is signalled.
        signal: Signal,
    },
}

/// What is known of an application.
#[derive(Debug)]
struct Client {
    domain: DomainId,
    /// Its session in the domain, once it is attached.
    number: Option<usize>,
    /// Ports by what the application calls them: no two ever have the same number.
    listeners: BTreeMap<u32, u16>,
    last_listener: u32,
    /// Connections that it wishes and that are not answered.
    wishes: u32,
}

/// A port that somebody listens at.
#[derive(Clone, Copy, Debug)]
struct Listener {
    client: SessionId,
    /// What the application calls it.
    number: u32,
    backlog: u32,
    /// Connections that were not taken.
    waiting: u32,
    /// Of those, connections that the application was told of.
    untaken: u32,
    watch: Option<WatchId>,
    /// Whether the descriptor is readable, as far as is known.
    is_readable: bool,
}

/// An application's wish for a connection that the other daemon has not answered.
#[derive(Clone, Copy, Debug)]
struct Wish {
    client: SessionId,
    /// The application's number.
    request: u32,
    local: SocketAddr,
    to: SocketAddr,
    watch: Option<WatchId>,
}

/// An end that the other daemon has not confirmed.
#[derive(Clone, Copy, Debug)]
struct Accepted {
    port: u16,
    client: SessionId,
    /// The listener.
    number: u32,
    /// The domain of the other end.
    from: DomainId,
}

/// Who a daemon is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The address that it serves, and that other daemons call.
    pub address: IpAddr,
    /// A number that is another each time a daemon starts.
    pub life: u64,
    /// What other daemons are to have as well. Without one, it and they serve loopback addresses.
    pub secret: Option<Secret>,
    /// What nobody can foresee, where there is a secret.
    pub entropy: [u8; 32],
    /// The latest version that it speaks: [`VERSION`], or an older one that is still understood.
    pub version: u16,
}

impl Identity {
    /// A daemon without a secret.
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

/// Another daemon.
#[derive(Debug)]
struct Peer {
    /// Once it has said, and proven if it is to, and its life.
    known: Option<(IpAddr, u64)>,
    /// What both speak, once it has said.
    version: u16,
    /// Since when there is this stream.
    since: Instant,
    /// What it has said and is to prove.
    claimed: Option<(IpAddr, u64)>,
    /// The nonces of this side and, once it has said, of the other.
    nonce: Nonce,
    other: Option<Nonce>,
    /// The address that this side called.
    called: Option<IpAddr>,
    wishes: Slab<Wish>,
    accepted: BTreeMap<(DomainId, Vqpn), Accepted>,
}

/// How far a call is.
#[derive(Debug)]
enum Route {
    /// It is made, for the time of this number; these wait.
    Dialing(u32, Vec<Wish>),
    /// There is a stream.
    Up(PeerId),
}

/// The daemon of a host.
///
/// Applications: [`session_up`](Self::session_up), [`session_packet`](Self::session_packet),
/// [`session_gone`](Self::session_gone). Other daemons: [`peer_up`](Self::peer_up),
/// [`peer_message`](Self::peer_message), [`peer_gone`](Self::peer_gone), [`dial_failed`](Self::dial_failed). Ending:
/// [`drain`](Self::drain), [`stop`](Self::stop). Driving: [`step`](Self::step), and after any of these
/// [`output`](Self::output) until there is none.
pub struct Daemon {
    config: Config,
    identity: Identity,
    nonces: Nonces,
    // Before the device that they are made from.
    domains: BTreeMap<DomainId, Domain>,
    device: Arc<dyn Device>,
    clients: BTreeMap<SessionId, Client>,
    /// Clients by their session in a domain.
    by_session: BTreeMap<(DomainId, usize), SessionId>,
    ports: BTreeMap<u16, Listener>,
    peers: BTreeMap<PeerId, Peer>,
    routes: BTreeMap<IpAddr, Route>,
    next_port: u16,
    /// Nothing new is taken any more.
    is_draining: bool,
    /// Domains that there have been.
    domains_made: u64,
    /// The time of the last step.
    now: Instant,
    steps: u32,
    /// The last number that a session or a peer was given.
    numbers: u64,
    outputs: VecDeque<Output>,
}

/// Steps after which it is looked whether the device says something of itself.
const EVENTS_EVERY: u32 = 64;
/// The first of the ports that are given to whoever names none.
const EPHEMERAL: u16 = 32_768;

impl Daemon {
    /// A host's daemon, on one device.
    pub fn new(identity: Identity, device: Arc<dyn Device>, config: Config) -> Self {
        Self {
            config,
            nonces: Nonces::new(identity.entropy),
            identity,
            device,
            domains: BTreeMap::new(),
            clients: BTreeMap::new(),
            by_session: BTreeMap::new(),
            ports: BTreeMap::new(),
            peers: BTreeMap::new(),
            routes: BTreeMap::new(),
            next_port: EPHEMERAL,
            is_draining: false,
            domains_made: 0,
            now: Instant::ZERO,
            steps: 0,
            numbers: 0,
            outputs: VecDeque::new(),
        }
    }

    /// The address it serves.
    pub fn address(&self) -> IpAddr {
        self.identity.address
    }

    /// What is to be done next.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// What there is, for operators.
    pub fn snapshot(&self) -> Snapshot {
        let host_of = |peer| Some(self.peers.get(&PeerId(peer))?.known?.0);
        let mut peers: Vec<IpAddr> = self
            .peers
            .keys()
            .filter_map(|peer| host_of(peer.0))
            .collect();
        peers.dedup();
        let domains = self.domains.iter().map(|(id, domain)| {
            let application_of = |number| {
                let session = self.by_session.get(&(*id, number))?;
                Some((*session, self.clients.get(session)?.listeners.len()))
            };
            domain.look(host_of, application_of)
        });
        Snapshot {
            address: self.address(),
            is_draining: self.is_draining,
            domains: domains.collect(),
            peers,
        }
    }

    /// What there is in each domain.
    pub fn object_counts(&self) -> impl Iterator<Item = (DomainId, ObjectCounts)> {
        self.domains
            .iter()
            .map(|(id, one)| (*id, one.object_counts()))
    }

    /// Does a bounded amount of work; says whether there was any. A domain whose queues have failed is lost with
    /// its sessions, and the others go on.
    pub fn step(&mut self, cx: &mut ActorContext<'_>) -> bool {
        let mut was_busy = false;
        self.now = cx.now();
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(EVENTS_EVERY) {
            was_busy |= self.look_at_events();
        }
        let mut next = self.domains.keys().next().copied();
        while let Some(id) = next {
            let stepped = self.domains.get_mut(&id).map(|domain| domain.step(cx));
            match stepped {
                Some(Err(error)) => self.lose_domain(id, &error),
                stepped => was_busy |= matches!(stepped, Some(Ok(true))),
            }
            self.pass_on(id);
            let behind = (Bound::Excluded(id), Bound::Unbounded);
            next = self.domains.range(behind).next().map(|(id, _)| *id);
        }
        was_busy
    }

    fn lose_domain(&mut self, id: DomainId, error: &DomainError) {
        tracing::error!("the sessions of user {} are lost: {error}", id.0);
        self.domains.remove(&id);
        let of_domain = self.by_session.iter().filter(|((of, _), _)| *of == id);
        let sessions: Vec<SessionId> = of_domain.map(|(_, session)| *session).collect();
        for session in sessions {
            let over = Reply::Over {
                why: Refusal::Memory,
            };
            self.send(session, over.encode(), None);
            self.outputs.push_back(Output::EndSession(session));
            self.part(session, Reset::Unreachable);
        }
        self.by_session.retain(|(of, _), _| *of != id);
    }

    /// What the device says of itself.
    fn look_at_events(&mut self) -> bool {
        let mut had_some = false;
        while let Some(event) = self.device.next_async_event() {
            had_some = true;
            match event {
                AsyncEvent::QpFatal(qpn) => {
                    self.domains.values_mut().for_each(|one| one.lost(qpn));
                }
                // One that has failed takes no more of the shared receives: its end is seen to anyhow.
                AsyncEvent::QpLastWqe(_) => {}
                event => tracing::warn!("the device says: {event:?}"),
            }
        }
        had_some
    }

    /// Whether nothing is to be done until something comes.
    pub fn is_idle(&self) -> bool {
        self.domains.values().all(Domain::is_idle)
    }

    /// Before sleeping: from now on whatever is to be done makes one of [`Daemon::wake_fds`] readable, or wakes by a
    /// packet. Step once more afterwards, for what came before.
    pub fn arm(&mut self) {
        self.domains.values_mut().for_each(Domain::arm);
    }

    /// After sleeping, or instead.
    pub fn disarm(&mut self) {
        self.domains.values_mut().for_each(Domain::disarm);
    }

    /// What is readable when a device has something to be polled.
    pub fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        let of_domains = self.domains.values().map(Domain::wake_fd);
        of_domains.chain([self.device.async_fd()]).collect()
    }

    /// How many domains there have been: with each comes another of [`Daemon::wake_fds`].
    pub fn domains_made(&self) -> u64 {
        self.domains_made
    }

    /// Passes on what a domain wants done.
    fn pass_on(&mut self, id: DomainId) {
        let Some(domain) = self.domains.get_mut(&id) else {
            return;
        };
        let mut slabs = Vec::new();
        while let Some(output) = domain.output() {
            let between = |link: LinkKey| Between {
                from: id,
                to: link.domain,
            };
            let (link, message) = match output {
                domain::Output::Slabs { session } => {
                    slabs.extend(self.by_session.get(&(id, session)));
                    continue;
                }
                domain::Output::Signal { watch, signal } => {
                    self.outputs.push_back(Output::Signal { watch, signal });
                    continue;
                }
                domain::Output::Wake { session, handle } => {
                    if let Some(session) = self.by_session.get(&(id, session)) {
                        self.outputs.push_back(Output::ToSession {
                            session: *session,
                            packet: Reply::Rang { handle }.encode(),
                            slab: None,
                        });
                    }
                    continue;
                }
                domain::Output::LinkWanted { link, known } => {
                    let between = between(link);
                    (link, Message::LinkWanted { between, known })
                }
                domain::Output::BringUp {
                    link,
                    instance,
                    which,
                    bytes,
                } => {
                    let between = between(link);
                    let message = Message::BringUp {
                        between,
                        instance,
                        which,
                        bytes,
                    };
                    (link, message)
                }
                domain::Output::LinkDown { link, instance } => {
                    let between = between(link);
                    (link, Message::LinkDown { between, instance })
                }
            };
            let peer = PeerId(link.peer);
            if self.peers.contains_key(&peer) {
                self.outputs.push_back(Output::ToPeer {
                    peer,
                    message: message.encode(),
                });
            }
        }
        slabs.into_iter().for_each(|session| self.flush(session));
    }

    fn domain(&mut self, id: DomainId) -> Result<&mut Domain, Refusal> {
        if !self.domains.contains_key(&id) {
            let made = Domain::new(id, &self.device, &self.config);
            let made = made.map_err(|error| {
                tracing::warn!("no domain for user {}: {error}", id.0);
                Refusal::Memory
            })?;
            self.domains.insert(id, made);
            self.domains_made += 1;
        }
        self.domains.get_mut(&id).ok_or(Refusal::Memory)
    }

    /// A process of this user has connected to the daemon's socket.
    ///
    /// Beyond as many again as a user may have, of those that may not have said anything yet, one is hung up at once.
    pub fn session_up(&mut self, user: u32) -> SessionId {
        let session = SessionId(self.number());
        let of_user = self.clients.values().filter(|one| one.domain.0 == user);
        if of_user.count() >= 2 * self.config.applications_each as usize {
            self.outputs.push_back(Output::EndSession(session));
            return session;
        }
        let client = Client {
            domain: DomainId(user),
            number: None,
            listeners: BTreeMap::new(),
            last_listener: 0,
            wishes: 0,
        };
        self.clients.insert(session, client);
        session
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// An application has gone.
    pub fn session_gone(&mut self, session: SessionId) {
        self.part(session, Reset::ByPeer);
    }

    fn part(&mut self, session: SessionId, why: Reset) {
        let Some(client) = self.clients.remove(&session) else {
            return;
        };
        for port in client.listeners.values() {
            self.ports.remove(port);
        }
        for peer in self.peers.values_mut() {
            // Who wished it is gone; the answer finds nobody, and is cancelled.
            peer.wishes.iter_mut().for_each(|(_, wish)| {
                if wish.client == session {
                    wish.client = SessionId(0);
                }
            });
        }
        for route in self.routes.values_mut() {
            if let Route::Dialing(_, wishes) = route {
                wishes.retain(|wish| wish.client != session);
            }
        }
        let id = client.domain;
        if let (Some(number), Some(domain)) = (client.number, self.domains.get_mut(&id)) {
            self.by_session.remove(&(id, number));
            domain.detach(number, why);
            self.pass_on(id);
        }
    }
}

/// Which version two daemons speak, of the latest that this one does and what the other does.
fn agreed(latest: u16, version: u16, oldest: u16) -> Option<u16> {
    (oldest <= latest && version >= VERSION_OLDEST).then(|| version.min(latest))
}
