//! Posts requests, polls completions, arms CQs.

use super::{CaseContext, Host, QpFixture};
use crate::Verdict;
use crate::call::{Call, Done, Id, Op, Piece, Receive, Refusal, Remote, Reply, Send};

/// Form of the requests posted after one that fails. They must not be executed.
#[derive(Clone, Debug)]
pub struct FollowingRequests {
    op: Op,
    fenced: bool,
}

impl FollowingRequests {
    /// Returns such a request with these pieces.
    pub fn gather(&self, wr_id: u64, pieces: &[Piece]) -> Send {
        self.flagged(Send::new(wr_id, self.op, pieces))
    }

    /// Returns such a request with an inline payload.
    pub fn inline(&self, wr_id: u64, bytes: &[u8]) -> Send {
        self.flagged(Send::inline(wr_id, self.op, bytes))
    }

    fn flagged(&self, send: Send) -> Send {
        match self.fenced {
            true => send.fenced(),
            false => send,
        }
    }
}

impl CaseContext<'_> {
    /// Returns the form of requests that are not executed if `failing`, posted before them, fails. It is a
    /// WRITE to `remote`. Behind a READ or an atomic it has a fence, because without one it may be executed
    /// before the failure is noticed. Behind a WRITE, where WRITEs are not ordered, it is a SEND.
    pub fn following_requests(
        &mut self,
        failing: Op,
        remote: Remote,
    ) -> Result<FollowingRequests, String> {
        let host = self.first_host()?;
        let ordered = self.facts(host)?.promises.ordered_between_writes;
        let brings = matches!(
            failing,
            Op::Read(_) | Op::CompareSwap { .. } | Op::FetchAdd { .. }
        );
        let op = match failing {
            Op::Write(_) if !ordered => Op::Send,
            _ => Op::Write(remote),
        };
        Ok(FollowingRequests { op, fenced: brings })
    }

    /// Posts a chain of send requests.
    pub fn post_chain(&mut self, side: QpFixture, chain: Vec<Send>) -> Result<(), Refusal> {
        let qp = side.qp;
        let call = Call::PostSend { qp, chain };
        self.try_call(side.host.id, call).map(drop)
    }

    /// Posts one send request.
    pub fn post_one(&mut self, side: QpFixture, send: Send) -> Verdict {
        self.post_chain(side, vec![send]).map_err(super::error_line)
    }

    /// Posts one signalled send request.
    pub fn post(&mut self, side: QpFixture, wr_id: u64, op: Op, pieces: &[Piece]) -> Verdict {
        self.post_one(side, Send::new(wr_id, op, pieces))
    }

    /// Posts a chain of receives to the SRQ of a fixture, or to its queue pair if there is none.
    pub fn receive_chain(&mut self, side: QpFixture, chain: Vec<Receive>) -> Result<(), Refusal> {
        let queue = side.srq.unwrap_or(side.qp);
        let call = Call::PostRecv { queue, chain };
        self.try_call(side.host.id, call).map(drop)
    }

    /// Posts one receive.
    pub fn receive(&mut self, side: QpFixture, wr_id: u64, pieces: &[Piece]) -> Verdict {
        let chain = vec![Receive::new(wr_id, pieces)];
        self.receive_chain(side, chain).map_err(super::error_line)
    }

    /// Polls up to `most` completions of a CQ.
    pub fn poll_up_to(&mut self, host: Host, cq: Id, most: usize) -> Result<Vec<Done>, Refusal> {
        match self.try_call(host.id, Call::Poll { cq, most })? {
            Reply::Completions(done) => Ok(done),
            other => Err(Refusal::mistake(format!("instead of them: {other:?}"))),
        }
    }

    /// Polls up to 16 completions of a CQ.
    pub fn poll(&mut self, host: Host, cq: Id) -> Result<Vec<Done>, String> {
        self.poll_up_to(host, cq, 16).map_err(super::error_line)
    }

    /// Polls up to 16 completions of a CQ. Returns none only if there are none: it repeats polls that the
    /// device may answer with nothing.
    pub fn poll_past_empty(&mut self, host: Host, cq: Id) -> Result<Vec<Done>, String> {
        for _ in 0..self.behaviour().empty_polls_max {
            let done = self.poll(host, cq)?;
            if !done.is_empty() {
                return Ok(done);
            }
        }
        self.poll(host, cq)
    }

    /// Arms a CQ.
    pub fn arm(&mut self, host: Host, cq: Id, solicited_only: bool) -> Verdict {
        let call = Call::Arm { cq, solicited_only };
        self.call_ok(host.id, call).map(drop)
    }

    /// Arms both CQs of a fixture.
    pub fn arm_both(&mut self, side: QpFixture) -> Verdict {
        self.arm(side.host, side.send_cq, false)?;
        self.arm(side.host, side.recv_cq, false)
    }

    /// Takes the next event of the fixture's channel and returns its CQ.
    pub fn channel_event(&mut self, side: QpFixture) -> Result<Option<Id>, String> {
        let channel = side.channel;
        match self.call_ok(side.host.id, Call::ChannelEvent { channel })? {
            Reply::CqEvent(id) => Ok(id),
            other => Err(format!("instead of an event: {other:?}")),
        }
    }

    /// Sleeps until the fixture's channel is readable.
    pub fn wait_channel_readable(&mut self, side: QpFixture) -> Verdict {
        let call = Call::Sleep {
            channel: side.channel,
            at_most_ms: 10_000,
        };
        match self.call_ok(side.host.id, call)? {
            Reply::Flag(true) => Ok(()),
            _ => Err("no event on the channel within 10 s".to_owned()),
        }
    }

    /// Sleeps until the fixture's channel has an event, takes it and returns its CQ.
    pub fn wait_channel_event(&mut self, side: QpFixture) -> Result<Id, String> {
        loop {
            if let Some(id) = self.channel_event(side)? {
                return Ok(id);
            }
            self.wait_channel_readable(side)?;
        }
    }
}
