//! Requests and responses over two channels: the loops of a client and of a server, and how they poll.
//!
//! Two channels in opposite directions can deadlock: each side waits for the other to send, or to free space,
//! while the other waits as well. A side that finds a channel full or empty therefore serves both channels,
//! as [`Group`](headworks::ring::Group) does for rings.

use std::hint::spin_loop;

use headworks::ring::{MessageReceiver, MessageSender, RingError, SendError};
use headworks_net::PollInterval;

use super::{StepProgress, room};
use crate::error::Result;

/// Number of empty polls between two steps of the channels. A step notices what the fast path does not:
/// errors, the peer's death, space that was not announced.
const EVERY: u32 = 256;

/// How a side polls its channels.
#[derive(Clone, Debug, Default)]
pub(super) struct PollTurns {
    spacing: PollInterval,
    vain: u32,
}

impl PollTurns {
    /// Notes that a message was there.
    #[inline]
    pub(super) fn found(&mut self) {
        self.spacing.on_message();
    }

    /// Notes that no message was there, and pauses before a stream that ran dry is polled again. Returns
    /// whether a step of the channels is due.
    #[inline]
    fn pass(&mut self) -> bool {
        for _ in 0..self.spacing.on_empty() {
            spin_loop();
        }
        self.vain = self.vain.wrapping_add(1);
        self.vain.is_multiple_of(EVERY)
    }

    /// Notes that nothing came on `inward`, the only channel, and serves it now and then.
    #[inline]
    pub(super) fn serve_while_empty(
        &mut self,
        inward: &mut impl MessageReceiver,
    ) -> Result<(), RingError> {
        if self.pass() {
            inward.push_head()?;
            inward.step()?;
        }
        Ok(())
    }

    /// Notes that `out`, the only channel, has no room, and serves it now and then.
    #[inline]
    pub(super) fn serve_while_full(
        &mut self,
        out: &mut impl MessageSender,
    ) -> Result<(), RingError> {
        self.vain = self.vain.wrapping_add(1);
        if self.vain.is_multiple_of(EVERY) {
            out.step()?;
        }
        Ok(())
    }

    /// Notes that nothing came on `inward`. Flushes `out`, because its messages must not be held back while
    /// this side waits.
    #[inline]
    fn empty(
        &mut self,
        out: &mut impl MessageSender,
        inward: &mut impl MessageReceiver,
    ) -> Result<(), RingError> {
        out.flush()?;
        if self.pass() {
            serve(out, inward)?;
        }
        Ok(())
    }
}

fn serve(out: &mut impl MessageSender, inward: &mut impl MessageReceiver) -> Result<(), RingError> {
    out.step()?;
    inward.push_head()?;
    inward.step()?;
    Ok(())
}

/// The requests of a client, numbered from 0, and a check of their responses.
pub trait Requests {
    /// Maximum number of requests sent, and of responses taken, in one step.
    const BATCH: usize;
    /// Whether a step either sends a request, which is published at once, or takes a response. The caller can
    /// then read a clock between the two.
    const ALTERNATE: bool;

    /// Sends request `number`.
    fn ask(&self, number: u64, out: &mut impl MessageSender) -> Result<(), SendError>;

    /// Checks that `response` answers request `number`.
    fn check(&self, number: u64, response: &[u8]) -> Result<()>;
}

/// Sends requests, up to a window of them outstanding, and checks that each is answered, in order.
#[derive(Clone, Debug)]
pub struct Client<Q> {
    requests: Q,
    total: u64,
    window: u64,
    /// Maximum number of requests that a step sends, and of responses that it takes; at least 1.
    pub batch: usize,
    sent: u64,
    answered: u64,
    polling: PollTurns,
}

impl<Q: Requests> Client<Q> {
    /// Makes a client that sends the first `total` of `requests`, with `window` (at least 1) of them
    /// outstanding.
    pub(super) fn over(requests: Q, total: u64, window: usize) -> Self {
        Self {
            requests,
            total,
            window: window.max(1) as u64,
            batch: Q::BATCH,
            sent: 0,
            answered: 0,
            polling: PollTurns::default(),
        }
    }

    /// Sends what there is room for, and takes what is there. [`StepProgress::Done`] once all requests are
    /// answered.
    #[inline]
    pub fn step(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<StepProgress> {
        let moved = match (Q::ALTERNATE, self.is_waiting()) {
            (true, true) => self.receive(out, from)?,
            (true, false) => self.send(out, from)?,
            (false, _) => self.send(out, from)? + self.receive(out, from)?,
        };
        match self.answered == self.total {
            true => Ok(StepProgress::Done),
            false => Ok(StepProgress::of(moved)),
        }
    }

    fn send(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<usize> {
        for sent in 0..self.batch.max(1) {
            let number = self.sent;
            if number - self.answered == self.window || number == self.total {
                return Ok(sent);
            }
            if !room(self.requests.ask(number, out))? {
                serve(out, from)?;
                return Ok(sent);
            }
            if Q::ALTERNATE {
                out.flush()?;
            }
            self.sent += 1;
        }
        Ok(self.batch)
    }

    fn receive(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<usize> {
        for received in 0..self.batch.max(1) {
            // No request is outstanding, so a message would answer none.
            if !self.is_waiting() {
                return Ok(received);
            }
            let (requests, due) = (&self.requests, self.answered);
            let Some(checked) = from.try_recv_with(|message| requests.check(due, message))? else {
                self.polling.empty(out, from)?;
                return Ok(received);
            };
            checked?;
            self.polling.found();
            self.answered += 1;
        }
        Ok(self.batch)
    }

    /// Returns whether a request is outstanding.
    pub fn is_waiting(&self) -> bool {
        self.sent > self.answered
    }

    /// Returns how many responses came and were right.
    pub fn answered(&self) -> u64 {
        self.answered
    }
}

/// Parses and answers requests.
pub trait Service {
    /// A parsed request.
    type Request: Copy;

    /// Maximum number of requests answered in one step.
    const BATCH: usize;
    /// Whether each response is published at once.
    const PROMPT: bool;

    /// Parses a request.
    fn parse(&self, message: &[u8]) -> Result<Self::Request>;

    /// Sends the response to a request.
    fn answer(&self, to: Self::Request, out: &mut impl MessageSender) -> Result<(), SendError>;
}

/// Answers requests in the order in which they come.
#[derive(Clone, Debug)]
pub struct Server<S: Service> {
    service: S,
    /// A request that is received but not answered for lack of room. There is at most one; the others stay in
    /// the channel.
    waiting: Option<S::Request>,
    answered: u64,
    /// Maximum number of requests that a step answers; at least 1.
    pub batch: usize,
    polling: PollTurns,
}

impl<S: Service> Server<S> {
    /// Makes a server of `service`.
    pub fn new(service: S) -> Self {
        Self {
            service,
            waiting: None,
            answered: 0,
            batch: S::BATCH,
            polling: PollTurns::default(),
        }
    }

    /// Answers the requests that are there, as far as there is room. Never returns [`StepProgress::Done`]:
    /// only the client knows whether it will send another request.
    #[inline]
    pub fn step(
        &mut self,
        out: &mut impl MessageSender,
        from: &mut impl MessageReceiver,
    ) -> Result<StepProgress> {
        for answered in 0..self.batch.max(1) {
            let service = &self.service;
            if self.waiting.is_none() {
                let request = from.try_recv_with(|message| service.parse(message))?;
                self.waiting = request.transpose()?;
            }
            let Some(request) = self.waiting else {
                self.polling.empty(out, from)?;
                return Ok(StepProgress::of(answered));
            };
            if !room(service.answer(request, out))? {
                serve(out, from)?;
                return Ok(StepProgress::of(answered));
            }
            if S::PROMPT {
                out.flush()?;
            }
            self.polling.found();
            self.waiting = None;
            self.answered += 1;
        }
        Ok(StepProgress::Worked)
    }

    /// Returns how many requests were answered so far.
    pub fn answered(&self) -> u64 {
        self.answered
    }
}
