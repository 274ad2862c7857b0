//! Time limit of an exchange with the other process. It is for exchanges whose reads and writes have no limit
//! of their own.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context;
use headworks::net::{Interrupt, Waiter, WakeReason, clock};
use rustix::process::{Pid, Signal, kill_process};

use super::{PeerProcess, StepLimit};

/// Number of steps that an exchange has made.
#[derive(Default)]
pub(super) struct StepCount(AtomicU64);

impl StepCount {
    /// Counts a step: the other process has taken or sent something.
    #[inline]
    pub(super) fn count(&self) {
        // Only the thread of the exchange writes it.
        let steps = self.0.load(Ordering::Relaxed);
        self.0.store(steps.wrapping_add(1), Ordering::Relaxed);
    }
}

/// Runs `exchange`. If it counts no step for as long as `limit` says, or a signal arrives, the other process is
/// killed, so that every wait for it ends.
///
/// # Errors
///
/// Fails as `exchange` does, or with the error of `limit`.
pub(super) fn with_stall_limit<T>(
    other: &PeerProcess,
    interrupt: &Interrupt,
    limit: &StepLimit<'_>,
    exchange: impl FnOnce(&StepCount) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (ended, end) = io::pipe().context("pipe")?;
    let (steps, is_stalled) = (StepCount::default(), AtomicBool::new(false));
    let pid = Pid::from_child(&other.0);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = 0;
            let fds = [ended.as_fd(), interrupt.as_fd()];
            loop {
                let until = clock::now() + limit.limit;
                let woken = Waiter::default().wait(&fds, Some(until), |_| false);
                let steps = steps.0.load(Ordering::Relaxed);
                match woken {
                    Ok(WakeReason::Deadline) if steps != seen => seen = steps,
                    Ok(WakeReason::Deadline) => {
                        is_stalled.store(true, Ordering::Relaxed);
                        break;
                    }
                    _ if interrupt.is_raised() => break,
                    // The exchange has ended.
                    _ => return,
                }
            }
            // The process has not been waited for, so that the number is still its own.
            let _ = kill_process(pid, Signal::KILL);
        });
        let result = exchange(&steps);
        drop(end);
        result
    });
    match is_stalled.load(Ordering::Relaxed) {
        true => Err(limit.stalled()),
        false => result,
    }
}
