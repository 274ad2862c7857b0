//! Asynchronous events of a context.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use headworks_shm::{WakePipe, WakeSender};
use headworks_verbs::{AsyncEvent, Qpn};

/// Maximum number of events kept for a program that does not read them.
const KEPT: usize = 65_536;

/// Queue of asynchronous events, and the descriptor that is readable while one waits.
pub(crate) struct Events {
    queue: Mutex<VecDeque<AsyncEvent>>,
    pipe: WakePipe,
    wake: WakeSender,
}

impl Events {
    pub(crate) fn new() -> std::io::Result<Self> {
        let pipe = WakePipe::new()?;
        let wake = pipe.sender();
        Ok(Self {
            queue: Mutex::default(),
            pipe,
            wake,
        })
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        tracing::debug!(?event, "asynchronous event");
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() >= KEPT {
            tracing::error!(
                ?event,
                "too many unread asynchronous events: this one is dropped"
            );
            return;
        }
        queue.push_back(event);
        // Under the lock, as in `next`: the pipe holds a byte exactly while an event waits.
        if queue.len() == 1 {
            self.wake.send(&[1]);
        }
    }

    pub(crate) fn qp_fatal(&self, qpn: u32) {
        self.raise(AsyncEvent::QpFatal(Qpn::new(qpn).unwrap_or_default()));
    }

    pub(crate) fn last_wqe(&self, qpn: u32) {
        self.raise(AsyncEvent::QpLastWqe(Qpn::new(qpn).unwrap_or_default()));
    }

    pub(crate) fn next(&self) -> Option<AsyncEvent> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let event = queue.pop_front();
        if event.is_some() && queue.is_empty() {
            self.pipe.drain(&mut [0]);
        }
        event
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.pipe.fd()
    }
}
