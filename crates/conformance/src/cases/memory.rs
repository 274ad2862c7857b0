//! Memory from any source, and memory that goes away while it is used.

use headworks_verbs::{Access, Opcode, Status};

use crate::call::{Call, Done, Op, Reply, Send};
use crate::case_context::Host;
use crate::{Case, CaseContext, HostRole, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("memory::from_anywhere", from_anywhere)
            .row(
                "register",
                "ordinary memory of the process",
                "-",
                "SEND, WRITE, READ of 1 B to 1 MiB, data intact",
            )
            .row(
                "register",
                "memory of another device",
                "-",
                "SEND, WRITE, READ of 1 B to 1 MiB, data intact",
            ),
        Case::new("memory::atomics_anywhere", atomics_anywhere).row(
            "post_send",
            "CMP_SWAP, FETCH_ADD in ordinary memory",
            "-",
            "Success, with correct old and new values",
        ),
        Case::new("memory::twice", twice).row(
            "register",
            "the same memory twice, one region deregistered",
            "-",
            "the other region still works",
        ),
        Case::new("memory::after_deregistration", after_deregistration).row(
            "deregister",
            "a region of device or ordinary memory, during WRITEs of 64 B to 256 KiB to it",
            "-",
            "nothing is written after the call returns; the writer ends with RemoteAccess",
        ),
        Case::new("memory::sent_and_deregistered", sent_and_deregistered).row(
            "deregister",
            "the source of a WRITE in progress",
            "-",
            "Success with data intact, or LocalProtection",
        ),
    ]
}

const LEN: usize = 4 << 20;

fn anywhere(heap: bool) -> QpOptions {
    QpOptions {
        len: LEN,
        heap,
        ..QpOptions::default()
    }
}

fn every_way(cx: &mut CaseContext<'_>, a: QpFixture, b: QpFixture) -> Verdict {
    for (id, len) in [1u32, 63, 64, 4096, 65_536, 65_537, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let (seed, bytes) = (id as u64 + 10, len as usize);
        cx.fill_buffer(a, 3, bytes, seed)?;
        cx.post(a, 1, Op::Write(b.at(5)), &[a.sge(3, len)])?;
        cx.expect_sent(a, 1, Status::Success)?;
        ensure!(
            cx.buffer_matches(b, 5, bytes, seed)?,
            "WRITE of {len} differs"
        );
        cx.post(a, 2, Op::Read(b.at(5)), &[a.sge(2 << 20, len)])?;
        cx.expect_sent(a, 2, Status::Success)?;
        ensure!(
            cx.buffer_matches(a, 2 << 20, bytes, seed)?,
            "READ of {len} differs"
        );
        cx.receive(b, 3, &[b.sge(2 << 20, len)])?;
        cx.post(a, 4, Op::SendImm(8), &[a.sge(3, len)])?;
        cx.expect_sent(a, 4, Status::Success)?;
        let got = cx.expect_received(b, 3, Status::Success)?;
        ensure_eq!((got.byte_len, got.imm), (len, Some(8)), "receive");
        ensure!(
            cx.buffer_matches(b, 2 << 20, bytes, seed)?,
            "SEND of {len} differs"
        );
    }
    Ok(())
}

fn from_anywhere(cx: &mut CaseContext<'_>) -> Verdict {
    for (here, there) in [(false, true), (true, false), (true, true)] {
        let (a, b) = cx.connected_pair_with(&anywhere(here), &anywhere(there))?;
        every_way(cx, a, b).map_err(|seen| format!("ours {here}, the peer's {there}: {seen}"))?;
        cx.destroy_qp_fixture(a)?;
        cx.destroy_qp_fixture(b)?;
    }
    // Memory that another device allocated can be registered like any other.
    let second = cx.second_host()?;
    let device = cx.new_id();
    let end = HostRole::Second;
    cx.call_ok(second.id, Call::Open { device, end })?;
    let other = cx.new_qp(Host { device, ..second }, &anywhere(false))?;
    let (a, b) = cx.connected_pair_with(&anywhere(false), &anywhere(false))?;
    let of_both = QpFixture {
        buffer: other.buffer,
        ..b
    };
    let region = cx.register(of_both, b.pd, Access::ALL)?;
    let lent = QpFixture { region, ..of_both };
    every_way(cx, a, lent).map_err(|seen| format!("another device's: {seen}"))
}

fn atomics_anywhere(cx: &mut CaseContext<'_>) -> Verdict {
    for (here, there) in [(false, true), (true, false), (true, true)] {
        let (a, b) = cx.connected_pair_with(&anywhere(here), &anywhere(there))?;
        for round in 0..20u64 {
            let remote = b.at(64);
            let op = match round % 2 {
                0 => Op::FetchAdd { remote, add: 5 },
                _ => Op::CompareSwap {
                    remote,
                    expect: round / 2 * 6 + 5,
                    swap: round / 2 * 6 + 6,
                },
            };
            cx.post(a, round, op, &[a.sge(8, 8)])?;
            let done = cx.expect_sent(a, round, Status::Success)?;
            ensure!(
                matches!(done.opcode, Opcode::FetchAdd | Opcode::CompareSwap),
                "{done:?}"
            );
            let (before, after) = match round % 2 {
                0 => (round / 2 * 6, round / 2 * 6 + 5),
                _ => (round / 2 * 6 + 5, round / 2 * 6 + 6),
            };
            let seen = (cx.read_u64(a, 8)?, cx.read_u64(b, 64)?);
            ensure_eq!(
                seen,
                (before, after),
                format!("old and new in round {round}")
            );
        }
    }
    Ok(())
}

fn twice(cx: &mut CaseContext<'_>) -> Verdict {
    for heap in [false, true] {
        let (a, b) = cx.connected_pair_with(&anywhere(heap), &anywhere(heap))?;
        let (mine, theirs) = (
            cx.register(a, a.pd, Access::ALL)?,
            cx.register(b, b.pd, Access::ALL)?,
        );
        cx.write_buffer(a, 0, b"same")?;
        let piece = crate::case_context::piece(mine, 0, 4);
        cx.post(a, 1, Op::Write(b.region_at(theirs, 0)), &[piece])?;
        cx.expect_sent(a, 1, Status::Success)?;
        cx.destroy(a.host, mine)?;
        cx.destroy(b.host, theirs)?;
        cx.post(a, 2, Op::Write(b.at(4)), &[a.sge(0, 4)])?;
        cx.expect_sent(a, 2, Status::Success)?;
        ensure_eq!(cx.read_buffer(b, 0, 8)?, b"samesame", "bytes");
        cx.post(a, 3, Op::Write(b.region_at(theirs, 0)), &[a.sge(0, 4)])?;
        cx.expect_sent(a, 3, Status::RemoteAccess)?;
    }
    Ok(())
}

/// The owner deregisters a region and reuses its memory while a peer writes to it. This covers both kinds of
/// memory, WRITEs that finish in the call and WRITEs in chunks, and deregistration sooner and later.
fn after_deregistration(cx: &mut CaseContext<'_>) -> Verdict {
    for heap in [false, true] {
        for len in [64, 4096, 1 << 18] {
            for looks in [1, 40, 400] {
                taken_away(cx, heap, len, looks).map_err(|seen| {
                    let whose = if heap { ", ordinary memory" } else { "" };
                    format!("WRITEs of {len} B{whose}, after {looks} looks: {seen}")
                })?;
            }
        }
    }
    Ok(())
}

fn taken_away(cx: &mut CaseContext<'_>, heap: bool, len: u32, looks: usize) -> Verdict {
    let options = QpOptions {
        len: 1 << 19,
        ..anywhere(heap)
    };
    let (a, b) = cx.connected_pair_with(&options, &options)?;
    cx.fill_buffer(a, 0, 1 << 19, 9)?;
    let request = Send::new(1, Op::Write(b.at(0)), &[a.sge(7, len)]);
    // If nothing progresses without calls, the writer has nothing to outlast.
    let times = match cx.behaviour().progresses_without_calls {
        true => 1_000_000,
        false => 10_000,
    };
    let writing = Call::Repeat {
        times,
        until: None,
        calls: vec![
            Call::PostSend {
                qp: a.qp,
                chain: vec![request; 8],
            },
            Call::Poll {
                cq: a.send_cq,
                most: 32,
            },
        ],
    };
    let (buffer, offset, seed) = (b.buffer, 0, 5);
    let whole = len as usize;
    let check = Call::Check {
        buffer,
        offset,
        len: whole,
        seed,
    };
    let get = Call::Get {
        buffer,
        offset,
        len: 8,
    };
    let fill = Call::Fill {
        buffer,
        offset,
        len: whole,
        seed,
    };
    let mut taking = vec![get; looks];
    taking.extend([Call::Destroy { object: b.region }, fill]);
    taking.extend(vec![check; 5]);
    let replies =
        cx.call_concurrently(vec![(a.host.id, writing), (b.host.id, Call::Each(taking))])?;
    let [Reply::Completions(done), Reply::Each(owner)] = &replies[..] else {
        return Err(format!("{replies:?}"));
    };
    let checks = owner.iter().rev().take(5);
    let good = checks.filter(|reply| **reply == Reply::Flag(true)).count();
    ensure_eq!(good, 5, "written after deregistration: good looks");
    // The writer has failed already, or fails with its next request.
    cx.wait("end of the writer", |cx| {
        Ok((cx.state(a)? == headworks_verbs::QpState::Error).then_some(()))
    })?;
    let is_bad = |done: &Done| done.status != Status::Success;
    let mut bad = done.iter().copied().find(is_bad);
    while bad.is_none() {
        bad = Some(cx.next_send_completion(a)?).filter(is_bad);
    }
    let status = bad.map(|done| done.status);
    ensure_eq!(status, Some(Status::RemoteAccess), "the writer");
    cx.expect_failed(a)?;
    ensure!(
        cx.buffer_matches(b, 0, whole, seed)?,
        "written after deregistration, in the end"
    );
    cx.destroy_qp_fixture(a)?;
    let rest = [b.qp, b.buffer, b.send_cq, b.recv_cq, b.channel, b.pd];
    let destroy = |object| Call::Destroy { object };
    let rest = Call::Each(rest.map(destroy).to_vec());
    cx.call_ok(b.host.id, rest).map(drop)
}

/// The initiator deregisters the source of a WRITE while the device reads it.
fn sent_and_deregistered(cx: &mut CaseContext<'_>) -> Verdict {
    const SOURCE: usize = 1 << 20;
    for round in 0..8 {
        let heap = round % 2 == 1;
        let (a, b) = cx.connected_pair_with(&anywhere(heap), &anywhere(heap))?;
        cx.fill_buffer(a, 0, SOURCE, 9)?;
        cx.post(a, 1, Op::Write(b.at(0)), &[a.sge(0, SOURCE as u32)])?;
        cx.destroy(a.host, a.region)?;
        // The memory may be reused now.
        cx.fill_buffer(a, 0, SOURCE, 3)?;
        let done = cx.next_send_completion(a)?;
        let unread = cx.expected_status(Status::LocalProtection, done.status);
        match done.status {
            Status::Success => {
                ensure!(
                    cx.buffer_matches(b, 0, SOURCE, 9)?,
                    "not what was sent, round {round}"
                );
            }
            status if status == unread => {}
            other => return Err(format!("round {round} ended with {other:?}")),
        }
    }
    Ok(())
}
