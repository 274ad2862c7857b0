//! Events on their way to the director, and what it has learnt from them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use headworks_verbs::Duration;

use crate::alarm::Alarm;
use crate::world::{Event, Outcome};

/// Most bytes of reports, or of mail for one part, that wait to be read.
pub const WAITING_MAX: usize = 16 << 20;
/// What a message costs beside its bytes, for the limit.
pub const MESSAGE_COST: usize = 64;

/// A panic under one of our locks cannot leave them half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Events {
    state: Mutex<State>,
    some: Condvar,
    /// Rung when there is room again after a report was refused.
    room: Option<Arc<Alarm>>,
}

struct State {
    events: VecDeque<Event>,
    bytes: usize,
    running: usize,
    refused: bool,
}

impl Events {
    pub(crate) fn new(running: usize, room: Option<Arc<Alarm>>) -> Self {
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

    /// Whether the report was taken: there is a limit on what waits, unless `force`.
    pub(crate) fn report(&self, role: &str, bytes: &[u8], force: bool) -> bool {
        let mut state = lock(&self.state);
        let cost = bytes.len() + MESSAGE_COST;
        if state.bytes + cost > WAITING_MAX && !force {
            state.refused = true;
            return false;
        }
        state.bytes += cost;
        state.events.push_back(Event::Report {
            role: role.to_owned(),
            bytes: bytes.to_vec(),
        });
        self.some.notify_one();
        true
    }

    pub(crate) fn ended(&self, role: &str, outcome: Outcome) {
        let mut state = lock(&self.state);
        state.running -= 1;
        state.events.push_back(Event::Ended {
            role: role.to_owned(),
            outcome,
        });
        self.some.notify_one();
    }

    fn poll(&self, timeout: Duration) -> Option<Event> {
        let nothing_yet = |state: &mut State| state.events.is_empty() && state.running > 0;
        let (mut state, _) = self
            .some
            .wait_timeout_while(lock(&self.state), timeout.into(), nothing_yet)
            .unwrap_or_else(PoisonError::into_inner);
        let event = state.events.pop_front()?;
        if let Event::Report { bytes, .. } = &event {
            state.bytes -= bytes.len() + MESSAGE_COST;
        }
        if std::mem::take(&mut state.refused)
            && let Some(room) = &self.room
        {
            room.ring();
        }
        Some(event)
    }
}

/// The director's end of the events.
pub(crate) struct Audience {
    pub(crate) roles: Vec<String>,
    pub(crate) events: Arc<Events>,
    outcomes: BTreeMap<String, Outcome>,
}

impl Audience {
    pub(crate) fn new(roles: Vec<String>, events: Arc<Events>) -> Self {
        Self {
            roles,
            events,
            outcomes: BTreeMap::new(),
        }
    }

    pub(crate) fn poll(&mut self, timeout: Duration) -> Option<Event> {
        let event = self.events.poll(timeout)?;
        if let Event::Ended { role, outcome } = &event {
            self.outcomes.insert(role.clone(), outcome.clone());
        }
        Some(event)
    }

    pub(crate) fn outcome(&self, role: &str) -> Option<Outcome> {
        self.outcomes.get(role).cloned()
    }

    pub(crate) fn index(&self, role: &str) -> Option<usize> {
        self.roles.iter().position(|known| known == role)
    }
}
