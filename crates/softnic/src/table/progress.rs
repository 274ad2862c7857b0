//! State that a context's threads share with its progress thread: the wake pipe, and what each side tells the other.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

use headworks_shm::{EventCount, WakePipe, WakeSender};

/// State shared between a context's threads and its progress thread.
pub(crate) struct Progress {
    pipe: WakePipe,
    wake: WakeSender,
    stop: AtomicBool,
    /// Set when a caller is about to sleep: the thread must not wait for it to poll.
    take_over: AtomicBool,
    /// Armed while the thread does not drive pending requests.
    idle: EventCount,
    /// Increases whenever the thread finds dead peers.
    deaths: AtomicU64,
    /// Number of steps that any thread made, which shows whether pending requests rest.
    steps: AtomicU64,
    started: Mutex<bool>,
    /// The thread, once it runs.
    thread: OnceLock<ThreadId>,
    /// Number of objects of the context that the application holds.
    pub(crate) objects: AtomicUsize,
    /// At least the number of these objects that the thread has held in its latest turn, and that it may be the last to
    /// drop.
    borrowed: AtomicUsize,
    /// Held by the thread while it keeps the context alive.
    attending: Mutex<()>,
    /// Total number of queue pairs that the thread has looked at.
    looked: AtomicU64,
}

impl Progress {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        let pipe = WakePipe::new()?;
        let wake = pipe.sender();
        Ok(Arc::new(Self {
            pipe,
            wake,
            stop: AtomicBool::new(false),
            take_over: AtomicBool::new(false),
            idle: EventCount::new_armed(),
            deaths: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            started: Mutex::new(false),
            thread: OnceLock::new(),
            objects: AtomicUsize::new(0),
            borrowed: AtomicUsize::new(0),
            attending: Mutex::new(()),
            looked: AtomicU64::new(0),
        }))
    }

    /// Returns the wake pipe, whose descriptors peers are given.
    pub(crate) fn pipe(&self) -> &WakePipe {
        &self.pipe
    }

    pub(crate) fn sender(&self) -> WakeSender {
        self.pipe.sender()
    }

    /// Wakes the thread.
    pub(crate) fn kick(&self) {
        self.wake.send(&[1]);
    }

    /// Wakes the thread if it does not drive pending requests. Call it after adding a pending request.
    pub(crate) fn watch(&self) {
        if self.idle.notify(false) {
            self.kick();
        }
    }

    /// Has the thread drive pending requests at once: their owner is about to sleep.
    pub(crate) fn take_over(&self) {
        self.take_over.store(true, Ordering::Release);
        self.kick();
    }

    pub(crate) fn note_progress(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn looked(&self) -> u64 {
        self.looked.load(Ordering::Relaxed)
    }

    /// Returns how many times dead peers were found so far.
    pub(crate) fn deaths(&self) -> u64 {
        self.deaths.load(Ordering::Acquire)
    }

    /// Waits until the thread does not hold the context, and keeps it from taking hold until dropped.
    pub(crate) fn service(&self) -> MutexGuard<'_, ()> {
        self.attending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the thread is about to hold up to `count` objects of the application.
    pub(crate) fn borrow_objects(&self, count: usize) {
        self.borrowed.fetch_add(count, Ordering::Relaxed);
        // An application thread that drops such an object while the progress thread holds it reads the new value.
        fence(Ordering::SeqCst);
    }

    /// Returns whether the application holds no object of the context, apart from those that the thread may hold.
    pub(crate) fn is_last(&self, others: usize) -> bool {
        fence(Ordering::SeqCst);
        others <= self.borrowed.load(Ordering::Relaxed)
    }

    /// Waits until the thread does not hold the context. Does not wait if called by the thread itself.
    pub(crate) fn await_release(&self) {
        if self.thread.get() != Some(&std::thread::current().id()) {
            drop(self.service());
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.kick();
    }

    /// Calls `start` to start the thread, unless an earlier call has started it.
    pub(crate) fn start_once<E>(&self, start: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*started {
            start()?;
            *started = true;
        }
        Ok(())
    }
}

/// Methods that only the progress thread calls.
impl Progress {
    /// Notes that the calling thread is the progress thread.
    pub(crate) fn set_thread(&self) {
        let _ = self.thread.set(std::thread::current().id());
    }

    /// Returns whether the thread is to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Notes that the thread begins another turn, in which it has held no object yet.
    pub(crate) fn begin_turn(&self) {
        self.borrowed.store(0, Ordering::Relaxed);
    }

    /// Returns the number of steps that any thread made.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Returns whether a caller is about to sleep since the last call.
    pub(crate) fn is_to_take_over(&self) -> bool {
        self.take_over.swap(false, Ordering::AcqRel)
    }

    /// Notes that the thread has found dead peers.
    pub(crate) fn note_deaths(&self) {
        self.deaths.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the thread looks at `count` queue pairs.
    pub(crate) fn note_looks(&self, count: usize) {
        self.looked.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Has the next [`Progress::watch`] wake the thread.
    pub(crate) fn arm(&self) {
        self.idle.arm(false);
    }
}
