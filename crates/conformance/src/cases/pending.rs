//! Requests that take longer than the call that posts them.

use headworks_stage::clock;
use headworks_verbs::{Completion, Duration, SendFlags, SendOp, Status};

use crate::bench::{DEADLINE, line, wait};
use crate::bytes::{get, pattern, put};
use crate::{Bench, Options, Pair, Verdict, ensure, ensure_eq};

const LARGE: usize = 8 << 20;

fn of(len: usize) -> Options {
    Options {
        len,
        ..Options::default()
    }
}

fn large(bench: &Bench) -> Result<(Pair, Vec<u8>), String> {
    let pair = bench.pair_of(&of(LARGE), &of(LARGE))?;
    let bytes = pattern(1, LARGE);
    put(&pair.a.region, 0, &bytes);
    Ok((pair, bytes))
}

fn post(pair: &mut Pair, wr_id: u64, len: u32) -> Verdict {
    let op = SendOp::Write(pair.b.region.remote(0));
    let from = pair.a.region.sge(0, len);
    pair.a.post(wr_id, op, &[from])
}

pub(super) fn large_by_polling(bench: &Bench) -> Verdict {
    let (mut pair, bytes) = large(bench)?;
    post(&mut pair, 1, LARGE as u32)?;
    pair.a.expect_sent(1, Status::Success)?;
    ensure!(get(&pair.b.region, 0, LARGE) == bytes, "bytes differ");
    Ok(())
}

pub(super) fn large_by_itself(bench: &Bench) -> Verdict {
    let (mut pair, bytes) = large(bench)?;
    post(&mut pair, 1, LARGE as u32)?;
    // Nobody polls; the last bytes come all the same.
    wait("last bytes", || {
        let last = get(&pair.b.region, LARGE - 8, 8);
        Ok((last == bytes[LARGE - 8..]).then_some(()))
    })?;
    pair.a.expect_sent(1, Status::Success)?;
    ensure!(get(&pair.b.region, 0, LARGE) == bytes, "bytes differ");
    Ok(())
}

/// Sleeps on the channel until `wr_id` has completed.
fn sleep_until_sent(pair: &Pair, wr_id: u64) -> Verdict {
    let until = clock::now() + DEADLINE;
    let cq = &pair.a.send_cq;
    let mut out = [Completion::default()];
    loop {
        cq.arm(false);
        if cq.poll(&mut out).map_err(line)? > 0 {
            ensure_eq!(
                (out[0].wr_id, out[0].status),
                (wr_id, Status::Success),
                "done"
            );
            return Ok(());
        }
        super::channel::sleep(&*pair.a.channel, until)?;
        while pair.a.channel.next_event().map_err(line)?.is_some() {}
    }
}

pub(super) fn large_asleep(bench: &Bench) -> Verdict {
    let (mut pair, bytes) = large(bench)?;
    for id in 0..5 {
        post(&mut pair, id, LARGE as u32)?;
        sleep_until_sent(&pair, id)?;
    }
    ensure!(get(&pair.b.region, 0, LARGE) == bytes, "bytes differ");
    Ok(())
}

pub(super) fn gigabyte(bench: &Bench) -> Verdict {
    const LEN: usize = 1 << 30;
    let mut pair = bench.pair_of(&of(LEN), &of(LEN))?;
    put(&pair.a.region, LEN - 4, b"end.");
    let start = clock::now();
    post(&mut pair, 1, LEN as u32)?;
    sleep_until_sent(&pair, 1)?;
    ensure_eq!(get(&pair.b.region, LEN - 4, 4), b"end.", "the end");
    println!(
        "1 GiB asleep: {} ms",
        clock::now().since(start).nanos() / 1_000_000
    );
    let start = clock::now();
    post(&mut pair, 2, LEN as u32)?;
    pair.a.expect_sent(2, Status::Success)?;
    println!(
        "1 GiB polled: {} ms",
        clock::now().since(start).nanos() / 1_000_000
    );
    Ok(())
}

pub(super) fn pending_before_small(bench: &Bench) -> Verdict {
    let (mut pair, _) = large(bench)?;
    for round in 0..4u64 {
        for id in 0..12 {
            let len = [LARGE as u32, 1, 64, 70_000][(id % 4) as usize];
            post(&mut pair, round * 100 + id, len)?;
        }
        for id in 0..12 {
            pair.a.expect_sent(round * 100 + id, Status::Success)?;
        }
    }
    // The small one lands last: it was posted last.
    put(&pair.a.region, 0, b"old");
    post(&mut pair, 1, LARGE as u32)?;
    let other = pair.a.region.sge(LARGE - 3, 3);
    put(&pair.a.region, LARGE - 3, b"new");
    let op = SendOp::Write(pair.b.region.remote(0));
    pair.a.post(2, op, &[other])?;
    pair.a.expect_sent(1, Status::Success)?;
    pair.a.expect_sent(2, Status::Success)?;
    ensure_eq!(get(&pair.b.region, 0, 3), b"new", "order");
    Ok(())
}

/// Work of one queue pair that nobody polls is not forgotten while another's goes on.
pub(super) fn work_beside_pending(bench: &Bench) -> Verdict {
    let mut pairs = Vec::new();
    for _ in 0..4 {
        pairs.push(bench.pair_of(&of(1 << 20), &of(1 << 20))?);
    }
    let until = clock::now() + Duration::from_millis(300);
    let mut round = 0u8;
    while clock::now() < until {
        round = round.wrapping_add(1);
        for pair in &mut pairs {
            put(&pair.a.region, (1 << 20) - 1, &[round]);
            let op = SendOp::Write(pair.b.region.remote(0));
            let from = pair.a.region.sge(0, 1 << 20);
            pair.a.post_flagged(0, op, &[from], SendFlags::SIGNALED)?;
        }
        for (index, pair) in pairs.iter().enumerate() {
            wait(&format!("end of {index} in round {round}"), || {
                let last = get(&pair.b.region, (1 << 20) - 1, 1);
                Ok((last == [round]).then_some(()))
            })?;
        }
        for pair in &pairs {
            pair.a.expect_sent(0, Status::Success)?;
        }
    }
    Ok(())
}
