//! RDMA NICs: any device of libibverbs, `ibv:mlx5_0` or the kernel's `ibv:rxe0`.
//!
//! libibverbs is loaded at run time. A machine without it has no such devices, and the error says what to
//! install. Building needs none of its headers.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | [`provider`] | opens devices `ibv:NAME[,…]`: names, options, limits, promises |
//! | [`port_selection`] | the chosen port and GID, and why a device cannot be used |
//! | `options`, `quirks`, `gid` | options of a device name; quirks of drivers; choice of a GID: pure |
//! | `port_tables`, `probe` | what a port's tables say and what is chosen of them; what a device is found to do when it is opened |
//! | [`cm`] | connection management by librdmacm |
//! | [`library`] | loads libibverbs at run time |
//! | `raw` | objects of libibverbs, destroyed in order; calls off the hot path |
//! | `device` | an opened device: state that its objects share; protection domains, regions |
//! | `qp`, `srq`, `cq`, `completion_channel`, `address_handle` | implementations of the traits of `verbs` |
//! | `qp_state_cache`, `throttle` | cached state of a queue pair; throttle of slow calls: pure |
//! | `post_chain` | posting: writes a slice of requests into a prepared chain and posts it with one call |
//! | `poll` | polling, with or without the device's timestamps |
//! | `convert`, `attributes` | conversion between `verbs` and libibverbs: pure |
//! | `memory` | allocation of memory to be registered: huge pages, NUMA node |
//! | `events` | asynchronous events |
//!
//! # Differences from `soft`
//!
//! - The provider counts nothing: [`QueuePair::counters`](headworks_verbs::QueuePair::counters) is `None`.
//! - Posting refuses a datagram to an address handle that is gone
//!   ([`PostErrorKind::Operation`](headworks_verbs::PostErrorKind::Operation)): a device would follow a
//!   dangling pointer.
//! - [`QueuePair::state`](headworks_verbs::QueuePair::state) returns a cached state, and most calls only read
//!   a clock. Asynchronous events are read at most once per millisecond (or per kernel tick, where that is
//!   longer), and the device is asked at most every 100 ms. The first failed completion of a reliable
//!   connection marks it as in error. It does not prove an error if the queue pair was ever reset, if the
//!   status is a flush, or if the queue pair is UD; the next call then asks the device with a system call.
//! - An overrun of a completion queue is noticed in the same way, by polls that return no completion.
//! - Requested rights to atomics have no effect on a device without atomics.
//! - Timestamps are from the device's clock if the program can read it; otherwise they are taken when polled.
//!
#![doc = include_str!("how_it_works.md")]
#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("headworks-ibverbs needs Linux");

/// The binary interface of libibverbs.
use headworks_verbs_abi as abi;

mod address_handle;
mod attributes;
#[allow(unsafe_code, reason = "the contract of `Buffer`")]
mod buffer;
pub mod cm;
mod completion_channel;
mod convert;
mod cq;
mod device;
mod events;
mod gid;
#[allow(unsafe_code, reason = "calls of the dynamic linker")]
pub mod library;
mod options;
#[allow(unsafe_code, reason = "calls of the device, and what they wrote")]
mod poll;
pub mod port_selection;
mod port_tables;
#[allow(unsafe_code, reason = "pointers into chains of requests")]
mod post_chain;
mod probe;
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
