//! Who sends datagrams to this context's queue pairs: rows of its shared table that the senders
//! write themselves.
//!
//! A queue pair of datagrams is connected to nobody, so its owner cannot know from its own state
//! who may be writing to its memory. Each sending queue pair therefore enters a row in the table of
//! every context that it sends to, before its first datagram. What the words of a row mean, and in
//! which order they are written, is in [`headworks_shm::sender_row`]. Here:
//!
//! - The sender looks at a datagram's target while its row says that it delivers. Whoever takes memory
//!   away looks at all rows behind its heavy fence, and waits for those that are odd to change, or for
//!   their processes to die. The row is in the owner's own memory: nobody needs to be attached, so that
//!   there is always somebody to ask.
//! - The row's number is the owner's mark (`who`) on the receive and on the completion that a
//!   sender has in hand, one of each at most. When the sender is dead, the owner undoes that: a
//!   completion that was not there yet is skipped, and the receive is posted again, as a datagram
//!   that is lost takes none. `completing` tells a receive that completed from one that did not.

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
use crate::peer::InUse;
use crate::peer_process::Watched;
use crate::qp::QpCore;
use crate::quarantine::Initiator;
use crate::table::{Held, MAX_SENDER, RecvSlot};

/// Marks what a sender has in hand: this, and the number of its row.
const MARK: u16 = 0x4000;
const _: () = assert!(MAX_SENDER <= MARK as usize);

/// Processes watched by a descriptor. A broken peer may name any number of them.
const PIDFDS_MAX: usize = 512;

/// The mark of the sender in `row`.
const fn mark(row: usize) -> u16 {
    MARK | row as u16
}

/// A row in the table of a context that a queue pair of ours sends to.
pub(crate) struct Registration {
    pub(crate) target: InUse,
    row: Held<SenderRow>,
    life: SenderLife,
    pub(crate) who: u16,
    made_by: ForkGeneration,
}

impl Registration {
    /// Enters a row for one of our queue pairs with `target`. `None` if it has no more.
    pub(crate) fn enter(context: &Context, target: InUse) -> Option<Self> {
        let us = context.own.process();
        let table = &target.table;
        let claim = |row: usize| Some((row, table.sender(row).claim(us.pid)?));
        let Some((row, claimed)) = (0..MAX_SENDER).find_map(claim) else {
            tracing::warn!("a context has no room for another sender of datagrams");
            return None;
        };
        let held = table.held_sender(row);
        held.publish_owner(us.start_time);
        table
            .senders_end()
            .fetch_max(row as u64 + 1, Ordering::AcqRel);
        let Some(life) = held.activate(claimed) else {
            tracing::warn!("somebody else wrote to a row that was claimed");
            return None;
        };
        // Its progress thread begins to watch this process.
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

    /// Says that a datagram is being delivered, to be followed by looks at the target.
    pub(crate) fn deliver(&self, full_fences: bool) -> DeliveryGuard<'_> {
        self.row.begin_delivery(full_fences)
    }

    /// Whether the row is still ours: only a broken owner takes it away.
    pub(crate) fn is_held(&self) -> bool {
        self.row.life() == self.life
    }

    /// The completion of the receive in hand has its place, and is about to be there.
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
    watches: Mutex<HashMap<ProcessId, Arc<Watched>>>,
    /// Held while the dead are buried.
    burial: Mutex<()>,
    late: Mutex<Vec<Late>>,
}

/// A receive that is to be posted again and found no slot: a stopped sender has one of a lap ago in
/// hand.
struct Late {
    core: Weak<QpCore>,
    generation: u64,
    position: u64,
    receive: RecvSlot,
}

impl Senders {
    /// The process of the sender that has `row` in the life `life`; `None` if it is not its any more.
    fn watch(&self, life: SenderLife, row: &SenderRow) -> Option<Arc<Watched>> {
        let process = ProcessId {
            pid: life.pid(),
            start_time: row.start_time_of(life)?,
        };
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = watches.get(&process) {
            return Some(known.clone());
        }
        let pidfds = watches.values().filter(|known| known.pidfd().is_some());
        let watched = Arc::new(watch(process, pidfds.count() < PIDFDS_MAX));
        watches.insert(process, watched.clone());
        Some(watched)
    }

    /// The processes that send here.
    pub(crate) fn watches(&self) -> Vec<Arc<Watched>> {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.values().cloned().collect()
    }

    /// Those who deliver a datagram now. A heavy fence goes before.
    pub(crate) fn busy(&self, context: &Context) -> Vec<Initiator> {
        let rows = context.table.senders().iter().enumerate();
        let busy = rows.filter_map(|(number, row)| {
            let (life, count) = row.delivery_in_progress()?;
            let row = context.table.held_sender(number);
            // Who has the row since began after the fence.
            let watched = self.watch(life, &row)?;
            Some(Initiator::sender(row, life, count, watched))
        });
        busy.collect()
    }

    /// For the progress thread, which marks the dead that have pidfds: looks who is new, and buries
    /// the dead. Says whether there was one.
    pub(crate) fn attend(&self, context: &Context) -> bool {
        let mut look = false;
        context.table.attention().senders.take(|_| look = true);
        let died = |watched: &Arc<Watched>| match watched.pidfd() {
            Some(_) => watched.is_dead(),
            None => watched.check_dead(),
        };
        let died = self.watches().iter().any(died);
        if look || died {
            self.bury(context);
        }
        self.post_late();
        died
    }

    fn late(&self) -> MutexGuard<'_, Vec<Late>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether receives wait to be posted again: whoever has their slots tells nobody when he goes on.
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

    /// Undoes what dead senders left half-done, and frees their rows; looks who is new.
    pub(crate) fn bury(&self, context: &Context) {
        let _alone = self.burial.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = HashMap::new();
        let mut dead = Vec::new();
        for (number, row) in context.table.senders().iter().enumerate() {
            let life = row.life();
            let is_dead = match life.state() {
                SenderState::Free => false,
                // It has nothing in hand yet. Which process had the pid then cannot be said: as
                // long as there may be one, the row is kept.
                SenderState::Claiming => ProcessId::is_pid_unused(life.pid()),
                SenderState::Live => {
                    // A row that has changed hands meanwhile was marked, and is looked at again.
                    let Some(watched) = self.watch(life, row) else {
                        continue;
                    };
                    let process = watched.process();
                    *known.entry(process).or_insert_with(|| watched.check_dead())
                }
            };
            if is_dead {
                dead.push((number, row, life));
            }
        }
        // Whoever was made before they died is among those who are looked at: they are listed now.
        let burial = Burial::new(context);
        for (number, row, life) in dead {
            row.reclaim_dead(life, &burial.of(mark(number)));
        }
        burial.end();
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|process, _| known.get(process) == Some(&false));
    }
}

/// Begins to watch `process`.
fn watch(process: ProcessId, may_open: bool) -> Watched {
    // Without a descriptor it is asked for now and then.
    let opened = may_open.then(|| process.open_pidfd());
    let is_dead = matches!(opened, Some(Ok(None)));
    let watched = Watched::new(process, opened.and_then(Result::ok).flatten());
    if is_dead {
        watched.mark_dead();
    }
    watched
}

/// Undoing what dead senders left.
struct Burial<'a> {
    context: &'a Context,
    /// Where they may have left something; looked for once it is needed.
    places: OnceCell<Places>,
}

struct Places {
    cores: Vec<Arc<QpCore>>,
    cqs: Vec<Arc<SoftCq>>,
}

/// What the sender `who` left.
struct Leavings<'a> {
    burial: &'a Burial<'a>,
    who: u16,
}

impl<'a> Burial<'a> {
    fn new(context: &'a Context) -> Self {
        let places = OnceCell::new();
        Self { context, places }
    }

    fn of(&'a self, who: u16) -> Leavings<'a> {
        Leavings { burial: self, who }
    }

    fn places(&self) -> &Places {
        self.places.get_or_init(|| {
            let mut cores = self.context.queue_pairs();
            cores.retain(|core| core.is_datagrams());
            let mut cqs: Vec<_> = cores.iter().map(|core| core.recv_cq.clone()).collect();
            cqs.sort_by_key(Arc::as_ptr);
            cqs.dedup_by(|a, b| Arc::ptr_eq(a, b));
            Places { cores, cqs }
        })
    }

    /// If something was left.
    fn end(self) {
        let Some(Places { cores, cqs }) = self.places.into_inner() else {
            return;
        };
        // They may have been killed between completing a receive and telling of it.
        for cq in &cqs {
            cq.port().rouse();
        }
        // Or between failing a queue pair and saying which.
        for core in &cores {
            if core.state() == QpState::Error {
                core.attend();
            }
        }
    }
}

impl UnfinishedDelivery for Leavings<'_> {
    fn has_reserved_completion(&self) -> bool {
        let mut cqs = self.burial.places().cqs.iter();
        cqs.any(|cq| cq.port().is_reserved_by(self.who))
    }

    fn roll_back(&self, completed: bool) {
        let Places { cores, cqs } = self.burial.places();
        for core in cores {
            for (position, receive) in core.take_back_from(self.who) {
                if !completed && !core.post_again(position, &receive) {
                    self.burial.context.senders.late().push(Late {
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
