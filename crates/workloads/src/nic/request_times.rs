//! Times of requests: in batches, in flows, as ping-pong, or call by call.

use std::sync::atomic::Ordering;

use headworks::verbs::{Completion, Duration, Instant};
use serde::{Deserialize, Serialize};

use super::endpoint::acting;
use super::rate_meter::LatencyMeter;
use super::requester::{Requester, polled, shape};
use super::verb_load::{self, finished};
use super::{Made, Setup, Verb, VerbLoad, bad_chain};
use crate::actor_pair::{PairMail, Role, sleep};
use crate::error::{Result, WorkloadError};
use crate::latency::Histogram;
use crate::report::Report;
use headworks_runtime::{ActorContext, Step};

/// Batches of requests on one queue pair, with pauses in between. Each request has its own doorbell. A batch
/// of one measures the latency of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Batches {
    /// The load: a batch has `depth` requests, all on the first queue pair.
    pub load: VerbLoad,
    /// Nanoseconds from the last doorbell of a batch to the next batch, which does not begin before the
    /// previous one has completed.
    pub pause_ns: u64,
}

/// Makes the actor of batches for the pair's role.
pub(super) fn batches(Batches { load, pause_ns }: Batches, setup: &Setup<'_>) -> Made {
    let mut timed = LatencyMeter::new(setup.task);
    verb_load::pair(load, setup, move |mut source| {
        let mut delays = vec![Histogram::default(); load.depth];
        // Times at which this batch's requests were posted, how many of them are done, and when the next
        // batch begins.
        let (mut posted, mut done) = (Vec::with_capacity(load.depth), 0);
        let mut resumes = Instant::ZERO;
        acting(move |cx| {
            let now = cx.now();
            // On a busy machine the measured time may pass without a batch; then one batch is measured anyway.
            let is_enough = delays.iter().all(|each| !each.is_empty());
            if timed.is_over(now) && posted.is_empty() && is_enough {
                let delays = delays.iter().map(|each| each.quantiles(1.0));
                return finished(cx, Report::Delays(delays.collect()));
            }
            if posted.len() < load.depth && now >= resumes {
                posted.push(now);
                if posted.len() == load.depth {
                    resumes = now + Duration::from_nanos(pause_ns);
                }
                source.post_on(0)?;
                cx.charge(load.work());
            }
            if posted.is_empty() {
                return Ok(Step::Again);
            }
            // perftest also takes up to 16 completions in one poll.
            let mut found = [Completion::default(); 16];
            let count = source.poll(&mut found)?.len();
            if count == 0 {
                return Ok(Step::Again);
            }
            let now = cx.now();
            for _ in 0..count {
                // A batch is measured if it began in the measured time. Requests of one queue pair complete
                // in order.
                if timed.is_warm(posted[0]) {
                    delays[done].record(now.since(posted[done]));
                }
                done += 1;
            }
            if done == load.depth {
                posted.clear();
                done = 0;
            }
            Ok(Step::Again)
        })
    })
}

/// Flows of requests over some queue pairs, one flow at a time. A flow is timed from its first doorbell until
/// all its requests have completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Flows {
    /// The load. A flow's requests use its queue pairs in turn.
    pub load: VerbLoad,
    /// Number of requests of a flow.
    pub requests: usize,
}

/// Maximum number of requests of flows that one step posts, and of completions that it takes. It is small for
/// the reason given at [`PostingOrder::Random`](super::PostingOrder).
const FLOW_BATCH: usize = 4;

/// Makes the actor of flows for the pair's role.
pub(super) fn flows(Flows { load, requests }: Flows, setup: &Setup<'_>) -> Made {
    let mut timed = LatencyMeter::new(setup.task);
    let requests = requests.max(1);
    verb_load::pair(load, setup, move |mut source| {
        let mut outstanding = vec![0; load.queue_pairs];
        // When this flow began, and how many of its requests are posted and done.
        let mut began = Instant::ZERO;
        let (mut posted, mut done) = (0, 0);
        let mut times = Histogram::default();
        acting(move |cx| {
            if posted == 0 {
                began = cx.now();
            }
            let is_measured = timed.is_warm(began);
            for _ in 0..FLOW_BATCH.min(requests - posted) {
                let at = posted % load.queue_pairs;
                if outstanding[at] == load.depth {
                    break;
                }
                source.post_on(at)?;
                cx.charge(load.work());
                outstanding[at] += 1;
                posted += 1;
            }
            let mut found = [Completion::default(); FLOW_BATCH];
            for ended in source.poll(&mut found)? {
                done += 1;
                outstanding[ended.wr_id as usize] -= 1;
            }
            if done < requests {
                return Ok(Step::Again);
            }
            let now = cx.now();
            if is_measured {
                times.record(now.since(began));
            }
            (posted, done) = (0, 0);
            match timed.is_over(now) && !times.is_empty() {
                true => finished(cx, Report::Latency(times.quantiles(1.0))),
                false => Ok(Step::Again),
            }
        })
    })
}

/// Number of receives posted, and most sends outstanding. Completions of sends are taken while the answer is
/// under way.
const OUTSTANDING: u32 = 16;

/// Makes the actor of a ping-pong for the pair's role.
pub(super) fn ping_pong(load: VerbLoad, setup: &Setup<'_>) -> Made {
    if load.verb.is_answered() || load.size < 8 || !load.size.is_multiple_of(8) {
        return Err(WorkloadError(format!("no ping-pong of {load}")));
    }
    let load = VerbLoad {
        queue_pairs: 1,
        ..load
    };
    let mut shape = verb_load::loaded_shape(&load, OUTSTANDING, OUTSTANDING);
    shape.caps.max_send_wr = OUTSTANDING;
    let (mut timed, leads) = (
        LatencyMeter::new(setup.task),
        setup.pair.role == Role::Sender,
    );
    // The first half holds what is sent; the other end's messages go to the second.
    let source = setup.source(load, &shape, 2 * load.size)?;
    let offered = source.offer(load.size);
    source.connect(offered, move |source| {
        let mut player = PingPong {
            source,
            sent: 0,
            seen: 0,
            outstanding: 0,
        };
        for _ in 0..OUTSTANDING {
            player.receive()?;
        }
        let mut sent_at = Instant::ZERO;
        let mut times = Histogram::default();
        acting(move |cx| {
            if leads && player.sent == 0 {
                sent_at = cx.now();
                player.send(cx)?;
            }
            if player.has_room()? && player.has_come()? {
                let now = cx.now();
                player.seen += 1;
                if timed.is_warm(now) {
                    times.record(now.since(sent_at));
                }
                sent_at = now;
                if leads && timed.is_over(now) {
                    return finished(cx, Report::Latency(times.quantiles(0.5)));
                }
                player.send(cx)?;
            }
            match !leads && cx.receive_mail().is_some() {
                true => cx.done(&Report::None),
                false => Ok(Step::Again),
            }
        })
    })
}

/// Messages of either end of a ping-pong.
struct PingPong {
    source: Requester,
    /// Number of messages sent; `seen` is the number received. A message's last word is its number.
    sent: u64,
    seen: u64,
    outstanding: usize,
}

impl PingPong {
    fn receive(&self) -> Result<()> {
        let size = self.source.load.size;
        self.source.receive::<1>(&[0], |_| size)
    }

    fn send(&mut self, cx: &mut ActorContext<'_>) -> Result<()> {
        let load = self.source.load;
        cx.charge(load.work());
        self.sent += 1;
        let last = load.size - 8;
        match load.inline {
            true => self.source.bytes[last..].copy_from_slice(&self.sent.to_ne_bytes()),
            false => {
                let word = self.source.memory.word(last);
                word.store(self.sent, Ordering::Relaxed);
            }
        }
        self.source.post::<1>(0, self.sent, |_| 0, |_| true)?;
        self.outstanding += 1;
        Ok(())
    }

    /// Takes completions of sends. Returns whether another send may be posted.
    fn has_room(&mut self) -> Result<bool> {
        if self.outstanding > 0 {
            self.outstanding -= self.source.completed()?;
        }
        Ok(self.outstanding < OUTSTANDING as usize)
    }

    /// Returns whether the next message has come.
    fn has_come(&self) -> Result<bool> {
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

/// Length of a WRITE, in bytes.
const SIZE: usize = 64;
/// Number of places that WRITEs go to in turn.
const PLACES: usize = 64;
/// Maximum number of requests of a call.
pub const CHAIN_MAX: usize = 16;
/// Number of calls in a step.
const CALLS: usize = 64;

/// Makes the actor that times calls, for the pair's role. The receiver's memory is written, and it does
/// nothing.
pub(super) fn posts(chain: usize, setup: &Setup<'_>) -> Made {
    let mut shape = shape(1, CHAIN_MAX as u32);
    shape.caps.max_send_wr = CHAIN_MAX as u32;
    let (timed, role) = (LatencyMeter::new(setup.task), setup.pair.role);
    let source = setup.source(VerbLoad::of(Verb::Write, SIZE), &shape, SIZE * PLACES)?;
    let offered = source.offer(0);
    match (role, chain) {
        (Role::Receiver, _) => source.connect(offered, idle_responder),
        (_, 1) => source.connect(offered, |source| caller::<1>(source, timed)),
        (_, CHAIN_MAX) => source.connect(offered, |source| caller::<CHAIN_MAX>(source, timed)),
        _ => Err(bad_chain(chain)),
    }
}

/// Makes the end that is written to. It sleeps: polling would slow down the posting end if both share a core.
fn idle_responder(source: Requester) -> Made {
    acting(move |cx| {
        let _written = &source;
        match cx.receive_mail().is_some() {
            true => cx.done(&Report::None),
            false => Ok(sleep()),
        }
    })
}

/// Makes the end that posts chains of WRITEs, and times each call.
fn caller<const CHAIN: usize>(mut source: Requester, mut timed: LatencyMeter) -> Made {
    let mut posted = 0;
    let mut call = move || -> Result<()> {
        let place = |number| number as usize % PLACES * SIZE;
        source.post::<CHAIN>(0, posted, place, |_| true)?;
        let end = posted + CHAIN as u64;
        let mut found = [Completion::default(); CHAIN];
        while posted < end {
            for done in source.poll(&mut found)? {
                if done.wr_id != posted {
                    let text = format!("request {posted} ended as {}", done.wr_id);
                    return Err(WorkloadError(text));
                }
                posted += 1;
            }
        }
        Ok(())
    };
    let mut times = Histogram::default();
    acting(move |cx| {
        let mut before = cx.now();
        timed.begin(before);
        for _ in 0..CALLS {
            call()?;
            let after = cx.now();
            if timed.is_warm(after) {
                times.record(after.since(before));
            }
            before = after;
        }
        match timed.is_over(before) {
            true => finished(cx, Report::Latency(times.quantiles(1.0))),
            false => Ok(Step::Again),
        }
    })
}
