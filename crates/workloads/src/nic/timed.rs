//! How long requests take: in batches, in flows, there and back, or call by call.

use std::sync::atomic::Ordering;

use headworks::verbs::{Completion, Duration, Instant};
use headworks_baselines::Memory;
use serde::{Deserialize, Serialize};

use super::end::{End, connected, emit, parse};
use super::loaded::{self, Load, Verb, finished};
use super::meter::Timed;
use super::source::{Source, polled, receive, shape};
use super::{Made, Setup, bad_chain};
use crate::error::WorkloadError;
use crate::latency::Histogram;
use crate::pair::Role;
use crate::pair::{PairCx, sleep};
use crate::report::Report;
use headworks_stage::{Actor, ActorError, Cx, Step};

/// Requests in batches on one queue pair, each rung by itself, with pauses between the batches. A batch of one is the
/// latency of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Batches {
    /// Of what: a batch has as many requests as it is deep, all on the first queue pair.
    pub load: Load,
    /// From the last doorbell of a batch to the next batch, in nanoseconds; that does not begin before the one before
    /// it has ended.
    pub pause_ns: u64,
}

impl Batches {
    /// The part that has a role.
    pub(super) fn part(self, setup: &Setup<'_>) -> Made {
        let timed = Timed::new(setup.task);
        loaded::pair(self.load, setup, move |source| Batcher {
            source,
            pause: Duration::from_nanos(self.pause_ns),
            timed,
            resumes: Instant::ZERO,
            posted: Vec::with_capacity(self.load.depth),
            done: 0,
            delays: vec![Histogram::default(); self.load.depth],
        })
    }
}

struct Batcher {
    source: Source,
    pause: Duration,
    timed: Timed,
    /// When the next batch begins.
    resumes: Instant,
    /// When the requests of this batch were posted.
    posted: Vec<Instant>,
    /// How many of them are done.
    done: usize,
    delays: Vec<Histogram>,
}

impl Batcher {
    fn take(&mut self, cx: &mut Cx<'_>) -> Result<(), WorkloadError> {
        // As many as perftest takes in one look.
        let mut found = [Completion::default(); 16];
        let count = self.source.poll(&mut found)?.len();
        if count == 0 {
            return Ok(());
        }
        let now = cx.now();
        for _ in 0..count {
            // A batch is measured if it began in the measured time. Requests of one queue pair end in order.
            if self.timed.is_warm(self.posted[0]) {
                self.delays[self.done].record(now.since(self.posted[self.done]));
            }
            self.done += 1;
        }
        if self.done == self.source.load.depth {
            self.posted.clear();
            self.done = 0;
        }
        Ok(())
    }
}

impl Actor for Batcher {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        // A busy machine may have taken all that time: one batch is measured in any case.
        let is_enough = self.delays.iter().all(|each| !each.is_empty());
        if self.timed.is_over(now) && self.posted.is_empty() && is_enough {
            let delays = self.delays.iter().map(|each| each.quantiles(1.0));
            return finished(cx, Report::Delays(delays.collect()));
        }
        if self.posted.len() < self.source.load.depth && now >= self.resumes {
            self.posted.push(now);
            if self.posted.len() == self.source.load.depth {
                self.resumes = now + self.pause;
            }
            self.source.post_on(0)?;
            cx.charge(self.source.load.work());
        }
        if !self.posted.is_empty() {
            self.take(cx)?;
        }
        Ok(Step::Again)
    }
}

/// So many requests over some queue pairs, one flow after the other: each is timed from the first doorbell until all
/// have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Flows {
    /// Of what, over which queue pairs; they take turns.
    pub load: Load,
    /// Requests of a flow.
    pub requests: usize,
}

/// Requests of flows that one step posts, and completions that it takes: few, as [`Gait::Apart`](loaded::Gait) has it.
const FLOW_BATCH: usize = 4;

impl Flows {
    /// The part that has a role.
    pub(super) fn part(self, setup: &Setup<'_>) -> Made {
        let timed = Timed::new(setup.task);
        loaded::pair(self.load, setup, move |source| Flow {
            outstanding: vec![0; self.load.queue_pairs],
            source,
            requests: self.requests.max(1),
            timed,
            began: Instant::ZERO,
            posted: 0,
            done: 0,
            times: Histogram::default(),
        })
    }
}

struct Flow {
    source: Source,
    /// Requests outstanding of each queue pair.
    outstanding: Vec<usize>,
    requests: usize,
    timed: Timed,
    /// When this flow began, and how far it is.
    began: Instant,
    posted: usize,
    done: usize,
    times: Histogram,
}

impl Flow {
    /// Posts what there is room for, the queue pairs in turn.
    fn post(&mut self, cx: &mut Cx<'_>) -> Result<(), WorkloadError> {
        let load = self.source.load;
        for _ in 0..FLOW_BATCH.min(self.requests - self.posted) {
            let at = self.posted % load.queue_pairs;
            if self.outstanding[at] == load.depth {
                break;
            }
            self.source.post_on(at)?;
            cx.charge(load.work());
            self.outstanding[at] += 1;
            self.posted += 1;
        }
        Ok(())
    }
}

impl Actor for Flow {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if self.posted == 0 {
            self.began = cx.now();
        }
        let is_measured = self.timed.is_warm(self.began);
        self.post(cx)?;
        let mut found = [Completion::default(); FLOW_BATCH];
        for done in self.source.poll(&mut found)? {
            self.done += 1;
            self.outstanding[done.wr_id as usize] -= 1;
        }
        if self.done < self.requests {
            return Ok(Step::Again);
        }
        let now = cx.now();
        if is_measured {
            self.times.record(now.since(self.began));
        }
        (self.posted, self.done) = (0, 0);
        match self.timed.is_over(now) && !self.times.is_empty() {
            true => finished(cx, Report::Latency(self.times.quantiles(1.0))),
            false => Ok(Step::Again),
        }
    }
}

/// Receives that are posted at a time, and sends that may be outstanding: their completions are taken while the answer
/// is on its way.
const OUTSTANDING: u32 = 16;

/// The part of a ping-pong that has a role.
pub(super) fn ping_pong(load: Load, setup: &Setup<'_>) -> Made {
    if load.verb.is_answered() || load.size < 8 || !load.size.is_multiple_of(8) {
        return Err(WorkloadError(format!("no ping-pong of {load}")));
    }
    let load = Load {
        queue_pairs: 1,
        ..load
    };
    let mut shape = loaded::loaded_shape(&load, OUTSTANDING, OUTSTANDING);
    shape.caps.max_send_wr = OUTSTANDING;
    let end = setup.open(&shape)?;
    // What is sent, and where the other end's messages go.
    let memory = end.memory(2 * load.size)?;
    let payload = emit(&[memory.region().remote(load.size)]);
    let (timed, role) = (Timed::new(setup.task), setup.pair.role);
    connected(end, &payload, move |end, theirs| {
        let [target] = parse(theirs)?;
        let player = Player {
            role,
            source: Source::new(load, end, memory, target),
            sent: 0,
            seen: 0,
            outstanding: 0,
            timed,
            sent_at: Instant::ZERO,
            times: Histogram::default(),
        };
        for _ in 0..OUTSTANDING {
            player.receive()?;
        }
        Ok(player)
    })
}

/// Either end of a ping-pong.
struct Player {
    role: Role,
    source: Source,
    /// Messages sent and seen, ever: the number of a message is its last word.
    sent: u64,
    seen: u64,
    outstanding: usize,
    timed: Timed,
    sent_at: Instant,
    times: Histogram,
}

impl Player {
    fn receive(&self) -> Result<(), WorkloadError> {
        let Source { end, memory, .. } = &self.source;
        let size = self.source.load.size;
        receive::<1>(end, memory, size, &[0], |_| size)
    }

    fn send(&mut self, cx: &mut Cx<'_>) -> Result<(), WorkloadError> {
        let Load { size, inline, .. } = self.source.load;
        cx.charge(self.source.load.work());
        self.sent += 1;
        let last = self.source.memory.word(size - 8);
        match inline {
            true => self.source.bytes[size - 8..].copy_from_slice(&self.sent.to_ne_bytes()),
            false => last.store(self.sent, Ordering::Relaxed),
        }
        self.source.post::<1>(0, self.sent, |_| 0, |_| true)?;
        self.outstanding += 1;
        Ok(())
    }

    /// Takes completions of what was sent; whether more may be.
    fn has_room(&mut self) -> Result<bool, WorkloadError> {
        if self.outstanding > 0 {
            self.outstanding -= self.source.completed()?;
        }
        Ok(self.outstanding < OUTSTANDING as usize)
    }

    /// Whether the next message has come.
    fn has_come(&self) -> Result<bool, WorkloadError> {
        let last = self.source.memory.word(2 * self.source.load.size - 8);
        let next = self.seen + 1;
        if self.source.end.srq.is_none() {
            return Ok(last.load(Ordering::Acquire) == next);
        }
        let mut found = [Completion::default()];
        if polled(&*self.source.end.recv_cq, &mut found)?.is_empty() {
            return Ok(false);
        }
        let number = last.load(Ordering::Acquire);
        match number == next {
            true => self.receive().map(|()| true),
            false => Err(WorkloadError(format!("message {next} reads {number}"))),
        }
    }
}

impl Actor for Player {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let leads = self.role == Role::Sender;
        if leads && self.sent == 0 {
            self.sent_at = cx.now();
            self.send(cx)?;
        }
        if self.has_room()? && self.has_come()? {
            let now = cx.now();
            self.seen += 1;
            if self.timed.is_warm(now) {
                self.times.record(now.since(self.sent_at));
            }
            self.sent_at = now;
            if leads && self.timed.is_over(now) {
                return finished(cx, Report::Latency(self.times.quantiles(0.5)));
            }
            self.send(cx)?;
        }
        match !leads && cx.mailed().is_some() {
            true => cx.done(&Report::None),
            false => Ok(Step::Again),
        }
    }
}

/// Bytes of a WRITE of a call.
const SIZE: usize = 64;
/// Places that calls write to in turn.
const PLACES: usize = 64;
/// Requests of a call, at most.
pub const CHAIN_MAX: usize = 16;
/// Calls of a step.
const CALLS: usize = 64;

/// The part of calls that has a role: the receiver's memory is written, and it does nothing.
pub(super) fn posts(chain: usize, setup: &Setup<'_>) -> Made {
    let mut shape = shape(1, CHAIN_MAX as u32);
    shape.caps.max_send_wr = CHAIN_MAX as u32;
    let end = setup.open(&shape)?;
    let memory = end.memory(SIZE * PLACES)?;
    let payload = emit(&[memory.region().remote(0)]);
    let timed = Timed::new(setup.task);
    match (setup.pair.role, chain) {
        (Role::Receiver, _) => connected(end, &payload, move |end, _| {
            Ok(Bystander {
                _end: end,
                _memory: memory,
            })
        }),
        (Role::Sender, 1) => connected(end, &payload, move |end, theirs| {
            Caller::<1>::new(end, memory, theirs, timed)
        }),
        (Role::Sender, CHAIN_MAX) => connected(end, &payload, move |end, theirs| {
            Caller::<CHAIN_MAX>::new(end, memory, theirs, timed)
        }),
        (Role::Sender, _) => Err(bad_chain(chain)),
    }
}

/// Is written to, and sleeps: polling would slow down the end that posts where both share a core.
struct Bystander {
    _end: End,
    _memory: Memory,
}

impl Actor for Bystander {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        match cx.mailed().is_some() {
            true => cx.done(&Report::None),
            false => Ok(sleep()),
        }
    }
}

/// Writes, in chains.
struct Caller<const CHAIN: usize> {
    source: Source,
    timed: Timed,
    posted: u64,
    times: Histogram,
}

impl<const CHAIN: usize> Caller<CHAIN> {
    fn new(end: End, memory: Memory, theirs: &[u8], timed: Timed) -> Result<Self, WorkloadError> {
        let [target] = parse(theirs)?;
        Ok(Self {
            source: Source::new(Load::of(Verb::Write, SIZE), end, memory, target),
            timed,
            posted: 0,
            times: Histogram::default(),
        })
    }

    fn call(&mut self) -> Result<(), WorkloadError> {
        let place = |number| number as usize % PLACES * SIZE;
        self.source.post::<CHAIN>(0, self.posted, place, |_| true)?;
        let end = self.posted + CHAIN as u64;
        let mut found = [Completion::default(); CHAIN];
        while self.posted < end {
            for done in self.source.poll(&mut found)? {
                if done.wr_id != self.posted {
                    let (expected, wr_id) = (self.posted, done.wr_id);
                    return Err(WorkloadError(format!(
                        "request {expected} ended as {wr_id}"
                    )));
                }
                self.posted += 1;
            }
        }
        Ok(())
    }
}

impl<const CHAIN: usize> Actor for Caller<CHAIN> {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let mut before = cx.now();
        self.timed.begin(before);
        for _ in 0..CALLS {
            self.call()?;
            let after = cx.now();
            if self.timed.is_warm(after) {
                self.times.record(after.since(before));
            }
            before = after;
        }
        match self.timed.is_over(before) {
            true => finished(cx, Report::Latency(self.times.quantiles(1.0))),
            false => Ok(Step::Again),
        }
    }
}
