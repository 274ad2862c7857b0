//! Requests that must not be executed.

use std::collections::BTreeSet;

use headworks_verbs::{Access, QpState, Status};

use crate::bench::piece;
use crate::call::{Call, Op, Remote, Reply, Send, Twist};
use crate::{Bench, Case, Options, Side, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    let local = "LocalProtection, what is behind it flushed; the peer stays in RTS";
    vec![
        Case::new("refusals::remote_access", remote_access)
            .row(
                "post_send",
                "WRITE",
                "no such rkey row",
                "RemoteAccess, both in error",
            )
            .row(
                "post_send",
                "FETCH_ADD",
                "the region or queue pair forbids it",
                "RemoteAccess, both in error",
            ),
        Case::new("refusals::unsignalled_refused", unsignalled_refused).row(
            "post_send",
            "WRITE, unsignalled",
            "bad rkey",
            "completes: RemoteAccess; later ones Flushed",
        ),
        Case::new("refusals::local_protection", local_protection).row(
            "post_send",
            "WRITE, READ, SEND",
            "bad lkey, bounds, another domain",
            local,
        ),
        Case::new("refusals::local_write_needed", local_write_needed)
            .row(
                "post_send",
                "READ",
                "its region forbids writing",
                "LocalProtection",
            )
            .row(
                "post_recv",
                "RECV",
                "its region forbids writing",
                "LocalProtection; the sender's RemoteOperation",
            ),
        Case::new("refusals::short_receive", short_receive).row(
            "post_recv",
            "RECV",
            "shorter than the SEND",
            "LocalLength; the sender's RemoteInvalidRequest; nothing placed",
        ),
        Case::new("refusals::dropped_region", dropped_region).row(
            "deregister",
            "a region in use",
            "-",
            "later WRITEs: RemoteAccess",
        ),
        Case::new("refusals::keys_are_not_reused", keys_are_not_reused).row(
            "register",
            "1,000 times",
            "-",
            "no key comes back",
        ),
        Case::new("refusals::late_requests_miss", late_requests_miss).row(
            "destroy_qp",
            "the peer's, another in its place",
            "-",
            "RetryExceeded, nothing written, nobody disturbed",
        ),
    ]
}

/// What a refused request leaves: both queue pairs in error, everything behind it flushed in order.
fn refused(bench: &mut Bench<'_>, a: Side, b: Side, op: Op, status: Status) -> Verdict {
    bench.put(a, 0, &[7; 64])?;
    bench.put(b, 0, &[1; 256])?;
    bench.receive(b, 70, &[b.sge(128, 64)])?;
    bench.receive(b, 71, &[b.sge(128, 64)])?;
    let len = match op {
        Op::CompareSwap { .. } | Op::FetchAdd { .. } => 8,
        _ => 64,
    };
    let from = a.sge(0, len);
    bench.post(a, 1, op, &[from])?;
    let good = bench.behind(op, b.at(0))?;
    bench.post_one(a, good.gather(2, &[from]).quiet())?;
    bench.post_one(a, good.gather(3, &[from]))?;
    bench.expect_sent(a, 1, status)?;
    bench.expect_sent(a, 2, Status::Flushed)?;
    bench.expect_sent(a, 3, Status::Flushed)?;
    bench.expect_state(a, QpState::Error, "the sender")?;
    ensure_eq!(bench.get(b, 0, 256)?, vec![1; 256], "the peer's memory");
    bench.expect_state(b, QpState::Error, "the peer")?;
    bench.expect_fatal(a)?;
    bench.expect_fatal(b)?;
    bench.expect_received(b, 70, Status::Flushed)?;
    bench.expect_received(b, 71, Status::Flushed)?;
    Ok(())
}

fn remote_access(bench: &mut Bench<'_>) -> Verdict {
    let readable = Options {
        region: Access::LOCAL_WRITE | Access::REMOTE_READ,
        ..Options::default()
    };
    let closed = Options {
        access: Access::REMOTE_READ,
        ..Options::default()
    };
    let usual = Options::default();
    type Bad = fn(&Side) -> Op;
    let add: Bad = |b| Op::FetchAdd {
        remote: b.at(0),
        add: 1,
    };
    let tries: [(&str, &Options, Bad); 9] = [
        ("rkey", &usual, |b| Op::Write(b.at(0).twisted(Twist::KEY))),
        ("no such row", &usual, |b| {
            Op::Write(b.at(0).twisted(Twist {
                // Whatever the key is, its row is far away.
                key_xor: 0x00ff_ff00,
                ..Twist::default()
            }))
        }),
        ("end", &usual, |b| Op::Write(b.at((64 << 10) - 63))),
        ("start", &usual, |b| Op::Write(b.at(-1))),
        ("wrap", &usual, |b| {
            Op::Read(b.at(0).twisted(Twist::absolute(u64::MAX - 8)))
        }),
        ("region access", &readable, |b| Op::Write(b.at(0))),
        ("region atomic", &readable, add),
        ("QP access", &closed, |b| Op::Write(b.at(0))),
        ("QP atomic", &closed, add),
    ];
    for (what, options, op) in tries {
        let (a, b) = bench.pair_of(&usual, options)?;
        refused(bench, a, b, op(&b), Status::RemoteAccess)
            .map_err(|seen| format!("{what}: {seen}"))?;
    }
    let all_ones = |bench: &mut Bench<'_>, b: Side| {
        let key = bench.book().rkey(b.host.id, b.region).unwrap_or_default();
        Op::Write(b.at(0).twisted(Twist {
            key_xor: !key,
            ..Twist::default()
        }))
    };
    let (a, b) = bench.pair()?;
    let op = all_ones(bench, b);
    refused(bench, a, b, op, Status::RemoteAccess).map_err(|seen| format!("all ones: {seen}"))?;
    // A region of another protection domain.
    let (a, b) = bench.pair()?;
    let second = bench.second()?;
    let other = bench.side(second, &usual)?;
    bench.put(other, 0, &[9; 64])?;
    refused(bench, a, b, Op::Write(other.at(0)), Status::RemoteAccess)
        .map_err(|seen| format!("domain: {seen}"))?;
    ensure_eq!(bench.get(other, 0, 64)?, vec![9; 64], "the other domain");
    Ok(())
}

fn unsignalled_refused(bench: &mut Bench<'_>) -> Verdict {
    let (a, _) = bench.pair()?;
    let bad = Op::Write(Remote::At { addr: 0, rkey: 0 });
    bench.post_one(a, Send::new(4, bad, &[a.sge(0, 8)]).quiet())?;
    bench.expect_sent(a, 4, Status::RemoteAccess)?;
    bench.post_one(a, Send::new(5, bad, &[a.sge(0, 8)]).quiet())?;
    bench.expect_sent(a, 5, Status::Flushed)?;
    Ok(())
}

fn local_protection(bench: &mut Bench<'_>) -> Verdict {
    let first = bench.first()?;
    let other = bench.side(first, &Options::default())?;
    let len = Options::default().len as i64;
    for index in 0..4 {
        for op in 0..3 {
            let (a, b) = bench.pair()?;
            let good = a.sge(0, 8);
            let bad = match index {
                0 => good.twisted(Twist::KEY),
                1 => a.sge(len - 7, 8),
                2 => a.sge(-1, 8),
                _ => piece(other.region, 0, 8),
            };
            bench.receive(b, 8, &[b.sge(0, 64)])?;
            let op = [Op::Write(b.at(0)), Op::Read(b.at(0)), Op::Send][op];
            bench.post(a, 1, op, &[bad])?;
            bench.post(a, 2, op, &[good])?;
            bench
                .expect_sent(a, 1, Status::LocalProtection)
                .map_err(|seen| format!("try {index}, {op:?}: {seen}"))?;
            bench.expect_sent(a, 2, Status::Flushed)?;
            bench.expect_fatal(a)?;
            bench.expect_state(b, QpState::Rts, "the peer")?;
        }
    }
    Ok(())
}

fn local_write_needed(bench: &mut Bench<'_>) -> Verdict {
    let read_only = Options {
        region: Access::NONE,
        ..Options::default()
    };
    let (a, b) = bench.pair_of(&read_only, &Options::default())?;
    bench.post(a, 1, Op::Write(b.at(0)), &[a.sge(0, 8)])?;
    bench.expect_sent(a, 1, Status::Success)?;
    bench.post(a, 2, Op::Read(b.at(0)), &[a.sge(0, 8)])?;
    bench.expect_sent(a, 2, Status::LocalProtection)?;
    // A receive into it fails on both sides.
    let (a, b) = bench.pair_of(&Options::default(), &read_only)?;
    bench.receive(b, 3, &[b.sge(0, 8)])?;
    bench.post(a, 4, Op::Send, &[a.sge(0, 8)])?;
    bench.expect_sent(a, 4, Status::RemoteOperation)?;
    bench.expect_received(b, 3, Status::LocalProtection)?;
    bench.expect_state(b, QpState::Error, "the receiver")
}

fn short_receive(bench: &mut Bench<'_>) -> Verdict {
    let (a, b) = bench.pair()?;
    bench.put(a, 0, &[7; 64])?;
    bench.receive(b, 1, &[b.sge(0, 63)])?;
    bench.receive(b, 2, &[b.sge(0, 63)])?;
    bench.post(a, 3, Op::Send, &[a.sge(0, 64)])?;
    bench.expect_sent(a, 3, Status::RemoteInvalidRequest)?;
    bench.expect_received(b, 1, Status::LocalLength)?;
    bench.expect_received(b, 2, Status::Flushed)?;
    bench.expect_fatal(b)?;
    ensure_eq!(bench.get(b, 0, 64)?, vec![0; 64], "placed all the same");
    Ok(())
}

fn dropped_region(bench: &mut Bench<'_>) -> Verdict {
    let (a, b) = bench.pair()?;
    let (buffer, region) = (bench.id(), bench.id());
    let calls = vec![
        Call::Alloc {
            buffer,
            device: b.host.device,
            len: 4096,
            align: 64,
        },
        Call::Register {
            region,
            pd: b.pd,
            buffer,
            access: Access::ALL,
        },
    ];
    bench.done(b.host.id, Call::Each(calls))?;
    let there = Op::Write(b.region_at(region, 0));
    bench.post(a, 1, there, &[a.sge(0, 8)])?;
    bench.expect_sent(a, 1, Status::Success)?;
    bench.destroy(b.host, region)?;
    bench.post(a, 2, there, &[a.sge(0, 8)])?;
    bench.expect_sent(a, 2, Status::RemoteAccess)?;
    Ok(())
}

fn keys_are_not_reused(bench: &mut Bench<'_>) -> Verdict {
    let host = bench.first()?;
    let side = bench.side(host, &Options::default())?;
    let mut seen = BTreeSet::new();
    for round in 0..20 {
        let mut calls = Vec::new();
        for _ in 0..50 {
            let region = bench.id();
            calls.push(Call::Register {
                region,
                pd: side.pd,
                buffer: side.buffer,
                access: Access::ALL,
            });
            calls.push(Call::Destroy { object: region });
        }
        let Reply::Each(replies) = bench.done(host.id, Call::Each(calls))? else {
            return Err("answered otherwise".to_owned());
        };
        for reply in replies {
            if let Reply::Keys { rkey, .. } = reply {
                ensure!(
                    seen.insert(rkey),
                    "key {rkey:#x} came back in round {round}"
                );
            }
        }
    }
    ensure_eq!(seen.len(), 1000, "keys");
    Ok(())
}

/// The peer's queue pair is gone, and another is in its place.
fn late_requests_miss(bench: &mut Bench<'_>) -> Verdict {
    let (a, b) = bench.pair()?;
    bench.post(a, 1, Op::Write(b.at(0)), &[a.sge(0, 8)])?;
    bench.expect_sent(a, 1, Status::Success)?;
    bench.destroy(b.host, b.qp)?;
    let (_, other) = bench.pair()?;
    bench.put(a, 0, &[9; 8])?;
    bench.put(b, 0, &[3; 8])?;
    bench.post(a, 2, Op::Write(b.at(0)), &[a.sge(0, 8)])?;
    bench.expect_sent(a, 2, Status::RetryExceeded)?;
    ensure_eq!(
        bench.get(b, 0, 8)?,
        vec![3; 8],
        "written through a dead queue pair"
    );
    bench.expect_none(other.host, other.send_cq, "elsewhere")
}
