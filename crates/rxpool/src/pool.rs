//! The pool: memory of a fixed budget from which applications hold extents, with quotas, claims and the escape
//! controller. Pure: it knows units, not addresses.
//!
//! # Claims
//!
//! An application whose transfers were admitted has a claim: the units that they are expected to take at the same
//! time. What it holds counts towards its claim, so units that it releases are its own again. The part of all claims
//! that is not held is reserved: no other application gets it. While transfers wait for admission, an application gets
//! nothing beyond its claim, so that the pool comes free for them.
//!
//! # Replacement
//!
//! The pool's memory has [`PoolConfig::memory_units`] units. At first as many as the budget circulate, and the others,
//! ordinary memory for stragglers, are in reserve. When a straggler is replaced, units of the reserve circulate in
//! place of its own. When it is released, its units join the reserve, and are exchanged for those that circulate in
//! their place as soon as those are free. So the number of units that are free or held and not replaced is always the
//! budget, and without stragglers the same units circulate as at first.

use std::ops::Range;

use headworks_verbs::{Duration, Instant};

use crate::admission::Class;
use crate::config::PoolConfig;
use crate::escape::{EscapeController, Relief};
use crate::holdings::{AppId, AppUse, HeldExtent, Holdings, ReleaseError, Released, Replacement};
use crate::units::{FreeUnits, PoolExtent, UNITS_MAX};

/// Error: an application gets no memory of the pool now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// The application is not there.
    #[error("there is no such application")]
    NoApp,
    /// An extent has 1 to [`UNITS_MAX`] units.
    #[error("an extent of {0} units does not exist")]
    Length(u32),
    /// The application holds as much as it may.
    #[error("the application holds as much of the pool as it may")]
    Quota,
    /// The pool has not as many free units for this application, or they do not lie side by side.
    #[error("the pool has too little free memory")]
    Short,
}

/// Limits of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppLimits {
    /// Its class.
    pub class: Class,
    /// Units that it may hold.
    pub quota: u32,
}

/// Units that an application may claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claimable {
    /// Units within its quota.
    pub quota: u32,
    /// Units that are free and not reserved.
    pub free: u32,
}

/// Outcome of a [step](ReceivePool::escape_step) of the escape controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EscapeStep {
    /// Units of stragglers that were replaced in this step.
    pub replaced: u32,
    /// The application whose data must be copied out of the pool, and all of it released. It is named once, and again
    /// after it was not slow for a while.
    pub copy: Option<AppId>,
    /// An application that was named [`PoolConfig::reset_time`] ago, and still holds what it held too long: its connections
    /// are to be reset. It is named again after as long.
    pub overdue: Option<AppId>,
    /// Whether no transfer may be admitted and no receive promised.
    pub stops_admission: bool,
    /// Whether the senders are to be signalled, once.
    pub signals: bool,
}

/// Counters of the pool. They only grow.
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
    /// Applications named as overdue.
    pub resets: u64,
    /// Signals to the senders.
    pub signals: u64,
}

/// Stragglers replaced in one step at most.
const REPLACEMENTS: u32 = 16;

/// State of an application, without the extents that it holds.
#[derive(Clone, Copy, Debug)]
struct App {
    limits: AppLimits,
    /// Units that its admitted transfers are expected to take.
    claim: u32,
    /// When it was named to be copied out, or as overdue, if it is slow since.
    named_at: Option<Instant>,
}

/// Use of the pool by an application, as far as it decides what the application may get.
#[derive(Clone, Copy, Debug)]
struct UseOfApp {
    /// Units that it may hold more.
    room: u32,
    claim: u32,
    /// Units that it holds and that were not replaced.
    counted: u32,
}

impl UseOfApp {
    /// Claimed units that it does not hold.
    #[inline]
    fn unused(&self) -> u32 {
        self.claim.saturating_sub(self.counted)
    }
}

/// A receive pool.
#[derive(Clone, Debug)]
pub struct ReceivePool {
    free: FreeUnits,
    reserve: FreeUnits,
    /// The units that circulate at first.
    own: Range<u32>,
    /// The units that are in reserve at first.
    spare: Range<u32>,
    /// Number of units of `spare` in `free`.
    spare_free: u32,
    /// Number of units of `own` in `reserve`.
    own_in_reserve: u32,
    holdings: Holdings,
    apps: Vec<App>,
    /// Claimed units that are not held.
    reserved: u32,
    /// Whether transfers wait, so that nobody gets more than it has claimed.
    is_contended: bool,
    escape: EscapeController,
    reset_time: Duration,
    /// Units of stragglers that are replaced.
    replaced: u32,
    /// Whether an application was named to be copied out since the pool became short.
    has_named: bool,
    /// The application at which the next step of the escape controller begins.
    next: usize,
    /// The unit from which on memory is taken, if it is handed out in turn.
    turn: Option<u32>,
    counters: PoolCounters,
}

impl ReceivePool {
    /// Makes a pool of which nothing is held.
    pub fn new(config: &PoolConfig) -> Self {
        let all = config.memory_units();
        let (own, spare) = (0..config.budget_units(), config.reserve_from()..all);
        let escape = config.escape();
        Self {
            free: FreeUnits::partly_free(all, own.clone()),
            reserve: FreeUnits::partly_free(all, spare.clone()),
            own,
            spare,
            spare_free: 0,
            own_in_reserve: 0,
            holdings: Holdings::new(all, escape.straggler_time),
            apps: Vec::new(),
            reserved: 0,
            is_contended: false,
            escape: EscapeController::new(escape),
            reset_time: config.reset_time,
            replaced: 0,
            has_named: false,
            next: 0,
            turn: config.is_in_turn.then_some(0),
            counters: PoolCounters::default(),
        }
    }

    /// Adds an application.
    pub fn add(&mut self, limits: AppLimits) -> AppId {
        let id = self.holdings.add();
        let app = App {
            limits,
            claim: 0,
            named_at: None,
        };
        match self.apps.get_mut(id.place()) {
            Some(old) => *old = app,
            None => self.apps.push(app),
        }
        id
    }

    /// Removes an application, with its claim, and releases all that it holds and that has [arrived](Self::arrived).
    /// Call it when nothing is READ into its memory any more. Returns `false` if it is not there, or if something is.
    pub fn remove(&mut self, id: AppId) -> bool {
        let claim = self.app(id).map_or(0, |app| app.claim);
        self.unclaim(id, claim);
        loop {
            let first = self.holdings.of(id).next();
            let Some((held, units)) = first else { break };
            let from = units.trailing_zeros();
            let run = (units >> from).trailing_ones();
            let released = self.release(id, held, from, run);
            debug_assert!(released.is_ok(), "the holdings name what is held");
        }
        self.holdings.remove(id)
    }

    fn app(&self, id: AppId) -> Option<&App> {
        let app = self.apps.get(id.place())?;
        self.holdings.has(id).then_some(app)
    }

    /// Claimed units that an application does not hold. Stragglers that were replaced do not count as held, because
    /// they take nothing of the budget.
    #[inline]
    fn unused(&self, id: AppId) -> u32 {
        self.use_of(id).map_or(0, |of| of.unused())
    }

    #[inline]
    fn use_of(&self, id: AppId) -> Option<UseOfApp> {
        let used = self.holdings.get(id)?;
        let app = self.apps.get(id.place())?;
        Some(UseOfApp {
            room: app.limits.quota.saturating_sub(used.held),
            claim: app.claim,
            counted: used.held - used.replaced,
        })
    }

    /// Returns how many units an application may claim more: within its quota, and free for it.
    pub fn claimable(&self, id: AppId) -> Claimable {
        let Some(app) = self.app(id) else {
            return Claimable::default();
        };
        let used = self.holdings.used(id);
        let taken = used.replaced + app.claim.max(used.held - used.replaced);
        Claimable {
            quota: app.limits.quota.saturating_sub(taken),
            free: self.free.available() - self.reserved,
        }
    }

    /// Claims units for an application, if they are [claimable](Self::claimable). Returns whether they are.
    pub fn claim(&mut self, id: AppId, units: u32) -> bool {
        let claimable = self.claimable(id);
        if units > claimable.quota || units > claimable.free {
            return false;
        }
        let before = self.unused(id);
        if self.holdings.has(id) {
            self.apps[id.place()].claim += units;
        }
        self.reserved = self.reserved - before + self.unused(id);
        true
    }

    /// Gives up claimed units, at most as many as are claimed.
    pub fn unclaim(&mut self, id: AppId, units: u32) {
        let before = self.unused(id);
        if self.holdings.has(id) {
            let claim = &mut self.apps[id.place()].claim;
            *claim = claim.saturating_sub(units);
        }
        self.reserved = self.reserved - before + self.unused(id);
    }

    /// Sets whether transfers wait for admission: nobody gets more than it has claimed.
    pub fn set_contended(&mut self, is_contended: bool) {
        self.is_contended = is_contended;
    }

    /// Returns how many units an application may get: within its quota, and free for it.
    pub fn may_get(&self, id: AppId) -> u32 {
        let of = self.use_of(id);
        of.map_or(0, |of| of.room.min(self.free_for(&of)))
    }

    #[inline]
    fn free_for(&self, of: &UseOfApp) -> u32 {
        let unused = of.unused();
        match self.is_contended {
            true => unused,
            false => self.free.available() - (self.reserved - unused),
        }
    }

    /// Hands out `units` units that lie side by side, 1 to [`UNITS_MAX`]. Their bytes have not
    /// [arrived](Self::arrived).
    ///
    /// # Errors
    ///
    /// [`GetError`].
    #[inline]
    pub fn get(&mut self, id: AppId, units: u32) -> Result<HeldExtent, GetError> {
        let (of, _) = self.check(id, units, units)?;
        let taken = self.take(units);
        self.hold(id, &of, taken)
    }

    /// Hands out up to `units` units that lie side by side, 1 to [`UNITS_MAX`]: fewer if free memory is scattered, or
    /// the application [may get](Self::may_get) no more. Call it again for the rest.
    ///
    /// # Errors
    ///
    /// [`GetError`].
    pub fn get_up_to(&mut self, id: AppId, units: u32) -> Result<HeldExtent, GetError> {
        let (of, may) = self.check(id, units, 1)?;
        let units = units.min(may);
        let taken = self.take(units).or_else(|| self.free.take_up_to(units));
        self.hold(id, &of, taken)
    }

    /// Takes `units` free units that lie side by side.
    #[inline]
    fn take(&mut self, units: u32) -> Option<PoolExtent> {
        let Some(turn) = &mut self.turn else {
            return self.free.take(units);
        };
        let taken = self.free.take_from(*turn, units)?;
        *turn = taken.first + taken.units;
        Some(taken)
    }

    /// Checks whether an application that wants `units` units may get at least `least`. Returns what it uses and how
    /// many units it may get.
    #[inline]
    fn check(&mut self, id: AppId, units: u32, least: u32) -> Result<(UseOfApp, u32), GetError> {
        let of = self.use_of(id).ok_or(GetError::NoApp)?;
        if !(1..=UNITS_MAX).contains(&units) {
            return Err(GetError::Length(units));
        }
        if of.room < least {
            self.counters.over_quota += 1;
            return Err(GetError::Quota);
        }
        let may = of.room.min(self.free_for(&of));
        if may < least {
            self.counters.short += 1;
            return Err(GetError::Short);
        }
        Ok((of, may))
    }

    #[inline]
    fn hold(
        &mut self,
        id: AppId,
        of: &UseOfApp,
        taken: Option<PoolExtent>,
    ) -> Result<HeldExtent, GetError> {
        let Some(extent) = taken else {
            self.counters.short += 1;
            return Err(GetError::Short);
        };
        if extent.first >= self.spare.start {
            self.spare_free -= extent.units;
        }
        self.counters.gets += 1;
        self.reserved -= of.unused().min(extent.units);
        Ok(self.holdings.hold_for(id, extent))
    }

    /// Records that the bytes of an extent have arrived: from now on the application has it, and it may become a
    /// straggler.
    #[inline]
    pub fn arrived(&mut self, id: AppId, held: HeldExtent, now: Instant) -> bool {
        self.holdings.arrived(id, held, now)
    }

    /// Releases `units` units of an extent, from the `from`th on, counted within the extent.
    ///
    /// # Errors
    ///
    /// [`ReleaseError`], and then nothing is released.
    #[inline]
    pub fn release(
        &mut self,
        id: AppId,
        held: HeldExtent,
        from: u32,
        units: u32,
    ) -> Result<Released, ReleaseError> {
        let (released, counted) = match self.holdings.release_counted(id, held, from, units) {
            Ok(released) => released,
            Err(error) => {
                self.counters.refused += 1;
                return Err(error);
            }
        };
        if released.is_replaced {
            self.put_in_reserve(released.units);
        } else {
            let unused = self.apps[id.place()].claim.saturating_sub(counted);
            self.reserved += unused.min(units);
            self.circulate_again(released.units);
        }
        Ok(released)
    }

    /// Lets units that were released and not replaced circulate.
    #[inline]
    fn circulate_again(&mut self, units: PoolExtent) {
        self.free.release_in_use(units);
        if units.first >= self.spare.start {
            self.spare_free += units.units;
        }
        if self.own_in_reserve > 0 && self.spare_free > 0 {
            self.exchange();
        }
    }

    /// Puts released units of a straggler that was replaced into the reserve.
    #[cold]
    fn put_in_reserve(&mut self, units: PoolExtent) {
        self.replaced -= units.units;
        self.reserve.release_in_use(units);
        if units.first < self.spare.start {
            self.own_in_reserve += units.units;
        }
        if self.own_in_reserve > 0 && self.spare_free > 0 {
            self.exchange();
        }
    }

    /// Exchanges units of the reserve that circulated at first for free ones that were in reserve at first.
    #[cold]
    fn exchange(&mut self) {
        let mut left = self.own_in_reserve.min(self.spare_free);
        while left > 0 {
            let Some(back) = self.free.take_within(self.spare.clone(), left) else {
                debug_assert!(false, "they were counted");
                return;
            };
            self.spare_free -= back.units;
            left -= back.units;
            let given = self.reserve.release(back);
            debug_assert_eq!(given, Ok(()), "it was free");
            let mut owed = back.units;
            while let Some(own) = self.reserve.take_within(self.own.clone(), owed) {
                owed -= own.units;
                self.own_in_reserve -= own.units;
                let given = self.free.release(own);
                debug_assert_eq!(given, Ok(()), "it was in reserve");
            }
        }
    }

    /// Takes a step of the escape controller: looks for stragglers, replaces some, or names an application whose data
    /// is to be copied out. Call it when units were handed out, and at the [deadline](Self::deadline).
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
        if decided.relief == Relief::None && std::mem::take(&mut self.has_named) {
            // The next time the pool runs short, each application may be named again.
            self.apps.iter_mut().for_each(|app| app.named_at = None);
        }
        match decided.relief {
            Relief::None => {}
            Relief::Replace(most) => {
                let is_too_long = self.replace(most, now, &mut step);
                if is_too_long && step.replaced == 0 {
                    // No straggler fits what is left of the reserve.
                    step.copy = self.slow(now);
                }
            }
            Relief::Copy => step.copy = self.slow(now),
        }
        if step.copy.is_none() && decided.relief != Relief::None && self.has_named {
            step.overdue = self.overdue(now);
        }
        step
    }

    /// The applications, from the one on at which this step begins.
    fn in_turn(&mut self) -> impl Iterator<Item = AppId> + use<> {
        let mut all: Vec<AppId> = self.holdings.apps().collect();
        if !all.is_empty() {
            self.next = (self.next + 1) % all.len();
            all.rotate_left(self.next);
        }
        all.into_iter()
    }

    /// Replaces stragglers, until the pool is short no more. Returns whether one was too long for what is left of the
    /// reserve.
    fn replace(&mut self, most: u32, now: Instant, step: &mut EscapeStep) -> bool {
        let mut times = 0;
        let mut is_too_long = false;
        for app in self.in_turn() {
            self.holdings.age(app, now);
            let before = self.unused(app);
            while times < REPLACEMENTS && self.free.available() < self.escape.target() {
                match self.holdings.replace(app, most - step.replaced) {
                    Replacement::Done(units) => {
                        self.circulate(units);
                        step.replaced += units;
                        times += 1;
                    }
                    Replacement::None => break,
                    Replacement::TooLong => {
                        is_too_long = true;
                        break;
                    }
                }
            }
            self.reserved = self.reserved - before + self.unused(app);
        }
        self.counters.replacements += u64::from(times);
        is_too_long
    }

    /// Lets `units` units of the reserve circulate.
    fn circulate(&mut self, mut units: u32) {
        self.replaced += units;
        while units > 0 {
            let Some(extent) = self.reserve.take_up_to(units.min(UNITS_MAX)) else {
                debug_assert!(false, "the reserve has what is not replaced");
                return;
            };
            units -= extent.units;
            match extent.first < self.spare.start {
                true => self.own_in_reserve -= extent.units,
                false => self.spare_free += extent.units,
            }
            let released = self.free.release(extent);
            debug_assert_eq!(released, Ok(()), "the reserve does not circulate");
        }
    }

    /// Returns the next application that releases slowly and was not named since it became slow.
    fn slow(&mut self, now: Instant) -> Option<AppId> {
        for id in self.in_turn() {
            let is_slow = self.is_slow_now(id, now);
            let app = &mut self.apps[id.place()];
            if !is_slow {
                app.named_at = None;
            } else if app.named_at.is_none() {
                app.named_at = Some(now);
                self.has_named = true;
                self.counters.copies += 1;
                return Some(id);
            }
        }
        None
    }

    /// Returns the next application that has been slow for [`PoolConfig::reset_time`].
    fn overdue(&mut self, now: Instant) -> Option<AppId> {
        let is_due = |since: Instant| now.since(since) >= self.reset_time;
        let all = self.holdings.apps();
        let due: Vec<AppId> = all
            .filter(|id| {
                let app = &self.apps[id.place()];
                app.named_at.is_some_and(is_due)
            })
            .collect();
        for id in due {
            // It may have released much since.
            if self.is_slow_now(id, now) {
                self.apps[id.place()].named_at = Some(now);
                self.counters.resets += 1;
                return Some(id);
            }
            self.apps[id.place()].named_at = None;
        }
        None
    }

    fn is_slow_now(&mut self, id: AppId, now: Instant) -> bool {
        let used = self.holdings.age(id, now);
        let held = used.held - used.replaced;
        self.escape.is_slow(used.stragglers - used.replaced, held)
    }

    /// Returns when the next application is overdue at the latest.
    fn overdue_at(&self) -> Option<Instant> {
        let named = self.holdings.apps().map(|id| &self.apps[id.place()]);
        named
            .filter_map(|app| app.named_at)
            .min()
            .map(|since| since + self.reset_time)
    }

    /// Whether an application was named to be copied out, and the pool is still short.
    pub fn is_slow(&self, id: AppId) -> bool {
        self.app(id).is_some_and(|app| app.named_at.is_some())
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

    /// Returns when [`escape_step`](Self::escape_step) must be called next if nothing is handed out before.
    pub fn deadline(&self) -> Option<Instant> {
        let ages = self
            .holdings
            .apps()
            .filter_map(|app| self.holdings.ages_at(app));
        let ages = ages.filter(|_| self.escape.is_short());
        let overdue = self.overdue_at().filter(|_| self.escape.is_short());
        ages.chain(self.escape.deadline()).chain(overdue).min()
    }

    /// Claimed units that are not held.
    pub fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Class and quota of an application.
    pub fn limits(&self, app: AppId) -> Option<AppLimits> {
        self.app(app).map(|app| app.limits)
    }

    /// Use of the pool by an application.
    pub fn used(&self, app: AppId) -> AppUse {
        self.holdings.used(app)
    }

    /// Use of the pool by an application, with the stragglers as of `now`.
    pub fn age(&mut self, app: AppId, now: Instant) -> AppUse {
        self.holdings.age(app, now)
    }

    /// Returns an application's extents: see [`Holdings::of`].
    pub fn held(&self, app: AppId) -> impl Iterator<Item = (HeldExtent, u64)> {
        self.holdings.of(app)
    }

    /// Counters of the pool.
    pub fn counters(&self) -> PoolCounters {
        self.counters
    }
}

#[cfg(test)]
#[path = "pool/tests.rs"]
mod tests;
