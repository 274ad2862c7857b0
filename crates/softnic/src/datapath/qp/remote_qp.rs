//! The peer's queue pair, as its initiator sees it: its row, its receives, the CQ where they complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use headworks_shm::asymmetric_fence;
use headworks_verbs::{Access, QpState, QpType, RnrTimer};

use super::QpCore;
use crate::datapath::cq::CqPort;
use crate::table::addresses::slot_of;
use crate::table::peer::{Peer, Queue};
use crate::table::rows::{NO_ROW, QpLife, QpRow, RecvSlot, RowRef, SrqRow, transport_of};

/// A checked path to the peer's queue pair.
pub(crate) struct RemoteQp {
    pub(crate) peer: Arc<Peer>,
    row: RowRef<QpRow>,
    pub(crate) slot: u16,
    /// The protection domain of the peer's queue pair.
    pub(crate) pd: u32,
    /// The `life` word that the peer's queue pair has while it is in RTS and on this connection.
    rts: QpLife,
    pub(crate) receives: Queue<RecvSlot>,
    /// Its shared receive queue, or [`NO_ROW`].
    srq: u32,
    pub(crate) recv_cq: Arc<CqPort>,
    /// Whether this process's kernel or the peer's refuses asymmetric fences.
    pub(crate) full_fences: bool,
    /// Whether the peer's queue pair answers READs and atomics.
    pub(crate) answers_reads: bool,
    /// Whether the connection is reliable (RC): an illegal request fails the peer's queue pair. Otherwise the request is lost.
    pub(crate) is_reliable: bool,
}

impl RemoteQp {
    /// Finds the queue pair that `core` is connected to. `None` while it does not exist, or is not
    /// connected to this one.
    pub(crate) fn find(core: &QpCore) -> Option<Self> {
        let ours = core.row();
        let dest = ours.dest_qpn.load(Ordering::Relaxed);
        let found = core
            .context
            .peers
            .attach(ours.dest_gid.load(Ordering::Relaxed), dest);
        let peer = found.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot reach a peer");
            None
        })?;
        let slot = slot_of(dest);
        let theirs = peer.table.held_qp(slot);
        let life = theirs.life();
        if !life.state().can_receive() || !theirs.takes_from(core) {
            return None;
        }
        Self::open(&peer, theirs, slot, life)
    }

    /// Finds the UD queue pair `qpn` of `peer`. `None` if there is none that can receive.
    pub(crate) fn to_datagrams(peer: &Arc<Peer>, qpn: u32) -> Option<Self> {
        let slot = slot_of(qpn);
        let theirs = peer.table.held_qp(slot);
        let life = theirs.life();
        let there = life.state().can_receive()
            && theirs.qpn.load(Ordering::Relaxed) == qpn
            && theirs.transport() == Some(QpType::Ud);
        if !there {
            return None;
        }
        Self::open(peer, theirs, slot, life)
    }

    fn open(peer: &Arc<Peer>, theirs: RowRef<QpRow>, slot: usize, life: QpLife) -> Option<Self> {
        let is_reliable = theirs.transport().is_some_and(QpType::is_reliable);
        let srq = theirs.srq.load(Ordering::Relaxed);
        let receives = match srq {
            NO_ROW => peer.queue(&theirs.receive_queue)?,
            row => peer.queue(&peer.table.srq(row).queue)?,
        };
        Some(Self {
            slot: slot as u16,
            rts: QpLife::new(life.generation(), QpState::Rts),
            pd: theirs.pd.load(Ordering::Relaxed),
            receives,
            srq,
            recv_cq: CqPort::shared(peer, theirs.recv_cq.load(Ordering::Relaxed))?,
            full_fences: peer.table.full_fences().load(Ordering::Relaxed) != 0
                || !asymmetric_fence::supported(),
            answers_reads: theirs.max_dest_rd_atomic.load(Ordering::Relaxed) > 0,
            is_reliable,
            row: theirs,
            peer: peer.clone(),
        })
    }

    #[inline]
    pub(crate) fn row(&self) -> &QpRow {
        &self.row
    }

    /// Returns whether it is in RTS on this connection, and allows WRITEs.
    #[inline(always)]
    pub(super) fn takes_writes_in_rts(&self) -> bool {
        let row = self.row();
        row.life() == self.rts && row.allows(Access::REMOTE_WRITE)
    }

    /// Returns the generation of the peer's queue pair, which numbers its connections.
    pub(crate) fn generation(&self) -> u64 {
        self.rts.generation()
    }

    /// Returns the row of its shared receive queue, if it has one.
    pub(crate) fn srq(&self) -> Option<u32> {
        (self.srq != NO_ROW).then_some(self.srq)
    }

    pub(crate) fn srq_row(&self) -> Option<&SrqRow> {
        self.srq().map(|row| self.peer.table.srq(row))
    }

    /// Returns whether the peer's queue pair is still on this connection and can receive.
    #[inline(always)]
    pub(crate) fn is_up(&self) -> bool {
        let life = self.row().life();
        life == self.rts || (life.generation() == self.generation() && life.state().can_receive())
    }

    /// Returns whether the peer's queue pair allows `need`.
    #[inline(always)]
    pub(crate) fn allows(&self, need: Access) -> bool {
        self.row().allows(need)
    }

    /// Returns whether the peer's queue pair is still on this connection, can receive, and allows WRITEs.
    #[inline(always)]
    pub(crate) fn takes_writes(&self) -> bool {
        self.is_up() && self.allows(Access::REMOTE_WRITE)
    }

    /// Returns how long the peer asks to be waited for when it has no receive posted.
    pub(crate) fn rnr_timer(&self) -> RnrTimer {
        let code = self.row().rnr_timer.load(Ordering::Relaxed);
        RnrTimer::new(code).unwrap_or_default()
    }

    /// Handles an illegal request: it moves the responder's queue pair to the error state. One of an unreliable connection is
    /// lost and has no effect (class D of the responder's errors, 9.9.3).
    #[cold]
    pub(crate) fn refuse(&self) {
        if self.is_reliable {
            self.fail_peer();
        }
    }

    /// Moves the responder's queue pair to the error state. Returns whether this call did.
    #[cold]
    pub(crate) fn fail_peer(&self) -> bool {
        let first = self.row().fail(self.generation());
        if first {
            self.peer.table.attention().qps.set(self.slot.into());
            self.peer.kick();
        }
        first
    }
}

impl QpRow {
    /// Returns whether the queue pair allows the peer `need`.
    #[inline(always)]
    pub(super) fn allows(&self, need: Access) -> bool {
        Access::from_bits_truncate(self.access.load(Ordering::Relaxed)).contains(need)
    }

    /// Returns whether this row, of the context that `core` is connected to, accepts requests from `core`.
    /// It compares what tells a NIC as much: transport, GID, QPN and packet sequence numbers. The responder of an unreliable
    /// connection takes the number of each message's first packet as it comes (9.8.3.1).
    fn takes_from(&self, core: &QpCore) -> bool {
        let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let ours = core.row();
        self.names(core) && (!core.is_reliable() || word(&ours.sq_psn) == word(&self.rq_psn))
    }

    /// Returns the transport of the queue pair. `None` if the word is none: the peer writes it.
    fn transport(&self) -> Option<QpType> {
        transport_of(self.transport.load(Ordering::Relaxed))
    }

    /// Returns whether this row, of the context that `core` is connected to, sends requests to `core`.
    pub(crate) fn sends_to(&self, core: &QpCore) -> bool {
        let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let ours = core.row();
        self.names(core) && (!core.is_reliable() || word(&self.sq_psn) == word(&ours.rq_psn))
    }

    /// Returns whether this row and `core` name each other as destination.
    fn names(&self, core: &QpCore) -> bool {
        let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
        self.transport() == Some(core.qp_type)
            && word(&self.qpn) == word(&core.row().dest_qpn)
            && word(&self.dest_qpn) == core.qpn
            && self.dest_gid.load(Ordering::Relaxed) == core.context.host.0
    }
}
