//! State of a daemon at one time, for operators.

use std::net::IpAddr;

use crate::ids::SessionId;

/// State of a daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The address that it serves.
    pub address: IpAddr,
    /// Whether it is draining: it refuses everything new.
    pub is_draining: bool,
    /// Other hosts whose daemons it knows.
    pub peers: Vec<IpAddr>,
    /// Its isolation domains.
    pub domains: Vec<DomainSnapshot>,
    /// The RNIC's threshold for congestion marks, if commands for it are configured.
    pub ecn: Option<EcnSnapshot>,
    /// The daemon's part of the last-level cache, if one is configured.
    pub cache: Option<CacheSnapshot>,
}

/// State of the commands that lower and restore an RNIC's threshold for congestion marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EcnSnapshot {
    /// Whether the threshold may be lowered: `lower` was run, and no `restore` succeeded since.
    pub is_lowered: bool,
    /// Whether the last command failed.
    pub is_failing: bool,
    /// Number of times that a command was run.
    pub runs: u64,
    /// Number of those that failed.
    pub failures: u64,
}

/// State of the daemon's part of the last-level cache (resctrl).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSnapshot {
    /// Name of the group.
    pub group: String,
    /// Capacity mask that is configured.
    pub mask: u32,
    /// Whether the daemon's threads are in the group, and the group has the mask.
    pub is_in_force: bool,
}

/// State of an isolation domain.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainSnapshot {
    /// The user's number.
    pub user: u32,
    /// Index of the daemon's socket that its applications attach at.
    pub socket: u16,
    /// Totals of the domain.
    pub object_counts: ObjectCounts,
    /// Its receive pool: the sum of its workers' parts.
    pub pool: PoolSnapshot,
    /// Its queue-pair groups.
    pub groups: Vec<QpGroupSnapshot>,
    /// The applications of the domain.
    pub applications: Vec<ApplicationSnapshot>,
}

/// State of a receive pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSnapshot {
    /// Bytes of the pool.
    pub bytes: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Bytes of late extents that other memory replaces.
    pub replaced: u64,
    /// Connections that wait for memory, for each class, the highest first.
    pub waiting: [usize; 3],
    /// READs in flight.
    pub reads: u32,
    /// Bytes of these READs.
    pub read_bytes: u64,
    /// Number of extents that were ever replaced.
    pub replacements: u64,
    /// Number of times that an application's bytes were copied out, because it did not read them. A time at which nothing
    /// could be copied does not count.
    pub copies: u64,
    /// Number of times that an application's connections were reset, because it kept memory for too long.
    pub resets: u64,
    /// Number of signals to other hosts to send more slowly.
    pub signals: u64,
    /// Bytes of its memory that lie in reserved huge pages.
    pub huge: u64,
    /// Bytes that the daemon has read so that they stay in the cache.
    pub touched: u64,
}

impl std::ops::AddAssign for PoolSnapshot {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.free += other.free;
        self.replaced += other.replaced;
        for (waiting, more) in self.waiting.iter_mut().zip(other.waiting) {
            *waiting += more;
        }
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.replacements += other.replacements;
        self.copies += other.copies;
        self.resets += other.resets;
        self.signals += other.signals;
        self.huge += other.huge;
        self.touched += other.touched;
    }
}

/// State of a queue-pair group: two queue pairs that all connections between two domains share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpGroupSnapshot {
    /// The other host; `None` if its daemon is gone.
    pub host: Option<IpAddr>,
    /// Number of the domain on the other host.
    pub domain: u32,
    /// Number of the worker that carries it.
    pub worker: u16,
    /// Whether its queue pairs are connected.
    pub is_up: bool,
    /// Number of ends of connections on it.
    pub connections: usize,
    /// Number of frames that may be sent before the other side promises more receives.
    pub credit: u64,
    /// Number of receives that this side has promised to the other side and that are not used.
    pub promised: u64,
    /// Total number of frames sent.
    pub sent: u64,
    /// Total number of frames received.
    pub came: u64,
    /// Total number of READs of pieces of streams from the other host's memory.
    pub reads: u64,
    /// Total number of transfers that this host has announced to the other host.
    pub announced: u64,
    /// Number of signals to send more slowly: sent to the other host, and received from it.
    pub signals: (u64, u64),
}

/// State of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplicationSnapshot {
    /// Session of the application.
    pub session: SessionId,
    /// Name that it chose.
    pub name: String,
    /// Its process, if the carrier of its packets knows it.
    pub pid: Option<u32>,
    /// Number of ends of connections that it has.
    pub connections: usize,
    /// How many of those are [direct](headworks_client::direct).
    pub direct: usize,
    /// Number of ports that it listens at.
    pub listeners: usize,
    /// Totals of its traffic.
    pub traffic: Traffic,
    /// Bytes of the receive pool that it holds, and those of them that it has held for long.
    pub pool_held: (u64, u64),
    /// Bytes of shared memory that it uses.
    pub in_use: u64,
    /// Bytes of shared memory that are allocated for it.
    pub allocated: u64,
}

/// Totals of an application's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of connections opened: made or accepted.
    pub opened: u64,
    /// How many of those were [direct](headworks_client::direct).
    pub direct: u64,
    /// How many of the opened ones were reset, by either end or a failure.
    pub reset: u64,
    /// Bytes of streams sent: handed to a queue pair, or announced.
    pub sent: u64,
    /// Bytes of streams received.
    pub received: u64,
    /// Bytes of those that were READ into the receive pool.
    pub pooled: u64,
    /// Bytes copied out of the receive pool, because the application did not read them.
    pub copied_out: u64,
    /// Bytes that were READ into other memory than the receive pool's, because that had none for long.
    pub beside_pool: u64,
}

/// Numbers of the objects in a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    /// Sessions of applications.
    pub sessions: usize,
    /// Ends of connections.
    pub connections: usize,
    /// Queue-pair groups.
    pub groups: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Receives posted. On a device without shared receive queues: those that can be posted.
    pub receives: u32,
    /// Receives promised to peers: at most `receives`.
    pub promised: u32,
    /// Bytes of shared memory in use.
    pub in_use: u64,
    /// Bytes of shared memory allocated.
    pub allocated: u64,
    /// Times that free memory was found overwritten. Counted only with
    /// [`DaemonLimits::poison`](crate::DaemonLimits::poison).
    pub overwritten: u64,
}

impl std::ops::AddAssign for ObjectCounts {
    fn add_assign(&mut self, other: Self) {
        self.sessions += other.sessions;
        self.connections += other.connections;
        self.groups += other.groups;
        self.queue_pairs += other.queue_pairs;
        self.receives += other.receives;
        self.promised += other.promised;
        self.in_use += other.in_use;
        self.allocated += other.allocated;
        self.overwritten += other.overwritten;
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.opened += other.opened;
        self.direct += other.direct;
        self.reset += other.reset;
        // Applications write the counters of direct connections, and may write any numbers.
        self.sent = self.sent.saturating_add(other.sent);
        self.received = self.received.saturating_add(other.received);
        self.pooled += other.pooled;
        self.copied_out += other.copied_out;
        self.beside_pool += other.beside_pool;
    }
}
