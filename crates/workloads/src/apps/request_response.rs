//! Requests and responses over two channels: the loops of a client and of a server, and how they poll.
//!
//! Two channels that cross each other can stop each other: each side waits for what the other would send or free
//! if it were not itself waiting. A side that finds a channel full or empty therefore serves both, as
//! [`Group`](headworks::ring::Group) does for rings.

use std::hint::spin_loop;

use headworks::ring::{MessageReceiver, MessageSender, RingError, SendError};
use headworks_net::PollInterval;

use super::{StepProgress, room};
use crate::error::Result;

/// Vain polls between two looks at what the hot calls do not see: errors, the peer's death, space that was not
/// announced.
const EVERY: u32 = 256;

/// How a side polls its channels.
#[derive(Clone, Debug, Default)]
pub(super) struct PollTurns {
    spacing: PollInterval,
    vain: u32,
}

impl PollTurns {
    /// A message was there.
    #[inline]
    pub(super) fn found(&mut self) {
        self.spacing.on_message();
    }

    /// No message was there: leaves a stream that ran dry alone for a moment. Whether a look at the rest is due.
    #[inline]
    fn pass(&mut self) -> bool {
        for _ in 0..self.spacing.on_empty() {
            spin_loop();
        }
        self.vain = self.vain.wrapping_add(1);
        self.vain.is_multiple_of(EVERY)
    }

    /// Nothing came on `inward`, the only channel there is.
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

    /// `out`, the only channel there is, has no room.
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

    /// Nothing came on `inward`: what was sent on `out` must not be held back meanwhile.
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

/// The requests of a client, by number from 0, and what they must be answered.
pub trait Requests {
    /// Requests sent, and responses taken, in one step at most.
    const BATCH: usize;
    /// A step sends a request, which is published at once, or takes a response, never both: a caller can read a
    /// clock between them.
    const ALTERNATE: bool;

    /// Sends a request.
    fn ask(&self, number: u64, out: &mut impl MessageSender) -> Result<(), SendError>;

    /// Checks that `response` answers a request.
    fn check(&self, number: u64, response: &[u8]) -> Result<()>;
}

/// Sends requests, up to a window of them at a time, and checks that each is answered, in order.
#[derive(Clone, Debug)]
pub struct Client<Q> {
    requests: Q,
    total: u64,
    window: u64,
    /// Requests that a step sends, and responses that it takes, at most; at least 1.
    pub batch: usize,
    sent: u64,
    answered: u64,
    polling: PollTurns,
}

impl<Q: Requests> Client<Q> {
    /// Sends the first `total` of `requests`, `window` (at least 1) of them at a time.
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

    /// Sends what there is room for, and takes what is there. [`StepProgress::Done`] once every request was answered.
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
            // With nothing to wait for, the next message would answer nothing.
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

    /// Whether a request is on its way.
    pub fn is_waiting(&self) -> bool {
        self.sent > self.answered
    }

    /// Responses that came, and were right.
    pub fn answered(&self) -> u64 {
        self.answered
    }
}

/// What a server answers.
pub trait Service {
    /// A request, parsed.
    type Request: Copy;

    /// Requests answered in one step at most.
    const BATCH: usize;
    /// Each response is published at once.
    const PROMPT: bool;

    /// Parses a request.
    fn parse(&self, message: &[u8]) -> Result<Self::Request>;

    /// Sends the response.
    fn answer(&self, to: Self::Request, out: &mut impl MessageSender) -> Result<(), SendError>;
}

/// Answers requests in the order in which they come.
#[derive(Clone, Debug)]
pub struct Server<S: Service> {
    service: S,
    /// Received, and not answered for lack of room: at most one, so the others wait in their channel.
    waiting: Option<S::Request>,
    answered: u64,
    /// Requests that a step answers at most; at least 1.
    pub batch: usize,
    polling: PollTurns,
}

impl<S: Service> Server<S> {
    /// A server of `service`.
    pub fn new(service: S) -> Self {
        Self {
            service,
            waiting: None,
            answered: 0,
            batch: S::BATCH,
            polling: PollTurns::default(),
        }
    }

    /// Answers what is there, as far as there is room. Never [`StepProgress::Done`]: only the client knows whether it
    /// will ask again.
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

    /// Requests answered so far.
    pub fn answered(&self) -> u64 {
        self.answered
    }
}
