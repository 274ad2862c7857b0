//! Connection management by librdmacm: two processes connect over RDMA, by IP address and port.
//!
//! The connection manager finds the device with a route to an address, exchanges the request and the answer
//! with the peer, and returns the attributes of the queue pairs. The queue pairs are the caller's, created on
//! a device that is opened by the name that [`Route::device`] returns. The library is loaded by the first
//! call that needs it.
//!
//! - The connecting side: [`Connection::call`], [`Connection::resolve`] until it returns a [`Route`], then
//!   [`Connection::prepare`] with a queue pair of that device, its receives, [`Connection::ask`], and
//!   [`Connection::step`] until the connection is established.
//! - The accepting side: [`CmListener::at`], [`CmListener::try_accept`], [`Connection::route`],
//!   [`Connection::greeting`], then [`Connection::prepare`], receives, [`Connection::answer`] (or
//!   [`Connection::refuse`]), and [`Connection::step`].
//! - Both, afterwards: [`Connection::is_ended`].
//!
//! Nothing blocks: the descriptors ([`AsFd`](std::os::fd::AsFd)) are readable when a step has something to
//! do.
//!
//! | module | what |
//! |---|---|
//! | `phase` | state machine of a connection: pure |
//! | `route`, `hello` | device name of a route; private data of the request and the answer: pure |
//! | `refusal`, `absent` | text for a refusal: pure; what is missing if the connection manager fails |
//! | `abi`, `library` | types of librdmacm's interface; its functions |
//! | `raw` | its event channels and identifiers |
//! | `connection`, `listener` | one side of a connection; a listener |
use std::io;

use headworks_verbs::ModifyError;

#[allow(
    unsafe_code,
    reason = "the types of C functions; what is called is called elsewhere"
)]
pub(crate) mod abi;
mod absent;
mod connection;
mod hello;
#[allow(unsafe_code, reason = "calls of the dynamic linker")]
pub(crate) mod library;
mod listener;
mod phase;
#[allow(unsafe_code, reason = "calls of librdmacm")]
mod raw;
mod refusal;
mod route;
pub use connection::Connection;
#[cfg(test)]
pub(crate) use connection::Libraries;
pub use hello::{GREETING_MAX, Greeting, GreetingError};
pub use listener::CmListener;
pub use route::{Route, RouteError};

use crate::library::LibraryError;

/// Reason of a refusal by the peer's program, or by the peer's kernel in the program's name
/// ([`CmError::is_wordless`]).
pub const REASON_PROGRAM: i32 = 28;

/// The error if librdmacm cannot be loaded, so that connections over RDMA are not possible. It is one line
/// that says what to install.
pub fn missing() -> Option<LibraryError> {
    library::api().err()
}

/// Failure of two processes to connect over RDMA, or loss of their connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// libibverbs or librdmacm cannot be used.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The machine has no RDMA device.
    #[error(
        "there is no RDMA device on this machine: `headworks doctor` names ways to one, and the device soft needs none"
    )]
    NoDevice,
    /// There are devices, but the kernel's connection manager is not loaded.
    #[error(
        "the kernel's connection manager for RDMA is not there: `modprobe rdma_ucm` makes /dev/infiniband/rdma_cm"
    )]
    NoManager,
    /// There are devices, but the kernel's connection manager cannot be used.
    #[error("the kernel's connection manager for RDMA (/dev/infiniband/rdma_cm): {source}")]
    Kernel {
        /// The system's error.
        source: io::Error,
    },
    /// The address to listen at belongs to this machine, but to no RDMA device.
    #[error(
        "no RDMA device has that address, so no connection can arrive there: listen at the address of one, at 0.0.0.0 or at [::]"
    )]
    NotOfADevice,
    /// No RDMA device has a route to the address, or no host has the address.
    #[error("no RDMA device has a route to that address: {source}")]
    NoWay {
        /// The system's error.
        source: io::Error,
    },
    /// The host has the address, but no program listens at the port.
    #[error("nobody listens there for RDMA connections")]
    NobodyListens,
    /// The peer refuses the connection.
    #[error("{}", refusal::in_words(*reason, is_zeros(greeting)))]
    Refused {
        /// InfiniBand's number of the reason (specification, volume 1, table 110); [`REASON_PROGRAM`] if the
        /// program refuses.
        reason: i32,
        /// Private data of the refusal.
        greeting: Vec<u8>,
    },
    /// The peer did not answer before the connection manager's timeout.
    #[error("nobody answers there: {source}")]
    NoAnswer {
        /// The system's error.
        source: io::Error,
    },
    /// The device was removed.
    #[error("the RDMA device was removed")]
    Removed,
    /// An event came that the phase of the connection does not allow.
    #[error("unexpected event {event} of librdmacm while {phase}")]
    Unexpected {
        /// librdmacm's number of the event.
        event: i32,
        /// The phase of the connection.
        phase: &'static str,
    },
    /// The port's GID table has no entry for the address, or the connection uses another device or entry.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The state of the queue pair could not be changed.
    #[error("queue pair: {0}")]
    Modify(#[from] ModifyError),
    /// The process is a forked child of the one that created the object.
    #[error("the connection or listener is the parent's: it was made before a fork")]
    Forked,
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl CmError {
    /// Returns whether the peer's kernel refused, rather than its program: the listener was closed while
    /// callers waited, or the call was lost there. Such a refusal carries only zeros; a program that refuses
    /// without private data looks the same.
    pub fn is_wordless(&self) -> bool {
        matches!(self, Self::Refused { greeting, .. } if is_zeros(greeting))
    }

    /// Returns whether this machine cannot listen at the requested address: it is another machine's, or in
    /// use.
    pub fn is_address_unavailable(&self) -> bool {
        matches!(self, Self::System { what: LISTENING, source } if matches!(
            source.kind(),
            io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
        ))
    }

    /// Returns a conversion of a system error, for `map_err`.
    fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// Operation of the error if an address could not be listened at.
const LISTENING: &str = "listening";

/// Returns whether private data is empty: the network pads it with zeros.
fn is_zeros(said: &[u8]) -> bool {
    said.iter().all(|byte| *byte == 0)
}
