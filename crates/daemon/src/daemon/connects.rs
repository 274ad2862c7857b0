//! Connect requests: of this host's applications to ports of other hosts, and of other hosts to ports of this one.
//!
//! The daemon of the listener makes its end first ([`Message::Accept`]), then the daemon of the connecting
//! application makes the other ([`Message::Confirm`]). The listening application gets the connection once
//! both ends exist. The connecting application gets it once the queue-pair group has carried a frame: a connection
//! over a link that cannot come up is refused, not returned.
//!
//! A request to a listener whose backlog is full waits at the listener, as with TCP, until the application takes a
//! connection or the [time limit](super::connect_timeout) of waiting requests is over.

use std::collections::VecDeque;
use std::net::SocketAddr;

use headworks_client::Vqpn;
use headworks_client::socket_message::{End, Refusal, Reply};

use super::applications::show;
use super::pairs::PairKey;
use super::{
    Daemon, IncomingRequest, Listener, Output, PeerId, PeerRoute, PendingAccept, PendingConnect,
    SessionId, WatchId,
};
use crate::control::{DirectOffer, Message, Offer, PlaceId};
use crate::ids::{DomainId, DomainPart, QpGroupKey};

/// Number of requests that may wait at one listener beyond its backlog, and how many of them may be of one domain of
/// another host. More are refused.
const WAITING_MAX: usize = 4096;
const WAITING_EACH: usize = 1024;

/// A connection whose ends exist, and whose queue-pair group has not carried a frame yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnprovenConnection {
    /// Request that the connection answers.
    pub(super) request: PendingConnect,
    /// Group that carries the connection.
    group: QpGroupKey,
    /// Description of this end for the application.
    end: End,
}

/// Unproven connections by the part of the domain that carries them, and the number of the end.
pub(super) type UnprovenConnections =
    std::collections::BTreeMap<(DomainPart, Vqpn), UnprovenConnection>;

impl Daemon {
    /// Serves an application's connect request.
    pub(super) fn request_connection(
        &mut self,
        client: SessionId,
        request: u32,
        to: SocketAddr,
        watch: Option<WatchId>,
    ) {
        // As with sockets, the unspecified address is this host.
        let to = match to.ip().is_unspecified() {
            true => SocketAddr::new(self.identity.address, to.port()),
            false => to,
        };
        let most = self.config.connections_each;
        let is_draining = self.is_draining;
        let Some(own) = self.clients.get_mut(&client) else {
            return self.hang_up(watch);
        };
        let why = match own.wishes >= most {
            _ if is_draining => Some(Refusal::Stopping),
            true => Some(Refusal::Limit),
            false => None,
        };
        if let Some(why) = why {
            self.hang_up(watch);
            return self.tell(client, Reply::Refused { request, why });
        }
        own.wishes += 1;
        let port = self.port_of_connection();
        let request_connection = PendingConnect {
            client,
            request,
            local: SocketAddr::new(self.identity.address, port),
            to,
            watch,
            until: None,
        };
        self.has_new_requests = true;
        match self.routes.get_mut(&to.ip()) {
            Some(PeerRoute::Up(peer)) => {
                let peer = *peer;
                self.ask(peer, request_connection);
            }
            Some(PeerRoute::Dialing(_, wishes)) => wishes.push(request_connection),
            None => {
                self.routes
                    .insert(to.ip(), PeerRoute::Dialing(1, vec![request_connection]));
                self.outputs.push_back(Output::Dial(to.ip()));
            }
        }
    }

    /// Refuses a connect request.
    pub(super) fn refuse(&mut self, request_connection: &PendingConnect, why: Refusal) {
        self.hang_up(request_connection.watch);
        let request = request_connection.request;
        self.answer(request_connection.client, Reply::Refused { request, why });
    }

    /// Answers a connect request.
    fn answer(&mut self, client: SessionId, reply: Reply) {
        if let Some(own) = self.clients.get_mut(&client) {
            own.wishes = own.wishes.saturating_sub(1);
        }
        self.tell(client, reply);
    }

    pub(super) fn ask(&mut self, peer: PeerId, request_connection: PendingConnect) {
        let Some(client) = self.clients.get(&request_connection.client) else {
            return;
        };
        let domain = client.domain;
        // A descriptor of its own is signalled by the daemon, which a direct connection does without.
        let direct = match request_connection.watch {
            None => self.direct_session(request_connection.client, peer),
            Some(_) => None,
        };
        let Some(of) = self.peers.get_mut(&peer) else {
            return;
        };
        let token = of.wishes.insert(request_connection) as u32;
        let connect = Message::Connect {
            token,
            domain,
            from: request_connection.local,
            port: request_connection.to.port(),
            direct,
        };
        self.say(peer, &connect);
    }

    /// Drops an end that was never confirmed, unless that is done. Its application has not been told of it. The other daemon may
    /// have told its application of the end's place in a pair's memory, so the place stays taken until it says that this
    /// application does not use it.
    pub(super) fn drop_accepted(&mut self, at: DomainPart, number: Vqpn, accepted: PendingAccept) {
        if accepted.is_dropped {
            return;
        }
        let listener = self.ports.get_mut(&accepted.port);
        let of =
            |one: &&mut Listener| (one.client, one.number) == (accepted.client, accepted.number);
        if let Some(listener) = listener.filter(of) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
        if let Some((key, place)) = accepted.direct {
            self.leave_direct(key, place.id());
        }
        self.in_part(at, |part| part.refuse(number));
        self.answer_waiting(accepted.port);
    }

    /// Handles a connect request of another host: answers it, or keeps it until the listener's backlog has room.
    pub(super) fn incoming(&mut self, request: IncomingRequest) {
        let has_place = |requests: &VecDeque<IncomingRequest>| {
            let is_like =
                |one: &&IncomingRequest| (one.peer, one.domain) == (request.peer, request.domain);
            requests.len() < WAITING_MAX && requests.iter().filter(is_like).count() < WAITING_EACH
        };
        match self.ports.get_mut(&request.port) {
            Some(listener)
                if listener.is_full() && !self.is_draining && has_place(&listener.requests) =>
            {
                listener.requests.push_back(request);
                self.has_new_requests = true;
            }
            _ => self.answer_incoming(request),
        }
    }

    /// Answers requests that waited at a listener, as many as its backlog has room for.
    pub(super) fn answer_waiting(&mut self, port: u16) {
        while let Some(listener) = self.ports.get_mut(&port)
            && !listener.is_full()
            && let Some(request) = listener.requests.pop_front()
        {
            self.answer_incoming(request);
        }
    }

    /// Refuses requests of other hosts.
    pub(super) fn refuse_incoming(
        &mut self,
        requests: impl IntoIterator<Item = IncomingRequest>,
        why: Refusal,
    ) {
        for IncomingRequest { peer, token, .. } in requests {
            self.say(peer, &Message::Refuse { token, why });
        }
    }

    fn answer_incoming(&mut self, request: IncomingRequest) {
        let IncomingRequest {
            peer,
            token,
            domain,
            from,
            port,
            direct,
            until: _,
        } = request;
        let message = match self.accept(peer, domain, from, port, direct) {
            Ok((domain, offer, direct)) => Message::Accept {
                token,
                domain,
                offer,
                direct,
            },
            Err(why) => Message::Refuse { token, why },
        };
        self.say(peer, &message);
    }

    /// Makes an end for an application on another host that connects to a port of this one.
    fn accept(
        &mut self,
        peer: PeerId,
        from_domain: DomainId,
        from: SocketAddr,
        port: u16,
        direct: Option<u64>,
    ) -> Result<(DomainId, Offer, Option<DirectOffer>), Refusal> {
        let known = self.peers.get(&peer).and_then(|of| of.known);
        if known.is_none_or(|(address, _)| address != from.ip()) {
            return Err(Refusal::Denied);
        }
        if self.is_draining {
            return Err(Refusal::Stopping);
        }
        let listener = self.ports.get(&port).ok_or(Refusal::Refused)?;
        if listener.is_full() {
            return Err(Refusal::Refused);
        }
        let (client, number) = (listener.client, listener.number);
        let has_descriptor = listener.watch.is_some();
        let id = match self.clients.get(&client) {
            Some(client) => client.domain,
            None => return Err(Refusal::Refused),
        };
        let group = QpGroupKey {
            peer: peer.0,
            domain: from_domain,
        };
        let local = SocketAddr::new(self.identity.address, port);
        // An application that polls a descriptor of its listener will poll descriptors of the connections, too.
        let takes_direct = !has_descriptor && self.direct_session(client, peer).is_some();
        let direct = direct.filter(|_| takes_direct);
        let direct = direct.and_then(|other| {
            let own = client;
            let key = PairKey { own, peer, other };
            Some((key, self.open_direct(key, true)?))
        });
        let opens = direct.map(|(key, place)| (key, place.id()));
        let opened = self.open(peer, client, group, (local, from), opens);
        let (at, offer, handle) = opened.inspect_err(|_| {
            if let Some((key, place)) = direct {
                self.drop_direct(key, place.id());
            }
        })?;
        if let Some(listener) = self.ports.get_mut(&port) {
            listener.waiting += 1;
        }
        if let Some(of) = self.peers.get_mut(&peer) {
            let accepted = PendingAccept {
                port,
                client,
                number,
                from: from_domain,
                until: None,
                is_dropped: false,
                direct,
                handle,
            };
            self.has_new_requests = true;
            of.accepted.insert((at.domain, offer.number), accepted);
        }
        let direct = direct.map(|(_, taken)| DirectOffer {
            session: client.0,
            taken,
        });
        Ok((id, offer, direct))
    }

    /// Makes this host's end of a connection for an application, at the worker that carries the links to `peer`.
    /// Returns where, with the description of the end and its handle.
    fn open(
        &mut self,
        peer: PeerId,
        client: SessionId,
        group: QpGroupKey,
        (local, remote): (SocketAddr, SocketAddr),
        direct: Option<(PairKey, PlaceId)>,
    ) -> Result<(DomainPart, Offer, u32), Refusal> {
        let direct = direct.and_then(|(key, place)| Some((self.pair_memory(key)?, place)));
        let opens = self.opens(peer);
        let of = self.peers.get(&peer).ok_or(Refusal::Unreachable)?;
        let worker = of.worker;
        let session = self.session_part(client, worker)?;
        let most = self.config.connections_each;
        let id = client;
        let client = self.clients.get_mut(&id).ok_or(Refusal::Refused)?;
        let domain = client.domain;
        let of = client.session.as_mut().ok_or(Refusal::Refused)?;
        if of.handles.len() >= most as usize {
            let name = &of.name;
            tracing::warn!(
                "application {name:?} has {most} connections: raise connections_each for more"
            );
            return Err(Refusal::Limit);
        }
        let handle = of.handles.insert(worker);
        let at = DomainPart { worker, domain };
        let opened = self.in_part(at, |part| {
            let group = part.qp_group(group, opens)?;
            part.open(group, session, handle as u32, (local, remote), direct)
        });
        let opened = opened.unwrap_or(Err(Refusal::Memory));
        let of = self.clients.get_mut(&id);
        if let Some(of) = of.and_then(|of| of.session.as_mut())
            && opened.is_err()
        {
            // No connection was made for the handle.
            of.handles.try_remove(handle);
        }
        Ok((at, opened?, handle as u32))
    }

    /// Handles the acceptance of a connect request: the other daemon has made its end.
    pub(super) fn accepted(
        &mut self,
        peer: PeerId,
        request_connection: PendingConnect,
        there: DomainId,
        (offer, direct): (Offer, Option<DirectOffer>),
    ) {
        let cancel = Message::Cancel {
            domain: there,
            number: offer.number,
        };
        let client = self.clients.get(&request_connection.client);
        if client.is_none_or(|client| client.session.is_none()) {
            self.hang_up(request_connection.watch);
            return self.say(peer, &cancel);
        }
        let group = QpGroupKey {
            peer: peer.0,
            domain: there,
        };
        let (client, local, to) = (
            request_connection.client,
            request_connection.local,
            request_connection.to,
        );
        let direct = direct.filter(|_| self.direct_session(client, peer).is_some());
        let direct = direct.and_then(|theirs| {
            let key = PairKey {
                own: client,
                peer,
                other: theirs.session,
            };
            Some((key, self.open_direct(key, false)?, theirs.taken))
        });
        let opens = direct.map(|(key, own, _)| (key, own.id()));
        match self.open(peer, client, group, (local, to), opens) {
            Ok((at, own, handle)) => {
                let ends = direct.and_then(|(key, place, theirs)| {
                    let end = self.direct_end(key, place.place, theirs.place);
                    match end {
                        Some(_) => self.note_direct(handle, key, place.id(), theirs.id()),
                        None => self.drop_direct(key, place.id()),
                    }
                    Some((end?, place))
                });
                let connected = self.in_part(at, |part| {
                    if ends.is_none() {
                        part.not_direct(own.number);
                    }
                    let end = part.connect(own.number, offer);
                    (end, part.is_link_proven(own.number))
                });
                let confirm = Message::Confirm {
                    domain: there,
                    number: offer.number,
                    offer: own,
                    direct: ends.map(|(_, taken)| DirectOffer {
                        session: client.0,
                        taken,
                    }),
                };
                self.say(peer, &confirm);
                match connected {
                    Some((Some((_, end)), is_proven)) => {
                        let end = End {
                            direct: ends.map(|(end, _)| end),
                            ..end
                        };
                        let unproven = UnprovenConnection {
                            request: request_connection,
                            group,
                            end,
                        };
                        match is_proven {
                            true => self.hand_over(&unproven),
                            false => drop(self.unproven.insert((at, own.number), unproven)),
                        }
                    }
                    _ => {
                        self.direct_over(client, handle);
                        self.refuse(&request_connection, Refusal::Unreachable);
                    }
                }
            }
            Err(why) => {
                if let Some((key, place, _)) = direct {
                    self.drop_direct(key, place.id());
                }
                self.say(peer, &cancel);
                self.refuse(&request_connection, why);
            }
        }
    }

    /// Gives a connection to the application that asked for it.
    fn hand_over(&mut self, connection: &UnprovenConnection) {
        let PendingConnect {
            client,
            request,
            watch,
            ..
        } = connection.request;
        let end = connection.end;
        if watch.is_some() && !self.watch(client, end.handle, watch) {
            self.hang_up(watch);
        }
        self.answer(client, Reply::Connected { request, end });
    }

    /// Hands over or refuses the connections that waited for a queue-pair group to carry a frame: it has, or it has
    /// failed.
    pub(super) fn settle_unproven(&mut self, at: DomainPart, group: QpGroupKey) {
        let of_part = (at, Vqpn::from_bits(0))..=(at, Vqpn::from_bits(u32::MAX));
        let waiting = self.unproven.range(of_part);
        let waiting = waiting.filter(|(_, connection)| connection.group == group);
        let waiting: Vec<(DomainPart, Vqpn)> = waiting.map(|(key, _)| *key).collect();
        for key in waiting {
            let state = self.in_part(at, |part| {
                let is_failed = part.qp_group_of(key.1).is_none();
                (is_failed, part.is_link_proven(key.1))
            });
            match state {
                Some((true, _)) => self.abandon_unproven(key, Refusal::Unreachable),
                Some((false, true)) => {
                    if let Some(connection) = self.unproven.remove(&key) {
                        self.hand_over(&connection);
                    }
                }
                _ => {}
            }
        }
    }

    /// Refuses the request of an unproven connection, and aborts this end of it.
    pub(super) fn abandon_unproven(&mut self, key: (DomainPart, Vqpn), why: Refusal) {
        let Some(connection) = self.unproven.remove(&key) else {
            return;
        };
        self.close(connection.request.client, connection.end.handle, true);
        // A group that never comes up would keep the end for ever.
        self.in_part(key.0, |part| part.fail_unproven(key.1));
        self.refuse(&connection.request, why);
    }

    /// Handles the confirmation of an accepted connection: both ends exist.
    pub(super) fn confirmed(
        &mut self,
        peer: PeerId,
        at: DomainPart,
        number: Vqpn,
        accepted: PendingAccept,
        (offer, direct): (Offer, Option<DirectOffer>),
    ) {
        let group = self.in_part(at, |part| part.qp_group_of(number));
        let Some(group) = group else {
            return;
        };
        let is_late = accepted.is_dropped || group.is_none();
        let end = match (accepted.direct, direct) {
            (Some((key, own)), Some(theirs)) if !is_late && key.other == theirs.session => {
                self.direct_end(key, own.place, theirs.taken.place)
            }
            _ => None,
        };
        // Without its end of the direct connection, this side would never find what the other application sends.
        let is_one_sided = direct.is_some() && end.is_none();
        if is_late || is_one_sided {
            // Otherwise the confirmation is too late, or the group has failed meanwhile and the other end is on the next one.
            self.drop_accepted(at, number, accepted);
            match (accepted.direct, direct) {
                (Some((key, _)), Some(theirs)) => self.decline_direct(key, theirs.taken.id()),
                _ => self.not_taken(accepted.direct),
            }
            let missed = Message::Missed {
                domain: accepted.from,
                number: offer.number,
            };
            return self.say(peer, &missed);
        }
        let listener = self.ports.get(&accepted.port);
        let listener = listener.map(|one| (one.client, one.number));
        let listener = listener.filter(|one| *one == (accepted.client, accepted.number));
        let is_wanted = listener.is_some();
        match (accepted.direct, direct) {
            (Some((key, own)), Some(theirs)) => {
                self.note_direct(accepted.handle, key, own.id(), theirs.taken.id());
            }
            (Some((key, own)), None) => self.drop_direct(key, own.id()),
            _ => {}
        }
        let direct = end;
        let end = self.in_part(at, |part| {
            if direct.is_none() {
                part.not_direct(number);
            }
            let (session, end) = part.connect(number, offer)?;
            if !is_wanted {
                // The listener is gone.
                part.close(session, end.handle, true);
            }
            Some(end)
        });
        if !matches!(end, Some(Some(_))) {
            self.direct_over(accepted.client, accepted.handle);
        }
        let (Some(Some(end)), Some((client, number))) = (end, listener) else {
            return;
        };
        let end = End { direct, ..end };
        let incoming = Reply::Incoming {
            listener: number,
            end,
        };
        self.tell(client, incoming);
        if let Some(listener) = self.ports.get_mut(&accepted.port) {
            listener.untaken += 1;
            show(listener, &mut self.outputs);
        }
    }
}
