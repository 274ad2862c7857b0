//! Liveness of another process: whether it is dead, and whether it seems to be stopped.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use headworks_shm::{ProcessId, pidfd_is_dead};

/// A process that executes on memory of this one, or may.
pub(crate) struct PeerProcess {
    process: ProcessId,
    /// Readable once the process is dead. `None` if the kernel gives no pidfd: liveness is then asked through
    /// `/proc`.
    pidfd: Option<OwnedFd>,
    dead: AtomicBool,
    /// Set when a wait for the process timed out; cleared when it has been seen to continue.
    stopped: AtomicBool,
}

impl PeerProcess {
    /// Makes one that counts as alive and running.
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

    /// Returns whether the process is known to be dead. Makes no system call.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Notes that the process is dead. Returns whether that was not known.
    pub(crate) fn mark_dead(&self) -> bool {
        !self.dead.swap(true, Ordering::AcqRel)
    }

    /// Asks the kernel whether the process is dead. With a pidfd this works even if this process has no free
    /// descriptors. Without one it asks `/proc`.
    pub(crate) fn asks_dead(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => pidfd_is_dead(pidfd.as_fd()),
            None => !self.process.is_alive(),
        }
    }

    /// Returns whether the process is dead. Asks the kernel if that is not known yet.
    pub(crate) fn check_dead(&self) -> bool {
        if !self.is_dead() && self.asks_dead() {
            self.mark_dead();
        }
        self.is_dead()
    }

    /// Returns whether the process seems to be stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn set_stopped(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::Relaxed);
    }
}
