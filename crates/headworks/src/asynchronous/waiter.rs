//! Wakes a waiting task by its ring's completion channel or by the control stream.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use headworks_net::ControlStream;
use headworks_ring::Mode;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::blocking::{BlockingError, system};

/// The descriptors of the ring and the control stream, registered with the runtime's reactor.
pub(super) struct TaskWaiter {
    ring: AsyncFd<OwnedFd>,
    control: ControlStream,
    line_fd: AsyncFd<OwnedFd>,
    /// Whether the control stream has ended: the peer closed or died.
    gone: bool,
}

/// Registers a copy of `fd` with the reactor, to wait until it is readable.
pub(super) fn readable_fd(fd: BorrowedFd<'_>) -> std::io::Result<AsyncFd<OwnedFd>> {
    let fd = fd.try_clone_to_owned()?;
    // SAFETY: an `OwnedFd` stays open until it is dropped and refers to one descriptor all its life. The
    // `AsyncFd` owns it.
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    Ok(registered?)
}

fn async_fd(fd: BorrowedFd<'_>) -> Result<AsyncFd<OwnedFd>, BlockingError> {
    readable_fd(fd).map_err(system("reactor"))
}

impl TaskWaiter {
    /// Makes one for a ring in `mode` with the descriptor `fd`, connected over `control`.
    pub(super) fn new(
        fd: Option<BorrowedFd<'_>>,
        mode: Mode,
        control: ControlStream,
    ) -> Result<Self, BlockingError> {
        let Some(fd) = fd.filter(|_| mode == Mode::Notify) else {
            return Err(BlockingError::NotNotify);
        };
        Ok(Self {
            ring: async_fd(fd)?,
            line_fd: async_fd(control.as_fd())?,
            control,
            gone: false,
        })
    }

    /// Whether the peer closed or died.
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Ready once the ring's descriptor or the control stream is readable; the caller then polls the ring again.
    /// `drain` takes the ring's events. Call it after arming the ring and polling it once more.
    pub(super) fn poll_wake_up(
        &mut self,
        cx: &mut Context<'_>,
        drain: impl FnOnce(),
    ) -> Poll<Result<(), BlockingError>> {
        let mut woken = Poll::Pending;
        if let Poll::Ready(ready) = self.ring.poll_read_ready(cx) {
            let mut ready = ready.map_err(system("waiting"))?;
            // The reactor is edge-triggered: an event that arrives after the descriptor was drained is a new
            // edge.
            drain();
            ready.clear_ready();
            woken = Poll::Ready(Ok(()));
        }
        if !self.gone
            && let Poll::Ready(ready) = self.line_fd.poll_read_ready(cx)
        {
            let mut ready = ready.map_err(system("waiting"))?;
            self.gone = self.control.peer_gone();
            // Messages stay in the control stream for the caller that takes it back.
            ready.clear_ready();
            woken = Poll::Ready(Ok(()));
        }
        woken
    }

    pub(super) fn into_control(self) -> ControlStream {
        self.control
    }
}
