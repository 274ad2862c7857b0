//! Sockets for messages, from and to many.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

use headworks::service::Datagrams;

use crate::error::{Error, system};
use crate::handle::{Handle, Kind, Waits, Way, locked};
use crate::library;

/// A port that messages are sent from and come to, which blocks nobody.
pub(crate) struct Socket {
    datagrams: Mutex<Datagrams>,
    /// Readable when it may be tried again to send.
    room: OwnedFd,
}

impl Socket {
    /// Where it is: the daemon's address is not known here.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, locked(&self.datagrams).port()))
    }

    pub(crate) fn room(&self) -> &OwnedFd {
        &self.room
    }
}

/// Has messages come to a port of this host's.
pub(crate) fn bind(at: SocketAddr, is_nonblocking: bool) -> Result<RawFd, Error> {
    if !at.ip().is_unspecified() {
        return Err(Error::Elsewhere);
    }
    let mut socket = library::service()?.bind(at.port())?;
    socket.set_nonblocking(true);
    let number = socket.fd().as_raw_fd();
    let room = socket
        .room_fd()
        .try_clone_to_owned()
        .map_err(system("a descriptor"))?;
    let datagrams = Mutex::new(socket);
    let kind = Kind::Socket(Box::new(Socket { datagrams, room }));
    Ok(Handle::new(kind, number, is_nonblocking).open())
}

impl Handle {
    fn socket(&self) -> Result<&Socket, Error> {
        match self.kind() {
            Kind::Socket(socket) => Ok(socket),
            Kind::Port(_) | Kind::Connection(_) => Err(Error::NotOfThisKind),
        }
    }

    /// Sends a message; where it waits, until all of it is on its way.
    pub(crate) fn send_to(&self, bytes: &[u8], to: SocketAddr, waits: Waits) -> Result<(), Error> {
        let socket = self.socket()?;
        self.wait(Way::Room, waits, || {
            Ok(locked(&socket.datagrams).send_to(bytes, to)?)
        })?;
        // Nothing is lost of what is accepted: whoever does not wait has it sent by later calls. What is for others is no
        // affair of this call's.
        let flush = || Ok(locked(&socket.datagrams).flush_to(to)?);
        match self.wait(Way::Room, waits, flush) {
            Err(error) if error.would_block() => Ok(()),
            done => done,
        }
    }

    /// Receives a message, as much of it as fits; how much, and where from.
    pub(crate) fn recv_from(
        &self,
        into: &mut [u8],
        waits: Waits,
    ) -> Result<(usize, SocketAddr), Error> {
        let socket = self.socket()?;
        self.wait(Way::In, waits, || {
            let (len, from) = locked(&socket.datagrams).recv_from(into)?;
            Ok((len.min(into.len()), from))
        })
    }

    /// Where a message lies, which stays there until it is released.
    pub(crate) fn show_from(&self, waits: Waits) -> Result<(*const u8, usize, SocketAddr), Error> {
        let socket = self.socket()?;
        self.wait(Way::In, waits, || {
            let mut socket = locked(&socket.datagrams);
            let (message, from) = socket.peek_from()?;
            Ok((message.as_ptr(), message.len(), from))
        })
    }

    /// The message that was shown is not needed any more.
    pub(crate) fn release_message(&self) -> Result<(), Error> {
        Ok(locked(&self.socket()?.datagrams).consume()?)
    }
}
