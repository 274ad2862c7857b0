//! States and transitions; flushing; starting over.

use headworks_verbs::{
    Completion, PostErrorKind, QpAttr, QpState, RecvWr, RnrTimer, SendOp, Status,
};

use crate::bench::{connect, line, to_rtr};
use crate::bytes::{get, put};
use crate::{Bench, Options, Pair, Side, Verdict, ensure, ensure_eq};

pub(super) fn posting_needs_a_state(bench: &Bench) -> Verdict {
    let mut side = Side::new(&bench.a, &Options::default())?;
    let receive = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    let state = |state| Err(PostErrorKind::State(state).at(0));
    ensure_eq!(side.qp.state(), QpState::Reset, "fresh");
    ensure_eq!(
        side.qp.post_recv(&[receive]),
        state(QpState::Reset),
        "receive"
    );
    for expected in [QpState::Reset, QpState::Init, QpState::Rtr] {
        ensure_eq!(side.qp.state(), expected, "state");
        let refused = side.post(1, SendOp::Send, &[]);
        ensure!(
            refused
                .as_ref()
                .is_err_and(|e| e.contains(&expected.to_string())),
            "posting a send in {expected}: {refused:?}"
        );
        match expected {
            QpState::Reset => side.to_init()?,
            QpState::Init => side.qp.modify(&to_itself(&side)).map_err(line)?,
            _ => {}
        }
        if expected != QpState::Rtr {
            side.qp.post_recv(&[receive]).map_err(line)?;
        }
    }
    Ok(())
}

fn to_itself(side: &Side) -> QpAttr {
    to_rtr(side.device.info().gid, side.qp.qpn())
}

pub(super) fn illegal_transitions(bench: &Bench) -> Verdict {
    use headworks_verbs::ModifyError::{Attributes, Transition, Value};
    let mut side = Side::new(&bench.a, &Options::default())?;
    let rtr = to_itself(&side);
    let refused = side.qp.modify(&rtr);
    ensure!(matches!(refused, Err(Transition { .. })), "{refused:?}");
    let refused = side.qp.modify(&QpAttr::to_state(QpState::Init));
    ensure!(matches!(refused, Err(Attributes { .. })), "{refused:?}");
    side.to_init()?;
    let refused = side.qp.modify(&QpAttr {
        max_dest_rd_atomic: Some(255),
        ..rtr
    });
    ensure!(matches!(refused, Err(Value { .. })), "{refused:?}");
    let refused = side.qp.modify(&QpAttr {
        dest_qpn: None,
        ..rtr
    });
    ensure!(matches!(refused, Err(Attributes { .. })), "{refused:?}");
    ensure_eq!(side.qp.state(), QpState::Init, "nothing changed");
    let refused = side.qp.modify(&QpAttr::to_state(QpState::Rts));
    ensure!(matches!(refused, Err(Transition { .. })), "{refused:?}");
    Ok(())
}

fn stuck() -> Options {
    let tuning = headworks_verbs::bringup::Tuning {
        rnr_retry: 7,
        min_rnr_timer: RnrTimer::new(0).unwrap_or_default(),
        ..Options::default().tuning
    };
    Options {
        tuning,
        len: 4 << 20,
        ..Options::default()
    }
}

pub(super) fn error_flushes_in_order(bench: &Bench) -> Verdict {
    let mut pair = bench.pair_of(&stuck(), &stuck())?;
    for id in 0..5 {
        pair.a.receive(10 + id, &[])?;
        // No receive over there: they all wait.
        let flags = match id % 2 {
            0 => headworks_verbs::SendFlags::NONE,
            _ => headworks_verbs::SendFlags::SIGNALED,
        };
        pair.a.post_flagged(id, SendOp::Send, &[], flags)?;
    }
    pair.a.to_error()?;
    for id in 0..5 {
        pair.a.expect_sent(id, Status::Flushed)?;
        pair.a.expect_received(10 + id, Status::Flushed)?;
    }
    pair.a.post(6, SendOp::Send, &[])?;
    pair.a.receive(16, &[])?;
    pair.a.expect_sent(6, Status::Flushed)?;
    pair.a.expect_received(16, Status::Flushed)?;
    let mut out = [Completion::default()];
    ensure_eq!(
        pair.a.send_cq.poll(&mut out).map_err(line)?,
        0,
        "more sends"
    );
    ensure_eq!(
        pair.a.recv_cq.poll(&mut out).map_err(line)?,
        0,
        "more receives"
    );
    Ok(())
}

fn ping(pair: &mut Pair, seed: u8) -> Verdict {
    let Pair { a, b } = pair;
    put(&a.region, 0, &[seed; 16]);
    let (from, into) = (a.region.sge(0, 16), b.region.sge(32, 16));
    b.receive(1, &[into])?;
    a.post(2, SendOp::Send, &[from])?;
    a.expect_sent(2, Status::Success)?;
    b.expect_received(1, Status::Success)?;
    ensure_eq!(get(&b.region, 32, 16), vec![seed; 16], "bytes");
    Ok(())
}

pub(super) fn reset_and_reconnect(bench: &Bench) -> Verdict {
    let mut pair = bench.pair_of(&stuck(), &stuck())?;
    for round in 0..5 {
        ping(&mut pair, round)?;
        pair.b.receive(50, &[])?;
        pair.b.receive(51, &[])?;
        // A request that waits is forgotten, as are receives.
        pair.b.post(9, SendOp::Send, &[])?;
        if round % 2 == 0 {
            pair.a.to_error()?;
        }
        for side in [&mut pair.a, &mut pair.b] {
            side.to_reset()?;
        }
        let mut out = [Completion::default()];
        ensure_eq!(pair.b.recv_cq.poll(&mut out).map_err(line)?, 0, "flushed");
        ensure_eq!(pair.b.send_cq.poll(&mut out).map_err(line)?, 0, "flushed");
        pair.connect()?;
    }
    ping(&mut pair, 99)
}

/// A queue pair that was reset and connected to another does not serve its first peer any more.
pub(super) fn reset_disconnects(bench: &Bench) -> Verdict {
    let mut pair = bench.pair()?;
    let (there, from) = (pair.b.region.remote(0), pair.a.region.sge(0, 8));
    pair.a.post(1, SendOp::Write(there), &[from])?;
    pair.a.expect_sent(1, Status::Success)?;
    pair.b.to_reset()?;
    let mut third = Side::new(&bench.a, &Options::default())?;
    connect(&mut third, &mut pair.b)?;
    put(&pair.a.region, 0, &[9; 8]);
    pair.a.post(2, SendOp::Write(there), &[from])?;
    pair.a.expect_sent(2, Status::RetryExceeded)?;
    ensure_eq!(
        get(&pair.b.region, 0, 8),
        vec![0; 8],
        "written by a stranger"
    );
    third.post(3, SendOp::Write(there), &[third.region.sge(0, 8)])?;
    third.expect_sent(3, Status::Success)?;
    Ok(())
}

/// A receive that a long SEND has begun to fill completes once, flushed, when its queue pair fails.
pub(super) fn half_sent_receive_is_flushed(bench: &Bench) -> Verdict {
    let mut pair = bench.pair_of(&stuck(), &stuck())?;
    let (from, into) = (pair.a.region.sge(0, 4 << 20), pair.b.region.sge(0, 4 << 20));
    for round in 0..20u64 {
        pair.b.receive(1, &[into])?;
        pair.b.receive(2, &[into])?;
        pair.a.post(3, SendOp::Send, &[from])?;
        // A few steps of it, then the receiver fails.
        let mut out = [Completion::default(); 4];
        let mut early = 0;
        for _ in 0..round % 5 {
            early += pair.a.send_cq.poll(&mut out).map_err(line)?;
        }
        pair.b.to_error()?;
        let first = pair.b.received()?;
        ensure_eq!(first.wr_id, 1, "the first receive");
        pair.b.expect_received(2, Status::Flushed)?;
        let sent = match early {
            0 => pair.a.sent()?,
            _ => out[0],
        };
        // All of it may have gone before.
        let expected = match first.status {
            Status::Success => (3, Status::Success),
            _ => (3, Status::RetryExceeded),
        };
        ensure_eq!((sent.wr_id, sent.status), expected, "the send");
        ensure_eq!(pair.b.recv_cq.poll(&mut out).map_err(line)?, 0, "twice");
        for side in [&mut pair.a, &mut pair.b] {
            side.to_reset()?;
        }
        pair.connect()?;
    }
    ping(&mut pair, 5)
}

/// Whoever sends to a queue pair that goes away disturbs nobody who comes after it.
pub(super) fn destroyed_under_a_pending_send(bench: &Bench) -> Verdict {
    for _ in 0..10 {
        let mut pair = bench.pair_of(&stuck(), &stuck())?;
        let (from, into) = (pair.a.region.sge(0, 4 << 20), pair.b.region.sge(0, 4 << 20));
        pair.b.receive(1, &[into])?;
        pair.a.post(3, SendOp::Send, &[from])?;
        let mut out = [Completion::default()];
        pair.a.send_cq.poll(&mut out).map_err(line)?;
        let Pair { a, b } = pair;
        drop(b);
        // Takes over the memory of the queues that went.
        let mut others = Vec::new();
        for _ in 0..3 {
            others.push(bench.pair_of(&stuck(), &stuck())?);
        }
        for other in &mut others {
            other.b.receive(8, &[])?;
        }
        drop(a);
        for other in &mut others {
            other.a.post(7, SendOp::Send, &[])?;
            other.a.expect_sent(7, Status::Success)?;
            other.b.expect_received(8, Status::Success)?;
            ping(other, 3)?;
        }
    }
    Ok(())
}
