//! SEND, WRITE, READ; immediates; gather and scatter; inline; order.

use headworks_verbs::{
    Completion, Opcode, Payload, PostErrorKind, SendFlags, SendOp, SendWr, Status,
};

use crate::bench::line;
use crate::bytes::{get, pattern, put};
use crate::{Bench, Options, Verdict, ensure, ensure_eq};

fn large() -> Options {
    Options {
        len: 4 << 20,
        ..Options::default()
    }
}

pub(super) fn first_write_is_done_in_the_call(bench: &Bench) -> Verdict {
    let mut pair = bench.pair()?;
    put(&pair.a.region, 0, b"first");
    let (op, from) = (
        SendOp::Write(pair.b.region.remote(100)),
        pair.a.region.sge(0, 5),
    );
    pair.a.post(1, op, &[from])?;
    // Only a device that executes in the call has it there already; others need the completion.
    if pair.a.device.info().name.kind() == "soft" {
        ensure_eq!(get(&pair.b.region, 100, 5), b"first", "in the call");
        let mut out = [Completion::default(); 2];
        ensure_eq!(pair.a.send_cq.poll(&mut out).map_err(line)?, 1, "polled");
        return Ok(());
    }
    pair.a.expect_sent(1, Status::Success)?;
    ensure_eq!(get(&pair.b.region, 100, 5), b"first", "after completion");
    Ok(())
}

pub(super) fn sends(bench: &Bench) -> Verdict {
    let mut pair = bench.pair_of(&large(), &large())?;
    for (round, len) in [0usize, 1, 63, 64, 65_536, 65_537, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let (id, bytes) = (round as u64, pattern(round as u64, len));
        put(&pair.a.region, 3, &bytes);
        let into = pair.b.region.sge(5, 2 << 20);
        pair.b.receive(id, &[into])?;
        let from = pair.a.region.sge(3, len as u32);
        let (op, imm) = match round % 2 {
            0 => (SendOp::Send, None),
            _ => (
                SendOp::SendImm(0xdead_0000 + id as u32),
                Some(0xdead_0000 + id as u32),
            ),
        };
        pair.a.post(100 + id, op, &[from])?;
        let sent = pair.a.expect_sent(100 + id, Status::Success)?;
        ensure_eq!(
            (sent.opcode, sent.qpn),
            (Opcode::Send, pair.a.qp.qpn()),
            "send"
        );
        let got = pair.b.expect_received(id, Status::Success)?;
        ensure_eq!(
            (got.opcode, got.byte_len, got.imm, got.qpn),
            (Opcode::Recv, len as u32, imm, pair.b.qp.qpn()),
            format!("receive of {len} bytes")
        );
        ensure!(get(&pair.b.region, 5, len) == bytes, "{len} bytes differ");
    }
    Ok(())
}

pub(super) fn write_and_read(bench: &Bench) -> Verdict {
    let mut pair = bench.pair_of(&large(), &large())?;
    for (round, len) in [0usize, 1, 8, 4096, 65_536, 65_537, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let (id, bytes) = (round as u64, pattern(round as u64, len));
        put(&pair.a.region, 1, &bytes);
        let there = pair.b.region.remote(7);
        let from = pair.a.region.sge(1, len as u32);
        pair.a.post(id, SendOp::Write(there), &[from])?;
        let sent = pair.a.expect_sent(id, Status::Success)?;
        ensure_eq!(sent.opcode, Opcode::Write, "opcode");
        ensure!(
            get(&pair.b.region, 7, len) == bytes,
            "WRITE of {len} differs"
        );
        let into = pair.a.region.sge(2 << 20, len as u32);
        pair.a.post(id, SendOp::Read(there), &[into])?;
        let read = pair.a.expect_sent(id, Status::Success)?;
        ensure_eq!(
            (read.opcode, read.byte_len),
            (Opcode::Read, len as u32),
            "READ"
        );
        ensure!(
            get(&pair.a.region, 2 << 20, len) == bytes,
            "READ of {len} differs"
        );
    }
    // Nothing to write needs no key, as the specification has it.
    let nowhere = headworks_verbs::RemoteAddr { addr: 1, rkey: 0 };
    pair.a.post(9, SendOp::Write(nowhere), &[])?;
    pair.a.expect_sent(9, Status::Success)?;
    Ok(())
}

pub(super) fn write_with_immediate(bench: &Bench) -> Verdict {
    let mut pair = bench.pair_of(&large(), &large())?;
    for (id, len) in [(0u64, 0u32), (1, 10), (2, 200_000)] {
        let bytes = pattern(id, len as usize);
        put(&pair.a.region, 0, &bytes);
        pair.b.receive(id, &[])?;
        let op = SendOp::WriteImm(pair.b.region.remote(64), 7 + id as u32);
        let from = pair.a.region.sge(0, len);
        pair.a.post(id, op, &[from])?;
        pair.a.expect_sent(id, Status::Success)?;
        let got = pair.b.expect_received(id, Status::Success)?;
        ensure_eq!(
            (got.opcode, got.byte_len, got.imm),
            (Opcode::RecvWriteImm, len, Some(7 + id as u32)),
            "receive"
        );
        ensure!(
            get(&pair.b.region, 64, len as usize) == bytes,
            "bytes differ"
        );
    }
    Ok(())
}

pub(super) fn many_pieces(bench: &Bench) -> Verdict {
    let mut pair = bench.pair()?;
    let bytes = pattern(5, 100);
    put(&pair.a.region, 0, &bytes);
    let a = |offset, len| pair.a.region.sge(offset, len);
    let b = |offset, len| pair.b.region.sge(offset, len);
    let from = [a(0, 10), a(10, 0), a(10, 60), a(70, 30)];
    let into = [b(1000, 1), b(2000, 64), b(3000, 0), b(4000, 500)];
    let there = pair.b.region.remote(9000);
    pair.b.receive(1, &into)?;
    pair.a.post(1, SendOp::Send, &from)?;
    pair.a.expect_sent(1, Status::Success)?;
    let got = pair.b.expect_received(1, Status::Success)?;
    ensure_eq!(got.byte_len, 100, "length");
    let mut seen = get(&pair.b.region, 1000, 1);
    seen.extend(get(&pair.b.region, 2000, 64));
    seen.extend(get(&pair.b.region, 4000, 35));
    ensure_eq!(seen, bytes, "scattered");
    pair.a.post(2, SendOp::Write(there), &from)?;
    pair.a.expect_sent(2, Status::Success)?;
    ensure_eq!(get(&pair.b.region, 9000, 100), bytes, "gathered");
    let parts = [pair.a.region.sge(20_000, 33), pair.a.region.sge(30_000, 67)];
    pair.a.post(3, SendOp::Read(there), &parts)?;
    pair.a.expect_sent(3, Status::Success)?;
    let mut seen = get(&pair.a.region, 20_000, 33);
    seen.extend(get(&pair.a.region, 30_000, 67));
    ensure_eq!(seen, bytes, "read");
    let five = [pair.a.region.sge(0, 1); 5];
    let wr = SendWr {
        wr_id: 4,
        op: SendOp::Send,
        payload: Payload::Gather(&five),
        flags: SendFlags::SIGNALED,
    };
    let most = pair.a.qp.caps().max_send_sge;
    let refused = pair.a.qp.post_send(&[wr]).map_err(|error| error.kind);
    ensure_eq!(
        refused,
        Err(PostErrorKind::TooManySges(most)),
        "five pieces"
    );
    Ok(())
}

pub(super) fn inline_payloads(bench: &Bench) -> Verdict {
    let mut pair = bench.pair()?;
    let most = pair.a.qp.caps().max_inline;
    let there = pair.b.region.remote(0);
    let mut post = |len: usize, op| {
        let bytes = pattern(len as u64, len);
        let wr = SendWr {
            wr_id: len as u64,
            op,
            payload: Payload::Inline(&bytes),
            flags: SendFlags::SIGNALED,
        };
        (
            pair.a.qp.post_send(&[wr]).map_err(|error| error.kind),
            bytes.clone(),
        )
    };
    for len in [0, 1, most as usize] {
        let (posted, bytes) = post(len, SendOp::Write(there));
        ensure_eq!(posted, Ok(()), "inline");
        let done = crate::bench::next(&*pair.a.send_cq)?;
        ensure_eq!(
            (done.wr_id, done.status),
            (len as u64, Status::Success),
            "done"
        );
        ensure_eq!(get(&pair.b.region, 0, len), bytes, "bytes");
    }
    let (posted, _) = post(most as usize + 1, SendOp::Write(there));
    ensure_eq!(posted, Err(PostErrorKind::InlineTooLong(most)), "too long");
    let (posted, _) = post(8, SendOp::Read(there));
    ensure_eq!(posted, Err(PostErrorKind::Operation), "READ");
    Ok(())
}

pub(super) fn fence_and_order(bench: &Bench) -> Verdict {
    let mut pair = bench.pair_of(&large(), &large())?;
    let fence = SendFlags::SIGNALED | SendFlags::FENCE;
    put(&pair.b.region, 0, &pattern(1, 1 << 20));
    let there = pair.b.region.remote(0);
    let copy = pair.b.region.remote(2 << 20);
    let here = pair.a.region.sge(0, 1 << 20);
    pair.a.post(1, SendOp::Read(there), &[here])?;
    // Sends on what the READ brings: right only behind the fence.
    pair.a
        .post_flagged(2, SendOp::Write(copy), &[here], fence)?;
    pair.a.expect_sent(1, Status::Success)?;
    pair.a.expect_sent(2, Status::Success)?;
    ensure!(
        get(&pair.b.region, 2 << 20, 1 << 20) == pattern(1, 1 << 20),
        "the fence did not hold"
    );
    Ok(())
}
