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
use crate::poller::{self, FailureReason, PollerLink};

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
    /// Copy of the bytes that `show` returned, where they cannot be shown in place, and how many of them were released.
    copied: (Vec<u8>, usize),
    /// The poller that the connection is in.
    link: Option<PollerLink>,
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

/// Stage of a connection that a poller is told of.
pub(crate) enum PolledStage<'c> {
    /// The connection is not made yet, or cannot be made.
    Connecting(&'c PendingConnection),
    /// The connection is made.
    Connected(&'c mut Stream),
}

impl Connection {
    fn new(stage: ConnectionStage) -> Self {
        Self {
            is_made: AtomicBool::new(matches!(stage, ConnectionStage::Connected(_))),
            link: Mutex::new(Halves {
                stage,
                shown: 0,
                copied: (Vec::new(), 0),
                link: None,
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

    /// Whether the connection is known to be made.
    pub(crate) fn is_made(&self) -> bool {
        self.is_made.load(Ordering::Acquire)
    }

    /// Returns the poller that the connection is in.
    pub(crate) fn link(&self) -> Option<PollerLink> {
        locked(&self.link).link.clone()
    }

    /// Records that the connection is in no poller.
    pub(crate) fn unlink(&self) {
        locked(&self.link).link = None;
    }

    /// Has `act` add the connection, which is that of `handle`, to a poller.
    pub(crate) fn enter(
        &self,
        handle: &Handle,
        link: PollerLink,
        act: impl FnOnce(PolledStage<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut halves = locked(&self.link);
        if handle.is_closed() {
            return Err(Error::BadDescriptor);
        }
        if halves.link.is_some() {
            return Err(ServiceError::InPoller.into());
        }
        match &mut halves.stage {
            ConnectionStage::Connecting {
                has_failed: true, ..
            } => return Err(Error::NotConnected),
            ConnectionStage::Connecting { connecting, .. } => {
                act(PolledStage::Connecting(connecting))?;
            }
            ConnectionStage::Connected(stream) => act(PolledStage::Connected(stream))?,
        }
        halves.link = Some(link);
        Ok(())
    }

    /// Calls `act` with the connection, which is in a poller.
    pub(crate) fn in_poller(
        &self,
        act: impl FnOnce(PolledStage<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match &mut locked(&self.link).stage {
            ConnectionStage::Connecting { connecting, .. } => {
                act(PolledStage::Connecting(connecting))
            }
            ConnectionStage::Connected(stream) => act(PolledStage::Connected(stream)),
        }
    }

    /// Finishes connecting, for a poller. If the connection is made by this call, calls `act` with the stream. Also returns
    /// whether the outcome was not known before.
    pub(crate) fn settle(
        &self,
        reason: FailureReason,
        act: impl FnOnce(&mut Stream) -> Result<(), Error>,
    ) -> (Result<(), Error>, bool) {
        let mut halves = locked(&self.link);
        let was_known = match halves.stage {
            ConnectionStage::Connecting { has_failed, .. } => has_failed,
            ConnectionStage::Connected(_) => true,
        };
        let finished = halves.finish();
        let is_news = !was_known && !matches!(finished, Err(Error::InProgress));
        let finished = match finished {
            Ok(()) if is_news => {
                self.is_made.store(true, Ordering::Release);
                halves.stream().and_then(act)
            }
            Err(error) if reason == FailureReason::Kept => {
                halves.keep_reason(error);
                Err(Error::NotConnected)
            }
            finished => finished,
        };
        (finished, is_news)
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

impl Halves {
    /// Shows a copy of bytes that have arrived on a direct connection: the other end could change them in place.
    fn show_copy(&mut self, max: usize) -> Result<(*const u8, usize), Error> {
        let (copy, released) = &self.copied;
        if *released >= copy.len() {
            // A direct connection may continue with bytes in memory of the daemon. The library copies them as it copies
            // the others.
            let copy = self.stream()?.peek()?.to_vec();
            self.copied = (copy, 0);
        }
        let (copy, released) = &self.copied;
        let rest = &copy[*released..];
        self.shown = rest.len().min(max);
        Ok((rest.as_ptr(), self.shown))
    }

    /// Keeps the reason why the connection cannot be made, for the next call.
    fn keep_reason(&mut self, error: Error) {
        if let ConnectionStage::Connecting { reason, .. } = &mut self.stage
            && !matches!(error, Error::NotConnected | Error::InProgress)
        {
            *reason = Some(error);
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
                link.keep_reason(error);
                Err(Error::NotConnected)
            }),
            made => made,
        }
    }

    /// Waits until the connection is made.
    pub(crate) fn finish(&self, waits: WaitMode) -> Result<(), Error> {
        let connection = self.connection()?;
        if connection.is_made() {
            return Ok(());
        }
        let made = self.wait(WaitFor::Out, waits, || {
            if let Some(finished) = poller::finish(self, connection) {
                return finished;
            }
            connection.sending(|link| match link.link {
                None => link.finish(),
                // Another thread has added it to a poller just now, which finishes connecting.
                Some(_) => Err(Error::InProgress),
            })
        });
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

    /// Whether the connection is direct.
    pub(crate) fn is_direct(&self) -> Result<bool, Error> {
        self.made_already()?
            .receiving(|link| Ok(link.stream()?.is_direct()))
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
                link.copied = (Vec::new(), 0);
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
                if link.stream()?.is_direct() {
                    return link.show_copy(max);
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
                link.copied.1 += bytes;
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
                let Some(fd) = self.fd() else {
                    return Ok(());
                };
                // Makes the descriptor readable, for threads that poll it. When bytes arrive, the daemon fails to
                // write to its end and ignores that. Its signals for room and for a reset still work.
                shutdown(fd, Shutdown::Read).map_err(|errno| system("a descriptor")(errno.into()))
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
pub(crate) fn connect(to: SocketAddr, is_nonblocking: bool, has_fd: bool) -> Result<RawFd, Error> {
    let service = library::service()?;
    let silent = || {
        Error::Service(ServiceError::DaemonSilent {
            path: service.socket().display().to_string(),
            patience: CONNECT_TIMEOUT,
        })
    };
    if !has_fd && !is_nonblocking {
        let deadline = clock::now() + CONNECT_TIMEOUT;
        let connected = service.connect_by(to, Some(deadline));
        let stream = connected.map_err(|error| match error {
            ServiceError::Deadline => silent(),
            other => other.into(),
        })?;
        return Ok(Connection::open_without_fd(stream));
    }
    let connecting = match has_fd {
        true => service.connect_start(to)?,
        false => service.connect_polled(to)?,
    };
    let number = has_fd.then(|| connecting.as_fd().as_raw_fd());
    let connection = Connection::new(ConnectionStage::Connecting {
        connecting,
        has_failed: false,
        reason: None,
    });
    let kind = Kind::Connection(Box::new(connection));
    let Some(number) = number else {
        return Ok(Handle::open_without_fd(kind));
    };
    let handle = Handle::new(kind, number, is_nonblocking);
    if !is_nonblocking {
        handle.set_deadline(Some(clock::now() + CONNECT_TIMEOUT));
        handle
            .finish(WaitMode::Always)
            .map_err(|error| match error {
                Error::InProgress => silent(),
                other => other,
            })?;
        handle.set_deadline(None);
    }
    Ok(handle.open())
}

impl Connection {
    /// Enters a connection that is made, without a file descriptor, in the table of handles.
    fn open_without_fd(mut stream: Stream) -> RawFd {
        stream.set_nonblocking(true);
        let connection = Self::new(ConnectionStage::Connected(Box::new(stream)));
        Handle::open_without_fd(Kind::Connection(Box::new(connection)))
    }
}

/// A port that listens for connections.
pub(crate) struct Port {
    listener: Mutex<Listener>,
    address: SocketAddr,
    /// The poller that the listener is in. Locked before the listener where both are.
    link: Mutex<Option<PollerLink>>,
}

impl Port {
    /// The address of the port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the poller that the listener is in.
    pub(crate) fn link(&self) -> Option<PollerLink> {
        locked(&self.link).clone()
    }

    /// Records that the listener is in no poller.
    pub(crate) fn unlink(&self) {
        *locked(&self.link) = None;
    }

    /// Has `act` add the listener, which is that of `handle`, to a poller.
    pub(crate) fn enter(
        &self,
        handle: &Handle,
        link: PollerLink,
        act: impl FnOnce(&Listener) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut own = locked(&self.link);
        if handle.is_closed() {
            return Err(Error::BadDescriptor);
        }
        if own.is_some() {
            return Err(ServiceError::InPoller.into());
        }
        act(&locked(&self.listener))?;
        *own = Some(link);
        Ok(())
    }

    /// Calls `act` with the listener, which is in a poller.
    pub(crate) fn in_poller(
        &self,
        act: impl FnOnce(&Listener) -> Result<(), Error>,
    ) -> Result<(), Error> {
        act(&locked(&self.listener))
    }
}

/// Listens at a port of this host.
pub(crate) fn listen(
    at: SocketAddr,
    backlog: u32,
    is_nonblocking: bool,
    has_fd: bool,
) -> Result<RawFd, Error> {
    let service = library::service()?;
    let mut listener = service.listen_at(at, backlog)?;
    let address = listener.local_addr()?;
    let number = match has_fd {
        true => Some(number(listener.fd())?),
        false => None,
    };
    let kind = Kind::Port(Port {
        listener: Mutex::new(listener),
        address,
        link: Mutex::default(),
    });
    Ok(match number {
        Some(number) => Handle::new(kind, number, is_nonblocking).open(),
        None => Handle::open_without_fd(kind),
    })
}

impl Handle {
    /// Accepts the next connection: its descriptor, and the peer's address. Without a file descriptor of the listener the
    /// connection has none either.
    pub(crate) fn accept(
        &self,
        waits: WaitMode,
        is_nonblocking: bool,
        has_fd: bool,
    ) -> Result<(RawFd, SocketAddr), Error> {
        let Kind::Port(port) = self.kind() else {
            return Err(Error::Invalid("the descriptor is no listener"));
        };
        let accepted = self.wait(WaitFor::In, waits, || {
            let accepted = locked(&port.listener).try_accept()?;
            Ok(accepted.ok_or(ServiceError::WouldBlock)?)
        });
        let mut stream = accepted.map_err(of_listener)?;
        let peer = stream.peer_addr();
        if !has_fd || !self.has_fd() {
            return Ok((Connection::open_without_fd(stream), peer));
        }
        let number = number(stream.fd()).map_err(of_listener)?;
        stream.set_nonblocking(true);
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
