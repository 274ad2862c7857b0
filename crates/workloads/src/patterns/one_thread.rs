//! Requesters and a responder that take turns in one thread: the order of all work is the same in every run, so its
//! instructions can be counted, and the cost of scanning is not hidden by waiting.

use std::sync::Arc;

use headworks::verbs::{Device, Instant};
use headworks_baselines::WordMemory;
use headworks_net::clock;
use headworks_patterns::topology::OneResponder;
use headworks_patterns::verb::Verb;
use headworks_patterns::{PatternError, RequestLoad, Requester, Responder, connect};

use super::design::{WithVerbs, with_verbs};
use super::task::PatternTask;
use crate::error::{Result, WorkloadError};

/// Requesters whose turn comes after one another, before the responder's.
pub struct OneThread {
    turns: Box<dyn TakeTurns>,
}

/// A set of ends of any design.
trait TakeTurns {
    fn run(&mut self, count: u64) -> Result<(), Box<PatternError>>;
}

impl OneThread {
    /// Opens the `task.requesters` requesters on one device, and one responder on the other.
    ///
    /// # Errors
    ///
    /// The task is not for these devices, or they lack resources.
    pub fn open(task: &PatternTask, devices: [Arc<dyn Device>; 2]) -> Result<Self> {
        task.check()?;
        let (design, inline) = (task.design, task.inline);
        let turns = with_verbs(design, inline, Open { task, devices });
        Ok(Self { turns: turns? })
    }

    /// Has each requester make `count` requests and take the responses. Returns the nanoseconds per request.
    ///
    /// # Errors
    ///
    /// A request failed, or a response was wrong.
    pub fn run(&mut self, count: u64, requesters: usize) -> Result<f64> {
        let began: Instant = clock::now();
        self.turns.run(count).map_err(|why| *why)?;
        let nanos = clock::now().since(began).nanos();
        Ok(nanos as f64 / (count * requesters as u64) as f64)
    }
}

struct Open<'a> {
    task: &'a PatternTask,
    devices: [Arc<dyn Device>; 2],
}

impl WithVerbs for Open<'_> {
    type Output = Result<Box<dyn TakeTurns>>;

    fn with<Request: Verb, Response: Verb, const INLINE: bool>(self) -> Self::Output {
        let [requesting, responding] = self.devices;
        let (config, count) = (self.task.config(), self.task.requesters);
        let mut responder = Responder::<Request, Response>::open(responding, config, count)?;
        let mut requesters = Vec::new();
        for peer in 0..count {
            let mut requester = Requester::<Request, Response, OneResponder, INLINE>::open(
                requesting.clone(),
                config,
                1,
                OneResponder,
            )?;
            let (ours, theirs) = (requester.response_area(), responder.request_area(peer));
            connect(
                (requester.ports(), 0, ours),
                (responder.ports(), peer, theirs),
            )?;
            requesters.push(requester);
        }
        // Its receives are posted before the first request comes.
        responder.answer_next(|_, _| {})?;
        Ok(Box::new(Ends {
            requesters,
            responder,
        }))
    }
}

struct Ends<Request: Verb, Response: Verb, const INLINE: bool> {
    requesters: Vec<Requester<Request, Response, OneResponder, INLINE>>,
    responder: Responder<Request, Response>,
}

/// The outcome of a turn. A thin error keeps it in a register.
type Turn = Result<(), Box<PatternError>>;

/// A number of requests, of which nothing is measured.
struct Countdown(u64);

impl RequestLoad for Countdown {
    #[inline(always)]
    fn begin(&mut self) -> bool {
        if self.0 == 0 {
            return false;
        }
        self.0 -= 1;
        true
    }

    #[inline(always)]
    fn sent(&mut self, _: usize) {}

    #[inline(always)]
    fn received(&mut self, _: usize, _: u64, _: &WordMemory, _: usize) -> Result<(), PatternError> {
        Ok(())
    }
}

impl<Request: Verb, Response: Verb, const INLINE: bool> Ends<Request, Response, INLINE> {
    /// The turn of one requester. Instruction counts find it by its name.
    #[inline(never)]
    fn requester_turn(&mut self, at: usize, load: &mut Countdown) -> Turn {
        self.requesters[at].step(load)?;
        Ok(())
    }

    /// The turn of the responder, in which it answers one request. Instruction counts find it by its name.
    #[inline(never)]
    fn responder_turn(&mut self) -> Turn {
        self.responder.answer_next(|_, _| {})?;
        Ok(())
    }
}

impl<Request: Verb, Response: Verb, const INLINE: bool> TakeTurns
    for Ends<Request, Response, INLINE>
{
    fn run(&mut self, count: u64) -> Result<(), Box<PatternError>> {
        let mut loads: Vec<_> = self.requesters.iter().map(|_| Countdown(count)).collect();
        let before = self.responder.answered();
        let all = before + count * self.requesters.len() as u64;
        let (mut last, mut idle) = (before, 0u32);
        while self.responder.answered() < all
            || self.requesters.iter().any(|one| one.outstanding() > 0)
        {
            for (at, load) in loads.iter_mut().enumerate() {
                self.requester_turn(at, load)?;
            }
            for _ in 0..self.requesters.len() {
                self.responder_turn()?;
            }
            let answered = self.responder.answered();
            idle = if answered > last { 0 } else { idle + 1 };
            last = answered;
            if idle % 1024 == 1023 {
                self.responder.check()?;
                let mut requesters = self.requesters.iter_mut();
                requesters.try_for_each(Requester::check)?;
            }
        }
        Ok(())
    }
}

impl From<PatternError> for WorkloadError {
    fn from(why: PatternError) -> Self {
        Self(why.to_string())
    }
}
