//! One verb over some queue pairs, with a fixed number of requests outstanding on each, as in perftest. The
//! end that posts measures, and may be sampled while it runs. The other end checks nothing; it only receives
//! what is sent to it.
//!
//! [`request_times`](super::request_times) times requests of the same loads.

use headworks::verbs::{Completion, DeviceInfo, Duration, Instant, QpCaps, QpType};
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

/// A verb that is measured.
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

    /// Returns the verb's name.
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

    /// Returns whether this is an atomic operation, on 8 bytes.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Returns whether the responder returns data, so that the operation completes where it began.
    pub fn is_answered(self) -> bool {
        self.is_atomic() || self == Self::Read
    }

    /// Returns whether this consumes a receive.
    pub(super) fn is_received(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }
}

/// The load of one pair of actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VerbLoad {
    /// The verb.
    pub verb: Verb,
    /// Whether the queue pairs are unreliable connections (UC), which have SENDs and WRITEs only.
    pub unreliable: bool,
    /// Whether the payload is inline; false for verbs that the responder answers with data.
    pub inline: bool,
    /// Length of a message in bytes, a multiple of 8; 8 for an atomic operation.
    pub size: usize,
    /// Number of queue pairs.
    pub queue_pairs: usize,
    /// Number of requests outstanding on each queue pair.
    pub depth: usize,
    /// Nanoseconds that the program spends on a request outside verbs calls, where time is virtual.
    /// perftest's share is the preset's `cpu.bench`.
    pub work_ns: u64,
    /// Order in which the program posts.
    pub posting_order: PostingOrder,
    /// Number of completions after which the load is warm, unless twice the number of outstanding requests is
    /// lower. A program that counts completions needs twice that number, because it polls requests that ended
    /// while it filled the queue pairs faster than requests end. The RNIC's own counters are right earlier.
    pub warm_requests: usize,
}

/// A load that is sampled while it runs: how much is done, and the state of the RNIC's pacing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SampledLoad {
    /// The workload of each pair.
    pub load: VerbLoad,
    /// Nanoseconds between two samples. They are taken at multiples of it, or at the actor's first step after
    /// that.
    pub every_ns: u64,
}

/// Order in which a program posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PostingOrder {
    /// To the queue pairs in the order in which they were made. A step posts all requests of one queue pair,
    /// and later as many requests as up to 64 completions make room for.
    RoundRobin,
    /// Like one of several independent programs: each posts to its queue pairs in a random order of its own.
    /// A simulated RNIC assigns queue pairs to its units in turn, so programs in step would all use the same
    /// unit at the same time. A step posts at most this many requests. Where time is virtual, programs see
    /// what they share beside the RNIC only between steps.
    Random(usize),
}

impl PostingOrder {
    /// Returns how many requests a step posts if there are `many` to post.
    fn at_once(self, many: usize) -> usize {
        match self {
            Self::RoundRobin => many,
            Self::Random(few) => few.clamp(1, many),
        }
    }
}

impl VerbLoad {
    /// Makes a load of one queue pair with one request at a time, from registered memory, without other work.
    pub const fn of(verb: Verb, size: usize) -> Self {
        Self {
            verb,
            unreliable: false,
            inline: false,
            size,
            queue_pairs: 1,
            depth: 1,
            work_ns: 0,
            posting_order: PostingOrder::RoundRobin,
            warm_requests: usize::MAX,
        }
    }

    /// Returns the transport of the queue pairs.
    pub(super) fn qp_type(&self) -> QpType {
        match self.unreliable {
            true => QpType::Uc,
            false => QpType::Rc,
        }
    }

    pub(super) fn work(&self) -> Duration {
        Duration::from_nanos(self.work_ns)
    }
}

impl std::fmt::Display for VerbLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inline = if self.inline { " inline" } else { "" };
        let transport = if self.unreliable { "UC " } else { "" };
        let (verb, size) = (self.verb.name(), self.size);
        let (queue_pairs, depth) = (self.queue_pairs, self.depth);
        write!(
            f,
            "{transport}{verb}{inline} {size} B, {queue_pairs} QP, depth {depth}"
        )
    }
}

/// Number of receives in the SRQ.
const RECEIVES: u32 = 4096;
/// Maximum number of completions that one step takes.
const BATCH: usize = 64;
/// Message length in bytes from which on the clock is read for every message.
const LARGE: usize = 16 * 1024;
/// The warm-up needs no more than this many bytes.
const WARM_BYTES: usize = 256 << 20;

/// Makes the actor of `load` for the pair's role. It is sampled every `watched_every` nanoseconds, if that is
/// set.
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
    // All pairs wait until this one is warm, so it reads the clock at every count and is not late.
    let mut meter = match load.size >= LARGE || start != Start::Begun {
        true => meter.at_every_one(),
        false => meter,
    };
    // The load has caught up once a poll returns fewer completions than it could, or once `behind` requests
    // are done. Until then it takes completions of requests that ended while the queue pairs were filled,
    // faster than requests end.
    let (behind, mut has_caught_up) = ((4 * all).min(most) as u64, false);
    let mut watch = watched_every.map(|every| PacingSampler {
        every: every.max(1),
        next: Instant::ZERO,
        looks: Vec::new(),
    });
    pair(load, setup, move |mut source| {
        // Number of requests posted before the first poll, and number of completed requests.
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

/// Takes samples of a load over time.
struct PacingSampler {
    every: u64,
    /// When the next sample is due.
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

/// Makes a pair's actor: the sender continues as the actor that `run` makes, the receiver as the responder.
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

/// Makes the end that is written to, is read from, or receives messages.
fn responder(source: Requester) -> Made {
    let receive = move |source: &Requester, count| {
        (0..count).try_for_each(|_| source.receive::<1>(&[0], |_| 0))
    };
    receive(&source, RECEIVES as usize)?;
    // Made once and reused: most polls find no completion.
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

/// Returns the sizes of an end that posts `load`, or that receives it with `receives` receives if the verb
/// needs them.
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

/// Shuffles a slice; the seed determines the order.
fn shuffle<T>(all: &mut [T], seed: u64) {
    let mut random = Random::new(seed);
    for last in (1..all.len()).rev() {
        all.swap(last, random.below(last as u64 + 1) as usize);
    }
}

impl Requester {
    /// Posts a request on a queue pair, at its own place, with its own doorbell. Its completion's `wr_id` is
    /// the index of the queue pair.
    pub(super) fn post_on(&mut self, at: usize) -> Result<()> {
        let place = at * self.load.size.max(8);
        self.post::<1>(at, at as u64, |_| place, |_| true)
    }
}

/// Progress of the sending actor up to its measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// Warms up, as its meter decides, then waits for the other pairs, and then measures for this many
    /// nanoseconds.
    Together(u64),
    /// Is warm, and waits until all others are. Measures for this many nanoseconds then.
    Warm(u64),
    /// Measures. If it does not wait for others, its meter includes a warm-up.
    Begun,
}

/// Ends a measuring actor: tells the other end, and reports.
pub(super) fn finished(cx: &mut ActorContext<'_>, report: Report) -> Result<Step, ActorError> {
    cx.send_mail(b"finished")?;
    cx.done(&report)
}
