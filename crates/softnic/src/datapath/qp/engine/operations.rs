//! The operations of connected queue pairs, in any number of steps.

use headworks_verbs::{Access, RemoteAddr, SendOp, Status};

use super::{Outcome, QpCore, ReceiveClaim, RemoteQp, Request, RequestProgress};
use crate::crash_points;
use crate::datapath::bounce::{BounceCall, CallKind};
use crate::datapath::copy::{Span, copy_spans, copy_torn, stream_spans};
use crate::datapath::cross_process_copy::Direction;
use crate::datapath::mr_key_check::{MrKeyCheck, Refused};
use crate::datapath::non_temporal;
use crate::datapath::remote_memory::{CopyError, RemoteSpan, transfer};
use crate::hostile::Scatter;
use crate::table::rows::MAX_SGE;

/// An operation, executed up to a budget of bytes. Its local memory is checked, that of the peer is not.
pub(super) struct Operation<'a> {
    /// The peer's queue pair, and the cached look-ups of keys there.
    pub(super) remote_qp: &'a RemoteQp,
    pub(super) remote_keys: &'a mut MrKeyCheck,
    /// The request's memory in this process.
    pub(super) here: &'a [Span],
    /// The request, and how far it has been executed.
    pub(super) request: &'a Request<'a>,
    pub(super) progress: &'a mut RequestProgress,
    /// Bytes that may be moved now.
    pub(super) budget: usize,
}

impl Operation<'_> {
    /// Executes a WRITE, with an immediate or without.
    #[inline(always)]
    pub(super) fn write(&mut self, core: &QpCore, remote: RemoteAddr, imm: Option<u32>) -> Outcome {
        let (remote_qp, request) = (self.remote_qp, self.request);
        let Ok(to) = self.there(remote, request.len, Access::REMOTE_WRITE) else {
            if self.progress.ahead {
                return Outcome::NotReady;
            }
            self.progress.abandon(remote_qp);
            return refused(remote_qp, Access::REMOTE_WRITE);
        };
        // A WRITE with immediate needs its receive before anything is placed.
        if imm.is_some()
            && let Err(outcome) = self.take_receive()
        {
            return outcome;
        }
        crash_points::at("write");
        self.progress.streams = core.context.non_temporal
            && non_temporal::passed_by(request.len, || self.remote_keys.region_len(remote.rkey));
        if let Err(why) = self.transfer(Direction::Place, &[to]) {
            return unmoved(remote_qp, why, CallKind::Place, self.progress);
        }
        if self.progress.done < request.len {
            return Outcome::More;
        }
        match (imm, self.progress.claim.take()) {
            (Some(imm), Some(claim)) => {
                claim.complete_write(remote_qp, imm, request.len, request.solicited)
            }
            _ => Outcome::Done,
        }
    }

    /// Executes a READ.
    #[inline(always)]
    pub(super) fn read(&mut self, remote: RemoteAddr) -> Outcome {
        let Ok(from) = self.there(remote, self.request.len, Access::REMOTE_READ) else {
            if self.progress.ahead {
                return Outcome::NotReady;
            }
            return refused(self.remote_qp, Access::REMOTE_READ);
        };
        if let Err(why) = self.transfer(Direction::Fetch, &[from]) {
            return unmoved(self.remote_qp, why, CallKind::Fetch, self.progress);
        }
        if self.progress.done < self.request.len {
            Outcome::More
        } else {
            Outcome::Done
        }
    }

    /// Executes an atomic: `apply` on a mapped word, or the call `what` to the peer.
    #[inline]
    pub(super) fn atomic(
        &mut self,
        remote: RemoteAddr,
        what: CallKind,
        apply: impl Fn(Span) -> u64,
    ) -> Outcome {
        if !remote.addr.is_multiple_of(8) {
            self.remote_qp.fail_peer();
            return Outcome::Failed(Status::RemoteInvalidRequest);
        }
        let word = match self.there(remote, 8, Access::REMOTE_ATOMIC) {
            Ok(RemoteSpan::Mapped(word)) if word.is_aligned_word() => word,
            Ok(RemoteSpan::Across { key, stretch, .. }) => {
                // Only its owner can execute an atomic on memory that is not mapped here.
                let why = CopyError::Refused { key, stretch };
                return unmoved(self.remote_qp, why, what, self.progress);
            }
            _ => return refused(self.remote_qp, Access::REMOTE_ATOMIC),
        };
        let old = apply(word);
        copy_spans(self.here, &[Span::of_inline(&old.to_ne_bytes())], 0, 8);
        Outcome::Done
    }

    /// Executes a SEND, with an immediate or without.
    #[inline(always)]
    pub(super) fn send(&mut self, imm: Option<u32>) -> Outcome {
        let (remote_qp, request) = (self.remote_qp, self.request);
        if let Err(outcome) = self.take_receive() {
            return outcome;
        }
        let Some(claim) = &self.progress.claim else {
            return Outcome::NotReady;
        };
        let mut receive = [RemoteSpan::EMPTY; MAX_SGE];
        match claim.spans(remote_qp, self.remote_keys, request.len, &mut receive) {
            Ok(count) => {
                if let Err(why) = self.transfer(Direction::Place, &receive[..count]) {
                    return unmoved(remote_qp, why, CallKind::Receive, self.progress);
                }
            }
            Err(_) if remote_qp.peer.is_going() => return Outcome::NotReady,
            Err((ours, status)) => {
                if let Some(claim) = self.progress.claim.take() {
                    claim.fail(remote_qp, status);
                }
                // Too short a receive of an SRQ is not fatal to an unreliable connection: class E of the responder's
                // errors (9.9.3) ends the receive only.
                if remote_qp.is_reliable || status != Status::LocalLength {
                    remote_qp.fail_peer();
                }
                return Outcome::Failed(ours);
            }
        }
        if self.progress.done < request.len {
            return Outcome::More;
        }
        match self.progress.claim.take() {
            Some(claim) => claim.complete_send(remote_qp, imm, request.len, request.solicited),
            None => Outcome::Done,
        }
    }

    /// Returns the memory of the peer that the request names, if the peer allows it.
    #[inline]
    fn there(&mut self, remote: RemoteAddr, len: u64, need: Access) -> Result<RemoteSpan, Refused> {
        let remote_qp = self.remote_qp;
        if !remote_qp.allows(need) {
            return Err(Refused);
        }
        if len == 0 {
            return Ok(RemoteSpan::EMPTY);
        }
        let key = (remote.rkey, remote_qp.pd);
        self.remote_keys
            .far(&remote_qp.peer, key, remote.addr, len as usize, need)
    }

    /// Takes a receive of the peer, unless an earlier step has.
    #[inline]
    fn take_receive(&mut self) -> Result<(), Outcome> {
        if self.progress.claim.is_none() {
            let remote_qp = self.remote_qp;
            self.progress.claim = Some(match remote_qp.is_reliable {
                true => ReceiveClaim::take(remote_qp)?,
                false => {
                    let len = match self.request.op {
                        SendOp::WriteImm(..) => 0,
                        _ => self.request.len,
                    };
                    ReceiveClaim::take_long_enough(remote_qp, len)?
                }
            });
        }
        Ok(())
    }

    /// Moves up to the budget of the request's bytes between its memory here and that of the peer.
    #[inline]
    fn transfer(&mut self, way: Direction, there: &[RemoteSpan]) -> Result<(), CopyError> {
        let sizes = (self.request.len, self.budget);
        self.progress
            .transfer(way, self.remote_qp, self.here, there, sizes)
    }
}

impl RequestProgress {
    /// Moves up to `budget` of the `len` bytes.
    #[inline]
    fn transfer(
        &mut self,
        way: Direction,
        remote_qp: &RemoteQp,
        here: &[Span],
        there: &[RemoteSpan],
        (len, budget): (u64, usize),
    ) -> Result<(), CopyError> {
        let mapped = || {
            there
                .iter()
                .map(RemoteSpan::mapped)
                .collect::<Option<Vec<_>>>()
        };
        if let Some(scatter) = &mut self.scatter
            && let Some(there) = mapped()
        {
            self.done += transfer_scattered(way, here, &there, len, scatter);
            return Ok(());
        }
        if self.streams
            && way == Direction::Place
            && let Some(there) = mapped()
        {
            self.done += stream_spans(&there, here, self.done, budget) as u64;
            return Ok(());
        }
        // Memory that is not mapped here is copied by the kernel or by its owner.
        transfer(way, &remote_qp.peer, here, there, &mut self.done, budget)
    }
}

/// Returns the outcome when bytes could not be moved to or from memory of the peer that was checked.
#[cold]
fn unmoved(
    remote_qp: &RemoteQp,
    why: CopyError,
    what: CallKind,
    progress: &mut RequestProgress,
) -> Outcome {
    let status = match why {
        CopyError::Dead => Status::RetryExceeded,
        CopyError::Fault => Status::RemoteOperation,
        CopyError::Refused { key, stretch } => {
            let (addr, len) = (stretch.addr, stretch.len);
            let call = BounceCall {
                what,
                key,
                addr,
                len,
            };
            return Outcome::Ask(call);
        }
    };
    match progress.claim.take() {
        // The responder's own fault (class E), whatever the transport.
        Some(claim) => {
            claim.fail(remote_qp, Status::LocalProtection);
            remote_qp.fail_peer();
        }
        None => remote_qp.refuse(),
    }
    Outcome::Failed(status)
}

/// Moves the next pieces of a message whose bytes are placed in any order, and returns how many bytes.
#[cold]
fn transfer_scattered(
    way: Direction,
    here: &[Span],
    there: &[Span],
    len: u64,
    scatter: &mut Scatter,
) -> u64 {
    let (to, from) = match way {
        Direction::Place => (there, here),
        Direction::Fetch => (here, there),
    };
    let copy = match scatter.keeps_words() {
        true => copy_spans,
        false => copy_torn,
    };
    let target: Vec<_> = to.iter().map(Span::extent).collect();
    let mut moved = 0;
    for piece in scatter.step(&target, len as usize) {
        copy(to, from, piece.start as u64, piece.len());
        moved += piece.len() as u64;
    }
    moved
}

/// Returns the outcome of a request whose key, bounds or access rights the peer refused. If the peer's
/// queue pair does not allow `need` at all, the request is invalid (table of 9.9.3, unsupported opcodes).
#[cold]
pub(super) fn refused(remote_qp: &RemoteQp, need: Access) -> Outcome {
    if remote_qp.peer.is_going() {
        return Outcome::NotReady;
    }
    let status = match remote_qp.allows(need) {
        true => Status::RemoteAccess,
        false => Status::RemoteInvalidRequest,
    };
    remote_qp.refuse();
    Outcome::Failed(status)
}
