//! Event count: a waker wakes a waiter only if it is about to sleep, and never misses that.
//!
//! A waiter arms the event count, looks once more for work, and sleeps. A producer stores work and then
//! notifies; if the event count was armed, the producer wakes the waiter by other means. Each side writes
//! one word and then reads the other's, with a full fence between. So either the waiter's last look finds
//! the work, or the producer finds the event count armed.

use crate::primitive::{AtomicU32, Ordering, fence};

const OFF: u32 = 0;
const ANY: u32 = 1;
const URGENT: u32 = 2;

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

    /// Returns whether a waiter has armed it. For observers only: the load is relaxed.
    pub fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != OFF
    }

    /// Disarms it. For a caller that wakes the waiter in any case.
    pub fn disarm(&self) {
        self.0.store(OFF, Ordering::Relaxed);
    }
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
    fn loom_work_is_seen_or_notified() {
        check(1);
    }

    #[test]
    fn loom_work_of_two_is_seen_or_notified() {
        check(2);
    }
}
