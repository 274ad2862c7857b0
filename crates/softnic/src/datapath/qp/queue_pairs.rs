//! The queue pairs of a context.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::QpCore;
use super::dead_senders::DeadSenders;
use crate::datapath::context::Context;
use crate::table::initiator::{self, Initiator};

/// The queue pairs of a context, by slot. Each of them holds a reference to this list.
#[derive(Default)]
pub(crate) struct QueuePairs {
    by_slot: Mutex<Vec<Weak<QpCore>>>,
    pub(super) dead_senders: DeadSenders,
}

impl QueuePairs {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<QpCore>>> {
        self.by_slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, core: &Arc<QpCore>) {
        let mut cores = self.lock();
        let slot = core.slot();
        if cores.len() <= slot {
            cores.resize(slot + 1, Weak::new());
        }
        cores[slot] = Arc::downgrade(core);
    }

    pub(super) fn leave(&self, slot: usize) {
        if let Some(left) = self.lock().get_mut(slot) {
            *left = Weak::new();
        }
    }

    /// Returns the queue pair in `slot`.
    pub(crate) fn get(&self, slot: usize) -> Option<Arc<QpCore>> {
        self.lock().get(slot)?.upgrade()
    }

    /// Returns all queue pairs.
    pub(crate) fn all(&self) -> Vec<Arc<QpCore>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits until no initiator that could reach the memory of `context` executes a request. Returns the
    /// initiators that are stopped in the middle of one.
    pub(crate) fn wait_for_initiators(&self, context: &Context) -> Vec<Initiator> {
        let mut all = Vec::new();
        for core in self.all() {
            // This process's own threads run while this one does, and their calls do not block. But a broken
            // peer can write the word, which is in shared memory, so they too are waited for with a timeout.
            all.push(Initiator::new(context.own.clone(), core.qpn));
            all.extend(core.initiator());
            all.extend(core.successor());
        }
        all.extend(context.senders.busy(&context.table, &context.peers));
        initiator::wait_for(all)
    }
}
