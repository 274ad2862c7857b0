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
use super::{
    Daemon, IncomingRequest, Listener, Output, PeerId, PeerRoute, PendingAccept, PendingConnect,
    SessionId, WatchId,
};
use crate::control::{Message, Offer};
use crate::ids::{DomainId, QpGroupKey};

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
    /// Session of the application in the domain.
    session: usize,
    /// Description of this end for the application.
    end: End,
}

/// Unproven connections by domain and number of the end.
pub(super) type UnprovenConnections =
    std::collections::BTreeMap<(DomainId, Vqpn), UnprovenConnection>;

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
        let Some(of) = self.peers.get_mut(&peer) else {
            return;
        };
        let token = of.wishes.insert(request_connection) as u32;
        let connect = Message::Connect {
            token,
            domain,
            from: request_connection.local,
            port: request_connection.to.port(),
        };
        self.say(peer, &connect);
    }

    /// Drops an end that was never confirmed, unless that is done. Its application has not been told of it.
    pub(super) fn drop_accepted(
        &mut self,
        domain: DomainId,
        number: Vqpn,
        accepted: PendingAccept,
    ) {
        if accepted.is_dropped {
            return;
        }
        let listener = self.ports.get_mut(&accepted.port);
        let of =
            |one: &&mut Listener| (one.client, one.number) == (accepted.client, accepted.number);
        if let Some(listener) = listener.filter(of) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
        if let Some(of) = self.domains.get_mut(&domain) {
            of.refuse(number);
        }
        self.pass_on(domain);
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
            until: _,
        } = request;
        let message = match self.accept(peer, domain, from, port) {
            Ok((domain, offer)) => Message::Accept {
                token,
                domain,
                offer,
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
    ) -> Result<(DomainId, Offer), Refusal> {
        let opens = self.opens(peer);
        let known = self.peers.get(&peer).and_then(|of| of.known);
        if known.is_none_or(|(address, _)| address != from.ip()) {
            return Err(Refusal::Denied);
        }
        if self.is_draining {
            return Err(Refusal::Stopping);
        }
        let listener = self.ports.get_mut(&port).ok_or(Refusal::Refused)?;
        if listener.is_full() {
            return Err(Refusal::Refused);
        }
        let client = self.clients.get(&listener.client).ok_or(Refusal::Refused)?;
        let (id, Some(session)) = (client.domain, client.number) else {
            return Err(Refusal::Refused);
        };
        let domain = self.domains.get_mut(&id).ok_or(Refusal::Refused)?;
        let key = QpGroupKey {
            peer: peer.0,
            domain: from_domain,
        };
        let local = SocketAddr::new(self.identity.address, port);
        let opened = domain
            .qp_group(key, opens)
            .and_then(|group| domain.open(group, session, local, from));
        if let Ok(offer) = &opened {
            listener.waiting += 1;
            if let Some(of) = self.peers.get_mut(&peer) {
                let accepted = PendingAccept {
                    port,
                    client: listener.client,
                    number: listener.number,
                    from: from_domain,
                    until: None,
                    is_dropped: false,
                };
                self.has_new_requests = true;
                of.accepted.insert((id, offer.number), accepted);
            }
        }
        self.pass_on(id);
        Ok((id, opened?))
    }

    /// Handles the acceptance of a connect request: the other daemon has made its end.
    pub(super) fn accepted(
        &mut self,
        peer: PeerId,
        request_connection: PendingConnect,
        there: DomainId,
        offer: Offer,
    ) {
        let opens = self.opens(peer);
        let client = self.clients.get(&request_connection.client);
        let here = client.and_then(|client| Some((client.domain, client.number?)));
        let cancel = Message::Cancel {
            domain: there,
            number: offer.number,
        };
        let here = here.filter(|(id, _)| self.domains.contains_key(id));
        let Some((id, session)) = here else {
            self.hang_up(request_connection.watch);
            return self.say(peer, &cancel);
        };
        let Some(domain) = self.domains.get_mut(&id) else {
            return;
        };
        let key = QpGroupKey {
            peer: peer.0,
            domain: there,
        };
        let opened = domain.qp_group(key, opens).and_then(|group| {
            domain.open(
                group,
                session,
                request_connection.local,
                request_connection.to,
            )
        });
        match opened {
            Ok(own) => {
                let end = domain.connect(own.number, offer);
                let is_proven = domain.is_link_proven(own.number);
                self.pass_on(id);
                let confirm = Message::Confirm {
                    domain: there,
                    number: offer.number,
                    offer: own,
                };
                self.say(peer, &confirm);
                match end {
                    Some((session, end)) => {
                        let unproven = UnprovenConnection {
                            request: request_connection,
                            group: key,
                            session,
                            end,
                        };
                        match is_proven {
                            true => self.hand_over(id, &unproven),
                            false => drop(self.unproven.insert((id, own.number), unproven)),
                        }
                    }
                    None => self.refuse(&request_connection, Refusal::Unreachable),
                }
            }
            Err(why) => {
                self.pass_on(id);
                self.say(peer, &cancel);
                self.refuse(&request_connection, why);
            }
        }
    }

    /// Gives a connection to the application that asked for it.
    fn hand_over(&mut self, id: DomainId, connection: &UnprovenConnection) {
        let PendingConnect {
            client,
            request,
            watch,
            ..
        } = connection.request;
        let end = connection.end;
        if let (Some(domain), Some(_)) = (self.domains.get_mut(&id), watch)
            && !domain.watch(connection.session, end.handle, watch)
        {
            self.hang_up(watch);
        }
        self.answer(client, Reply::Connected { request, end });
        self.pass_on(id);
    }

    /// Hands over or refuses the connections that waited for a queue-pair group to carry a frame: it has, or it has
    /// failed.
    pub(super) fn settle_unproven(&mut self, id: DomainId, group: QpGroupKey) {
        let of_domain = (id, Vqpn::from_bits(0))..=(id, Vqpn::from_bits(u32::MAX));
        let waiting = self.unproven.range(of_domain);
        let waiting = waiting.filter(|(_, connection)| connection.group == group);
        let waiting: Vec<(DomainId, Vqpn)> = waiting.map(|(key, _)| *key).collect();
        for key in waiting {
            let Some(domain) = self.domains.get(&id) else {
                return;
            };
            let is_failed = domain.qp_group_of(key.1).is_none();
            if is_failed {
                self.abandon_unproven(key, Refusal::Unreachable);
            } else if domain.is_link_proven(key.1)
                && let Some(connection) = self.unproven.remove(&key)
            {
                self.hand_over(id, &connection);
            }
        }
    }

    /// Refuses the request of an unproven connection, and aborts this end of it.
    pub(super) fn abandon_unproven(&mut self, key: (DomainId, Vqpn), why: Refusal) {
        let Some(connection) = self.unproven.remove(&key) else {
            return;
        };
        if let Some(domain) = self.domains.get_mut(&key.0) {
            domain.close(connection.session, connection.end.handle, true);
            // A group that never comes up would keep the end for ever.
            domain.fail_unproven(key.1);
        }
        self.pass_on(key.0);
        self.refuse(&connection.request, why);
    }

    /// Handles the confirmation of an accepted connection: both ends exist.
    pub(super) fn confirmed(
        &mut self,
        peer: PeerId,
        id: DomainId,
        number: Vqpn,
        accepted: PendingAccept,
        offer: Offer,
    ) {
        let Some(domain) = self.domains.get_mut(&id) else {
            return;
        };
        if accepted.is_dropped || domain.qp_group_of(number).is_none() {
            // The confirmation is too late, or the group has failed meanwhile and the other end is on the next one.
            self.drop_accepted(id, number, accepted);
            let missed = Message::Missed {
                domain: accepted.from,
                number: offer.number,
            };
            return self.say(peer, &missed);
        }
        let listener = self.ports.get(&accepted.port);
        let listener = listener.map(|one| (one.client, one.number));
        let listener = listener.filter(|one| *one == (accepted.client, accepted.number));
        let end = domain.connect(number, offer);
        let (Some((_, end)), Some((client, number))) = (end, listener) else {
            // The listener is gone.
            if let Some((session, end)) = end {
                domain.close(session, end.handle, true);
            }
            return self.pass_on(id);
        };
        self.pass_on(id);
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
