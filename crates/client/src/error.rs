//! What the two ends tell each other that cannot be.

use headworks_shm::CursorError;

use crate::memory::Extent;

/// The other end broke the contract. To the daemon that is the end of the session, or of the connection whose
/// memory it was; to an application it means that the daemon is gone or is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContractError {
    /// A cursor where it cannot be.
    #[error(transparent)]
    Cursor(#[from] CursorError),
    /// A stretch of memory that is not the session's, or not one for what it is to be.
    #[error("no such memory: {} bytes at {} of slab {}", .0.len, .0.offset, .0.slab)]
    Extent(Extent),
    /// A slab that is there already, or a number that is too large.
    #[error("slab {0} is there already, or cannot be")]
    Slab(u32),
    /// A record in an egress ring of a kind that there is not.
    #[error("no kind of record: {0}")]
    RecordKind(u8),
    /// A record that is longer than what was written, or than it can be.
    #[error("a record of {len} bytes: at most {available} are there")]
    RecordLength {
        /// Length in the record's header, in bytes.
        len: u32,
        /// Bytes that are there.
        available: u64,
    },
    /// A record behind the last one.
    #[error("a record behind the end of the stream")]
    AfterEnd,
    /// A connection's words that do not fit where they are to be.
    #[error("no place for the words of a connection")]
    ControlBlock,
    /// A message of the control socket that cannot be read: what of it.
    #[error("a malformed message: {0}")]
    Message(&'static str),
}
