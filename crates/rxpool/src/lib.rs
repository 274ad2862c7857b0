//! A receive pool after Jet ("From RDMA to RDCA: Toward High-Speed Last Mile of Data Center Networks Using Remote
//! Direct Cache Access"): the memory that received bytes land in is one small pool, which stays in the processor's
//! cache, in place of a long ring for each connection.
//!
//! Long transfers are announced, wait for admission and are READ by the receiver into extents of the pool. The
//! application consumes and releases them, in pieces of 4 KiB, and the same memory is used again at once. How much is
//! in use at the same time is the rate times the time that bytes stay, by Little's law: 5 MB at 200 Gbit/s and 200 µs
//! (section 2.2). An application that keeps its extents for long makes the pool short; the escape controller then
//! replaces them by ordinary memory, has them copied out, or slows the senders down.
//!
//! All modules but [`receiver`], [`sender`] and [`jobs`] are pure: they decide, and have no memory, clock, I/O or
//! thread. `receiver` posts READs on any device. Its caller copies, signals the senders, and tells it the time.
//! `sender` copies payloads and registers memory. `jobs` is optional: it starts threads that process what has arrived.
//!
//! # Map
//!
//! | module | what | paper |
//! |---|---|---|
//! | [`config`] | sizes and parameters: meaning, unit, range, default | 4.1.3, 4.3 |
//! | [`units`] | allocator of extents: units of 4 KiB, most recently released first | 4.2 |
//! | [`holdings`] | extents of each application, and since when it has them; checks releases | 4.3, linked lists |
//! | [`admission`] | queues by class, Little's law, windows of READs | 3.2, 4.1.2, 5 (QoS) |
//! | [`landing`] | where the transfers of one connection land, and why connections never block each other for ever | |
//! | [`escape`] | escape controller: thresholds and what follows | 4.3, Algorithm 1 |
//! | [`pool`] | the pool: allocator, holdings and escape together, with quotas and claims | 4.1, 4.2 |
//! | [`receiver`] | the pool on verbs: READs announced transfers, and tells what arrived | 3.2, 4.1.2 |
//! | [`sender`] | the sending end: copies or registers payloads | RaaS: III-B, V-A |
//! | [`slices`] | cuts extents that arrived into slices of 4 KiB, which are processed in any order | 3.2, 4.2 |
//! | [`jobs`] | threads that process slices | 3.2 |
//! | `checksum` | CRC32C of slices and transfers; with the feature `crc32c`, which is on by default | |
//!
//! # Differences from the paper
//!
//! - Received short messages do not lie in the pool: a receive stays private to the daemon, and its bytes are copied
//!   to a small ring of the connection at once. So a slow reader never holds a receive.
//! - The paper grants a transfer its whole area at admission. Here a transfer takes memory READ by READ, so that it
//!   may be longer than the pool. What it is expected to take at the same time is claimed for it.
//! - Within a class the applications take turns.
//! - Low classes get ordinary memory only in the daemon: this crate has none to give. No task reads replaced memory
//!   periodically.
//! - A transfer whose connection has nothing to read lands in the connection's own ring if the pool has no memory for
//!   it. The daemon first tries ordinary memory of the application. The paper does not say what happens to an
//!   application that waits for such a transfer while others fill the pool.
//! - What differs in Algorithm 1 is at the top of [`escape`].
#![deny(unsafe_code)]

pub mod admission;
#[cfg(feature = "crc32c")]
pub mod checksum;
pub mod config;
pub mod escape;
pub mod holdings;
pub mod jobs;
pub mod landing;
pub mod pool;
pub mod receiver;
pub mod sender;
pub mod slices;
pub mod units;
