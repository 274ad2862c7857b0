//! Requests of applications.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use headworks_client::Reset;
use headworks_client::socket_message::VERSION as CONTRACT;
use headworks_client::socket_message::{
    FEATURE_DIRECT, Refusal, Reply, Request, VERSION_OLDEST as CONTRACT_OLDEST,
};
use headworks_verbs::Buffer;
use slab::Slab;

use super::{
    Client, ClientSession, Daemon, EPHEMERAL, Listener, Output, SessionId, Signal, WatchId,
};
use crate::ids::{DomainPart, WorkerId};
use crate::session_memory::{MemoryObserver, SessionMemory};
use crate::snapshot::Traffic;

/// Number of ports that the applications of a tenant may listen at together.
const PORTS_EACH: usize = 8192;

impl Daemon {
    /// Handles a packet of an application, with the descriptor that came with it.
    pub fn session_packet(
        &mut self,
        session: SessionId,
        packet: &[u8],
        mut watch: Option<WatchId>,
    ) {
        let Some(client) = self.clients.get(&session) else {
            return;
        };
        let is_attached = client.session.is_some();
        let request = Request::decode(packet);
        // Only an application that attaches has no name here yet.
        let named = match &request {
            Ok(Request::Attach { name, .. }) => Some(name.clone()),
            _ => None,
        };
        let done = match (request, is_attached) {
            (Ok(Request::Attach { .. }), true) => Err(Refusal::Misuse),
            (
                Ok(Request::Attach {
                    version,
                    oldest,
                    name,
                }),
                false,
            ) => self.attach(session, version, oldest, name),
            (Ok(request), true) => self.serve(session, request, &mut watch),
            (Ok(_), false) | (Err(_), _) => Err(Refusal::Misuse),
        };
        if let Err(why) = done {
            let name = named
                .as_deref()
                .or_else(|| self.name_of(session))
                .unwrap_or("");
            report_refusal(name, why);
            self.session_unwanted(session, why);
        }
        // Closes a descriptor that the request did not use.
        self.hang_up(watch);
        self.flush(session);
    }

    /// Ends the session of an application that misbehaved: tells it why and resets its connections.
    pub fn session_unwanted(&mut self, session: SessionId, why: Refusal) {
        if !self.clients.contains_key(&session) {
            return;
        }
        let over = Reply::Over { why }.encode();
        self.flush(session);
        self.send(session, over, None);
        self.outputs.push_back(Output::EndSession(session));
        self.part(session, Reset::Misuse);
    }

    /// Returns the name of an attached application.
    pub(super) fn name_of(&self, session: SessionId) -> Option<&str> {
        let client = self.clients.get(&session)?;
        Some(&client.session.as_ref()?.name)
    }

    pub(super) fn attach(
        &mut self,
        session: SessionId,
        version: u16,
        oldest: u16,
        name: String,
    ) -> Result<(), Refusal> {
        if oldest > CONTRACT || version < CONTRACT_OLDEST {
            return Err(Refusal::Version);
        }
        if self.is_draining {
            return Err(Refusal::Stopping);
        }
        let Some(id) = self.clients.get(&session).map(|client| client.domain) else {
            return Ok(());
        };
        let agreed = version.min(CONTRACT);
        let worker = WorkerId::FIRST;
        let at = DomainPart { worker, domain: id };
        self.make_part(at)?;
        let tenant = self.tenant_of(id);
        let most = self.config.applications_each;
        let domain = self.domains.get_mut(&id).ok_or(Refusal::Memory)?;
        domain.memories.retain(MemoryObserver::is_alive);
        if domain.memories.len() >= most as usize {
            tracing::warn!("{tenant} has {most} applications: raise applications_each for more");
            return Err(Refusal::Limit);
        }
        let memory = SessionMemory::new(&self.device, &domain.pd, &self.config);
        domain.memories.push(memory.observer());
        if let Some(client) = self.clients.get_mut(&session) {
            client.session = Some(ClientSession {
                name,
                memory,
                handles: Slab::new(),
                parts: vec![None; self.workers.len()],
                takes_direct: false,
                last_pair: 0,
                is_pair_limit_logged: false,
                opened_direct: 0,
                ended_pairs: Traffic::default(),
            });
        }
        let made = self.session_part(session, worker).and_then(|number| {
            let doorbell = self.in_part(at, |part| part.doorbell(number)).flatten();
            doorbell.ok_or(Refusal::Memory)
        });
        let doorbell = match made {
            Ok(doorbell) => doorbell,
            Err(why) => {
                // The application is not attached.
                let client = self.clients.get_mut(&session);
                if let Some(of) = client.and_then(|client| client.session.take()) {
                    self.detach_parts(id, of, Reset::Unreachable);
                }
                return Err(why);
            }
        };
        let address = self.identity.address;
        let attached = Reply::Attached {
            version: agreed,
            doorbell,
            handles: self.config.connections_each,
            address,
        };
        self.tell(session, attached);
        Ok(())
    }

    /// Serves a request of an attached application. An error ends its session.
    fn serve(
        &mut self,
        session: SessionId,
        request: Request,
        watch: &mut Option<WatchId>,
    ) -> Result<(), Refusal> {
        let Some(client) = self.clients.get_mut(&session) else {
            return Ok(());
        };
        match request {
            Request::Attach { .. } => return Err(Refusal::Misuse),
            Request::Wake => self.wake_workers(session),
            Request::Features { bits } => {
                let of = client.session.as_mut().ok_or(Refusal::Misuse)?;
                of.takes_direct = bits & FEATURE_DIRECT != 0;
            }
            Request::Connect {
                request,
                is_watched: true,
                ..
            }
            | Request::Watch { request, .. }
            | Request::WatchListener { request, .. }
                if watch.is_none() =>
            {
                tracing::warn!(
                    "a request came without its descriptor; raise the limit of open files of the daemon"
                );
                let why = Refusal::Limit;
                self.tell(session, Reply::Refused { request, why });
            }
            Request::Connect { request, to, .. } => {
                self.request_connection(session, request, to, watch.take())
            }
            Request::Watch { request, handle } => {
                let own = watch.take();
                let had = self.watch(session, handle, own);
                if !had {
                    self.hang_up(own);
                    return Err(Refusal::Misuse);
                }
                self.tell(session, Reply::Watched { request });
            }
            Request::WatchListener { request, listener } => {
                let listener = listener_of(client, &mut self.ports, listener)?;
                let before = std::mem::replace(&mut listener.watch, watch.take());
                listener.is_readable = false;
                show(listener, &mut self.outputs);
                self.hang_up(before);
                self.tell(session, Reply::Watched { request });
            }
            Request::Arm { listener } => {
                let listener = listener_of(client, &mut self.ports, listener)?;
                listener.is_readable = false;
                show(listener, &mut self.outputs);
            }
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
                if let Some(gone) = self.ports.remove(&port) {
                    self.hang_up(gone.watch);
                    self.refuse_incoming(gone.requests, Refusal::Refused);
                }
            }
            Request::Took { listener } => {
                // The application may have closed the listener meanwhile.
                let port = client.listeners.get(&listener).copied();
                if let Ok(listener) = listener_of(client, &mut self.ports, listener) {
                    listener.waiting = listener.waiting.saturating_sub(1);
                    listener.untaken = listener.untaken.saturating_sub(1);
                }
                port.into_iter().for_each(|port| self.answer_waiting(port));
            }
            Request::Close { handle } | Request::Abort { handle } => {
                let gives_up = matches!(request, Request::Abort { .. });
                if !self.close(session, handle, gives_up) {
                    return Err(Refusal::Misuse);
                }
            }
            Request::Export {
                request,
                handle,
                extent,
                rights,
            } => {
                let place = self.place_of(session, handle);
                let (at, number) = place.ok_or(Refusal::Misuse)?;
                let exported = self
                    .in_part(at, |part| part.export(number, handle, extent, rights))
                    .unwrap_or(Err(Refusal::Misuse));
                let reply = match exported {
                    Ok(export_id) => Reply::Exported { request, export_id },
                    Err(Refusal::Misuse) => return Err(Refusal::Misuse),
                    Err(why) => Reply::Refused { request, why },
                };
                self.tell(session, reply);
            }
            Request::Revoke {
                request,
                handle,
                export_id,
            } => {
                let place = self.place_of(session, handle);
                let had = place.and_then(|(at, number)| {
                    self.in_part(at, |part| part.revoke(number, handle, export_id, request))
                });
                if had != Some(true) {
                    // The connection is gone, and with it its exports.
                    self.tell(session, Reply::Revoked { request });
                }
            }
            Request::Alloc { request, len } => {
                let of = client.session.as_mut().ok_or(Refusal::Misuse)?;
                let reply = match of.memory.ask(len) {
                    Ok(extent) => Reply::Allocated { request, extent },
                    Err(why) => {
                        of.memory.report_refusal(&of.name, why);
                        Reply::Refused { request, why }
                    }
                };
                // Every worker knows the slab before the application does.
                self.refresh_parts(session);
                self.tell(session, reply);
            }
            Request::Free { extent } => {
                let of = client.session.as_mut().ok_or(Refusal::Misuse)?;
                if !of.memory.returned(extent) {
                    return Err(Refusal::Misuse);
                }
            }
        }
        Ok(())
    }

    /// Closes or aborts a connection for its application. Returns whether the application had it open.
    pub(super) fn close(&mut self, client: SessionId, handle: u32, gives_up: bool) -> bool {
        let had = self
            .place_of(client, handle)
            .and_then(|(at, number)| self.in_part(at, |part| part.close(number, handle, gives_up)));
        had.unwrap_or(false)
    }

    /// Sets the descriptor that signals events of a connection. Returns whether the application has the connection
    /// open.
    pub(super) fn watch(&mut self, client: SessionId, handle: u32, watch: Option<WatchId>) -> bool {
        let had = self
            .place_of(client, handle)
            .and_then(|(at, number)| self.in_part(at, |part| part.watch(number, handle, watch)));
        had.unwrap_or(false)
    }

    /// The parts of an attached application's session.
    fn parts_of(&self, client: SessionId) -> Vec<(DomainPart, usize)> {
        let client = self.clients.get(&client);
        let session = client.and_then(|client| Some((client.domain, client.session.as_ref()?)));
        let parts = session.into_iter().flat_map(|(domain, session)| {
            let parts = (0..).map(WorkerId).zip(&session.parts);
            parts.filter_map(move |(worker, number)| {
                Some((DomainPart { worker, domain }, (*number)?))
            })
        });
        parts.collect()
    }

    /// Adds new slabs of a session to the lists of all its parts.
    fn refresh_parts(&mut self, client: SessionId) {
        for (at, number) in self.parts_of(client) {
            self.in_part(at, |part| part.refresh(number));
        }
    }

    /// Wakes the workers of an application that found one of them asleep.
    fn wake_workers(&mut self, client: SessionId) {
        if self.are_workers_elsewhere {
            for (at, _) in self.parts_of(client) {
                self.in_part(at, |_| ());
            }
        }
    }

    /// Requests that a descriptor be closed, since nothing needs it any more.
    pub(super) fn hang_up(&mut self, watch: Option<WatchId>) {
        let signal = Signal::HungUp;
        let output = watch.map(|watch| Output::Signal { watch, signal });
        self.outputs.extend(output);
    }

    fn listen(
        &mut self,
        session: SessionId,
        port: u16,
        backlog: u32,
    ) -> Result<(u32, u16), Refusal> {
        if self.is_draining {
            return Err(Refusal::Stopping);
        }
        let port = match port {
            0 => self.free_port()?,
            port if self.ports.contains_key(&port) => return Err(Refusal::PortTaken),
            port => port,
        };
        let most = self.config.listeners_each;
        let of = self.clients.get(&session).ok_or(Refusal::Misuse)?;
        if of.listeners.len() >= most as usize {
            let name = self.name_of(session).unwrap_or("");
            tracing::warn!(
                "application {name:?} listens at {most} ports: raise listeners_each for more"
            );
            return Err(Refusal::Limit);
        }
        let domain = of.domain;
        let of_tenant = self.clients.values().filter(|one| one.domain == domain);
        let ports: usize = of_tenant.map(|one| one.listeners.len()).sum();
        if ports >= PORTS_EACH {
            let tenant = self.tenant_of(domain);
            tracing::warn!("{tenant} listens at {ports} ports, which is the limit");
            return Err(Refusal::Limit);
        }
        let client = self.clients.get_mut(&session).ok_or(Refusal::Misuse)?;
        let listeners = &mut client.listeners;
        client.last_listener = client.last_listener.wrapping_add(1);
        let number = client.last_listener;
        listeners.insert(number, port);
        let listener = Listener {
            client: session,
            number,
            backlog: backlog.max(1),
            waiting: 0,
            untaken: 0,
            requests: VecDeque::new(),
            watch: None,
            is_readable: false,
        };
        self.ports.insert(port, listener);
        Ok((number, port))
    }

    /// Returns an ephemeral port that nobody listens at.
    fn free_port(&mut self) -> Result<u16, Refusal> {
        let mut ports = EPHEMERAL..=u16::MAX;
        let free = ports.find_map(|_| {
            let port = self.port_of_connection();
            (!self.ports.contains_key(&port)).then_some(port)
        });
        free.ok_or(Refusal::Limit)
    }

    /// Returns an ephemeral port for the connecting end of a connection. Connections do not take ports from listeners:
    /// no end is found by this port.
    pub(super) fn port_of_connection(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = port.checked_add(1).unwrap_or(EPHEMERAL);
        port
    }

    /// Sends a reply to an attached application. Slabs go first, since replies name them.
    pub(super) fn tell(&mut self, session: SessionId, reply: Reply) {
        self.flush(session);
        let client = self.clients.get(&session);
        if client.is_some_and(|client| client.session.is_some()) {
            self.send(session, reply.encode(), None);
        }
    }

    /// Sends the slabs that an application has not been handed yet.
    pub(super) fn flush(&mut self, session: SessionId) {
        let client = self.clients.get_mut(&session);
        let Some(of) = client.and_then(|client| client.session.as_mut()) else {
            return;
        };
        if !of.memory.has_new_slabs() {
            return;
        }
        for slab in of.memory.new_slabs() {
            let reply = Reply::Slab {
                number: slab.number,
                is_read_only: slab.is_read_only,
            };
            self.send(session, reply.encode(), Some(slab.buffer));
        }
    }

    pub(super) fn send(
        &mut self,
        session: SessionId,
        packet: Vec<u8>,
        slab: Option<Arc<dyn Buffer>>,
    ) {
        self.outputs.push_back(Output::ToSession {
            session,
            packet,
            slab,
        });
    }
}

/// Returns the listener that the application knows by this number.
fn listener_of<'p>(
    client: &Client,
    ports: &'p mut BTreeMap<u16, Listener>,
    number: u32,
) -> Result<&'p mut Listener, Refusal> {
    let port = client.listeners.get(&number).ok_or(Refusal::Misuse)?;
    ports.get_mut(port).ok_or(Refusal::Misuse)
}

/// Makes a listener's descriptor readable if connections wait to be taken and it is not readable already.
pub(super) fn show(listener: &mut Listener, outputs: &mut VecDeque<Output>) {
    if let Some(watch) = listener.watch.filter(|_| listener.untaken > 0)
        && !std::mem::replace(&mut listener.is_readable, true)
    {
        let signal = Signal::Readable;
        outputs.push_back(Output::Signal { watch, signal });
    }
}

/// Logs why an application is turned away.
fn report_refusal(name: &str, why: Refusal) {
    let helps = match why {
        Refusal::Misuse | Refusal::Version => {
            "; install library and daemon of one version; if they are, look for stray writes in the application"
        }
        _ => "",
    };
    tracing::warn!("application {name:?} is turned away: {why}{helps}");
}
