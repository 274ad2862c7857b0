//! State that a stream shares with the poller that it is in.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_client::control_block::Room;

/// What a stream's calls tell the poller that it is in.
#[derive(Debug, Default)]
pub(in crate::service) struct PollState {
    /// Whether the stream is in the poller still.
    is_active: AtomicBool,
    /// What the last call that found no room saw of the room, if no room was found since.
    blocked: Mutex<Option<Room>>,
}

impl PollState {
    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Takes the stream out of its poller, which notices that at its next look.
    pub(in crate::service) fn leave(&self) {
        self.is_active.store(false, Ordering::Release);
    }

    /// Records that a call found no room, and what it saw of the room.
    pub(in crate::service) fn block(&self, seen: Room) {
        *self.blocked() = Some(seen);
    }

    pub(super) fn blocked(&self) -> MutexGuard<'_, Option<Room>> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The poller that a stream is in, if it is in one.
#[derive(Debug, Default)]
pub(in crate::service) struct Polled {
    was_ever: AtomicBool,
    state: Mutex<Option<Arc<PollState>>>,
}

impl Polled {
    /// Returns the state to share with a poller that the stream enters; `None` if it is in one.
    pub(super) fn enter(&self) -> Option<Arc<PollState>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.as_ref().is_some_and(|state| state.is_active()) {
            return None;
        }
        let new = Arc::new(PollState::default());
        new.is_active.store(true, Ordering::Relaxed);
        *state = Some(new.clone());
        self.was_ever.store(true, Ordering::Release);
        Some(new)
    }

    /// Returns what the stream shares with the poller that it is in.
    pub(in crate::service) fn current(&self) -> Option<Arc<PollState>> {
        if !self.was_ever.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clone().filter(|state| state.is_active())
    }
}
