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

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use headworks_shm::fork::Generation;
use headworks_shm::{ProcessId, asymmetric, pidfd_is_dead};
use headworks_verbs::QpState;

use crate::device::Context;
use crate::peer::InUse;
use crate::quarantine::Initiator;
use crate::table::{Held, MAX_SENDER, SenderRow};

/// Marks what a sender has in hand: this, and the number of its row.
const MARK: u16 = 0x4000;
const _: () = assert!(MAX_SENDER <= MARK as usize);

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
        let entry = table.held_sender(row);
        entry.start_time.store(us.start_time, Ordering::Relaxed);
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
        entry.life.store(live.0, Ordering::Release);
        // Its progress thread begins to watch this process.
        target.table.attention().senders.set(0);
        target.kick();
        Some(Self {
            row: entry,
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

/// A process that sends datagrams here.
pub(crate) struct Watch {
    process: ProcessId,
    /// Readable once it is dead; `None` where there is none to be had.
    pub(crate) pidfd: Option<OwnedFd>,
    dead: AtomicBool,
    /// It was waited for in vain, and has not been seen to go on since.
    stopped: AtomicBool,
}

impl Watch {
    fn new(process: ProcessId) -> Self {
        let opened = process.open_pidfd();
        let dead = matches!(opened, Ok(None));
        Self {
            process,
            pidfd: opened.ok().flatten(),
            dead: dead.into(),
            stopped: false.into(),
        }
    }

    /// Whether it is dead.
    pub(crate) fn check_dead(&self) -> bool {
        if !self.dead.load(Ordering::Acquire) {
            let died = match &self.pidfd {
                Some(pidfd) => pidfd_is_dead(pidfd.as_fd()),
                None => !self.process.is_alive(),
            };
            self.dead.fetch_or(died, Ordering::AcqRel);
        }
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn mark_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn set_stopped(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::Relaxed);
    }
}

/// The senders to a context, as its owner knows them.
#[derive(Default)]
pub(crate) struct Senders {
    watches: Mutex<HashMap<ProcessId, Arc<Watch>>>,
    /// Held while the dead are buried.
    burial: Mutex<()>,
}

impl Senders {
    fn watch(&self, life: SenderLife, row: &SenderRow) -> Arc<Watch> {
        let process = ProcessId {
            pid: life.pid(),
            start_time: row.start_time.load(Ordering::Relaxed),
        };
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Watch::new(process));
        watches.entry(process).or_insert_with(new).clone()
    }

    /// The processes that send here.
    pub(crate) fn watches(&self) -> Vec<Arc<Watch>> {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.values().cloned().collect()
    }

    /// Those who deliver a datagram now. A heavy fence goes before.
    pub(crate) fn busy(&self, context: &Context) -> Vec<Initiator> {
        let rows = context.table.senders().iter().enumerate();
        let busy = rows.filter_map(|(number, row)| {
            let life = SenderLife::of(row);
            let count = row.executing.load(Ordering::Acquire);
            (life.state() == State::Live && count % 2 == 1).then(|| {
                let row = context.table.held_sender(number);
                let watch = self.watch(life, &row);
                Initiator::sender(row, life, count, watch)
            })
        });
        busy.collect()
    }

    /// For the progress thread, which marks the dead that have pidfds: looks who is new, and buries
    /// the dead. Says whether there was one.
    pub(crate) fn attend(&self, context: &Context) -> bool {
        let mut look = false;
        context.table.attention().senders.take(|_| look = true);
        let died = |watch: &Arc<Watch>| match watch.pidfd {
            Some(_) => watch.dead.load(Ordering::Acquire),
            None => watch.check_dead(),
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
        for (number, row) in context.table.senders().iter().enumerate() {
            let life = SenderLife::of(row);
            match life.state() {
                State::Free => {}
                // It has nothing in hand yet. Which process had the pid then cannot be said: as
                // long as there is one, the row is kept.
                State::Claiming => {
                    if ProcessId::of(life.pid()).is_ok_and(|process| process.is_alive()) {
                        continue;
                    }
                    life.swap(row, life.free());
                }
                State::Live => {
                    let watch = self.watch(life, row);
                    let process = watch.process;
                    if *known.entry(process).or_insert_with(|| watch.check_dead()) {
                        undo(context, mark(number), row);
                        life.swap(row, life.free());
                    }
                }
            }
        }
        let alive: HashSet<_> = known
            .into_iter()
            .filter_map(|(process, dead)| (!dead).then_some(process))
            .collect();
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|process, _| alive.contains(process));
    }
}

/// Undoes what the dead sender `who` left.
fn undo(context: &Context, who: u16, row: &SenderRow) {
    let mut cores = context.queue_pairs();
    cores.retain(|core| core.is_datagrams());
    // A completion that has its place and is not there holds back those behind it.
    let is_half_there = cores
        .iter()
        .any(|core| core.recv_cq.port().is_reserved_by(who));
    let completed = !is_half_there && row.completing.load(Ordering::Acquire) != 0;
    for core in &cores {
        for (position, receive) in core.take_back_from(who) {
            if !completed {
                core.post_again(position, &receive);
            }
        }
        core.recv_cq.recover(who);
    }
    // It may have been killed between completing a receive and telling of it.
    if row.executing.load(Ordering::Acquire) % 2 == 1 {
        for core in &cores {
            core.recv_cq.port().rouse();
            // Or between failing a queue pair and saying which.
            if core.state() == QpState::Error {
                core.attend();
            }
        }
    }
}
