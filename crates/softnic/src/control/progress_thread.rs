//! The progress thread of a context. It sleeps until a peer dies, or there is work that no other thread does.
//! An idle context costs nothing.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use headworks_verbs::{Duration, Instant, QpState, ResourceError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::control::bounce_service;
use crate::control::objects::Objects;
use crate::datapath::context::Context;
use crate::datapath::qp::{NextStep, QpCore};
use crate::table::clock;
use crate::table::peer::Peer;
use crate::table::peer_process::PeerProcess;
use crate::table::progress::Progress;

/// How long pending requests may rest before the thread takes them over from threads that do not poll.
const PATIENCE: Duration = Duration::from_micros(500);
/// Longest interval between two looks at queue pairs and memory that wait for a peer.
const UNSETTLED_MAX: Duration = Duration::from_millis(100);
/// Interval at which the liveness of peers without a pidfd is asked.
const WITHOUT_PIDFD: Duration = Duration::from_millis(200);

/// Starts the thread if it does not run yet. Every queue pair needs it.
pub(crate) fn start(context: &Arc<Context>, objects: &Arc<Objects>) -> Result<(), ResourceError> {
    context.progress.start_once(|| {
        let progress = context.progress.clone();
        let context = Arc::downgrade(context);
        let objects = objects.clone();
        std::thread::Builder::new()
            .name("headworks-softnic".into())
            .spawn(move || run(&progress, &context, &objects))
            .map(drop)
            .map_err(|source| ResourceError::System {
                what: "starting the progress thread",
                source,
            })
    })
}

fn run(progress: &Progress, context: &Weak<Context>, objects: &Objects) {
    progress.set_thread();
    let (mut seen_steps, mut unsettled_looks) = (0, 0);
    let mut wake_at = Some(clock::now());
    // Queue pairs to look at: those that are marked, and those of earlier rounds that still wait.
    let mut slots = BTreeSet::new();
    loop {
        let (peers, senders) = {
            let _attending = progress.service();
            match context.upgrade() {
                Some(context) => (context.peers.all(), context.senders.watches()),
                None => return,
            }
        };
        sleep(progress, &peers, &senders, wake_at);
        if progress.is_stopping() {
            return;
        }
        // Declared before the reference that it guards, and so dropped after it.
        let _attending = progress.service();
        let Some(context) = context.upgrade() else {
            return;
        };
        progress.begin_turn();
        bounce_service::serve(&context, &objects.queue_pairs);
        take_marks(&context, &mut slots);
        let died =
            clean_up(&context, objects, &peers) | objects.queue_pairs.service_senders(&context);
        objects.service_limits(&context, died);
        objects.show_held(&context);
        context.peers.forget_unused();
        let mut unsettled = context.quarantine.look() | objects.queue_pairs.has_late();
        let mut lost = Vec::new();
        for core in cores_of(&context, objects, &slots) {
            core.end_if_peer_left();
            if core.state() == QpState::Error && !core.settle_failed() {
                unsettled = true;
                lost.push(core.slot());
            } else if core.is_connected() && core.peer().is_none() && !core.outlives_peer() {
                // The peer could not be attached, though its process is not gone yet: it is dying. No pidfd
                // will wake this thread when it is dead, so look again soon.
                unsettled = true;
                lost.push(core.slot());
            }
        }
        let steps = progress.steps();
        let rests = steps == seen_steps;
        let take_over = progress.is_to_take_over();
        wake_at = resume(&context, objects, &mut slots, rests || take_over);
        slots.extend(lost);
        // Back off: a stopped peer may stay stopped for long.
        unsettled_looks = if unsettled { unsettled_looks + 1 } else { 0 };
        if unsettled {
            let soon = clock::now() + PATIENCE.times(unsettled_looks).min(UNSETTLED_MAX);
            wake_at = Some(wake_at.map_or(soon, |at| at.min(soon)));
        }
        seen_steps = progress.steps();
        let senders = context.senders.watches();
        if peers.iter().any(|peer| peer.must_be_asked())
            || senders.iter().any(|watch| watch.must_be_asked())
        {
            let ask = clock::now() + WITHOUT_PIDFD;
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

fn cores_of(context: &Context, objects: &Objects, slots: &BTreeSet<usize>) -> Vec<Arc<QpCore>> {
    context.progress.note_looks(slots.len());
    slots
        .iter()
        .filter_map(|slot| objects.queue_pairs.get(*slot))
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
    let mut wait = until.map(|at| at.since(clock::now()));
    if peers.iter().any(|peer| peer.needs_cleanup()) {
        // Another thread noticed the death, so this peer's pidfd is not polled any more.
        wait = Some(Duration::ZERO);
    }
    let mut fds = vec![PollFd::from_borrowed_fd(
        progress.pipe().fd(),
        PollFlags::IN,
    )];
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
        if progress.pipe().drain(&mut drained) < drained.len() {
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
fn clean_up(context: &Context, objects: &Objects, peers: &[Arc<Peer>]) -> bool {
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
        context.progress.note_deaths();
        for core in objects.queue_pairs.all() {
            core.end_if_peer_left();
        }
    }
    died
}

/// Drives pending requests of `slots` that rest, or of all of them if `rests`. Returns when to look again.
/// Removes queue pairs without pending requests from `slots`.
fn resume(
    context: &Context,
    objects: &Objects,
    slots: &mut BTreeSet<usize>,
    rests: bool,
) -> Option<Instant> {
    let mut waiting = cores_of(context, objects, slots);
    waiting.retain(|core| core.has_waiting());
    *slots = waiting.iter().map(|core| core.slot()).collect();
    if waiting.is_empty() {
        return look_away(context, objects, slots, &BTreeSet::new()).then(clock::now);
    }
    let all = waiting.len();
    // Drives an idle owner's queue pair even while other owners are active.
    waiting.retain(|core| core.rests.swap(true, Ordering::Relaxed) || rests);
    if waiting.is_empty() {
        return Some(clock::now() + PATIENCE);
    }
    let mut earliest = Instant::FAR_FUTURE;
    let (mut blocked, mut stalled) = (BTreeSet::new(), BTreeSet::new());
    // No other thread polls: work until everything is done or blocked, for a bounded number of rounds.
    for round in 0..64 {
        let now = clock::now();
        for core in &waiting {
            match core.try_resume(now) {
                NextStep::Never => {
                    blocked.insert(core.slot());
                }
                NextStep::At(at) => {
                    earliest = earliest.min(at);
                    stalled.insert(core.slot());
                    blocked.insert(core.slot());
                }
                NextStep::Now => {
                    blocked.remove(&core.slot());
                }
            }
        }
        if blocked.len() == waiting.len() && waiting.len() < all {
            return Some(earliest.min(clock::now() + PATIENCE));
        }
        if blocked.len() == waiting.len() {
            if look_away(context, objects, slots, &stalled) {
                return Some(clock::now());
            }
            // Sleep until the earliest timer, if there is one. A new pending request wakes the thread.
            return (earliest != Instant::FAR_FUTURE).then_some(earliest);
        }
        if round % 8 == 7 {
            std::thread::yield_now();
        }
    }
    Some(clock::now())
}

/// Re-arms the wake-up. Returns whether work arrived before it was armed, apart from the queue pairs that are
/// `stalled`.
fn look_away(
    context: &Context,
    objects: &Objects,
    slots: &mut BTreeSet<usize>,
    stalled: &BTreeSet<usize>,
) -> bool {
    context.progress.arm();
    take_marks(context, slots);
    let runs = |core: &Arc<QpCore>| core.has_waiting() && core.state() == QpState::Rts;
    cores_of(context, objects, slots)
        .iter()
        .any(|core| runs(core) && !stalled.contains(&core.slot()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;
    use crate::table::rows::Table;

    /// Returns a peer whose process has ended.
    fn dead_peer() -> Peer {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let table = Table::new(crate::table::rows::empty_segment()).unwrap();
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
