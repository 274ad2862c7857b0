//! Senders of datagrams to this context's queue pairs. Each sender has a row in this context's shared table
//! and writes it itself.
//!
//! A datagram queue pair is not connected, so its owner's own state does not tell which processes may be
//! writing to its memory. Therefore each sending queue pair takes a row in the table of every context that it
//! sends to, before its first datagram. [`headworks_shm::sender_row`] describes the words of a row and the
//! order in which they are written. This module relies on two rules:
//!
//! - The sender accesses a datagram's target only while its row says that it delivers. The thread that takes
//!   memory away passes a heavy fence and looks at all rows. It waits until each row that was odd changes, or
//!   the row's process dies. The rows are in the owner's own memory, so the owner need not attach a process
//!   to wait for it.
//! - The row's number is the mark (`who`) on the receive and the completion that a sender holds. A sender
//!   holds at most one of each. When a sender has died, the owner undoes what it left. A completion that was
//!   reserved and not filled is skipped. A receive that did not complete is posted again, because a datagram
//!   that is lost consumes no receive. `completing` tells a receive that completed from one that did not. (The
//!   code is in `qp::dead_senders`.)

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_shm::fork::ForkGeneration;
use headworks_shm::sender_row::DeliveryGuard;
use headworks_shm::{ProcessId, SenderLife, SenderRow};

use crate::table::initiator::Initiator;
use crate::table::peer::{Peer, PeerGuard};
use crate::table::peer_process::{LifeEvidence, PeerProcess};
use crate::table::peers::Peers;
use crate::table::rows::{MAX_SENDER, RowRef, Table};

/// Bit of a sender's mark on what it holds. The other bits are the number of its row.
const MARK: u16 = 0x4000;
const _: () = assert!(MAX_SENDER <= MARK as usize);

/// Maximum number of processes watched, with a descriptor each. A broken peer may name any number of processes.
const WATCHES_MAX: usize = 512;

/// Returns the mark of the sender in `row`.
pub(crate) const fn mark(row: usize) -> u16 {
    MARK | row as u16
}

/// A row that a queue pair of this process holds in the table of a context that it sends to.
pub(crate) struct Registration {
    pub(crate) target: PeerGuard,
    row: RowRef<SenderRow>,
    life: SenderLife,
    pub(crate) who: u16,
    made_by: ForkGeneration,
}

impl Registration {
    /// Takes a row of `target` for a queue pair of this process, whose context is `own`. Returns `None` if no row
    /// is free.
    pub(crate) fn enter(own: &Peer, target: PeerGuard) -> Option<Self> {
        let us = own.process();
        let table = &target.table;
        let claim = |row: usize| Some((row, table.sender(row).claim(us.slot)?));
        let Some((row, claimed)) = (0..MAX_SENDER).find_map(claim) else {
            tracing::warn!("a peer has no free row for another sender of datagrams");
            return None;
        };
        let held = table.held_sender(row);
        held.publish_owner(us.generation);
        table
            .senders_end()
            .fetch_max(row as u64 + 1, Ordering::AcqRel);
        let Some(life) = held.activate(claimed) else {
            tracing::warn!("another process wrote to the sender row that this one had claimed");
            return None;
        };
        // The target's progress thread then begins to watch this process.
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

    /// Marks that a datagram is being delivered. The caller accesses the target only afterwards.
    pub(crate) fn deliver(&self, full_fences: bool) -> DeliveryGuard<'_> {
        self.row.begin_delivery(full_fences)
    }

    /// Returns whether this process still holds the row. Only a broken owner takes it away.
    pub(crate) fn is_held(&self) -> bool {
        self.row.life() == self.life
    }

    /// Marks that the completion of the receive in hand has its place and is about to be filled.
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
    watches: Mutex<HashMap<ProcessId, Arc<PeerProcess>>>,
}

impl Senders {
    fn lock(&self) -> MutexGuard<'_, HashMap<ProcessId, Arc<PeerProcess>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the process of the sender that holds `row` in the life `life`; `None` if the row has changed.
    pub(crate) fn watch(
        &self,
        peers: &Peers,
        life: SenderLife,
        row: &SenderRow,
    ) -> Option<Arc<PeerProcess>> {
        let process = row.process_of(life)?;
        let may_open = {
            let watches = self.lock();
            if let Some(known) = watches.get(&process) {
                return Some(known.clone());
            }
            watches.len() < WATCHES_MAX
        };
        // Asked without the lock: the process may be stopped.
        let new = Arc::new(watch(peers, process, may_open));
        let mut watches = self.lock();
        Some(watches.entry(process).or_insert(new).clone())
    }

    /// Returns the processes that send here.
    pub(crate) fn watches(&self) -> Vec<Arc<PeerProcess>> {
        self.lock().values().cloned().collect()
    }

    /// Ceases to watch the processes that are not `wanted`.
    pub(crate) fn retain(&self, wanted: impl Fn(&ProcessId) -> bool) {
        self.lock().retain(|process, _| wanted(process));
    }

    /// Returns the senders in `table` that are delivering a datagram now. The caller passes a heavy fence first.
    pub(crate) fn busy(&self, table: &Table, peers: &Peers) -> Vec<Initiator> {
        let rows = table.senders().iter().enumerate();
        let busy = rows.filter_map(|(number, row)| {
            let (life, count) = row.delivery_in_progress()?;
            let row = table.held_sender(number);
            // `None`: another sender has taken the row. It began after the fence and need not be waited for.
            let peer_process = self.watch(peers, life, &row)?;
            Some(Initiator::sender(row, life, count, peer_process))
        });
        busy.collect()
    }
}

/// Begins to watch `process`. `may_open`: it may take a descriptor.
fn watch(peers: &Peers, process: ProcessId, may_open: bool) -> PeerProcess {
    if process == peers.own().process() {
        return PeerProcess::new(process, LifeEvidence::Own);
    }
    let entry = || PeerProcess::new(process, LifeEvidence::Entry(peers.registry().clone()));
    if !may_open {
        return entry();
    }
    match peers.registry().watch(process, true) {
        Ok(Some(watch)) => PeerProcess::new(process, LifeEvidence::Watch(watch)),
        Ok(None) => {
            let gone = entry();
            gone.mark_dead();
            gone
        }
        // Perhaps for lack of descriptors. Its entry is looked at now and then.
        Err(_) => entry(),
    }
}
