//! Reads another process's table, row by row. Nothing here writes to it: the mapping is read-only.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use headworks_shm::slot_queue::len_hint_at;
use headworks_shm::{DescriptorClient, SharedSegment, ShmSafe};
use headworks_verbs::QpState;

use super::{
    CompletionQueueSnapshot, CountAndBytes, HostNames, PeerSnapshot, QueuePairSnapshot,
    SharedReceiveQueueSnapshot,
};
use crate::table::addresses::key_of;
use crate::table::descriptors::DescriptorKind;
use crate::table::rows::{
    CqRow, CqSlot, LIMIT_REACHED, MAX_CQ, MAX_QP, MAX_REGION, MAX_SEGMENT, MAX_SRQ, NO_ROW, QpRow,
    QueueLocation, RecvSlot, SrqRow, Table, transport_of,
};

/// Maximum number of segments kept mapped while a table is read: a broken table may name thousands.
const SEGMENTS_HELD: usize = 32;

/// The content of a table.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) queue_pairs: Vec<QueuePairSnapshot>,
    pub(super) completion_queues: Vec<CompletionQueueSnapshot>,
    pub(super) shared_receive_queues: Vec<SharedReceiveQueueSnapshot>,
    pub(super) regions: CountAndBytes,
    pub(super) segments: CountAndBytes,
}

/// Reads the whole table of a context. `client` is connected to its process.
pub(super) fn read(
    table: &Table,
    client: &mut DescriptorClient,
    incarnation: u64,
    names: &HostNames,
) -> Rows {
    let mut rows = Rows::default();
    let mut lanes = HashMap::new();
    for row in (0..MAX_QP).map(|slot| table.qp(slot)) {
        if let Some(queue_pair) = queue_pair(row, names) {
            let lane = row.executing.lane.load(Relaxed);
            let sum: &mut u64 = lanes.entry(queue_pair.send_cq).or_default();
            *sum = sum.wrapping_add(lane);
            rows.queue_pairs.push(queue_pair);
        }
    }
    let mut segments = Segments {
        table,
        client,
        incarnation,
        held: HashMap::new(),
    };
    for id in 0..MAX_CQ as u32 {
        let lane = lanes.get(&id).copied().unwrap_or_default();
        let queue = completion_queue(id, table.cq(id), lane, &mut segments);
        rows.completion_queues.extend(queue);
    }
    for id in 0..MAX_SRQ as u32 {
        let queue = shared_receive_queue(id, table.srq(id), &mut segments);
        rows.shared_receive_queues.extend(queue);
    }
    for key in 0..MAX_REGION as u32 {
        let row = table.region(key);
        if row.key.load(Acquire) != 0 {
            rows.regions.add(row.len.load(Relaxed));
        }
    }
    for row in (0..MAX_SEGMENT as u32).map(|row| table.segment(row)) {
        if row.life.load(Acquire) != 0 {
            rows.segments.add(row.len.load(Relaxed));
        }
    }
    rows
}

/// Reads the queue pair in a row. Returns `None` if there is none, or if another took the row meanwhile.
fn queue_pair(row: &QpRow, names: &HostNames) -> Option<QueuePairSnapshot> {
    let life = row.life();
    if life.generation() == 0 {
        return None;
    }
    let state = life.state();
    let qpn = row.dest_qpn.load(Relaxed);
    let connected = !matches!(state, QpState::Reset | QpState::Init) && qpn != NO_ROW;
    let peer = connected.then(|| {
        let at = key_of(row.dest_gid.load(Relaxed), qpn);
        PeerSnapshot {
            qpn,
            at: names.get(&at).cloned(),
        }
    });
    let srq = row.srq.load(Relaxed);
    let read = QueuePairSnapshot {
        qpn: row.qpn.load(Relaxed),
        qp_type: transport_of(row.transport.load(Relaxed)).unwrap_or_default(),
        state,
        peer,
        send_cq: row.send_cq.load(Relaxed),
        recv_cq: row.recv_cq.load(Relaxed),
        srq: (srq != NO_ROW).then_some(srq),
        counters: row.counters(),
    };
    // Orders the reads above before the check of the generation below.
    fence(Acquire);
    (row.life().generation() == life.generation()).then_some(read)
}

/// Reads the CQ in a row. Returns `None` if there is none, or if another took the row meanwhile. `lane` is
/// how many completions the existing queue pairs have put into its lane.
fn completion_queue(
    id: u32,
    row: &CqRow,
    lane: u64,
    segments: &mut Segments<'_>,
) -> Option<CompletionQueueSnapshot> {
    let life = row.life.load(Acquire);
    if life == 0 {
        return None;
    }
    let (_, capacity) = row.queue.get();
    let queued = segments.len_of::<CqSlot>(&row.queue);
    let gone = row.counts.lane_of_gone.load(Relaxed);
    let polled = row.counts.lane_polled.load(Relaxed);
    // The counters were read at different moments, so the polled one may be ahead.
    let in_lane = gone.wrapping_add(lane).wrapping_sub(polled);
    let in_lane = if in_lane <= capacity as u64 {
        in_lane
    } else {
        0
    };
    let read = CompletionQueueSnapshot {
        id,
        depth: capacity as u64,
        has_channel: row.channel_number.load(Relaxed) != 0,
        armed: row.armed.is_armed(),
        counters: row.counters(in_lane.saturating_add(queued)),
    };
    fence(Acquire);
    (row.life.load(Relaxed) == life).then_some(read)
}

/// Reads the SRQ in a row. Returns `None` if there is none, or if another took the row meanwhile.
fn shared_receive_queue(
    id: u32,
    row: &SrqRow,
    segments: &mut Segments<'_>,
) -> Option<SharedReceiveQueueSnapshot> {
    let life = row.life.load(Acquire);
    if life == 0 {
        return None;
    }
    let limit = row.limit.load(Relaxed);
    let read = SharedReceiveQueueSnapshot {
        id,
        posted: row.posted.0.load(Relaxed),
        waiting: segments.len_of::<RecvSlot>(&row.queue),
        // A limit that was reached is not armed any more.
        limit: if limit & LIMIT_REACHED == 0 { limit } else { 0 },
    };
    fence(Acquire);
    (row.life.load(Relaxed) == life).then_some(read)
}

/// The segments of a process, mapped when needed.
struct Segments<'a> {
    table: &'a Table,
    client: &'a mut DescriptorClient,
    incarnation: u64,
    held: HashMap<(u32, u32), Option<SharedSegment>>,
}

impl Segments<'_> {
    /// Returns about how many values are in a queue; 0 if the queue is invalid.
    fn len_of<T: ShmSafe>(&mut self, place: &QueueLocation) -> u64 {
        let (at, capacity) = place.get();
        let (row, generation) = (at.segment, at.generation);
        if self.held.len() >= SEGMENTS_HELD {
            self.held.clear();
        }
        let segment = self.held.entry((row, generation)).or_insert_with(|| {
            if self.table.segment(row).life.load(Acquire) >> 32 != u64::from(generation) {
                return None;
            }
            let kind = DescriptorKind::Segment { row, generation };
            let found = self.client.descriptors(self.incarnation, kind.into());
            let fd = found.ok()??.into_iter().next()?;
            SharedSegment::attach_read_only(fd).ok()
        });
        let len = segment
            .as_ref()
            .and_then(|segment| len_hint_at::<T>(segment, at.offset, capacity));
        len.unwrap_or_default() as u64
    }
}
