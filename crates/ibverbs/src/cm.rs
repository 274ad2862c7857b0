//! librdmacm: two processes meet over RDMA itself, by IP address and port.
//!
//! The connection manager finds out which device leads to an address, asks the other side, and says how
//! the queue pairs are to be set; the queue pairs are the caller's, made on a device opened by the
//! name that [`Route::device`] gives. The library is loaded by the first call that needs it.
//!
//! - The calling side: [`Connection::call`], [`Connection::resolve`] until it names a [`Route`], then
//!   [`Connection::prepare`] with a queue pair of that device, its receives, [`Connection::ask`], and
//!   [`Connection::step`] until it stands.
//! - The called side: [`CmListener::at`], [`CmListener::try_accept`], [`Connection::route`],
//!   [`Connection::greeting`], then [`Connection::prepare`], receives, [`Connection::answer`] (or
//!   [`Connection::refuse`]), and [`Connection::step`].
//! - Both, afterwards: [`Connection::is_ended`].
//!
//! Nothing blocks: the descriptors ([`AsFd`](std::os::fd::AsFd)) are readable when a step has something
//! to do.
//!
//! | module | what |
//! |---|---|
//! | `phase` | what comes after what: pure |
//! | `route`, `hello` | the device's name that a route comes to; the few bytes that travel beforehand: pure |
//! | `refusal`, `absent` | what a refusal means, in words: pure; what is missing where there is nobody to ask |
//! | `abi`, `library` | the types of librdmacm's interface; its functions |
//! | `raw` | its event channels and identifiers |
//! | `connection`, `listener` | the two ends of a meeting |

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

/// The reason of a refusal that is the program's own, or the kernel's in its name
/// ([`CmError::is_wordless`]).
pub const REASON_PROGRAM: i32 = 28;

/// Why nobody meets over RDMA here, where that is because librdmacm is not there: one line that says what to
/// install.
pub fn missing() -> Option<LibraryError> {
    library::api().err()
}

/// Two processes did not meet over RDMA, or lost each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// A library is not at hand.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// Nobody meets by RDMA on this machine.
    #[error(
        "there is no RDMA device on this machine: `headworks doctor` names ways to one, and the device soft needs none"
    )]
    NoDevice,
    /// There are devices, and the kernel's connection manager is not loaded.
    #[error(
        "the kernel's connection manager for RDMA is not there: `modprobe rdma_ucm` makes /dev/infiniband/rdma_cm"
    )]
    NoManager,
    /// There are devices, and the kernel's connection manager cannot be used.
    #[error("the kernel's connection manager for RDMA (/dev/infiniband/rdma_cm): {source}")]
    Kernel {
        /// What the system says.
        source: io::Error,
    },
    /// The address to listen at is this machine's, and of no RDMA device.
    #[error(
        "no RDMA device has that address, so nobody can come there: listen at the address of one, at 0.0.0.0 or at [::]"
    )]
    NotOfADevice,
    /// No RDMA device leads there, or nobody has that address.
    #[error("no RDMA device leads there: {source}")]
    NoWay {
        /// What the system says.
        source: io::Error,
    },
    /// The address is there, and nobody listens at the port.
    #[error("nobody listens there for RDMA connections")]
    NobodyListens,
    /// The other side does not want this connection.
    #[error("{}", refusal::in_words(*reason, is_zeros(greeting)))]
    Refused {
        /// InfiniBand's number of the reason (specification, volume 1, table 110); [`REASON_PROGRAM`] is the
        /// program's own.
        reason: i32,
        /// What it says with it.
        greeting: Vec<u8>,
    },
    /// Nobody answered in the time that the connection manager gives.
    #[error("nobody answers there: {source}")]
    NoAnswer {
        /// What the system says.
        source: io::Error,
    },
    /// The device went away.
    #[error("the RDMA device was removed")]
    Removed,
    /// What happened does not belong there.
    #[error("librdmacm says {event} while {phase}")]
    Unexpected {
        /// Its number of the event.
        event: i32,
        /// What was being done.
        phase: &'static str,
    },
    /// The port's table has no entry for the address, or another one is used.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The queue pair could not be moved.
    #[error("queue pair: {0}")]
    Modify(#[from] ModifyError),
    /// The process is a forked child of the one that made it.
    #[error("made before a fork, in the parent")]
    Forked,
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl CmError {
    /// Whether the kernel of the other side refuses, rather than a program: a listener that went with callers
    /// waiting, a call that was lost there. No word comes with that but zeros; a program that says none
    /// looks the same.
    pub fn is_wordless(&self) -> bool {
        matches!(self, Self::Refused { greeting, .. } if is_zeros(greeting))
    }

    /// Whether an address was asked for at which this machine cannot listen: it is another's, or in use.
    pub fn is_address_unavailable(&self) -> bool {
        matches!(self, Self::System { what: LISTENING, source } if matches!(
            source.kind(),
            io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
        ))
    }

    /// For `map_err`.
    fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// What was done when an address could not be listened at.
const LISTENING: &str = "listening";

/// Whether nothing was said: zeros fill what the network carries.
fn is_zeros(said: &[u8]) -> bool {
    said.iter().all(|byte| *byte == 0)
}
