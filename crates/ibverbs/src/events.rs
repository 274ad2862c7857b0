//! Asynchronous events: taken from the device as soon as anybody looks, and kept for the program.
//!
//! Queue pairs and CQs look too, since an event may say that one failed: now and then only, since it
//! takes a system call. So the program sleeps on a descriptor of its own: an epoll descriptor over the
//! device's, and over one that says that an event was kept.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use headworks_verbs::AsyncEvent;
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::raw::Raw;
use crate::throttle::Throttle;

/// How often it is looked for events by the way.
const GLANCES_MS: u64 = 1;
/// Events kept for a program that does not read them.
const KEPT: usize = 65_536;

/// The events of a device.
pub(crate) struct Events {
    kept: Mutex<VecDeque<AsyncEvent>>,
    glances: Throttle,
    /// Readable exactly while an event is kept.
    waiting: OwnedFd,
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

    /// Takes what the device has to say. `note` is shown every event first and says whether it is kept.
    /// Never waits.
    pub(crate) fn pump(&self, raw: &Raw, note: impl Fn(&AsyncEvent) -> bool) {
        self.take(raw, &note, &mut self.kept());
    }

    /// Whether it is time to look again, by the way.
    #[inline]
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        self.glances.passes(now_ms)
    }

    /// As [`Events::pump`], unless somebody else is at it.
    pub(crate) fn glance(&self, raw: &Raw, note: impl Fn(&AsyncEvent) -> bool) {
        let mut kept = match self.kept.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(kept)) => kept.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.take(raw, &note, &mut kept);
    }

    /// Keeps an event that the device did not tell of.
    pub(crate) fn push(&self, event: AsyncEvent) {
        self.keep(event, &mut self.kept());
    }

    /// The next event, of those kept or of the device.
    pub(crate) fn next(&self, raw: &Raw, note: impl Fn(&AsyncEvent) -> bool) -> Option<AsyncEvent> {
        let mut kept = self.kept();
        self.take(raw, &note, &mut kept);
        let event = kept.pop_front();
        if event.is_some() && kept.is_empty() {
            // Cannot fail: it is not zero.
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
                    tracing::debug!(code, "an asynchronous event that nobody needs");
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
            tracing::error!(?event, "nobody reads asynchronous events: dropped");
            return;
        }
        kept.push_back(event);
        if kept.len() == 1 {
            // Cannot fail: it is zero.
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
