//! Hosts that are killed, idle or at any moment, and what their peers observe.

use std::collections::BTreeMap;

use headworks_verbs::{Duration, QpState, RnrTimer, Status};

use crate::call::{Call, Event, Op, Reply, Send};
use crate::cases::{shared_receives, states};
use crate::{Case, CaseContext, HostRole, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    let told =
        "QpFatal; the queue pair in ERR; each receive completes once, with Success or Flushed";
    [
        Case::new("deaths::at_rest", at_rest).row(
            "next_event",
            "sleeping, nothing posted",
            "the peer is killed",
            "woken; QpFatal; the queue pair in ERR",
        ),
        Case::new("deaths::while_it_writes", |bench| {
            while_it_works(bench, 10, WaitMode::Polling)
        })
        .row(
            "poll",
            "receives and WRITEs arrive",
            "the peer is killed",
            told,
        ),
        Case::new("deaths::while_it_writes_and_we_sleep", |bench| {
            while_it_works(bench, 10, WaitMode::Asleep)
        })
        .row(
            "next_event",
            "receives arrive, sleeping in between",
            "the peer is killed",
            told,
        ),
        Case::new("deaths::at_many_moments", |bench| {
            while_it_works(bench, 100, WaitMode::Polling)?;
            while_it_works(bench, 100, WaitMode::Asleep)
        })
        .row(
            "poll",
            "receives and WRITEs arrive, 200 times",
            "the peer is killed",
            told,
        )
        .long(),
        Case::new("deaths::with_sends_to_it", with_sends_to_it).row(
            "post_send",
            "SENDs that wait for a receive",
            "the peer is killed",
            "RetryExceeded, the rest Flushed; each completes once, in order",
        ),
        Case::new("deaths::while_we_read_it", while_we_read_it).row(
            "post_send",
            "READ, WRITE of 32 MiB, atomics",
            "the peer is killed",
            "RetryExceeded or Success, then Flushed, in order",
        ),
        Case::new("deaths::before_anything_was_sent", before_anything_was_sent).row(
            "modify",
            "to RTR",
            "the peer is dead, or dies while the queue pair is in RTR",
            "QpFatal; channel event; receives Flushed",
        ),
        Case::new("deaths::holding_a_shared_receive", holding_a_shared_receive).row(
            "post_srq_recv",
            "SRQ that several queue pairs share",
            "a peer is killed while its SEND fills a receive",
            "that receive is Flushed; QpLastWqe; its slot is free; the other queue pairs keep working",
        ),
        Case::new("deaths::of_both", of_both).row(
            "open",
            "a device that other processes used before",
            "both processes were killed while they exchanged data",
            "opens and works",
        ),
    ]
    .into_iter()
    .map(Case::kills)
    .collect()
}

const LEN: u32 = 1 << 20;
/// Reason for skipping cases in which an idle queue pair must detect the death of its peer.
const UNNOTICED: &str = "an idle queue pair does not detect the death of its peer here";

fn options() -> QpOptions {
    QpOptions {
        len: LEN as usize,
        ..QpOptions::default()
    }
}

/// Connects a queue pair of the first host to one of a new host, which the case will kill.
fn with_victim(
    bench: &mut CaseContext<'_>,
    options: &QpOptions,
) -> Result<(QpFixture, QpFixture), String> {
    let first = bench.first_host()?;
    let second = bench.new_host(HostRole::Second)?;
    let (ours, theirs) = (
        bench.new_qp(first, options)?,
        bench.new_qp(second, options)?,
    );
    bench.connect(ours, options, theirs, options)?;
    Ok((ours, theirs))
}

/// Returns a call that posts SENDs and WRITEs of several lengths forever.
fn works(from: QpFixture, to: QpFixture) -> Call {
    let mut calls = Vec::new();
    for id in 0..12u64 {
        let len = [8, 600, 70_000, LEN][id as usize % 4];
        let op = match id % 3 {
            0 => Op::Write(to.at(0)),
            1 => Op::Send,
            _ => Op::WriteImm(to.at(0), id as u32),
        };
        calls.push(Call::PostSend {
            qp: from.qp,
            chain: vec![Send::new(id, op, &[from.sge(0, len)])],
        });
        calls.push(Call::Poll {
            cq: from.send_cq,
            most: 16,
        });
    }
    Call::Repeat {
        times: u64::MAX,
        until: None,
        calls,
    }
}

fn at_rest(bench: &mut CaseContext<'_>) -> Verdict {
    if !bench.behaviour().detects_peer_death {
        return bench.skip(UNNOTICED);
    }
    for _ in 0..5 {
        let (a, b) = with_victim(bench, &QpOptions::default())?;
        bench.arm_both(a)?;
        bench.kill(b.host)?;
        bench.wait_channel_event(a)?;
        bench.expect_state(a, QpState::Error, "the one left")?;
        bench.expect_fatal(a)?;
        bench.destroy_qp_fixture(a)?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitMode {
    Polling,
    Asleep,
}

fn while_it_works(bench: &mut CaseContext<'_>, rounds: u64, watch: WaitMode) -> Verdict {
    if !bench.behaviour().detects_peer_death {
        return bench.skip(UNNOTICED);
    }
    for number in 0..rounds {
        let after = Duration::from_micros(number * 7919 % 20_011);
        killed_after(bench, after, watch).map_err(|seen| {
            format!(
                "round {number}, killed after {} us: {seen}",
                after.nanos() / 1000
            )
        })?;
    }
    Ok(())
}

/// Receives of a queue pair, and their statuses.
struct Receives {
    side: QpFixture,
    posted: u64,
    done: BTreeMap<u64, Status>,
}

impl Receives {
    fn top_up(&mut self, bench: &mut CaseContext<'_>) -> Verdict {
        while self.posted - (self.done.len() as u64) < 32 {
            let side = self.side;
            bench.receive(side, self.posted, &[side.sge(0, LEN)])?;
            self.posted += 1;
        }
        Ok(())
    }

    /// Polls and returns the number of completions.
    fn collect(&mut self, bench: &mut CaseContext<'_>) -> Result<usize, String> {
        let done = bench.poll(self.side.host, self.side.recv_cq)?;
        for found in &done {
            ensure!(found.wr_id < self.posted, "{} was not posted", found.wr_id);
            ensure!(
                matches!(found.status, Status::Success | Status::Flushed),
                "{found:?}"
            );
            let before = self.done.insert(found.wr_id, found.status);
            ensure_eq!(
                before,
                None,
                format!("receive {} completed twice", found.wr_id)
            );
        }
        Ok(done.len())
    }
}

fn killed_after(bench: &mut CaseContext<'_>, after: Duration, watch: WaitMode) -> Verdict {
    let (a, b) = with_victim(bench, &options())?;
    let mut receives = Receives {
        side: a,
        posted: 0,
        done: BTreeMap::new(),
    };
    receives.top_up(bench)?;
    bench.begin_unanswered(b.host.id, works(b, a))?;
    let kill_at = bench.now() + after;
    let mut alive = true;
    bench
        .wait("end of all receives", |bench| {
            if alive && bench.now() >= kill_at {
                bench.kill(b.host)?;
                alive = false;
            }
            if alive {
                bench.expect_state(a, QpState::Rts, "the one whose peer lives")?;
                receives.top_up(bench)?;
            }
            if watch == WaitMode::Asleep {
                // The CQ is armed before the last poll, so that no completion is missed.
                bench.arm(a.host, a.recv_cq, false)?;
            }
            let count = receives.collect(bench)?;
            if watch == WaitMode::Asleep && count == 0 && !alive {
                let is_over = receives.done.len() as u64 == receives.posted;
                if !is_over {
                    bench.wait_channel_event(a)?;
                }
            }
            Ok((!alive && receives.done.len() as u64 == receives.posted).then_some(()))
        })
        .map_err(|seen| format!("{seen}: {} of {}", receives.done.len(), receives.posted))?;
    bench.expect_fatal(a)?;
    bench.expect_state(a, QpState::Error, "the one left")?;
    bench.expect_nothing_more(a)?;
    bench.destroy_qp_fixture(a)
}

fn with_sends_to_it(bench: &mut CaseContext<'_>) -> Verdict {
    for _ in 0..3 {
        let (a, b) = with_victim(bench, &QpOptions::default())?;
        // The peer posts no receives, so these requests wait.
        for id in 0..8 {
            let request = Send::new(id, Op::Send, &[]);
            let request = if id % 2 == 0 {
                request.quiet()
            } else {
                request
            };
            bench.post_one(a, request)?;
        }
        bench.kill(b.host)?;
        bench.expect_sent(a, 0, Status::RetryExceeded)?;
        for id in 1..8 {
            bench.expect_sent(a, id, Status::Flushed)?;
        }
        bench.expect_nothing_more(a)?;
        bench.expect_failed(a)?;
    }
    Ok(())
}

fn while_we_read_it(bench: &mut CaseContext<'_>) -> Verdict {
    let first = bench.first_host()?;
    let huge = bench.facts(first)?.limits.max_message.min(32 << 20);
    let options = QpOptions {
        len: huge as usize,
        ..QpOptions::default()
    };
    for round in 0..4 {
        let (a, b) = with_victim(bench, &options)?;
        let add = Op::FetchAdd {
            remote: b.at(0),
            add: 1,
        };
        let all = [a.sge(0, huge)];
        let (one, other) = match round % 2 {
            0 => (Op::Read(b.at(0)), Op::Write(b.at(0))),
            _ => (Op::Write(b.at(0)), Op::Read(b.at(0))),
        };
        let chain = vec![
            Send::new(0, one, &all),
            Send::new(1, add, &[a.sge(0, 8)]),
            Send::new(2, other, &all).quiet(),
            Send::new(3, add, &[a.sge(0, 8)]),
        ];
        bench
            .post_chain(a, chain)
            .map_err(crate::case_context::error_line)?;
        bench.kill(b.host)?;
        // One request fails, and those posted after it are flushed. An unsignalled request that succeeds
        // generates no completion.
        let mut failed = false;
        for id in 0..4 {
            if id == 2 && !failed {
                let done = bench.next_send_completion(a)?;
                let expected = [
                    (2, Status::RetryExceeded),
                    (3, Status::RetryExceeded),
                    (3, Status::Success),
                ];
                ensure!(expected.contains(&(done.wr_id, done.status)), "{done:?}");
                if done.wr_id == 2 {
                    bench.expect_sent(a, 3, Status::Flushed)?;
                }
                break;
            }
            let done = bench.next_send_completion(a)?;
            ensure_eq!(done.wr_id, id, "order");
            match done.status {
                Status::Success if !failed => {}
                Status::RetryExceeded if !failed => failed = true,
                Status::Flushed if failed => {}
                other => return Err(format!("request {id} ended with {other:?}")),
            }
        }
        bench.expect_nothing_more(a)?;
        bench.expect_failed(a)?;
        bench.expect_state(a, QpState::Error, "the one left")?;
        bench.destroy_qp_fixture(a)?;
    }
    Ok(())
}

/// Time at which the peer dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeathTime {
    /// Before this host knows anything of it except its number.
    Unknown,
    /// While another queue pair of this host is connected to it, which reports the death first.
    Known,
    /// While the queue pair is in RTR and idle.
    InRtr,
}

fn before_anything_was_sent(bench: &mut CaseContext<'_>) -> Verdict {
    if !bench.behaviour().detects_peer_death {
        return bench.skip(UNNOTICED);
    }
    for when in [DeathTime::Unknown, DeathTime::Known, DeathTime::InRtr] {
        for _ in 0..3 {
            dies(bench, when).map_err(|seen| format!("{when:?}: {seen}"))?;
        }
    }
    Ok(())
}

fn dies(bench: &mut CaseContext<'_>, when: DeathTime) -> Verdict {
    let options = QpOptions::default();
    let first = bench.first_host()?;
    let victim = bench.new_host(HostRole::Second)?;
    let theirs = bench.new_qp(victim, &options)?;
    let a = bench.new_qp(first, &options)?;
    bench.to_init(a, &options)?;
    bench.receive(a, 7, &[])?;
    bench.arm(a.host, a.recv_cq, false)?;
    match when {
        DeathTime::InRtr => {
            bench.to_rtr(a, &options, theirs)?;
            bench.kill(victim)?;
        }
        DeathTime::Unknown => {
            bench.kill(victim)?;
            bench.to_rtr(a, &options, theirs)?;
        }
        DeathTime::Known => {
            let other = bench.new_qp(first, &options)?;
            let its_peer = bench.new_qp(victim, &options)?;
            bench.connect(other, &options, its_peer, &options)?;
            bench.kill(victim)?;
            bench.expect_fatal(other)?;
            bench.to_rtr(a, &options, theirs)?;
        }
    }
    bench.wait_channel_event(a)?;
    bench.expect_fatal(a)?;
    bench.expect_received(a, 7, Status::Flushed)?;
    bench.expect_state(a, QpState::Error, "the one left")
}

/// Length of a message that is mostly not placed completely before its sender is killed, in bytes.
const ENDLESS: u32 = 64 << 20;
const RECEIVES: u64 = 4;

fn holding_a_shared_receive(bench: &mut CaseContext<'_>) -> Verdict {
    if !bench.behaviour().detects_peer_death {
        return bench.skip(UNNOTICED);
    }
    let mut held = 0;
    for number in 0..50 {
        held += u32::from(hold(bench).map_err(|seen| format!("round {number}: {seen}"))?);
        if held == 3 {
            return Ok(());
        }
    }
    ensure!(held > 0, "never killed while it held a receive");
    Ok(())
}

/// Kills a peer during a SEND and returns whether it held a receive when it died.
fn hold(bench: &mut CaseContext<'_>) -> Result<bool, String> {
    let first = bench.first_host()?;
    let victim = bench.new_host(HostRole::Second)?;
    let (pd, srq) = shared_receives::srq(bench, first, RECEIVES as u32, 0)?;
    let long = QpOptions {
        len: ENDLESS as usize,
        ..QpOptions::default()
    };
    let short = QpOptions::default();
    let a = bench.new_qp_in_pd(first, pd, Some(srq), &long)?;
    let b = bench.new_qp(victim, &long)?;
    bench.connect(a, &long, b, &long)?;
    // Another queue pair of the same SRQ, with a peer that lives.
    let third = bench.host(HostRole::Third)?;
    let other = bench.new_qp_in_pd(first, pd, Some(srq), &short)?;
    let friend = bench.new_qp(third, &short)?;
    bench.connect(friend, &short, other, &short)?;
    let into = [a.sge(0, ENDLESS)];
    for id in 0..RECEIVES {
        bench.receive(a, id, &into)?;
    }
    // The marks differ from the destination, so they show when the transfer has begun.
    let marks = (0..64).map(|number| number << 20);
    for offset in marks.clone() {
        bench.write_buffer(b, offset, &[1])?;
    }
    bench.post(b, 0, Op::Send, &[b.sge(0, ENDLESS)])?;
    let looks = marks.map(|offset| Call::Get {
        buffer: a.buffer,
        offset,
        len: 1,
    });
    let looks = Call::Each(looks.collect());
    bench.wait("the first of it", |bench| {
        let seen = bench.call_ok(first.id, looks.clone())?;
        let one = Reply::Bytes(vec![1]);
        Ok(matches!(seen, Reply::Each(seen) if seen.contains(&one)).then_some(()))
    })?;
    bench.kill(victim)?;
    // After this event the SRQ holds nothing of this queue pair.
    bench.expect_event(first, Event::QpLastWqe(Some(a.qp)))?;
    let done = bench.poll_past_empty(first, a.recv_cq)?;
    ensure!(done.len() <= 1, "more than it took: {done:?}");
    let mut held = false;
    if let Some(done) = done.first() {
        ensure_eq!(done.wr_id, 0, "the receive that it took");
        held = done.status == Status::Flushed;
        ensure!(held || done.status == Status::Success, "{done:?}");
    }
    bench.expect_none(first, a.recv_cq, "completed twice")?;
    // The other receives are still posted for the other queue pair of the SRQ.
    for id in done.len() as u64..RECEIVES {
        bench.post(friend, id, Op::Send, &[])?;
        bench.expect_sent(friend, id, Status::Success)?;
        bench.expect_received(other, id, Status::Success)?;
    }
    // The SRQ holds as many receives as before.
    for id in 0..RECEIVES {
        bench.receive(other, 10 + id, &into)?;
    }
    ensure!(
        bench.receive(other, 20, &into).is_err(),
        "one more was taken"
    );
    for id in 0..RECEIVES {
        bench.post(friend, id, Op::Send, &[])?;
        bench.expect_sent(friend, id, Status::Success)?;
        bench.expect_received(other, 10 + id, Status::Success)?;
    }
    for side in [a, other, friend] {
        bench.destroy(side.host, side.qp)?;
        bench.destroy(side.host, side.region)?;
        bench.destroy(side.host, side.buffer)?;
    }
    Ok(held)
}

/// Checks that what killed hosts leave behind does not disturb later hosts.
fn of_both(bench: &mut CaseContext<'_>) -> Verdict {
    // The receives run out. With a short RNR delay the hosts keep sending until they are killed.
    let options = QpOptions {
        min_rnr_timer: RnrTimer::new(1).unwrap_or_default(),
        ..options()
    };
    for number in 0..6u64 {
        let (one, other) = (
            bench.new_host(HostRole::First)?,
            bench.new_host(HostRole::Second)?,
        );
        let (a, b) = (bench.new_qp(one, &options)?, bench.new_qp(other, &options)?);
        bench.connect(a, &options, b, &options)?;
        for id in 0..32 {
            bench.receive(a, id, &[a.sge(0, LEN)])?;
            bench.receive(b, id, &[b.sge(0, LEN)])?;
        }
        bench.begin_unanswered(one.id, works(a, b))?;
        bench.begin_unanswered(other.id, works(b, a))?;
        bench.sleep_for(Duration::from_micros(number * 7919 % 5_003));
        bench.kill(one)?;
        bench.sleep_for(Duration::from_micros(number * 31 % 503));
        bench.kill(other)?;
        let (one, other) = (
            bench.new_host(HostRole::First)?,
            bench.new_host(HostRole::Second)?,
        );
        let usual = QpOptions::default();
        let (c, d) = (bench.new_qp(one, &usual)?, bench.new_qp(other, &usual)?);
        bench.connect(c, &usual, d, &usual)?;
        states::ping(bench, c, d, 7).map_err(|seen| format!("round {number}: {seen}"))?;
    }
    Ok(())
}
