//! Quarantine: memory that cannot be freed yet, because a process was stopped (SIGSTOP, a debugger) in the
//! middle of a request on it. The process may still write there when it continues.
//!
//! A thread that takes memory away waits for the initiators in flight. That takes microseconds. It waits only for
//! a bounded time ([`wait_for`](crate::table::initiator::wait_for)). Then the memory that they may reach is kept here,
//! mapped and not reused, until they have continued or are dead. The progress thread checks.

use std::sync::{Arc, Mutex, PoisonError};

use crate::table::initiator::Initiator;
use crate::table::progress::Progress;

/// An object that an initiator may still reach.
pub(crate) trait Quarantined: Send {
    /// Frees the object: no initiator can reach it any more.
    fn release(self: Box<Self>);
}

/// An object, and the initiators that it waits for.
struct Held {
    initiators: Vec<Initiator>,
    what: Box<dyn Quarantined>,
}

/// The objects in quarantine.
pub(crate) struct Quarantine {
    progress: Arc<Progress>,
    held: Mutex<Vec<Held>>,
}

impl Quarantine {
    /// Makes an empty quarantine that `progress` checks.
    pub(crate) fn new(progress: Arc<Progress>) -> Self {
        Self {
            progress,
            held: Mutex::default(),
        }
    }

    /// Keeps `what` until the `initiators` are idle.
    #[cold]
    pub(crate) fn keep(&self, initiators: Vec<Initiator>, what: Box<dyn Quarantined>) {
        tracing::warn!(
            "a process is stopped in the middle of a request: quarantined the memory it uses"
        );
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.push(Held { initiators, what });
        drop(held);
        self.progress.kick();
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Frees the objects whose initiators are idle. Returns whether any are left.
    pub(crate) fn look(&self) -> bool {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut over = Vec::new();
        for mut one in std::mem::take(&mut *held) {
            one.initiators.retain(|initiator| !initiator.is_idle());
            if one.initiators.is_empty() {
                over.push(one.what);
            } else {
                held.push(one);
            }
        }
        let is_left = !held.is_empty();
        drop(held);
        for what in over {
            what.release();
        }
        is_left
    }
}
