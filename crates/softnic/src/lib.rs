//! The software RNIC: verbs between the processes of one user on one machine, with no kernel
//! module, no root and no RDMA hardware.
//!
//! It is *initiator-executes*: the thread that posts a request executes it in the call, on memory that both
//! processes map. A small WRITE is a look-up, a bounds check and a copy. Requests that cannot be executed at
//! once (more than [`INLINE_MAX`] bytes, a SEND whose receive is not posted, a peer that is not ready) wait
//! in the queue pair's own list. The initiator's next calls execute them in bounded chunks. If it makes no
//! calls, its progress thread does.
//!
//! # Map
//!
//! From the device's interface inwards:
//!
//! | module | content |
//! |---|---|
//! | [`provider`] | opens devices `soft[:HOST][,…]`: names, options, limits, promises |
//! | `device` | an opened device: one *context*, a process in a soft host |
//! | `table` | the shared table of a context: rows for queue pairs, CQs, SRQs, regions, segments, senders |
//! | `descriptors` | descriptors that a context hands to other processes, and asks of them |
//! | `peer_process` | liveness of a peer process: dead, or stopped |
//! | `peer` | another process's context, attached: its table, its memory, its wake pipes |
//! | `arena` | shared memory for queues and small buffers, cut from a few segments |
//! | `memory` | buffers, regions; deregistration that waits for initiators in flight |
//! | `mr_key_check` | key check and look-up of memory regions, cached per queue pair |
//! | `copy` | gather and scatter; atomics |
//! | `non_temporal` | which WRITEs use non-temporal stores: pure, but for cache sizes |
//! | `local_mrs` | trusted table of this process's memory regions, which no peer can change |
//! | `remote_memory`, `cross_process_copy` | access to a peer's memory, mapped or not; cross-process copies |
//! | `bounce` | bounce buffer through which the owner of private memory serves a peer |
//! | `qp` | queue pairs: posting, accounting |
//! | `qp::states` | creates, moves through the states, destroys |
//! | `qp::remote_qp` | view of the remote queue pair, looked up and checked |
//! | `qp::engine` | executes one request, or asks the peer to |
//! | `qp::deliver` | responder's half of SEND and immediates: receives and their completions |
//! | `qp::datagram` | datagrams: resolved destinations, delivery |
//! | `address_handle`, `datagram_senders` | address handles; remote senders of datagrams, their recovery |
//! | `qp::pending` | pending requests: retries, timeouts, flushing |
//! | `qp::hostile_qp` | requests of a device with fault injection |
//! | [`hostile`] | fault injection: rules, pure |
//! | `cq`, `completion_channel`, `srq` | completion queues, completion channels, shared receive queues |
//! | `quarantine` | memory that stopped processes may still write to |
//! | `events`, `row_allocator` | asynchronous events; allocation of table rows |
//! | `crash_points` | crash-injection points of tests |
//! | [`inspect`] | inspection of all software RNICs of a user, from outside |
//! | `progress` | progress thread: drives pending requests, notices deaths |
//!
//! # What another process can do to this one
//!
//! All processes of a fabric belong to one user. A peer may write anything to the tables that it maps. Values
//! read from there are bounds-checked against this process's own mapping, so a broken peer causes a failed
//! request and not a crash.
//!
#![doc = include_str!("how_it_works.md")]

mod control;
mod crash_points;
mod datapath;
pub mod hostile;
pub mod inspect;
mod table;
#[cfg(test)]
mod tests;

pub use control::provider;
pub use control::provider::SoftProvider;
pub use datapath::cross_process_copy::check_support as check_cross_process_copy;
pub use datapath::qp::{INLINE_MAX, SHARED_BYTES_PER_QP};
