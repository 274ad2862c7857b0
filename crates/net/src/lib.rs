//! Connections between processes, and waiting: what production code needs of the operating system in addition
//! to shared memory.
//!
//! The module list is a map of the crate:
//!
//! - between two processes: [`rendezvous`] (they meet under a name of the registry, or at an address),
//!   [`control_stream`] (bring-up of a queue pair, short messages, keep-alive, the peer's death),
//!   [`qp_stream`] (a byte stream over a connected queue pair, for a control stream to run over), [`framing`]
//!   (length-prefixed messages on a byte stream);
//! - between an application and a daemon: [`packets`] (a Unix socket of packets, with open files);
//! - waiting: [`waiting`] (yield for a bounded time, then sleep), [`WaitLimit`] (a deadline or an interrupt),
//!   [`EventFd`] (wakes a thread of the same process), [`signals`] (Ctrl-C);
//! - time and processors: [`clock`] (the one place that reads the real clock), [`cpu_affinity`].
//!
//! One process listens under a name in the registry ([`Listener::bind`]), and the other dials it ([`dial`],
//! or [`dial_wait`] if the listener may not be there yet). On different hosts they meet at an address instead
//! ([`Listener::bind_tcp`], [`dial_tcp`], [`dial_tcp_wait`]). Any host that reaches the address may connect.
//! The data sent there, memory keys included, is neither encrypted nor authenticated, as RDMA itself is not.
//! If the processes have a queue pair connected by other means, the control stream can run over that ([`QpStream`]).
//!
//! Both processes then have a [`ControlStream`]. It carries the bytes of a [`BringUp`](headworks_verbs::BringUp) and,
//! afterwards, short control messages. It stays open for as long as the connection lives, because its end is
//! the sign of the peer's death.
//!
//! Steps ([`BringUpOverStream::step`], [`ControlStream::recv_control`], …) never block; the calls that wait take a
//! [`WaitLimit`].
//!
//! Nothing here knows a provider or an actor.
//!
#![doc = include_str!("how_it_works.md")]
#![deny(unsafe_code)]

pub mod clock;
pub mod control_stream;
pub mod cpu_affinity;
pub mod framing;
pub mod packets;
pub mod qp_stream;
pub mod rendezvous;
#[allow(unsafe_code, reason = "asks for the handling of a signal")]
pub mod signals;
#[allow(unsafe_code, reason = "runs before the language's runtime")]
pub mod standard_streams;
pub mod waiting;

mod error;
mod eventfd;
mod wait_limit;

pub use control_stream::{
    BringUpOverStream, CONTROL_MESSAGE_MAX, ControlStream, ControlTransport, KEEPALIVE_TIMEOUT_S,
};
pub use error::NetError;
pub use eventfd::EventFd;
pub use qp_stream::{QpConnection, QpStream, QpStreamSetup};
pub use rendezvous::{
    Listener, NO_LISTENER, RendezvousAddr, dial, dial_tcp, dial_tcp_wait, dial_wait,
};
pub use signals::Interrupt;
pub use wait_limit::WaitLimit;
pub use waiting::{Backoff, PollInterval, SPIN_BUDGET, SpinMode, WaitPhase, Waiter, WakeReason};
