//! Regions, senders and receivers that go away while datagrams are under way.

use std::collections::BTreeMap;

use headworks_verbs::{QpCaps, QpState, Status};

use super::{HEADER, handle, options, pair, send, to, up};
use crate::call::{Call, Id, Receive, Reply, Send};
use crate::case_context::Host;
use crate::{Case, CaseContext, QpFixture, QpOptions, Verdict, ensure, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "datagrams::deregistered_under_a_stream",
            deregistered_under_a_stream,
        )
        .row(
            "deregister",
            "the region of posted receives, while datagrams arrive",
            "-",
            "nothing is written after the call returns; one receive ends with LocalProtection, later ones are \
             Flushed; QpFatal; the sender stays in RTS",
        ),
        Case::new("datagrams::sender_killed", sender_killed)
            .row(
                "kill",
                "the sender of datagrams, while it sends",
                "-",
                "the receiving queue pair stays in RTS; each receive completes once, none is lost",
            )
            .kills(),
        Case::new("datagrams::receiver_killed", receiver_killed)
            .row(
                "kill",
                "the receiver of datagrams",
                "-",
                "the sending queue pair stays in RTS and can send to others",
            )
            .kills(),
    ]
}

/// Number of posted receives.
const RECEIVES: u64 = 1024;
/// Number of completions polled at a time.
const MANY: usize = 64;

/// Returns options for many receives, in device memory or in ordinary memory.
fn deep(heap: bool) -> QpOptions {
    let usual = options();
    QpOptions {
        caps: QpCaps {
            max_recv_wr: RECEIVES as u32,
            ..usual.caps
        },
        depth: 2048,
        heap,
        ..usual
    }
}

/// Returns the maximum length of a datagram. Long datagrams make it likely that a concurrent event happens
/// in the middle of one.
fn longest(cx: &CaseContext<'_>, host: Host) -> Result<u32, String> {
    Ok(cx.facts(host)?.mtu.bytes())
}

/// Returns a call that sends datagrams of `len` bytes from `a` in a loop.
fn stream((a, ah, b): (QpFixture, Id, QpFixture), len: u32, times: u64) -> Call {
    Call::Repeat {
        times,
        until: None,
        calls: vec![
            Call::PostSend {
                qp: a.qp,
                chain: vec![Send::new(9, to(ah, b), &[a.sge(0, len)]); 4],
            },
            Call::Poll {
                cq: a.send_cq,
                most: 16,
            },
        ],
    }
}

fn receiver(cx: &mut CaseContext<'_>, heap: bool) -> Result<(QpFixture, QpFixture, Id), String> {
    let (first, second) = (cx.first_host()?, cx.second_host()?);
    let (a, b) = (up(cx, first)?, cx.new_qp(second, &deep(heap))?);
    super::bring_up(cx, b)?;
    let ah = handle(cx, a, b.host)?;
    Ok((a, b, ah))
}

fn deregistered_under_a_stream(cx: &mut CaseContext<'_>) -> Verdict {
    for heap in [false, true] {
        for looks in [1, 20, 100] {
            deregistered(cx, heap, looks).map_err(|seen| {
                let whose = if heap { "ordinary memory, " } else { "" };
                format!("{whose}after {looks} looks: {seen}")
            })?;
        }
    }
    Ok(())
}

fn deregistered(cx: &mut CaseContext<'_>, heap: bool, looks: usize) -> Verdict {
    let (a, b, ah) = receiver(cx, heap)?;
    let bytes = longest(cx, a.host)?;
    let room = HEADER + bytes;
    cx.fill_buffer(a, 0, bytes as usize, 7)?;
    for id in 0..RECEIVES {
        cx.receive(b, id, &[b.sge(0, room)])?;
    }
    let (buffer, offset, len, seed) = (b.buffer, 0, room as usize, 5);
    let get = Call::Get {
        buffer,
        offset,
        len: 8,
    };
    let fill = Call::Fill {
        buffer,
        offset,
        len,
        seed,
    };
    let check = Call::Check {
        buffer,
        offset,
        len,
        seed,
    };
    let mut taking = vec![get; looks];
    taking.extend([Call::Destroy { object: b.region }, fill]);
    taking.extend(vec![check; 5]);
    // There are fewer datagrams than receives, so at least one receive is left.
    let sending = stream((a, ah, b), bytes, RECEIVES / 4 - 6);
    let replies =
        cx.call_concurrently(vec![(a.host.id, sending), (b.host.id, Call::Each(taking))])?;
    let [Reply::Completions(sent), Reply::Each(owner)] = &replies[..] else {
        return Err(format!("{replies:?}"));
    };
    let bad = sent.iter().find(|done| done.status != Status::Success);
    ensure_eq!(bad, None, "a datagram");
    let checks = owner.iter().rev().take(5);
    let good = checks.filter(|reply| **reply == Reply::Flag(true)).count();
    ensure_eq!(good, 5, "written after deregistration: good looks");
    // This datagram finds no memory, if none before did. Its post may be refused until earlier ones complete,
    // and the wait also collects their completions.
    let (mut is_posted, mut is_sent) = (false, false);
    cx.wait("the last datagram", |cx| {
        for done in cx.poll(a.host, a.send_cq)? {
            ensure_eq!(done.status, Status::Success, "a datagram");
            is_sent |= done.wr_id == 1;
        }
        is_posted = is_posted || cx.post(a, 1, to(ah, b), &[a.sge(0, 8)]).is_ok();
        Ok(is_sent.then_some(()))
    })?;
    cx.wait("failure of the receiver", |cx| {
        Ok((cx.state(b)? == QpState::Error).then_some(()))
    })?;
    cx.expect_failed(b)?;
    let mut failed = None;
    for id in 0..RECEIVES {
        let done = cx.next_recv_completion(b)?;
        ensure_eq!(done.wr_id, id, "order");
        let unplaced = cx.expected_status(Status::LocalProtection, done.status);
        match (done.status, failed) {
            (Status::Success, None) => ensure_eq!(done.byte_len, room, "length"),
            (status, None) if status == unplaced => failed = Some(id),
            (Status::Flushed, Some(_)) => {}
            (other, _) => return Err(format!("receive {id}: {other:?}, {failed:?} failed")),
        }
    }
    ensure!(failed.is_some(), "none failed");
    ensure!(
        cx.buffer_matches(b, 0, len, seed)?,
        "written after deregistration, in the end"
    );
    cx.expect_nothing_more(b)?;
    cx.expect_state(a, QpState::Rts, "the sender")
}

/// Receives of a queue pair, and their statuses.
struct Receives {
    side: QpFixture,
    /// Length of a datagram in bytes.
    len: u32,
    posted: u64,
    ended: BTreeMap<u64, Status>,
}

impl Receives {
    fn of(side: QpFixture, len: u32) -> Self {
        Self {
            side,
            len,
            posted: 0,
            ended: BTreeMap::new(),
        }
    }

    fn are_over(&self) -> bool {
        self.ended.len() as u64 == self.posted
    }

    /// Posts as many receives as the queue holds, in one chain.
    fn post(&mut self, cx: &mut CaseContext<'_>) -> Verdict {
        let (from, to) = (self.posted, self.ended.len() as u64 + RECEIVES);
        let receive = |id| Receive::new(id, &[self.side.sge(0, HEADER + self.len)]);
        let chain = (from..to).map(receive).collect();
        let posted = cx.receive_chain(self.side, chain);
        posted.map_err(crate::case_context::error_line)?;
        self.posted = to;
        Ok(())
    }

    /// Polls up to `most` completions and returns their number.
    fn collect(
        &mut self,
        cx: &mut CaseContext<'_>,
        expected: Status,
        most: usize,
    ) -> Result<usize, String> {
        let QpFixture { host, recv_cq, .. } = self.side;
        let done = cx.poll_up_to(host, recv_cq, most);
        let done = done.map_err(crate::case_context::error_line)?;
        for done in &done {
            ensure!(done.wr_id < self.posted, "{} was not posted", done.wr_id);
            ensure_eq!(
                done.status,
                expected,
                format!("status of receive {}", done.wr_id)
            );
            let before = self.ended.insert(done.wr_id, done.status);
            ensure_eq!(before, None, format!("receive {} ended before", done.wr_id));
        }
        Ok(done.len())
    }
}

fn sender_killed(cx: &mut CaseContext<'_>) -> Verdict {
    let second = cx.second_host()?;
    // Ordinary memory is slow to reach, so that most of the time a datagram is being placed.
    let b = cx.new_qp(second, &deep(true))?;
    super::bring_up(cx, b)?;
    let mut receives = Receives::of(b, longest(cx, second)?);
    for round in 0..12 {
        killed_at_work(cx, &mut receives).map_err(|seen| format!("round {round}: {seen}"))?;
    }
    cx.expect_no_fatal(b)?;
    receives.post(cx)?;
    cx.to_error(b)?;
    cx.wait("flushed receives", |cx| {
        receives.collect(cx, Status::Flushed, MANY)?;
        Ok(receives.are_over().then_some(()))
    })?;
    cx.expect_nothing_more(b)
}

fn killed_at_work(cx: &mut CaseContext<'_>, receives: &mut Receives) -> Verdict {
    let b = receives.side;
    let victim = cx.new_host(crate::HostRole::First)?;
    let a = up(cx, victim)?;
    let ah = handle(cx, a, b.host)?;
    receives.post(cx)?;
    cx.begin_unanswered(victim.id, stream((a, ah, b), receives.len, u64::MAX))?;
    cx.wait("the first of it", |cx| {
        // Only one is polled, so that the sender still has much to do when it is killed.
        let seen = receives.collect(cx, Status::Success, 1)?;
        Ok((seen > 0).then_some(()))
    })?;
    cx.kill(victim)?;
    cx.expect_state(b, QpState::Rts, "the survivor")?;
    // The receive that the dead sender held is available again: other datagrams take every receive.
    let first = cx.first_host()?;
    let other = up(cx, first)?;
    let ah = handle(cx, other, b.host)?;
    cx.wait("every receive", |cx| {
        let from = [other.sge(0, receives.len)];
        let mut chain = vec![Send::new(1, to(ah, b), &from).quiet(); 15];
        chain.push(Send::new(1, to(ah, b), &from));
        cx.post_chain(other, chain)
            .map_err(crate::case_context::error_line)?;
        cx.expect_sent(other, 1, Status::Success)?;
        receives.collect(cx, Status::Success, MANY)?;
        Ok(receives.are_over().then_some(()))
    })
    .map_err(|seen| format!("{seen}: {} of {}", receives.ended.len(), receives.posted))?;
    cx.destroy_qp_fixture(other)
}

fn receiver_killed(cx: &mut CaseContext<'_>) -> Verdict {
    let (a, b) = pair(cx)?;
    let ah = handle(cx, a, b.host)?;
    let op = to(ah, b);
    for id in 0..4 {
        cx.receive(b, id, &[b.sge(0, 100)])?;
    }
    send(cx, a, op, 8, Status::Success)?;
    cx.kill(b.host)?;
    for _ in 0..8 {
        send(cx, a, op, 8, Status::Success)?;
    }
    cx.expect_state(a, QpState::Rts, "the survivor")?;
    cx.expect_no_fatal(a)?;
    let host = cx.second_host()?;
    let c = up(cx, host)?;
    let ah = handle(cx, a, c.host)?;
    cx.receive(c, 1, &[c.sge(0, 100)])?;
    send(cx, a, to(ah, c), 8, Status::Success)?;
    cx.expect_received(c, 1, Status::Success).map(drop)
}
