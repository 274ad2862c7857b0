//! Queue pairs: their two halves, posting, accounting. `states` has the state changes.
//!
//! A queue pair has two halves. [`SoftQp`] is the owner's handle. The owner's thread posts through it, and
//! executes small requests in the call, with an engine of its own and without a lock. [`QpCore`] is what the
//! owner shares with the pollers and the progress thread: the pending requests, under a lock. `waiting` joins
//! the halves. Only the owner makes it non-zero, and only an empty list makes it zero. The owner executes in
//! the call only while it is zero, so requests never overtake each other.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_shm::lane::LaneBypass;
use headworks_shm::{SlotQueue, asymmetric_fence};
use headworks_verbs::{
    Instant, ModifyError, Opcode, Payload, PostError, PostErrorKind, QpAttr, QpCaps, QpCounters,
    QpState, QpType, Qpn, QueuePair, RecvWr, SendFlags, SendOp, SendWr, Status,
};

use crate::crash_points;
use crate::datapath::context::{Context, ContextRelease};
use crate::datapath::copy::{copy_short_span, copy_span};
use crate::datapath::cq::{self, Resume};
use crate::datapath::srq::{OWNER, ReceiveQueue, SoftSrq};
use crate::table::addresses::{PeerKey, key_of, slot_of};
use crate::table::clock;
use crate::table::initiator::Initiator;
use crate::table::peer::Peer;
use crate::table::rows::{CqSlot, NO_ROW, QpLife, QpRow, QueueLocation, RecvSlot, RowRef, count};

pub(crate) mod datagram;
mod dead_senders;
mod deliver;
mod engine;
mod hostile_qp;
mod pending;
mod queue_pairs;
mod remote_qp;
mod states;
mod write_path;

use engine::{Engine, Outcome, OwnWrIds, Request, RequestProgress, SameWrId, WrIds, WriteSource};
use hostile_qp::HostileQp;
pub(crate) use pending::NextStep;
use pending::{Pending, PendingRequest};
pub(crate) use queue_pairs::QueuePairs;
pub(crate) use remote_qp::RemoteQp;
pub(crate) use states::{QpParts, checked_caps};
use write_path::PeerLink;
#[cfg(test)]
pub(crate) use write_path::TWICE_TAKEN;

/// Longest request executed within the call that posts it, in bytes. Later calls execute longer ones, in
/// chunks of about this size.
pub const INLINE_MAX: usize = 64 << 10;

/// Bytes of shared memory that each queue pair takes, apart from the slots of its receive queue: its row, the
/// place that tells where its bounce buffer is, and the header of its receive queue.
pub const SHARED_BYTES_PER_QP: usize =
    size_of::<QpRow>() + size_of::<QueueLocation>() + SlotQueue::<RecvSlot>::bytes(0);

/// Bytes of these that are the header of its own receive queue. A queue pair with a shared receive queue does not take them.
pub const RECEIVE_QUEUE_HEADER_BYTES: usize = SlotQueue::<RecvSlot>::bytes(0);

/// A completion queue of this process.
pub(crate) type SoftCq = cq::SoftCq<QpCore>;

/// The half of a queue pair that its owner, its pollers and the progress thread share.
pub(crate) struct QpCore {
    pub(crate) context: Arc<Context>,
    /// The list of the context's queue pairs, which has this one too.
    siblings: Arc<QueuePairs>,
    row: RowRef<QpRow>,
    /// Counts the uses of the slot and the connections in each use. It changes at every RESET, so an earlier
    /// peer no longer matches.
    generation: AtomicU64,
    far: Mutex<RemoteEnd>,
    /// The last generation in which the queue pair failed and the program knows it: it got the event, or it
    /// moved the queue pair to the error state itself.
    told: AtomicU64,
    /// Set once the receives that the peer had claimed have been taken back after a failure.
    settled: AtomicBool,
    /// Set once its peer has died and the queue pair stays as it is: it is unreliable, or deaths are silent.
    outlives_peer: AtomicBool,
    pub(crate) qpn: u32,
    pub(crate) pd: u32,
    qp_type: QpType,
    pub(crate) send_cq: Arc<SoftCq>,
    pub(crate) recv_cq: Arc<SoftCq>,
    pub(crate) srq: Option<Arc<SoftSrq>>,
    /// Its own receives, if it has no shared receive queue. Boxed, because most of thousands of queue pairs use a shared one.
    receives: Option<Box<ReceiveQueue>>,
    signal_all: bool,
    /// Number of pending requests.
    waiting: AtomicU32,
    /// Whether this queue pair holds the lane of its send CQ.
    has_lane: bool,
    /// Tracks completions that bypassed the lane.
    lane_bypass: LaneBypass,
    pending: Mutex<Pending>,
    /// Fault injection, if the device is hostile.
    hostile: Option<Box<HostileQp>>,
    /// Set by each look of the progress thread, and cleared when pending requests are executed.
    pub(crate) rests: AtomicBool,
    /// Total number of receives posted again after a dead sender had claimed them.
    rq_reposted: AtomicU64,
}

/// The remote end of a queue pair.
struct RemoteEnd {
    /// The peer's context, once connected.
    peer: Option<Arc<Peer>>,
    /// The peer's key in the registry, even if there is no such context. [`NONE`](Self::NONE) before it is connected.
    dest: PeerKey,
}

impl RemoteEnd {
    /// A key that no queue pair number has: they have 24 bits, and the index is in the upper ones.
    const NONE: PeerKey = (0, u16::MAX);

    /// Records the peer's key. Returns the one before.
    fn replace_dest(&mut self, dest: Option<PeerKey>) -> Option<PeerKey> {
        let before = std::mem::replace(&mut self.dest, dest.unwrap_or(Self::NONE));
        (before != Self::NONE).then_some(before)
    }
}

impl Default for RemoteEnd {
    fn default() -> Self {
        Self {
            peer: None,
            dest: Self::NONE,
        }
    }
}

/// A queue pair of the software RNIC, as its owner holds it.
pub(crate) struct SoftQp {
    core: Arc<QpCore>,
    caps: QpCaps,
    engine: Engine,
    /// Number of send requests posted in total.
    posted: u64,
    /// Number of send requests up to which the send queue is known to have room. Requests that were retired since give more.
    room_until: u64,
    rts: QpLife,
    /// Whether the queue pair may have READs and atomics outstanding.
    may_read: bool,
    release: ContextRelease,
}

impl QpCore {
    #[inline]
    pub(crate) fn row(&self) -> &QpRow {
        &self.row
    }

    /// Returns the queue pair's row in the table.
    pub(crate) fn slot(&self) -> usize {
        slot_of(self.qpn)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the context that the queue pair is connected to.
    pub(crate) fn peer(&self) -> Option<Arc<Peer>> {
        self.far().peer.clone()
    }

    pub(crate) fn set_peer(&self, peer: Option<Arc<Peer>>) {
        self.far().peer = peer;
    }

    /// Returns the key of the context that it is connected to.
    fn peer_key(&self) -> PeerKey {
        let row = self.row();
        let host = row.dest_gid.load(Ordering::Relaxed);
        key_of(host, row.dest_qpn.load(Ordering::Relaxed))
    }

    /// Returns the attached context at the other end.
    pub(crate) fn known_peer(&self) -> Option<Arc<Peer>> {
        self.peer()
            .or_else(|| self.context.peers.attached(self.peer_key()))
    }

    /// Returns the queue pair that it is connected to, as an initiator that executes on this process's memory.
    pub(crate) fn initiator(&self) -> Option<Initiator> {
        let dest = self.row().dest_qpn.load(Ordering::Relaxed);
        Some(Initiator::new(self.known_peer()?, dest))
    }

    /// Returns whether its peer has died and it stays as it is.
    pub(crate) fn outlives_peer(&self) -> bool {
        self.outlives_peer.load(Ordering::Acquire)
    }

    /// Returns the queue pair of the same number in a context that has taken the place of the peer, which is gone: it may have
    /// connected itself to this queue pair, which is unreliable or whose peer's death was silent.
    pub(crate) fn successor(&self) -> Option<Initiator> {
        let dest = self.row().dest_qpn.load(Ordering::Relaxed);
        let is_alone = self.outlives_peer.load(Ordering::Acquire)
            || self.peer().is_none_or(|peer| peer.is_dead());
        if !self.qp_type.is_connected() || dest == NO_ROW || !is_alone {
            return None;
        }
        let host = self.row().dest_gid.load(Ordering::Relaxed);
        let found = self.context.peers.attach(host, dest).ok()??;
        Some(Initiator::new(found, dest))
    }

    fn far(&self) -> MutexGuard<'_, RemoteEnd> {
        self.far.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> QpState {
        self.row().life().state()
    }

    /// Returns whether this is a datagram queue pair (UD).
    #[inline]
    pub(crate) fn is_datagrams(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    /// Returns whether its peer refuses requests and notices lost ones (RC).
    #[inline]
    pub(crate) fn is_reliable(&self) -> bool {
        self.qp_type.is_reliable()
    }

    /// Returns the position at which the next receive is posted.
    fn rq_position(&self) -> u64 {
        // Peers can write the row, so the value is not trusted.
        let posted = self.row().rq_posted.load(Ordering::Relaxed);
        posted.wrapping_add(self.rq_reposted.load(Ordering::Relaxed))
    }

    /// Returns whether a request may be executed now: the queue pair is in the life `rts`, and nothing is
    /// pending.
    #[inline(always)]
    fn is_ready(&self, row: &QpRow, rts: QpLife) -> bool {
        row.life() == rts && self.waiting.load(Ordering::Acquire) == 0
    }

    /// Returns whether the send queue is full after `posted` requests.
    #[inline(always)]
    fn is_full(row: &QpRow, posted: u64, caps: &QpCaps) -> bool {
        let retired = row.sq_retired.load(Ordering::Relaxed);
        posted.saturating_sub(retired) >= u64::from(caps.max_send_wr)
    }

    /// Completes a WRITE that was executed at once: see [`complete_posted`](Self::complete_posted).
    #[inline(never)]
    fn complete_write(&self, wr_id: u64, position: u64) {
        self.complete_posted(wr_id, position, Opcode::Write, Status::Success, 0);
    }

    /// Completes a send request from the posting thread. The completion takes the lane, unless an earlier one
    /// that bypassed the lane is still unpolled: it would overtake that one. `position` is how many requests
    /// the completion retires.
    #[inline(always)]
    fn complete_posted(&self, wr_id: u64, position: u64, op: Opcode, status: Status, len: u32) {
        let slot = || self.send_completion(wr_id, position, op, status, len);
        if !self.has_lane || !self.lane_bypass.is_over(&self.row().sq_retired) {
            return self.queue_completion(slot());
        }
        match self.send_cq.push_lane(slot) {
            Ok(()) => count(&self.row().executing.lane, 1),
            Err(_) => self.overran(),
        }
    }

    /// Completes a send request from any thread. The completion bypasses the lane.
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
        self.lane_bypass.record(slot.position);
        if self
            .send_cq
            .port()
            .push(self.slot() as u16 | OWNER, slot, false)
            .is_err()
        {
            self.overran();
        }
    }

    #[cold]
    fn overran(&self) {
        self.row().fail(self.generation());
        self.service();
    }

    /// Marks this queue pair for the progress thread and wakes it.
    pub(crate) fn service(&self) {
        self.context.table.attention().qps.set(self.slot());
        self.context.progress.kick();
    }

    /// Marks this queue pair for the progress thread, and wakes it unless it drives pending requests already.
    fn watch(&self) {
        self.context.table.attention().qps.set(self.slot());
        self.context.progress.watch();
    }

    /// Handles a failed send request: moves the queue pair to the error state or, if it is unreliable, to SQE.
    #[cold]
    fn fail_send(&self) {
        if self.is_reliable() {
            self.fail();
        } else {
            self.row().stop_sending(self.generation());
        }
    }

    /// Moves the queue pair to the error state on the device's own initiative.
    #[cold]
    pub(crate) fn fail(&self) {
        let generation = self.generation();
        if self.row().fail(generation) {
            self.tell(generation);
            // The progress thread flushes what is posted: another thread may hold the lists now.
            self.service();
        }
    }

    /// Raises the event of a queue pair that failed in that generation, once, whichever side failed it.
    pub(crate) fn tell(&self, generation: u64) {
        if self.told.fetch_max(generation, Ordering::AcqRel) < generation {
            self.row().executing.events.fetch_add(1, Ordering::Relaxed);
            self.context.events.qp_fatal(self.qpn);
        }
    }
}

impl Resume for QpCore {
    fn slot(&self) -> usize {
        Self::slot(self)
    }

    fn resume(&self, now: Instant) {
        self.try_resume(now);
    }
}

#[cfg(test)]
impl SoftQp {
    /// Returns for how many destinations and contexts it caches the way.
    pub(crate) fn remembered(&self) -> Option<(usize, usize)> {
        self.engine.datagrams().map(datagram::Datagrams::remembered)
    }

    /// Returns its transport.
    pub(crate) fn qp_type(&self) -> QpType {
        self.core.qp_type
    }

    /// Returns whether it is unreliable, and has taken back what its dead peer held.
    pub(crate) fn has_outlived_its_peer(&self) -> bool {
        self.core.outlives_peer.load(Ordering::Acquire)
    }
}

/// A posting call in progress.
struct PostCall<'a> {
    core: &'a Arc<QpCore>,
    caps: &'a QpCaps,
    rts: QpLife,
    engine: &'a mut Engine,
    posted: &'a mut u64,
    may_read: bool,
}

impl PostCall<'_> {
    /// Posts the requests of a chain from index `done` on, of any kind.
    #[inline(never)]
    fn post_rest(
        &mut self,
        wrs: &[SendWr<'_>],
        done: usize,
        numbers: impl WrIds,
    ) -> Result<(), PostError> {
        for (index, wr) in wrs.iter().enumerate().skip(done) {
            let mut copy = None;
            let wr = numbers.write(wr, &mut copy);
            let mut progress = RequestProgress::default();
            if !self.post_short(wr, &mut progress) {
                self.post_any(wr, progress).map_err(|kind| kind.at(index))?;
            }
        }
        if self.core.hostile.is_some() {
            // Some of the chain may be executed within the call.
            self.core.try_resume(clock::now());
        }
        Ok(())
    }

    /// Posts `wr` if it is a short SEND that can be executed at once. Otherwise returns false and has done
    /// nothing, except that `progress` may hold a receive for it.
    #[inline(always)]
    fn post_short(&mut self, wr: &SendWr<'_>, progress: &mut RequestProgress) -> bool {
        let imm = match wr.op {
            SendOp::Send => None,
            SendOp::SendImm(imm) => Some(imm),
            _ => return false,
        };
        let Some(from) = WriteSource::short(wr, self.caps) else {
            return false;
        };
        let row = self.core.row();
        if QpCore::is_full(row, *self.posted, self.caps) || !self.core.is_ready(row, self.rts) {
            return false;
        }
        let how = (imm, wr.flags.contains(SendFlags::SOLICITED));
        // A message that does not fit must leave the receive of an unreliable connection where it is.
        if !self.core.is_reliable() {
            return false;
        }
        let Some(outcome) = self.engine.send_short(from, how, progress) else {
            return false;
        };
        *self.posted += 1;
        self.ended(wr, Opcode::Send, outcome, wr.payload.len(), 0);
        true
    }

    /// Counts and completes a request of `len` bytes that has ended.
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

    /// Posts one request: executes it, or appends it to the pending requests.
    fn post_any(
        &mut self,
        wr: &SendWr<'_>,
        mut progress: RequestProgress,
    ) -> Result<(), PostErrorKind> {
        if QpCore::is_full(self.core.row(), *self.posted, self.caps) {
            return Err(PostErrorKind::QueueFull);
        }
        let request = Request::check(wr, self.caps, self.core.qp_type, self.may_read)?;
        if let Some(hostile) = &self.core.hostile {
            let signaled = self.core.signal_all || wr.flags.contains(SendFlags::SIGNALED);
            let number = (*self.posted + 1, wr.wr_id);
            if hostile.refuses_send(self.core, number, &request, signaled) {
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
    fn post_later(&mut self, wr: &SendWr<'_>, progress: RequestProgress) {
        let mut pending = self.core.lock_pending();
        pending.push(PendingRequest::of(wr, *self.posted, progress));
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

impl SoftQp {
    /// Posts a chain. A short WRITE that is posted alone, and takes the path of the one before it, needs the fewest
    /// instructions: whatever needs a call is in other functions, so that this one saves no registers.
    #[inline(always)]
    fn post(&mut self, wrs: &[SendWr<'_>], numbers: impl WrIds) -> Result<(), PostError> {
        if let [wr] = wrs
            && let SendOp::Write(remote) = &wr.op
            && let PeerLink::Open(peer) = &self.engine.remote_qp
            && !self.release.is_foreign()
        {
            if wr.flags.contains(SendFlags::SIGNALED) || self.posted >= self.room_until {
                return self.post_on_path(wr, numbers);
            }
            let (row, posted) = (self.core.row(), self.posted);
            let executing = row.executing.post(posted);
            asymmetric_fence::light_assuming_supported();
            let ours = (row, &self.rts, &self.caps);
            if let Some((to, from)) = self.engine.take_path(peer, ours, wr, remote) {
                crash_points::at("write");
                if copy_short_span(to, from) {
                    count(&row.executing.sent_bytes, from.len() as u64);
                    executing.end(posted + 1);
                    self.posted = posted + 1;
                    return Ok(());
                }
            }
            executing.end(posted);
            return self.post_on_path(wr, numbers);
        }
        self.post_more(wrs, numbers)
    }

    /// Posts one WRITE that may take the path of the one before it: one that is signalled, or whose copy is not short.
    #[inline(never)]
    fn post_on_path(&mut self, wr: &SendWr<'_>, numbers: impl WrIds) -> Result<(), PostError> {
        if let (SendOp::Write(remote), PeerLink::Open(peer)) = (&wr.op, &self.engine.remote_qp) {
            let (row, posted) = (self.core.row(), self.posted);
            let executing = row.executing.post(posted);
            asymmetric_fence::light_assuming_supported();
            let ours = (row, &self.rts, &self.caps);
            self.room_until = Self::room_of(row, posted, &self.caps);
            let taken = if posted < self.room_until {
                self.engine.take_path(peer, ours, wr, remote)
            } else {
                None
            };
            if let Some((to, from)) = taken.filter(|(_, from)| from.len() <= INLINE_MAX) {
                crash_points::at("write");
                copy_span(to, from);
                to.expect_next();
                count(&row.executing.sent_bytes, from.len() as u64);
                self.posted = posted + 1;
                if wr.flags.contains(SendFlags::SIGNALED) {
                    self.core.complete_write(numbers.of(wr), self.posted);
                }
                executing.end(posted + 1);
                return Ok(());
            }
            executing.end(posted);
        }
        self.post_checked(std::slice::from_ref(wr), numbers)
    }

    #[inline(never)]
    fn post_checked(&mut self, wrs: &[SendWr<'_>], numbers: impl WrIds) -> Result<(), PostError> {
        self.engine.close_path();
        // A program that posts as fast as it can would find an earlier request pending for ever, and take the long way each time.
        if self.core.has_waiting() && !self.core.context.is_foreign() {
            self.core.catch_up(clock::now());
        }
        match wrs {
            [wr] if self.post_one_write(wr, numbers) => Ok(()),
            _ => self.post_all(wrs, numbers),
        }
    }

    /// Posts and executes a short WRITE, if `wr` is one and can be executed at once. Returns whether it did. If not, nothing was
    /// done.
    #[inline(always)]
    fn post_one_write(&mut self, wr: &SendWr<'_>, numbers: impl WrIds) -> bool {
        let (core, engine) = (&*self.core, &self.engine);
        // Other requests are marked once, by `post_all`.
        let SendOp::Write(remote) = wr.op else {
            return false;
        };
        let Some(peer) = engine.peer().filter(|_| !core.context.is_foreign()) else {
            return false;
        };
        let executing = core.row().executing.post(self.posted);
        match engine.full_fences() {
            true => asymmetric_fence::full(),
            false => asymmetric_fence::light_assuming_supported(),
        }
        let is_done = engine.write_one((core, peer), &self.caps, self.rts, self.posted, wr);
        if is_done {
            self.posted += 1;
            if core.signal_all || wr.flags.contains(SendFlags::SIGNALED) {
                core.complete_write(numbers.of(wr), self.posted);
            }
        }
        executing.end(self.posted);
        if is_done {
            self.engine.open_path(self.core.signal_all, wr, remote);
        }
        is_done
    }

    #[inline(never)]
    fn post_all(&mut self, wrs: &[SendWr<'_>], numbers: impl WrIds) -> Result<(), PostError> {
        let Self {
            core,
            caps,
            engine,
            posted,
            rts,
            may_read,
            ..
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
            asymmetric_fence::full();
        } else {
            asymmetric_fence::light();
        }
        let done = engine.write_short(core, caps, *rts, posted, wrs, numbers);
        let outcome = if done == wrs.len() {
            Ok(())
        } else {
            let rts = *rts;
            let mut poster = PostCall {
                core,
                caps,
                rts,
                engine,
                posted,
                may_read: *may_read,
            };
            poster.post_rest(wrs, done, numbers)
        };
        executing.end(*posted);
        if let [first, last] = wrs
            && done == 2
        {
            engine.open_path_for_two(core.signal_all, first, last);
        }
        outcome
    }
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
        self.change(attr)
    }

    fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.post(wrs, OwnWrIds)
    }

    fn post_send_with_wr_id(&mut self, wr_id: u64, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.post(wrs, SameWrId(wr_id))
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
        let outcome = post_receives(core, receives, self.caps, wrs);
        // Also flushes the receives posted before one that was refused.
        if core.state() == QpState::Error {
            core.flush(&mut core.lock_pending());
        }
        outcome
    }

    fn counters(&self) -> Option<QpCounters> {
        Some(self.core.row().counters())
    }
}

/// Posts receives to a queue pair's own receive queue, up to the first that is refused.
fn post_receives(
    core: &QpCore,
    receives: &ReceiveQueue,
    caps: QpCaps,
    wrs: &[RecvWr<'_>],
) -> Result<(), PostError> {
    let row = core.row();
    for (index, wr) in wrs.iter().enumerate() {
        let posted = row.rq_posted.load(Ordering::Relaxed);
        let retired = row.rq_retired.load(Ordering::Relaxed);
        let outstanding = core.rq_position().saturating_sub(retired);
        if outstanding >= u64::from(caps.max_recv_wr) {
            return Err(PostErrorKind::QueueFull.at(index));
        }
        if let Some(hostile) = &core.hostile
            && hostile.refuses_receive(core, (posted.wrapping_add(1), wr.wr_id), outstanding)
        {
            return Err(PostErrorKind::QueueFull.at(index));
        }
        receives
            .post(wr, caps.max_recv_sge)
            .map_err(|kind| kind.at(index))?;
        row.rq_posted
            .store(posted.wrapping_add(1), Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the opcode of a posted operation's completion.
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

/// Returns whether the payload is inline.
const fn is_inline(payload: &Payload<'_>) -> bool {
    matches!(payload, Payload::Inline(_))
}
