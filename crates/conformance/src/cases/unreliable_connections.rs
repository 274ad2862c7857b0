//! Unreliable connections (UC): InfiniBand specification, volume 1, sections 9.8.2 (the protocol), 9.9.3 (errors of the
//! responder), 10.3.1 (SQE).

use headworks_verbs::{Access, Opcode, PostErrorKind, Psn, QpAttr, QpState, QpType, Status};

use crate::call::{Op, Refusal, Send};
use crate::cases::memory_fault::MemoryFault;
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

const SENT: &str = "post_send";
/// Number of the requests that must arrive after others were lost.
const LAST: u64 = 99;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("unreliable_connections::arrive", arrive)
            .row(
                SENT,
                "SEND, SEND_IMM, WRITE, WRITE_IMM (UC), 0 B to 1 MiB",
                "-",
                "Success, data intact, in order",
            )
            .row(
                "post_recv",
                "RECV of a UC queue pair",
                "-",
                "Success, with correct opcode, length, immediate value and queue pair",
            ),
        Case::new("unreliable_connections::lost_sends", lost_sends).row(
            SENT,
            "SEND, WRITE_IMM (UC)",
            "no receive posted",
            "lost; the sender's completion is Success",
        ),
        Case::new("unreliable_connections::recv_short", recv_short).row(
            "post_recv",
            "RECV of a UC queue pair",
            "shorter than the message",
            "the message is lost, the receive stays posted; the sender's completion is Success",
        ),
        Case::new("unreliable_connections::srq_recv_short", srq_recv_short).row(
            "post_srq_recv",
            "SRQ RECV of a UC queue pair",
            "shorter than the message",
            "LocalLength, and the queue pair still receives; the sender's completion is Success",
        ),
        Case::new("unreliable_connections::lost_writes", lost_writes).row(
            SENT,
            "WRITE (UC)",
            "each fault of the peer's memory; a queue pair or a region that allows no WRITEs",
            "lost; the sender's completion is Success; both stay in RTS",
        ),
        Case::new("unreliable_connections::no_such_peer", no_such_peer).row(
            SENT,
            "SEND, WRITE (UC)",
            "peer in INIT, in ERROR, in RESET, RC, destroyed",
            "lost; the sender's completion is Success",
        ),
        Case::new("unreliable_connections::other_operations", other_operations).row(
            SENT,
            "READ, CMP_SWAP, FETCH_ADD (UC)",
            "-",
            "Operation when posted",
        ),
        Case::new("unreliable_connections::stops_at_a_bad_key", stops_at_a_bad_key)
            .row(
                SENT,
                "SEND (UC)",
                "invalid lkey",
                "LocalProtection; SQE: later requests are Flushed, the queue pair still receives and can return to RTS",
            )
            .row("modify", "UC: SQE to RTS", "-", "the queue pair sends again"),
        Case::new("unreliable_connections::bad_receive", bad_receive).row(
            "post_recv",
            "RECV of a UC queue pair",
            "invalid lkey",
            "LocalProtection and ERROR at the receiver; the sender's completion is Success",
        ),
        Case::new("unreliable_connections::shared_receives", shared_receives).row(
            "post_srq_recv",
            "SRQ RECV of a UC queue pair",
            "-",
            "receives are consumed in order",
        ),
        Case::new("unreliable_connections::any_psn", any_psn).row(
            "modify",
            "UC: to RTR",
            "another packet sequence number than the peer's",
            "messages arrive: the responder takes the number of a message's first packet",
        ),
        Case::new("unreliable_connections::states", states)
            .row("modify", "UC: RESET to RTS", "-", "needs a peer and no attribute of acknowledgements")
            .row(
                "modify",
                "UC: to RTR, to RTS",
                "attributes of acknowledgements, READs and atomics",
                "Attributes; state unchanged",
            ),
        Case::new("unreliable_connections::peer_killed", peer_killed)
            .row(
                "post_send",
                "SEND, WRITE (UC)",
                "peer killed",
                "lost; the sender's completion is Success; RTS, no event",
            )
            .kills(),
    ]
}

fn options() -> QpOptions {
    QpOptions {
        qp_type: QpType::Uc,
        len: 4 << 20,
        ..QpOptions::default()
    }
}

fn pair(cx: &mut CaseContext<'_>) -> Result<(QpFixture, QpFixture), String> {
    cx.connected_pair_with(&options(), &options())
}

/// Posts a request and waits for its completion with Success.
fn send(cx: &mut CaseContext<'_>, from: QpFixture, op: Op, len: u32) -> Verdict {
    cx.post(from, 1, op, &[from.sge(0, len)])?;
    cx.expect_sent(from, 1, Status::Success).map(drop)
}

/// Sends a message that must arrive in the receive `wr_id`, after everything that was sent before it. Nothing else
/// may arrive.
fn expect_next(cx: &mut CaseContext<'_>, from: QpFixture, to: QpFixture, wr_id: u64) -> Verdict {
    cx.post(from, LAST, Op::Send, &[from.sge(0, 4)])?;
    cx.expect_sent(from, LAST, Status::Success)?;
    let got = cx.expect_received(to, wr_id, Status::Success)?;
    ensure_eq!(got.byte_len, 4, "length");
    cx.expect_nothing_more(from)?;
    cx.expect_nothing_more(to)?;
    cx.expect_state(from, QpState::Rts, "the sender")?;
    cx.expect_state(to, QpState::Rts, "the receiver")
}

fn arrive(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    for (round, len) in [0u32, 1, 64, 65_536, 65_537, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let (id, imm) = (round as u64, 0xdead_0000 + round as u32);
        cx.fill_buffer(a, 3, len as usize, id)?;
        for (opcode, op, has_imm) in [
            (Opcode::Recv, Op::Send, false),
            (Opcode::Recv, Op::SendImm(imm), true),
            (Opcode::RecvWriteImm, Op::WriteImm(b.at(5), imm), true),
        ] {
            cx.receive(b, id, &[b.sge(5, 2 << 20)])?;
            cx.post(a, 100 + id, op, &[a.sge(3, len)])?;
            cx.expect_sent(a, 100 + id, Status::Success)?;
            let got = cx.expect_received(b, id, Status::Success)?;
            ensure_eq!(
                (got.opcode, got.byte_len, got.imm, got.qp),
                (opcode, len, has_imm.then_some(imm), Some(b.qp)),
                format!("receive of {len} bytes")
            );
            ensure!(
                cx.buffer_matches(b, 5, len as usize, id)?,
                "{len} bytes differ"
            );
            cx.fill_buffer(b, 5, len as usize, 1000)?;
        }
        // The bytes of a WRITE are placed before a later SEND arrives.
        cx.receive(b, id, &[b.sge(3 << 20, 8)])?;
        let chain = vec![
            Send::new(1, Op::Write(b.at(5)), &[a.sge(3, len)]).quiet(),
            Send::inline(2, Op::Send, b"over"),
        ];
        cx.post_chain(a, chain)
            .map_err(crate::case_context::error_line)?;
        cx.expect_sent(a, 2, Status::Success)?;
        cx.expect_received(b, id, Status::Success)?;
        ensure!(
            cx.buffer_matches(b, 5, len as usize, id)?,
            "{len} bytes written differ"
        );
    }
    cx.expect_nothing_more(a)
}

fn lost_sends(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let imm = Op::WriteImm(b.at(100), 7);
    for op in [Op::Send, Op::SendImm(7), imm] {
        send(cx, a, op, 8)?;
    }
    // A message that is longer than one packet, and than what one call executes.
    send(cx, a, Op::Send, 1 << 20)?;
    cx.receive(b, 1, &[b.sge(0, 8)])?;
    expect_next(cx, a, b, 1)?;
    cx.expect_no_fatal(b)
}

fn recv_short(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    cx.receive(b, 1, &[b.sge(0, 8)])?;
    for len in [9, 1 << 20] {
        send(cx, a, Op::Send, len)?;
        cx.named_wait("too long for the receive", |cx| cx.expect_nothing_more(b))?;
    }
    expect_next(cx, a, b, 1)
}

fn srq_recv_short(cx: &mut CaseContext<'_>) -> Verdict {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (pd, srq) = super::shared_receives::srq(cx, second, 8, 0)?;
    let a = cx.new_qp(first, &options())?;
    let b = cx.new_qp_in_pd(second, pd, Some(srq), &options())?;
    cx.connect(a, &options(), b, &options())?;
    cx.receive(b, 1, &[b.sge(0, 8)])?;
    cx.receive(b, 2, &[b.sge(0, 8)])?;
    send(cx, a, Op::Send, 9)?;
    cx.expect_received(b, 1, Status::LocalLength)?;
    expect_next(cx, a, b, 2)
}

fn lost_writes(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    cx.fill_buffer(b, 0, 4096, 5)?;
    let no_writes = MemoryFault::Access(Access::REMOTE_READ);
    for (index, fault) in MemoryFault::COMMON
        .into_iter()
        .chain([no_writes])
        .enumerate()
    {
        let to = fault.apply(cx, b, 64, 1)?.remote();
        for op in [Op::Write(to), Op::WriteImm(to, 7)] {
            send(cx, a, op, 64)?;
        }
        cx.receive(b, index as u64, &[b.sge(8192, 8)])?;
        expect_next(cx, a, b, index as u64).map_err(|seen| format!("{}: {seen}", fault.wrong()))?;
    }
    ensure!(cx.buffer_matches(b, 0, 4096, 5)?, "bytes were written");
    // The queue pair itself allows no WRITEs.
    let closed = QpOptions {
        access: Access::NONE,
        ..options()
    };
    let (a, b) = cx.connected_pair_with(&options(), &closed)?;
    cx.fill_buffer(b, 0, 4096, 5)?;
    send(cx, a, Op::Write(b.at(0)), 64)?;
    cx.receive(b, 1, &[b.sge(8192, 8)])?;
    expect_next(cx, a, b, 1)?;
    ensure!(cx.buffer_matches(b, 0, 4096, 5)?, "bytes were written");
    Ok(())
}

fn no_such_peer(cx: &mut CaseContext<'_>) -> Verdict {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (a, b) = (
        cx.new_qp(first, &options())?,
        cx.new_qp(second, &options())?,
    );
    let lost = |cx: &mut CaseContext<'_>, from: QpFixture, to: QpFixture| {
        send(cx, from, Op::Send, 8)?;
        send(cx, from, Op::Write(to.at(0)), 8)?;
        cx.expect_state(from, QpState::Rts, "the sender")
    };
    for side in [a, b] {
        cx.to_init(side, &options())?;
    }
    cx.to_rtr(a, &options(), b)?;
    cx.to_rts(a, &options())?;
    lost(cx, a, b)?;
    cx.to_rtr(b, &options(), a)?;
    cx.to_rts(b, &options())?;
    cx.receive(b, 3, &[b.sge(0, 8)])?;
    expect_next(cx, a, b, 3)?;
    cx.to_error(b)?;
    lost(cx, a, b)?;
    cx.to_reset(b)?;
    lost(cx, a, b)?;
    // Connected again, as the same queue pair.
    cx.to_init(b, &options())?;
    cx.to_rtr(b, &options(), a)?;
    cx.receive(b, 4, &[b.sge(0, 8)])?;
    cx.to_rts(b, &options())?;
    expect_next(cx, a, b, 4)?;
    // An RC queue pair takes nothing from it.
    let of_rc = QpOptions::default();
    let rc = cx.new_qp(second, &of_rc)?;
    let c = cx.new_qp(first, &options())?;
    cx.to_init(rc, &of_rc)?;
    cx.to_rtr(rc, &of_rc, c)?;
    cx.receive(rc, 5, &[rc.sge(0, 8)])?;
    cx.to_init(c, &options())?;
    cx.to_rtr(c, &options(), rc)?;
    cx.to_rts(c, &options())?;
    lost(cx, c, rc)?;
    cx.expect_nothing_more(rc)?;
    cx.destroy_qp_fixture(b)?;
    lost(cx, a, a)
}

fn other_operations(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let swap = Op::CompareSwap {
        remote: b.at(0),
        expect: 0,
        swap: 1,
    };
    let add = Op::FetchAdd {
        remote: b.at(0),
        add: 1,
    };
    for op in [Op::Read(b.at(0)), swap, add] {
        let refused = cx.post_chain(a, vec![Send::new(1, op, &[a.sge(0, 8)])]);
        let operation = PostErrorKind::Operation.at(0);
        ensure_eq!(refused, Err(Refusal::from(operation)), format!("{op:?}"));
    }
    cx.receive(b, 1, &[b.sge(0, 8)])?;
    expect_next(cx, a, b, 1)
}

fn stops_at_a_bad_key(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    for id in 0..2 {
        cx.receive(b, id, &[b.sge(0, 100)])?;
        cx.receive(a, 10 + id, &[a.sge(0, 100)])?;
    }
    let bad = MemoryFault::Key.apply(cx, a, 8, 1)?.pieces();
    let chain = vec![
        Send::new(1, Op::Send, &[a.sge(0, 8)]).quiet(),
        Send::new(2, Op::Send, &bad).quiet(),
        Send::new(3, Op::Send, &[a.sge(0, 8)]).quiet(),
    ];
    cx.post_chain(a, chain)
        .map_err(crate::case_context::error_line)?;
    cx.expect_sent(a, 2, Status::LocalProtection)?;
    cx.expect_sent(a, 3, Status::Flushed)?;
    cx.expect_received(b, 0, Status::Success)?;
    cx.expect_state(a, QpState::Sqe, "the sender")?;
    cx.expect_no_fatal(a)?;
    send(cx, b, Op::Send, 8)?;
    cx.expect_received(a, 10, Status::Success)?;
    cx.to_state(a, QpState::Rts)?;
    expect_next(cx, a, b, 1)
}

fn bad_receive(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let bad = MemoryFault::Key.apply(cx, b, 8, 1)?.pieces();
    cx.receive(b, 1, &bad)?;
    cx.receive(b, 2, &[b.sge(0, 8)])?;
    send(cx, a, Op::Send, 8)?;
    cx.expect_received(b, 1, Status::LocalProtection)?;
    cx.expect_received(b, 2, Status::Flushed)?;
    cx.expect_state(b, QpState::Error, "the receiver")?;
    send(cx, a, Op::Send, 8)?;
    cx.expect_state(a, QpState::Rts, "the sender")
}

fn shared_receives(cx: &mut CaseContext<'_>) -> Verdict {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (pd, srq) = super::shared_receives::srq(cx, second, 8, 0)?;
    let mut lines = Vec::new();
    for _ in 0..2 {
        let a = cx.new_qp(first, &options())?;
        let b = cx.new_qp_in_pd(second, pd, Some(srq), &options())?;
        cx.connect(a, &options(), b, &options())?;
        lines.push((a, b));
    }
    for id in 0..4 {
        cx.receive(lines[0].1, id, &[lines[0].1.sge(64 * id as i64, 64)])?;
    }
    for id in 0..4 {
        let (a, b) = lines[id as usize % 2];
        send(cx, a, Op::Send, 8)?;
        cx.expect_received(b, id, Status::Success)?;
    }
    // None is left.
    send(cx, lines[0].0, Op::Send, 8)?;
    cx.expect_nothing_more(lines[0].1)
}

fn any_psn(cx: &mut CaseContext<'_>) -> Verdict {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (a, b) = (
        cx.new_qp(first, &options())?,
        cx.new_qp(second, &options())?,
    );
    for (side, peer) in [(a, b), (b, a)] {
        cx.to_init(side, &options())?;
        cx.to_rtr(side, &options(), peer)?;
    }
    for side in [a, b] {
        let attr = QpAttr {
            sq_psn: Some(Psn::truncated(0x00ab_cdef)),
            ..QpAttr::to_state(QpState::Rts)
        };
        cx.modify(side, attr, None)
            .map_err(crate::case_context::error_line)?;
    }
    for id in 0..3 {
        cx.receive(b, id, &[b.sge(0, 8)])?;
        expect_next(cx, a, b, id)?;
    }
    Ok(())
}

fn states(cx: &mut CaseContext<'_>) -> Verdict {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (a, b) = (
        cx.new_qp(first, &options())?,
        cx.new_qp(second, &options())?,
    );
    let kind = |refused: Result<(), Refusal>| refused.map_err(|error| error.kind);
    let attributes = || Err("Attributes".to_owned());
    cx.to_init(a, &options())?;
    let of_rc = cx.rtr_attr(a, &QpOptions::default())?;
    let refused = cx.modify(a, of_rc, Some(b));
    ensure_eq!(kind(refused), attributes(), "RTR with attributes of RC");
    cx.expect_state(a, QpState::Init, "the queue pair")?;
    cx.to_rtr(a, &options(), b)?;
    let of_rc = cx.rts_attr(a, &QpOptions::default())?;
    let refused = cx.modify(a, of_rc, None);
    ensure_eq!(kind(refused), attributes(), "RTS with attributes of RC");
    cx.expect_state(a, QpState::Rtr, "the queue pair")?;
    cx.to_rts(a, &options())?;
    cx.to_error(a)?;
    cx.to_reset(a)?;
    cx.to_init(a, &options())
}

fn peer_killed(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    for id in 0..4 {
        cx.receive(b, id, &[b.sge(0, 100)])?;
        cx.receive(a, id, &[a.sge(0, 100)])?;
    }
    send(cx, a, Op::Send, 8)?;
    cx.kill(b.host)?;
    for _ in 0..8 {
        send(cx, a, Op::Send, 8)?;
        send(cx, a, Op::Write(b.at(0)), 8)?;
    }
    cx.expect_state(a, QpState::Rts, "the survivor")?;
    cx.expect_no_fatal(a)?;
    // The queue pair and its receives serve another peer after a reset.
    cx.to_reset(a)?;
    let host = cx.second_host()?;
    let c = cx.new_qp(host, &options())?;
    cx.connect(a, &options(), c, &options())?;
    cx.receive(a, 7, &[a.sge(0, 100)])?;
    cx.receive(c, 8, &[c.sge(0, 100)])?;
    expect_next(cx, c, a, 7)?;
    expect_next(cx, a, c, 8)
}
