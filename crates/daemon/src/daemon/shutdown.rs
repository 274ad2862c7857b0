//! Shutdown: draining, and stopping.

use headworks_client::Reset;
use headworks_client::socket_message::{Refusal, Reply};

use super::{Daemon, IncomingRequest, Output, PeerId, SessionId};
use crate::control::Message;

impl Daemon {
    /// Stops accepting anything new: applications cannot attach, connect or listen, and connections from
    /// other hosts are refused. Existing connections go on.
    pub fn drain(&mut self) {
        self.is_draining = true;
        let listeners = self.ports.values_mut();
        let waiting = listeners.flat_map(|listener| std::mem::take(&mut listener.requests));
        let waiting: Vec<IncomingRequest> = waiting.collect();
        self.refuse_incoming(waiting, Refusal::Stopping);
    }

    /// Returns the number of ends of connections.
    pub fn ends(&self) -> usize {
        self.object_counts()
            .map(|(_, object_counts)| object_counts.connections)
            .sum()
    }

    /// Returns whether no connection is left and no application waits for one.
    pub fn is_drained(&self) -> bool {
        let has_wishes = self.clients.values().any(|client| client.wishes > 0);
        !has_wishes && self.ends() == 0
    }

    /// Ends everything that is left: tells applications and other daemons that this daemon stops, and resets
    /// all connections for that reason.
    pub fn stop(&mut self) {
        self.is_draining = true;
        let sessions: Vec<SessionId> = self.clients.keys().copied().collect();
        for session in sessions {
            self.flush(session);
            let why = Refusal::Stopping;
            self.send(session, Reply::Over { why }.encode(), None);
            self.outputs.push_back(Output::EndSession(session));
            self.part(session, Reset::Stopping);
        }
        let peers: Vec<PeerId> = self.peers.keys().copied().collect();
        for peer in peers {
            let why = Refusal::Stopping;
            self.say(peer, &Message::Goodbye { why });
            self.outputs.push_back(Output::HangUp(peer));
            self.lose(peer, Reset::Stopping);
        }
    }
}
