//! The sides of the applications: each steps its application, measures the time, and mails the other what it
//! must know.

use headworks::ring::{MessageReceiver, MessageSender};
use headworks::verbs::Instant;
use headworks_runtime::{Actor, ActorContext, ActorError, Step};

use crate::actor_pair::{PairMail, wait};
use crate::apps::flows::{Capture, Digest, FLOWS, FlowCounts, Monitor, Replay, Tap};
use crate::apps::request_response::{Server, Service};
use crate::apps::{StepProgress, http, kv};
use crate::connecting_actor::{Connect, WorkloadDriver, connecting_actor};
use crate::error::{Result, WorkloadError};
use crate::latency::Histogram;
use crate::report::Report;
use crate::transports::channel_pair::ChannelEnds;
use crate::transports::cpu_cost::{CostMeter, MessageCost, is_long};

/// Number of synthetic packets that are drawn before the measured time and then replayed: 32 MB.
const DRAWN: usize = 1 << 20;
/// Maximum number of packets of a capture that are held in memory: 160 MB.
pub const PACKETS_MAX: usize = 4 << 20;

type Stepped = Result<StepProgress>;

/// One side of an application, over its channels.
pub(super) trait StudyActor: Send {
    /// Number of idle steps between two checks for mail.
    const LOOK_EVERY: u32 = 256;
    /// Whether only the other side knows when everything is done.
    const SERVES: bool = false;

    /// Limits a step to one message. In virtual time an actor sees the work of others only between two steps.
    fn in_virtual_time(&mut self);

    /// Reads the clock before a step, if this side needs that.
    fn begin(&mut self, _: &mut ActorContext<'_>) {}

    /// Does a bounded amount of work.
    fn step(&mut self, ends: &mut ChannelEnds<impl MessageSender, impl MessageReceiver>)
    -> Stepped;

    /// Reads the clock after a step whose outcome is `progress`. Returns the report once everything is done,
    /// and [`Report::None`] before.
    fn stepped(&mut self, _progress: StepProgress, _: &mut ActorContext<'_>) -> Report {
        Report::None
    }

    /// Returns the mail to the other side once this side is done.
    fn final_mail(&self) -> Option<Vec<u8>> {
        Some(b"finished".to_vec())
    }

    /// Handles mail of the other side, which ends this one. Returns the reply, if there is one.
    fn on_mail(&mut self, _mail: &[u8]) -> Result<Option<&'static [u8]>> {
        Ok(None)
    }
}

fn failed(why: WorkloadError) -> WorkloadError {
    WorkloadError::at("application", why)
}

fn missing() -> WorkloadError {
    WorkloadError("an application lacks a channel".into())
}

/// Returns both ends.
fn both<S, R>(ends: &mut ChannelEnds<S, R>) -> Result<(&mut S, &mut R)> {
    let ends = ends.sender.as_mut().zip(ends.receiver.as_mut());
    ends.ok_or_else(missing)
}

/// Returns the rate of `messages` since `began`, once everything is done.
fn rate(
    progress: StepProgress,
    messages: u64,
    began: Option<Instant>,
    cx: &mut ActorContext<'_>,
) -> Report {
    if progress != StepProgress::Done {
        return Report::None;
    }
    let now = cx.now();
    Report::rate(messages, began.unwrap_or(now), now)
}

/// Drives one side. An idle side polls, because the world would let it wait longer.
struct StudyDriver<A> {
    side: A,
    /// Price of a message where time is virtual.
    price: Option<MessageCost>,
    yields: bool,
    /// The side is done, and stays until the other side has read its mail: an end that left earlier would
    /// look dead.
    is_over: bool,
    idle: u32,
    report: Report,
}

/// Makes the actor that drives `side` over the ends that `meet` connects. Messages cost `price` where time is
/// virtual.
pub(super) fn drive<M, S, R>(
    (meet, price, yields): (M, Option<MessageCost>, bool),
    mut side: impl StudyActor + 'static,
) -> Box<dyn Actor>
where
    M: Connect<Connected = ChannelEnds<S, R>> + 'static,
    S: MessageSender,
    R: MessageReceiver,
{
    if price.is_some() {
        side.in_virtual_time();
    }
    let player = StudyDriver {
        side,
        price,
        yields,
        is_over: false,
        idle: 0,
        report: Report::None,
    };
    connecting_actor(meet, false, player)
}

impl<A: StudyActor> StudyDriver<A> {
    fn step_once<S: MessageSender, R: MessageReceiver>(
        &mut self,
        ends: &mut ChannelEnds<S, R>,
        cx: &mut ActorContext<'_>,
    ) -> Result<Step, ActorError> {
        if !self.is_over {
            self.side.begin(cx);
            let progress = match self.price {
                None => self.side.step(ends)?,
                Some(price) => {
                    let cost_meter = CostMeter::new(cx, price);
                    let out = ends.sender.as_mut().map(|end| cost_meter.at(end));
                    let from = ends.receiver.as_mut().map(|end| cost_meter.at(end));
                    self.side.step(&mut ChannelEnds::new(out, from))?
                }
            };
            self.report = self.side.stepped(progress, cx);
            match progress {
                StepProgress::Worked => return Ok(Step::Again),
                StepProgress::Idle if A::SERVES => {}
                StepProgress::Idle => return Ok(wait()),
                StepProgress::Done => {
                    self.is_over = true;
                    if let Some(words) = self.side.final_mail() {
                        cx.send_mail(&words)?;
                    }
                    return Ok(wait());
                }
            }
        }
        self.idle += 1;
        if self.idle.is_multiple_of(A::LOOK_EVERY)
            && let Some(mail) = cx.receive_mail()
        {
            if let Some(words) = self.side.on_mail(&mail)? {
                cx.send_mail(words)?;
            }
            return Ok(Step::Done);
        }
        Ok(wait())
    }
}

impl<A: StudyActor, S: MessageSender, R: MessageReceiver> WorkloadDriver<ChannelEnds<S, R>>
    for StudyDriver<A>
{
    fn step(
        &mut self,
        ends: &mut ChannelEnds<S, R>,
        cx: &mut ActorContext<'_>,
    ) -> Result<Step, ActorError> {
        let began = self.price.is_some().then(|| cx.now());
        let mut step = self.step_once(ends, cx)?;
        while let Some(began) = began
            && matches!(step, Step::Again)
            && !is_long(began, cx)
        {
            step = self.step_once(ends, cx)?;
        }
        if matches!(step, Step::Wait(_)) {
            if self.yields {
                std::thread::yield_now();
            }
            return Ok(Step::Again);
        }
        Ok(step)
    }

    fn report(&mut self) -> Result<Report> {
        Ok(self.report.clone())
    }
}

/// Sends the records, and mails the digest of what was sent.
pub(super) struct FlowsTap {
    tap: Tap,
    digest: Digest,
}

impl FlowsTap {
    /// A tap of the packets in a capture, or of synthetic packets.
    pub(super) fn new(capture: Option<&std::path::Path>, records: u64) -> Result<Self> {
        let capture = match capture {
            None => Capture::synthetic(1, FLOWS, DRAWN),
            Some(path) => Capture::read(path, PACKETS_MAX)?,
        };
        let source = Replay::new(capture);
        Ok(Self {
            digest: Digest::of(&mut source.clone(), records),
            tap: Tap::new(source, records),
        })
    }
}

impl StudyActor for FlowsTap {
    fn in_virtual_time(&mut self) {
        self.tap.batch = 1;
    }

    fn step(
        &mut self,
        ends: &mut ChannelEnds<impl MessageSender, impl MessageReceiver>,
    ) -> Stepped {
        let out = ends.sender.as_mut().ok_or_else(missing)?;
        self.tap.step(out).map_err(failed)
    }

    fn final_mail(&self) -> Option<Vec<u8>> {
        Some(self.digest.emit().to_vec())
    }
}

/// Counts the records, and compares their digest with the sender's.
pub(super) struct FlowsMonitor {
    monitor: Monitor,
    records: u64,
    began: Option<Instant>,
}

impl FlowsMonitor {
    pub(super) fn new(records: u64) -> Self {
        Self {
            monitor: Monitor::new(FlowCounts::default(), records),
            records,
            began: None,
        }
    }
}

impl StudyActor for FlowsMonitor {
    const LOOK_EVERY: u32 = 1;

    fn in_virtual_time(&mut self) {
        self.monitor.batch = 1;
    }

    fn step(
        &mut self,
        ends: &mut ChannelEnds<impl MessageSender, impl MessageReceiver>,
    ) -> Stepped {
        let from = ends.receiver.as_mut().ok_or_else(missing)?;
        self.monitor.step(from).map_err(failed)
    }

    fn stepped(&mut self, progress: StepProgress, cx: &mut ActorContext<'_>) -> Report {
        if self.began.is_none() && self.monitor.taken() > 0 {
            self.began = Some(cx.now());
        }
        rate(progress, self.records, self.began, cx)
    }

    fn final_mail(&self) -> Option<Vec<u8>> {
        None
    }

    fn on_mail(&mut self, mail: &[u8]) -> Result<Option<&'static [u8]>> {
        if Digest::parse(mail) != Some(self.monitor.meter().digest()) {
            let what = "the flows that were counted are not those that were sent";
            return Err(WorkloadError(what.into()));
        }
        Ok(Some(b"counted"))
    }
}

/// Requests keys.
pub(super) struct KvClient {
    client: kv::Client,
    requests: u64,
    began: Option<Instant>,
}

impl KvClient {
    pub(super) fn new(requests: u64, window: usize, records: u64) -> Self {
        Self {
            client: kv::Client::new(records, requests, window),
            requests,
            began: None,
        }
    }
}

impl StudyActor for KvClient {
    fn in_virtual_time(&mut self) {
        self.client.batch = 1;
    }

    fn begin(&mut self, cx: &mut ActorContext<'_>) {
        // The server fills its table before its first answer, so the time counts from that answer.
        if self.client.answered() == 0 {
            self.began = Some(cx.now());
        }
    }

    fn step(
        &mut self,
        ends: &mut ChannelEnds<impl MessageSender, impl MessageReceiver>,
    ) -> Stepped {
        let (out, from) = both(ends)?;
        self.client.step(out, from).map_err(failed)
    }

    fn stepped(&mut self, progress: StepProgress, cx: &mut ActorContext<'_>) -> Report {
        rate(progress, self.requests, self.began, cx)
    }
}

/// Fetches files and measures the latency of each.
pub(super) struct HttpClient {
    client: http::Client,
    warm: u64,
    /// State before the step: whether a request was outstanding, and how many had been answered.
    before: (bool, u64),
    asked_at: Instant,
    began: Instant,
    histogram: Histogram,
}

impl HttpClient {
    pub(super) fn new(requests: u64, warm: u64) -> Self {
        Self {
            client: http::Client::new(http::FILES, warm + requests),
            warm,
            before: (false, 0),
            asked_at: Instant::ZERO,
            began: Instant::ZERO,
            histogram: Histogram::default(),
        }
    }
}

impl StudyActor for HttpClient {
    fn in_virtual_time(&mut self) {}

    fn step(
        &mut self,
        ends: &mut ChannelEnds<impl MessageSender, impl MessageReceiver>,
    ) -> Stepped {
        self.before = (self.client.is_waiting(), self.client.answered());
        let (out, from) = both(ends)?;
        self.client.step(out, from).map_err(failed)
    }

    fn stepped(&mut self, progress: StepProgress, cx: &mut ActorContext<'_>) -> Report {
        let (waited, before) = self.before;
        if self.client.answered() > before {
            // The next request is sent when an answer arrives, so one clock read serves both.
            let now = cx.now();
            if before >= self.warm {
                self.histogram.record(now.since(self.asked_at));
            }
            if before + 1 == self.warm {
                self.began = now;
            }
            self.asked_at = now;
        } else if !waited && before == 0 {
            self.asked_at = cx.now();
            if self.warm == 0 {
                self.began = self.asked_at;
            }
        }
        if progress != StepProgress::Done {
            return Report::None;
        }
        Report::Served {
            messages: self.client.answered() - self.warm,
            nanos: self.asked_at.since(self.began).nanos(),
            latency: self.histogram.quantiles(1.0),
        }
    }
}

/// Answers until the client has finished.
impl<S: Service<Request: Send> + Send> StudyActor for Server<S> {
    const SERVES: bool = true;

    fn in_virtual_time(&mut self) {
        // A prompt server publishes each answer at once anyway.
        if !S::PROMPT {
            self.batch = 1;
        }
    }

    fn step(
        &mut self,
        ends: &mut ChannelEnds<impl MessageSender, impl MessageReceiver>,
    ) -> Stepped {
        let (out, from) = both(ends)?;
        self.step(out, from).map_err(failed)
    }

    fn on_mail(&mut self, _: &[u8]) -> Result<Option<&'static [u8]>> {
        Ok(Some(b"served"))
    }
}
