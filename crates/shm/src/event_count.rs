//! An event count: waking somebody only if he is about to sleep, and never missing that.
//!
//! Who will sleep arms it and then looks once more for work; who makes work rings it and, if it was
//! armed, wakes him by other means. Each side writes one word and then reads the other's, with a
//! full fence between: either the work is seen by that last look, or the event count is found armed.

use crate::primitive::{AtomicU32, Ordering, fence};

const OFF: u32 = 0;
const ANY: u32 = 1;
const URGENT: u32 = 2;

/// The word, which may be in shared memory.
#[derive(Debug)]
#[repr(transparent)]
pub struct EventCount(AtomicU32);

impl EventCount {
    /// One that the next ring, urgent or not, finds armed.
    pub fn new_armed() -> Self {
        Self(AtomicU32::new(ANY))
    }

    /// Arms it for the next ring, or the next urgent one. Look for work after this, not before.
    pub fn arm(&self, urgent_only: bool) {
        if urgent_only {
            // Who asked for any before gets it.
            let _ = self
                .0
                .compare_exchange(OFF, URGENT, Ordering::Relaxed, Ordering::Relaxed);
        } else {
            self.0.store(ANY, Ordering::Relaxed);
        }
        // Pairs with the one in `notify`.
        fence(Ordering::SeqCst);
    }

    /// Rings after work was stored. Says whether the caller is the one to wake the sleeper; it is
    /// not armed any more then.
    #[inline]
    pub fn notify(&self, urgent: bool) -> bool {
        // Pairs with the one in `arm`.
        fence(Ordering::SeqCst);
        let armed = self.0.load(Ordering::Relaxed);
        let due = armed == ANY || (armed == URGENT && urgent);
        due && self.0.swap(OFF, Ordering::AcqRel) != OFF
    }

    /// Whether somebody is about to sleep, for who looks on.
    pub fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != OFF
    }

    /// Whoever wakes the sleeper anyhow says so.
    pub fn disarm(&self) {
        self.0.store(OFF, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn notifies_once_for_what_it_was_armed_for() {
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
            "the weaker wish does not replace the other"
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

    /// Producers store work and ring; a sleeper arms and looks again. Somebody always knows.
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
            assert!(notified || seen == producers as u64, "asleep beside work");
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
