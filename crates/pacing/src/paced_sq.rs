//! The paced send queues of one completion queue: its queue pairs, what they may post now, and what has
//! completed.
//!
//! One lock per completion queue ([`BiasedLock`](headworks_shm::BiasedLock)) guards all of it. The lock costs
//! the thread that posts and polls nothing until another thread takes it, as the background thread does.
//! Nothing blocks, and every call does a bounded amount of work.
//!
//! Each module below this one has one part of the state, with its invariants at the fields; `post` and `dispatch`
//! are what the calls do with it.

use std::collections::VecDeque;
use std::sync::Arc;

use headworks_shm::fork::ForkGeneration;
use headworks_verbs::{
    Completion, CompletionQueue, Instant, Opcode, Payload, PollError, PostError, PostErrorKind,
    QpState, QueuePair, SendFlags, SendOp, SendWr, Sge, Status,
};

use crate::config::PacingConfig;
use crate::monitor::Kind;
use crate::post_checks::QpLimits;
use crate::rate_feedback::{LazyClock, RateFeedback};
use crate::request_queue::{
    InFlight, PlanPosition, PlannedSlice, ProgramCompletion, RequestQueue, opcode,
};
use crate::shared_state::{ShareError, ShareMember};
use crate::slices::SliceRule;

use buffers::Buffers;
use credit::Credit;
use in_flight_count::InFlightCount;
use program_calls::ProgramCalls;
use qp_slots::{QpFlags, QpId, QpSendState, QpSlots};
use turns::Turns;

mod buffers;
mod credit;
mod dispatch;
mod in_flight_count;
mod post;
mod program_calls;
mod qp_slots;
mod turns;

/// Most requests in one doorbell.
const CHAIN: usize = 16;
/// Most completions that one poll takes from the device.
const BATCH: usize = 32;

/// Reads the host's clock: CLOCK_MONOTONIC, or virtual time.
pub type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

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
    /// The queue pairs, with their waiting and in-flight requests.
    pairs: QpSlots,
    /// The queue pairs that have waiting requests to post or to flush.
    turns: Turns,
    /// Requests that the device has of all queue pairs.
    in_flight: InFlightCount,
    /// What may be posted now.
    credit: Credit,
    /// Completions found outside of the program's polls, oldest first. The program's next poll returns them before
    /// any other. Their requests are outstanding until then.
    kept: VecDeque<QpCompletion>,
    /// What is known of the program's calls.
    calls: ProgramCalls,
    /// Whether the fast paths apply. If so, the rate is limited and not the bytes in flight, it is the line rate,
    /// no queue pair has a turn, and `kept` is empty. [`update_fast_path`](Self::update_fast_path) sets it after
    /// every call that may change one of these.
    is_plain: bool,
    /// How requests are cut. Never changes.
    cut: SliceRule,
    /// Longest message of the device, in bytes.
    max_message: u32,
    /// Whether the program asked for timestamps. If not, they are removed from its completions.
    stamps: bool,
    buffers: Buffers,
    counts: Counts,
    made_by: ForkGeneration,
}

/// A completion for the program, and the queue pair whose requests it retires.
type QpCompletion = (ProgramCompletion, QpId);

/// Arguments of [`PacedSq::new`].
pub(crate) struct PacedSqInit {
    pub(crate) completions: Arc<dyn CompletionQueue>,
    pub(crate) config: Arc<PacingConfig>,
    pub(crate) max_message: u32,
    pub(crate) feedback: RateFeedback,
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
            feedback,
            member,
            stamps,
        } = parts;
        Self {
            in_flight: InFlightCount::new(completions.depth(), config.max_in_flight as usize),
            completions,
            pairs: QpSlots::default(),
            turns: Turns::default(),
            kept: VecDeque::new(),
            calls: ProgramCalls::default(),
            is_plain: false,
            cut: SliceRule {
                slice: config.slice_bytes,
                with_imm: config.slice_imm,
            },
            max_message,
            stamps,
            buffers: Buffers::default(),
            counts: Counts::default(),
            made_by: ForkGeneration::current(),
            credit: Credit::new(config, feedback, member),
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
        if !self.pairs.has_free() {
            let now = self.credit.now();
            self.credit.member.reserve(self.pairs.len(), now)?;
        }
        let mut flags = QpFlags::empty();
        flags.set(QpFlags::DATAGRAM, is_datagram);
        flags.set(QpFlags::SIGNAL_ALL, signal_all);
        Ok(self.pairs.insert(inner, flags))
    }

    /// Removes a queue pair. Nobody gets the completions of what the device still has of it.
    #[must_use = "destroying it may take a while, and need not be done under the lock"]
    pub(crate) fn remove(&mut self, slot: u32) -> Option<QpSendState> {
        let mut gone = self.pairs.take(slot)?;
        self.forget(slot, &mut gone);
        self.pairs.free(slot);
        self.make_way();
        Some(gone)
    }

    /// Drops a queue pair's waiting, in-flight and unpolled requests.
    fn forget(&mut self, slot: u32, sending: &mut QpSendState) {
        self.turns.forget(slot, sending);
        let id = sending.id(slot);
        self.kept.retain(|(_, of)| *of != id);
        self.set_active(slot, sending, false);
        let Some(queue) = sending.queue.take() else {
            return;
        };
        self.in_flight.remove(queue.flying());
        let cost = queue.cost(self.credit.overhead());
        self.credit.feedback.gone(cost);
        if queue.flying() > 0 {
            self.drain();
        }
        self.buffers.keep_queue(queue);
    }

    /// Goes on after a queue pair was forgotten. Others may have waited for the room that it took, and their
    /// completions may have been found meanwhile.
    fn make_way(&mut self) {
        if self.waits() {
            let now = self.credit.now();
            self.pump(now);
            if self.calls.sleeps {
                self.push_one();
            }
        }
        self.update_fast_path();
    }

    /// The queue pair in a slot.
    pub(crate) fn pair(&mut self, slot: u32) -> Option<&mut QpSendState> {
        self.pairs.get_mut(slot)
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
        let Some(mut sending) = self.pairs.take(slot) else {
            return;
        };
        if let Some(reads) = reads {
            sending.max_rd_atomic = reads;
        }
        if let Some(is_local) = is_local {
            sending.set(QpFlags::LOCAL, is_local);
        }
        match state {
            Some(QpState::Reset) => {
                self.forget(slot, &mut sending);
                // Completions that the device still reports belong to requests from before the reset.
                self.pairs.renew(&mut sending);
                self.make_way();
            }
            Some(QpState::Error) if sending.is_waiting() => {
                self.turns.mark_broken(slot, &mut sending);
                let now = self.credit.now();
                self.push_broken(slot, &mut sending, now);
            }
            _ => {}
        }
        self.pairs.put(slot, sending);
        self.update_fast_path();
    }

    /// Flushes a queue pair's waiting requests before it sends again after a failure, as a datagram queue
    /// pair may. Requests that are posted from now on are not flushed.
    fn flush_before(&mut self, slot: u32) {
        if !self.pairs.get(slot).is_some_and(QpSendState::is_waiting) {
            return;
        }
        // The device has flushed its own requests already; the program may not have polled those completions.
        self.drain();
        let is_broken = |pair: &QpSendState| pair.is(QpFlags::BROKEN);
        if !self.pairs.get(slot).is_some_and(is_broken) {
            return;
        }
        while let Some(flushed) = self.flush_one(slot) {
            self.kept.push_back(flushed);
        }
        if let Some(pair) = self.pairs.get_mut(slot) {
            self.turns.mark_whole(slot, pair);
        }
    }

    /// Statistics so far.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn now(&self) -> Instant {
        self.credit.now()
    }

    /// When the first waiting request is due, if requests wait for time to pass and not only for completions.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.credit.due().filter(|_| !self.turns.waiting.is_empty())
    }

    /// Whether requests wait that only calls of the program or the passing of time release.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Whether this poll is to look for receives first.
    pub(crate) fn receives_next(&mut self) -> bool {
        self.calls.receives_next()
    }

    fn set_active(&mut self, slot: u32, sending: &mut QpSendState, on: bool) {
        if sending.is(QpFlags::ACTIVE) != on {
            sending.set(QpFlags::ACTIVE, on);
            self.credit.member.set_active(slot as usize, on);
        }
    }

    /// Marks queue pairs with nothing waiting or in flight as inactive.
    fn update_active_count(&mut self) {
        let mut at = 0;
        while let Some(slot) = self.credit.member.next_active(at) {
            at = slot + 1;
            let Some(sending) = self.pairs.get_mut(slot as u32) else {
                continue;
            };
            if sending.queue.as_ref().is_none_or(|queue| queue.is_quiet()) {
                sending.set(QpFlags::ACTIVE, false);
                self.credit.member.set_active(slot, false);
            }
        }
    }
}
