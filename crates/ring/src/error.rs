//! Errors of a connected ring.

use headworks_shm::CursorError;
use headworks_verbs::{PollError, PostError, QpState, Status};

/// The ring is broken: it carries no more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// A request failed. [`Status::RetryExceeded`] and [`Status::Flushed`] mean that the peer is
    /// gone.
    #[error("the ring is broken: {0}")]
    Completion(Status),
    /// The queue pair left its working state without a failed request: the peer is gone.
    #[error("the ring is broken: the queue pair is in {0}, the peer is gone")]
    QueuePair(QpState),
    /// The queue pair refused a request.
    #[error("the ring is broken: {0}")]
    Post(#[from] PostError),
    /// The completion queue can no longer be polled.
    #[error("the ring is broken: {0}")]
    Poll(#[from] PollError),
    /// The peer wrote an impossible cursor.
    #[error("the peer breaks the ring's protocol: {0}")]
    Cursor(#[from] CursorError),
    /// This process is a forked child of the one that made the ring. The ring is the parent's, and
    /// the child may not use it.
    #[error("the ring is the parent's: it was made before a fork")]
    Forked,
    /// The peer wrote an impossible message header.
    #[error("the peer breaks the ring's protocol: message header {0:#018x}")]
    Header(u64),
}

impl RingError {
    /// Returns whether the error means that the peer's process or device is gone.
    pub fn is_peer_gone(&self) -> bool {
        matches!(
            self,
            Self::Completion(Status::RetryExceeded | Status::Flushed) | Self::QueuePair(_)
        )
    }
}

/// Reason for which a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The ring has no room now. The sender has flushed all earlier messages; try again when the
    /// receiver has read some.
    #[error("the ring is full")]
    Full,
    /// The message's length is not legal on this ring, so it can never be sent.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// The ring is broken.
    #[error(transparent)]
    Broken(#[from] RingError),
}

/// A message length that this ring does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {len} bytes: this ring takes {lowest} to {highest}")]
pub struct LengthError {
    /// Length of the message, in bytes.
    pub len: usize,
    /// Shortest legal length, in bytes.
    pub lowest: usize,
    /// Longest legal length, in bytes.
    pub highest: usize,
}
