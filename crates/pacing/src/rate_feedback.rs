//! Feedback from completions to the rate: clocks, delays, their averages, and the changes that follow from
//! them.

use std::sync::Arc;

use headworks_verbs::{Device, Duration, Instant};

use crate::clock_sync::{self, ClockSync};
use crate::config::PacingConfig;
use crate::controller::{self, Thresholds};
use crate::monitor::{self, DelayAverage, KINDS, Kind};
use crate::paced_sq::Clock;
use crate::request_queue::InFlight;
use crate::shared_state::ShareMember;

/// The active queue pairs of all processes are counted again after this many samples, or after
/// `COUNTS_AFTER`.
const COUNTS_EVERY: u32 = 256;
const COUNTS_AFTER: Duration = Duration::from_micros(50);
/// A base delay is learnt as no less than the request's whole time, its own bytes included, divided by this.
const LEAST_PART: u64 = 4;
/// The clock is read at one in this many empty polls.
const EMPTY_EVERY: u32 = 4;

/// The current time, read on first use. Reading the clock costs more than a short request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LazyClock(Option<Instant>);

impl LazyClock {
    pub(crate) fn at(now: Instant) -> Self {
        Self(Some(now))
    }

    pub(crate) fn get(&mut self, gauge: &RateFeedback) -> Instant {
        *self.0.get_or_insert_with(|| gauge.now())
    }

    /// The time if it was read already.
    pub(crate) fn known(self) -> Option<Instant> {
        self.0
    }
}

/// Delay measurement of one completion queue.
pub(crate) struct RateFeedback {
    config: Arc<PacingConfig>,
    clock: Clock,
    device: Option<Arc<dyn Device>>,
    sync: ClockSync,
    averages: [DelayAverage; KINDS],
    bases: [Duration; KINDS],
    thresholds: Thresholds,
    line_rate: u64,
    counted: Instant,
    all_active: u32,
    since_count: u32,
    /// When the completion queue was last seen empty.
    empty: Instant,
    empty_polls: u32,
    /// Change of the rate that follows from samples and is not yet applied to the shared rate.
    change: i64,
    samples: (u64, u64),
    latest: (Duration, f64),
    /// Bytes that the device has, overhead included.
    in_flight: u64,
    /// Requests posted since the last check whether a comparison of the clocks is due.
    unsynced: u64,
    /// Requests to skip before the next that is measured.
    until_sample: u32,
    /// Requests to skip between two that are measured.
    skips: u32,
}

impl RateFeedback {
    /// `device` is the device whose clock stamps completions; `None` if completions count from when they are
    /// polled.
    pub(crate) fn new(
        config: Arc<PacingConfig>,
        clock: Clock,
        device: Option<Arc<dyn Device>>,
    ) -> Self {
        let bases = std::array::from_fn(|_| Duration::ZERO);
        Self {
            thresholds: Thresholds::of(&config, 0),
            line_rate: config.line_rate(),
            clock,
            device,
            sync: ClockSync::default(),
            averages: [DelayAverage::default(); KINDS],
            bases,
            counted: Instant::ZERO,
            all_active: 0,
            since_count: COUNTS_EVERY,
            empty: Instant::ZERO,
            empty_polls: 0,
            change: 0,
            samples: (0, 0),
            latest: (Duration::ZERO, 0.0),
            in_flight: 0,
            unsynced: 0,
            until_sample: 0,
            skips: (config.sample_every as u32).saturating_sub(1),
            config,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Counts `count` posted requests. If the time of their doorbell is known, compares the clocks if that is
    /// due.
    #[inline]
    pub(crate) fn posted(&mut self, count: u64, now: LazyClock) {
        self.unsynced += count;
        if let Some(now) = now.known() {
            self.synchronise(now);
        }
    }

    fn synchronise(&mut self, now: Instant) {
        let count = std::mem::take(&mut self.unsynced);
        if let Some(device) = &self.device
            && self.sync.is_due(count, now, &self.config)
        {
            let before = (self.clock)();
            let theirs = device.now();
            self.sync.compare(before, theirs, (self.clock)());
        }
    }

    /// Whether one of the next `count` requests is measured: one in `sample_every`, or all of them if `all`.
    #[inline]
    pub(crate) fn measures(&mut self, count: usize, all: bool) -> bool {
        let count = count as u32;
        let measures = all || self.until_sample < count;
        self.until_sample = match measures {
            true => self.skips,
            false => self.until_sample - count,
        };
        measures
    }

    /// Whether every request is measured, all requests of a chain included: `sample_every` is 1.
    #[inline]
    pub(crate) fn measures_all(&self) -> bool {
        self.skips == 0
    }

    /// Whether the next request is measured, for the case that not all are.
    #[inline]
    pub(crate) fn measures_next(&mut self) -> bool {
        let measures = self.until_sample == 0;
        self.until_sample = match measures {
            true => self.skips,
            false => self.until_sample - 1,
        };
        measures
    }

    /// Notes that a poll found the completion queue empty.
    pub(crate) fn saw_empty(&mut self) {
        if self.device.is_some() {
            return;
        }
        self.empty_polls += 1;
        if self.empty_polls.is_multiple_of(EMPTY_EVERY) {
            self.empty = (self.clock)();
        }
    }

    /// Records the completion of a request at `stamp` of the device's clock, polled at `now`. The request is
    /// measured if the time of its doorbell is known.
    #[inline]
    pub(crate) fn landed(
        &mut self,
        flying: &InFlight,
        cost: u64,
        stamp: Instant,
        now: &mut LazyClock,
    ) {
        self.in_flight = self.in_flight.saturating_sub(cost);
        if flying.doorbell != 0 {
            self.measure(flying, cost, stamp, now);
        }
    }

    fn measure(&mut self, flying: &InFlight, cost: u64, stamp: Instant, now: &mut LazyClock) {
        let completed = match self.device {
            Some(_) => self.sync.on_host(stamp),
            None => {
                let now = now.get(self);
                // The completion has not lain in the queue for longer than the time since its doorbell, or
                // since the queue was seen empty.
                let since = self.empty.nanos().max(flying.doorbell);
                let is_fresh = now.nanos().saturating_sub(since) <= self.config.fresh_ns;
                is_fresh.then_some(now)
            }
        };
        let delay = completed.and_then(|at| clock_sync::between(flying.doorbell, at));
        let Some(delay) = delay else {
            self.samples.1 += 1;
            return;
        };
        let own = monitor::serialisation(cost, self.line_rate);
        // If the request took no longer than its bytes on the line, no delay is left: it crossed a faster
        // line, or none. A single sample is not believed to be the idle device's delay either, because clocks
        // are a little off.
        let least = Duration::from_nanos(delay.nanos() / LEAST_PART);
        let delay = Duration::from_nanos(delay.nanos().saturating_sub(own.nanos()).max(1));
        let kind = flying.kind;
        let Some(average) = self.averages[kind.index()].sample(delay, &self.config) else {
            self.samples.1 += 1;
            return;
        };
        let base = self.base(kind, average.max(least));
        let ratio = controller::ratio(average, base);
        self.change += self.thresholds.change(&self.config, ratio);
        self.latest = (average, ratio);
        self.samples.0 += 1;
    }

    /// The base delay of a kind, as known to this completion queue: the configured one, or the shortest seen.
    fn base(&mut self, kind: Kind, found: Duration) -> Duration {
        let known = &mut self.bases[kind.index()];
        if known.nanos() == 0 {
            if let Some(given) = self.config.base_delay(kind.class()) {
                *known = given;
            } else {
                // `recount` later takes the shortest delay that other processes have seen.
                *known = found;
            }
        } else if found < *known && self.config.base_delay(kind.class()).is_none() {
            *known = found;
        }
        *known
    }

    /// Releases `cost` bytes that were admitted but say nothing of the RNIC's load: their request was not
    /// posted after all, or failed, or its queue pair is gone.
    pub(crate) fn gone(&mut self, cost: u64) {
        self.in_flight = self.in_flight.saturating_sub(cost);
    }

    /// Whether there are samples, counted or not, since the last call of `learn`.
    #[inline]
    pub(crate) fn has_samples(&self) -> bool {
        self.samples != (0, 0)
    }

    /// Applies the change of the rate since the last call to the shared rate. `drained`: the completion queue
    /// is empty now. Returns how many samples counted and how many did not.
    #[inline]
    pub(crate) fn learn(
        &mut self,
        member: &ShareMember,
        drained: bool,
        now: &mut LazyClock,
    ) -> (u64, u64) {
        if let (true, Some(now)) = (drained, now.known()) {
            self.empty = now;
            self.empty_polls = 0;
        }
        let samples = std::mem::take(&mut self.samples);
        if samples.0 == 0 {
            return samples;
        }
        let change = std::mem::take(&mut self.change);
        if change != 0 && !self.config.window {
            let now = now.get(self);
            member.share().change_rate(&self.config, change, now);
        }
        self.since_count += samples.0 as u32;
        samples
    }

    /// Whether the active queue pairs are to be counted again.
    pub(crate) fn is_count_due(&self, now: Instant) -> bool {
        self.since_count >= COUNTS_EVERY || now.since(self.counted) >= COUNTS_AFTER
    }

    /// Publishes that this member is alive, and counts the active queue pairs of all.
    pub(crate) fn recount(&mut self, member: &ShareMember, now: Instant) {
        member.seen(now, self.latest.0, self.latest.1);
        let (active, _) = member.share().active(now);
        self.thresholds = Thresholds::of(&self.config, active);
        (self.all_active, self.since_count, self.counted) = (active, 0, now);
        for index in 0..KINDS {
            let known = self.bases[index];
            let kind = Kind::at(index);
            if known.nanos() > 0 && self.config.base_delay(kind.class()).is_none() {
                self.bases[index] = member.share().shortest(kind, known);
            }
        }
    }

    /// Admits a request of this cost if the bytes in flight leave room for it, and counts it. Returns whether
    /// it did.
    pub(crate) fn admits(&mut self, cost: u64, member: &ShareMember) -> bool {
        let known = self.bases.iter().filter(|base| base.nanos() > 0);
        let fits = match known.min() {
            None => self.in_flight + cost <= self.config.burst_bytes,
            Some(base) => {
                let window = controller::window(
                    &self.config,
                    *base,
                    &self.thresholds,
                    member.active().max(1),
                    self.all_active,
                );
                self.in_flight + cost <= window
            }
        };
        let admitted = fits || self.in_flight == 0;
        if admitted {
            self.admit(cost);
        }
        admitted
    }

    /// Counts `cost` bytes as in flight.
    pub(crate) fn admit(&mut self, cost: u64) {
        self.in_flight += cost;
    }
}
