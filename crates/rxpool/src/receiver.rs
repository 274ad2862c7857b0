//! The pool on verbs: READs announced transfers into extents of the pool, and tells what arrived (sections 3.2 and
//! 4.1.2).
//!
//! A peer announces a transfer over any connection of the program: where it lies in the peer's memory, and how long it
//! is. The receiver queues the transfer, and READs it in fragments after its admission. An event names each extent that
//! has arrived, in the order of the transfer. The program uses the bytes where they lie and
//! [releases](Receiver::release) them, all at once or in pieces of 4 KiB. Everything happens in [`Receiver::step`],
//! which never blocks.
//!
//! The caller provides the memory of the pool, registered with local write alone: no peer gets its key.

use std::collections::VecDeque;
use std::sync::Arc;

use headworks_verbs::completion::{Completion, CompletionQueue, Status};
use headworks_verbs::work_request::{Payload, SendFlags, SendOp, SendWr};
use headworks_verbs::{Duration, Instant, PollError, PostErrorKind, QueuePair, Region, RemoteAddr};
use slab::Slab;

use crate::admission::{Admission, Admitted, Class, Estimator};
use crate::config::{PoolConfig, PoolConfigError};
use crate::holdings::{AppId, HeldExtent, ReleaseError};
use crate::pool::{AppLimits, ReceivePool};
use crate::units::{UNIT, units_of};

/// Identifies a queue pair of a receiver. A receiver uses no id twice, also not after the queue pair was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId {
    at: usize,
    number: u64,
}

/// Identifies a transfer of a receiver. A receiver uses no id twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(u64);

/// A transfer that a peer announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The queue pair to the peer.
    pub link: LinkId,
    /// The application that the bytes are for.
    pub app: AppId,
    /// Where the bytes lie in the peer's memory.
    pub from: RemoteAddr,
    /// Number of bytes.
    pub len: u64,
}

/// Event of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// Bytes have arrived. The application holds the extent until it releases it.
    Arrived {
        /// The transfer.
        transfer: TransferId,
        /// Position of the first byte in the transfer.
        at: u64,
        /// Where the bytes lie.
        held: HeldExtent,
        /// Number of bytes. The extent is longer by less than a unit.
        len: u32,
    },
    /// All bytes of a transfer have arrived.
    Done(TransferId),
    /// A transfer has failed: no more of it arrives.
    Failed {
        /// The transfer.
        transfer: TransferId,
        /// Reason of the failure.
        why: TransferError,
    },
    /// An application holds its extents for long, and the pool is short: copy its data elsewhere and release all of
    /// it.
    Copy(AppId),
    /// An application whose data was to be copied out still holds its extents, after
    /// [`reset_time`](crate::config::PoolConfig::reset_time), and the pool is short: end its transfers.
    Overdue(AppId),
    /// The pool is in danger: the peers are to send more slowly.
    Signal,
}

/// Failure of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// A READ has failed.
    #[error("a READ has failed: {0}")]
    Read(Status),
    /// The queue pair takes no more READs.
    #[error("the queue pair takes no more READs: {0}")]
    Post(PostErrorKind),
    /// The link was removed.
    #[error("the link was removed")]
    Link,
}

/// Error: an announcement that a receiver does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnounceError {
    /// There is no such link, or it has failed.
    #[error("the link does not exist or has failed")]
    Link,
    /// There is no such application.
    #[error("there is no such application")]
    App,
    /// A transfer has at least one byte, and its end has an address.
    #[error("{0} bytes from this address on are no legal transfer")]
    Length(u64),
}

/// Error of [`Receiver::new`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiverError {
    /// The configuration is not allowed.
    #[error(transparent)]
    Config(#[from] PoolConfigError),
    /// The memory is too short.
    #[error("the pool needs {wanted} bytes of memory and got {got}")]
    Memory {
        /// Bytes that [`PoolConfig::memory_units`] asks for.
        wanted: u64,
        /// Bytes of the region.
        got: u64,
    },
}

struct Link {
    number: u64,
    qp: Box<dyn QueuePair>,
    /// READs that the queue pair may have in flight.
    depth: u32,
    /// READs that are in flight.
    in_flight: u32,
    failed: Option<TransferError>,
    /// Whether it is removed once nothing is in flight.
    is_leaving: bool,
}

struct Transfer {
    id: TransferId,
    announced: Announcement,
    /// Bytes for which a READ was begun.
    begun: u64,
    /// Bytes that have arrived.
    arrived: u64,
    in_flight: u32,
    admitted: Option<Admitted<usize>>,
    /// Since when the pool has no memory for the transfer, although it was admitted.
    starved: Option<Instant>,
    /// Whether the transfer has failed, and causes no more events.
    failed: bool,
}

struct Read {
    transfer: usize,
    held: HeldExtent,
    bytes: u32,
    since: Instant,
}

struct AppState {
    estimator: Estimator,
    in_flight: u32,
    /// Whether it is removed once nothing is in flight.
    is_leaving: bool,
}

/// Completions polled at a time.
const BATCH: usize = 32;

/// Receives into a pool.
pub struct Receiver {
    pool: ReceivePool,
    admission: Admission<usize>,
    fragment: u32,
    region: Arc<Region>,
    cq: Arc<dyn CompletionQueue>,
    links: Slab<Link>,
    transfers: Slab<Transfer>,
    reads: Slab<Read>,
    apps: Vec<AppState>,
    /// Admitted transfers with bytes for which no READ was begun, in the order of their next turns.
    active: VecDeque<usize>,
    events: VecDeque<ReceiverEvent>,
    last: u64,
    stops_admission: bool,
    /// How long an admitted transfer may get no memory while others wait.
    patience: Duration,
}

impl Receiver {
    /// Makes a receiver on the pool's memory. `cq` must be the completion queue of the send requests of all its queue
    /// pairs and of nothing else, and hold [`PoolConfig::reads`] completions.
    ///
    /// # Errors
    ///
    /// [`ReceiverError`].
    pub fn new(
        config: &PoolConfig,
        region: Arc<Region>,
        cq: Arc<dyn CompletionQueue>,
    ) -> Result<Self, ReceiverError> {
        config.check()?;
        let wanted = u64::from(config.memory_units()) * u64::from(UNIT);
        let got = region.len() as u64;
        if got < wanted {
            return Err(ReceiverError::Memory { wanted, got });
        }
        Ok(Self {
            pool: ReceivePool::new(config),
            admission: Admission::new(config),
            fragment: config.fragment,
            region,
            cq,
            links: Slab::new(),
            transfers: Slab::new(),
            reads: Slab::with_capacity(config.reads as usize),
            apps: Vec::new(),
            active: VecDeque::new(),
            events: VecDeque::new(),
            last: 0,
            stops_admission: false,
            patience: config.straggler_time,
        })
    }

    /// Adds an application.
    pub fn add_app(&mut self, limits: AppLimits) -> AppId {
        let app = self.pool.add(limits);
        let state = AppState {
            estimator: Estimator::default(),
            in_flight: 0,
            is_leaving: false,
        };
        match self.apps.get_mut(app.place()) {
            Some(old) => *old = state,
            None => self.apps.push(state),
        }
        app
    }

    /// Removes an application: its transfers end without an event, and all that it holds is released, at the latest
    /// when nothing is READ into it any more.
    pub fn remove_app(&mut self, app: AppId) {
        let Some(state) = self.app_mut(app) else {
            return;
        };
        state.is_leaving = true;
        let of = self.transfers.iter();
        let of: Vec<usize> = of
            .filter(|(_, one)| one.announced.app == app)
            .map(|(at, _)| at)
            .collect();
        of.into_iter().for_each(|at| self.give_up(at, None));
        self.let_go(app);
    }

    /// Adds a queue pair that is connected and whose send requests complete to the receiver's completion queue. It has
    /// up to `depth` READs in flight: no more than it was connected with, and no more send requests than it holds.
    pub fn add_link(&mut self, qp: Box<dyn QueuePair>, depth: u32) -> LinkId {
        self.last += 1;
        let number = self.last;
        let link = Link {
            number,
            qp,
            depth,
            in_flight: 0,
            failed: None,
            is_leaving: false,
        };
        LinkId {
            at: self.links.insert(link),
            number,
        }
    }

    /// Removes a queue pair once nothing is in flight on it. Its transfers fail.
    pub fn remove_link(&mut self, link: LinkId) {
        if let Some(one) = self.link_mut(link) {
            one.is_leaving = true;
            self.fail_link(link, TransferError::Link);
            self.drop_link(link);
        }
    }

    /// Queues a transfer that a peer announced.
    ///
    /// # Errors
    ///
    /// [`AnnounceError`].
    pub fn announce(&mut self, announced: Announcement) -> Result<TransferId, AnnounceError> {
        let link = self.link_mut(announced.link);
        if link.is_none_or(|one| one.failed.is_some()) {
            return Err(AnnounceError::Link);
        }
        let is_there = self.app_mut(announced.app).is_some();
        let limits = self.pool.limits(announced.app).filter(|_| is_there);
        let limits = limits.ok_or(AnnounceError::App)?;
        let has_end = announced.from.addr.checked_add(announced.len).is_some();
        if announced.len == 0 || !has_end {
            return Err(AnnounceError::Length(announced.len));
        }
        self.last += 1;
        let id = TransferId(self.last);
        let at = self.transfers.insert(Transfer {
            id,
            announced,
            begun: 0,
            arrived: 0,
            in_flight: 0,
            admitted: None,
            starved: None,
            failed: false,
        });
        self.queue(at, limits.class);
        Ok(id)
    }

    /// Queues a transfer for admission.
    fn queue(&mut self, at: usize, class: Class) {
        let transfer = &self.transfers[at];
        let app = transfer.announced.app;
        let left = transfer.announced.len - transfer.begun;
        let estimate = self.apps[app.place()].estimator.estimate();
        self.admission.announce(at, (app, class), left, estimate);
    }

    /// Polls completions, admits transfers, begins READs, and takes a step of the escape controller. Returns whether
    /// there was something to do. Each call takes a bounded time.
    ///
    /// # Errors
    ///
    /// [`PollError`]: the completion queue has failed, and with it the receiver.
    pub fn step(&mut self, now: Instant) -> Result<bool, PollError> {
        let mut did = self.complete(now)?;
        while !self.stops_admission
            && let Some(admitted) = self.admission.admit(&mut self.pool)
        {
            let at = admitted.transfer();
            self.transfers[at].admitted = Some(admitted);
            self.active.push_back(at);
            did = true;
        }
        let is_contended = self.stops_admission || self.admission.lacks_memory();
        self.pool.set_contended(is_contended);
        did |= self.begin_reads(now);
        let escape = self.pool.escape_step(now);
        self.stops_admission = escape.stops_admission;
        self.events.extend(escape.copy.map(ReceiverEvent::Copy));
        self.events
            .extend(escape.overdue.map(ReceiverEvent::Overdue));
        if escape.signals {
            self.events.push_back(ReceiverEvent::Signal);
        }
        Ok(did | (escape.replaced > 0))
    }

    /// Returns the next event.
    pub fn event(&mut self) -> Option<ReceiverEvent> {
        self.events.pop_front()
    }

    /// Releases `units` units of an extent, from the `from`th on, counted within the extent: the application has
    /// consumed them.
    ///
    /// # Errors
    ///
    /// [`ReleaseError`], and then nothing is released.
    pub fn release(
        &mut self,
        app: AppId,
        held: HeldExtent,
        from: u32,
        units: u32,
        now: Instant,
    ) -> Result<(), ReleaseError> {
        let released = self.pool.release(app, held, from, units)?;
        if let Some(since) = released.since {
            let estimator = &mut self.apps[app.place()].estimator;
            estimator.released(now.since(since));
        }
        Ok(())
    }

    /// The memory of the pool. An extent's bytes begin at its [offset](crate::units::PoolExtent::offset).
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The pool.
    pub fn pool(&self) -> &ReceivePool {
        &self.pool
    }

    /// Number of READs in flight, and their bytes.
    pub fn in_flight(&self) -> (u32, u64) {
        self.admission.in_flight()
    }

    /// Returns what is known of an application that is not leaving.
    fn app_mut(&mut self, app: AppId) -> Option<&mut AppState> {
        self.pool.limits(app)?;
        let state = self.apps.get_mut(app.place())?;
        (!state.is_leaving).then_some(state)
    }

    fn link_mut(&mut self, link: LinkId) -> Option<&mut Link> {
        let one = self.links.get_mut(link.at)?;
        (one.number == link.number).then_some(one)
    }

    fn complete(&mut self, now: Instant) -> Result<bool, PollError> {
        let mut found = [Completion::default(); BATCH];
        let count = self.cq.poll(&mut found)?;
        for completion in &found[..count] {
            self.completed(completion, now);
        }
        Ok(count > 0)
    }

    fn completed(&mut self, completion: &Completion, now: Instant) {
        let Some(read) = self.reads.try_remove(completion.wr_id as usize) else {
            return;
        };
        self.admission.read_ended(read.bytes);
        let transfer = &mut self.transfers[read.transfer];
        transfer.in_flight -= 1;
        let Announcement { link, app, len, .. } = transfer.announced;
        let state = &mut self.apps[app.place()];
        state.in_flight -= 1;
        let is_good = completion.status == Status::Success;
        if is_good && !transfer.failed {
            let arrived = self.pool.arrived(app, read.held, now);
            debug_assert!(arrived, "its application holds it");
            state.estimator.arrived(read.bytes, now.since(read.since));
            self.events.push_back(ReceiverEvent::Arrived {
                transfer: transfer.id,
                at: transfer.arrived,
                held: read.held,
                len: read.bytes,
            });
            transfer.arrived += u64::from(read.bytes);
            if transfer.arrived == len {
                self.events.push_back(ReceiverEvent::Done(transfer.id));
                self.transfers.remove(read.transfer);
            }
        } else {
            let units = read.held.extent.units;
            let released = self.pool.release(app, read.held, 0, units);
            debug_assert!(released.is_ok(), "nobody else released it");
            if !is_good {
                self.fail_link(link, TransferError::Read(completion.status));
            }
            self.forget(read.transfer);
        }
        self.let_go(app);
        if let Some(one) = self.link_mut(link) {
            one.in_flight -= 1;
            self.drop_link(link);
        }
    }

    /// Begins READs of the admitted transfers in turn, as far as windows, pool and quotas have room.
    fn begin_reads(&mut self, now: Instant) -> bool {
        let (mut did, mut idle) = (false, 0);
        while idle < self.active.len()
            && self.admission.may_read(self.fragment)
            && let Some(at) = self.active.pop_front()
        {
            let begun = self.begin_read(at, now);
            did |= begun;
            idle = if begun { 0 } else { idle + 1 };
            let is_left = self.transfers.get(at).is_some_and(|one| {
                !one.failed && one.admitted.is_some() && one.begun < one.announced.len
            });
            if is_left {
                self.active.push_back(at);
            }
        }
        did
    }

    /// Begins a READ of a transfer. Returns whether there was room for one.
    fn begin_read(&mut self, at: usize, now: Instant) -> bool {
        let transfer = &mut self.transfers[at];
        let Announcement {
            link,
            app,
            from,
            len,
        } = transfer.announced;
        let Some(one) = self.links.get_mut(link.at) else {
            return false;
        };
        if one.in_flight >= one.depth {
            return false;
        }
        let left = (len - transfer.begun).min(self.fragment.into());
        let Ok(held) = self.pool.get_up_to(app, units_of(left) as u32) else {
            self.starve(at, now);
            return false;
        };
        transfer.starved = None;
        let bytes = left.min(held.extent.len().into()) as u32;
        let sge = self.region.sge(held.extent.offset() as usize, bytes);
        let number = self.reads.insert(Read {
            transfer: at,
            held,
            bytes,
            since: now,
        });
        let remote = RemoteAddr {
            addr: from.addr + transfer.begun,
            rkey: from.rkey,
        };
        let posted = one.qp.post_send(&[SendWr {
            wr_id: number as u64,
            op: SendOp::Read(remote),
            payload: Payload::Gather(&[sge]),
            flags: SendFlags::SIGNALED,
        }]);
        if let Err(error) = posted {
            self.reads.remove(number);
            let released = self.pool.release(app, held, 0, held.extent.units);
            debug_assert!(released.is_ok(), "it was just handed out");
            if error.kind != PostErrorKind::QueueFull {
                self.fail_link(link, TransferError::Post(error.kind));
            }
            return false;
        }
        one.in_flight += 1;
        transfer.in_flight += 1;
        transfer.begun += u64::from(bytes);
        self.apps[app.place()].in_flight += 1;
        self.admission.read_begun(bytes);
        if transfer.begun == len
            && let Some(admitted) = transfer.admitted.take()
        {
            self.admission.end(admitted, &mut self.pool);
        }
        true
    }

    /// Handles a transfer that gets no memory although it was admitted: its application holds all that it may. If that
    /// goes on and others wait, it waits again behind them.
    fn starve(&mut self, at: usize, now: Instant) {
        let transfer = &mut self.transfers[at];
        let since = *transfer.starved.get_or_insert(now);
        let app = transfer.announced.app;
        if now.since(since) <= self.patience || !self.admission.is_short() {
            return;
        }
        transfer.starved = None;
        if let (Some(admitted), Some(limits)) = (transfer.admitted.take(), self.pool.limits(app)) {
            self.admission.end(admitted, &mut self.pool);
            self.queue(at, limits.class);
        }
    }

    fn fail_link(&mut self, link: LinkId, why: TransferError) {
        let Some(one) = self.link_mut(link) else {
            return;
        };
        if one.failed.replace(why).is_some() {
            return;
        }
        let of = self.transfers.iter();
        let of: Vec<usize> = of
            .filter(|(_, one)| one.announced.link == link)
            .map(|(at, _)| at)
            .collect();
        of.into_iter().for_each(|at| self.give_up(at, Some(why)));
    }

    /// Ends a transfer. What is in flight is released when it completes.
    fn give_up(&mut self, at: usize, why: Option<TransferError>) {
        let transfer = &mut self.transfers[at];
        if std::mem::replace(&mut transfer.failed, true) {
            return;
        }
        let (id, app) = (transfer.id, transfer.announced.app);
        match transfer.admitted.take() {
            Some(admitted) => self.admission.end(admitted, &mut self.pool),
            None => {
                let class = self.pool.limits(app).map(|limits| limits.class);
                class.map(|class| self.admission.withdraw(at, (app, class)));
            }
        }
        self.active.retain(|one| *one != at);
        let failed = why.map(|why| ReceiverEvent::Failed { transfer: id, why });
        self.events.extend(failed);
        self.forget(at);
    }

    /// Forgets a transfer that has failed once nothing of it is in flight.
    fn forget(&mut self, at: usize) {
        let is_over = |one: &Transfer| one.failed && one.in_flight == 0;
        if self.transfers.get(at).is_some_and(is_over) {
            self.transfers.remove(at);
        }
    }

    /// Removes a leaving application once nothing is READ into its memory any more.
    fn let_go(&mut self, app: AppId) {
        let state = &self.apps[app.place()];
        if state.is_leaving && state.in_flight == 0 && self.pool.limits(app).is_some() {
            let removed = self.pool.remove(app);
            debug_assert!(removed, "all that it holds has arrived");
        }
    }

    /// Drops a leaving queue pair once nothing is in flight on it.
    fn drop_link(&mut self, link: LinkId) {
        let one = self.link_mut(link);
        if one.is_some_and(|one| one.is_leaving && one.in_flight == 0) {
            self.links.remove(link.at);
        }
    }
}
