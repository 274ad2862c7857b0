//! The initiator's half of the window: asking the peer to do what only it can do with its memory.

use std::sync::atomic::Ordering;

use headworks_verbs::{Access, Payload, Status};

use super::{Engine, Outcome, Progress, QpCore, Request, Span, refused, writes_here};
use crate::bounce::{Answer, BounceBuffer, Call, DATA, What};
use crate::copy::copy_spans;
use crate::crash_points;
use crate::qp::RemoteQp;
use crate::table::MAX_SGE;

impl Engine {
    /// Asks the peer for `call`, or as much of it as one call moves. Its answer is to be
    /// [heard](Self::hear).
    pub(crate) fn ask(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        progress: &mut Progress,
        call: Call,
    ) -> Outcome {
        let call = Call {
            len: whole_words(&call),
            ..call
        };
        if self.window.is_none() {
            match BounceBuffer::open(&core.context) {
                Ok(window) => self.window = Some(Box::new(window)),
                Err(error) => {
                    tracing::error!(%error, "no memory for a window");
                    return Outcome::Failed(Status::LocalQpOperation);
                }
            }
        }
        if matches!(call.what, What::Place | What::Receive) {
            let moved = self.exchange(core, request, progress.done, call.len, Way::Out);
            if moved.is_none() {
                return Outcome::Failed(Status::LocalProtection);
            }
        }
        let (Some(window), Some(link)) = (&mut self.window, &self.link) else {
            return Outcome::NotReady;
        };
        window.publish(core.context.table.window(core.slot()));
        window.call(&call);
        crash_points::at("call");
        tracing::debug!(?call, "asking a peer through the window");
        progress.called = Some(call);
        ring(link);
        crash_points::at("rung");
        Outcome::Called
    }

    /// Whether peers may have been told of a window.
    pub(crate) fn has_window(&self) -> bool {
        self.window.is_some()
    }

    /// Tells the peer again that there is a call: it may not have been ready for it.
    pub(crate) fn ring(&self) {
        if let Some(link) = &self.link {
            ring(link);
        }
    }

    /// What became of the request's call.
    pub(crate) fn hear(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        progress: &mut Progress,
        call: Call,
    ) -> Outcome {
        match &self.link {
            Some(link) if link.is_up() => {}
            _ => return self.reconnect(progress),
        }
        let Some(answer) = self.window.as_ref().and_then(|window| window.answer()) else {
            return Outcome::Called;
        };
        progress.called = None;
        let Answer::Done(old) = answer else {
            return self.deny(progress);
        };
        let moved = match call.what {
            What::Place | What::Receive => Some(call.len),
            What::Fetch => self.exchange(core, request, progress.done, call.len, Way::In),
            What::CompareSwap { .. } | What::FetchAdd { .. } => {
                let old = old.to_ne_bytes();
                self.exchange(core, request, 0, 8, Way::Result(Span::of_inline(&old)))
            }
        };
        let Some(moved) = moved else {
            return Outcome::Failed(Status::LocalProtection);
        };
        progress.done += moved as u64;
        match call.what {
            What::CompareSwap { .. } | What::FetchAdd { .. } => Outcome::Done,
            // Looks at the rest, and completes.
            _ => Outcome::More,
        }
    }

    /// The peer refused a call.
    fn deny(&mut self, progress: &mut Progress) -> Outcome {
        let Some(link) = &self.link else {
            return Outcome::NotReady;
        };
        // A receive over memory that may not be received into.
        if let Some(claim) = progress.claim.take() {
            claim.fail(link, Status::LocalProtection);
            link.fail_peer();
            return Outcome::Failed(Status::RemoteOperation);
        }
        refused(link, Access::NONE)
    }

    /// Copies `len` bytes between our memory, from byte `skip` of the request, and the window. `None`
    /// if our memory does not allow that.
    fn exchange(
        &mut self,
        core: &QpCore,
        request: &Request<'_>,
        skip: u64,
        len: usize,
        way: Way,
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
            Way::Out => copy_spans(&[self.data(len)?], &cut_at(here, skip, len)?, 0, len),
            Way::In => copy_spans(&cut_at(here, skip, len)?, &[self.data(len)?], 0, len),
            Way::Result(old) => copy_spans(here, &[old], 0, len),
        };
        (copied == len).then_some(len)
    }

    fn data(&self, len: usize) -> Option<Span> {
        Some(self.window.as_ref()?.data(len))
    }

    /// Takes back the call that a request has made, if there is one. Says whether nobody serves it
    /// any more.
    pub(super) fn retract(&self, progress: &mut Progress, link: &RemoteQp) -> bool {
        let called = progress.called.take();
        let (Some(_), Some(window)) = (called, &self.window) else {
            return true;
        };
        window.retract();
        let serving = link.row().executing.serving.load(Ordering::Acquire);
        serving.is_multiple_of(2)
    }
}

/// Bytes that one call moves of `call`: what fits a window, up to a word's end where that is less.
fn whole_words(call: &Call) -> usize {
    let end = call.addr.wrapping_add(DATA as u64);
    match call.len > DATA {
        true => DATA - (end % 8) as usize,
        false => call.len,
    }
}

/// Which way bytes go between our memory and the window.
enum Way {
    Out,
    In,
    /// From here: what an atomic found.
    Result(Span),
}

/// The part of a list that a call is about.
fn cut_at(list: &[Span], skip: u64, len: usize) -> Option<[Span; MAX_SGE]> {
    let mut parts = [Span::EMPTY; MAX_SGE];
    crate::copy::cut(list, skip, len, &mut parts);
    let total: usize = parts.iter().map(Span::len).sum();
    (total == len).then_some(parts)
}

/// Tells the peer that there is a call for its queue pair.
fn ring(link: &RemoteQp) {
    link.peer.table.attention().calls.set(link.slot.into());
    link.peer.kick();
}
