//! Datagrams (UD): InfiniBand specification, volume 1, sections 8.3 (the GRH), 9.8.3 (unreliable
//! datagram), 10.2.5 (Q_Keys), 10.3.1 (SQE), 10.6.1 and 11.2.2 (address handles).

use headworks_verbs::{GRH_BYTES, Grh, PostErrorKind, Psn, QpAttr, QpState, QpType, Status};

use crate::call::{Call, Event, Id, Op, Peer, Port, Refusal, Send};
use crate::case_context::{Host, piece};
use crate::cases::memory_fault::MemoryFault;
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

mod post_errors;
mod receive_errors;
mod teardown;

const QKEY: u32 = 0x1234;
const HEADER: u32 = GRH_BYTES as u32;
const SENT: &str = "post_send";
const WHAT: &str = "SEND (UD)";
/// Outcome of a datagram with an address handle that it may not use.
const NO_WAY: &str = "LocalQpOperation and SQE; or Operation when posted";

pub(super) fn cases() -> Vec<Case> {
    let row = |case: Case, wrong: &'static str, outcome: &'static str| {
        case.row(SENT, WHAT, wrong, outcome)
    };
    let mut cases = vec![
        row(
            Case::new("datagrams::arrives", arrives),
            "-",
            "GRH, data, immediate value and source QPN arrive; the length includes the GRH",
        )
        .row(SENT, WHAT, "to its own queue pair", "same as to another queue pair"),
        row(
            Case::new("datagrams::lost", lost),
            "no receive posted, wrong Q_Key, peer destroyed, peer never existed, peer in INIT, peer is RC, receive too short",
            "lost; the sender's completion is Success",
        ),
        row(
            Case::new("datagrams::own_qkey", own_qkey),
            "Q_Key with the highest bit set",
            "the datagram carries the sending queue pair's own Q_Key",
        ),
        row(
            Case::new("datagrams::longest", longest),
            "longer than the MTU",
            "nothing is sent, or MessageTooLong when posted; a datagram as long as the MTU is sent",
        ),
        row(
            Case::new("datagrams::stops_at_a_bad_key", stops_at_a_bad_key),
            "invalid lkey",
            "LocalProtection; SQE: later requests are Flushed, the queue pair still receives and can return to RTS",
        )
        .row("modify", "SQE to RTS", "-", "the queue pair sends again"),
        row(
            Case::new("datagrams::foreign_handle", foreign_handle),
            "address handle of another protection domain",
            NO_WAY,
        ),
        Case::new("datagrams::states", states)
            .row("modify", "UD: RESET to RTS", "-", "needs a Q_Key and no peer")
            .row(
                "modify",
                "UD: to INIT, to RTR",
                "Q_Key missing; attributes of connections",
                "Attributes; state unchanged",
            ),
        Case::new("datagrams::shared_receives", shared_receives).row(
            SENT,
            "SEND (UD) to queue pairs of an SRQ",
            "-",
            "receives are consumed in order, by any queue pair of the SRQ",
        ),
        Case::new("datagrams::handles", handles).row(
            "create_ah",
            "address handle",
            "an earlier one was destroyed",
            "a new handle that works",
        ),
    ];
    cases.extend(post_errors::cases());
    cases.extend(receive_errors::cases());
    cases.extend(teardown::cases());
    cases
}

fn options() -> QpOptions {
    QpOptions {
        qp_type: QpType::Ud,
        ..QpOptions::default()
    }
}

fn to_init() -> QpAttr {
    QpAttr {
        qkey: Some(QKEY),
        ..QpAttr::to_state(QpState::Init)
    }
}

fn to_rts() -> QpAttr {
    QpAttr {
        sq_psn: Some(Psn::truncated(0)),
        ..QpAttr::to_state(QpState::Rts)
    }
}

fn bring_up(cx: &mut CaseContext<'_>, side: QpFixture) -> Verdict {
    for attr in [to_init(), QpAttr::to_state(QpState::Rtr), to_rts()] {
        cx.modify(side, attr, None)
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Creates a UD queue pair in RTS.
fn up(cx: &mut CaseContext<'_>, host: Host) -> Result<QpFixture, String> {
    let side = cx.new_qp(host, &options())?;
    bring_up(cx, side)?;
    Ok(side)
}

fn pair(cx: &mut CaseContext<'_>) -> Result<(QpFixture, QpFixture), String> {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    Ok((up(cx, first)?, up(cx, second)?))
}

/// Creates an address handle in the domain of `from` for the port of `to`.
fn handle(cx: &mut CaseContext<'_>, from: QpFixture, to: Host) -> Result<Id, String> {
    let ah = cx.new_id();
    let call = Call::CreateAh {
        ah,
        pd: from.pd,
        to: Port::Of { host: to.id },
    };
    cx.call_ok(from.host.id, call)?;
    Ok(ah)
}

fn to(ah: Id, side: QpFixture) -> Op {
    Op::SendTo {
        ah,
        peer: Peer::Of {
            host: side.host.id,
            qp: side.qp,
        },
        qkey: QKEY,
        imm: None,
    }
}

/// Returns the datagram with another Q_Key.
fn with_qkey(op: Op, qkey: u32) -> Op {
    match op {
        Op::SendTo { ah, peer, imm, .. } => Op::SendTo {
            ah,
            peer,
            qkey,
            imm,
        },
        other => other,
    }
}

/// Posts a datagram and waits for its completion.
fn send(cx: &mut CaseContext<'_>, from: QpFixture, op: Op, len: u32, status: Status) -> Verdict {
    cx.post(from, 1, op, &[from.sge(0, len)])?;
    cx.expect_sent(from, 1, status).map(drop)
}

/// Posts a datagram with an address handle that it may not use, and checks that it fails.
fn no_way(cx: &mut CaseContext<'_>, from: QpFixture, op: Op) -> Verdict {
    if cx.behaviour().refuses_bad_datagrams {
        let request = Send::new(1, op, &[from.sge(0, 8)]);
        let refused = cx.post_chain(from, vec![request]);
        let operation = PostErrorKind::Operation.at(0);
        ensure_eq!(refused, Err(Refusal::from(operation)), "refused");
        cx.expect_nothing_more(from)?;
        return cx.expect_state(from, QpState::Rts, "the sender");
    }
    send(cx, from, op, 8, Status::LocalQpOperation)?;
    cx.expect_state(from, QpState::Sqe, "the sender")?;
    cx.to_state(from, QpState::Rts)
}

fn arrives(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    for (from, at) in [(a, b), (a, a)] {
        let ah = handle(cx, from, at.host)?;
        cx.write_buffer(from, 4096, b"datagram")?;
        let Op::SendTo { ah, peer, qkey, .. } = to(ah, at) else {
            return Err("another operation".to_owned());
        };
        for (imm, inline) in [(None, false), (Some(77), true)] {
            cx.receive(at, 5, &[at.sge(0, HEADER + 4), at.sge(100, 60)])?;
            let op = Op::SendTo {
                ah,
                peer,
                qkey,
                imm,
            };
            let request = match inline {
                true => Send::inline(6, op, b"datagram"),
                false => Send::new(6, op, &[from.sge(4096, 3), from.sge(4099, 5)]),
            };
            cx.post_one(from, request.solicited().fenced())?;
            cx.expect_sent(from, 6, Status::Success)?;
            let got = cx.expect_received(at, 5, Status::Success)?;
            ensure_eq!((got.byte_len, got.imm), (HEADER + 8, imm), "what came");
            ensure!(got.grh, "no GRH");
            let whose: Vec<_> = cx.handles().find_qpn(got.src_qpn).collect();
            ensure!(
                whose.contains(&(from.host.id, from.qp)),
                "from {}",
                got.src_qpn
            );
            let head = cx.read_buffer(at, 0, GRH_BYTES + 4)?;
            let tail = cx.read_buffer(at, 100, 4)?;
            ensure_eq!(
                (&head[GRH_BYTES..], &tail[..]),
                (&b"data"[..], &b"gram"[..]),
                "bytes"
            );
            let gids = [from, at].map(|side| cx.facts(side.host).map(|facts| facts.port.gid));
            let [sgid, dgid] = gids;
            // Some devices write an IPv4 header into the second half instead of a GRH.
            if let Some(header) = Grh::of_receive(&head) {
                ensure_eq!((header.sgid.0, header.dgid.0), (sgid?, dgid?), "ports");
                ensure!(header.payload_len >= 8, "{header:?}");
            }
        }
        cx.receive(at, 7, &[at.sge(0, HEADER)])?;
        send(cx, from, to(ah, at), 0, Status::Success)?;
        let got = cx.expect_received(at, 7, Status::Success)?;
        ensure_eq!(got.byte_len, HEADER, "of no bytes");
        cx.expect_nothing_more(from)?;
    }
    Ok(())
}

/// Name of the wait for a datagram that is longer than the receive it finds.
const TOO_LONG: &str = "too long for the receive";

fn lost(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let ah = handle(cx, a, b.host)?;
    // No receive is posted.
    send(cx, a, to(ah, b), 8, Status::Success)?;
    cx.receive(b, 1, &[b.sge(0, HEADER + 8)])?;
    let wrong = with_qkey(to(ah, b), QKEY + 1);
    send(cx, a, wrong, 8, Status::Success)?;
    // The queue pair with this number is gone.
    let gone = up(cx, b.host)?;
    send(cx, a, to(ah, gone), 8, Status::Success)?;
    cx.destroy(b.host, gone.qp)?;
    send(cx, a, to(ah, gone), 8, Status::Success)?;
    // No queue pair ever had this number, the highest there is.
    let port = cx.facts(b.host)?.port;
    let Op::SendTo { ah: by, .. } = to(ah, gone) else {
        return Err("another operation".to_owned());
    };
    let qpn = headworks_verbs::Qpn::MAX - 1;
    let never = Op::SendTo {
        ah: by,
        peer: Peer::At { port, qpn },
        qkey: QKEY,
        imm: None,
    };
    send(cx, a, never, 8, Status::Success)?;
    // This queue pair does not receive yet.
    let early = cx.new_qp(b.host, &options())?;
    cx.modify(early, to_init(), None)
        .map_err(|error| error.to_string())?;
    // This queue pair has another transport.
    let (_, connected) = cx.connected_pair()?;
    for other in [early, connected] {
        cx.receive(other, 1, &[other.sge(0, 100)])?;
        // A Q_Key of 0 must not match a queue pair that has none.
        for qkey in [QKEY, 0] {
            send(cx, a, with_qkey(to(ah, other), qkey), 8, Status::Success)?;
            cx.expect_nothing_more(other)?;
        }
    }
    cx.expect_state(connected, QpState::Rts, "the connected one")?;
    // Too long for the receive, which stays for a datagram that fits (class D of 9.9.3).
    send(cx, a, to(ah, b), 9, Status::Success)?;
    cx.named_wait(TOO_LONG, |cx| cx.expect_nothing_more(b))?;
    send(cx, a, to(ah, b), 8, Status::Success)?;
    cx.expect_received(b, 1, Status::Success)?;
    cx.expect_state(a, QpState::Rts, "the sender")?;
    cx.expect_state(b, QpState::Rts, "the receiver")
}

fn own_qkey(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let ah = handle(cx, a, b.host)?;
    let own = with_qkey(to(ah, b), 1 << 31);
    for id in 0..2 {
        cx.receive(b, id, &[b.sge(0, 100)])?;
    }
    send(cx, a, own, 8, Status::Success)?;
    cx.named_wait("with the queue pair's own", |cx| {
        cx.expect_received(b, 0, Status::Success)
    })?;
    let other = QpAttr {
        qkey: Some(QKEY + 1),
        ..QpAttr::default()
    };
    cx.modify(a, other, None)
        .map_err(|error| error.to_string())?;
    send(cx, a, own, 8, Status::Success)?;
    cx.expect_nothing_more(b)
}

fn longest(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let ah = handle(cx, a, b.host)?;
    let mtu = cx.facts(a.host)?.mtu.bytes();
    cx.receive(b, 1, &[b.sge(0, HEADER + mtu + 1)])?;
    let long = Send::new(1, to(ah, b), &[a.sge(0, mtu), a.sge(0, 1)]);
    let posted = cx.post_chain(a, vec![long]);
    if cx.behaviour().refuses_bad_datagrams {
        let too_long = PostErrorKind::MessageTooLong(mtu).at(0);
        ensure_eq!(posted, Err(Refusal::from(too_long)), "refused");
    } else {
        posted.map_err(crate::case_context::error_line)?;
        // C10-93.1.1 demands no packet and no error, but some devices report an error.
        let done = cx.next_send_completion(a)?;
        ensure!(
            matches!(done.status, Status::Success | Status::LocalLength),
            "{:?}",
            done.status
        );
    }
    cx.expect_nothing_more(b)?;
    if cx.state(a)? == QpState::Sqe {
        cx.to_state(a, QpState::Rts)?;
    }
    cx.fill_buffer(a, 0, mtu as usize, 3)?;
    send(cx, a, to(ah, b), mtu, Status::Success)?;
    let got = cx.expect_received(b, 1, Status::Success)?;
    ensure_eq!(got.byte_len, HEADER + mtu, "length");
    ensure!(
        cx.buffer_matches(b, GRH_BYTES, mtu as usize, 3)?,
        "other bytes"
    );
    Ok(())
}

fn stops_at_a_bad_key(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let (there, back) = (handle(cx, a, b.host)?, handle(cx, b, a.host)?);
    for id in 0..2 {
        cx.receive(b, id, &[b.sge(0, 100)])?;
        cx.receive(a, 10 + id, &[a.sge(0, 100)])?;
    }
    let bad = MemoryFault::Key.apply(cx, a, 8, 1)?.pieces();
    let chain = vec![
        Send::new(1, to(there, b), &[a.sge(0, 8)]).quiet(),
        Send::new(2, to(there, b), &bad).quiet(),
        Send::new(3, to(there, b), &[a.sge(0, 8)]).quiet(),
    ];
    cx.post_chain(a, chain).map_err(|error| error.to_string())?;
    cx.expect_sent(a, 2, Status::LocalProtection)?;
    cx.expect_sent(a, 3, Status::Flushed)?;
    cx.expect_received(b, 0, Status::Success)?;
    cx.expect_state(a, QpState::Sqe, "the sender")?;
    cx.expect_no_fatal(a)?;
    send(cx, a, to(there, b), 8, Status::Flushed)?;
    send(cx, b, to(back, a), 8, Status::Success)?;
    cx.expect_received(a, 10, Status::Success)?;
    cx.to_state(a, QpState::Rts)?;
    send(cx, a, to(there, b), 8, Status::Success)?;
    cx.expect_received(b, 1, Status::Success)?;
    cx.expect_nothing_more(a)
}

fn foreign_handle(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let other = up(cx, a.host)?;
    let foreign = handle(cx, other, b.host)?;
    cx.receive(b, 1, &[b.sge(0, 100)])?;
    no_way(cx, a, to(foreign, b))?;
    let own = handle(cx, a, b.host)?;
    send(cx, a, to(own, b), 8, Status::Success)?;
    cx.expect_received(b, 1, Status::Success)?;
    cx.expect_nothing_more(b)
}

fn states(cx: &mut CaseContext<'_>) -> Verdict {
    let host = cx.first_host()?;
    let side = cx.new_qp(host, &options())?;
    let connected = cx.new_qp(host, &QpOptions::default())?;
    let kind = |refused: Result<(), crate::call::Refusal>| refused.map_err(|error| error.kind);
    let attributes = Err("Attributes".to_owned());
    let refused = cx.modify(side, QpAttr::to_state(QpState::Init), None);
    ensure_eq!(kind(refused), attributes, "INIT without a Q_Key");
    let refused = cx.modify(connected, to_init(), None);
    ensure_eq!(kind(refused), attributes, "a Q_Key for RC");
    cx.expect_state(side, QpState::Reset, "the queue pair")?;
    cx.modify(side, to_init(), None)
        .map_err(|error| error.to_string())?;
    let attr = cx.rtr_attr(side, &QpOptions::default())?;
    let refused = cx.modify(side, attr, Some(connected));
    ensure_eq!(kind(refused), attributes, "RTR with a peer");
    cx.expect_state(side, QpState::Init, "the queue pair")?;
    cx.to_state(side, QpState::Rtr)?;
    cx.modify(side, to_rts(), None)
        .map_err(|error| error.to_string())?;
    cx.to_error(side)?;
    cx.to_reset(side)?;
    bring_up(cx, side)
}

fn shared_receives(cx: &mut CaseContext<'_>) -> Verdict {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let a = up(cx, first)?;
    let ah = handle(cx, a, second)?;
    let (pd, srq) = super::shared_receives::srq(cx, second, 8, 3)?;
    let mut sides = Vec::new();
    for _ in 0..2 {
        let side = cx.new_qp_in_pd(second, pd, Some(srq), &options())?;
        bring_up(cx, side)?;
        sides.push(side);
    }
    for id in 0..6 {
        let into = piece(sides[0].region, id as i64 * 128, 128);
        cx.receive(sides[0], id, &[into])?;
    }
    for id in 0..6u64 {
        let b = sides[id as usize % 2];
        cx.write_buffer(a, 0, &[id as u8; 10])?;
        send(cx, a, to(ah, b), 10, Status::Success)?;
        let got = cx.expect_received(b, id, Status::Success)?;
        ensure_eq!((got.qp, got.byte_len), (Some(b.qp), HEADER + 10), "whose");
        let seen = cx.read_buffer(sides[0], id as usize * 128 + GRH_BYTES, 10)?;
        ensure_eq!(seen, vec![id as u8; 10], "bytes");
    }
    cx.expect_event(second, Event::SrqLimit(Some(srq)))
}

fn handles(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let first = handle(cx, a, b.host)?;
    cx.receive(b, 1, &[b.sge(0, 100)])?;
    cx.destroy(a.host, first)?;
    let second = handle(cx, a, b.host)?;
    send(cx, a, to(second, b), 8, Status::Success)?;
    cx.expect_received(b, 1, Status::Success).map(drop)
}
