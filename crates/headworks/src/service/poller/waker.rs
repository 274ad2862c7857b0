//! Waking of a poller that sleeps.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::service::{ServiceError, system};

/// Wakes a [`Poller`](super::Poller) from another thread. Clones wake the same poller.
#[derive(Clone, Debug)]
pub struct PollWaker(pub(super) Arc<PollerWaker>);

impl PollWaker {
    /// Ends the poller's current wait, or the next one, without a report.
    pub fn wake(&self) {
        self.0.is_asked.store(true, Ordering::Release);
        self.0.wake();
    }
}

/// The descriptor by which a poller is woken.
#[derive(Debug)]
pub(in crate::service) struct PollerWaker {
    pub(super) fd: OwnedFd,
    /// Whether the poller sleeps, or is about to.
    pub(super) is_asleep: AtomicBool,
    /// Whether a [`PollWaker`] asks for the end of the wait.
    pub(super) is_asked: AtomicBool,
    /// Whether the descriptor is, or is about to be, readable.
    pub(super) is_rung: AtomicBool,
    /// Names of the poller's streams that other pollers took out of wake sets.
    inbox: Mutex<Vec<(usize, u32)>>,
    /// Whether there is something in `inbox`.
    has_mail: AtomicBool,
}

impl PollerWaker {
    pub(super) fn new() -> Result<Self, ServiceError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            fd: fd.map_err(|errno| system("eventfd")(errno.into()))?,
            is_asleep: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            is_rung: AtomicBool::new(false),
            inbox: Mutex::default(),
            has_mail: AtomicBool::new(false),
        })
    }

    pub(super) fn wake(&self) {
        self.is_rung.store(true, Ordering::Release);
        // It fails only at the eventfd's limit, and then the poller is woken already.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Wakes the poller if it sleeps: another thread has handled packets of the session.
    pub(in crate::service) fn wake_if_asleep(&self) {
        // Pairs with the fence in `fall_asleep`.
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Tells the poller that one of its streams has news, and wakes it if it sleeps.
    pub(super) fn put(&self, name: (usize, u32)) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.push(name);
        self.has_mail.store(true, Ordering::Relaxed);
        drop(inbox);
        self.wake_if_asleep();
    }

    /// For the poller, also after it called `fall_asleep`: takes the names of streams that have news.
    pub(super) fn take(&self, each: impl FnMut((usize, u32))) {
        if self.has_mail.load(Ordering::Relaxed) {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            self.has_mail.store(false, Ordering::Relaxed);
            std::mem::take(&mut *inbox).into_iter().for_each(each);
        }
    }

    pub(super) fn fall_asleep(&self) {
        self.is_asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence in `wake_if_asleep`.
        fence(Ordering::SeqCst);
    }

    pub(super) fn wake_up(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
        if self.is_rung.swap(false, Ordering::Acquire) {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }

    pub(super) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }
}
