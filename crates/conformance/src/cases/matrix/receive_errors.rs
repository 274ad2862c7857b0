//! Faults of the peer's receives, its own or those of an SRQ.

use headworks_verbs::{Access, QpState, Status};

use super::{
    BEFORE, ErrorTrial, FirstReceiveEnd, LEN, OpKind, PeerReceives, case, kinds,
    small_queue_options,
};
use crate::call::{Op, Send};
use crate::cases::memory_fault::MemoryFault;
use crate::cases::shared_receives;
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

const SENDS: [OpKind; 2] = [OpKind::Send, OpKind::SendImm];

/// Returns the faulty receives, each with the status of the receive and the status of the SEND.
fn bad() -> Vec<(PeerReceives, Status, Status)> {
    let faults = MemoryFault::COMMON.into_iter().chain([
        MemoryFault::SecondPiece,
        MemoryFault::Access(Access::REMOTE_READ),
    ]);
    let unplaced = |fault| {
        (
            PeerReceives::Bad(fault),
            Status::LocalProtection,
            Status::RemoteOperation,
        )
    };
    let short = (
        PeerReceives::Short,
        Status::LocalLength,
        Status::RemoteInvalidRequest,
    );
    faults.map(unplaced).chain([short]).collect()
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (receives, theirs, ours) in bad() {
        let (name, wrong) = match receives {
            PeerReceives::Bad(fault) => (fault.name(), fault.wrong()),
            _ => ("short", "one byte too short"),
        };
        let outcome = format!(
            "receive: {theirs:?}; SEND: {ours:?}; both queue pairs in ERR; nothing written"
        );
        let trial = move |kind| ErrorTrial {
            receives,
            taken: FirstReceiveEnd::With(theirs),
            ..ErrorTrial::refused(kind, ours)
        };
        let run = move |cx: &mut CaseContext<'_>, kind| trial(kind).run(cx);
        cases.push(
            case(
                &format!("recv_{name}"),
                "post_send",
                &SENDS,
                &format!("the peer's receive: {wrong}"),
                &outcome,
                run,
            )
            .row("post_recv", "RECV", wrong, outcome.clone()),
        );
        cases.push(
            Case::new(format!("matrix::srq_recv_{name}"), move |cx| {
                shared(cx, receives, theirs, ours)
            })
            .row(
                "post_srq_recv",
                "SRQ RECV",
                wrong,
                format!("{outcome}; other receives of the SRQ stay posted"),
            ),
        );
    }
    cases.push(case(
        "no_receive",
        "post_send",
        &kinds(OpKind::takes_receive),
        "no receive posted, RNR retries exhausted",
        "RnrRetryExceeded; the peer stays in RTS; nothing written",
        |cx, kind| {
            [0, 3].into_iter().try_for_each(|rnr_retry| {
                let of_a = QpOptions {
                    rnr_retry,
                    ..small_queue_options()
                };
                ErrorTrial {
                    of_a,
                    receives: PeerReceives::None,
                    peer_fails: false,
                    ..ErrorTrial::refused(kind, Status::RnrRetryExceeded)
                }
                .run(cx)
            })
        },
    ));
    cases.push(
        Case::new("matrix::srq_empty", |cx| {
            kinds(OpKind::takes_receive)
                .into_iter()
                .try_for_each(|kind| empty(cx, kind))
        })
        .row(
            "post_send",
            "SEND, SEND_IMM, WRITE_IMM",
            "the SRQ is empty",
            "RnrRetryExceeded; the peer stays in RTS",
        ),
    );
    cases.push(
        Case::new(
            "matrix::immediate_ignores_the_pieces",
            immediate_ignores_the_pieces,
        )
        .row(
            "post_recv",
            "RECV of a WRITE_IMM",
            "invalid lkey",
            "Success: the receive's SGEs are not used",
        ),
    );
    cases
}

/// Connects two pairs whose receivers share an SRQ. The first gets the faulty receive, the second goes on.
fn with_srq(
    cx: &mut CaseContext<'_>,
    options: &QpOptions,
) -> Result<[(QpFixture, QpFixture); 2], String> {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (pd, srq) = shared_receives::srq(cx, second, 4, 0)?;
    let mut pair = || {
        let a = cx.new_qp(first, options)?;
        let b = cx.new_qp_in_pd(second, pd, Some(srq), options)?;
        cx.connect(a, options, b, options)?;
        Ok::<_, String>((a, b))
    };
    Ok([pair()?, pair()?])
}

fn shared(
    cx: &mut CaseContext<'_>,
    receives: PeerReceives,
    theirs: Status,
    ours: Status,
) -> Verdict {
    for op in [Op::Send, Op::SendImm(5)] {
        let [(a, b), (c, d)] = with_srq(cx, &small_queue_options())?;
        cx.fill_buffer(b, 0, LEN, 1)?;
        receives.post(cx, b)?;
        cx.post(a, 1, op, &[a.sge(0, 64)])?;
        cx.post(a, 2, op, &[a.sge(0, 64)])?;
        cx.expect_sent(a, 1, ours)?;
        cx.expect_sent(a, 2, Status::Flushed)?;
        cx.expect_received(b, 70, theirs)?;
        cx.expect_state(b, QpState::Error, "the receiver")?;
        cx.expect_failed(a)?;
        cx.expect_failed(b)?;
        cx.expect_event(b.host, crate::call::Event::QpLastWqe(Some(b.qp)))?;
        let is_untouched = cx.buffer_matches(b, 0, LEN, 1)?;
        ensure!(
            is_untouched || !cx.behaviour().checks_before_copying,
            "{op:?} wrote"
        );
        // The other queue pair takes the next receive.
        cx.expect_state(d, QpState::Rts, "the one beside it")?;
        cx.write_buffer(c, 0, &[9; 16])?;
        cx.post(c, 3, op, &[c.sge(0, 16)])?;
        cx.expect_sent(c, 3, Status::Success)
            .map_err(|seen| format!("beside it: {seen}"))?;
        let got = cx.expect_received(d, 71, Status::Success)?;
        ensure_eq!((got.qp, got.byte_len), (Some(d.qp), 16), "whose");
        cx.expect_nothing_more(b)?;
        cx.expect_nothing_more(d)?;
    }
    Ok(())
}

fn empty(cx: &mut CaseContext<'_>, kind: OpKind) -> Verdict {
    let [(a, b), _] = with_srq(cx, &small_queue_options())?;
    cx.post(a, 1, kind.op(b.at(0)), &[a.sge(0, 8)])?;
    cx.expect_sent(a, 1, Status::RnrRetryExceeded)?;
    cx.expect_failed(a)?;
    cx.expect_state(b, QpState::Rts, "the peer")?;
    cx.expect_nothing_more(b)
}

fn immediate_ignores_the_pieces(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair_with(&small_queue_options(), &small_queue_options())?;
    let bad = MemoryFault::Key.apply(cx, b, 1, 1)?.pieces();
    cx.receive(b, 1, &bad)?;
    let there = Op::WriteImm(b.at(BEFORE as i64), 3);
    cx.post_one(a, Send::inline(2, there, b"whole"))?;
    cx.expect_sent(a, 2, Status::Success)?;
    let got = cx.expect_received(b, 1, Status::Success)?;
    ensure_eq!((got.byte_len, got.imm), (5, Some(3)), "the receive");
    ensure_eq!(cx.read_buffer(b, BEFORE, 5)?, b"whole", "bytes");
    Ok(())
}
