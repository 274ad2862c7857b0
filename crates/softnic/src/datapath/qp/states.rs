//! Creation, state transitions and destruction of queue pairs.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use headworks_shm::asymmetric_fence;
use headworks_shm::lane::LaneBypass;
use headworks_verbs::{
    ModifyError, QpAttr, QpCaps, QpInit, QpState, QpType, ResourceError, qp_state,
};

use super::engine::Engine;
use super::hostile_qp::HostileQp;
use super::pending::Pending;
use super::{QpCore, QueuePairs, SoftCq, SoftQp};
use crate::datapath::context::{Context, ContextRelease};
use crate::datapath::quarantine::Quarantined;
use crate::datapath::srq::{ReceiveQueue, SoftSrq};
use crate::table::addresses::{PeerKey, host_of, key_of};
use crate::table::initiator::{self, Initiator};
use crate::table::peer::Peer;
use crate::table::rows::{MAX_SGE, NO_ROW, QpLife, transport_code};

/// Low bits of a generation; they number the connections of one queue pair.
const CONNECTION_BITS: u32 = 16;

/// Attributes and objects of a new queue pair, besides its context.
pub(crate) struct QpParts {
    /// Number of the protection domain.
    pub(crate) pd: u32,
    /// Capacities that [`checked_caps`] returned.
    pub(crate) caps: QpCaps,
    pub(crate) send_cq: Arc<SoftCq>,
    pub(crate) recv_cq: Arc<SoftCq>,
    pub(crate) srq: Option<Arc<SoftSrq>>,
}

/// A destroyed queue pair in quarantine, with its queues.
struct QuarantinedQp(Arc<QpCore>);

impl Quarantined for QuarantinedQp {
    fn release(self: Box<Self>) {
        self.0.leave(&mut self.0.lock_pending());
    }
}

impl SoftQp {
    /// Creates a queue pair and enters it in the list of `siblings`. The context's progress thread runs.
    pub(crate) fn create(
        context: &Arc<Context>,
        siblings: &Arc<QueuePairs>,
        parts: QpParts,
        init: &QpInit,
    ) -> Result<Self, ResourceError> {
        let QpParts {
            pd,
            caps,
            send_cq,
            recv_cq,
            srq,
        } = parts;
        let receives = match srq {
            Some(_) => None,
            None => Some(Box::new(ReceiveQueue::new(context, caps.max_recv_wr)?)),
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
        row.transport
            .store(transport_code(init.qp_type), Ordering::Relaxed);
        row.recv_cq.store(recv_cq.row, Ordering::Relaxed);
        row.srq
            .store(srq.as_ref().map_or(NO_ROW, |s| s.row), Ordering::Relaxed);
        if let Some(receives) = &receives {
            row.receive_queue.set(receives.place(), receives.capacity());
        }
        row.life
            .store(QpLife::new(generation, QpState::Reset).0, Ordering::Release);
        let has_lane = send_cq.claim_lane();
        let core = Arc::new(QpCore {
            context: context.clone(),
            siblings: siblings.clone(),
            row: context.table.held_qp(slot),
            generation: AtomicU64::new(generation),
            far: Mutex::default(),
            told: AtomicU64::new(0),
            settled: AtomicBool::new(false),
            outlives_peer: AtomicBool::new(false),
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
            lane_bypass: LaneBypass::new(),
            pending: Mutex::default(),
            hostile: context
                .hostility
                .as_ref()
                .map(|hostility| Box::new(HostileQp::new(hostility))),
            rests: AtomicBool::new(false),
            rq_reposted: AtomicU64::new(0),
        });
        siblings.enter(&core);
        let rts = QpLife::new(generation, QpState::Rts);
        Ok(Self {
            release: ContextRelease::of(context),
            core,
            caps,
            engine: Engine::default(),
            posted: 0,
            room_until: 0,
            rts,
            may_read: init.qp_type.is_reliable(),
        })
    }

    /// Changes attributes and the state.
    pub(super) fn change(&mut self, attr: &QpAttr) -> Result<(), ModifyError> {
        let core = &self.core;
        if core.context.is_foreign() {
            return Err(ModifyError::Forked);
        }
        attr.check_values(&core.context.info.limits)?;
        let mut pending = core.lock_pending();
        let from = core.row().life();
        let to = qp_state::check_transition(core.qp_type, from.state(), attr)?;
        if to == QpState::Rtr {
            // The peer must be recorded before it can write here, because deregistration waits for recorded peers.
            core.set_peer(core.find_peer(attr)?);
        }
        core.store(attr);
        pending.tune(attr);
        self.may_read = attr.max_rd_atomic.map_or(self.may_read, |count| count > 0);
        match to {
            QpState::Error => {
                core.told.fetch_max(core.generation(), Ordering::AcqRel);
                if from.state() == QpState::Reset {
                    // `fail` does not move a queue pair out of RESET: only its owner does.
                    let failed = QpLife::new(core.generation(), to);
                    core.row().life.store(failed.0, Ordering::Release);
                } else {
                    core.row().fail(core.generation());
                }
                match core.quiesce() {
                    Ok(()) => core.settle(),
                    // The progress thread settles the queue pair once the stopped peer has resumed or died.
                    Err(_) => core.service(),
                }
                core.flush(&mut pending);
            }
            QpState::Reset => {
                let generation = core.generation() + 1;
                core.generation.store(generation, Ordering::Release);
                self.rts = QpLife::new(generation, QpState::Rts);
                core.row()
                    .life
                    .store(QpLife::new(generation, to).0, Ordering::Release);
                if core.quiesce().is_err() {
                    // The stopped peer may still use this queue pair, so it cannot be reset. It goes to the error
                    // state, and the progress thread ends it like any other failed queue pair.
                    core.told.fetch_max(generation, Ordering::AcqRel);
                    core.settled.store(false, Ordering::Release);
                    let failed = QpLife::new(generation, QpState::Error);
                    core.row().life.store(failed.0, Ordering::Release);
                    core.service();
                    return Err(ModifyError::PeerStopped);
                }
                core.discard(&mut pending);
                core.set_peer(None);
                core.set_dest(None);
                core.settled.store(false, Ordering::Release);
                core.outlives_peer.store(false, Ordering::Release);
                self.engine = Engine::default();
                if core.is_datagrams() {
                    // The progress thread detaches peers that no queue pair sends to any more.
                    core.context.progress.kick();
                }
                core.row().sq_retired.store(self.posted, Ordering::Relaxed);
            }
            _ => {
                // The exchange fails if the queue pair failed meanwhile.
                let life = QpLife::new(core.generation(), to);
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
            core.service();
        }
        if to == QpState::Rts && core.has_waiting() {
            core.watch();
        }
        Ok(())
    }
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
            Ok(()) => {
                core.leave(&mut pending);
                drop(pending);
                // The progress thread holds it, and with it a reference to the context and to the CQs.
                if Arc::strong_count(core) > 1 {
                    core.context.progress.await_release();
                }
            }
            Err(stopped) => {
                let kept = QuarantinedQp(core.clone());
                core.context.quarantine.keep(stopped, Box::new(kept));
            }
        }
    }
}

impl QpCore {
    /// Returns the peer that `attr` names. Returns `None` if `attr` names none or it does not exist.
    fn find_peer(&self, attr: &QpAttr) -> Result<Option<Arc<Peer>>, ModifyError> {
        let (Some(gid), Some(qpn)) = (attr.dest_gid, attr.dest_qpn) else {
            return Ok(None);
        };
        let host = host_of(gid);
        // Count the peer before the search, because the progress thread detaches a peer that is not counted.
        self.set_dest(Some(key_of(host, qpn.raw())));
        let found = self.context.peers.attach(host, qpn.raw());
        found.map_err(|error| ModifyError::PeerUnreachable {
            what: error.what,
            reason: error.source.to_string(),
        })
    }

    /// Stores connection attributes in the row.
    pub(crate) fn store(&self, attr: &QpAttr) {
        let row = self.row();
        if let Some(access) = attr.access {
            row.access.store(access.bits(), Ordering::Relaxed);
        }
        if let Some(gid) = attr.dest_gid {
            row.dest_gid.store(host_of(gid), Ordering::Relaxed);
        }
        if let Some(qpn) = attr.dest_qpn {
            row.dest_qpn.store(qpn.raw(), Ordering::Relaxed);
        }
        if let Some(psn) = attr.rq_psn {
            row.rq_psn.store(psn.raw(), Ordering::Relaxed);
        }
        if let Some(psn) = attr.sq_psn {
            row.sq_psn.store(psn.raw(), Ordering::Relaxed);
        }
        if let Some(qkey) = attr.qkey {
            row.qkey.store(qkey, Ordering::Relaxed);
        }
        if let Some(count) = attr.max_dest_rd_atomic {
            row.max_dest_rd_atomic.store(count, Ordering::Relaxed);
        }
        if let Some(timer) = attr.min_rnr_timer {
            row.rnr_timer.store(timer.code(), Ordering::Relaxed);
        }
    }

    /// Records `dest` as this queue pair's peer, in the context's counts of queue pairs for each peer. The former
    /// peer's count goes down.
    pub(crate) fn set_dest(&self, dest: Option<PeerKey>) {
        let before = self.far().replace_dest(dest);
        self.context.peers.count_dest(before, dest);
    }

    /// Waits until no peer is executing a request on this queue pair. The error lists the initiators that
    /// are stopped while executing one.
    pub(crate) fn quiesce(&self) -> Result<(), Vec<Initiator>> {
        asymmetric_fence::heavy();
        // A thread that serves a call holds this lock. Once the lock was taken here, no earlier call is served.
        drop(self.context.local_mrs.lock());
        let stopped = initiator::wait_for(self.initiators());
        if stopped.is_empty() {
            Ok(())
        } else {
            Err(stopped)
        }
    }

    /// Returns the initiators that may be executing requests on this queue pair.
    pub(super) fn initiators(&self) -> Vec<Initiator> {
        if self.is_datagrams() {
            let context = &self.context;
            return context.senders.busy(&context.table, &context.peers);
        }
        self.initiator()
            .into_iter()
            .chain(self.successor())
            .collect()
    }

    /// Releases everything that a destroyed queue pair holds. The caller has made sure that no peer executes a
    /// request on it.
    pub(crate) fn leave(&self, pending: &mut Pending) {
        self.discard(pending);
        self.row().qpn.store(NO_ROW, Ordering::Release);
        self.siblings.leave(self.slot());
        self.context.qp_rows.give_back(self.slot() as u32);
        self.set_dest(None);
    }
}

/// Returns the requested sizes if the type is supported and they are within the device's limits.
pub(crate) fn checked_caps(context: &Context, init: &QpInit) -> Result<QpCaps, ResourceError> {
    if !matches!(init.qp_type, QpType::Rc | QpType::Uc | QpType::Ud) {
        return Err(ResourceError::Unsupported {
            what: "queue pairs of a type other than RC, UC and UD",
        });
    }
    let limits = &context.info.limits;
    let caps = init.caps;
    let bound = |what, asked: u32, highest: u32| ResourceError::check(what, asked, 0..=highest);
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
