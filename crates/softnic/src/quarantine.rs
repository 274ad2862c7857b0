//! Quarantine: memory that cannot be freed yet, because a process was stopped (SIGSTOP, a debugger) in the
//! middle of a request on it. The process may still write there when it continues.
//!
//! A thread that takes memory away waits for the initiators in flight. That takes microseconds. It waits no
//! longer than [`PATIENCE`]. Then the memory that they may reach is kept here, mapped and not reused, until
//! they have continued or are dead. The progress thread checks.

use std::sync::{Arc, Mutex, PoisonError};

use headworks_shm::{SenderLife, SenderRow};
use headworks_verbs::{Buffer, Duration, Instant};

use crate::device::{Context, clock, slot_of};
use crate::peer::Peer;
use crate::peer_process::PeerProcess;
use crate::qp::QpCore;
use crate::table::{ExecutionSnapshot, RowRef};

/// How long an execution of microseconds may take another process before it counts as stopped.
const PATIENCE: Duration = Duration::from_millis(1000);

/// A queue pair, of another process or of this one, that executes on this process's memory.
pub(crate) struct Initiator(InitiatorKind);

enum InitiatorKind {
    /// A queue pair connected to one of ours: its slot in its own context's table, and what it had
    /// `underway`.
    Connected {
        peer: Arc<Peer>,
        slot: usize,
        underway: ExecutionSnapshot,
    },
    /// A sender that delivers datagram number `count`: its row in this context's table.
    Sender {
        row: RowRef<SenderRow>,
        life: SenderLife,
        count: u64,
        peer_process: Arc<PeerProcess>,
    },
}

/// An object that an initiator may still reach.
pub(crate) enum QuarantinedObject {
    /// A deregistered region: its row, and its memory.
    Region { row: u32, _buffer: Arc<dyn Buffer> },
    /// A destroyed queue pair, with its queues.
    QueuePair(Arc<QpCore>),
}

/// The objects in quarantine, each with the initiators that it waits for.
#[derive(Default)]
pub(crate) struct Quarantine {
    held: Mutex<Vec<(Vec<Initiator>, QuarantinedObject)>>,
}

impl Initiator {
    /// Notes what the queue pair `dest` of `peer` executes now. The caller passes a heavy fence first.
    pub(crate) fn new(peer: Arc<Peer>, dest: u32) -> Self {
        let slot = slot_of(dest);
        let underway = peer.table.qp(slot).executing.underway();
        Self(InitiatorKind::Connected {
            peer,
            slot,
            underway,
        })
    }

    /// Notes a sender of datagrams: in its `life`, `executing` in its `row` was `count`.
    pub(crate) fn sender(
        row: RowRef<SenderRow>,
        life: SenderLife,
        count: u64,
        peer_process: Arc<PeerProcess>,
    ) -> Self {
        Self(InitiatorKind::Sender {
            row,
            life,
            count,
            peer_process,
        })
    }

    /// Returns whether the execution noted in `self` is over, or its process is dead.
    pub(crate) fn is_idle(&self) -> bool {
        match &self.0 {
            // A busy initiator is executing most of the time. A changed number is another execution, which
            // has checked its target since.
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
                peer_process,
            } => row.is_delivery_over(*life, *count) || peer_process.check_dead(),
        }
    }

    /// Returns whether it is idle now or after a short spin. For callers that look again later.
    pub(crate) fn is_idle_soon(&self) -> bool {
        wait(Instant::ZERO, || self.is_idle(), || false)
    }

    /// Waits until it is idle, until `until` at the latest. If its process was found stopped before, waits
    /// only a short spin. Returns whether it is idle, and notes whether the process is stopped.
    fn wait_until(&self, until: Instant) -> bool {
        // A process that was found stopped is not waited for again until it has continued.
        let idle = wait(until, || self.is_idle(), || !self.is_stopped());
        match &self.0 {
            InitiatorKind::Connected { peer, .. } => peer.set_stopped(!idle),
            InitiatorKind::Sender { peer_process, .. } => peer_process.set_stopped(!idle),
        }
        idle
    }

    fn is_stopped(&self) -> bool {
        match &self.0 {
            InitiatorKind::Connected { peer, .. } => peer.is_stopped(),
            InitiatorKind::Sender { peer_process, .. } => peer_process.is_stopped(),
        }
    }
}

/// Waits until all are idle, at most [`PATIENCE`] in total. Returns those that seem to be stopped.
pub(crate) fn wait_for(mut initiators: Vec<Initiator>) -> Vec<Initiator> {
    let until = clock() + PATIENCE;
    initiators.retain(|initiator| !initiator.wait_until(until));
    initiators
}

/// Waits until `done`, which takes microseconds as a rule. Spins first. Then sleeps between looks, until
/// `until` at the latest and only while `is_worth_it`. Returns whether it is done.
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
        tracing::warn!(
            "a process is stopped in the middle of a request: quarantined the memory it uses"
        );
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.push((initiators, what));
        drop(held);
        context.progress.kick();
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Frees the objects whose initiators are idle. Returns whether any are left.
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
