//! Peers without a receive, and peers that do not answer.

use headworks_verbs::{Duration, QpState, RnrTimer, Status};

use crate::call::Op;
use crate::{Case, CaseContext, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "retries::no_receive_and_endless_retry",
            no_receive_and_endless_retry,
        )
        .row(
            "post_send",
            "SEND",
            "no receive posted, unlimited RNR retries",
            "waits, then Success; also if the sender makes no call meanwhile",
        ),
        Case::new("retries::peer_not_ready", peer_not_ready).row(
            "post_send",
            "WRITE",
            "the peer is in INIT",
            "RetryExceeded after timeout × (retry_count + 1); QpFatal; the peer stays in INIT",
        ),
        Case::new("retries::seven", rnr_retry_seven_is_endless).row(
            "post_send",
            "WRITE with a retry_count of 7",
            "the peer is gone",
            "RetryExceeded: unlike an rnr_retry of 7, a retry_count of 7 is finite",
        ),
    ]
}

fn rnr(rnr_retry: u8) -> QpOptions {
    QpOptions {
        rnr_retry,
        min_rnr_timer: RnrTimer::new(10).unwrap_or_default(),
        // The sender waits for receives, not for answers, so the ACK timeout is long.
        timeout: 18,
        retry_count: 7,
        ..QpOptions::default()
    }
}

fn no_receive_and_endless_retry(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair_with(&rnr(7), &rnr(7))?;
    cx.write_buffer(a, 0, b"patience")?;
    cx.post(a, 1, Op::Send, &[a.sge(0, 8)])?;
    let until = cx.now() + Duration::from_millis(30);
    while cx.now() < until {
        cx.expect_none(a.host, a.send_cq, "too early")?;
        cx.advance();
    }
    cx.receive(b, 5, &[b.sge(0, 8)])?;
    cx.expect_sent(a, 1, Status::Success)?;
    cx.expect_received(b, 5, Status::Success)?;
    ensure_eq!(cx.read_buffer(b, 0, 8)?, b"patience", "bytes");
    // This time the sender makes no call while it waits.
    cx.post(a, 2, Op::Send, &[a.sge(0, 8)])?;
    cx.receive(b, 6, &[b.sge(0, 8)])?;
    cx.expect_received(b, 6, Status::Success)?;
    cx.expect_sent(a, 2, Status::Success)?;
    Ok(())
}

fn peer_not_ready(cx: &mut CaseContext<'_>) -> Verdict {
    let options = QpOptions::default();
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let a = cx.new_qp(first, &options)?;
    let b = cx.new_qp(second, &options)?;
    // The peer stays in INIT.
    cx.to_init(b, &options)?;
    cx.to_init(a, &options)?;
    cx.to_rtr(a, &options, b)?;
    cx.to_rts(a, &options)?;
    let start = cx.now();
    cx.post(a, 1, Op::Write(b.at(0)), &[a.sge(0, 8)])?;
    cx.expect_sent(a, 1, Status::RetryExceeded)?;
    let took = cx.now().since(start);
    // The timeout is 4.096 µs × 2^12, times three tries.
    ensure!(
        took >= Duration::from_millis(50),
        "given up after {} ns",
        took.nanos()
    );
    cx.expect_state(b, QpState::Init, "the peer")?;
    cx.expect_failed(a)
}

fn rnr_retry_seven_is_endless(cx: &mut CaseContext<'_>) -> Verdict {
    let options = QpOptions {
        timeout: 8,
        retry_count: 7,
        ..QpOptions::default()
    };
    let (a, b) = cx.connected_pair_with(&options, &options)?;
    let there = Op::Write(b.at(0));
    cx.destroy_qp_fixture(b)?;
    cx.post(a, 1, there, &[a.sge(0, 8)])?;
    cx.expect_sent(a, 1, Status::RetryExceeded)?;
    cx.expect_failed(a)
}
