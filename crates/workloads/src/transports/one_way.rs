//! One-way messages: as many as possible, or an open-loop load, whose messages are due at fixed times whether
//! or not earlier ones were taken.

use headworks::verbs::{Instant, time::Duration};
use headworks_runtime::{ActorContext, ActorError, Step};

use super::job::Job;
use super::message_contents::{LatencyRecorder, MessageChecker, MessageWriter, TimestampWriter};
use super::{MessageSink, MessageSource, MessageTransport, TakeResult, cpu_cost};
use crate::actor_pair::{PairMail, wait};
use crate::connecting_actor::WorkloadDriver;
use crate::error::Result;
use crate::latency::Schedule;
use crate::report::Report;

/// Steps without a message after which the receiver checks whether the sender has finished.
const LOOK_EVERY: u32 = 256;
/// Minimum number of messages between two clock reads of a receiver that measures its rate. A ring hands over
/// a few at a time, and a clock read costs more than one of them.
const CLOCK_EVERY: usize = 256;
/// Approximate number of latencies measured per second.
const MEASURED_PER_SECOND: f64 = 500_000.0;
/// Messages of a load taken between two clock reads, and sent between two checks of the schedule.
const BATCH: usize = 16;
/// A load's sender that cannot keep up gives up after this multiple of the planned time.
const PATIENCE: u64 = 3;

/// A time, and the number of messages moved by then.
type Moment = (Instant, u64);

/// Reports the rate of messages between two moments.
fn rate((began, before): Moment, (ended, after): Moment) -> Report {
    Report::rate(after - before, began, ended)
}

/// Decides the contents of a sender's messages, and when they are due.
pub trait Source: MessageSource + Send {
    /// Makes the source of `job`, which begins at `now`.
    fn new(job: &Job, now: Instant) -> Self;

    /// Returns the maximum number of messages to send at `now`.
    fn due(&self, job: &Job, now: Instant) -> usize;

    /// Returns whether the source is done after `time`, with `sent` messages, `warm` of them during the
    /// warm-up.
    fn is_over(&self, job: &Job, time: Duration, sent: u64, warm: u64) -> bool;
}

impl Source for MessageWriter {
    fn new(job: &Job, _: Instant) -> Self {
        Self::new(job.touch)
    }

    #[inline]
    fn due(&self, job: &Job, _: Instant) -> usize {
        job.batch()
    }

    #[inline]
    fn is_over(&self, job: &Job, time: Duration, sent: u64, warm: u64) -> bool {
        let enough = sent >= job.warm_messages() * 2;
        enough && (time >= job.warm() + job.run() || is_whole(job, sent - warm))
    }
}

impl Source for TimestampWriter {
    fn new(job: &Job, now: Instant) -> Self {
        let per_second = job.workload.per_second();
        let count = |time: Duration| (time.as_secs_f64() * per_second).ceil() as u64;
        Self {
            schedule: Schedule::new(now, per_second),
            next: 0,
            from: count(job.warm()),
            total: count(job.warm() + job.run()).max(1),
            every: (per_second / MEASURED_PER_SECOND).ceil().max(1.0) as u64,
        }
    }

    fn due(&self, _: &Job, now: Instant) -> usize {
        let due = self.schedule.due(now).min(self.total);
        BATCH.min(due.saturating_sub(self.next) as usize)
    }

    fn is_over(&self, job: &Job, time: Duration, sent: u64, _: u64) -> bool {
        sent >= self.total || time >= (job.warm() + job.run()).times(PATIENCE)
    }
}

/// The sending end.
pub struct Sender<F> {
    job: Job,
    /// The source, and the time at which it began.
    source: Option<(F, Instant)>,
    sent: u64,
    /// Number of messages sent during the warm-up.
    warm: u64,
    state: Sending,
}

enum Sending {
    Offering,
    Flushing,
    Waiting,
}

impl<F: Source> Sender<F> {
    /// Makes the sending end of `job`.
    pub fn new(job: Job) -> Self {
        Self {
            job,
            source: None,
            sent: 0,
            warm: 0,
            state: Sending::Offering,
        }
    }

    /// Offers the messages that are due. Returns the time since the first offer, and whether the source is
    /// done.
    fn offer(
        &mut self,
        arm: &mut impl MessageTransport,
        now: Instant,
        cx: &mut ActorContext<'_>,
    ) -> Result<(Duration, bool)> {
        let begin = || (F::new(&self.job, now), now);
        let (fill, began) = self.source.get_or_insert_with(begin);
        match fill.due(&self.job, now) {
            0 => _ = arm.flush()?,
            due => self.sent += cpu_cost::offer(arm, due, fill, cx)? as u64,
        }
        let time = now.since(*began);
        if time < self.job.warm() {
            self.warm = self.sent;
        }
        let is_over = fill.is_over(&self.job, time, self.sent, self.warm);
        Ok((time, is_over))
    }
}

/// Returns whether `sent` messages after the warm-up complete the job's volume.
fn is_whole(job: &Job, sent: u64) -> bool {
    job.workload.volume().is_some_and(|volume| sent >= volume)
}

impl<A: MessageTransport, F: Source> WorkloadDriver<A> for Sender<F> {
    fn step(&mut self, arm: &mut A, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        match self.state {
            Sending::Offering => {
                let now = cx.now();
                if let (_, true) = self.offer(arm, now, cx)? {
                    self.state = Sending::Flushing;
                }
            }
            Sending::Flushing => {
                if arm.flush()? {
                    arm.finish()?;
                    cx.send_mail(&self.sent.to_le_bytes())?;
                    self.state = Sending::Waiting;
                }
            }
            Sending::Waiting => {
                arm.flush()?;
                return until_mail(cx);
            }
        }
        Ok(Step::Again)
    }

    fn messages_moved(&self) -> u64 {
        self.sent
    }
}

/// Returns `Done` once the other actor has mailed.
fn until_mail(cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
    Ok(match cx.receive_mail() {
        Some(_) => Step::Done,
        None => wait(),
    })
}

/// A sender that measures its own rate, because no receiver takes its messages.
pub struct UnreadSender {
    sender: Sender<MessageWriter>,
    begin: Option<Moment>,
    report: Report,
}

impl UnreadSender {
    /// Makes the sending end of `job`.
    pub fn new(job: Job) -> Self {
        Self {
            sender: Sender::new(job),
            begin: None,
            report: Report::None,
        }
    }
}

impl<A: MessageTransport> WorkloadDriver<A> for UnreadSender {
    fn step(&mut self, arm: &mut A, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let (now, sent) = (cx.now(), self.sender.sent);
        let job = &self.sender.job;
        if let Some((began, before)) = self.begin
            && (now.since(began) >= job.run() || is_whole(job, sent - before))
        {
            self.report = rate((began, before), (now, sent));
            cx.send_mail(b"finished")?;
            return Ok(Step::Done);
        }
        let (time, _) = self.sender.offer(arm, now, cx)?;
        let job = &self.sender.job;
        if self.begin.is_none() && time >= job.warm() && sent >= job.warm_messages() {
            self.begin = Some((now, sent));
        }
        // No receiver frees slots, so the sender never finds the ring full. It must yield the core here.
        if job.yields {
            std::thread::yield_now();
        }
        Ok(Step::Again)
    }

    fn report(&mut self) -> Result<Report> {
        Ok(self.report.clone())
    }

    fn messages_moved(&self) -> u64 {
        self.sender.sent
    }
}

/// The receiving end where nothing takes the messages. It waits for the sender's mail.
pub struct IdleReceiver;

impl<A: MessageTransport> WorkloadDriver<A> for IdleReceiver {
    fn step(&mut self, _: &mut A, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        until_mail(cx)
    }
}

/// Checks or measures a receiver's messages.
pub trait ReceiveSink: MessageSink + Send {
    /// Makes the sink for the messages of `job`.
    fn new(job: &Job) -> Self;

    /// Returns the maximum number of messages of `job` taken in one step.
    fn batch(job: &Job) -> usize;

    /// Handles the messages just taken. Returns whether their rate is measured.
    fn took(&mut self, cx: &mut ActorContext<'_>) -> bool;

    /// Returns the report; messages came at `rate`.
    fn report(&self, rate: Report) -> Result<Report>;
}

impl ReceiveSink for MessageChecker {
    fn new(job: &Job) -> Self {
        Self::new(job.touch)
    }

    #[inline]
    fn batch(job: &Job) -> usize {
        job.batch()
    }

    #[inline]
    fn took(&mut self, _: &mut ActorContext<'_>) -> bool {
        true
    }

    fn report(&self, rate: Report) -> Result<Report> {
        self.check().map(|()| rate)
    }
}

impl ReceiveSink for LatencyRecorder {
    fn new(_: &Job) -> Self {
        Self::default()
    }

    fn batch(_: &Job) -> usize {
        BATCH
    }

    fn took(&mut self, cx: &mut ActorContext<'_>) -> bool {
        if !self.due.is_empty() {
            let now = cx.now();
            for due in self.due.drain(..) {
                self.histogram.record(now.since(due));
            }
        }
        false
    }

    fn report(&self, _: Report) -> Result<Report> {
        Ok(Report::Latency(self.histogram.quantiles(1.0)))
    }
}

/// The receiving end.
pub struct Receiver<S> {
    job: Job,
    sink: S,
    taken: u64,
    total: Option<u64>,
    idle: u32,
    first: Option<Instant>,
    begin: Option<Moment>,
    end: Moment,
}

impl<S: ReceiveSink> Receiver<S> {
    /// Makes the receiving end of `job`.
    pub fn new(job: Job) -> Self {
        Self {
            sink: S::new(&job),
            job,
            taken: 0,
            total: None,
            idle: 0,
            first: None,
            begin: None,
            end: (Instant::ZERO, 0),
        }
    }

    /// Begins to measure once a warm-up of `patience` is over and every slot was used.
    fn begin(&mut self, now: Instant, patience: Duration) {
        let first = *self.first.get_or_insert(now);
        let is_warm = self.taken >= self.job.warm_messages() && now.since(first) >= patience;
        if self.begin.is_none() && is_warm {
            self.end = (now, self.taken);
            self.begin = Some(self.end);
        }
    }
}

impl<A: MessageTransport, S: ReceiveSink> WorkloadDriver<A> for Receiver<S> {
    fn step(&mut self, arm: &mut A, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let (batch, is_virtual) = (S::batch(&self.job), arm.price().is_some());
        match cpu_cost::take(arm, batch, &mut self.sink, cx)? {
            TakeResult::Messages(0) => {
                // In virtual time, measuring begins when the ring is empty. Messages that already lie in the
                // ring take no time and must not be counted.
                if is_virtual && self.first.is_some() && self.begin.is_none() {
                    self.begin(cx.now(), self.job.warm());
                }
                self.idle += 1;
                if self.idle.is_multiple_of(LOOK_EVERY) && self.total.is_none() {
                    let number = |mail: Vec<u8>| Some(u64::from_le_bytes(mail.try_into().ok()?));
                    self.total = cx.receive_mail().and_then(number);
                }
                if self.total != Some(self.taken) {
                    return Ok(Step::Again);
                }
            }
            TakeResult::Messages(n) => {
                self.taken += n as u64;
                let is_measured = self.sink.took(cx);
                if is_measured && self.taken - self.end.1 >= batch.min(CLOCK_EVERY) as u64 {
                    let now = cx.now();
                    self.end = (now, self.taken);
                    // In virtual time, prefer a moment when the ring is empty: begin here only after twice
                    // the warm-up.
                    self.begin(now, self.job.warm().times(1 + u64::from(is_virtual)));
                }
                return Ok(Step::Again);
            }
            TakeResult::Ended => {}
        }
        cx.send_mail(b"taken")?;
        Ok(Step::Done)
    }

    fn report(&mut self) -> Result<Report> {
        let rate = rate(self.begin.unwrap_or(self.end), self.end);
        self.sink.report(rate)
    }

    fn messages_moved(&self) -> u64 {
        self.taken
    }
}
