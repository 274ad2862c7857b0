//! Sockets for messages, from and to many.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Mutex;

use headworks::service::Datagrams;

use crate::error::Error;
use crate::handle::{Handle, Kind, Waits, Way, locked};
use crate::library;

/// A port that messages are sent from and come to, which blocks nobody.
pub(crate) struct Socket(Mutex<Datagrams>);

impl Socket {
    /// Where it is: the daemon's address is not known here.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, locked(&self.0).port()))
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
    let kind = Kind::Socket(Socket(Mutex::new(socket)));
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
        // The descriptor is readable when it may be tried again.
        self.wait(Way::In, waits, || Ok(locked(&socket.0).send_to(bytes, to)?))?;
        // Nothing is lost of what is accepted: whoever does not wait has it sent by later calls.
        match self.wait(Way::In, waits, || Ok(locked(&socket.0).flush()?)) {
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
            let (len, from) = locked(&socket.0).recv_from(into)?;
            Ok((len.min(into.len()), from))
        })
    }

    /// Where a message lies, which stays there until it is released.
    pub(crate) fn show_from(&self, waits: Waits) -> Result<(*const u8, usize, SocketAddr), Error> {
        let socket = self.socket()?;
        self.wait(Way::In, waits, || {
            let mut socket = locked(&socket.0);
            let (message, from) = socket.peek_from()?;
            Ok((message.as_ptr(), message.len(), from))
        })
    }

    /// The message that was shown is not needed any more.
    pub(crate) fn release_message(&self) -> Result<(), Error> {
        Ok(locked(&self.socket()?.0).consume()?)
    }
}
