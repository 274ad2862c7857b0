//! Shared receive queues: posted to by their process, taken from by the initiators of all their
//! queue pairs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headworks_shm::SlotQueue;
use headworks_verbs::{
    PostError, PostErrorKind, RecvWr, ResourceError, SharedReceiveQueue, SrqInit,
};

use crate::arena::Piece;
use crate::device::Context;
use crate::peer::Queue;
use crate::table::{MAX_SGE, RecvSlot};

/// The producer of receives: the owner itself, whatever queue pair it is.
pub(crate) const OWNER: u16 = 0x8000;

/// Receives posted by this process, for an RQ or an SRQ.
pub(crate) struct ReceiveQueue {
    pub(crate) queue: Queue<RecvSlot>,
    pub(crate) piece: Piece,
    pub(crate) capacity: usize,
    max_sge: u32,
}

impl ReceiveQueue {
    pub(crate) fn new(
        context: &Arc<Context>,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Self, ResourceError> {
        // A receive is completed before its slot is freed, and whoever has polled its completion may
        // post the next one at once: twice the slots, so that this one finds a free one.
        let capacity = (max_wr.max(1) as usize * 2).next_power_of_two();
        let piece = context.queue_memory(SlotQueue::<RecvSlot>::bytes(capacity))?;
        // SAFETY: the piece is aligned, large enough and not shared yet.
        let slots = unsafe { SlotQueue::<RecvSlot>::init(piece.as_ptr(), capacity) };
        let queue = Queue::new(slots, piece.segment().clone());
        Ok(Self {
            queue,
            piece,
            capacity,
            max_sge,
        })
    }

    /// Takes back what the initiator `who` took and did not complete, oldest first: it was killed,
    /// or has been seen not executing since its queue pair's connection ended. What it held it
    /// forgets when it finds that.
    pub(crate) fn take_back(&self, who: u16) -> Vec<(u64, RecvSlot)> {
        let mut claimed = Vec::new();
        let take = |position, receive| claimed.push((position, receive));
        // SAFETY: an initiator looks at the connection before it uses a claim, within the same
        // execution, and none of before the end of the connection is under way.
        unsafe { self.queue.slots.recover(|dead| dead == who, take) };
        claimed.sort_unstable_by_key(|(position, _)| *position);
        claimed
    }

    /// Posts one receive.
    pub(crate) fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostErrorKind::TooManySges(self.max_sge));
        }
        let mut slot = RecvSlot {
            wr_id: wr.wr_id,
            sge_count: wr.sges.len() as u32,
            ..RecvSlot::default()
        };
        slot.sges[..wr.sges.len()].copy_from_slice(wr.sges);
        match self.queue.slots.push(OWNER, &slot) {
            Ok(_) => Ok(()),
            Err(headworks_shm::SlotError::Full) => Err(PostErrorKind::QueueFull),
            Err(_) => Err(PostErrorKind::Device),
        }
    }
}

/// A shared receive queue of this process.
pub(crate) struct SoftSrq {
    pub(crate) context: Arc<Context>,
    pub(crate) row: u32,
    pub(crate) receives: ReceiveQueue,
    max_wr: u32,
}

impl SoftSrq {
    pub(crate) fn create(
        context: &Arc<Context>,
        pd: u32,
        init: &SrqInit,
    ) -> Result<Self, ResourceError> {
        let limits = &context.info.limits;
        let bound = |what, asked: u32, highest: u32| {
            if (1..=highest).contains(&asked) {
                return Ok(());
            }
            let (asked, highest) = (asked.into(), highest.into());
            Err(ResourceError::Limit {
                what,
                asked,
                lowest: 1,
                highest,
            })
        };
        bound("SRQ size", init.max_wr, limits.max_srq_wr)?;
        bound("SRQ scatter/gather entries", init.max_sge, MAX_SGE as u32)?;
        let receives = ReceiveQueue::new(context, init.max_wr, init.max_sge)?;
        let row = context.srq_rows.take("shared receive queues")?;
        let entry = context.table.srq(row);
        entry.pd.store(pd, Ordering::Relaxed);
        entry.posted.store(0, Ordering::Relaxed);
        entry.taken.store(0, Ordering::Relaxed);
        entry.limit.store(init.limit, Ordering::Relaxed);
        entry.limit_reached.store(0, Ordering::Relaxed);
        entry.queue.set(receives.piece.place(), receives.capacity);
        entry
            .life
            .store(context.srq_rows.generation(row), Ordering::Release);
        Ok(Self {
            context: context.clone(),
            row,
            receives,
            max_wr: init.max_wr,
        })
    }

    /// Receives posted and not taken, as far as is counted: an initiator that is killed between
    /// taking one and counting it makes this one too many for good, and costs the SRQ one of its
    /// places.
    fn outstanding(&self) -> u64 {
        let row = self.context.table.srq(self.row);
        let posted = row.posted.load(Ordering::Relaxed);
        posted.saturating_sub(row.taken.load(Ordering::Relaxed))
    }
}

impl SharedReceiveQueue for SoftSrq {
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.context.is_foreign() {
            return Err(PostErrorKind::Forked.at(0));
        }
        let row = self.context.table.srq(self.row);
        for (index, wr) in wrs.iter().enumerate() {
            if self.outstanding() >= u64::from(self.max_wr) {
                return Err(PostErrorKind::QueueFull.at(index));
            }
            self.receives.post(wr).map_err(|kind| kind.at(index))?;
            row.posted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn set_limit(&self, limit: u32) -> Result<(), ResourceError> {
        if self.context.is_foreign() {
            return Err(ResourceError::Forked);
        }
        if limit > self.max_wr {
            return Err(ResourceError::Limit {
                what: "SRQ limit",
                asked: limit.into(),
                lowest: 0,
                highest: self.max_wr.into(),
            });
        }
        self.context
            .table
            .srq(self.row)
            .limit
            .store(limit, Ordering::Relaxed);
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
