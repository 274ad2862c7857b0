//! Sockets for messages.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

use headworks::service::Datagrams;

use crate::error::{Error, system};
use crate::handle::{Handle, Kind, WaitFor, WaitMode, locked};
use crate::library;

/// A port that sends and receives messages. No call on it blocks.
pub(crate) struct Socket {
    datagrams: Mutex<Datagrams>,
    address: SocketAddr,
    /// Readable when a send that found no room may succeed.
    room: OwnedFd,
}

impl Socket {
    /// The address of the port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn room(&self) -> &OwnedFd {
        &self.room
    }
}

/// Binds a socket for messages to a port of this host.
pub(crate) fn bind(at: SocketAddr, is_nonblocking: bool) -> Result<RawFd, Error> {
    let service = library::service()?;
    let mut socket = service.bind_at(at)?;
    let address = socket.local_addr()?;
    socket.set_nonblocking(true);
    let number = socket.fd().as_raw_fd();
    let room = socket
        .room_fd()
        .try_clone_to_owned()
        .map_err(system("a descriptor"))?;
    let datagrams = Mutex::new(socket);
    let kind = Kind::Socket(Box::new(Socket {
        datagrams,
        address,
        room,
    }));
    Ok(Handle::new(kind, number, is_nonblocking).open())
}

impl Handle {
    pub(crate) fn socket(&self) -> Result<&Socket, Error> {
        match self.kind() {
            Kind::Socket(socket) => Ok(socket),
            Kind::Port(_) | Kind::Connection(_) | Kind::Poller(_) => Err(Error::NotOfThisKind),
        }
    }

    /// Sends a message. If the call may wait, it waits until the whole message is on its way.
    pub(crate) fn send_to(
        &self,
        bytes: &[u8],
        to: SocketAddr,
        waits: WaitMode,
    ) -> Result<(), Error> {
        let socket = self.socket()?;
        self.wait(WaitFor::Room, waits, || {
            Ok(locked(&socket.datagrams).send_to(bytes, to)?)
        })?;
        // An accepted message is never lost: if this call may not wait, later calls send the rest. This call
        // flushes only messages to `to`.
        let flush = || Ok(locked(&socket.datagrams).flush_to(to)?);
        match self.wait(WaitFor::Room, waits, flush) {
            Err(error) if error.would_block() => Ok(()),
            done => done,
        }
    }

    /// Receives a message, as much of it as fits. Returns the number of bytes received, and the sender's
    /// address.
    pub(crate) fn recv_from(
        &self,
        into: &mut [u8],
        waits: WaitMode,
    ) -> Result<(usize, SocketAddr), Error> {
        let socket = self.socket()?;
        self.wait(WaitFor::In, waits, || {
            let (len, from) = locked(&socket.datagrams).recv_from(into)?;
            Ok((len.min(into.len()), from))
        })
    }

    /// Address, length and sender of a message, which stays in place until it is released.
    pub(crate) fn show_from(
        &self,
        waits: WaitMode,
    ) -> Result<(*const u8, usize, SocketAddr), Error> {
        let socket = self.socket()?;
        self.wait(WaitFor::In, waits, || {
            let mut socket = locked(&socket.datagrams);
            let (message, from) = socket.peek_from()?;
            Ok((message.as_ptr(), message.len(), from))
        })
    }

    /// Releases the message that was shown.
    pub(crate) fn release_message(&self) -> Result<(), Error> {
        Ok(locked(&self.socket()?.datagrams).consume()?)
    }
}
