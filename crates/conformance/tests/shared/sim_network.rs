//! A simulated network and its clock.

use std::os::fd::BorrowedFd;

use headworks_conformance::DeviceBehaviour;
use headworks_conformance::time_source::{TimeSource, is_readable};
use headworks_simnic::SimProvider;
use headworks_verbs::{Duration, Instant};

/// Behaviour of simulated RNICs: they work asynchronously, and have exactly the requested sizes.
pub(crate) const SIM_BEHAVIOUR: DeviceBehaviour = DeviceBehaviour {
    completes_in_call: false,
    spurious_refusals: 0,
    empty_polls_max: 0,
    checks_before_copying: false,
    reports_failure_twice: true,
    detects_peer_death: false,
    frees_slots_when_polled: true,
    refuses_bad_datagrams: false,
    objects_max: 10_000,
    sizes_queues_exactly: true,
    progresses_without_calls: true,
    defers_requests: false,
    polls_after_overrun: true,
};

/// Virtual time of one `advance`.
const ADVANCE_STEP: Duration = Duration::from_micros(2);

/// A separate simulated network, as the time source of a world.
#[derive(Default)]
pub(crate) struct SimNetwork(pub(crate) SimProvider);

impl TimeSource for SimNetwork {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn advance(&self) {
        self.0.advance(ADVANCE_STEP);
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
