//! Sockets of applications.

use headworks_client::socket_message::Reply;
use headworks_net::packets::{Packet, PacketSocket, RecvOutcome};
use rustix::event::epoll;
use std::collections::VecDeque;

use super::subscriptions::SubscriptionRefused;
use super::{BATCH, Inner, Token};
use crate::daemon::OutputFile;
use crate::ids::{SessionId, Tenant};

/// Maximum number of packets queued for an application that does not receive. Beyond it, the application is
/// turned away.
const UNSENT_MAX: usize = 65_536;
/// Maximum number of packets read from an application that does not receive any more. A socket holds fewer.
const LAST_MAX: usize = 4096;

/// A packet, and the file that comes with it.
type Outgoing = (Vec<u8>, Option<OutputFile>);

/// Socket of an application, with the packets that it had no room for.
pub(super) struct Attached {
    pub(super) socket: PacketSocket,
    tenant: Tenant,
    unsent: VecDeque<Outgoing>,
    is_full: bool,
}

impl Inner {
    pub(super) fn greet_applications(&mut self, at: u16) {
        for _ in 0..BATCH {
            let Some(listener) = self.applications.get(usize::from(at)) else {
                return;
            };
            let socket = match listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => return self.pause_accepting("an application cannot attach", &error),
            };
            let tenant = match socket.user() {
                Ok(user) => Tenant { user, socket: at },
                Err(error) => {
                    tracing::warn!("an application cannot attach: {error}");
                    continue;
                }
            };
            // The guard ends here: what follows takes it again.
            let checked = self.subscriptions().check(tenant);
            if let Err(why) = checked {
                report_unwanted(&name_of(&socket), tenant, why);
                let why = why.into();
                // Best effort: the process may not read its socket.
                let _ = socket.send(&Reply::Over { why }.encode(), None);
                self.subscriptions().shed(tenant, socket);
                continue;
            }
            let session = self.daemon.session_up(tenant);
            if self.watch(&socket, Token::Session(session)).is_err() {
                self.daemon.session_gone(session);
                self.subscriptions().close(tenant, socket.into());
                continue;
            }
            let attached = Attached {
                socket,
                tenant,
                unsent: VecDeque::new(),
                is_full: false,
            };
            self.sessions.insert(session, attached);
        }
    }

    pub(super) fn receive_from_session(&mut self, session: SessionId) {
        for _ in 0..BATCH {
            let Some(attached) = self.sessions.get(&session) else {
                return;
            };
            match attached.socket.recv() {
                Ok(RecvOutcome::Packet(packet)) => self.handle_packet(session, packet),
                Ok(RecvOutcome::WouldBlock) => return,
                Ok(RecvOutcome::Closed) => return self.part(session),
                Err(error) => {
                    let process = name_of(&attached.socket);
                    tracing::warn!("{process} is turned away: {error}");
                    return self.part(session);
                }
            }
        }
    }

    pub(super) fn part(&mut self, session: SessionId) {
        self.daemon.session_gone(session);
        self.close_session(session);
    }

    pub(super) fn send(&mut self, session: SessionId, packet: Vec<u8>, file: Option<OutputFile>) {
        let Some(attached) = self.sessions.get_mut(&session) else {
            return;
        };
        attached.unsent.push_back((packet, file));
        self.unsent.insert(session);
        if attached.unsent.len() > UNSENT_MAX {
            let process = name_of(&attached.socket);
            tracing::warn!(
                "{process} is turned away: it has not received {UNSENT_MAX} packets; it is stopped, or hangs, or \
                 does not drive its session"
            );
            self.part(session);
        }
    }

    /// Sends queued packets, as far as sockets have room. Returns whether an application is gone.
    pub(super) fn resend(&mut self) -> bool {
        let mut is_one_gone = false;
        if self.unsent.is_empty() {
            return false;
        }
        for session in std::mem::take(&mut self.unsent) {
            let Some(attached) = self.sessions.get_mut(&session) else {
                continue;
            };
            let was_full = attached.is_full;
            if !attached.flush() {
                self.receive_last_packets(session);
                is_one_gone = true;
                continue;
            }
            let is_full = attached.is_full;
            if is_full {
                self.unsent.insert(session);
            }
            if is_full != was_full
                && let Some(attached) = self.sessions.get(&session)
            {
                self.watch_room(&attached.socket, Token::Session(session), is_full);
            }
        }
        is_one_gone
    }

    /// Handles what an application had sent before it stopped receiving, and then removes it.
    fn receive_last_packets(&mut self, session: SessionId) {
        for _ in 0..LAST_MAX {
            let Some(attached) = self.sessions.get(&session) else {
                return;
            };
            let Ok(RecvOutcome::Packet(packet)) = attached.socket.recv() else {
                break;
            };
            self.handle_packet(session, packet);
        }
        self.part(session);
    }

    fn handle_packet(&mut self, session: SessionId, packet: Packet) {
        let Some(attached) = self.sessions.get(&session) else {
            return;
        };
        let tenant = attached.tenant;
        let taken = self.subscriptions().take(session, tenant, packet.files);
        match taken {
            Ok(watch) => self.daemon.session_packet(session, &packet.bytes, watch),
            Err(why) => {
                report_unwanted(&name_of(&attached.socket), tenant, why);
                self.daemon.session_unwanted(session, why.into());
            }
        }
    }

    /// Sends what an application is still to receive, as far as there is room, and closes its socket.
    pub(super) fn end_session(&mut self, session: SessionId) {
        if let Some(attached) = self.sessions.get_mut(&session) {
            attached.flush();
        }
        self.close_session(session);
    }

    fn close_session(&mut self, session: SessionId) {
        if let Some(attached) = self.sessions.remove(&session) {
            // Another thread closes the socket later, so epoll must forget it now.
            if let Err(error) = epoll::delete(&*self.epoll, &attached.socket) {
                tracing::warn!("a socket cannot be removed from epoll: {error}");
            }
            self.subscriptions()
                .close(attached.tenant, attached.socket.into());
        }
        self.subscriptions().drop_all(session);
    }
}

/// Returns what an application is called in the log. The process id is that of the daemon's PID namespace.
fn name_of(socket: &PacketSocket) -> String {
    match socket.pid() {
        Ok(Some(pid)) => format!("process {pid}"),
        _ => "a process of another PID namespace".to_owned(),
    }
}

fn report_unwanted(process: &str, tenant: Tenant, why: SubscriptionRefused) {
    match why {
        // A log line of its own, since it concerns all of the tenant's processes: lines are limited separately.
        SubscriptionRefused::Left(_) => {
            tracing::warn!(
                "{process} of {tenant} is turned away, like others of this tenant: {why}"
            )
        }
        why => tracing::warn!("{process} of {tenant} is turned away: {why}"),
    }
}

impl Attached {
    /// Sends queued packets as far as there is room. Returns false if the application is gone.
    fn flush(&mut self) -> bool {
        self.is_full = false;
        while let Some((packet, passed)) = self.unsent.front() {
            let file = passed.as_ref().and_then(OutputFile::as_fd);
            if passed.is_some() && file.is_none() {
                tracing::warn!("the device's memory cannot be shared with applications");
                return false;
            }
            match self.socket.send(packet, file) {
                Ok(true) => drop(self.unsent.pop_front()),
                Ok(false) => {
                    self.is_full = true;
                    return true;
                }
                Err(_) => return false,
            }
        }
        true
    }
}
