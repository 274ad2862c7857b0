//! Ending: a daemon that takes nothing new, and one that gives up what is left.

use headworks_client::Reset;
use headworks_client::socket_message::{Refusal, Reply};

use super::{Daemon, Output, PeerId, SessionId};
use crate::control::Message;

impl Daemon {
    /// Takes nothing new from now on: applications cannot attach, connect or listen, and other hosts find nobody who
    /// listens. Connections that there are go on.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Ends of connections that there are.
    pub fn ends(&self) -> usize {
        self.object_counts()
            .map(|(_, census)| census.connections)
            .sum()
    }

    /// Whether nobody has a connection, or waits for one.
    pub fn is_drained(&self) -> bool {
        let has_wishes = self.clients.values().any(|client| client.wishes > 0);
        !has_wishes && self.ends() == 0
    }

    /// Gives up what is left: applications and other daemons are told that this one stops, and what they have of it
    /// is reset for that reason.
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
