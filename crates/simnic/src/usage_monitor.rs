//! What plays of a world count, for whoever runs them.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::SharedModel;
use crate::utilisation::Usage;

/// What plays of a world count: the one that runs, and the last that ended.
#[derive(Default)]
pub struct UsageMonitor(Mutex<Counted>);

impl fmt::Debug for UsageMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_running = self.lock().running.is_some();
        f.debug_struct("UsageMonitor")
            .field("is_running", &is_running)
            .finish()
    }
}

#[derive(Default)]
struct Counted {
    running: Option<SharedModel>,
    last: Option<Usage>,
}

impl UsageMonitor {
    /// What the play that runs has counted up to now, for an actor or for the coordinator between two polls; what the
    /// step that asks has computed is not among it. `None` where none runs.
    pub fn now(&self) -> Option<Usage> {
        let running = self.lock().running.clone()?;
        let usage = running.lock().usage();
        Some(usage)
    }

    /// What the last play had counted when it ended, that is, when its [`RunningScenario`](headworks_runtime::RunningScenario) was let go of.
    pub fn last(&self) -> Option<Usage> {
        self.lock().last.clone()
    }

    /// A play begins.
    pub(crate) fn begin(&self, model: &SharedModel) {
        self.lock().running = Some(model.clone());
    }

    /// It is over.
    pub(crate) fn end(&self, model: &SharedModel) {
        let usage = model.lock().usage();
        let mut counted = self.lock();
        (counted.running, counted.last) = (None, Some(usage));
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
