//! How time passes in a world whose hosts are of this process.

use std::os::fd::BorrowedFd;

use headworks_net::clock;
use headworks_verbs::{Duration, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A clock, and how it goes on.
pub trait TimeSource: Send + Sync {
    /// What it reads.
    fn now(&self) -> Instant;

    /// Lets a little time pass: what others do meanwhile may be seen then.
    fn advance(&self);

    /// Waits until `fd` is readable or so much time has passed; whether it is.
    ///
    /// # Errors
    ///
    /// Those of poll(2).
    fn sleep(&self, fd: BorrowedFd<'_>, at_most: Duration) -> rustix::io::Result<bool>;
}

/// The real clock, which goes on by itself.
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

/// Whether `fd` is readable, now or within so much real time.
///
/// # Errors
///
/// Those of poll(2).
pub fn is_readable(fd: BorrowedFd<'_>, within: Duration) -> rustix::io::Result<bool> {
    let nanos = within.nanos();
    let timeout = Timespec {
        tv_sec: (nanos / 1_000_000_000) as i64,
        tv_nsec: (nanos % 1_000_000_000) as i64,
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&timeout))? > 0)
}
