//! A row by which a process says that it puts messages into another's queues, and by which that one
//! waits for it and undoes what its death left.
//!
//! The row is in the memory of who receives, its words are written by who sends. A sender takes a
//! receive, fills it, reserves a place for its completion, notes that, completes, and frees the
//! receive: one message in hand at a time, marked with the row's number.
//!
//! ```text
//! Free(gen) ──claim──▶ Claiming(pid, gen + 1) ──start time──▶ Live(pid, gen + 1) ──▶ sends
//!     ▲                        │ dead                              │ left, or dead and undone
//!     └────────────────────────┴───────────────────────────────────┘
//! ```
//!
//! - `executing` counts up when a message begins and when it ends: odd in between. Whoever takes memory
//!   away clears what leads there, passes a heavy fence, and waits for rows that are odd to change.
//! - Only the sender frees a living sender's row, and only the owner, behind the undoing, a dead one's.
//!   So a row that has the same `life` after its process is known to be dead is the dead one's, and
//!   stays so; before that, it may be left and taken by somebody else at any time.

use crate::asymmetric_fence;
use crate::primitive::{AtomicU64, Ordering, fence};

/// The words.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct SenderRow {
    /// pid << 32 | generation << 8 | state.
    pub life: AtomicU64,
    /// When the process of that pid started.
    pub start_time: AtomicU64,
    /// Counts up when a message's delivery begins and when it ends: odd in between.
    pub executing: AtomicU64,
    /// 1 from when the completion of the receive in hand has its place, till the next message.
    pub completing: AtomicU64,
}

/// A row's `life` word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SenderLife(u64);

/// Where a row is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SenderState {
    /// Nobody's.
    Free,
    /// Somebody has it, who has nothing in hand yet.
    Claiming,
    /// A sender's.
    Live,
}

impl SenderLife {
    /// Where it is in its life.
    pub fn state(self) -> SenderState {
        match self.0 & 0xff {
            0 => SenderState::Free,
            1 => SenderState::Claiming,
            // What no correct process writes is asked for its process, and freed if that is dead.
            _ => SenderState::Live,
        }
    }

    /// The process that has it.
    pub fn pid(self) -> u32 {
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
}

/// A message is being delivered, while this lives.
#[derive(Debug)]
pub struct DeliveryGuard<'a>(&'a SenderRow);

impl Drop for DeliveryGuard<'_> {
    fn drop(&mut self) {
        let odd = self.0.executing.load(Ordering::Relaxed);
        // Pairs with the loads of who waits: what was written is written.
        self.0
            .executing
            .store(odd.wrapping_add(1) & !1, Ordering::Release);
    }
}

/// What a sender that died may have left half-done.
pub trait UnfinishedDelivery {
    /// Whether it has reserved a place for a completion that is not there.
    fn has_reserved_completion(&self) -> bool;
    /// Gives up that place, and the receive in hand, which is to be received into again unless it has
    /// `completed`.
    fn roll_back(&self, completed: bool);
}

impl SenderRow {
    /// Its life, and what was stored before that.
    pub fn life(&self) -> SenderLife {
        SenderLife(self.life.load(Ordering::Acquire))
    }

    fn swap(&self, from: SenderLife, to: SenderLife) -> bool {
        self.life
            .compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// For who will send: takes the row if it is free.
    pub fn claim(&self, pid: u32) -> Option<SenderLife> {
        let free = self.life();
        let claimed = free.claimed_by(pid);
        (free.state() == SenderState::Free && self.swap(free, claimed)).then_some(claimed)
    }

    /// For who has claimed it: says who that is, and that nothing is in hand.
    pub fn publish_owner(&self, start_time: u64) {
        // Release: who sees this sees the claim, so that it is not taken for that of the one before.
        self.start_time.store(start_time, Ordering::Release);
        // Never back: who waits for this word to change must not miss it.
        let before = self.executing.load(Ordering::Relaxed);
        self.executing
            .store(before.wrapping_add(1) & !1, Ordering::Relaxed);
        self.completing.store(0, Ordering::Relaxed);
    }

    /// For who has entered it: from now on it is asked after. What it is called from now on; `None` if
    /// somebody else has written to it.
    pub fn activate(&self, claimed: SenderLife) -> Option<SenderLife> {
        let live = claimed.live();
        self.swap(claimed, live).then_some(live)
    }

    /// For the sender: gives the row back, if it still is what it was.
    pub fn release(&self, life: SenderLife) {
        self.swap(life, life.free());
    }

    /// For the sender: says that a message is being delivered, to be followed by looks at the target.
    pub fn begin_delivery(&self, full_fences: bool) -> DeliveryGuard<'_> {
        let even = self.executing.load(Ordering::Relaxed);
        // Release: who waited for the message before and sees this one sees that one over.
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

    /// For the sender: the completion of the receive in hand has its place, and is about to be there.
    pub fn mark_completing(&self) {
        // Release: whoever sees this sees the place taken.
        self.completing.store(1, Ordering::Release);
    }

    /// For the owner, behind a heavy fence: the sender that delivers now, and which message.
    pub fn delivery_in_progress(&self) -> Option<(SenderLife, u64)> {
        let life = self.life();
        let count = self.executing.load(Ordering::Acquire);
        (life.state() == SenderState::Live && count % 2 == 1).then_some((life, count))
    }

    /// Whether what [`delivery_in_progress`](Self::delivery_in_progress) found is over. Busy senders deliver most of the time:
    /// another number is another message, whose sender has looked at the target since.
    pub fn is_delivery_over(&self, life: SenderLife, count: u64) -> bool {
        self.executing.load(Ordering::Acquire) != count || self.life() != life
    }

    /// When the process started that has it in that life; `None` if it is somebody else's by now.
    pub fn start_time_of(&self, life: SenderLife) -> Option<u64> {
        let started = self.start_time.load(Ordering::Relaxed);
        // Pairs with the store in `publish_owner`: who sees the next one's start sees its claim.
        fence(Ordering::Acquire);
        (self.life.load(Ordering::Relaxed) == life.0).then_some(started)
    }

    /// For the owner, one thread at a time: gives back what the sender in that life left, who is known to
    /// be dead, then frees the row. `false` if it is somebody else's by now.
    pub fn reclaim_dead(&self, life: SenderLife, left: &impl UnfinishedDelivery) -> bool {
        // The dead one may have left it when it lived.
        if self.life() != life {
            return false;
        }
        // One that was between two messages had let go of everything.
        if life.state() == SenderState::Live && self.is_odd() {
            // A completion that has its place and is not there holds back those behind it.
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
