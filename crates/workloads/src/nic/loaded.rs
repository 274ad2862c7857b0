//! One verb over some queue pairs, each of which is kept so deep in requests, as perftest does. The end that posts
//! measures; the other end checks nothing but takes what is sent to it.
//!
//! [`timed`](super::timed) times requests of the same loads; [`watched`](super::watched) looks at one while it runs.

use headworks::verbs::{Completion, DeviceInfo, Duration, QpCaps};
use headworks_baselines::Memory;
use serde::{Deserialize, Serialize};

use super::end::{End, Shape, connected, emit, parse};
use super::meter::Meter;
pub(crate) use super::source::polled;
use super::source::{Source, receive, shape};
use super::{Made, Setup, Task};
use crate::chance::own_seed;
use crate::error::WorkloadError;
use crate::pair::BEGIN;
use crate::pair::Role;
use crate::pair::{PairCx, wait};
use crate::random::Random;
use crate::report::Report;
use headworks_stage::{Actor, ActorError, Cx, Step};

/// Which verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Verb {
    /// SEND into receives of an SRQ.
    Send,
    /// WRITE.
    Write,
    /// WRITE with immediate, which takes a receive of an SRQ.
    WriteImm,
    /// READ.
    Read,
    /// Compare-and-swap, each queue pair on a word of its own.
    CompareSwap,
    /// Fetch-and-add, each queue pair on a word of its own.
    FetchAdd,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Send,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::CompareSwap => "compare-swap",
            Self::FetchAdd => "fetch-add",
        }
    }

    /// Whether it is an atomic operation, on 8 bytes.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether something comes back: it ends where it began.
    pub fn is_answered(self) -> bool {
        self.is_atomic() || self == Self::Read
    }

    /// Whether it takes a receive.
    pub(super) fn is_received(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }
}

/// The load of one pair of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Load {
    /// Which verb.
    pub verb: Verb,
    /// Whether the bytes come with the request; not of what is answered.
    pub inline: bool,
    /// Bytes of a message, a multiple of 8; of an atomic 8.
    pub size: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Requests outstanding of each.
    pub depth: usize,
    /// What the program does for a request beside the verbs, in nanoseconds, where time is virtual:
    /// perftest's share is the preset's `cpu.bench`.
    pub work_ns: u64,
    /// How the program goes about it.
    pub gait: Gait,
    /// Requests that must have ended before the load is warm, or twice as many as are outstanding, if those are
    /// fewer. A program that counts completions needs twice as many, since it takes those that ended while it filled
    /// queue pairs faster than requests end. What the RNIC counts is right before that.
    pub warm_requests: usize,
}

/// How a program posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Gait {
    /// To queue pairs in the order in which they were made. A step posts as many as are outstanding of one, and later
    /// as many as 64 completions make room for.
    Even,
    /// As a program of its own beside others. It posts to queue pairs in a random order of its own: units of a
    /// simulated RNIC have neighbouring ones, so programs in step would all be at the same unit. A step posts at most
    /// so many: where time is virtual, the programs see what they share beside the RNIC between steps.
    Apart(usize),
}

impl Gait {
    /// What a step posts where there are so many to post.
    fn at_once(self, many: usize) -> usize {
        match self {
            Self::Even => many,
            Self::Apart(few) => few.clamp(1, many),
        }
    }
}

impl Load {
    /// Of one queue pair and one request at a time, from registered memory, by a program that does nothing else.
    pub const fn of(verb: Verb, size: usize) -> Self {
        Self {
            verb,
            inline: false,
            size,
            queue_pairs: 1,
            depth: 1,
            work_ns: 0,
            gait: Gait::Even,
            warm_requests: usize::MAX,
        }
    }

    pub(super) fn work(&self) -> Duration {
        Duration::from_nanos(self.work_ns)
    }
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inline = if self.inline { " inline" } else { "" };
        let (verb, size) = (self.verb.name(), self.size);
        let (queue_pairs, depth) = (self.queue_pairs, self.depth);
        write!(
            f,
            "{verb}{inline} {size} B, {queue_pairs} QP, depth {depth}"
        )
    }
}

/// Receives of the SRQ.
const RECEIVES: u32 = 4096;
/// Completions that one step takes.
const BATCH: usize = 64;
/// Messages from which on every one is worth reading the clock for, in bytes.
const LARGE: usize = 16 * 1024;
/// Bytes that need not be exceeded before the measured time.
const WARM_BYTES: usize = 256 << 20;

/// The part of `load` that has a role.
pub(super) fn part(load: Load, setup: &Setup<'_>) -> Made {
    pair(load, setup, poster(setup.task, &load))
}

/// What makes the end that posts `load` for `task`, and measures it.
pub(super) fn poster(task: &Task, load: &Load) -> impl FnOnce(Source) -> Poster + Send + use<> {
    let most = (WARM_BYTES / load.size).min(load.warm_requests).max(1);
    let all = load.queue_pairs * load.depth;
    let warm_up = Task {
        run_ns: 0,
        ..task.clone()
    };
    let (task, start) = match task.together {
        true => (&warm_up, Start::Together(task.run_ns)),
        false => (task, Start::Begun),
    };
    let meter = Meter::new(task, (2 * all).min(most) as u64);
    // What all wait for is not to come late.
    let meter = match load.size >= LARGE || start != Start::Begun {
        true => meter.at_every_one(),
        false => meter,
    };
    let behind = (4 * all).min(most) as u64;
    move |source| Poster {
        source,
        meter,
        start,
        filled: 0,
        done: 0,
        has_caught_up: false,
        behind,
        found: [Completion::default(); BATCH],
    }
}

/// A pair of which one end posts as `play` has it, and the other takes what it must.
pub(super) fn pair<P: Actor + 'static>(
    load: Load,
    setup: &Setup<'_>,
    play: impl FnOnce(Source) -> P + Send + 'static,
) -> Made {
    let room = (load.queue_pairs * load.depth).max(RECEIVES as usize);
    let mut shape = loaded_shape(&load, room as u32, RECEIVES);
    shape.caps.max_send_wr = match setup.pair.role {
        Role::Sender => load.depth as u32,
        Role::Receiver => 1,
    };
    let end = setup.open(&shape)?;
    let memory = end.memory(load.size.max(8) * load.queue_pairs)?;
    let payload = emit(&[memory.region().remote(0)]);
    let seed = own_seed(end.device.info(), setup.pair.name());
    match setup.pair.role {
        Role::Sender => connected(end, &payload, move |mut end, theirs| {
            let [target] = parse(theirs)?;
            if let Gait::Apart(_) = load.gait {
                shuffle(&mut end.queue_pairs, seed);
            }
            Ok(play(Source::new(load, end, memory, target)))
        }),
        Role::Receiver => connected(end, &payload, move |end, _| {
            let taker = Taker {
                load,
                end,
                memory,
                found: [Completion::default(); BATCH],
            };
            taker.receive(RECEIVES as usize)?;
            Ok(taker)
        }),
    }
}

/// The shape of an end that posts `load`, or takes it by `receives` if it takes some.
pub(super) fn loaded_shape(load: &Load, cq_depth: u32, receives: u32) -> Shape {
    let shape = shape(load.queue_pairs, cq_depth);
    Shape {
        caps: QpCaps {
            max_inline: if load.inline { load.size as u32 } else { 0 },
            ..shape.caps
        },
        shared_receives: if load.verb.is_received() { receives } else { 0 },
        ..shape
    }
}

/// In an order that the seed decides.
fn shuffle<T>(all: &mut [T], seed: u64) {
    let mut random = Random::new(seed);
    for last in (1..all.len()).rev() {
        all.swap(last, random.below(last as u64 + 1) as usize);
    }
}

impl Source {
    /// Posts a request on a queue pair, at its own place, with a doorbell of its own. Its completion says which.
    pub(super) fn post_on(&mut self, at: usize) -> Result<(), WorkloadError> {
        let place = at * self.load.size.max(8);
        self.post::<1>(at, at as u64, |_| place, |_| true)
    }
}

/// What a poster has before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// To become warm, which its meter tells, and then to wait for the others; to measure for so many nanoseconds
    /// then.
    Together(u64),
    /// To be told that all are warm.
    Warm(u64),
    /// Nothing: its meter measures, after a warm-up of its own where there are no others.
    Begun,
}

/// The end that posts as much as goes.
pub(super) struct Poster {
    source: Source,
    meter: Meter,
    start: Start,
    /// Requests that were posted before the first completion was looked for.
    filled: usize,
    done: u64,
    /// What ended while the queue pairs were filled is taken, or that many were: before that completions are taken
    /// faster than requests end.
    has_caught_up: bool,
    behind: u64,
    /// Room for completions.
    found: [Completion; BATCH],
}

impl Poster {
    /// Requests that have ended so far.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// The device that it posts to.
    pub(super) fn device(&self) -> &DeviceInfo {
        self.source.end.device.info()
    }
}

impl Actor for Poster {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        match self.advance(cx)? {
            Step::Done => cx.done(&self.meter.report()),
            step => Ok(step),
        }
    }
}

impl Poster {
    /// Posts and polls. It has told the other end when it is done, but reported nothing.
    pub(super) fn advance(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let load = self.source.load;
        let unfilled = load.queue_pairs * load.depth - self.filled;
        if unfilled > 0 {
            let count = load.gait.at_once(load.depth).min(unfilled);
            for _ in 0..count {
                self.source.post_on(self.filled / load.depth)?;
                self.filled += 1;
            }
            cx.charge(load.work().times(count as u64));
            return Ok(Step::Again);
        }
        let most = load.gait.at_once(BATCH);
        let count = self.source.poll(&mut self.found[..most])?.len();
        for done in &self.found[..count] {
            self.source.post_on(done.wr_id as usize)?;
        }
        self.done += count as u64;
        cx.charge(load.work().times(count as u64));
        self.has_caught_up |= count < most || self.done >= self.behind;
        if !self.has_caught_up {
            return Ok(Step::Again);
        }
        match self.start {
            Start::Together(run_ns) if self.meter.count(self.done, cx) => {
                self.start = Start::Warm(run_ns);
                cx.report_and_go_on(&Report::Ready)
            }
            Start::Warm(run_ns) if cx.mailed().is_some_and(|mail| mail == BEGIN) => {
                self.start = Start::Begun;
                self.meter = Meter::from_next(self.done, run_ns);
                Ok(Step::Again)
            }
            Start::Begun if self.meter.count(self.done, cx) => {
                cx.mail(b"finished")?;
                Ok(Step::Done)
            }
            _ => Ok(Step::Again),
        }
    }
}

/// The end of a part that measures: tells the other.
pub(super) fn finished(cx: &mut Cx<'_>, report: Report) -> Result<Step, ActorError> {
    cx.mail(b"finished")?;
    cx.done(&report)
}

/// The end that is written to, read from, or takes what is sent.
struct Taker {
    load: Load,
    end: End,
    memory: Memory,
    /// Room for completions: most looks find none.
    found: [Completion; BATCH],
}

impl Taker {
    fn receive(&self, count: usize) -> Result<(), WorkloadError> {
        (0..count)
            .try_for_each(|_| receive::<1>(&self.end, &self.memory, self.load.size, &[0], |_| 0))
    }
}

impl Actor for Taker {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if cx.mailed().is_some() {
            return cx.done(&Report::None);
        }
        if self.end.srq.is_none() {
            return Ok(wait());
        }
        let count = polled(&*self.end.recv_cq, &mut self.found)?.len();
        self.receive(count)?;
        Ok(Step::Again)
    }
}
