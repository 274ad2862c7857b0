//! Liveness of another process: whether it is dead, and whether it seems to be stopped.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks_shm::{ProcessId, ProcessWatch, Registry};

/// A process that executes on memory of this one, or may.
pub(crate) struct PeerProcess {
    process: ProcessId,
    evidence: LifeEvidence,
    dead: AtomicBool,
    /// Set when a wait for the process timed out; cleared when it has been seen to continue.
    stopped: AtomicBool,
}

/// What shows whether a process lives.
pub(crate) enum LifeEvidence {
    /// It is this process.
    Own,
    /// A descriptor.
    Watch(ProcessWatch),
    /// Its entry in the registry, opened whenever it is asked for.
    Entry(Arc<Registry>),
}

impl PeerProcess {
    /// Makes one that counts as alive and running.
    pub(crate) fn new(process: ProcessId, evidence: LifeEvidence) -> Self {
        Self {
            process,
            evidence,
            dead: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }

    pub(crate) fn process(&self) -> ProcessId {
        self.process
    }

    /// Returns the descriptor that becomes readable when the process ends, if there is one.
    pub(crate) fn death_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.evidence {
            LifeEvidence::Watch(watch) => watch.fd(),
            LifeEvidence::Own | LifeEvidence::Entry(_) => None,
        }
    }

    /// Returns whether nothing tells of the death of the process, so that it must be asked for now and then.
    pub(crate) fn must_be_asked(&self) -> bool {
        !self.is_dead() && !matches!(self.evidence, LifeEvidence::Own) && self.death_fd().is_none()
    }

    /// Returns whether the process is known to be dead. Makes no system call.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Notes that the process is dead. Returns whether that was not known.
    pub(crate) fn mark_dead(&self) -> bool {
        !self.dead.swap(true, Ordering::AcqRel)
    }

    /// Asks the kernel whether the process is dead. With a watch this works even if this process has no free
    /// descriptors.
    pub(crate) fn asks_dead(&self) -> bool {
        match &self.evidence {
            LifeEvidence::Own => false,
            LifeEvidence::Watch(watch) => watch.is_dead(),
            LifeEvidence::Entry(registry) => !registry.is_alive(self.process),
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
