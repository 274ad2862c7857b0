//! C interface to streams through the daemon of this host: the functions of `include/headworks.h`.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | `exports` | the functions that C programs call, thin wrappers; unsafe: it trusts the pointers it is given |
//! | `raw` | calls of libc, and C socket addresses; unsafe |
//! | `library` | shared by all calls: the service, fork detection, catching of panics |
//! | `error` | errors, and the `errno` of each |
//! | `handle` | descriptors and what they stand for; waiting |
//! | `connection` | streams, and ports that listen for them |
//! | `sockets` | sockets for messages |
//! | `poller` | which of many streams and ports without file descriptors are ready |
//! | `lease` | memory from `hw_alloc`, and its current owner |
//! | `remote` | operations on memory of the peer |
//!
//! No call of the service blocks here. Each is tried while only the connection's lock is held, and tried
//! again once the descriptor is ready. So one thread may receive while another sends, and a thread that
//! closes a descriptor wakes the threads that wait for it. Calls with what has no file descriptor do not wait:
//! a poller reports when to try again.
#![deny(unsafe_code)]

mod connection;
mod error;
mod exports;
mod handle;
mod lease;
mod library;
mod poller;
mod raw;
mod remote;
mod sockets;
