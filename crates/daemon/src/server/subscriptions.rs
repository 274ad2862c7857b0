//! The descriptors by which applications are told of what they poll for: the daemon's ends of pairs of stream sockets.
//!
//! A byte that was written and not read makes the other end readable, what was written there and not read makes it
//! unwritable, and closing hangs it up. Nothing is ever waited for here: what an application handed over that is none
//! of that, and whatever lies in it, is closed by [others](super::close_queue).

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use headworks_client::socket_message::Refusal;
use headworks_net::packets::{PacketSocket, RecvOutcome, recv_with_fds};
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketType, send, shutdown};

use super::close_queue::CloseQueue;
use crate::daemon::{SessionId, Signal, WatchId};

/// Reads in a row, and bytes of each, of what makes a descriptor unwritable: an honest application fills a small
/// buffer once.
const READS: usize = 16;
const READ: usize = 4096;

/// Descriptors, and whose they are.
#[derive(Default)]
pub(super) struct Subscriptions {
    all: HashMap<WatchId, Subscription>,
    last: u64,
    closers: CloseQueue,
}

struct Subscription {
    session: SessionId,
    user: u32,
    file: OwnedFd,
}

/// Why an application is to hand over nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SubscriptionRefused {
    /// There is one descriptor to a connection.
    #[error("it handed over {0} files at once")]
    Many(usize),
    /// It is nothing that a pair is made of.
    #[error("what it handed over is no Unix stream socket")]
    Kind,
    /// They close slowly, or are too many at once.
    #[error("{0} files that this user's applications handed over are not closed yet")]
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
    /// Keeps the descriptor that came with a packet of a user's, if one did.
    ///
    /// # Errors
    ///
    /// [`SubscriptionRefused`]: the session is to end.
    pub(super) fn take(
        &mut self,
        session: SessionId,
        user: u32,
        mut files: Vec<OwnedFd>,
    ) -> Result<Option<WatchId>, SubscriptionRefused> {
        let unwanted = match &files[..] {
            [] => return Ok(None),
            [file] if !is_stream(file) => Some(SubscriptionRefused::Kind),
            [_] => self.check(user).err(),
            many => Some(SubscriptionRefused::Many(many.len())),
        };
        if let Some(unwanted) = unwanted {
            files
                .into_iter()
                .for_each(|file| self.closers.close(user, file));
            return Err(unwanted);
        }
        let watches = files.pop().map(|file| {
            self.last += 1;
            let watch = Subscription {
                session,
                user,
                file,
            };
            self.all.insert(WatchId(self.last), watch);
            WatchId(self.last)
        });
        Ok(watches)
    }

    /// Whether more of a user's may be taken, all of which is to be closed one day.
    ///
    /// # Errors
    ///
    /// [`SubscriptionRefused::Left`].
    pub(super) fn check(&self, user: u32) -> Result<(), SubscriptionRefused> {
        let left = self.closers.is_full(user);
        left.map_or(Ok(()), |left| Err(SubscriptionRefused::Left(left)))
    }

    /// Hangs up a socket that an application of a user has the other end of.
    pub(super) fn close(&mut self, user: u32, socket: OwnedFd) {
        // Seen at once, whenever it is closed.
        let _ = shutdown(&socket, Shutdown::Both);
        self.closers.close(user, socket);
    }

    /// Closes the socket of a caller of whose user no more is taken: here, unless a file lies in it, so that who calls
    /// again and again leaves nothing.
    pub(super) fn shed(&mut self, user: u32, socket: PacketSocket) {
        // From now on nothing more comes to lie there.
        let _ = shutdown(&socket, Shutdown::Both);
        for _ in 0..READS {
            match socket.recv() {
                Ok(RecvOutcome::Packet(packet)) if packet.files.is_empty() => {}
                Ok(RecvOutcome::Packet(packet)) => {
                    let files = packet.files.into_iter();
                    files.for_each(|file| self.closers.close(user, file));
                    break;
                }
                Ok(RecvOutcome::Closed) => return,
                Ok(RecvOutcome::WouldBlock) | Err(_) => break,
            }
        }
        self.closers.close(user, socket.into());
    }

    /// Has something be seen at the other end.
    pub(super) fn signal(&mut self, watch: WatchId, signal: Signal) {
        let Some(Subscription { user, file, .. }) = self.all.get(&watch) else {
            return;
        };
        match signal {
            Signal::Readable => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                // One that is full is readable; one that is none, or is gone, is the application's own affair.
                let _ = send(file, &[0], flags);
            }
            Signal::Writable => {
                let mut bytes = [0; READ];
                for _ in 0..READS {
                    match recv_with_fds(file, &mut bytes) {
                        Ok((read, files, _)) if read > 0 => {
                            files
                                .into_iter()
                                .for_each(|file| self.closers.close(*user, file));
                        }
                        _ => break,
                    }
                }
            }
            Signal::HungUp => self.hang_up(watch),
        }
    }

    fn hang_up(&mut self, watch: WatchId) {
        if let Some(Subscription { user, file, .. }) = self.all.remove(&watch) {
            self.close(user, file);
        }
    }

    /// An application is gone.
    pub(super) fn drop_all(&mut self, session: SessionId) {
        let of = self.all.iter().filter(|(_, one)| one.session == session);
        let of: Vec<WatchId> = of.map(|(watch, _)| *watch).collect();
        of.into_iter().for_each(|watch| self.hang_up(watch));
    }
}

/// Whether it is a socket of the kind that a pair is made of.
fn is_stream(file: &OwnedFd) -> bool {
    socket_domain(file) == Ok(AddressFamily::UNIX) && socket_type(file) == Ok(SocketType::STREAM)
}
