//! What there is in a daemon, as it was seen once: for operators.

use std::net::IpAddr;

use crate::daemon::SessionId;
use crate::domain::ObjectCounts;

/// A daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The address it serves.
    pub address: IpAddr,
    /// Whether it takes nothing new any more.
    pub is_draining: bool,
    /// Other hosts whose daemons it knows.
    pub peers: Vec<IpAddr>,
    /// Its isolation domains.
    pub domains: Vec<DomainSnapshot>,
}

/// An isolation domain.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainSnapshot {
    /// Whose: a user's number.
    pub user: u32,
    /// Sums.
    pub census: ObjectCounts,
    /// Its links.
    pub links: Vec<QpGroupSnapshot>,
    /// Its applications.
    pub applications: Vec<ApplicationSnapshot>,
}

/// A link: two queue pairs that all connections between two domains share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpGroupSnapshot {
    /// The other host; `None` where its daemon is gone.
    pub host: Option<IpAddr>,
    /// The user there.
    pub user: u32,
    /// Whether its queue pairs are connected.
    pub is_up: bool,
    /// Ends of connections on it.
    pub connections: usize,
    /// Frames that may be sent before the other side promises more receives.
    pub credit: u64,
    /// Receives that the other side was promised and has not used.
    pub promised: u64,
    /// Frames sent, ever.
    pub sent: u64,
    /// Frames that came, ever.
    pub came: u64,
    /// Pieces of streams that were written to the other host's memory, ever.
    pub writes: u64,
    /// Pieces of streams that the other host was offered to read, ever.
    pub offers: u64,
}

/// An application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplicationSnapshot {
    /// Its session.
    pub session: SessionId,
    /// What it calls itself.
    pub name: String,
    /// Its process, where whoever carries its packets knows.
    pub pid: Option<u32>,
    /// Ends of connections that it has.
    pub connections: usize,
    /// Ports that it listens at.
    pub listeners: usize,
    /// What passed, ever.
    pub traffic: Traffic,
    /// Bytes of shared memory that it uses.
    pub in_use: u64,
    /// Bytes that are there for it.
    pub allocated: u64,
}

/// What passed, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections made.
    pub opened: u64,
    /// Of those, how many were reset: by whom ever.
    pub reset: u64,
    /// Bytes of streams sent: handed to a queue pair, or offered.
    pub sent: u64,
    /// Bytes of streams that came.
    pub received: u64,
}
