//! Daemons of other hosts that are stopped, hang, or are gone without a word.
//!
//! A link does not show that: an RNIC takes WRITEs while its host's daemon is stopped. So the daemons exchange keep-alive
//! messages, but only while something is outstanding. If a daemon still has to react to something after half of the
//! [limit](DaemonLimits::peer_timeout), control sends it a ping on the stream between them, and gives it up if neither a
//! pong nor a frame comes for another half. A pong ends the watch: a daemon that stops after it, while only its
//! application's answer is due, is noticed once something more is sent. Idle daemons are not woken.

use headworks_client::Reset;
use headworks_verbs::{Duration, Instant};

use super::{Daemon, DomainPart, Output, PeerId};
use crate::control::{Message, PING_SINCE};
#[cfg(doc)]
use crate::limits::DaemonLimits;

/// Watch over a daemon that has to react to something.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerWatch {
    /// When to look next.
    at: Instant,
    /// Number of frames that had come from it when it was asked whether it runs; `None` if it was not asked.
    asked: Option<u64>,
}

impl Daemon {
    /// Time between two looks; `None` if other daemons have no limit.
    fn look_every(&self) -> Option<Duration> {
        let seconds = u64::from(self.config.peer_timeout);
        (seconds > 0).then(|| Duration::from_millis(seconds * 500))
    }

    /// Watches a daemon that has to react to something.
    pub(super) fn watch_peer(&mut self, peer: PeerId) {
        let (Some(every), now) = (self.look_every(), self.now) else {
            return;
        };
        let Some(of) = self.peers.get_mut(&peer) else {
            return;
        };
        if of.version >= PING_SINCE && of.watch.is_none() {
            let at = now + every;
            of.watch = Some(PeerWatch { at, asked: None });
            self.watches_until = Some(self.watches_until.map_or(at, |until| until.min(at)));
        }
    }

    /// Looks at the daemons whose time has come.
    pub(super) fn look_at_peers(&mut self) {
        let Some(every) = self.look_every() else {
            return;
        };
        let now = self.now;
        let watched = self
            .peers
            .iter()
            .filter_map(|(peer, of)| Some((*peer, of.watch?)));
        let due: Vec<(PeerId, PeerWatch)> = watched.filter(|(_, watch)| watch.at <= now).collect();
        for (peer, watch) in due {
            let (is_awaited, came) = self.awaited(peer);
            match watch.asked {
                _ if !is_awaited => self.note_alive(peer),
                Some(before) if before == came => {
                    self.give_up_peer(peer);
                }
                // A frame came since, or it was not asked yet.
                _ => {
                    let at = now + every;
                    let asked = Some(came);
                    if let Some(of) = self.peers.get_mut(&peer) {
                        of.watch = Some(PeerWatch { at, asked });
                    }
                    self.say(peer, &Message::Ping);
                }
            }
        }
        let watches = self.peers.values().filter_map(|of| of.watch);
        self.watches_until = watches.map(|watch| watch.at).min();
    }

    /// The parts of domains that carry links to a daemon.
    fn parts_of_peer(&self, peer: PeerId) -> Vec<DomainPart> {
        let worker = self.peers.get(&peer).map(|of| of.worker);
        let parts = worker.into_iter().flat_map(|worker| {
            let domains = self.domains.keys();
            domains.map(move |domain| DomainPart {
                worker,
                domain: *domain,
            })
        });
        parts.collect()
    }

    /// Returns whether a daemon still has to react to something, and how many frames came from it.
    fn awaited(&mut self, peer: PeerId) -> (bool, u64) {
        let mut all = (false, 0);
        for at in self.parts_of_peer(peer) {
            let of_part = self.in_part(at, |part| part.awaited(peer.0));
            let (is_awaited, came) = of_part.unwrap_or_default();
            all = (all.0 | is_awaited, all.1 + came);
        }
        all
    }

    /// Notes that a daemon is alive: it answered, or it has nothing to react to any more.
    pub(super) fn note_alive(&mut self, peer: PeerId) {
        // Before the flags of the parts: what a worker reports from then on begins a new watch.
        if let Some(of) = self.peers.get_mut(&peer) {
            of.watch = None;
        }
        for at in self.parts_of_peer(peer) {
            self.in_part(at, |part| part.note_alive(peer.0));
        }
    }

    fn give_up_peer(&mut self, peer: PeerId) {
        let known = self.peers.get(&peer).and_then(|of| of.known);
        let limit = self.config.peer_timeout;
        if let Some((address, _)) = known {
            tracing::warn!(
                "the daemon of {address} has not reacted for {limit} s and counts as unreachable: look whether it is \
                 stopped; peer_timeout changes the limit"
            );
        }
        self.outputs.push_back(Output::HangUp(peer));
        self.lose(peer, Reset::Unreachable);
    }
}
