//! Time limits of connect requests: a host that is silent, or whose daemon is stopped, is given up.

use headworks_client::Reset;
use headworks_client::socket_message::Refusal;
use headworks_verbs::{Duration, Instant};

use super::{Daemon, Output, Peer, PeerId, PeerRoute, SessionId};
use crate::ids::DomainPart;

/// How long the other host has to answer a connect request, dial, introduction and proof of the link included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request of another host waits for a place in a listener's backlog. Shorter than [`CONNECT_TIMEOUT`], so
/// that the other host is answered before it gives up.
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(8);
/// How long another host has to confirm an end that was made for it.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of connect requests without an answer, and of ends without a confirmation, above which the other daemon counts as
/// unreachable. A daemon that lives answers in time.
const GIVEN_UP_MAX: usize = 1 << 16;
/// Client of a connect request that was given up. No session has this number.
const NOBODY: SessionId = SessionId(0);

impl Daemon {
    /// Ends what has waited too long: connect requests without an answer, links that did not come up, requests of other
    /// hosts without a place in a backlog, and ends that were not confirmed.
    pub(super) fn give_up_requests(&mut self) {
        let now = self.now;
        let mut earliest = None;
        let mut is_over = |until: &mut Option<Instant>, limit: Duration| {
            let until = *until.get_or_insert(now + limit);
            let is_over = until <= now;
            if !is_over {
                earliest = Some(earliest.map_or(until, |other: Instant| other.min(until)));
            }
            is_over
        };
        let mut over = Vec::new();
        let mut silent = Vec::new();
        for (address, route) in &mut self.routes {
            if let PeerRoute::Dialing(_, wishes) = route {
                let late = wishes.extract_if(.., |wish| is_over(&mut wish.until, CONNECT_TIMEOUT));
                over.extend(late);
                if wishes.is_empty() {
                    silent.push(*address);
                }
            }
        }
        let mut lost = Vec::new();
        let mut unconfirmed = Vec::new();
        for (peer, of) in &mut self.peers {
            let mut given_up = 0;
            for (_, wish) in &mut of.wishes {
                // The entry stays for the answer that may still come. No client gets that answer.
                if wish.client != NOBODY && is_over(&mut wish.until, CONNECT_TIMEOUT) {
                    over.push(*wish);
                    (wish.client, wish.watch) = (NOBODY, None);
                }
                given_up += usize::from(wish.client == NOBODY);
            }
            for (end, accepted) in &mut of.accepted {
                // The entry stays for the confirmation that may still come, which is answered that it is too late.
                if !accepted.is_dropped && is_over(&mut accepted.until, CONFIRM_TIMEOUT) {
                    let (domain, number) = *end;
                    let at = DomainPart {
                        worker: of.worker,
                        domain,
                    };
                    unconfirmed.push((at, number, *accepted));
                    accepted.is_dropped = true;
                }
                given_up += usize::from(accepted.is_dropped);
            }
            if given_up > GIVEN_UP_MAX {
                lost.push(*peer);
            }
        }
        let mut refused = Vec::new();
        for listener in self.ports.values_mut() {
            for mut request in std::mem::take(&mut listener.requests) {
                match is_over(&mut request.until, BACKLOG_TIMEOUT) {
                    true => refused.push(request),
                    false => listener.requests.push_back(request),
                }
            }
        }
        let mut unproven = Vec::new();
        for (key, connection) in &mut self.unproven {
            if is_over(&mut connection.request.until, CONNECT_TIMEOUT) {
                unproven.push(*key);
            }
        }
        (self.has_new_requests, self.requests_until) = (false, earliest);
        for address in silent {
            self.routes.remove(&address);
            let dialed = |of: &Peer| of.called == Some(address) && of.known.is_none();
            let unanswered = self.peers.iter().filter(|(_, of)| dialed(of));
            let unanswered: Vec<PeerId> = unanswered.map(|(peer, _)| *peer).collect();
            unanswered.into_iter().for_each(|peer| self.drop_call(peer));
        }
        for request_connection in over {
            self.refuse(&request_connection, Refusal::TimedOut);
        }
        self.refuse_incoming(refused, Refusal::TimedOut);
        for (at, number, accepted) in unconfirmed {
            self.drop_accepted(at, number, accepted);
        }
        for key in unproven {
            self.abandon_unproven(key, Refusal::TimedOut);
        }
        for peer in lost {
            self.outputs.push_back(Output::HangUp(peer));
            self.lose(peer, Reset::Unreachable);
        }
    }
}
