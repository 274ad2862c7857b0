//! The level of all receive pools together, for what holds for the whole RNIC.

use headworks_verbs::Duration;

use super::{Daemon, Output};
use crate::ecn::PoolLevel;

/// How often the pools are looked at while one of them is in danger and another one that is in use is not. A pool does not
/// report that it is not in use any more.
const AGAIN: Duration = Duration::from_millis(100);

impl Daemon {
    /// Looks at the levels of all pools, and reports that of the host if it has changed.
    pub(super) fn look_at_pools(&mut self) {
        if !self.config.reports_pool_level {
            return;
        }
        let mut levels = Vec::new();
        for worker in &self.workers {
            levels.extend(worker.lock_for_control().pool_levels());
        }
        let level = PoolLevel::of_host(levels.iter().copied());
        let is_any_in_danger = levels.contains(&PoolLevel::Danger);
        let looks_again = is_any_in_danger && level != PoolLevel::Danger;
        self.pools_until = looks_again.then(|| self.now + AGAIN);
        if std::mem::replace(&mut self.pool_level, level) != level {
            self.outputs.push_back(Output::PoolLevel(level));
        }
    }
}
