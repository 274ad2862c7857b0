//! When requests begin, what a requester counts, and the phases that every actor of a run goes through.

use std::ops::Range;

use headworks::runtime::{ActorContext, ActorError, Step, WakeCondition};
use headworks::verbs::{Duration, Instant};
use headworks_baselines::WordMemory;
use headworks_patterns::verb::Polled;
use headworks_patterns::{PatternError, RequestLoad};
use serde::{Deserialize, Serialize};

use super::prices::PatternPrices;
use super::task::PatternTask;
use crate::error::{Result, WorkloadError};
use crate::latency::Histogram;
use crate::random::{Random, mix};
use crate::thread_counters::{HardwareCounts, ThreadCounters};

/// Mail by which the coordinator begins a run.
pub(super) const BEGIN: &[u8] = b"begin";
/// Mail by which the coordinator ends an actor's work.
pub(super) const END: &[u8] = b"end";
/// Mail after which an actor closes its device. By then no actor works any more: none takes a closed peer for a dead one.
pub(super) const CLOSE: &[u8] = b"close";

/// Iterations of an actor's loop in one step, where time is real.
const BURST: u32 = 256;
/// Steps without progress after which an actor checks its queue pairs.
const CHECK_EVERY: u32 = 1 << 10;

/// How much longer than planned an actor waits for its first message.
const PATIENCE: Duration = Duration::from_secs(5);

/// Report of an actor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum PatternReport {
    /// The actor is connected.
    Ready,
    /// Nothing is outstanding, and the actor has ended its work.
    Finished,
    /// The measured time is over.
    Measured {
        /// Messages in the measured time: responses received, or requests answered.
        messages: u64,
        /// The measured time, in nanoseconds.
        nanos: u64,
        /// Places polled, messages found and loads in the measured time.
        polled: [u64; 3],
        /// Latencies of requests: values in nanoseconds, and how often each occurred.
        latencies: Vec<(u64, u64)>,
        /// What the actor's thread executed in the measured time, where hardware counts it.
        hardware: Option<HardwareCounts>,
    },
}

impl PatternReport {
    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a JSON form")
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|e| WorkloadError::at("report", e))
    }
}

/// Counts of an actor at some time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) messages: u64,
    pub(super) polled: Polled,
}

/// Phase of an actor.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Connecting,
    /// Connected; waits for [`BEGIN`].
    Ready,
    /// Works. Counts at the beginning of the measured time, once it has begun.
    Running,
    /// Works on until [`END`], so that the other actors' load stays the same.
    Measured,
    /// Finishes what is outstanding.
    Ending,
    /// Has finished; waits for [`CLOSE`].
    Finished,
    Closing,
}

/// The phases of an actor, and its measured time.
pub(super) struct RunPhases {
    phase: Phase,
    warm: Duration,
    run: Duration,
    interval: Range<Instant>,
    /// Time and counts at the first look within the measured time.
    first: Option<(Instant, Counts)>,
    /// Hardware counters of the actor's thread, from then on.
    hardware: Option<ThreadCounters>,
    idle_steps: u32,
    /// Iterations in one step.
    pub(super) burst: u32,
    /// Prices in virtual time.
    pub(super) prices: Option<PatternPrices>,
}

impl RunPhases {
    pub(super) fn new(task: &PatternTask, prices: Option<PatternPrices>) -> Self {
        Self {
            phase: Phase::Connecting,
            warm: task.warm(),
            run: task.run(),
            interval: Instant::ZERO..Instant::ZERO,
            first: None,
            hardware: None,
            idle_steps: 0,
            burst: if prices.is_some() { 1 } else { BURST },
            prices,
        }
    }

    /// Returns whether the actor is still connecting.
    pub(super) fn is_connecting(&self) -> bool {
        self.phase == Phase::Connecting
    }

    /// Returns whether no further request is to begin.
    pub(super) fn is_ending(&self) -> bool {
        self.phase == Phase::Ending
    }

    /// Reports that the actor is connected.
    pub(super) fn connected(&mut self, cx: &mut ActorContext<'_>) -> Result<(), ActorError> {
        self.phase = Phase::Ready;
        Ok(cx.report(&PatternReport::Ready.to_bytes())?)
    }

    /// Takes mail, and looks at the clock. `counts` are those so far, `latencies` those of the measured time. Returns
    /// whether the actor works.
    pub(super) fn look(
        &mut self,
        counts: Counts,
        latencies: Option<&Histogram>,
        cx: &mut ActorContext<'_>,
    ) -> Result<bool, ActorError> {
        while let Some(mail) = cx.receive() {
            match &*mail.bytes {
                BEGIN if self.phase == Phase::Ready => {
                    let from = cx.now() + self.warm;
                    self.interval = from..from + self.run;
                    self.phase = Phase::Running;
                }
                END => self.phase = Phase::Ending,
                CLOSE if self.phase == Phase::Finished => self.phase = Phase::Closing,
                // A peer's last mail of the bring-up.
                _ => {}
            }
        }
        if self.phase == Phase::Running {
            let now = cx.now();
            match self.first {
                None if now >= self.interval.start => {
                    self.first = Some((now, counts));
                    if self.prices.is_none() {
                        self.hardware = ThreadCounters::start().ok();
                    }
                }
                // On a busy machine the scheduler may keep an actor off its processor for the whole time.
                Some((began, before))
                    if now >= self.interval.end
                        && (counts.messages > before.messages
                            || now >= self.interval.end + PATIENCE) =>
                {
                    self.phase = Phase::Measured;
                    let polled = |of: fn(Polled) -> u64| of(counts.polled) - of(before.polled);
                    let report = PatternReport::Measured {
                        messages: counts.messages - before.messages,
                        nanos: now.since(began).nanos(),
                        polled: [
                            polled(|all| all.places),
                            polled(|all| all.found),
                            polled(|all| all.loads),
                        ],
                        latencies: latencies.map_or(Vec::new(), Histogram::recorded),
                        hardware: self.hardware.take().and_then(|mut all| all.read()),
                    };
                    cx.report(&report.to_bytes())?;
                }
                _ => {}
            }
        }
        Ok(matches!(
            self.phase,
            Phase::Running | Phase::Measured | Phase::Ending
        ))
    }

    /// Returns what an actor that does not work does now.
    pub(super) fn rest(&self) -> Step {
        match self.phase {
            Phase::Closing => Step::Done,
            _ => self.next(0, None),
        }
    }

    /// Reports that the actor has finished, and lets it rest until all have.
    pub(super) fn finish(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        self.phase = Phase::Finished;
        cx.report(&PatternReport::Finished.to_bytes())?;
        Ok(self.rest())
    }

    /// Returns whether a request that began at `began` is in the measured time.
    pub(super) fn is_measured(&self, began: Instant) -> bool {
        self.interval.contains(&began)
    }

    /// Returns whether queue pairs are to be checked after this step, which made `progress`.
    pub(super) fn is_check_due(&mut self, progress: u32) -> bool {
        self.idle_steps = if progress > 0 { 0 } else { self.idle_steps + 1 };
        self.idle_steps % CHECK_EVERY == CHECK_EVERY - 1
    }

    /// Returns when the actor is to be stepped again after a step that made `progress`. `until` is when it has something
    /// to do even if nothing arrives.
    pub(super) fn next(&self, progress: u32, until: Option<Instant>) -> Step {
        if progress > 0 {
            return Step::Again;
        }
        let change = WakeCondition::mail().or_memory();
        let bound = match (&self.phase, self.first) {
            (Phase::Running, None) => Some(self.interval.start),
            (Phase::Running, Some(_)) => Some(self.interval.end),
            _ => None,
        };
        let first = until.into_iter().chain(bound).min();
        Step::Wait(match first {
            Some(first) => change.until(first),
            None => change,
        })
    }
}

/// The load of one requester: closed loop, with waits in place of requests if the task has them.
pub(super) struct RequesterLoad {
    random: Random,
    idle_share: f64,
    idle: Duration,
    idle_until: Instant,
    time_every: u64,
    begun: u64,
    /// When the request that began last began, if it is timed.
    began: Option<Instant>,
    /// When the request of each slot began, if it is timed.
    slots: Vec<Option<Instant>>,
}

impl RequesterLoad {
    /// Makes the load of requester number `number`.
    pub(super) fn new(task: &PatternTask, slots: usize, number: usize) -> Self {
        Self {
            random: Random::new(mix(number as u64)),
            idle_share: task.idle_share,
            idle: Duration::from_nanos(task.idle_ns),
            idle_until: Instant::ZERO,
            time_every: task.time_every,
            begun: 0,
            began: None,
            slots: vec![None; slots],
        }
    }

    /// Returns when the requester's wait ends, if it waits.
    pub(super) fn waits_until(&self, now: Instant) -> Option<Instant> {
        (self.idle_share > 0.0 && self.idle_until > now).then_some(self.idle_until)
    }
}

/// A requester's load during a step.
pub(super) struct ActiveLoad<'a, 'c> {
    pub(super) load: &'a mut RequesterLoad,
    pub(super) phases: &'a RunPhases,
    pub(super) latencies: &'a mut Histogram,
    pub(super) cx: &'a mut ActorContext<'c>,
}

impl RequestLoad for ActiveLoad<'_, '_> {
    #[inline(always)]
    fn begin(&mut self) -> bool {
        if self.phases.is_ending() {
            return false;
        }
        let load = &mut *self.load;
        if load.idle_share > 0.0 {
            let now = self.cx.now();
            if now < load.idle_until {
                return false;
            }
            if load.random.unit() < load.idle_share {
                load.idle_until = now + load.idle;
                return false;
            }
        }
        load.begun += 1;
        load.began = load
            .begun
            .is_multiple_of(load.time_every)
            .then(|| self.cx.now());
        if let Some(prices) = &self.phases.prices {
            self.cx.charge(prices.request);
        }
        true
    }

    #[inline(always)]
    fn sent(&mut self, slot: usize) {
        self.load.slots[slot] = self.load.began.take();
    }

    #[inline(always)]
    fn received(
        &mut self,
        slot: usize,
        _item: u64,
        _memory: &WordMemory,
        _at: usize,
    ) -> Result<(), PatternError> {
        if let Some(prices) = &self.phases.prices {
            self.cx.charge(prices.message);
        }
        if let Some(began) = self.load.slots[slot].take()
            && self.phases.is_measured(began)
        {
            self.latencies.record(self.cx.now().since(began));
        }
        Ok(())
    }
}
