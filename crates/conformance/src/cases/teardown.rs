//! Effects of a reset or destroyed queue pair on its requests and its peer.

use headworks_verbs::{QpState, Status};

use crate::call::Op;
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    let outcome = "no effect while idle; the next request ends with RetryExceeded, the rest are Flushed; channel event; QpFatal";
    vec![
        Case::new("teardown::peer_in_error", |cx| {
            depart_and_check(cx, |cx, b| cx.to_error(b))
        })
        .row("modify", "the peer to ERR", "-", outcome),
        Case::new("teardown::peer_in_reset", |cx| {
            depart_and_check(cx, |cx, b| cx.to_reset(b))
        })
        .row("modify", "the peer to RESET", "-", outcome),
        Case::new("teardown::peer_destroyed", |cx| {
            depart_and_check(cx, |cx, b| cx.destroy_qp_fixture(b))
        })
        .row("destroy_qp", "the peer's queue pair", "-", outcome),
        Case::new("teardown::any_order", any_order).row(
            "destroy",
            "queue pair, region, memory, CQs, channel, protection domain, in any order",
            "-",
            "all are destroyed; the peer's request completes, with Success or an error; other queue pairs keep working",
        ),
        Case::new(
            "teardown::completions_from_before_reset",
            completions_from_before_reset,
        )
        .row(
            "modify",
            "to RESET with unpolled completions",
            "-",
            "the queues hold as many requests as before",
        ),
    ]
}

/// A live process resets or destroys its queue pair, or moves it to the error state. RC has no keep-alive, so
/// an idle peer does not notice: only an unanswered request reveals it (InfiniBand volume 1, chapter 9). The
/// peer's next request fails as if nobody answered, and the requests posted after it are flushed. Their
/// completions wake a thread that sleeps on the channel.
fn depart_and_check(
    cx: &mut CaseContext<'_>,
    leave: impl Fn(&mut CaseContext<'_>, QpFixture) -> Verdict,
) -> Verdict {
    let (a, b) = cx.connected_pair()?;
    let from = [a.sge(0, 8)];
    // The device's caches of the peer must not outlive the peer.
    cx.post(a, 0, Op::Write(b.at(0)), &from)?;
    cx.expect_sent(a, 0, Status::Success)?;
    cx.receive(a, 9, &[])?;
    cx.arm_both(a)?;
    leave(cx, b)?;
    cx.expect_state(a, QpState::Rts, "the idle end")?;
    cx.expect_no_completion_or_event(a, "the idle end is woken")?;
    cx.post(a, 1, Op::Write(b.at(0)), &from)?;
    cx.post(a, 2, Op::Send, &[])?;
    cx.post(a, 3, Op::Read(b.at(0)), &from)?;
    let woken = cx.wait_channel_event(a)?;
    ensure!(
        [a.send_cq, a.recv_cq].contains(&woken),
        "woken by another CQ"
    );
    cx.expect_sent(a, 1, Status::RetryExceeded)?;
    cx.expect_sent(a, 2, Status::Flushed)?;
    cx.expect_sent(a, 3, Status::Flushed)?;
    cx.expect_received(a, 9, Status::Flushed)?;
    cx.expect_state(a, QpState::Error, "the one left")?;
    cx.expect_failed(a)
}

/// Posts until there is no room, and returns the number of posts.
fn fill(
    cx: &mut CaseContext<'_>,
    most: u64,
    mut post: impl FnMut(&mut CaseContext<'_>, u64) -> Verdict,
) -> Result<u64, String> {
    for count in 0..=2 * most {
        if post(cx, 1000 + count).is_err() {
            return Ok(count);
        }
    }
    Err("the queue never gets full".to_owned())
}

/// Completions from before a RESET, polled after it or discarded by it, do not change how many requests a
/// queue holds.
fn completions_from_before_reset(cx: &mut CaseContext<'_>) -> Verdict {
    let options = QpOptions {
        timeout: 18,
        retry_count: 7,
        ..QpOptions::default()
    };
    let (a, b) = cx.connected_pair_with(&options, &options)?;
    let (sends, receives) = (a.caps.max_send_wr.into(), b.caps.max_recv_wr.into());
    let half = sends / 2;
    ensure!(
        sends >= 64 && receives >= sends,
        "room for {sends} sends, {receives} receives"
    );
    if cx.behaviour().sizes_queues_exactly {
        ensure_eq!((sends, receives), (64, 64), "room");
    }
    for id in 0..half {
        cx.receive(b, id, &[])?;
    }
    // Half of them complete, half wait for a receive.
    for id in 0..sends {
        cx.post(a, id, Op::Send, &[])?;
    }
    // Their completions stay unpolled.
    cx.to_reset(a)?;
    for id in 0..half {
        cx.receive(b, 200 + id, &[])?;
    }
    cx.to_reset(b)?;
    for (side, cq) in [(a, a.send_cq), (b, b.recv_cq)] {
        cx.wait("end of the old completions", |cx| {
            Ok(cx.poll_past_empty(side.host, cq)?.is_empty().then_some(()))
        })?;
    }
    cx.connect(a, &options, b, &options)?;
    for _ in 0..2 {
        let room = fill(cx, sends, |cx, id| cx.post(a, id, Op::Send, &[]))?;
        ensure_eq!(room, sends, "room for sends");
        if cx.behaviour().frees_slots_when_polled {
            let room = fill(cx, receives, |cx, id| cx.receive(b, id, &[]))?;
            ensure_eq!(room, receives, "room for receives");
        } else {
            // Receives that are taken may free their slots at once.
            for id in 1000..1000 + sends {
                cx.receive(b, id, &[])?;
            }
        }
        for id in 0..sends {
            cx.expect_sent(a, 1000 + id, Status::Success)?;
            cx.expect_received(b, 1000 + id, Status::Success)?;
        }
    }
    Ok(())
}

/// Objects may be destroyed in any order, because an object keeps alive what it needs. Requests are under way
/// in both directions.
fn any_order(cx: &mut CaseContext<'_>) -> Verdict {
    let (c, d) = cx.connected_pair()?;
    for round in 0..14usize {
        let options = crate::cases::states::stuck();
        let (a, b) = cx.connected_pair_with(&options, &options)?;
        let all = [a.sge(0, 4 << 20)];
        cx.receive(b, 1, &[b.sge(0, 4 << 20)])?;
        cx.receive(a, 2, &[a.sge(0, 8)])?;
        cx.arm_both(a)?;
        cx.post(a, 3, Op::Send, &all)?;
        cx.post(a, 4, Op::Write(b.at(0)), &all)?;
        cx.post(b, 5, Op::Read(a.at(0)), &[b.sge(0, 4 << 20)])?;
        let mut objects = [
            a.qp, a.region, a.buffer, a.send_cq, a.recv_cq, a.channel, a.pd,
        ];
        objects.rotate_left(round % 7);
        if round >= 7 {
            objects.reverse();
        }
        for object in objects {
            cx.destroy(a.host, object)?;
        }
        // The peer's READ may fail: its source, or the queue pair that serves it, is gone.
        let done = cx.next_send_completion(b)?;
        ensure_eq!(done.wr_id, 5, format!("round {round}"));
        ensure!(
            matches!(
                done.status,
                Status::Success | Status::RetryExceeded | Status::RemoteAccess | Status::Flushed
            ),
            "round {round}: {done:?}"
        );
        crate::cases::states::ping(cx, c, d, round as u8)
            .map_err(|seen| format!("round {round}: {seen}"))?;
        cx.destroy_qp_fixture(b)?;
    }
    Ok(())
}
