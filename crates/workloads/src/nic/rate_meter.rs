//! The measured time, which follows a warm-up: for counts, and for operations that are timed one by one.

use headworks::verbs::Instant;
use headworks::verbs::time::Duration;

use super::NicTask;
use crate::report::Report;
use headworks_runtime::ActorContext;

/// Least count between two clock reads: a clock read costs more than a small message.
const CLOCK_EVERY: u64 = 256;

/// Counts over the measured time.
#[derive(Debug)]
pub struct RateMeter {
    warm: Duration,
    run: Duration,
    /// Least count before the measured time begins.
    warm_count: u64,
    clock_every: u64,
    first: Option<Instant>,
    begin: Option<(Instant, u64)>,
    end: (Instant, u64),
}

impl RateMeter {
    /// Makes a meter with the times of `task`. At least `warm_count` must be counted before the measured
    /// time.
    pub fn new(task: &NicTask, warm_count: u64) -> Self {
        Self {
            warm: task.warm(),
            run: task.run(),
            warm_count,
            clock_every: CLOCK_EVERY,
            first: None,
            begin: None,
            end: (Instant::ZERO, 0),
        }
    }

    /// Makes a meter that measures for `run_ns`, from the first count above `count` on. It reads the clock at
    /// every count.
    pub fn from_next(count: u64, run_ns: u64) -> Self {
        Self {
            warm: Duration::ZERO,
            run: Duration::from_nanos(run_ns),
            warm_count: 0,
            clock_every: 1,
            first: None,
            begin: None,
            end: (Instant::ZERO, count),
        }
    }

    /// Makes it read the clock at every count: for operations that take longer than a clock read.
    #[must_use]
    pub fn at_every_one(self) -> Self {
        Self {
            clock_every: 1,
            ..self
        }
    }

    /// Notes the total count so far. Returns whether the measured time is over.
    #[inline]
    pub fn count(&mut self, count: u64, cx: &mut ActorContext<'_>) -> bool {
        if count - self.end.1 < self.clock_every {
            return false;
        }
        let now = cx.now();
        self.end = (now, count);
        let first = *self.first.get_or_insert(now);
        let Some((begin, _)) = self.begin else {
            if count >= self.warm_count && now.since(first) >= self.warm {
                self.begin = Some(self.end);
            }
            return false;
        };
        now.since(begin) >= self.run
    }

    /// Returns the count over the measured time.
    pub fn report(&self) -> Report {
        let (began, before) = self.begin.unwrap_or(self.end);
        let (ended, after) = self.end;
        Report::Rate {
            messages: after - before,
            nanos: ended.since(began).nanos(),
            began_ns: began.nanos(),
        }
    }
}

/// Warm-up and measured time of operations that are timed one by one.
#[derive(Debug)]
pub struct LatencyMeter {
    warm: Duration,
    over: Duration,
    first: Option<Instant>,
}

impl LatencyMeter {
    /// Makes a meter with the times of `task`.
    pub fn new(task: &NicTask) -> Self {
        Self {
            warm: task.warm(),
            over: Duration::from_nanos(task.warm_ns + task.run_ns),
            first: None,
        }
    }

    /// Begins the warm-up, unless it has begun. Returns the time since it began.
    pub fn begin(&mut self, now: Instant) -> Duration {
        now.since(*self.first.get_or_insert(now))
    }

    /// Returns whether the warm-up was over at time `at`. Begins the warm-up if necessary.
    pub fn is_warm(&mut self, at: Instant) -> bool {
        self.begin(at) >= self.warm
    }

    /// Returns whether the measured time was over at time `at`. Begins the warm-up if necessary.
    pub fn is_over(&mut self, at: Instant) -> bool {
        self.begin(at) >= self.over
    }
}
