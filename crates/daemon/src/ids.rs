//! Identifiers of the daemon's objects, and the tenant that a domain belongs to.

/// Identifier of an application that is attached or about to attach. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Applications of one user that attach at one of the daemon's sockets. Each tenant has an isolation domain of its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant {
    /// The user's number.
    pub user: u32,
    /// Index of the socket among those of the daemon.
    pub socket: u16,
}

/// The tenant of a user at the daemon's first socket.
impl From<u32> for Tenant {
    fn from(user: u32) -> Self {
        Self { user, socket: 0 }
    }
}

impl std::fmt::Display for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.socket {
            0 => write!(f, "user {}", self.user),
            socket => write!(f, "user {} at socket {}", self.user, u32::from(socket) + 1),
        }
    }
}

/// Identifier of a TCP stream to another daemon. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// Identifier of a descriptor that an application handed over. The event loop that holds the descriptor
/// assigns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(pub u64);

/// State change that an application polling the other end of a handed-over descriptor is to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The other end becomes readable: the event loop writes a byte.
    Readable,
    /// The other end becomes writable: the event loop reads everything that was written.
    Writable,
    /// The other end is hung up: the event loop closes the descriptor. The daemon does not use its identifier
    /// again.
    HungUp,
}

/// Number of a domain on its host. Other hosts draw no conclusion from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainId(pub u32);

/// Key of a queue-pair group within a domain: the other host and the domain there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpGroupKey {
    /// Number of the other host's daemon.
    pub peer: u64,
    /// Domain on the other host.
    pub domain: DomainId,
}

/// Number of a worker of the daemon, from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u16);

impl WorkerId {
    /// The worker that every session has a part at. A daemon with one worker has only this one.
    pub const FIRST: Self = Self(0);

    /// Index in a list of all workers.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// The part of a domain that one worker carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainPart {
    /// The worker.
    pub worker: WorkerId,
    /// The domain.
    pub domain: DomainId,
}
