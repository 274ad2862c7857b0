//! The extents that each application holds, and since when (section 4.3). Pure.
//!
//! Each application has a list of its extents in the order in which their bytes arrived. So the extent that it has had
//! longest is at the list's head, and whether it is a straggler takes one look. Before its bytes have arrived, an
//! extent is in no list and no straggler, since the application can do nothing about that. Releases are checked
//! against what the application holds. Handing out and releasing take constant time and allocate no memory.
//! [`Holdings::age`] takes one step for each extent that became a straggler.

use headworks_verbs::{Duration, Instant};

use crate::units::{PoolExtent, UNITS_MAX};

/// Identifies an application of the pool. A pool uses no id twice, also not after the application was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppId {
    at: u32,
    generation: u32,
}

impl AppId {
    /// Its place in a table of applications. Another application may have the place later.
    #[inline]
    pub fn place(self) -> usize {
        self.at as usize
    }
}

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

/// Outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The units.
    pub units: PoolExtent,
    /// Whether the extent was [replaced](Holdings::replace): its units do not go back to the pool.
    pub is_replaced: bool,
    /// Whether they were the extent's last units.
    pub is_last: bool,
    /// When the extent's bytes arrived; `None` if they have not.
    pub since: Option<Instant>,
}

/// Outcome of [`Holdings::replace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// The pool marked a straggler of this many units as replaced.
    Done(u32),
    /// The application has no straggler that was not replaced.
    None,
    /// The oldest such straggler has too many units.
    TooLong,
}

/// Use of the pool by an application, in units of [`UNIT`](crate::units::UNIT) bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppUse {
    /// Units held, also those whose bytes have not arrived.
    pub held: u32,
    /// Units of stragglers among them, as of the last [`Holdings::age`].
    pub stragglers: u32,
    /// Units of those that were replaced.
    pub replaced: u32,
    /// Releases that were refused.
    pub refused: u64,
}

/// Stands for no record.
const NONE: u32 = u32::MAX;

/// Record of an extent that an application holds.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Units held, as bits counted from the extent's first. 0 if the record is free.
    held: u64,
    extent: PoolExtent,
    /// Generation of the extent. It changes when the extent's last unit is released, so a [`HeldExtent`] with this
    /// generation is held.
    generation: u32,
    app: AppId,
    /// When the bytes arrived. Not valid before that.
    since: Instant,
    /// The next record in the application's list, once the bytes have arrived. In a free record: the next free one.
    next: u32,
    /// The record before this one in the application's list.
    previous: u32,
    state: RecordState,
}

/// State of an extent that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordState {
    /// Its bytes have not arrived. It is in no list.
    InFlight,
    Arrived,
    Straggler,
    /// A straggler that was replaced.
    Replaced,
}

impl Record {
    fn held_units(&self) -> u32 {
        self.held.count_ones()
    }
}

#[derive(Clone, Copy, Debug)]
struct App {
    is_there: bool,
    /// Generation of its id. It changes when the application is removed, so an id with this generation is that of an
    /// application that is there.
    generation: u32,
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
    /// The first record without an extent: the one that was used last.
    unused: u32,
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
            app: AppId {
                at: 0,
                generation: 0,
            },
            since: Instant::ZERO,
            next: NONE,
            previous: NONE,
            state: RecordState::InFlight,
        };
        let numbers = 1..=units;
        let next = numbers.map(|next| if next < units { next } else { NONE });
        let records = next.map(|next| Record { next, ..nothing });
        Self {
            records: records.collect(),
            unused: if units > 0 { 0 } else { NONE },
            apps: Vec::new(),
            straggler_time,
        }
    }

    /// Adds an application.
    pub fn add(&mut self) -> AppId {
        let gone = self.apps.iter().position(|app| !app.is_there);
        let at = gone.unwrap_or(self.apps.len());
        let old = self.apps.get(at);
        let generation = old.map_or(0, |app| app.generation);
        let new = App {
            is_there: true,
            generation,
            first: NONE,
            last: NONE,
            young: NONE,
            unreplaced: NONE,
            used: AppUse::default(),
        };
        match self.apps.get_mut(at) {
            Some(app) => *app = new,
            None => self.apps.push(new),
        }
        AppId {
            at: at as u32,
            generation,
        }
    }

    /// Removes an application that holds nothing. Returns `false` if it holds something or is not there.
    pub fn remove(&mut self, app: AppId) -> bool {
        match self.app_mut(app) {
            Some(app) if app.used.held == 0 => {
                app.is_there = false;
                app.generation = app.generation.wrapping_add(1);
                true
            }
            _ => false,
        }
    }

    /// The applications that are there.
    pub fn apps(&self) -> impl Iterator<Item = AppId> {
        let numbered = (0..).zip(&self.apps);
        numbered.filter_map(|(at, app)| {
            let generation = app.generation;
            app.is_there.then_some(AppId { at, generation })
        })
    }

    /// Whether an application is there.
    pub fn has(&self, app: AppId) -> bool {
        self.app(app).is_some()
    }

    /// What an application uses, if it is there.
    #[inline]
    pub fn get(&self, app: AppId) -> Option<AppUse> {
        self.app(app).map(|app| app.used)
    }

    /// What an application uses.
    pub fn used(&self, app: AppId) -> AppUse {
        self.app(app).map_or_else(AppUse::default, |app| app.used)
    }

    #[inline]
    fn app(&self, id: AppId) -> Option<&App> {
        let app = self.apps.get(id.place())?;
        (app.generation == id.generation).then_some(app)
    }

    #[inline]
    fn app_mut(&mut self, id: AppId) -> Option<&mut App> {
        let app = self.apps.get_mut(id.place())?;
        (app.generation == id.generation).then_some(app)
    }

    /// Records that an application gets an extent, whose bytes have not arrived.
    ///
    /// # Panics
    ///
    /// If the application is not there, or more units are held than there are.
    pub fn hold(&mut self, id: AppId, extent: PoolExtent) -> HeldExtent {
        assert!(self.has(id), "the application was added");
        self.hold_for(id, extent)
    }

    /// As [`hold`](Self::hold), for an application of which the caller knows that it is there.
    #[inline]
    pub(crate) fn hold_for(&mut self, id: AppId, extent: PoolExtent) -> HeldExtent {
        debug_assert!(self.has(id), "the application was added");
        self.apps[id.place()].used.held += extent.units;
        let at = self.unused;
        let record = self.records.get_mut(at as usize);
        let record = record.expect("no more extents are held than there are units");
        self.unused = record.next;
        record.held = u64::MAX >> (UNITS_MAX - extent.units);
        record.extent = extent;
        record.app = id;
        record.state = RecordState::InFlight;
        HeldExtent {
            extent,
            record: at,
            generation: record.generation,
        }
    }

    /// Records that the bytes of an extent have arrived: from now on the application has it. Returns `false` if the
    /// application does not hold it, or they had arrived before.
    #[inline]
    pub fn arrived(&mut self, id: AppId, held: HeldExtent, now: Instant) -> bool {
        let at = held.record;
        let Some(record) = record_of(&mut self.records, id, held) else {
            return false;
        };
        if record.state != RecordState::InFlight {
            return false;
        }
        record.state = RecordState::Arrived;
        record.since = now;
        record.next = NONE;
        let app = &mut self.apps[id.place()];
        record.previous = app.last;
        if app.young == NONE {
            app.young = at;
        }
        match std::mem::replace(&mut app.last, at) {
            NONE => app.first = at,
            last => self.records[last as usize].next = at,
        }
        true
    }

    /// Releases `units` units of an extent, from the `from`th on, counted within the extent.
    ///
    /// # Errors
    ///
    /// [`ReleaseError`]. It is counted in [`AppUse::refused`].
    pub fn release(
        &mut self,
        app: AppId,
        held: HeldExtent,
        from: u32,
        units: u32,
    ) -> Result<Released, ReleaseError> {
        self.release_counted(app, held, from, units)
            .map(|(released, _)| released)
    }

    /// As [`release`](Self::release), and returns how many units the application holds afterwards that were not
    /// replaced.
    #[inline]
    pub(crate) fn release_counted(
        &mut self,
        app: AppId,
        held: HeldExtent,
        from: u32,
        units: u32,
    ) -> Result<(Released, u32), ReleaseError> {
        let released = self.try_release(app, held, from, units);
        if released.is_err() {
            self.refuse(app);
        }
        released
    }

    /// Counts a release that was refused.
    #[cold]
    fn refuse(&mut self, app: AppId) {
        if let Some(app) = self.app_mut(app) {
            app.used.refused += 1;
        }
    }

    #[inline]
    fn try_release(
        &mut self,
        id: AppId,
        held: HeldExtent,
        from: u32,
        units: u32,
    ) -> Result<(Released, u32), ReleaseError> {
        let record = record_of(&mut self.records, id, held).ok_or(ReleaseError::NotHeld)?;
        let part = record.extent.part(from, units);
        let part = part.ok_or(ReleaseError::Range)?;
        let mask = (u64::MAX >> (UNITS_MAX - units)) << from;
        if record.held & mask != mask {
            return Err(ReleaseError::Twice);
        }
        record.held &= !mask;
        let is_last = record.held == 0;
        let (state, since) = (record.state, record.since);
        let app = &mut self.apps[id.place()];
        app.used.held -= units;
        if matches!(state, RecordState::Straggler | RecordState::Replaced) {
            app.used.stragglers -= units;
        }
        let is_replaced = state == RecordState::Replaced;
        if is_replaced {
            app.used.replaced -= units;
        }
        let counted = app.used.held - app.used.replaced;
        if is_last {
            self.unlink(id, held.record);
        }
        let released = Released {
            units: part,
            is_replaced,
            is_last,
            since: (state != RecordState::InFlight).then_some(since),
        };
        Ok((released, counted))
    }

    /// Frees a record whose units were all released, and takes it out of its application's list.
    #[inline]
    fn unlink(&mut self, id: AppId, at: u32) {
        let record = &mut self.records[at as usize];
        record.generation = record.generation.wrapping_add(1);
        let next = std::mem::replace(&mut record.next, self.unused);
        self.unused = at;
        if record.state == RecordState::InFlight {
            return;
        }
        let previous = record.previous;
        let app = &mut self.apps[id.place()];
        if app.young == at {
            app.young = next;
        }
        if app.unreplaced == at {
            app.unreplaced = next;
        }
        match previous {
            NONE => app.first = next,
            previous => self.records[previous as usize].next = next,
        }
        match next {
            NONE => app.last = previous,
            next => self.records[next as usize].previous = previous,
        }
        if app.unreplaced == app.young {
            // All stragglers were replaced.
            app.unreplaced = NONE;
        }
    }

    /// Marks the extents of an application that have become stragglers by `now`, and returns its use.
    pub fn age(&mut self, id: AppId, now: Instant) -> AppUse {
        let time = self.straggler_time;
        let Some(mut app) = self.app(id).copied() else {
            return AppUse::default();
        };
        while let Some(record) = self.records.get_mut(app.young as usize)
            && now.since(record.since) > time
        {
            record.state = RecordState::Straggler;
            app.used.stragglers += record.held_units();
            if app.unreplaced == NONE {
                app.unreplaced = app.young;
            }
            app.young = record.next;
        }
        self.apps[id.place()] = app;
        app.used
    }

    /// Returns when the next extent of an application becomes a straggler, if it has one that is not.
    pub fn ages_at(&self, app: AppId) -> Option<Instant> {
        let young = self.records.get(self.app(app)?.young as usize)?;
        Some(young.since + self.straggler_time + Duration::from_nanos(1))
    }

    /// Marks the straggler that an application has had longest and that was not replaced as replaced, if it still has
    /// at most `most` units: those do not go back to the pool when they are released.
    pub fn replace(&mut self, id: AppId, most: u32) -> Replacement {
        let Some(mut app) = self.app(id).copied() else {
            return Replacement::None;
        };
        let Some(record) = self.records.get_mut(app.unreplaced as usize) else {
            return Replacement::None;
        };
        let units = record.held_units();
        if units > most {
            return Replacement::TooLong;
        }
        record.state = RecordState::Replaced;
        app.used.replaced += units;
        app.unreplaced = match record.next {
            next if next == app.young => NONE,
            next => next,
        };
        self.apps[id.place()] = app;
        Replacement::Done(units)
    }

    /// Returns an application's extents whose bytes have arrived, in that order, and the units of each that it holds,
    /// as bits counted from the extent's first unit.
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
}

/// Returns the record of an extent that an application holds. Such an application is there, since it cannot be removed
/// while it holds something.
#[inline]
fn record_of(records: &mut [Record], id: AppId, held: HeldExtent) -> Option<&mut Record> {
    let record = records.get_mut(held.record as usize)?;
    let is_it = record.app == id && record.generation == held.generation;
    is_it.then_some(record)
}

#[cfg(test)]
#[path = "holdings/tests.rs"]
mod tests;
