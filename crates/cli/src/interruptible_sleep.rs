//! A sleep that a signal ends early.

use std::time::{Duration, Instant};

use anyhow::Context;
use headworks::net::Interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Sleeps for `time`. Returns whether a signal ended the sleep.
pub(crate) fn sleep_unless_interrupted(
    interrupt: &Interrupt,
    time: Duration,
) -> anyhow::Result<bool> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if interrupt.is_raised() || left.is_zero() {
            return Ok(interrupt.is_raised());
        }
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(interrupt, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for the next sample"),
        }
    }
}
