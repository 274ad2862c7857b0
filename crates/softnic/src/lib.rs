//! The software RNIC: verbs between the processes of one user on one machine, with no kernel
//! module, no root and no RDMA hardware.
//!
//! It is *initiator-executes*: the thread that posts a request carries it out, in the call, on
//! memory that both processes map. A small WRITE is a look-up, a bounds check and a copy. What
//! cannot be done at once (more than [`INLINE_MAX`] bytes, a SEND whose receive is not posted, a
//! peer that is not ready) waits in the queue pair's own list and is carried on in bounded chunks
//! by the initiator's next calls or, where it makes none, by its sleeping progress thread.
//!
//! # Map
//!
//! From the fabric inwards:
//!
//! | module | what |
//! |---|---|
//! | [`provider`] | devices `soft[:HOST][,…]`: names, options, limits, promises |
//! | `device` | an opened device: one *context* of its soft host in the fabric |
//! | `table` | the shared table of a context: rows for queue pairs, CQs, SRQs, regions, segments, senders |
//! | `peer_process` | another process: whether it is dead, or stopped |
//! | `peer` | another process's context, attached: its table, its memory, its wake pipes |
//! | `arena` | shared memory for queues and small buffers, cut from a few segments |
//! | `memory` | buffers, regions; deregistration that waits for initiators in flight |
//! | `mr_lookup` | key and address to mapped memory, checked and cached per queue pair |
//! | `copy` | gather/scatter placement, atomics |
//! | `non_temporal` | which WRITEs go past the processor's caches: pure, but for their size |
//! | `local_mrs` | our own registrations, where no peer can change them |
//! | `remote_memory`, `cross_process_copy` | a peer's memory, mapped or not; copying across address spaces |
//! | `bounce` | asking the process whose memory it is, through a window |
//! | `qp` | queue pairs: posting, accounting |
//! | `qp::states` | making, moving from state to state, destroying them |
//! | `qp::link` | the other end, looked up and checked |
//! | `qp::engine` | executing one request; asking the peer to |
//! | `qp::deliver` | the responder's half of SEND and immediates: receives, their completions |
//! | `qp::datagram` | datagrams: the ways to their destinations, and delivering them |
//! | `address_handle`, `datagram_senders` | address handles; who sends datagrams here, and undoing what the dead left |
//! | `qp::pending` | requests that wait, retry and time out; flushing |
//! | `qp::unruly` | requests of a hostile device, which come about otherwise |
//! | [`hostile`] | what a device does that misbehaves on purpose: rules, pure |
//! | `cq`, `completion_channel`, `srq` | completion queues, completion channels, shared receive queues |
//! | `quarantine` | what stopped processes may still write to |
//! | `events`, `row_allocator` | asynchronous events; rows of the table given out and taken back |
//! | `crash_points` | where tests have a process killed or stopped |
//! | [`inspect`] | a look at a live fabric from outside |
//! | `progress` | the thread that carries pending work on and learns of deaths |
//!
//! # What another process can do to us
//!
//! All processes of a fabric belong to one user. A peer may write anything to the tables it maps;
//! what is read from there is bounds-checked against our own mapping of it, so that a broken peer
//! costs a failed request and not a crash.
//!
#![doc = include_str!("how_it_works.md")]

mod address_handle;
mod arena;
mod bounce;
mod completion_channel;
mod copy;
mod cq;
mod crash_points;
mod cross_process_copy;
mod datagram_senders;
mod device;
mod events;
pub mod hostile;
pub mod inspect;
mod local_mrs;
mod memory;
mod mr_lookup;
mod non_temporal;
mod peer;
mod peer_process;
mod progress;
pub mod provider;
mod qp;
mod quarantine;
mod remote_memory;
mod row_allocator;
mod srq;
mod table;
#[cfg(test)]
mod tests;

pub use provider::SoftProvider;
pub use qp::{INLINE_MAX, SHARED_BYTES_PER_QP};
