//! The responder's half of SEND and of immediates, executed by the initiator: it takes one of the
//! peer's receives, fills it and completes it.
//!
//! A receive is claimed, filled, completed and only then freed. The claim and the reserved completion
//! are marked with the peer's own queue pair (for a datagram, with the sender's row), so that the peer
//! can recover if this process is killed in between. The peer flushes a receive that was claimed and
//! not completed. If it was claimed for an unreliable message, or the death is silent, the peer posts it
//! again. No receive is lost or completes twice.

use std::fmt;
use std::sync::atomic::Ordering;

use headworks_shm::slot_queue::{ConditionalPop, PopClaim};
use headworks_verbs::{Access, Opcode, Status};

use super::RemoteQp;
use super::engine::Outcome;
use crate::crash_points;
use crate::datapath::copy::Span;
use crate::datapath::datagram_senders::Registration;
use crate::datapath::mr_key_check::MrKeyCheck;
use crate::datapath::remote_memory::{RemoteSpan, can_cross};
use crate::table::rows::{CqSlot, MAX_SGE, RecvHead, RecvSlot};

/// A receive of the peer that a request has taken.
pub(crate) struct ReceiveClaim {
    receive: RecvHead,
    pop: PopClaim,
}

/// How many receives ahead of the claimed one a slot is prefetched.
const SLOTS_AHEAD: u64 = 5;
/// How many receives ahead of the claimed one a receive's memory is prefetched: its slot, prefetched
/// earlier, has arrived by then.
const MEMORY_AHEAD: u64 = 3;

impl ReceiveClaim {
    /// Takes the peer's next receive. The error is [`Outcome::NoReceive`] if none is posted.
    pub(crate) fn take(remote_qp: &RemoteQp) -> Result<Self, Outcome> {
        let queue = &remote_qp.receives.slots;
        crash_points::at("up");
        match queue.claim_pop(remote_qp.slot) {
            Ok(Some(pop)) => {
                crash_points::at("taken");
                let receive = queue.value_prefix(&pop);
                queue.prefetch_slot(pop.position().wrapping_add(SLOTS_AHEAD));
                note_taken(remote_qp, &pop);
                crash_points::at("noted");
                Ok(Self { receive, pop })
            }
            Ok(None) => Err(Outcome::NoReceive(remote_qp.rnr_timer())),
            Err(error) => Err(corrupt(remote_qp, &error)),
        }
    }

    /// Takes the next receive of the peer of an unreliable connection, for a message of `len` bytes. A receive that is too short
    /// stays posted for the next message (class D of the responder's errors, 9.9.3); one of an SRQ is taken all the same. The
    /// error is [`Outcome::NoReceive`] if no receive is posted, or if it stays.
    pub(super) fn take_long_enough(remote_qp: &RemoteQp, len: u64) -> Result<Self, Outcome> {
        let queue = &remote_qp.receives.slots;
        let fits = |receive: &RecvSlot| remote_qp.srq().is_some() || receive.room() >= len;
        match queue.claim_pop_if(remote_qp.slot, fits) {
            Ok(ConditionalPop::Taken(pop)) => {
                crash_points::at("taken");
                let receive = queue.value_prefix(&pop);
                note_taken(remote_qp, &pop);
                crash_points::at("noted");
                Ok(Self { receive, pop })
            }
            Ok(ConditionalPop::Rejected | ConditionalPop::Empty) => {
                Err(Outcome::NoReceive(remote_qp.rnr_timer()))
            }
            Err(error) => Err(corrupt(remote_qp, &error)),
        }
    }

    /// Returns where `len` bytes go in the usual case: one piece of memory, already cached, in the queue
    /// pair's own protection domain.
    #[inline(always)]
    pub(crate) fn short(
        &self,
        remote_qp: &RemoteQp,
        remote_keys: &MrKeyCheck,
        len: usize,
    ) -> Option<Span> {
        let RecvHead {
            sge_count, sges, ..
        } = self.receive;
        let same_pd = remote_qp
            .srq_row()
            .is_none_or(|srq| srq.pd.load(Ordering::Relaxed) == remote_qp.pd);
        if sge_count != 1 || (sges[0].len as usize) < len || !same_pd {
            return None;
        }
        let to = remote_keys.cached(sges[0].lkey, sges[0].addr, len, Access::LOCAL_WRITE)?;
        self.expect_next(remote_qp, remote_keys);
        Some(to)
    }

    /// Prefetches the memory of a receive that will be taken soon.
    #[inline(always)]
    fn expect_next(&self, remote_qp: &RemoteQp, remote_keys: &MrKeyCheck) {
        let ahead = self.pop.position().wrapping_add(MEMORY_AHEAD);
        if let Some(next) = remote_qp.receives.slots.peek_prefix::<RecvHead>(ahead) {
            remote_keys.prefetch_write(&next.sges[0]);
        }
    }

    /// Takes the peer's next receive for a datagram of `len` bytes, GRH included, marked as taken by the
    /// sender `who`. `None` means that the datagram is lost:
    ///
    /// - No receive is posted.
    /// - The receive is too short. It then stays posted for the next datagram (class D of the responder's
    ///   errors, 9.9.3). One of an SRQ is taken all the same, and ends in error (class E).
    /// - The receive's memory cannot be reached from this process.
    pub(super) fn take_fitting(
        remote_qp: &RemoteQp,
        remote_keys: &mut MrKeyCheck,
        who: u16,
        len: u64,
    ) -> Option<Self> {
        let queue = &remote_qp.receives.slots;
        let fits = |receive: &RecvSlot| {
            (remote_qp.srq().is_some() || receive.room() >= len)
                && reaches(remote_qp, remote_keys, receive)
        };
        match queue.claim_pop_if(who, fits) {
            Ok(ConditionalPop::Taken(pop)) => {
                let receive = queue.value_prefix(&pop);
                note_taken(remote_qp, &pop);
                Some(Self { receive, pop })
            }
            Ok(ConditionalPop::Rejected | ConditionalPop::Empty) => None,
            Err(error) => {
                tracing::warn!(%error, "a receive queue is corrupt");
                remote_qp.fail_peer();
                None
            }
        }
    }

    /// Completes the receive of a datagram, then frees it. In between it notes that the completion has
    /// its slot, so that a sender killed here leaves either the receive or the completion, never both.
    /// A full CQ fails the receiver's queue pair.
    pub(super) fn complete_datagram(
        self,
        remote_qp: &RemoteQp,
        registration: &Registration,
        slot: CqSlot,
        solicited: bool,
    ) {
        let place = remote_qp.recv_cq.reserve(registration.who);
        let is_lost = place.is_err();
        if let Ok(place) = place {
            registration.mark_completing();
            remote_qp.recv_cq.commit(place, slot, solicited);
        }
        remote_qp.receives.slots.finish(self.pop);
        if is_lost {
            remote_qp.fail_peer();
        }
    }

    /// Stores where `len` bytes go in `out`, and returns how many pieces. The error is the initiator's
    /// status and the peer's.
    pub(crate) fn spans(
        &self,
        remote_qp: &RemoteQp,
        remote_keys: &mut MrKeyCheck,
        len: u64,
        out: &mut [RemoteSpan; MAX_SGE],
    ) -> Result<usize, (Status, Status)> {
        let whole: RecvSlot;
        let sges = match self.receive.sges() {
            Some(sges) => sges,
            None => {
                whole = remote_qp.receives.slots.value(&self.pop);
                whole.sges()
            }
        };
        let room: u64 = sges.iter().map(|s| u64::from(s.len)).sum();
        if room < len {
            return Err((Status::RemoteInvalidRequest, Status::LocalLength));
        }
        let pd = receives_pd(remote_qp);
        // `remote_keys` caches for the queue pair's own domain; an SRQ of another domain is looked up apart.
        let mut apart = MrKeyCheck::default();
        let known = if pd == remote_qp.pd {
            remote_keys
        } else {
            &mut apart
        };
        known
            .far_list(&remote_qp.peer, pd, sges, Access::LOCAL_WRITE, out)
            .map_err(|_| (Status::RemoteOperation, Status::LocalProtection))?;
        Ok(sges.len())
    }

    /// Completes the receive of a SEND whose bytes are all placed.
    pub(crate) fn complete_send(
        self,
        remote_qp: &RemoteQp,
        imm: Option<u32>,
        len: u64,
        solicited: bool,
    ) -> Outcome {
        self.complete(remote_qp, Opcode::Recv, imm, len, solicited)
    }

    /// Completes the receive of a WRITE with immediate whose bytes are all placed.
    pub(crate) fn complete_write(
        self,
        remote_qp: &RemoteQp,
        imm: u32,
        len: u64,
        solicited: bool,
    ) -> Outcome {
        self.complete(remote_qp, Opcode::RecvWriteImm, Some(imm), len, solicited)
    }

    fn complete(
        self,
        remote_qp: &RemoteQp,
        opcode: Opcode,
        imm: Option<u32>,
        len: u64,
        solicited: bool,
    ) -> Outcome {
        let slot = CqSlot {
            byte_len: len as u32,
            imm: imm.unwrap_or_default(),
            has_imm: imm.is_some().into(),
            opcode: opcode as u8,
            ..self.slot(remote_qp, Status::Success)
        };
        match self.finish(remote_qp, slot, solicited) {
            true => Outcome::Done,
            false => Outcome::Failed(Status::RemoteOperation),
        }
    }

    /// Completes the receive with the error `status`.
    pub(crate) fn fail(self, remote_qp: &RemoteQp, status: Status) {
        let slot = self.slot(remote_qp, status);
        self.finish(remote_qp, slot, true);
    }

    pub(super) fn slot(&self, remote_qp: &RemoteQp, status: Status) -> CqSlot {
        CqSlot {
            wr_id: self.receive.wr_id,
            position: self.pop.position(),
            qpn: remote_qp.row().qpn.load(Ordering::Relaxed),
            status: status as u8,
            opcode: Opcode::Recv as u8,
            ..CqSlot::default()
        }
    }

    /// Completes the receive, then frees it. A full CQ fails the peer's queue pair. Returns whether the
    /// completion was queued.
    fn finish(self, remote_qp: &RemoteQp, slot: CqSlot, solicited: bool) -> bool {
        crash_points::at("filled");
        let pushed = remote_qp
            .recv_cq
            .push(remote_qp.slot, slot, solicited)
            .is_ok();
        crash_points::at("completed");
        remote_qp.receives.slots.finish(self.pop);
        crash_points::at("freed");
        if !pushed {
            remote_qp.fail_peer();
        }
        pushed
    }
}

/// Fails the peer's queue pair, whose receive queue is corrupt. Returns the outcome of the request that found it.
#[cold]
fn corrupt(remote_qp: &RemoteQp, error: &dyn fmt::Display) -> Outcome {
    tracing::warn!(%error, "the peer's receive queue is corrupt");
    remote_qp.fail_peer();
    Outcome::Failed(Status::RemoteOperation)
}

/// Returns the protection domain of the peer's receives.
fn receives_pd(remote_qp: &RemoteQp) -> u32 {
    remote_qp
        .srq_row()
        .map_or(remote_qp.pd, |srq| srq.pd.load(Ordering::Relaxed))
}

/// Returns whether this process can reach the memory of a receive. Memory that is not registered, or
/// does not allow receiving, counts as reached: the error is found once the receive is taken.
fn reaches(remote_qp: &RemoteQp, remote_keys: &mut MrKeyCheck, receive: &RecvSlot) -> bool {
    let pd = receives_pd(remote_qp);
    let mut apart = MrKeyCheck::default();
    let known = if pd == remote_qp.pd {
        remote_keys
    } else {
        &mut apart
    };
    let mut fars = [RemoteSpan::EMPTY; MAX_SGE];
    let need = Access::LOCAL_WRITE;
    let listed = known.far_list(&remote_qp.peer, pd, receive.sges(), need, &mut fars);
    let across = |far: &RemoteSpan| matches!(far, RemoteSpan::Across { .. });
    listed.is_err() || !fars.iter().any(across) || can_cross(&remote_qp.peer)
}

/// Has the owner raise an SRQ's limit event if taking this receive crosses the limit.
fn note_taken(remote_qp: &RemoteQp, pop: &PopClaim) {
    let (Some(row), Some(srq)) = (remote_qp.srq(), remote_qp.srq_row()) else {
        return;
    };
    if srq.crosses_limit(pop.position().wrapping_add(1)) {
        crash_points::at("crossed");
        remote_qp.peer.table.attention().srqs.set(row as usize);
        remote_qp.peer.kick();
    }
}
