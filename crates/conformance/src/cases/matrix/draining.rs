//! Send queues that drain, and peers in states that receive but do not send (section 10.3.1).

use headworks_verbs::{QpState, Status};

use super::{LEN, OpKind, case, kinds, small_queue_options};
use crate::call::{Call, Op, Reply, Send};
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "drained",
            "post_send",
            &OpKind::ALL,
            "in SQD",
            "waits until RTS; the queue pair still receives",
            drained,
        )
        .row(
            "post_recv",
            "RECV",
            "in SQD",
            "posted; the peer's SEND consumes it",
        )
        .row(
            "modify",
            "RTS to SQD to RTS",
            "-",
            "sending stops in SQD and resumes in RTS",
        ),
        case(
            "draining",
            "modify",
            &kinds(|kind| matches!(kind, OpKind::Send | OpKind::Write | OpKind::Read)),
            "to SQD during its execution",
            "Success, data intact, still in SQD",
            draining,
        ),
        case(
            "peer_receives",
            "post_send",
            &OpKind::ALL,
            "the peer is in RTR, SQD",
            "Success: the peer executes it",
            peer_receives,
        ),
    ]
}

fn request(kind: OpKind, wr_id: u64, a: QpFixture, b: QpFixture) -> Send {
    Send::new(wr_id, kind.op(b.at(0)), &[a.sge(0, kind.len())])
}

/// Returns the word that the operation writes, which was zero: local for a READ, otherwise the peer's.
fn first_word(
    cx: &mut CaseContext<'_>,
    kind: OpKind,
    a: QpFixture,
    b: QpFixture,
) -> Result<u64, String> {
    let side = if kind == OpKind::Read { a } else { b };
    cx.read_u64(side, 0)
}

/// Writes a word other than zero to the memory from which `kind` takes its bytes, and posts a receive.
fn prepare(cx: &mut CaseContext<'_>, kind: OpKind, a: QpFixture, b: QpFixture) -> Verdict {
    let side = if kind == OpKind::Read { b } else { a };
    // An atomic takes no local bytes.
    if !kind.is_atomic() {
        cx.write_buffer(side, 0, &1u64.to_ne_bytes())?;
    }
    cx.receive(b, 70, &[b.sge(0, 64)])
}

fn drained(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let (a, b) = cx.connected_pair_with(&small_queue_options(), &small_queue_options())?;
    prepare(cx, kind, a, b)?;
    cx.to_state(a, QpState::Sqd)?;
    cx.post_one(a, request(kind, 1, a, b))?;
    for _ in 0..20 {
        cx.expect_nothing_more(a)?;
        cx.advance();
    }
    ensure_eq!(first_word(cx, kind, a, b)?, 0, "executed in SQD");
    // The receiving half goes on.
    cx.receive(a, 5, &[])?;
    cx.post(b, 6, Op::Send, &[])?;
    cx.expect_sent(b, 6, Status::Success)?;
    cx.expect_received(a, 5, Status::Success)?;
    cx.to_state(a, QpState::Rts)?;
    cx.named_wait("in RTS again", |cx| cx.expect_sent(a, 1, Status::Success))?;
    ensure_eq!(first_word(cx, kind, a, b)?, 1, "executed in RTS");
    if kind.takes_receive() {
        cx.expect_received(b, 70, Status::Success)?;
    }
    cx.expect_nothing_more(a)
}

const LONG: u32 = 8 << 20;

/// A request that has begun ends before the send queue is drained.
fn draining(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    if cx.behaviour().defers_requests {
        return cx.skip("a request that has begun may stop in SQD here");
    }
    let options = QpOptions {
        len: LONG as usize,
        ..QpOptions::default()
    };
    let (a, b) = cx.connected_pair_with(&options, &options)?;
    let (from, to) = if kind == OpKind::Read { (b, a) } else { (a, b) };
    let marks: Vec<_> = (0..64)
        .map(|number| number * (LONG as usize / 64))
        .collect();
    let get = |offset: &usize| Call::Get {
        buffer: to.buffer,
        offset: *offset,
        len: 1,
    };
    let looks = Call::Each(marks.iter().map(get).collect());
    for offset in &marks {
        cx.write_buffer(from, *offset, &[1])?;
    }
    cx.receive(b, 70, &[b.sge(0, LONG)])?;
    cx.post(a, 1, kind.op(b.at(0)), &[a.sge(0, LONG)])?;
    let seen = |cx: &mut CaseContext<'_>| match cx.call_ok(to.host.id, looks.clone())? {
        Reply::Each(seen) => Ok(seen
            .iter()
            .filter(|one| **one == Reply::Bytes(vec![1]))
            .count()),
        other => Err(format!("instead of bytes: {other:?}")),
    };
    cx.wait("the first of it", |cx| Ok((seen(cx)? > 0).then_some(())))?;
    cx.to_state(a, QpState::Sqd)?;
    let ended = cx.named_wait("in SQD", |cx| cx.expect_sent(a, 1, Status::Success));
    if let Err(hung) = ended {
        if !hung.contains("no completion") {
            return Err(hung);
        }
        // A device that stops here must go on with the next request, or it never drains.
        if cx.to_state(a, QpState::Rts).is_err() {
            cx.to_error(a)?;
            cx.expect_sent(a, 1, Status::Flushed)?;
            return Err(hung);
        }
        cx.post(a, 2, Op::Write(b.at(0)), &[])?;
        for wr_id in [1, 2] {
            let sent = cx.expect_sent(a, wr_id, Status::Success);
            sent.map_err(|seen| format!("in RTS, with one more request: {seen}"))?;
        }
        ensure_eq!(seen(cx)?, marks.len(), "marks that have come at last");
        return Err(hung);
    }
    cx.expect_state(a, QpState::Sqd, "the initiator")?;
    ensure_eq!(seen(cx)?, marks.len(), "marks that have come");
    cx.destroy_qp_fixture(a)?;
    cx.destroy_qp_fixture(b)
}

fn peer_receives(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    for state in [QpState::Rtr, QpState::Sqd] {
        let (first, second) = (cx.first_host()?, cx.second_host()?);
        let (a, b) = (
            cx.new_qp(first, &small_queue_options())?,
            cx.new_qp(second, &small_queue_options())?,
        );
        for (side, peer) in [(a, b), (b, a)] {
            cx.to_init(side, &small_queue_options())?;
            cx.to_rtr(side, &small_queue_options(), peer)?;
        }
        cx.to_rts(a, &small_queue_options())?;
        if state == QpState::Sqd {
            cx.to_rts(b, &small_queue_options())?;
            cx.to_state(b, QpState::Sqd)?;
        }
        prepare(cx, kind, a, b)?;
        cx.post_one(a, request(kind, 1, a, b))?;
        let what = format!("{} to a peer in {state}", kind.name());
        let sent = cx.expect_sent(a, 1, Status::Success);
        sent.map_err(|seen| format!("{what}: {seen}"))?;
        ensure_eq!(first_word(cx, kind, a, b)?, 1, what);
        if kind.takes_receive() {
            cx.expect_received(b, 70, Status::Success)?;
        }
        cx.expect_state(b, state, "the peer")?;
        let rest = cx.read_buffer(b, 64, LEN - 64)?;
        ensure!(rest.iter().all(|byte| *byte == 0), "more was written");
    }
    Ok(())
}
