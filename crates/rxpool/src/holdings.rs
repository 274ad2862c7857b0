//! Who holds which extents of the pool, and for how long (section 4.3). Pure.
//!
//! Each application has a list of its extents in the order in which it got them. So the extent that it has held longest is
//! at the list's head, and whether it is a straggler takes one look. Releases are checked against what the application
//! holds. All operations take constant time (a look for stragglers takes one step for each extent that became one), and
//! none allocates memory after an application was added.

use headworks_verbs::{Duration, Instant};

use crate::units::{PoolExtent, UNITS_MAX};

/// Number of an application in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppId(pub u32);

/// An extent that an application holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeldExtent {
    /// The units that the application got, some of which it may have released.
    pub extent: PoolExtent,
    /// Place of the record of it.
    record: u32,
    /// Distinguishes this extent from earlier ones with the same record.
    generation: u32,
}

/// Error: an application released what it does not hold. Nothing was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// No such extent is held by this application.
    #[error("the application does not hold this extent")]
    NotHeld,
    /// Some of the units were released before.
    #[error("some of the units were released before")]
    Twice,
    /// The extent has no such units.
    #[error("the extent has no such units")]
    Range,
}

/// What became of released units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The units.
    pub units: PoolExtent,
    /// Whether the extent was [replaced](Holdings::replace): its units do not go back to the pool.
    pub is_replaced: bool,
    /// Whether they were the extent's last units.
    pub is_last: bool,
}

/// Outcome of [`Holdings::replace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// A straggler of this many units was marked.
    Of(u32),
    /// The application has no straggler that was not replaced.
    None,
    /// The oldest such straggler has too many units.
    TooLong,
}

/// Use of the pool by an application, in units of [`UNIT`](crate::units::UNIT) bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppUse {
    /// Units held.
    pub held: u32,
    /// Units of stragglers among them, as of the last look.
    pub stragglers: u32,
    /// Units of those that were replaced.
    pub replaced: u32,
    /// Releases that were refused.
    pub refused: u64,
}

/// No record.
const NONE: u32 = u32::MAX;

/// What is known of an extent.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Units held, as bits counted from the extent's first. 0: there is no such extent.
    held: u64,
    extent: PoolExtent,
    generation: u32,
    app: AppId,
    since: Instant,
    next: u32,
    previous: u32,
    is_straggler: bool,
    is_replaced: bool,
}

impl Record {
    fn held_units(&self) -> u32 {
        self.held.count_ones()
    }
}

#[derive(Clone, Copy, Debug)]
struct App {
    is_there: bool,
    first: u32,
    last: u32,
    /// The first extent that is no straggler yet.
    young: u32,
    /// The first straggler that was not replaced.
    unreplaced: u32,
    used: AppUse,
}

/// The extents that applications hold.
#[derive(Clone, Debug)]
pub struct Holdings {
    records: Box<[Record]>,
    /// Records without an extent, in its first `unused` places. The last is used next.
    unused_records: Box<[u32]>,
    unused: usize,
    apps: Vec<App>,
    straggler_time: Duration,
}

impl Holdings {
    /// Holdings of a pool of `units` units. An extent that is held longer than `straggler_time` is a straggler.
    pub fn new(units: u32, straggler_time: Duration) -> Self {
        let nothing = Record {
            held: 0,
            extent: PoolExtent { first: 0, units: 1 },
            generation: 0,
            app: AppId(0),
            since: Instant::ZERO,
            next: NONE,
            previous: NONE,
            is_straggler: false,
            is_replaced: false,
        };
        Self {
            records: vec![nothing; units as usize].into(),
            unused_records: (0..units).rev().collect(),
            unused: units as usize,
            apps: Vec::new(),
            straggler_time,
        }
    }

    /// Adds an application, with a number that none has that is still there.
    pub fn add(&mut self) -> AppId {
        let new = App {
            is_there: true,
            first: NONE,
            last: NONE,
            young: NONE,
            unreplaced: NONE,
            used: AppUse::default(),
        };
        let gone = self.apps.iter().position(|app| !app.is_there);
        let at = gone.unwrap_or(self.apps.len());
        match self.apps.get_mut(at) {
            Some(app) => *app = new,
            None => self.apps.push(new),
        }
        AppId(at as u32)
    }

    /// Removes an application that holds nothing. Returns `false` if it holds something or is not there.
    pub fn remove(&mut self, app: AppId) -> bool {
        match self.app_mut(app) {
            Some(app) if app.first == NONE => {
                app.is_there = false;
                true
            }
            _ => false,
        }
    }

    /// The applications that are there.
    pub fn apps(&self) -> impl Iterator<Item = AppId> {
        let numbered = (0..).zip(&self.apps);
        numbered.filter_map(|(at, app)| app.is_there.then_some(AppId(at)))
    }

    /// What an application uses.
    pub fn used(&self, app: AppId) -> AppUse {
        self.app(app).map_or_else(AppUse::default, |app| app.used)
    }

    fn app(&self, app: AppId) -> Option<&App> {
        self.apps.get(app.0 as usize).filter(|app| app.is_there)
    }

    fn app_mut(&mut self, app: AppId) -> Option<&mut App> {
        let app = self.apps.get_mut(app.0 as usize)?;
        app.is_there.then_some(app)
    }

    /// Records that an application got an extent, which nobody holds.
    ///
    /// # Panics
    ///
    /// If the application is not there, or more units are held than there are.
    #[inline]
    pub fn hold(&mut self, id: AppId, extent: PoolExtent, now: Instant) -> HeldExtent {
        let app = self.apps.get_mut(id.0 as usize);
        let app = app.filter(|app| app.is_there);
        let app = app.expect("the application was added");
        self.unused = self.unused.checked_sub(1).expect("a unit is free");
        let at = self.unused_records[self.unused];
        let record = &mut self.records[at as usize];
        let generation = record.generation.wrapping_add(1);
        *record = Record {
            held: u64::MAX >> (UNITS_MAX - extent.units),
            extent,
            generation,
            app: id,
            since: now,
            next: NONE,
            previous: app.last,
            is_straggler: false,
            is_replaced: false,
        };
        match app.last {
            NONE => app.first = at,
            last => self.records[last as usize].next = at,
        }
        app.last = at;
        if app.young == NONE {
            app.young = at;
        }
        app.used.held += extent.units;
        HeldExtent {
            extent,
            record: at,
            generation,
        }
    }

    /// Releases `units` units of an extent, from the `from`th on, counted within the extent.
    ///
    /// # Errors
    ///
    /// [`ReleaseError`]. It is counted in [`AppUse::refused`].
    #[inline]
    pub fn release(
        &mut self,
        app: AppId,
        held: HeldExtent,
        from: u32,
        units: u32,
    ) -> Result<Released, ReleaseError> {
        let released = self.try_release(app, held, from, units);
        if released.is_err()
            && let Some(app) = self.app_mut(app)
        {
            app.used.refused += 1;
        }
        released
    }

    fn try_release(
        &mut self,
        id: AppId,
        held: HeldExtent,
        from: u32,
        units: u32,
    ) -> Result<Released, ReleaseError> {
        let at = held.record;
        let record = self.records.get_mut(at as usize);
        let record = record.filter(|one| {
            one.held != 0
                && one.app == id
                && one.generation == held.generation
                && one.extent == held.extent
        });
        let record = record.ok_or(ReleaseError::NotHeld)?;
        let part = held.extent.part(from, units).ok_or(ReleaseError::Range)?;
        let mask = (u64::MAX >> (UNITS_MAX - units)) << from;
        if record.held & mask != mask {
            return Err(ReleaseError::Twice);
        }
        record.held &= !mask;
        let record = *record;
        let app = self.apps.get_mut(id.0 as usize);
        let app = app.ok_or(ReleaseError::NotHeld)?;
        app.used.held -= units;
        app.used.stragglers -= if record.is_straggler { units } else { 0 };
        app.used.replaced -= if record.is_replaced { units } else { 0 };
        let is_last = record.held == 0;
        if is_last {
            self.unlink(id, at);
        }
        Ok(Released {
            units: part,
            is_replaced: record.is_replaced,
            is_last,
        })
    }

    fn unlink(&mut self, id: AppId, at: u32) {
        let record = self.records[at as usize];
        let app = &mut self.apps[id.0 as usize];
        for cursor in [&mut app.young, &mut app.unreplaced] {
            if *cursor == at {
                *cursor = record.next;
            }
        }
        match record.previous {
            NONE => app.first = record.next,
            previous => self.records[previous as usize].next = record.next,
        }
        match record.next {
            NONE => app.last = record.previous,
            next => self.records[next as usize].previous = record.previous,
        }
        if app.unreplaced == app.young {
            // All stragglers were replaced.
            app.unreplaced = NONE;
        }
        self.unused_records[self.unused] = at;
        self.unused += 1;
    }

    /// Looks for extents of an application that have become stragglers by `now`, and returns its use.
    pub fn look(&mut self, id: AppId, now: Instant) -> AppUse {
        let time = self.straggler_time;
        let Some(app) = self.apps.get_mut(id.0 as usize).filter(|app| app.is_there) else {
            return AppUse::default();
        };
        while let Some(record) = self.records.get_mut(app.young as usize)
            && now.since(record.since) > time
        {
            record.is_straggler = true;
            app.used.stragglers += record.held_units();
            if app.unreplaced == NONE {
                app.unreplaced = app.young;
            }
            app.young = record.next;
        }
        app.used
    }

    /// Marks the straggler that an application has held longest and that was not replaced as replaced, if it still has
    /// at most `most` units: those do not go back to the pool when they are released.
    pub fn replace(&mut self, id: AppId, most: u32) -> Replacement {
        let app = self.apps.get_mut(id.0 as usize).filter(|app| app.is_there);
        let Some(app) = app else {
            return Replacement::None;
        };
        let Some(record) = self.records.get_mut(app.unreplaced as usize) else {
            return Replacement::None;
        };
        let units = record.held_units();
        if units > most {
            return Replacement::TooLong;
        }
        record.is_replaced = true;
        app.used.replaced += units;
        app.unreplaced = match record.next {
            next if next == app.young => NONE,
            next => next,
        };
        Replacement::Of(units)
    }

    /// Returns an application's extents, the one that it has held longest first, and the units of each that it holds, as bits counted
    /// from the extent's first unit.
    pub fn of(&self, app: AppId) -> impl Iterator<Item = (HeldExtent, u64)> {
        let mut at = self.app(app).map_or(NONE, |app| app.first);
        std::iter::from_fn(move || {
            let record = self.records.get(at as usize)?;
            let held = HeldExtent {
                extent: record.extent,
                record: at,
                generation: record.generation,
            };
            at = record.next;
            Some((held, record.held))
        })
    }

    /// Returns how long an application has held its oldest extent, if it holds one.
    pub fn longest(&self, app: AppId, now: Instant) -> Option<Duration> {
        let first = self.app(app)?.first;
        let record = self.records.get(first as usize)?;
        Some(now.since(record.since))
    }
}

#[cfg(test)]
#[path = "holdings/tests.rs"]
mod tests;
