//! The daemon of a host (RaaS, sections III to V): carries thousands of connections of many applications over
//! few queue pairs. Everything except [`server`] is the core. The core does no I/O, reads no clock and starts
//! no thread: its caller passes in devices, packets of applications and messages of other daemons, and
//! carries out its outputs.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`daemon`] | the daemon's control: applications and their tenants, ports, other daemons, connect requests |
//! | [`worker`] | a worker: carries the links to some hosts |
//! | [`domain`] | a worker's part of an isolation domain: one tenant's sessions, connections and queue pairs; the step that drives them |
//! | [`qp_group`], [`send_queue`] | queue pairs that connections share, and the send queue of each |
//! | [`receives`] | buffers of the shared receive queue, or of the queue pairs where the device has none |
//! | [`pool`] | receive pool: memory for long transfers, and who gets it |
//! | `pool_touch` | which part of the pool is read next, so that it stays in the cache: pure |
//! | [`ecn`], [`ecn_settings`] | when the commands that lower and restore an RNIC's ECN threshold run; the commands: pure |
//! | [`resctrl`] | capacity masks of the last-level cache, and the texts of Linux's resctrl: pure |
//! | `connection`, `egress`, `ingress` | a connection's end: its states, sending half and receiving half |
//! | `pool_waiters` | connections that wait for the receive pool, and which of them do without: pure |
//! | `exports` | memory exported to the peer: pure |
//! | `memory_quota` | limit on the slabs and the direct connections of one application |
//! | [`pair_memory`] | memory of direct connections: blocks and rings in which one session sends to another of this machine |
//! | `session`, [`session_memory`] | an application: its doorbell and handles, its slabs |
//! | [`link_rate`] | rate of a group whose receiver asks for less: pure |
//! | [`credit`] | credit of a queue-pair group: pure |
//! | [`receive_shares`] | how receives are divided among groups: pure |
//! | [`own_receives`] | receives of one queue pair, on a device without shared receive queues: pure |
//! | [`allocator`] | allocator of slab memory: pure |
//! | [`connection_table`] | table of connections: pure |
//! | [`auth`] | mutual authentication of daemons by a shared secret: pure |
//! | [`frame`], [`control`] | wire formats: frames on queue pairs, messages on the stream between daemons |
//! | [`ids`] | identifiers of all these objects, and tenants: pure |
//! | [`limits`], [`config`] | limits; the configuration file: pure |
//! | [`snapshot`], [`metrics`] | state for operators; its text form (Prometheus): pure |
//! | [`log_ratelimit`] | rate limiter for log lines: pure |
//! | [`server`] | event loop around the core: sockets, clock, sleep |
//!
//! Connections of a queue-pair group are scheduled by deficit round robin, by bytes
//! ([`headworks_ring::group::drr`]).
//!
//! # How bytes travel
//!
//! An application writes records into its egress ring and sets the connection's bit in its session's doorbell
//! (`headworks-client`). The domain's step finds the bit and adds the connection to the deficit round robin
//! of its queue-pair group. When the connection's turn comes, the domain copies short records into a frame.
//! Long records are not copied: a frame announces them, and the receiver has its RNIC READ them into its receive pool. A
//! frame arrives through the domain's shared receive queue. If the device has no shared receive queues, it arrives
//! through the receive queue of its queue pair. The receiving daemon copies its bytes to their place and posts the
//! receive again at once, so that no receive ever waits for an application.
//!
#![doc = include_str!("how_it_works.md")]
#![deny(unsafe_code)]

pub mod allocator;
pub mod auth;
pub mod config;
mod connection;
pub mod connection_table;
pub mod control;
mod copy_log;
pub mod credit;
pub mod daemon;
pub mod domain;
pub mod ecn;
pub mod ecn_settings;
mod egress;
mod exports;
pub mod frame;
pub mod ids;
mod ingress;
pub mod limits;
pub mod link_rate;
pub mod log_ratelimit;
mod memory_quota;
pub mod metrics;
pub mod own_receives;
pub mod pair_memory;
pub mod pool;
mod pool_touch;
mod pool_waiters;
pub mod qp_group;
pub mod receive_shares;
pub mod receives;
pub mod resctrl;
pub mod send_queue;
pub mod server;
mod session;
pub mod session_memory;
pub mod snapshot;
pub mod worker;

pub use daemon::{Daemon, Identity, Output};
pub use domain::DomainError;
pub use ids::{DomainId, PeerId, SessionId, WorkerId};
pub use limits::{DaemonLimits, LimitsError};
pub use snapshot::{ObjectCounts, Snapshot};
