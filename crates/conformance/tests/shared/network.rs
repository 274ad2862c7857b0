//! A simulated network and its time.

use std::os::fd::BorrowedFd;

use headworks_conformance::Manners;
use headworks_conformance::time::{Time, is_readable};
use headworks_simnic::SimProvider;
use headworks_verbs::{Duration, Instant};

/// Whatever a device does in its own time; what it has, it has exactly.
pub(crate) const SIM: Manners = Manners {
    at_once: false,
    refusals: 0,
    late: 0,
    checks_first: false,
    tells_twice: true,
    notices_deaths: false,
    holds_unpolled: true,
    refuses_datagrams: false,
    many: 10_000,
    sizes_exactly: true,
    by_itself: true,
    holds_back: false,
    keeps_what_overran: true,
};

/// What a moment is.
const MOMENT: Duration = Duration::from_micros(2);

/// A network of its own, and its time.
#[derive(Default)]
pub(crate) struct Network(pub(crate) SimProvider);

impl Time for Network {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn advance(&self) {
        self.0.advance(MOMENT);
    }

    fn sleep(&self, fd: BorrowedFd<'_>, at_most: Duration) -> rustix::io::Result<bool> {
        let until = self.now() + at_most;
        loop {
            if is_readable(fd, Duration::ZERO)? {
                return Ok(true);
            }
            if self.now() >= until {
                return Ok(false);
            }
            self.advance();
        }
    }
}
