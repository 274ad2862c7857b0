//! Requests that wait: long ones in chunks, SENDs without a receive, peers that are not ready;
//! retries, timeouts and flushing.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};

use headworks_shm::asymmetric_fence;
use headworks_verbs::{
    Duration, Instant, Opcode, Payload, QpAttr, QpState, RnrTimer, SendFlags, SendOp, SendWr, Sge,
    Status,
};

use super::engine::{Engine, Outcome, Progress, Request};
use super::hostile_qp::Ordeal;
use super::{QpCore, opcode_of};
use crate::srq::OWNER;
use crate::table::{CqSlot, Life, NO_ROW, RecvSlot};

/// Bytes executed in one step.
pub(super) const CHUNK: usize = 256 << 10;
/// How often a peer that is not ready is looked up again.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// Longest sleep between two tries of a request that may wait for ever.
const TRY_AGAIN_MAX: Duration = Duration::from_millis(10);

/// The requests of a queue pair that wait.
#[derive(Default)]
pub(crate) struct Pending {
    /// Made when something waits first: of thousands of queue pairs few ever have anything.
    backlog: Option<Box<Backlog>>,
    timeout: u8,
    retry_count: u8,
    pub(super) rnr_retry: u8,
}

/// What waits, and who executes it.
#[derive(Default)]
pub(super) struct Backlog {
    /// Oldest first.
    pub(super) list: VecDeque<Waiting>,
    pub(super) engine: Engine,
    pub(super) stall: Option<Stall>,
    /// Steps made, where the device is hostile.
    pub(super) ticks: u64,
}

/// A request that waits, with everything it needs.
pub(crate) struct Waiting {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    payload: Owned,
    pub(super) flags: SendFlags,
    pub(super) position: u64,
    pub(super) progress: Progress,
    /// What it goes through, where the device is hostile.
    pub(super) ordeal: Option<Box<Ordeal>>,
}

enum Owned {
    Gather(Vec<Sge>),
    Inline(Box<[u8]>),
}

/// Why the oldest request does not go on.
pub(super) struct Stall {
    cause: Cause,
    tries: u32,
    next_try: Instant,
    give_up: Instant,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Cause {
    NoReceive,
    NotReady,
    Called,
}

/// When a queue pair wants to be carried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing waits.
    Never,
    /// Now.
    Now,
    /// Then.
    At(Instant),
}

impl Waiting {
    /// A request that has got as far as `progress` says.
    pub(crate) fn of(wr: &SendWr<'_>, position: u64, progress: Progress) -> Self {
        let payload = match wr.payload {
            Payload::Gather(sges) => Owned::Gather(sges.to_vec()),
            Payload::Inline(bytes) => Owned::Inline(bytes.into()),
        };
        Self {
            wr_id: wr.wr_id,
            op: wr.op,
            payload,
            flags: wr.flags,
            position,
            progress,
            ordeal: None,
        }
    }

    pub(super) fn payload(&self) -> Payload<'_> {
        self.payload.as_payload()
    }

    /// It as a request, and how far it has got.
    pub(super) fn request(&mut self) -> (Request<'_>, &mut Progress) {
        let payload = self.payload.as_payload();
        let request = Request {
            op: self.op,
            payload,
            solicited: self.flags.contains(SendFlags::SOLICITED),
            len: payload.len(),
        };
        (request, &mut self.progress)
    }

    /// Some of it is done, or the peer was asked for it, or it waits for those before it to end.
    pub(super) fn has_begun(&self) -> bool {
        let Progress {
            done,
            claim,
            called,
            ..
        } = &self.progress;
        *done > 0 || claim.is_some() || called.is_some() || self.ended().is_some()
    }
}

impl Owned {
    fn as_payload(&self) -> Payload<'_> {
        match self {
            Self::Gather(sges) => Payload::Gather(sges),
            Self::Inline(bytes) => Payload::Inline(bytes),
        }
    }
}

impl Pending {
    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.backlog().list.push_back(waiting);
    }

    pub(super) fn backlog(&mut self) -> &mut Backlog {
        self.backlog.get_or_insert_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        let backlog = self.backlog.as_ref();
        backlog.is_none_or(|backlog| backlog.list.is_empty())
    }

    /// Whether a request that has begun is among them.
    fn has_begun(&self) -> bool {
        let mut backlogs = self.backlog.iter();
        backlogs.any(|backlog| backlog.list.iter().any(Waiting::has_begun))
    }

    /// Takes the attributes that say how long to try.
    pub(crate) fn tune(&mut self, attr: &QpAttr) {
        self.timeout = attr.timeout.unwrap_or(self.timeout);
        self.retry_count = attr.retry_count.unwrap_or(self.retry_count);
        self.rnr_retry = attr.rnr_retry.unwrap_or(self.rnr_retry);
    }

    /// 4.096 µs × 2^timeout for each of the first try and the retries; 0 waits for ever.
    fn patience(&self) -> Option<Duration> {
        let one = Duration::from_nanos(4096u64 << self.timeout.min(31));
        (self.timeout != 0).then(|| one.times(u64::from(self.retry_count) + 1))
    }

    /// Executes a bounded part of the oldest request. `Some` when it ended.
    fn step(&mut self, core: &QpCore, now: Instant) -> Result<Option<Status>, Next> {
        let Backlog { list, engine, .. } = self.backlog();
        let Some(front) = list.front_mut() else {
            return Err(Next::Never);
        };
        let (request, progress) = front.request();
        let (op, len) = (request.opcode(), request.len);
        let outcome = engine.go_on(core, &request, progress, CHUNK);
        self.came_of(core, outcome, (op, len), now)
    }

    /// What `outcome` means for a request that waits, an `op` of `len` bytes: how it ended, that it goes
    /// on (`None`), or when it may.
    pub(super) fn came_of(
        &mut self,
        core: &QpCore,
        outcome: Outcome,
        (op, len): (Opcode, u64),
        now: Instant,
    ) -> Result<Option<Status>, Next> {
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
            Outcome::NotReady => self.stall_unanswered(core, Cause::NotReady, now),
            Outcome::Ask(_) | Outcome::Called => self.stall_unanswered(core, Cause::Called, now),
        }
    }

    fn stall_without_receive(
        &mut self,
        core: &QpCore,
        timer: RnrTimer,
        now: Instant,
    ) -> Result<Option<Status>, Next> {
        let rnr_retry = self.rnr_retry;
        let endless = rnr_retry == 7;
        let stall = match &mut self.backlog().stall {
            Some(stall) if stall.cause == Cause::NoReceive => {
                if now < stall.next_try {
                    return Err(Next::At(stall.next_try));
                }
                stall.tries += 1;
                stall
            }
            other => other.insert(Stall {
                cause: Cause::NoReceive,
                tries: 0,
                next_try: now,
                give_up: Instant::FAR_FUTURE,
            }),
        };
        core.row().executing.rnr.fetch_add(1, Ordering::Relaxed);
        if !endless && stall.tries >= u32::from(rnr_retry) {
            return Ok(Some(Status::RnrRetryExceeded));
        }
        // A request that may wait for ever is tried less and less often while nobody polls.
        let wait = match endless {
            true => timer
                .duration()
                .times(1 + u64::from(stall.tries / 8))
                .min(TRY_AGAIN_MAX),
            false => timer.duration(),
        };
        stall.next_try = now + wait.max(timer.duration());
        Err(Next::At(stall.next_try))
    }

    /// The peer does not answer: its queue pair is not there, or it was called and is busy.
    fn stall_unanswered(
        &mut self,
        core: &QpCore,
        cause: Cause,
        now: Instant,
    ) -> Result<Option<Status>, Next> {
        if core.peer_is_dead() {
            return Ok(Some(Status::RetryExceeded));
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
        if cause == Cause::Called {
            if now < stall.next_try {
                return Err(Next::At(stall.next_try));
            }
            if stall.tries > 0 {
                engine.ring();
            }
        }
        stall.tries += 1;
        let wait = LOOK_AGAIN.times(u64::from(stall.tries)).min(TRY_AGAIN_MAX);
        stall.next_try = (now + wait).min(stall.give_up);
        Err(Next::At(stall.next_try))
    }
}

impl QpCore {
    pub(crate) fn lock_pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests wait.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Carries on what waits, unless somebody else is at it.
    pub(crate) fn try_carry_on(&self, now: Instant) -> Next {
        if !self.has_waiting() {
            return Next::Never;
        }
        match self.pending.try_lock() {
            Ok(mut pending) => self.carry_on(&mut pending, now),
            Err(TryLockError::Poisoned(poisoned)) => self.carry_on(&mut poisoned.into_inner(), now),
            Err(TryLockError::WouldBlock) => Next::Now,
        }
    }

    /// One bounded step: a chunk of a long request, or as many short ones as fit one.
    fn carry_on(&self, pending: &mut Pending, now: Instant) -> Next {
        match self.state() {
            QpState::Rts => {}
            // What has begun ends before the send queue is drained (10.3.1).
            QpState::Sqd if pending.has_begun() => {}
            QpState::Error => {
                self.flush(pending);
                return Next::Never;
            }
            QpState::Sqe => {
                self.flush_sends(pending);
                return Next::Never;
            }
            _ => return Next::Never,
        }
        // A peer that is not there is not looked up on every poll.
        if let Some(stall) = &pending.backlog().stall
            && stall.cause == Cause::NotReady
            && now < stall.next_try
            && !self.peer_is_dead()
        {
            return Next::At(stall.next_try);
        }
        let executing = self.row().executing.carry_on();
        let next = match &self.unruly {
            None => self.carry_on_in_order(pending, now),
            Some(unruly) => self.carry_on_anyhow(unruly, pending, now),
        };
        drop(executing);
        self.context.progress.note_progress();
        self.rests.store(false, Ordering::Relaxed);
        match self.state() {
            QpState::Error => self.flush(pending),
            QpState::Sqe => self.flush_sends(pending),
            _ => return next,
        }
        Next::Never
    }

    fn carry_on_in_order(&self, pending: &mut Pending, now: Instant) -> Next {
        for _ in 0..16 {
            match pending.step(self, now) {
                Ok(Some(status)) => {
                    self.end(pending, status);
                    // What is behind a request that failed is flushed, not executed.
                    if status != Status::Success {
                        break;
                    }
                }
                Ok(None) => break,
                Err(when) => return when,
            }
            if pending.is_empty() || self.is_drained(pending) {
                return Next::Never;
            }
        }
        Next::Now
    }

    /// Whether nothing more is to be sent before the queue pair is in RTS again.
    pub(super) fn is_drained(&self, pending: &Pending) -> bool {
        self.state() == QpState::Sqd && !pending.has_begun()
    }

    /// The oldest request ended.
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

    /// Completes the sends posted with the flush status, in order.
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

    /// Completes everything posted with the flush status, sends and receives in order.
    pub(crate) fn flush(&self, pending: &mut Pending) {
        self.flush_sends(pending);
        let Some(receives) = &self.receives else {
            return;
        };
        // Receives that the peer had taken come first.
        if !self.settled.load(Ordering::Acquire) {
            return self.attend();
        }
        // No more than it holds: a broken peer may be filling it.
        for _ in 0..receives.capacity() {
            let Ok(Some(claim)) = receives.slots.claim_pop(OWNER) else {
                break;
            };
            let receive = receives.slots.value(&claim);
            self.flush_receive(receive.wr_id, claim.position());
            receives.slots.finish(claim);
        }
    }

    /// Gives back what the oldest request holds of the peer's. Others may be under way on hostile
    /// devices, and hold nothing.
    fn abandon_front(&self, backlog: &mut Backlog) {
        if let Some(front) = backlog.list.front_mut() {
            let _executing = self.row().executing.carry_on();
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
        // An overrun is marked in the CQ, and this queue pair is in error already.
        let _ = self
            .recv_cq
            .port()
            .push(self.slot() as u16 | OWNER, slot, false);
    }

    /// Forgets everything posted, without completions (RESET, destruction).
    pub(crate) fn discard(&self, pending: &mut Pending) {
        if let Some(mut backlog) = pending.backlog.take() {
            self.abandon_front(&mut backlog);
            if backlog.engine.has_window() {
                self.context.table.window(self.slot()).clear();
            }
            self.left_list(backlog.list.len());
        }
        // Also what the peer had taken: it is not executing, and finds the connection gone.
        self.take_back();
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

    /// Whether it is connected to somewhere.
    pub(crate) fn is_connected(&self) -> bool {
        self.state().can_receive() && self.row().dest_qpn.load(Ordering::Relaxed) != NO_ROW
    }

    /// Whether the process at the other end is known to be dead.
    pub(crate) fn peer_is_dead(&self) -> bool {
        self.context
            .known_peer_of(self)
            .is_some_and(|peer| peer.is_dead())
    }

    /// Whether it is dead, or went before it was known.
    pub(crate) fn peer_is_gone(&self) -> bool {
        match self.context.known_peer_of(self) {
            Some(peer) => peer.is_dead(),
            None => self.context.has_left(self),
        }
    }

    /// Takes back the receives that the peer took and did not complete, oldest first. For when it
    /// is dead, or finds the connection gone the next time it looks.
    fn take_back(&self) -> Vec<(u64, RecvSlot)> {
        if self.is_datagrams() {
            // Only those of the dead are left, and they are seen to here.
            self.context.senders.bury(&self.context);
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

    /// Takes back the receives that the dead sender of datagrams `who` took.
    pub(crate) fn take_back_from(&self, who: u16) -> Vec<(u64, RecvSlot)> {
        match (&self.receives, &self.srq) {
            (Some(receives), _) => receives.take_back(who),
            (None, Some(srq)) => srq.receives.take_back(who),
            (None, None) => Vec::new(),
        }
    }

    /// A receive that a dead sender had taken, and whose datagram is lost: it goes behind the
    /// others. Queue pairs that receive no more end it as any of theirs. `false` if there is no slot
    /// for it now.
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

    /// Flushes the receives that the peer took and did not complete. The peer executes nothing on
    /// this queue pair any more.
    pub(crate) fn settle(&self) {
        let taken = self.take_back();
        if let (Some(srq), false) = (&self.srq, taken.is_empty()) {
            srq.look_at_limit();
        }
        // Both queues may be long, and a broken peer may say that it took all there is.
        let mut unpolled = HashSet::new();
        if !taken.is_empty() {
            self.recv_cq.each_unpolled(|_, slot| {
                if slot.qpn == self.qpn && Opcode::from_code(slot.opcode).is_recv() {
                    unpolled.insert(slot.position);
                }
            });
        }
        for (position, receive) in taken {
            let polled = self.row().rq_retired.load(Ordering::Relaxed) > position;
            if !polled && !unpolled.contains(&position) {
                self.flush_receive(receive.wr_id, position);
            }
        }
        let first = !self.settled.swap(true, Ordering::AcqRel);
        if first && self.srq.is_some() {
            self.row().executing.events.fetch_add(1, Ordering::Relaxed);
            self.context.events.last_wqe(self.qpn);
        }
    }

    /// For the progress thread: ends a queue pair that is in error. `false` if the peer is still
    /// executing a request on it: try again soon.
    pub(crate) fn settle_failed(&self) -> bool {
        let generation = self.generation();
        if self.row().life() != Life::new(generation, QpState::Error) {
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
            self.rouse();
        }
        true
    }

    /// Whether it is connected to a peer that is not there any more.
    fn is_bereft(&self) -> bool {
        self.is_connected() && self.peer_is_gone()
    }

    /// If the peer died: error, recovery, flush.
    pub(crate) fn end_if_bereft(&self) {
        if !self.is_bereft() {
            return;
        }
        let mut pending = self.lock_pending();
        // Whoever had the lock may have connected it to somebody else.
        if !self.is_bereft() {
            return;
        }
        // The request in progress ends as on a silent peer; the rest is flushed.
        if !pending.is_empty() && self.state() == QpState::Rts {
            self.end(&mut pending, Status::RetryExceeded);
        }
        self.fail();
        self.settle();
        self.flush(&mut pending);
        self.rouse();
    }

    /// Wakes whoever sleeps on the channels of its CQs.
    fn rouse(&self) {
        self.send_cq.port().rouse();
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.port().rouse();
        }
    }
}
