//! Completion queues: many producers (our own queue pairs and, for receives, the peers'
//! processes), several pollers.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use headworks_shm::{BiasedLock, SlotError, SlotQueue, SlotQueueRef};
use headworks_verbs::{
    Completion, CompletionFlags, CompletionQueue, CqId, CqInit, Instant, Opcode, PollError, Qpn,
    ResourceError, Status,
};

use crate::arena::Piece;
use crate::channel::SoftChannel;
use crate::device::Context;
use crate::lane::Lane;
use crate::peer::{Peer, Queue};
use crate::qp::QpCore;
use crate::table::{CqRow, CqSlot, NO_ROW};

/// `armed` words.
const NEXT: u32 = 1;
const SOLICITED: u32 = 2;

/// A CQ as its producers see it, in any process.
#[derive(Clone)]
pub(crate) struct CqPort {
    peer: Arc<Peer>,
    row: u32,
    queue: Queue<CqSlot>,
    has_channel: bool,
    timestamps: bool,
}

impl CqPort {
    /// The CQ `row` of `peer`. `None` if it is not there or makes no sense.
    pub(crate) fn open(peer: &Arc<Peer>, row: u32) -> Option<Self> {
        let cq = peer.table.cq(row);
        if row == NO_ROW || cq.life.load(Ordering::Acquire) == 0 {
            return None;
        }
        Some(Self {
            peer: peer.clone(),
            row,
            queue: peer.queue(&cq.queue)?,
            has_channel: cq.channel_fd.load(Ordering::Relaxed) != 0,
            timestamps: cq.timestamps.load(Ordering::Relaxed) != 0,
        })
    }

    fn row(&self) -> &CqRow {
        self.peer.table.cq(self.row)
    }

    /// Adds a completion on behalf of queue pair `who` of the CQ's owner, and wakes whoever sleeps
    /// on its channel. A full CQ overruns: it is marked and its owner told.
    #[inline]
    pub(crate) fn push(&self, who: u16, mut slot: CqSlot, solicited: bool) -> Result<(), Overrun> {
        if self.timestamps {
            slot.timestamp = crate::device::clock().nanos();
        }
        if let Err(error) = self.queue.slots.push(who, &slot) {
            return Err(self.overrun(error));
        }
        if self.has_channel {
            self.wake(solicited || slot.status != Status::Success as u8);
        }
        Ok(())
    }

    #[cold]
    fn overrun(&self, error: SlotError) -> Overrun {
        tracing::error!(cq = self.row, %error, "completion queue overran");
        self.row().overrun.store(1, Ordering::Release);
        self.wake(true);
        self.peer.kick();
        Overrun
    }

    fn wake(&self, solicited: bool) {
        // The completion is stored before `armed` is read; `arm` stores `armed` before the last
        // poll. One of the two sees the other.
        fence(Ordering::SeqCst);
        let row = self.row();
        let armed = row.armed.load(Ordering::Relaxed);
        let due = armed == NEXT || (armed == SOLICITED && solicited);
        if !due || row.armed.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        self.raise();
    }

    /// Puts an event into the channel whether it is armed or not: a producer that was killed may
    /// have disarmed it and not told.
    pub(crate) fn rouse(&self) {
        if self.has_channel {
            self.row().armed.store(0, Ordering::Relaxed);
            self.raise();
        }
    }

    /// Puts an event into the channel.
    fn raise(&self) {
        let row = self.row();
        let life = row.life.load(Ordering::Acquire);
        let number = row.channel_number.load(Ordering::Relaxed);
        let Some(fd) = row.channel_fd.load(Ordering::Relaxed).checked_sub(1) else {
            return;
        };
        let Some(channel) = self.peer.channel(number, fd as i32) else {
            return;
        };
        // A CQ destroyed meanwhile may have taken its channel with it, and the number of the pipe's
        // descriptor may name something else: a live row says that it does not.
        if row.life.load(Ordering::Acquire) == life {
            channel.send(&self.row.to_le_bytes());
        }
    }
}

/// The CQ was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overrun;

/// A completion queue of this process.
pub(crate) struct SoftCq {
    pub(crate) context: Arc<Context>,
    pub(crate) row: u32,
    port: CqPort,
    polling: BiasedLock,
    /// Send completions of the one queue pair that may use it, without atomic instructions.
    lane: Lane,
    /// How many queue pairs that complete here have work waiting.
    pub(crate) waiting: AtomicUsize,
    queue_pairs: Mutex<Vec<Weak<QpCore>>>,
    _channel: Option<Arc<dyn headworks_verbs::CompletionChannel>>,
    _piece: Piece,
}

impl SoftCq {
    pub(crate) fn create(context: &Arc<Context>, init: &CqInit) -> Result<Self, ResourceError> {
        let limits = &context.info.limits;
        if init.depth == 0 || init.depth > limits.max_cqe {
            return Err(ResourceError::Limit {
                what: "CQ depth",
                asked: init.depth.into(),
                lowest: 1,
                highest: limits.max_cqe.into(),
            });
        }
        let channel = match &init.channel {
            None => None,
            Some(channel) => Some(
                channel
                    .as_any()
                    .downcast_ref::<SoftChannel>()
                    .ok_or(ResourceError::Foreign("the completion channel"))?,
            ),
        };
        let capacity = init.depth.next_power_of_two().max(2) as usize;
        let piece = context.queue_memory(SlotQueue::<CqSlot>::bytes(capacity))?;
        // SAFETY: the piece is aligned, large enough and not shared yet.
        let slots: SlotQueueRef<CqSlot> =
            unsafe { SlotQueue::<CqSlot>::init(piece.as_ptr(), capacity) };
        let row = context.cq_rows.take("completion queues")?;
        let entry = context.table.cq(row);
        entry.queue.set(piece.place(), capacity);
        entry
            .timestamps
            .store(init.timestamps.into(), Ordering::Relaxed);
        entry.armed.store(0, Ordering::Relaxed);
        entry.overrun.store(0, Ordering::Relaxed);
        let (number, fd) = channel.map_or((0, 0), |c| (c.number, c.fd_number() as u32 + 1));
        entry.channel_number.store(number, Ordering::Relaxed);
        entry.channel_fd.store(fd, Ordering::Relaxed);
        entry
            .life
            .store(context.cq_rows.generation(row), Ordering::Release);
        let port = CqPort {
            peer: context.own.clone(),
            row,
            queue: Queue::new(slots, piece.segment().clone()),
            has_channel: channel.is_some(),
            timestamps: init.timestamps,
        };
        Ok(Self {
            context: context.clone(),
            row,
            port,
            polling: BiasedLock::new(),
            lane: Lane::new(capacity),
            waiting: AtomicUsize::new(0),
            queue_pairs: Mutex::default(),
            _channel: init.channel.clone(),
            _piece: piece,
        })
    }

    /// The producers' side, for our own queue pairs.
    pub(crate) fn port(&self) -> &CqPort {
        &self.port
    }

    /// Enters a queue pair that completes here.
    pub(crate) fn enter(&self, core: &Arc<QpCore>) {
        let mut cores = self
            .queue_pairs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        cores.retain(|c| c.strong_count() > 0);
        cores.push(Arc::downgrade(core));
    }

    /// The queue pairs that complete here.
    pub(crate) fn queue_pairs(&self) -> Vec<Arc<QpCore>> {
        let cores = self
            .queue_pairs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        cores.iter().filter_map(Weak::upgrade).collect()
    }

    /// Carries on what waits in the queue pairs that complete here.
    #[cold]
    fn carry_on(&self) {
        let now = crate::device::clock();
        for core in self.queue_pairs() {
            core.try_carry_on(now);
        }
    }

    /// Runs `f` on every completion not polled yet.
    pub(crate) fn each_unpolled(&self, f: impl FnMut(u64, CqSlot)) {
        let _turn = self.polling.lock();
        self.port.queue.slots.each_full(f);
    }

    /// Frees what producers left half-made when they were killed.
    pub(crate) fn recover(&self, dead: impl Fn(u16) -> bool) {
        let _turn = self.polling.lock();
        self.port.queue.slots.recover(dead, |_, _| {});
    }

    /// Lends the lane to the first queue pair that asks.
    pub(crate) fn claim_lane(&self) -> bool {
        !self.lane.claimed.swap(true, Ordering::AcqRel)
    }

    /// Gives the lane back; what is in it is polled all the same.
    pub(crate) fn release_lane(&self) {
        self.lane.claimed.store(false, Ordering::Release);
    }

    /// Adds a send completion to the lane. Only the thread that posts to the queue pair that has
    /// claimed it may call this.
    #[inline(always)]
    pub(crate) fn push_lane(&self, slot: impl Fn() -> CqSlot) -> Result<(), Overrun> {
        let stamp = |slot: &mut CqSlot| {
            if self.port.timestamps {
                slot.timestamp = crate::device::clock().nanos();
            }
        };
        let pushed = self.lane.push(|place| {
            *place = slot();
            stamp(place);
        });
        if !pushed {
            return Err(self.port.overrun(SlotError::Full));
        }
        if self.port.has_channel {
            self.port.wake(slot().status != Status::Success as u8);
        }
        Ok(())
    }
}

impl CompletionQueue for SoftCq {
    fn id(&self) -> CqId {
        CqId(self.row)
    }

    fn depth(&self) -> u32 {
        self.port.queue.slots.capacity() as u32
    }

    fn poll(&self, out: &mut [Completion]) -> Result<usize, PollError> {
        if self.context.is_foreign() {
            return Err(PollError::Forked);
        }
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.carry_on();
        }
        let slots = &self.port.queue.slots;
        let queued = !slots.is_empty();
        if !queued && self.lane.is_empty() {
            return match self.port.row().overrun.load(Ordering::Relaxed) {
                0 => Ok(0),
                _ => Err(PollError::Overrun),
            };
        }
        let _turn = self.polling.lock();
        // Another poller may have taken what was there: look again, before the lane is.
        let mut queued = queued && !slots.is_empty();
        let table = &self.context.table;
        let mut count = 0;
        while count < out.len() {
            // A queue pair whose completions are in both places put those in the lane first: so the
            // queue is looked at, the lane emptied, and only then is the queue taken from.
            while count < out.len()
                && self
                    .lane
                    .pop(|slot| out[count] = retire(table, slot))
                    .is_some()
            {
                count += 1;
            }
            if !queued || count == out.len() {
                break;
            }
            match slots.pop_exclusive() {
                Ok(Some((_, slot))) => {
                    out[count] = retire(table, &slot);
                    count += 1;
                    queued = !slots.is_empty();
                }
                Ok(None) => break,
                Err(_) => return Err(PollError::Corrupt),
            }
        }
        Ok(count)
    }

    fn arm(&self, solicited_only: bool) {
        if self.context.is_foreign() {
            return;
        }
        let armed = if solicited_only { SOLICITED } else { NEXT };
        let word = &self.port.row().armed;
        if solicited_only {
            // Who asked for any event before gets it.
            let _ = word.compare_exchange(0, armed, Ordering::Relaxed, Ordering::Relaxed);
        } else {
            word.store(armed, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        // Nobody will poll for a while: the progress thread takes over what waits.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.context.progress.take_over();
        }
    }
}

/// Notes in the queue pair's row that a request needs no room any more, and makes the completion.
#[inline(always)]
fn retire(table: &crate::table::Table, slot: &CqSlot) -> Completion {
    let row = table.qp(slot.qpn as usize);
    if row.qpn.load(Ordering::Relaxed) == slot.qpn {
        let (retired, now) = if Opcode::from_code(slot.opcode).is_recv() {
            (&row.rq_retired, slot.position.wrapping_add(1))
        } else {
            (&row.sq_retired, slot.position)
        };
        // A completion from before a RESET is behind what RESET has retired.
        if now > retired.load(Ordering::Relaxed) {
            retired.store(now, Ordering::Release);
        }
    }
    completion(slot)
}

#[inline(always)]
fn completion(slot: &CqSlot) -> Completion {
    Completion {
        wr_id: slot.wr_id,
        status: Status::from_code(slot.status),
        opcode: Opcode::from_code(slot.opcode),
        qpn: Qpn::new(slot.qpn & Qpn::MAX).unwrap_or_default(),
        byte_len: slot.byte_len,
        imm: (slot.has_imm != 0).then_some(slot.imm),
        src_qpn: Qpn::new(slot.src_qpn & Qpn::MAX).unwrap_or_default(),
        flags: CompletionFlags::default(),
        timestamp: Instant::from_nanos(slot.timestamp),
    }
}

impl Drop for SoftCq {
    fn drop(&mut self) {
        if self.context.is_foreign() {
            return;
        }
        self.port.row().life.store(0, Ordering::Release);
        self.context.cq_rows.give_back(self.row);
    }
}
