//! Events on their way to the coordinator, and the outcomes it has learnt from them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use headworks_verbs::Duration;

use crate::world::{ActorOutcome, ScenarioEvent};
use headworks_net::EventFd;

/// Limit of the bytes of unread reports, and of the bytes of unread mail of one actor.
pub const MAILBOX_BYTES_MAX: usize = 16 << 20;
/// Bytes by which a message counts more than its length towards the limit.
pub const MESSAGE_OVERHEAD: usize = 64;

/// Locks, ignoring poison: a panic under one of our locks cannot leave the data half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct ScenarioEvents {
    state: Mutex<State>,
    some: Condvar,
    /// Signalled when there is room again after a report was refused.
    room: Option<Arc<EventFd>>,
}

struct State {
    events: VecDeque<ScenarioEvent>,
    bytes: usize,
    running: usize,
    refused: bool,
}

impl ScenarioEvents {
    pub(crate) fn new(running: usize, room: Option<Arc<EventFd>>) -> Self {
        let state = State {
            events: VecDeque::new(),
            bytes: 0,
            running,
            refused: false,
        };
        Self {
            state: Mutex::new(state),
            some: Condvar::new(),
            room,
        }
    }

    /// Queues a report and returns whether it was taken. Unless `force`, the bytes that wait are limited.
    pub(crate) fn report(&self, role: &str, bytes: &[u8], force: bool) -> bool {
        let mut state = lock(&self.state);
        let cost = bytes.len() + MESSAGE_OVERHEAD;
        if state.bytes + cost > MAILBOX_BYTES_MAX && !force {
            state.refused = true;
            return false;
        }
        state.bytes += cost;
        state.events.push_back(ScenarioEvent::Report {
            role: role.to_owned(),
            bytes: bytes.to_vec(),
        });
        self.some.notify_one();
        true
    }

    pub(crate) fn ended(&self, role: &str, outcome: ActorOutcome) {
        let mut state = lock(&self.state);
        state.running -= 1;
        state.events.push_back(ScenarioEvent::Ended {
            role: role.to_owned(),
            outcome,
        });
        self.some.notify_one();
    }

    fn poll(&self, timeout: Duration) -> Option<ScenarioEvent> {
        let nothing_yet = |state: &mut State| state.events.is_empty() && state.running > 0;
        let (mut state, _) = self
            .some
            .wait_timeout_while(lock(&self.state), timeout.into(), nothing_yet)
            .unwrap_or_else(PoisonError::into_inner);
        let event = state.events.pop_front()?;
        if let ScenarioEvent::Report { bytes, .. } = &event {
            state.bytes -= bytes.len() + MESSAGE_OVERHEAD;
        }
        if std::mem::take(&mut state.refused)
            && let Some(room) = &self.room
        {
            room.signal();
        }
        Some(event)
    }
}

/// The coordinator's end of the event queue.
pub(crate) struct EventReceiver {
    pub(crate) roles: Vec<String>,
    pub(crate) events: Arc<ScenarioEvents>,
    outcomes: BTreeMap<String, ActorOutcome>,
}

impl EventReceiver {
    pub(crate) fn new(roles: Vec<String>, events: Arc<ScenarioEvents>) -> Self {
        Self {
            roles,
            events,
            outcomes: BTreeMap::new(),
        }
    }

    pub(crate) fn poll(&mut self, timeout: Duration) -> Option<ScenarioEvent> {
        let event = self.events.poll(timeout)?;
        if let ScenarioEvent::Ended { role, outcome } = &event {
            self.outcomes.insert(role.clone(), outcome.clone());
        }
        Some(event)
    }

    pub(crate) fn outcome(&self, role: &str) -> Option<ActorOutcome> {
        self.outcomes.get(role).cloned()
    }

    pub(crate) fn index(&self, role: &str) -> Option<usize> {
        self.roles.iter().position(|known| known == role)
    }
}
