//! Daemons of other hosts that are stopped, hang, or are gone without a word.
//!
//! A link does not show that: an RNIC takes WRITEs while its host's daemon is stopped. So the daemons exchange keep-alive
//! messages, but only while something is outstanding. If a daemon still has to react to something after half of the
//! [limit](DaemonLimits::peer_timeout), control sends it a ping on the stream between them, and gives it up if neither a
//! pong nor a frame comes for the whole limit. Control looks every half of the limit, so a daemon is given up after one
//! to one and a half times the limit of silence. A pong ends the watch: a daemon that stops after it, while only its
//! application's answer is due, is noticed once something more is sent. Idle daemons are not woken.

use headworks_client::Reset;
use headworks_verbs::{Duration, Instant};

use super::{Daemon, DomainPart, Output, PeerId};
use crate::control::Message;
#[cfg(doc)]
use crate::limits::DaemonLimits;

/// Watch over a daemon that has to react to something. Pure: see [`look`](Self::look).
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerWatch {
    /// When to look next.
    at: Instant,
    /// The last sign of life; `None` if the daemon was not asked yet whether it runs.
    last: Option<LastSign>,
}

/// The last sign of life of a daemon that is asked whether it runs.
#[derive(Clone, Copy, Debug)]
struct LastSign {
    /// Number of frames that had come from it.
    came: u64,
    /// When this number was found.
    at: Instant,
}

impl PeerWatch {
    /// Begins a watch that looks `every` so often, half of the limit.
    fn new(now: Instant, every: Duration) -> Self {
        Self {
            at: now + every,
            last: None,
        }
    }

    /// Looks at a daemon that still has to react to something, and from which `came` frames came in total. Returns
    /// whether it has been silent for the whole limit. Otherwise it is to be asked whether it runs.
    fn look(&mut self, now: Instant, every: Duration, came: u64) -> bool {
        // Its silence begins now if a frame came since the last look, or if it was not asked before.
        let last = self.last.filter(|last| last.came == came);
        let last = last.unwrap_or(LastSign { came, at: now });
        (self.at, self.last) = (now + every, Some(last));
        now.since(last.at) >= every + every
    }
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
        if of.watch.is_none() {
            let watch = PeerWatch::new(now, every);
            let until = self.watches_until.unwrap_or(watch.at);
            (of.watch, self.watches_until) = (Some(watch), Some(until.min(watch.at)));
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
        for (peer, mut watch) in due {
            let (is_awaited, came) = self.awaited(peer);
            if !is_awaited {
                self.note_alive(peer);
            } else if watch.look(now, every, came) {
                self.give_up_peer(peer);
            } else {
                if let Some(of) = self.peers.get_mut(&peer) {
                    of.watch = Some(watch);
                }
                self.say(peer, &Message::Ping);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVERY: Duration = Duration::from_millis(500);

    proptest! {
        /// Frames come steadily until the daemon stops. It is given up after one to one and a half times the limit,
        /// whenever it stops, and however late control looks.
        #[test]
        fn it_is_given_up_after_the_limit_and_not_before(
            stops_after in 0u64..10_000,
            frame_every in 1u64..400,
            late in 0u64..20,
        ) {
            let begin = Instant::ZERO + Duration::from_millis(7);
            let stops = begin + Duration::from_millis(stops_after);
            let mut watch = PeerWatch::new(begin, EVERY);
            let given_up = loop {
                let now = watch.at + Duration::from_millis(late);
                let ran = now.min(stops).since(begin);
                if watch.look(now, EVERY, ran.nanos() / 1_000_000 / frame_every) {
                    break now;
                }
            };
            let last_frame = begin + Duration::from_millis(stops_after / frame_every * frame_every);
            let silent = given_up.since(last_frame).nanos() / 1_000_000;
            prop_assert!(silent >= 1000, "{silent} ms");
            // It may stop right after the watch began, which looks for the first time after half of the limit.
            prop_assert!(silent <= 1500 + 3 * late + frame_every, "{silent} ms");
        }
    }
}
