//! Another process's context, attached: its table, its memory, its wake pipes.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_shm::{
    ContextRecord, ProcessId, SharedSegment, ShmSafe, SlotQueue, SlotQueueRef, WakeSender, open_of,
};

use crate::arena::Arena;
use crate::table::{Place, PlaceOf, Table};

/// Largest queue capacity believed of a peer.
const CAPACITY_MAX: usize = 1 << 22;

/// A context that this process has attached; also its own, for queue pairs that loop back.
pub(crate) struct Peer {
    process: ProcessId,
    pub(crate) incarnation: u64,
    pub(crate) table: Table,
    /// Readable once the process is dead; `None` where the kernel has no pidfds.
    pub(crate) pidfd: Option<OwnedFd>,
    dead: AtomicBool,
    /// It was waited for in vain, and has not been seen to go on since.
    stopped: AtomicBool,
    /// Wakes its progress thread.
    wake: Option<WakeSender>,
    /// Set for our own context, whose memory is mapped already.
    own: Option<Arc<Arena>>,
    attached: Mutex<Attached>,
}

#[derive(Default)]
struct Attached {
    segments: HashMap<u32, (u32, Arc<SharedSegment>)>,
    channels: HashMap<u32, Channel>,
}

/// The pipe of a channel, and the CQ that it was opened for: its row and `life` there.
struct Channel {
    sender: Arc<WakeSender>,
    cq: (u32, u32),
}

impl Peer {
    /// Attaches the context that `record` describes. `None` if its process is dead or unreachable.
    pub(crate) fn attach(record: &ContextRecord) -> Option<Self> {
        let process = record.process;
        let pidfd = match process.open_pidfd() {
            Ok(Some(fd)) => Some(fd),
            Ok(None) => return None,
            Err(_) => None,
        };
        let fd = process.open_fd(record.segment_fd).ok()?;
        let segment = SharedSegment::attach(fd).ok()?;
        Some(Self {
            process,
            incarnation: record.incarnation,
            table: Table::new(Arc::new(segment))?,
            pidfd,
            dead: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            wake: WakeSender::open(process, record.wake_fd).ok(),
            own: None,
            attached: Mutex::default(),
        })
    }

    /// Our own context, as a peer of itself.
    pub(crate) fn own(
        process: ProcessId,
        incarnation: u64,
        table: Table,
        arena: Arc<Arena>,
        wake: Option<WakeSender>,
    ) -> Self {
        let (dead, stopped) = (AtomicBool::new(false), AtomicBool::new(false));
        let attached = Mutex::default();
        Self {
            process,
            incarnation,
            table,
            pidfd: None,
            dead,
            stopped,
            wake,
            own: Some(arena),
            attached,
        }
    }

    /// Whether it is our own context.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Attached> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is known to be dead; cheap.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn mark_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Whether it seems to be stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn set_stopped(&self, stopped: bool) {
        self.stopped.store(stopped, Ordering::Relaxed);
    }

    /// Asks the kernel whether it is dead.
    pub(crate) fn check_dead(&self) -> bool {
        if !self.is_own() && !self.is_dead() && !self.process.is_alive() {
            self.mark_dead();
        }
        self.is_dead()
    }

    /// Wakes its progress thread.
    pub(crate) fn kick(&self) {
        if let Some(wake) = &self.wake {
            wake.send(&[1]);
        }
    }

    /// Its segment `row`, if that still has this generation; attached once.
    pub(crate) fn segment(&self, row: u32, generation: u32) -> Option<Arc<SharedSegment>> {
        if let Some(arena) = &self.own {
            return arena.find(row, generation);
        }
        let life = |row: u32| self.table.segment(row).life.load(Ordering::Acquire);
        let mut attached = self.lock();
        if let Some((known, segment)) = attached.segments.get(&row)
            && *known == generation
        {
            return Some(segment.clone());
        }
        let fd = i32::try_from((life(row) & 0xffff_ffff).checked_sub(1)?).ok()?;
        if life(row) >> 32 != u64::from(generation) {
            return None;
        }
        let fd = open_of(self.process.pid, fd).ok()?;
        let segment = Arc::new(SharedSegment::attach(fd).ok()?);
        // The descriptor's number may have come to name something else meanwhile.
        if life(row) >> 32 != u64::from(generation) {
            return None;
        }
        // Memory that its owner has freed stays allocated while it is mapped here: let go of it.
        attached
            .segments
            .retain(|row, (generation, _)| life(*row) >> 32 == u64::from(*generation));
        attached.segments.insert(row, (generation, segment.clone()));
        Some(segment)
    }

    /// `len` bytes at `at` in its memory, with what keeps them mapped.
    pub(crate) fn memory(&self, at: PlaceOf, len: usize) -> Option<(*mut u8, Arc<SharedSegment>)> {
        let segment = self.segment(at.segment, at.generation)?;
        let end = at.offset.checked_add(len)?;
        (end <= segment.len()).then(|| (segment.as_ptr().wrapping_add(at.offset), segment))
    }

    /// The queue of `T` that `place` describes, checked against what is mapped.
    pub(crate) fn queue<T: ShmSafe>(&self, place: &Place) -> Option<Queue<T>> {
        let (at, capacity) = place.get();
        if !capacity.is_power_of_two() || capacity > CAPACITY_MAX || at.offset % 64 != 0 {
            return None;
        }
        let (start, keep) = self.memory(at, SlotQueue::<T>::bytes(capacity))?;
        // SAFETY: in range, aligned and mapped for as long as `keep` lives beside it; the owner
        // initialised the queue before it published the place.
        let slots = unsafe { SlotQueueRef::from_raw(start, capacity) };
        Some(Queue { slots, _keep: keep })
    }

    /// The pipe of its channel `number`, whose write end has number `fd` over there, for an event
    /// of the CQ of that row and life.
    pub(crate) fn channel(&self, number: u32, fd: i32, cq: (u32, u32)) -> Option<Arc<WakeSender>> {
        let mut attached = self.lock();
        if let Some(known) = attached.channels.get(&number) {
            return Some(known.sender.clone());
        }
        let sender = Arc::new(WakeSender::open(self.process, fd).ok()?);
        // A pipe that is held here takes descriptors: let go of those whose CQ is gone. A channel
        // that other CQs have too is opened again for one of them.
        let lives =
            |(row, life): (u32, u32)| self.table.cq(row).life.load(Ordering::Acquire) == life;
        attached.channels.retain(|_, channel| lives(channel.cq));
        let channel = Channel {
            sender: sender.clone(),
            cq,
        };
        attached.channels.insert(number, channel);
        Some(sender)
    }

    /// How many channels' pipes are held.
    #[cfg(test)]
    pub(crate) fn channels_held(&self) -> usize {
        self.lock().channels.len()
    }
}

/// A slot queue in a peer's memory, or our own, kept mapped.
#[derive(Clone)]
pub(crate) struct Queue<T> {
    pub(crate) slots: SlotQueueRef<T>,
    _keep: Arc<SharedSegment>,
}

impl<T> Queue<T> {
    pub(crate) fn new(slots: SlotQueueRef<T>, keep: Arc<SharedSegment>) -> Self {
        Self { slots, _keep: keep }
    }
}
