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
        let own = Case::new(&name, move |bench| bad(bench, fault));
        cases.push(own.row("post_recv", "RECV of datagrams", fault.wrong(), outcome));
        let name = format!("datagrams::srq_recv_{}", fault.name());
        let shared = Case::new(name, move |bench| bad_of_an_srq(bench, fault));
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
fn is_untouched(bench: &mut CaseContext<'_>, b: QpFixture) -> Verdict {
    let same = bench.buffer_matches(b, 0, b.len, 5)?;
    ensure!(
        same || !bench.behaviour().checks_before_copying,
        "memory was written"
    );
    Ok(())
}

fn bad(bench: &mut CaseContext<'_>, fault: MemoryFault) -> Verdict {
    let (a, b) = pair(bench)?;
    let ah = handle(bench, a, b.host)?;
    bench.fill_buffer(b, 0, b.len, 5)?;
    let pieces = fault.apply(bench, b, HEADER + LEN, 1)?.pieces();
    bench.receive(b, 1, &pieces)?;
    bench.receive(b, 2, &[b.sge(0, 200)])?;
    send(bench, a, to(ah, b), LEN, Status::Success)?;
    bench.expect_received(b, 1, Status::LocalProtection)?;
    bench.expect_received(b, 2, Status::Flushed)?;
    bench.expect_state(b, QpState::Error, "the receiver")?;
    bench.expect_failed(b)?;
    send(bench, a, to(ah, b), LEN, Status::Success)?;
    bench.expect_state(a, QpState::Rts, "the sender")?;
    bench.expect_nothing_more(b)?;
    is_untouched(bench, b)
}

/// Creates two UD queue pairs that share an SRQ.
fn sharing(bench: &mut CaseContext<'_>, host: Host) -> Result<(QpFixture, QpFixture), String> {
    let (pd, srq): (Id, Id) = shared_receives::srq(bench, host, 8, 0)?;
    let mut one = || {
        let side = bench.new_qp_in_pd(host, pd, Some(srq), &options())?;
        super::bring_up(bench, side)?;
        Ok::<_, String>(side)
    };
    Ok((one()?, one()?))
}

fn bad_of_an_srq(bench: &mut CaseContext<'_>, fault: MemoryFault) -> Verdict {
    let (first, second) = (bench.first_host()?, bench.second_host()?);
    let a = up(bench, first)?;
    let (b, other) = sharing(bench, second)?;
    let ah = handle(bench, a, second)?;
    bench.fill_buffer(b, 0, b.len, 5)?;
    let pieces = fault.apply(bench, b, HEADER + LEN, 1)?.pieces();
    bench.receive(b, 1, &pieces)?;
    bench.receive(b, 2, &[other.sge(0, 200)])?;
    send(bench, a, to(ah, b), LEN, Status::Success)?;
    bench.expect_received(b, 1, Status::LocalProtection)?;
    bench.expect_state(b, QpState::Error, "the receiver")?;
    bench.expect_failed(b)?;
    bench.expect_event(second, Event::QpLastWqe(Some(b.qp)))?;
    is_untouched(bench, b)?;
    bench.expect_state(other, QpState::Rts, "the one beside it")?;
    send(bench, a, to(ah, other), LEN, Status::Success)?;
    let got = bench.expect_received(other, 2, Status::Success)?;
    ensure_eq!(got.qp, Some(other.qp), "whose");
    bench.expect_nothing_more(b)
}

fn short(bench: &mut CaseContext<'_>) -> Verdict {
    for (room, lost, fits) in [(HEADER - 1, 0, None), (HEADER + 7, 8, Some(7))] {
        let (a, b) = pair(bench)?;
        let ah = handle(bench, a, b.host)?;
        bench.fill_buffer(b, 0, b.len, 5)?;
        bench.receive(b, 1, &[b.sge(0, room)])?;
        send(bench, a, to(ah, b), lost, Status::Success)?;
        bench.named_wait(TOO_LONG, |bench| bench.expect_nothing_more(b))?;
        bench.expect_state(b, QpState::Rts, "the receiver")?;
        is_untouched(bench, b)?;
        if let Some(len) = fits {
            send(bench, a, to(ah, b), len, Status::Success)?;
            let got = bench.expect_received(b, 1, Status::Success)?;
            ensure_eq!(got.byte_len, HEADER + len, "length");
        }
        bench.expect_no_fatal(b)?;
    }
    Ok(())
}

fn short_of_an_srq(bench: &mut CaseContext<'_>) -> Verdict {
    for (room, len) in [(HEADER - 1, 0), (HEADER + 7, 8)] {
        let (first, second) = (bench.first_host()?, bench.second_host()?);
        let a = up(bench, first)?;
        let (b, _) = sharing(bench, second)?;
        let ah = handle(bench, a, second)?;
        bench.fill_buffer(b, 0, b.len, 5)?;
        bench.write_buffer(a, 0, b"datagram")?;
        bench.receive(b, 1, &[b.sge(0, room)])?;
        send(bench, a, to(ah, b), len, Status::Success)?;
        bench.expect_received(b, 1, Status::LocalLength)?;
        is_untouched(bench, b)?;
        bench.receive(b, 2, &[b.sge(0, 200)])?;
        send(bench, a, to(ah, b), 8, Status::Success)?;
        bench.expect_received(b, 2, Status::Success)?;
        ensure_eq!(
            bench.read_buffer(b, GRH_BYTES, 8)?,
            b"datagram",
            "the next one"
        );
        bench.expect_state(b, QpState::Rts, "the receiver")?;
        bench.expect_no_fatal(b)?;
    }
    Ok(())
}
