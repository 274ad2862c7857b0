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
        Case::new("deaths::while_it_writes", |cx| {
            while_it_works(cx, 10, WaitMode::Polling)
        })
        .row(
            "poll",
            "receives and WRITEs arrive",
            "the peer is killed",
            told,
        ),
        Case::new("deaths::while_it_writes_and_we_sleep", |cx| {
            while_it_works(cx, 10, WaitMode::Asleep)
        })
        .row(
            "next_event",
            "receives arrive, sleeping in between",
            "the peer is killed",
            told,
        ),
        Case::new("deaths::at_many_moments", |cx| {
            while_it_works(cx, 100, WaitMode::Polling)?;
            while_it_works(cx, 100, WaitMode::Asleep)
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
    cx: &mut CaseContext<'_>,
    options: &QpOptions,
) -> Result<(QpFixture, QpFixture), String> {
    let first = cx.first_host()?;
    let second = cx.new_host(HostRole::Second)?;
    let (ours, theirs) = (cx.new_qp(first, options)?, cx.new_qp(second, options)?);
    cx.connect(ours, options, theirs, options)?;
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

fn at_rest(cx: &mut CaseContext<'_>) -> Verdict {
    if !cx.behaviour().detects_peer_death {
        return cx.skip(UNNOTICED);
    }
    for _ in 0..5 {
        let (a, b) = with_victim(cx, &QpOptions::default())?;
        cx.arm_both(a)?;
        cx.kill(b.host)?;
        cx.wait_channel_event(a)?;
        cx.expect_state(a, QpState::Error, "the one left")?;
        cx.expect_fatal(a)?;
        cx.destroy_qp_fixture(a)?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitMode {
    Polling,
    Asleep,
}

fn while_it_works(cx: &mut CaseContext<'_>, rounds: u64, watch: WaitMode) -> Verdict {
    if !cx.behaviour().detects_peer_death {
        return cx.skip(UNNOTICED);
    }
    for number in 0..rounds {
        let after = Duration::from_micros(number * 7919 % 20_011);
        killed_after(cx, after, watch).map_err(|seen| {
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
    fn top_up(&mut self, cx: &mut CaseContext<'_>) -> Verdict {
        while self.posted - (self.done.len() as u64) < 32 {
            let side = self.side;
            cx.receive(side, self.posted, &[side.sge(0, LEN)])?;
            self.posted += 1;
        }
        Ok(())
    }

    /// Polls and returns the number of completions.
    fn collect(&mut self, cx: &mut CaseContext<'_>) -> Result<usize, String> {
        let done = cx.poll(self.side.host, self.side.recv_cq)?;
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

fn killed_after(cx: &mut CaseContext<'_>, after: Duration, watch: WaitMode) -> Verdict {
    let (a, b) = with_victim(cx, &options())?;
    let mut receives = Receives {
        side: a,
        posted: 0,
        done: BTreeMap::new(),
    };
    receives.top_up(cx)?;
    cx.begin_unanswered(b.host.id, works(b, a))?;
    let kill_at = cx.now() + after;
    let mut alive = true;
    cx.wait("end of all receives", |cx| {
        if alive && cx.now() >= kill_at {
            cx.kill(b.host)?;
            alive = false;
        }
        if alive {
            cx.expect_state(a, QpState::Rts, "the one whose peer lives")?;
            receives.top_up(cx)?;
        }
        if watch == WaitMode::Asleep {
            // The CQ is armed before the last poll, so that no completion is missed.
            cx.arm(a.host, a.recv_cq, false)?;
        }
        let count = receives.collect(cx)?;
        if watch == WaitMode::Asleep && count == 0 && !alive {
            let is_over = receives.done.len() as u64 == receives.posted;
            if !is_over {
                cx.wait_channel_event(a)?;
            }
        }
        Ok((!alive && receives.done.len() as u64 == receives.posted).then_some(()))
    })
    .map_err(|seen| format!("{seen}: {} of {}", receives.done.len(), receives.posted))?;
    cx.expect_fatal(a)?;
    cx.expect_state(a, QpState::Error, "the one left")?;
    cx.expect_nothing_more(a)?;
    cx.destroy_qp_fixture(a)
}

fn with_sends_to_it(cx: &mut CaseContext<'_>) -> Verdict {
    for _ in 0..3 {
        let (a, b) = with_victim(cx, &QpOptions::default())?;
        // The peer posts no receives, so these requests wait.
        for id in 0..8 {
            let request = Send::new(id, Op::Send, &[]);
            let request = if id % 2 == 0 {
                request.quiet()
            } else {
                request
            };
            cx.post_one(a, request)?;
        }
        cx.kill(b.host)?;
        cx.expect_sent(a, 0, Status::RetryExceeded)?;
        for id in 1..8 {
            cx.expect_sent(a, id, Status::Flushed)?;
        }
        cx.expect_nothing_more(a)?;
        cx.expect_failed(a)?;
    }
    Ok(())
}

fn while_we_read_it(cx: &mut CaseContext<'_>) -> Verdict {
    let first = cx.first_host()?;
    let huge = cx.facts(first)?.limits.max_message.min(32 << 20);
    let options = QpOptions {
        len: huge as usize,
        ..QpOptions::default()
    };
    for round in 0..4 {
        let (a, b) = with_victim(cx, &options)?;
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
        cx.post_chain(a, chain)
            .map_err(crate::case_context::error_line)?;
        cx.kill(b.host)?;
        // One request fails, and those posted after it are flushed. An unsignalled request that succeeds
        // generates no completion.
        let mut failed = false;
        for id in 0..4 {
            if id == 2 && !failed {
                let done = cx.next_send_completion(a)?;
                let expected = [
                    (2, Status::RetryExceeded),
                    (3, Status::RetryExceeded),
                    (3, Status::Success),
                ];
                ensure!(expected.contains(&(done.wr_id, done.status)), "{done:?}");
                if done.wr_id == 2 {
                    cx.expect_sent(a, 3, Status::Flushed)?;
                }
                break;
            }
            let done = cx.next_send_completion(a)?;
            ensure_eq!(done.wr_id, id, "order");
            match done.status {
                Status::Success if !failed => {}
                Status::RetryExceeded if !failed => failed = true,
                Status::Flushed if failed => {}
                other => return Err(format!("request {id} ended with {other:?}")),
            }
        }
        cx.expect_nothing_more(a)?;
        cx.expect_failed(a)?;
        cx.expect_state(a, QpState::Error, "the one left")?;
        cx.destroy_qp_fixture(a)?;
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

fn before_anything_was_sent(cx: &mut CaseContext<'_>) -> Verdict {
    if !cx.behaviour().detects_peer_death {
        return cx.skip(UNNOTICED);
    }
    for when in [DeathTime::Unknown, DeathTime::Known, DeathTime::InRtr] {
        for _ in 0..3 {
            dies(cx, when).map_err(|seen| format!("{when:?}: {seen}"))?;
        }
    }
    Ok(())
}

fn dies(cx: &mut CaseContext<'_>, when: DeathTime) -> Verdict {
    let options = QpOptions::default();
    let first = cx.first_host()?;
    let victim = cx.new_host(HostRole::Second)?;
    let theirs = cx.new_qp(victim, &options)?;
    let a = cx.new_qp(first, &options)?;
    cx.to_init(a, &options)?;
    cx.receive(a, 7, &[])?;
    cx.arm(a.host, a.recv_cq, false)?;
    match when {
        DeathTime::InRtr => {
            cx.to_rtr(a, &options, theirs)?;
            cx.kill(victim)?;
        }
        DeathTime::Unknown => {
            cx.kill(victim)?;
            cx.to_rtr(a, &options, theirs)?;
        }
        DeathTime::Known => {
            let other = cx.new_qp(first, &options)?;
            let its_peer = cx.new_qp(victim, &options)?;
            cx.connect(other, &options, its_peer, &options)?;
            cx.kill(victim)?;
            cx.expect_fatal(other)?;
            cx.to_rtr(a, &options, theirs)?;
        }
    }
    cx.wait_channel_event(a)?;
    cx.expect_fatal(a)?;
    cx.expect_received(a, 7, Status::Flushed)?;
    cx.expect_state(a, QpState::Error, "the one left")
}

/// Length of a message that is mostly not placed completely before its sender is killed, in bytes.
const ENDLESS: u32 = 64 << 20;
const RECEIVES: u64 = 4;

fn holding_a_shared_receive(cx: &mut CaseContext<'_>) -> Verdict {
    if !cx.behaviour().detects_peer_death {
        return cx.skip(UNNOTICED);
    }
    let mut held = 0;
    for number in 0..50 {
        held += u32::from(hold(cx).map_err(|seen| format!("round {number}: {seen}"))?);
        if held == 3 {
            return Ok(());
        }
    }
    ensure!(held > 0, "never killed while it held a receive");
    Ok(())
}

/// Kills a peer during a SEND and returns whether it held a receive when it died.
fn hold(cx: &mut CaseContext<'_>) -> Result<bool, String> {
    let first = cx.first_host()?;
    let victim = cx.new_host(HostRole::Second)?;
    let (pd, srq) = shared_receives::srq(cx, first, RECEIVES as u32, 0)?;
    let long = QpOptions {
        len: ENDLESS as usize,
        ..QpOptions::default()
    };
    let short = QpOptions::default();
    let a = cx.new_qp_in_pd(first, pd, Some(srq), &long)?;
    let b = cx.new_qp(victim, &long)?;
    cx.connect(a, &long, b, &long)?;
    // Another queue pair of the same SRQ, with a peer that lives.
    let third = cx.host(HostRole::Third)?;
    let other = cx.new_qp_in_pd(first, pd, Some(srq), &short)?;
    let friend = cx.new_qp(third, &short)?;
    cx.connect(friend, &short, other, &short)?;
    let into = [a.sge(0, ENDLESS)];
    for id in 0..RECEIVES {
        cx.receive(a, id, &into)?;
    }
    // The marks differ from the destination, so they show when the transfer has begun.
    let marks = (0..64).map(|number| number << 20);
    for offset in marks.clone() {
        cx.write_buffer(b, offset, &[1])?;
    }
    cx.post(b, 0, Op::Send, &[b.sge(0, ENDLESS)])?;
    let looks = marks.map(|offset| Call::Get {
        buffer: a.buffer,
        offset,
        len: 1,
    });
    let looks = Call::Each(looks.collect());
    cx.wait("the first of it", |cx| {
        let seen = cx.call_ok(first.id, looks.clone())?;
        let one = Reply::Bytes(vec![1]);
        Ok(matches!(seen, Reply::Each(seen) if seen.contains(&one)).then_some(()))
    })?;
    cx.kill(victim)?;
    // After this event the SRQ holds nothing of this queue pair.
    cx.expect_event(first, Event::QpLastWqe(Some(a.qp)))?;
    let done = cx.poll_past_empty(first, a.recv_cq)?;
    ensure!(done.len() <= 1, "more than it took: {done:?}");
    let mut held = false;
    if let Some(done) = done.first() {
        ensure_eq!(done.wr_id, 0, "the receive that it took");
        held = done.status == Status::Flushed;
        ensure!(held || done.status == Status::Success, "{done:?}");
    }
    cx.expect_none(first, a.recv_cq, "completed twice")?;
    // The other receives are still posted for the other queue pair of the SRQ.
    for id in done.len() as u64..RECEIVES {
        cx.post(friend, id, Op::Send, &[])?;
        cx.expect_sent(friend, id, Status::Success)?;
        cx.expect_received(other, id, Status::Success)?;
    }
    // The SRQ holds as many receives as before.
    for id in 0..RECEIVES {
        cx.receive(other, 10 + id, &into)?;
    }
    ensure!(cx.receive(other, 20, &into).is_err(), "one more was taken");
    for id in 0..RECEIVES {
        cx.post(friend, id, Op::Send, &[])?;
        cx.expect_sent(friend, id, Status::Success)?;
        cx.expect_received(other, 10 + id, Status::Success)?;
    }
    for side in [a, other, friend] {
        cx.destroy(side.host, side.qp)?;
        cx.destroy(side.host, side.region)?;
        cx.destroy(side.host, side.buffer)?;
    }
    Ok(held)
}

/// Checks that what killed hosts leave behind does not disturb later hosts.
fn of_both(cx: &mut CaseContext<'_>) -> Verdict {
    // The receives run out. With a short RNR delay the hosts keep sending until they are killed.
    let options = QpOptions {
        min_rnr_timer: RnrTimer::new(1).unwrap_or_default(),
        ..options()
    };
    for number in 0..6u64 {
        let (one, other) = (
            cx.new_host(HostRole::First)?,
            cx.new_host(HostRole::Second)?,
        );
        let (a, b) = (cx.new_qp(one, &options)?, cx.new_qp(other, &options)?);
        cx.connect(a, &options, b, &options)?;
        for id in 0..32 {
            cx.receive(a, id, &[a.sge(0, LEN)])?;
            cx.receive(b, id, &[b.sge(0, LEN)])?;
        }
        cx.begin_unanswered(one.id, works(a, b))?;
        cx.begin_unanswered(other.id, works(b, a))?;
        cx.sleep_for(Duration::from_micros(number * 7919 % 5_003));
        cx.kill(one)?;
        cx.sleep_for(Duration::from_micros(number * 31 % 503));
        cx.kill(other)?;
        let (one, other) = (
            cx.new_host(HostRole::First)?,
            cx.new_host(HostRole::Second)?,
        );
        let usual = QpOptions::default();
        let (c, d) = (cx.new_qp(one, &usual)?, cx.new_qp(other, &usual)?);
        cx.connect(c, &usual, d, &usual)?;
        states::ping(cx, c, d, 7).map_err(|seen| format!("round {number}: {seen}"))?;
    }
    Ok(())
}
