//! Time limit of connect requests: a host that is silent, or whose daemon is stopped, is given up.

use headworks_client::Reset;
use headworks_client::socket_message::Refusal;
use headworks_verbs::{Duration, Instant};

use super::{Daemon, Output, Peer, PeerId, PeerRoute, PendingConnect, SessionId};

/// How long the other host has to answer a connect request, dial and introduction included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of unanswered connect requests from which the other daemon counts as unreachable.
const GIVEN_UP_MAX: usize = 1000;
/// Client of a connect request that was given up. No session has this number.
const NOBODY: SessionId = SessionId(0);

impl Daemon {
    /// Refuses the connect requests that nobody has answered within [`CONNECT_TIMEOUT`], and those whose link did not
    /// come up: the other host is silent, or its daemon is stopped.
    pub(super) fn give_up_requests(&mut self) {
        let (now, limit) = (self.now, self.now + CONNECT_TIMEOUT);
        let mut earliest = None;
        let mut is_over = |request: &mut PendingConnect| {
            let until = *request.until.get_or_insert(limit);
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
                over.extend(wishes.extract_if(.., |wish| is_over(wish)));
                if wishes.is_empty() {
                    silent.push(*address);
                }
            }
        }
        let mut lost = Vec::new();
        for (peer, of) in &mut self.peers {
            let mut given_up = 0;
            for (_, wish) in &mut of.wishes {
                // The entry stays for the answer that may still come. No client gets that answer.
                if wish.client != NOBODY && is_over(wish) {
                    over.push(*wish);
                    (wish.client, wish.watch) = (NOBODY, None);
                }
                given_up += usize::from(wish.client == NOBODY);
            }
            if given_up > GIVEN_UP_MAX {
                lost.push(*peer);
            }
        }
        let mut links = Vec::new();
        for (key, connection) in &mut self.unproven {
            if is_over(&mut connection.request) {
                links.push(*key);
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
        for key in links {
            self.abandon_unproven(key, Refusal::TimedOut);
        }
        for peer in lost {
            self.outputs.push_back(Output::HangUp(peer));
            self.lose(peer, Reset::Unreachable);
        }
    }
}
