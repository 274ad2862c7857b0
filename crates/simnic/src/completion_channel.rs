//! Completion channels.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use headworks_net::EventFd;
use headworks_verbs::{CompletionChannel, CqId, ResourceError};

/// A completion channel, to which completion queues add their events.
#[derive(Clone, Debug)]
pub(crate) struct SimChannel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Number of the device opening that made it.
    opened: u32,
    /// Clone of the network's counter, which counts its channels.
    _counted: Arc<()>,
    alarm: EventFd,
    events: Mutex<VecDeque<u32>>,
}

impl SimChannel {
    pub(crate) fn new(opened: u32, counted: Arc<()>) -> io::Result<Self> {
        Ok(Self(Arc::new(Inner {
            opened,
            _counted: counted,
            alarm: EventFd::new()?,
            events: Mutex::default(),
        })))
    }

    pub(crate) fn is_of(&self, opened: u32) -> bool {
        self.0.opened == opened
    }

    pub(crate) fn push(&self, cq: u32) {
        let mut events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push_back(cq);
        self.0.alarm.signal();
    }
}

impl CompletionChannel for SimChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.alarm.as_fd()
    }

    fn next_event(&self) -> Result<Option<CqId>, ResourceError> {
        let mut events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
        let next = events.pop_front();
        if events.is_empty() {
            self.0.alarm.clear();
        }
        Ok(next.map(CqId))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
