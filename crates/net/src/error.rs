//! Errors of rendezvous and of control streams.

use std::io;

use headworks_shm::RegistryError;
use headworks_verbs::BringUpError;

use crate::framing::FrameError;

/// Two processes could not meet, or lost each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The name is not legal, is taken, or nobody listens under it; or the registry cannot be used.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The text has a colon but is no address.
    #[error(
        "bad address {0:?}: use HOST:PORT or [IPV6]:PORT with a port up to 65535, and rdma: in front of it to meet over RDMA"
    )]
    BadAddress(String),
    /// This machine cannot listen at the address.
    #[error(
        "{address}: {source}: use an address of this machine, and a port at which nobody listens"
    )]
    CannotListen {
        /// The address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// Connecting to an address failed.
    #[error("{address}: {source}")]
    Unreachable {
        /// The address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The deadline passed.
    #[error("{what}: the deadline passed")]
    Deadline {
        /// The awaited event.
        what: &'static str,
    },
    /// The interrupt's descriptor became readable.
    #[error("interrupted")]
    Interrupted,
    /// The other end closed or died.
    #[error("the other end is gone")]
    PeerGone,
    /// The other end belongs to another user.
    #[error("the other end belongs to user {theirs}, this one to user {ours}")]
    OtherUser {
        /// User id of the other end.
        theirs: u32,
        /// User id of this process.
        ours: u32,
    },
    /// The queue pair could not be brought up.
    #[error("connecting: {0}")]
    BringUp(#[from] BringUpError),
    /// A control message is too long.
    #[error("control message: {0}")]
    Frame(#[from] FrameError),
    /// The other end does not read. Try again when the control stream takes more.
    #[error("the other end does not read its control messages")]
    Full,
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl NetError {
    /// Whether this machine cannot listen at the address because it is another machine's, or in use.
    pub fn is_address_unavailable(&self) -> bool {
        matches!(self, Self::CannotListen { source, .. } if matches!(
            source.kind(),
            io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
        ))
    }

    /// Returns a constructor of [`NetError::Unreachable`] for `map_err`.
    pub(crate) fn unreachable(address: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Unreachable {
            address: address.to_owned(),
            source,
        }
    }

    /// Returns a constructor of [`NetError::System`] for `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            what,
            source: source.into(),
        }
    }
}
