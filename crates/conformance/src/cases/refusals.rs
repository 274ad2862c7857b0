//! Requests that must not be executed.

use headworks_verbs::{
    Access, AllocRequest, AsyncEvent, Completion, QpState, RemoteAddr, SendFlags, SendOp, Status,
};

use crate::bench::line;
use crate::bytes::{get, put};
use crate::{Bench, Options, Pair, Side, Verdict, ensure, ensure_eq};

/// What a refused request leaves: both queue pairs in error, everything behind it flushed in order.
fn refused(pair: &mut Pair, op: SendOp, status: Status) -> Verdict {
    put(&pair.a.region, 0, &[7; 64]);
    put(&pair.b.region, 0, &[1; 256]);
    let into = pair.b.region.sge(128, 64);
    pair.b.receive(70, &[into])?;
    pair.b.receive(71, &[into])?;
    let from = match op {
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => pair.a.region.sge(0, 8),
        _ => pair.a.region.sge(0, 64),
    };
    pair.a.post(1, op, &[from])?;
    let good = SendOp::Write(pair.b.region.remote(0));
    pair.a.post_flagged(2, good, &[from], SendFlags::NONE)?;
    pair.a.post(3, good, &[from])?;
    pair.a.expect_sent(1, status)?;
    pair.a.expect_sent(2, Status::Flushed)?;
    pair.a.expect_sent(3, Status::Flushed)?;
    ensure_eq!(pair.a.qp.state(), QpState::Error, "our state");
    ensure_eq!(
        get(&pair.b.region, 0, 256),
        vec![1; 256],
        "the peer's memory"
    );
    if status == Status::LocalProtection {
        ensure_eq!(pair.b.qp.state(), QpState::Rts, "the peer's state");
        return pair.a.expect_event(AsyncEvent::QpFatal(pair.a.qp.qpn()));
    }
    ensure_eq!(pair.b.qp.state(), QpState::Error, "the peer's state");
    pair.expect_both_fatal()?;
    pair.b.expect_received(70, Status::Flushed)?;
    pair.b.expect_received(71, Status::Flushed)?;
    Ok(())
}

pub(super) fn remote_access(bench: &Bench) -> Verdict {
    let readable = Options {
        region: Access::LOCAL_WRITE | Access::REMOTE_READ,
        ..Options::default()
    };
    let closed = Options {
        tuning: headworks_verbs::bringup::Tuning {
            access: Access::REMOTE_READ,
            ..Options::default().tuning
        },
        ..Options::default()
    };
    type Bad = fn(&Side) -> SendOp;
    let tries: [(&str, &Options, Bad); 9] = [
        ("rkey", &Options::default(), |b| {
            let RemoteAddr { addr, rkey } = b.region.remote(0);
            SendOp::Write(RemoteAddr {
                addr,
                rkey: rkey ^ 0x0800_0000,
            })
        }),
        ("no such row", &Options::default(), |b| {
            let addr = b.region.addr(0);
            SendOp::Write(RemoteAddr { addr, rkey: !0 })
        }),
        ("end", &Options::default(), |b| {
            SendOp::Write(b.region.remote(b.region.len() - 63))
        }),
        ("start", &Options::default(), |b| {
            let RemoteAddr { addr, rkey } = b.region.remote(0);
            SendOp::Write(RemoteAddr {
                addr: addr - 1,
                rkey,
            })
        }),
        ("wrap", &Options::default(), |b| {
            let rkey = b.region.rkey();
            SendOp::Read(RemoteAddr {
                addr: u64::MAX - 8,
                rkey,
            })
        }),
        ("region access", &readable, |b| {
            SendOp::Write(b.region.remote(0))
        }),
        ("region atomic", &readable, |b| SendOp::FetchAdd {
            remote: b.region.remote(0),
            add: 1,
        }),
        ("QP access", &closed, |b| SendOp::Write(b.region.remote(0))),
        ("QP atomic", &closed, |b| SendOp::FetchAdd {
            remote: b.region.remote(0),
            add: 1,
        }),
    ];
    for (what, options, op) in tries {
        let mut pair = bench.pair_of(&Options::default(), options)?;
        let op = op(&pair.b);
        refused(&mut pair, op, Status::RemoteAccess).map_err(|seen| format!("{what}: {seen}"))?;
    }
    // A region of another protection domain.
    let mut pair = bench.pair()?;
    let other = Side::new(&bench.b, &Options::default())?;
    put(&other.region, 0, &[9; 64]);
    let op = SendOp::Write(other.region.remote(0));
    refused(&mut pair, op, Status::RemoteAccess).map_err(|seen| format!("domain: {seen}"))?;
    ensure_eq!(get(&other.region, 0, 64), vec![9; 64], "the other domain");
    Ok(())
}

pub(super) fn unsignalled_refused(bench: &Bench) -> Verdict {
    let mut pair = bench.pair()?;
    let bad = RemoteAddr { addr: 0, rkey: 0 };
    let from = pair.a.region.sge(0, 8);
    pair.a
        .post_flagged(4, SendOp::Write(bad), &[from], SendFlags::NONE)?;
    pair.a.expect_sent(4, Status::RemoteAccess)?;
    pair.a
        .post_flagged(5, SendOp::Write(bad), &[from], SendFlags::NONE)?;
    pair.a.expect_sent(5, Status::Flushed)?;
    Ok(())
}

pub(super) fn local_protection(bench: &Bench) -> Verdict {
    let other = Side::new(&bench.a, &Options::default())?;
    for index in 0..4 {
        for op in 0..3 {
            let mut pair = bench.pair()?;
            let (sge, len) = (pair.a.region.sge(0, 8), pair.a.region.len());
            let bad = match index {
                0 => headworks_verbs::Sge {
                    lkey: sge.lkey ^ 0x0800_0000,
                    ..sge
                },
                1 => pair.a.region.sge(len - 7, 8),
                2 => headworks_verbs::Sge {
                    addr: sge.addr - 1,
                    ..sge
                },
                _ => other.region.sge(0, 8),
            };
            let there = pair.b.region.remote(0);
            let into = pair.b.region.sge(0, 64);
            pair.b.receive(8, &[into])?;
            let op = [SendOp::Write(there), SendOp::Read(there), SendOp::Send][op];
            pair.a.post(1, op, &[bad])?;
            pair.a.post(2, op, &[sge])?;
            pair.a
                .expect_sent(1, Status::LocalProtection)
                .map_err(|seen| format!("try {index}, {op:?}: {seen}"))?;
            pair.a.expect_sent(2, Status::Flushed)?;
            ensure_eq!(pair.b.qp.state(), QpState::Rts, "the peer's state");
        }
    }
    Ok(())
}

pub(super) fn local_write_needed(bench: &Bench) -> Verdict {
    let read_only = Options {
        region: Access::NONE,
        ..Options::default()
    };
    let mut pair = bench.pair_of(&read_only, &Options::default())?;
    let (there, here) = (pair.b.region.remote(0), pair.a.region.sge(0, 8));
    pair.a.post(1, SendOp::Write(there), &[here])?;
    pair.a.expect_sent(1, Status::Success)?;
    pair.a.post(2, SendOp::Read(there), &[here])?;
    pair.a.expect_sent(2, Status::LocalProtection)?;
    // A receive into it fails on both sides.
    let mut pair = bench.pair_of(&Options::default(), &read_only)?;
    let (from, into) = (pair.a.region.sge(0, 8), pair.b.region.sge(0, 8));
    pair.b.receive(3, &[into])?;
    pair.a.post(4, SendOp::Send, &[from])?;
    pair.a.expect_sent(4, Status::RemoteOperation)?;
    pair.b.expect_received(3, Status::LocalProtection)?;
    ensure_eq!(pair.b.qp.state(), QpState::Error, "the receiver's state");
    Ok(())
}

pub(super) fn short_receive(bench: &Bench) -> Verdict {
    let mut pair = bench.pair()?;
    put(&pair.a.region, 0, &[7; 64]);
    let (from, into) = (pair.a.region.sge(0, 64), pair.b.region.sge(0, 63));
    pair.b.receive(1, &[into])?;
    pair.b.receive(2, &[into])?;
    pair.a.post(3, SendOp::Send, &[from])?;
    pair.a.expect_sent(3, Status::RemoteInvalidRequest)?;
    pair.b.expect_received(1, Status::LocalLength)?;
    pair.b.expect_received(2, Status::Flushed)?;
    pair.b.expect_event(AsyncEvent::QpFatal(pair.b.qp.qpn()))?;
    ensure_eq!(
        get(&pair.b.region, 0, 64),
        vec![0; 64],
        "placed all the same"
    );
    Ok(())
}

pub(super) fn dropped_region(bench: &Bench) -> Verdict {
    let mut pair = bench.pair()?;
    let buffer = bench.b.alloc(&AllocRequest::of(4096)).map_err(line)?;
    let region = pair.b.pd.register(&buffer, Access::ALL).map_err(line)?;
    let (there, from) = (region.remote(0), pair.a.region.sge(0, 8));
    pair.a.post(1, SendOp::Write(there), &[from])?;
    pair.a.expect_sent(1, Status::Success)?;
    drop(region);
    pair.a.post(2, SendOp::Write(there), &[from])?;
    pair.a.expect_sent(2, Status::RemoteAccess)?;
    Ok(())
}

pub(super) fn keys_are_not_reused(bench: &Bench) -> Verdict {
    let pd = bench.a.alloc_pd().map_err(line)?;
    let buffer = bench.a.alloc(&AllocRequest::of(64)).map_err(line)?;
    let mut seen = std::collections::HashSet::new();
    for round in 0..1000 {
        let region = pd.register(&buffer, Access::ALL).map_err(line)?;
        ensure!(
            seen.insert(region.rkey()),
            "key {:#x} came back after {round} others",
            region.rkey()
        );
    }
    Ok(())
}

pub(super) fn late_requests_miss(bench: &Bench) -> Verdict {
    // The peer's queue pair is gone, and another is in its place.
    let mut pair = bench.pair()?;
    let (there, from) = (pair.b.region.remote(0), pair.a.region.sge(0, 8));
    pair.a.post(1, SendOp::Write(there), &[from])?;
    pair.a.expect_sent(1, Status::Success)?;
    let Pair { mut a, b } = pair;
    let Side { qp, region, .. } = b;
    drop(qp);
    let other = bench.pair()?;
    put(&a.region, 0, &[9; 8]);
    put(&region, 0, &[3; 8]);
    a.post(2, SendOp::Write(there), &[from])?;
    a.expect_sent(2, Status::RetryExceeded)?;
    ensure_eq!(
        get(&region, 0, 8),
        vec![3; 8],
        "written through a dead queue pair"
    );
    let mut out = [Completion::default()];
    ensure_eq!(
        other.b.send_cq.poll(&mut out).map_err(line)?,
        0,
        "elsewhere"
    );
    Ok(())
}
