//! SEND, WRITE, READ; immediates; gather and scatter; inline; order.

use headworks_verbs::{Access, Opcode, Status};

use crate::buffer_access::pattern;
use crate::call::{Call, Op, Remote, Reply};
use crate::{Case, CaseContext, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("transfers::bring_up", bring_up).row(
            "modify",
            "bring-up by the byte state machine",
            "-",
            "both in RTS, payloads exchanged",
        ),
        Case::new(
            "transfers::first_write_is_done_in_the_call",
            first_write_is_done_in_the_call,
        )
        .row(
            "post_send",
            "WRITE",
            "-",
            "data placed; within the call, if the device executes requests in the call",
        ),
        Case::new("transfers::sends", sends)
            .row(
                "post_send",
                "SEND, 0 B to 1 MiB",
                "-",
                "Success, data intact",
            )
            .row(
                "post_send",
                "SEND_IMM, 1 B to 64 KiB + 1",
                "-",
                "Success, immediate value arrives",
            )
            .row(
                "post_recv",
                "RECV",
                "-",
                "Success, with correct length, data and queue pair",
            ),
        Case::new(
            "transfers::from_where_nobody_may_write",
            from_where_nobody_may_write,
        )
        .row(
            "post_send",
            "WRITE, SEND",
            "- (the local region allows no access)",
            "Success: reading local memory needs no access right",
        ),
        Case::new("transfers::write_and_read", write_and_read)
            .row(
                "post_send",
                "WRITE, 0 B to 1 MiB",
                "-",
                "Success, data intact",
            )
            .row(
                "post_send",
                "READ, 0 B to 1 MiB",
                "-",
                "Success, correct length, data intact",
            )
            .row(
                "post_send",
                "WRITE of 0 B",
                "unknown rkey",
                "Success: 0 B need no valid key",
            ),
        Case::new("transfers::write_with_immediate", write_with_immediate)
            .row(
                "post_send",
                "WRITE_IMM, 0 B to 200,000 B",
                "-",
                "Success, immediate value arrives",
            )
            .row(
                "post_recv",
                "RECV of a WRITE_IMM",
                "-",
                "RecvWriteImm, with correct length and immediate value",
            ),
        Case::new("transfers::many_pieces", many_pieces).row(
            "post_send",
            "SEND, WRITE, READ with several SGEs",
            "-",
            "gathered and scattered in order",
        ),
    ]
}

fn large() -> QpOptions {
    QpOptions {
        len: 4 << 20,
        ..QpOptions::default()
    }
}

fn bring_up(cx: &mut CaseContext<'_>) -> Verdict {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let options = QpOptions::default();
    let a = cx.new_qp(first, &options)?;
    let b = cx.new_qp(second, &options)?;
    let mut to = [Vec::new(), Vec::new()];
    for (index, (side, payload)) in [(a, b"from a"), (b, b"from b")].into_iter().enumerate() {
        let call = Call::GreetFirst {
            qp: side.qp,
            device: side.host.device,
            seed: 7 + index as u32,
            payload: payload.to_vec(),
        };
        match cx.call_ok(side.host.id, call)? {
            Reply::Greeting { out, .. } => to[1 - index] = out,
            other => return Err(format!("instead of a greeting: {other:?}")),
        }
    }
    // Each side sends two messages, and is connected when it has received both of the other's.
    let mut connected = [false; 2];
    for _ in 0..4 {
        for (index, side) in [a, b].into_iter().enumerate() {
            let bytes = std::mem::take(&mut to[index]);
            let call = Call::Greet { qp: side.qp, bytes };
            let reply = cx.call_ok(side.host.id, call)?;
            let Reply::Greeting {
                out,
                connected: up,
                payload,
            } = reply
            else {
                return Err(format!("instead of a greeting: {reply:?}"));
            };
            to[1 - index].extend(out);
            connected[index] = up;
            let other: &[u8] = [b"from b", b"from a"][index];
            ensure!(
                !up || payload.as_deref() == Some(other),
                "payload {payload:?}"
            );
        }
    }
    ensure_eq!(connected, [true; 2], "connected");
    cx.write_buffer(a, 0, b"up")?;
    cx.post(a, 1, Op::Write(b.at(5)), &[a.sge(0, 2)])?;
    cx.expect_sent(a, 1, Status::Success)?;
    ensure_eq!(cx.read_buffer(b, 5, 2)?, b"up", "bytes");
    Ok(())
}

fn first_write_is_done_in_the_call(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair()?;
    cx.write_buffer(a, 0, b"first")?;
    cx.post(a, 1, Op::Write(b.at(100)), &[a.sge(0, 5)])?;
    // Only a device that executes requests in the call has placed it by now.
    if cx.behaviour().completes_in_call {
        ensure_eq!(cx.read_buffer(b, 100, 5)?, b"first", "in the call");
        ensure_eq!(cx.poll(a.host, a.send_cq)?.len(), 1, "polled");
        return Ok(());
    }
    cx.expect_sent(a, 1, Status::Success)?;
    ensure_eq!(cx.read_buffer(b, 100, 5)?, b"first", "after completion");
    Ok(())
}

fn sends(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair_with(&large(), &large())?;
    for (round, len) in [0u32, 1, 63, 64, 65_536, 65_537, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let id = round as u64;
        cx.fill_buffer(a, 3, len as usize, id)?;
        cx.receive(b, id, &[b.sge(5, 2 << 20)])?;
        let (op, imm) = match round % 2 {
            0 => (Op::Send, None),
            _ => (
                Op::SendImm(0xdead_0000 + id as u32),
                Some(0xdead_0000 + id as u32),
            ),
        };
        cx.post(a, 100 + id, op, &[a.sge(3, len)])?;
        let sent = cx.expect_sent(a, 100 + id, Status::Success)?;
        ensure_eq!((sent.opcode, sent.qp), (Opcode::Send, Some(a.qp)), "send");
        let got = cx.expect_received(b, id, Status::Success)?;
        ensure_eq!(
            (got.opcode, got.byte_len, got.imm, got.qp),
            (Opcode::Recv, len, imm, Some(b.qp)),
            format!("receive of {len} bytes")
        );
        ensure!(
            cx.buffer_matches(b, 5, len as usize, id)?,
            "{len} bytes differ"
        );
    }
    Ok(())
}

fn from_where_nobody_may_write(cx: &mut CaseContext<'_>) -> Verdict {
    let nothing = QpOptions {
        region: Access::NONE,
        ..QpOptions::default()
    };
    let (a, b) = cx.connected_pair_with(&nothing, &QpOptions::default())?;
    cx.write_buffer(a, 0, b"weir")?;
    cx.receive(b, 3, &[b.sge(64, 4)])?;
    for (wr_id, op) in [(1, Op::Write(b.at(0))), (2, Op::Send)] {
        cx.post(a, wr_id, op, &[a.sge(0, 4)])?;
        cx.expect_sent(a, wr_id, Status::Success)?;
    }
    cx.expect_received(b, 3, Status::Success)?;
    for at in [0, 64] {
        ensure_eq!(cx.read_buffer(b, at, 4)?, b"weir", "what arrived");
    }
    Ok(())
}

fn write_and_read(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair_with(&large(), &large())?;
    for (round, len) in [0u32, 1, 8, 4096, 65_536, 65_537, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let id = round as u64;
        cx.fill_buffer(a, 1, len as usize, id)?;
        cx.post(a, id, Op::Write(b.at(7)), &[a.sge(1, len)])?;
        let sent = cx.expect_sent(a, id, Status::Success)?;
        ensure_eq!(sent.opcode, Opcode::Write, "opcode");
        ensure!(
            cx.buffer_matches(b, 7, len as usize, id)?,
            "WRITE of {len} differs"
        );
        cx.post(a, id, Op::Read(b.at(7)), &[a.sge(2 << 20, len)])?;
        let read = cx.expect_sent(a, id, Status::Success)?;
        ensure_eq!((read.opcode, read.byte_len), (Opcode::Read, len), "READ");
        ensure!(
            cx.buffer_matches(a, 2 << 20, len as usize, id)?,
            "READ of {len} differs"
        );
    }
    // A WRITE of no bytes needs no valid key (specification).
    let nowhere = Remote::At { addr: 1, rkey: 0 };
    cx.post(a, 9, Op::Write(nowhere), &[])?;
    cx.expect_sent(a, 9, Status::Success)?;
    Ok(())
}

fn write_with_immediate(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair_with(&large(), &large())?;
    for (id, len) in [(0u64, 0u32), (1, 10), (2, 200_000)] {
        cx.fill_buffer(a, 0, len as usize, id)?;
        cx.receive(b, id, &[])?;
        let op = Op::WriteImm(b.at(64), 7 + id as u32);
        cx.post(a, id, op, &[a.sge(0, len)])?;
        cx.expect_sent(a, id, Status::Success)?;
        let got = cx.expect_received(b, id, Status::Success)?;
        ensure_eq!(
            (got.opcode, got.byte_len, got.imm),
            (Opcode::RecvWriteImm, len, Some(7 + id as u32)),
            "receive"
        );
        ensure!(cx.buffer_matches(b, 64, len as usize, id)?, "bytes differ");
    }
    Ok(())
}

fn many_pieces(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair()?;
    let bytes = pattern(5, 100);
    cx.write_buffer(a, 0, &bytes)?;
    let from = [a.sge(0, 10), a.sge(10, 0), a.sge(10, 60), a.sge(70, 30)];
    let into = [
        b.sge(1000, 1),
        b.sge(2000, 64),
        b.sge(3000, 0),
        b.sge(4000, 500),
    ];
    cx.receive(b, 1, &into)?;
    cx.post(a, 1, Op::Send, &from)?;
    cx.expect_sent(a, 1, Status::Success)?;
    let got = cx.expect_received(b, 1, Status::Success)?;
    ensure_eq!(got.byte_len, 100, "length");
    let mut seen = cx.read_buffer(b, 1000, 1)?;
    seen.extend(cx.read_buffer(b, 2000, 64)?);
    seen.extend(cx.read_buffer(b, 4000, 35)?);
    ensure_eq!(seen, bytes, "scattered");
    let there = b.at(9000);
    cx.post(a, 2, Op::Write(there), &from)?;
    cx.expect_sent(a, 2, Status::Success)?;
    ensure_eq!(cx.read_buffer(b, 9000, 100)?, bytes, "gathered");
    cx.post(
        a,
        3,
        Op::Read(there),
        &[a.sge(20_000, 33), a.sge(30_000, 67)],
    )?;
    cx.expect_sent(a, 3, Status::Success)?;
    let mut seen = cx.read_buffer(a, 20_000, 33)?;
    seen.extend(cx.read_buffer(a, 30_000, 67)?);
    ensure_eq!(seen, bytes, "read");
    Ok(())
}
