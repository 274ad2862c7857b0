//! Messages one way: as many as possible, or an open-loop load. One sending end and one receiving end, each with its own
//! [`Source`] or [`Meter`].

use headworks::verbs::{Instant, time::Duration};
use headworks_stage::{ActorError, Cx, Step};

use super::cpu_cost;
use super::job::Job;
use super::message::{Checked, Contents, Stamp, Stamps, Written};
use super::{Arm, Sink, Taken};
use crate::driven::Drive;
use crate::error::WorkloadError;
use crate::latency::{Histogram, Schedule};
use crate::pair::{PairCx, wait};
use crate::report::Report;

/// Steps without a message after which the receiver looks whether the sender has finished.
const LOOK_EVERY: u32 = 256;
/// Messages between two clock reads of a receiver that measures its rate, at least: a ring hands over a few at a time,
/// and a clock read costs more than one of them.
const CLOCK_EVERY: usize = 256;
/// Latencies measured per second, about.
const MEASURED_PER_SECOND: f64 = 500_000.0;
/// Messages of a load that are taken between two clock reads, and sent between two looks at the schedule.
const BATCH: usize = 16;
/// The sender of a load that cannot keep up gives up after so many times the planned time.
const PATIENCE: u64 = 3;

/// What a sending end sends, and when.
pub trait Source: Send {
    /// Offers what is to be sent at `now`; whether that was the last.
    fn offer(
        &mut self,
        arm: &mut impl Arm,
        now: Instant,
        cx: &mut Cx<'_>,
    ) -> Result<bool, WorkloadError>;

    /// Messages that the arm accepted.
    fn sent(&self) -> u64;
}

/// The sending end.
pub struct Sender<F> {
    source: F,
    state: Sending,
}

enum Sending {
    Offering,
    Flushing,
    Waiting,
}

impl<F: Source> Sender<F> {
    /// Of `source`.
    pub fn new(source: F) -> Self {
        let state = Sending::Offering;
        Self { source, state }
    }
}

impl<A: Arm, F: Source> Drive<A> for Sender<F> {
    fn step(&mut self, arm: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        match self.state {
            Sending::Offering => {
                let now = cx.now();
                if self.source.offer(arm, now, cx)? {
                    self.state = Sending::Flushing;
                }
            }
            Sending::Flushing => {
                if arm.flush()? {
                    arm.finish()?;
                    cx.mail(&self.source.sent().to_le_bytes())?;
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
        self.source.sent()
    }
}

/// As many messages as possible.
pub struct Flood<C> {
    job: Job,
    fill: Written<C>,
    began: Option<Instant>,
    sent: u64,
    /// Messages sent during the warm-up.
    warm: u64,
}

impl<C> Flood<C> {
    /// For `job`.
    pub fn new(job: Job) -> Self {
        Self {
            job,
            fill: Written::default(),
            began: None,
            sent: 0,
            warm: 0,
        }
    }
}

impl<C: Contents> Source for Flood<C> {
    fn offer(
        &mut self,
        arm: &mut impl Arm,
        now: Instant,
        cx: &mut Cx<'_>,
    ) -> Result<bool, WorkloadError> {
        let began = *self.began.get_or_insert(now);
        self.sent += cpu_cost::offer(arm, self.job.batch(), &mut self.fill, cx)? as u64;
        let enough = self.sent >= self.job.warm_messages() * 2;
        let time = now.since(began);
        if time < self.job.warm() {
            self.warm = self.sent;
        }
        let is_sent = is_whole(&self.job, self.sent - self.warm);
        Ok(enough && (is_sent || time >= self.job.warm() + self.job.run()))
    }

    fn sent(&self) -> u64 {
        self.sent
    }
}

/// Whether so many messages after the warm-up are all.
fn is_whole(job: &Job, sent: u64) -> bool {
    job.workload.volume().is_some_and(|volume| sent >= volume)
}

/// Sends as many messages as possible where nobody takes anything, and measures itself.
pub struct Blast<C> {
    flood: Flood<C>,
    begin: Option<Moment>,
    report: Report,
}

/// A time, and how many messages had been moved by then.
type Moment = (Instant, u64);

impl<C> Blast<C> {
    /// For `job`.
    pub fn new(job: Job) -> Self {
        Self {
            flood: Flood::new(job),
            begin: None,
            report: Report::None,
        }
    }
}

impl<A: Arm, C: Contents> Drive<A> for Blast<C> {
    fn step(&mut self, arm: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        let Flood {
            job,
            fill,
            began,
            sent,
            ..
        } = &mut self.flood;
        let first = *began.get_or_insert(now);
        let warm = now.since(first) >= job.warm() && *sent >= job.warm_messages();
        if warm && self.begin.is_none() {
            self.begin = Some((now, *sent));
        }
        if let Some((began, before)) = self.begin
            && (now.since(began) >= job.run() || is_whole(job, *sent - before))
        {
            self.report = rate((began, before), (now, *sent));
            cx.mail(b"finished")?;
            return Ok(Step::Done);
        }
        *sent += cpu_cost::offer(arm, job.batch(), fill, cx)? as u64;
        // Nobody takes anything, so it never finds the ring full: others hand the core over then.
        if job.yields {
            std::thread::yield_now();
        }
        Ok(Step::Again)
    }

    fn report(&mut self) -> Result<Report, WorkloadError> {
        Ok(self.report.clone())
    }

    fn moved(&self) -> u64 {
        self.flood.sent
    }
}

/// Is written to, and takes nothing.
pub struct Bystander;

impl<A: Arm> Drive<A> for Bystander {
    fn step(&mut self, _: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        Ok(match cx.mailed() {
            Some(_) => Step::Done,
            None => wait(),
        })
    }
}

/// Messages that are due at fixed times whether or not earlier ones were taken.
pub struct Load {
    job: Job,
    per_second: f64,
    plan: Option<Plan>,
}

struct Plan {
    stamp: Stamp,
    total: u64,
    give_up: Instant,
}

impl Load {
    /// For `job`, so many messages per second.
    pub fn new(job: Job, per_second: f64) -> Self {
        let plan = None;
        Self {
            job,
            per_second,
            plan,
        }
    }
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
        Self {
            stamp,
            total: count(warm + run).max(1),
            give_up: now + (warm + run).times(PATIENCE),
        }
    }
}

impl Source for Load {
    fn offer(
        &mut self,
        arm: &mut impl Arm,
        now: Instant,
        cx: &mut Cx<'_>,
    ) -> Result<bool, WorkloadError> {
        let plan = || Plan::new(&self.job, self.per_second, now);
        let plan = self.plan.get_or_insert_with(plan);
        let stamp = &mut plan.stamp;
        let due = stamp.schedule.due(now).min(plan.total);
        match due.saturating_sub(stamp.next) {
            0 => _ = arm.flush()?,
            due => _ = cpu_cost::offer(arm, BATCH.min(due as usize), stamp, cx)?,
        }
        Ok(stamp.next >= plan.total || now >= plan.give_up)
    }

    fn sent(&self) -> u64 {
        self.plan.as_ref().map_or(0, |plan| plan.stamp.next)
    }
}

/// What a receiving end measures.
pub trait Meter: Send {
    /// What reads the messages.
    fn sink(&mut self) -> &mut impl Sink;

    /// Messages taken in one step at most.
    fn batch(&self) -> usize;

    /// Some messages came: `taken` in all so far.
    fn came(&mut self, taken: u64, is_virtual: bool, cx: &mut Cx<'_>);

    /// No message was there, after `taken` in all.
    fn idle(&mut self, _taken: u64, _is_virtual: bool, _cx: &mut Cx<'_>) {}

    /// The report.
    fn report(&self) -> Result<Report, WorkloadError>;
}

/// The receiving end.
pub struct Receiver<M> {
    meter: M,
    taken: u64,
    total: Option<u64>,
    idle: u32,
}

impl<M: Meter> Receiver<M> {
    /// With `meter`.
    pub fn new(meter: M) -> Self {
        Self {
            meter,
            taken: 0,
            total: None,
            idle: 0,
        }
    }
}

impl<A: Arm, M: Meter> Drive<A> for Receiver<M> {
    fn step(&mut self, arm: &mut A, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let (batch, is_virtual) = (self.meter.batch(), arm.price().is_some());
        match cpu_cost::take(arm, batch, self.meter.sink(), cx)? {
            Taken::Messages(0) => {
                self.meter.idle(self.taken, is_virtual, cx);
                self.idle += 1;
                if self.idle.is_multiple_of(LOOK_EVERY) && self.total.is_none() {
                    let number = |mail: Vec<u8>| Some(u64::from_le_bytes(mail.try_into().ok()?));
                    self.total = cx.mailed().and_then(number);
                }
                if self.total != Some(self.taken) {
                    return Ok(Step::Again);
                }
            }
            Taken::Messages(n) => {
                self.taken += n as u64;
                self.meter.came(self.taken, is_virtual, cx);
                return Ok(Step::Again);
            }
            Taken::Ended => {}
        }
        cx.mail(b"taken")?;
        Ok(Step::Done)
    }

    fn report(&mut self) -> Result<Report, WorkloadError> {
        self.meter.report()
    }

    fn moved(&self) -> u64 {
        self.taken
    }
}

/// Messages in a time, after a warm-up.
pub struct Rate<C> {
    job: Job,
    checked: Checked<C>,
    first: Option<Instant>,
    begin: Option<Moment>,
    end: Moment,
}

impl<C> Rate<C> {
    /// For `job`.
    pub fn new(job: Job) -> Self {
        Self {
            job,
            checked: Checked::default(),
            first: None,
            begin: None,
            end: (Instant::ZERO, 0),
        }
    }
}

impl<C: Contents> Meter for Rate<C> {
    fn sink(&mut self) -> &mut impl Sink {
        &mut self.checked
    }

    fn batch(&self) -> usize {
        self.job.batch()
    }

    fn came(&mut self, taken: u64, is_virtual: bool, cx: &mut Cx<'_>) {
        if taken - self.end.1 < self.job.batch().min(CLOCK_EVERY) as u64 {
            return;
        }
        let now = cx.now();
        self.end = (now, taken);
        let first = *self.first.get_or_insert(now);
        // Where time is virtual it waits for a moment when nothing lies in the ring, unless there is none.
        let patience = self.job.warm().times(1 + u64::from(is_virtual));
        let is_warm = taken >= self.job.warm_messages() && now.since(first) >= patience;
        if self.begin.is_none() && is_warm {
            self.begin = Some(self.end);
        }
    }

    /// Where time is virtual, measuring begins now, so that what came before is not counted, all of which lay there and
    /// was taken in no time.
    fn idle(&mut self, taken: u64, is_virtual: bool, cx: &mut Cx<'_>) {
        let Some(first) = self.first else {
            return;
        };
        if self.begin.is_none() && is_virtual && taken >= self.job.warm_messages() {
            let now = cx.now();
            if now.since(first) >= self.job.warm() {
                (self.begin, self.end) = (Some((now, taken)), (now, taken));
            }
        }
    }

    fn report(&self) -> Result<Report, WorkloadError> {
        self.checked.check()?;
        Ok(rate(self.begin.unwrap_or(self.end), self.end))
    }
}

/// How long after a message of a load was due it came.
#[derive(Default)]
pub struct Delays {
    stamps: Stamps,
    histogram: Histogram,
}

impl Meter for Delays {
    fn sink(&mut self) -> &mut impl Sink {
        &mut self.stamps
    }

    fn batch(&self) -> usize {
        BATCH
    }

    fn came(&mut self, _: u64, _: bool, cx: &mut Cx<'_>) {
        if !self.stamps.0.is_empty() {
            let now = cx.now();
            for due in self.stamps.0.drain(..) {
                self.histogram.record(now.since(due));
            }
        }
    }

    fn report(&self) -> Result<Report, WorkloadError> {
        Ok(Report::Latency(self.histogram.quantiles(1.0)))
    }
}

/// So many messages more at the end than at the beginning, in the time between.
fn rate((began, before): Moment, (ended, after): Moment) -> Report {
    Report::rate(after - before, began, ended)
}
