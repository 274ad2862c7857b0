//! Receive queues and shared receive queues. Their process posts to them; the initiators at the other ends of
//! their queue pairs take receives from them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_shm::{BiasedLock, SingleProducer, SlotQueue, SlotQueueRef};
use headworks_verbs::{
    AsyncEvent, PostError, PostErrorKind, RecvWr, ResourceError, SharedReceiveQueue, SrqId, SrqInit,
};

use crate::datapath::context::{Context, ContextRelease};
use crate::table::arena::ArenaAllocation;
use crate::table::rows::{LIMIT_REACHED, MAX_SGE, RecvSlot, SegmentOffset, SrqRow};

/// Mark of the owner's process as producer or consumer (`who`), as against an initiator's.
pub(crate) const OWNER: u16 = 0x8000;

/// Receives posted by this process, for an RQ or an SRQ.
pub(crate) struct ReceiveQueue {
    /// The queue, in `piece`.
    pub(crate) slots: SlotQueueRef<RecvSlot>,
    /// The only producer. Only this process posts, so the lock needs no atomic instruction.
    posting: BiasedLock<SingleProducer<RecvSlot>>,
    piece: ArenaAllocation,
}

impl ReceiveQueue {
    pub(crate) fn new(context: &Arc<Context>, max_wr: u32) -> Result<Self, ResourceError> {
        // A receive is completed before its slot is freed, and a program that has polled the completion may
        // post the next receive at once. With twice the slots, that receive finds a free one.
        let capacity = (max_wr.max(1) as usize * 2).next_power_of_two();
        let piece = context.queue_memory(SlotQueue::<RecvSlot>::bytes(capacity))?;
        // SAFETY: the allocation is aligned, large enough and not shared yet.
        let slots = unsafe { SlotQueue::<RecvSlot>::init(piece.as_ptr(), capacity) };
        // SAFETY: peers only pop from this process's receive queues, and nothing else here pushes to this
        // one.
        let posting = BiasedLock::new(unsafe { slots.single_producer() });
        Ok(Self {
            slots,
            posting,
            piece,
        })
    }

    /// Returns where peers find the queue.
    pub(crate) fn place(&self) -> SegmentOffset {
        self.piece.place()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Takes back, oldest first, the receives that the initiator `who` claimed and did not complete. It was
    /// killed, or has been seen not executing since its queue pair's connection ended. A live initiator drops
    /// a claim that it still holds when it finds that the connection has ended.
    pub(crate) fn take_back(&self, who: u16) -> Vec<(u64, RecvSlot)> {
        let mut claimed = Vec::new();
        let take = |position, receive| claimed.push((position, receive));
        // SAFETY: an initiator checks the connection before it uses a claim, within the same execution. No
        // execution that began before the connection ended is under way.
        unsafe { self.slots.recover(|dead| dead == who, take) };
        claimed.sort_unstable_by_key(|(position, _)| *position);
        claimed
    }

    /// Posts again a receive that was taken from here. Returns whether there was a slot for it.
    pub(crate) fn post_again(&self, receive: &RecvSlot) -> bool {
        self.posting.lock().push(receive).is_ok()
    }

    /// Posts one receive with at most `max_sge` scatter entries.
    pub(crate) fn post(&self, wr: &RecvWr<'_>, max_sge: u32) -> Result<(), PostErrorKind> {
        push(&mut self.posting.lock(), &checked(wr, max_sge)?)
    }

    /// Posts receives with at most `max_sge` scatter entries, as long as fewer than `most` are posted and not
    /// taken.
    fn post_up_to(
        &self,
        (most, max_sge): (u32, u32),
        posted: &AtomicU64,
        wrs: &[RecvWr<'_>],
    ) -> Result<(), PostError> {
        let mut posting = self.posting.lock();
        for (index, wr) in wrs.iter().enumerate() {
            if posting.has_unclaimed(most.into()) {
                return Err(PostErrorKind::QueueFull.at(index));
            }
            let slot = checked(wr, max_sge).map_err(|kind| kind.at(index))?;
            self.append(&mut posting, &slot, posted)
                .map_err(|kind| kind.at(index))?;
        }
        Ok(())
    }

    /// Posts a receive. Counts it in `posted` before an initiator can take it. Otherwise that initiator would
    /// count one receive too few as left, and might find a limit crossed.
    fn append(
        &self,
        posting: &mut SingleProducer<RecvSlot>,
        slot: &RecvSlot,
        posted: &AtomicU64,
    ) -> Result<(), PostErrorKind> {
        posted.store(posting.pushed() + 1, Ordering::Relaxed);
        let pushed = push(posting, slot);
        if pushed.is_err() {
            posted.store(posting.pushed(), Ordering::Relaxed);
        }
        pushed
    }
}

fn checked(wr: &RecvWr<'_>, max_sge: u32) -> Result<RecvSlot, PostErrorKind> {
    if wr.sges.len() > max_sge as usize {
        return Err(PostErrorKind::TooManySges(max_sge));
    }
    let mut slot = RecvSlot {
        wr_id: wr.wr_id,
        sge_count: wr.sges.len() as u32,
        ..RecvSlot::default()
    };
    slot.sges[..wr.sges.len()].copy_from_slice(wr.sges);
    Ok(slot)
}

fn push(posting: &mut SingleProducer<RecvSlot>, slot: &RecvSlot) -> Result<(), PostErrorKind> {
    match posting.push(slot) {
        Ok(_) => Ok(()),
        Err(headworks_shm::SlotError::Full) => Err(PostErrorKind::QueueFull),
        Err(_) => Err(PostErrorKind::Device),
    }
}

/// A shared receive queue of this process.
pub(crate) struct SoftSrq {
    pub(crate) context: Arc<Context>,
    pub(crate) row: u32,
    pub(crate) receives: ReceiveQueue,
    max_wr: u32,
    max_sge: u32,
    pub(crate) pd: u32,
    _release: ContextRelease,
}

impl SoftSrq {
    pub(crate) fn create(
        context: &Arc<Context>,
        pd: u32,
        init: &SrqInit,
    ) -> Result<Self, ResourceError> {
        let limits = &context.info.limits;
        ResourceError::check("SRQ size", init.max_wr, 1..=limits.max_srq_wr)?;
        ResourceError::check(
            "SRQ scatter/gather entries",
            init.max_sge,
            1..=MAX_SGE as u32,
        )?;
        check_limit(init.limit, init.max_wr)?;
        let receives = ReceiveQueue::new(context, init.max_wr)?;
        let row = context.srq_rows.take("shared receive queues")?;
        let entry = context.table.srq(row);
        entry.pd.store(pd, Ordering::Relaxed);
        entry.posted.0.store(0, Ordering::Relaxed);
        entry.limit.store(init.limit, Ordering::Relaxed);
        entry.queue.set(receives.place(), receives.capacity());
        entry
            .life
            .store(context.srq_rows.generation(row), Ordering::Release);
        Ok(Self {
            context: context.clone(),
            row,
            receives,
            max_wr: init.max_wr,
            max_sge: init.max_sge,
            pd,
            _release: ContextRelease::of(context),
        })
    }

    fn entry(&self) -> &SrqRow {
        self.context.table.srq(self.row)
    }

    /// Posts again a receive that a dead sender of datagrams had taken. Returns whether there was a slot for
    /// it.
    pub(crate) fn post_again(&self, receive: &RecvSlot) -> bool {
        let posted = &self.entry().posted.0;
        let mut posting = self.receives.posting.lock();
        self.receives.append(&mut posting, receive, posted).is_ok()
    }

    /// Checks the limit after an initiator was killed: it may have taken receives and not checked the limit.
    pub(crate) fn look_at_limit(&self) {
        let taken = self.receives.slots.popped();
        if self.entry().crosses_limit(taken) {
            self.raise_limit();
        }
    }

    /// Raises the limit event if the limit was crossed.
    pub(crate) fn raise_limit(&self) {
        let limit = &self.entry().limit;
        let armed = limit.load(Ordering::Acquire);
        let reached = armed & LIMIT_REACHED != 0;
        // If `set_limit` re-arms the limit at the same time, it raises the earlier event.
        let ours = reached
            && limit
                .compare_exchange(armed, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if ours {
            self.context.events.raise(AsyncEvent::SrqLimit(self.id()));
        }
    }
}

/// Checks that a queue of `max_wr` receives can fall below the limit.
fn check_limit(limit: u32, max_wr: u32) -> Result<(), ResourceError> {
    ResourceError::check("SRQ limit", limit, 0..=max_wr)
}

impl SrqRow {
    /// Returns whether an armed limit is crossed when `taken` receives were taken in total. Returns true once.
    pub(crate) fn crosses_limit(&self, taken: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        if limit == 0 || limit & LIMIT_REACHED != 0 {
            return false;
        }
        let left = self.posted.0.load(Ordering::Relaxed);
        let left = left.saturating_sub(taken);
        left < u64::from(limit)
            && self
                .limit
                .compare_exchange(
                    limit,
                    limit | LIMIT_REACHED,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
    }
}

impl SharedReceiveQueue for SoftSrq {
    fn id(&self) -> SrqId {
        SrqId(self.row)
    }

    fn max_wr(&self) -> u32 {
        self.max_wr
    }

    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.context.is_foreign() {
            return Err(PostErrorKind::Forked.at(0));
        }
        let posted = &self.entry().posted.0;
        self.receives
            .post_up_to((self.max_wr, self.max_sge), posted, wrs)
    }

    fn set_limit(&self, limit: u32) -> Result<(), ResourceError> {
        if self.context.is_foreign() {
            return Err(ResourceError::Forked);
        }
        check_limit(limit, self.max_wr)?;
        let before = self.entry().limit.swap(limit, Ordering::AcqRel);
        if before & LIMIT_REACHED != 0 {
            self.context.events.raise(AsyncEvent::SrqLimit(self.id()));
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for SoftSrq {
    fn drop(&mut self) {
        if self.context.is_foreign() {
            return;
        }
        self.context
            .table
            .srq(self.row)
            .life
            .store(0, Ordering::Release);
        self.context.srq_rows.give_back(self.row);
    }
}
