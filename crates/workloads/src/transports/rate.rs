//! As many messages as possible, one way. The receiver measures, after a warm-up.

use headworks::verbs::Instant;

use super::cpu_cost::{self, Price};
use super::job::Job;
use super::message::Verdict;
use super::{Arm, Drive, Fill, Taken};
use crate::error::WorkloadError;
use crate::pair::{PairContext, PairCx, wait};
use crate::report::Report;
use headworks_stage::{ActorError, Cx, Step};

/// Steps without a message after which the receiver looks whether the sender has finished.
const LOOK_EVERY: u32 = 256;
/// Messages between two clock reads of the receiver, at least: a ring hands over a few at a time,
/// and a clock read costs more than one of them.
const CLOCK_EVERY: usize = 256;

/// The sending end.
#[derive(Debug)]
pub struct Sender<F> {
    job: Job,
    price: Option<Price>,
    fill: F,
    began: Option<Instant>,
    sent: u64,
    /// Messages sent during the warm-up.
    warm: u64,
    state: Sending,
}

#[derive(Debug, PartialEq)]
enum Sending {
    Offering,
    Flushing,
    Waiting,
}

impl<F: Fill + Default> Sender<F> {
    /// For `job`.
    pub fn new(job: Job, pair: &PairContext) -> Self {
        Self {
            price: price_of(&job, pair),
            job,
            fill: F::default(),
            began: None,
            sent: 0,
            warm: 0,
            state: Sending::Offering,
        }
    }
}

impl<A: Arm, F: Fill> Drive<A> for Sender<F> {
    fn step(&mut self, arm: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        match self.state {
            Sending::Offering => {
                let now = cx.now();
                let began = *self.began.get_or_insert(now);
                let (n, price) = (self.job.batch(), self.price);
                self.sent += cpu_cost::offer(arm, n, &mut self.fill, price, cx)? as u64;
                let enough = self.sent >= self.job.warm_messages() * 2;
                let time = now.since(began);
                if time < self.job.warm() {
                    self.warm = self.sent;
                }
                let is_sent = is_whole(&self.job, self.sent - self.warm);
                if enough && (is_sent || time >= self.job.warm() + self.job.run()) {
                    self.state = Sending::Flushing;
                }
            }
            Sending::Flushing => {
                if arm.flush()? {
                    arm.finish()?;
                    cx.mail(&self.sent.to_le_bytes())?;
                    self.state = Sending::Waiting;
                }
            }
            Sending::Waiting => {
                arm.flush()?;
                return Ok(match cx.mailed() {
                    Some(_) => Step::Done,
                    None => wait(),
                });
            }
        }
        Ok(Step::Again)
    }

    fn moved(&self) -> u64 {
        self.sent
    }
}

/// Sends where nobody takes anything, and measures itself.
#[derive(Debug)]
pub struct Blast<F> {
    job: Job,
    price: Option<Price>,
    fill: F,
    first: Option<Instant>,
    begin: Option<(Instant, u64)>,
    sent: u64,
    report: Option<Report>,
}

impl<F: Fill + Default> Blast<F> {
    /// For `job`.
    pub fn new(job: Job, pair: &PairContext) -> Self {
        Self {
            price: price_of(&job, pair),
            job,
            fill: F::default(),
            first: None,
            begin: None,
            sent: 0,
            report: None,
        }
    }
}

impl<A: Arm, F: Fill> Drive<A> for Blast<F> {
    fn step(&mut self, arm: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        let first = *self.first.get_or_insert(now);
        let warm = now.since(first) >= self.job.warm() && self.sent >= self.job.warm_messages();
        if warm && self.begin.is_none() {
            self.begin = Some((now, self.sent));
        }
        if let Some((began, before)) = self.begin
            && (now.since(began) >= self.job.run() || is_whole(&self.job, self.sent - before))
        {
            self.report = Some(rate((began, before), (now, self.sent)));
            cx.mail(b"finished")?;
            return Ok(Step::Done);
        }
        let (n, price) = (self.job.batch(), self.price);
        self.sent += cpu_cost::offer(arm, n, &mut self.fill, price, cx)? as u64;
        // Nobody takes anything, so it never finds the ring full: others hand the core over then.
        if self.job.yields {
            std::thread::yield_now();
        }
        Ok(Step::Again)
    }

    fn report(&self) -> Result<Report, WorkloadError> {
        Ok(self.report.clone().unwrap_or(Report::None))
    }

    fn moved(&self) -> u64 {
        self.sent
    }
}

/// Is written to, and takes nothing.
#[derive(Debug)]
pub struct Bystander;

impl<A: Arm> Drive<A> for Bystander {
    fn step(&mut self, _: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        Ok(match cx.mailed() {
            Some(_) => Step::Done,
            None => wait(),
        })
    }

    fn moved(&self) -> u64 {
        0
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct Receiver<S> {
    job: Job,
    price: Option<Price>,
    sink: S,
    taken: u64,
    total: Option<u64>,
    idle: u32,
    first: Option<Instant>,
    begin: Option<(Instant, u64)>,
    end: (Instant, u64),
}

impl<S: Verdict> Receiver<S> {
    /// For `job`.
    pub fn new(job: Job, pair: &PairContext) -> Self {
        Self {
            price: price_of(&job, pair),
            job,
            sink: S::default(),
            taken: 0,
            total: None,
            idle: 0,
            first: None,
            begin: None,
            end: (Instant::ZERO, 0),
        }
    }

    fn count(&mut self, n: usize, cx: &mut Cx<'_>) {
        self.taken += n as u64;
        let unread = self.taken - self.end.1;
        if unread < self.job.batch().min(CLOCK_EVERY) as u64 {
            return;
        }
        let now = cx.now();
        self.end = (now, self.taken);
        let first = *self.first.get_or_insert(now);
        // Where time is virtual it waits for a moment when nothing lies in the ring, unless there is none.
        let patience = match self.price {
            None => self.job.warm(),
            Some(_) => self.job.warm().times(2),
        };
        if self.begin.is_none() && self.is_warm() && now.since(first) >= patience {
            self.begin = Some(self.end);
        }
    }

    /// Nothing was there: where time is virtual, measuring begins now, so that what came before is not counted,
    /// all of which lay there and was taken in no time.
    fn found_nothing(&mut self, cx: &mut Cx<'_>) {
        let Some(first) = self.first else {
            return;
        };
        if self.begin.is_none() && self.price.is_some() && self.is_warm() {
            let now = cx.now();
            if now.since(first) >= self.job.warm() {
                (self.begin, self.end) = (Some((now, self.taken)), (now, self.taken));
            }
        }
    }

    /// Whether every slot was used.
    fn is_warm(&self) -> bool {
        self.taken >= self.job.warm_messages()
    }
}

impl<A: Arm, S: Verdict> Drive<A> for Receiver<S> {
    fn step(&mut self, arm: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let price = self.price;
        match cpu_cost::take(arm, self.job.batch(), &mut self.sink, price, cx)? {
            Taken::Messages(0) => {
                self.found_nothing(cx);
                self.idle += 1;
                if self.idle.is_multiple_of(LOOK_EVERY) && self.total.is_none() {
                    self.total = cx.mailed().and_then(|bytes| number(&bytes));
                }
                if self.total != Some(self.taken) {
                    return Ok(Step::Again);
                }
            }
            Taken::Messages(n) => {
                self.count(n, cx);
                return Ok(Step::Again);
            }
            Taken::Ended => {}
        }
        cx.mail(b"taken")?;
        Ok(Step::Done)
    }

    fn report(&self) -> Result<Report, WorkloadError> {
        self.sink.check()?;
        Ok(rate(self.begin.unwrap_or(self.end), self.end))
    }

    fn moved(&self) -> u64 {
        self.taken
    }
}

/// Whether so many messages after the warm-up are all.
fn is_whole(job: &Job, sent: u64) -> bool {
    job.workload.volume().is_some_and(|volume| sent >= volume)
}

/// What a message of `job` costs, where time is virtual.
pub(super) fn price_of(job: &Job, pair: &PairContext) -> Option<Price> {
    let prices = pair.prices?;
    Some(Price::of(job.channel, job.size, prices))
}

/// So many messages more at the end than at the beginning, in the time between.
fn rate((began, before): (Instant, u64), (ended, after): (Instant, u64)) -> Report {
    Report::Rate {
        messages: after - before,
        nanos: ended.since(began).nanos(),
        began_ns: began.nanos(),
    }
}

pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
