//! Sender row: by it a process announces that it puts messages into another process's queues. The owner
//! of the queues uses it to wait for the sender, and to undo what a sender's death left behind.
//!
//! The row is in the owner's memory; the sender writes its words. A sender takes a receive, fills it,
//! reserves a slot for its completion, notes that, completes, and frees the receive. It has one message
//! in hand at a time, marked with the row's number.
//!
//! ```text
//! Free(gen) ──claim──▶ Claiming(slot, gen + 1) ──generation──▶ Live(slot, gen + 1) ──▶ sends
//!     ▲                        │ dead                              │ left, or dead and undone
//!     └────────────────────────┴───────────────────────────────────┘
//! ```
//!
//! - `executing` counts up when a message begins and when it ends, so it is odd in between. An owner that
//!   takes memory away first clears what leads there, then executes a heavy fence, and then waits for
//!   rows that are odd to change.
//! - Only the sender frees a living sender's row. Only the owner frees a dead one's, after undoing what it
//!   left. So a row whose `life` is unchanged after its process is known to be dead belongs to the dead
//!   process, and stays so. Before that, the row may be freed and claimed by another process at any time.

use crate::asymmetric_fence;
use crate::liveness::ProcessId;
use crate::primitive::{AtomicU64, Ordering, fence};

/// The row's words.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct SenderRow {
    /// Process's slot in the registry << 32 | the row's generation << 8 | state.
    pub life: AtomicU64,
    /// Generation of the process that has that slot.
    pub process_generation: AtomicU64,
    /// Counter that grows when a message's delivery begins and when it ends; odd in between.
    pub executing: AtomicU64,
    /// 1 from when the completion of the receive in hand has its slot until the next message begins.
    pub completing: AtomicU64,
}

/// The value of a row's `life` word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SenderLife(u64);

/// State of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SenderState {
    /// No process has it.
    Free,
    /// A process has claimed it and has nothing in hand yet.
    Claiming,
    /// A sender has it and may be delivering.
    Live,
}

impl SenderLife {
    /// Returns the state of the row.
    pub fn state(self) -> SenderState {
        match self.0 & 0xff {
            0 => SenderState::Free,
            1 => SenderState::Claiming,
            // A value that no correct process writes: the owner checks its process and frees it if dead.
            _ => SenderState::Live,
        }
    }

    /// Returns the holder's slot in the registry.
    pub fn slot(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn free(self) -> Self {
        Self(self.0 & 0xffff_ff00)
    }

    fn claimed_by(self, slot: u32) -> Self {
        let generation = (self.0 >> 8).wrapping_add(1) & 0xff_ffff;
        Self(u64::from(slot) << 32 | generation << 8 | 1)
    }

    fn live(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Guard that marks a message as being delivered until dropped.
#[derive(Debug)]
pub struct DeliveryGuard<'a>(&'a SenderRow);

impl Drop for DeliveryGuard<'_> {
    fn drop(&mut self) {
        let odd = self.0.executing.load(Ordering::Relaxed);
        // Pairs with the loads of a waiter: everything written for the message is visible to it.
        self.0
            .executing
            .store(odd.wrapping_add(1) & !1, Ordering::Release);
    }
}

/// Rolls back what a dead sender may have left half-done.
pub trait UnfinishedDelivery {
    /// Returns whether the sender has reserved a slot for a completion and not committed it.
    fn has_reserved_completion(&self) -> bool;
    /// Releases that slot and the receive in hand. Unless the receive has `completed`, it is posted
    /// again.
    fn roll_back(&self, completed: bool);
}

impl SenderRow {
    /// Returns its life, and makes what was stored before that visible (Acquire).
    pub fn life(&self) -> SenderLife {
        SenderLife(self.life.load(Ordering::Acquire))
    }

    fn swap(&self, from: SenderLife, to: SenderLife) -> bool {
        self.life
            .compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// For a process that will send: takes the row if it is free.
    pub fn claim(&self, slot: u32) -> Option<SenderLife> {
        let free = self.life();
        let claimed = free.claimed_by(slot);
        (free.state() == SenderState::Free && self.swap(free, claimed)).then_some(claimed)
    }

    /// For the claimant: publishes its process's generation, and that it has nothing in hand.
    pub fn publish_owner(&self, process_generation: u64) {
        // Release: a reader that sees this generation also sees the claim, and so does not attribute the
        // generation to the previous holder.
        self.process_generation
            .store(process_generation, Ordering::Release);
        // The counter never goes back: a waiter for this word to change must not miss a change.
        let before = self.executing.load(Ordering::Relaxed);
        self.executing
            .store(before.wrapping_add(1) & !1, Ordering::Relaxed);
        self.completing.store(0, Ordering::Relaxed);
    }

    /// For the claimant, after [`publish_owner`](Self::publish_owner): makes the row live, so that the owner
    /// considers its deliveries. Returns the row's new life; `None` if another process has written to it.
    pub fn activate(&self, claimed: SenderLife) -> Option<SenderLife> {
        let live = claimed.live();
        self.swap(claimed, live).then_some(live)
    }

    /// For the sender: frees the row, if its life still is `life`.
    pub fn release(&self, life: SenderLife) {
        self.swap(life, life.free());
    }

    /// For the sender: marks that a delivery begins. The sender looks at the target only after this.
    pub fn begin_delivery(&self, full_fences: bool) -> DeliveryGuard<'_> {
        let even = self.executing.load(Ordering::Relaxed);
        // Release: a waiter for the previous message that sees this value sees that message complete.
        self.executing.store(even | 1, Ordering::Release);
        let marked = DeliveryGuard(self);
        if full_fences {
            asymmetric_fence::full();
        } else {
            asymmetric_fence::light();
        }
        self.completing.store(0, Ordering::Relaxed);
        marked
    }

    /// For the sender: records that the completion of the receive in hand has its slot and is about to be
    /// committed.
    pub fn mark_completing(&self) {
        // Release: a process that sees this also sees the slot reserved.
        self.completing.store(1, Ordering::Release);
    }

    /// For the owner, after a heavy fence: returns the sender if it is delivering now, and its message's
    /// count.
    pub fn delivery_in_progress(&self) -> Option<(SenderLife, u64)> {
        let life = self.life();
        let count = self.executing.load(Ordering::Acquire);
        (life.state() == SenderState::Live && count % 2 == 1).then_some((life, count))
    }

    /// Returns whether the delivery that [`delivery_in_progress`](Self::delivery_in_progress) found is over.
    /// A busy sender delivers most of the time, so the row may be odd again. Another count is another
    /// message, whose sender has looked at the target since.
    pub fn is_delivery_over(&self, life: SenderLife, count: u64) -> bool {
        self.executing.load(Ordering::Acquire) != count || self.life() != life
    }

    /// Returns the process that has the row in that life; `None` if another has it by now.
    pub fn process_of(&self, life: SenderLife) -> Option<ProcessId> {
        let generation = self.process_generation.load(Ordering::Relaxed);
        // Pairs with the store in `publish_owner`: a reader of the next holder's generation sees its claim.
        fence(Ordering::Acquire);
        let slot = life.slot();
        let process = ProcessId { slot, generation };
        (self.life.load(Ordering::Relaxed) == life.0).then_some(process)
    }

    /// For the owner, one thread at a time: rolls back what the sender in that life left, then frees the row.
    /// The sender must be known to be dead. Returns false if another process has the row by now.
    pub fn reclaim_dead(&self, life: SenderLife, left: &impl UnfinishedDelivery) -> bool {
        // The dead process may have freed the row before it died.
        if self.life() != life {
            return false;
        }
        // A sender that died between two messages holds nothing.
        if life.state() == SenderState::Live && self.is_odd() {
            // A reserved completion blocks those behind it until committed, so it is still there to be found.
            let completed =
                !left.has_reserved_completion() && self.completing.load(Ordering::Acquire) != 0;
            left.roll_back(completed);
        }
        self.swap(life, life.free())
    }

    fn is_odd(&self) -> bool {
        self.executing.load(Ordering::Acquire) % 2 == 1
    }
}

#[cfg(all(test, loom))]
mod models;
