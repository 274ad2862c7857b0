//! Requests that wait: long ones, executed in chunks; SENDs without a receive; requests to peers that
//! are not ready. Also retries, timeouts and flushing.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};

use headworks_shm::asymmetric_fence;
use headworks_verbs::{
    Duration, Instant, Opcode, Payload, QpAttr, QpState, RnrTimer, SendFlags, SendOp, SendWr, Sge,
    Status,
};

use super::engine::{Engine, Outcome, Request, RequestProgress};
use super::hostile_qp::RequestFaults;
use super::{INLINE_MAX, QpCore, opcode_of};
use crate::datapath::srq::OWNER;
use crate::table::addresses::slot_of;
use crate::table::rows::{CqSlot, NO_ROW, QpLife, RecvSlot};

/// Maximum number of bytes executed in one step.
pub(super) const CHUNK: usize = 256 << 10;
/// Maximum number of short requests executed in one step.
const STEP_REQUESTS: usize = 16;
/// First interval at which a peer that is not ready is looked up again; it grows with every try.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// Longest sleep between two tries of a request that may wait for ever.
const TRY_AGAIN_MAX: Duration = Duration::from_millis(10);

/// The waiting requests of a queue pair.
#[derive(Default)]
pub(crate) struct Pending {
    /// Made when a request waits for the first time: of thousands of queue pairs few ever have one.
    backlog: Option<Box<Backlog>>,
    timeout: u8,
    retry_count: u8,
    pub(super) rnr_retry: u8,
}

/// Waiting requests, and the engine that executes them.
#[derive(Default)]
pub(super) struct Backlog {
    /// The requests, oldest first.
    pub(super) list: VecDeque<PendingRequest>,
    pub(super) engine: Engine,
    pub(super) stall: Option<Stall>,
    /// Steps made on a hostile device.
    pub(super) ticks: u64,
}

/// A waiting request, with a copy of everything it needs.
pub(crate) struct PendingRequest {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    payload: OwnedPayload,
    pub(super) flags: SendFlags,
    pub(super) position: u64,
    pub(super) progress: RequestProgress,
    /// Decisions of a hostile device's rules for the request.
    pub(super) faults: Option<Box<RequestFaults>>,
}

enum OwnedPayload {
    Gather(Vec<Sge>),
    Inline(Box<[u8]>),
}

/// Cause for which the oldest request cannot be executed, and the time of its next try.
pub(super) struct Stall {
    cause: StallCause,
    tries: u32,
    next_try: Instant,
    give_up: Instant,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum StallCause {
    NoReceive,
    NotReady,
    Called,
}

/// When a queue pair's waiting requests are to be executed next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Nothing waits.
    Never,
    /// At once.
    Now,
    /// At this time.
    At(Instant),
}

impl PendingRequest {
    /// Copies a request that has got as far as `progress` says.
    pub(crate) fn of(wr: &SendWr<'_>, position: u64, progress: RequestProgress) -> Self {
        let payload = match wr.payload {
            Payload::Gather(sges) => OwnedPayload::Gather(sges.to_vec()),
            Payload::Inline(bytes) => OwnedPayload::Inline(bytes.into()),
        };
        Self {
            wr_id: wr.wr_id,
            op: wr.op,
            payload,
            flags: wr.flags,
            position,
            progress,
            faults: None,
        }
    }

    pub(super) fn payload(&self) -> Payload<'_> {
        self.payload.as_payload()
    }

    /// Returns the request in the engine's form, and how far it has got.
    pub(super) fn request(&mut self) -> (Request<'_>, &mut RequestProgress) {
        let payload = self.payload.as_payload();
        let request = Request {
            op: self.op,
            payload,
            solicited: self.flags.contains(SendFlags::SOLICITED),
            len: payload.len(),
        };
        (request, &mut self.progress)
    }

    /// Returns whether some of it is done, it holds a receive, the peer was asked for it, or it is over
    /// and waits for those before it.
    pub(super) fn has_begun(&self) -> bool {
        let RequestProgress {
            done,
            claim,
            called,
            ..
        } = &self.progress;
        *done > 0 || claim.is_some() || called.is_some() || self.ended().is_some()
    }
}

impl OwnedPayload {
    fn as_payload(&self) -> Payload<'_> {
        match self {
            Self::Gather(sges) => Payload::Gather(sges),
            Self::Inline(bytes) => Payload::Inline(bytes),
        }
    }
}

impl Pending {
    pub(crate) fn push(&mut self, waiting: PendingRequest) {
        self.backlog().list.push_back(waiting);
    }

    pub(super) fn backlog(&mut self) -> &mut Backlog {
        self.backlog.get_or_insert_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        let backlog = self.backlog.as_ref();
        backlog.is_none_or(|backlog| backlog.list.is_empty())
    }

    /// Returns whether one of the requests has begun.
    fn has_begun(&self) -> bool {
        let mut backlogs = self.backlog.iter();
        backlogs.any(|backlog| backlog.list.iter().any(PendingRequest::has_begun))
    }

    /// Returns whether the oldest requests, as many as one step executes, are short together.
    fn are_short(&self) -> bool {
        let lists = self.backlog.iter().map(|backlog| &backlog.list);
        let first = lists.flat_map(|list| list.iter().take(STEP_REQUESTS));
        first.map(|one| one.payload().len()).sum::<u64>() <= INLINE_MAX as u64
    }

    /// Takes over the attributes that say how long to retry.
    pub(crate) fn tune(&mut self, attr: &QpAttr) {
        self.timeout = attr.timeout.unwrap_or(self.timeout);
        self.retry_count = attr.retry_count.unwrap_or(self.retry_count);
        self.rnr_retry = attr.rnr_retry.unwrap_or(self.rnr_retry);
    }

    /// Returns how long the peer may stay silent: 4.096 µs × 2^timeout for the first try and for each
    /// retry; `None` for a timeout of 0, which waits for ever.
    fn patience(&self) -> Option<Duration> {
        let one = Duration::from_nanos(4096u64 << self.timeout.min(31));
        (self.timeout != 0).then(|| one.times(u64::from(self.retry_count) + 1))
    }

    /// Executes a bounded part of the oldest request. Returns `Some` when it ended.
    fn step(&mut self, core: &QpCore, now: Instant) -> Result<Option<Status>, NextStep> {
        let Backlog { list, engine, .. } = self.backlog();
        let Some(front) = list.front_mut() else {
            return Err(NextStep::Never);
        };
        let (request, progress) = front.request();
        let (op, len) = (request.opcode(), request.len);
        let outcome = engine.go_on(core, &request, progress, CHUNK);
        self.came_of(core, outcome, (op, len), now)
    }

    /// Returns what `outcome` means for a waiting request, an `op` of `len` bytes: the status with which it
    /// ended, `None` if it can be executed further, or else when it can be.
    pub(super) fn came_of(
        &mut self,
        core: &QpCore,
        outcome: Outcome,
        (op, len): (Opcode, u64),
        now: Instant,
    ) -> Result<Option<Status>, NextStep> {
        match outcome {
            Outcome::Done => {
                core.row().executing.moved(op, len);
                Ok(Some(Status::Success))
            }
            Outcome::Failed(status) => Ok(Some(status)),
            Outcome::More => {
                self.backlog().stall = None;
                Ok(None)
            }
            Outcome::NoReceive(timer) => self.stall_without_receive(core, timer, now),
            Outcome::NotReady => self.stall_unanswered(core, StallCause::NotReady, now),
            Outcome::Ask(_) | Outcome::Called => {
                self.stall_unanswered(core, StallCause::Called, now)
            }
        }
    }

    fn stall_without_receive(
        &mut self,
        core: &QpCore,
        timer: RnrTimer,
        now: Instant,
    ) -> Result<Option<Status>, NextStep> {
        let rnr_retry = self.rnr_retry;
        let endless = rnr_retry == 7;
        let stall = match &mut self.backlog().stall {
            Some(stall) if stall.cause == StallCause::NoReceive => {
                if now < stall.next_try {
                    return Err(NextStep::At(stall.next_try));
                }
                stall.tries += 1;
                stall
            }
            other => other.insert(Stall {
                cause: StallCause::NoReceive,
                tries: 0,
                next_try: now,
                give_up: Instant::FAR_FUTURE,
            }),
        };
        core.row().executing.rnr.fetch_add(1, Ordering::Relaxed);
        if !endless && stall.tries >= u32::from(rnr_retry) {
            return Ok(Some(Status::RnrRetryExceeded));
        }
        // While nobody polls, a request that may wait for ever is tried less and less often.
        let wait = match endless {
            true => timer
                .duration()
                .times(1 + u64::from(stall.tries / 8))
                .min(TRY_AGAIN_MAX),
            false => timer.duration(),
        };
        stall.next_try = now + wait.max(timer.duration());
        Err(NextStep::At(stall.next_try))
    }

    /// Handles a peer that does not answer: its queue pair is not there, or it was called and is busy.
    fn stall_unanswered(
        &mut self,
        core: &QpCore,
        cause: StallCause,
        now: Instant,
    ) -> Result<Option<Status>, NextStep> {
        if core.peer_is_dead() {
            return Ok(Some(match core.is_reliable() {
                true => Status::RetryExceeded,
                false => Status::Success,
            }));
        }
        let give_up = self.patience().map_or(Instant::FAR_FUTURE, |d| now + d);
        let Backlog { engine, stall, .. } = self.backlog();
        let stall = match stall {
            Some(stall) if stall.cause == cause => stall,
            other => other.insert(Stall {
                cause,
                tries: 0,
                next_try: now,
                give_up,
            }),
        };
        if now >= stall.give_up {
            return Ok(Some(Status::RetryExceeded));
        }
        if cause == StallCause::Called {
            if now < stall.next_try {
                return Err(NextStep::At(stall.next_try));
            }
            if stall.tries > 0 {
                engine.ring();
            }
        }
        stall.tries += 1;
        let wait = LOOK_AGAIN.times(u64::from(stall.tries)).min(TRY_AGAIN_MAX);
        stall.next_try = (now + wait).min(stall.give_up);
        Err(NextStep::At(stall.next_try))
    }
}

impl QpCore {
    pub(crate) fn lock_pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether requests wait.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Executes waiting requests, unless another thread is doing so.
    pub(crate) fn try_resume(&self, now: Instant) -> NextStep {
        if !self.has_waiting() {
            return NextStep::Never;
        }
        match self.pending.try_lock() {
            Ok(mut pending) => self.resume(&mut pending, now),
            Err(TryLockError::Poisoned(poisoned)) => self.resume(&mut poisoned.into_inner(), now),
            Err(TryLockError::WouldBlock) => NextStep::Now,
        }
    }

    /// Executes waiting requests if the oldest are short and no other thread is executing them.
    pub(super) fn catch_up(&self, now: Instant) {
        let mut pending = match self.pending.try_lock() {
            Ok(pending) => pending,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if pending.are_short() {
            self.resume(&mut pending, now);
        }
    }

    /// Executes one bounded step: a chunk of a long request, or up to 16 short ones.
    fn resume(&self, pending: &mut Pending, now: Instant) -> NextStep {
        match self.state() {
            QpState::Rts => {}
            // Requests that have begun end before the send queue is drained (10.3.1).
            QpState::Sqd if pending.has_begun() => {}
            QpState::Error => {
                self.flush(pending);
                return NextStep::Never;
            }
            QpState::Sqe => {
                self.flush_sends(pending);
                return NextStep::Never;
            }
            _ => return NextStep::Never,
        }
        // A peer that was not found is not looked up again on every poll.
        if let Some(stall) = &pending.backlog().stall
            && stall.cause == StallCause::NotReady
            && now < stall.next_try
            && !self.peer_is_dead()
        {
            return NextStep::At(stall.next_try);
        }
        let executing = self.row().executing.resume();
        let next = match &self.hostile {
            None => self.resume_in_order(pending, now),
            Some(hostile) => self.resume_unconditionally(hostile, pending, now),
        };
        drop(executing);
        self.context.progress.note_progress();
        self.rests.store(false, Ordering::Relaxed);
        match self.state() {
            QpState::Error => self.flush(pending),
            QpState::Sqe => self.flush_sends(pending),
            _ => return next,
        }
        NextStep::Never
    }

    fn resume_in_order(&self, pending: &mut Pending, now: Instant) -> NextStep {
        for _ in 0..STEP_REQUESTS {
            match pending.step(self, now) {
                Ok(Some(status)) => {
                    self.end(pending, status);
                    // Requests behind one that failed are flushed, not executed.
                    if status != Status::Success {
                        break;
                    }
                }
                Ok(None) => break,
                Err(when) => return when,
            }
            if pending.is_empty() || self.is_drained(pending) {
                return NextStep::Never;
            }
        }
        NextStep::Now
    }

    /// Returns whether nothing more may be sent before the queue pair is in RTS again.
    pub(super) fn is_drained(&self, pending: &Pending) -> bool {
        self.state() == QpState::Sqd && !pending.has_begun()
    }

    /// Ends the oldest request with `status`: completes it and removes it.
    pub(super) fn end(&self, pending: &mut Pending, status: Status) {
        let backlog = pending.backlog();
        backlog.stall = None;
        let Some(mut ended) = backlog.list.pop_front() else {
            return;
        };
        let len = ended.payload().len();
        if status != Status::Success {
            backlog.engine.abandon(&mut ended.progress);
        }
        let signaled = self.signal_all || ended.flags.contains(SendFlags::SIGNALED);
        if signaled || status != Status::Success {
            let byte_len = match ended.op {
                SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
                    len as u32
                }
                _ => 0,
            };
            let op = opcode_of(&ended.op);
            self.complete_send(ended.wr_id, ended.position, op, status, byte_len);
        }
        if status != Status::Success {
            self.fail_send();
        }
        self.left_list(1);
    }

    fn left_list(&self, count: usize) {
        let count = count as u32;
        if count > 0 && self.waiting.fetch_sub(count, Ordering::AcqRel) == count {
            self.send_cq.has_done(self);
        }
    }

    /// Completes all waiting sends with the flush status, in order.
    pub(crate) fn flush_sends(&self, pending: &mut Pending) {
        let Some(backlog) = &mut pending.backlog else {
            return;
        };
        let count = backlog.list.len();
        backlog.stall = None;
        self.abandon_front(backlog);
        for waiting in backlog.list.drain(..) {
            let op = opcode_of(&waiting.op);
            self.complete_send(waiting.wr_id, waiting.position, op, Status::Flushed, 0);
        }
        self.left_list(count);
    }

    /// Completes everything posted with the flush status: sends, then receives, each in order.
    pub(crate) fn flush(&self, pending: &mut Pending) {
        self.flush_sends(pending);
        let Some(receives) = &self.receives else {
            return;
        };
        // The receives that the peer had taken must be flushed first; the progress thread does that.
        if !self.settled.load(Ordering::Acquire) {
            return self.service();
        }
        // Flush no more than the queue holds: a broken peer may be filling it meanwhile.
        for _ in 0..receives.capacity() {
            let Ok(Some(claim)) = receives.slots.claim_pop(OWNER) else {
                break;
            };
            let receive = receives.slots.value(&claim);
            self.flush_receive(receive.wr_id, claim.position());
            receives.slots.finish(claim);
        }
    }

    /// Gives back what the oldest request holds of the peer's. On hostile devices later ones may be under
    /// way, but they hold nothing.
    fn abandon_front(&self, backlog: &mut Backlog) {
        if let Some(front) = backlog.list.front_mut() {
            let _executing = self.row().executing.resume();
            backlog.engine.abandon(&mut front.progress);
        }
    }

    fn flush_receive(&self, wr_id: u64, position: u64) {
        let slot = CqSlot {
            wr_id,
            position,
            qpn: self.qpn,
            status: Status::Flushed as u8,
            opcode: Opcode::Recv as u8,
            ..CqSlot::default()
        };
        // If the CQ overruns, the CQ is marked as such; this queue pair is in error already.
        let _ = self
            .recv_cq
            .port()
            .push(self.slot() as u16 | OWNER, slot, false);
    }

    /// Drops everything posted, without completions (RESET, destruction).
    pub(crate) fn discard(&self, pending: &mut Pending) {
        if let Some(mut backlog) = pending.backlog.take() {
            self.abandon_front(&mut backlog);
            if backlog.engine.has_bounce_buffer() {
                self.context.table.bounce_buffer(self.slot()).clear();
            }
            self.left_list(backlog.list.len());
        }
        // Also what the peer had taken. The peer is executing nothing here, and finds the connection gone.
        self.take_back();
        if self.was_connected() && self.peer_is_gone() {
            // It may have been killed after it disarmed a CQ that others use too, and before it raised the event.
            self.wake_waiters();
        }
        let Some(receives) = &self.receives else {
            return;
        };
        for _ in 0..receives.capacity() {
            let Ok(Some(claim)) = receives.slots.claim_pop(OWNER) else {
                break;
            };
            receives.slots.finish(claim);
        }
        self.row()
            .rq_retired
            .store(self.rq_position(), Ordering::Relaxed);
    }

    /// Returns whether the queue pair is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.state().can_receive() && self.row().dest_qpn.load(Ordering::Relaxed) != NO_ROW
    }

    /// Returns whether it has a peer, in whatever state it is.
    fn was_connected(&self) -> bool {
        self.qp_type.is_connected() && self.row().dest_qpn.load(Ordering::Relaxed) != NO_ROW
    }

    /// Returns whether the process at the other end is known to be dead.
    pub(crate) fn peer_is_dead(&self) -> bool {
        self.known_peer().is_some_and(|peer| peer.is_dead())
    }

    /// Returns whether the peer is dead, or left before it was attached.
    pub(crate) fn peer_is_gone(&self) -> bool {
        match self.known_peer() {
            Some(peer) => peer.is_dead(),
            None => self.context.peers.has_left(self.peer_key()),
        }
    }

    /// Takes back the receives that the peer took and did not complete, oldest first. Call it only when the
    /// peer is dead, or will find the connection gone before it uses them.
    fn take_back(&self) -> Vec<(u64, RecvSlot)> {
        if self.is_datagrams() {
            // Only receives that dead senders took are left; `clean_up_senders` undoes those.
            self.siblings.clean_up_senders(&self.context);
            return Vec::new();
        }
        let ours = self.slot() as u16;
        self.recv_cq.recover(ours);
        match (&self.receives, &self.srq) {
            (Some(receives), _) => receives.take_back(ours),
            (None, Some(srq)) => srq.receives.take_back(ours),
            (None, None) => Vec::new(),
        }
    }

    /// Takes back the receives that the dead datagram sender `who` took.
    pub(crate) fn take_back_from(&self, who: u16) -> Vec<(u64, RecvSlot)> {
        match (&self.receives, &self.srq) {
            (Some(receives), _) => receives.take_back(who),
            (None, Some(srq)) => srq.receives.take_back(who),
            (None, None) => Vec::new(),
        }
    }

    /// Posts again, behind the others, a receive that a dead sender had taken and whose datagram is lost.
    /// In the error state the receive is flushed instead, in RESET dropped. `false` if the queue has no
    /// slot now.
    pub(crate) fn post_again(&self, position: u64, receive: &RecvSlot) -> bool {
        if let Some(srq) = &self.srq {
            return srq.post_again(receive);
        }
        let (Some(receives), state) = (&self.receives, self.state()) else {
            return true;
        };
        match state {
            QpState::Reset => {}
            QpState::Error => self.flush_receive(receive.wr_id, position),
            _ => {
                let is_posted = receives.post_again(receive);
                self.rq_reposted
                    .fetch_add(is_posted.into(), Ordering::Relaxed);
                return is_posted;
            }
        }
        true
    }

    /// Flushes the receives that the peer took and did not complete. Call it only when the peer is
    /// executing nothing on this queue pair any more.
    pub(crate) fn settle(&self) {
        for (position, receive) in self.take_back_incomplete() {
            self.flush_receive(receive.wr_id, position);
        }
        let first = !self.settled.swap(true, Ordering::AcqRel);
        if first && self.srq.is_some() {
            self.row().executing.events.fetch_add(1, Ordering::Relaxed);
            self.context.events.last_wqe(self.qpn);
        }
    }

    /// Takes back the receives that the peer took, and returns those that have not completed. Call it only when the peer
    /// is executing nothing on this queue pair any more.
    fn take_back_incomplete(&self) -> Vec<(u64, RecvSlot)> {
        let mut taken = self.take_back();
        if let (Some(srq), false) = (&self.srq, taken.is_empty()) {
            srq.look_at_limit();
        }
        // Linear time, not quadratic: both queues may be long, and a broken peer may have taken all receives.
        let mut unpolled = HashSet::new();
        if !taken.is_empty() {
            self.recv_cq.each_unpolled(|slot| {
                if slot.qpn == self.qpn && Opcode::from_code(slot.opcode).is_recv() {
                    unpolled.insert(slot.position);
                }
            });
        }
        taken.retain(|(position, _)| {
            let polled = self.row().rq_retired.load(Ordering::Relaxed) > *position;
            !polled && !unpolled.contains(position)
        });
        taken
    }

    /// Flushes a queue pair that is in error, on the progress thread. `false` if the peer is still
    /// executing a request on it: try again soon.
    pub(crate) fn settle_failed(&self) -> bool {
        let generation = self.generation();
        if self.row().life() != QpLife::new(generation, QpState::Error) {
            return true;
        }
        self.tell(generation);
        if !self.settled.load(Ordering::Acquire) {
            asymmetric_fence::heavy();
            if self.initiators().iter().any(|one| !one.is_idle_soon()) {
                return false;
            }
        }
        let mut pending = self.lock_pending();
        if self.state() != QpState::Error || self.generation() != generation {
            return true;
        }
        let first = !self.settled.load(Ordering::Acquire);
        if first {
            self.settle();
        }
        self.flush(&mut pending);
        if first {
            self.wake_waiters();
        }
        true
    }

    /// Returns whether it is connected to a peer that is gone.
    fn has_lost_peer(&self) -> bool {
        self.is_connected() && !self.outlives_peer.load(Ordering::Acquire) && self.peer_is_gone()
    }

    /// Posts the receives again that a dead peer had taken: their messages are incomplete, and lost.
    fn post_taken_again(self: &Arc<Self>) {
        for (position, receive) in self.take_back_incomplete() {
            if !self.post_again(position, &receive) {
                self.siblings.post_later(self, position, receive);
            }
        }
    }

    /// Goes on without the dead peer of an unreliable connection, which nobody tells of the death. The receives that
    /// the peer had taken are posted again: their messages are incomplete, and lost.
    fn outlive_peer(self: &Arc<Self>) {
        self.post_taken_again();
        self.outlives_peer.store(true, Ordering::Release);
        self.wake_waiters();
    }

    /// If the peer died: moves to the error state, recovers what the peer held, and flushes. An unreliable connection stays as it
    /// is.
    pub(crate) fn end_if_peer_left(self: &Arc<Self>) {
        if !self.has_lost_peer() {
            return;
        }
        let mut pending = self.lock_pending();
        // The thread that had the lock may have connected it to another peer.
        if !self.has_lost_peer() {
            return;
        }
        if !self.is_reliable() {
            return self.outlive_peer();
        }
        if self.context.silent_deaths && pending.is_empty() && self.state() != QpState::Error {
            return self.stay_connected();
        }
        // The request in progress ends as with a peer that stays silent; the rest is flushed.
        if !pending.is_empty() && self.state() == QpState::Rts {
            self.end(&mut pending, Status::RetryExceeded);
        }
        self.fail();
        self.settle();
        self.flush(&mut pending);
        self.wake_waiters();
    }

    /// Stays connected to a peer that died, as an RNIC does which cannot notice a death. The next request finds the peer's queue pair
    /// in error and its process dead, and so ends as with a peer that stays silent.
    fn stay_connected(self: &Arc<Self>) {
        self.outlives_peer.store(true, Ordering::Release);
        if let Some(peer) = self.known_peer() {
            let theirs = peer
                .table
                .held_qp(slot_of(self.row().dest_qpn.load(Ordering::Relaxed)));
            // Nobody else writes to the table of a dead process, but processes that do the same.
            theirs.fail(theirs.life().generation());
        }
        self.post_taken_again();
        self.wake_waiters();
    }

    /// Wakes all who sleep on the channels of its CQs.
    fn wake_waiters(&self) {
        self.send_cq.port().wake_waiters();
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.port().wake_waiters();
        }
    }
}
