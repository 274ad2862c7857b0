//! Faulty receives of datagrams (9.9.3): bad memory, and wrong lengths.

use headworks_verbs::{Access, GRH_BYTES, QpState, Status};

use super::{HEADER, TOO_LONG, handle, options, pair, send, to, up};
use crate::call::{Event, Id};
use crate::case_context::Host;
use crate::cases::memory_fault::MemoryFault;
use crate::cases::shared_receives;
use crate::{Case, CaseContext, QpFixture, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    let faults = MemoryFault::COMMON.into_iter().chain([
        MemoryFault::SecondPiece,
        MemoryFault::Access(Access::REMOTE_READ),
    ]);
    let mut cases = Vec::new();
    for fault in faults {
        let outcome =
            "LocalProtection; the queue pair in ERR; nothing written; the sender stays in RTS";
        let name = format!("datagrams::recv_{}", fault.name());
        let own = Case::new(&name, move |cx| bad(cx, fault));
        cases.push(own.row("post_recv", "RECV of datagrams", fault.wrong(), outcome));
        let name = format!("datagrams::srq_recv_{}", fault.name());
        let shared = Case::new(name, move |cx| bad_of_an_srq(cx, fault));
        cases.push(shared.row(
            "post_srq_recv",
            "SRQ RECV of datagrams",
            fault.wrong(),
            format!("{outcome}; other receives of the SRQ stay posted"),
        ));
    }
    cases.push(Case::new("datagrams::recv_short", short).row(
        "post_recv",
        "RECV of datagrams",
        "shorter than the GRH, or than the GRH and the datagram",
        "the datagram is lost; the receive stays posted for one that fits",
    ));
    cases.push(Case::new("datagrams::srq_recv_short", short_of_an_srq).row(
        "post_srq_recv",
        "SRQ RECV of datagrams",
        "shorter than the GRH, or than the GRH and the datagram",
        "LocalLength; the queue pair still receives",
    ));
    cases
}

const LEN: u32 = 64;

/// Checks that the memory of the receiver is unchanged.
fn is_untouched(cx: &mut CaseContext<'_>, b: QpFixture) -> Verdict {
    let same = cx.buffer_matches(b, 0, b.len, 5)?;
    ensure!(
        same || !cx.behaviour().checks_before_copying,
        "memory was written"
    );
    Ok(())
}

fn bad(cx: &mut CaseContext<'_>, fault: MemoryFault) -> Verdict {
    let (a, b) = pair(cx)?;
    let ah = handle(cx, a, b.host)?;
    cx.fill_buffer(b, 0, b.len, 5)?;
    let pieces = fault.apply(cx, b, HEADER + LEN, 1)?.pieces();
    cx.receive(b, 1, &pieces)?;
    cx.receive(b, 2, &[b.sge(0, 200)])?;
    send(cx, a, to(ah, b), LEN, Status::Success)?;
    cx.expect_received(b, 1, Status::LocalProtection)?;
    cx.expect_received(b, 2, Status::Flushed)?;
    cx.expect_state(b, QpState::Error, "the receiver")?;
    cx.expect_failed(b)?;
    send(cx, a, to(ah, b), LEN, Status::Success)?;
    cx.expect_state(a, QpState::Rts, "the sender")?;
    cx.expect_nothing_more(b)?;
    is_untouched(cx, b)
}

/// Creates two UD queue pairs that share an SRQ.
fn sharing(cx: &mut CaseContext<'_>, host: Host) -> Result<(QpFixture, QpFixture), String> {
    let (pd, srq): (Id, Id) = shared_receives::srq(cx, host, 8, 0)?;
    let mut one = || {
        let side = cx.new_qp_in_pd(host, pd, Some(srq), &options())?;
        super::bring_up(cx, side)?;
        Ok::<_, String>(side)
    };
    Ok((one()?, one()?))
}

fn bad_of_an_srq(cx: &mut CaseContext<'_>, fault: MemoryFault) -> Verdict {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let a = up(cx, first)?;
    let (b, other) = sharing(cx, second)?;
    let ah = handle(cx, a, second)?;
    cx.fill_buffer(b, 0, b.len, 5)?;
    let pieces = fault.apply(cx, b, HEADER + LEN, 1)?.pieces();
    cx.receive(b, 1, &pieces)?;
    cx.receive(b, 2, &[other.sge(0, 200)])?;
    send(cx, a, to(ah, b), LEN, Status::Success)?;
    cx.expect_received(b, 1, Status::LocalProtection)?;
    cx.expect_state(b, QpState::Error, "the receiver")?;
    cx.expect_failed(b)?;
    cx.expect_event(second, Event::QpLastWqe(Some(b.qp)))?;
    is_untouched(cx, b)?;
    cx.expect_state(other, QpState::Rts, "the one beside it")?;
    send(cx, a, to(ah, other), LEN, Status::Success)?;
    let got = cx.expect_received(other, 2, Status::Success)?;
    ensure_eq!(got.qp, Some(other.qp), "whose");
    cx.expect_nothing_more(b)
}

fn short(cx: &mut CaseContext<'_>) -> Verdict {
    for (room, lost, fits) in [(HEADER - 1, 0, None), (HEADER + 7, 8, Some(7))] {
        let (a, b) = pair(cx)?;
        let ah = handle(cx, a, b.host)?;
        cx.fill_buffer(b, 0, b.len, 5)?;
        cx.receive(b, 1, &[b.sge(0, room)])?;
        send(cx, a, to(ah, b), lost, Status::Success)?;
        cx.named_wait(TOO_LONG, |cx| cx.expect_nothing_more(b))?;
        cx.expect_state(b, QpState::Rts, "the receiver")?;
        is_untouched(cx, b)?;
        if let Some(len) = fits {
            send(cx, a, to(ah, b), len, Status::Success)?;
            let got = cx.expect_received(b, 1, Status::Success)?;
            ensure_eq!(got.byte_len, HEADER + len, "length");
        }
        cx.expect_no_fatal(b)?;
    }
    Ok(())
}

fn short_of_an_srq(cx: &mut CaseContext<'_>) -> Verdict {
    for (room, len) in [(HEADER - 1, 0), (HEADER + 7, 8)] {
        let (first, second) = (cx.first_host()?, cx.second_host()?);
        let a = up(cx, first)?;
        let (b, _) = sharing(cx, second)?;
        let ah = handle(cx, a, second)?;
        cx.fill_buffer(b, 0, b.len, 5)?;
        cx.write_buffer(a, 0, b"datagram")?;
        cx.receive(b, 1, &[b.sge(0, room)])?;
        send(cx, a, to(ah, b), len, Status::Success)?;
        cx.expect_received(b, 1, Status::LocalLength)?;
        is_untouched(cx, b)?;
        cx.receive(b, 2, &[b.sge(0, 200)])?;
        send(cx, a, to(ah, b), 8, Status::Success)?;
        cx.expect_received(b, 2, Status::Success)?;
        ensure_eq!(
            cx.read_buffer(b, GRH_BYTES, 8)?,
            b"datagram",
            "the next one"
        );
        cx.expect_state(b, QpState::Rts, "the receiver")?;
        cx.expect_no_fatal(b)?;
    }
    Ok(())
}
