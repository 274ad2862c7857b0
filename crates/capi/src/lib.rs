//! Streams through the daemon of this host, for C: the functions of `include/headworks.h`.
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | `exports` | the functions that C calls, each a thin shell; unsafe: it believes the pointers that C hands it |
//! | `raw` | what of the system's own C interface is needed; unsafe |
//! | `library` | what all calls have in common: the service, the process, what becomes of panics |
//! | `error` | what can go wrong, and its `errno` |
//! | `handle` | descriptors and what they stand for; waiting |
//! | `connection` | streams, ports that others connect to |
//! | `sockets` | messages from and to many |
//! | `lease` | memory that C has the address of, and who has it |
//! | `remote` | memory of the other end's |
//!
//! No call of the service's waits here: each is tried, with nothing but the connection's lock held, and tried again once
//! the descriptor is ready. So one thread may receive while another sends, and who closes a descriptor wakes those who
//! wait for it.
#![deny(unsafe_code)]

mod connection;
mod error;
mod exports;
mod handle;
mod lease;
mod library;
mod raw;
mod remote;
mod sockets;
