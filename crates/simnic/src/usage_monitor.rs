//! Usage counts of a world's scenarios, for the caller that runs them.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::SharedModel;
use crate::model::Backlog;
use crate::utilisation::Usage;

/// Usage of a world's scenarios: the one that runs, and the last that ended.
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
    /// Returns what the running scenario has counted up to now; `None` if none runs. An actor or, between two
    /// polls, the coordinator may call this. The computing time of the calling step is not included.
    pub fn now(&self) -> Option<Usage> {
        let running = self.lock().running.clone()?;
        let usage = running.lock().usage();
        Some(usage)
    }

    /// Returns the bytes that wait now before the memory of the host called `host`, in the running scenario;
    /// `None` if none runs, if there is no such host, or if its preset does not model this.
    pub fn backlog(&self, host: &str) -> Option<Backlog> {
        let running = self.lock().running.clone()?;
        running.lock().backlog(host)
    }

    /// Returns what the last scenario had counted when it ended, that is, when its
    /// [`RunningScenario`](headworks_runtime::RunningScenario) was dropped.
    pub fn last(&self) -> Option<Usage> {
        self.lock().last.clone()
    }

    /// Notes that a scenario begins.
    pub(crate) fn begin(&self, model: &SharedModel) {
        self.lock().running = Some(model.clone());
    }

    /// Notes that a scenario is over.
    pub(crate) fn end(&self, model: &SharedModel) {
        let usage = model.lock().usage();
        let mut counted = self.lock();
        (counted.running, counted.last) = (None, Some(usage));
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
