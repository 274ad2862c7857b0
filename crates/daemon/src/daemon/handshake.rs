//! Other daemons: dialing them, mutual introduction, and their messages.

use std::net::IpAddr;

use headworks_client::Reset;
use headworks_client::socket_message::Refusal;

use super::{Daemon, IncomingRequest, Output, Peer, PeerId, PeerRoute, agreed};
use crate::auth::{AuthClaim, CallRole};
use crate::control::{DomainPair, Message, VERSION_OLDEST};
use crate::ids::{DomainId, DomainPart, QpGroupKey, WorkerId};
use headworks_verbs::Duration;
use slab::Slab;

/// Maximum number of dials to an address that does not answer.
const CALLS: u32 = 100;
/// Maximum number of inbound streams from daemons that have not introduced themselves.
const STRANGERS: usize = 256;
/// Age from which a stream without an introduction is closed when another stream arrives.
const PATIENCE: Duration = Duration::from_secs(10);
impl Daemon {
    pub(super) fn say(&mut self, peer: PeerId, message: &Message) {
        let message = message.encode();
        self.outputs.push_back(Output::ToPeer { peer, message });
    }

    /// Reports that no daemon answered at an address: refuses the connect requests that wait for it.
    pub fn dial_failed(&mut self, address: IpAddr, why: Refusal) {
        let dialing = |route: &PeerRoute| matches!(route, PeerRoute::Dialing(..));
        if !self.routes.get(&address).is_some_and(dialing) {
            return;
        }
        if let Some(PeerRoute::Dialing(_, wishes)) = self.routes.remove(&address) {
            for request_connection in wishes {
                self.refuse(&request_connection, why);
            }
        }
    }

    /// Registers a TCP stream to another daemon. `called` is the address that this daemon dialed, or `None`
    /// if the other daemon dialed.
    pub fn peer_up(&mut self, called: Option<IpAddr>) -> PeerId {
        if called.is_none() {
            self.make_room_for_a_stranger();
        }
        let peer = PeerId(self.number());
        let new = Peer {
            known: None,
            version: 0,
            since: self.now,
            claimed: None,
            nonce: self.nonces.another(),
            other: None,
            called,
            is_local: false,
            worker: WorkerId::FIRST,
            watch: None,
            wishes: Slab::new(),
            accepted: Default::default(),
        };
        self.peers.insert(peer, new);
        if called.is_some() {
            self.greet(peer);
        }
        peer
    }

    /// Closes inbound streams whose daemons have not introduced themselves: all that are older than
    /// [`PATIENCE`], and the oldest while there are [`STRANGERS`] or more.
    fn make_room_for_a_stranger(&mut self) {
        let is_stranger = |of: &Peer| of.known.is_none() && of.called.is_none();
        let strangers = self.peers.iter().filter(|(_, of)| is_stranger(of));
        let mut left = strangers.clone().count();
        let mut dropped = Vec::new();
        for (peer, of) in strangers {
            if left >= STRANGERS || self.now.since(of.since) > PATIENCE {
                dropped.push(*peer);
                left -= 1;
            }
        }
        if !dropped.is_empty() {
            let count = dropped.len();
            tracing::warn!("closed {count} streams of daemons that did not introduce themselves");
        }
        dropped.into_iter().for_each(|peer| self.drop_call(peer));
    }

    /// Sends a hello. The dialing daemon sends its hello first; the other one answers with its own.
    fn greet(&mut self, peer: PeerId) {
        let Some(of) = self.peers.get(&peer) else {
            return;
        };
        let nonce = of.nonce;
        // The dialing daemon does not know the other's nonce yet, so it sends no proof here.
        let proof = match &self.identity.secret {
            Some(secret) => self.claim(of, None).map(|own| secret.prove(&own)),
            None => None,
        };
        let hello = Message::Hello {
            version: self.identity.version,
            oldest: VERSION_OLDEST,
            address: self.identity.address,
            life: self.identity.life,
            nonce,
            proof: proof.unwrap_or_default(),
        };
        self.say(peer, &hello);
    }

    /// Returns the claim to be proven on a stream. If `other` is given, it is the claim of the other side,
    /// which says that it has this address and life. Otherwise it is this side's claim. Returns `None` if the
    /// other side's nonce is not known.
    fn claim(&self, of: &Peer, other: Option<(IpAddr, u64)>) -> Option<AuthClaim> {
        let is_ours = other.is_none();
        let (address, life) = other.unwrap_or((self.identity.address, self.identity.life));
        let side = match of.called.is_some() == is_ours {
            true => CallRole::Calling,
            false => CallRole::Called,
        };
        let (calling, called) = match of.called {
            Some(_) => (of.nonce, of.other?),
            None => (of.other?, of.nonce),
        };
        let to = match is_ours {
            true => of
                .called
                .or_else(|| of.claimed.map(|(address, _)| address))?,
            false => self.identity.address,
        };
        Some(AuthClaim {
            side,
            address,
            to,
            life,
            calling,
            called,
        })
    }

    /// Handles a message of a daemon that has not introduced itself yet. An error says why it is turned away.
    fn introduced(&mut self, peer: PeerId, message: Message) -> Result<(), String> {
        let Some(of) = self.peers.get_mut(&peer) else {
            return Ok(());
        };
        let secret = self.identity.secret.clone();
        match (message, secret) {
            (Message::Hello { address, life, .. }, None) => {
                let own = self.identity.address;
                if !(address.is_loopback() && own.is_loopback()) {
                    return Err(format!(
                        "without a secret, daemons serve loopback addresses only, not {address}; name one with --secret"
                    ));
                }
                self.greeted(peer, address, life);
            }
            (
                Message::Hello {
                    address,
                    life,
                    nonce,
                    ..
                },
                Some(_),
            ) if of.called.is_none() => {
                if of.claimed.is_some() {
                    return Err("it sent two hellos".to_owned());
                }
                if address == self.identity.address && life != self.identity.life {
                    return Err("it claims the address of this daemon".to_owned());
                }
                of.claimed = Some((address, life));
                of.other = Some(nonce);
                let nonce = of.nonce;
                self.say(peer, &Message::Challenge { nonce });
            }
            (Message::Prove { proof }, Some(secret)) => {
                let of = &*of;
                let (Some(claimed), None) = (of.claimed, of.called) else {
                    return Err("it sent a proof that was not asked for".to_owned());
                };
                let claim = self.claim(&self.peers[&peer], Some(claimed));
                if !claim.is_some_and(|claim| secret.is_proven(&claim, &proof)) {
                    return Err(format!("{} has another secret", claimed.0));
                }
                self.greeted(peer, claimed.0, claimed.1);
            }
            (Message::Challenge { nonce }, Some(secret)) if of.called.is_some() => {
                if of.other.replace(nonce).is_some() {
                    return Err("it sent two challenges".to_owned());
                }
                let claim = self.claim(&self.peers[&peer], None);
                if let Some(claim) = claim {
                    let proof = secret.prove(&claim);
                    self.say(peer, &Message::Prove { proof });
                }
            }
            (Message::Challenge { .. }, None) => {
                return Err(
                    "it requires a secret, and this daemon has none; name it with --secret"
                        .to_owned(),
                );
            }
            (
                Message::Hello {
                    address,
                    life,
                    proof,
                    ..
                },
                Some(secret),
            ) => {
                let claim = self.claim(&self.peers[&peer], Some((address, life)));
                if !claim.is_some_and(|claim| secret.is_proven(&claim, &proof)) {
                    return Err(format!("{address} has no secret, or another one"));
                }
                self.greeted(peer, address, life);
            }
            _ => return Err("it did not introduce itself first".to_owned()),
        }
        Ok(())
    }

    /// Reports that the stream to another daemon has ended.
    pub fn peer_gone(&mut self, peer: PeerId) {
        self.lose(peer, Reset::Unreachable);
    }

    pub(super) fn lose(&mut self, peer: PeerId, why: Reset) {
        let Some(gone) = self.peers.remove(&peer) else {
            return;
        };
        if let (Some(address), None) = (gone.called, gone.known) {
            return self.call_again(address);
        }
        self.routes
            .retain(|_, route| !matches!(route, PeerRoute::Up(to) if *to == peer));
        self.lose_pairs(peer);
        for (_, request_connection) in gone.wishes {
            self.refuse(&request_connection, Refusal::Unreachable);
        }
        let worker = gone.worker;
        let ids: Vec<DomainId> = self.domains.keys().copied().collect();
        for domain in ids {
            let at = DomainPart { worker, domain };
            self.in_part(at, |part| part.fail_peer(peer.0, why));
        }
        for listener in self.ports.values_mut() {
            listener.requests.retain(|request| request.peer != peer);
        }
        for ((domain, number), accepted) in gone.accepted {
            self.drop_accepted(DomainPart { worker, domain }, number, accepted);
        }
    }

    /// Dials an address again after the stream closed unanswered. The peer may have dialed this daemon at the
    /// same time, and then waits for the answer to its own dial.
    fn call_again(&mut self, address: IpAddr) {
        match self.routes.get_mut(&address) {
            Some(PeerRoute::Dialing(times, _)) if *times < CALLS => {
                *times += 1;
                self.outputs.push_back(Output::Dial(address));
            }
            _ => self.dial_failed(address, Refusal::Unreachable),
        }
    }

    /// Ends the stream to a daemon that broke the protocol or failed to authenticate. Everything that depends
    /// on the stream is reset.
    fn refuse_caller(&mut self, peer: PeerId, refusal: Refusal, why: &str) {
        tracing::warn!("another daemon is turned away: {why}");
        self.say(peer, &Message::Goodbye { why: refusal });
        self.outputs.push_back(Output::HangUp(peer));
        let called = self.peers.get_mut(&peer).and_then(|of| of.called.take());
        self.lose(peer, Reset::Protocol);
        if let Some(address) = called {
            self.dial_failed(address, refusal);
        }
    }

    /// Closes a stream that is not needed, without a message: neither side did anything wrong.
    pub(super) fn drop_call(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.outputs.push_back(Output::HangUp(peer));
    }

    /// Handles a message of another daemon.
    pub fn peer_message(&mut self, peer: PeerId, message: &[u8]) {
        let Some(known) = self.peers.get(&peer) else {
            return;
        };
        let is_known = known.known.is_some();
        match (Message::decode(message), is_known) {
            (Ok(Message::Goodbye { why }), _) => {
                let reset = match why {
                    Refusal::Stopping => {
                        tracing::info!("another daemon is stopping");
                        Reset::Stopping
                    }
                    why => {
                        tracing::warn!("another daemon turns this one away: {why}");
                        Reset::Unreachable
                    }
                };
                let called = self.peers.get_mut(&peer).and_then(|of| of.called.take());
                self.outputs.push_back(Output::HangUp(peer));
                self.lose(peer, reset);
                if let Some(address) = called {
                    self.dial_failed(address, why);
                }
            }
            (
                Ok(Message::Hello {
                    version, oldest, ..
                }),
                false,
            ) if agreed(self.identity.version, version, oldest).is_none() => {
                let own = self.identity.version;
                let why = format!(
                    "it speaks versions {oldest} to {version}, this daemon {VERSION_OLDEST} to {own}"
                );
                self.refuse_caller(peer, Refusal::Version, &why);
            }
            (Ok(message), true) => {
                if self.heard(peer, message).is_none() {
                    let why = "it sent an unexpected message";
                    self.refuse_caller(peer, Refusal::Misuse, why);
                }
            }
            (Ok(message), false) => {
                if let Message::Hello {
                    version, oldest, ..
                } = message
                    && let Some(of) = self.peers.get_mut(&peer)
                {
                    of.version = agreed(self.identity.version, version, oldest).unwrap_or(0);
                }
                if let Err(why) = self.introduced(peer, message) {
                    self.refuse_caller(peer, Refusal::Denied, &why);
                }
            }
            (Err(error), _) => self.refuse_caller(peer, Refusal::Misuse, &error.to_string()),
        }
    }

    /// Accepts the introduction of another daemon. If both daemons have dialed each other, the stream that
    /// the daemon with the lower address dialed stays. The other stream is closed without an answer or any
    /// other message.
    fn greeted(&mut self, peer: PeerId, address: IpAddr, life: u64) {
        let called = self.peers[&peer].called;
        let is_own = address == self.identity.address;
        match (called, self.routes.get(&address)) {
            (Some(target), _) if target != address => {
                let why = format!("the daemon at {target} says that its address is {address}");
                return self.refuse_caller(peer, Refusal::Unreachable, &why);
            }
            (Some(_), Some(PeerRoute::Dialing(..))) => {}
            // The dial was given up meanwhile.
            (Some(_), _) => return self.drop_call(peer),
            (None, _) if is_own => {
                self.knows(peer, address, life);
                return self.greet(peer);
            }
            (None, Some(PeerRoute::Up(other))) => {
                let other = *other;
                let known = self.peers.get(&other).and_then(|one| one.known);
                if known == Some((address, life)) {
                    // The peer sent this before it knew of the existing stream.
                    return self.drop_call(peer);
                }
                // The peer has restarted.
                self.outputs.push_back(Output::HangUp(other));
                self.lose(other, Reset::Unreachable);
            }
            (None, Some(PeerRoute::Dialing(..))) if self.identity.address < address => {
                return self.drop_call(peer);
            }
            (None, Some(PeerRoute::Dialing(..))) => {
                let own = |of: &Peer| of.called == Some(address) && of.known.is_none();
                let mut others = self.peers.iter();
                let given_up = others.find(|(_, of)| own(of));
                if let Some((given_up, _)) = given_up {
                    self.drop_call(*given_up);
                }
            }
            (None, None) => {}
        }
        self.knows(peer, address, life);
        if called.is_none() {
            self.greet(peer);
        }
        let before = self.routes.insert(address, PeerRoute::Up(peer));
        if let Some(PeerRoute::Dialing(_, wishes)) = before {
            for request_connection in wishes {
                self.ask(peer, request_connection);
            }
        }
    }

    fn knows(&mut self, peer: PeerId, address: IpAddr, life: u64) {
        let worker = self.least_used_worker();
        if let Some(of) = self.peers.get_mut(&peer) {
            of.known = Some((address, life));
            of.worker = worker;
        }
    }

    /// Returns the worker that carries the links to the fewest daemons; of several, the last, because the first has a
    /// part of every session already.
    fn least_used_worker(&self) -> WorkerId {
        let workers = (0..self.config.workers).rev().map(WorkerId);
        let least = workers.min_by_key(|worker| {
            let known = self.peers.values().filter(|of| of.known.is_some());
            known.filter(|of| of.worker == *worker).count()
        });
        least.unwrap_or(WorkerId::FIRST)
    }

    /// Returns the part of a domain that carries the links to a daemon. Makes it if the domain exists, and returns
    /// `None` if it does not.
    fn make_part_for_peer(&mut self, peer: PeerId, domain: DomainId) -> Option<DomainPart> {
        let worker = self.peers.get(&peer)?.worker;
        let at = DomainPart { worker, domain };
        if self.domains.contains_key(&domain) {
            // An error was logged. The messages about the part then have no effect.
            let _ = self.make_part(at);
            return Some(at);
        }
        None
    }

    /// Returns whether this side opens the queue-pair groups with a peer. The daemon with the lower address
    /// opens them; on one host, the side that dialed.
    pub(super) fn opens(&self, peer: PeerId) -> bool {
        let Some(peer) = self.peers.get(&peer) else {
            return false;
        };
        let is_lower = |address: IpAddr| match address == self.identity.address {
            true => peer.called.is_some(),
            false => self.identity.address < address,
        };
        peer.known.is_some_and(|(address, _)| is_lower(address))
    }

    /// Handles a message of an introduced daemon. Returns `None` if the message is illegal.
    fn heard(&mut self, peer: PeerId, message: Message) -> Option<()> {
        let key = |between: DomainPair| QpGroupKey {
            peer: peer.0,
            domain: between.from,
        };
        match message {
            Message::Hello { .. }
            | Message::Challenge { .. }
            | Message::Prove { .. }
            | Message::Goodbye { .. } => return None,
            Message::Ping => self.say(peer, &Message::Pong),
            Message::Pong => self.note_alive(peer),
            Message::QpGroupWanted { between, known } => {
                let opens = self.opens(peer);
                let at = self
                    .make_part_for_peer(peer, between.to)
                    .filter(|_| opens)?;
                self.in_part(at, |part| part.qp_group_wanted(key(between), known));
            }
            Message::BringUp {
                between,
                instance,
                qp_role,
                bytes,
            } => {
                let at = self.make_part_for_peer(peer, between.to)?;
                let key = key(between);
                self.in_part(at, |part| part.bring_up(key, instance, qp_role, &bytes));
            }
            Message::QpGroupDown { between, instance } => {
                let at = self.make_part_for_peer(peer, between.to)?;
                self.in_part(at, |part| part.qp_group_down(key(between), instance));
            }
            Message::Connect {
                token,
                domain,
                from,
                port,
                direct,
            } => {
                self.incoming(IncomingRequest {
                    peer,
                    token,
                    domain,
                    from,
                    port,
                    direct,
                    until: None,
                });
            }
            Message::Accept {
                token,
                domain,
                offer,
                direct,
            } => {
                let wishes = &mut self.peers.get_mut(&peer)?.wishes;
                let request_connection = wishes.try_remove(token as usize)?;
                self.accepted(peer, request_connection, domain, (offer, direct));
            }
            Message::Refuse { token, why } => {
                let wishes = &mut self.peers.get_mut(&peer)?.wishes;
                let request_connection = wishes.try_remove(token as usize)?;
                self.refuse(&request_connection, why);
            }
            Message::Confirm {
                domain,
                number,
                offer,
                direct,
            } => {
                let at = self.make_part_for_peer(peer, domain)?;
                let accepted = &mut self.peers.get_mut(&peer)?.accepted;
                let accepted = accepted.remove(&(domain, number))?;
                self.confirmed(peer, at, number, accepted, (offer, direct));
            }
            // Without its file, which the other daemon had too few descriptors for, or which came over TCP.
            Message::PairMemory { .. } | Message::PairSocket { .. } => return None,
            Message::DirectOver { ends, place } => self.peer_direct_over(peer, ends, place),
            Message::PairOver { ends } => self.pair_over(peer, ends),
            Message::Missed { domain, number } => {
                let at = self.make_part_for_peer(peer, domain)?;
                let missed = self.in_part(at, |part| {
                    // A peer may only name connections whose other end it holds.
                    let group = part.qp_group_of(number);
                    let is_its = group.is_some_and(|group| group.peer == peer.0);
                    if is_its {
                        part.miss(number);
                    }
                    is_its
                });
                if missed == Some(true) {
                    self.abandon_unproven((at, number), Refusal::Unreachable);
                }
            }
            Message::Cancel { domain, number } => {
                let at = self.make_part_for_peer(peer, domain)?;
                let accepted = &mut self.peers.get_mut(&peer)?.accepted;
                let accepted = accepted.remove(&(domain, number))?;
                self.drop_accepted(at, number, accepted);
                self.not_taken(accepted.direct);
            }
        }
        Some(())
    }
}
