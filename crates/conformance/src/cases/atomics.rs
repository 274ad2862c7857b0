//! Compare-and-swap, fetch-and-add.

use headworks_verbs::{Opcode, Status};

use crate::call::Op;
use crate::{Case, CaseContext, Verdict, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("atomics::compare_swap", compare_swap).row(
            "post_send",
            "CMP_SWAP",
            "-",
            "Success; returns the old value; swaps if equal",
        ),
        Case::new("atomics::fetch_add", fetch_add).row(
            "post_send",
            "FETCH_ADD",
            "-",
            "Success; returns the old value; the sum wraps around",
        ),
    ]
}

fn compare_swap(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair()?;
    cx.write_buffer(b, 64, &5u64.to_ne_bytes())?;
    for (expect, swap, before, after) in [(4, 9, 5, 5), (5, u64::MAX, 5, u64::MAX)] {
        let op = Op::CompareSwap {
            remote: b.at(64),
            expect,
            swap,
        };
        cx.post(a, 1, op, &[a.sge(8, 8)])?;
        let done = cx.expect_sent(a, 1, Status::Success)?;
        ensure_eq!(
            (done.opcode, done.byte_len),
            (Opcode::CompareSwap, 8),
            "what"
        );
        ensure_eq!(
            (cx.read_u64(a, 8)?, cx.read_u64(b, 64)?),
            (before, after),
            "old and new"
        );
    }
    Ok(())
}

fn fetch_add(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair()?;
    cx.write_buffer(b, 64, &u64::MAX.to_ne_bytes())?;
    for (add, before, after) in [(3, u64::MAX, 2), (40, 2, 42)] {
        let remote = b.at(64);
        cx.post(a, 1, Op::FetchAdd { remote, add }, &[a.sge(8, 8)])?;
        let done = cx.expect_sent(a, 1, Status::Success)?;
        ensure_eq!((done.opcode, done.byte_len), (Opcode::FetchAdd, 8), "what");
        ensure_eq!(
            (cx.read_u64(a, 8)?, cx.read_u64(b, 64)?),
            (before, after),
            "old and new"
        );
    }
    Ok(())
}
