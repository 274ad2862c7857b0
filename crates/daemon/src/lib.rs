//! The daemon of a host: thousands of connections of many applications over few queue pairs (RaaS, sections III to
//! V). All but the [`server`] is its core, which does no I/O, reads no clock and starts no thread: devices, packets of
//! applications and messages of other daemons are handed in, and what it wants done is taken out.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`daemon`] | the daemon: applications, ports, other daemons, how connections are made |
//! | [`domain`] | an isolation domain: sessions, connections and links of one user, and the step that carries everything |
//! | [`qp_group`], [`send_queue`] | the queue pairs that connections share, and their requests in order |
//! | [`receives`] | the shared receive queue and its memory |
//! | `connection`, `egress`, `ingress` | an end of a connection: its life, its sending half, its receiving half |
//! | `exports` | memory that one end exports to the other: pure |
//! | `session`, [`memory`] | an application: its board and handles, its slabs |
//! | [`credit`], [`receive_shares`] | how many frames may be under way on a link; how receives are shared among links: pure |
//! | [`reassembly`], [`allocator`], [`connection_table`] | what of a stream has come; which memory is in use; numbers of connections: pure |
//! | [`auth`] | that another daemon has the same secret: pure |
//! | [`frame`], [`control`] | what daemons say to each other, over links and on the stream between them |
//! | [`limits`], [`config`] | sizes and limits; the file that an operator writes: pure |
//! | [`snapshot`], [`metrics`] | what there is, for operators; the same as text: pure |
//! | [`log_ratelimit`] | how often what others can provoke is said: pure |
//! | [`server`] | sockets, clock and sleep around all of it |
//!
//! Whose turn it is on a link is [`headworks_ring::group::drr`]'s to say, by cost.
//!
//! # How bytes travel
//!
//! An application writes records into its egress ring and marks the connection on its session's board
//! (`headworks-client`). The domain's step finds the mark, calls the connection to its link's rota, and when it is
//! its turn, copies short records into a frame, or has long ones WRITTEN by the RNIC from where they lie to where
//! they belong in the receiver's ingress ring (or offers them, and the receiver READs). A frame comes through the one
//! shared receive queue, is copied to where its bytes belong, and its receive is posted again before anything else can
//! depend on the application.
//!
#![doc = include_str!("how_it_works.md")]
#![deny(unsafe_code)]

pub mod allocator;
pub mod auth;
pub mod config;
mod connection;
pub mod connection_table;
pub mod control;
pub mod credit;
pub mod daemon;
pub mod domain;
mod egress;
mod exports;
pub mod frame;
mod ingress;
pub mod limits;
pub mod log_ratelimit;
pub mod memory;
pub mod metrics;
pub mod qp_group;
pub mod reassembly;
pub mod receive_shares;
pub mod receives;
pub mod send_queue;
pub mod server;
mod session;
pub mod snapshot;

pub use daemon::{Daemon, Identity, Output, PeerId, SessionId};
pub use domain::{DomainError, DomainId, ObjectCounts};
pub use limits::{Bulk, Config, ConfigError};
pub use snapshot::Snapshot;
