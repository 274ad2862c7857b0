//! Initiators: queue pairs and senders that execute on this process's memory, and waiting for them.

use std::sync::Arc;

use headworks_shm::{SenderLife, SenderRow};
use headworks_verbs::{Duration, Instant};

use crate::table::addresses::slot_of;
use crate::table::clock;
use crate::table::peer::Peer;
use crate::table::peer_process::PeerProcess;
use crate::table::rows::{ExecutionSnapshot, RowRef};

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
    let until = clock::now() + PATIENCE;
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
    while is_worth_it() && clock::now() < until {
        if done() {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    done()
}
