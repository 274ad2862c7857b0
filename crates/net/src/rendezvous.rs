//! Rendezvous of two processes: under a name in the registry, or at a network address.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use headworks_shm::{NameClaim, Registry, RegistryError};
use headworks_verbs::Duration;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with};

use crate::clock;
use crate::{ControlStream, NetError, WaitLimit};

use tcp_listeners::TcpListeners;

mod address;
mod tcp_listeners;

pub use address::RendezvousAddr;

/// The `what` of [`NetError::Deadline`] if no listener appeared in time.
pub const NO_LISTENER: &str = "nobody listens: waiting for a listener";
/// How long a process that is too early waits before it dials again, under a name and over a network.
const RETRY_NAME: Duration = Duration::from_millis(2);
const RETRY_TCP: Duration = Duration::from_millis(50);

/// Listens under a name or at an address. The name or address is free again when the value is dropped or its
/// process dies.
#[derive(Debug)]
pub struct Listener(ListenSocket);

#[derive(Debug)]
enum ListenSocket {
    Name(NameClaim),
    Port(TcpListeners),
}

impl Listener {
    /// Claims the name, unless a living process has it.
    pub fn bind(fabric: &Arc<Registry>, name: &str) -> Result<Self, NetError> {
        let claim = fabric.bind_name(name)?;
        claim
            .listener()
            .set_nonblocking(true)
            .map_err(NetError::system("listening"))?;
        Ok(Self(ListenSocket::Name(claim)))
    }

    /// Listens at `address`, `HOST:PORT`; port 0 takes a free one. Resolves the host name, which may take as
    /// long as the system's resolver does. If the name has several addresses, listens at all of them with one
    /// port. Logs a warning if some of them cannot be used, and fails if none can.
    pub fn bind_tcp(address: &str) -> Result<Self, NetError> {
        let listeners = TcpListeners::bind(address)?;
        Ok(Self(ListenSocket::Port(listeners)))
    }

    /// The first address at which it listens; `None` if it listens under a name.
    pub fn address(&self) -> Option<SocketAddr> {
        self.addresses().first().copied()
    }

    /// All addresses at which it listens; none if it listens under a name.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match &self.0 {
            ListenSocket::Name(_) => Vec::new(),
            ListenSocket::Port(listeners) => listeners.addresses(),
        }
    }

    /// Accepts the next connection, if one waits. Under a name, connections of other users are refused. At an
    /// address, connections that cannot be used are dropped.
    pub fn try_accept(&self) -> Result<Option<ControlStream>, NetError> {
        loop {
            let control = match &self.0 {
                ListenSocket::Name(claim) => {
                    let caller = claim.listener().accept();
                    caller.map(|(stream, _)| ControlStream::from_unix(stream))
                }
                ListenSocket::Port(listeners) => listeners.accept().map(ControlStream::from_tcp),
            };
            match control {
                Ok(Ok(control)) => return Ok(Some(control)),
                Ok(Err(error)) => match (&self.0, &error) {
                    (ListenSocket::Port(_), _) | (_, NetError::OtherUser { .. }) => {
                        tracing::warn!(%error, "turned a caller away");
                    }
                    _ => return Err(error),
                },
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    // The connection was closed before it was accepted, or the network failed.
                    io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::NetworkDown
                    | io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::HostUnreachable => {}
                    // accept(2) says to retry after pending network errors of the new connection.
                    _ if is_connection_error(&error) => {}
                    _ => return Err(NetError::system("accepting")(error)),
                },
            }
        }
    }

    /// Waits for the next connection.
    pub fn accept<'u>(&self, until: impl Into<WaitLimit<'u>>) -> Result<ControlStream, NetError> {
        let until = until.into();
        loop {
            if let Some(control) = self.try_accept()? {
                return Ok(control);
            }
            let readable = (self.as_fd(), PollFlags::IN);
            until.wait("waiting for a caller", &[readable], None)?;
        }
    }
}

impl AsFd for Listener {
    /// Readable when a connection waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            ListenSocket::Name(claim) => claim.listener().as_fd(),
            ListenSocket::Port(listeners) => listeners.as_fd(),
        }
    }
}

/// Whether an error of accept(2) concerns only the connection that was to be accepted.
fn is_connection_error(error: &io::Error) -> bool {
    const ALL: [Errno; 5] = [
        Errno::PROTO,
        Errno::NOPROTOOPT,
        Errno::HOSTDOWN,
        Errno::NONET,
        Errno::OPNOTSUPP,
    ];
    Errno::from_io_error(error).is_some_and(|errno| ALL.contains(&errno))
}

/// Connects to the process that listens under `name`, without waiting.
pub fn dial(fabric: &Arc<Registry>, name: &str) -> Result<ControlStream, NetError> {
    ControlStream::from_unix(fabric.connect_name(name)?)
}

/// Connects to the process that listens under `name`, and waits if there is no listener yet.
pub fn dial_wait<'u>(
    fabric: &Arc<Registry>,
    name: &str,
    until: impl Into<WaitLimit<'u>>,
) -> Result<ControlStream, NetError> {
    let until = until.into();
    loop {
        match dial(fabric, name) {
            Err(NetError::Registry(RegistryError::NobodyListening { .. })) => {}
            called => return called,
        }
        until.wait(NO_LISTENER, &[], Some(clock::now() + RETRY_NAME))?;
    }
}

/// Connects to the process that listens at `address`, `HOST:PORT`, and waits for the answer. Resolves the
/// host name, which may take as long as the system's resolver does. If there are several addresses, they are
/// tried in turn until one answers; an address that does not answer leaves time for those behind it. The error
/// then names that address and the time that it had.
pub fn dial_tcp<'u>(
    address: &str,
    until: impl Into<WaitLimit<'u>>,
) -> Result<ControlStream, NetError> {
    let called = connect_any(&look_up(address)?, false, &until.into())?;
    ControlStream::from_tcp(called.map_err(NetError::unreachable(address))?)
}

/// Like [`dial_tcp`], but waits for a listener that is not there yet, as long as one of the addresses refuses
/// the connection because nobody listens.
pub fn dial_tcp_wait<'u>(
    address: &str,
    until: impl Into<WaitLimit<'u>>,
) -> Result<ControlStream, NetError> {
    let until = until.into();
    let there = look_up(address)?;
    loop {
        match connect_any(&there, true, &until)? {
            Err(error) if is_refusal(&error) => {}
            called => {
                return ControlStream::from_tcp(called.map_err(NetError::unreachable(address))?);
            }
        }
        let again = clock::now() + RETRY_TCP;
        until.wait(NO_LISTENER, &[], Some(again))?;
    }
}

fn look_up(address: &str) -> Result<Vec<SocketAddr>, NetError> {
    let found = address.to_socket_addrs();
    let found = found.map_err(NetError::unreachable(address))?;
    Ok(found.collect())
}

/// Whether the host is there and nobody listens.
fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

/// `at` did not answer within the time `allowed`.
fn no_answer_error(at: &SocketAddr, allowed: Duration) -> io::Error {
    // Rounds up to the time that was meant: the deadline was set a moment before.
    let tenths = allowed.nanos().div_ceil(100_000_000);
    let seconds = match tenths % 10 {
        0 => (tenths / 10).to_string(),
        tenth => format!("{}.{tenth}", tenths / 10),
    };
    let what = format!("{at} did not answer for {seconds} s");
    io::Error::new(io::ErrorKind::TimedOut, what)
}

/// Tries one address after the other. The inner error is the network's. That nobody listens at one of the
/// addresses takes precedence over the errors of the others, and that one did not answer over those that cannot
/// be reached. `again`: if nobody listens, the caller will try all of them once more.
fn connect_any(
    there: &[SocketAddr],
    again: bool,
    until: &WaitLimit<'_>,
) -> Result<io::Result<TcpStream>, NetError> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for (tried, at) in there.iter().enumerate() {
        let more = usize::from(again && is_refusal(&failed));
        let began = clock::now();
        let share = until.share(began, there.len() - tried + more);
        let error = match connect_one(at, &share) {
            Ok(Ok(stream)) => return Ok(Ok(stream)),
            Ok(Err(errno)) => errno.into(),
            Err(NetError::Deadline { .. }) if !until.is_over(clock::now()) => {
                no_answer_error(at, share.left(began))
            }
            Err(error) => return Err(error),
        };
        let outranks = match failed.kind() {
            io::ErrorKind::ConnectionRefused => false,
            io::ErrorKind::TimedOut => is_refusal(&error),
            _ => true,
        };
        if outranks {
            failed = error;
        }
    }
    Ok(Err(failed))
}

/// Tries to connect to one address. The inner error is the network's.
fn connect_one(
    at: &SocketAddr,
    until: &WaitLimit<'_>,
) -> Result<Result<TcpStream, Errno>, NetError> {
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
        .map_err(NetError::system("a socket"))?;
    match connect(&socket, at) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            until.wait("calling", &[(socket.as_fd(), PollFlags::OUT)], None)?;
            let outcome = socket_error(&socket);
            if let Err(errno) = outcome.map_err(NetError::system("calling"))? {
                return Ok(Err(errno));
            }
        }
        Err(errno) => return Ok(Err(errno)),
    }
    let stream = TcpStream::from(socket);
    // A socket whose own port is the destination connects to itself, so nobody listens there.
    match stream.local_addr().ok() == stream.peer_addr().ok() {
        true => Ok(Err(Errno::CONNREFUSED)),
        false => Ok(Ok(stream)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_verbs::Instant;
    use std::net::{Ipv4Addr, TcpListener};

    fn limit() -> WaitLimit<'static> {
        WaitLimit::deadline(clock::now() + Duration::from_secs(60))
    }

    /// An address where nobody listens: its port was free a moment ago.
    fn refused() -> SocketAddr {
        let found = TcpListener::bind("127.0.0.1:0").expect("a port");
        found.local_addr().expect("its address")
    }

    /// An address that TCP cannot reach, whatever network the machine has.
    fn unreachable() -> SocketAddr {
        (Ipv4Addr::BROADCAST, 9).into()
    }

    /// An address where connections are not answered, because its queue is full until the descriptors are
    /// closed.
    fn silent() -> (SocketAddr, [OwnedFd; 2]) {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let flags = SocketFlags::CLOEXEC;
        let (inet, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket = socket_with(inet, kind, flags, Some(ipproto::TCP)).expect("a socket");
        rustix::net::bind(&socket, &any).expect("a port");
        rustix::net::listen(&socket, 0).expect("listens");
        let listener = TcpListener::from(socket);
        let at = listener.local_addr().expect("its address");
        let first = TcpStream::connect(at).expect("room for one");
        (at, [listener.into(), first.into()])
    }

    #[test]
    fn a_refused_address_takes_precedence_over_unreachable_ones() {
        let (refused, unreachable) = (refused(), unreachable());
        let failed = |there: &[SocketAddr]| {
            let called = connect_any(there, true, &limit()).expect("time enough");
            called.expect_err("nobody is there").kind()
        };
        let refusal = io::ErrorKind::ConnectionRefused;
        assert_ne!(failed(&[unreachable]), refusal);
        assert_eq!(failed(&[refused, unreachable]), refusal);
        assert_eq!(failed(&[unreachable, refused]), refusal);
        assert_eq!(failed(&[]), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        let (silent, _held) = silent();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let there = [silent, listener.local_addr().expect("its address")];
        let called = connect_any(&there, false, &limit()).expect("time enough");
        called.expect("the second one listens");
    }

    #[test]
    fn an_address_that_does_not_answer_is_named_with_its_time_limit() {
        let (silent, _held) = silent();
        let ever = WaitLimit::deadline(Instant::FAR_FUTURE);
        let called = connect_any(&[silent, unreachable()], false, &ever).expect("time enough");
        let error = called.expect_err("nobody answers");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = NetError::unreachable("host.example:7471")(error).to_string();
        let expected = format!("host.example:7471: {silent} did not answer for 3 s");
        assert_eq!(error, expected);
    }

    #[test]
    fn a_time_limit_is_rounded_up_to_tenths_of_seconds() {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        for (nanos, seconds) in [
            (3_000_000_000, "3"),
            (1_999_999_990, "2"),
            (1_500_000_000, "1.5"),
            (40_000_000, "0.1"),
        ] {
            let said = no_answer_error(&at, Duration::from_nanos(nanos)).to_string();
            assert_eq!(said, format!("127.0.0.1:1 did not answer for {seconds} s"));
        }
    }

    #[test]
    fn an_address_that_does_not_answer_does_not_keep_others_from_being_called_again() {
        let (silent, _held) = silent();
        let ever = WaitLimit::deadline(Instant::FAR_FUTURE);
        let called = connect_any(&[refused(), silent], true, &ever).expect("time enough");
        assert!(is_refusal(&called.expect_err("nobody is there")));
    }
}
