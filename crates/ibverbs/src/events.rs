//! Asynchronous events: read from the device whenever a call looks for them, and kept for the program.
//!
//! Queue pairs and CQs also look, because an event may report their failure; they do so rarely, since it
//! takes a system call. So the device's descriptor alone does not show all events. The program sleeps on an
//! epoll descriptor over two others: the device's, and an eventfd that is readable while an event is kept.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use headworks_verbs::AsyncEvent;
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::raw::Raw;
use crate::throttle::Throttle;

/// Minimum interval between looks for events by queue pairs and CQs.
const GLANCES_MS: u64 = 1;
/// Most events kept for a program that does not read them.
const KEPT: usize = 65_536;

/// The events of a device.
pub(crate) struct Events {
    kept: Mutex<VecDeque<AsyncEvent>>,
    glances: Throttle,
    /// Eventfd that is readable exactly while an event is kept.
    waiting: OwnedFd,
    /// Epoll descriptor over the device's descriptor and `waiting`.
    both: OwnedFd,
}

impl Events {
    pub(crate) fn new(raw: &Raw) -> io::Result<Self> {
        let waiting = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let token = epoll::EventData::new_u64(0);
        epoll::add(&both, raw.async_fd(), token, epoll::EventFlags::IN)?;
        epoll::add(&both, &waiting, token, epoll::EventFlags::IN)?;
        Ok(Self {
            kept: Mutex::default(),
            glances: Throttle::new(GLANCES_MS),
            waiting,
            both,
        })
    }

    /// Reads all events of the device. `note` sees every event first and returns whether to keep it for the
    /// program. Never blocks.
    pub(crate) fn pump(&self, raw: &Raw, note: impl Fn(&AsyncEvent) -> bool) {
        self.take(raw, &note, &mut self.kept());
    }

    /// Returns whether a queue pair or CQ should look for events now.
    #[inline]
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        self.glances.passes(now_ms)
    }

    /// Reads events as [`Events::pump`] does, unless another thread is reading them.
    pub(crate) fn glance(&self, raw: &Raw, note: impl Fn(&AsyncEvent) -> bool) {
        let mut kept = match self.kept.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(kept)) => kept.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.take(raw, &note, &mut kept);
    }

    /// Keeps an event that the device did not report.
    pub(crate) fn push(&self, event: AsyncEvent) {
        self.keep(event, &mut self.kept());
    }

    /// The next event, after reading all events of the device.
    pub(crate) fn next(&self, raw: &Raw, note: impl Fn(&AsyncEvent) -> bool) -> Option<AsyncEvent> {
        let mut kept = self.kept();
        self.take(raw, &note, &mut kept);
        let event = kept.pop_front();
        if event.is_some() && kept.is_empty() {
            // This cannot fail, because the counter is not zero.
            let _ = rustix::io::read(&self.waiting, &mut [0; 8]);
        }
        event
    }

    fn take(
        &self,
        raw: &Raw,
        note: &impl Fn(&AsyncEvent) -> bool,
        kept: &mut VecDeque<AsyncEvent>,
    ) {
        while let Some(heard) = raw.next_event() {
            let event = match heard {
                Ok(event) => event,
                Err(code) => {
                    tracing::debug!(code, "asynchronous event of another type ignored");
                    continue;
                }
            };
            tracing::debug!(?event, "asynchronous event");
            if note(&event) {
                self.keep(event, kept);
            }
        }
    }

    fn keep(&self, event: AsyncEvent, kept: &mut VecDeque<AsyncEvent>) {
        if kept.len() >= KEPT {
            tracing::error!(
                ?event,
                "asynchronous event dropped: the program does not read them"
            );
            return;
        }
        kept.push_back(event);
        if kept.len() == 1 {
            // This cannot fail, because the counter is zero.
            let _ = rustix::io::write(&self.waiting, &1u64.to_ne_bytes());
        }
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<AsyncEvent>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }
}
