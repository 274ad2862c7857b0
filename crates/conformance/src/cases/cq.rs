//! Completion queues with several pollers.

use std::collections::BTreeSet;

use headworks_verbs::{QpCaps, Status};

use crate::call::{ByteCondition, Call, Done, Op, Receive, Reply, Send};
use crate::{Case, CaseContext, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("cq::several_pollers", several_pollers).row(
        "poll",
        "several pollers, while receives and sends are posted",
        "-",
        "each completion is returned once",
    )]
}

const POLLERS: usize = 3;

fn several_pollers(cx: &mut CaseContext<'_>) -> Verdict {
    const BATCH: u64 = 100;
    const AT_LEAST: u64 = 20;
    // A world without concurrent polls would otherwise loop forever.
    const AT_MOST: u64 = 5000;
    let options = QpOptions {
        caps: QpCaps {
            max_send_wr: 256,
            max_recv_wr: 256,
            ..QpOptions::default().caps
        },
        depth: 512,
        ..QpOptions::default()
    };
    let (a, b) = cx.connected_pair_with(&options, &options)?;
    let receives = |batch: u64| {
        let post = |id| Call::PostRecv {
            queue: b.qp,
            chain: vec![Receive::new(id, &[])],
        };
        Call::Each((batch * BATCH..(batch + 1) * BATCH).map(post).collect())
    };
    cx.call_ok(b.host.id, receives(0))?;
    let mut took = [0u64; POLLERS];
    let mut seen = BTreeSet::new();
    for batch in 0..AT_MOST {
        if batch >= AT_LEAST && took.iter().filter(|took| **took > 0).count() >= 2 {
            break;
        }
        // All pollers poll until the batch has been sent. A WRITE posted after the batch shows that.
        let sign = ByteCondition {
            buffer: b.buffer,
            offset: 0,
            byte: (batch as u8).wrapping_add(1),
        };
        let poller = Call::Repeat {
            times: 100_000_000,
            until: Some(sign),
            calls: vec![Call::Poll {
                cq: b.recv_cq,
                most: 7,
            }],
        };
        let mut calls = vec![(b.host.id, poller); POLLERS];
        // Meanwhile receives are posted, and sends one at a time.
        calls.push((b.host.id, receives(batch + 1)));
        let mut work = Vec::new();
        for id in 0..BATCH {
            let send = Send::new(id, Op::Send, &[]);
            let send = if id % 16 == 9 { send } else { send.quiet() };
            let chain = vec![send];
            work.push(Call::PostSend { qp: a.qp, chain });
        }
        let last = Send::inline(BATCH, Op::Write(b.at(0)), &[sign.byte]);
        let chain = vec![last];
        work.push(Call::PostSend { qp: a.qp, chain });
        calls.push((a.host.id, Call::Each(work)));
        let replies = cx.call_concurrently(calls)?;
        for (index, reply) in replies.into_iter().enumerate() {
            match reply {
                Reply::Completions(done) => {
                    took[index] += done.len() as u64;
                    note(&mut seen, &done)?;
                }
                Reply::Each(posts) if posts.iter().all(|post| *post == Reply::Done) => {}
                other => return Err(format!("instead of completions: {other:?}")),
            }
        }
        // Collects what the pollers left.
        let due = (batch + 1) * BATCH;
        cx.wait("rest of the receives", |cx| {
            note(&mut seen, &cx.poll(b.host, b.recv_cq)?)?;
            Ok((seen.len() as u64 >= due).then_some(()))
        })?;
        cx.wait("sends", |cx| {
            let done = cx.poll(a.host, a.send_cq)?;
            Ok(done.iter().any(|done| done.wr_id == BATCH).then_some(()))
        })?;
    }
    let pollers = took.iter().filter(|took| **took > 0).count();
    ensure!(
        pollers >= 2,
        "only one of them ever took anything: {took:?}"
    );
    let first_missing = (0..seen.len() as u64).find(|id| !seen.contains(id));
    ensure_eq!(first_missing, None, "a receive that never completed");
    Ok(())
}

/// Records completions. Each may come only once.
fn note(seen: &mut BTreeSet<u64>, done: &[Done]) -> Verdict {
    for done in done {
        ensure_eq!(done.status, Status::Success, "status");
        ensure!(
            seen.insert(done.wr_id),
            "receive {} completed twice",
            done.wr_id
        );
    }
    Ok(())
}
