//! The progress thread of a context. It sleeps until a peer dies, or there is work that no other thread does.
//! An idle context costs nothing.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::ThreadId;

use headworks_shm::{EventCount, WakePipe, WakeSender};
use headworks_verbs::{Duration, Instant, QpState, ResourceError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::device::{Context, clock};
use crate::peer::Peer;
use crate::peer_process::PeerProcess;
use crate::qp::QpCore;

/// How long pending requests may rest before the thread takes them over from threads that do not poll.
const PATIENCE: Duration = Duration::from_micros(500);
/// Longest interval between two looks at queue pairs and memory that wait for a peer.
const UNSETTLED_MAX: Duration = Duration::from_millis(100);
/// Interval at which the liveness of peers without a pidfd is asked.
const WITHOUT_PIDFD: Duration = Duration::from_millis(200);

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

    /// Starts the thread if it does not run yet. Every queue pair needs it.
    pub(crate) fn start(&self, context: &Arc<Context>) -> Result<(), ResourceError> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*started {
            let shared = context.progress.clone();
            let weak = Arc::downgrade(context);
            std::thread::Builder::new()
                .name("headworks-softnic".into())
                .spawn(move || run(&shared, &weak))
                .map_err(|source| ResourceError::System {
                    what: "starting the progress thread",
                    source,
                })?;
            *started = true;
        }
        Ok(())
    }
}

fn run(progress: &Progress, context: &Weak<Context>) {
    let _ = progress.thread.set(std::thread::current().id());
    let (mut seen_steps, mut unsettled_looks) = (0, 0);
    let mut wake_at = Some(clock());
    // Queue pairs to look at: those that are marked, and those of earlier rounds that still wait.
    let mut slots = BTreeSet::new();
    loop {
        let (peers, senders) = {
            let _attending = progress.service();
            match context.upgrade() {
                Some(context) => (context.peers(), context.senders.watches()),
                None => return,
            }
        };
        sleep(progress, &peers, &senders, wake_at);
        if progress.stop.load(Ordering::Acquire) {
            return;
        }
        // Declared before the reference that it guards, and so dropped after it.
        let _attending = progress.service();
        let Some(context) = context.upgrade() else {
            return;
        };
        progress.borrowed.store(0, Ordering::Relaxed);
        crate::bounce::serve(&context);
        take_marks(&context, &mut slots);
        let died = clean_up(&context, &peers) | context.senders.service(&context);
        context.service_limits(died);
        context.show_held();
        context.forget_unused();
        let mut unsettled = context.quarantine.look(&context) | context.senders.has_late();
        let mut lost = Vec::new();
        for core in cores_of(&context, &slots) {
            core.end_if_peer_left();
            if core.state() == QpState::Error && !core.settle_failed() {
                unsettled = true;
                lost.push(core.slot());
            } else if core.is_connected() && core.peer().is_none() {
                // The peer could not be attached, though its process is not gone yet: it is dying. No pidfd
                // will wake this thread when it is dead, so look again soon.
                unsettled = true;
                lost.push(core.slot());
            }
        }
        let steps = progress.steps.load(Ordering::Relaxed);
        let rests = steps == seen_steps;
        let take_over = progress.take_over.swap(false, Ordering::AcqRel);
        wake_at = resume(&context, &mut slots, rests || take_over);
        slots.extend(lost);
        // Back off: a stopped peer may stay stopped for long.
        unsettled_looks = if unsettled { unsettled_looks + 1 } else { 0 };
        if unsettled {
            let soon = clock() + PATIENCE.times(unsettled_looks).min(UNSETTLED_MAX);
            wake_at = Some(wake_at.map_or(soon, |at| at.min(soon)));
        }
        seen_steps = progress.steps.load(Ordering::Relaxed);
        let senders = context.senders.watches();
        if peers.iter().any(|peer| peer.must_be_asked())
            || senders.iter().any(|watch| watch.must_be_asked())
        {
            let ask = clock() + WITHOUT_PIDFD;
            wake_at = Some(wake_at.map_or(ask, |at| at.min(ask)));
        }
    }
}

/// Adds the queue pairs that are marked.
fn take_marks(context: &Context, slots: &mut BTreeSet<usize>) {
    context.table.attention().qps.take(|slot| {
        slots.insert(slot);
    });
}

fn cores_of(context: &Context, slots: &BTreeSet<usize>) -> Vec<Arc<QpCore>> {
    let looked = &context.progress.looked;
    looked.fetch_add(slots.len() as u64, Ordering::Relaxed);
    slots
        .iter()
        .filter_map(|slot| context.queue_pair(*slot))
        .collect()
}

/// Sleeps until a kick, the death of a peer, or `until`. Marks the peers that died.
fn sleep(
    progress: &Progress,
    peers: &[Arc<Peer>],
    senders: &[Arc<PeerProcess>],
    until: Option<Instant>,
) {
    let peer_process: Vec<_> = peers
        .iter()
        .filter(|peer| !peer.is_dead())
        .filter_map(|peer| Some((peer, peer.death_fd()?)))
        .collect();
    let mut wait = until.map(|at| at.since(clock()));
    if peers.iter().any(|peer| peer.needs_cleanup()) {
        // Another thread noticed the death, so this peer's pidfd is not polled any more.
        wait = Some(Duration::ZERO);
    }
    let mut fds = vec![PollFd::from_borrowed_fd(progress.pipe.fd(), PollFlags::IN)];
    fds.extend(
        peer_process
            .iter()
            .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)),
    );
    let pidfds = senders
        .iter()
        .filter_map(|watch| Some((watch, watch.death_fd()?)));
    let pidfds: Vec<_> = pidfds.collect();
    fds.extend(
        pidfds
            .iter()
            .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)),
    );
    match poll(&mut fds, wait.map(timespec).as_ref()) {
        Ok(_) => {
            for ((peer, _), fd) in peer_process.iter().zip(&fds[1..]) {
                if fd.revents().contains(PollFlags::IN) {
                    peer.mark_dead();
                }
            }
            for ((watch, _), fd) in pidfds.iter().zip(&fds[1 + peer_process.len()..]) {
                if fd.revents().contains(PollFlags::IN) {
                    watch.mark_dead();
                }
            }
        }
        // The process's descriptor limit was lowered below the number of pidfds. Ask about each one.
        Err(Errno::INVAL) => {
            let wait = wait.map_or(WITHOUT_PIDFD, |wait| wait.min(WITHOUT_PIDFD));
            if poll(&mut fds[..1], Some(&timespec(wait))).is_err() {
                std::thread::sleep(std::time::Duration::from_nanos(wait.nanos()));
            }
            for (peer, _) in peer_process {
                peer.check_dead();
            }
            for (watch, _) in pidfds {
                watch.check_dead();
            }
        }
        // An interrupted poll is a wake-up like any other.
        Err(_) => {}
    }
    // Drains at most what a pipe holds, so a process that floods it cannot keep the thread here.
    let mut drained = [0; 4096];
    for _ in 0..16 {
        if progress.pipe.drain(&mut drained) < drained.len() {
            break;
        }
    }
}

fn timespec(wait: Duration) -> Timespec {
    Timespec {
        tv_sec: (wait.nanos() / 1_000_000_000) as i64,
        tv_nsec: (wait.nanos() % 1_000_000_000) as i64,
    }
}

/// Ends the queue pairs of peers that died. Returns whether a peer died.
fn clean_up(context: &Context, peers: &[Arc<Peer>]) -> bool {
    let mut died = false;
    for peer in peers {
        // Peers with a pidfd were asked in `sleep`.
        if peer.must_be_asked() {
            peer.check_dead();
        }
        if peer.needs_cleanup() {
            peer.set_cleaned_up();
            died = true;
        }
    }
    if died {
        context.progress.deaths.fetch_add(1, Ordering::AcqRel);
        for core in context.queue_pairs() {
            core.end_if_peer_left();
        }
    }
    died
}

/// Drives pending requests of `slots` that rest, or of all of them if `rests`. Returns when to look again.
/// Removes queue pairs without pending requests from `slots`.
fn resume(context: &Context, slots: &mut BTreeSet<usize>, rests: bool) -> Option<Instant> {
    let mut waiting = cores_of(context, slots);
    waiting.retain(|core| core.has_waiting());
    *slots = waiting.iter().map(|core| core.slot()).collect();
    if waiting.is_empty() {
        return look_away(context, slots, &BTreeSet::new()).then(clock);
    }
    let all = waiting.len();
    // Drives an idle owner's queue pair even while other owners are active.
    waiting.retain(|core| core.rests.swap(true, Ordering::Relaxed) || rests);
    if waiting.is_empty() {
        return Some(clock() + PATIENCE);
    }
    let mut earliest = Instant::FAR_FUTURE;
    let (mut blocked, mut stalled) = (BTreeSet::new(), BTreeSet::new());
    // No other thread polls: work until everything is done or blocked, for a bounded number of rounds.
    for round in 0..64 {
        let now = clock();
        for core in &waiting {
            match core.try_resume(now) {
                crate::qp::NextStep::Never => {
                    blocked.insert(core.slot());
                }
                crate::qp::NextStep::At(at) => {
                    earliest = earliest.min(at);
                    stalled.insert(core.slot());
                    blocked.insert(core.slot());
                }
                crate::qp::NextStep::Now => {
                    blocked.remove(&core.slot());
                }
            }
        }
        if blocked.len() == waiting.len() && waiting.len() < all {
            return Some(earliest.min(clock() + PATIENCE));
        }
        if blocked.len() == waiting.len() {
            if look_away(context, slots, &stalled) {
                return Some(clock());
            }
            // Sleep until the earliest timer, if there is one. A new pending request wakes the thread.
            return (earliest != Instant::FAR_FUTURE).then_some(earliest);
        }
        if round % 8 == 7 {
            std::thread::yield_now();
        }
    }
    Some(clock())
}

/// Re-arms the wake-up. Returns whether work arrived before it was armed, apart from the queue pairs that are
/// `stalled`.
fn look_away(context: &Context, slots: &mut BTreeSet<usize>, stalled: &BTreeSet<usize>) -> bool {
    context.progress.idle.arm(false);
    take_marks(context, slots);
    let runs = |core: &Arc<QpCore>| core.has_waiting() && core.state() == QpState::Rts;
    cores_of(context, slots)
        .iter()
        .any(|core| runs(core) && !stalled.contains(&core.slot()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;
    use crate::table::Table;

    /// Returns a peer whose process has ended.
    fn dead_peer() -> Peer {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let table = Table::new(crate::table::empty_segment()).unwrap();
        Peer::stand_in(child.id(), pidfd, table)
    }

    #[test]
    fn a_readable_pidfd_means_death() {
        let progress = Progress::new().unwrap();
        let peer = Arc::new(dead_peer());
        sleep(&progress, std::slice::from_ref(&peer), &[], None);
        assert!(peer.is_dead());
        assert!(dead_peer().check_dead());
    }
}
