//! Shared receive queues.

use headworks_verbs::{Duration, PostErrorKind, Status};

use crate::call::{Call, Event, Id, Op, Receive, Refusal, Reply};
use crate::case_context::{Host, piece};
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("shared_receives::two_queue_pairs", two_queue_pairs)
            .row(
                "post_srq_recv",
                "SRQ RECV",
                "-",
                "receives are consumed in order, by any queue pair of the SRQ",
            )
            .row("post_srq_recv", "SRQ RECV", "SRQ full", "refused")
            .row("post_recv", "RECV", "the queue pair has an SRQ", "HasSrq"),
        Case::new("shared_receives::limit_event", limit_event)
            .row(
                "create_srq",
                "limit",
                "-",
                "one SrqLimit event when fewer receives than the limit are posted",
            )
            .row("modify_srq", "limit", "-", "armed again")
            .row("modify_srq", "limit", "above the size", "refused"),
    ]
}

/// Creates a protection domain with an SRQ.
pub(super) fn srq(
    cx: &mut CaseContext<'_>,
    host: Host,
    max_wr: u32,
    limit: u32,
) -> Result<(Id, Id), String> {
    let (pd, srq, _) = sized(cx, host, max_wr, limit)?;
    Ok((pd, srq))
}

/// Creates a protection domain with an SRQ, and returns the number of receives that it holds.
fn sized(
    cx: &mut CaseContext<'_>,
    host: Host,
    max_wr: u32,
    limit: u32,
) -> Result<(Id, Id, u32), String> {
    let (pd, srq) = (cx.new_id(), cx.new_id());
    let device = host.device;
    let calls = vec![
        Call::AllocPd { pd, device },
        Call::CreateSrq {
            srq,
            pd,
            max_wr,
            max_sge: 2,
            limit,
        },
    ];
    let Reply::Each(replies) = cx.call_ok(host.id, Call::Each(calls))? else {
        return Err("unexpected reply".to_owned());
    };
    let exactly = cx.behaviour().sizes_queues_exactly;
    let asked = u64::from(max_wr);
    match replies.last() {
        Some(Reply::Number(size)) if *size == asked || *size > asked && !exactly => {
            Ok((pd, srq, *size as u32))
        }
        other => Err(format!("an SRQ of {max_wr} receives: {other:?}")),
    }
}

fn two_queue_pairs(cx: &mut CaseContext<'_>) -> Verdict {
    let options = QpOptions::default();
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (pd, srq, size) = sized(cx, second, 8, 0)?;
    let mut pairs: Vec<(QpFixture, QpFixture)> = Vec::new();
    for _ in 0..2 {
        let a = cx.new_qp(first, &options)?;
        let b = cx.new_qp_in_pd(second, pd, Some(srq), &options)?;
        cx.connect(a, &options, b, &options)?;
        pairs.push((a, b));
    }
    let target = pairs[0].1;
    for id in 0..8 {
        let into = piece(target.region, id as i64 * 64, 64);
        cx.receive(target, id, &[into])?;
    }
    for id in 8..u64::from(size) {
        cx.receive(target, id, &[])?;
    }
    let more = cx.receive(target, 1000, &[]);
    ensure!(more.is_err(), "one more than {size} receives was taken");
    for id in 0..8u64 {
        let (a, b) = pairs[id as usize % 2];
        cx.write_buffer(a, 0, &[id as u8; 10])?;
        cx.post(a, id, Op::Send, &[a.sge(0, 10)])?;
        cx.expect_sent(a, id, Status::Success)?;
        let got = cx.expect_received(b, id, Status::Success)?;
        ensure_eq!((got.qp, got.byte_len), (Some(b.qp), 10), "whose");
        let seen = cx.read_buffer(target, id as usize * 64, 10)?;
        ensure_eq!(seen, vec![id as u8; 10], "bytes");
    }
    let call = Call::PostRecv {
        queue: target.qp,
        chain: vec![Receive::new(0, &[])],
    };
    let refused = cx.try_call(second.id, call);
    let expected = Refusal::from(PostErrorKind::HasSrq.at(0));
    ensure_eq!(refused, Err(expected), "a queue pair with an SRQ");
    Ok(())
}

fn limit_event(cx: &mut CaseContext<'_>) -> Verdict {
    let options = QpOptions::default();
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (pd, srq, size) = sized(cx, second, 8, 3)?;
    let limit = Event::SrqLimit(Some(srq));
    let a = cx.new_qp(first, &options)?;
    let b = cx.new_qp_in_pd(second, pd, Some(srq), &options)?;
    cx.connect(a, &options, b, &options)?;
    for round in 0..2u64 {
        for id in 0..4 {
            cx.receive(b, id, &[b.sge(0, 64)])?;
        }
        if round == 1 {
            cx.call_ok(second.id, Call::SetLimit { srq, limit: 2 })?;
        }
        let armed = [3, 2][round as usize];
        for id in 0..4 {
            cx.post(a, id, Op::Send, &[])?;
            cx.expect_sent(a, id, Status::Success)?;
            cx.expect_received(b, id, Status::Success)?;
            // The event comes only when fewer receives than the limit are left.
            if 3 - id >= armed {
                cx.sleep_for(Duration::from_millis(2));
                let early = cx.events(second)?.contains(&limit);
                ensure!(!early, "a limit of {armed}, and told with {}", 3 - id);
            }
        }
        cx.expect_event(second, limit)?;
        let again = cx.events(second)?.contains(&limit);
        ensure!(!again, "a second limit event");
    }
    let limit = size + 1;
    let refused = cx.try_call(second.id, Call::SetLimit { srq, limit });
    ensure!(refused.is_err(), "a limit above the size was taken");
    Ok(())
}
