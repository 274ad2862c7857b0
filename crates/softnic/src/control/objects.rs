//! The objects of a device: its queue pairs, CQs, SRQs and buffers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use headworks_verbs::{AsyncEvent, CompletionQueue, CqId, ResourceError, SharedReceiveQueue};

use crate::control::buffer::Buffers;
use crate::datapath::context::Context;
use crate::datapath::qp::{QueuePairs, SoftCq};
use crate::datapath::srq::SoftSrq;

/// The objects of a device. Holds weak references: the application owns the objects.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) queue_pairs: Arc<QueuePairs>,
    pub(crate) buffers: Buffers,
    srqs: Mutex<HashMap<u32, Weak<SoftSrq>>>,
    cqs: Mutex<HashMap<u32, Weak<SoftCq>>>,
    /// Number of channels made so far.
    channels: AtomicU32,
    /// Number of protection domains made so far.
    pds: AtomicU32,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the objects of one kind that the application holds, for the progress thread.
fn borrow<T>(context: &Context, all: &Mutex<HashMap<u32, Weak<T>>>) -> Vec<Arc<T>> {
    let all = locked(all);
    context.progress.borrow_objects(all.len());
    all.values().filter_map(Weak::upgrade).collect()
}

impl Objects {
    /// Returns the number of the next completion channel. Numbers begin at 1.
    pub(crate) fn next_channel(&self) -> u32 {
        self.channels
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1)
    }

    /// Returns the number of the next protection domain. Numbers begin at 1.
    pub(crate) fn next_pd(&self) -> u32 {
        self.pds.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    pub(crate) fn enter_cq(&self, cq: &Arc<SoftCq>) {
        locked(&self.cqs).insert(cq.row, Arc::downgrade(cq));
    }

    pub(crate) fn enter_srq(&self, srq: &Arc<SoftSrq>) {
        locked(&self.srqs).insert(srq.row, Arc::downgrade(srq));
    }

    /// Returns the CQ behind `cq`, if it is of this context.
    pub(crate) fn own_cq(
        &self,
        cq: &Arc<dyn CompletionQueue>,
    ) -> Result<Arc<SoftCq>, ResourceError> {
        let known = locked(&self.cqs).get(&cq.id().0).and_then(Weak::upgrade);
        known
            .filter(|known| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(cq)))
            .ok_or(ResourceError::Foreign("the completion queue"))
    }

    /// Returns the SRQ behind `srq`, if it is of this context.
    pub(crate) fn own_srq(
        &self,
        srq: &Arc<dyn SharedReceiveQueue>,
    ) -> Result<Arc<SoftSrq>, ResourceError> {
        let row = srq.as_any().downcast_ref::<SoftSrq>().map(|srq| srq.row);
        let known = row.and_then(|row| locked(&self.srqs).get(&row).and_then(Weak::upgrade));
        known
            .filter(|known| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(srq)))
            .ok_or(ResourceError::Foreign("the shared receive queue"))
    }

    /// Shows delayed completions of CQs that a caller may sleep on.
    pub(crate) fn show_held(&self, context: &Context) {
        if context.hostility.is_none() {
            return;
        }
        for cq in borrow(context, &self.cqs) {
            cq.show_held();
        }
    }

    /// Raises the limit events of SRQs, and the errors of CQs that overran: of those that initiators marked,
    /// or of `all`. Wakes the waiters of the other CQs among them: an initiator that was killed may have disarmed a CQ
    /// without raising its event.
    pub(crate) fn service_limits(&self, context: &Context, all: bool) {
        let attention = context.table.attention();
        let srq = |row: u32| {
            context.progress.borrow_objects(1);
            locked(&self.srqs).get(&row).and_then(Weak::upgrade)
        };
        let cq = |row: u32| {
            context.progress.borrow_objects(1);
            locked(&self.cqs).get(&row).and_then(Weak::upgrade)
        };
        let mut srqs: Vec<_> = Vec::new();
        attention.srqs.take(|row| srqs.extend(srq(row as u32)));
        let mut cqs: Vec<_> = Vec::new();
        attention.cqs.take(|row| cqs.extend(cq(row as u32)));
        if all {
            srqs = borrow(context, &self.srqs);
            cqs = borrow(context, &self.cqs);
        }
        for srq in srqs {
            srq.raise_limit();
        }
        for cq in cqs {
            let row = context.table.cq(cq.row);
            let overran = row
                .overrun
                .compare_exchange(1, 2, Ordering::AcqRel, Ordering::Relaxed);
            if overran == Err(0) {
                // An initiator marked the CQ because it could not put an event into its channel, or died before it
                // did.
                cq.port().wake_waiters();
            }
            if overran.is_err() {
                continue;
            }
            context.events.raise(AsyncEvent::CqError(CqId(cq.row)));
            for core in self.queue_pairs.all() {
                if core.send_cq.row == cq.row || core.recv_cq.row == cq.row {
                    core.fail();
                }
            }
        }
    }
}
