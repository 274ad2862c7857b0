//! When to run the administrator's commands that lower and restore an RNIC's threshold for congestion marks (Jet,
//! sections 4.3 and 5): levels of the pools, and the state machine. Pure. The module [`ecn_settings`](crate::ecn_settings)
//! has the commands.
//!
//! The threshold holds for all traffic of the RNIC. So a pool in danger is not enough: all pools that are in use must be.
//! A tenant that does not read cannot slow down others this way.

use headworks_verbs::{Duration, Instant};

/// Level of a receive pool, or of all pools of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolLevel {
    /// Nothing is held, and nothing waits.
    #[default]
    Idle,
    /// Free memory is above the safety line.
    Safe,
    /// Free memory is below the safety line.
    Short,
    /// Free memory is below the danger line.
    Danger,
}

impl PoolLevel {
    /// Returns the level of a host from those of its pools: in danger if all pools in use are, and safe if none is short.
    pub fn of_host(pools: impl IntoIterator<Item = Self>) -> Self {
        let mut pools = pools.into_iter().filter(|level| *level != Self::Idle);
        let Some(first) = pools.next() else {
            return Self::Idle;
        };
        pools.fold(first, |all, level| match level == all {
            true => all,
            false => Self::Short,
        })
    }
}

/// One of the two commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EcnCommand {
    /// Lowers the threshold, so that senders slow down.
    Lower,
    /// Restores the threshold.
    Restore,
}

impl EcnCommand {
    /// Returns the key of the command in the configuration file.
    pub fn key(self) -> &'static str {
        match self {
            Self::Lower => "ecn.lower",
            Self::Restore => "ecn.restore",
        }
    }
}

/// Each failure in a row after the first doubles the time until the next run, at most so many times.
const DOUBLINGS: u32 = 6;

/// Decides which command runs, and when. At most one runs at a time.
///
/// Call [`set_level`](Self::set_level) when the level changes, and [`end`](Self::end) when the daemon ends. Call
/// [`begin`](Self::begin) afterwards, and again at the [deadline](Self::deadline); run what it returns, then call
/// [`ended`](Self::ended).
#[derive(Clone, Debug)]
pub struct EcnControl {
    interval: Duration,
    wanted: EcnCommand,
    /// The last command, if it succeeded.
    applied: Option<EcnCommand>,
    running: Option<EcnCommand>,
    is_lowered: bool,
    /// When the last command ended.
    last_end: Option<Instant>,
    /// Failures in a row since the wanted command changed.
    failures: u32,
    /// Whether the daemon ends, and whether the last command for that has begun.
    is_ending: bool,
    has_last_begun: bool,
}

impl EcnControl {
    /// Makes a state machine that first restores the threshold: an earlier daemon may have been killed while the threshold
    /// was lowered. `interval` is the least time from the end of a run to the next run.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            wanted: EcnCommand::Restore,
            applied: None,
            running: None,
            is_lowered: true,
            last_end: None,
            failures: 0,
            is_ending: false,
            has_last_begun: false,
        }
    }

    /// Notes the level of the host's pools.
    pub fn set_level(&mut self, level: PoolLevel) {
        let wanted = match level {
            _ if self.is_ending => EcnCommand::Restore,
            PoolLevel::Danger => EcnCommand::Lower,
            PoolLevel::Short => return,
            PoolLevel::Safe | PoolLevel::Idle => EcnCommand::Restore,
        };
        self.want(wanted);
    }

    /// Notes that the daemon ends. The threshold is restored without regard to the interval, unless the last command was a
    /// successful `restore`.
    pub fn end(&mut self) {
        self.is_ending = true;
        self.want(EcnCommand::Restore);
    }

    fn want(&mut self, wanted: EcnCommand) {
        if self.wanted != wanted {
            self.wanted = wanted;
            self.failures = 0;
        }
    }

    /// Begins the next command, if one is due.
    pub fn begin(&mut self, now: Instant) -> Option<EcnCommand> {
        if !self.is_due(now) {
            return None;
        }
        self.running = Some(self.wanted);
        self.applied = None;
        self.is_lowered |= self.wanted == EcnCommand::Lower;
        self.has_last_begun = self.is_ending;
        self.running
    }

    fn is_due(&self, now: Instant) -> bool {
        match self.is_ending {
            true => self.wants_run() && !self.has_last_begun,
            false => self.deadline().is_some_and(|at| at <= now),
        }
    }

    fn wants_run(&self) -> bool {
        self.running.is_none() && self.applied != Some(self.wanted)
    }

    /// Returns when [`begin`](Self::begin) returns a command, if nothing changes.
    pub fn deadline(&self) -> Option<Instant> {
        let doublings = self.failures.saturating_sub(1).min(DOUBLINGS);
        let pause = self.interval.nanos() << doublings;
        let wait = |end| end + Duration::from_nanos(pause);
        self.wants_run()
            .then(|| self.last_end.map_or(Instant::ZERO, wait))
    }

    /// Notes that the command has ended.
    pub fn ended(&mut self, is_done: bool, now: Instant) {
        let Some(command) = self.running.take() else {
            return;
        };
        self.last_end = Some(now);
        match is_done {
            true => {
                self.applied = Some(command);
                self.failures = 0;
                self.is_lowered = command == EcnCommand::Lower;
            }
            false if command == self.wanted => self.failures += 1,
            // Another command is wanted meanwhile, which has not failed yet.
            false => {}
        }
    }

    /// Returns whether the threshold may be lowered: no `restore` has succeeded since the start, or since `lower` was run.
    pub fn is_lowered(&self) -> bool {
        self.is_lowered
    }

    /// Returns whether the daemon may end: nothing runs, and the last command was run.
    pub fn is_over(&self) -> bool {
        self.is_ending && self.running.is_none() && (self.has_last_begun || !self.wants_run())
    }
}

#[cfg(test)]
mod tests;
