//! A thread for what waits while its program makes no call: one that posts a long WRITE and looks at memory for the
//! answer, say.
//!
//! It sleeps as long as nothing waits, and leaves queues alone whose program calls: then it only looks at a number now
//! and then, and takes no lock. A thin shell: what is done is [`PacedSq::progress`](crate::paced_sq)'s.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use headworks_shm::fork::ForkGeneration;

/// A program that makes no call for so long is attended to.
const PATIENCE: Duration = Duration::from_millis(1);
/// And so often from then on, if nothing is due later.
const AGAIN: Duration = Duration::from_micros(50);

/// What somebody can be attended to about.
pub(crate) trait BackgroundWork: Send + Sync {
    /// What its program calls, counted.
    fn calls(&self) -> &CallCounter;

    /// Goes on with what is due. Says after how long to come again, or `None` where nothing waits any more.
    fn attend(&self) -> Option<Duration>;
}

/// Who is there to be attended to now.
pub(crate) type WorkList = Box<dyn Fn() -> Vec<Arc<dyn BackgroundWork>> + Send>;

/// Calls of a program, and whether something waits after the last.
#[derive(Debug, Default)]
pub(crate) struct CallCounter {
    count: AtomicU64,
    waits: AtomicBool,
    /// What the attendant saw when it last looked.
    seen: AtomicU64,
}

impl CallCounter {
    /// What the attendant itself left. Under the lock of what it is about.
    pub(crate) fn attended(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// A call left something waiting, or nothing. Under the lock of what it is about.
    #[inline]
    pub(crate) fn left(&self, waits: bool, attendant: Option<&BackgroundThread>) {
        if !waits {
            if self.waits.load(Ordering::Relaxed) {
                self.waits.store(false, Ordering::Relaxed);
            }
            return;
        }
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Relaxed);
        if !self.waits.load(Ordering::Relaxed)
            && let Some(attendant) = attendant
        {
            self.waits.store(true, Ordering::Relaxed);
            attendant.wake();
        }
    }
}

/// The thread, started by the first that waits; it ends when this is dropped.
pub(crate) struct BackgroundThread {
    bell: Arc<Wakeup>,
    everybody: Mutex<Option<WorkList>>,
    started: Once,
    made_by: ForkGeneration,
}

#[derive(Default)]
struct Wakeup {
    asleep: AtomicBool,
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Default)]
struct State {
    is_rung: bool,
    is_over: bool,
}

impl Wakeup {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, is_over: bool) {
        let mut state = self.state();
        state.is_rung = true;
        state.is_over |= is_over;
        self.rung.notify_one();
    }
}

impl BackgroundThread {
    /// Of these, whoever they are when it looks.
    pub(crate) fn new(everybody: WorkList) -> Self {
        Self {
            bell: Arc::default(),
            everybody: Mutex::new(Some(everybody)),
            started: Once::new(),
            made_by: ForkGeneration::current(),
        }
    }

    /// Something waits.
    fn wake(&self) {
        self.started.call_once(|| {
            let mut everybody = self
                .everybody
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let (bell, everybody) = (self.bell.clone(), everybody.take());
            if let Some(everybody) = everybody {
                // Without it what waits goes on with the program's calls, as on a simulated device.
                let _ = std::thread::Builder::new()
                    .name("hw-pacing".into())
                    .spawn(move || run(&bell, &everybody));
            }
        });
        // Dekker with `run`: it sees that something waits, or this sees it asleep.
        fence(Ordering::SeqCst);
        if self.bell.asleep.load(Ordering::Relaxed) {
            self.bell.ring(false);
        }
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        // A forked child has no such thread, which may have held the lock.
        if !self.made_by.is_foreign() {
            self.bell.ring(true);
        }
    }
}

fn run(bell: &Wakeup, everybody: &WorkList) {
    loop {
        bell.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let next = round(&everybody());
        let mut state = bell.state();
        if state.is_over {
            return;
        }
        state = match next {
            Some(next) => {
                bell.asleep.store(false, Ordering::Relaxed);
                let waited = bell
                    .rung
                    .wait_timeout_while(state, next, |state| !state.is_over);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = bell.rung.wait_while(state, |state| !state.is_rung);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        };
        state.is_rung = false;
        if state.is_over {
            return;
        }
    }
}

/// Attends to whoever waits and made no call since the last time. Says when to come again.
fn round(everybody: &[Arc<dyn BackgroundWork>]) -> Option<Duration> {
    let mut next: Option<Duration> = None;
    for one in everybody {
        let calls = one.calls();
        if !calls.waits.load(Ordering::Relaxed) {
            continue;
        }
        let count = calls.count.load(Ordering::Relaxed);
        let again = match calls.seen.swap(count, Ordering::Relaxed) == count {
            true => one.attend().map(|again| again.max(AGAIN)),
            false => Some(PATIENCE),
        };
        next = match (next, again) {
            (Some(next), Some(again)) => Some(next.min(again)),
            (next, again) => next.or(again),
        };
    }
    next
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use super::*;

    struct TestWork {
        calls: CallCounter,
        left: AtomicUsize,
        done: mpsc::Sender<()>,
    }

    impl BackgroundWork for TestWork {
        fn calls(&self) -> &CallCounter {
            &self.calls
        }

        fn attend(&self) -> Option<Duration> {
            let left = self.left.fetch_sub(1, Ordering::Relaxed) - 1;
            self.calls.attended(left > 0);
            if left == 0 {
                self.done.send(()).expect("the test waits");
            }
            (left > 0).then_some(Duration::ZERO)
        }
    }

    #[test]
    fn who_waits_and_makes_no_call_is_attended_to_until_nothing_waits() {
        let (done, finished) = mpsc::channel();
        let one = Arc::new(TestWork {
            calls: CallCounter::default(),
            left: AtomicUsize::new(0),
            done,
        });
        let there = one.clone();
        let attendant = BackgroundThread::new(Box::new(move || vec![there.clone() as _]));
        for _ in 0..3 {
            one.left.store(5, Ordering::Relaxed);
            one.calls.left(true, Some(&attendant));
            finished.recv().expect("it comes");
            assert_eq!(one.left.load(Ordering::Relaxed), 0);
        }
        drop(attendant);
        assert!(finished.try_recv().is_err(), "nothing waited any more");
    }
}
