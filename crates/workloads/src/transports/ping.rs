//! A message there and back, one at a time: half the round trip is the latency, unless round trips were
//! asked for.

use headworks::verbs::Instant;

use super::cpu_cost::{self, Price};
use super::job::{Job, Workload};
use super::message::{Mark, Marks, Verdict};
use super::rate::price_of;
use super::{Arm, Drive, Taken};
use crate::error::WorkloadError;
use crate::latency::Histogram;
use crate::pair::{PairContext, PairCx, wait};
use crate::report::Report;
use headworks_stage::{ActorError, Cx, Step};

/// Looks for a message in one step.
const TRIES: u32 = 64;
/// Steps without a message after which the echoing end looks whether the other has finished.
const LOOK_EVERY: u32 = 64;

/// The end that measures.
#[derive(Debug)]
pub struct Ping {
    job: Job,
    price: Option<Price>,
    began: Option<Instant>,
    sent_at: Instant,
    state: Pinging,
    mark: Mark,
    marks: Marks,
    histogram: Histogram,
    /// Round trips, ever.
    rounds: u64,
    /// Of those, the measured ones.
    measured: u64,
}

#[derive(Debug)]
enum Pinging {
    Send,
    Flush,
    Take,
    Finish,
    Wait,
}

impl Ping {
    /// For `job`.
    pub fn new(job: Job, pair: &PairContext) -> Self {
        Self {
            price: price_of(&job, pair),
            job,
            began: None,
            sent_at: Instant::ZERO,
            state: Pinging::Send,
            mark: Mark::default(),
            marks: Marks::default(),
            histogram: Histogram::default(),
            rounds: 0,
            measured: 0,
        }
    }

    fn came_back(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let since = now.since(began);
        self.rounds += 1;
        let (mut warm, mut over) = (
            since >= self.job.warm(),
            since >= self.job.warm() + self.job.run(),
        );
        let mut most = u64::MAX;
        if let Workload::Rounds {
            warm: before,
            measured,
        } = self.job.workload
        {
            warm |= self.rounds > before;
            most = measured;
        }
        if warm {
            self.histogram.record(now.since(self.sent_at));
            self.measured += 1;
        }
        over |= self.measured >= most;
        // The time of arrival is the time of the next departure: one clock read per round trip.
        self.sent_at = now;
        self.state = if over { Pinging::Finish } else { Pinging::Send };
    }
}

impl<A: Arm> Drive<A> for Ping {
    fn step(&mut self, arm: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let price = self.price;
        for _ in 0..TRIES {
            match self.state {
                Pinging::Send => {
                    if self.began.is_none() {
                        self.sent_at = cx.now();
                    }
                    if cpu_cost::offer(arm, 1, &mut self.mark, price, cx)? == 1 {
                        self.state = Pinging::Flush;
                    } else if price.is_some() {
                        break;
                    }
                }
                Pinging::Flush => {
                    if arm.flush()? {
                        self.state = Pinging::Take;
                    } else if price.is_some() {
                        break;
                    }
                }
                Pinging::Take => match cpu_cost::take(arm, 1, &mut self.marks, price, cx)? {
                    // Where time is virtual it must pass between two looks.
                    Taken::Messages(0) if price.is_some() => break,
                    Taken::Messages(0) => std::hint::spin_loop(),
                    Taken::Messages(_) => self.came_back(cx.now()),
                    Taken::Ended => return Err(ActorError::new("the other end closed")),
                },
                Pinging::Finish => {
                    arm.finish()?;
                    cx.mail(b"finished")?;
                    self.state = Pinging::Wait;
                }
                Pinging::Wait => {
                    arm.flush()?;
                    if cx.mailed().is_none() {
                        return Ok(wait());
                    }
                    self.marks.check()?;
                    return Ok(Step::Done);
                }
            }
        }
        Ok(Step::Again)
    }

    fn report(&self) -> Result<Report, WorkloadError> {
        let scale = match self.job.workload {
            Workload::Rounds { .. } => 1.0,
            _ => 0.5,
        };
        Ok(Report::Latency(self.histogram.quantiles(scale)))
    }

    fn moved(&self) -> u64 {
        self.rounds
    }
}

/// The end that sends everything back.
#[derive(Debug)]
pub struct Pong {
    price: Option<Price>,
    mark: Mark,
    marks: Marks,
    owed: usize,
    flushed: bool,
    idle: u32,
    /// Messages sent back, ever.
    rounds: u64,
}

impl Pong {
    /// For `job`.
    pub fn new(job: &Job, pair: &PairContext) -> Self {
        Self {
            price: price_of(job, pair),
            mark: Mark::default(),
            marks: Marks::default(),
            owed: 0,
            flushed: false,
            idle: 0,
            rounds: 0,
        }
    }
}

impl<A: Arm> Drive<A> for Pong {
    fn step(&mut self, arm: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let price = self.price;
        let mut ended = false;
        for _ in 0..TRIES {
            if self.owed > 0 {
                let sent = cpu_cost::offer(arm, self.owed, &mut self.mark, price, cx)?;
                self.owed -= sent;
                self.flushed = false;
                if sent == 0 && price.is_some() {
                    break;
                }
                continue;
            }
            if !self.flushed {
                self.flushed = arm.flush()?;
                if !self.flushed && price.is_some() {
                    break;
                }
                continue;
            }
            match cpu_cost::take(arm, 1, &mut self.marks, price, cx)? {
                Taken::Messages(0) if price.is_some() => break,
                Taken::Messages(0) => std::hint::spin_loop(),
                Taken::Messages(n) => {
                    self.owed = n;
                    self.rounds += n as u64;
                    self.idle = 0;
                }
                Taken::Ended => {
                    ended = true;
                    break;
                }
            }
        }
        self.idle += 1;
        if self.idle.is_multiple_of(LOOK_EVERY) {
            ended |= cx.mailed().is_some();
        }
        if ended {
            self.marks.check()?;
            arm.finish()?;
            cx.mail(b"finished")?;
            return Ok(Step::Done);
        }
        Ok(Step::Again)
    }

    fn moved(&self) -> u64 {
        self.rounds
    }
}
