//! Waking of a poller that sleeps.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use headworks_shm::fork::ForkGeneration;
use rustix::event::{EventfdFlags, eventfd};

use crate::service::{ServiceError, system};

/// Wakes a [`Poller`](super::Poller) from another thread. Clones wake the same poller.
#[derive(Clone, Debug)]
pub struct PollWaker(pub(super) Arc<PollerWaker>);

impl PollWaker {
    /// Ends the poller's current wait, or the next one, without a report.
    pub fn wake(&self) {
        self.0.is_asked.store(true, Ordering::Release);
        self.0.wake();
    }
}

/// The descriptor by which a poller is woken.
#[derive(Debug)]
pub(in crate::service) struct PollerWaker {
    pub(super) fd: OwnedFd,
    /// Whether the poller sleeps, or is about to.
    pub(super) is_asleep: AtomicBool,
    /// Whether a [`PollWaker`] asks for the end of the wait.
    pub(super) is_asked: AtomicBool,
    /// Whether the descriptor is, or is about to be, readable. The thread that sets it writes once after that. Only the
    /// poller clears it, after it read what was written. So while it is clear, the descriptor is not readable and nobody is
    /// about to write.
    is_rung: AtomicBool,
    /// Names of the poller's streams that other pollers took out of wake sets.
    inbox: Mutex<Vec<(usize, u32)>>,
    /// Whether there is something in `inbox`.
    has_mail: AtomicBool,
    made_by: ForkGeneration,
}

impl PollerWaker {
    pub(super) fn new() -> Result<Self, ServiceError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            fd: fd.map_err(|errno| system("eventfd")(errno.into()))?,
            is_asleep: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            is_rung: AtomicBool::new(false),
            inbox: Mutex::default(),
            has_mail: AtomicBool::new(false),
            made_by: ForkGeneration::current(),
        })
    }

    pub(super) fn wake(&self) {
        if self.made_by.is_foreign() {
            // The descriptor is that of the parent's poller, which would find it readable although nobody woke it.
            return;
        }
        // If it was set, the poller clears it after this, and looks for news after that.
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            self.write();
        }
    }

    fn write(&self) {
        // It fails only at the eventfd's limit, which one number does not reach.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Wakes the poller if it sleeps: another thread has handled packets of the session.
    pub(in crate::service) fn wake_if_asleep(&self) {
        // Pairs with the fence in `fall_asleep`.
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Tells the poller that one of its streams has news, and wakes it if it sleeps.
    pub(super) fn put(&self, name: (usize, u32)) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.push(name);
        self.has_mail.store(true, Ordering::Relaxed);
        drop(inbox);
        self.wake_if_asleep();
    }

    /// For the poller, also after it called `fall_asleep`: takes the names of streams that have news.
    pub(super) fn take(&self, each: impl FnMut((usize, u32))) {
        if self.has_mail.load(Ordering::Relaxed) {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            self.has_mail.store(false, Ordering::Relaxed);
            std::mem::take(&mut *inbox).into_iter().for_each(each);
        }
    }

    pub(super) fn fall_asleep(&self) {
        self.is_asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence in `wake_if_asleep`.
        fence(Ordering::SeqCst);
    }

    pub(super) fn wake_up(&self) {
        self.is_asleep.store(false, Ordering::Relaxed);
        if self.reads() {
            self.clear();
        }
    }

    /// Reads the descriptor if it may be readable. Returns whether there was something.
    fn reads(&self) -> bool {
        // A thread that has set the flag but not written yet leaves nothing to read. The flag stays set, so that the next
        // call reads what it writes.
        self.is_rung.load(Ordering::Relaxed) && rustix::io::read(&self.fd, &mut [0; 8]).is_ok()
    }

    fn clear(&self) {
        // Acquires what a thread stored that found the flag set and did not write.
        self.is_rung.swap(false, Ordering::AcqRel);
    }

    pub(super) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(waker: &PollerWaker) -> bool {
        let mut fds = [PollFd::new(&waker.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("polls") == 1
    }

    /// Plays every order of the steps of two threads that wake the poller, and of two wake-ups of the poller, of two steps
    /// each. While the flag is clear, the descriptor is never readable, and at the end it is readable only if the flag is set.
    #[test]
    fn a_descriptor_is_readable_only_until_the_poller_has_woken_up() {
        const STEPS: u32 = 8;
        for order in 0..3u32.pow(STEPS) {
            let waker = PollerWaker::new().expect("an eventfd");
            let mut steps = [0; 3];
            // Each thread's flag tells whether the thread writes next; the poller's tells whether the poller clears the flag next.
            let mut goes_on = [false; 3];
            let rest = [0, 0, 1, 1, 2, 2, 2, 2];
            let order_now = (0..STEPS).map(|place| (order / 3u32.pow(place) % 3) as usize);
            for who in order_now.chain(rest) {
                steps[who] += 1;
                match (who, steps[who] % 2 == 1) {
                    (2, true) => goes_on[who] = waker.reads(),
                    (2, false) if goes_on[who] => waker.clear(),
                    (0 | 1, true) if steps[who] == 1 => {
                        goes_on[who] = !waker.is_rung.swap(true, Ordering::AcqRel);
                    }
                    (0 | 1, false) if steps[who] == 2 && goes_on[who] => waker.write(),
                    _ => {}
                }
                let is_rung = waker.is_rung.load(Ordering::Relaxed);
                assert!(is_rung || !is_readable(&waker), "order {order}");
            }
            if steps[2] % 2 == 1 && goes_on[2] {
                waker.clear();
            }
            waker.wake_up();
            assert!(!is_readable(&waker), "order {order}");
            assert!(!waker.is_rung.load(Ordering::Relaxed), "order {order}");
        }
    }

    /// The poller wakes up for another reason between the two steps of a thread that wakes it.
    #[test]
    fn a_wake_up_between_the_steps_of_a_wake_leaves_no_readable_descriptor() {
        let waker = PollerWaker::new().expect("an eventfd");
        waker.is_rung.store(true, Ordering::Release);
        waker.wake_up();
        let _ = rustix::io::write(&waker.fd, &1u64.to_ne_bytes());
        waker.wake_up();
        assert!(!is_readable(&waker));
        waker.wake();
        assert!(is_readable(&waker));
    }
}
