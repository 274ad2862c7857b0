//! Peers without a receive, peers that do not answer.

use headworks_stage::clock;
use headworks_verbs::bringup::Tuning;
use headworks_verbs::{AsyncEvent, Completion, Duration, QpState, RnrTimer, SendOp, Status};

use crate::bench::{line, to_rtr};
use crate::bytes::{get, put};
use crate::{Bench, Options, Side, Verdict, ensure, ensure_eq};

fn rnr(rnr_retry: u8) -> Options {
    let tuning = Tuning {
        rnr_retry,
        min_rnr_timer: RnrTimer::new(10).unwrap_or_default(),
        ..Options::default().tuning
    };
    Options {
        tuning,
        ..Options::default()
    }
}

pub(super) fn no_receive_and_no_retry(bench: &Bench) -> Verdict {
    for retries in [0, 3] {
        let mut pair = bench.pair_of(&rnr(retries), &rnr(retries))?;
        pair.a.post(1, SendOp::Send, &[])?;
        pair.a.post(2, SendOp::Send, &[])?;
        pair.a.expect_sent(1, Status::RnrRetryExceeded)?;
        pair.a.expect_sent(2, Status::Flushed)?;
        ensure_eq!(pair.a.qp.state(), QpState::Error, "state");
        pair.a.expect_event(AsyncEvent::QpFatal(pair.a.qp.qpn()))?;
        ensure_eq!(pair.b.qp.state(), QpState::Rts, "the peer's");
    }
    Ok(())
}

pub(super) fn no_receive_and_endless_retry(bench: &Bench) -> Verdict {
    let mut pair = bench.pair_of(&rnr(7), &rnr(7))?;
    put(&pair.a.region, 0, b"patience");
    let (from, into) = (pair.a.region.sge(0, 8), pair.b.region.sge(0, 8));
    pair.a.post(1, SendOp::Send, &[from])?;
    let until = clock::now() + Duration::from_millis(30);
    while clock::now() < until {
        let mut out = [Completion::default()];
        ensure_eq!(pair.a.send_cq.poll(&mut out).map_err(line)?, 0, "too early");
    }
    pair.b.receive(5, &[into])?;
    pair.a.expect_sent(1, Status::Success)?;
    pair.b.expect_received(5, Status::Success)?;
    ensure_eq!(get(&pair.b.region, 0, 8), b"patience", "bytes");
    // Again, and this time the sender does nothing at all.
    pair.a.post(2, SendOp::Send, &[from])?;
    pair.b.receive(6, &[into])?;
    pair.b.expect_received(6, Status::Success)?;
    pair.a.expect_sent(2, Status::Success)?;
    Ok(())
}

pub(super) fn immediate_without_receive(bench: &Bench) -> Verdict {
    let mut pair = bench.pair_of(&rnr(1), &rnr(1))?;
    put(&pair.a.region, 0, b"not yet");
    let op = SendOp::WriteImm(pair.b.region.remote(0), 3);
    let from = pair.a.region.sge(0, 7);
    pair.a.post(1, op, &[from])?;
    pair.a.expect_sent(1, Status::RnrRetryExceeded)?;
    ensure_eq!(get(&pair.b.region, 0, 7), vec![0; 7], "placed all the same");
    Ok(())
}

pub(super) fn peer_not_ready(bench: &Bench) -> Verdict {
    let options = Options::default();
    let mut a = Side::new(&bench.a, &options)?;
    let mut b = Side::new(&bench.b, &options)?;
    // The peer stays in INIT.
    b.to_init()?;
    a.to_init()?;
    let rtr = to_rtr(b.device.info().gid, b.qp.qpn());
    a.qp.modify(&rtr).map_err(line)?;
    a.to_rts()?;
    let start = clock::now();
    let there = b.region.remote(0);
    let from = a.region.sge(0, 8);
    a.post(1, SendOp::Write(there), &[from])?;
    a.expect_sent(1, Status::RetryExceeded)?;
    let took = clock::now().since(start);
    // 4.096 µs × 2^12 × 3.
    ensure!(
        took >= Duration::from_millis(50),
        "given up after {} ns",
        took.nanos()
    );
    ensure_eq!(b.qp.state(), QpState::Init, "the peer's state");
    a.expect_event(AsyncEvent::QpFatal(a.qp.qpn()))
}
