//! Completion channels and timestamps.

use headworks_verbs::{Duration, Instant, Status};

use crate::call::{Call, Op, Reply, Send};
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("completion_channel::armed_event", armed_event)
            .row(
                "arm",
                "any completion",
                "-",
                "one event at the next completion, none before or after",
            )
            .row(
                "next_event",
                "sleeping on the descriptor",
                "-",
                "woken by another host's SEND",
            ),
        Case::new("completion_channel::solicited_only", solicited_only)
            .row(
                "arm",
                "solicited completions of SEND, SEND_IMM, WRITE_IMM",
                "-",
                "an event only at the next solicited completion or error",
            )
            .row(
                "arm",
                "any completion, then solicited completions only",
                "-",
                "the wider request applies",
            ),
        Case::new("completion_channel::unsignaled_before", unsignaled_before).row(
            "arm",
            "a signalled request behind unsignalled ones, all already done",
            "-",
            "even a poll for one completion returns it, or an event comes",
        ),
        Case::new("completion_channel::timestamps_rise", timestamps_rise).row(
            "create_cq",
            "timestamps",
            "-",
            "never go backwards; zero if not requested",
        ),
    ]
}

fn armed_event(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair()?;
    for round in 0..3 {
        for id in 0..2 {
            cx.receive(b, id, &[])?;
        }
        // The CQs are not armed, so there is no event.
        cx.post(a, 9, Op::Send, &[])?;
        cx.expect_sent(a, 9, Status::Success)?;
        cx.expect_received(b, 0, Status::Success)?;
        cx.expect_no_completion_or_event(a, "not armed")?;
        cx.expect_no_completion_or_event(b, "not armed")?;
        cx.arm(a.host, a.send_cq, false)?;
        cx.arm(b.host, b.recv_cq, false)?;
        cx.post(a, 9, Op::Send, &[])?;
        let woken = cx.wait_channel_event(a)?;
        ensure_eq!(woken, a.send_cq, format!("sends {round}"));
        let woken = cx.wait_channel_event(b)?;
        ensure_eq!(woken, b.recv_cq, format!("receives {round}"));
        cx.expect_sent(a, 9, Status::Success)?;
        cx.expect_received(b, 1, Status::Success)?;
        cx.expect_no_completion_or_event(b, "one event only")?;
    }
    // A SEND of one host wakes another host that sleeps.
    cx.receive(b, 5, &[])?;
    cx.arm(b.host, b.recv_cq, false)?;
    let sleep = Call::Sleep {
        channel: b.channel,
        at_most_ms: 10_000,
    };
    let send = Call::PostSend {
        qp: a.qp,
        chain: vec![Send::new(6, Op::Send, &[])],
    };
    let replies = cx.call_concurrently(vec![(b.host.id, sleep), (a.host.id, send)])?;
    ensure_eq!(replies, vec![Reply::Flag(true), Reply::Done], "asleep");
    ensure_eq!(cx.channel_event(b)?, Some(b.recv_cq), "woken");
    Ok(())
}

/// Checks that a caller that arms, polls once more in vain and sleeps is woken.
fn unsignaled_before(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair()?;
    for before in [1, 8, 14] {
        let send = |id| Send::new(id, Op::Write(b.at(0)), &[a.sge(0, 8)]);
        for id in 0..before {
            cx.post_one(a, send(id).quiet())?;
        }
        cx.post_one(a, send(before))?;
        cx.sleep_for(Duration::from_micros(1_000));
        let done = loop {
            cx.arm(a.host, a.send_cq, false)?;
            let done = cx.poll_up_to(a.host, a.send_cq, 1);
            let done = done.map_err(|refusal| refusal.to_string())?;
            if let [done] = done[..] {
                break done;
            }
            cx.wait_channel_event(a)?;
        };
        ensure_eq!((done.wr_id, done.status), (before, Status::Success), "told");
        while cx.channel_event(a)?.is_some() {}
    }
    Ok(())
}

fn event_of(cx: &mut CaseContext<'_>, side: QpFixture, what: &str) -> Verdict {
    let woken = cx.wait_channel_event(side)?;
    ensure_eq!(woken, side.recv_cq, what);
    Ok(())
}

fn solicited_only(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = cx.connected_pair()?;
    for op in [Op::Send, Op::SendImm(1), Op::WriteImm(b.at(0), 2)] {
        for id in 0..2 {
            cx.receive(b, id, &[])?;
        }
        cx.arm(b.host, b.recv_cq, true)?;
        cx.post(a, 1, op, &[])?;
        cx.expect_sent(a, 1, Status::Success)?;
        cx.expect_received(b, 0, Status::Success)?;
        // A device that shows completions late may raise an event for a caller that polled in vain.
        if cx.behaviour().empty_polls_max == 0 {
            cx.expect_no_completion_or_event(b, "not solicited")?;
        }
        cx.arm(b.host, b.recv_cq, true)?;
        cx.post_one(a, Send::new(2, op, &[]).solicited())?;
        event_of(cx, b, "solicited")?;
        cx.expect_sent(a, 2, Status::Success)?;
        cx.expect_received(b, 1, Status::Success)?;
    }
    // An error is an event too.
    cx.receive(b, 2, &[])?;
    cx.arm(b.host, b.recv_cq, true)?;
    cx.to_error(b)?;
    event_of(cx, b, "flushed")?;
    cx.expect_received(b, 2, Status::Flushed)?;
    // Arming for any event and then for solicited events keeps any.
    let (a, b) = cx.connected_pair()?;
    cx.receive(b, 0, &[])?;
    cx.arm(b.host, b.recv_cq, false)?;
    cx.arm(b.host, b.recv_cq, true)?;
    cx.post(a, 1, Op::Send, &[])?;
    event_of(cx, b, "the wider request")
}

fn device_time(cx: &mut CaseContext<'_>, side: QpFixture) -> Result<Instant, String> {
    let device = side.host.device;
    match cx.call_ok(side.host.id, Call::DeviceTime { device })? {
        Reply::Number(nanos) => Ok(Instant::from_nanos(nanos)),
        other => Err(format!("instead of a time: {other:?}")),
    }
}

fn timestamps_rise(cx: &mut CaseContext<'_>) -> Verdict {
    let options = QpOptions {
        timestamps: true,
        len: 1 << 20,
        ..QpOptions::default()
    };
    let (a, b) = cx.connected_pair_with(&options, &options)?;
    let mut last = device_time(cx, a)?;
    let mut last_there = device_time(cx, b)?;
    for id in 0..50u64 {
        cx.receive(b, id, &[b.sge(0, 1 << 20)])?;
        let len = if id % 7 == 0 { 1 << 20 } else { 10 };
        cx.post(a, id, Op::Send, &[a.sge(0, len)])?;
        let sent = cx.expect_sent(a, id, Status::Success)?;
        let got = cx.expect_received(b, id, Status::Success)?;
        // Each timestamp is on its own device's clock; the clocks need not agree.
        let (now, now_there) = (device_time(cx, a)?, device_time(cx, b)?);
        for (from, at, to) in [
            (last, sent.timestamp, now),
            (last_there, got.timestamp, now_there),
        ] {
            ensure!(
                from <= at && at <= to,
                "{at:?} is not between {from:?} and {to:?}"
            );
        }
        (last, last_there) = (now, now_there);
    }
    let (a, b) = cx.connected_pair()?;
    cx.post(a, 1, Op::Write(b.at(0)), &[])?;
    let plain = cx.expect_sent(a, 1, Status::Success)?;
    ensure_eq!(plain.timestamp, Instant::ZERO, "not asked for");
    Ok(())
}
