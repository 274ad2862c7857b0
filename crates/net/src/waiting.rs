//! Strategies for waiting: yield for a bounded time, then sleep.
//!
//! A blocking wake-up costs about 50 µs; moving a cache line from one core to another costs 280 ns. A waiter
//! therefore polls for about as long as a wake-up costs before it sleeps. It yields its core between two
//! polls. If it executed `pause` instead and processes outnumbered cores, it could keep the core from the
//! process that it waits for. With `pause`, a request through four processes was five times slower than with
//! sleeping at once.
//!
//! [`Backoff`] decides and reads no clock. [`Waiter`] carries out its decisions. Pollers that never sleep ask
//! [`PollInterval`] how long to wait between two polls.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;

use headworks_verbs::{Duration, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::sched_yield;

use crate::{clock, cpu_affinity};

/// How long a waiter polls before it sleeps: about the cost of being woken.
pub const SPIN_BUDGET: Duration = Duration::from_micros(50);

/// Next action of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackoffAction {
    /// Poll again soon.
    Spin,
    /// Sleep until something happens.
    Sleep,
}

/// Decides when to stop polling and sleep. Pure: the time is an argument.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    budget: Duration,
    since: Option<Instant>,
}

impl Backoff {
    /// Polls for `budget` before it returns [`BackoffAction::Sleep`].
    pub const fn new(budget: Duration) -> Self {
        Self {
            budget,
            since: None,
        }
    }

    /// Starts the budget anew. Call it when something has happened.
    pub fn reset(&mut self) {
        self.since = None;
    }

    /// Decides what to do next if nothing happened by `now`.
    pub fn idle(&mut self, now: Instant) -> BackoffAction {
        let since = *self.since.get_or_insert(now);
        if now.since(since) < self.budget {
            BackoffAction::Spin
        } else {
            BackoffAction::Sleep
        }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new(SPIN_BUDGET)
    }
}

/// Decides whether a waiter polls before it sleeps, from how long it waited before. Pure.
///
/// A waiter that polls for its whole budget and then sleeps has taken the core from other threads for nothing. After
/// such a wait, the waiter skips polling for one wait, and for twice as many and one more after each further one, up
/// to 63. A short wait makes the waiter poll again.
#[derive(Clone, Copy, Debug)]
pub struct PollHistory {
    /// How long a wait polls.
    budget: Duration,
    /// Number of waits that do not poll before one polls again.
    left: u32,
    /// Number of waits that were to skip polling after the last wait that polled in vain.
    penalty: u32,
    /// Whether the last wait was prompt.
    is_prompt: bool,
}

impl Default for PollHistory {
    fn default() -> Self {
        Self::of_budget(SPIN_BUDGET)
    }
}

impl PollHistory {
    /// The history of a waiter that polls for `budget` before it sleeps.
    pub const fn of_budget(budget: Duration) -> Self {
        Self {
            budget,
            left: 0,
            penalty: 0,
            is_prompt: false,
        }
    }

    /// Longest prompt wait. Yielding a core twice takes no longer, if no other thread wants it.
    const PROMPT: Duration = Duration::from_micros(3);
    /// Greatest number of waits in a row that do not poll.
    const PENALTY_MAX: u32 = 63;
    /// A wait that slept and was no longer than this would have been shorter if it had polled: being woken takes about
    /// [`SPIN_BUDGET`].
    const SHORT: Duration = Duration::from_micros(150);

    /// Returns whether to poll before the next sleep.
    pub fn polls(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// Returns whether the last wait was so short that the next one had better keep its core at first.
    pub fn is_prompt(&self) -> bool {
        self.is_prompt
    }

    /// Records a wait and how long it took. `polled` is what [`polls`](Self::polls) returned for it.
    pub fn ended(&mut self, polled: bool, took: Duration) {
        let short = if polled { self.budget } else { Self::SHORT };
        if took <= short {
            *self = Self::of_budget(self.budget);
        } else if polled {
            self.penalty = (2 * self.penalty + 1).min(Self::PENALTY_MAX);
            self.left = self.penalty + 1;
        }
        self.is_prompt = took <= Self::PROMPT;
    }
}

/// Use of a waiter's core between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SpinMode {
    /// Yield it: right whenever there may be more waiters than cores.
    #[default]
    Yield,
    /// Keep it: only if every waiter has a core to itself.
    Pause,
}

impl SpinMode {
    /// The right mode for `waiters` threads that spin at the same time on the cores this thread may use.
    pub fn for_waiters(waiters: usize) -> Self {
        // One core is left to the rest of the machine.
        if waiters < cpu_affinity::allowed_cpus().len() {
            Self::Pause
        } else {
            Self::Yield
        }
    }
}

/// Adapts the interval between two polls of a cache line that another core writes. Pure.
///
/// Every poll takes the line away from the writer, whose next store then waits until it has the line back. In
/// a stream of messages, a poll right after an empty one finds one message. A slightly later poll finds
/// several, and each side has fetched the line once for all of them. If messages come one at a time, as in a
/// ping-pong, no poll is delayed.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollInterval {
    found: u32,
}

impl PollInterval {
    /// Number of `pause` instructions after the empty poll that ends a run of messages. They take 0.15 to
    /// 0.7 µs, depending on the processor: about the time to fetch a cache line and to give it back.
    const STREAMING: u32 = 16;

    /// Records that a poll found a message.
    #[inline]
    pub fn on_message(&mut self) {
        self.found += 1;
    }

    /// Records that a poll found nothing. Returns how many `pause` instructions to execute before the next
    /// one.
    #[inline]
    pub fn on_empty(&mut self) -> u32 {
        let streams = self.found > 1;
        self.found = 0;
        if streams { Self::STREAMING } else { 1 }
    }
}

/// Phase in which a waiter calls its condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPhase {
    /// To check the condition.
    Poll,
    /// The waiter is about to sleep: the condition must arm what wakes it, and *then* check once more.
    Arm,
}

/// Reason of a wait's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The condition holds.
    Ready,
    /// A descriptor is readable, or its other end is gone.
    Fd,
    /// The deadline passed.
    Deadline,
}

/// Waits for a condition, descriptors and a deadline.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    backoff: Backoff,
    spin: SpinMode,
    spins: u32,
    /// Polls after which it spins once.
    looks_per_spin: NonZeroU32,
    /// Number of waits from now on in which each spin looks at the descriptors.
    eager: u32,
}

/// With [`SpinMode::Pause`], every this many spins (about 2 µs) yield the core, because the cores that
/// [`SpinMode::for_waiters`] counted may be busy with other programs.
const PAUSES: u32 = 64;
/// Every this many spins also look at the descriptors, which takes a system call.
const DESCRIPTORS_EVERY: u32 = 8;
/// Waits after one that a descriptor ended in which each spin looks at the descriptors: the next message often comes the
/// same way.
const EAGER: u32 = 16;

impl Default for Waiter {
    fn default() -> Self {
        Self::new(SPIN_BUDGET, SpinMode::default())
    }
}

impl Waiter {
    /// Polls for `budget` in the mode `spin`, then sleeps.
    pub const fn new(budget: Duration, spin: SpinMode) -> Self {
        Self {
            backoff: Backoff::new(budget),
            spin,
            spins: 0,
            looks_per_spin: NonZeroU32::MIN,
            eager: 0,
        }
    }

    /// Sets how long the next waits poll before they sleep, and after how many polls they yield or pause. One, the
    /// initial value, is right for a waiter whose condition a process on the same core may bring about. A waiter for
    /// something on another core polls several times, because it notices nothing while it does not run.
    pub fn set_polling(&mut self, budget: Duration, looks_per_spin: NonZeroU32) {
        self.backoff = Backoff::new(budget);
        self.looks_per_spin = looks_per_spin;
    }

    /// Pauses or yields once between two polls. For callers that have their own loop.
    #[inline]
    pub fn spin_once(&mut self) {
        self.spins = self.spins.wrapping_add(1);
        match self.spin {
            SpinMode::Pause if !self.spins.is_multiple_of(PAUSES) => std::hint::spin_loop(),
            _ => sched_yield(),
        }
    }

    /// Waits until `look` returns true, one of `fds` is readable (or hung up), or `deadline` has passed.
    ///
    /// While it polls, it calls `look` in every iteration, and looks at the descriptors after every eighth spin, because
    /// that takes a system call, or after every spin if a descriptor ended one of the last waits. Before every sleep it calls `look` with [`WaitPhase::Arm`]; `look` must then
    /// arm whatever makes one of the descriptors readable.
    pub fn wait(
        &mut self,
        fds: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
        mut look: impl FnMut(WaitPhase) -> bool,
    ) -> io::Result<WakeReason> {
        let mut polled: Vec<_> = fds
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        self.wait_polling(&mut polled, deadline, &mut look)
    }

    /// Like [`Waiter::wait`], with the events of each descriptor chosen by the caller.
    pub fn wait_polling(
        &mut self,
        fds: &mut [PollFd<'_>],
        deadline: Option<Instant>,
        look: &mut dyn FnMut(WaitPhase) -> bool,
    ) -> io::Result<WakeReason> {
        self.backoff.reset();
        let mut looks = 0_u32;
        let every = match self.eager.checked_sub(1) {
            Some(left) => {
                self.eager = left;
                1
            }
            None => DESCRIPTORS_EVERY,
        };
        loop {
            if look(WaitPhase::Poll) {
                return Ok(WakeReason::Ready);
            }
            looks = looks.wrapping_add(1);
            if !looks.is_multiple_of(self.looks_per_spin.get()) {
                std::hint::spin_loop();
                continue;
            }
            let now = clock::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(WakeReason::Deadline);
            }
            match self.backoff.idle(now) {
                BackoffAction::Spin => {
                    self.spin_once();
                    let is_turn = self.spins.is_multiple_of(every) && !fds.is_empty();
                    if is_turn && poll_now(fds)? > 0 {
                        self.eager = EAGER;
                        return Ok(WakeReason::Fd);
                    }
                }
                BackoffAction::Sleep => {
                    if look(WaitPhase::Arm) {
                        return Ok(WakeReason::Ready);
                    }
                    if sleep(fds, deadline)? > 0 {
                        self.eager = EAGER;
                        return Ok(WakeReason::Fd);
                    }
                }
            }
        }
    }
}

/// Sleeps until a descriptor is ready or the deadline passes. A signal may end the sleep early.
pub fn sleep(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<usize> {
    poll_for(fds, deadline.map(|deadline| deadline.since(clock::now())))
}

fn poll_now(fds: &mut [PollFd<'_>]) -> io::Result<usize> {
    poll_for(fds, Some(Duration::ZERO))
}

fn poll_for(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(timespec);
    match poll(fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready),
        Err(Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// The events that a descriptor has now.
pub fn ready_events(fd: BorrowedFd<'_>, events: PollFlags) -> PollFlags {
    let mut polled = [PollFd::new(&fd, events)];
    poll_now(&mut polled).map_or(PollFlags::empty(), |_| polled[0].revents())
}

fn timespec(span: Duration) -> Timespec {
    // A sleep is limited to an hour. Every caller checks its deadline afterwards and sleeps again.
    let nanos = span.nanos().min(3_600_000_000_000);
    Timespec {
        tv_sec: (nanos / 1_000_000_000) as i64,
        tv_nsec: (nanos % 1_000_000_000) as _,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn spins_for_the_budget_and_sleeps_after_it() {
        let at = Instant::from_nanos;
        let mut backoff = Backoff::new(Duration::from_nanos(100));
        assert_eq!(backoff.idle(at(1_000)), BackoffAction::Spin);
        assert_eq!(backoff.idle(at(1_099)), BackoffAction::Spin);
        assert_eq!(backoff.idle(at(1_100)), BackoffAction::Sleep);
        backoff.reset();
        assert_eq!(backoff.idle(at(1_101)), BackoffAction::Spin);
        assert_eq!(
            Backoff::new(Duration::ZERO).idle(at(5)),
            BackoffAction::Sleep
        );
    }

    #[test]
    fn whoever_polls_in_vain_polls_less_and_less_until_a_wait_is_short() {
        let (short, long) = (Duration::from_micros(10), Duration::from_micros(4000));
        let mut history = PollHistory::default();
        let mut wait = |took| {
            let polls = history.polls();
            history.ended(polls, took);
            polls
        };
        assert!(wait(short) && wait(short));
        let polled: Vec<usize> = (0..200).filter(|_| wait(long)).collect();
        assert_eq!(polled, [0, 2, 6, 14, 30, 62, 126, 190]);
        // A wait that was short although it slept.
        assert!(!wait(Duration::from_micros(100)));
        assert!(wait(short) && wait(short));
    }

    #[test]
    fn a_wait_is_prompt_if_the_one_before_was() {
        let mut history = PollHistory::default();
        assert!(!history.is_prompt());
        for (micros, is_prompt) in [(1, true), (3, true), (4, false), (2, true), (900, false)] {
            let polls = history.polls();
            history.ended(polls, Duration::from_micros(micros));
            assert_eq!(history.is_prompt(), is_prompt, "{micros} µs");
        }
    }

    #[test]
    fn only_a_stream_that_ran_dry_is_left_alone() {
        let mut spacing = PollInterval::default();
        let mut looks = |found: &str| -> Vec<u32> {
            found
                .bytes()
                .filter_map(|look| match look {
                    b'm' => {
                        spacing.on_message();
                        None
                    }
                    _ => Some(spacing.on_empty()),
                })
                .collect()
        };
        assert_eq!(looks("m-m-m--"), [1, 1, 1, 1], "one at a time");
        assert_eq!(looks("mm--mmm-"), [16, 1, 16], "a stream");
    }

    #[test]
    fn never_keeps_the_core_when_cores_are_short() {
        let cores = cpu_affinity::allowed_cpus().len();
        assert_eq!(SpinMode::for_waiters(cores), SpinMode::Yield);
        assert_eq!(SpinMode::for_waiters(cores + 1), SpinMode::Yield);
    }

    #[test]
    fn wakes_by_look_by_descriptor_and_by_deadline() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let mut waiter = Waiter::default();
        let soon = clock::now() + Duration::from_micros(200);
        let woken = waiter
            .wait(&[ours.as_fd()], Some(soon), |_| false)
            .expect("waits");
        assert_eq!(woken, WakeReason::Deadline);
        theirs.write_all(b"x").expect("writes");
        assert_eq!(
            waiter
                .wait(&[ours.as_fd()], None, |_| false)
                .expect("waits"),
            WakeReason::Fd
        );
        assert_eq!(
            waiter.wait(&[], None, |_| true).expect("waits"),
            WakeReason::Ready
        );
    }

    #[test]
    fn looks_at_descriptors_at_each_spin_after_one_ended_a_wait() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        theirs.write_all(b"x").expect("writes");
        let mut waiter = Waiter::default();
        let mut polls = |looks_per_spin: u32| {
            let looks_per_spin = NonZeroU32::new(looks_per_spin).expect("not 0");
            waiter.set_polling(Duration::from_micros(60_000_000), looks_per_spin);
            let mut polls = 0;
            let woken = waiter.wait(&[ours.as_fd()], None, |_| {
                polls += 1;
                false
            });
            assert_eq!(woken.expect("waits"), WakeReason::Fd);
            polls
        };
        assert_eq!(polls(1), DESCRIPTORS_EVERY);
        assert_eq!([polls(1), polls(4), polls(1)], [1, 4, 1]);
        // Waits that something else ends use up the eagerness.
        for _ in 0..EAGER {
            let woken = waiter.wait(&[ours.as_fd()], None, |_| true);
            assert_eq!(woken.expect("waits"), WakeReason::Ready);
        }
        let mut polls = 0;
        let woken = waiter.wait(&[ours.as_fd()], None, |_| {
            polls += 1;
            false
        });
        assert_eq!(woken.expect("waits"), WakeReason::Fd);
        assert!(polls > 1, "{polls}");
    }

    #[test]
    fn looks_once_more_after_arming() {
        let mut armed = false;
        let woken = Waiter::default().wait(&[], None, |phase| {
            armed |= phase == WaitPhase::Arm;
            armed
        });
        assert_eq!(woken.expect("waits"), WakeReason::Ready);
    }
}
