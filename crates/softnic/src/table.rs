//! The shared table of a context: one row per queue pair, CQ, SRQ, region and segment, and one per
//! sender of datagrams to it.
//!
//! A context's process writes its own table and its peers read it; what peers write, a few words and
//! the senders' rows, says so. Every field is an atomic, so a shared reference to a row is always sound; meaning comes
//! from the `life` and `key` words, which are stored last (Release) when a row comes to life and
//! first when it dies.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use headworks_shm::{EventCount, SenderRow, SharedSegment, ShmSafe, asymmetric_fence};
use headworks_verbs::{CqCounters, Opcode, QpCounters, QpState, Sge, Status};

/// Queue pairs of one context.
pub(crate) const MAX_QP: usize = 4096;
/// Completion queues of one context.
pub(crate) const MAX_CQ: usize = 4096;
/// Shared receive queues of one context.
pub(crate) const MAX_SRQ: usize = 1024;
/// Regions of one context.
pub(crate) const MAX_REGION: usize = 16_384;
/// Shared-memory segments of one context.
pub(crate) const MAX_SEGMENT: usize = 8192;
/// Scatter/gather entries of a request.
pub(crate) const MAX_SGE: usize = 6;
/// Queue pairs of any context that send datagrams to one context.
pub(crate) const MAX_SENDER: usize = 4096;
/// "None" where a row number stands.
pub(crate) const NO_ROW: u32 = u32::MAX;

/// A shared-memory segment that peers may attach: `life` is generation << 32 | (fd + 1), 0 when
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

/// A queue in an arena: where it is and how many slots it has.
#[repr(C)]
pub(crate) struct Place {
    pub(crate) segment: AtomicU32,
    pub(crate) segment_generation: AtomicU32,
    pub(crate) offset: AtomicU64,
    pub(crate) capacity: AtomicU64,
}

/// A completion queue. `life` is the generation, 0 when there is none.
#[repr(C, align(64))]
pub(crate) struct CqRow {
    // What producers look at; the pollers' counts are on a line of their own.
    pub(crate) life: AtomicU32,
    pub(crate) timestamps: AtomicU32,
    /// The channel's write end in the owner's process, plus 1; 0 without a channel.
    pub(crate) channel_fd: AtomicU32,
    /// Which of the context's channels, never reused.
    pub(crate) channel_number: AtomicU32,
    pub(crate) queue: Place,
    /// Written by owner and producers.
    pub(crate) armed: EventCount,
    /// 1 since a producer found it full, 2 since the owner has told of that.
    pub(crate) overrun: AtomicU32,
    pub(crate) counts: CqCounts,
}

/// What happened on a completion queue, for whoever looks on. Zeroed when its row comes to life.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct CqCounts {
    /// Completions polled, ever. Written under the pollers' lock.
    pub(crate) polled: AtomicU64,
    /// Those of them that took the lane. Likewise.
    pub(crate) lane_polled: AtomicU64,
    /// Completions that queue pairs which are gone by now put into the lane.
    pub(crate) lane_of_gone: AtomicU64,
    /// Events put into its channel.
    pub(crate) events: AtomicU64,
}

impl CqCounts {
    /// A new CQ has the row.
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

    /// A poll took `taken`, and with it `lane` from the lane, ever.
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
    pub(crate) queue: Place,
    /// The limit, 0 when not armed. The initiator that crosses it adds [`LIMIT_REACHED`], the owner
    /// sets it to 0 when it raises the event: one word, so that no death between loses the event.
    pub(crate) limit: AtomicU32,
    /// Receives posted, ever. Written by the owner, before each can be taken; read where a limit is
    /// armed.
    pub(crate) posted: Line,
}

/// In the limit of an SRQ: it was crossed, and the event is not raised yet.
pub(crate) const LIMIT_REACHED: u32 = 1 << 31;

/// A word of the kind that `headworks_shm::lane` works on, also where its models are built.
pub(crate) type RetiredWord = headworks_shm::primitive::AtomicU64;

/// A queue pair. `life` is generation << 8 | state.
#[repr(C, align(64))]
pub(crate) struct QpRow {
    // Written by the owner, read by the peer on every request.
    pub(crate) life: AtomicU64,
    pub(crate) dest_gid: AtomicU64,
    pub(crate) qpn: AtomicU32,
    pub(crate) dest_qpn: AtomicU32,
    pub(crate) rq_psn: AtomicU32,
    pub(crate) sq_psn: AtomicU32,
    pub(crate) access: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) rnr_timer: AtomicU8,
    /// READs and atomics of the peer that it holds; 0: none are answered. Written by the owner, read
    /// by the peer when it connects.
    pub(crate) max_dest_rd_atomic: AtomicU8,
    /// 1 for a queue pair of datagrams.
    pub(crate) datagrams: AtomicU8,
    pub(crate) recv_cq: AtomicU32,
    pub(crate) srq: AtomicU32,
    /// What datagrams must name.
    pub(crate) qkey: AtomicU32,
    pub(crate) send_cq: AtomicU32,
    pub(crate) executing: Executing,
    pub(crate) receive_queue: Place,
    /// Send requests retired by polled completions, ever. Written by the owner's pollers.
    pub(crate) sq_retired: RetiredWord,
    /// Position after the last receive whose completion was polled. Likewise.
    pub(crate) rq_retired: RetiredWord,
    /// Receives posted to its own queue, ever. Written by the owner.
    pub(crate) rq_posted: AtomicU64,
    /// Messages whose receive was polled, ever, and their bytes. Written by the owner's pollers.
    pub(crate) received: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
}

// What another 64 bytes would cost is multiplied by `MAX_QP`.
const _: () = assert!(size_of::<QpRow>() == 192 || headworks_shm::primitive::MODELLED);

/// Written by a queue pair's own process while it executes requests as initiator, so that whoever
/// takes memory away can wait: one word for the posting thread, one for pending work, one for calls
/// that it serves. Each is odd during an execution, and another number in the next. Beside them is
/// what the first two count: never both at once, see `QpCore::is_ready`.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Executing {
    /// Requests posted, ever, up to the last call << 1 | whether one is being executed.
    pub(crate) posting: AtomicU64,
    pub(crate) pending: AtomicU64,
    /// The progress thread serves a call of the peer's.
    pub(crate) serving: AtomicU64,
    /// Bytes that executed SENDs and WRITEs took to the peer.
    pub(crate) sent_bytes: AtomicU64,
    /// Bytes that executed READs and atomics brought back.
    pub(crate) read_bytes: AtomicU64,
    /// Completions put into the send CQ's lane.
    pub(crate) lane: AtomicU64,
    /// Tries that found no receive at the peer.
    pub(crate) rnr: AtomicU32,
    /// Polled completions that say an error other than flushed; that say flushed. Written by the
    /// owner's pollers.
    pub(crate) errors: AtomicU32,
    pub(crate) flushed: AtomicU32,
    /// Asynchronous events raised.
    pub(crate) events: AtomicU32,
}

/// Adds to a word that nobody else writes now: a load and a store, no atomic instruction.
#[inline(always)]
pub(crate) fn count(word: &AtomicU64, more: u64) {
    let now = word.load(Ordering::Relaxed).wrapping_add(more);
    word.store(now, Ordering::Relaxed);
}

/// Says that the posting thread executes a request, while it lives.
pub(crate) struct Posting<'a>(&'a Executing);

impl Posting<'_> {
    /// The call is over, and `posted` requests were posted, ever.
    #[inline(always)]
    pub(crate) fn end(self, posted: u64) {
        self.0.posting.store(posted << 1, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Posting<'_> {
    /// Also a panic ends it.
    #[cold]
    fn drop(&mut self) {
        let posted = self.0.posting.load(Ordering::Relaxed) >> 1;
        self.0.posting.store(posted << 1, Ordering::Release);
    }
}

/// Says that pending work is being executed, while it lives: also a panic ends that.
pub(crate) struct Mark<'a>(&'a AtomicU64);

impl<'a> Mark<'a> {
    fn set(word: &'a AtomicU64) -> Self {
        let even = word.load(Ordering::Relaxed);
        // Release: whoever waited for the execution before this one sees all of it.
        word.store(even | 1, Ordering::Release);
        asymmetric_fence::full();
        Self(word)
    }
}

impl Drop for Mark<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let odd = self.0.load(Ordering::Relaxed);
        self.0.store(odd.wrapping_add(1) & !1, Ordering::Release);
    }
}

/// What a queue pair was executing when somebody looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Underway([u64; 3]);

impl Underway {
    /// Whether none of it is under way any more, going by what is to be seen `now`.
    pub(crate) fn is_over(&self, now: &Self) -> bool {
        let mut words = self.0.iter().zip(now.0);
        words.all(|(before, now)| before.is_multiple_of(2) || *before != now)
    }
}

impl Executing {
    /// The posting thread executes, with `posted` requests posted before; a fence must follow before
    /// it looks at anything.
    #[inline(always)]
    pub(crate) fn post(&self, posted: u64) -> Posting<'_> {
        // Release: whoever waited for the execution before this one sees all of it.
        self.posting.store(posted << 1 | 1, Ordering::Release);
        Posting(self)
    }

    /// Pending work is executed.
    pub(crate) fn carry_on(&self) -> Mark<'_> {
        Mark::set(&self.pending)
    }

    /// A call of the peer's is served.
    pub(crate) fn serve(&self) -> Mark<'_> {
        Mark::set(&self.serving)
    }

    /// What is under way.
    pub(crate) fn underway(&self) -> Underway {
        let words = [&self.posting, &self.pending, &self.serving];
        Underway(words.map(|word| word.load(Ordering::Acquire)))
    }

    /// A new queue pair has the row.
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

    /// Notes that a request which was carried out moved `len` bytes. For who executed it.
    pub(crate) fn moved(&self, op: Opcode, len: u64) {
        match op {
            Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd => count(&self.read_bytes, len),
            _ => count(&self.sent_bytes, len),
        }
    }

    /// Notes a polled completion that is no success.
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
pub(crate) struct Line(pub(crate) AtomicU64);

#[repr(C)]
struct Layout {
    /// 1 where the owner's kernel refuses asymmetric fences: initiators then use full ones.
    full_fences: Line,
    qps: [QpRow; MAX_QP],
    cqs: [CqRow; MAX_CQ],
    srqs: [SrqRow; MAX_SRQ],
    regions: [RegionRow; MAX_REGION],
    segments: [SegmentRow; MAX_SEGMENT],
    attention: Attention,
    /// No sender has had this row, or one behind it. Only grows.
    senders_end: Line,
    /// Queue pairs that send datagrams to this context's, in whatever process: how the owner knows whom to
    /// wait for, and whose half-done work to undo. Each is written by its process; see `senders`.
    senders: [SenderRow; MAX_SENDER],
    /// Where a queue pair's calls to its peer are written, of those that ever made one. Not in their
    /// rows, whose lines every request looks at.
    windows: [Place; MAX_QP],
}

/// Rows of one kind that the owner's progress thread is to look at, a bit each. Whoever changes a
/// row marks it and then wakes the thread, which so need not look at all of them.
#[repr(C, align(64))]
pub(crate) struct Marks<const WORDS: usize>([AtomicU64; WORDS]);

/// What of a table the owner's progress thread is to look at. Marked by the owner and by peers.
#[repr(C)]
pub(crate) struct Attention {
    /// They failed, were connected, or have work waiting.
    pub(crate) qps: Marks<{ MAX_QP / 64 }>,
    /// They overran.
    pub(crate) cqs: Marks<{ MAX_CQ / 64 }>,
    /// They fell below their limit.
    pub(crate) srqs: Marks<{ MAX_SRQ / 64 }>,
    /// The queue pairs whose peer made a call through its window.
    pub(crate) calls: Marks<{ MAX_QP / 64 }>,
    /// Some of them are new: one mark for all.
    pub(crate) senders: Marks<1>,
}

impl<const WORDS: usize> Marks<WORDS> {
    pub(crate) fn set(&self, row: usize) {
        // Pairs with `take`: what the row is marked for is seen.
        self.0[row / 64 % WORDS].fetch_or(1 << (row % 64), Ordering::Release);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Takes all marks and shows their rows.
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

/// How a receive begins: all of it, if it has no more pieces of memory than that. Reading no further
/// saves an initiator from fetching a second cache line.
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
    /// The entries of the list, if all of them are here.
    pub(crate) fn sges(&self) -> Option<&[Sge]> {
        self.sges.get(..self.sge_count as usize)
    }
}

impl RecvSlot {
    /// The entries of the list.
    pub(crate) fn sges(&self) -> &[Sge] {
        &self.sges[..(self.sge_count as usize).min(MAX_SGE)]
    }

    /// Bytes that fit in.
    pub(crate) fn room(&self) -> u64 {
        self.sges().iter().map(|sge| u64::from(sge.len)).sum()
    }
}

/// A completion on its way.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct CqSlot {
    pub(crate) wr_id: u64,
    /// Sends: requests retired once this is polled. Receives: its position in the RQ or SRQ.
    pub(crate) position: u64,
    pub(crate) timestamp: u64,
    pub(crate) qpn: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm: u32,
    pub(crate) src_qpn: u32,
    pub(crate) status: u8,
    pub(crate) opcode: u8,
    pub(crate) has_imm: u8,
    pub(crate) has_grh: u8,
    pub(crate) _pad: [u8; 4],
}

// SAFETY: repr(C), integers only, no pointers; every bit pattern is a value.
unsafe impl ShmSafe for RecvHead {}
// SAFETY: repr(C), integers only, no pointers; every bit pattern is a value.
unsafe impl ShmSafe for RecvSlot {}
// SAFETY: repr(C), integers only, no pointers; every bit pattern is a value.
unsafe impl ShmSafe for CqSlot {}

/// A context's table, our own or a peer's.
#[derive(Clone)]
pub(crate) struct Table {
    layout: NonNull<Layout>,
    segment: Arc<SharedSegment>,
}

// SAFETY: `layout` points into `segment`, which may move between threads and is shared by them;
// what it points to consists of atomics.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// Bytes a table takes.
    pub(crate) const BYTES: usize = size_of::<Layout>();

    /// The table in `segment`, unless that is too small to hold one.
    pub(crate) fn new(segment: Arc<SharedSegment>) -> Option<Self> {
        let layout = NonNull::new(segment.as_ptr().cast::<Layout>())?;
        (segment.len() >= Self::BYTES && layout.is_aligned()).then_some(Self { layout, segment })
    }

    #[inline(always)]
    fn layout(&self) -> &Layout {
        // SAFETY: `new` checked size and alignment, the segment stays mapped as long as `self`,
        // and `Layout` consists of atomics only, so concurrent writers are allowed.
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

    /// Where queue pair `slot`'s window is.
    pub(crate) fn window(&self, slot: usize) -> &Place {
        &self.layout().windows[slot % MAX_QP]
    }

    /// The row of a queue pair that is looked at with every request.
    pub(crate) fn held_qp(&self, slot: usize) -> Held<QpRow> {
        self.held(self.qp(slot))
    }

    /// The row of a region that is looked at with every request.
    pub(crate) fn held_region(&self, key: u32) -> Held<RegionRow> {
        self.held(self.region(key))
    }

    fn held<T>(&self, row: &T) -> Held<T> {
        Held {
            row: NonNull::from(row),
            _table: self.segment.clone(),
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

    /// The rows that senders have, or had.
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

    pub(crate) fn held_sender(&self, row: usize) -> Held<SenderRow> {
        self.held(self.sender(row))
    }

    pub(crate) fn full_fences(&self) -> &AtomicU64 {
        &self.layout().full_fences.0
    }

    pub(crate) fn shared(&self) -> &Arc<SharedSegment> {
        &self.segment
    }
}

/// A row of a table that stays mapped as long as this lives: no need to find it again.
pub(crate) struct Held<T> {
    row: NonNull<T>,
    _table: Arc<SharedSegment>,
}

// SAFETY: as for `Table`.
unsafe impl<T: Sync> Send for Held<T> {}
// SAFETY: as for `Table`.
unsafe impl<T: Sync> Sync for Held<T> {}

impl<T> std::ops::Deref for Held<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: only `Table::held` makes these, from a row in `_table`, which is still mapped; rows
        // consist of atomics only.
        unsafe { self.row.as_ref() }
    }
}

/// A QP row's `life` word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Life(pub(crate) u64);

impl Life {
    pub(crate) const fn new(generation: u64, state: QpState) -> Self {
        Self(generation << 8 | state as u64)
    }

    pub(crate) const fn generation(self) -> u64 {
        self.0 >> 8
    }

    /// The state; what no correct process writes counts as the error state.
    pub(crate) fn state(self) -> QpState {
        QpState::from_code(self.0 as u8).unwrap_or(QpState::Error)
    }
}

impl QpRow {
    #[inline]
    pub(crate) fn life(&self) -> Life {
        Life(self.life.load(Ordering::Acquire))
    }

    /// A request of datagrams failed: the queue pair of that generation sends no more, and receives
    /// on.
    pub(crate) fn stop_sending(&self, generation: u64) {
        let (from, to) = (
            Life::new(generation, QpState::Rts),
            Life::new(generation, QpState::Sqe),
        );
        // Where it is in another state somebody else has changed that, and theirs stands.
        let _ = self
            .life
            .compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Moves the queue pair of that generation to the error state. Says whether this call did.
    pub(crate) fn fail(&self, generation: u64) -> bool {
        // Between two failures a queue pair is moved a few times at most; who moves it without end is
        // broken, and need not be fought with.
        const TRIES: usize = 64;
        let failed = Life::new(generation, QpState::Error);
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
                Err(now) => life = Life(now),
            }
        }
        false
    }
}

impl QpRow {
    /// What is counted in it, and beside it.
    pub(crate) fn counters(&self) -> QpCounters {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let half = |word: &AtomicU32| word.load(Ordering::Relaxed).into();
        let executing = &self.executing;
        // Retired first, so that the difference is not below zero.
        let sends_retired = self.sq_retired.load(Ordering::Relaxed);
        let receives_retired = self.rq_retired.load(Ordering::Relaxed);
        let receives_posted = word(&self.rq_posted);
        QpCounters {
            sends_posted: word(&executing.posting) >> 1,
            sends_retired,
            sent_bytes: word(&executing.sent_bytes),
            read_bytes: word(&executing.read_bytes),
            receives_posted,
            // With an SRQ the word counts that one's receives.
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
    /// What is counted in it. `unpolled` is what waits.
    pub(crate) fn counters(&self, unpolled: u64) -> CqCounters {
        CqCounters {
            polled: self.counts.polled.load(Ordering::Relaxed),
            unpolled,
            events: self.counts.events.load(Ordering::Relaxed),
            overrun: self.overrun.load(Ordering::Relaxed) != 0,
        }
    }
}

impl Place {
    pub(crate) fn set(&self, at: PlaceOf, capacity: usize) {
        self.segment.store(at.segment, Ordering::Relaxed);
        self.segment_generation
            .store(at.generation, Ordering::Relaxed);
        self.offset.store(at.offset as u64, Ordering::Relaxed);
        self.capacity.store(capacity as u64, Ordering::Release);
    }

    /// There is nothing.
    pub(crate) fn clear(&self) {
        self.capacity.store(0, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> (PlaceOf, usize) {
        let capacity = self.capacity.load(Ordering::Acquire) as usize;
        let at = PlaceOf {
            segment: self.segment.load(Ordering::Relaxed),
            generation: self.segment_generation.load(Ordering::Relaxed),
            offset: self.offset.load(Ordering::Relaxed) as usize,
        };
        (at, capacity)
    }
}

/// Where something is in a context's segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlaceOf {
    pub(crate) segment: u32,
    pub(crate) generation: u32,
    pub(crate) offset: usize,
}

/// A segment with room for a table, for tests.
#[cfg(test)]
pub(crate) fn empty_segment() -> Arc<SharedSegment> {
    let request = headworks_shm::SegmentRequest {
        name: "table",
        len: Table::BYTES,
        huge_pages: headworks_shm::HugePages::No,
        numa_node: None,
    };
    Arc::new(SharedSegment::create(&request).expect("a segment"))
}
