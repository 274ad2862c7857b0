//! The shared table of a context: one row per queue pair, CQ, SRQ, region, segment, and sender of
//! datagrams to this context.
//!
//! A context's process writes its own table, and its peers read it. Peers write only the senders' rows
//! and a few words, whose comments say so. Every field is an atomic, so a shared reference to a row is
//! always sound. The `life` and `key` words say whether a row is valid: they are stored last (Release)
//! when a row becomes valid, and first when it becomes invalid.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use headworks_shm::{EventCount, SenderRow, SharedSegment, ShmSafe, asymmetric_fence};
use headworks_verbs::{CqCounters, Opcode, QpCounters, QpState, QpType, Sge, Status};

/// Maximum number of queue pairs of one context.
pub(crate) const MAX_QP: usize = 4096;
/// Maximum number of completion queues of one context.
pub(crate) const MAX_CQ: usize = 4096;
/// Maximum number of shared receive queues of one context.
pub(crate) const MAX_SRQ: usize = 1024;
/// Maximum number of regions of one context.
pub(crate) const MAX_REGION: usize = 16_384;
/// Maximum number of shared-memory segments of one context.
pub(crate) const MAX_SEGMENT: usize = 8192;
/// Maximum number of scatter/gather entries of one request.
pub(crate) const MAX_SGE: usize = 6;
/// Maximum number of queue pairs, of all contexts together, that send datagrams to one context.
pub(crate) const MAX_SENDER: usize = 4096;
/// Stands for "none" in place of a row number.
pub(crate) const NO_ROW: u32 = u32::MAX;

/// In the `life` word of a segment's row: there is a segment.
pub(crate) const IN_USE: u64 = 1;

/// A shared-memory segment that peers may attach: `life` is generation << 32 | [`IN_USE`], 0 when
/// there is none.
#[repr(C)]
pub(crate) struct SegmentRow {
    pub(crate) life: AtomicU64,
    pub(crate) len: AtomicU64,
}

/// A registered region. `key` is generation << 32 | rkey while it is valid, else 0.
#[repr(C, align(64))]
pub(crate) struct RegionRow {
    pub(crate) key: AtomicU64,
    pub(crate) addr: AtomicU64,
    pub(crate) len: AtomicU64,
    pub(crate) offset: AtomicU64,
    pub(crate) segment: AtomicU32,
    pub(crate) segment_generation: AtomicU32,
    pub(crate) access: AtomicU32,
    pub(crate) pd: AtomicU32,
}

/// Where a queue in an arena is, and how many slots it has.
#[repr(C)]
pub(crate) struct QueueLocation {
    pub(crate) segment: AtomicU32,
    pub(crate) segment_generation: AtomicU32,
    pub(crate) offset: AtomicU64,
    pub(crate) capacity: AtomicU64,
}

/// A completion queue. `life` is the generation, 0 when there is none.
#[repr(C, align(64))]
pub(crate) struct CqRow {
    // Producers read these; the pollers' counts have a cache line of their own.
    pub(crate) life: AtomicU32,
    pub(crate) timestamps: AtomicU32,
    /// The number of the channel within the context, never reused; 0 without a channel.
    pub(crate) channel_number: AtomicU32,
    pub(crate) queue: QueueLocation,
    /// Arms the CQ for an event. Written by the owner and by producers.
    pub(crate) armed: EventCount,
    /// 1 once a producer found the queue full, 2 once the owner has raised the event for it.
    pub(crate) overrun: AtomicU32,
    /// Number of completions from which on the queue counts as full; 0: as many as it has memory for.
    pub(crate) limit: AtomicU32,
    pub(crate) counts: CqCounts,
}

/// Counters of a completion queue, for monitoring. Zeroed when its row becomes valid.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct CqCounts {
    /// Completions polled in total. Written under the pollers' lock.
    pub(crate) polled: AtomicU64,
    /// Completions polled from the lane in total. Written under the pollers' lock.
    pub(crate) lane_polled: AtomicU64,
    /// Completions that queue pairs which no longer exist put into the lane.
    pub(crate) lane_of_gone: AtomicU64,
    /// Events put into the CQ's channel.
    pub(crate) events: AtomicU64,
}

impl CqCounts {
    /// Zeroes the counters for a new CQ.
    pub(crate) fn clear(&self) {
        let Self {
            polled,
            lane_polled,
            lane_of_gone,
            events,
        } = self;
        for word in [polled, lane_polled, lane_of_gone, events] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a poll that took `taken` completions. `lane` is the number ever taken from the lane.
    #[inline(always)]
    pub(crate) fn took(&self, taken: usize, lane: u64) {
        count(&self.polled, taken as u64);
        self.lane_polled.store(lane, Ordering::Relaxed);
    }
}

/// A shared receive queue. `life` is the generation, 0 when there is none.
#[repr(C, align(64))]
pub(crate) struct SrqRow {
    pub(crate) life: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) queue: QueueLocation,
    /// The limit, 0 when not armed. The initiator that crosses it adds [`LIMIT_REACHED`]; the owner sets
    /// it to 0 when it raises the event. Both are in one word, so that the event is not lost if either
    /// dies in between.
    pub(crate) limit: AtomicU32,
    /// Receives posted in total. Written by the owner before a receive can be taken; read while a limit is
    /// armed.
    pub(crate) posted: CacheLineWord,
}

/// Set in the limit of an SRQ once it was crossed, until the event is raised.
pub(crate) const LIMIT_REACHED: u32 = 1 << 31;

/// The type of word that `headworks_shm::lane` works on; under its models it is a modelled atomic.
pub(crate) type RetiredWord = headworks_shm::primitive::AtomicU64;

/// Returns the word that stands for `qp_type` in [`QpRow::transport`].
pub(crate) const fn transport_code(qp_type: QpType) -> u8 {
    match qp_type {
        QpType::Ud => 1,
        QpType::Uc => 2,
        _ => 0,
    }
}

/// Returns the transport that `code` stands for; `None` if it stands for none.
pub(crate) const fn transport_of(code: u8) -> Option<QpType> {
    Some(match code {
        0 => QpType::Rc,
        1 => QpType::Ud,
        2 => QpType::Uc,
        _ => return None,
    })
}

/// A queue pair. `life` is generation << 8 | state.
#[repr(C, align(64))]
pub(crate) struct QpRow {
    // Written by the owner; the peer reads these on every request.
    pub(crate) life: AtomicU64,
    pub(crate) dest_gid: AtomicU64,
    pub(crate) qpn: AtomicU32,
    pub(crate) dest_qpn: AtomicU32,
    pub(crate) rq_psn: AtomicU32,
    pub(crate) sq_psn: AtomicU32,
    pub(crate) access: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) rnr_timer: AtomicU8,
    /// READs and atomics of the peer that may be outstanding; 0: none are answered. Written by the owner,
    /// read by the peer when it connects.
    pub(crate) max_dest_rd_atomic: AtomicU8,
    /// The transport: a [`transport_code`].
    pub(crate) transport: AtomicU8,
    pub(crate) recv_cq: AtomicU32,
    pub(crate) srq: AtomicU32,
    /// The Q_Key that datagrams must carry.
    pub(crate) qkey: AtomicU32,
    pub(crate) send_cq: AtomicU32,
    pub(crate) executing: Executing,
    pub(crate) receive_queue: QueueLocation,
    /// Send requests retired by polled completions in total. Written by the owner's pollers.
    pub(crate) sq_retired: RetiredWord,
    /// Position after the last receive whose completion was polled. Written by the owner's pollers.
    pub(crate) rq_retired: RetiredWord,
    /// Receives posted to its own queue in total. Written by the owner.
    pub(crate) rq_posted: AtomicU64,
    /// Total number of messages whose receive was polled, and of their bytes. Written by the owner's pollers.
    pub(crate) received: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
}

// Every further 64 bytes cost `MAX_QP` times as much.
const _: () = assert!(size_of::<QpRow>() == 192 || headworks_shm::primitive::MODELLED);

/// Words that a queue pair's process writes while it executes requests as initiator, so that
/// deregistration can wait for it.
///
/// There are three: one for the posting thread, one for waiting requests, one for calls that it serves.
/// Each is odd during an execution, and differs from one execution to the next. The counters beside them
/// are written by the first two kinds of execution, which never overlap; see `QpCore::is_ready`.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Executing {
    /// Bit 0: whether a call is executing now. Other bits: number of requests posted in total, up to the last
    /// finished call.
    pub(crate) posting: AtomicU64,
    pub(crate) pending: AtomicU64,
    /// For a call of the peer that the progress thread serves.
    pub(crate) serving: AtomicU64,
    /// Bytes that executed SENDs and WRITEs moved to the peer.
    pub(crate) sent_bytes: AtomicU64,
    /// Bytes that executed READs and atomics fetched.
    pub(crate) read_bytes: AtomicU64,
    /// Completions put into the send CQ's lane.
    pub(crate) lane: AtomicU64,
    /// Tries that found no receive at the peer (RNR).
    pub(crate) rnr: AtomicU32,
    /// Polled completions with an error other than flushed. Written by the owner's pollers.
    pub(crate) errors: AtomicU32,
    /// Polled completions with the flush status. Written by the owner's pollers.
    pub(crate) flushed: AtomicU32,
    /// Asynchronous events raised.
    pub(crate) events: AtomicU32,
}

/// Adds to a word that no other thread writes now, with a load and a store instead of an atomic
/// read-modify-write.
#[inline(always)]
pub(crate) fn count(word: &AtomicU64, more: u64) {
    let now = word.load(Ordering::Relaxed).wrapping_add(more);
    word.store(now, Ordering::Relaxed);
}

/// Marks the posting thread as executing, until it ends or is dropped.
pub(crate) struct Posting<'a>(&'a Executing);

impl Posting<'_> {
    /// Ends the call. `posted` is the number of requests posted in total, including this call's.
    #[inline(always)]
    pub(crate) fn end(self, posted: u64) {
        self.0.posting.store(posted << 1, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Posting<'_> {
    /// Ends the mark if the call panics.
    #[cold]
    fn drop(&mut self) {
        let posted = self.0.posting.load(Ordering::Relaxed) >> 1;
        self.0.posting.store(posted << 1, Ordering::Release);
    }
}

/// Marks an execution, other than by the posting thread, until dropped; a panic ends it too.
pub(crate) struct ExecutionMark<'a>(&'a AtomicU64);

impl<'a> ExecutionMark<'a> {
    fn set(word: &'a AtomicU64) -> Self {
        let even = word.load(Ordering::Relaxed);
        // Release: a thread that waited for the execution before this one sees all of it.
        word.store(even | 1, Ordering::Release);
        asymmetric_fence::full();
        Self(word)
    }
}

impl Drop for ExecutionMark<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let odd = self.0.load(Ordering::Relaxed);
        self.0.store(odd.wrapping_add(1) & !1, Ordering::Release);
    }
}

/// The executions of a queue pair that were under way at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExecutionSnapshot([u64; 3]);

impl ExecutionSnapshot {
    /// Returns whether all of them have ended, judging by the executions that are under way `now`.
    pub(crate) fn is_over(&self, now: &Self) -> bool {
        let mut words = self.0.iter().zip(now.0);
        words.all(|(before, now)| before.is_multiple_of(2) || *before != now)
    }
}

impl Executing {
    /// Marks the posting thread as executing, after `posted` requests. A fence must follow before it reads
    /// anything of the peer's.
    #[inline(always)]
    pub(crate) fn post(&self, posted: u64) -> Posting<'_> {
        // Release: a thread that waited for the execution before this one sees all of it.
        self.posting.store(posted << 1 | 1, Ordering::Release);
        Posting(self)
    }

    /// Marks waiting requests as being executed.
    pub(crate) fn resume(&self) -> ExecutionMark<'_> {
        ExecutionMark::set(&self.pending)
    }

    /// Marks a call of the peer as being served.
    pub(crate) fn serve(&self) -> ExecutionMark<'_> {
        ExecutionMark::set(&self.serving)
    }

    /// Returns the executions that are under way.
    pub(crate) fn underway(&self) -> ExecutionSnapshot {
        let words = [&self.posting, &self.pending, &self.serving];
        ExecutionSnapshot(words.map(|word| word.load(Ordering::Acquire)))
    }

    /// Zeroes all words for a new queue pair.
    pub(crate) fn clear(&self) {
        let Self {
            posting,
            pending,
            serving,
            sent_bytes,
            read_bytes,
            lane,
            ..
        } = self;
        for word in [posting, pending, serving, sent_bytes, read_bytes, lane] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.rnr, &self.errors, &self.flushed, &self.events] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Counts the `len` bytes of a request that was executed. Called by the thread that executed it.
    pub(crate) fn moved(&self, op: Opcode, len: u64) {
        match op {
            Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd => count(&self.read_bytes, len),
            _ => count(&self.sent_bytes, len),
        }
    }

    /// Counts a polled completion with an error.
    #[cold]
    pub(crate) fn failed(&self, status: u8) {
        let word = match status == Status::Flushed as u8 {
            true => &self.flushed,
            false => &self.errors,
        };
        word.fetch_add(1, Ordering::Relaxed);
    }
}

/// A word on a cache line of its own.
#[repr(C, align(64))]
pub(crate) struct CacheLineWord(pub(crate) AtomicU64);

#[repr(C)]
struct TableLayout {
    /// 1 where the owner's kernel refuses asymmetric fences: initiators then use full ones.
    full_fences: CacheLineWord,
    qps: [QpRow; MAX_QP],
    cqs: [CqRow; MAX_CQ],
    srqs: [SrqRow; MAX_SRQ],
    regions: [RegionRow; MAX_REGION],
    segments: [SegmentRow; MAX_SEGMENT],
    attention: Attention,
    /// One more than the highest sender row ever used. Only grows.
    senders_end: CacheLineWord,
    /// Queue pairs of any process that send datagrams to this context. They tell the owner for whom to
    /// wait, and whose unfinished deliveries to undo. Each row is written by the sender; see `senders`.
    senders: [SenderRow; MAX_SENDER],
    /// Where a queue pair's calls to its peer are written, if it ever made one. Not in the queue pair's
    /// row, whose cache lines every request reads.
    bounce_buffers: [QueueLocation; MAX_QP],
}

/// One bit per row of one kind: whether the owner's progress thread is to look at it. To report a change,
/// mark the row and then wake the thread; so the thread need not look at all rows.
#[repr(C, align(64))]
pub(crate) struct AttentionBits<const WORDS: usize>([AtomicU64; WORDS]);

/// The rows of a table that the owner's progress thread is to look at. Marked by the owner and by peers.
#[repr(C)]
pub(crate) struct Attention {
    /// Queue pairs that failed, were connected, or have requests waiting.
    pub(crate) qps: AttentionBits<{ MAX_QP / 64 }>,
    /// CQs that overran.
    pub(crate) cqs: AttentionBits<{ MAX_CQ / 64 }>,
    /// SRQs that fell below their limit.
    pub(crate) srqs: AttentionBits<{ MAX_SRQ / 64 }>,
    /// Queue pairs whose peer made a call through its bounce buffer.
    pub(crate) calls: AttentionBits<{ MAX_QP / 64 }>,
    /// New senders of datagrams, with one mark for all of them.
    pub(crate) senders: AttentionBits<1>,
}

impl<const WORDS: usize> AttentionBits<WORDS> {
    pub(crate) fn set(&self, row: usize) {
        // Pairs with `take`, which then sees what the row is marked for.
        self.0[row / 64 % WORDS].fetch_or(1 << (row % 64), Ordering::Release);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Clears all marks and calls `each` with every marked row.
    pub(crate) fn take(&self, mut each: impl FnMut(usize)) {
        for (index, word) in self.0.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                each(index * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

/// The first bytes of a receive: the whole of it, if it has no more pieces than fit here. An initiator
/// that reads no more fetches one cache line instead of two.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct RecvHead {
    pub(crate) wr_id: u64,
    pub(crate) sge_count: u32,
    pub(crate) _pad: u32,
    pub(crate) sges: [Sge; 2],
}

/// A receive posted to an RQ or SRQ.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct RecvSlot {
    pub(crate) wr_id: u64,
    pub(crate) sge_count: u32,
    pub(crate) _pad: u32,
    pub(crate) sges: [Sge; MAX_SGE],
}

impl RecvHead {
    /// Returns the scatter list, if all of it is here.
    pub(crate) fn sges(&self) -> Option<&[Sge]> {
        self.sges.get(..self.sge_count as usize)
    }
}

impl RecvSlot {
    /// Returns the scatter list.
    pub(crate) fn sges(&self) -> &[Sge] {
        &self.sges[..(self.sge_count as usize).min(MAX_SGE)]
    }

    /// Returns how many bytes the receive takes.
    pub(crate) fn room(&self) -> u64 {
        self.sges().iter().map(|sge| u64::from(sge.len)).sum()
    }
}

/// A queued completion.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct CqSlot {
    pub(crate) wr_id: u64,
    /// For a send: requests retired once this is polled. For a receive: its position in the RQ or SRQ.
    pub(crate) position: u64,
    pub(crate) timestamp: u64,
    pub(crate) qpn: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm: u32,
    pub(crate) src_qpn: u32,
    pub(crate) status: u8,
    pub(crate) opcode: u8,
    pub(crate) has_imm: u8,
    /// Of a datagram: [`GRH`] or [`IPV4_HEADER`]; else 0.
    pub(crate) header: u8,
    pub(crate) _pad: [u8; 4],
}

/// [`CqSlot::header`]: the datagram begins with a GRH.
pub(crate) const GRH: u8 = 1;
/// [`CqSlot::header`]: the datagram begins with 40 bytes that end with an IPv4 header.
pub(crate) const IPV4_HEADER: u8 = 2;

// SAFETY: repr(C), integers only, no pointers; every bit pattern is a value.
unsafe impl ShmSafe for RecvHead {}
// SAFETY: repr(C), integers only, no pointers; every bit pattern is a value.
unsafe impl ShmSafe for RecvSlot {}
// SAFETY: repr(C), integers only, no pointers; every bit pattern is a value.
unsafe impl ShmSafe for CqSlot {}

/// A context's table, our own or a peer's.
#[derive(Clone)]
pub(crate) struct Table {
    layout: NonNull<TableLayout>,
    segment: Arc<SharedSegment>,
}

// SAFETY: `layout` points into `segment`, which may move between threads and be shared by them. `Layout`
// consists of atomics only.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// Size of a table in bytes.
    pub(crate) const BYTES: usize = size_of::<TableLayout>();

    /// Returns the table in `segment`, unless the segment is too small or misaligned.
    pub(crate) fn new(segment: Arc<SharedSegment>) -> Option<Self> {
        let layout = NonNull::new(segment.as_ptr().cast::<TableLayout>())?;
        (segment.len() >= Self::BYTES && layout.is_aligned()).then_some(Self { layout, segment })
    }

    #[inline(always)]
    fn layout(&self) -> &TableLayout {
        // SAFETY: `new` checked size and alignment. The segment stays mapped as long as `self`. `Layout`
        // consists of atomics only, so concurrent writers are allowed.
        unsafe { self.layout.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn qp(&self, slot: usize) -> &QpRow {
        &self.layout().qps[slot % MAX_QP]
    }

    #[inline(always)]
    pub(crate) fn region(&self, key: u32) -> &RegionRow {
        &self.layout().regions[key as usize % MAX_REGION]
    }

    /// Returns where the bounce buffer of queue pair `slot` is.
    pub(crate) fn bounce_buffer(&self, slot: usize) -> &QueueLocation {
        &self.layout().bounce_buffers[slot % MAX_QP]
    }

    /// Returns a queue pair's row for a caller that reads it on every request.
    pub(crate) fn held_qp(&self, slot: usize) -> RowRef<QpRow> {
        self.held(self.qp(slot))
    }

    /// Returns a region's row for a caller that reads it on every request.
    pub(crate) fn held_region(&self, key: u32) -> RowRef<RegionRow> {
        self.held(self.region(key))
    }

    fn held<T>(&self, row: &T) -> RowRef<T> {
        RowRef {
            row: NonNull::from(row),
            table: self.segment.clone(),
        }
    }

    pub(crate) fn cq(&self, row: u32) -> &CqRow {
        &self.layout().cqs[row as usize % MAX_CQ]
    }

    pub(crate) fn srq(&self, row: u32) -> &SrqRow {
        &self.layout().srqs[row as usize % MAX_SRQ]
    }

    pub(crate) fn segment(&self, row: u32) -> &SegmentRow {
        &self.layout().segments[row as usize % MAX_SEGMENT]
    }

    pub(crate) fn attention(&self) -> &Attention {
        &self.layout().attention
    }

    /// Returns the sender rows that are, or were, in use.
    pub(crate) fn senders(&self) -> &[SenderRow] {
        let end = self.senders_end().load(Ordering::Acquire) as usize;
        &self.layout().senders[..end.min(MAX_SENDER)]
    }

    pub(crate) fn senders_end(&self) -> &AtomicU64 {
        &self.layout().senders_end.0
    }

    pub(crate) fn sender(&self, row: usize) -> &SenderRow {
        &self.layout().senders[row % MAX_SENDER]
    }

    pub(crate) fn held_sender(&self, row: usize) -> RowRef<SenderRow> {
        self.held(self.sender(row))
    }

    pub(crate) fn full_fences(&self) -> &AtomicU64 {
        &self.layout().full_fences.0
    }

    pub(crate) fn shared(&self) -> &Arc<SharedSegment> {
        &self.segment
    }
}

/// A table's row that is kept mapped, so that it need not be found again.
pub(crate) struct RowRef<T> {
    row: NonNull<T>,
    table: Arc<SharedSegment>,
}

// SAFETY: as for `Table`.
unsafe impl<T: Sync> Send for RowRef<T> {}
// SAFETY: as for `Table`.
unsafe impl<T: Sync> Sync for RowRef<T> {}

impl<T> RowRef<T> {
    /// Returns the table, which keeps the row mapped.
    pub(crate) fn into_table(self) -> Arc<SharedSegment> {
        self.table
    }
}

impl<T> std::ops::Deref for RowRef<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: only `Table::held` makes these, from a row in `table`, which is still mapped. Rows
        // consist of atomics only.
        unsafe { self.row.as_ref() }
    }
}

/// The `life` word of a queue pair's row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QpLife(pub(crate) u64);

impl QpLife {
    pub(crate) const fn new(generation: u64, state: QpState) -> Self {
        Self(generation << 8 | state as u64)
    }

    pub(crate) const fn generation(self) -> u64 {
        self.0 >> 8
    }

    /// Returns the state. A value that no correct process writes counts as the error state.
    pub(crate) fn state(self) -> QpState {
        QpState::from_code(self.0 as u8).unwrap_or(QpState::Error)
    }
}

impl QpRow {
    #[inline]
    pub(crate) fn life(&self) -> QpLife {
        QpLife(self.life.load(Ordering::Acquire))
    }

    /// Moves the UD queue pair of the given generation to SQE after a failed request. It then sends no more, and
    /// still receives.
    pub(crate) fn stop_sending(&self, generation: u64) {
        let (from, to) = (
            QpLife::new(generation, QpState::Rts),
            QpLife::new(generation, QpState::Sqe),
        );
        // If it is in another state, another thread or the peer has changed that, and their change stands.
        let _ = self
            .life
            .compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Moves the queue pair of the given generation to the error state. Returns whether this call did.
    pub(crate) fn fail(&self, generation: u64) -> bool {
        // A correct process changes the state a few times at most while this loops. One that changes it
        // without end is broken, and the loop gives up.
        const TRIES: usize = 64;
        let failed = QpLife::new(generation, QpState::Error);
        let mut life = self.life();
        for _ in 0..TRIES {
            let over = matches!(life.state(), QpState::Error | QpState::Reset);
            if over || life.generation() != generation {
                return false;
            }
            let swapped =
                self.life
                    .compare_exchange(life.0, failed.0, Ordering::AcqRel, Ordering::Acquire);
            match swapped {
                Ok(_) => return true,
                Err(now) => life = QpLife(now),
            }
        }
        false
    }
}

impl QpRow {
    /// Returns the queue pair's counters, of this row and of `executing`.
    pub(crate) fn counters(&self) -> QpCounters {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let half = |word: &AtomicU32| word.load(Ordering::Relaxed).into();
        let executing = &self.executing;
        // The retired counts are read first, so that posted minus retired is not negative.
        let sends_retired = self.sq_retired.load(Ordering::Relaxed);
        let receives_retired = self.rq_retired.load(Ordering::Relaxed);
        let receives_posted = word(&self.rq_posted);
        QpCounters {
            sends_posted: word(&executing.posting) >> 1,
            sends_retired,
            sent_bytes: word(&executing.sent_bytes),
            read_bytes: word(&executing.read_bytes),
            receives_posted,
            // With an SRQ the word holds a position in the SRQ, and this queue pair posted none.
            receives_retired: receives_retired.min(receives_posted),
            received: word(&self.received),
            received_bytes: word(&self.received_bytes),
            rnr: half(&executing.rnr),
            errors: half(&executing.errors),
            flushed: half(&executing.flushed),
            events: half(&executing.events),
        }
    }
}

impl CqRow {
    /// Returns the CQ's counters. `unpolled` is the number of completions that wait.
    pub(crate) fn counters(&self, unpolled: u64) -> CqCounters {
        CqCounters {
            polled: self.counts.polled.load(Ordering::Relaxed),
            unpolled,
            events: self.counts.events.load(Ordering::Relaxed),
            overrun: self.overrun.load(Ordering::Relaxed) != 0,
        }
    }
}

impl QueueLocation {
    pub(crate) fn set(&self, at: SegmentOffset, capacity: usize) {
        self.segment.store(at.segment, Ordering::Relaxed);
        self.segment_generation
            .store(at.generation, Ordering::Relaxed);
        self.offset.store(at.offset as u64, Ordering::Relaxed);
        self.capacity.store(capacity as u64, Ordering::Release);
    }

    /// Marks the place as empty.
    pub(crate) fn clear(&self) {
        self.capacity.store(0, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> (SegmentOffset, usize) {
        let capacity = self.capacity.load(Ordering::Acquire) as usize;
        let at = SegmentOffset {
            segment: self.segment.load(Ordering::Relaxed),
            generation: self.segment_generation.load(Ordering::Relaxed),
            offset: self.offset.load(Ordering::Relaxed) as usize,
        };
        (at, capacity)
    }
}

/// Where something is in a context's segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentOffset {
    pub(crate) segment: u32,
    pub(crate) generation: u32,
    pub(crate) offset: usize,
}

/// Makes a segment with room for a table, for tests.
#[cfg(test)]
pub(crate) fn empty_segment() -> Arc<SharedSegment> {
    let request = headworks_shm::SegmentRequest {
        name: "table",
        len: Table::BYTES,
        huge_pages: headworks_shm::HugePages::No,
        numa_node: None,
        is_sealed: false,
    };
    Arc::new(SharedSegment::create(&request).expect("a segment"))
}
