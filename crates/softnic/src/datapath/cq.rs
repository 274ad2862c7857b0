//! Completion queues. A CQ has many producers: this process's queue pairs and, for receives, the peers'
//! processes. It may have several pollers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headworks_shm::lane::{LaneTurn, pop_in_order, retire};
use headworks_shm::slot_queue::PushClaim;
use headworks_shm::{
    BiasedLock, Lane, SingleConsumer, SlotError, SlotQueue, SlotQueueRef, WakeSender,
};
use headworks_verbs::{
    Completion, CompletionFlags, CompletionQueue, CqCounters, CqId, CqInit, GRH_BYTES, Instant,
    Opcode, PollError, Qpn, ResourceError, Status,
};

use crate::crash_points;
use crate::datapath::completion_channel::SoftChannel;
use crate::datapath::context::{Context, ContextRelease};
use crate::hostile::hold::DelayState;
use crate::hostile::{FaultEvent, FaultPoint, HostileMode, HostileObject, Rules};
use crate::table::arena::ArenaAllocation;
use crate::table::clock;
use crate::table::peer::{Peer, Queue};
use crate::table::rows::{CqRow, CqSlot, IPV4_HEADER, NO_ROW, Table, count};

/// A CQ as its producers see it, in any process.
#[derive(Clone)]
pub(crate) struct CqPort {
    peer: Arc<Peer>,
    row: u32,
    queue: Queue<CqSlot>,
    has_channel: bool,
    /// Sender of the CQ's channel, if the channel is this process's: no descriptor must be opened to reach
    /// it.
    channel: Option<WakeSender>,
    timestamps: bool,
    /// Whether the queue may have a limit below its capacity.
    is_limited: Limited,
}

/// Whether a queue may have a limit. A copy keeps the value of when it was made.
struct Limited(AtomicBool);

impl Clone for Limited {
    fn clone(&self) -> Self {
        Self(AtomicBool::new(self.0.load(Ordering::Relaxed)))
    }
}

impl CqPort {
    /// Opens the CQ `row` of `peer`. Returns `None` if there is none, or if its row is invalid.
    pub(crate) fn open(peer: &Arc<Peer>, row: u32) -> Option<Self> {
        let cq = peer.table.cq(row);
        if row == NO_ROW || cq.life.load(Ordering::Acquire) == 0 {
            return None;
        }
        let number = cq.channel_number.load(Ordering::Relaxed);
        Some(Self {
            peer: peer.clone(),
            row,
            queue: peer.queue(&cq.queue)?,
            has_channel: number != 0,
            channel: peer.own_channel(number),
            timestamps: cq.timestamps.load(Ordering::Relaxed) != 0,
            is_limited: Limited(AtomicBool::new(cq.limit.load(Ordering::Relaxed) != 0)),
        })
    }

    /// Returns the CQ `row` of `peer`, opening it if needed. All queue pairs whose peers' receives complete
    /// there share one port.
    pub(crate) fn shared(peer: &Arc<Peer>, row: u32) -> Option<Arc<Self>> {
        let life = peer.table.cq(row).life.load(Ordering::Acquire);
        if let Some(known) = peer.known_port(row, life) {
            return Some(known);
        }
        let port = Arc::new(Self::open(peer, row)?);
        peer.know_port(row, life, &port);
        Some(port)
    }

    fn row(&self) -> &CqRow {
        self.peer.table.cq(self.row)
    }

    /// Adds a completion on behalf of producer `who`, and wakes a thread that sleeps on the CQ's channel. If
    /// the CQ is full, marks it as overrun and notifies its owner.
    #[inline]
    pub(crate) fn push(
        &self,
        who: u16,
        mut slot: CqSlot,
        solicited: bool,
    ) -> Result<(), CqOverrun> {
        if self.timestamps {
            slot.timestamp = clock::now().nanos();
        }
        self.check_limit(|| self.queue.slots.held())?;
        match self.queue.slots.claim_push(who) {
            Ok(claim) => {
                crash_points::at("reserved");
                let position = self.queue.slots.commit(claim, &slot);
                crash_points::at("committed");
                self.queue.slots.prefetch_slot(position.wrapping_add(3));
            }
            Err(error) => return Err(self.overrun(error)),
        }
        if self.has_channel {
            self.wake(solicited || slot.status != Status::Success as u8);
        }
        Ok(())
    }

    /// Reserves a place for a completion: the first half of [`CqPort::push`].
    pub(crate) fn reserve(&self, who: u16) -> Result<PushClaim, CqOverrun> {
        self.check_limit(|| self.queue.slots.held())?;
        let claimed = self.queue.slots.claim_push(who);
        claimed.map_err(|error| self.overrun(error))
    }

    /// Fills a reserved place: the second half of [`CqPort::push`].
    pub(crate) fn commit(&self, place: PushClaim, mut slot: CqSlot, solicited: bool) {
        if self.timestamps {
            slot.timestamp = clock::now().nanos();
        }
        self.queue.slots.commit(place, &slot);
        if self.has_channel {
            self.wake(solicited || slot.status != Status::Success as u8);
        }
    }

    /// Returns whether the producer `who` has reserved a place and not filled it.
    pub(crate) fn is_reserved_by(&self, who: u16) -> bool {
        self.queue.slots.is_reserved_by(who)
    }

    /// Returns an error, and marks the CQ as overrun, if it has a limit and holds as many completions.
    #[inline(always)]
    fn check_limit(&self, held: impl Fn() -> usize) -> Result<(), CqOverrun> {
        match self.is_limited.0.load(Ordering::Relaxed) {
            false => Ok(()),
            true => self.check_limit_of_row(held()),
        }
    }

    #[cold]
    fn check_limit_of_row(&self, held: usize) -> Result<(), CqOverrun> {
        let limit = self.row().limit.load(Ordering::Relaxed) as usize;
        match limit != 0 && held >= limit {
            true => Err(self.overrun(SlotError::Full)),
            false => Ok(()),
        }
    }

    #[cold]
    fn overrun(&self, error: SlotError) -> CqOverrun {
        tracing::error!(cq = self.row, %error, "completion queue overran");
        let row = self.row();
        // The owner is notified once: after it has raised the error, the word stays 2.
        let _ = row
            .overrun
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
        self.wake(true);
        if row.overrun.load(Ordering::Relaxed) != 2 {
            self.peer.table.attention().cqs.set(self.row as usize);
            self.peer.kick();
        }
        CqOverrun
    }

    /// Wakes the sleeper if the CQ is armed. Call it after storing a completion: a poller that arms and then
    /// polls either sees the completion or is woken.
    fn wake(&self, solicited: bool) {
        if self.row().armed.notify(solicited) {
            crash_points::at("disarmed");
            self.raise();
        }
    }

    /// Puts an event into the channel whether the CQ is armed or not. A producer that was killed may have
    /// disarmed the CQ without raising the event.
    pub(crate) fn wake_waiters(&self) {
        if self.has_channel {
            self.row().armed.disarm();
            self.raise();
        }
    }

    /// Puts an event into the channel.
    fn raise(&self) {
        let row = self.row();
        if let Some(channel) = &self.channel {
            row.counts.events.fetch_add(1, Ordering::Relaxed);
            channel.send(&self.row.to_le_bytes());
            return;
        }
        let life = row.life.load(Ordering::Acquire);
        let number = row.channel_number.load(Ordering::Relaxed);
        if number == 0 {
            return;
        }
        let Some(channel) = self.peer.channel(number, (self.row, life)) else {
            // This process did not get the pipe, perhaps for lack of descriptors. The owner can raise the
            // event.
            self.peer.table.attention().cqs.set(self.row as usize);
            self.peer.kick();
            return;
        };
        // A CQ destroyed meanwhile may have taken its channel with it, and the row may have another CQ.
        if row.life.load(Ordering::Acquire) == life {
            row.counts.events.fetch_add(1, Ordering::Relaxed);
            channel.send(&self.row.to_le_bytes());
        }
    }
}

/// The CQ was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqOverrun;

/// A queue pair that completes on a CQ, as the CQ uses it.
pub(crate) trait Resume: Send + Sync + 'static {
    /// Returns the queue pair's row in the table.
    fn slot(&self) -> usize;

    /// Executes its pending requests, unless another thread is doing so.
    fn resume(&self, now: Instant);
}

/// Consumer side of a completion queue.
struct CqConsumer {
    queue: SingleConsumer<CqSlot>,
    /// Completions that were taken out of the lane and the queue when others were discarded. They are polled first.
    drained: VecDeque<CqSlot>,
    turn: LaneTurn,
}

/// A completion queue of this process, on which queue pairs of type `Q` complete.
pub(crate) struct SoftCq<Q> {
    pub(crate) context: Arc<Context>,
    pub(crate) row: u32,
    port: CqPort,
    /// Guards the only consumer of the queue and of the lane.
    polling: BiasedLock<CqConsumer>,
    /// Number of completions in [`CqConsumer::drained`].
    drained: AtomicUsize,
    /// Send completions of the one queue pair that may use it, without atomic instructions.
    lane: Lane<CqSlot>,
    /// Number of queue pairs with pending requests that complete here, plus one on a device with fault
    /// injection: polls then always take the slow path.
    pub(crate) waiting: AtomicUsize,
    /// Queue pairs with pending requests that complete here, by slot.
    stalled: Mutex<BTreeMap<usize, Weak<Q>>>,
    /// Delays completions, on a device with fault injection.
    held: Option<CompletionDelay>,
    _channel: Option<Arc<dyn headworks_verbs::CompletionChannel>>,
    _piece: ArenaAllocation,
    _release: ContextRelease,
}

impl<Q: Resume> SoftCq<Q> {
    pub(crate) fn create(context: &Arc<Context>, init: &CqInit) -> Result<Self, ResourceError> {
        ResourceError::check("CQ depth", init.depth, 1..=context.info.limits.max_cqe)?;
        let channel = match &init.channel {
            None => None,
            Some(channel) => Some(
                channel
                    .as_any()
                    .downcast_ref::<SoftChannel>()
                    .filter(|channel| channel.of == context.own.incarnation)
                    .ok_or(ResourceError::Foreign("the completion channel"))?,
            ),
        };
        let capacity = init.depth.next_power_of_two().max(2) as usize;
        let piece = context.queue_memory(SlotQueue::<CqSlot>::bytes(capacity))?;
        // SAFETY: the piece is aligned, large enough and not shared yet.
        let slots: SlotQueueRef<CqSlot> =
            unsafe { SlotQueue::<CqSlot>::init(piece.as_ptr(), capacity) };
        let row = context.cq_rows.take("completion queues")?;
        let entry = context.table.cq(row);
        entry.queue.set(piece.place(), capacity);
        entry
            .timestamps
            .store(init.timestamps.into(), Ordering::Relaxed);
        entry.armed.disarm();
        entry.overrun.store(0, Ordering::Relaxed);
        entry.limit.store(0, Ordering::Relaxed);
        entry.counts.clear();
        let number = channel.map_or(0, |channel| channel.number);
        entry.channel_number.store(number, Ordering::Relaxed);
        entry
            .life
            .store(context.cq_rows.generation(row), Ordering::Release);
        let port = CqPort {
            peer: context.own.clone(),
            row,
            queue: Queue::new(slots, piece.segment().clone()),
            has_channel: channel.is_some(),
            channel: channel.map(SoftChannel::sender),
            timestamps: init.timestamps,
            is_limited: Limited(AtomicBool::new(false)),
        };
        Ok(Self {
            context: context.clone(),
            row,
            port,
            polling: BiasedLock::new(CqConsumer {
                // SAFETY: peers only push into this process's CQs, and nothing else here pops from this queue.
                queue: unsafe { slots.single_consumer() },
                drained: VecDeque::new(),
                turn: LaneTurn::default(),
            }),
            drained: AtomicUsize::new(0),
            lane: Lane::new(capacity),
            waiting: AtomicUsize::new(context.hostility.is_some().into()),
            stalled: Mutex::default(),
            held: context.hostility.as_ref().map(CompletionDelay::new),
            _channel: init.channel.clone(),
            _piece: piece,
            _release: ContextRelease::of(context),
        })
    }

    /// Returns the producers' side, for this process's own queue pairs.
    pub(crate) fn port(&self) -> &CqPort {
        &self.port
    }

    fn stalled(&self) -> MutexGuard<'_, BTreeMap<usize, Weak<Q>>> {
        self.stalled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `core`, which completes here, now has pending requests and had none. The caller holds the
    /// lock on its list, as for [`SoftCq::has_done`].
    pub(crate) fn has_work(&self, core: &Arc<Q>) {
        self.stalled().insert(core.slot(), Arc::downgrade(core));
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that `core` has no pending requests any more.
    pub(crate) fn has_done(&self, core: &Q) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        self.stalled().remove(&core.slot());
    }

    /// Executes pending requests of the queue pairs that complete here.
    #[cold]
    fn resume(&self) {
        let now = clock::now();
        let stalled: Vec<_> = self.stalled().values().filter_map(Weak::upgrade).collect();
        for core in stalled {
            core.resume(now);
        }
    }

    /// Runs `f` on every receive completion that is not polled yet. The lane, which has none, is not visited.
    pub(crate) fn each_unpolled(&self, mut f: impl FnMut(CqSlot)) {
        let mut consumer = self.polling.lock();
        consumer.drained.iter().copied().for_each(&mut f);
        consumer.queue.for_each_full(|_, slot| f(slot));
    }

    /// Frees the places that the producer `who` reserved and did not fill. It was killed, or has been seen
    /// not executing since its queue pair's connection ended; either way it pushes here no more.
    pub(crate) fn recover(&self, who: u16) {
        let consumer = self.polling.lock();
        // SAFETY: a producer's claim lasts no longer than one execution, and that execution is over.
        unsafe {
            consumer
                .queue
                .queue()
                .recover(|dead| dead == who, |_, _| {})
        };
    }

    /// Lends the lane to the first queue pair that asks. Returns whether that is the caller.
    pub(crate) fn claim_lane(&self) -> bool {
        self.lane.claim()
    }

    /// Takes the lane back from a queue pair that is being destroyed. What is in the lane is still polled.
    /// `counted` is the number of completions that the queue pair put there.
    pub(crate) fn release_lane(&self, counted: &AtomicU64) {
        let gone = counted.swap(0, Ordering::Relaxed);
        let counts = &self.port.row().counts;
        counts.lane_of_gone.fetch_add(gone, Ordering::Relaxed);
        self.lane.release();
    }

    /// Adds a send completion to the lane. Only the posting thread of the queue pair that claimed the lane
    /// may call this.
    #[inline(always)]
    pub(crate) fn push_lane(&self, slot: impl Fn() -> CqSlot) -> Result<(), CqOverrun> {
        let stamp = |slot: &mut CqSlot| {
            if self.port.timestamps {
                slot.timestamp = clock::now().nanos();
            }
        };
        self.port.check_limit(|| self.lane.len_hint())?;
        // SAFETY: only the claimant's posting thread calls this, and it posts through `&mut`.
        let pushed = unsafe {
            self.lane.push(|place| {
                *place = slot();
                stamp(place);
            })
        };
        if !pushed {
            return Err(self.port.overrun(SlotError::Full));
        }
        if self.port.has_channel {
            self.port.wake(slot().status != Status::Success as u8);
        }
        Ok(())
    }
}

impl<Q: Resume> CompletionQueue for SoftCq<Q> {
    fn id(&self) -> CqId {
        CqId(self.row)
    }

    fn depth(&self) -> u32 {
        match self.port.row().limit.load(Ordering::Relaxed) {
            0 => self.port.queue.slots.capacity() as u32,
            limit => limit,
        }
    }

    fn resize(&self, entries: u32) -> Result<(), ResourceError> {
        let capacity = self.port.queue.slots.capacity() as u32;
        let least = self.counters().map_or(1, |counters| counters.unpolled);
        let least = u32::try_from(least).unwrap_or(u32::MAX).max(1);
        ResourceError::check("CQ depth", entries, least..=capacity)?;
        // Rounded as the capacity is.
        let limit = entries.next_power_of_two().max(2);
        let limit = if limit < capacity { limit } else { 0 };
        self.port.row().limit.store(limit, Ordering::Relaxed);
        self.port.is_limited.0.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn poll(&self, out: &mut [Completion]) -> Result<usize, PollError> {
        if self.context.is_foreign() {
            return Err(PollError::Forked);
        }
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.resume();
            if let Some(held) = &self.held {
                return self.poll_held(held, out);
            }
        }
        self.take(out)
    }

    fn arm(&self, solicited_only: bool) {
        if self.context.is_foreign() {
            return;
        }
        self.port.row().armed.arm(solicited_only);
        // The owner may not poll for a while, so the progress thread takes over pending requests.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.context.progress.take_over();
        }
    }

    fn discard(&self, is_gone: &dyn Fn(&Completion) -> bool) {
        if self.context.is_foreign() {
            return;
        }
        let slots = &self.port.queue.slots;
        let mut consumer = self.polling.lock();
        let CqConsumer {
            queue,
            drained,
            turn,
        } = &mut *consumer;
        // What is pushed meanwhile is no more than both hold.
        let most = 2 * slots.capacity();
        // SAFETY: every consumer of the lane holds this lock.
        let _ = unsafe {
            pop_in_order(
                &self.lane,
                queue,
                turn,
                !slots.is_empty(),
                most,
                |_, slot| {
                    drained.push_back(*slot);
                },
            )
        };
        drained.retain(|slot| !is_gone(&completion(slot)));
        self.drained.store(drained.len(), Ordering::Relaxed);
    }

    fn counters(&self) -> Option<CqCounters> {
        let drained = self.drained.load(Ordering::Relaxed);
        let unpolled = drained + self.lane.len_hint() + self.port.queue.slots.len_hint();
        Some(self.port.row().counters(unpolled as u64))
    }
}

impl<Q: Resume> SoftCq<Q> {
    /// Takes completions out of the lane and the queue. Returns how many.
    #[inline(always)]
    fn take(&self, out: &mut [Completion]) -> Result<usize, PollError> {
        let slots = &self.port.queue.slots;
        let queued = !slots.is_empty();
        if !queued && self.lane.is_empty() && self.drained.load(Ordering::Relaxed) == 0 {
            return match self.port.row().overrun.load(Ordering::Relaxed) {
                0 => Ok(0),
                _ => Err(PollError::Overrun),
            };
        }
        let table = &self.context.table;
        let mut consumer = self.polling.lock();
        let first = match consumer.drained.is_empty() {
            true => 0,
            false => self.take_drained(&mut consumer, out),
        };
        let out = &mut out[first..];
        let CqConsumer { queue, turn, .. } = &mut *consumer;
        // SAFETY: every consumer of the lane holds this lock.
        let taken = unsafe {
            pop_in_order(&self.lane, queue, turn, queued, out.len(), |index, slot| {
                out[index] = retired(table, slot);
            })
        };
        let count = first + taken.map_err(|_| PollError::Corrupt)?;
        self.port.row().counts.took(count, self.lane.popped());
        Ok(count)
    }

    /// Takes completions that an earlier [`discard`](CompletionQueue::discard) left. Returns how many.
    #[cold]
    fn take_drained(&self, consumer: &mut CqConsumer, out: &mut [Completion]) -> usize {
        let count = consumer.drained.len().min(out.len());
        for (to, slot) in out.iter_mut().zip(consumer.drained.drain(..count)) {
            *to = retired(&self.context.table, &slot);
        }
        self.drained
            .store(consumer.drained.len(), Ordering::Relaxed);
        count
    }

    /// Takes as many completions as the fault rules allow.
    #[cold]
    fn poll_held(
        &self,
        held: &CompletionDelay,
        out: &mut [Completion],
    ) -> Result<usize, PollError> {
        if self.port.queue.slots.is_empty() && self.lane.is_empty() {
            return self.take(out);
        }
        let shown = held.shown(out.len());
        if shown == 0 && !out.is_empty() {
            if self.port.has_channel {
                // A caller that finds nothing may go to sleep although there is a completion.
                held.someone_sleeps.store(true, Ordering::Release);
                self.context.progress.kick();
            }
            return Ok(0);
        }
        self.take(&mut out[..shown])
    }

    /// For the progress thread: ends the delay if a caller may sleep on a delayed completion, and wakes it.
    pub(crate) fn show_held(&self) {
        if let Some(held) = &self.held
            && held.someone_sleeps.swap(false, Ordering::AcqRel)
        {
            held.lock().end();
            self.port.wake(true);
        }
    }
}

/// Delay of completions by fault injection.
struct CompletionDelay {
    rules: Arc<Rules>,
    object: HostileObject,
    hold: Mutex<DelayState>,
    /// Set when a poll returned nothing although there was a completion. The progress thread clears it.
    someone_sleeps: AtomicBool,
}

impl CompletionDelay {
    fn new(hostility: &HostileMode) -> Self {
        Self {
            rules: hostility.rules.clone(),
            object: hostility.next_cq(),
            hold: Mutex::default(),
            someone_sleeps: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, DelayState> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many completions a poll with room for `room` is shown.
    fn shown(&self, room: usize) -> usize {
        self.lock().poll(room, |number| {
            self.rules.judge(&FaultEvent {
                point: FaultPoint::Poll,
                stream: self.object.stream,
                ordinal: self.object.ordinal,
                qpn: Qpn::default(),
                op: Opcode::Recv,
                wr_id: 0,
                len: 0,
                number: number.into(),
                turn: 0,
            })
        })
    }
}

/// Notes in the queue pair's row that a request is retired, and builds the completion.
#[inline(always)]
fn retired(table: &Table, slot: &CqSlot) -> Completion {
    let row = table.qp(slot.qpn as usize);
    if row.qpn.load(Ordering::Relaxed) == slot.qpn {
        if Opcode::from_code(slot.opcode).is_recv() {
            retire(&row.rq_retired, slot.position.wrapping_add(1));
            if slot.status == Status::Success as u8 {
                count(&row.received, 1);
                // A datagram's length includes its header, which the sender did not send.
                let header = u64::from(slot.header != 0) * GRH_BYTES as u64;
                let payload = u64::from(slot.byte_len).saturating_sub(header);
                count(&row.received_bytes, payload);
            }
        } else {
            retire(&row.sq_retired, slot.position);
        }
        if slot.status != Status::Success as u8 {
            row.executing.failed(slot.status);
        }
    }
    completion(slot)
}

#[inline(always)]
fn completion(slot: &CqSlot) -> Completion {
    Completion {
        vendor_err: 0,
        wr_id: slot.wr_id,
        status: Status::from_code(slot.status),
        opcode: Opcode::from_code(slot.opcode),
        qpn: Qpn::new(slot.qpn & Qpn::MAX).unwrap_or_default(),
        byte_len: slot.byte_len,
        imm: (slot.has_imm != 0).then_some(slot.imm),
        src_qpn: Qpn::new(slot.src_qpn & Qpn::MAX).unwrap_or_default(),
        src_lid: None,
        flags: CompletionFlags {
            grh: slot.header != 0,
            ipv4: slot.header == IPV4_HEADER,
        },
        timestamp: Instant::from_nanos(slot.timestamp),
    }
}

impl<Q> Drop for SoftCq<Q> {
    fn drop(&mut self) {
        if self.context.is_foreign() {
            return;
        }
        self.port.row().life.store(0, Ordering::Release);
        self.context.cq_rows.give_back(self.row);
    }
}
