//! Headworks: rings, sockets and flow control on RDMA verbs. It runs on an RDMA NIC where the host has one,
//! and on a software RNIC elsewhere.
//!
//! # Cargo features
//!
//! | feature | adds |
//! |---|---|
//! | `soft` | `soft` devices, the software RNIC; [`environment`], [`inspect`], [`testing`] |
//! | `ibv` | `ibv` devices, RDMA NICs through libibverbs, which is loaded at run time; [`rdma`], and `rdma:` addresses of a [`pipe`] |
//! | `sim` | `sim` devices, simulated RNICs in virtual time; [`sim`] |
//! | `daemon` | streams through the host's daemon: [`service`], [`client`], [`daemon`] |
//! | `pacing` | the option `pace` of device names; [`pace`], [`pacing`] |
//! | `runtime` | actors and their worlds: [`runtime`]. `sim` and `daemon` include it |
//! | `tokio` | `asynchronous` |
//!
//! All but `tokio` are on by default, so a program opens every device that this crate knows, and a device's name may
//! come from a configuration. A program that needs less builds in a fraction of the time:
//!
//! ```toml
//! headworks = { …, default-features = false, features = ["soft"] }
//! ```
//!
//! Rings, pipes, blocking ends and control streams need no feature. A device's name that asks for something
//! without its feature is refused ([`OpenError::MissingFeature`](verbs::OpenError::MissingFeature) names the feature).
//!
//! # Map
//!
//! - [`open`], [`devices()`]: opens and lists devices by name; `soft` needs no hardware.
//! - [`environment`]: what the software RNIC needs of the operating system, and whether this process has it.
//! - [`inspect`]: a snapshot of a live fabric (the soft hosts of one registry), taken from outside.
//! - [`ring`]: RB², a one-to-one ring buffer on one-sided WRITE; its documentation is the guide to it.
//! - [`connect`]: makes the ends of a ring and connects them over a control stream.
//! - [`duplex`]: two rings in opposite directions behind one handle, for requests and responses.
//! - [`pipe`]: a byte stream over a ring, between two processes on one host or on two.
//! - [`rdma`]: a control stream between two hosts whose bytes also travel by RDMA.
//! - [`blocking`]: a ring's ends for threads that wait.
//! - `asynchronous`: a ring's ends for tasks of the tokio runtime, with the feature `tokio`; and streams and listeners
//!   of [`service`], with `tokio` and `daemon`.
//! - [`verbs`]: the RDMA types and traits that all modules use.
//! - [`pace`]: doorbell pacing, requested in a device's name; [`pacing`] implements it.
//! - [`service`]: streams through this host's daemon, which shares few queue pairs among all applications.
//!   [`daemon`] is the daemon's core, for programs that run it in a world of their own.
//! - [`testing`]: for your own tests, devices that misbehave on purpose, on a private fabric; and daemons on them
//!   (with the features `soft` and `daemon`) that can be killed and restarted.
//! - [`net`]: rendezvous under a name or at an address, control streams, waiting, the real clock, signals.
//! - [`runtime`]: actors and the worlds that they run in.

#[cfg(feature = "tokio")]
pub mod asynchronous;
pub mod blocking;
pub mod connect;
pub mod devices;
pub mod duplex;
#[cfg(feature = "soft")]
pub mod environment;
#[cfg(feature = "soft")]
pub mod inspect;
#[cfg(feature = "pacing")]
pub mod pace;
#[cfg(not(feature = "pacing"))]
#[path = "pace/absent.rs"]
mod pace;
pub mod pipe;
#[cfg(feature = "ibv")]
pub mod rdma;
#[cfg(not(feature = "ibv"))]
#[path = "rdma/absent.rs"]
mod rdma;
mod rejection_log;
pub mod ring;
#[cfg(feature = "daemon")]
pub mod service;
#[cfg(feature = "soft")]
pub mod testing;

pub use devices::{DEFAULT_DEVICE, devices, open, opener};
#[cfg(feature = "daemon")]
#[doc(hidden)]
pub use headworks_client as client;
#[cfg(feature = "daemon")]
pub use headworks_daemon as daemon;
pub use headworks_net as net;
#[cfg(feature = "pacing")]
pub use headworks_pacing as pacing;
#[cfg(feature = "runtime")]
pub use headworks_runtime as runtime;
pub use headworks_shm::{Registry, RegistryError};
#[cfg(feature = "sim")]
pub use headworks_simnic as sim;
pub use headworks_verbs as verbs;

/// Opens the user's registry, in which processes meet under names (`HEADWORKS_FABRIC` overrides its
/// location).
pub fn registry() -> Result<std::sync::Arc<Registry>, net::NetError> {
    Ok(Registry::open_default()?)
}
