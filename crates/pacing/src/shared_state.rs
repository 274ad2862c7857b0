//! State that all processes of an RNIC share in one segment: the clock, the rate, shortest delays, and the
//! active queue pairs.
//!
//! | at | what | written by |
//! |---|---|---|
//! | 0 | the clock ([`crate::virtual_clock`]) | every member |
//! | 64 | the rate in bytes a second; the time until which it is held down | every member |
//! | 128 | the shortest delay seen of each [`Kind`] | every member |
//! | 192 | constants that observers need | the process that began to pace last |
//! | 256 | name of the RNIC | every process that paces it; all write the same |
//! | 320 | rows, 64 bytes each: owner, time last seen, active queue pairs, moves of the clock | their owner |
//! | then | owners of the bitmap's blocks | by compare-and-swap |
//! | then | the bitmap: a bit for each queue pair, set while it is active | the block's owner |
//!
//! No reader trusts what it finds here: rates are clamped, times compared, rows counted up to their number.
//! Everything starts as zero, and zero is a valid initial value of every word.

use std::sync::Arc;

use headworks_shm::fork::ForkGeneration;
use headworks_shm::liveness::GENERATION_END;
use headworks_shm::primitive::{AtomicU64, Ordering};
use headworks_shm::{Member, OutOfBounds, ProcessId, Registry, View, WordRef};
use headworks_verbs::{Duration, Instant};

use crate::config::PacingConfig;
use crate::controller;
use crate::monitor::Kind;
use crate::virtual_clock;

mod published;
mod reclaim;

/// Version of the layout above.
pub const LAYOUT_VERSION: u32 = 3;
/// Number of rows: one for each completion queue with paced queue pairs, of all processes.
pub const ROWS: usize = 1024;
/// Queue pairs in one block of the bitmap.
pub const BLOCK: usize = 1024;
/// Number of blocks of the bitmap.
pub const BLOCKS: usize = 1024;
/// The queue pairs of a row that was not updated for this long do not count as active.
const STALE: Duration = Duration::from_millis(100);

const CLOCK: usize = 0;
const RATE: usize = 64;
const HELD: usize = 72;
const SHORTEST: usize = 128;
const PUBLISHED: usize = 192;
const NAME: usize = 256;
const FIRST_ROW: usize = 320;
const ROW: usize = 64;
const OWNERS: usize = FIRST_ROW + ROWS * ROW;
const BITS: usize = OWNERS + BLOCKS * 8;
/// Length of the shared state, in bytes.
pub const BYTES: usize = BITS + BLOCKS * BLOCK / 8;

/// Words of a row.
const CLAIM: usize = 0;
const GENERATION: usize = 8;
const SEEN: usize = 16;
const ACTIVE: usize = 24;
const MOVED_TO: usize = 32;
const MOVED_FROM: usize = 40;
const DELAY: usize = 48;
const RATIO: usize = 56;

/// Error of joining the shared state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// All rows are taken by living processes.
    #[error("{ROWS} completion queues are paced on this RNIC already, which is the limit")]
    Rows,
    /// All blocks of the bitmap are taken by living processes.
    #[error("{} queue pairs are paced on this RNIC already, which is the limit", BLOCKS * BLOCK)]
    Blocks,
    /// The segment is shorter than the layout.
    #[error("the shared pacing state is too short: {0}")]
    Layout(#[from] OutOfBounds),
}

/// Current state of an RNIC's pacing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Status {
    /// The rate, in bytes a second.
    pub rate_bytes_per_s: u64,
    /// The average delay, as published by the member that was last seen.
    pub delay: Duration,
    /// By how many base delays `delay` exceeds the base delay.
    pub ratio: f64,
    /// α: the rate rises for delays up to this.
    pub raise_below: f64,
    /// β: the rate falls for delays of this or more.
    pub lower_above: f64,
    /// Active queue pairs, of all processes.
    pub active: u32,
    /// Completion queues of living processes that are paced.
    pub members: u32,
    /// How far the clock is ahead of time: how long the next posted request waits.
    pub ahead: Duration,
}

/// The shared words, in a segment or in memory of the process. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct SharedPacing {
    view: View,
    processes: SharingProcesses,
    clock: WordRef,
    rate: WordRef,
    held: WordRef,
}

/// The processes that share the state, and which of them live.
#[derive(Clone, Debug)]
enum SharingProcesses {
    /// This one alone.
    One,
    /// Those of a registry, this one among them.
    Members(Arc<Member>),
    /// Those of a registry. This one only observes them.
    Observed(Arc<Registry>),
}

impl SharingProcesses {
    /// This process, if it is one of them.
    fn us(&self) -> ProcessId {
        match self {
            Self::Members(member) => member.id(),
            Self::One | Self::Observed(_) => ProcessId {
                slot: 0,
                generation: 1,
            },
        }
    }

    fn is_alive(&self, process: ProcessId) -> bool {
        match self {
            Self::One => process == self.us(),
            Self::Members(member) => member.registry().is_alive(process),
            Self::Observed(registry) => registry.is_alive(process),
        }
    }

    fn is_slot_unused(&self, slot: u32) -> bool {
        match self {
            Self::One => slot != self.us().slot,
            Self::Members(member) => member.registry().is_slot_unused(slot),
            Self::Observed(registry) => registry.is_slot_unused(slot),
        }
    }
}

impl SharedPacing {
    /// Uses memory of [`BYTES`] bytes, all zero at first, that no other process has.
    ///
    /// # Errors
    ///
    /// [`ShareError::Layout`] if the memory is shorter.
    pub fn over(view: View) -> Result<Self, ShareError> {
        view.part(0, BYTES)?;
        Ok(Self {
            clock: view.word_ref(CLOCK)?,
            rate: view.word_ref(RATE)?,
            held: view.word_ref(HELD)?,
            processes: SharingProcesses::One,
            view,
        })
    }

    /// The same memory, which the processes of the member's registry share.
    #[must_use]
    pub fn shared_by(self, member: Arc<Member>) -> Self {
        let processes = SharingProcesses::Members(member);
        Self { processes, ..self }
    }

    /// The same memory, which the processes of `registry` share. This process only observes.
    #[must_use]
    pub fn observed_in(self, registry: Arc<Registry>) -> Self {
        let processes = SharingProcesses::Observed(registry);
        Self { processes, ..self }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // All offsets are below BYTES, and `over` checked that length.
        self.view.atomic_u64(at).expect("within the layout")
    }

    fn row(&self, row: usize, word: usize) -> &AtomicU64 {
        self.word(FIRST_ROW + row * ROW + word)
    }

    /// The rate in bytes a second, clamped to its bounds; the line rate if none is set.
    pub fn rate(&self, config: &PacingConfig) -> u64 {
        match self.rate.load(Ordering::Relaxed) {
            0 => config.line_rate(),
            rate => controller::bounded(config, rate),
        }
    }

    /// Changes the rate by `by`, within its bounds. While the rate is held down, it does not rise.
    pub fn change_rate(&self, config: &PacingConfig, by: i64, now: Instant) {
        if by > 0 && self.is_held(config, now) {
            return;
        }
        self.set_rate(config, |rate| controller::changed(config, rate, by));
    }

    fn set_rate(&self, config: &PacingConfig, to: impl Fn(u64) -> u64) {
        let mut seen = self.rate.load(Ordering::Relaxed);
        // Other threads change the rate too. After losing a few times in a row, this one leaves the change to
        // them.
        for _ in 0..4 {
            let rate = match seen {
                0 => config.line_rate(),
                rate => controller::bounded(config, rate),
            };
            let new = to(rate);
            if new == rate {
                return;
            }
            let done = self
                .rate
                .compare_exchange(seen, new, Ordering::Relaxed, Ordering::Relaxed);
            match done {
                Ok(_) => return,
                Err(other) => seen = other,
            }
        }
    }

    fn is_held(&self, config: &PacingConfig, now: Instant) -> bool {
        let held = self.held.load(Ordering::Relaxed);
        let longest = now.nanos().saturating_add(hold(config).nanos());
        // A time later than any process could have set is garbage.
        held > now.nanos() && held <= longest
    }

    /// Handles a receiver's congestion signal: cuts the rate to a part of it, and holds it there for a while.
    /// Returns whether it did; while the rate is held, it does nothing.
    pub fn cut(&self, config: &PacingConfig, now: Instant) -> bool {
        if self.is_held(config, now) {
            return false;
        }
        let until = now + hold(config);
        self.held.store(until.nanos(), Ordering::Relaxed);
        self.set_rate(config, |rate| controller::cut(config, rate));
        true
    }

    /// Shortest delay of this kind that any process has seen, `sample` included.
    pub fn shortest(&self, kind: Kind, sample: Duration) -> Duration {
        let word = self.word(SHORTEST + 8 * kind.index());
        let (seen, new) = (word.load(Ordering::Relaxed), sample.nanos().max(1));
        if seen != 0 && seen <= new {
            return Duration::from_nanos(seen);
        }
        // If another thread stores in between, its sample is as recent as this one.
        let _ = word.compare_exchange(seen, new, Ordering::Relaxed, Ordering::Relaxed);
        Duration::from_nanos(new)
    }

    /// Active queue pairs of all members that were seen lately, and the number of members.
    pub fn active(&self, now: Instant) -> (u32, u32) {
        let (mut active, mut members) = (0_u64, 0);
        for row in 0..ROWS {
            if self.row(row, CLAIM).load(Ordering::Relaxed) == 0 {
                // Rows are taken from the first on; a row that was never used ends the search.
                if self.row(row, GENERATION).load(Ordering::Relaxed) == 0 {
                    break;
                }
                continue;
            }
            members += 1;
            let seen = Instant::from_nanos(self.row(row, SEEN).load(Ordering::Relaxed));
            if now.since(seen) < STALE {
                let theirs = self.row(row, ACTIVE).load(Ordering::Relaxed);
                active = active.saturating_add(theirs);
            }
        }
        (active.min((BLOCKS * BLOCK) as u64) as u32, members)
    }

    /// Number of bits that are set in the bitmap.
    pub fn bits(&self) -> u32 {
        let words = (BITS..BYTES).step_by(8);
        words
            .map(|at| self.word(at).load(Ordering::Relaxed).count_ones())
            .sum()
    }

    /// Current state of the pacing, for members and observers.
    pub fn status(&self, config: &PacingConfig, now: Instant) -> Status {
        let (active, _) = self.active(now);
        let thresholds = controller::Thresholds::of(config, active);
        let living = self.living();
        let latest = living
            .iter()
            .copied()
            .max_by_key(|row| self.row(*row, SEEN).load(Ordering::Relaxed));
        let of_latest = |word| latest.map_or(0, |row| self.row(row, word).load(Ordering::Relaxed));
        let next = Instant::from_nanos(self.clock.load(Ordering::Relaxed));
        let ratio = f64::from_bits(of_latest(RATIO));
        Status {
            rate_bytes_per_s: self.rate(config),
            delay: Duration::from_nanos(of_latest(DELAY)),
            // The ratio is at most the largest delay in nanoseconds over a base delay of one.
            ratio: if ratio.is_finite() {
                ratio.clamp(-1.0, 1e19)
            } else {
                0.0
            },
            raise_below: thresholds.raise_below,
            lower_above: thresholds.lower_above,
            active,
            members: living.len() as u32,
            ahead: next.since(now),
        }
    }

    /// Rows whose owner is not known to be dead.
    fn living(&self) -> Vec<usize> {
        let mut asked = LivenessCache::of(&self.processes);
        let is_living = |row: &usize| {
            let claim = self.row(*row, CLAIM).load(Ordering::Acquire);
            claim != 0
                && self
                    .owner(*row, claim)
                    .is_none_or(|owner| asked.lives(owner))
        };
        (0..ROWS).filter(is_living).collect()
    }

    /// Joins the shared state: takes a row, which is held until the result is dropped.
    ///
    /// # Errors
    ///
    /// [`ShareError::Rows`] if all rows are taken.
    pub fn join(&self, now: Instant) -> Result<ShareMember, ShareError> {
        self.join_as(self.processes.us(), now)
    }

    fn join_as(&self, us: ProcessId, now: Instant) -> Result<ShareMember, ShareError> {
        let mut asked = LivenessCache::of(&self.processes);
        let joined = (0..ROWS).find_map(|row| self.join_at(row, us, now, true, &mut asked));
        joined.ok_or(ShareError::Rows)
    }

    /// Takes a row if its owner is dead, or, if `or_free`, if it has no owner.
    fn join_at(
        &self,
        row: usize,
        us: ProcessId,
        now: Instant,
        or_free: bool,
        asked: &mut LivenessCache<'_>,
    ) -> Option<ShareMember> {
        let claim = self.row(row, CLAIM);
        let seen = claim.load(Ordering::Acquire);
        let is_free = match seen {
            0 => or_free,
            _ => self
                .owner(row, seen)
                .is_some_and(|owner| !asked.lives(owner)),
        };
        if !is_free {
            return None;
        }
        // No earlier owner of the row had this number, so its blocks can be told from ours.
        let before = self.row(row, GENERATION).load(Ordering::Relaxed) >> 48;
        let number = (before + 1) & 0xffff;
        let ours = u64::from(us.slot) | number << 32 | 1 << 63;
        claim
            .compare_exchange(seen, ours, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        if self.row(row, GENERATION).load(Ordering::Acquire) >> 48 != before {
            // Another member took the row and left it after the number was read.
            let _ = claim.compare_exchange(ours, 0, Ordering::Release, Ordering::Relaxed);
            return None;
        }
        // A dead owner's debt is forgiven while its row still records it.
        if seen != 0 {
            virtual_clock::forgive(&self.clock, self.moves(row), now.nanos());
        }
        let generation = us.generation & GENERATION_MASK | number << 48;
        self.row(row, GENERATION)
            .store(generation, Ordering::Release);
        for word in [SEEN, ACTIVE, MOVED_TO, MOVED_FROM, DELAY, RATIO] {
            self.row(row, word).store(0, Ordering::Relaxed);
        }
        self.free_blocks(row, |claim| claim != ours & GENERATION_MASK);
        let word = |at| self.view.word_ref(FIRST_ROW + row * ROW + at);
        Some(ShareMember {
            // These offsets are within the layout, as all are.
            moved_to: word(MOVED_TO).ok()?,
            moved_from: word(MOVED_FROM).ok()?,
            share: self.clone(),
            row,
            claim: ours,
            us,
            active: 0,
            blocks: Vec::new(),
            generation: ForkGeneration::current(),
        })
    }

    /// The owner of a row; `None` if it lives and has not written its generation yet.
    fn owner(&self, row: usize, claim: u64) -> Option<ProcessId> {
        let slot = claim as u32;
        let written = self.row(row, GENERATION).load(Ordering::Acquire);
        let number = |word: u64, at: u32| word >> at & 0xffff;
        if number(claim, 32) == number(written, 48) {
            let generation = written & GENERATION_MASK;
            return Some(ProcessId { slot, generation });
        }
        // The owner may have been killed between writing its two words.
        let nobody = ProcessId {
            slot,
            generation: 0,
        };
        self.processes.is_slot_unused(slot).then_some(nobody)
    }

    fn moves(&self, row: usize) -> virtual_clock::ClockMoves<'_> {
        (self.row(row, MOVED_TO), self.row(row, MOVED_FROM))
    }

    fn free_blocks(&self, row: usize, which: impl Fn(u64) -> bool) {
        for block in 0..BLOCKS {
            let owner = self.word(OWNERS + 8 * block);
            let seen = owner.load(Ordering::Relaxed);
            let Some((of, claim)) = block_owner(seen) else {
                continue;
            };
            if of == row && which(claim) {
                for word in 0..BLOCK / 64 {
                    self.bit_word(block, word).store(0, Ordering::Relaxed);
                }
                let _ = owner.compare_exchange(seen, 0, Ordering::Release, Ordering::Relaxed);
            }
        }
    }

    fn bit_word(&self, block: usize, word: usize) -> &AtomicU64 {
        self.word(BITS + block * BLOCK / 8 + word * 8)
    }
}

/// Remembers which processes live, so that each is asked for once: one process may own all rows.
struct LivenessCache<'a> {
    processes: &'a SharingProcesses,
    known: Vec<(ProcessId, bool)>,
}

impl<'a> LivenessCache<'a> {
    fn of(processes: &'a SharingProcesses) -> Self {
        let known = Vec::new();
        Self { processes, known }
    }

    fn lives(&mut self, owner: ProcessId) -> bool {
        if let Some((_, lives)) = self.known.iter().find(|(asked, _)| *asked == owner) {
            return *lives;
        }
        let lives = self.processes.is_alive(owner);
        self.known.push((owner, lives));
        lives
    }
}

/// Mask of a process's generation, and of a claim in a block's word.
const GENERATION_MASK: u64 = GENERATION_END - 1;
const _: () = assert!(GENERATION_END == 1 << 48);

fn hold(config: &PacingConfig) -> Duration {
    Duration::from_nanos(config.hold_us * 1_000)
}

/// Word that marks a block as owned by a row under this claim.
fn block_word(row: usize, claim: u64) -> u64 {
    1 << 63 | (row as u64) << 48 | claim & GENERATION_MASK
}

fn block_owner(word: u64) -> Option<(usize, u64)> {
    let row = (word >> 48 & 0x7fff) as usize;
    (word >> 63 == 1).then_some((row, word & GENERATION_MASK))
}

/// Membership of one completion queue in the shared state. It ends when this is dropped. If the process dies,
/// it ends when another process takes its row.
#[derive(Debug)]
pub struct ShareMember {
    share: SharedPacing,
    row: usize,
    claim: u64,
    us: ProcessId,
    moved_to: WordRef,
    moved_from: WordRef,
    active: u32,
    blocks: Vec<usize>,
    generation: ForkGeneration,
}

impl ShareMember {
    /// The shared state.
    pub fn share(&self) -> &SharedPacing {
        &self.share
    }

    /// Reserves the time of `bytes` at `rate` bytes a second on the shared clock, if that is due now.
    ///
    /// # Errors
    ///
    /// Returns when the next free time is due.
    #[inline]
    pub fn take(&self, bytes: u64, rate: u64, burst: u64, now: Instant) -> Result<(), Instant> {
        self.book(bytes, rate, burst, now, Duration::ZERO).map(drop)
    }

    /// Like [`take`](Self::take), but also reserves time that is due up to `ahead` from now. Returns when the
    /// reserved time is due.
    ///
    /// # Errors
    ///
    /// Returns when the next free time is due if that is later than `ahead` from now.
    #[inline]
    pub fn book(
        &self,
        bytes: u64,
        rate: u64,
        burst: u64,
        now: Instant,
        ahead: Duration,
    ) -> Result<Instant, Instant> {
        let rate = rate.max(1);
        let nanos = |bytes: u64| match bytes {
            // The usual case needs no 128-bit division. Rounding up means that nothing is free.
            0..=0x3_ffff_ffff => (bytes * 1_000_000_000).div_ceil(rate),
            _ => {
                let nanos = (u128::from(bytes) * 1_000_000_000).div_ceil(rate.into());
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        };
        let moves = (&*self.moved_to, &*self.moved_from);
        let booked = virtual_clock::book(
            &self.share.clock,
            moves,
            now.nanos(),
            nanos(burst),
            nanos(bytes),
            ahead.nanos(),
        );
        booked.map(Instant::from_nanos).map_err(Instant::from_nanos)
    }

    /// How long ago the time reserved on the clock ended: how long the RNIC has been idle.
    pub fn idle_for(&self, now: Instant) -> Duration {
        now.since(Instant::from_nanos(
            self.share.clock.load(Ordering::Relaxed),
        ))
    }

    /// Resets the rate to the line rate after idleness, unless a congestion signal holds it.
    pub fn start_again(&self, config: &PacingConfig, now: Instant) {
        if !self.share.is_held(config, now) {
            self.share.set_rate(config, |_| config.line_rate());
        }
    }

    /// Reserves room in the bitmap for a queue pair in slot `slot`.
    ///
    /// # Errors
    ///
    /// [`ShareError::Blocks`] if there is none.
    pub fn reserve(&mut self, slot: usize, now: Instant) -> Result<(), ShareError> {
        while self.blocks.len() <= slot / BLOCK {
            let free = self.free_block().or_else(|| {
                // Dead members may own the blocks that are missing.
                let mut asked = LivenessCache::of(&self.share.processes);
                for row in 0..ROWS {
                    drop(self.share.join_at(row, self.us, now, false, &mut asked));
                }
                self.free_block()
            });
            self.blocks.push(free.ok_or(ShareError::Blocks)?);
        }
        Ok(())
    }

    /// Takes a block that no member owns.
    fn free_block(&self) -> Option<usize> {
        let ours = block_word(self.row, self.claim);
        (0..BLOCKS).find(|block| {
            let owner = self.share.word(OWNERS + 8 * block);
            let taken = owner.compare_exchange(0, ours, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok()
        })
    }

    /// Records that a queue pair became active or ceased to be.
    #[inline]
    pub fn set_active(&mut self, slot: usize, is_active: bool) {
        self.active = match is_active {
            true => self.active + 1,
            false => self.active.saturating_sub(1),
        };
        let Some(block) = self.blocks.get(slot / BLOCK) else {
            return;
        };
        let word = self.share.bit_word(*block, slot % BLOCK / 64);
        let bit = 1 << (slot % 64);
        // Only this member writes the word.
        let bits = word.load(Ordering::Relaxed);
        let bits = if is_active { bits | bit } else { bits & !bit };
        word.store(bits, Ordering::Relaxed);
        let count = self.share.row(self.row, ACTIVE);
        count.store(self.active.into(), Ordering::Relaxed);
    }

    /// First slot from `from` on whose queue pair is active.
    pub fn next_active(&self, from: usize) -> Option<usize> {
        let mut at = from;
        while let Some(block) = self.blocks.get(at / BLOCK) {
            let word = self.share.bit_word(*block, at % BLOCK / 64);
            let bits = word.load(Ordering::Relaxed) >> (at % 64);
            if bits != 0 {
                return Some(at + bits.trailing_zeros() as usize);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Number of this member's active queue pairs.
    pub fn active(&self) -> u32 {
        self.active
    }

    /// Publishes that this member is alive at `now`, and its latest average delay and ratio.
    pub fn seen(&self, now: Instant, delay: Duration, ratio: f64) {
        let set = |word, value| {
            self.share
                .row(self.row, word)
                .store(value, Ordering::Relaxed)
        };
        set(SEEN, now.nanos());
        set(DELAY, delay.nanos());
        set(RATIO, ratio.to_bits());
    }
}

impl Drop for ShareMember {
    fn drop(&mut self) {
        if self.generation.is_foreign() {
            return;
        }
        let ours = self.claim & GENERATION_MASK;
        self.share.free_blocks(self.row, |claim| claim == ours);
        let claim = self.share.row(self.row, CLAIM);
        let _ = claim.compare_exchange(self.claim, 0, Ordering::Release, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
