//! Event count: a waker wakes a waiter only if it is about to sleep, and never misses that.
//!
//! A waiter arms the event count, looks once more for work, and sleeps. A producer stores work and then
//! notifies; if the event count was armed, the producer wakes the waiter. Each side writes one word and then
//! reads the other's, with a full fence between. So either the waiter's last look finds the work, or the
//! producer finds the event count armed.
//!
//! A waiter sleeps on a descriptor, and is woken by a message; or it sleeps on the word itself, with futex(2); or it does
//! not sleep on this event count at all, but on that of a set of many objects, into which the notifier inserts this one.

#[cfg(not(loom))]
use rustix::event::Timespec;
#[cfg(not(loom))]
use rustix::thread::futex;

use crate::primitive::{AtomicU32, Ordering, fence};

const OFF: u32 = 0;
const ANY: u32 = 1;
const URGENT: u32 = 2;
const SLEEPING: u32 = 3;
const IN_SET: u32 = 4;

/// How the waiter that armed an event count is to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeBy {
    /// By a message of the notifier's: the waiter sleeps on a descriptor.
    Message,
    /// By [`EventCount::wake`]: the waiter sleeps on the word.
    Word,
    /// By inserting the object into the set of objects that the waiter looks at, and by notifying the event count of that
    /// set.
    Set,
}

/// The event count's word, which may be in shared memory.
#[derive(Debug)]
#[repr(transparent)]
pub struct EventCount(AtomicU32);

impl EventCount {
    /// Makes an event count that is armed for the next notification, urgent or not.
    pub fn new_armed() -> Self {
        Self(AtomicU32::new(ANY))
    }

    /// Arms it for the next notification, or only for the next urgent one. Look for work after this, not
    /// before.
    pub fn arm(&self, urgent_only: bool) {
        if urgent_only {
            // Keeps an earlier arm for any notification, which includes urgent ones.
            let _ = self
                .0
                .compare_exchange(OFF, URGENT, Ordering::Relaxed, Ordering::Relaxed);
        } else {
            self.0.store(ANY, Ordering::Relaxed);
        }
        // Pairs with the fence in `notify`.
        fence(Ordering::SeqCst);
    }

    /// Notifies after work was stored. Returns whether the caller must wake the waiter; the event count is
    /// then disarmed.
    #[inline]
    pub fn notify(&self, urgent: bool) -> bool {
        // Pairs with the fence in `arm`.
        fence(Ordering::SeqCst);
        let armed = self.0.load(Ordering::Relaxed);
        let due = armed == ANY || (armed == URGENT && urgent);
        due && self.0.swap(OFF, Ordering::AcqRel) != OFF
    }

    /// Arms it for the next notification by [`EventCount::notify_waiter`]. Look for work after this, and then
    /// [`sleep`](Self::sleep).
    pub fn arm_to_sleep(&self) {
        self.0.store(SLEEPING, Ordering::Relaxed);
        // Pairs with the fence in `notify_waiter`.
        fence(Ordering::SeqCst);
    }

    /// Arms it for the next notification by [`EventCount::notify_waiter`], which then returns [`WakeBy::Set`]. Execute
    /// [`fence_after_arms`] once after all event counts were armed, and look for work after that.
    pub fn arm_in_set(&self) {
        self.0.store(IN_SET, Ordering::Relaxed);
    }

    /// Returns whether it is armed by [`arm_in_set`](Self::arm_in_set). For the waiter: the load is relaxed.
    pub fn is_armed_in_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) == IN_SET
    }

    /// Notifies a waiter that may sleep in any way, after work was stored. Returns how the caller must wake it,
    /// if it must; the event count is then disarmed.
    #[inline]
    pub fn notify_waiter(&self) -> Option<WakeBy> {
        // Pairs with the fences in `arm` and `arm_to_sleep`, and with `fence_after_arms`.
        fence(Ordering::SeqCst);
        if self.0.load(Ordering::Relaxed) == OFF {
            return None;
        }
        match self.0.swap(OFF, Ordering::AcqRel) {
            OFF => None,
            SLEEPING => Some(WakeBy::Word),
            IN_SET => Some(WakeBy::Set),
            _ => Some(WakeBy::Message),
        }
    }

    /// Sleeps while it is armed by [`arm_to_sleep`](Self::arm_to_sleep), for at most `timeout`. It may return early,
    /// so that the caller must look again.
    #[cfg(not(loom))]
    pub fn sleep(&self, timeout: Option<std::time::Duration>) {
        // A time that is too long for the kernel is no limit.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // Every error is a reason to look again: the word has changed, a signal came, the time is over.
        let _ = futex::wait(&self.0, futex::Flags::empty(), SLEEPING, timeout.as_ref());
    }

    /// Wakes the waiter that sleeps on the word, after a notification that returned [`WakeBy::Word`].
    #[cfg(not(loom))]
    pub fn wake(&self) {
        // It fails only if the memory is gone, and the waiter with it.
        let _ = futex::wake(&self.0, futex::Flags::empty(), 1);
    }

    /// Returns whether a waiter has armed it. For observers only: the load is relaxed.
    pub fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != OFF
    }

    /// Disarms it. For a caller that wakes the waiter in any case.
    pub fn disarm(&self) {
        self.0.store(OFF, Ordering::Relaxed);
    }
}

/// Orders the arms before it, by [`EventCount::arm_in_set`], with the looks for work after it.
pub fn fence_after_arms() {
    // Pairs with the fence in `notify_waiter`.
    fence(Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_armed_event_notifies_once_for_its_urgency() {
        let event_count = EventCount::new_armed();
        assert!(event_count.notify(false));
        assert!(!event_count.notify(true));
        event_count.arm(true);
        assert!(!event_count.notify(false));
        assert!(event_count.notify(true));
        event_count.arm(false);
        event_count.arm(true);
        assert!(
            event_count.notify(false),
            "arming for urgent work does not replace arming for any work"
        );
        event_count.arm(false);
        event_count.disarm();
        assert!(!event_count.notify(true));
    }

    #[test]
    fn a_waiter_is_woken_in_the_way_in_which_it_sleeps() {
        let event_count = EventCount::new_armed();
        assert_eq!(event_count.notify_waiter(), Some(WakeBy::Message));
        assert_eq!(event_count.notify_waiter(), None);
        event_count.arm_to_sleep();
        assert_eq!(event_count.notify_waiter(), Some(WakeBy::Word));
        assert_eq!(event_count.notify_waiter(), None);
        event_count.arm_in_set();
        assert!(event_count.is_armed_in_set());
        assert_eq!(event_count.notify_waiter(), Some(WakeBy::Set));
        assert!(!event_count.is_armed_in_set());
        assert_eq!(event_count.notify_waiter(), None);
    }

    #[test]
    fn a_sleeper_is_woken_or_does_not_fall_asleep() {
        let event_count = EventCount::new_armed();
        let work = std::sync::atomic::AtomicU64::new(0);
        let rounds = 20_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    work.store(round, Ordering::Relaxed);
                    if let Some(WakeBy::Word) = event_count.notify_waiter() {
                        event_count.wake();
                    }
                    // Waits for the other thread, which sets the work back.
                    while work.load(Ordering::Acquire) != 0 {
                        std::thread::yield_now();
                    }
                }
            });
            for round in 1..=rounds {
                loop {
                    event_count.arm_to_sleep();
                    if work.load(Ordering::Relaxed) == round {
                        break;
                    }
                    event_count.sleep(None);
                }
                work.store(0, Ordering::Release);
            }
        });
    }

    #[test]
    fn a_sleep_ends_at_its_limit_and_without_an_arm_at_once() {
        let event_count = EventCount::new_armed();
        event_count.sleep(None);
        event_count.arm_to_sleep();
        event_count.sleep(Some(std::time::Duration::from_millis(1)));
        event_count.disarm();
        event_count.sleep(Some(std::time::Duration::MAX));
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::primitive::AtomicU64;

    /// Producers store work and notify; a waiter arms and looks again. Checks that no work is missed.
    fn check(producers: usize) {
        loom::model(move || {
            let shared = Arc::new((EventCount(AtomicU32::new(OFF)), AtomicU64::new(0)));
            let notifiers: Vec<_> = (0..producers)
                .map(|_| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        let (event_count, work) = &*shared;
                        work.fetch_add(1, Ordering::Relaxed);
                        event_count.notify(false)
                    })
                })
                .collect();
            let (event_count, work) = &*shared;
            event_count.arm(false);
            let seen = work.load(Ordering::Relaxed);
            let notified = notifiers
                .into_iter()
                .map(|notifier| notifier.join().unwrap())
                .fold(false, |any, notified| any | notified);
            assert!(notified || seen == producers as u64, "missed work");
        });
    }

    #[test]
    fn loom_work_is_seen_or_a_sleeper_notified() {
        loom::model(|| {
            let shared = Arc::new((EventCount(AtomicU32::new(OFF)), AtomicU64::new(0)));
            let notifier = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (event_count, work) = &*shared;
                    work.store(1, Ordering::Relaxed);
                    event_count.notify_waiter()
                })
            };
            let (event_count, work) = &*shared;
            event_count.arm_to_sleep();
            let seen = work.load(Ordering::Relaxed);
            let notified = notifier.join().unwrap();
            assert!(notified == Some(WakeBy::Word) || seen == 1, "missed work");
        });
    }

    /// Two objects in a set, each with a notifier; the waiter arms both, with one fence, and the set's own event count. It
    /// sleeps only if it saw no work and nothing in the set. Checks that it is then woken.
    #[test]
    fn loom_a_waiter_for_a_set_is_woken() {
        loom::model(|| {
            let object = || (EventCount(AtomicU32::new(OFF)), AtomicU64::new(0));
            let set = (EventCount(AtomicU32::new(OFF)), AtomicU64::new(0));
            let shared = Arc::new(([object(), object()], set));
            let notifiers: Vec<_> = (0..2)
                .map(|at| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        let (objects, (of_set, bits)) = &*shared;
                        let (event_count, work) = &objects[at];
                        work.store(1, Ordering::Relaxed);
                        if event_count.notify_waiter() == Some(WakeBy::Set) {
                            bits.fetch_or(1 << at, Ordering::Release);
                            return of_set.notify(false);
                        }
                        false
                    })
                })
                .collect();
            let (objects, (of_set, bits)) = &*shared;
            objects
                .iter()
                .for_each(|(event_count, _)| event_count.arm_in_set());
            of_set.arm(false);
            fence_after_arms();
            let mut seen: Vec<bool> = objects
                .iter()
                .map(|(_, work)| work.load(Ordering::Relaxed) == 1)
                .collect();
            let found = bits.load(Ordering::Acquire);
            (0..2).for_each(|at| seen[at] |= found & 1 << at != 0);
            let woken = notifiers
                .into_iter()
                .map(|notifier| notifier.join().unwrap())
                .fold(false, |any, woken| any | woken);
            assert!(woken || seen.iter().all(|seen| *seen), "missed work");
        });
    }

    #[test]
    fn loom_work_is_seen_or_notified() {
        check(1);
    }

    #[test]
    fn loom_work_of_two_is_seen_or_notified() {
        check(2);
    }
}
