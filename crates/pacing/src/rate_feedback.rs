//! From completions to the rate: clocks, delays, their averages, and what they say.

use std::sync::Arc;

use headworks_verbs::{Device, Duration, Instant};

use crate::clock_sync::{self, ClockSync};
use crate::config::PacingConfig;
use crate::controller::{self, Thresholds};
use crate::monitor::{self, DelayAverage, KINDS, Kind};
use crate::paced_sq::Clock;
use crate::request_queue::InFlight;
use crate::shared_state::ShareMember;

/// Active queue pairs of others are counted anew after so many samples, or so long.
const COUNTS_EVERY: u32 = 256;
const COUNTS_AFTER: Duration = Duration::from_micros(50);
/// A base delay is learnt as no less than this part of what a request took, its own bytes included.
const LEAST_PART: u64 = 4;
/// An empty poll's time is read once in so many.
const EMPTY_EVERY: u32 = 4;

/// The time, looked at when somebody asks: a look at the clock costs more than a short request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LazyClock(Option<Instant>);

impl LazyClock {
    pub(crate) fn at(now: Instant) -> Self {
        Self(Some(now))
    }

    pub(crate) fn get(&mut self, gauge: &RateFeedback) -> Instant {
        *self.0.get_or_insert_with(|| gauge.now())
    }

    /// If somebody asked.
    pub(crate) fn known(self) -> Option<Instant> {
        self.0
    }
}

/// The instruments of one completion queue.
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
    /// The completion queue was seen empty then.
    empty: Instant,
    empty_polls: u32,
    /// Found, and not yet learnt: by how much the rate is to change.
    change: i64,
    samples: (u64, u64),
    latest: (Duration, f64),
    /// Bytes that the device has.
    in_flight: u64,
    /// Requests since the clocks were last looked at.
    unsynced: u64,
    /// Requests until the next that is measured.
    until_sample: u32,
    /// Between two that are.
    skips: u32,
}

impl RateFeedback {
    /// With the device whose clock completions are stamped by, if that is what counts.
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

    /// So many requests were posted, of which some are measured if it is known when.
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

    /// Whether one of the next so many requests is measured: one in `sample_every`, all where it matters.
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

    /// Whether every request is measured, those of a chain among them: `sample_every` is 1.
    #[inline]
    pub(crate) fn measures_all(&self) -> bool {
        self.skips == 0
    }

    /// Whether the next request is measured, where not all are.
    #[inline]
    pub(crate) fn measures_next(&mut self) -> bool {
        let measures = self.until_sample == 0;
        self.until_sample = match measures {
            true => self.skips,
            false => self.until_sample - 1,
        };
        measures
    }

    /// The completion queue is empty.
    pub(crate) fn saw_empty(&mut self) {
        if self.device.is_some() {
            return;
        }
        self.empty_polls += 1;
        if self.empty_polls.is_multiple_of(EMPTY_EVERY) {
            self.empty = (self.clock)();
        }
    }

    /// A request completed: at `stamp` of the device's clock, polled now. It is measured if its doorbell was.
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
                // Since its doorbell, or since the queue was seen empty, it has not lain there for longer than this.
                let since = self.empty.nanos().max(flying.doorbell);
                let is_fresh = now.nanos().saturating_sub(since) as f64 <= self.config.fresh_ns;
                is_fresh.then_some(now)
            }
        };
        let delay = completed.and_then(|at| clock_sync::between(flying.doorbell, at));
        let Some(delay) = delay else {
            self.samples.1 += 1;
            return;
        };
        let own = monitor::serialisation(cost, self.line_rate);
        // Of one that took no longer than its bytes on the line nothing is left: it crossed a faster one, or none. Nor
        // is one sample believed to be what an idle device takes: clocks are a little off.
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

    /// The base delay of a kind, as far as it is known here.
    fn base(&mut self, kind: Kind, found: Duration) -> Duration {
        let known = &mut self.bases[kind.index()];
        if known.nanos() == 0 {
            if let Some(given) = self.config.base_delay(kind.class()) {
                *known = given;
            } else {
                // Others' are looked up when it is learnt.
                *known = found;
            }
        } else if found < *known && self.config.base_delay(kind.class()).is_none() {
            *known = found;
        }
        *known
    }

    /// So much was admitted, and says nothing of the RNIC's load: it was not posted after all, or failed, or its queue
    /// pair is gone.
    pub(crate) fn gone(&mut self, cost: u64) {
        self.in_flight = self.in_flight.saturating_sub(cost);
    }

    /// Whether anything was found since.
    #[inline]
    pub(crate) fn has_samples(&self) -> bool {
        self.samples != (0, 0)
    }

    /// What was found since is said to everybody. `drained`: the completion queue is empty now. How many samples
    /// counted, and how many did not.
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
        if change != 0 && self.config.window == 0.0 {
            let now = now.get(self);
            member.share().change_rate(&self.config, change, now);
        }
        self.since_count += samples.0 as u32;
        samples
    }

    /// Whether it is time to see who is active.
    pub(crate) fn is_count_due(&self, now: Instant) -> bool {
        self.since_count >= COUNTS_EVERY || now.since(self.counted) >= COUNTS_AFTER
    }

    /// Sees who is active, and says that we are here.
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

    /// Whether what is in flight is little enough for a request of this cost; counts it.
    pub(crate) fn admits(&mut self, cost: u64, member: &ShareMember) -> bool {
        let known = self.bases.iter().filter(|base| base.nanos() > 0);
        let fits = match known.min() {
            None => self.in_flight + cost <= self.config.burst_bytes as u64,
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

    /// Counts what is in flight from now on.
    pub(crate) fn admit(&mut self, cost: u64) {
        self.in_flight += cost;
    }
}
