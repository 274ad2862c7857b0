//! A receive pool after Jet ("From RDMA to RDCA: Toward High-Speed Last Mile of Data Center Networks Using Remote Direct
//! Cache Access"): the memory that received bytes land in is one small pool, which stays in the processor's cache, in place
//! of a long ring for each connection.
//!
//! Long transfers are announced, wait for admission and are READ by the receiver into extents of the pool. The application
//! consumes and releases them, in pieces of 4 KiB, and the same memory is used again at once. How much is in use at the same time
//! is the rate times the time that bytes stay, by Little's law: 5 MB at 200 Gbit/s and 200 µs (section 2.2). An application
//! that keeps its extents for long makes the pool short; the escape controller then replaces them by ordinary memory,
//! has them copied out, or slows the senders down.
//!
//! This crate decides; it has no memory, clock, I/O or thread. Its caller READs, copies and signals, and tells it the time.
//!
//! # Map
//!
//! | module | what | paper |
//! |---|---|---|
//! | [`config`] | sizes and parameters: meaning, unit, range, default | 4.1.3, 4.3 |
//! | [`units`] | allocator of extents: units of 4 KiB, most recently released first | 4.2 |
//! | [`holdings`] | who holds which extents and for how long; checks releases | 4.3, linked lists |
//! | [`admission`] | queues by class, Little's law, windows of READs | 3.2, 4.1.2, 5 (QoS) |
//! | [`landing`] | where the transfers of one connection land, and why connections never block each other for ever | |
//! | [`escape`] | escape controller: thresholds and what follows | 4.3, Algorithm 1 |
//! | [`pool`] | the pool: all of these but admission and landing, with quotas | 4.1, 4.2 |
//!
//! # Differences from the paper
//!
//! - Received short messages do not lie in the pool: a receive stays private to the daemon, and its bytes are copied to a
//!   small ring of the connection at once. So a slow reader never holds a receive.
//! - The paper grants a transfer its whole area at admission. Here a transfer takes memory READ by READ, within what was
//!   promised to it, so that a transfer may be longer than the pool.
//! - A transfer whose connection has nothing to read lands in the connection's own ring if the pool has no memory for it.
//!   The paper does not say what happens to an application that waits for such a transfer while others fill the pool.
//! - What differs in Algorithm 1 is at the top of [`escape`].
#![deny(unsafe_code)]

pub mod admission;
pub mod config;
pub mod escape;
pub mod holdings;
pub mod landing;
pub mod pool;
pub mod units;
