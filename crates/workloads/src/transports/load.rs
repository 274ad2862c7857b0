//! Latency under load, open loop: messages are due at fixed times whether or not earlier ones
//! were taken, and latency counts from when a message was due.

use headworks::verbs::{Instant, time::Duration};

use super::cpu_cost::{self, Price};
use super::job::Job;
use super::message::{Stamp, Stamps};
use super::rate::{number, price_of};
use super::{Arm, Drive, Taken};
use crate::error::WorkloadError;
use crate::latency::{Histogram, Schedule};
use crate::pair::{PairContext, PairCx, wait};
use crate::report::Report;
use headworks_stage::{ActorError, Cx, Step};

/// Latencies measured per second, about.
const MEASURED_PER_SECOND: f64 = 500_000.0;
/// Messages taken between two clock reads, and sent between two looks at the schedule.
const BATCH: usize = 16;
/// Steps without a message after which the receiver looks whether the sender has finished.
const LOOK_EVERY: u32 = 256;
/// A sender that cannot keep up gives up after so many times the planned time.
const PATIENCE: u64 = 3;

/// The sending end.
#[derive(Debug)]
pub struct Sender {
    job: Job,
    price: Option<Price>,
    per_second: f64,
    plan: Option<Plan>,
    state: Sending,
}

#[derive(Debug)]
enum Sending {
    Offering,
    Flushing,
    Waiting,
}

impl Sender {
    /// For `job`, so many messages per second.
    pub fn new(job: Job, per_second: f64, pair: &PairContext) -> Self {
        Self {
            price: price_of(&job, pair),
            job,
            per_second,
            plan: None,
            state: Sending::Offering,
        }
    }
}

#[derive(Debug)]
struct Plan {
    stamp: Stamp,
    total: u64,
    give_up: Instant,
}

impl Plan {
    fn new(job: &Job, per_second: f64, now: Instant) -> Self {
        let (warm, run) = (job.warm(), job.run());
        let count = |d: Duration| (d.as_secs_f64() * per_second).ceil() as u64;
        let stamp = Stamp {
            schedule: Schedule::new(now, per_second),
            next: 0,
            from: count(warm),
            every: (per_second / MEASURED_PER_SECOND).ceil().max(1.0) as u64,
        };
        let total = count(warm + run).max(1);
        Self {
            stamp,
            total,
            give_up: now + (warm + run).times(PATIENCE),
        }
    }
}

impl<A: Arm> Drive<A> for Sender {
    fn step(&mut self, arm: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        let plan = self
            .plan
            .get_or_insert_with(|| Plan::new(&self.job, self.per_second, now));
        let (stamp, total, give_up) = (&mut plan.stamp, plan.total, plan.give_up);
        match self.state {
            Sending::Offering => {
                let due = stamp
                    .schedule
                    .due(now)
                    .min(total)
                    .saturating_sub(stamp.next);
                if due > 0 {
                    cpu_cost::offer(arm, BATCH.min(due as usize), stamp, self.price, cx)?;
                } else {
                    arm.flush()?;
                }
                if stamp.next >= total || now >= give_up {
                    self.state = Sending::Flushing;
                }
            }
            Sending::Flushing => {
                if arm.flush()? {
                    arm.finish()?;
                    cx.mail(&stamp.next.to_le_bytes())?;
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
        self.plan.as_ref().map_or(0, |plan| plan.stamp.next)
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct Receiver {
    price: Option<Price>,
    stamps: Stamps,
    histogram: Histogram,
    taken: u64,
    total: Option<u64>,
    idle: u32,
}

impl Receiver {
    /// For `job`.
    pub fn new(job: &Job, pair: &PairContext) -> Self {
        Self {
            price: price_of(job, pair),
            stamps: Stamps::default(),
            histogram: Histogram::default(),
            taken: 0,
            total: None,
            idle: 0,
        }
    }
}

impl<A: Arm> Drive<A> for Receiver {
    fn step(&mut self, arm: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let price = self.price;
        match cpu_cost::take(arm, BATCH, &mut self.stamps, price, cx)? {
            Taken::Messages(0) => {
                self.idle += 1;
                if self.idle.is_multiple_of(LOOK_EVERY) && self.total.is_none() {
                    self.total = cx.mailed().and_then(|bytes| number(&bytes));
                }
                if self.total != Some(self.taken) {
                    return Ok(Step::Again);
                }
            }
            Taken::Messages(n) => {
                self.taken += n as u64;
                if !self.stamps.due.is_empty() {
                    let now = cx.now();
                    for due in self.stamps.due.drain(..) {
                        self.histogram.record(now.since(due));
                    }
                }
                return Ok(Step::Again);
            }
            Taken::Ended => {}
        }
        cx.mail(b"taken")?;
        Ok(Step::Done)
    }

    fn report(&self) -> Result<Report, WorkloadError> {
        Ok(Report::Latency(self.histogram.quantiles(1.0)))
    }

    fn moved(&self) -> u64 {
        self.taken
    }
}
