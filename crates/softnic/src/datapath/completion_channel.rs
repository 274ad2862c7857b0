//! Completion channels: a pipe that carries the numbers of the CQs that raised an event.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use headworks_shm::{WakePipe, WakeSender};
use headworks_verbs::{CompletionChannel, CqId, ResourceError};

/// Bytes of one event. It holds the CQ's row.
pub(crate) const EVENT: usize = 4;

/// A completion channel. Producers in any process write a CQ's number into its pipe.
pub(crate) struct SoftChannel {
    pipe: Arc<WakePipe>,
    /// Number of the channel within its context; never reused.
    pub(crate) number: u32,
    /// Incarnation of the context. A CQ of another context must not use this channel: events identify CQs by
    /// row number only.
    pub(crate) of: u64,
}

impl SoftChannel {
    pub(crate) fn new(number: u32, of: u64) -> Result<Self, ResourceError> {
        let pipe = WakePipe::new().map_err(|source| ResourceError::System {
            what: "completion channel",
            source,
        })?;
        let pipe = Arc::new(pipe);
        Ok(Self { pipe, number, of })
    }

    /// Returns a handle that this process writes events through.
    pub(crate) fn sender(&self) -> WakeSender {
        self.pipe.sender()
    }

    /// Returns the pipe, whose descriptors peers are given.
    pub(crate) fn pipe(&self) -> &Arc<WakePipe> {
        &self.pipe
    }
}

impl CompletionChannel for SoftChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.pipe.fd()
    }

    fn next_event(&self) -> Result<Option<CqId>, ResourceError> {
        let mut event = [0; EVENT];
        // Events are written whole (they are shorter than PIPE_BUF), so they are read whole.
        let got = self.pipe.drain(&mut event);
        Ok((got == EVENT).then(|| CqId(u32::from_le_bytes(event))))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
