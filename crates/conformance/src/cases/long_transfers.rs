//! Requests that take longer than the call that posts them.

use headworks_verbs::{Duration, Status};

use crate::call::Op;
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("long_transfers::large_by_polling", large_by_polling).row(
            "post_send",
            "WRITE, 8 MiB",
            "-",
            "Success, data intact",
        ),
        Case::new("long_transfers::large_by_itself", large_by_itself).row(
            "post_send",
            "WRITE, 8 MiB, nobody polls",
            "-",
            "arrives without polling",
        ),
        Case::new("long_transfers::large_asleep", large_asleep).row(
            "post_send",
            "WRITE, 8 MiB, sleeping on the completion channel",
            "-",
            "woken, then Success",
        ),
        Case::new("long_transfers::pending_before_small", pending_before_small).row(
            "post_send",
            "a small WRITE behind a large one",
            "-",
            "completes and is placed after it",
        ),
        Case::new("long_transfers::work_beside_pending", work_beside_pending).row(
            "poll",
            "large WRITEs of four queue pairs, none polled",
            "-",
            "all make progress",
        ),
        Case::new("long_transfers::gigabyte", gigabyte)
            .row("post_send", "WRITE, 1 GiB", "-", "Success, data intact")
            .long(),
    ]
}

const LARGE: u32 = 8 << 20;

/// Options for buffers of `len` bytes. No case here loses its peer, so retries last 2 s: a software device on a
/// busy or emulated machine may send no ACK for longer than the 50 ms of the default options.
fn of(len: usize) -> QpOptions {
    QpOptions {
        len,
        timeout: 16,
        retry_count: 7,
        ..QpOptions::default()
    }
}

fn large(cx: &mut CaseContext<'_>) -> Result<(QpFixture, QpFixture), String> {
    let (a, b) = cx.connected_pair_with(&of(LARGE as usize), &of(LARGE as usize))?;
    cx.fill_buffer(a, 0, LARGE as usize, 1)?;
    Ok((a, b))
}

fn is_whole(cx: &mut CaseContext<'_>, b: QpFixture) -> Verdict {
    ensure!(cx.buffer_matches(b, 0, LARGE as usize, 1)?, "bytes differ");
    Ok(())
}

fn write(
    cx: &mut CaseContext<'_>,
    (a, b): (QpFixture, QpFixture),
    wr_id: u64,
    len: u32,
) -> Verdict {
    cx.post(a, wr_id, Op::Write(b.at(0)), &[a.sge(0, len)])
}

fn large_by_polling(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = large(cx)?;
    write(cx, (a, b), 1, LARGE)?;
    cx.expect_sent(a, 1, Status::Success)?;
    is_whole(cx, b)
}

/// Reason for skipping cases that need progress without calls.
const NOT_BY_ITSELF: &str = "a request that outlasts its call progresses only in later calls here";

fn large_by_itself(cx: &mut CaseContext<'_>) -> Verdict {
    if !cx.behaviour().progresses_without_calls {
        return cx.skip(NOT_BY_ITSELF);
    }
    let (a, b) = large(cx)?;
    let end = cx.read_buffer(a, LARGE as usize - 8, 8)?;
    write(cx, (a, b), 1, LARGE)?;
    // Nothing polls, but the last bytes must arrive.
    cx.wait("last bytes", |cx| {
        let last = cx.read_buffer(b, LARGE as usize - 8, 8)?;
        Ok((last == end).then_some(()))
    })?;
    cx.expect_sent(a, 1, Status::Success)?;
    is_whole(cx, b)
}

/// Sleeps on the channel until `wr_id` has completed.
fn sleep_until_sent(cx: &mut CaseContext<'_>, a: QpFixture, wr_id: u64) -> Verdict {
    loop {
        cx.arm(a.host, a.send_cq, false)?;
        if let Some(done) = cx.poll(a.host, a.send_cq)?.first() {
            ensure_eq!((done.wr_id, done.status), (wr_id, Status::Success), "done");
            return Ok(());
        }
        cx.wait_channel_readable(a)?;
        while cx.channel_event(a)?.is_some() {}
    }
}

fn large_asleep(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = large(cx)?;
    for id in 0..5 {
        write(cx, (a, b), id, LARGE)?;
        sleep_until_sent(cx, a, id)?;
    }
    is_whole(cx, b)
}

fn gigabyte(cx: &mut CaseContext<'_>) -> Verdict {
    const LEN: u32 = 1 << 30;
    let (a, b) = cx.connected_pair_with(&of(LEN as usize), &of(LEN as usize))?;
    cx.fill_buffer(a, 0, LEN as usize, 3)?;
    write(cx, (a, b), 1, LEN)?;
    sleep_until_sent(cx, a, 1)?;
    ensure!(
        cx.buffer_matches(b, 0, LEN as usize, 3)?,
        "asleep: bytes differ"
    );
    cx.write_buffer(a, LEN as usize - 4, b"end.")?;
    write(cx, (a, b), 2, LEN)?;
    cx.expect_sent(a, 2, Status::Success)?;
    ensure_eq!(cx.read_buffer(b, LEN as usize - 4, 4)?, b"end.", "the end");
    Ok(())
}

fn pending_before_small(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = large(cx)?;
    for round in 0..4u64 {
        for id in 0..12 {
            let len = [LARGE, 1, 64, 70_000][(id % 4) as usize];
            write(cx, (a, b), round * 100 + id, len)?;
        }
        for id in 0..12 {
            cx.expect_sent(a, round * 100 + id, Status::Success)?;
        }
    }
    if !cx.facts(a.host)?.promises.ordered_between_writes {
        return cx.skip("WRITEs of this device keep no order: only their completions do");
    }
    // The small WRITE was posted last, so it lands last.
    cx.write_buffer(a, 0, b"old")?;
    cx.write_buffer(a, LARGE as usize - 3, b"new")?;
    write(cx, (a, b), 1, LARGE)?;
    let other = a.sge(i64::from(LARGE) - 3, 3);
    cx.post(a, 2, Op::Write(b.at(0)), &[other])?;
    cx.expect_sent(a, 1, Status::Success)?;
    cx.expect_sent(a, 2, Status::Success)?;
    ensure_eq!(cx.read_buffer(b, 0, 3)?, b"new", "order");
    Ok(())
}

/// Checks that the work of a queue pair goes on while another is busy and neither is polled.
fn work_beside_pending(cx: &mut CaseContext<'_>) -> Verdict {
    const LEN: usize = 1 << 20;
    if !cx.behaviour().progresses_without_calls {
        return cx.skip(NOT_BY_ITSELF);
    }
    let mut pairs = Vec::new();
    for _ in 0..4 {
        pairs.push(cx.connected_pair_with(&of(LEN), &of(LEN))?);
    }
    let until = cx.now() + Duration::from_millis(300);
    let mut round = 0u8;
    while cx.now() < until {
        round = round.wrapping_add(1);
        for &(a, b) in &pairs {
            cx.write_buffer(a, LEN - 1, &[round])?;
            write(cx, (a, b), 0, LEN as u32)?;
        }
        for (index, &(_, b)) in pairs.iter().enumerate() {
            cx.wait(&format!("end of {index} in round {round}"), |cx| {
                let last = cx.read_buffer(b, LEN - 1, 1)?;
                Ok((last == [round]).then_some(()))
            })?;
        }
        for &(a, _) in &pairs {
            cx.expect_sent(a, 0, Status::Success)?;
        }
    }
    Ok(())
}
