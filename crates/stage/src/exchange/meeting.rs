//! Meeting: under a name of the fabric's registry, or at an address of the network.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use headworks_shm::{FabricDir, FabricError, NameClaim};
use headworks_verbs::Duration;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with};

use crate::clock;
use crate::exchange::{ExchangeError, Line, Until};

/// How long an early caller waits before it calls again: under a name, and over a network.
const RETRY: Duration = Duration::from_millis(2);
const RETRY_FAR: Duration = Duration::from_millis(50);

/// Listens under a name or at an address, which is free again when the value is dropped or its process
/// dies.
#[derive(Debug)]
pub struct Listener(Door);

#[derive(Debug)]
enum Door {
    Name(NameClaim),
    Port(TcpListener),
}

impl Listener {
    /// Takes the name, if no living process has it.
    pub fn bind(fabric: &Arc<FabricDir>, name: &str) -> Result<Self, ExchangeError> {
        let claim = fabric.bind_name(name)?;
        claim
            .listener()
            .set_nonblocking(true)
            .map_err(ExchangeError::system("listening"))?;
        Ok(Self(Door::Name(claim)))
    }

    /// Listens at `address`, `HOST:PORT`; port 0 takes a free one. Looks the host up, which may take as
    /// long as the system's resolver does.
    pub fn at(address: &str) -> Result<Self, ExchangeError> {
        let unreachable = ExchangeError::unreachable(address);
        let listener = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        listener
            .map(|port| Self(Door::Port(port)))
            .map_err(unreachable)
    }

    /// The address that it listens at, if it is one.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Door::Name(_) => None,
            Door::Port(listener) => listener.local_addr().ok(),
        }
    }

    /// The next caller, if one waits. Callers under a name that are other users' are turned away.
    pub fn try_accept(&self) -> Result<Option<Line>, ExchangeError> {
        loop {
            let line = match &self.0 {
                Door::Name(claim) => {
                    let caller = claim.listener().accept();
                    caller.map(|(stream, _)| Line::over(stream))
                }
                Door::Port(listener) => {
                    let caller = listener.accept();
                    caller.map(|(stream, _)| Line::over_tcp(stream))
                }
            };
            match line {
                Ok(Ok(line)) => return Ok(Some(line)),
                Ok(Err(error @ ExchangeError::OtherUser { .. })) => {
                    tracing::warn!(%error, "turned a caller away");
                }
                Ok(Err(error)) => return Err(error),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    // It hung up before it was accepted.
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => return Err(ExchangeError::system("accepting")(error)),
                },
            }
        }
    }

    /// Waits for the next caller.
    pub fn accept<'u>(&self, until: impl Into<Until<'u>>) -> Result<Line, ExchangeError> {
        let until = until.into();
        loop {
            if let Some(line) = self.try_accept()? {
                return Ok(line);
            }
            let readable = (self.as_fd(), PollFlags::IN);
            until.wait("waiting for a caller", &[readable], None)?;
        }
    }
}

impl AsFd for Listener {
    /// Readable when a caller waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Door::Name(claim) => claim.listener().as_fd(),
            Door::Port(listener) => listener.as_fd(),
        }
    }
}

/// Calls whoever listens under `name`, now.
pub fn dial(fabric: &FabricDir, name: &str) -> Result<Line, ExchangeError> {
    Line::over(fabric.connect_name(name)?)
}

/// Calls whoever listens under `name`, and waits for a listener that is not there yet.
pub fn dial_by<'u>(
    fabric: &FabricDir,
    name: &str,
    until: impl Into<Until<'u>>,
) -> Result<Line, ExchangeError> {
    let until = until.into();
    loop {
        match dial(fabric, name) {
            Err(ExchangeError::Fabric(FabricError::NobodyListening { .. })) => {}
            called => return called,
        }
        until.wait("waiting for a listener", &[], Some(clock::now() + RETRY))?;
    }
}

/// Calls whoever listens at `address`, `HOST:PORT`, and waits for the answer. Looks the host up, which
/// may take as long as the system's resolver does; of several addresses the first that answers counts.
pub fn dial_at<'u>(address: &str, until: impl Into<Until<'u>>) -> Result<Line, ExchangeError> {
    let unreachable = || ExchangeError::unreachable(address);
    let until = until.into();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for at in address.to_socket_addrs().map_err(unreachable())? {
        match call(&at, &until)? {
            Ok(stream) => return Line::over_tcp(stream),
            Err(errno) => last = errno.into(),
        }
    }
    Err(unreachable()(last))
}

/// [`dial_at`] that waits for a listener that is not there yet.
pub fn dial_at_by<'u>(address: &str, until: impl Into<Until<'u>>) -> Result<Line, ExchangeError> {
    let until = until.into();
    loop {
        match dial_at(address, until) {
            Err(ExchangeError::Unreachable { source, .. })
                if source.kind() == io::ErrorKind::ConnectionRefused => {}
            called => return called,
        }
        let again = clock::now() + RETRY_FAR;
        until.wait("waiting for a listener", &[], Some(again))?;
    }
}

/// One call to one address; the inner error is the network's.
fn call(at: &SocketAddr, until: &Until<'_>) -> Result<Result<TcpStream, Errno>, ExchangeError> {
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
        .map_err(ExchangeError::system("a socket"))?;
    match connect(&socket, at) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            until.wait("calling", &[(socket.as_fd(), PollFlags::OUT)], None)?;
            let outcome = socket_error(&socket);
            if let Err(errno) = outcome.map_err(ExchangeError::system("calling"))? {
                return Ok(Err(errno));
            }
        }
        Err(errno) => return Ok(Err(errno)),
    }
    Ok(Ok(socket.into()))
}
