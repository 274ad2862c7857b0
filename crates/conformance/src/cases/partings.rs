//! What is left when a queue pair, or the one at its other end, starts over or goes.

use headworks_verbs::{AsyncEvent, Completion, QpState, SendOp, Status};

use super::channel::{event, quiet};
use crate::bench::{line, wait};
use crate::{Bench, Options, Pair, Side, Verdict, ensure, ensure_eq};

/// A process that lives on moves its queue pair to the error state, or destroys it. RC keeps nothing
/// alive: who is idle at the other end learns nothing (InfiniBand volume 1, chapter 9: only an unanswered request
/// tells). Its next request ends as on a silent peer, what is behind it is flushed, and whoever
/// sleeps on the channel is woken by that.
fn parting(bench: &Bench, leave: impl Fn(Side) -> Result<Option<Side>, String>) -> Verdict {
    let Pair { mut a, b } = bench.pair()?;
    let (there, from) = (b.region.remote(0), a.region.sge(0, 8));
    // What a device remembers of the peer must not outlive it.
    a.post(0, SendOp::Write(there), &[from])?;
    a.expect_sent(0, Status::Success)?;
    a.receive(9, &[])?;
    a.send_cq.arm(false);
    a.recv_cq.arm(false);
    let left = leave(b)?;
    ensure_eq!(a.qp.state(), QpState::Rts, "the idle end");
    quiet(&a, "the idle end is woken")?;
    a.post(1, SendOp::Write(there), &[from])?;
    a.post(2, SendOp::Send, &[])?;
    a.post(3, SendOp::Read(there), &[from])?;
    let woken = event(&a)?;
    ensure!(
        [a.send_cq.id(), a.recv_cq.id()].contains(&woken),
        "woken by another CQ"
    );
    a.expect_sent(1, Status::RetryExceeded)?;
    a.expect_sent(2, Status::Flushed)?;
    a.expect_sent(3, Status::Flushed)?;
    a.expect_received(9, Status::Flushed)?;
    ensure_eq!(a.qp.state(), QpState::Error, "state");
    a.expect_event(AsyncEvent::QpFatal(a.qp.qpn()))?;
    drop(left);
    Ok(())
}

pub(super) fn peer_in_error(bench: &Bench) -> Verdict {
    parting(bench, |mut b| {
        b.to_error()?;
        Ok(Some(b))
    })
}

pub(super) fn peer_in_reset(bench: &Bench) -> Verdict {
    parting(bench, |mut b| {
        b.to_reset()?;
        Ok(Some(b))
    })
}

pub(super) fn peer_destroyed(bench: &Bench) -> Verdict {
    parting(bench, |b| {
        drop(b);
        Ok(None)
    })
}

const HALF: u64 = 32;

/// Posts until there is no room; how many.
fn fill(mut post: impl FnMut(u64) -> Verdict) -> Result<u64, String> {
    for count in 0..=4 * HALF {
        if post(1000 + count).is_err() {
            return Ok(count);
        }
    }
    Err("a queue without an end".to_owned())
}

/// Completions from before a RESET that are polled after it, or that RESET took away, change nothing
/// in how many requests there is room for.
pub(super) fn completions_from_before_reset(bench: &Bench) -> Verdict {
    let mut options = Options::default();
    options.tuning.rnr_retry = 7;
    ensure_eq!(
        (options.caps.max_send_wr, options.caps.max_recv_wr),
        (2 * HALF as u32, 2 * HALF as u32),
        "room"
    );
    let mut pair = bench.pair_of(&options, &options)?;
    let Pair { a, b } = &mut pair;
    for id in 0..HALF {
        b.receive(id, &[])?;
    }
    // Half of them complete, half wait for a receive.
    for id in 0..2 * HALF {
        a.post(id, SendOp::Send, &[])?;
    }
    // Their completions stay where they are.
    a.to_reset()?;
    for id in 0..HALF {
        b.receive(100 + id, &[])?;
    }
    b.to_reset()?;
    let mut out = [Completion::default(); 8];
    for cq in [&a.send_cq, &b.recv_cq] {
        wait("end of the old completions", || {
            let count = cq.poll(&mut out).map_err(line)?;
            Ok((count == 0).then_some(()))
        })?;
    }
    pair.connect()?;
    for _ in 0..2 {
        let Pair { a, b } = &mut pair;
        let sends = fill(|id| a.post(id, SendOp::Send, &[]))?;
        ensure_eq!(sends, 2 * HALF, "room for sends");
        let receives = fill(|id| b.receive(id, &[]))?;
        ensure_eq!(receives, 2 * HALF, "room for receives");
        for id in 0..2 * HALF {
            a.expect_sent(1000 + id, Status::Success)?;
            b.expect_received(1000 + id, Status::Success)?;
        }
    }
    Ok(())
}
