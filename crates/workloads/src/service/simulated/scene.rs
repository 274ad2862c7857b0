//! What all parts of a play know of each other beside the network: when it is measured, and what came of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks::stage::{Actor, ActorError, Cast, Part, PartSpec, Step};
use headworks::verbs::{Duration, Instant};

use super::{Load, Machine};
use crate::random::{Random, mix};
use crate::service::Result;
use crate::service::requests::{Tally, Work};

/// All begin so long after the last is there.
const LEAD: Duration = Duration::from_micros(2);
/// How often a caller looks whether all are there.
pub(super) const SOON: Duration = Duration::from_micros(1);

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The actors of a play.
pub(super) struct Stage {
    pub(super) scene: Scene,
    pub(super) cast: Cast,
    pub(super) parts: Vec<PartSpec>,
}

impl Stage {
    /// Adds an actor on a host.
    pub(super) fn add<A: Actor + 'static>(
        &mut self,
        host: usize,
        role: String,
        make: impl Fn(&Part) -> Result<A, ActorError> + Send + Sync + 'static,
    ) -> Result<()> {
        let make = move |part: &Part| Ok(Box::new(make(part)?) as Box<dyn Actor>);
        self.cast.register(&role, make);
        let device = self.scene.machine.device(host)?;
        self.parts
            .push(PartSpec::new(role.clone(), role).on(device));
        Ok(())
    }
}

#[derive(Clone)]
pub(super) struct Scene {
    pub(super) load: Load,
    pub(super) machine: Machine,
    state: Arc<Mutex<State>>,
}

pub(super) struct State {
    times: (Duration, Duration),
    ready: usize,
    /// When all begin.
    begin: Option<Instant>,
    done: usize,
    pub(super) tally: Tally,
    /// The sum of all counters in the end, if there are some.
    pub(super) sum: Option<u64>,
    /// Queue pairs of the callers' host.
    pub(super) queue_pairs: usize,
}

impl Scene {
    pub(super) fn new(load: Load, machine: &Machine, times: (Duration, Duration)) -> Self {
        let state = State {
            times,
            ready: 0,
            begin: None,
            done: 0,
            tally: Tally::default(),
            sum: None,
            queue_pairs: 0,
        };
        Self {
            load,
            machine: machine.clone(),
            state: Arc::new(Mutex::new(state)),
        }
    }

    pub(super) fn look(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Whether all callers have done what they set out to do.
    pub(super) fn is_over(&self) -> bool {
        self.look().done == self.load.callers
    }

    /// The share of caller `who`.
    pub(super) fn share(&self, who: usize) -> Share {
        let random = Random::new(mix(self.machine.seed) ^ who as u64);
        Share {
            work: Work::new(self.load, false, random),
            scene: self.clone(),
            is_ready: false,
        }
    }
}

impl State {
    /// From when until when it is measured, once that is known.
    pub(super) fn window(&self) -> Option<[Instant; 2]> {
        let from = self.begin? + self.times.0;
        Some([from, from + self.times.1])
    }
}

/// One caller's work in a scene.
pub(super) struct Share {
    pub(super) scene: Scene,
    pub(super) work: Work,
    is_ready: bool,
}

impl Share {
    /// What the caller, who is ready, does until all begin; `None` once they have.
    pub(super) fn waits(&mut self, now: Instant) -> Option<Step> {
        let mut state = self.scene.look();
        if !self.is_ready {
            self.is_ready = true;
            state.ready += 1;
            if state.ready == self.scene.load.callers {
                state.begin = Some(now + LEAD);
            }
        }
        let (Some(begin), Some([from, until])) = (state.begin, state.window()) else {
            return Some(Step::At(now + SOON));
        };
        self.work.window = from..until;
        (begin > now).then_some(Step::At(begin))
    }

    /// Counts what the caller has done.
    pub(super) fn finish(&mut self) {
        let mut state = self.scene.look();
        state.tally.add(&self.work.tally);
        state.done += 1;
    }
}
