//! Completion channels: a pipe that carries the numbers of CQs that had an event.

use std::os::fd::BorrowedFd;

use headworks_shm::{WakePipe, WakeSender};
use headworks_verbs::{CompletionChannel, CqId, ResourceError};

/// Bytes of one event: the CQ's row.
pub(crate) const EVENT: usize = 4;

/// A completion channel. Producers of any process write a CQ's number into its pipe.
pub(crate) struct SoftChannel {
    pipe: WakePipe,
    /// Which of the context's channels, never reused.
    pub(crate) number: u32,
    /// The context's incarnation: CQs of no other may be given it, since they are told apart by number.
    pub(crate) of: u64,
}

impl SoftChannel {
    pub(crate) fn new(number: u32, of: u64) -> Result<Self, ResourceError> {
        let pipe = WakePipe::new().map_err(|source| ResourceError::System {
            what: "completion channel",
            source,
        })?;
        Ok(Self { pipe, number, of })
    }

    /// Puts events into it, from within this process.
    pub(crate) fn sender(&self) -> WakeSender {
        self.pipe.sender()
    }

    /// The number by which peers open the pipe.
    pub(crate) fn fd_number(&self) -> i32 {
        self.pipe.write_fd_number()
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
