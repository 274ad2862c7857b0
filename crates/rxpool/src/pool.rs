//! The pool: memory of a fixed budget from which applications hold extents, with quotas and the escape controller. Pure:
//! it knows units, not addresses.
//!
//! The pool's memory has [`PoolConfig::memory_units`] units. At first as many as the budget circulate, and the others, ordinary
//! memory for stragglers, are in reserve. When a straggler is replaced, units of the reserve circulate in place of its own,
//! which join the reserve when it is released at last. So the number of units that are free or held and not replaced is always
//! the budget.

use headworks_verbs::Instant;

use crate::admission::Class;
use crate::config::PoolConfig;
use crate::escape::{EscapeController, Relief};
use crate::holdings::{AppId, AppUse, HeldExtent, Holdings, ReleaseError, Released, Replacement};
use crate::units::{FreeUnits, PoolExtent};

/// Error: an application gets no memory of the pool now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// The application holds as much as it may.
    #[error("the application holds as much of the pool as it may")]
    Quota,
    /// The pool has not as many free units.
    #[error("the pool has too little free memory")]
    Short,
}

/// What an application may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppLimits {
    /// Its class.
    pub class: Class,
    /// Units that it may hold.
    pub quota: u32,
}

/// Outcome of a [step](ReceivePool::escape_step) of the escape controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EscapeStep {
    /// Units of stragglers that were replaced in this step.
    pub replaced: u32,
    /// The application whose data must be copied out of the pool, and all of it released.
    pub copy: Option<AppId>,
    /// Whether no transfer may be admitted and no receive promised.
    pub stops_admission: bool,
    /// Whether the senders are to be signalled, once.
    pub signals: bool,
}

/// What the pool has done, in numbers that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounters {
    /// Extents handed out.
    pub gets: u64,
    /// Requests refused because of a quota.
    pub over_quota: u64,
    /// Requests refused because too little was free.
    pub short: u64,
    /// Releases refused.
    pub refused: u64,
    /// Stragglers replaced.
    pub replacements: u64,
    /// Applications named to be copied out.
    pub copies: u64,
    /// Signals to the senders.
    pub signals: u64,
}

/// Stragglers replaced in one step at most.
const REPLACEMENTS: u32 = 16;

/// A receive pool.
#[derive(Clone, Debug)]
pub struct ReceivePool {
    free: FreeUnits,
    reserve: FreeUnits,
    holdings: Holdings,
    limits: Vec<AppLimits>,
    escape: EscapeController,
    /// Units of stragglers that are replaced.
    replaced: u32,
    /// The application at which the next step of the escape controller begins.
    next: u32,
    counters: PoolCounters,
}

impl ReceivePool {
    /// Makes a pool of which nothing is held.
    pub fn new(config: &PoolConfig) -> Self {
        let (budget, all) = (config.budget_units(), config.memory_units());
        let escape = config.escape();
        Self {
            free: FreeUnits::partly_free(all, 0..budget),
            reserve: FreeUnits::partly_free(all, budget..all),
            holdings: Holdings::new(all, escape.straggler_time),
            limits: Vec::new(),
            escape: EscapeController::new(escape),
            replaced: 0,
            next: 0,
            counters: PoolCounters::default(),
        }
    }

    /// Adds an application.
    pub fn add(&mut self, limits: AppLimits) -> AppId {
        let app = self.holdings.add();
        let at = app.0 as usize;
        match self.limits.get_mut(at) {
            Some(old) => *old = limits,
            None => self.limits.push(limits),
        }
        app
    }

    /// Removes an application and releases all that it holds. The caller must know that nothing is READ into it any more.
    pub fn remove(&mut self, app: AppId) {
        loop {
            let first = self.holdings.of(app).next();
            let Some((held, units)) = first else { break };
            let from = units.trailing_zeros();
            let run = (units >> from).trailing_ones();
            let released = self.release(app, held, from, run);
            debug_assert!(released.is_ok(), "the holdings name what is held");
        }
        self.holdings.remove(app);
    }

    /// Hands out `units` units that lie side by side, 1 to [`UNITS_MAX`](crate::units::UNITS_MAX).
    ///
    /// # Errors
    ///
    /// [`GetError`].
    #[inline]
    pub fn get(&mut self, app: AppId, units: u32, now: Instant) -> Result<HeldExtent, GetError> {
        self.get_by(app, units, now, FreeUnits::take)
    }

    /// Hands out up to `units` units that lie side by side: fewer if free memory is scattered. Call it again for the rest.
    ///
    /// # Errors
    ///
    /// [`GetError`]. [`GetError::Short`] only if nothing is free.
    pub fn get_up_to(
        &mut self,
        app: AppId,
        units: u32,
        now: Instant,
    ) -> Result<HeldExtent, GetError> {
        self.get_by(app, units, now, FreeUnits::take_up_to)
    }

    #[inline]
    fn get_by(
        &mut self,
        app: AppId,
        units: u32,
        now: Instant,
        take: impl FnOnce(&mut FreeUnits, u32) -> Option<PoolExtent>,
    ) -> Result<HeldExtent, GetError> {
        let quota = self.limits.get(app.0 as usize).map_or(0, |of| of.quota);
        if units > quota.saturating_sub(self.holdings.used(app).held) {
            self.counters.over_quota += 1;
            return Err(GetError::Quota);
        }
        let Some(extent) = take(&mut self.free, units) else {
            self.counters.short += 1;
            return Err(GetError::Short);
        };
        self.counters.gets += 1;
        Ok(self.holdings.hold(app, extent, now))
    }

    /// Releases `units` units of an extent, from the `from`th on, counted within the extent.
    ///
    /// # Errors
    ///
    /// [`ReleaseError`], and then nothing is released.
    #[inline]
    pub fn release(
        &mut self,
        app: AppId,
        held: HeldExtent,
        from: u32,
        units: u32,
    ) -> Result<Released, ReleaseError> {
        let released = self.holdings.release(app, held, from, units);
        let Ok(released) = released else {
            self.counters.refused += 1;
            return released;
        };
        let to = match released.is_replaced {
            true => &mut self.reserve,
            false => &mut self.free,
        };
        if released.is_replaced {
            self.replaced -= units;
        }
        let given = to.release(released.units);
        debug_assert_eq!(given, Ok(()), "what is held is not free");
        Ok(released)
    }

    /// Takes a step of the escape controller: looks for stragglers, replaces some, or names an application whose data
    /// is to be copied out. Call it when the pool's level has fallen, and again while the pool is [short](Self::is_short).
    pub fn escape_step(&mut self, now: Instant) -> EscapeStep {
        let decided = self
            .escape
            .decide(self.free.available(), self.replaced, now);
        let mut step = EscapeStep {
            stops_admission: decided.stops_admission,
            signals: decided.signals,
            ..EscapeStep::default()
        };
        self.counters.signals += u64::from(decided.signals);
        let apps = self.limits.len() as u32;
        let mut copies = decided.relief == Relief::Copy;
        if let Relief::Replace(most) = decided.relief {
            let (mut left, mut times) = (most, 0);
            for turn in 0..apps {
                let app = AppId((self.next + turn) % apps);
                self.holdings.look(app, now);
                while times < REPLACEMENTS {
                    match self.holdings.replace(app, left) {
                        Replacement::Of(units) => {
                            self.circulate(units);
                            left -= units;
                            step.replaced += units;
                            times += 1;
                        }
                        Replacement::None => break,
                        Replacement::TooLong => {
                            // What is left of the reserve is of no use for it.
                            copies |= step.replaced == 0;
                            break;
                        }
                    }
                }
            }
            self.counters.replacements += u64::from(times);
            copies &= step.replaced == 0;
        }
        if copies {
            let slow = (0..apps)
                .map(|turn| AppId((self.next + turn) % apps))
                .find(|app| {
                    let used = self.holdings.look(*app, now);
                    self.escape.is_slow(used.stragglers, used.held)
                });
            self.counters.copies += u64::from(slow.is_some());
            step.copy = slow;
        }
        self.next = match step.copy {
            Some(app) => (app.0 + 1) % apps,
            None if apps > 0 => (self.next + 1) % apps,
            None => 0,
        };
        step
    }

    /// Lets `units` units of the reserve circulate.
    fn circulate(&mut self, mut units: u32) {
        self.replaced += units;
        while units > 0 {
            let Some(extent) = self.reserve.take_up_to(units) else {
                debug_assert!(false, "the reserve has what is not replaced");
                return;
            };
            units -= extent.units;
            let released = self.free.release(extent);
            debug_assert_eq!(released, Ok(()), "the reserve does not circulate");
        }
    }

    /// Number of free units.
    pub fn available(&self) -> u32 {
        self.free.available()
    }

    /// Number of units of stragglers that are replaced.
    pub fn replaced(&self) -> u32 {
        self.replaced
    }

    /// Whether the pool was short at the last step.
    pub fn is_short(&self) -> bool {
        self.escape.is_short()
    }

    /// Returns when [`escape_step`](Self::escape_step) must be called next even if the level does not change.
    pub fn deadline(&self) -> Option<Instant> {
        self.escape.deadline()
    }

    /// Class and quota of an application.
    pub fn limits(&self, app: AppId) -> Option<AppLimits> {
        self.limits.get(app.0 as usize).copied()
    }

    /// What an application uses.
    pub fn used(&self, app: AppId) -> AppUse {
        self.holdings.used(app)
    }

    /// Returns an application's extents, oldest first: see [`Holdings::of`].
    pub fn held(&self, app: AppId) -> impl Iterator<Item = (HeldExtent, u64)> {
        self.holdings.of(app)
    }

    /// What the pool has done so far.
    pub fn counters(&self) -> PoolCounters {
        self.counters
    }
}

#[cfg(test)]
#[path = "pool/tests.rs"]
mod tests;
