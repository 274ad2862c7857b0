//! Compare-and-swap, fetch-and-add.

use headworks_verbs::{AsyncEvent, Opcode, SendOp, Status};

use crate::bytes::{get, put};
use crate::{Bench, Pair, Verdict, ensure_eq};

fn word(pair: &Pair) -> u64 {
    let bytes = get(&pair.b.region, 64, 8);
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

fn old(pair: &Pair) -> u64 {
    let bytes = get(&pair.a.region, 8, 8);
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

pub(super) fn compare_swap(bench: &Bench) -> Verdict {
    let mut pair = bench.pair()?;
    put(&pair.b.region, 64, &5u64.to_ne_bytes());
    let remote = pair.b.region.remote(64);
    let here = pair.a.region.sge(8, 8);
    for (expect, swap, before, after) in [(4, 9, 5, 5), (5, u64::MAX, 5, u64::MAX)] {
        let op = SendOp::CompareSwap {
            remote,
            expect,
            swap,
        };
        pair.a.post(1, op, &[here])?;
        let done = pair.a.expect_sent(1, Status::Success)?;
        ensure_eq!(
            (done.opcode, done.byte_len),
            (Opcode::CompareSwap, 8),
            "what"
        );
        ensure_eq!((old(&pair), word(&pair)), (before, after), "old and new");
    }
    Ok(())
}

pub(super) fn fetch_add(bench: &Bench) -> Verdict {
    let mut pair = bench.pair()?;
    put(&pair.b.region, 64, &u64::MAX.to_ne_bytes());
    let remote = pair.b.region.remote(64);
    let here = pair.a.region.sge(8, 8);
    for (add, before, after) in [(3, u64::MAX, 2), (40, 2, 42)] {
        pair.a.post(1, SendOp::FetchAdd { remote, add }, &[here])?;
        let done = pair.a.expect_sent(1, Status::Success)?;
        ensure_eq!((done.opcode, done.byte_len), (Opcode::FetchAdd, 8), "what");
        ensure_eq!((old(&pair), word(&pair)), (before, after), "old and new");
    }
    Ok(())
}

pub(super) fn misaligned(bench: &Bench) -> Verdict {
    let mut pair = bench.pair()?;
    let remote = pair.b.region.remote(68);
    let here = pair.a.region.sge(8, 8);
    pair.a
        .post(1, SendOp::FetchAdd { remote, add: 1 }, &[here])?;
    pair.a.expect_sent(1, Status::RemoteInvalidRequest)?;
    ensure_eq!(word(&pair), 0, "untouched");
    pair.b.expect_event(AsyncEvent::QpFatal(pair.b.qp.qpn()))
}
