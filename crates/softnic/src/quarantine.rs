//! What cannot be given back yet, because a process was stopped (SIGSTOP, a debugger) in the middle
//! of a request on it, and may write there when it goes on.
//!
//! Whoever takes memory away waits for the initiators in flight, which takes microseconds, but not
//! longer than [`PATIENCE`]: then what they may reach is kept here, mapped and used for nothing
//! else, until they have gone on or are dead. The progress thread looks.

use std::sync::{Arc, Mutex, PoisonError};

use headworks_shm::{SenderLife, SenderRow};
use headworks_verbs::{Buffer, Duration, Instant};

use crate::device::{Context, clock, slot_of};
use crate::peer::Peer;
use crate::peer_process::PeerProcess;
use crate::qp::QpCore;
use crate::table::{ExecutionSnapshot, RowRef};

/// How long another process may take for what takes microseconds before it counts as stopped.
const PATIENCE: Duration = Duration::from_millis(1000);

/// A queue pair of another process, or of this one, that executes on our memory.
pub(crate) struct Initiator(InitiatorKind);

enum InitiatorKind {
    /// One that is connected to ours: in its own context's table, and what it had `underway`.
    Connected {
        peer: Arc<Peer>,
        slot: usize,
        underway: ExecutionSnapshot,
    },
    /// One that delivers the datagram number `count`: in our table.
    Sender {
        row: RowRef<SenderRow>,
        life: SenderLife,
        count: u64,
        watched: Arc<PeerProcess>,
    },
}

/// What an initiator may still reach.
pub(crate) enum QuarantinedObject {
    /// A region that is not registered any more: its row, and its memory.
    Region { row: u32, _buffer: Arc<dyn Buffer> },
    /// A queue pair that was destroyed, with its queues.
    QueuePair(Arc<QpCore>),
}

/// The place for it.
#[derive(Default)]
pub(crate) struct Quarantine {
    held: Mutex<Vec<(Vec<Initiator>, QuarantinedObject)>>,
}

impl Initiator {
    /// The queue pair `dest` of `peer`, with what it executes now. A heavy fence goes before.
    pub(crate) fn new(peer: Arc<Peer>, dest: u32) -> Self {
        let slot = slot_of(dest);
        let underway = peer.table.qp(slot).executing.underway();
        Self(InitiatorKind::Connected {
            peer,
            slot,
            underway,
        })
    }

    /// The sender of datagrams in `row`, whose `executing` was `count` in that life.
    pub(crate) fn sender(
        row: RowRef<SenderRow>,
        life: SenderLife,
        count: u64,
        watched: Arc<PeerProcess>,
    ) -> Self {
        Self(InitiatorKind::Sender {
            row,
            life,
            count,
            watched,
        })
    }

    /// Whether it executes nothing now that it may have begun before this was made, or never will
    /// again.
    pub(crate) fn is_idle(&self) -> bool {
        match &self.0 {
            // Busy ones are so most of the time: another number is another execution, which has
            // looked at its target since.
            InitiatorKind::Connected {
                peer,
                slot,
                underway,
            } => {
                let now = peer.table.qp(*slot).executing.underway();
                underway.is_over(&now) || peer.check_dead()
            }
            InitiatorKind::Sender {
                row,
                life,
                count,
                watched,
            } => row.is_delivery_over(*life, *count) || watched.check_dead(),
        }
    }

    /// Whether it is idle, or soon is, for those who look again later.
    pub(crate) fn is_idle_soon(&self) -> bool {
        wait(Instant::ZERO, || self.is_idle(), || false)
    }

    /// Waits until it is idle, unless its process is stopped, and not longer than `until`. Says whether it
    /// is.
    fn wait_until(&self, until: Instant) -> bool {
        // One that was found stopped is not waited for again, until it has gone on.
        let idle = wait(until, || self.is_idle(), || !self.is_stopped());
        match &self.0 {
            InitiatorKind::Connected { peer, .. } => peer.set_stopped(!idle),
            InitiatorKind::Sender { watched, .. } => watched.set_stopped(!idle),
        }
        idle
    }

    fn is_stopped(&self) -> bool {
        match &self.0 {
            InitiatorKind::Connected { peer, .. } => peer.is_stopped(),
            InitiatorKind::Sender { watched, .. } => watched.is_stopped(),
        }
    }
}

/// Waits until all are idle, [`PATIENCE`] together. Those who are not then seem to be stopped.
pub(crate) fn wait_for(mut initiators: Vec<Initiator>) -> Vec<Initiator> {
    let until = clock() + PATIENCE;
    initiators.retain(|initiator| !initiator.wait_until(until));
    initiators
}

/// Waits for something that takes microseconds, asleep most of the time if it takes longer, and then no
/// longer than `until` nor than `is_worth_it`.
fn wait(until: Instant, mut done: impl FnMut() -> bool, is_worth_it: impl Fn() -> bool) -> bool {
    for _ in 0..1000 {
        if done() {
            return true;
        }
        std::thread::yield_now();
    }
    while is_worth_it() && clock() < until {
        if done() {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    done()
}

impl Quarantine {
    /// Keeps `what` until the `initiators` are idle.
    #[cold]
    pub(crate) fn keep(
        &self,
        context: &Context,
        initiators: Vec<Initiator>,
        what: QuarantinedObject,
    ) {
        tracing::warn!("a peer was stopped in the middle of a request: its memory is kept for it");
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.push((initiators, what));
        drop(held);
        context.progress.kick();
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Gives back what can be. Says whether something is left.
    pub(crate) fn look(&self, context: &Context) -> bool {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut over = Vec::new();
        for (mut initiators, what) in std::mem::take(&mut *held) {
            initiators.retain(|initiator| !initiator.is_idle());
            if initiators.is_empty() {
                over.push(what);
            } else {
                held.push((initiators, what));
            }
        }
        let is_left = !held.is_empty();
        drop(held);
        for what in over {
            match what {
                QuarantinedObject::Region { row, .. } => context.region_rows.give_back(row),
                QuarantinedObject::QueuePair(core) => core.leave(&mut core.lock_pending()),
            }
        }
        is_left
    }
}
