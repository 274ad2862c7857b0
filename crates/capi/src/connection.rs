//! Streams, and ports that listen for them.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks::service::{
    Listener, PendingConnection, RemoteOperation, ServiceError, Stream, Transfer,
};

use crate::error::Error;
use crate::handle::{Handle, Kind, WaitFor, WaitMode, locked, number};
use crate::library;

/// A connection; it may still be connecting.
pub(crate) struct Connection {
    link: Mutex<Halves>,
    /// Whether the connection is known to be made, so that calls need not check that first.
    is_made: AtomicBool,
    /// Whether receiving was shut down.
    is_deaf: AtomicBool,
}

/// One end of a connection. No call on it blocks.
pub(crate) struct Halves {
    stage: ConnectionStage,
    /// Number of bytes that `show` returned to the program and that it has not released.
    shown: usize,
    /// Operations that no call waits for any more.
    pub(crate) orphans: Vec<RemoteOperation>,
}

/// Stage of a connection.
enum ConnectionStage {
    Connecting {
        /// Owns the descriptor, also after it has failed.
        connecting: PendingConnection,
        has_failed: bool,
    },
    Connected(Box<Stream>),
}

impl Connection {
    fn new(stage: ConnectionStage) -> Self {
        Self {
            is_made: AtomicBool::new(matches!(stage, ConnectionStage::Connected(_))),
            is_deaf: AtomicBool::new(false),
            link: Mutex::new(Halves {
                stage,
                shown: 0,
                orphans: Vec::new(),
            }),
        }
    }

    /// Calls `act` on the link, to receive. Separate from [`Connection::sending`], so that the two need not
    /// wait for each other once a stream has two halves.
    fn receiving<T>(&self, act: impl FnOnce(&mut Halves) -> Result<T, Error>) -> Result<T, Error> {
        act(&mut locked(&self.link))
    }

    /// Calls `act` on the link, to send or to handle memory that was lent.
    pub(crate) fn sending<T>(
        &self,
        act: impl FnOnce(&mut Halves) -> Result<T, Error>,
    ) -> Result<T, Error> {
        act(&mut locked(&self.link))
    }

    /// The addresses of this end and of the peer, in this order.
    pub(crate) fn addresses(&self) -> Result<[SocketAddr; 2], Error> {
        self.receiving(|link| {
            let stream = link.stream()?;
            Ok([stream.local(), stream.peer()])
        })
    }
}

impl Halves {
    pub(crate) fn stream(&mut self) -> Result<&mut Stream, Error> {
        match &mut self.stage {
            ConnectionStage::Connected(stream) => Ok(stream),
            ConnectionStage::Connecting { .. } => Err(Error::NotConnected),
        }
    }

    /// Finishes connecting. The reason of a failure is returned once, and [`Error::NotConnected`] after that.
    fn finish(&mut self) -> Result<(), Error> {
        let ConnectionStage::Connecting {
            connecting,
            has_failed,
        } = &mut self.stage
        else {
            return Ok(());
        };
        if *has_failed {
            return Err(Error::NotConnected);
        }
        match connecting.finish() {
            Ok(Some(stream)) => {
                self.stage = ConnectionStage::Connected(Box::new(stream));
                Ok(())
            }
            Ok(None) => Err(Error::InProgress),
            Err(error) => {
                *has_failed = true;
                Err(error.into())
            }
        }
    }
}

impl Handle {
    /// The connection, after waiting until it is made.
    pub(crate) fn made(&self, waits: WaitMode) -> Result<&Connection, Error> {
        let connection = self.connection()?;
        if !connection.is_made.load(Ordering::Acquire) {
            let made = self.finish(waits);
            made.map_err(|error| match error {
                Error::InProgress => ServiceError::WouldBlock.into(),
                other => other,
            })?;
        }
        Ok(connection)
    }

    /// Waits until the connection is made.
    pub(crate) fn finish(&self, waits: WaitMode) -> Result<(), Error> {
        let connection = self.connection()?;
        self.wait(WaitFor::Out, waits, || connection.sending(Halves::finish))?;
        connection.is_made.store(true, Ordering::Release);
        Ok(())
    }

    /// Sends all bytes, or as many as it can before waiting is not allowed or an error occurs. Returns their
    /// number.
    pub(crate) fn send(&self, bytes: &[u8], waits: WaitMode) -> Result<usize, Error> {
        let connection = self.made(waits)?;
        let mut sent = 0;
        while sent < bytes.len() {
            let some = self.wait(WaitFor::Out, waits, || {
                connection.sending(|link| Ok(link.stream()?.send(&bytes[sent..])?))
            });
            match some {
                Ok(some) => sent += some,
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Sets how bytes are carried from now on.
    pub(crate) fn set_transfer(&self, transfer: Transfer) -> Result<(), Error> {
        let connection = self.made(WaitMode::AsSet)?;
        connection.sending(|link| {
            link.stream()?.set_transfer(transfer);
            Ok(())
        })
    }

    /// Receives at least one byte that has arrived; 0 at the end of the stream.
    pub(crate) fn recv(&self, into: &mut [u8], waits: WaitMode) -> Result<usize, Error> {
        let connection = self.made(waits)?;
        if into.is_empty() {
            return Ok(0);
        }
        self.wait(WaitFor::In, waits, || {
            connection.receiving(|link| {
                if connection.is_deaf.load(Ordering::SeqCst) {
                    return Ok(0);
                }
                let received = link.stream()?.recv(into)?;
                link.shown = 0;
                Ok(received)
            })
        })
    }

    /// Address and number of bytes that have arrived, at most `max`; no bytes at the end of the stream.
    pub(crate) fn show(&self, max: usize, waits: WaitMode) -> Result<(*const u8, usize), Error> {
        let connection = self.made(waits)?;
        self.wait(WaitFor::In, waits, || {
            connection.receiving(|link| {
                if connection.is_deaf.load(Ordering::SeqCst) {
                    return Ok((std::ptr::null(), 0));
                }
                // The bytes stay in place, and mapped, until they are released.
                let peeked = link.stream()?.peek()?;
                let (at, len) = (peeked.as_ptr(), peeked.len().min(max));
                link.shown = len;
                Ok((at, len))
            })
        })
    }

    /// Releases the first `bytes` of the bytes that were shown.
    pub(crate) fn release(&self, bytes: usize) -> Result<(), Error> {
        let connection = self.connection()?;
        connection.receiving(|link| {
            if bytes > link.shown {
                return Err(Error::Invalid("more bytes than were shown"));
            }
            if bytes > 0 {
                // At least as many bytes as were shown are still there.
                link.stream()?.peek()?.consume(bytes)?;
                link.shown -= bytes;
            }
            Ok(())
        })
    }

    /// Shuts down receiving, sending, or both.
    pub(crate) fn shut(&self, receiving: bool, sending: bool) -> Result<(), Error> {
        let connection = self.made(WaitMode::AsSet)?;
        if receiving {
            connection.is_deaf.store(true, Ordering::SeqCst);
            self.wake_waiters();
        }
        if sending {
            self.wait(WaitFor::Out, WaitMode::AsSet, || {
                connection.sending(|link| Ok(link.stream()?.end()?))
            })?;
        }
        Ok(())
    }
}

/// Begins to connect, and waits until the connection is made unless `is_nonblocking`.
pub(crate) fn connect(to: SocketAddr, is_nonblocking: bool) -> Result<RawFd, Error> {
    let connecting = library::service()?.connect_start(to)?;
    let number = connecting.as_fd().as_raw_fd();
    let connection = Connection::new(ConnectionStage::Connecting {
        connecting,
        has_failed: false,
    });
    let handle = Handle::new(
        Kind::Connection(Box::new(connection)),
        number,
        is_nonblocking,
    );
    if !is_nonblocking {
        handle.finish(WaitMode::Always)?;
    }
    Ok(handle.open())
}

/// A port that listens for connections.
pub(crate) struct Port(Mutex<Listener>);

impl Port {
    /// The address of the port. Its IP address is unspecified: the daemon's address is not known here.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, locked(&self.0).port()))
    }
}

/// Listens at a port of this host.
pub(crate) fn listen(at: SocketAddr, backlog: u32, is_nonblocking: bool) -> Result<RawFd, Error> {
    if !at.ip().is_unspecified() {
        return Err(Error::Elsewhere);
    }
    let mut listener = library::service()?.listen(at.port(), backlog)?;
    let number = number(listener.fd())?;
    let kind = Kind::Port(Port(Mutex::new(listener)));
    Ok(Handle::new(kind, number, is_nonblocking).open())
}

impl Handle {
    /// Accepts the next connection: its descriptor, and the peer's address.
    pub(crate) fn accept(
        &self,
        waits: WaitMode,
        is_nonblocking: bool,
    ) -> Result<(RawFd, SocketAddr), Error> {
        let Kind::Port(port) = self.kind() else {
            return Err(Error::Invalid("the descriptor is no listener"));
        };
        let mut stream = self.wait(WaitFor::In, waits, || {
            let accepted = locked(&port.0).try_accept()?;
            Ok(accepted.ok_or(ServiceError::WouldBlock)?)
        })?;
        let number = number(stream.fd())?;
        stream.set_nonblocking(true);
        let peer = stream.peer();
        let connection = Connection::new(ConnectionStage::Connected(Box::new(stream)));
        let kind = Kind::Connection(Box::new(connection));
        let handle = Self::new(kind, number, is_nonblocking);
        Ok((handle.open(), peer))
    }
}
