//! Completion queues: full ones, and several threads on one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use headworks_verbs::{
    AsyncEvent, Completion, PollError, QpCaps, QpState, SendFlags, SendOp, Status,
};

use crate::bench::{DEADLINE, line, wait};
use crate::{Bench, Options, Verdict, ensure_eq};

pub(super) fn overrun(bench: &Bench) -> Verdict {
    let small = Options {
        depth: 4,
        ..Options::default()
    };
    // Sends overrun ours, receives the peer's.
    for there in [false, true] {
        let usual = Options::default();
        let (a, b) = if there {
            (&usual, &small)
        } else {
            (&small, &usual)
        };
        let mut pair = bench.pair_of(a, b)?;
        let holds = if there {
            pair.b.recv_cq.depth()
        } else {
            pair.a.send_cq.depth()
        };
        for id in 0..u64::from(holds) + 2 {
            pair.b.receive(id, &[])?;
        }
        let flags = if there {
            SendFlags::NONE
        } else {
            SendFlags::SIGNALED
        };
        for id in 0..u64::from(holds) + 1 {
            pair.a.post_flagged(id, SendOp::Send, &[], flags)?;
        }
        let side = if there { &pair.b } else { &pair.a };
        let cq = if there { &side.recv_cq } else { &side.send_cq };
        side.expect_event(AsyncEvent::CqError(cq.id()))?;
        let mut good = 0;
        let error = wait("overrun", || {
            let mut out = [Completion::default(); 3];
            match cq.poll(&mut out) {
                Ok(count) => {
                    good += count;
                    Ok(None)
                }
                Err(error) => Ok(Some(error)),
            }
        })?;
        ensure_eq!(error, PollError::Overrun, "poll");
        ensure_eq!(
            good >= holds as usize,
            true,
            format!("{good} completions before it")
        );
        wait("error state", || {
            Ok((side.qp.state() == QpState::Error).then_some(()))
        })?;
    }
    Ok(())
}

pub(super) fn several_pollers(bench: &Bench) -> Verdict {
    const MESSAGES: usize = 20_000;
    let options = Options {
        caps: QpCaps {
            max_send_wr: 256,
            max_recv_wr: 256,
            ..Options::default().caps
        },
        depth: 512,
        ..Options::default()
    };
    let mut pair = bench.pair_of(&options, &options)?;
    let seen: Vec<_> = (0..MESSAGES).map(|_| AtomicUsize::new(0)).collect();
    let (taken, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let cq = pair.b.recv_cq.clone();
    let (a, b) = (&mut pair.a, &mut pair.b);
    std::thread::scope(|scope| {
        let poll = || -> Verdict {
            let mut out = [Completion::default(); 7];
            while !stop.load(Ordering::Relaxed) {
                let count = cq.poll(&mut out).map_err(line)?;
                for done in &out[..count] {
                    ensure_eq!(done.status, Status::Success, "status");
                    seen[done.wr_id as usize].fetch_add(1, Ordering::Relaxed);
                }
                taken.fetch_add(count, Ordering::Relaxed);
                std::thread::yield_now();
            }
            Ok(())
        };
        let pollers: Vec<_> = (0..3).map(|_| scope.spawn(poll)).collect();
        let mut work = || -> Verdict {
            let until = headworks_stage::clock::now() + DEADLINE;
            let (mut posted, mut sent) = (0, 0);
            let mut out = [Completion::default(); 16];
            while taken.load(Ordering::Relaxed) < MESSAGES {
                if posted < MESSAGES && b.receive(posted as u64, &[]).is_ok() {
                    posted += 1;
                }
                if sent < posted && a.post(0, SendOp::Send, &[]).is_ok() {
                    sent += 1;
                }
                a.send_cq.poll(&mut out).map_err(line)?;
                if headworks_stage::clock::now() > until {
                    let taken = taken.load(Ordering::Relaxed);
                    return Err(format!(
                        "{posted} posted, {sent} sent, {taken} polled after 10 s"
                    ));
                }
            }
            Ok(())
        };
        let worked = work();
        stop.store(true, Ordering::Relaxed);
        for poller in pollers {
            poller.join().map_err(|_| "a poller panicked")??;
        }
        worked
    })?;
    for (id, times) in seen.iter().enumerate() {
        ensure_eq!(
            times.load(Ordering::Relaxed),
            1,
            format!("completions of {id}")
        );
    }
    Ok(())
}
