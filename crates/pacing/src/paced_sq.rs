//! The paced send queues of one completion queue: its queue pairs, what they may post now, and what has
//! completed.
//!
//! One lock per completion queue ([`BiasedLock`](headworks_shm::BiasedLock)) guards all of it. The lock costs
//! the thread that posts and polls nothing until another thread takes it, as the background thread does.
//! Nothing blocks, and every call does a bounded amount of work.

use std::collections::VecDeque;
use std::sync::Arc;

use headworks_shm::fork::ForkGeneration;
use headworks_verbs::{
    Completion, CompletionQueue, Instant, Opcode, Payload, PollError, PostError, PostErrorKind,
    QpState, QueuePair, SendFlags, SendOp, SendWr, Sge, Status,
};

use crate::config::PacingConfig;
use crate::monitor::{Class, Kind};
use crate::post_checks::QpLimits;
use crate::rate_feedback::{LazyClock, RateFeedback};
use crate::request_queue::{InFlight, PlanPosition, ProgramCompletion, RequestQueue, opcode};
use crate::shared_state::{ShareError, ShareMember};
use crate::slices::SliceRule;
use crate::token_bucket::TokenBucket;

mod dispatch;
mod post;

/// Most requests in one doorbell.
const CHAIN: usize = 16;
/// Most completions that one poll takes from the device.
const BATCH: usize = 32;
/// While something waits, completions are polled once in this many posts without a poll by the program.
const UNPOLLED_MAX: u32 = 16;
/// In one poll out of this many, receives are polled before the completions of requests.
const RECEIVES_EVERY: u32 = 16;
/// Most request queues that are kept for reuse when queue pairs become idle or go.
const KEPT: usize = 64;

/// Reads the host's clock: CLOCK_MONOTONIC, or virtual time.
pub type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// The sending side of a queue pair.
pub(crate) struct QpSendState {
    pub(crate) inner: Box<dyn QueuePair>,
    /// `None` while the queue pair is idle.
    queue: Option<Box<RequestQueue>>,
    /// Distinguishes its completions from those of an earlier queue pair in the same slot.
    generation: u32,
    /// Size of its send queue, as the device reports it.
    limit: u32,
    max_rd_atomic: u8,
    flags: u8,
}

// An idle queue pair costs this and the program's handle, beyond the device's own queue pair.
const _: () = assert!(size_of::<QpSendState>() <= 40);

/// Every request completes for the program, signaled or not.
const SIGNAL_ALL: u8 = 1;
/// A request failed, so waiting requests are flushed.
const BROKEN: u8 = 2;
/// The peer is on this host.
const LOCAL: u8 = 4;
/// Unreliable datagrams.
const DATAGRAM: u8 = 8;
/// The queue pair is in the queue of those with waiting requests.
const IN_ROW: u8 = 16;
/// The queue pair's bit is set in the shared state: something of it was in flight or waiting at the last
/// scan, or since.
const ACTIVE: u8 = 32;

impl QpSendState {
    fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn set(&mut self, flag: u8, on: bool) {
        self.flags = if on {
            self.flags | flag
        } else {
            self.flags & !flag
        };
    }

    fn kind(flags: u8, op: &SendOp) -> Kind {
        Kind::new(Class::of(op), flags & LOCAL != 0)
    }
}

/// Statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests and slices posted to the device.
    pub posted: u64,
    /// Doorbells of these posts.
    pub doorbells: u64,
    /// Requests whose posting was deferred.
    pub deferred: u64,
    /// Delays that counted as samples.
    pub samples: u64,
    /// Measured completions that gave no sample: no timestamp and polled too rarely, or an outlier.
    pub unsampled: u64,
}

impl Counts {
    /// Sums two sets of counts.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            posted: self.posted + other.posted,
            doorbells: self.doorbells + other.doorbells,
            deferred: self.deferred + other.deferred,
            samples: self.samples + other.samples,
            unsampled: self.unsampled + other.unsampled,
        }
    }
}

/// The paced send queues of one completion queue.
pub(crate) struct PacedSq {
    /// The device's completion queue for requests. All requests complete there.
    completions: Arc<dyn CompletionQueue>,
    depth: usize,
    pairs: Vec<Option<QpSendState>>,
    free: Vec<u32>,
    generation: u32,
    config: Arc<PacingConfig>,
    cut: SliceRule,
    max_message: u32,
    line_rate: u64,
    overhead: u64,
    /// Whether pacing limits the bytes in flight instead of the rate.
    limits_flight: bool,
    is_plain: bool,
    gauge: RateFeedback,
    stamps: bool,
    bucket: TokenBucket,
    member: ShareMember,
    /// Requests that the device has.
    flying: usize,
    /// Completions found outside of the program's polls, each with its queue pair's slot and generation. The
    /// program's next poll returns them first.
    told: VecDeque<(ProgramCompletion, u32, u32)>,
    /// Queue pairs with waiting requests, in the order of their turns.
    row: VecDeque<u32>,
    /// Queue pairs with requests to flush.
    broken: VecDeque<u32>,
    #[expect(clippy::vec_box, reason = "queue pairs get them as they are")]
    kept: Vec<Box<RequestQueue>>,
    scratch: (Vec<Sge>, Vec<u8>),
    found: Vec<Completion>,
    polls: u32,
    /// Calls that posted since the program last polled, while something waited.
    posts_unpolled: u32,
    counts: Counts,
    /// Whether the program may be asleep with no timer to wake it.
    sleeps: bool,
    made_by: ForkGeneration,
}

/// Arguments of [`PacedSq::new`].
pub(crate) struct PacedSqInit {
    pub(crate) completions: Arc<dyn CompletionQueue>,
    pub(crate) config: Arc<PacingConfig>,
    pub(crate) max_message: u32,
    pub(crate) gauge: RateFeedback,
    pub(crate) member: ShareMember,
    /// Whether the program asked for timestamps.
    pub(crate) stamps: bool,
}

impl PacedSq {
    pub(crate) fn new(parts: PacedSqInit) -> Self {
        let PacedSqInit {
            completions,
            config,
            max_message,
            gauge,
            member,
            stamps,
        } = parts;
        let cut = SliceRule {
            slice: config.slice_bytes as u64,
            with_imm: config.slice_imm != 0.0,
        };
        Self {
            depth: (completions.depth() as usize / 2).clamp(1, config.max_in_flight as usize),
            completions,
            pairs: Vec::new(),
            free: Vec::new(),
            generation: 0,
            cut,
            max_message,
            line_rate: config.line_rate(),
            overhead: config.overhead_bytes as u64,
            limits_flight: config.window != 0.0,
            is_plain: false,
            gauge,
            stamps,
            bucket: TokenBucket::default(),
            member,
            flying: 0,
            told: VecDeque::new(),
            row: VecDeque::new(),
            broken: VecDeque::new(),
            kept: Vec::new(),
            scratch: (Vec::with_capacity(4 * CHAIN), Vec::new()),
            found: vec![Completion::default(); BATCH],
            polls: 0,
            posts_unpolled: 0,
            counts: Counts::default(),
            sleeps: false,
            made_by: ForkGeneration::current(),
            config,
        }
    }

    /// Whether this process is a forked child of the process that made this.
    pub(crate) fn is_forked(&self) -> bool {
        self.made_by.is_foreign()
    }

    /// Adds a queue pair and returns its slot.
    pub(crate) fn add(
        &mut self,
        inner: Box<dyn QueuePair>,
        is_datagram: bool,
        signal_all: bool,
    ) -> Result<u32, ShareError> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.member.reserve(self.pairs.len(), self.gauge.now())?;
                self.pairs.push(None);
                (self.pairs.len() - 1) as u32
            }
        };
        self.generation = self.generation.wrapping_add(1);
        let mut flags = 0;
        if is_datagram {
            flags |= DATAGRAM;
        }
        if signal_all {
            flags |= SIGNAL_ALL;
        }
        self.pairs[slot as usize] = Some(QpSendState {
            limit: inner.caps().max_send_wr,
            inner,
            queue: None,
            generation: self.generation,
            max_rd_atomic: 0,
            flags,
        });
        Ok(slot)
    }

    /// Removes a queue pair. Nobody gets the completions of what the device still has of it.
    #[must_use = "destroying it may take a while, and need not be done under the lock"]
    pub(crate) fn remove(&mut self, slot: u32) -> Option<QpSendState> {
        let mut gone = self.pairs[slot as usize].take()?;
        self.forget(slot, &mut gone);
        self.free.push(slot);
        self.make_way();
        Some(gone)
    }

    /// Drops a queue pair's waiting, in-flight and unpolled requests.
    fn forget(&mut self, slot: u32, sending: &mut QpSendState) {
        self.row.retain(|other| *other != slot);
        self.broken.retain(|other| *other != slot);
        sending.set(IN_ROW | BROKEN, false);
        let generation = sending.generation;
        self.told.retain(|(_, s, g)| (*s, *g) != (slot, generation));
        self.set_active(slot, sending, false);
        let Some(queue) = sending.queue.take() else {
            return;
        };
        self.flying = self.flying.saturating_sub(queue.flying());
        self.gauge.gone(queue.cost(self.overhead));
        if queue.flying() > 0 {
            self.drain();
        }
        self.keep(queue);
    }

    /// Goes on after a queue pair was forgotten. Others may have waited for the room that it took, and their
    /// completions may have been found meanwhile.
    fn make_way(&mut self) {
        if self.waits() {
            let now = self.gauge.now();
            self.pump(now);
            if self.sleeps {
                self.push_one();
            }
        }
        self.update_fast_path();
    }

    fn keep(&mut self, mut queue: Box<RequestQueue>) {
        if self.kept.len() < KEPT {
            queue.clear();
            self.kept.push(queue);
        }
    }

    /// The queue pair in a slot.
    pub(crate) fn pair(&mut self, slot: u32) -> Option<&mut QpSendState> {
        self.pairs.get_mut(slot as usize)?.as_mut()
    }

    /// Follows a change of a queue pair: its new state, its limit of outstanding READs, and whether its peer
    /// is on this host. `None` means unchanged.
    pub(crate) fn modified(
        &mut self,
        slot: u32,
        state: Option<QpState>,
        reads: Option<u8>,
        is_local: Option<bool>,
    ) {
        if state == Some(QpState::Rts) {
            self.flush_before(slot);
        }
        let Some(mut sending) = self.pairs[slot as usize].take() else {
            return;
        };
        if let Some(reads) = reads {
            sending.max_rd_atomic = reads;
        }
        if let Some(is_local) = is_local {
            sending.set(LOCAL, is_local);
        }
        match state {
            Some(QpState::Reset) => {
                self.forget(slot, &mut sending);
                // Completions that the device still reports belong to requests from before the reset.
                self.generation = self.generation.wrapping_add(1);
                sending.generation = self.generation;
                self.make_way();
            }
            Some(QpState::Error)
                if sending
                    .queue
                    .as_ref()
                    .is_some_and(|queue| queue.is_waiting()) =>
            {
                self.breaks(slot, &mut sending);
                let now = self.gauge.now();
                self.push_broken(slot, &mut sending, now);
            }
            _ => {}
        }
        self.pairs[slot as usize] = Some(sending);
        self.update_fast_path();
    }

    /// Marks a queue pair as broken, so that its waiting requests are flushed.
    fn breaks(&mut self, slot: u32, sending: &mut QpSendState) {
        if !sending.is(BROKEN) {
            sending.set(BROKEN, true);
            self.broken.push_back(slot);
        }
    }

    /// Flushes a queue pair's waiting requests before it sends again after a failure, as a datagram queue
    /// pair may. Requests that are posted from now on are not flushed.
    fn flush_before(&mut self, slot: u32) {
        let waits =
            |pair: &mut QpSendState| pair.queue.as_ref().is_some_and(|queue| queue.is_waiting());
        if !self.pair(slot).is_some_and(waits) {
            return;
        }
        // The device has flushed its own requests already; the program may not have polled those completions.
        self.drain();
        let is_broken = |pair: &mut QpSendState| pair.is(BROKEN);
        if !self.pair(slot).is_some_and(is_broken) {
            return;
        }
        while let Some(flushed) = self.flush_one(slot) {
            self.told.push_back(flushed);
        }
        if let Some(pair) = self.pair(slot) {
            pair.set(BROKEN, false);
        }
        self.broken.retain(|other| *other != slot);
    }

    /// Statistics so far.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn now(&self) -> Instant {
        self.gauge.now()
    }

    /// When the first waiting request is due, if requests wait for time to pass and not only for completions.
    pub(crate) fn due(&self) -> Option<Instant> {
        let by_time = !self.limits_flight;
        (by_time && !self.row.is_empty()).then(|| self.bucket.due())
    }

    /// Whether requests wait that only calls of the program or the passing of time release.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        !self.row.is_empty() || !self.broken.is_empty()
    }

    /// Whether this poll is to look for receives first.
    pub(crate) fn receives_next(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(RECEIVES_EVERY)
    }

    fn set_active(&mut self, slot: u32, sending: &mut QpSendState, on: bool) {
        if sending.is(ACTIVE) != on {
            sending.set(ACTIVE, on);
            self.member.set_active(slot as usize, on);
        }
    }

    /// Marks queue pairs with nothing waiting or in flight as inactive.
    fn update_active_count(&mut self) {
        let mut at = 0;
        while let Some(slot) = self.member.next_active(at) {
            at = slot + 1;
            let Some(sending) = self.pairs.get_mut(slot).and_then(Option::as_mut) else {
                continue;
            };
            if sending.queue.as_ref().is_none_or(|queue| queue.is_quiet()) {
                sending.set(ACTIVE, false);
                self.member.set_active(slot, false);
            }
        }
    }
}
