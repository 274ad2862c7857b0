//! The measured time, which follows a warm-up: of what is counted, and of what is timed one by one.

use headworks::verbs::Instant;
use headworks::verbs::time::Duration;

use super::NicTask;
use crate::report::Report;
use headworks_runtime::ActorContext;

/// Counted between two clock reads, at least: a clock read costs more than a small message.
const CLOCK_EVERY: u64 = 256;

/// Counts over the measured time.
#[derive(Debug)]
pub struct RateMeter {
    warm: Duration,
    run: Duration,
    /// Counted before the measured time begins, at least.
    warm_count: u64,
    clock_every: u64,
    first: Option<Instant>,
    begin: Option<(Instant, u64)>,
    end: (Instant, u64),
}

impl RateMeter {
    /// The times of `task`, where at least `warm_count` are counted before it is measured.
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

    /// Measures `run_ns` from the next one on after `count` of them. Reads the clock for each.
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

    /// Reads the clock for each: for what takes longer than that.
    #[must_use]
    pub fn at_every_one(self) -> Self {
        Self {
            clock_every: 1,
            ..self
        }
    }

    /// `count` in all so far. Says whether that is enough.
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

    /// How many in how long.
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

/// The measured time of what is timed one by one.
#[derive(Debug)]
pub struct LatencyMeter {
    warm: Duration,
    over: Duration,
    first: Option<Instant>,
}

impl LatencyMeter {
    /// The times of `task`.
    pub fn new(task: &NicTask) -> Self {
        Self {
            warm: task.warm(),
            over: Duration::from_nanos(task.warm_ns + task.run_ns),
            first: None,
        }
    }

    /// Begins the warm-up, unless it has begun. How long ago that was.
    pub fn begin(&mut self, now: Instant) -> Duration {
        now.since(*self.first.get_or_insert(now))
    }

    /// Whether the warm-up was over `at` that time; begins it.
    pub fn is_warm(&mut self, at: Instant) -> bool {
        self.begin(at) >= self.warm
    }

    /// Whether the measured time was over `at` that time; begins the warm-up.
    pub fn is_over(&mut self, at: Instant) -> bool {
        self.begin(at) >= self.over
    }
}
