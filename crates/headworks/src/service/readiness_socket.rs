//! A descriptor for callers that poll: one end of a pair of stream sockets; the daemon has the other.
//!
//! *Readable* while a byte lies in it. Each time the daemon notifies the connection's event count, which this
//! side armed, it writes one byte. When there is nothing to receive, this side reads one byte for each
//! notification before it armed the event count again. So it never reads a byte that was written for later
//! data.
//!
//! *Unwritable* while this side has filled it. The daemon empties it when it notifies the event count for
//! room.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use headworks_client::connection::ConnectionShared;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Bytes that make the socket unwritable: poll(2) finds a Unix socket writable only while the kernel's memory for what was
/// written, which is more than the bytes themselves, is at most a quarter of its buffer. The least buffer, which is
/// asked for, has 4,608 bytes, and the kernel adds more than 500 to each message.
const FILL: [u8; 1024] = [0; 1024];

/// The descriptor of a stream or of a listener, for poll(2), epoll(7) and reactors. Clones are the same descriptor,
/// which stays open until the last of them and the object that it belongs to are dropped.
///
/// Only poll it. Bytes that a program reads from it or writes to it disturb the object's readiness.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<OwnedFd>);

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Readiness {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The application's end of the pair.
#[derive(Debug)]
pub(super) struct ReadinessSocket {
    own: Readiness,
    /// Bytes of past notifications that were not read: they lie in the socket or are on their way.
    bytes: usize,
    /// Whether the event count was armed. If it is armed no more, the daemon has notified it.
    was_armed: bool,
    is_hung_up: bool,
}

impl ReadinessSocket {
    /// Makes both ends. The daemon makes this one readable when it gets the other.
    pub(super) fn new_pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // As small as the system allows: the buffer is only ever filled to make the socket unwritable.
        set_socket_send_buffer_size(&own, 1)?;
        let watch = Self {
            own: Readiness(Arc::new(own)),
            bytes: 1,
            was_armed: false,
            is_hung_up: false,
        };
        Ok((watch, other))
    }

    /// Returns the same descriptor for the other direction; each direction keeps its own count.
    pub(super) fn another(&self) -> Self {
        Self {
            own: self.own.clone(),
            bytes: 1,
            was_armed: false,
            is_hung_up: false,
        }
    }

    /// Records that the daemon has closed its end and signals no more here.
    pub(super) fn hang_up(&mut self) {
        self.is_hung_up = true;
    }

    /// Whether the daemon has closed its end.
    pub(super) fn is_hung_up(&self) -> bool {
        self.is_hung_up
    }

    /// Returns the descriptor.
    pub(super) fn readiness(&self) -> &Readiness {
        &self.own
    }

    /// Makes it unwritable until the daemon empties it. Returns whether the daemon still has its end.
    pub(super) fn fill(&self) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match send(&self.own, &FILL, flags) {
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(errno) => return errno == Errno::AGAIN,
            }
        }
    }

    /// Arms the event count if it is not armed. Call it when there is nothing to read. `true`: look once
    /// more.
    pub(super) fn arm(&mut self, connection: &ConnectionShared) -> bool {
        let event_count = connection.block().event_count();
        if self.was_armed && event_count.is_armed() {
            return false;
        }
        self.bytes += usize::from(self.was_armed);
        self.was_armed = true;
        event_count.arm(false);
        true
    }

    /// Makes it unreadable, until more arrives. Call it when there is nothing to read although the event
    /// count is armed. Returns whether the daemon still has its end.
    pub(super) fn empty(&mut self) -> bool {
        let mut bytes = [0; 64];
        while self.bytes > 0 {
            let most = self.bytes.min(bytes.len());
            match recv(&self.own, &mut bytes[..most], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok((read, _)) => self.bytes -= read,
                Err(Errno::INTR) => {}
                // The bytes are on their way.
                Err(errno) => return errno == Errno::AGAIN,
            }
        }
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        !matches!(recv(&self.own, &mut bytes[..1], flags), Ok((0, _)))
    }

    /// Reads all bytes. For descriptors to which the daemon writes only after a request. Returns whether the
    /// daemon still has its end open.
    pub(super) fn drain_all(&self) -> bool {
        let mut bytes = [0; 64];
        loop {
            match recv(&self.own, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return errno == Errno::AGAIN,
            }
        }
    }

    /// Arms the event count for room if it is not armed. Call it when nothing fits. `true`: look once more.
    /// The socket must be [full](Self::fill), so that the daemon, which empties it when it notifies, reads
    /// every byte.
    pub(super) fn arm_room(connection: &ConnectionShared) -> bool {
        let event_count = connection.block().room_event_count();
        let was_armed = event_count.is_armed();
        if !was_armed {
            event_count.arm(false);
        }
        !was_armed
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_writable(socket: &ReadinessSocket) -> bool {
        let mut fds = [PollFd::new(&socket.own, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())).expect("poll(2)") > 0
    }

    #[test]
    fn one_fill_makes_a_socket_unwritable_until_it_is_emptied() {
        let (own, daemon) = ReadinessSocket::new_pair().expect("a socket pair");
        for _ in 0..3 {
            assert!(is_writable(&own));
            assert!(own.fill());
            assert!(!is_writable(&own));
            // Filled again, it takes no harm.
            assert!(own.fill());
            let mut bytes = [0; 4096];
            let mut read = 0;
            while let Ok((more, _)) = recv(&daemon, &mut bytes, RecvFlags::DONTWAIT) {
                read += more;
            }
            assert!(read >= FILL.len());
        }
        drop(daemon);
        assert!(!own.fill(), "the other end is gone");
    }
}
