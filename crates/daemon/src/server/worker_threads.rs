//! Threads that step the workers of a daemon that has several.
//!
//! A thread polls as long as there is something to do, then for as long as a wake-up costs, and then sleeps until a
//! completion arrives or control wakes it. It wakes applications by itself. Everything else that the worker requests
//! goes to control.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use headworks_net::{EventFd, WaitPhase, Waiter, WakeReason, clock};
use headworks_runtime::ActorContext;
use headworks_verbs::{CompletionChannel, Instant};
use rustix::event::{PollFd, PollFlags};

use super::poll_budget::PollBudget;
use super::subscriptions::Subscriptions;
use super::{ALONE, OFFERED_EVERY, ServerMessage, ServerSender};
use crate::domain::WakeUp;
use crate::ids::WorkerId;
use crate::worker::{SharedWorker, Worker};

/// The threads of all workers. Dropping the value ends them.
#[derive(Default)]
pub(super) struct WorkerThreads(Vec<WorkerThread>);

/// Thread of one worker.
struct WorkerThread {
    shared: Arc<ThreadState>,
    thread: Option<JoinHandle<()>>,
}

/// State that a worker's thread shares with control.
struct ThreadState {
    wake: EventFd,
    is_ending: AtomicBool,
    sleeps: AtomicU64,
}

impl WorkerThreads {
    /// Starts a thread for each worker.
    ///
    /// # Errors
    ///
    /// A thread or a descriptor cannot be made.
    pub(super) fn start(
        workers: &[Arc<SharedWorker>],
        subscriptions: &Arc<Mutex<Subscriptions>>,
        control: &ServerSender,
    ) -> io::Result<Self> {
        let mut all = Self::default();
        for (number, worker) in workers.iter().enumerate() {
            let shared = Arc::new(ThreadState {
                wake: EventFd::new()?,
                is_ending: AtomicBool::new(false),
                sleeps: AtomicU64::new(0),
            });
            let loop_of = WorkerLoop {
                worker: worker.clone(),
                subscriptions: subscriptions.clone(),
                control: control.clone(),
                shared: shared.clone(),
                wake_ups: Vec::new(),
                channels: Vec::new(),
                known: 0,
                is_armed: false,
                is_idle: true,
                has_new_channels: false,
                awaits_peers: false,
                deadline: None,
            };
            let thread = std::thread::Builder::new()
                .name(format!("worker {number}"))
                .spawn(move || loop_of.run())?;
            all.0.push(WorkerThread {
                shared,
                thread: Some(thread),
            });
        }
        Ok(all)
    }

    /// Wakes the thread of a worker.
    pub(super) fn wake(&self, worker: WorkerId) {
        if let Some(thread) = self.0.get(worker.index()) {
            thread.shared.wake.signal();
        }
    }

    /// Returns how often the threads slept.
    pub(super) fn sleeps(&self) -> u64 {
        let sleeps = |one: &WorkerThread| one.shared.sleeps.load(Ordering::Relaxed);
        self.0.iter().map(sleeps).sum()
    }
}

impl Drop for WorkerThreads {
    fn drop(&mut self) {
        for thread in &self.0 {
            thread.shared.is_ending.store(true, Ordering::Release);
            thread.shared.wake.signal();
        }
        for thread in &mut self.0 {
            if let Some(thread) = thread.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// Tells control when a worker's thread panics. Without the worker its connections would stand still for ever, so the
/// daemon ends.
struct PanicReport(ServerSender);

impl Drop for PanicReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let source = io::Error::other("a bug, see the log");
            self.0.tell(ServerMessage::WorkerFailed(source));
        }
    }
}

/// The loop of a worker's thread.
struct WorkerLoop {
    worker: Arc<SharedWorker>,
    subscriptions: Arc<Mutex<Subscriptions>>,
    control: ServerSender,
    shared: Arc<ThreadState>,
    wake_ups: Vec<WakeUp>,
    /// Descriptors that wake the thread, and the value of [`Worker::domains_made`] that they belong to.
    channels: Vec<Arc<dyn CompletionChannel>>,
    known: u64,
    /// Whether the worker was armed since the thread was last woken.
    is_armed: bool,
    /// Whether the last turn left nothing to do.
    is_idle: bool,
    /// Whether another host's daemon had to react to something after the last turn.
    awaits_peers: bool,
    /// When the worker must be stepped at the latest.
    deadline: Option<Instant>,
    /// Whether the last turn found channels that are not in `channels`.
    has_new_channels: bool,
}

impl WorkerLoop {
    fn run(mut self) {
        let _report = PanicReport(self.control.clone());
        let mut waiter = Waiter::default();
        let shared = self.shared.clone();
        while !shared.is_ending.load(Ordering::Acquire) {
            let channels = self.channels.clone();
            let wake = shared.wake.as_fd();
            let fds = channels.iter().map(|channel| channel.fd()).chain([wake]);
            let polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            if let Err(error) = self.serve(&mut waiter, &mut polled.collect::<Vec<_>>()) {
                self.control.tell(ServerMessage::WorkerFailed(error));
                return;
            }
            // The thread serves the event that woke it before it makes the descriptors unreadable.
            self.turn(WaitPhase::Poll);
            shared.wake.clear();
            self.is_armed = false;
            let (known, channels) = self.with_worker(|worker| {
                worker.disarm();
                (worker.domains_made(), worker.channels())
            });
            (self.known, self.channels) = (known, channels);
        }
    }

    /// Steps the worker until one of `fds` is readable, or the worker has descriptors that are not among them.
    fn serve(&mut self, waiter: &mut Waiter, fds: &mut [PollFd<'_>]) -> io::Result<()> {
        let mut turns = 0u32;
        let mut budget = PollBudget::default();
        loop {
            let (polls, looks) = budget.begin(self.awaits_peers, clock::now());
            waiter.set_polling(polls, looks);
            let deadline = self.deadline;
            let woken = waiter.wait_polling(fds, deadline, &mut |phase| self.turn(phase))?;
            budget.end(woken != WakeReason::Ready, clock::now());
            if woken != WakeReason::Ready || self.has_new_channels {
                return Ok(());
            }
            turns = turns.wrapping_add(1);
            if self.is_idle || turns.is_multiple_of(OFFERED_EVERY) {
                waiter.spin_once();
            }
        }
    }

    /// Calls `serve` with the worker, after control.
    fn with_worker<R>(&self, serve: impl FnOnce(&mut Worker) -> R) -> R {
        loop {
            if let Some(mut worker) = self.worker.lock_for_step() {
                return serve(&mut worker);
            }
            std::thread::yield_now();
        }
    }

    /// Steps the worker once and returns whether there was something to do.
    fn turn(&mut self, phase: WaitPhase) -> bool {
        let Some(mut worker) = self.worker.lock_for_step() else {
            std::thread::yield_now();
            return true;
        };
        if phase == WaitPhase::Arm {
            self.shared.sleeps.fetch_add(1, Ordering::Relaxed);
            worker.arm();
            self.is_armed = true;
        }
        let stepped = worker.step(&mut ActorContext::new(&mut { ALONE }));
        self.wake_ups
            .extend(std::iter::from_fn(|| worker.wake_up()));
        let asks_control = worker.asks_control();
        self.is_idle = worker.is_idle();
        self.awaits_peers = worker.awaits_peers();
        let deadline = worker.deadline();
        // A new time limit must be known to the wait before it sleeps.
        let is_new = std::mem::replace(&mut self.deadline, deadline) != deadline;
        // A descriptor of a new domain would not wake this thread.
        self.has_new_channels = worker.domains_made() != self.known;
        let was_busy = stepped
            || is_new
            || self.has_new_channels
            || !self.wake_ups.is_empty()
            || !self.is_idle;
        if was_busy && std::mem::take(&mut self.is_armed) {
            worker.disarm();
        }
        drop(worker);
        for wake_up in self.wake_ups.drain(..) {
            match wake_up {
                WakeUp::Thread(event_count) => event_count.wake(),
                WakeUp::Signal(watch, signal) => {
                    let subscriptions = self.subscriptions.lock();
                    let mut subscriptions = subscriptions.unwrap_or_else(PoisonError::into_inner);
                    subscriptions.signal(watch, signal);
                }
            }
        }
        if asks_control {
            self.worker.ask_control();
            self.control.wake();
        }
        was_busy
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_worker_that_panics_ends_the_daemon_in_words() {
        let (told, heard) = mpsc::channel();
        let (woken, wake) = rustix::pipe::pipe().unwrap();
        let control = ServerSender {
            told,
            wake: Arc::new(wake),
        };
        for panics in [false, true] {
            let report = PanicReport(control.clone());
            let worker = std::thread::spawn(move || {
                let _report = report;
                assert!(!panics, "a worker that panics");
            });
            assert_eq!(worker.join().is_err(), panics);
        }
        let Ok(ServerMessage::WorkerFailed(error)) = heard.try_recv() else {
            panic!("control was told nothing");
        };
        assert!(error.to_string().contains("a bug"), "{error}");
        // Control is woken once, by the second worker.
        assert_eq!(rustix::io::read(&woken, &mut [0; 8]), Ok(1));
        assert!(heard.try_recv().is_err(), "one report");
    }
}
