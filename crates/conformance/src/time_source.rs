//! How time passes in a world whose hosts run in this process.

use std::os::fd::BorrowedFd;

use headworks_net::clock;
use headworks_verbs::{Duration, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Clock of a world, and how it advances.
pub trait TimeSource: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Lets a little time pass, so that hosts and devices can progress.
    fn advance(&self);

    /// Waits until `fd` is readable, `at_most` long. Returns whether it is readable.
    ///
    /// # Errors
    ///
    /// The errors of poll(2).
    fn sleep(&self, fd: BorrowedFd<'_>, at_most: Duration) -> rustix::io::Result<bool>;
}

/// Real clock, which advances by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealTimeSource;

impl TimeSource for RealTimeSource {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn advance(&self) {
        std::thread::yield_now();
    }

    fn sleep(&self, fd: BorrowedFd<'_>, at_most: Duration) -> rustix::io::Result<bool> {
        is_readable(fd, at_most)
    }
}

/// Returns whether `fd` is readable now or within `within` of real time.
///
/// # Errors
///
/// The errors of poll(2).
pub fn is_readable(fd: BorrowedFd<'_>, within: Duration) -> rustix::io::Result<bool> {
    let nanos = within.nanos();
    let timeout = Timespec {
        tv_sec: (nanos / 1_000_000_000) as i64,
        tv_nsec: (nanos % 1_000_000_000) as i64,
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&timeout))? > 0)
}
