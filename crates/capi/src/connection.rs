//! Streams, and ports that listen for them.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks::net::clock;
use headworks::service::{
    CONNECT_TIMEOUT, Listener, PendingConnection, Refusal, RemoteOperation, ServiceError, Stream,
    Transfer,
};
use rustix::net::{Shutdown, shutdown};

use crate::error::{Error, system};
use crate::handle::{Handle, Kind, WaitFor, WaitMode, locked, number};
use crate::library;

/// A connection; it may still be connecting.
pub(crate) struct Connection {
    link: Mutex<Halves>,
    /// Whether the connection is known to be made, so that calls need not check that first.
    is_made: AtomicBool,
}

/// One end of a connection. No call on it blocks.
pub(crate) struct Halves {
    stage: ConnectionStage,
    /// Number of bytes that `show` returned to the program and that it has not released.
    shown: usize,
    /// Whether receiving was shut down.
    is_deaf: bool,
    /// Whether sending was shut down: the end of the stream follows all that was sent.
    is_ended: bool,
    /// Operations that no call waits for any more.
    pub(crate) orphans: Vec<RemoteOperation>,
}

/// Stage of a connection.
enum ConnectionStage {
    Connecting {
        /// Owns the descriptor, also after it has failed.
        connecting: PendingConnection,
        /// Whether connecting has failed.
        has_failed: bool,
        /// Reason of the failure that no call has returned yet.
        reason: Option<Error>,
    },
    Connected(Box<Stream>),
}

impl Connection {
    fn new(stage: ConnectionStage) -> Self {
        Self {
            is_made: AtomicBool::new(matches!(stage, ConnectionStage::Connected(_))),
            link: Mutex::new(Halves {
                stage,
                shown: 0,
                is_deaf: false,
                is_ended: false,
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
}

impl Halves {
    pub(crate) fn stream(&mut self) -> Result<&mut Stream, Error> {
        match &mut self.stage {
            ConnectionStage::Connected(stream) => Ok(stream),
            ConnectionStage::Connecting { .. } => Err(Error::NotConnected),
        }
    }

    /// Sends as many of the bytes as there is room for, at least one. If `bytes` is empty, only checks that the
    /// stream can still be sent to.
    fn send(&mut self, bytes: &[u8], transfer: Transfer) -> Result<usize, Error> {
        let sent = self.stream()?.send_as(bytes, transfer)?;
        match bytes.is_empty() && self.is_ended {
            true => Err(ServiceError::Ended.into()),
            false => Ok(sent),
        }
    }

    /// Finishes connecting. The reason of a failure is returned once, and [`Error::NotConnected`] after that.
    fn finish(&mut self) -> Result<(), Error> {
        let ConnectionStage::Connecting {
            connecting,
            has_failed,
            reason,
        } = &mut self.stage
        else {
            return Ok(());
        };
        if *has_failed {
            return Err(reason.take().unwrap_or(Error::NotConnected));
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

    /// The connection, if it is made by now; [`Error::NotConnected`] if not. The reason of a failure is kept for
    /// [`Handle::finish`].
    fn made_already(&self) -> Result<&Connection, Error> {
        let connection = self.connection()?;
        match self.made(WaitMode::Never) {
            Err(error) if error.would_block() => Err(Error::NotConnected),
            Err(error) => connection.sending(|link| {
                if let ConnectionStage::Connecting { reason, .. } = &mut link.stage
                    && !matches!(error, Error::NotConnected)
                {
                    *reason = Some(error);
                }
                Err(Error::NotConnected)
            }),
            made => made,
        }
    }

    /// Waits until the connection is made.
    pub(crate) fn finish(&self, waits: WaitMode) -> Result<(), Error> {
        let connection = self.connection()?;
        let made = self.wait(WaitFor::Out, waits, || connection.sending(Halves::finish));
        made.map_err(|error| match error {
            // As with sockets: `ETIMEDOUT` means that the host did not answer, and ends the connection.
            Error::Service(ServiceError::Deadline) => Error::InProgress,
            other => other,
        })?;
        connection.is_made.store(true, Ordering::Release);
        Ok(())
    }

    /// The addresses of this end and of the peer, in this order.
    pub(crate) fn addresses(&self) -> Result<[SocketAddr; 2], Error> {
        self.made_already()?.receiving(|link| {
            let stream = link.stream()?;
            Ok([stream.local_addr(), stream.peer_addr()])
        })
    }

    /// Sends all bytes, or as many as it can before waiting is not allowed or an error occurs. Returns their
    /// number.
    pub(crate) fn send(
        &self,
        bytes: &[u8],
        waits: WaitMode,
        transfer: Transfer,
    ) -> Result<usize, Error> {
        let connection = self.made(waits)?;
        let mut sent = 0;
        loop {
            let some = self.wait(WaitFor::Out, waits, || {
                connection.sending(|link| link.send(&bytes[sent..], transfer))
            });
            match some {
                Ok(some) => sent += some,
                Err(_) if sent > 0 => return Ok(sent),
                Err(error) => return Err(error),
            }
            if sent == bytes.len() {
                return Ok(sent);
            }
        }
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
                if link.is_deaf {
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
                if link.is_deaf {
                    return Ok((std::ptr::null(), 0));
                }
                // The bytes stay in place, and mapped, until they are released.
                let peeked = link.stream()?.peek()?;
                let (at, len) = (peeked.as_ptr(), peeked.len().min(max));
                drop(peeked);
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
        let connection = self.made_already()?;
        if receiving {
            connection.receiving(|link| {
                // Set under the lock and first: a stream that reads the descriptor after the shutdown would believe
                // that the daemon has closed its end.
                link.is_deaf = true;
                // Makes the descriptor readable, for threads that poll it. When bytes arrive, the daemon fails to
                // write to its end and ignores that. Its signals for room and for a reset still work.
                shutdown(self, Shutdown::Read).map_err(|errno| system("a descriptor")(errno.into()))
            })?;
            self.wake_waiters();
        }
        if sending {
            self.wait(WaitFor::Out, WaitMode::AsSet, || {
                connection.sending(|link| {
                    link.stream()?.end()?;
                    link.is_ended = true;
                    Ok(())
                })
            })?;
        }
        Ok(())
    }
}

/// Begins to connect, and waits until the connection is made unless `is_nonblocking`.
pub(crate) fn connect(to: SocketAddr, is_nonblocking: bool) -> Result<RawFd, Error> {
    let service = library::service()?;
    let connecting = service.connect_start(to)?;
    let number = connecting.as_fd().as_raw_fd();
    let connection = Connection::new(ConnectionStage::Connecting {
        connecting,
        has_failed: false,
        reason: None,
    });
    let handle = Handle::new(
        Kind::Connection(Box::new(connection)),
        number,
        is_nonblocking,
    );
    if !is_nonblocking {
        handle.set_deadline(Some(clock::now() + CONNECT_TIMEOUT));
        handle
            .finish(WaitMode::Always)
            .map_err(|error| match error {
                Error::InProgress => Error::Service(ServiceError::DaemonSilent {
                    path: service.socket().display().to_string(),
                    patience: CONNECT_TIMEOUT,
                }),
                other => other,
            })?;
        handle.set_deadline(None);
    }
    Ok(handle.open())
}

/// A port that listens for connections.
pub(crate) struct Port {
    listener: Mutex<Listener>,
    address: SocketAddr,
}

impl Port {
    /// The address of the port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Listens at a port of this host.
pub(crate) fn listen(at: SocketAddr, backlog: u32, is_nonblocking: bool) -> Result<RawFd, Error> {
    let service = library::service()?;
    let mut listener = service.listen_at(at, backlog)?;
    let address = listener.local_addr()?;
    let number = number(listener.fd())?;
    let listener = Mutex::new(listener);
    let kind = Kind::Port(Port { listener, address });
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
        let accepted = self.wait(WaitFor::In, waits, || {
            let accepted = locked(&port.listener).try_accept()?;
            Ok(accepted.ok_or(ServiceError::WouldBlock)?)
        });
        let mut stream = accepted.map_err(of_listener)?;
        let number = number(stream.fd()).map_err(of_listener)?;
        stream.set_nonblocking(true);
        let peer = stream.peer_addr();
        let connection = Connection::new(ConnectionStage::Connected(Box::new(stream)));
        let kind = Kind::Connection(Box::new(connection));
        let handle = Self::new(kind, number, is_nonblocking);
        Ok((handle.open(), peer))
    }
}

/// Returns [`Error::ListenerOver`] for an error after which the listener accepts nothing any more.
fn of_listener(error: Error) -> Error {
    match error {
        // A limit is reached. That concerns only the connection that was to be accepted.
        Error::Service(ServiceError::Refused(Refusal::Limit | Refusal::Memory)) => error,
        Error::Service(
            error @ (ServiceError::DaemonGone
            | ServiceError::Refused(_)
            | ServiceError::Contract(_)),
        ) => Error::ListenerOver(error),
        other => other,
    }
}
