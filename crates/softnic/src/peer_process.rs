//! Another process as this one watches it: whether it is dead, and whether it seems to be stopped.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use headworks_shm::{ProcessId, pidfd_is_dead};

/// A process that executes on memory of ours, or may.
pub(crate) struct PeerProcess {
    process: ProcessId,
    /// Readable once it is dead; `None` where there is none to be had: it is asked for through `/proc`
    /// then.
    pidfd: Option<OwnedFd>,
    dead: AtomicBool,
    /// It was waited for in vain, and has not been seen to go on since.
    stopped: AtomicBool,
}

impl PeerProcess {
    /// One that lives, as far as is known.
    pub(crate) fn new(process: ProcessId, pidfd: Option<OwnedFd>) -> Self {
        Self {
            process,
            pidfd,
            dead: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }

    pub(crate) fn process(&self) -> ProcessId {
        self.process
    }

    pub(crate) fn pidfd(&self) -> Option<&OwnedFd> {
        self.pidfd.as_ref()
    }

    /// Whether it is known to be dead; cheap.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// It is dead. Says whether that was not known.
    pub(crate) fn mark_dead(&self) -> bool {
        !self.dead.swap(true, Ordering::AcqRel)
    }

    /// Asks the kernel whether it is dead: by the pidfd, which also answers where this process may
    /// open nothing more, and through `/proc` only without one.
    pub(crate) fn asks_dead(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => pidfd_is_dead(pidfd.as_fd()),
            None => !self.process.is_alive(),
        }
    }

    /// Whether it is dead, by what is known or by asking.
    pub(crate) fn check_dead(&self) -> bool {
        if !self.is_dead() && self.asks_dead() {
            self.mark_dead();
        }
        self.is_dead()
    }

    /// Whether it seems to be stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn set_stopped(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::Relaxed);
    }
}
