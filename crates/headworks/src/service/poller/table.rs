//! Table of a session's streams, with the poller that each is in.
//!
//! A wake set names streams of the whole session, and every poller of the session drains it. A poller that takes out the
//! number of a stream that another poller has passes the number on. The table tells to which poller.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_client::WakeSet;

use super::waker::PollerWaker;

/// Identifies a wake set of a session while somebody has it: the address of its event count.
pub(super) fn address_of(set: &WakeSet) -> usize {
    std::ptr::from_ref(set.event_count()).addr()
}

/// A poller, and a stream's name there: the place of the wake set in the poller, and the number in the set.
type Owner = (Arc<PollerWaker>, (usize, u32));

/// The pollers of a session, and their streams.
#[derive(Debug, Default)]
pub(in crate::service) struct PollerTable {
    /// Number of pollers.
    pollers: AtomicUsize,
    /// The owner of each stream, by the address of a wake set and the number in it.
    owners: Mutex<HashMap<(usize, u32), Owner>>,
}

impl PollerTable {
    fn lock(&self) -> MutexGuard<'_, HashMap<(usize, u32), Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a poller. Call it before the poller falls asleep for the first time.
    pub(super) fn enter(&self) {
        self.pollers.fetch_add(1, Ordering::Relaxed);
    }

    /// Stops counting a poller.
    pub(super) fn leave(&self) {
        self.pollers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Disarms the event counts of wake sets for a poller that has woken up, unless another poller may sleep on them. In
    /// that case they stay armed, and the next notification may wake a poller for nothing. Returns whether another poller
    /// came into being meanwhile: its arm may be lost, so it must be woken.
    #[must_use = "a poller whose arm is lost must be woken"]
    pub(super) fn disarm(&self, sets: &[WakeSet]) -> bool {
        if self.pollers.load(Ordering::Relaxed) > 1 {
            return false;
        }
        sets.iter().for_each(|set| set.event_count().disarm());
        // Pairs with the fence in `PollerWaker::fall_asleep`, which lies between `enter` and the arm: if the arm was lost,
        // the number of pollers is read as 2 or more here.
        fence(Ordering::SeqCst);
        self.pollers.load(Ordering::Relaxed) > 1
    }

    /// Records that the poller of `waker` has the stream with this number in `set`, in place of the stream that had the
    /// number before. `name` is the stream's name in the poller. Call it before the stream's event counts are armed.
    pub(super) fn add(&self, set: &WakeSet, waker: &Arc<PollerWaker>, name: (usize, u32)) {
        let owner = (waker.clone(), name);
        self.lock().insert((address_of(set), name.1), owner);
    }

    /// Removes what [`add`](Self::add) recorded, unless another poller has the number meanwhile.
    pub(super) fn remove(&self, set: &WakeSet, waker: &Arc<PollerWaker>, number: u32) {
        let mut owners = self.lock();
        let at = (address_of(set), number);
        if owners
            .get(&at)
            .is_some_and(|(its, _)| Arc::ptr_eq(its, waker))
        {
            owners.remove(&at);
        }
    }

    /// Passes a number that the poller of `by` took out of `set` on to the poller that has the stream, if there is one.
    pub(super) fn pass_on(&self, set: &WakeSet, number: u32, by: &Arc<PollerWaker>) {
        let owner = self.lock().get(&(address_of(set), number)).cloned();
        if let Some((waker, name)) = owner.filter(|(waker, _)| !Arc::ptr_eq(waker, by)) {
            waker.put(name);
        }
    }
}
