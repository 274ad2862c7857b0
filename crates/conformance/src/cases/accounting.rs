//! How many requests a queue holds, and which of them complete.

use headworks_verbs::{
    Completion, Payload, PostErrorKind, QpCaps, RecvWr, SendFlags, SendOp, SendWr, Status,
};

use crate::bench::line;
use crate::{Bench, Options, Verdict, ensure_eq};

fn four() -> Options {
    Options {
        caps: QpCaps {
            max_send_wr: 4,
            max_recv_wr: 4,
            ..Options::default().caps
        },
        ..Options::default()
    }
}

fn writes(
    count: u64,
    remote: headworks_verbs::RemoteAddr,
    flags: SendFlags,
) -> Vec<SendWr<'static>> {
    let wr = |wr_id| SendWr {
        wr_id,
        op: SendOp::Write(remote),
        payload: Payload::Inline(b"x"),
        flags,
    };
    (0..count).map(wr).collect()
}

pub(super) fn unsignalled_requests_occupy_the_queue(bench: &Bench) -> Verdict {
    let mut pair = bench.pair_of(&four(), &four())?;
    let most = u64::from(pair.a.qp.caps().max_send_wr);
    let there = pair.b.region.remote(0);
    for _ in 0..3 {
        let quiet = writes(most - 1, there, SendFlags::NONE);
        pair.a.qp.post_send(&quiet).map_err(line)?;
        let mut out = [Completion::default(); 2];
        ensure_eq!(
            pair.a.send_cq.poll(&mut out).map_err(line)?,
            0,
            "completions"
        );
        let last = writes(2, there, SendFlags::SIGNALED);
        let full = pair.a.qp.post_send(&last);
        ensure_eq!(full, Err(PostErrorKind::QueueFull.at(1)), "one fits");
        // Completed, not polled: the room is still taken.
        let full = pair.a.qp.post_send(&last);
        ensure_eq!(full, Err(PostErrorKind::QueueFull.at(0)), "none fits");
        pair.a.expect_sent(0, Status::Success)?;
    }
    Ok(())
}

pub(super) fn partial_posts(bench: &Bench) -> Verdict {
    let mut pair = bench.pair_of(&four(), &four())?;
    let there = pair.b.region.remote(0);
    let long = [0; 200];
    let mut chain = writes(3, there, SendFlags::SIGNALED);
    chain[1].payload = Payload::Inline(&long);
    let most = pair.a.qp.caps().max_inline;
    let posted = pair.a.qp.post_send(&chain);
    ensure_eq!(
        posted,
        Err(PostErrorKind::InlineTooLong(most).at(1)),
        "the second"
    );
    pair.a.expect_sent(0, Status::Success)?;
    let mut out = [Completion::default(); 2];
    ensure_eq!(pair.a.send_cq.poll(&mut out).map_err(line)?, 0, "more");
    Ok(())
}

pub(super) fn receive_queue_full(bench: &Bench) -> Verdict {
    let mut pair = bench.pair_of(&four(), &four())?;
    let most = pair.b.qp.caps().max_recv_wr as usize;
    let wr = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    for _ in 0..3 {
        let full = pair.b.qp.post_recv(&vec![wr; most + 1]);
        ensure_eq!(full, Err(PostErrorKind::QueueFull.at(most)), "receives");
        for id in 0..most as u64 {
            pair.a.post(id, SendOp::Send, &[])?;
            pair.a.expect_sent(id, Status::Success)?;
            pair.b.expect_received(1, Status::Success)?;
        }
    }
    Ok(())
}

pub(super) fn signal_all(bench: &Bench) -> Verdict {
    let options = Options {
        signal_all: true,
        ..four()
    };
    let mut pair = bench.pair_of(&options, &four())?;
    let there = pair.b.region.remote(0);
    pair.a
        .qp
        .post_send(&writes(4, there, SendFlags::NONE))
        .map_err(line)?;
    for id in 0..4 {
        pair.a.expect_sent(id, Status::Success)?;
    }
    Ok(())
}
