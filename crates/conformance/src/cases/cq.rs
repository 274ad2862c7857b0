//! Completion queues: full ones, and several pollers on one.

use headworks_verbs::{PollError, QpCaps, QpState, Status};

use crate::call::{Call, Event, Op, Receive, Refusal, Reply, Send};
use crate::{Bench, Case, Options, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("cq::overrun", overrun).row(
            "poll",
            "sends, receives",
            "CQ full",
            "CqError; what it held, then Overrun; its queue pair in error",
        ),
        Case::new("cq::several_pollers", several_pollers).row(
            "poll",
            "several pollers, receives and sends posted meanwhile",
            "-",
            "every completion once",
        ),
    ]
}

fn overrun(bench: &mut Bench<'_>) -> Verdict {
    let small = Options {
        depth: 4,
        ..Options::default()
    };
    let usual = Options::default();
    // Sends overrun ours, receives the peer's.
    for there in [false, true] {
        let (of_a, of_b) = if there {
            (&usual, &small)
        } else {
            (&small, &usual)
        };
        let (a, b) = bench.pair_of(of_a, of_b)?;
        let (side, cq) = if there {
            (b, b.recv_cq)
        } else {
            (a, a.send_cq)
        };
        let holds = u64::from(side.depth);
        for id in 0..holds + 2 {
            bench.receive(b, id, &[])?;
        }
        for id in 0..=holds {
            let request = Send::new(id, Op::Send, &[]);
            let request = if there { request.quiet() } else { request };
            bench.post_one(a, request)?;
        }
        bench.expect_event(side.host, Event::CqError(Some(cq)))?;
        let mut good = 0;
        let error = bench.wait("overrun", |bench| {
            match bench.poll_up_to(side.host, cq, 3) {
                Ok(done) => {
                    good += done.len() as u64;
                    Ok(None)
                }
                Err(refusal) => Ok(Some(refusal)),
            }
        })?;
        ensure_eq!(error, Refusal::from(PollError::Overrun), "poll");
        ensure!(good >= holds, "{good} completions before it");
        bench.wait("error state", |bench| {
            Ok((bench.state(side)? == QpState::Error).then_some(()))
        })?;
    }
    Ok(())
}

fn several_pollers(bench: &mut Bench<'_>) -> Verdict {
    const MESSAGES: u64 = 20_000;
    const CHAIN: u64 = 250;
    let options = Options {
        caps: QpCaps {
            max_send_wr: 256,
            max_recv_wr: 256,
            ..Options::default().caps
        },
        depth: 512,
        ..Options::default()
    };
    let (a, b) = bench.pair_of(&options, &options)?;
    let mut seen = vec![0u32; MESSAGES as usize];
    let pollers = vec![
        (
            b.host.id,
            Call::Repeat {
                times: 40,
                calls: vec![Call::Poll {
                    cq: b.recv_cq,
                    most: 7,
                }],
            },
        );
        3
    ];
    for from in (0..MESSAGES).step_by(CHAIN as usize) {
        // Receives and sends in small pieces, while the others poll.
        let mut work = Vec::new();
        for id in from..from + CHAIN {
            let chain = vec![Receive::new(id, &[])];
            let queue = b.qp;
            work.push(Call::PostRecv { queue, chain });
        }
        let sends = (0..CHAIN).map(|id| {
            let request = Send::new(id, Op::Send, &[]);
            let request = if id % 16 == 9 {
                request
            } else {
                request.quiet()
            };
            let chain = vec![request];
            Call::PostSend { qp: a.qp, chain }
        });
        bench.done(b.host.id, Call::Each(work))?;
        let mut calls = pollers.clone();
        calls.push((a.host.id, Call::Each(sends.collect())));
        let mut taken = 0;
        let replies = bench.at_once(calls)?;
        for reply in replies {
            match reply {
                Reply::Completions(done) => {
                    for done in done {
                        ensure_eq!(done.status, Status::Success, "status");
                        seen[done.wr_id as usize] += 1;
                        taken += 1;
                    }
                }
                Reply::Each(sends) if sends.iter().all(|sent| *sent == Reply::Done) => {}
                other => return Err(format!("instead of completions: {other:?}")),
            }
        }
        // What they left.
        bench.wait("rest of the receives", |bench| {
            for done in bench.poll(b.host, b.recv_cq)? {
                ensure_eq!(done.status, Status::Success, "status");
                seen[done.wr_id as usize] += 1;
                taken += 1;
            }
            Ok((taken >= CHAIN).then_some(()))
        })?;
        bench.wait("sends", |bench| {
            let done = bench.poll(a.host, a.send_cq)?;
            Ok(done.iter().any(|done| done.wr_id == 249).then_some(()))
        })?;
    }
    for (id, times) in seen.iter().enumerate() {
        ensure_eq!(*times, 1, format!("completions of {id}"));
    }
    Ok(())
}
