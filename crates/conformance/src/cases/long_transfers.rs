//! Requests that take longer than the call that posts them.

use headworks_verbs::{Duration, Status};

use crate::call::Op;
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("pending::large_by_polling", large_by_polling).row(
            "post_send",
            "WRITE, 8 MiB",
            "-",
            "Success, data intact",
        ),
        Case::new("pending::large_by_itself", large_by_itself).row(
            "post_send",
            "WRITE, 8 MiB, nobody polls",
            "-",
            "arrives without polling",
        ),
        Case::new("pending::large_asleep", large_asleep).row(
            "post_send",
            "WRITE, 8 MiB, sleeping on the completion channel",
            "-",
            "woken, then Success",
        ),
        Case::new("pending::pending_before_small", pending_before_small).row(
            "post_send",
            "a small WRITE behind a large one",
            "-",
            "completes and is placed after it",
        ),
        Case::new("pending::work_beside_pending", work_beside_pending).row(
            "poll",
            "large WRITEs of four queue pairs, none polled",
            "-",
            "all make progress",
        ),
        Case::new("pending::gigabyte", gigabyte)
            .row("post_send", "WRITE, 1 GiB", "-", "Success, data intact")
            .long(),
    ]
}

const LARGE: u32 = 8 << 20;

fn of(len: usize) -> QpOptions {
    QpOptions {
        len,
        ..QpOptions::default()
    }
}

fn large(bench: &mut CaseContext<'_>) -> Result<(QpFixture, QpFixture), String> {
    let (a, b) = bench.connected_pair_with(&of(LARGE as usize), &of(LARGE as usize))?;
    bench.fill_buffer(a, 0, LARGE as usize, 1)?;
    Ok((a, b))
}

fn is_whole(bench: &mut CaseContext<'_>, b: QpFixture) -> Verdict {
    ensure!(
        bench.buffer_matches(b, 0, LARGE as usize, 1)?,
        "bytes differ"
    );
    Ok(())
}

fn write(
    bench: &mut CaseContext<'_>,
    (a, b): (QpFixture, QpFixture),
    wr_id: u64,
    len: u32,
) -> Verdict {
    bench.post(a, wr_id, Op::Write(b.at(0)), &[a.sge(0, len)])
}

fn large_by_polling(bench: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = large(bench)?;
    write(bench, (a, b), 1, LARGE)?;
    bench.expect_sent(a, 1, Status::Success)?;
    is_whole(bench, b)
}

/// Reason for skipping cases that need progress without calls.
const NOT_BY_ITSELF: &str = "a request that outlasts its call progresses only in later calls here";

fn large_by_itself(bench: &mut CaseContext<'_>) -> Verdict {
    if !bench.behaviour().progresses_without_calls {
        return bench.skip(NOT_BY_ITSELF);
    }
    let (a, b) = large(bench)?;
    let end = bench.read_buffer(a, LARGE as usize - 8, 8)?;
    write(bench, (a, b), 1, LARGE)?;
    // Nothing polls, but the last bytes must arrive.
    bench.wait("last bytes", |bench| {
        let last = bench.read_buffer(b, LARGE as usize - 8, 8)?;
        Ok((last == end).then_some(()))
    })?;
    bench.expect_sent(a, 1, Status::Success)?;
    is_whole(bench, b)
}

/// Sleeps on the channel until `wr_id` has completed.
fn sleep_until_sent(bench: &mut CaseContext<'_>, a: QpFixture, wr_id: u64) -> Verdict {
    loop {
        bench.arm(a.host, a.send_cq, false)?;
        if let Some(done) = bench.poll(a.host, a.send_cq)?.first() {
            ensure_eq!((done.wr_id, done.status), (wr_id, Status::Success), "done");
            return Ok(());
        }
        bench.wait_channel_readable(a)?;
        while bench.channel_event(a)?.is_some() {}
    }
}

fn large_asleep(bench: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = large(bench)?;
    for id in 0..5 {
        write(bench, (a, b), id, LARGE)?;
        sleep_until_sent(bench, a, id)?;
    }
    is_whole(bench, b)
}

fn gigabyte(bench: &mut CaseContext<'_>) -> Verdict {
    const LEN: u32 = 1 << 30;
    let (a, b) = bench.connected_pair_with(&of(LEN as usize), &of(LEN as usize))?;
    bench.fill_buffer(a, 0, LEN as usize, 3)?;
    write(bench, (a, b), 1, LEN)?;
    sleep_until_sent(bench, a, 1)?;
    ensure!(
        bench.buffer_matches(b, 0, LEN as usize, 3)?,
        "asleep: bytes differ"
    );
    bench.write_buffer(a, LEN as usize - 4, b"end.")?;
    write(bench, (a, b), 2, LEN)?;
    bench.expect_sent(a, 2, Status::Success)?;
    ensure_eq!(
        bench.read_buffer(b, LEN as usize - 4, 4)?,
        b"end.",
        "the end"
    );
    Ok(())
}

fn pending_before_small(bench: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = large(bench)?;
    for round in 0..4u64 {
        for id in 0..12 {
            let len = [LARGE, 1, 64, 70_000][(id % 4) as usize];
            write(bench, (a, b), round * 100 + id, len)?;
        }
        for id in 0..12 {
            bench.expect_sent(a, round * 100 + id, Status::Success)?;
        }
    }
    if !bench.facts(a.host)?.promises.ordered_between_writes {
        return bench.skip("WRITEs of this device keep no order: only their completions do");
    }
    // The small WRITE was posted last, so it lands last.
    bench.write_buffer(a, 0, b"old")?;
    bench.write_buffer(a, LARGE as usize - 3, b"new")?;
    write(bench, (a, b), 1, LARGE)?;
    let other = a.sge(i64::from(LARGE) - 3, 3);
    bench.post(a, 2, Op::Write(b.at(0)), &[other])?;
    bench.expect_sent(a, 1, Status::Success)?;
    bench.expect_sent(a, 2, Status::Success)?;
    ensure_eq!(bench.read_buffer(b, 0, 3)?, b"new", "order");
    Ok(())
}

/// Checks that the work of a queue pair goes on while another is busy and neither is polled.
fn work_beside_pending(bench: &mut CaseContext<'_>) -> Verdict {
    const LEN: usize = 1 << 20;
    if !bench.behaviour().progresses_without_calls {
        return bench.skip(NOT_BY_ITSELF);
    }
    let mut pairs = Vec::new();
    for _ in 0..4 {
        pairs.push(bench.connected_pair_with(&of(LEN), &of(LEN))?);
    }
    let until = bench.now() + Duration::from_millis(300);
    let mut round = 0u8;
    while bench.now() < until {
        round = round.wrapping_add(1);
        for &(a, b) in &pairs {
            bench.write_buffer(a, LEN - 1, &[round])?;
            write(bench, (a, b), 0, LEN as u32)?;
        }
        for (index, &(_, b)) in pairs.iter().enumerate() {
            bench.wait(&format!("end of {index} in round {round}"), |bench| {
                let last = bench.read_buffer(b, LEN - 1, 1)?;
                Ok((last == [round]).then_some(()))
            })?;
        }
        for &(a, _) in &pairs {
            bench.expect_sent(a, 0, Status::Success)?;
        }
    }
    Ok(())
}
