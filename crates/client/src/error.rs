//! Errors of the contract between an application and its daemon.

use headworks_shm::CursorError;
use headworks_wire::Malformed;

use crate::slabs::Extent;

/// The other end broke the contract. The daemon then ends the session, or the connection that owns the
/// memory. For an application it means that its daemon, or the peer of a direct connection, is gone or faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContractError {
    /// A cursor out of range.
    #[error(transparent)]
    Cursor(#[from] CursorError),
    /// A range of memory that is not in the session, or does not suit its purpose.
    #[error("no such memory: {} bytes at offset {} of slab {}", .0.len, .0.offset, .0.slab)]
    Extent(Extent),
    /// A slab number that is in use, or too large.
    #[error("slab number {0} is in use or too large")]
    Slab(u32),
    /// An unknown kind of record in an egress ring, or one that is not allowed there.
    #[error("unknown or misplaced kind of record: {0}")]
    RecordKind(u8),
    /// A record that is longer than what was written, or than the ring allows.
    #[error("a record of {len} bytes exceeds the {available} bytes written, or the ring's end")]
    RecordLength {
        /// Length in the record's header, in bytes.
        len: u32,
        /// Bytes that are there.
        available: u64,
    },
    /// A record after the end of the stream.
    #[error("a record after the end of the stream")]
    AfterEnd,
    /// A control block or doorbell that is malformed or misplaced, or that has no ring.
    #[error("malformed control block or doorbell")]
    ControlBlock,
    /// A malformed message on the control socket, and what is wrong with it.
    #[error("malformed message: {0}")]
    Message(&'static str),
}

impl From<Malformed> for ContractError {
    fn from(Malformed(what): Malformed) -> Self {
        Self::Message(what)
    }
}
