//! Errors that keep a run from starting or from going on.

use headworks_baselines::EndError;
use headworks_verbs::{BringUpError, PollError, PostError, QpState, Status};

/// A run cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// A size of the configuration is not legal.
    #[error("{what} is {value}: {legal}")]
    Config {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The legal values.
        legal: String,
    },
    /// The device does not promise what the design relies on.
    #[error("{device} does not promise {promise}, which {verb} relies on; use {instead}")]
    Promise {
        /// The device.
        device: String,
        /// The missing promise.
        promise: &'static str,
        /// The verb.
        verb: &'static str,
        /// A verb that relies on less.
        instead: &'static str,
    },
    /// The device could not make an object.
    #[error(transparent)]
    End(#[from] EndError),
    /// The queue pairs could not be connected.
    #[error(transparent)]
    BringUp(#[from] BringUpError),
    /// The device refused a request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A completion queue cannot be polled any more.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// A request failed. [`Status::RetryExceeded`] and [`Status::Flushed`] mean that the peer is gone.
    #[error("a request failed: {0}")]
    Completion(Status),
    /// A queue pair left its working state without a failed request: the peer is gone.
    #[error("a queue pair is in {0}: the peer is gone")]
    QueuePair(QpState),
    /// The peer sent a message that this side did not ask for.
    #[error("the peer breaks the protocol: {what} is {value}, which this side did not ask for")]
    Unexpected {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The peer sent an impossible message.
    #[error("the peer breaks the protocol: {what} is {value}, at most {most}")]
    Protocol {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The largest legal value.
        most: u64,
    },
}

impl PatternError {
    /// Whether the error means that the peer's process or device is gone.
    pub fn is_peer_gone(&self) -> bool {
        matches!(
            self,
            Self::Completion(Status::RetryExceeded | Status::Flushed) | Self::QueuePair(_)
        )
    }
}
