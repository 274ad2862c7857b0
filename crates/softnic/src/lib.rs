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
//! The modules form three layers. A layer uses only those below it, and the modules within a layer form no cycle
//! (`xtask/src/module_cycles.rs` checks both). The tables begin with the highest layer. In each table a module uses
//! only modules in the rows below it; the submodules of `qp` use each other.
//!
//! `control` opens devices, creates objects, and looks after them in the progress thread:
//!
//! | module | content |
//! |---|---|
//! | [`provider`] | opens devices `soft[:HOST][,…]`: names, options, promises |
//! | `device` | an opened device and its protection domains: creation of all objects |
//! | `progress_thread` | progress thread: drives pending requests, notices deaths |
//! | `bounce_service` | serves the calls that peers put into their bounce buffers |
//! | `objects` | lists of a device's queue pairs, CQs, SRQs and buffers |
//! | `buffer` | buffers, regions; deregistration that waits for initiators in flight |
//! | `address_handle` | address handles as the application holds them |
//!
//! `datapath` posts, executes and completes requests:
//!
//! | module | content |
//! |---|---|
//! | `qp` | queue pairs: posting, accounting |
//! | `qp::states` | creates, moves through the states, destroys |
//! | `qp::queue_pairs` | the queue pairs of a context; waiting for initiators that could reach its memory |
//! | `qp::remote_qp` | view of the remote queue pair, looked up and checked |
//! | `qp::write_path` | the short path of WRITEs posted alone or in twos, like those before them |
//! | `qp::engine` | executes one request, or asks the peer to |
//! | `qp::deliver` | responder's half of SEND and immediates: receives and their completions |
//! | `qp::datagram` | datagrams: resolved destinations, delivery |
//! | `qp::dead_senders` | recovery of what dead senders of datagrams left |
//! | `qp::pending` | pending requests: retries, timeouts, flushing |
//! | `qp::hostile_qp` | requests of a device with fault injection |
//! | `cq`, `srq` | completion queues, shared receive queues |
//! | `completion_channel` | completion channels |
//! | `bounce` | bounce buffer through which the owner of private memory serves a peer |
//! | `context` | a *context*, a process in a soft host: the state that the objects of an opened device share |
//! | `datagram_senders` | rows of datagram senders, and the processes that hold them |
//! | `quarantine` | objects that stopped processes may still write to |
//! | `address_handles`, `events` | address handles and asynchronous events of a context |
//! | `mr_key_check` | key check and look-up of memory regions, cached per queue pair |
//! | `remote_memory` | access to a peer's memory, mapped or not |
//! | `cross_process_copy` | copies between processes through the kernel |
//! | `copy` | gather and scatter; atomics |
//! | `non_temporal` | which WRITEs use non-temporal stores: pure, but for cache sizes |
//!
//! `table` has what other processes see of a context, and what a context sees of them:
//!
//! | module | content |
//! |---|---|
//! | `initiator` | queue pairs and senders that execute on this process's memory; waiting for them |
//! | `peers` | the contexts that a context has attached |
//! | `peer` | another process's context, attached: its table, its memory, its wake pipes |
//! | `peer_process` | liveness of a peer process: dead, or stopped |
//! | `descriptors` | descriptors that a context hands to other processes, and asks of them |
//! | `progress` | state that a context's threads share with its progress thread |
//! | `local_mrs` | trusted table of this process's memory regions, which no peer can change |
//! | `arena` | shared memory for queues and small buffers, cut from a few segments |
//! | `row_allocator` | allocation of table rows |
//! | `addresses`, `limits`, `clock` | GIDs, QPNs and keys of soft hosts; limits of every device; time |
//! | `rows` | the shared table of a context: rows for queue pairs, CQs, SRQs, regions, segments, senders |
//!
//! Beside the layers:
//!
//! | module | content |
//! |---|---|
//! | [`inspect`] | inspection of all software RNICs of a user, from outside; uses `table` |
//! | [`hostile`] | fault injection: rules, pure; used by `datapath` and `control::provider` |
//! | `crash_points` | crash-injection points of tests |
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
pub use datapath::qp::{INLINE_MAX, RECEIVE_QUEUE_HEADER_BYTES, SHARED_BYTES_PER_QP};
