//! Streams to other daemons: over TCP, and over Unix sockets to daemons of this machine that are in the same
//! registry.

use std::io;
use std::net::{IpAddr, SocketAddr};

use headworks_client::socket_message::Refusal;
use headworks_net::{ControlStream, NetError, clock, dial_tcp};
use headworks_verbs::Duration;
use rustix::io::Errno;

use super::{BATCH, Inner, ServerMessage, Token};
use crate::control::{self, Message};
use crate::daemon::OutputFile;
use crate::ids::PeerId;

/// How long another host may take to answer a dial.
const DIAL: Duration = Duration::from_secs(5);

/// How long a daemon of this machine may take to accept a dial.
const LOCAL_DIAL: std::time::Duration = std::time::Duration::from_secs(1);

/// Returns the name in the registry of the daemon at `address`.
pub(super) fn local_name(address: SocketAddr) -> String {
    let ip = address.ip().to_string().replace(':', "-");
    format!("daemon.{ip}.{}", address.port())
}

/// Result of a dial, with the address.
pub(super) type Dialed = (IpAddr, Result<ControlStream, NetError>);

impl Inner {
    /// Accepts other daemons: those of this machine, or those that call over the network.
    pub(super) fn greet_daemons(&mut self, is_local: bool) {
        // At most BATCH streams are accepted in a turn, so that endless dials do not delay other work.
        for _ in 0..BATCH {
            let accepted = match (is_local, &self.local_daemons) {
                (false, _) => self.daemons.try_accept(),
                (true, Some(listener)) => listener.try_accept(),
                (true, None) => return,
            };
            match accepted {
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
        if control.is_local() {
            self.daemon.peer_is_local(peer);
        }
        if self.watch(&control, Token::Peer(peer)).is_err() {
            self.daemon.peer_gone(peer);
            return;
        }
        self.peers.insert(peer, control);
    }

    /// Dials another daemon on a thread of its own.
    pub(super) fn dial(&mut self, to: IpAddr) {
        let at = SocketAddr::new(to, self.port);
        let (teller, registry) = (self.teller.clone(), self.registry.clone());
        let call = move || {
            // A daemon of this machine may be in another network namespace, where its address leads elsewhere.
            let local = registry.and_then(|registry| {
                registry
                    .connect_name_within(&local_name(at), LOCAL_DIAL)
                    .ok()
            });
            let control = match local {
                Some(stream) => ControlStream::from_unix(stream),
                None => dial_tcp(&at.to_string(), clock::now() + DIAL),
            };
            teller.tell(ServerMessage::Dialed(Box::new((to, control))));
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
                let why = dial_refusal(&error);
                match why {
                    Refusal::Limit => {
                        tracing::warn!("cannot dial {to}: {error}; raise the limit of open files");
                    }
                    _ => tracing::info!("no daemon answers at {to}: {error}"),
                }
                self.daemon.dial_failed(to, why);
            }
        }
    }

    /// Handles a batch of messages. What they cause goes out together, with the next [`apply`](Self::apply).
    pub(super) fn receive_from_peer(&mut self, peer: PeerId) {
        for _ in 0..BATCH {
            let Some(control) = self.peers.get_mut(&peer) else {
                return;
            };
            match control.recv_control() {
                Ok(Some(message)) if message.len() <= control::MESSAGE_MAX => {
                    match Message::carries_file(&message) {
                        true => match control.take_file() {
                            Some(file) => self.daemon.peer_file(peer, &message, file),
                            // The process has too few descriptors, and the file is lost.
                            None => {
                                tracing::warn!(
                                    "a file of another daemon is lost; raise the limit of open files"
                                );
                                self.daemon.file_not_received(peer, &message);
                            }
                        },
                        false => self.daemon.peer_message(peer, &message),
                    }
                }
                Ok(None) => return,
                Ok(Some(_)) | Err(_) => return self.lose(peer),
            }
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
        match control.queue_control(message) {
            Ok(()) => drop(self.unsaid.insert(peer)),
            Err(error) => {
                // A daemon that stops says farewell also to itself, and to others that stop too.
                match self.is_ending {
                    true => tracing::debug!("cannot send a farewell to another daemon: {error}"),
                    false => tracing::warn!("cannot send a message to another daemon: {error}"),
                }
                self.lose(peer);
            }
        }
    }

    pub(super) fn say_with_file(&mut self, peer: PeerId, message: &[u8], file: &OutputFile) {
        let Some(control) = self.peers.get_mut(&peer) else {
            return;
        };
        let file = file.as_fd().and_then(|file| file.try_clone_to_owned().ok());
        let Some(file) = file else {
            tracing::warn!(
                "a file cannot be passed to another daemon; raise the limit of open files"
            );
            self.daemon.file_not_passed(peer, message);
            return;
        };
        match control.send_control_with_file(message, file) {
            Ok(()) => drop(self.unsaid.insert(peer)),
            Err(error) => {
                tracing::warn!("cannot pass a file to another daemon: {error}");
                self.lose(peer);
            }
        }
    }

    fn lose(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.unsaid.remove(&peer);
        self.full.remove(&peer);
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
                    if is_empty == self.full.contains(&peer) {
                        self.watch_room(control, Token::Peer(peer), !is_empty);
                    }
                    match is_empty {
                        true => drop(self.full.remove(&peer)),
                        false => {
                            self.unsaid.insert(peer);
                            self.full.insert(peer);
                        }
                    }
                }
                Err(_) => self.lose(peer),
            }
        }
    }
}

/// Returns what an application is told of a dial that failed.
fn dial_refusal(error: &NetError) -> Refusal {
    let lacks_files = |source: &io::Error| {
        let errno = Errno::from_io_error(source);
        matches!(errno, Some(Errno::MFILE | Errno::NFILE))
    };
    match error {
        NetError::Deadline { .. } => Refusal::TimedOut,
        NetError::System { source, .. } if lacks_files(source) => Refusal::Limit,
        _ => Refusal::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_not_blamed_on_the_other_host() {
        let system = |errno: Errno| NetError::System {
            what: "a socket",
            source: errno.into(),
        };
        assert_eq!(dial_refusal(&system(Errno::MFILE)), Refusal::Limit);
        assert_eq!(dial_refusal(&system(Errno::NFILE)), Refusal::Limit);
        assert_eq!(dial_refusal(&system(Errno::NOBUFS)), Refusal::Unreachable);
    }
}
