//! Capacity of send queues, and which requests generate completions.

use headworks_verbs::{PostErrorKind, QpCaps, RnrTimer, Status};

use crate::call::{Op, Refusal, Remote, Send};
use crate::{Case, CaseContext, QpOptions, Verdict, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "queue_capacity::unsignalled_requests_occupy_the_queue",
            unsignalled_requests_occupy_the_queue,
        )
        .row(
            "post_send",
            "WRITE, unsignalled",
            "SQ full",
            "QueueFull at the first request that does not fit",
        )
        .row(
            "post_send",
            "SEND, unsignalled",
            "SQ full of requests that wait for a receive",
            "QueueFull; all slots are free once the last completion is polled",
        )
        .row(
            "poll",
            "send completions",
            "-",
            "a polled completion frees the slots of all earlier requests",
        ),
        Case::new("queue_capacity::signal_all", signal_all).row(
            "create_qp",
            "queue pair that signals every request",
            "-",
            "unsignalled requests generate completions too",
        ),
    ]
}

fn four() -> QpOptions {
    QpOptions {
        caps: QpCaps {
            max_send_wr: 4,
            max_recv_wr: 4,
            ..QpOptions::default().caps
        },
        ..QpOptions::default()
    }
}

fn writes(count: u64, remote: Remote) -> Vec<Send> {
    let request = |id| Send::inline(id, Op::Write(remote), b"x");
    (0..count).map(request).collect()
}

fn quiet(chain: Vec<Send>) -> Vec<Send> {
    chain.into_iter().map(Send::quiet).collect()
}

fn full(index: usize) -> Result<(), Refusal> {
    Err(Refusal::from(PostErrorKind::QueueFull.at(index)))
}

fn unsignalled_requests_occupy_the_queue(cx: &mut CaseContext<'_>) -> Verdict {
    waiting_requests_occupy_the_queue(cx)?;
    if !cx.behaviour().frees_slots_when_polled {
        return Ok(());
    }
    let (a, b) = cx.connected_pair_with(&four(), &four())?;
    let most = u64::from(a.caps.max_send_wr);
    for _ in 0..3 {
        let chain = quiet(writes(most - 1, b.at(0)));
        cx.post_chain(a, chain)
            .map_err(crate::case_context::error_line)?;
        cx.expect_none(a.host, a.send_cq, "unsignalled")?;
        let last = writes(2, b.at(0));
        ensure_eq!(cx.post_chain(a, last.clone()), full(1), "one fits");
        // The requests have completed but are not polled: their slots are still occupied.
        ensure_eq!(cx.post_chain(a, last), full(0), "none fits");
        cx.expect_sent(a, 0, Status::Success)?;
    }
    Ok(())
}

/// Requests that are not done occupy their slots on every device.
fn waiting_requests_occupy_the_queue(cx: &mut CaseContext<'_>) -> Verdict {
    let options = QpOptions {
        // The requests wait for receives and never time out.
        min_rnr_timer: RnrTimer::new(1).unwrap_or_default(),
        timeout: 18,
        retry_count: 7,
        ..QpOptions::default()
    };
    let few = QpOptions {
        caps: four().caps,
        ..options.clone()
    };
    let (a, b) = cx.connected_pair_with(&few, &options)?;
    let most = u64::from(a.caps.max_send_wr);
    for _ in 0..3 {
        let request = |id| Send::new(id, Op::Send, &[]);
        let mut chain = quiet((1..most).map(request).collect());
        chain.push(request(100));
        cx.post_chain(a, chain)
            .map_err(crate::case_context::error_line)?;
        let more = cx.post_chain(a, vec![request(200)]);
        ensure_eq!(more, full(0), "with all of them waiting");
        for id in 0..most {
            cx.receive(b, id, &[])?;
        }
        cx.expect_sent(a, 100, Status::Success)?;
        for id in 0..most {
            cx.expect_received(b, id, Status::Success)?;
        }
        cx.expect_nothing_more(a)?;
        cx.expect_nothing_more(b)?;
    }
    Ok(())
}

fn signal_all(cx: &mut CaseContext<'_>) -> Verdict {
    let options = QpOptions {
        signal_all: true,
        ..four()
    };
    let (a, b) = cx.connected_pair_with(&options, &four())?;
    let chain = quiet(writes(4, b.at(0)));
    cx.post_chain(a, chain)
        .map_err(crate::case_context::error_line)?;
    for id in 0..4 {
        cx.expect_sent(a, id, Status::Success)?;
    }
    Ok(())
}
