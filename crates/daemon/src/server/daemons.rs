//! TCP streams to other daemons.

use std::net::{IpAddr, SocketAddr};

use headworks_client::socket_message::Refusal;
use headworks_net::{ControlStream, NetError, clock, dial_tcp};
use headworks_verbs::Duration;

use super::{BATCH, Inner, ServerMessage, Token};
use crate::control;
use crate::daemon::PeerId;

/// How long another host may take to answer a dial.
const DIAL: Duration = Duration::from_secs(5);

/// Result of a dial, with the address.
pub(super) type Dialed = (IpAddr, Result<ControlStream, NetError>);

impl Inner {
    pub(super) fn greet_daemons(&mut self) {
        // At most BATCH streams are accepted in a turn, so that endless dials do not delay other work.
        for _ in 0..BATCH {
            match self.daemons.try_accept() {
                Ok(Some(control)) => {
                    let peer = self.daemon.peer_up(None);
                    self.meet(peer, control);
                }
                Ok(None) => return,
                Err(error) => {
                    return self.pause_accepting("cannot accept another daemon", &error);
                }
            }
        }
    }

    fn meet(&mut self, peer: PeerId, control: ControlStream) {
        if self.watch(&control, Token::Peer(peer)).is_err() {
            self.daemon.peer_gone(peer);
            return;
        }
        self.peers.insert(peer, control);
    }

    /// Dials another daemon on a thread of its own.
    pub(super) fn dial(&mut self, to: IpAddr) {
        let at = SocketAddr::new(to, self.port).to_string();
        let teller = self.teller.clone();
        let call = move || {
            let control = dial_tcp(&at, clock::now() + DIAL);
            teller.tell(ServerMessage::Dialed((to, control)));
        };
        let name = "headworks-dial".to_owned();
        if let Err(error) = std::thread::Builder::new().name(name).spawn(call) {
            tracing::warn!("cannot start a thread to dial another daemon: {error}");
            self.daemon.dial_failed(to, Refusal::Unreachable);
        }
    }

    pub(super) fn take_dialed(&mut self, (to, control): Dialed) {
        match control {
            Ok(control) => {
                let peer = self.daemon.peer_up(Some(to));
                self.meet(peer, control);
            }
            Err(error) => {
                tracing::info!("no daemon answers at {to}: {error}");
                let why = match error {
                    NetError::Deadline { .. } => Refusal::TimedOut,
                    _ => Refusal::Unreachable,
                };
                self.daemon.dial_failed(to, why);
            }
        }
    }

    pub(super) fn receive_from_peer(&mut self, peer: PeerId) {
        for _ in 0..BATCH {
            let Some(control) = self.peers.get_mut(&peer) else {
                return;
            };
            match control.recv_control() {
                Ok(Some(message)) if message.len() <= control::MESSAGE_MAX => {
                    self.daemon.peer_message(peer, &message);
                }
                Ok(None) => return,
                Ok(Some(_)) | Err(_) => return self.lose(peer),
            }
            self.apply();
        }
        // The stream may have buffered more messages in this process. No event of its descriptor reports them.
        self.half_heard.insert(peer);
    }

    /// Continues with the peers whose last batch was full (`half_heard`). Returns whether there were any.
    pub(super) fn receive_rest(&mut self) -> bool {
        if self.half_heard.is_empty() {
            return false;
        }
        let peers = std::mem::take(&mut self.half_heard);
        peers.iter().for_each(|peer| self.receive_from_peer(*peer));
        true
    }

    pub(super) fn say(&mut self, peer: PeerId, message: &[u8]) {
        let Some(control) = self.peers.get_mut(&peer) else {
            return;
        };
        match control.send_control(message) {
            Ok(()) => drop(self.unsaid.insert(peer)),
            Err(error) => {
                tracing::warn!("cannot send a message to another daemon: {error}");
                self.lose(peer);
            }
        }
    }

    fn lose(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.unsaid.remove(&peer);
        self.daemon.peer_gone(peer);
    }

    /// Flushes the streams that have queued messages, as far as the sockets have room.
    pub(super) fn resay(&mut self) {
        if self.unsaid.is_empty() {
            return;
        }
        for peer in std::mem::take(&mut self.unsaid) {
            let Some(control) = self.peers.get_mut(&peer) else {
                continue;
            };
            let flushed = control.flush();
            let Some(control) = self.peers.get(&peer) else {
                continue;
            };
            match flushed {
                Ok(is_empty) => {
                    self.watch_room(control, Token::Peer(peer), !is_empty);
                    if !is_empty {
                        self.unsaid.insert(peer);
                    }
                }
                Err(_) => self.lose(peer),
            }
        }
    }
}
