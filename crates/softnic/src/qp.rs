//! Queue pairs: states, posting, accounting.
//!
//! A queue pair has two halves. [`SoftQp`] is the owner's handle: its thread posts, and executes
//! small requests in the call with an engine of its own, without a lock. [`QpCore`] is what the
//! owner shares with the pollers and the progress thread: the requests that wait, under a lock.
//! `waiting` joins them: only the owner makes it non-zero, only an empty list makes it zero, and
//! the owner executes in the call only while it is zero; so requests never overtake.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_shm::lane::Detour;
use headworks_shm::{SlotQueue, asymmetric};
use headworks_verbs::{
    ModifyError, Opcode, Payload, PostError, PostErrorKind, QpAttr, QpCaps, QpCounters, QpInit,
    QpState, QpType, Qpn, QueuePair, RecvWr, ResourceError, SendFlags, SendOp, SendWr, Status,
    state,
};

use crate::cq::SoftCq;
use crate::device::{Context, PeerKey, slot_of};
use crate::peer::Peer;
use crate::quarantine::Kept;
use crate::srq::{ReceiveQueue, SoftSrq};
use crate::table::{CqSlot, Held, Life, MAX_SGE, NO_ROW, Place, QpRow, RecvSlot, count};

pub(crate) mod datagram;
mod deliver;
mod engine;
mod link;
mod pending;
mod unruly;

use engine::{Engine, Outcome, Progress, Request, Source};
pub(crate) use link::Link;
pub(crate) use pending::Next;
use pending::{Pending, Waiting};
use unruly::Unruly;

/// Longest request executed within the call that posts it, in bytes. Longer ones are executed in
/// chunks of this order by later calls.
pub const INLINE_MAX: usize = 64 << 10;

/// Bytes of shared memory that each queue pair takes, apart from the slots of its receive queue: its
/// row, the place for its window's, and that queue's header.
pub const SHARED_BYTES_PER_QP: usize =
    size_of::<QpRow>() + size_of::<Place>() + SlotQueue::<RecvSlot>::bytes(0);

/// Bits of a generation that number a queue pair's connections.
const CONNECTION_BITS: u32 = 16;

/// What a queue pair's owner, its pollers and the progress thread share.
pub(crate) struct QpCore {
    pub(crate) context: Arc<Context>,
    row: Held<QpRow>,
    /// Which use of the slot, and which connection of it: changes at every RESET, so that a peer
    /// of before is one no more.
    generation: AtomicU64,
    far: Mutex<FarEnd>,
    /// The last generation in which the queue pair failed and the program knows: it was told, or did it
    /// itself.
    told: AtomicU64,
    /// Since it failed, what the peer had taken of its receives has been taken back.
    settled: AtomicBool,
    pub(crate) qpn: u32,
    pub(crate) pd: u32,
    qp_type: QpType,
    pub(crate) send_cq: Arc<SoftCq>,
    pub(crate) recv_cq: Arc<SoftCq>,
    pub(crate) srq: Option<Arc<SoftSrq>>,
    receives: Option<ReceiveQueue>,
    signal_all: bool,
    /// Requests that wait.
    waiting: AtomicU32,
    /// Whether this queue pair has the lane of its send CQ.
    has_lane: bool,
    /// Completions that went past the lane.
    detour: Detour,
    pending: Mutex<Pending>,
    /// How it misbehaves, where the device is hostile.
    unruly: Option<Box<Unruly>>,
    /// Nobody has carried on what waits since the progress thread looked.
    pub(crate) rests: AtomicBool,
    /// Receives posted again, ever: those that dead senders of datagrams had in hand.
    rq_reposted: AtomicU64,
}

/// Where a queue pair is connected to.
#[derive(Default)]
struct FarEnd {
    /// The context there, once connected.
    peer: Option<Arc<Peer>>,
    /// Its place in the fabric, or where it would be.
    dest: Option<PeerKey>,
}

/// A queue pair of the software RNIC.
pub(crate) struct SoftQp {
    core: Arc<QpCore>,
    caps: QpCaps,
    engine: Engine,
    /// Send requests posted, ever.
    posted: u64,
    rts: Life,
    /// Whether READs and atomics may be outstanding at all.
    may_read: bool,
}

impl QpCore {
    #[inline]
    pub(crate) fn row(&self) -> &QpRow {
        &self.row
    }

    /// Which row of the table it has.
    pub(crate) fn slot(&self) -> usize {
        slot_of(self.qpn)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The context that it is connected to.
    pub(crate) fn peer(&self) -> Option<Arc<Peer>> {
        self.far().peer.clone()
    }

    pub(crate) fn set_peer(&self, peer: Option<Arc<Peer>>) {
        self.far().peer = peer;
    }

    fn far(&self) -> MutexGuard<'_, FarEnd> {
        self.far.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The context that `attr` connects to; `None` if nobody is there.
    fn find_peer(&self, attr: &QpAttr) -> Result<Option<Arc<Peer>>, ModifyError> {
        let (Some(gid), Some(qpn)) = (attr.dest_gid, attr.dest_qpn) else {
            return Ok(None);
        };
        let host = crate::device::host_of(gid);
        // Before it is looked for: a peer that is counted is not forgotten.
        self.set_dest(Some(crate::device::key_of(host, qpn.raw())));
        let found = self.context.peer(host, qpn.raw());
        found.map_err(|error| ModifyError::PeerUnreachable {
            what: error.what,
            reason: error.source.to_string(),
        })
    }

    pub(crate) fn state(&self) -> QpState {
        self.row().life().state()
    }

    /// Whether it is a queue pair of datagrams (UD).
    #[inline]
    pub(crate) fn is_datagrams(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    /// The position in the receive queue that is posted to next.
    fn rq_position(&self) -> u64 {
        // What is in the row others can write.
        let posted = self.row().rq_posted.load(Ordering::Relaxed);
        posted.wrapping_add(self.rq_reposted.load(Ordering::Relaxed))
    }

    /// Whether a request of the life `rts` may be executed now, ahead of nothing.
    #[inline(always)]
    fn is_ready(&self, row: &QpRow, rts: Life) -> bool {
        row.life() == rts && self.waiting.load(Ordering::Acquire) == 0
    }

    /// Whether there is no room in the send queue after `posted` requests.
    #[inline(always)]
    fn is_full(row: &QpRow, posted: u64, caps: &QpCaps) -> bool {
        let retired = row.sq_retired.load(Ordering::Relaxed);
        posted.saturating_sub(retired) >= u64::from(caps.max_send_wr)
    }

    /// Completes a send request from the posting thread: through the lane, unless a completion
    /// that went past it is still unpolled. Those would overtake each other. `position` is how many
    /// requests the completion retires.
    #[inline(always)]
    fn complete_posted(&self, wr_id: u64, position: u64, op: Opcode, status: Status, len: u32) {
        let slot = || self.send_completion(wr_id, position, op, status, len);
        if !self.has_lane || !self.detour.is_over(&self.row().sq_retired) {
            return self.queue_completion(slot());
        }
        match self.send_cq.push_lane(slot) {
            Ok(()) => count(&self.row().executing.lane, 1),
            Err(_) => self.overran(),
        }
    }

    /// Completes a send request from any thread.
    fn complete_send(&self, wr_id: u64, position: u64, op: Opcode, status: Status, len: u32) {
        self.queue_completion(self.send_completion(wr_id, position, op, status, len));
    }

    #[inline(always)]
    fn send_completion(
        &self,
        wr_id: u64,
        position: u64,
        op: Opcode,
        status: Status,
        byte_len: u32,
    ) -> CqSlot {
        CqSlot {
            wr_id,
            position,
            qpn: self.qpn,
            byte_len,
            status: status as u8,
            opcode: op as u8,
            ..CqSlot::default()
        }
    }

    #[inline(never)]
    fn queue_completion(&self, slot: CqSlot) {
        self.detour.take(slot.position);
        if self
            .send_cq
            .port()
            .push(self.slot() as u16 | crate::srq::OWNER, slot, false)
            .is_err()
        {
            self.overran();
        }
    }

    #[cold]
    fn overran(&self) {
        self.row().fail(self.generation());
        self.attend();
    }

    /// Has the progress thread look at this queue pair.
    pub(crate) fn attend(&self) {
        self.context.table.attention().qps.set(self.slot());
        self.context.progress.kick();
    }

    /// Has the progress thread see to what waits, unless others do.
    fn watch(&self) {
        self.context.table.attention().qps.set(self.slot());
        self.context.progress.watch();
    }

    /// A send request failed: the error state or, where only sending is over (UD), SQE.
    #[cold]
    fn fail_send(&self) {
        if self.is_datagrams() {
            self.row().stop_sending(self.generation());
        } else {
            self.fail();
        }
    }

    /// Moves the queue pair to the error state, as the device does by itself.
    #[cold]
    pub(crate) fn fail(&self) {
        let generation = self.generation();
        if self.row().fail(generation) {
            self.tell(generation);
            // The progress thread flushes what is posted, whoever may be using the lists now.
            self.attend();
        }
    }

    /// Raises the event of a queue pair that failed in that generation, once, whoever moved it to the
    /// error state.
    pub(crate) fn tell(&self, generation: u64) {
        if self.told.fetch_max(generation, Ordering::AcqRel) < generation {
            self.row().executing.events.fetch_add(1, Ordering::Relaxed);
            self.context.events.qp_fatal(self.qpn);
        }
    }
}

impl SoftQp {
    pub(crate) fn create(
        context: &Arc<Context>,
        pd: u32,
        init: &QpInit,
    ) -> Result<Self, ResourceError> {
        if !matches!(init.qp_type, QpType::Rc | QpType::Ud) {
            return Err(ResourceError::Unsupported {
                what: "queue pairs of another type than RC and UD",
            });
        }
        context.progress.start(context)?;
        let caps = checked_caps(context, init)?;
        let send_cq = context.own_cq(&init.send_cq)?;
        let recv_cq = context.own_cq(&init.recv_cq)?;
        let srq = match &init.srq {
            None => None,
            Some(srq) => Some(context.own_srq(srq)?),
        };
        let receives = match srq {
            Some(_) => None,
            None => Some(ReceiveQueue::new(
                context,
                caps.max_recv_wr,
                caps.max_recv_sge,
            )?),
        };
        let slot = context.qp_rows.take("queue pairs")? as usize;
        let generation = u64::from(context.qp_rows.generation(slot as u32));
        let qpn = context.qpn(slot, generation);
        let generation = generation << CONNECTION_BITS;
        let row = context.table.qp(slot);
        row.executing.clear();
        row.sq_retired.store(0, Ordering::Relaxed);
        row.rq_retired.store(0, Ordering::Relaxed);
        for word in [&row.rq_posted, &row.received, &row.received_bytes] {
            word.store(0, Ordering::Relaxed);
        }
        row.send_cq.store(send_cq.row, Ordering::Relaxed);
        row.qpn.store(qpn, Ordering::Relaxed);
        row.dest_qpn.store(NO_ROW, Ordering::Relaxed);
        row.pd.store(pd, Ordering::Relaxed);
        row.qkey.store(0, Ordering::Relaxed);
        row.datagrams
            .store((init.qp_type == QpType::Ud).into(), Ordering::Relaxed);
        row.recv_cq.store(recv_cq.row, Ordering::Relaxed);
        row.srq
            .store(srq.as_ref().map_or(NO_ROW, |s| s.row), Ordering::Relaxed);
        if let Some(receives) = &receives {
            row.receive_queue.set(receives.place(), receives.capacity());
        }
        row.life
            .store(Life::new(generation, QpState::Reset).0, Ordering::Release);
        let has_lane = send_cq.claim_lane();
        let core = Arc::new(QpCore {
            context: context.clone(),
            row: context.table.held_qp(slot),
            generation: AtomicU64::new(generation),
            far: Mutex::default(),
            told: AtomicU64::new(0),
            settled: AtomicBool::new(false),
            qpn,
            pd,
            qp_type: init.qp_type,
            send_cq,
            recv_cq,
            srq,
            receives,
            signal_all: init.signal_all,
            waiting: AtomicU32::new(0),
            has_lane,
            detour: Detour::new(),
            pending: Mutex::default(),
            // Datagrams may be lost and overtake each other on any device.
            unruly: context
                .hostility
                .as_ref()
                .filter(|_| init.qp_type == QpType::Rc)
                .map(|hostility| Box::new(Unruly::new(hostility))),
            rests: AtomicBool::new(false),
            rq_reposted: AtomicU64::new(0),
        });
        context.enter_qp(&core);
        let rts = Life::new(generation, QpState::Rts);
        Ok(Self {
            core,
            caps,
            engine: Engine::default(),
            posted: 0,
            rts,
            may_read: true,
        })
    }
}

#[cfg(test)]
impl SoftQp {
    /// How many destinations and contexts its datagrams remember the way to.
    pub(crate) fn remembered(&self) -> Option<(usize, usize)> {
        self.engine.datagrams().map(datagram::Datagrams::remembered)
    }
}

/// A posting call under way.
struct Poster<'a> {
    core: &'a Arc<QpCore>,
    caps: &'a QpCaps,
    rts: Life,
    engine: &'a mut Engine,
    posted: &'a mut u64,
    may_read: bool,
}

impl Poster<'_> {
    /// Posts the requests of a chain from number `done` on, of any kind.
    #[inline(never)]
    fn post_rest(&mut self, wrs: &[SendWr<'_>], done: usize) -> Result<(), PostError> {
        for (index, wr) in wrs.iter().enumerate().skip(done) {
            let mut progress = Progress::default();
            if !self.post_short(wr, &mut progress) {
                self.post_any(wr, progress).map_err(|kind| kind.at(index))?;
            }
        }
        if self.core.unruly.is_some() {
            // Some of it may be placed in the call.
            self.core.try_carry_on(crate::device::clock());
        }
        Ok(())
    }

    /// Posts one SEND of the usual shape, if that is what it is and nothing is in its way. Otherwise
    /// nothing was done, but that `progress` may hold a receive for it.
    #[inline(always)]
    fn post_short(&mut self, wr: &SendWr<'_>, progress: &mut Progress) -> bool {
        let imm = match wr.op {
            SendOp::Send => None,
            SendOp::SendImm(imm) => Some(imm),
            _ => return false,
        };
        let Some(from) = Source::short(wr, self.caps) else {
            return false;
        };
        let row = self.core.row();
        if QpCore::is_full(row, *self.posted, self.caps) || !self.core.is_ready(row, self.rts) {
            return false;
        }
        let how = (imm, wr.flags.contains(SendFlags::SOLICITED));
        let Some(outcome) = self.engine.send_short(from, how, progress) else {
            return false;
        };
        *self.posted += 1;
        self.ended(wr, Opcode::Send, outcome, wr.payload.len(), 0);
        true
    }

    /// A request of `len` bytes was executed to its end.
    #[inline(always)]
    fn ended(&self, wr: &SendWr<'_>, op: Opcode, outcome: Outcome, len: u64, byte_len: u32) {
        let (status, byte_len) = match outcome {
            Outcome::Failed(status) => (status, 0),
            _ => (Status::Success, byte_len),
        };
        let failed = status != Status::Success;
        if !failed {
            self.core.row().executing.moved(op, len);
        }
        if failed || self.core.signal_all || wr.flags.contains(SendFlags::SIGNALED) {
            self.core
                .complete_posted(wr.wr_id, *self.posted, op, status, byte_len);
        }
        if failed {
            self.core.fail_send();
        }
    }

    /// Posts one request: executes it, or puts it behind those that wait.
    fn post_any(&mut self, wr: &SendWr<'_>, mut progress: Progress) -> Result<(), PostErrorKind> {
        if QpCore::is_full(self.core.row(), *self.posted, self.caps) {
            return Err(PostErrorKind::QueueFull);
        }
        let request = Request::check(wr, self.caps, self.core.is_datagrams(), self.may_read)?;
        if let Some(unruly) = &self.core.unruly {
            let signaled = self.core.signal_all || wr.flags.contains(SendFlags::SIGNALED);
            let number = (*self.posted + 1, wr.wr_id);
            if unruly.refuses_send(self.core, number, &request, signaled) {
                return Err(PostErrorKind::QueueFull);
            }
            *self.posted += 1;
            self.post_later(wr, progress);
            return Ok(());
        }
        *self.posted += 1;
        if !self.core.is_ready(self.core.row(), self.rts) || request.len > INLINE_MAX as u64 {
            self.post_later(wr, progress);
            return Ok(());
        }
        let op = request.opcode();
        let outcome = self
            .engine
            .execute(self.core, &request, &mut progress, INLINE_MAX);
        match outcome {
            Outcome::Done | Outcome::Failed(_) => {
                self.ended(wr, op, outcome, request.len, request.byte_len());
            }
            Outcome::More
            | Outcome::NoReceive(_)
            | Outcome::NotReady
            | Outcome::Ask(_)
            | Outcome::Called => self.post_later(wr, progress),
        }
        Ok(())
    }

    #[cold]
    fn post_later(&mut self, wr: &SendWr<'_>, progress: Progress) {
        let mut pending = self.core.lock_pending();
        pending.push(Waiting::of(wr, *self.posted, progress));
        if self.core.waiting.fetch_add(1, Ordering::AcqRel) == 0 {
            self.core.send_cq.has_work(self.core);
        }
        match self.core.state() {
            QpState::Error => self.core.flush(&mut pending),
            QpState::Sqe => self.core.flush_sends(&mut pending),
            _ => {
                drop(pending);
                self.core.watch();
            }
        }
    }
}

/// Sizes within the device's limits.
fn checked_caps(context: &Context, init: &QpInit) -> Result<QpCaps, ResourceError> {
    let limits = &context.info.limits;
    let caps = init.caps;
    let bound = |what, asked: u32, highest: u32| {
        if asked <= highest {
            return Ok(());
        }
        let (asked, highest) = (asked.into(), highest.into());
        Err(ResourceError::Limit {
            what,
            asked,
            lowest: 0,
            highest,
        })
    };
    bound("send queue size", caps.max_send_wr, limits.max_qp_wr)?;
    bound("receive queue size", caps.max_recv_wr, limits.max_qp_wr)?;
    bound(
        "send scatter/gather entries",
        caps.max_send_sge,
        limits.max_sge,
    )?;
    bound(
        "receive scatter/gather entries",
        caps.max_recv_sge,
        limits.max_sge,
    )?;
    bound("inline payload", caps.max_inline, limits.max_inline)?;
    debug_assert!(limits.max_sge as usize <= MAX_SGE);
    Ok(caps)
}

impl QueuePair for SoftQp {
    fn qpn(&self) -> Qpn {
        Qpn::new(self.core.qpn).unwrap_or_default()
    }

    fn state(&self) -> QpState {
        self.core.state()
    }

    fn caps(&self) -> &QpCaps {
        &self.caps
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        let core = &self.core;
        if core.context.is_foreign() {
            return Err(ModifyError::Forked);
        }
        check_values(attr)?;
        let mut pending = core.lock_pending();
        let from = core.row().life();
        let to = state::check(core.qp_type, from.state(), attr)?;
        if to == QpState::Rtr {
            // Whoever may write here is known before it may: taking memory away waits for it.
            core.set_peer(core.find_peer(attr)?);
        }
        core.store(attr);
        pending.tune(attr);
        self.may_read = attr.max_rd_atomic.map_or(self.may_read, |count| count > 0);
        match to {
            QpState::Error => {
                core.told.fetch_max(core.generation(), Ordering::AcqRel);
                core.row().fail(core.generation());
                match core.quiesce() {
                    Ok(()) => core.settle(),
                    // The progress thread does, when the peer has gone on.
                    Err(_) => core.attend(),
                }
                core.flush(&mut pending);
            }
            QpState::Reset => {
                let generation = core.generation() + 1;
                core.generation.store(generation, Ordering::Release);
                self.rts = Life::new(generation, QpState::Rts);
                core.row()
                    .life
                    .store(Life::new(generation, to).0, Ordering::Release);
                if core.quiesce().is_err() {
                    // What the peer holds cannot be used anew yet: an error, to be ended as any.
                    core.told.fetch_max(generation, Ordering::AcqRel);
                    core.settled.store(false, Ordering::Release);
                    let failed = Life::new(generation, QpState::Error);
                    core.row().life.store(failed.0, Ordering::Release);
                    core.attend();
                    return Err(ModifyError::PeerStopped);
                }
                core.set_peer(None);
                core.set_dest(None);
                core.discard(&mut pending);
                core.settled.store(false, Ordering::Release);
                self.engine = Engine::default();
                if core.is_datagrams() {
                    // It lets go of whom nobody sends to any more.
                    core.context.progress.kick();
                }
                core.row().sq_retired.store(self.posted, Ordering::Relaxed);
            }
            _ => {
                // Only if nothing failed it meanwhile.
                let life = Life::new(core.generation(), to);
                let row = core.row();
                let stored =
                    row.life
                        .compare_exchange(from.0, life.0, Ordering::AcqRel, Ordering::Acquire);
                if stored.is_err() {
                    return Err(ModifyError::Transition {
                        from: core.state(),
                        to,
                    });
                }
            }
        }
        drop(pending);
        if to == QpState::Rtr {
            core.attend();
        }
        if to == QpState::Rts && core.has_waiting() {
            core.watch();
        }
        Ok(())
    }

    fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let Self {
            core,
            caps,
            engine,
            posted,
            rts,
            may_read,
        } = self;
        if core.context.is_foreign() {
            return Err(PostErrorKind::Forked.at(0));
        }
        let row = core.row();
        let life = row.life();
        if life != *rts && !matches!(life.state(), QpState::Sqd | QpState::Sqe | QpState::Error) {
            return Err(PostErrorKind::State(life.state()).at(0));
        }
        let executing = row.executing.post(*posted);
        if engine.full_fences() {
            asymmetric::full();
        } else {
            asymmetric::light();
        }
        let done = engine.write_short(core, caps, *rts, posted, wrs);
        let outcome = if done == wrs.len() {
            Ok(())
        } else {
            let rts = *rts;
            let mut poster = Poster {
                core,
                caps,
                rts,
                engine,
                posted,
                may_read: *may_read,
            };
            poster.post_rest(wrs, done)
        };
        executing.end(*posted);
        outcome
    }

    fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let core = &self.core;
        if core.context.is_foreign() {
            return Err(PostErrorKind::Forked.at(0));
        }
        let Some(receives) = &core.receives else {
            return Err(PostErrorKind::HasSrq.at(0));
        };
        if core.state() == QpState::Reset {
            return Err(PostErrorKind::State(QpState::Reset).at(0));
        }
        for (index, wr) in wrs.iter().enumerate() {
            let row = core.row();
            let posted = row.rq_posted.load(Ordering::Relaxed);
            let retired = row.rq_retired.load(Ordering::Relaxed);
            let outstanding = core.rq_position().saturating_sub(retired);
            if outstanding >= u64::from(self.caps.max_recv_wr) {
                return Err(PostErrorKind::QueueFull.at(index));
            }
            if let Some(unruly) = &core.unruly
                && unruly.refuses_receive(core, (posted.wrapping_add(1), wr.wr_id), outstanding)
            {
                return Err(PostErrorKind::QueueFull.at(index));
            }
            receives.post(wr).map_err(|kind| kind.at(index))?;
            row.rq_posted
                .store(posted.wrapping_add(1), Ordering::Relaxed);
        }
        if core.state() == QpState::Error {
            core.flush(&mut core.lock_pending());
        }
        Ok(())
    }

    fn counters(&self) -> Option<QpCounters> {
        Some(self.core.row().counters())
    }
}

fn check_values(attr: &QpAttr) -> Result<(), ModifyError> {
    let bound = |attribute, value: Option<u8>, highest: u8| match value {
        Some(value) if value > highest => Err(ModifyError::Value {
            attribute,
            value: value.into(),
            highest: highest.into(),
        }),
        _ => Ok(()),
    };
    bound("timeout", attr.timeout, 31)?;
    bound("retry_count", attr.retry_count, 7)?;
    bound("rnr_retry", attr.rnr_retry, 7)?;
    bound(
        "max_rd_atomic",
        attr.max_rd_atomic,
        crate::device::MAX_RD_ATOMIC,
    )?;
    bound(
        "max_dest_rd_atomic",
        attr.max_dest_rd_atomic,
        crate::device::MAX_RD_ATOMIC,
    )
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        let core = &self.core;
        if core.context.is_foreign() {
            return;
        }
        if core.is_datagrams() {
            self.engine.forget_ways();
            core.context.progress.kick();
        }
        let mut pending = core.lock_pending();
        core.row().life.store(0, Ordering::Release);
        if core.has_lane {
            core.send_cq.release_lane(&core.row().executing.lane);
        }
        match core.quiesce() {
            Ok(()) => core.leave(&mut pending),
            Err(stopped) => {
                let kept = Kept::QueuePair(core.clone());
                let context = &core.context;
                context.quarantine.keep(context, stopped, kept);
            }
        }
    }
}

/// What completes, for a posted operation.
const fn opcode_of(op: &SendOp) -> Opcode {
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendTo(_) | SendOp::SendToImm(..) => {
            Opcode::Send
        }
        SendOp::Read(_) => Opcode::Read,
        SendOp::CompareSwap { .. } => Opcode::CompareSwap,
        SendOp::FetchAdd { .. } => Opcode::FetchAdd,
        _ => Opcode::Write,
    }
}

/// Whether the bytes come with the request.
const fn is_inline(payload: &Payload<'_>) -> bool {
    matches!(payload, Payload::Inline(_))
}
