//! Cleanup after dead senders of datagrams: what they left half-done in the queue pairs of a context.
//! [`datagram_senders`](crate::datapath::datagram_senders) describes what a sender holds.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headworks_shm::sender_row::{SenderState, UnfinishedDelivery};
use headworks_verbs::QpState;

use super::{QpCore, QueuePairs, SoftCq};
use crate::datapath::context::Context;
use crate::datapath::datagram_senders::mark;
use crate::table::peer_process::PeerProcess;
use crate::table::rows::RecvSlot;

/// Cleanup after dead senders: the lock of the thread that does it, and the receives that are posted again later.
#[derive(Default)]
pub(super) struct DeadSenders {
    /// Lock that a thread holds while it cleans up.
    cleanup: Mutex<()>,
    late: Mutex<Vec<DeferredRepost>>,
}

/// A receive that is to be posted again and found no free slot: a stopped sender still holds the slot, from
/// one lap ago.
struct DeferredRepost {
    core: Weak<QpCore>,
    generation: u64,
    position: u64,
    receive: RecvSlot,
}

impl QueuePairs {
    /// For the progress thread, which has marked the dead processes that have pidfds. Watches new senders and
    /// cleans up after dead ones. Returns whether a sender has died.
    pub(crate) fn service_senders(&self, context: &Context) -> bool {
        let mut look = false;
        context.table.attention().senders.take(|_| look = true);
        let died = |peer_process: &Arc<PeerProcess>| match peer_process.must_be_asked() {
            false => peer_process.is_dead(),
            true => peer_process.check_dead(),
        };
        let died = context.senders.watches().iter().any(died);
        if look || died {
            self.clean_up_senders(context);
        }
        self.post_late();
        died
    }

    fn late(&self) -> MutexGuard<'_, Vec<DeferredRepost>> {
        self.dead_senders
            .late
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether receives wait to be posted again. They are retried on a timer: a stopped sender that
    /// continues does not notify anybody.
    pub(crate) fn has_late(&self) -> bool {
        !self.late().is_empty()
    }

    /// Notes a receive of `core` that found no free slot. It is posted again later.
    pub(super) fn post_later(&self, core: &Arc<QpCore>, position: u64, receive: RecvSlot) {
        self.late().push(DeferredRepost {
            core: Arc::downgrade(core),
            generation: core.generation(),
            position,
            receive,
        });
    }

    fn post_late(&self) {
        self.late().retain(|late| match late.core.upgrade() {
            Some(core) if core.generation() == late.generation => {
                !core.post_again(late.position, &late.receive)
            }
            _ => false,
        });
    }

    /// Watches new senders. Undoes what dead senders left half-done, and frees their rows.
    pub(crate) fn clean_up_senders(&self, context: &Context) {
        let _alone = self
            .dead_senders
            .cleanup
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut known = HashMap::new();
        let mut dead = Vec::new();
        for (number, row) in context.table.senders().iter().enumerate() {
            let life = row.life();
            let is_dead = match life.state() {
                SenderState::Free => false,
                // A claiming sender holds nothing yet. It has not published its generation, so its process
                // cannot be told from a later one in the same slot: keep the row while the slot is in use.
                SenderState::Claiming => context.peers.registry().is_slot_unused(life.slot()),
                SenderState::Live => {
                    // The row has changed hands meanwhile: the new sender has marked it, so it is read again.
                    let Some(peer_process) = context.senders.watch(&context.peers, life, row)
                    else {
                        continue;
                    };
                    let process = peer_process.process();
                    *known
                        .entry(process)
                        .or_insert_with(|| peer_process.check_dead())
                }
            };
            if is_dead {
                dead.push((number, row, life));
            }
        }
        // Queue pairs are listed only after the deaths were found. So the list has every queue pair that a
        // dead sender could reach.
        let cleanup = DeadSenderCleanup::new(context, self);
        for (number, row, life) in dead {
            row.reclaim_dead(life, &cleanup.of(mark(number)));
        }
        cleanup.end();
        context
            .senders
            .retain(|process| known.get(process) == Some(&false));
    }
}

/// Cleanup after dead senders.
struct DeadSenderCleanup<'a> {
    context: &'a Context,
    queue_pairs: &'a QueuePairs,
    /// Objects in which dead senders may have left something. Listed on first use.
    places: OnceCell<LocalObjects>,
}

struct LocalObjects {
    cores: Vec<Arc<QpCore>>,
    cqs: Vec<Arc<SoftCq>>,
}

/// State that the dead sender `who` left.
struct DeadSenderState<'a> {
    cleanup: &'a DeadSenderCleanup<'a>,
    who: u16,
}

impl<'a> DeadSenderCleanup<'a> {
    fn new(context: &'a Context, queue_pairs: &'a QueuePairs) -> Self {
        Self {
            context,
            queue_pairs,
            places: OnceCell::new(),
        }
    }

    fn of(&'a self, who: u16) -> DeadSenderState<'a> {
        DeadSenderState { cleanup: self, who }
    }

    fn places(&self) -> &LocalObjects {
        self.places.get_or_init(|| {
            let mut cores = self.queue_pairs.all();
            cores.retain(|core| core.is_datagrams());
            self.context.progress.borrow_objects(cores.len());
            let mut cqs: Vec<_> = cores.iter().map(|core| core.recv_cq.clone()).collect();
            cqs.sort_by_key(Arc::as_ptr);
            cqs.dedup_by(|a, b| Arc::ptr_eq(a, b));
            LocalObjects { cores, cqs }
        })
    }

    /// Wakes the sleepers that a dead sender may not have woken. Does nothing if no dead sender left
    /// anything.
    fn end(self) {
        let Some(LocalObjects { cores, cqs }) = self.places.into_inner() else {
            return;
        };
        // A sender may have been killed after it completed a receive and before it raised the event.
        for cq in &cqs {
            cq.port().wake_waiters();
        }
        // Or after it failed a queue pair and before it marked that for the progress thread.
        for core in &cores {
            if core.state() == QpState::Error {
                core.service();
            }
        }
    }
}

impl UnfinishedDelivery for DeadSenderState<'_> {
    fn has_reserved_completion(&self) -> bool {
        let mut cqs = self.cleanup.places().cqs.iter();
        cqs.any(|cq| cq.port().is_reserved_by(self.who))
    }

    fn roll_back(&self, completed: bool) {
        let LocalObjects { cores, cqs } = self.cleanup.places();
        for core in cores {
            for (position, receive) in core.take_back_from(self.who) {
                if !completed && !core.post_again(position, &receive) {
                    self.cleanup.queue_pairs.post_later(core, position, receive);
                }
            }
        }
        for cq in cqs {
            cq.recover(self.who);
        }
    }
}
