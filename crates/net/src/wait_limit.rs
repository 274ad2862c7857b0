//! Limits of a wait: a deadline, or a descriptor that interrupts it.

use std::os::fd::{AsFd, BorrowedFd};

use headworks_verbs::{Duration, Instant};
use rustix::event::{PollFd, PollFlags};

use crate::NetError;
use crate::clock;
use crate::waiting::{WaitPhase, Waiter, WakeReason, ready_events};

/// Longest share of a wait if something else is to be tried after it.
const TRY_MAX: Duration = Duration::from_secs(3);

/// How long a call may wait: until a deadline, or until a descriptor is readable, such as
/// [`Interrupt`](crate::Interrupt)'s.
#[derive(Clone, Copy, Debug)]
pub struct WaitLimit<'a> {
    deadline: Instant,
    interrupt: Option<BorrowedFd<'a>>,
}

impl<'a> WaitLimit<'a> {
    /// Waits until this instant of the real clock at most.
    pub const fn deadline(deadline: Instant) -> Self {
        Self {
            deadline,
            interrupt: None,
        }
    }

    /// Adds an interrupt: the wait also ends when `interrupt` is readable.
    pub fn or_readable(self, interrupt: &'a impl AsFd) -> Self {
        Self {
            interrupt: Some(interrupt.as_fd()),
            ..self
        }
    }

    /// Moves the deadline to `deadline` if that is earlier.
    pub fn no_later_than(self, deadline: Instant) -> Self {
        Self {
            deadline: self.deadline.min(deadline),
            ..self
        }
    }

    /// The limit for the first of `tries` successive tries from `now` on. Each try gets an equal share of the
    /// time that is left, three seconds at most; the last one gets all of it.
    pub fn share(self, now: Instant, tries: usize) -> Self {
        let left = self.left(now).nanos();
        let share = Duration::from_nanos(left / tries.max(1) as u64).min(TRY_MAX);
        match tries {
            0 | 1 => self,
            _ => self.no_later_than(now + share),
        }
    }

    /// Returns the time that is left at `now`.
    pub fn left(&self, now: Instant) -> Duration {
        self.deadline.since(now)
    }

    /// Whether the deadline has passed by `now`.
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// Waits until `nap` has passed. `what` names the wait in an error.
    pub fn wait_until(&self, what: &'static str, nap: Instant) -> Result<(), NetError> {
        self.wait(what, &[], Some(nap))
    }

    /// Waits until `fd` is readable. `what` names the wait in an error.
    pub fn wait_readable(&self, what: &'static str, fd: &impl AsFd) -> Result<(), NetError> {
        self.wait(what, &[(fd.as_fd(), PollFlags::IN)], None)
    }

    /// Waits until one of `fds` is readable or `nap` has passed. `what` names the wait in an error.
    pub fn wait_any_readable(
        &self,
        what: &'static str,
        fds: &[BorrowedFd<'_>],
        nap: Instant,
    ) -> Result<(), NetError> {
        let fds: Vec<_> = fds.iter().map(|fd| (*fd, PollFlags::IN)).collect();
        self.wait(what, &fds, Some(nap))
    }

    /// Waits for `events` on one of `fds`, until `nap` at most.
    pub(crate) fn wait(
        &self,
        what: &'static str,
        fds: &[(BorrowedFd<'_>, PollFlags)],
        nap: Option<Instant>,
    ) -> Result<(), NetError> {
        let interrupt = self
            .interrupt
            .iter()
            .map(|fd| PollFd::new(fd, PollFlags::IN));
        let mut polled: Vec<_> = interrupt
            .chain(fds.iter().map(|(fd, events)| PollFd::new(fd, *events)))
            .collect();
        let deadline = nap.map_or(self.deadline, |nap| nap.min(self.deadline));
        let woken = Waiter::default()
            .wait_polling(&mut polled, Some(deadline), &mut |_: WaitPhase| false)
            .map_err(|source| NetError::System { what, source })?;
        let raised = |fd: &BorrowedFd<'_>| match woken {
            // The waiter checks the deadline before it polls, so the descriptor may not have been polled.
            WakeReason::Deadline => !ready_events(*fd, PollFlags::IN).is_empty(),
            _ => !polled[0].revents().is_empty(),
        };
        if self.interrupt.as_ref().is_some_and(raised) {
            return Err(NetError::Interrupted);
        }
        if woken == WakeReason::Deadline && clock::now() >= self.deadline {
            return Err(NetError::Deadline { what });
        }
        Ok(())
    }
}

impl From<std::time::Duration> for WaitLimit<'_> {
    /// Waits for this long at most, from now on.
    fn from(timeout: std::time::Duration) -> Self {
        Self::deadline(clock::now() + timeout)
    }
}

impl From<Instant> for WaitLimit<'_> {
    fn from(deadline: Instant) -> Self {
        Self::deadline(deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expired_wait_still_reports_an_interrupt() {
        let (interrupt, raise) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let ever = WaitLimit::deadline(Instant::FAR_FUTURE).or_readable(&interrupt);
        let over = || ever.wait_until("nothing", clock::now());
        assert!(over().is_ok());
        rustix::io::write(&raise, b"!").expect("raises");
        assert!(matches!(over(), Err(NetError::Interrupted)));
    }

    #[test]
    fn a_timeout_counts_from_its_conversion() {
        let before = clock::now();
        let limit = WaitLimit::from(std::time::Duration::from_secs(60));
        let (earliest, latest) = (before, clock::now());
        let minute = Duration::from_secs(60);
        assert!(earliest + minute <= limit.deadline && limit.deadline <= latest + minute);
    }

    #[test]
    fn attempts_share_time_and_the_last_gets_the_rest() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let end = |left: u64, tries| {
            WaitLimit::deadline(at(10 + left))
                .share(at(10), tries)
                .deadline
        };
        assert_eq!(end(4, 2), at(12));
        assert_eq!(end(4, 4), at(11));
        assert_eq!(end(4, 1), at(14));
        assert_eq!(end(60, 2), at(13));
        assert_eq!(end(0, 3), at(10));
        let ever = WaitLimit::deadline(Instant::FAR_FUTURE);
        assert_eq!(ever.share(at(10), 2).deadline, at(13));
        assert_eq!(ever.share(at(10), 1).deadline, Instant::FAR_FUTURE);
        // A deadline in the past is not extended.
        let past = WaitLimit::deadline(at(5)).share(at(10), 2);
        assert!(past.deadline == at(5) && past.is_over(at(5)) && !past.is_over(at(4)));
    }
}
