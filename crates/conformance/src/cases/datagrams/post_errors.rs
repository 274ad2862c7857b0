//! Datagrams that are refused when posted, or that find a full queue.

use headworks_verbs::{PostErrorKind, QpAttr, QpCaps, QpState, Status};

use super::{NO_WAY, QKEY, SENT, WHAT, handle, no_way, options, pair, send, to, to_init, up};
use crate::call::{Data, Op, Peer, Refusal, Send};
use crate::cases::matrix::full_queues::{NO_OVERRUN, overruns};
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    let row = |name, run: fn(&mut CaseContext<'_>) -> Verdict, wrong: &str, outcome: &str| {
        Case::new(format!("datagrams::{name}"), run).row(SENT, WHAT, wrong, outcome)
    };
    vec![
        row(
            "state",
            state,
            "in RESET, INIT, RTR",
            "State; nothing posted",
        ),
        row(
            "error_state",
            error_state,
            "in ERR",
            "Flushed, in order, signalled or not",
        ),
        row(
            "refused_at_its_index",
            refused_at_its_index,
            "one SGE too many; inline payload too long",
            "TooManySges, InlineTooLong at its index; earlier datagrams of the chain are sent, later ones are not",
        ),
        row(
            "sq_full",
            sq_full,
            "SQ full",
            "QueueFull; not sent; room again after an earlier request's completion is polled",
        ),
        row(
            "cq_full",
            cq_full,
            "send CQ full",
            "CqError; polls return the CQ's completions, then Overrun; the queue pair in ERR",
        )
        .row(
            "post_recv",
            "RECV of datagrams",
            "receive CQ full",
            "CqError; the queue pair in ERR; the sender stays in RTS",
        ),
        row(
            "wrong_transport",
            wrong_transport,
            "on an RC queue pair; SEND, WRITE, READ, atomics on a UD queue pair",
            "Operation; nothing posted",
        ),
        row(
            "destroyed_handle",
            destroyed_handle,
            "destroyed address handle",
            NO_WAY,
        ),
    ]
}

fn kind_of(refused: Result<(), Refusal>) -> Result<(), String> {
    refused.map_err(|error| error.kind)
}

fn state(cx: &mut CaseContext<'_>) -> Verdict {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (a, b) = (cx.new_qp(first, &options())?, up(cx, second)?);
    let ah = handle(cx, a, second)?;
    cx.receive(b, 1, &[b.sge(0, 100)])?;
    for expected in [QpState::Reset, QpState::Init, QpState::Rtr] {
        let refused = cx.post_chain(a, vec![Send::inline(1, to(ah, b), b"x")]);
        let expected_refusal = Refusal::from(PostErrorKind::State(expected).at(0));
        ensure_eq!(refused, Err(expected_refusal), "refused");
        let next = match expected {
            QpState::Reset => to_init(),
            _ => QpAttr::to_state(QpState::Rtr),
        };
        if expected != QpState::Rtr {
            cx.modify(a, next, None)
                .map_err(crate::case_context::error_line)?;
        }
    }
    cx.expect_nothing_more(a)?;
    cx.expect_nothing_more(b)
}

fn error_state(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let ah = handle(cx, a, b.host)?;
    cx.receive(b, 1, &[b.sge(0, 100)])?;
    cx.receive(a, 9, &[])?;
    cx.to_error(a)?;
    for id in 0..4 {
        let request = Send::inline(id, to(ah, b), b"x");
        let request = if id % 2 == 0 {
            request.quiet()
        } else {
            request
        };
        cx.post_one(a, request)?;
    }
    for id in 0..4 {
        cx.expect_sent(a, id, Status::Flushed)?;
    }
    cx.expect_received(a, 9, Status::Flushed)?;
    cx.expect_nothing_more(a)?;
    cx.expect_nothing_more(b)?;
    cx.expect_state(b, QpState::Rts, "the other")
}

fn refused_at_its_index(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let ah = handle(cx, a, b.host)?;
    let (sges, inline) = (a.caps.max_send_sge, a.caps.max_inline);
    let tries = [
        (
            Data::Gather(vec![a.sge(0, 1); sges as usize + 1]),
            PostErrorKind::TooManySges(sges),
        ),
        (
            Data::Inline(vec![7; inline as usize + 1]),
            PostErrorKind::InlineTooLong(inline),
        ),
    ];
    for (data, error) in tries {
        for id in 0..3 {
            cx.receive(b, id, &[b.sge(0, 200)])?;
        }
        let good = |id| Send::inline(id, to(ah, b), b"good");
        let bad = Send { data, ..good(2) };
        let refused = cx.post_chain(a, vec![good(1), bad, good(3)]);
        ensure_eq!(refused, Err(Refusal::from(error.at(1))), "refused");
        cx.expect_sent(a, 1, Status::Success)?;
        cx.expect_received(b, 0, Status::Success)?;
        cx.expect_nothing_more(a)?;
        cx.expect_nothing_more(b)?;
        cx.expect_state(a, QpState::Rts, "the sender")?;
        for id in 1..3 {
            send(cx, a, to(ah, b), 8, Status::Success)?;
            cx.expect_received(b, id, Status::Success)?;
        }
    }
    Ok(())
}

fn up_as(
    cx: &mut CaseContext<'_>,
    host: crate::Host,
    options: &QpOptions,
) -> Result<QpFixture, String> {
    let side = cx.new_qp(host, options)?;
    super::bring_up(cx, side)?;
    Ok(side)
}

fn sq_full(cx: &mut CaseContext<'_>) -> Verdict {
    let narrow = QpOptions {
        caps: QpCaps {
            max_send_wr: 4,
            ..options().caps
        },
        ..options()
    };
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (a, b) = (up_as(cx, first, &narrow)?, up(cx, second)?);
    let ah = handle(cx, a, second)?;
    let most = u64::from(a.caps.max_send_wr);
    for id in 0..=most {
        cx.receive(b, id, &[b.sge(0, 100)])?;
    }
    let mut chain: Vec<_> = (1..most)
        .map(|id| Send::inline(id, to(ah, b), b"x").quiet())
        .collect();
    chain.push(Send::inline(100, to(ah, b), b"x"));
    let mut taken = most;
    let full = |index| Err(Refusal::from(PostErrorKind::QueueFull.at(index)));
    let more = Send::inline(200, to(ah, b), b"x");
    if cx.behaviour().frees_slots_when_polled {
        cx.post_chain(a, chain)
            .map_err(crate::case_context::error_line)?;
        ensure_eq!(cx.post_chain(a, vec![more]), full(0), "full");
    } else {
        // Some requests may have been sent meanwhile, which makes room for one more.
        chain.push(more.quiet());
        let posted = cx.post_chain(a, chain);
        if posted.is_ok() {
            taken += 1;
        } else {
            ensure_eq!(posted, full(most as usize), "full");
        }
    }
    for id in 0..taken {
        cx.expect_received(b, id, Status::Success)?;
    }
    cx.expect_nothing_more(b)?;
    cx.expect_sent(a, 100, Status::Success)?;
    cx.expect_nothing_more(a)?;
    cx.receive(b, taken, &[b.sge(0, 100)])?;
    send(cx, a, to(ah, b), 8, Status::Success)?;
    cx.expect_received(b, taken, Status::Success).map(drop)
}

fn cq_full(cx: &mut CaseContext<'_>) -> Verdict {
    let tight = QpOptions {
        depth: 4,
        ..options()
    };
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (a, b) = (up_as(cx, first, &tight)?, up(cx, second)?);
    let ah = handle(cx, a, second)?;
    if cx.behaviour().defers_requests {
        return cx.skip(NO_OVERRUN);
    }
    for id in 0..=u64::from(a.depth) {
        cx.post(a, id, to(ah, b), &[a.sge(0, 8)])?;
    }
    overruns(cx, a, a.send_cq).map_err(|seen| format!("sends: {seen}"))?;
    // Now the receiver's CQ overruns.
    let (a, b) = (up(cx, first)?, up_as(cx, second, &tight)?);
    let ah = handle(cx, a, second)?;
    for id in 0..=u64::from(b.depth) {
        cx.receive(b, id, &[b.sge(0, 100)])?;
    }
    for _ in 0..=b.depth {
        send(cx, a, to(ah, b), 8, Status::Success)?;
    }
    overruns(cx, b, b.recv_cq).map_err(|seen| format!("receives: {seen}"))?;
    send(cx, a, to(ah, b), 8, Status::Success)?;
    cx.expect_state(a, QpState::Rts, "the sender")
}

fn wrong_transport(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair()?;
    let (c, d) = pair(cx)?;
    let ah = handle(cx, c, d.host)?;
    let peer = Peer::Of {
        host: d.host.id,
        qp: d.qp,
    };
    cx.receive(d, 1, &[d.sge(0, 100)])?;
    for imm in [None, Some(1)] {
        let op = Op::SendTo {
            ah,
            peer,
            qkey: QKEY,
            imm,
        };
        let refused = cx.post_chain(a, vec![Send::inline(1, op, b"x")]);
        ensure_eq!(kind_of(refused), Err("Operation".to_owned()), "on RC");
    }
    let remote = b.at(0);
    for op in [
        Op::Send,
        Op::SendImm(1),
        Op::Write(remote),
        Op::WriteImm(remote, 1),
        Op::Read(remote),
        Op::CompareSwap {
            remote,
            expect: 0,
            swap: 1,
        },
        Op::FetchAdd { remote, add: 1 },
    ] {
        let refused = cx.post_chain(c, vec![Send::new(1, op, &[c.sge(0, 8)])]);
        ensure_eq!(
            kind_of(refused),
            Err("Operation".to_owned()),
            format!("{op:?} on UD")
        );
    }
    ensure_eq!(cx.read_u64(b, 0)?, 0, "executed all the same");
    for side in [a, c] {
        cx.expect_state(side, QpState::Rts, "the queue pair")?;
        cx.expect_nothing_more(side)?;
    }
    cx.expect_nothing_more(d)
}

fn destroyed_handle(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let (gone, kept) = (handle(cx, a, b.host)?, handle(cx, a, b.host)?);
    for id in 0..2 {
        cx.receive(b, id, &[b.sge(0, 100)])?;
    }
    send(cx, a, to(gone, b), 8, Status::Success)?;
    cx.expect_received(b, 0, Status::Success)?;
    cx.destroy(a.host, gone)?;
    no_way(cx, a, to(gone, b))?;
    cx.expect_nothing_more(b)?;
    send(cx, a, to(kept, b), 8, Status::Success)?;
    cx.expect_received(b, 1, Status::Success).map(drop)
}
