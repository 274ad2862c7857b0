//! What can go wrong with a connected ring.

use headworks_shm::CursorError;
use headworks_verbs::{PollError, PostError, QpState, Status};

/// The ring is broken: no more messages will pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// A request failed. [`Status::RetryExceeded`] and [`Status::Flushed`] mean that the peer is
    /// gone.
    #[error("the ring is broken: {0}")]
    Completion(Status),
    /// The queue pair went to the error state by itself: the peer is gone.
    #[error("the ring is broken: the queue pair is in {0}, the peer is gone")]
    QueuePair(QpState),
    /// A request was refused at posting.
    #[error("the ring is broken: {0}")]
    Post(#[from] PostError),
    /// The completion queue can no longer be polled.
    #[error("the ring is broken: {0}")]
    Poll(#[from] PollError),
    /// The peer wrote a cursor that is not possible.
    #[error("the peer breaks the ring's protocol: {0}")]
    Cursor(#[from] CursorError),
    /// The ring was made before a fork: it is the parent's, and this process may not use it.
    #[error("the ring is the parent's: it was made before a fork")]
    Forked,
    /// The peer wrote a message header that is not possible.
    #[error("the peer breaks the ring's protocol: message header {0:#018x}")]
    Header(u64),
}

impl RingError {
    /// Whether it says that the peer's process or device is gone.
    pub fn is_peer_gone(&self) -> bool {
        matches!(
            self,
            Self::Completion(Status::RetryExceeded | Status::Flushed) | Self::QueuePair(_)
        )
    }
}

/// A message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No room now. What was sent before is published; try again when the peer has read some.
    #[error("the ring is full")]
    Full,
    /// It can never be sent on this ring.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// The ring is broken.
    #[error(transparent)]
    Broken(#[from] RingError),
}

/// A message's length is not one that this ring takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {len} bytes: this ring takes {lowest} to {highest}")]
pub struct LengthError {
    /// Its length.
    pub len: usize,
    /// Shortest legal length.
    pub lowest: usize,
    /// Longest legal length.
    pub highest: usize,
}
