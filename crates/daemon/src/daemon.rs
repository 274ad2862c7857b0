//! The daemon of a host: its domains, the applications that are attached, the ports they listen at, and the other
//! hosts' daemons. It decides; what it wants done it says by [`Daemon::output`].

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks_client::message::VERSION as CONTRACT;
use headworks_client::message::{Refusal, Reply, Request, VERSION_OLDEST as CONTRACT_OLDEST};
use headworks_client::{Reset, Vqpn};
use headworks_stage::Cx;
use headworks_verbs::{AsyncEvent, Buffer, Device};
use slab::Slab;

use crate::config::Config;
use crate::control::{Between, Message, VERSION, VERSION_OLDEST};
use crate::domain::{self, Census, Domain, DomainError, DomainId, LinkKey};

mod meet;

/// An attached application, or one that is about to attach. No two ever have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Another host's daemon, or one stream to it. No two ever have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// What a daemon wants done.
pub enum Output {
    /// The daemon at this address is to be called: [`Daemon::peer_up`], or [`Daemon::dial_failed`].
    Dial(IpAddr),
    /// A message for another daemon.
    ToPeer {
        /// Which.
        peer: PeerId,
        /// What.
        message: Vec<u8>,
    },
    /// The stream to another daemon is to be closed; nothing is heard of it any more.
    HangUp(PeerId),
    /// A packet for an application.
    ToSession {
        /// Which.
        session: SessionId,
        /// What.
        packet: Vec<u8>,
        /// The memory that it names.
        slab: Option<Arc<dyn Buffer>>,
    },
    /// The socket of an application is to be closed; nothing is heard of it any more.
    EndSession(SessionId),
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
}

/// An application's wish for a connection that the other daemon has not answered.
#[derive(Clone, Copy, Debug)]
struct Wish {
    client: SessionId,
    /// The application's number.
    request: u32,
    local: SocketAddr,
    to: SocketAddr,
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

/// Another daemon.
#[derive(Debug)]
struct Peer {
    /// Once it has said, and its life.
    known: Option<(IpAddr, u64)>,
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
/// [`peer_message`](Self::peer_message), [`peer_gone`](Self::peer_gone), [`dial_failed`](Self::dial_failed). Driving:
/// [`step`](Self::step), and after any of these [`output`](Self::output) until there is none.
pub struct Daemon {
    config: Config,
    address: IpAddr,
    life: u64,
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
    /// The daemon of the host at `address`, on one device; `life` is another number each time.
    pub fn new(address: IpAddr, life: u64, device: Arc<dyn Device>, config: Config) -> Self {
        Self {
            config,
            address,
            life,
            device,
            domains: BTreeMap::new(),
            clients: BTreeMap::new(),
            by_session: BTreeMap::new(),
            ports: BTreeMap::new(),
            peers: BTreeMap::new(),
            routes: BTreeMap::new(),
            next_port: EPHEMERAL,
            steps: 0,
            numbers: 0,
            outputs: VecDeque::new(),
        }
    }

    /// The address it serves.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// What is to be done next.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// What there is in each domain.
    pub fn census(&self) -> impl Iterator<Item = (DomainId, Census)> {
        self.domains.iter().map(|(id, one)| (*id, one.census()))
    }

    /// Does a bounded amount of work; says whether there was any. A domain whose queues have failed is lost with
    /// its sessions, and the others go on.
    pub fn step(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut was_busy = false;
        let ids: Vec<DomainId> = self.domains.keys().copied().collect();
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(EVENTS_EVERY) {
            was_busy |= self.look_at_events();
        }
        for id in ids {
            let stepped = self.domains.get_mut(&id).map(|domain| domain.step(cx));
            match stepped {
                Some(Err(error)) => self.lose_domain(id, &error),
                stepped => was_busy |= matches!(stepped, Some(Ok(true))),
            }
            self.drain(id);
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
        self.domains.values().for_each(Domain::arm);
    }

    /// After sleeping, or instead.
    pub fn disarm(&mut self) {
        self.domains.values().for_each(Domain::disarm);
    }

    /// What is readable when a device has something to be polled.
    pub fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        let of_domains = self.domains.values().map(Domain::wake_fd);
        of_domains.chain([self.device.async_fd()]).collect()
    }

    /// How many domains there are: with each comes another of [`Daemon::wake_fds`].
    pub fn domains(&self) -> usize {
        self.domains.len()
    }

    /// Passes on what a domain wants done.
    fn drain(&mut self, id: DomainId) {
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
        }
        self.domains.get_mut(&id).ok_or(Refusal::Memory)
    }

    /// A process of this user has connected to the daemon's socket.
    pub fn session_up(&mut self, user: u32) -> SessionId {
        let session = SessionId(self.number());
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
            self.drain(id);
        }
    }

    /// A packet of an application's.
    pub fn session_packet(&mut self, session: SessionId, packet: &[u8]) {
        let Some(client) = self.clients.get(&session) else {
            return;
        };
        let number = client.number;
        let done = match (Request::decode(packet), number) {
            (Ok(Request::Attach { .. }), Some(_)) => Err(Refusal::Misuse),
            (
                Ok(Request::Attach {
                    version,
                    oldest,
                    name,
                }),
                None,
            ) => self.attach(session, version, oldest, name),
            (Ok(request), Some(number)) => self.serve(session, number, request),
            (Ok(_), None) | (Err(_), _) => Err(Refusal::Misuse),
        };
        if let Err(why) = done {
            tracing::warn!("an application is turned away: {why}");
            let over = Reply::Over { why }.encode();
            self.flush(session);
            self.send(session, over, None);
            self.outputs.push_back(Output::EndSession(session));
            self.part(session, Reset::Misuse);
        }
        self.flush(session);
    }

    fn attach(
        &mut self,
        session: SessionId,
        version: u16,
        oldest: u16,
        name: String,
    ) -> Result<(), Refusal> {
        if oldest > CONTRACT || version < CONTRACT_OLDEST {
            return Err(Refusal::Version);
        }
        let Some(id) = self.clients.get(&session).map(|client| client.domain) else {
            return Ok(());
        };
        let agreed = version.min(CONTRACT);
        let number = self.domain(id)?.attach(name, agreed)?;
        if let Some(client) = self.clients.get_mut(&session) {
            client.number = Some(number);
        }
        self.by_session.insert((id, number), session);
        Ok(())
    }

    /// An application's request. An error ends its session.
    fn serve(
        &mut self,
        session: SessionId,
        number: usize,
        request: Request,
    ) -> Result<(), Refusal> {
        let Some(client) = self.clients.get_mut(&session) else {
            return Ok(());
        };
        let id = client.domain;
        match request {
            Request::Attach { .. } => return Err(Refusal::Misuse),
            Request::Wake => {}
            Request::Connect { request, to } => self.wish(session, request, to),
            Request::Listen {
                request,
                port,
                backlog,
            } => {
                let reply = match self.listen(session, port, backlog) {
                    Ok((listener, port)) => Reply::Listening {
                        request,
                        listener,
                        port,
                    },
                    Err(why) => Reply::Refused { request, why },
                };
                self.tell(session, reply);
            }
            Request::Unlisten { listener } => {
                let port = client.listeners.remove(&listener);
                let port = port.ok_or(Refusal::Misuse)?;
                self.ports.remove(&port);
            }
            Request::Took { listener } => {
                let port = client.listeners.get(&listener);
                let listener = port.and_then(|port| self.ports.get_mut(port));
                // It may have been given up meanwhile.
                if let Some(listener) = listener {
                    listener.waiting = listener.waiting.saturating_sub(1);
                }
            }
            Request::Close { handle } | Request::Abort { handle } => {
                let gives_up = matches!(request, Request::Abort { .. });
                let domain = self.domain(id)?;
                let had = domain.close(number, handle, gives_up);
                self.drain(id);
                if !had {
                    return Err(Refusal::Misuse);
                }
            }
            Request::Alloc { request, len } => {
                let memory = self.domain(id)?.memory(number).ok_or(Refusal::Misuse)?;
                let reply = match memory.ask(len) {
                    Ok(extent) => Reply::Allocated { request, extent },
                    Err(why) => Reply::Refused { request, why },
                };
                self.tell(session, reply);
            }
            Request::Free { extent } => {
                let memory = self.domain(id)?.memory(number).ok_or(Refusal::Misuse)?;
                if !memory.returned(extent) {
                    return Err(Refusal::Misuse);
                }
            }
        }
        Ok(())
    }

    fn listen(
        &mut self,
        session: SessionId,
        port: u16,
        backlog: u32,
    ) -> Result<(u32, u16), Refusal> {
        let port = match port {
            0 => self.free_port()?,
            port if self.ports.contains_key(&port) => return Err(Refusal::PortTaken),
            port => port,
        };
        let client = self.clients.get_mut(&session).ok_or(Refusal::Misuse)?;
        let listeners = &mut client.listeners;
        if listeners.len() >= self.config.listeners_each as usize {
            return Err(Refusal::Limit);
        }
        client.last_listener = client.last_listener.wrapping_add(1);
        let number = client.last_listener;
        listeners.insert(number, port);
        let listener = Listener {
            client: session,
            number,
            backlog: backlog.max(1),
            waiting: 0,
        };
        self.ports.insert(port, listener);
        Ok((number, port))
    }

    fn free_port(&mut self) -> Result<u16, Refusal> {
        for _ in EPHEMERAL..=u16::MAX {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(EPHEMERAL);
            if !self.ports.contains_key(&port) {
                return Ok(port);
            }
        }
        Err(Refusal::Limit)
    }

    /// Has an application told something, behind what it is to hear before.
    fn tell(&mut self, session: SessionId, reply: Reply) {
        let Some(client) = self.clients.get(&session) else {
            return;
        };
        if let (Some(number), Some(domain)) = (client.number, self.domains.get_mut(&client.domain))
        {
            domain.tell(number, reply);
        }
        self.flush(session);
    }

    /// Says to an application what it is to be told. Slabs before what names them.
    fn flush(&mut self, session: SessionId) {
        let Some(client) = self.clients.get(&session) else {
            return;
        };
        let (id, Some(number)) = (client.domain, client.number) else {
            return;
        };
        let Some(domain) = self.domains.get_mut(&id) else {
            return;
        };
        let slabs = domain.new_slabs(number);
        let mut replies = Vec::new();
        while let Some(reply) = domain.reply(number) {
            replies.push(reply);
        }
        for (number, slab) in slabs {
            let packet = Reply::Slab { number }.encode();
            self.send(session, packet, Some(slab));
        }
        for reply in replies {
            self.send(session, reply.encode(), None);
        }
    }

    fn send(&mut self, session: SessionId, packet: Vec<u8>, slab: Option<Arc<dyn Buffer>>) {
        self.outputs.push_back(Output::ToSession {
            session,
            packet,
            slab,
        });
    }
}

/// Which version two daemons speak, of what each does.
fn agreed(version: u16, oldest: u16) -> Option<u16> {
    (oldest <= VERSION && version >= VERSION_OLDEST).then(|| version.min(VERSION))
}
