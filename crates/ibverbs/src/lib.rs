//! RDMA NICs: any device of libibverbs, `ibv:mlx5_0` or the kernel's `ibv:rxe0`.
//!
//! libibverbs is loaded at run time. A machine without it has no such devices, and is told what to
//! install; nothing needs its headers to build.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`provider`] | opens devices `ibv:NAME[,…]`: names, options, limits, promises |
//! | [`port_selection`] | choice of port and GID, and why a device cannot be used |
//! | `options`, `quirks`, `gid` | options of a device name; quirks of drivers; choice of a GID: pure |
//! | [`cm`] | connection management by librdmacm |
//! | [`library`] | loads libibverbs at run time |
//! | `abi` | ABI of libibverbs: types, checked at compile time |
//! | `raw` | objects of libibverbs, destroyed in order; calls off the hot path |
//! | `device` | an opened device: what its objects share; protection domains, regions |
//! | `qp`, `srq`, `cq`, `completion_channel`, `address_handle` | implementations of the traits of `verbs` |
//! | `qp_state_cache`, `throttle` | cached state of a queue pair; throttle of slow calls: pure |
//! | `post_chain` | posting: writes a slice of requests into a prepared chain, one call each |
//! | `poll` | polling, with or without the device's timestamps |
//! | `convert`, `attributes` | conversion between `verbs` and libibverbs: pure |
//! | `memory` | allocation of registered memory: huge pages, NUMA node |
//! | `events` | asynchronous events |
//!
//! # What differs from `soft`
//!
//! - Counters are the device's own affair ([`QueuePair::counters`](headworks_verbs::QueuePair::counters)
//!   is `None`).
//! - A datagram to an address handle that is gone is refused when it is posted
//!   ([`PostErrorKind::Operation`](headworks_verbs::PostErrorKind::Operation)): a device would follow a
//!   pointer to nothing.
//! - [`QueuePair::state`](headworks_verbs::QueuePair::state) is what was last heard, and reads a clock at
//!   most, but for now and then: asynchronous events are looked for once per millisecond (or tick of the
//!   kernel, where that is longer), and the device itself is asked every 100 ms. The first failed
//!   completion of a connection says that it is in error. After a reset, of a flush and of datagrams it
//!   does not say that for sure, and then the next call asks the device, which takes a system call.
//! - That a completion queue overran is heard of in the same way, by polls that bring nothing.
//! - Rights to atomics come to nothing on a device that has none.
//! - Timestamps are of the device's clock where it has one that can be read, else taken when polled.
//!
#![doc = include_str!("how_it_works.md")]
#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("headworks-ibverbs needs Linux");

#[allow(
    unsafe_code,
    reason = "the types of C functions; what is called is called elsewhere"
)]
mod abi;
mod address_handle;
mod attributes;
pub mod cm;
mod completion_channel;
mod convert;
mod cq;
mod device;
mod events;
mod gid;
#[allow(unsafe_code, reason = "calls of the dynamic linker")]
pub mod library;
#[allow(unsafe_code, reason = "the contract of `Buffer`")]
mod memory;
mod options;
#[allow(unsafe_code, reason = "calls of the device, and what they wrote")]
mod poll;
pub mod port_selection;
#[allow(unsafe_code, reason = "pointers into chains of requests")]
mod post_chain;
pub mod provider;
mod qp;
mod qp_state_cache;
mod quirks;
#[allow(unsafe_code, reason = "calls of libibverbs")]
mod raw;
mod srq;
#[cfg(test)]
#[allow(unsafe_code, reason = "a device made of functions for C")]
mod tests;
mod throttle;

pub use library::LibraryError;
pub use port_selection::{Choice, Network, Refusal};
pub use provider::IbvProvider;
