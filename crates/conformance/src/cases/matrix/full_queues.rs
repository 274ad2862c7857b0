//! Full send queues, receive queues and completion queues.

use headworks_verbs::{PollError, PostErrorKind, QpCaps, QpState, Status};

use super::{OpKind, case, kinds, small_queue_options};
use crate::call::{Event, Op, Receive, Refusal, Send};
use crate::cases::shared_receives;
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "sq_full",
            "post_send",
            &OpKind::ALL,
            "SQ full",
            "QueueFull; not executed; room again after an earlier request's completion is polled",
            sq_full,
        ),
        case(
            "cq_full",
            "post_send",
            &OpKind::ALL,
            "send CQ full",
            "CqError; polls return the CQ's completions, then Overrun; the queue pair in ERR",
            cq_full,
        ),
        Case::new("matrix::recv_cq_full", receive_cq_full).row(
            "post_recv",
            "RECV of SEND, SEND_IMM, WRITE_IMM",
            "receive CQ full",
            "CqError; the queue pair in ERR",
        ),
        Case::new("matrix::rq_full", rq_full).row(
            "post_recv",
            "RECV",
            "RQ full, some receives consumed",
            "QueueFull until the completion of a receive is polled",
        ),
        Case::new("matrix::srq_full", srq_full).row(
            "post_srq_recv",
            "SRQ RECV",
            "SRQ full",
            "QueueFull; room as soon as a receive is consumed",
        ),
    ]
}

const DEPTH: u32 = 4;

fn narrow() -> QpOptions {
    QpOptions {
        caps: QpCaps {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            ..small_queue_options().caps
        },
        ..small_queue_options()
    }
}

fn full(index: usize) -> Result<(), Refusal> {
    Err(Refusal::from(PostErrorKind::QueueFull.at(index)))
}

fn request(kind: OpKind, wr_id: u64, a: QpFixture, b: QpFixture) -> Send {
    Send::new(wr_id, kind.op(b.at(0)), &[a.sge(0, kind.len())])
}

fn sq_full(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let patient = QpOptions {
        rnr_retry: 7,
        timeout: 18,
        ..narrow()
    };
    let (a, b) = cx.connected_pair_with(&patient, &small_queue_options())?;
    cx.write_buffer(a, 0, &[5; 64])?;
    // If slots may become free without a poll, requests that wait for a receive fill the queue.
    let wait = !cx.behaviour().frees_slots_when_polled;
    let filler = match wait {
        true => Op::Send,
        false => Op::Write(b.at(4096)),
    };
    let most = u64::from(a.caps.max_send_wr);
    // Only the last one is signalled: polling its completion frees all slots.
    let mut chain: Vec<_> = (1..most)
        .map(|id| Send::inline(id, filler, b"x").quiet())
        .collect();
    chain.push(Send::inline(100, filler, b"x"));
    cx.post_chain(a, chain)
        .map_err(crate::case_context::error_line)?;
    let refused = cx.post_chain(a, vec![request(kind, 200, a, b)]);
    ensure_eq!(refused, full(0), kind.name());
    ensure_eq!(
        cx.read_buffer(b, 0, 64)?,
        vec![0; 64],
        "executed all the same"
    );
    for id in (0..most).take_while(|_| wait) {
        cx.receive(b, id, &[b.sge(4096, 1)])?;
    }
    cx.expect_sent(a, 100, Status::Success)?;
    for id in (0..most).take_while(|_| wait) {
        cx.expect_received(b, id, Status::Success)?;
    }
    cx.receive(b, 70, &[b.sge(0, 64)])?;
    cx.expect_nothing_more(a)?;
    cx.expect_nothing_more(b)?;
    cx.post_one(a, request(kind, 201, a, b))?;
    let done = cx.expect_sent(a, 201, Status::Success)?;
    ensure_eq!(done.opcode, kind.op(b.at(0)).opcode(), "opcode");
    if kind.takes_receive() {
        cx.expect_received(b, 70, Status::Success)?;
    }
    Ok(())
}

/// Checks the overrun of a CQ that is too small for its completions.
pub(in crate::cases) fn overruns(
    cx: &mut CaseContext<'_>,
    side: QpFixture,
    cq: crate::Id,
) -> Verdict {
    cx.expect_event(side.host, Event::CqError(Some(cq)))?;
    let failed = |cx: &mut CaseContext<'_>| {
        cx.wait("error state", |cx| {
            Ok((cx.state(side)? == QpState::Error).then_some(()))
        })
    };
    if !cx.behaviour().polls_after_overrun {
        return failed(cx);
    }
    let mut good = 0;
    let error = cx.wait("overrun", |cx| match cx.poll_up_to(side.host, cq, 3) {
        Ok(done) => {
            for done in &done {
                ensure_eq!(done.status, Status::Success, "before the overrun");
            }
            good += done.len();
            Ok(None)
        }
        Err(refusal) => Ok(Some(refusal)),
    })?;
    ensure_eq!(error, Refusal::from(PollError::Overrun), "poll");
    ensure!(good >= side.depth as usize, "{good} completions before it");
    failed(cx)?;
    let again = cx.events(side.host)?.contains(&Event::CqError(Some(cq)));
    ensure!(!again, "overrun reported twice");
    Ok(())
}

/// Reason for skipping cases that need a CQ overrun.
pub(in crate::cases) const NO_OVERRUN: &str = "completions of requests overrun no CQ here";

fn cq_full(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    if cx.behaviour().defers_requests {
        return cx.skip(NO_OVERRUN);
    }
    let tight = QpOptions {
        depth: DEPTH,
        ..small_queue_options()
    };
    let (a, b) = cx.connected_pair_with(&tight, &small_queue_options())?;
    for id in 0..=u64::from(a.depth) {
        if kind.takes_receive() {
            cx.receive(b, id, &[b.sge(0, 64)])?;
        }
        cx.post_one(a, request(kind, id, a, b))?;
    }
    overruns(cx, a, a.send_cq).map_err(|seen| format!("{}: {seen}", kind.name()))
}

fn receive_cq_full(cx: &mut CaseContext<'_>) -> Verdict {
    let tight = QpOptions {
        depth: DEPTH,
        ..small_queue_options()
    };
    for kind in kinds(OpKind::takes_receive) {
        let (a, b) = cx.connected_pair_with(&small_queue_options(), &tight)?;
        for id in 0..=u64::from(b.depth) {
            cx.receive(b, id, &[b.sge(0, 64)])?;
        }
        for id in 0..=u64::from(b.depth) {
            cx.post_one(a, request(kind, id, a, b).quiet())?;
        }
        overruns(cx, b, b.recv_cq).map_err(|seen| format!("{}: {seen}", kind.name()))?;
    }
    Ok(())
}

fn rq_full(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair_with(&narrow(), &narrow())?;
    let most = b.caps.max_recv_wr as usize;
    let chain = vec![Receive::new(1, &[]); most + 1];
    ensure_eq!(cx.receive_chain(b, chain), full(most), "all");
    cx.post(a, 1, Op::Send, &[])?;
    cx.expect_sent(a, 1, Status::Success)?;
    if cx.behaviour().frees_slots_when_polled {
        // The receive is taken and completed but not polled: its slot is still occupied.
        let more = cx.receive_chain(b, vec![Receive::new(2, &[])]);
        ensure_eq!(more, full(0), "unpolled");
    }
    cx.expect_received(b, 1, Status::Success)?;
    let chain = vec![Receive::new(3, &[]); 2];
    ensure_eq!(cx.receive_chain(b, chain), full(1), "polled");
    Ok(())
}

fn srq_full(cx: &mut CaseContext<'_>) -> Verdict {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (pd, srq) = shared_receives::srq(cx, second, DEPTH, 0)?;
    let a = cx.new_qp(first, &small_queue_options())?;
    let b = cx.new_qp_in_pd(second, pd, Some(srq), &small_queue_options())?;
    cx.connect(a, &small_queue_options(), b, &small_queue_options())?;
    let mut room = 0;
    while cx.receive_chain(b, vec![Receive::new(room, &[])]).is_ok() {
        room += 1;
        ensure!(room < 1000, "the SRQ never gets full");
    }
    ensure!(room >= u64::from(DEPTH), "{room} receives");
    for id in 0..3 {
        ensure_eq!(
            cx.receive_chain(b, vec![Receive::new(9, &[])]),
            full(0),
            "full"
        );
        cx.post(a, id, Op::Send, &[])?;
        cx.expect_sent(a, id, Status::Success)?;
        cx.expect_received(b, id, Status::Success)?;
        cx.receive(b, 100 + id, &[])?;
    }
    Ok(())
}
