//! The initiator's half of the bounce buffer: asks the peer for what only the peer can do with its memory.

use std::sync::atomic::Ordering;

use headworks_verbs::{Access, Payload, Status};

use super::{Engine, Extra, Outcome, QpCore, Request, RequestProgress, Span, refused, writes_here};
use crate::crash_points;
use crate::datapath::bounce::{BounceBuffer, BounceCall, CallKind, CallResult, DATA};
use crate::datapath::copy::copy_spans;
use crate::datapath::qp::RemoteQp;
use crate::table::rows::MAX_SGE;

impl Engine {
    /// Asks the peer for `call`, or for as much of it as one call moves. [`receive`](Self::receive) takes its
    /// answer.
    pub(crate) fn ask(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        progress: &mut RequestProgress,
        call: BounceCall,
    ) -> Outcome {
        let call = BounceCall {
            len: whole_words(&call),
            ..call
        };
        if self.extra.is_none() {
            match BounceBuffer::open(&core.context) {
                Ok(bounce_buffer) => {
                    self.extra = Some(Box::new(Extra::BounceBuffer(bounce_buffer)));
                }
                Err(error) => {
                    tracing::error!(%error, "no memory for a bounce buffer");
                    return Outcome::Failed(Status::LocalQpOperation);
                }
            }
        }
        if matches!(call.what, CallKind::Place | CallKind::Receive) {
            let moved = self.exchange(core, request, progress.done, call.len, BounceDirection::Out);
            if moved.is_none() {
                return Outcome::Failed(Status::LocalProtection);
            }
        }
        let (Some(Extra::BounceBuffer(bounce_buffer)), Some(remote_qp)) =
            (self.extra.as_deref_mut(), self.remote_qp.get())
        else {
            return Outcome::NotReady;
        };
        bounce_buffer.publish(core.context.table.bounce_buffer(core.slot()));
        bounce_buffer.call(&call);
        crash_points::at("call");
        tracing::debug!(?call, "asking a peer through the bounce buffer");
        progress.called = Some(call);
        ring(remote_qp);
        crash_points::at("rung");
        Outcome::Called
    }

    /// Returns whether this queue pair has a bounce buffer, which peers may have been told of.
    pub(crate) fn has_bounce_buffer(&self) -> bool {
        self.bounce_buffer().is_some()
    }

    fn bounce_buffer(&self) -> Option<&BounceBuffer> {
        match self.extra.as_deref()? {
            Extra::BounceBuffer(bounce_buffer) => Some(bounce_buffer),
            Extra::Datagrams(_) => None,
        }
    }

    /// Tells the peer again that there is a call: it may not have been ready for it the first time.
    pub(crate) fn ring(&self) {
        if let Some(remote_qp) = self.remote_qp.get() {
            ring(remote_qp);
        }
    }

    /// Returns what became of the request's call.
    pub(crate) fn receive(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        progress: &mut RequestProgress,
        call: BounceCall,
    ) -> Outcome {
        match self.remote_qp.get() {
            Some(remote_qp) if remote_qp.is_up() => {}
            _ => return self.reconnect(progress),
        }
        let Some(answer) = self
            .bounce_buffer()
            .and_then(|bounce_buffer| bounce_buffer.answer())
        else {
            return Outcome::Called;
        };
        progress.called = None;
        let CallResult::Done(old) = answer else {
            return self.deny(progress);
        };
        let moved = match call.what {
            CallKind::Place | CallKind::Receive => Some(call.len),
            CallKind::Fetch => {
                self.exchange(core, request, progress.done, call.len, BounceDirection::In)
            }
            CallKind::CompareSwap { .. } | CallKind::FetchAdd { .. } => {
                let old = old.to_ne_bytes();
                self.exchange(
                    core,
                    request,
                    0,
                    8,
                    BounceDirection::Result(Span::of_inline(&old)),
                )
            }
        };
        let Some(moved) = moved else {
            return Outcome::Failed(Status::LocalProtection);
        };
        progress.done += moved as u64;
        match call.what {
            CallKind::CompareSwap { .. } | CallKind::FetchAdd { .. } => Outcome::Done,
            // Looks at the rest, and completes.
            _ => Outcome::More,
        }
    }

    /// Returns the outcome of a call that the peer refused.
    fn deny(&mut self, progress: &mut RequestProgress) -> Outcome {
        let Some(remote_qp) = self.remote_qp.get() else {
            return Outcome::NotReady;
        };
        // The memory of the receive does not allow receiving.
        if let Some(claim) = progress.claim.take() {
            claim.fail(remote_qp, Status::LocalProtection);
            remote_qp.fail_peer();
            return Outcome::Failed(Status::RemoteOperation);
        }
        refused(remote_qp, Access::NONE)
    }

    /// Copies `len` bytes between our memory, from byte `skip` of the request, and the bounce buffer.
    /// `None` if our memory does not allow that.
    fn exchange(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        skip: u64,
        len: usize,
        way: BounceDirection,
    ) -> Option<usize> {
        let mut spans = [Span::EMPTY; MAX_SGE];
        let here = match request.payload {
            Payload::Inline(bytes) => {
                spans[0] = Span::of_inline(bytes);
                &spans[..1]
            }
            Payload::Gather(sges) => {
                let need = match writes_here(&request.op) {
                    true => Access::LOCAL_WRITE,
                    false => Access::NONE,
                };
                let own = &core.context.own;
                self.local.list(own, core.pd, sges, need, &mut spans).ok()?;
                &spans[..sges.len()]
            }
        };
        let copied = match way {
            BounceDirection::Out => {
                copy_spans(&[self.data(len)?], &cut_at(here, skip, len)?, 0, len)
            }
            BounceDirection::In => {
                copy_spans(&cut_at(here, skip, len)?, &[self.data(len)?], 0, len)
            }
            BounceDirection::Result(old) => copy_spans(here, &[old], 0, len),
        };
        (copied == len).then_some(len)
    }

    fn data(&self, len: usize) -> Option<Span> {
        Some(self.bounce_buffer()?.data(len))
    }

    /// Takes back the request's call, if it has made one. Returns whether the peer is serving no call: then
    /// it no longer touches our bounce buffer or the receive.
    pub(super) fn retract(&self, progress: &mut RequestProgress, remote_qp: &RemoteQp) -> bool {
        let called = progress.called.take();
        let (Some(_), Some(bounce_buffer)) = (called, self.bounce_buffer()) else {
            return true;
        };
        bounce_buffer.retract();
        let serving = remote_qp.row().executing.serving.load(Ordering::Acquire);
        serving.is_multiple_of(2)
    }
}

/// Returns how many bytes of `call` one call moves: all, or as many as fit and end at a word's end.
fn whole_words(call: &BounceCall) -> usize {
    let end = call.addr.wrapping_add(DATA as u64);
    match call.len > DATA {
        true => DATA - (end % 8) as usize,
        false => call.len,
    }
}

/// The direction in which bytes are copied between our memory and the bounce buffer.
enum BounceDirection {
    Out,
    In,
    /// The value that an atomic found, which is copied from here, not from the bounce buffer.
    Result(Span),
}

/// Returns the `len` bytes from byte `skip` of a list, or `None` if the list is shorter.
fn cut_at(list: &[Span], skip: u64, len: usize) -> Option<[Span; MAX_SGE]> {
    let mut parts = [Span::EMPTY; MAX_SGE];
    crate::datapath::copy::cut(list, skip, len, &mut parts);
    let total: usize = parts.iter().map(Span::len).sum();
    (total == len).then_some(parts)
}

/// Tells the peer that there is a call for its queue pair.
fn ring(remote_qp: &RemoteQp) {
    remote_qp
        .peer
        .table
        .attention()
        .calls
        .set(remote_qp.slot.into());
    remote_qp.peer.kick();
}
