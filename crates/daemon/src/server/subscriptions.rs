//! Descriptors that the daemon makes readable when an application's poll condition holds: the daemon's ends
//! of pairs of stream sockets.
//!
//! A byte that the daemon writes makes the application's end readable. Bytes that the application has written
//! make its own end unwritable until the daemon reads them. Closing hangs up. Nothing here ever blocks. Files
//! that an application handed over, and files inside sockets, are closed by [other
//! threads](super::close_queue).

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use headworks_client::socket_message::Refusal;
use headworks_net::packets::{PacketSocket, RecvOutcome};
use headworks_shm::descriptor_passing;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketType, send, shutdown};

use super::close_queue::CloseQueue;
use crate::ids::{SessionId, Signal, Tenant, WatchId};

/// Maximum number of reads in a row that make a descriptor writable again, of `READ` bytes each. A correct
/// application fills a small buffer once.
const READS: usize = 16;
const READ: usize = 4096;

/// Descriptors that applications handed over, and their owners.
pub(super) struct Subscriptions {
    all: HashMap<WatchId, Subscription>,
    last: u64,
    closers: CloseQueue,
}

struct Subscription {
    session: SessionId,
    tenant: Tenant,
    file: OwnedFd,
}

/// Reason to accept nothing more from an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SubscriptionRefused {
    /// A packet carried more than one descriptor.
    #[error("it handed over {0} files at once, and one is allowed")]
    Many(usize),
    /// The descriptor is no end of a stream socket pair.
    #[error("the file that it handed over is no Unix stream socket")]
    Kind,
    /// Too many of the tenant's files are not closed: they close slowly, or came all at once.
    #[error("{0} files that this tenant's applications handed over are not closed yet")]
    Left(usize),
}

impl From<SubscriptionRefused> for Refusal {
    fn from(why: SubscriptionRefused) -> Self {
        match why {
            SubscriptionRefused::Many(_) | SubscriptionRefused::Kind => Self::Misuse,
            SubscriptionRefused::Left(_) => Self::Limit,
        }
    }
}

impl Subscriptions {
    /// Creates the table of a daemon with this many sockets.
    pub(super) fn new(sockets: usize) -> Self {
        Self {
            all: HashMap::new(),
            last: 0,
            closers: CloseQueue::new(sockets),
        }
    }

    /// Keeps the descriptor that came with a packet, if one did.
    ///
    /// # Errors
    ///
    /// [`SubscriptionRefused`]: the session must end.
    pub(super) fn take(
        &mut self,
        session: SessionId,
        tenant: Tenant,
        mut files: Vec<OwnedFd>,
    ) -> Result<Option<WatchId>, SubscriptionRefused> {
        let unwanted = match &files[..] {
            [] => return Ok(None),
            [file] if !is_stream(file) => Some(SubscriptionRefused::Kind),
            [_] => self.check(tenant).err(),
            many => Some(SubscriptionRefused::Many(many.len())),
        };
        if let Some(unwanted) = unwanted {
            files
                .into_iter()
                .for_each(|file| self.closers.close(tenant, file));
            return Err(unwanted);
        }
        let subscriptions = files.pop().map(|file| {
            self.last += 1;
            let watch = Subscription {
                session,
                tenant,
                file,
            };
            self.all.insert(WatchId(self.last), watch);
            WatchId(self.last)
        });
        Ok(subscriptions)
    }

    /// Checks whether the daemon may accept more descriptors of a tenant, all of which it has to close one day.
    ///
    /// # Errors
    ///
    /// [`SubscriptionRefused::Left`].
    pub(super) fn check(&self, tenant: Tenant) -> Result<(), SubscriptionRefused> {
        let left = self.closers.is_full(tenant);
        left.map_or(Ok(()), |left| Err(SubscriptionRefused::Left(left)))
    }

    /// Hangs up a socket whose other end a tenant's application has.
    pub(super) fn close(&mut self, tenant: Tenant, socket: OwnedFd) {
        // The other end sees the shutdown at once, whenever the socket is closed.
        let _ = shutdown(&socket, Shutdown::Both);
        self.closers.close(tenant, socket);
    }

    /// Closes the socket of a caller whose tenant may hand over no more. If no file lies in it, it is closed
    /// here, so that repeated calls leave nothing behind.
    pub(super) fn shed(&mut self, tenant: Tenant, socket: PacketSocket) {
        // After the shutdown nothing more can arrive in the socket.
        let _ = shutdown(&socket, Shutdown::Both);
        for _ in 0..READS {
            match socket.recv() {
                Ok(RecvOutcome::Packet(packet)) if packet.files.is_empty() => {}
                Ok(RecvOutcome::Packet(packet)) => {
                    let files = packet.files.into_iter();
                    files.for_each(|file| self.closers.close(tenant, file));
                    break;
                }
                Ok(RecvOutcome::Closed) => return,
                Ok(RecvOutcome::WouldBlock) | Err(_) => break,
            }
        }
        self.closers.close(tenant, socket.into());
    }

    /// Makes a state change visible at the other end.
    pub(super) fn signal(&mut self, watch: WatchId, signal: Signal) {
        let Some(Subscription { tenant, file, .. }) = self.all.get(&watch) else {
            return;
        };
        match signal {
            Signal::Readable => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                // A full socket is readable already. A failed one concerns only the application.
                let _ = send(file, &[0], flags);
            }
            Signal::Writable => {
                let mut bytes = [0; READ];
                for _ in 0..READS {
                    match descriptor_passing::receive(file, &mut bytes) {
                        Ok(came) if came.len > 0 => {
                            let is_last = came.len < READ && came.descriptors.is_empty();
                            came.descriptors
                                .into_iter()
                                .for_each(|file| self.closers.close(*tenant, file));
                            if is_last {
                                break;
                            }
                        }
                        _ => break,
                    }
                }
            }
            Signal::HungUp => self.hang_up(watch),
        }
    }

    fn hang_up(&mut self, watch: WatchId) {
        if let Some(Subscription { tenant, file, .. }) = self.all.remove(&watch) {
            self.close(tenant, file);
        }
    }

    /// Hangs up all descriptors of an application that is gone.
    pub(super) fn drop_all(&mut self, session: SessionId) {
        let of = self.all.iter().filter(|(_, one)| one.session == session);
        let of: Vec<WatchId> = of.map(|(watch, _)| *watch).collect();
        of.into_iter().for_each(|watch| self.hang_up(watch));
    }
}

/// Returns whether a file is a Unix stream socket.
fn is_stream(file: &OwnedFd) -> bool {
    socket_domain(file) == Ok(AddressFamily::UNIX) && socket_type(file) == Ok(SocketType::STREAM)
}
