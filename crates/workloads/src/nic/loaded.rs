//! One verb over so many queue pairs, each of which is kept so deep in requests: what perftest does. Whoever
//! posts measures; the other end checks nothing but takes what is sent to it.
//!
//! [`batches`](super::batches), [`flows`](super::flows) and [`pingpong`](super::pingpong) time requests of the same
//! loads; [`watched`](super::watched) looks at one while it runs.

use std::collections::BTreeMap;

use headworks::verbs::{
    Completion, CompletionQueue, DeviceInfo, Duration, Payload, QpCaps, RecvWr, RemoteAddr,
    SendFlags, SendOp, SendWr, Status,
};
use headworks_baselines::Memory;
use serde::{Deserialize, Serialize};

use super::end::{self, End, Shape, connected, emit, parse};
use super::meter::Meter;
use super::{Task, What};
use crate::chance::own_seed;
use crate::random::Random;
use crate::transports::connect::Role;
use crate::transports::job::Report;
use crate::transports::part::{BEGIN, Part};
use crate::transports::{ArmError, Env, Turn};
use crate::world::{Handed, Place};

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

    /// What it is called.
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

    /// Whether it is one of the atomics, which are about 8 bytes.
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
    /// So many requests have ended when it is taken for warm; where twice as many as are outstanding are fewer, when
    /// those have. Whoever counts completions needs all of them, since what ended while queue pairs were filled is
    /// taken faster than it ends; what the RNIC counts is right before that.
    pub warm_requests: usize,
}

/// How a program posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Gait {
    /// To queue pairs in the order in which they were made; in a step as many as are outstanding of one, and later as
    /// 64 completions make room for.
    Even,
    /// As a program that has nothing to do with others beside it, which would have come later and at other places
    /// than it. To queue pairs in an order of its own, by chance: units of a simulated RNIC have those that follow
    /// each other, so that programs in step would all be at the same unit. And at most so many in a step: what is
    /// shared beside the RNIC, as the clock of pacing, is seen between steps where time is virtual.
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

    /// Requests per second of so many pairs together, over `run` after `warm`; `None` if none ended. Several measure
    /// the same time, once all are warm: none has the link for itself because others came later or went earlier.
    pub fn rate(
        &self,
        place: &Place<'_>,
        pairs: usize,
        (warm, run): (Duration, Duration),
    ) -> Result<Option<f64>, ArmError> {
        let reports = play(place, What::Loaded(*self), pairs, (warm, run))?;
        let rates = reports.iter().filter_map(|[sent, _]| sent.per_second());
        let sum: f64 = rates.sum();
        Ok((sum > 0.0).then_some(sum))
    }

    pub(super) fn work(&self) -> Duration {
        Duration::from_nanos(self.work_ns)
    }
}

/// Has so many pairs do that, for a time after a warm-up.
pub(super) fn play(
    place: &Place<'_>,
    what: What,
    pairs: usize,
    (warm, run): (Duration, Duration),
) -> Result<Vec<[Report; 2]>, ArmError> {
    let dir = tempfile::Builder::new().prefix("headworks-").tempdir();
    let dir = dir.map_err(|e| ArmError::at("private directory", e))?;
    let task = Task {
        what,
        run_ns: run.nanos(),
        warm_ns: warm.nanos(),
        together: pairs > 1,
        dir: dir.path().to_owned(),
    };
    place.run_tasks(&task, pairs)
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            verb,
            inline,
            size,
            queue_pairs,
            depth,
            ..
        } = self;
        let inline = if *inline { " inline" } else { "" };
        let verb = verb.name();
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

/// The part of `load` that has `role`.
pub fn part(
    task: &Task,
    load: Load,
    role: Role,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    let poster = poster(task, &load);
    pair(load, role, handed, poster)
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
    move |source| Poster::new(source, meter, start, behind)
}

/// A pair of which one end posts as `play` has it, and the other takes what it must.
pub(super) fn pair<P: Part + 'static>(
    load: Load,
    role: Role,
    handed: &Handed,
    play: impl FnOnce(Source) -> P + Send + 'static,
) -> Result<Box<dyn Part>, ArmError> {
    let shape = shape(&load, role);
    let mut end = end::open(handed, &shape)?;
    end.populate(&shape)?;
    let memory = end.memory(load.size.max(8) * load.queue_pairs)?;
    let payload = emit(&[memory.region().remote(0)]);
    let seed = own_seed(end.device.info(), &handed.role);
    match role {
        Role::Sender => connected(end, &payload, move |mut end, theirs| {
            let [target] = parse(theirs)?;
            if let Gait::Apart(_) = load.gait {
                shuffle(&mut end.queue_pairs, seed);
            }
            let bytes = vec![7; load.size];
            Ok(play(Source {
                load,
                end,
                memory,
                target,
                bytes,
            }))
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

/// In an order that the seed decides.
fn shuffle<T>(all: &mut [T], seed: u64) {
    let mut random = Random::new(seed);
    for last in (1..all.len()).rev() {
        all.swap(last, random.below(last as u64 + 1) as usize);
    }
}

fn shape(load: &Load, role: Role) -> Shape {
    let sends = match role {
        Role::Sender => load.depth as u32,
        Role::Receiver => 1,
    };
    Shape {
        queue_pairs: load.queue_pairs,
        caps: QpCaps {
            max_send_wr: sends,
            max_recv_wr: 1,
            max_inline: if load.inline { load.size as u32 } else { 0 },
            ..QpCaps::default()
        },
        cq_depth: (load.queue_pairs * load.depth).max(RECEIVES as usize) as u32,
        shared_receives: if load.verb.is_received() { RECEIVES } else { 0 },
        channel: false,
    }
}

/// What an end posts from.
pub(super) struct Source {
    pub(super) load: Load,
    pub(super) end: End,
    memory: Memory,
    target: RemoteAddr,
    bytes: Vec<u8>,
}

impl Source {
    /// Posts a request on a queue pair, with a doorbell of its own.
    pub(super) fn post(&mut self, at: usize) -> Result<(), ArmError> {
        let Load {
            verb, size, inline, ..
        } = self.load;
        let place = at * size.max(8);
        let remote = self.target.plus(place as u64);
        let sges = [self.memory.region().sge(place, size as u32)];
        let op = match verb {
            Verb::Send => SendOp::Send,
            Verb::Write => SendOp::Write(remote),
            Verb::WriteImm => SendOp::WriteImm(remote, at as u32),
            Verb::Read => SendOp::Read(remote),
            Verb::CompareSwap => SendOp::CompareSwap {
                remote,
                expect: 0,
                swap: 0,
            },
            Verb::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
        };
        let wr = SendWr {
            wr_id: at as u64,
            op,
            payload: match inline {
                true => Payload::Inline(&self.bytes),
                false => Payload::Gather(&sges),
            },
            flags: SendFlags::SIGNALED,
        };
        let posted = self.end.queue_pairs[at].post_send(&[wr]);
        posted.map_err(|e| ArmError::at("posting", e))
    }

    /// Which queue pair has that number.
    pub(super) fn numbers(&self) -> BTreeMap<u32, usize> {
        let numbers = self.end.queue_pairs.iter().enumerate();
        numbers.map(|(at, qp)| (qp.qpn().raw(), at)).collect()
    }

    /// Takes completions, none of which may be of a failure.
    pub(super) fn poll<'f>(
        &self,
        found: &'f mut [Completion],
    ) -> Result<&'f [Completion], ArmError> {
        polled(&*self.end.send_cq, found)
    }
}

/// Takes completions, none of which may be of a failure.
pub(crate) fn polled<'f>(
    cq: &dyn CompletionQueue,
    found: &'f mut [Completion],
) -> Result<&'f [Completion], ArmError> {
    let count = cq.poll(found).map_err(|e| ArmError::at("polling", e))?;
    let found = &found[..count];
    match found.iter().find(|done| done.status != Status::Success) {
        Some(done) => Err(ArmError(format!("a request ended: {}", done.status))),
        None => Ok(found),
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
    /// Which queue pair has that number.
    numbers: BTreeMap<u32, usize>,
    /// Requests that were posted before the first completion was looked for.
    filled: usize,
    done: u64,
    /// What ended while the queue pairs were filled is taken, or that many were: before that completions are taken
    /// faster than requests end.
    has_caught_up: bool,
    behind: u64,
    is_over: bool,
    /// Room for completions.
    found: [Completion; BATCH],
}

impl Poster {
    fn new(source: Source, meter: Meter, start: Start, behind: u64) -> Self {
        Self {
            numbers: source.numbers(),
            source,
            meter,
            start,
            filled: 0,
            done: 0,
            has_caught_up: false,
            behind,
            is_over: false,
            found: [Completion::default(); BATCH],
        }
    }

    /// Requests that have ended so far.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// The device that it posts to.
    pub(super) fn device(&self) -> &DeviceInfo {
        self.source.end.device.info()
    }
}

impl Part for Poster {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        let load = self.source.load;
        let unfilled = load.queue_pairs * load.depth - self.filled;
        if unfilled > 0 {
            let count = load.gait.at_once(load.depth).min(unfilled);
            for _ in 0..count {
                self.source.post(self.filled / load.depth)?;
                self.filled += 1;
            }
            env.charge(load.work().times(count as u64));
            return Ok(Turn::Again);
        }
        let most = load.gait.at_once(BATCH);
        let count = self.source.poll(&mut self.found[..most])?.len();
        for done in &self.found[..count] {
            self.done += 1;
            let at = self.numbers.get(&done.qpn.raw());
            if let (Some(&at), false) = (at, self.is_over) {
                self.source.post(at)?;
            }
        }
        env.charge(load.work().times(count as u64));
        self.has_caught_up |= count < most || self.done >= self.behind;
        if !self.has_caught_up || self.is_over {
            return Ok(Turn::Again);
        }
        match self.start {
            Start::Together(run_ns) if self.meter.count(self.done, env) => {
                self.start = Start::Warm(run_ns);
                Ok(Turn::Report(Report::Ready))
            }
            Start::Warm(run_ns) if env.mailed().is_some_and(|mail| mail == BEGIN) => {
                self.start = Start::Begun;
                self.meter = Meter::from_next(self.done, run_ns);
                Ok(Turn::Again)
            }
            Start::Begun if self.meter.count(self.done, env) => {
                self.is_over = true;
                env.mail(b"finished")?;
                Ok(Turn::Done(self.meter.report()))
            }
            _ => Ok(Turn::Again),
        }
    }
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
    fn receive(&self, count: usize) -> Result<(), ArmError> {
        let Some(srq) = &self.end.srq else {
            return Ok(());
        };
        let sges = [self.memory.region().sge(0, self.load.size as u32)];
        for _ in 0..count {
            let wr = RecvWr {
                wr_id: 0,
                sges: &sges,
            };
            let posted = srq.post_recv(&[wr]);
            posted.map_err(|e| ArmError::at("receives", e))?;
        }
        Ok(())
    }
}

impl Part for Taker {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        if env.mailed().is_some() {
            return Ok(Turn::Done(Report::None));
        }
        if self.end.srq.is_none() {
            return Ok(Turn::Wait);
        }
        let count = polled(&*self.end.recv_cq, &mut self.found)?.len();
        self.receive(count)?;
        Ok(Turn::Again)
    }
}
