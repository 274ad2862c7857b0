//! Senders of datagrams to this context's queue pairs. Each sender has a row in this context's shared table
//! and writes it itself.
//!
//! A datagram queue pair is not connected, so its owner's own state does not tell which processes may be
//! writing to its memory. Therefore each sending queue pair takes a row in the table of every context that it
//! sends to, before its first datagram. [`headworks_shm::sender_row`] describes the words of a row and the
//! order in which they are written. This module relies on two rules:
//!
//! - The sender accesses a datagram's target only while its row says that it delivers. The thread that takes
//!   memory away passes a heavy fence and looks at all rows. It waits until each row that was odd changes, or
//!   the row's process dies. The rows are in the owner's own memory, so the owner need not attach a process
//!   to wait for it.
//! - The row's number is the mark (`who`) on the receive and the completion that a sender holds. A sender
//!   holds at most one of each. When a sender has died, the owner undoes what it left. A completion that was
//!   reserved and not filled is skipped. A receive that did not complete is posted again, because a datagram
//!   that is lost consumes no receive. `completing` tells a receive that completed from one that did not.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headworks_shm::fork::ForkGeneration;
use headworks_shm::sender_row::{DeliveryGuard, SenderState, UnfinishedDelivery};
use headworks_shm::{ProcessId, SenderLife, SenderRow};
use headworks_verbs::QpState;

use crate::cq::SoftCq;
use crate::device::Context;
use crate::peer::PeerGuard;
use crate::peer_process::{LifeEvidence, PeerProcess};
use crate::qp::QpCore;
use crate::quarantine::Initiator;
use crate::table::{MAX_SENDER, RecvSlot, RowRef};

/// Bit of a sender's mark on what it holds. The other bits are the number of its row.
const MARK: u16 = 0x4000;
const _: () = assert!(MAX_SENDER <= MARK as usize);

/// Maximum number of processes watched, with a descriptor each. A broken peer may name any number of processes.
const WATCHES_MAX: usize = 512;

/// Returns the mark of the sender in `row`.
const fn mark(row: usize) -> u16 {
    MARK | row as u16
}

/// A row that a queue pair of this process holds in the table of a context that it sends to.
pub(crate) struct Registration {
    pub(crate) target: PeerGuard,
    row: RowRef<SenderRow>,
    life: SenderLife,
    pub(crate) who: u16,
    made_by: ForkGeneration,
}

impl Registration {
    /// Takes a row of `target` for a queue pair of this process. Returns `None` if no row is free.
    pub(crate) fn enter(context: &Context, target: PeerGuard) -> Option<Self> {
        let us = context.own.process();
        let table = &target.table;
        let claim = |row: usize| Some((row, table.sender(row).claim(us.slot)?));
        let Some((row, claimed)) = (0..MAX_SENDER).find_map(claim) else {
            tracing::warn!("a peer has no free row for another sender of datagrams");
            return None;
        };
        let held = table.held_sender(row);
        held.publish_owner(us.generation);
        table
            .senders_end()
            .fetch_max(row as u64 + 1, Ordering::AcqRel);
        let Some(life) = held.activate(claimed) else {
            tracing::warn!("another process wrote to the sender row that this one had claimed");
            return None;
        };
        // The target's progress thread then begins to watch this process.
        target.table.attention().senders.set(0);
        target.kick();
        Some(Self {
            row: held,
            life,
            who: mark(row),
            made_by: ForkGeneration::current(),
            target,
        })
    }

    /// Marks that a datagram is being delivered. The caller accesses the target only afterwards.
    pub(crate) fn deliver(&self, full_fences: bool) -> DeliveryGuard<'_> {
        self.row.begin_delivery(full_fences)
    }

    /// Returns whether this process still holds the row. Only a broken owner takes it away.
    pub(crate) fn is_held(&self) -> bool {
        self.row.life() == self.life
    }

    /// Marks that the completion of the receive in hand has its place and is about to be filled.
    pub(crate) fn mark_completing(&self) {
        self.row.mark_completing();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.made_by.is_foreign() {
            self.row.release(self.life);
        }
    }
}

/// The senders to a context, as its owner knows them.
#[derive(Default)]
pub(crate) struct Senders {
    watches: Mutex<HashMap<ProcessId, Arc<PeerProcess>>>,
    /// Held while what dead senders left is undone.
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

impl Senders {
    /// Returns the process of the sender that holds `row` in the life `life`; `None` if the row has changed.
    fn watch(
        &self,
        context: &Context,
        life: SenderLife,
        row: &SenderRow,
    ) -> Option<Arc<PeerProcess>> {
        let process = row.process_of(life)?;
        let may_open = {
            let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = watches.get(&process) {
                return Some(known.clone());
            }
            watches.len() < WATCHES_MAX
        };
        // Asked without the lock: the process may be stopped.
        let new = Arc::new(watch(context, process, may_open));
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        Some(watches.entry(process).or_insert(new).clone())
    }

    /// Returns the processes that send here.
    pub(crate) fn watches(&self) -> Vec<Arc<PeerProcess>> {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.values().cloned().collect()
    }

    /// Returns the senders that are delivering a datagram now. The caller passes a heavy fence first.
    pub(crate) fn busy(&self, context: &Context) -> Vec<Initiator> {
        let rows = context.table.senders().iter().enumerate();
        let busy = rows.filter_map(|(number, row)| {
            let (life, count) = row.delivery_in_progress()?;
            let row = context.table.held_sender(number);
            // `None`: another sender has taken the row. It began after the fence and need not be waited for.
            let peer_process = self.watch(context, life, &row)?;
            Some(Initiator::sender(row, life, count, peer_process))
        });
        busy.collect()
    }

    /// For the progress thread, which has marked the dead processes that have pidfds. Watches new senders and
    /// cleans up after dead ones. Returns whether a sender has died.
    pub(crate) fn service(&self, context: &Context) -> bool {
        let mut look = false;
        context.table.attention().senders.take(|_| look = true);
        let died = |peer_process: &Arc<PeerProcess>| match peer_process.must_be_asked() {
            false => peer_process.is_dead(),
            true => peer_process.check_dead(),
        };
        let died = self.watches().iter().any(died);
        if look || died {
            self.clean_up(context);
        }
        self.post_late();
        died
    }

    fn late(&self) -> MutexGuard<'_, Vec<DeferredRepost>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether receives wait to be posted again. They are retried on a timer: a stopped sender that
    /// continues does not notify anybody.
    pub(crate) fn has_late(&self) -> bool {
        !self.late().is_empty()
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
    pub(crate) fn clean_up(&self, context: &Context) {
        let _alone = self.cleanup.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = HashMap::new();
        let mut dead = Vec::new();
        for (number, row) in context.table.senders().iter().enumerate() {
            let life = row.life();
            let is_dead = match life.state() {
                SenderState::Free => false,
                // A claiming sender holds nothing yet. It has not published its generation, so its process
                // cannot be told from a later one in the same slot: keep the row while the slot is in use.
                SenderState::Claiming => context.fabric().is_slot_unused(life.slot()),
                SenderState::Live => {
                    // The row has changed hands meanwhile: the new sender has marked it, so it is read again.
                    let Some(peer_process) = self.watch(context, life, row) else {
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
        let cleanup = DeadSenderCleanup::new(context);
        for (number, row, life) in dead {
            row.reclaim_dead(life, &cleanup.of(mark(number)));
        }
        cleanup.end();
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|process, _| known.get(process) == Some(&false));
    }
}

/// Begins to watch `process`. `may_open`: it may take a descriptor.
fn watch(context: &Context, process: ProcessId, may_open: bool) -> PeerProcess {
    if process == context.own.process() {
        return PeerProcess::new(process, LifeEvidence::Own);
    }
    let entry = || PeerProcess::new(process, LifeEvidence::Entry(context.fabric().clone()));
    if !may_open {
        return entry();
    }
    match context.fabric().watch(process, true) {
        Ok(Some(watch)) => PeerProcess::new(process, LifeEvidence::Watch(watch)),
        Ok(None) => {
            let gone = entry();
            gone.mark_dead();
            gone
        }
        // Perhaps for lack of descriptors. Its entry is looked at now and then.
        Err(_) => entry(),
    }
}

/// Cleanup after dead senders.
struct DeadSenderCleanup<'a> {
    context: &'a Context,
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
    fn new(context: &'a Context) -> Self {
        let places = OnceCell::new();
        Self { context, places }
    }

    fn of(&'a self, who: u16) -> DeadSenderState<'a> {
        DeadSenderState { cleanup: self, who }
    }

    fn places(&self) -> &LocalObjects {
        self.places.get_or_init(|| {
            let mut cores = self.context.queue_pairs();
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
                    self.cleanup.context.senders.late().push(DeferredRepost {
                        core: Arc::downgrade(core),
                        generation: core.generation(),
                        position,
                        receive,
                    });
                }
            }
        }
        for cq in cqs {
            cq.recover(self.who);
        }
    }
}
