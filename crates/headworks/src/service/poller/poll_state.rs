//! State that a stream shares with the poller that it is in.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_client::control_block::{Arrived, Room};

use crate::service::ServiceError;

/// What a stream's calls tell the poller that it is in.
#[derive(Debug, Default)]
pub(in crate::service) struct PollState {
    /// Whether the stream is in the poller still.
    is_active: AtomicBool,
    /// What the last call that found no room saw of the room, if no room was found since.
    blocked: Mutex<Option<Room>>,
    /// Whether a call could not receive bytes because the daemon was moving them, since such bytes were reported last.
    is_withheld: AtomicBool,
    /// Number of arrived bytes at which a call found nothing to receive; 0 if none did. See [`Arrived::bytes`].
    empty_at: AtomicU64,
    /// Whether the poller is that of the session's thread for descriptors. Calls may wait then.
    is_for_descriptor: bool,
    /// Whether the descriptor is to be made writable, although no room was made since it was made unwritable.
    pub(in crate::service) wants_room: AtomicBool,
    /// Whether the descriptor is to be made readable, although nothing arrived since it was made unreadable.
    pub(in crate::service) wants_bytes: AtomicBool,
}

impl PollState {
    pub(in crate::service) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Takes the stream out of its poller, which notices that at its next look. The poller arms no event count of the stream
    /// after this: once the connection is closed, they are those of another one.
    pub(in crate::service) fn leave(&self) {
        let _unless_arming = self.blocked();
        self.is_active.store(false, Ordering::Release);
    }

    /// Records that a call found no room, and what it saw of the room.
    pub(in crate::service) fn block(&self, seen: Room) {
        *self.blocked() = Some(seen);
    }

    /// Records that a call cannot receive bytes because the daemon is moving them. The daemon notifies when it has moved them,
    /// but no number changes. Look once more after this: the daemon may be done already.
    pub(in crate::service) fn withhold(&self) {
        self.is_withheld.store(true, Ordering::Relaxed);
        // Pairs with `fence_after_arms`: the look after this finds the bytes, or the poller finds the flag after it armed
        // the event count, or the daemon notifies after that.
        fence(Ordering::SeqCst);
    }

    /// Whether a notification may tell that the daemon has moved bytes. Says so once.
    pub(super) fn take_withheld(&self) -> bool {
        self.is_withheld.load(Ordering::Relaxed) && self.is_withheld.swap(false, Ordering::Relaxed)
    }

    /// Records that a call found nothing to receive when `bytes` had arrived. The stream is not reported for bytes until that
    /// number changes, whatever the words in memory that the peer can write say.
    pub(in crate::service) fn found_nothing(&self, bytes: u64) {
        self.empty_at.store(bytes, Ordering::Relaxed);
    }

    /// Whether a call found nothing to receive when as much had arrived.
    pub(super) fn is_known_empty(&self, arrived: &Arrived) -> bool {
        self.empty_at.load(Ordering::Relaxed) == arrived.bytes
    }

    /// Calls `arm` unless the stream has left its poller. A thread that has it leave waits meanwhile.
    pub(super) fn unless_left<T>(&self, arm: impl FnOnce() -> T) -> Option<T> {
        let _lock = self.blocked();
        self.is_active().then(arm)
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
    /// Returns the state to share with a poller that the stream enters.
    ///
    /// # Errors
    ///
    /// [`ServiceError::InPoller`]. [`ServiceError::HasDescriptor`]: a direct stream has a descriptor.
    pub(super) fn enter(&self) -> Result<Arc<PollState>, ServiceError> {
        self.enter_as(false)
    }

    /// Does what [`enter`](Self::enter) does, for the poller of the session's thread for descriptors.
    pub(in crate::service) fn enter_for_descriptor(&self) -> Result<Arc<PollState>, ServiceError> {
        self.enter_as(true)
    }

    fn enter_as(&self, is_for_descriptor: bool) -> Result<Arc<PollState>, ServiceError> {
        let mut state = self.lock();
        match state.as_ref().filter(|state| state.is_active()) {
            Some(state) if state.is_for_descriptor => return Err(ServiceError::HasDescriptor),
            Some(_) => return Err(ServiceError::InPoller),
            None => {}
        }
        let new = Arc::new(PollState {
            is_active: AtomicBool::new(true),
            is_for_descriptor,
            ..PollState::default()
        });
        *state = Some(new.clone());
        self.was_ever.store(true, Ordering::Release);
        Ok(new)
    }

    /// Returns what the stream shares with the poller that a caller has put it in.
    pub(in crate::service) fn current(&self) -> Option<Arc<PollState>> {
        let state = self.any();
        state.filter(|state| !state.is_for_descriptor)
    }

    /// Returns what the stream shares with the session's thread for descriptors.
    pub(in crate::service) fn of_descriptor(&self) -> Option<Arc<PollState>> {
        let state = self.any();
        state.filter(|state| state.is_for_descriptor)
    }

    /// Returns what the stream shares with whichever poller it is in.
    pub(in crate::service) fn any(&self) -> Option<Arc<PollState>> {
        if !self.was_ever.load(Ordering::Acquire) {
            return None;
        }
        let state = self.lock();
        state.clone().filter(|state| state.is_active())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<PollState>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_armed_of_a_stream_that_has_left_and_none_leaves_while_it_is_armed() {
        let state = PollState {
            is_active: AtomicBool::new(true),
            ..PollState::default()
        };
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let is_armed = state.unless_left(|| {
                scope.spawn(|| {
                    tell.send(()).expect("is heard");
                    state.leave();
                });
                told.recv().expect("the other thread leaves");
                (0..1000).all(|_| {
                    std::thread::yield_now();
                    state.is_active()
                })
            });
            assert_eq!(is_armed, Some(true), "it has left meanwhile");
        });
        let armed = state.unless_left(|| panic!("its words are another one's"));
        assert_eq!(armed, None);
    }
}
