//! Listens at all TCP addresses of a name.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::epoll;
use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with};

use crate::NetError;

/// Most connections of a socket that wait to be accepted, the value of the standard library.
const BACKLOG: i32 = 128;
/// How often a free port of the first address is taken until it is free at the other addresses, too.
const PORT_TRIES: usize = 16;

/// The sockets that listen at the addresses of one name, at least one. All have the same port.
#[derive(Debug)]
pub(super) struct TcpListeners {
    sockets: Vec<TcpListener>,
    /// An epoll instance with all sockets, if there are several.
    any: Option<OwnedFd>,
    /// Number of accepted connections. It selects the socket that is asked first, so that many callers at
    /// one address do not delay those at another.
    turn: AtomicUsize,
}

impl TcpListeners {
    /// Resolves `address`, `HOST:PORT`, and listens at each of its addresses; port 0 takes a port that is
    /// free at all of them. If some addresses cannot be used, logs which and why, and listens at the others.
    pub(super) fn bind(address: &str) -> Result<Self, NetError> {
        let failed = |source| NetError::CannotListen {
            address: address.to_owned(),
            source,
        };
        let found = address.to_socket_addrs().map_err(failed)?;
        let mut at: Vec<SocketAddr> = Vec::new();
        for one in found {
            if !at.contains(&one) {
                at.push(one);
            }
        }
        let (listeners, unusable) = Self::bind_all(&at).map_err(failed)?;
        if !unusable.is_empty() {
            let bound = listeners.addresses();
            tracing::warn!("{}", describe_unusable(address, &bound, &unusable));
        }
        Ok(listeners)
    }

    /// Listens at all addresses of `at` that can be used. Returns the others with their errors. Fails with
    /// the first error if none can be used.
    fn bind_all(at: &[SocketAddr]) -> io::Result<(Self, Vec<(SocketAddr, io::Error)>)> {
        for _ in 1..PORT_TRIES {
            let (sockets, unusable) = bind_once(at);
            let is_taken = |(one, error): &(SocketAddr, io::Error)| {
                one.port() == 0 && error.kind() == io::ErrorKind::AddrInUse
            };
            // The system chose a port that is in use at another address.
            if !sockets.is_empty() && unusable.iter().any(is_taken) {
                continue;
            }
            return Self::new(sockets, unusable);
        }
        let (sockets, unusable) = bind_once(at);
        Self::new(sockets, unusable)
    }

    fn new(
        sockets: Vec<TcpListener>,
        mut unusable: Vec<(SocketAddr, io::Error)>,
    ) -> io::Result<(Self, Vec<(SocketAddr, io::Error)>)> {
        if sockets.is_empty() {
            let no_address = || io::Error::other("the name has no address");
            let first = (!unusable.is_empty()).then(|| unusable.remove(0).1);
            return Err(first.unwrap_or_else(no_address));
        }
        let any = match sockets.len() {
            1 => None,
            _ => {
                let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                for socket in &sockets {
                    let token = epoll::EventData::new_u64(0);
                    epoll::add(&any, socket, token, epoll::EventFlags::IN)?;
                }
                Some(any)
            }
        };
        let turn = AtomicUsize::new(0);
        let listeners = Self { sockets, any, turn };
        Ok((listeners, unusable))
    }

    /// Returns the addresses at which it listens.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let addresses = self.sockets.iter().map(TcpListener::local_addr);
        addresses.filter_map(Result::ok).collect()
    }

    /// Accepts a connection that waits at one of the addresses. Fails with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if none waits.
    pub(super) fn accept(&self) -> io::Result<TcpStream> {
        let first = self.turn.load(Ordering::Relaxed) % self.sockets.len();
        let (before, after) = self.sockets.split_at(first);
        for socket in after.iter().chain(before) {
            match socket.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                accepted => {
                    self.turn.fetch_add(1, Ordering::Relaxed);
                    return accepted.map(|(stream, _)| stream);
                }
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl AsFd for TcpListeners {
    /// Readable when a connection waits at one of the addresses.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.any {
            Some(any) => any.as_fd(),
            None => self.sockets[0].as_fd(),
        }
    }
}

/// Tries each address once. A port 0 of the later addresses stands for the port that the first one got.
/// Returns the sockets, and the addresses that cannot be used, as they were given.
fn bind_once(at: &[SocketAddr]) -> (Vec<TcpListener>, Vec<(SocketAddr, io::Error)>) {
    let mut sockets: Vec<TcpListener> = Vec::new();
    let mut unusable = Vec::new();
    for one in at {
        let mut to = *one;
        if let (0, Some(Ok(first))) = (to.port(), sockets.first().map(TcpListener::local_addr)) {
            to.set_port(first.port());
        }
        match bind_one(&to, at.len() > 1) {
            Ok(socket) => sockets.push(socket),
            Err(error) => unusable.push((*one, error)),
        }
    }
    (sockets, unusable)
}

/// Listens at one address. `has_others`: the name has further addresses.
fn bind_one(at: &SocketAddr, has_others: bool) -> io::Result<TcpListener> {
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    // A port whose last connections are not long closed can be used again.
    set_socket_reuseaddr(&socket, true)?;
    if let SocketAddr::V6(at) = at
        && has_others
        && at.ip().to_ipv4_mapped().is_none()
    {
        // Otherwise `[::]` also takes the port of `0.0.0.0`.
        set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, at)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Formats which addresses of a name are used, and why the others are not.
fn describe_unusable(
    address: &str,
    bound: &[SocketAddr],
    unusable: &[(SocketAddr, io::Error)],
) -> String {
    let bound: Vec<_> = bound.iter().map(SocketAddr::to_string).collect();
    let errors = unusable.iter().map(|(at, error)| format!("{at}: {error}"));
    let errors: Vec<_> = errors.collect();
    format!(
        "{address}: listening at {} only; cannot listen at {}",
        bound.join(" and "),
        errors.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{WaitLimit, clock};
    use headworks_verbs::Duration;

    /// The two loopback addresses with port 0; `None`, with a printed reason, if IPv6 is missing.
    fn loopback() -> Option<[SocketAddr; 2]> {
        let both = ["127.0.0.1:0", "[::1]:0"].map(|at| at.parse().expect("an address"));
        match TcpListener::bind(both[1]) {
            Ok(_) => Some(both),
            Err(error) => {
                println!("skipped: no IPv6 loopback address: {error}");
                None
            }
        }
    }

    #[test]
    fn callers_get_in_at_each_address_of_a_name() {
        let Some(both) = loopback() else { return };
        let (listeners, unusable) = TcpListeners::bind_all(&both).expect("listens");
        assert!(unusable.is_empty(), "{unusable:?}");
        let bound = listeners.addresses();
        assert_eq!(bound.len(), 2);
        assert_eq!(bound[0].port(), bound[1].port());
        let none = listeners.accept().expect_err("nobody called").kind();
        assert_eq!(none, io::ErrorKind::WouldBlock);
        let limit = WaitLimit::deadline(clock::now() + Duration::from_secs(60));
        for at in [bound[0], bound[1], bound[0]] {
            let caller = TcpStream::connect(at).expect("it listens");
            limit
                .wait_readable("a caller", &listeners)
                .expect("readable at any address");
            let accepted = listeners.accept().expect("a caller");
            let (theirs, ours) = (accepted.peer_addr(), caller.local_addr());
            assert_eq!(theirs.expect("its address"), ours.expect("an address"));
        }
    }

    #[test]
    fn callers_at_one_address_do_not_delay_those_at_another() {
        let Some(both) = loopback() else { return };
        let (listeners, _) = TcpListeners::bind_all(&both).expect("listens");
        let bound = listeners.addresses();
        let call = |at| TcpStream::connect(at).expect("it listens");
        let calls = [bound[0], bound[0], bound[0], bound[1]].map(call);
        let two = [(); 2].map(|()| listeners.accept().expect("a caller").local_addr());
        let two = two.map(|at| at.expect("an address"));
        assert!(two.contains(&bound[1]), "{two:?}");
        drop(calls);
    }

    #[test]
    fn both_wildcard_addresses_can_have_one_port() {
        if loopback().is_none() {
            return;
        }
        let both = ["[::]:0", "0.0.0.0:0"].map(|at| at.parse().expect("an address"));
        let (listeners, unusable) = TcpListeners::bind_all(&both).expect("listens");
        assert!(unusable.is_empty(), "{unusable:?}");
        assert_eq!(listeners.addresses().len(), 2);
    }

    #[test]
    fn an_unusable_address_is_named_and_the_others_are_used() {
        // 192.0.2.0/24 is reserved for documentation, so no host has these addresses.
        let at = ["192.0.2.77:0", "127.0.0.1:0"].map(|at| at.parse().expect("an address"));
        let (listeners, unusable) = TcpListeners::bind_all(&at).expect("one can be used");
        let bound = listeners.addresses();
        assert!(bound.len() == 1 && bound[0].ip().is_loopback(), "{bound:?}");
        let said = describe_unusable("h:0", &bound, &unusable);
        let takes = format!("h:0: listening at {} only; ", bound[0]);
        assert!(said.starts_with(&takes), "{said}");
        assert!(said.contains("192.0.2.77:0: Cannot assign"), "{said}");
        let taken = TcpListeners::bind_all(&bound).expect_err("in use");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        assert!(TcpListeners::bind_all(&[]).is_err());
    }
}
