//! One verb over some queue pairs, each of which is kept so deep in requests, as perftest does. The end that posts
//! measures, and may be looked at while it runs; the other end checks nothing but takes what is sent to it.
//!
//! [`timed`](super::request_times) times requests of the same loads.

use headworks::verbs::{Completion, DeviceInfo, Duration, Instant, QpCaps};
use serde::{Deserialize, Serialize};

use super::endpoint::{EndSizes, acting};
use super::rate_meter::RateMeter;
use super::requester::{Requester, polled, shape};
use super::{Made, NicTask, Setup};
use crate::actor_pair::{BEGIN, PairMail, Role, wait};
use crate::error::Result;
use crate::random::Random;
use crate::report::{PacingSample, PacingState, Report};
use crate::seeds::actor_seed;
use headworks_runtime::{ActorContext, ActorError, Step};

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
    /// All verbs.
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
pub struct VerbLoad {
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
    pub posting_order: PostingOrder,
    /// Requests that must have ended before the load is warm, or twice as many as are outstanding, if those are
    /// fewer. A program that counts completions needs twice as many, since it takes those that ended while it filled
    /// queue pairs faster than requests end. What the RNIC counts is right before that.
    pub warm_requests: usize,
}

/// A load that is looked at while it runs: how much is done, and what the pacing of the RNIC says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SampledLoad {
    /// The workload of each pair.
    pub load: VerbLoad,
    /// Between two looks, in nanoseconds: at multiples of that, or as soon after as the part is stepped.
    pub every_ns: u64,
}

/// How a program posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PostingOrder {
    /// To queue pairs in the order in which they were made. A step posts as many as are outstanding of one, and later
    /// as many as 64 completions make room for.
    RoundRobin,
    /// As a program of its own beside others. It posts to queue pairs in a random order of its own: units of a
    /// simulated RNIC have neighbouring ones, so programs in step would all be at the same unit. A step posts at most
    /// so many: where time is virtual, the programs see what they share beside the RNIC between steps.
    Random(usize),
}

impl PostingOrder {
    /// What a step posts where there are so many to post.
    fn at_once(self, many: usize) -> usize {
        match self {
            Self::RoundRobin => many,
            Self::Random(few) => few.clamp(1, many),
        }
    }
}

impl VerbLoad {
    /// Of one queue pair and one request at a time, from registered memory, by a program that does nothing else.
    pub const fn of(verb: Verb, size: usize) -> Self {
        Self {
            verb,
            inline: false,
            size,
            queue_pairs: 1,
            depth: 1,
            work_ns: 0,
            posting_order: PostingOrder::RoundRobin,
            warm_requests: usize::MAX,
        }
    }

    pub(super) fn work(&self) -> Duration {
        Duration::from_nanos(self.work_ns)
    }
}

impl std::fmt::Display for VerbLoad {
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

/// The part of `load` that has a role. It is looked at every so many nanoseconds, if at all.
pub(super) fn part(load: VerbLoad, watched_every: Option<u64>, setup: &Setup<'_>) -> Made {
    let task = setup.task;
    let most = (WARM_BYTES / load.size).min(load.warm_requests).max(1);
    let all = load.queue_pairs * load.depth;
    let warm_up = NicTask {
        run_ns: 0,
        ..task.clone()
    };
    let (task, mut start) = match task.together {
        true => (&warm_up, Start::Together(task.run_ns)),
        false => (task, Start::Begun),
    };
    let meter = RateMeter::new(task, (2 * all).min(most) as u64);
    // What all wait for is not to come late.
    let mut meter = match load.size >= LARGE || start != Start::Begun {
        true => meter.at_every_one(),
        false => meter,
    };
    // What ended while the queue pairs were filled is taken, or that many were: before that completions are taken
    // faster than requests end.
    let (behind, mut has_caught_up) = ((4 * all).min(most) as u64, false);
    let mut watch = watched_every.map(|every| PacingSampler {
        every: every.max(1),
        next: Instant::ZERO,
        looks: Vec::new(),
    });
    pair(load, setup, move |mut source| {
        // Requests that were posted before the first completion was looked for, and that have ended.
        let (mut filled, mut done) = (0, 0);
        let mut found = [Completion::default(); BATCH];
        acting(move |cx| {
            let is_over = 'posting: {
                if filled < all {
                    let count = load.posting_order.at_once(load.depth).min(all - filled);
                    for _ in 0..count {
                        source.post_on(filled / load.depth)?;
                        filled += 1;
                    }
                    cx.charge(load.work().times(count as u64));
                    break 'posting false;
                }
                let most = load.posting_order.at_once(BATCH);
                let count = source.poll(&mut found[..most])?.len();
                for done in &found[..count] {
                    source.post_on(done.wr_id as usize)?;
                }
                done += count as u64;
                cx.charge(load.work().times(count as u64));
                has_caught_up |= count < most || done >= behind;
                if !has_caught_up {
                    break 'posting false;
                }
                match start {
                    Start::Together(run_ns) if meter.count(done, cx) => {
                        start = Start::Warm(run_ns);
                        cx.report_and_go_on(&Report::Ready)?;
                        false
                    }
                    Start::Warm(run_ns) if cx.receive_mail().is_some_and(|mail| mail == BEGIN) => {
                        start = Start::Begun;
                        meter = RateMeter::from_next(done, run_ns);
                        false
                    }
                    Start::Begun => meter.count(done, cx),
                    _ => false,
                }
            };
            if is_over {
                cx.send_mail(b"finished")?;
            }
            if let Some(watch) = &mut watch {
                watch.sample(cx.now(), done, source.end.device.info());
            }
            match (is_over, &mut watch) {
                (false, _) => Ok(Step::Again),
                (true, None) => cx.done(&meter.report()),
                (true, Some(watch)) => {
                    cx.done(&Report::PacingSamples(std::mem::take(&mut watch.looks)))
                }
            }
        })
    })
}

/// Samples of a load over time.
struct PacingSampler {
    every: u64,
    /// When the next look is due.
    next: Instant,
    looks: Vec<PacingSample>,
}

impl PacingSampler {
    fn sample(&mut self, now: Instant, done: u64, device: &DeviceInfo) {
        if now < self.next {
            return;
        }
        let pacing = headworks::pace::status(device);
        self.looks.push(PacingSample {
            at_ns: now.nanos(),
            done,
            pacing: pacing.map(|status| PacingState {
                rate: status.rate_bytes_per_s as f64,
                delay_ns: status.delay.nanos() as f64,
                ratio: status.ratio,
                thresholds: (status.raise_below, status.lower_above),
                active: status.active,
            }),
        });
        let next = (now.nanos() / self.every + 1) * self.every;
        self.next = Instant::from_nanos(next);
    }
}

/// A pair of which one end posts as `run` has it, and the other takes what it must.
pub(super) fn pair<F>(load: VerbLoad, setup: &Setup<'_>, run: F) -> Made
where
    F: FnOnce(Requester) -> Made + Send + 'static,
{
    let room = (load.queue_pairs * load.depth).max(RECEIVES as usize);
    let mut shape = loaded_shape(&load, room as u32, RECEIVES);
    shape.caps.max_send_wr = match setup.pair.role {
        Role::Sender => load.depth as u32,
        Role::Receiver => 1,
    };
    let source = setup.source(load, &shape, load.size.max(8) * load.queue_pairs)?;
    let (role, offered) = (setup.pair.role, source.offer(0));
    let seed = actor_seed(source.end.device.info(), setup.pair.name());
    source.connect(offered, move |mut source| {
        if role == Role::Receiver {
            return responder(source);
        }
        if let PostingOrder::Random(_) = load.posting_order {
            shuffle(&mut source.end.queue_pairs, seed);
        }
        run(source)
    })
}

/// The end that is written to, read from, or takes what is sent.
fn responder(source: Requester) -> Made {
    let receive = move |source: &Requester, count| {
        (0..count).try_for_each(|_| source.receive::<1>(&[0], |_| 0))
    };
    receive(&source, RECEIVES as usize)?;
    // Room for completions: most looks find none.
    let mut found = [Completion::default(); BATCH];
    acting(move |cx| {
        if cx.receive_mail().is_some() {
            return cx.done(&Report::None);
        }
        if source.end.srq.is_none() {
            return Ok(wait());
        }
        let count = polled(&*source.end.recv_cq, &mut found)?.len();
        receive(&source, count)?;
        Ok(Step::Again)
    })
}

/// The shape of an end that posts `load`, or takes it by `receives` if it takes some.
pub(super) fn loaded_shape(load: &VerbLoad, cq_depth: u32, receives: u32) -> EndSizes {
    let shape = shape(load.queue_pairs, cq_depth);
    EndSizes {
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

impl Requester {
    /// Posts a request on a queue pair, at its own place, with a doorbell of its own. Its completion says which.
    pub(super) fn post_on(&mut self, at: usize) -> Result<()> {
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

/// The end of a part that measures: tells the other.
pub(super) fn finished(cx: &mut ActorContext<'_>, report: Report) -> Result<Step, ActorError> {
    cx.send_mail(b"finished")?;
    cx.done(&report)
}
