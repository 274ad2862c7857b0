//! The receive pool of a worker's part of a domain (Jet): the memory that long transfers are READ into, who may take
//! some of it, and in which turn. The rules are those of `headworks-rxpool`.
//!
//! A connection that has an announced transfer waits here for admission. When it was admitted, it gets memory READ by READ.
//! Only its first transfer counts, so a connection waits once.

use std::collections::VecDeque;
use std::sync::Arc;

use headworks_client::{Extent, Vqpn};
use headworks_ring::view_of;
use headworks_runtime::ActorContext;
use headworks_rxpool::admission::{Admission, Admitted, Class, Estimator};
use headworks_rxpool::holdings::{AppId, HeldExtent};
use headworks_rxpool::pool::{AppLimits, EscapeStep, ReceivePool};
use headworks_rxpool::units::{UNIT, units_of};
use headworks_shm::View;
use headworks_verbs::{
    Access, AllocRequest, Buffer, Device, Duration, Instant, Pages, ProtectionDomain, Region,
    ResourceError, Sge,
};

use crate::ecn::PoolLevel;
use crate::limits::{DaemonLimits, PoolPages};
use crate::pool_touch::PoolTouch;
use crate::pool_waiters::{PATIENCE, PoolWaiters};
use crate::snapshot::PoolSnapshot;

/// How far a connection is with the memory for its first transfer.
#[derive(Debug, Default)]
pub(crate) enum Turn {
    /// It has no transfer, or waits for its own application.
    #[default]
    None,
    /// It waits for admission.
    Queued,
    /// It may take memory.
    Admitted(Admitted<Vqpn>),
}

/// State of an application in the pool.
#[derive(Debug)]
struct AppState {
    class: Class,
    estimator: Estimator,
    /// When it last got memory, or had no transfer that waited.
    progress: Instant,
}

/// The receive pool of a worker's part of a domain.
pub struct DomainPool {
    region: Region,
    view: View,
    slab: u32,
    pool: ReceivePool,
    admission: Admission<Vqpn>,
    fragment: u32,
    /// Units of the pool, and those that an application may hold.
    budget: u32,
    quota: u32,
    apps: Vec<AppState>,
    /// Applications that are removed once nothing is READ into their memory.
    leaving: Vec<AppId>,
    /// Memory of READs on a queue pair that has just failed.
    lost: Vec<(AppId, HeldExtent)>,
    /// Admitted connections, in the order of their next turns.
    active: VecDeque<Vqpn>,
    waiters: PoolWaiters,
    /// How often the bytes of an application were copied out.
    copies: u64,
    /// How often connections of an application were reset because it kept memory.
    resets: u64,
    stops_admission: bool,
    /// The level that was last reported, if levels are reported.
    reported: Option<PoolLevel>,
    touch: PoolTouch,
    /// Units of the pool's memory, those that replace others included.
    units: u32,
    /// Units that were read so that they stay in the cache.
    touched: u64,
    /// READs in flight into other memory than the pool's, and the limit for them.
    elsewhere: u32,
    elsewhere_max: u32,
    /// Signals since the pool was last out of danger.
    signals: u32,
    /// When admitted connections that got no memory are to let others go first.
    stuck_until: Option<Instant>,
    /// Announced transfers for which not all READs have begun.
    pending: usize,
}

/// Signals to the peers in a row, while the pool stays in danger.
const SIGNALS_MAX: u32 = 32;

impl DomainPool {
    /// Makes the pool of a part of a domain, in memory that applications may only read.
    ///
    /// # Errors
    ///
    /// [`ResourceError`]: there is no memory for it.
    pub fn new(
        device: &dyn Device,
        pd: &dyn ProtectionDomain,
        slab: u32,
        limits: &DaemonLimits,
    ) -> Result<Self, ResourceError> {
        let config = limits.pool();
        debug_assert_eq!(config.check(), Ok(()));
        let len = bytes_of(config.memory_units());
        let pages = pages_of(limits.pool_pages, len);
        let buffer = device.alloc(&AllocRequest {
            len: len as usize,
            align: 4096,
            pages,
            numa_node: None,
            is_sealed: true,
            has_own_file: true,
        })?;
        // No peer gets a key to it.
        let region = pd.register(&buffer, Access::LOCAL_WRITE)?;
        let quota = u64::from(config.budget_units()) * u64::from(limits.pool_quota) / 100;
        Ok(Self {
            view: view_of(&region, 0),
            region,
            slab,
            pool: ReceivePool::new(&config),
            admission: Admission::new(&config),
            fragment: config.fragment,
            budget: config.budget_units(),
            quota: quota.max(1) as u32,
            apps: Vec::new(),
            leaving: Vec::new(),
            lost: Vec::new(),
            active: VecDeque::new(),
            waiters: PoolWaiters::default(),
            copies: 0,
            resets: 0,
            stops_admission: false,
            reported: limits.reports_pool_level.then_some(PoolLevel::Safe),
            touch: PoolTouch::new(Duration::from_millis(limits.pool_touch.into()), slab.into()),
            units: config.memory_units(),
            touched: 0,
            elsewhere: 0,
            elsewhere_max: config.reads,
            signals: 0,
            stuck_until: None,
            pending: 0,
        })
    }

    /// Number of the pool's slab in every session.
    pub(crate) fn slab(&self) -> u32 {
        self.slab
    }

    /// Returns the reason for which the memory lacks the huge pages of `limits`; `None` if it has them or needs none.
    pub(crate) fn lack_of_huge_pages(&self, limits: &DaemonLimits) -> Option<&'static str> {
        let buffer = self.buffer();
        if limits.pool_pages != PoolPages::Huge || buffer.has_reserved_huge_pages() {
            return None;
        }
        Some(match pages_of(limits.pool_pages, buffer.len() as u64) {
            Pages::PreferHuge => "too few are reserved, or this kernel cannot seal them",
            Pages::Ordinary | Pages::OnDemand => "each worker's part of it is shorter than one",
        })
    }

    /// Memory of the pool, for handing to applications.
    pub(crate) fn buffer(&self) -> &Arc<dyn Buffer> {
        self.region.buffer()
    }

    /// Memory of the pool, for copying out of it.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// Longest READ, in bytes.
    pub(crate) fn fragment(&self) -> u32 {
        self.fragment
    }

    pub(crate) fn add_app(&mut self, class: Class) -> AppId {
        let quota = self.quota;
        let app = self.pool.add(AppLimits { class, quota });
        let state = AppState {
            class,
            estimator: Estimator::default(),
            progress: Instant::ZERO,
        };
        match self.apps.get_mut(app.place()) {
            Some(old) => *old = state,
            None => self.apps.push(state),
        }
        app
    }

    /// Removes an application that has no connection left, at the latest when no [lost READ](Self::lose) is left.
    pub(crate) fn remove_app(&mut self, app: AppId) {
        if !self.pool.remove(app) {
            self.leaving.push(app);
        }
    }

    /// Notes memory that a queue pair which has failed may still write to. It is free once the queue pair is drained.
    pub(crate) fn lose(&mut self, app: AppId, held: HeldExtent) {
        self.lost.push((app, held));
    }

    /// Takes the memory that was lost since the last call.
    pub(crate) fn take_lost(&mut self) -> Vec<(AppId, HeldExtent)> {
        std::mem::take(&mut self.lost)
    }

    /// Frees memory that was lost: its queue pair is drained.
    pub(crate) fn drained(&mut self, lost: Vec<(AppId, HeldExtent)>) {
        for (app, held) in lost {
            self.release(app, held, (0, held.extent.units), None);
        }
        let (leaving, pool) = (&mut self.leaving, &mut self.pool);
        leaving.retain(|app| !pool.remove(*app));
    }

    /// Counts a transfer that was announced.
    pub(crate) fn announced(&mut self) {
        self.pending += 1;
    }

    /// Counts `transfers` less: all their READs have begun, or they are given up.
    pub(crate) fn begun(&mut self, transfers: usize) {
        self.pending -= transfers;
    }

    /// Whether there is anything to do that depends on the time.
    pub(crate) fn is_active(&self) -> bool {
        self.pending > 0
            || self.pool.is_short()
            || self.admission.in_flight().0 > 0
            || self.elsewhere > 0
    }

    /// Whether memory that an application releases is waited for.
    pub(crate) fn wants_memory(&self) -> bool {
        self.pending > 0 || self.pool.is_short()
    }

    /// Queues a connection whose first transfer has `left` bytes.
    pub(crate) fn queue(&mut self, number: Vqpn, app: AppId, left: u64, now: Instant) {
        let (Some(limits), Some(state)) = (self.pool.limits(app), self.apps.get_mut(app.place()))
        else {
            return;
        };
        if self.admission.waiting(limits.class) == 0 {
            state.progress = now;
        }
        let estimate = state.estimator.estimate();
        self.admission
            .announce(number, (app, limits.class), left, estimate);
    }

    /// Removes a connection from the queue, or gives up its admission.
    pub(crate) fn withdraw(&mut self, number: Vqpn, app: AppId, turn: Turn) {
        self.waiters.stop_waiting(number);
        match turn {
            Turn::None => {}
            Turn::Queued => {
                if let Some(limits) = self.pool.limits(app) {
                    self.admission.withdraw(number, (app, limits.class));
                }
            }
            Turn::Admitted(admitted) => {
                self.active.retain(|other| *other != number);
                self.admission.end(admitted, &mut self.pool);
            }
        }
    }

    /// Ends the admission of a connection that is having its turn.
    pub(crate) fn end(&mut self, admitted: Admitted<Vqpn>) {
        self.admission.end(admitted, &mut self.pool);
    }

    /// Admits the next connection, if there is memory for it.
    pub(crate) fn admit(&mut self) -> Option<Admitted<Vqpn>> {
        if self.stops_admission {
            self.pool.set_contended(self.admission.is_waited_for());
            return None;
        }
        let admitted = self.admission.admit(&mut self.pool);
        match &admitted {
            Some(admitted) => self.active.push_back(admitted.transfer()),
            None => self.pool.set_contended(self.admission.lacks_memory()),
        }
        admitted
    }

    /// Number of connections that have turns.
    pub(crate) fn turns(&self) -> usize {
        self.active.len()
    }

    /// Returns the connection whose turn is next, if another READ may be in flight.
    pub(crate) fn next_turn(&mut self) -> Option<Vqpn> {
        match self.admission.may_read(self.fragment) {
            true => self.active.pop_front(),
            false => None,
        }
    }

    /// Gives a connection another turn, later.
    pub(crate) fn turn_again(&mut self, number: Vqpn) {
        self.active.push_back(number);
    }

    /// Takes memory for up to `bytes` of an admitted transfer. `None`: the application may hold no more now.
    pub(crate) fn take(&mut self, app: AppId, bytes: u32, now: Instant) -> Option<HeldExtent> {
        let units = units_of(bytes.into()) as u32;
        let held = self.pool.get_up_to(app, units).ok();
        match held {
            Some(_) => {
                self.stuck_until = None;
                if let Some(state) = self.apps.get_mut(app.place()) {
                    state.progress = now;
                }
            }
            None => self.note_stuck(now),
        }
        held
    }

    /// Notes that an admitted connection cannot begin a READ now.
    pub(crate) fn note_stuck(&mut self, now: Instant) {
        self.stuck_until.get_or_insert(now + PATIENCE);
    }

    /// Whether admitted connections have got no memory for long, so that they must let others go first. Reports it once.
    pub(crate) fn are_turns_stuck(&mut self, now: Instant) -> bool {
        self.stuck_until.take_if(|until| *until <= now).is_some()
    }

    /// Scatter-gather entry of the first `bytes` of an extent.
    pub(crate) fn sge(&self, held: HeldExtent, bytes: u32) -> Sge {
        self.region.sge(held.extent.offset() as usize, bytes)
    }

    /// The first `bytes` of an extent, as applications know them.
    pub(crate) fn extent(&self, held: HeldExtent, bytes: u32) -> Extent {
        Extent {
            slab: self.slab,
            len: bytes,
            offset: held.extent.offset(),
        }
    }

    /// Whether another READ into other memory than the pool's may be in flight. Such READs have a window of their own, so
    /// that peers that do not answer READs into the pool do not stop them.
    pub(crate) fn may_read_elsewhere(&self) -> bool {
        self.elsewhere < self.elsewhere_max
    }

    /// Counts a READ that began: into the pool, or into other memory.
    pub(crate) fn read_begun(&mut self, bytes: u32, is_in_pool: bool) {
        match is_in_pool {
            true => {
                self.waiters.read_begun();
                self.admission.read_begun(bytes);
            }
            false => self.elsewhere += 1,
        }
    }

    /// Counts a READ that ended, well or not.
    pub(crate) fn read_ended(&mut self, bytes: u32, is_in_pool: bool) {
        match is_in_pool {
            true => self.admission.read_ended(bytes),
            false => self.elsewhere -= 1,
        }
    }

    /// Records that the bytes of an extent have arrived.
    pub(crate) fn arrived(
        &mut self,
        app: AppId,
        held: HeldExtent,
        bytes: u32,
        since: Instant,
        now: Instant,
    ) {
        let arrived = self.pool.arrived(app, held, now);
        debug_assert!(arrived, "its application holds it");
        if let Some(state) = self.apps.get_mut(app.place()) {
            state.estimator.arrived(bytes, now.since(since));
        }
    }

    /// Releases `units` units of an extent, from the `from`th on.
    pub(crate) fn release(
        &mut self,
        app: AppId,
        held: HeldExtent,
        (from, units): (u32, u32),
        now: Option<Instant>,
    ) {
        if units == 0 {
            return;
        }
        let released = self.pool.release(app, held, from, units);
        debug_assert!(released.is_ok(), "the daemon counts what is held");
        if let (Ok(released), Some(now)) = (released, now)
            && let (Some(since), Some(state)) = (released.since, self.apps.get_mut(app.place()))
        {
            state.estimator.released(now.since(since));
        }
    }

    /// Notes that a connection waits for memory although its application has read everything. `did_without_pool`: the pool
    /// had none for its latest piece.
    pub(crate) fn wait(&mut self, number: Vqpn, app: AppId, did_without_pool: bool, now: Instant) {
        self.waiters.wait(number, app, did_without_pool, now);
    }

    /// Whether a connection is known to wait for memory.
    pub(crate) fn is_waiting(&self, number: Vqpn) -> bool {
        self.waiters.is_waiting(number)
    }

    /// Notes that a connection does not wait for memory any more.
    pub(crate) fn stop_waiting(&mut self, number: Vqpn) {
        self.waiters.stop_waiting(number);
    }

    /// Returns the connections that have waited for memory too long, and those of a low class if the pool is short: their
    /// transfers are to land elsewhere.
    pub(crate) fn waited_too_long(&mut self, now: Instant) -> Vec<Vqpn> {
        let is_short = self.admission.is_short() || self.stops_admission;
        let apps = &self.apps;
        let of_app = |app: AppId| apps.get(app.place()).map(|one| (one.class, one.progress));
        self.waiters.waited_too_long(now, is_short, of_app)
    }

    /// Notes the connection that is looked at first the next time.
    pub(crate) fn look_from(&mut self, number: Vqpn) {
        self.waiters.look_from(number);
    }

    /// Counts that bytes of an application are copied out, which the escape controller named.
    pub(crate) fn count_copy(&mut self) {
        self.copies += 1;
    }

    /// Counts that connections of an application are reset because it keeps memory.
    pub(crate) fn count_reset(&mut self) {
        self.resets += 1;
    }

    /// Takes a step of the escape controller.
    pub(crate) fn escape(&mut self, now: Instant) -> EscapeStep {
        let mut step = self.pool.escape_step(now);
        self.stops_admission = step.stops_admission;
        // Signals that have no effect for long are not the peers' affair.
        self.signals = match step.stops_admission {
            true => self.signals + u32::from(step.signals),
            false => 0,
        };
        step.signals &= self.signals <= SIGNALS_MAX;
        step
    }

    /// Whether the pool is in danger, and admits no transfer.
    pub(crate) fn is_in_danger(&self) -> bool {
        self.stops_admission
    }

    /// For tests: has the pool be in danger, or not, until its next look.
    #[cfg(test)]
    pub(crate) fn set_in_danger(&mut self, is_in_danger: bool) {
        self.stops_admission = is_in_danger;
    }

    /// Level of the pool, as of the last step of the escape controller.
    pub(crate) fn level(&self) -> PoolLevel {
        let is_in_use = self.pending > 0 || self.pool.available() < self.budget;
        match (self.stops_admission, self.pool.is_short()) {
            (true, _) => PoolLevel::Danger,
            (false, true) => PoolLevel::Short,
            (false, false) if is_in_use => PoolLevel::Safe,
            (false, false) => PoolLevel::Idle,
        }
    }

    /// Returns whether the level is to be reported: it has changed since the last call. An idle pool counts as safe here.
    pub(crate) fn is_level_new(&mut self) -> bool {
        let level = match self.level() {
            PoolLevel::Idle => PoolLevel::Safe,
            level => level,
        };
        let reported = self.reported.as_mut();
        reported.is_some_and(|reported| std::mem::replace(reported, level) != level)
    }

    /// Reads a random unit of the pool if one is due, so that the cache keeps it.
    pub(crate) fn touch(&mut self, now: Instant, cx: &mut ActorContext<'_>) {
        // Memory that replaces nothing is not to take a place in the cache.
        let units = match self.pool.replaced() {
            0 => self.budget,
            _ => self.units,
        };
        let Some(unit) = self.touch.due(units, now) else {
            return;
        };
        let at = bytes_of(unit) as usize;
        let mut bytes = [0; UNIT as usize];
        if self.view.read(at, &mut bytes).is_err() {
            debug_assert!(false, "the unit is of this pool");
            return;
        }
        std::hint::black_box(&bytes);
        self.touched += 1;
        cx.copied(UNIT.into());
        if let Some(begin) = self.view.ptr_at(at, bytes.len()) {
            cx.reads(begin, bytes.len());
        }
    }

    /// Whether an application may keep what it has received. One that does not release its memory may not.
    pub(crate) fn may_keep(&self, app: AppId) -> bool {
        !self.pool.is_slow(app)
    }

    /// Returns when the pool must be stepped at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if !self.is_active() {
            return None;
        }
        let waiting = self.waiters.deadline();
        let stuck = self.stuck_until.filter(|_| !self.active.is_empty());
        let short = self.pool.is_short().then(|| self.pool.deadline());
        let all = [waiting, short.flatten(), stuck];
        all.into_iter().flatten().min()
    }

    /// Bytes of the pool that an application holds, and those of them that it has held for long.
    pub(crate) fn used(&mut self, app: AppId, now: Instant) -> (u64, u64) {
        let used = self.pool.age(app, now);
        (bytes_of(used.held), bytes_of(used.stragglers))
    }

    /// State of the pool.
    pub(crate) fn snapshot(&self) -> PoolSnapshot {
        let counters = self.pool.counters();
        let (reads, read_bytes) = self.admission.in_flight();
        PoolSnapshot {
            bytes: bytes_of(self.budget),
            free: bytes_of(self.pool.available()),
            replaced: bytes_of(self.pool.replaced()),
            waiting: Class::ALL.map(|class| self.admission.waiting(class)),
            reads,
            read_bytes,
            replacements: counters.replacements,
            copies: self.copies,
            resets: self.resets,
            signals: counters.signals,
            huge: match self.buffer().has_reserved_huge_pages() {
                true => self.buffer().len() as u64,
                false => 0,
            },
            touched: self.touched * u64::from(UNIT),
        }
    }
}

/// Bytes of a huge page.
const HUGE: u64 = 2 << 20;

/// Returns the pages to ask for. Memory that is shorter than a huge page gets ordinary ones.
fn pages_of(wanted: PoolPages, len: u64) -> Pages {
    match wanted {
        PoolPages::Huge if len >= HUGE => Pages::PreferHuge,
        _ => Pages::Ordinary,
    }
}

fn bytes_of(units: u32) -> u64 {
    u64::from(units) * u64::from(UNIT)
}
