//! A descriptor for who polls: this end of a pair of stream sockets, of which the daemon has the other.
//!
//! It is readable while a byte lies in it. The daemon writes one for each time that it rings the connection's bell,
//! which this side armed; this side reads, once there is nothing to be had, as many as the bell has rung before it
//! was armed again, so that none is read that was written for what came since. It is unwritable while this side has
//! filled it; the daemon empties it when it rings the bell for room.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use headworks_client::connection::ConnectionShared;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Bytes that are written at a time where it is to be full.
const FILL: [u8; 4096] = [0; 4096];

/// The application's end.
#[derive(Debug)]
pub(super) struct ReadinessSocket {
    own: Arc<OwnedFd>,
    /// Bytes that the bell has rung for and that were not read: they are there, or on their way.
    bytes: usize,
    /// Whether the bell was armed; if it is not any more, it has rung.
    was_armed: bool,
    is_hung_up: bool,
}

impl ReadinessSocket {
    /// Both ends. The daemon makes this one readable when it gets the other.
    pub(super) fn new_pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // As small as the system has it: it is only ever filled to be full.
        set_socket_send_buffer_size(&own, 1)?;
        let watch = Self {
            own: Arc::new(own),
            bytes: 1,
            was_armed: false,
            is_hung_up: false,
        };
        Ok((watch, other))
    }

    /// The same descriptor, for who asks for the other direction: each keeps its own count.
    pub(super) fn another(&self) -> Self {
        Self {
            own: self.own.clone(),
            bytes: 1,
            was_armed: false,
            is_hung_up: false,
        }
    }

    /// The daemon has closed its end, and says nothing here any more.
    pub(super) fn hang_up(&mut self) {
        self.is_hung_up = true;
    }

    /// Whether it has.
    pub(super) fn is_hung_up(&self) -> bool {
        self.is_hung_up
    }

    /// The descriptor, for as long as somebody sleeps on it.
    pub(super) fn descriptor(&self) -> Arc<OwnedFd> {
        self.own.clone()
    }

    /// Makes it unwritable, until the daemon empties it. Says whether the daemon has it still.
    pub(super) fn fill(&self) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match send(&self.own, &FILL, flags) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return errno == Errno::AGAIN,
            }
        }
    }

    /// Nothing was found to be read: arms the bell, if it is not armed. `true`: it is to be looked once more.
    pub(super) fn arm(&mut self, connection: &ConnectionShared) -> bool {
        let bell = connection.block().bell();
        if self.was_armed && bell.is_armed() {
            return false;
        }
        self.bytes += usize::from(self.was_armed);
        self.was_armed = true;
        bell.arm(false);
        true
    }

    /// Nothing was found although the bell is armed: makes it unreadable, but for what comes from now on. Says whether
    /// the daemon has it still.
    pub(super) fn empty(&mut self) -> bool {
        let mut bytes = [0; 64];
        while self.bytes > 0 {
            let most = self.bytes.min(bytes.len());
            match recv(&self.own, &mut bytes[..most], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok((read, _)) => self.bytes -= read,
                Err(Errno::INTR) => {}
                // They are on their way.
                Err(errno) => return errno == Errno::AGAIN,
            }
        }
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        !matches!(recv(&self.own, &mut bytes[..1], flags), Ok((0, _)))
    }

    /// Reads all that lies in it, where the daemon writes nothing before it is told to. Says whether it has it still.
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

    /// Nothing fits: arms the bell for room, if it is not armed. `true`: it is to be looked once more. Only when it is
    /// [full](Self::fill), so that what the daemon reads when it rings is all that was written.
    pub(super) fn arm_room(connection: &ConnectionShared) -> bool {
        let bell = connection.block().room_bell();
        let was_armed = bell.is_armed();
        if !was_armed {
            bell.arm(false);
        }
        !was_armed
    }
}

impl AsFd for ReadinessSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}
