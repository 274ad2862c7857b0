//! States and transitions, flushing, and starting over.

use headworks_verbs::{PostErrorKind, QpAttr, QpState, RnrTimer, Status};

use crate::call::{Op, Receive, Refusal, Send};
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("states::receives_need_a_state", receives_need_a_state).row(
            "post_recv",
            "RECV",
            "in RESET",
            "State; accepted in INIT and RTR",
        ),
        Case::new("states::illegal_transitions", illegal_transitions)
            .row(
                "modify",
                "RESET to RTR, INIT to RTS",
                "no such transition",
                "Transition; state unchanged",
            )
            .row(
                "modify",
                "to INIT, to RTR",
                "attributes missing",
                "Attributes; state unchanged",
            )
            .row(
                "modify",
                "to RTR",
                "max_dest_rd_atomic too large",
                "Value; state unchanged",
            ),
        Case::new("states::any_state_to_error", any_state_to_error).row(
            "modify",
            "to ERR, from RESET, INIT, RTR, RTS, SQD, ERR",
            "-",
            "ERR; after a RESET the queue pair can connect again",
        ),
        Case::new("states::error_flushes_in_order", error_flushes_in_order).row(
            "modify",
            "to ERR",
            "-",
            "all posted and later requests and receives are Flushed, in order, once each",
        ),
        Case::new("states::reset_and_reconnect", reset_and_reconnect).row(
            "modify",
            "to RESET, from RTS and ERR",
            "-",
            "waiting requests and receives are discarded; the queue pair can connect again",
        ),
        Case::new("states::reset_disconnects", reset_disconnects).row(
            "modify",
            "to RESET, then connected to another peer",
            "-",
            "the first peer's WRITE ends with RetryExceeded; nothing written",
        ),
        Case::new(
            "states::half_sent_receive_is_flushed",
            half_sent_receive_is_flushed,
        )
        .row(
            "modify",
            "to ERR while a receive is being filled",
            "-",
            "the receive completes once: Flushed, or Success if the whole message arrived",
        ),
        Case::new(
            "states::destroyed_under_a_pending_send",
            destroyed_under_a_pending_send,
        )
        .row(
            "destroy_qp",
            "the target of a SEND in progress",
            "-",
            "later queue pairs are undisturbed",
        ),
    ]
}

fn receives_need_a_state(cx: &mut CaseContext<'_>) -> Verdict {
    let host = cx.first_host()?;
    let options = QpOptions::default();
    let side = cx.new_qp(host, &options)?;
    let refusal = |state| Err(Refusal::from(PostErrorKind::State(state).at(0)));
    let receive = || vec![Receive::new(1, &[])];
    cx.expect_state(side, QpState::Reset, "a fresh one")?;
    let refused = cx.receive_chain(side, receive());
    ensure_eq!(refused, refusal(QpState::Reset), "receive");
    for expected in [QpState::Reset, QpState::Init, QpState::Rtr] {
        cx.expect_state(side, expected, "it")?;
        match expected {
            QpState::Reset => cx.to_init(side, &options)?,
            QpState::Init => cx.to_rtr(side, &options, side)?,
            _ => {}
        }
        cx.receive_chain(side, receive())
            .map_err(crate::case_context::error_line)?;
    }
    Ok(())
}

fn illegal_transitions(cx: &mut CaseContext<'_>) -> Verdict {
    let host = cx.first_host()?;
    let options = QpOptions::default();
    let side = cx.new_qp(host, &options)?;
    let rtr = cx.rtr_attr(side, &options)?;
    let try_to = |cx: &mut CaseContext<'_>, attr, peer, kind: &str| {
        let refused = cx.modify(side, attr, peer);
        match &refused {
            Err(refusal) if refusal.kind == kind => Ok(()),
            _ => Err(format!("{refused:?} instead of {kind}")),
        }
    };
    try_to(cx, rtr, Some(side), "Transition")?;
    try_to(cx, QpAttr::to_state(QpState::Init), None, "Attributes")?;
    cx.expect_state(side, QpState::Reset, "it")?;
    cx.to_init(side, &options)?;
    let too_many = QpAttr {
        max_dest_rd_atomic: Some(255),
        ..rtr
    };
    try_to(cx, too_many, Some(side), "Value")?;
    try_to(cx, rtr, None, "Attributes")?;
    cx.expect_state(side, QpState::Init, "it")?;
    try_to(cx, QpAttr::to_state(QpState::Rts), None, "Transition")?;
    cx.expect_state(side, QpState::Init, "it")
}

/// Returns options for senders that never give up and seldom retry.
pub(super) fn stuck() -> QpOptions {
    QpOptions {
        min_rnr_timer: RnrTimer::new(0).unwrap_or_default(),
        len: 4 << 20,
        ..QpOptions::default()
    }
}

fn error_flushes_in_order(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, _) = cx.connected_pair_with(&stuck(), &stuck())?;
    for id in 0..5 {
        cx.receive(a, 10 + id, &[])?;
        // The peer posts no receive, so all requests wait.
        let request = Send::new(id, Op::Send, &[]);
        let request = if id % 2 == 0 {
            request.quiet()
        } else {
            request
        };
        cx.post_one(a, request)?;
    }
    cx.to_error(a)?;
    for id in 0..5 {
        cx.expect_sent(a, id, Status::Flushed)
            .map_err(|seen| format!("send {id}: {seen}"))?;
    }
    for id in 0..5 {
        cx.expect_received(a, 10 + id, Status::Flushed)
            .map_err(|seen| format!("receive {id}: {seen}"))?;
    }
    cx.post(a, 6, Op::Send, &[])?;
    cx.expect_sent(a, 6, Status::Flushed)
        .map_err(|seen| format!("a later send: {seen}"))?;
    cx.receive(a, 16, &[])?;
    cx.named_wait("a later receive", |cx| {
        cx.expect_received(a, 16, Status::Flushed)
    })?;
    cx.expect_nothing_more(a)
}

/// Sends a message from `a` to `b`.
pub(super) fn ping(cx: &mut CaseContext<'_>, a: QpFixture, b: QpFixture, seed: u8) -> Verdict {
    cx.write_buffer(a, 0, &[seed; 16])?;
    cx.receive(b, 1, &[b.sge(32, 16)])?;
    cx.post(a, 2, Op::Send, &[a.sge(0, 16)])?;
    cx.expect_sent(a, 2, Status::Success)?;
    cx.expect_received(b, 1, Status::Success)?;
    ensure_eq!(cx.read_buffer(b, 32, 16)?, vec![seed; 16], "bytes");
    Ok(())
}

/// Every state has a transition to ERR (section 10.3.1), from which a queue pair can start over.
fn any_state_to_error(cx: &mut CaseContext<'_>) -> Verdict {
    let options = QpOptions::default();
    let (a, b) = cx.connected_pair()?;
    for from in [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Error,
    ] {
        cx.to_reset(a)?;
        cx.to_reset(b)?;
        if from != QpState::Reset {
            cx.to_init(a, &options)?;
        }
        if ![QpState::Reset, QpState::Init].contains(&from) {
            cx.to_rtr(a, &options, b)?;
        }
        if [QpState::Rts, QpState::Sqd, QpState::Error].contains(&from) {
            cx.to_rts(a, &options)?;
        }
        if [QpState::Sqd, QpState::Error].contains(&from) {
            cx.to_state(a, from)?;
        }
        cx.expect_state(a, from, "before")?;
        cx.to_error(a)?;
        cx.expect_state(a, QpState::Error, "after")?;
        cx.to_reset(a)?;
        cx.connect(a, &options, b, &options)?;
        ping(cx, a, b, 0)?;
    }
    Ok(())
}

fn reset_and_reconnect(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair_with(&stuck(), &stuck())?;
    for round in 0..5 {
        ping(cx, a, b, round)?;
        cx.receive(b, 50, &[])?;
        cx.receive(b, 51, &[])?;
        // A RESET forgets waiting requests and posted receives.
        cx.post(b, 9, Op::Send, &[])?;
        if round % 2 == 0 {
            cx.to_error(a)?;
        }
        cx.to_reset(a)?;
        cx.to_reset(b)?;
        cx.expect_nothing_more(b)?;
        cx.connect(a, &stuck(), b, &stuck())?;
    }
    ping(cx, a, b, 99)
}

/// A queue pair that was reset and connected to another peer no longer serves its first peer.
fn reset_disconnects(cx: &mut CaseContext<'_>) -> Verdict {
    let options = QpOptions::default();
    let (a, b) = cx.connected_pair()?;
    cx.post(a, 1, Op::Write(b.at(0)), &[a.sge(0, 8)])?;
    cx.expect_sent(a, 1, Status::Success)?;
    cx.to_reset(b)?;
    let first = cx.first_host()?;
    let third = cx.new_qp(first, &options)?;
    cx.connect(third, &options, b, &options)?;
    cx.write_buffer(a, 0, &[9; 8])?;
    cx.post(a, 2, Op::Write(b.at(0)), &[a.sge(0, 8)])?;
    cx.expect_sent(a, 2, Status::RetryExceeded)?;
    ensure_eq!(
        cx.read_buffer(b, 0, 8)?,
        vec![0; 8],
        "written by a stranger"
    );
    cx.post(third, 3, Op::Write(b.at(0)), &[third.sge(0, 8)])?;
    cx.expect_sent(third, 3, Status::Success)?;
    Ok(())
}

/// A receive that a long SEND has begun to fill completes once, flushed, when its queue pair fails.
fn half_sent_receive_is_flushed(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair_with(&stuck(), &stuck())?;
    let (from, into) = (a.sge(0, 4 << 20), b.sge(0, 4 << 20));
    for round in 0..20u64 {
        cx.receive(b, 1, &[into])?;
        cx.receive(b, 2, &[into])?;
        cx.post(a, 3, Op::Send, &[from])?;
        // The transfer makes a few steps, then the receiver fails.
        let mut early = None;
        for _ in 0..round % 5 {
            early = early.or(cx.poll(a.host, a.send_cq)?.first().copied());
        }
        cx.to_error(b)?;
        let first = cx.next_recv_completion(b)?;
        ensure_eq!(first.wr_id, 1, "the first receive");
        cx.expect_received(b, 2, Status::Flushed)?;
        let sent = match early {
            None => cx.next_send_completion(a)?,
            Some(done) => done,
        };
        // The whole message may have arrived before.
        let expected = match first.status {
            Status::Success => (3, Status::Success),
            _ => (3, Status::RetryExceeded),
        };
        ensure_eq!((sent.wr_id, sent.status), expected, "the send");
        cx.expect_none(b.host, b.recv_cq, "twice")?;
        cx.to_reset(a)?;
        cx.to_reset(b)?;
        cx.connect(a, &stuck(), b, &stuck())?;
    }
    ping(cx, a, b, 5)
}

/// A sender to a queue pair that is destroyed must not disturb later queue pairs.
fn destroyed_under_a_pending_send(cx: &mut CaseContext<'_>) -> Verdict {
    for _ in 0..10 {
        let (a, b) = cx.connected_pair_with(&stuck(), &stuck())?;
        cx.receive(b, 1, &[b.sge(0, 4 << 20)])?;
        cx.post(a, 3, Op::Send, &[a.sge(0, 4 << 20)])?;
        cx.poll(a.host, a.send_cq)?;
        cx.destroy_qp_fixture(b)?;
        // New queue pairs take over the memory of the destroyed queues.
        let mut others = Vec::new();
        for _ in 0..3 {
            let (c, d) = cx.connected_pair_with(&stuck(), &stuck())?;
            cx.receive(d, 8, &[])?;
            others.push((c, d));
        }
        cx.destroy_qp_fixture(a)?;
        for (c, d) in others {
            cx.post(c, 7, Op::Send, &[])?;
            cx.expect_sent(c, 7, Status::Success)?;
            cx.expect_received(d, 8, Status::Success)?;
            ping(cx, c, d, 3)?;
            cx.destroy_qp_fixture(c)?;
            cx.destroy_qp_fixture(d)?;
        }
    }
    Ok(())
}
