//! Streams, and ports that others connect to.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks::service::{
    Listener, PendingConnection, RemoteOperation, ServiceError, Stream, Transfer,
};

use crate::error::Error;
use crate::handle::{Handle, Kind, Waits, Way, locked, number};
use crate::library;

/// A connection, also one that is being made.
pub(crate) struct Connection {
    link: Mutex<Link>,
    /// Whether it is known to have been made, so that what is asked for need not wait for that first.
    is_made: AtomicBool,
    /// Whether nothing is to be received any more.
    is_deaf: AtomicBool,
}

/// One end of a connection, which blocks nobody.
pub(crate) struct Link {
    stage: Stage,
    /// Bytes that C was shown and has not released.
    shown: usize,
    /// Operations that nobody waits for any more.
    pub(crate) orphans: Vec<RemoteOperation>,
}

/// How far it is.
enum Stage {
    Connecting {
        /// It has the descriptor, also when it has failed.
        connecting: PendingConnection,
        has_failed: bool,
    },
    Connected(Box<Stream>),
}

impl Connection {
    fn new(stage: Stage) -> Self {
        Self {
            is_made: AtomicBool::new(matches!(stage, Stage::Connected(_))),
            is_deaf: AtomicBool::new(false),
            link: Mutex::new(Link {
                stage,
                shown: 0,
                orphans: Vec::new(),
            }),
        }
    }

    /// Does something with the stream that is about what comes. Apart from [`Connection::sending`], so that the two need
    /// not wait for each other once a stream has two halves.
    fn receiving<T>(&self, act: impl FnOnce(&mut Link) -> Result<T, Error>) -> Result<T, Error> {
        act(&mut locked(&self.link))
    }

    /// Does something with the stream that is about what goes, or was lent.
    pub(crate) fn sending<T>(
        &self,
        act: impl FnOnce(&mut Link) -> Result<T, Error>,
    ) -> Result<T, Error> {
        act(&mut locked(&self.link))
    }

    /// Both addresses: this end's, the other's.
    pub(crate) fn addresses(&self) -> Result<[SocketAddr; 2], Error> {
        self.receiving(|link| {
            let stream = link.stream()?;
            Ok([stream.local(), stream.peer()])
        })
    }
}

impl Link {
    pub(crate) fn stream(&mut self) -> Result<&mut Stream, Error> {
        match &mut self.stage {
            Stage::Connected(stream) => Ok(stream),
            Stage::Connecting { .. } => Err(Error::NotConnected),
        }
    }

    /// What has become of a connection that is being made. Why it cannot be is said once.
    fn finish(&mut self) -> Result<(), Error> {
        let Stage::Connecting {
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
                self.stage = Stage::Connected(Box::new(stream));
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
    /// The connection, once it is made.
    pub(crate) fn made(&self, waits: Waits) -> Result<&Connection, Error> {
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
    pub(crate) fn finish(&self, waits: Waits) -> Result<(), Error> {
        let connection = self.connection()?;
        self.wait(Way::Out, waits, || connection.sending(Link::finish))?;
        connection.is_made.store(true, Ordering::Release);
        Ok(())
    }

    /// Sends all of the bytes, or as many as it can before it has to give up.
    pub(crate) fn send(&self, bytes: &[u8], waits: Waits) -> Result<usize, Error> {
        let connection = self.made(waits)?;
        let mut sent = 0;
        while sent < bytes.len() {
            let some = self.wait(Way::Out, waits, || {
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

    /// How what is sent is carried, from now on.
    pub(crate) fn set_transfer(&self, transfer: Transfer) -> Result<(), Error> {
        let connection = self.made(Waits::AsSet)?;
        connection.sending(|link| {
            link.stream()?.set_transfer(transfer);
            Ok(())
        })
    }

    /// Receives what has come, at least a byte; 0 at the end.
    pub(crate) fn recv(&self, into: &mut [u8], waits: Waits) -> Result<usize, Error> {
        let connection = self.made(waits)?;
        if into.is_empty() {
            return Ok(0);
        }
        self.wait(Way::In, waits, || {
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

    /// Where what has come lies, at most `max` bytes of it; no bytes at the end.
    pub(crate) fn show(&self, max: usize, waits: Waits) -> Result<(*const u8, usize), Error> {
        let connection = self.made(waits)?;
        self.wait(Way::In, waits, || {
            connection.receiving(|link| {
                if connection.is_deaf.load(Ordering::SeqCst) {
                    return Ok((std::ptr::null(), 0));
                }
                // It stays there, and mapped, until it is released.
                let peeked = link.stream()?.peek()?;
                let (at, len) = (peeked.as_ptr(), peeked.len().min(max));
                link.shown = len;
                Ok((at, len))
            })
        })
    }

    /// What was shown is not needed any more, the first `bytes` of it.
    pub(crate) fn release(&self, bytes: usize) -> Result<(), Error> {
        let connection = self.connection()?;
        connection.receiving(|link| {
            if bytes > link.shown {
                return Err(Error::Invalid("more bytes than were shown"));
            }
            if bytes > 0 {
                // As many lie there still, and more perhaps.
                link.stream()?.peek()?.consume(bytes)?;
                link.shown -= bytes;
            }
            Ok(())
        })
    }

    /// Nothing is sent any more, or nothing received.
    pub(crate) fn shut(&self, receiving: bool, sending: bool) -> Result<(), Error> {
        let connection = self.made(Waits::AsSet)?;
        if receiving {
            connection.is_deaf.store(true, Ordering::SeqCst);
            self.rouse();
        }
        if sending {
            self.wait(Way::Out, Waits::AsSet, || {
                connection.sending(|link| Ok(link.stream()?.end()?))
            })?;
        }
        Ok(())
    }
}

/// Begins to connect.
pub(crate) fn connect(to: SocketAddr, is_nonblocking: bool) -> Result<RawFd, Error> {
    let connecting = library::service()?.connect_start(to)?;
    let number = connecting.as_fd().as_raw_fd();
    let connection = Connection::new(Stage::Connecting {
        connecting,
        has_failed: false,
    });
    let handle = Handle::new(
        Kind::Connection(Box::new(connection)),
        number,
        is_nonblocking,
    );
    if !is_nonblocking {
        handle.finish(Waits::Always)?;
    }
    Ok(handle.open())
}

/// A port that others connect to.
pub(crate) struct Port(Mutex<Listener>);

impl Port {
    /// Where it is: the daemon's address is not known here.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, locked(&self.0).port()))
    }
}

/// Has others connect to a port of this host's.
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
    /// The next one who has connected: the descriptor, and the address.
    pub(crate) fn accept(
        &self,
        waits: Waits,
        is_nonblocking: bool,
    ) -> Result<(RawFd, SocketAddr), Error> {
        let Kind::Port(port) = self.kind() else {
            return Err(Error::Invalid("nobody connects to this descriptor"));
        };
        let mut stream = self.wait(Way::In, waits, || {
            let accepted = locked(&port.0).try_accept()?;
            Ok(accepted.ok_or(ServiceError::WouldBlock)?)
        })?;
        let number = number(stream.fd())?;
        stream.set_nonblocking(true);
        let peer = stream.peer();
        let connection = Connection::new(Stage::Connected(Box::new(stream)));
        let kind = Kind::Connection(Box::new(connection));
        let handle = Self::new(kind, number, is_nonblocking);
        Ok((handle.open(), peer))
    }
}
