//! Order: fences, READs in flight, mixtures.

use headworks_verbs::{Duration, Opcode, QpState, Status};

use super::{ErrorTrial, OpKind, case, kinds, small_queue_options};
use crate::call::{Op, Send};
use crate::case_context::error_line;
use crate::cases::memory_fault::MemoryFault;
use crate::{Case, CaseContext, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "fenced",
            "post_send",
            &OpKind::ALL,
            "fenced, behind a READ",
            "executed after the READ has fetched its data",
            fenced,
        ),
        case(
            "fenced_behind_an_atomic",
            "post_send",
            &OpKind::ALL,
            "fenced, behind a FETCH_ADD",
            "executed after the FETCH_ADD has returned its value",
            fenced_behind_an_atomic,
        ),
        case(
            "fenced_and_unanswered",
            "post_send",
            &OpKind::ALL,
            "fenced, the peer is gone",
            "RetryExceeded",
            fenced_and_unanswered,
        ),
        case(
            "fenced_and_sent_again",
            "post_send",
            &kinds(OpKind::takes_receive),
            "fenced, no receive posted yet, a READ behind it",
            "both wait, then succeed",
            fenced_and_sent_again,
        ),
        case(
            "wrong_behind_what_is_unanswered",
            "post_send",
            &OpKind::ALL,
            "invalid lkey, behind a WRITE, the peer is gone",
            "the WRITE ends with RetryExceeded, the faulty request is Flushed",
            wrong_behind_what_is_unanswered,
        ),
        Case::new("matrix::read_depth", read_depth).row(
            "post_send",
            "READ, CMP_SWAP, FETCH_ADD",
            "more outstanding than max_rd_atomic",
            "all succeed, in order",
        ),
        Case::new("matrix::read_depth_of_the_peer", read_depth_of_the_peer).row(
            "post_send",
            "READ",
            "more outstanding than the peer's max_dest_rd_atomic",
            "all succeed, in order; or one ends with RemoteInvalidRequest, the rest are Flushed and both queue pairs are in ERR",
        ),
        case(
            "no_reads_here",
            "post_send",
            &kinds(OpKind::writes_here),
            "max_rd_atomic is 0",
            "Operation; nothing posted",
            no_reads_here,
        ),
        case(
            "no_reads_there",
            "post_send",
            &kinds(OpKind::writes_here),
            "the peer's max_dest_rd_atomic is 0",
            "RemoteInvalidRequest; both queue pairs in ERR; nothing read or changed",
            no_reads_there,
        ),
        Case::new("matrix::all_in_order", all_in_order).row(
            "poll",
            "every operation, one chain",
            "-",
            "completions in order, with correct opcodes and lengths",
        ),
        Case::new("matrix::every_other_signalled", every_other_signalled).row(
            "poll",
            "every operation, every other one signalled",
            "-",
            "completions of the signalled requests only, in order",
        ),
    ]
}

/// A fence waits only for earlier requests: a fenced request that is sent again must not wait for itself.
fn fenced_and_unanswered(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let options = QpOptions::default();
    let (a, b) = cx.connected_pair_with(&options, &options)?;
    let request = Send::new(1, kind.op(b.at(0)), &[a.sge(0, kind.len())]).fenced();
    cx.destroy_qp_fixture(b)?;
    cx.post_one(a, request)?;
    cx.named_wait("behind a fence", |cx| {
        cx.expect_sent(a, 1, Status::RetryExceeded)
    })?;
    cx.expect_failed(a)
}

/// A fenced request that is sent again must not wait for later requests either.
fn fenced_and_sent_again(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let options = QpOptions {
        rnr_retry: 7,
        ..QpOptions::default()
    };
    let (a, b) = cx.connected_pair_with(&options, &options)?;
    cx.write_buffer(b, 512, b"behind")?;
    let first = Send::new(1, kind.op(b.at(0)), &[a.sge(0, kind.len())]).fenced();
    let second = Send::new(2, Op::Read(b.at(512)), &[a.sge(512, 6)]);
    cx.post_chain(a, vec![first, second]).map_err(error_line)?;
    let until = cx.now() + Duration::from_millis(30);
    while cx.now() < until {
        cx.expect_none(a.host, a.send_cq, "too early")?;
        cx.advance();
    }
    cx.receive(b, 70, &[b.sge(0, 64)])?;
    cx.named_wait("behind a fence", |cx| cx.expect_sent(a, 1, Status::Success))?;
    cx.expect_sent(a, 2, Status::Success)?;
    cx.expect_received(b, 70, Status::Success)?;
    ensure_eq!(cx.read_buffer(a, 512, 6)?, b"behind", "read");
    cx.expect_nothing_more(a)
}

/// The queue stops at a faulty request, but requests before it go on.
fn wrong_behind_what_is_unanswered(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let (a, b) = cx.connected_pair()?;
    let there = b.at(0);
    let wrong = MemoryFault::Key.apply(cx, a, kind.len(), 8)?.pieces();
    cx.destroy_qp_fixture(b)?;
    let chain = vec![
        Send::new(1, Op::Write(there), &[a.sge(0, 8)]),
        Send::new(2, kind.op(there), &wrong),
    ];
    cx.post_chain(a, chain).map_err(error_line)?;
    cx.named_wait("before a fault", |cx| {
        cx.expect_sent(a, 1, Status::RetryExceeded)
    })?;
    cx.expect_sent(a, 2, Status::Flushed)?;
    cx.expect_failed(a)
}

const LONG: u32 = 1 << 20;
/// Offset of the last word of [`LONG`] bytes.
const LAST: i64 = LONG as i64 - 8;

/// Posts a READ of 1 MiB, and then a fenced request that uses the bytes that the READ fetches.
fn fenced(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let large = QpOptions {
        len: 4 << 20,
        ..QpOptions::default()
    };
    let (a, b) = cx.connected_pair_with(&large, &large)?;
    cx.fill_buffer(b, 0, LONG as usize, 1)?;
    let copy = 2 << 20;
    cx.receive(b, 70, &[b.sge(copy, LONG)])?;
    let here = [a.sge(0, LONG)];
    // A second READ fetches to another place, so that only the fence defines the order. The result of an
    // atomic goes to the last word that the READ fetches.
    let (op, pieces) = match kind {
        OpKind::Read => (kind.op(b.at(0)), [a.sge(copy, LONG)]),
        OpKind::CmpSwap | OpKind::FetchAdd => (kind.op(b.at(copy)), [a.sge(LAST, 8)]),
        _ => (kind.op(b.at(copy)), here),
    };
    let chain = vec![
        Send::new(1, Op::Read(b.at(0)), &here).quiet(),
        Send::new(2, op, &pieces).fenced(),
    ];
    cx.post_chain(a, chain)
        .map_err(crate::case_context::error_line)?;
    cx.expect_sent(a, 2, Status::Success)?;
    let held = match kind {
        OpKind::Read => cx.buffer_matches(a, copy as usize, LONG as usize, 1)?,
        OpKind::CmpSwap | OpKind::FetchAdd => cx.read_u64(a, LAST as usize)? == 0,
        _ => cx.buffer_matches(b, copy as usize, LONG as usize, 1)?,
    };
    ensure!(held, "{}: the fence did not hold", kind.name());
    if kind.takes_receive() {
        cx.expect_received(b, 70, Status::Success)?;
    }
    cx.destroy_qp_fixture(a)?;
    cx.destroy_qp_fixture(b)
}

fn fenced_behind_an_atomic(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    const OTHER: u64 = 1000;
    let (a, b) = cx.connected_pair()?;
    cx.write_buffer(b, 8, &OTHER.to_ne_bytes())?;
    for round in 0..20u64 {
        cx.receive(b, 70, &[b.sge(64, 8)])?;
        let add = Op::FetchAdd {
            remote: b.at(0),
            add: 1,
        };
        // The fetched value is sent on, or overwritten by the later request.
        let op = match kind {
            OpKind::Read => kind.op(b.at(0)),
            OpKind::CmpSwap | OpKind::FetchAdd => kind.op(b.at(8)),
            _ => kind.op(b.at(64)),
        };
        let chain = vec![
            Send::new(1, add, &[a.sge(0, 8)]).quiet(),
            Send::new(2, op, &[a.sge(0, 8)]).fenced(),
        ];
        cx.post_chain(a, chain)
            .map_err(crate::case_context::error_line)?;
        cx.named_wait("behind an atomic", |cx| {
            cx.expect_sent(a, 2, Status::Success)
        })?;
        let (seen, expected) = match kind {
            OpKind::Read => (cx.read_u64(a, 0)?, round + 1),
            OpKind::CmpSwap => (cx.read_u64(a, 0)?, OTHER),
            OpKind::FetchAdd => (cx.read_u64(a, 0)?, OTHER + round),
            _ => (cx.read_u64(b, 64)?, round),
        };
        ensure_eq!(seen, expected, format!("{} in round {round}", kind.name()));
        if kind.takes_receive() {
            cx.expect_received(b, 70, Status::Success)?;
        }
    }
    Ok(())
}

/// Section 9.4.4: if the agreed number of requests is outstanding, further ones wait and are not refused.
fn read_depth(cx: &mut CaseContext<'_>) -> Verdict {
    for depth in [1, 2] {
        let options = QpOptions {
            max_rd_atomic: Some(depth),
            max_dest_rd_atomic: Some(depth),
            len: 1 << 20,
            ..QpOptions::default()
        };
        let (a, b) = cx.connected_pair_with(&options, &options)?;
        cx.fill_buffer(b, 1024, 200_000, 4)?;
        let request = |id: u64| match id % 3 {
            0 => Send::new(id, Op::Read(b.at(1024)), &[a.sge(1024, 200_000)]),
            1 => Send::new(id, OpKind::FetchAdd.op(b.at(0)), &[a.sge(0, 8)]),
            _ => Send::new(id, OpKind::CmpSwap.op(b.at(8)), &[a.sge(8, 8)]),
        };
        let chain = (0..30).map(request).collect();
        cx.post_chain(a, chain)
            .map_err(crate::case_context::error_line)?;
        for id in 0..30 {
            cx.expect_sent(a, id, Status::Success)?;
        }
        ensure!(cx.buffer_matches(a, 1024, 200_000, 4)?, "READ differs");
        ensure_eq!((cx.read_u64(b, 0)?, cx.read_u64(b, 8)?), (10, 1), "atomics");
        ensure_eq!(
            (cx.read_u64(a, 0)?, cx.read_u64(a, 8)?),
            (9, 1),
            "old values"
        );
    }
    Ok(())
}

/// An initiator that sends more requests at once than the peer holds violates the agreement. The peer may
/// refuse them (class C of 9.9.3) or execute them.
fn read_depth_of_the_peer(cx: &mut CaseContext<'_>) -> Verdict {
    const READS: u64 = 16;
    const LEN: u32 = 100_000;
    let of_a = QpOptions {
        len: 2 << 20,
        ..small_queue_options()
    };
    let of_b = QpOptions {
        max_dest_rd_atomic: Some(1),
        ..of_a.clone()
    };
    let (a, b) = cx.connected_pair_with(&of_a, &of_b)?;
    cx.fill_buffer(b, 0, LEN as usize, 4)?;
    let place = |id: u64| id as i64 * i64::from(LEN);
    let request = |id| Send::new(id, Op::Read(b.at(0)), &[a.sge(place(id), LEN)]);
    let chain = (0..READS).map(request).collect();
    cx.post_chain(a, chain)
        .map_err(crate::case_context::error_line)?;
    let mut refused = false;
    for id in 0..READS {
        let done = cx.next_send_completion(a)?;
        ensure_eq!(done.wr_id, id, "order");
        match done.status {
            Status::Success if !refused => {
                let whole = cx.buffer_matches(a, place(id) as usize, LEN as usize, 4)?;
                ensure!(whole, "READ {id} differs");
            }
            Status::RemoteInvalidRequest if !refused => refused = true,
            Status::Flushed if refused => {}
            other => return Err(format!("READ {id}: {other:?}")),
        }
    }
    cx.expect_nothing_more(a)?;
    let state = if refused {
        QpState::Error
    } else {
        QpState::Rts
    };
    cx.expect_state(a, state, "the initiator")?;
    cx.wait(&format!("the peer in {state}"), |cx| {
        Ok((cx.state(b)? == state).then_some(()))
    })
}

/// If none may be outstanding, none can ever be sent.
fn no_reads_here(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let none = QpOptions {
        max_rd_atomic: Some(0),
        ..small_queue_options()
    };
    let (a, b) = cx.connected_pair_with(&none, &small_queue_options())?;
    let request = Send::new(1, kind.op(b.at(0)), &[a.sge(0, kind.len())]);
    let refused = cx.post_chain(a, vec![request]);
    ensure_eq!(
        refused.map_err(|error| error.kind),
        Err("Operation".to_owned()),
        kind.name()
    );
    cx.post_one(a, Send::inline(2, Op::Write(b.at(0)), b"x"))?;
    cx.expect_sent(a, 2, Status::Success)?;
    cx.expect_nothing_more(a)
}

/// A peer that holds none answers with a NAK, invalid request: class C of the responder errors (9.9.3).
fn no_reads_there(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let trial = ErrorTrial::refused(kind, Status::RemoteInvalidRequest);
    let of_b = QpOptions {
        max_dest_rd_atomic: Some(0),
        ..small_queue_options()
    };
    ErrorTrial { of_b, ..trial }.run(cx)
}

fn all_in_order(cx: &mut CaseContext<'_>) -> Verdict {
    let large = QpOptions {
        len: 1 << 20,
        ..QpOptions::default()
    };
    let (a, b) = cx.connected_pair_with(&large, &large)?;
    let mut expected = Vec::new();
    let mut chain = Vec::new();
    for id in 0..42u64 {
        let kind = OpKind::ALL[id as usize % 7];
        // Some requests outlast the call.
        let len = match kind.is_atomic() {
            true => 8,
            false => [64, 100_000, 0][id as usize % 3],
        };
        if kind.takes_receive() {
            cx.receive(b, id, &[b.sge(0, 200_000)])?;
        }
        chain.push(Send::new(id, kind.op(b.at(0)), &[a.sge(0, len)]));
        expected.push((id, kind.op(b.at(0)).opcode(), len));
    }
    cx.post_chain(a, chain)
        .map_err(crate::case_context::error_line)?;
    let mut receives = 0;
    for (id, opcode, len) in expected {
        let done = cx.expect_sent(a, id, Status::Success)?;
        ensure_eq!(
            (done.opcode, done.qp),
            (opcode, Some(a.qp)),
            format!("opcode of {id}")
        );
        if matches!(
            opcode,
            Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd
        ) {
            ensure_eq!(done.byte_len, len, format!("length of {id}"));
        }
        if OpKind::ALL[id as usize % 7].takes_receive() {
            let got = cx.expect_received(b, id, Status::Success)?;
            ensure_eq!(got.byte_len, len, format!("length of receive {id}"));
            receives += 1;
        }
    }
    ensure_eq!(receives, 18, "receives");
    cx.expect_nothing_more(a)?;
    cx.expect_nothing_more(b)
}

fn every_other_signalled(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair_with(&small_queue_options(), &small_queue_options())?;
    for _ in 0..5 {
        let mut chain = Vec::new();
        for id in 0..42u64 {
            let kind = OpKind::ALL[id as usize % 7];
            if kind.takes_receive() {
                cx.receive(b, id, &[b.sge(0, 64)])?;
            }
            let request = Send::new(id, kind.op(b.at(0)), &[a.sge(0, kind.len())]);
            chain.push(if id % 2 == 0 {
                request.quiet()
            } else {
                request
            });
        }
        cx.post_chain(a, chain)
            .map_err(crate::case_context::error_line)?;
        for id in (1..42).step_by(2) {
            cx.expect_sent(a, id, Status::Success)?;
        }
        for id in (0..42).filter(|id| OpKind::ALL[*id as usize % 7].takes_receive()) {
            cx.expect_received(b, id, Status::Success)?;
        }
        cx.expect_nothing_more(a)?;
    }
    Ok(())
}
