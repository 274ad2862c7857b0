//! Headworks: rings, sockets and flow control on RDMA verbs, on an RDMA NIC where there is one and
//! on a software one where there is not.
//!
//! # Map
//!
//! - [`open`], [`devices()`]: devices by name; `soft` needs no hardware.
//! - [`inspect`]: a look at a live fabric from outside.
//! - [`ring`]: RB², a one-to-one ring buffer on one-sided WRITE; its documentation is the guide to it.
//! - [`connect`]: a ring's ends, made and connected over a line.
//! - [`pipe`]: a byte stream between two processes, of one machine or two, over a ring.
//! - [`rdma`]: a line between two hosts whose bytes go by RDMA, too.
//! - [`blocking`]: a ring's ends for threads that want to wait.
//! - `asynchronous`: a ring's ends for tasks of the tokio runtime, with the feature `tokio`.
//! - [`verbs`]: the vocabulary that all of it speaks.
//! - [`pace`]: doorbell pacing, by a device's name; [`pacing`] is what does it.
//! - [`service`]: streams through the daemon of this host, which shares few queue pairs among all; [`daemon`] is that,
//!   [`client`] what both say to each other, for whoever has a world of his own for them.
//! - [`testing`]: devices that misbehave on purpose, on a private fabric, for your own tests.
//! - [`net`]: rendezvous under a name or at an address, lines, waiting, the real clock, signals.
//! - [`runtime`]: actors and the worlds that they run in.

#[cfg(feature = "tokio")]
pub mod asynchronous;
pub mod blocking;
pub mod connect;
pub mod devices;
pub mod inspect;
pub mod pace;
pub mod pipe;
pub mod rdma;
pub mod ring;
pub mod service;
pub mod testing;

pub use devices::{DEFAULT_DEVICE, devices, open, opener};
pub use headworks_client as client;
pub use headworks_daemon as daemon;
pub use headworks_net as net;
pub use headworks_pacing as pacing;
pub use headworks_runtime as runtime;
pub use headworks_simnic as sim;
pub use headworks_verbs as verbs;

/// The user's registry, in which processes meet under names (`HEADWORKS_FABRIC` overrides where it is).
pub fn registry() -> Result<std::sync::Arc<headworks_shm::Registry>, net::NetError> {
    Ok(headworks_shm::Registry::open_default()?)
}
