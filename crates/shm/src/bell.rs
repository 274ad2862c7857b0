//! A bell: waking somebody only if he is about to sleep, and never missing that.
//!
//! Who will sleep arms it and then looks once more for work; who makes work rings it and, if it was
//! armed, wakes him by other means. Each side writes one word and then reads the other's, with a
//! full fence between: either the work is seen by that last look, or the bell is found armed.

use crate::primitive::{AtomicU32, Ordering, fence};

const OFF: u32 = 0;
const ANY: u32 = 1;
const URGENT: u32 = 2;

/// The word, which may be in shared memory.
#[derive(Debug)]
#[repr(transparent)]
pub struct Bell(AtomicU32);

impl Bell {
    /// One that the next ring, urgent or not, finds armed.
    pub fn armed() -> Self {
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
        // Pairs with the one in `ring`.
        fence(Ordering::SeqCst);
    }

    /// Rings after work was stored. Says whether the caller is the one to wake the sleeper; it is
    /// not armed any more then.
    #[inline]
    pub fn ring(&self, urgent: bool) -> bool {
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
    fn rings_once_for_what_it_was_armed_for() {
        let bell = Bell::armed();
        assert!(bell.ring(false));
        assert!(!bell.ring(true));
        bell.arm(true);
        assert!(!bell.ring(false));
        assert!(bell.ring(true));
        bell.arm(false);
        bell.arm(true);
        assert!(
            bell.ring(false),
            "the weaker wish does not replace the other"
        );
        bell.arm(false);
        bell.disarm();
        assert!(!bell.ring(true));
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
            let shared = Arc::new((Bell(AtomicU32::new(OFF)), AtomicU64::new(0)));
            let ringers: Vec<_> = (0..producers)
                .map(|_| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        let (bell, work) = &*shared;
                        work.fetch_add(1, Ordering::Relaxed);
                        bell.ring(false)
                    })
                })
                .collect();
            let (bell, work) = &*shared;
            bell.arm(false);
            let seen = work.load(Ordering::Relaxed);
            let rung = ringers
                .into_iter()
                .map(|ringer| ringer.join().unwrap())
                .fold(false, |any, rung| any | rung);
            assert!(rung || seen == producers as u64, "asleep beside work");
        });
    }

    #[test]
    fn loom_work_is_seen_or_rung_for() {
        check(1);
    }

    #[test]
    fn loom_work_of_two_is_seen_or_rung_for() {
        check(2);
    }
}
