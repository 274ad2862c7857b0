//! Completion channels and timestamps.

use headworks_stage::clock;
use headworks_verbs::{Completion, CompletionChannel, CqId, Instant, SendFlags, SendOp, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bench::{DEADLINE, line};
use crate::{Bench, Options, Side, Verdict, ensure, ensure_eq};

/// Sleeps until the channel is readable; an error after `until`.
pub(super) fn sleep(channel: &dyn CompletionChannel, until: Instant) -> Verdict {
    let left = until.since(clock::now()).nanos();
    let timeout = Timespec {
        tv_sec: (left / 1_000_000_000) as i64,
        tv_nsec: (left % 1_000_000_000) as i64,
    };
    let fd = channel.fd();
    let ready = poll(
        &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
        Some(&timeout),
    );
    match ready.map_err(line)? {
        0 => Err("no event on the channel within 10 s".to_owned()),
        _ => Ok(()),
    }
}

pub(super) fn event(side: &Side) -> Result<CqId, String> {
    event_on(&*side.channel)
}

fn event_on(channel: &dyn CompletionChannel) -> Result<CqId, String> {
    let until = clock::now() + DEADLINE;
    loop {
        if let Some(id) = channel.next_event().map_err(line)? {
            return Ok(id);
        }
        sleep(channel, until)?;
    }
}

pub(super) fn quiet(side: &Side, what: &str) -> Verdict {
    let found = side.channel.next_event().map_err(line)?;
    ensure_eq!(found, None, what);
    Ok(())
}

pub(super) fn armed_event(bench: &Bench) -> Verdict {
    let mut pair = bench.pair()?;
    for round in 0..3 {
        for id in 0..2 {
            pair.b.receive(id, &[])?;
        }
        // Not armed: no event.
        pair.a.post(9, SendOp::Send, &[])?;
        pair.a.expect_sent(9, Status::Success)?;
        pair.b.expect_received(0, Status::Success)?;
        quiet(&pair.a, "not armed")?;
        quiet(&pair.b, "not armed")?;
        pair.a.send_cq.arm(false);
        pair.b.recv_cq.arm(false);
        pair.a.post(9, SendOp::Send, &[])?;
        ensure_eq!(
            event(&pair.a)?,
            pair.a.send_cq.id(),
            format!("sends {round}")
        );
        ensure_eq!(
            event(&pair.b)?,
            pair.b.recv_cq.id(),
            format!("receives {round}")
        );
        pair.a.expect_sent(9, Status::Success)?;
        pair.b.expect_received(1, Status::Success)?;
        quiet(&pair.b, "one event only")?;
    }
    // Somebody asleep is woken from another thread.
    pair.b.receive(5, &[])?;
    pair.b.recv_cq.arm(false);
    let (a, b) = (&mut pair.a, &pair.b);
    let channel = &*b.channel;
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| event_on(channel));
        a.post(6, SendOp::Send, &[])?;
        ensure_eq!(
            sleeper.join().map_err(|_| "panicked")??,
            b.recv_cq.id(),
            "woken"
        );
        Ok(())
    })
}

pub(super) fn solicited_only(bench: &Bench) -> Verdict {
    let mut pair = bench.pair()?;
    for id in 0..3 {
        pair.b.receive(id, &[])?;
    }
    pair.b.recv_cq.arm(true);
    pair.a.post(1, SendOp::Send, &[])?;
    pair.a.expect_sent(1, Status::Success)?;
    pair.b.expect_received(0, Status::Success)?;
    quiet(&pair.b, "not solicited")?;
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    pair.a.post_flagged(2, SendOp::Send, &[], flags)?;
    ensure_eq!(event(&pair.b)?, pair.b.recv_cq.id(), "solicited");
    pair.b.expect_received(1, Status::Success)?;
    // An error is an event too.
    pair.b.recv_cq.arm(true);
    let error = headworks_verbs::QpAttr::to_state(headworks_verbs::QpState::Error);
    pair.b.qp.modify(&error).map_err(line)?;
    ensure_eq!(event(&pair.b)?, pair.b.recv_cq.id(), "flushed");
    pair.b.expect_received(2, Status::Flushed)?;
    // Asking for any event, then for solicited ones, leaves any.
    let mut pair = bench.pair()?;
    pair.b.receive(0, &[])?;
    pair.b.recv_cq.arm(false);
    pair.b.recv_cq.arm(true);
    pair.a.post(1, SendOp::Send, &[])?;
    ensure_eq!(event(&pair.b)?, pair.b.recv_cq.id(), "the wider request");
    Ok(())
}

pub(super) fn timestamps_rise(bench: &Bench) -> Verdict {
    let options = Options {
        timestamps: true,
        len: 1 << 20,
        ..Options::default()
    };
    let mut pair = bench.pair_of(&options, &options)?;
    let mut last = pair.a.device.now();
    for id in 0..50u64 {
        pair.b.receive(id, &[pair.b.region.sge(0, 1 << 20)])?;
        let len = if id % 7 == 0 { 1 << 20 } else { 10 };
        let from = pair.a.region.sge(0, len);
        pair.a.post(id, SendOp::Send, &[from])?;
        let sent = pair.a.expect_sent(id, Status::Success)?;
        let got = pair.b.expect_received(id, Status::Success)?;
        let now = pair.a.device.now();
        for Completion { timestamp, .. } in [got, sent] {
            ensure!(
                last <= timestamp && timestamp <= now,
                "{timestamp:?} is not between {last:?} and {now:?}"
            );
        }
        last = now;
    }
    let mut pair = bench.pair()?;
    pair.a
        .post(1, SendOp::Write(pair.b.region.remote(0)), &[])?;
    let plain = pair.a.expect_sent(1, Status::Success)?;
    ensure_eq!(plain.timestamp, Instant::ZERO, "not asked for");
    Ok(())
}
