//! Who sends datagrams to this context's queue pairs: rows of its shared table that the senders
//! write themselves.
//!
//! A queue pair of datagrams is connected to nobody, so its owner cannot know from its own state
//! who may be writing to its memory. Each sending queue pair therefore enters a row in the table of
//! every context that it sends to, before its first datagram:
//!
//! ```text
//! Free(gen) ──swap──▶ Claiming(pid, gen + 1) ──start time──▶ Live(pid, gen + 1) ──▶ kick, send
//!     ▲                        │ dead                              │ done, or dead and undone
//!     └────────────────────────┴───────────────────────────────────┘
//! ```
//!
//! - The sender counts `executing` up before it looks at a datagram's target, and again when it has
//!   let go of it, with the fences of any initiator. Whoever takes memory away looks at all rows
//!   behind its heavy fence, and waits for those that are odd to change, or for their processes to
//!   die. The row is in the owner's own memory: nobody needs to be attached, so that there is
//!   always somebody to ask.
//! - The row's number is the owner's mark (`who`) on the receive and on the completion that a
//!   sender has in hand, one of each at most. When the sender is dead, the owner undoes that: a
//!   completion that was not there yet is skipped, and the receive is posted again, as a datagram
//!   that is lost takes none. `completing` tells a receive that completed from one that did not.
//! - Only the sender frees a living sender's row, and only the owner, under a lock and behind the
//!   undoing, a dead one's.

use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use headworks_shm::fork::Generation;
use headworks_shm::{ProcessId, asymmetric};
use headworks_verbs::QpState;

use crate::device::Context;
use crate::peer::InUse;
use crate::quarantine::Initiator;
use crate::table::{Held, MAX_SENDER, SenderRow};
use crate::watched::Watched;

/// Marks what a sender has in hand: this, and the number of its row.
const MARK: u16 = 0x4000;
const _: () = assert!(MAX_SENDER <= MARK as usize);

/// Processes watched by a descriptor. A broken peer may name any number of them.
const PIDFDS_MAX: usize = 512;

/// A sender row's `life` word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SenderLife(u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Claiming,
    Live,
}

impl SenderLife {
    pub(crate) fn of(row: &SenderRow) -> Self {
        Self(row.life.load(Ordering::Acquire))
    }

    fn state(self) -> State {
        match self.0 & 0xff {
            0 => State::Free,
            1 => State::Claiming,
            // What no correct process writes is asked for its process, and freed if that is dead.
            _ => State::Live,
        }
    }

    fn pid(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn free(self) -> Self {
        Self(self.0 & 0xffff_ff00)
    }

    fn claimed_by(self, pid: u32) -> Self {
        let generation = (self.0 >> 8).wrapping_add(1) & 0xff_ffff;
        Self(u64::from(pid) << 32 | generation << 8 | 1)
    }

    fn live(self) -> Self {
        Self(self.0 + 1)
    }

    fn swap(self, row: &SenderRow, to: Self) -> bool {
        row.life
            .compare_exchange(self.0, to.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

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
    made_by: Generation,
}

/// A datagram is being delivered, while this lives.
pub(crate) struct Delivering<'a>(&'a SenderRow);

impl Drop for Delivering<'_> {
    fn drop(&mut self) {
        let odd = self.0.executing.load(Ordering::Relaxed);
        self.0
            .executing
            .store(odd.wrapping_add(1) & !1, Ordering::Release);
    }
}

impl Registration {
    /// Enters a row for one of our queue pairs with `target`. `None` if it has no more.
    pub(crate) fn enter(context: &Context, target: InUse) -> Option<Self> {
        let us = context.own.process();
        let table = &target.table;
        let claim = |row: usize| {
            let entry = table.sender(row);
            let free = SenderLife::of(entry);
            let claimed = free.claimed_by(us.pid);
            (free.state() == State::Free && free.swap(entry, claimed)).then_some((row, claimed))
        };
        let Some((row, claimed)) = (0..MAX_SENDER).find_map(claim) else {
            tracing::warn!("a context has no room for another sender of datagrams");
            return None;
        };
        let held = table.held_sender(row);
        let entry = &*held;
        // Release: whoever reads this sees that the row is claimed.
        entry.start_time.store(us.start_time, Ordering::Release);
        // Never back: who waits for this word to change must not miss it.
        let before = entry.executing.load(Ordering::Relaxed);
        entry
            .executing
            .store(before.wrapping_add(1) & !1, Ordering::Relaxed);
        entry.completing.store(0, Ordering::Relaxed);
        let live = claimed.live();
        table
            .senders_end()
            .fetch_max(row as u64 + 1, Ordering::AcqRel);
        if !claimed.swap(entry, live) {
            tracing::warn!("somebody else wrote to a row that was claimed");
            return None;
        }
        // Its progress thread begins to watch this process.
        target.table.attention().senders.set(0);
        target.kick();
        Some(Self {
            row: held,
            life: live,
            who: mark(row),
            made_by: Generation::current(),
            target,
        })
    }

    /// Says that a datagram is being delivered, to be followed by looks at the target.
    pub(crate) fn deliver(&self, full_fences: bool) -> Delivering<'_> {
        let even = self.row.executing.load(Ordering::Relaxed);
        self.row.executing.store(even | 1, Ordering::Relaxed);
        let marked = Delivering(&self.row);
        if full_fences {
            asymmetric::full();
        } else {
            asymmetric::light();
        }
        self.row.completing.store(0, Ordering::Relaxed);
        marked
    }

    /// Whether the row is still ours: only a broken owner takes it away.
    pub(crate) fn is_held(&self) -> bool {
        SenderLife::of(&self.row) == self.life
    }

    /// The completion of the receive in hand has its place, and is about to be there.
    pub(crate) fn note_completing(&self) {
        // Release: whoever sees this sees the place taken.
        self.row.completing.store(1, Ordering::Release);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.made_by.is_foreign() {
            self.life.swap(&self.row, self.life.free());
        }
    }
}

/// The senders to a context, as its owner knows them.
#[derive(Default)]
pub(crate) struct Senders {
    watches: Mutex<HashMap<ProcessId, Arc<Watched>>>,
    /// Held while the dead are buried.
    burial: Mutex<()>,
}

impl Senders {
    /// The process of the sender that has `row` in the life `life`; `None` if it is not its any more.
    fn watch(&self, life: SenderLife, row: &SenderRow) -> Option<Arc<Watched>> {
        let start_time = row.start_time.load(Ordering::Relaxed);
        // The two belong together only if the row has not changed hands in between.
        fence(Ordering::Acquire);
        if SenderLife::of(row) != life {
            return None;
        }
        let process = ProcessId {
            pid: life.pid(),
            start_time,
        };
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let pidfds = watches.values().filter(|known| known.pidfd().is_some());
        let may_open = pidfds.count() < PIDFDS_MAX;
        let new = || Arc::new(watch(process, may_open));
        Some(watches.entry(process).or_insert_with(new).clone())
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
            let life = SenderLife::of(row);
            let count = row.executing.load(Ordering::Acquire);
            if life.state() != State::Live || count.is_multiple_of(2) {
                return None;
            }
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
        died
    }

    /// Undoes what dead senders left half-done, and frees their rows; looks who is new.
    pub(crate) fn bury(&self, context: &Context) {
        let _alone = self.burial.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = HashMap::new();
        let mut dead = Vec::new();
        for (number, row) in context.table.senders().iter().enumerate() {
            let life = SenderLife::of(row);
            match life.state() {
                State::Free => {}
                // It has nothing in hand yet. Which process had the pid then cannot be said: as
                // long as there may be one, the row is kept.
                State::Claiming => {
                    if ProcessId::is_nobody(life.pid()) {
                        life.swap(row, life.free());
                    }
                }
                State::Live => {
                    // A row that has changed hands meanwhile was marked, and is looked at again.
                    let Some(watched) = self.watch(life, row) else {
                        continue;
                    };
                    let process = watched.process();
                    if *known.entry(process).or_insert_with(|| watched.check_dead()) {
                        dead.push((number, row, life));
                    }
                }
            }
        }
        undo(context, &dead);
        for (_, row, life) in dead {
            life.swap(row, life.free());
        }
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

/// Undoes what dead senders left.
fn undo(context: &Context, dead: &[(usize, &SenderRow, SenderLife)]) {
    // The others had let go of everything.
    let is_busy = |row: &SenderRow| !row.executing.load(Ordering::Acquire).is_multiple_of(2);
    let dead: Vec<_> = dead.iter().filter(|(_, row, _)| is_busy(row)).collect();
    if dead.is_empty() {
        return;
    }
    let mut cores = context.queue_pairs();
    cores.retain(|core| core.is_datagrams());
    let mut cqs: Vec<_> = cores.iter().map(|core| core.recv_cq.clone()).collect();
    cqs.sort_by_key(Arc::as_ptr);
    cqs.dedup_by(|a, b| Arc::ptr_eq(a, b));
    for (number, row, _) in dead {
        let who = mark(*number);
        // A completion that has its place and is not there holds back those behind it.
        let is_half_there = cqs.iter().any(|cq| cq.port().is_reserved_by(who));
        let completed = !is_half_there && row.completing.load(Ordering::Acquire) != 0;
        for core in &cores {
            for (position, receive) in core.take_back_from(who) {
                if !completed {
                    core.post_again(position, &receive);
                }
            }
        }
        for cq in &cqs {
            cq.recover(who);
        }
    }
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
