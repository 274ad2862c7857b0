//! The background thread: posts waiting requests while their program makes no call, for example a program
//! that posts a long WRITE and then polls memory for the answer.
//!
//! The thread sleeps while nothing waits. It leaves queues alone whose program makes calls: for those it only
//! reads a counter now and then, and takes no lock. It is a thin shell;
//! [`PacedSq::progress`](crate::paced_sq) does the work.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use headworks_shm::fork::ForkGeneration;

/// The background thread serves a program that makes no call for this long.
const PATIENCE: Duration = Duration::from_millis(1);
/// Shortest time between two services of such a program.
const AGAIN: Duration = Duration::from_micros(50);

/// A queue that the background thread serves.
pub(crate) trait BackgroundWork: Send + Sync {
    /// The counter of its program's calls.
    fn calls(&self) -> &CallCounter;

    /// Posts what is due. Returns after how long to come again, or `None` if nothing waits any more.
    fn service(&self) -> Option<Duration>;
}

/// Returns the queues that exist now.
pub(crate) type WorkList = Box<dyn Fn() -> Vec<Arc<dyn BackgroundWork>> + Send>;

/// Counts a program's calls that left something waiting, and tells whether something waits after the last
/// call.
#[derive(Debug, Default)]
pub(crate) struct CallCounter {
    count: AtomicU64,
    waits: AtomicBool,
    /// The count that the background thread found at its last look.
    seen: AtomicU64,
}

impl CallCounter {
    /// Records whether something still waits after a service by the background thread. The caller holds the
    /// queue's lock.
    pub(crate) fn attended(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// Records a call of the program and whether something waits after it; wakes the background thread if
    /// nothing waited before. The caller holds the queue's lock.
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

/// Handle of the background thread. The first request that waits starts the thread; dropping this ends it.
pub(crate) struct BackgroundThread {
    wakeup: Arc<Wakeup>,
    work_list: Mutex<Option<WorkList>>,
    started: Once,
    made_by: ForkGeneration,
}

#[derive(Default)]
struct Wakeup {
    asleep: AtomicBool,
    state: Mutex<State>,
    woken: Condvar,
}

#[derive(Default)]
struct State {
    is_woken: bool,
    is_over: bool,
}

impl Wakeup {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, is_over: bool) {
        let mut state = self.state();
        state.is_woken = true;
        state.is_over |= is_over;
        self.woken.notify_one();
    }
}

impl BackgroundThread {
    /// Serves the queues that `everybody` returns at each look.
    pub(crate) fn new(work_list: WorkList) -> Self {
        Self {
            wakeup: Arc::default(),
            work_list: Mutex::new(Some(work_list)),
            started: Once::new(),
            made_by: ForkGeneration::current(),
        }
    }

    /// Tells the thread that something waits; starts it if it does not run yet.
    fn wake(&self) {
        self.started.call_once(|| {
            let mut work_list = self
                .work_list
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let (wakeup, work_list) = (self.wakeup.clone(), work_list.take());
            if let Some(work_list) = work_list {
                // If the thread cannot be started, the program's calls post what waits, as on a simulated
                // device.
                let _ = std::thread::Builder::new()
                    .name("hw-pacing".into())
                    .spawn(move || run(&wakeup, &work_list));
            }
        });
        // Dekker's pattern with `run`: either `run` sees that something waits, or this sees it asleep.
        fence(Ordering::SeqCst);
        if self.wakeup.asleep.load(Ordering::Relaxed) {
            self.wakeup.ring(false);
        }
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        // A forked child has no such thread, and the thread may have held the lock when the process forked.
        if !self.made_by.is_foreign() {
            self.wakeup.ring(true);
        }
    }
}

fn run(wakeup: &Wakeup, work_list: &WorkList) {
    loop {
        wakeup.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let next = round(&work_list());
        let mut state = wakeup.state();
        if state.is_over {
            return;
        }
        state = match next {
            Some(next) => {
                wakeup.asleep.store(false, Ordering::Relaxed);
                let waited = wakeup
                    .woken
                    .wait_timeout_while(state, next, |state| !state.is_over);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = wakeup.woken.wait_while(state, |state| !state.is_woken);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        };
        state.is_woken = false;
        if state.is_over {
            return;
        }
    }
}

/// Serves every queue in which something waits and whose program made no call since the last look. Returns
/// after how long to come again, or `None` if nothing waits.
fn round(work_list: &[Arc<dyn BackgroundWork>]) -> Option<Duration> {
    let mut next: Option<Duration> = None;
    for one in work_list {
        let calls = one.calls();
        if !calls.waits.load(Ordering::Relaxed) {
            continue;
        }
        let count = calls.count.load(Ordering::Relaxed);
        let again = match calls.seen.swap(count, Ordering::Relaxed) == count {
            true => one.service().map(|again| again.max(AGAIN)),
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

        fn service(&self) -> Option<Duration> {
            let left = self.left.fetch_sub(1, Ordering::Relaxed) - 1;
            self.calls.attended(left > 0);
            if left == 0 {
                self.done.send(()).expect("the test waits");
            }
            (left > 0).then_some(Duration::ZERO)
        }
    }

    #[test]
    fn the_background_thread_serves_idle_programs_until_nothing_waits() {
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
