//! Waking of a poller that sleeps.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

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
}

impl PollerWaker {
    pub(super) fn new() -> Result<Self, ServiceError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            fd: fd.map_err(|errno| system("eventfd")(errno.into()))?,
            is_asleep: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            is_rung: AtomicBool::new(false),
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
