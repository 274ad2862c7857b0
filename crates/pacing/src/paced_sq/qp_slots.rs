//! The queue pairs that send through one completion queue, by slot.

use headworks_verbs::{QueuePair, SendOp};

use crate::monitor::{Class, Kind};
use crate::request_queue::RequestQueue;

bitflags::bitflags! {
    /// Properties of a queue pair, one byte of [`QpSendState`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct QpFlags: u8 {
        /// Every request completes for the program, signaled or not.
        const SIGNAL_ALL = 1;
        /// A request failed, so waiting requests are flushed. Exactly these queue pairs are in
        /// [`Turns::broken`](super::turns::Turns::broken).
        const BROKEN = 2;
        /// The peer is on this host.
        const LOCAL = 4;
        /// Unreliable datagrams.
        const DATAGRAM = 8;
        /// The queue pair is in [`Turns::waiting`](super::turns::Turns::waiting).
        const IN_ROW = 16;
        /// The queue pair's bit is set in the shared state: something of it was in flight or waiting at the
        /// last scan, or since.
        const ACTIVE = 32;
    }
}

/// The sending side of a queue pair.
pub(crate) struct QpSendState {
    pub(crate) inner: Box<dyn QueuePair>,
    /// `None` while the queue pair is idle, and while a method works on the queue.
    pub(super) queue: Option<Box<RequestQueue>>,
    /// Distinguishes its completions from those of an earlier queue pair in the same slot, and from those of its
    /// own requests before a reset.
    generation: u32,
    /// Size of its send queue, as the device reports it.
    pub(super) limit: u32,
    pub(super) max_rd_atomic: u8,
    pub(super) flags: QpFlags,
}

// An idle queue pair costs this and the program's handle, beyond the device's own queue pair.
const _: () = assert!(size_of::<QpSendState>() <= 40);

impl QpSendState {
    pub(super) fn is(&self, flag: QpFlags) -> bool {
        self.flags.intersects(flag)
    }

    pub(super) fn set(&mut self, flag: QpFlags, on: bool) {
        self.flags.set(flag, on);
    }

    /// Returns its identity, in the slot where it is.
    #[inline]
    pub(super) fn id(&self, slot: u32) -> QpId {
        QpId {
            slot,
            generation: self.generation,
        }
    }

    /// Whether requests wait.
    pub(super) fn is_waiting(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.is_waiting())
    }

    /// Number of requests and slices that the device has.
    pub(super) fn flying(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.flying())
    }
}

/// Returns the kind of a request of a queue pair with these flags.
pub(super) fn kind(flags: QpFlags, op: &SendOp) -> Kind {
    Kind::new(Class::of(op), flags.contains(QpFlags::LOCAL))
}

/// Identifies a queue pair, and with it the completions of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpId {
    pub(super) slot: u32,
    generation: u32,
}

impl QpId {
    /// The `wr_id` under which the device has the queue pair's requests.
    #[inline]
    pub(super) fn wr_id(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Returns the queue pair whose requests the device has under a `wr_id`.
    #[inline]
    pub(super) fn of(wr_id: u64) -> Self {
        Self {
            slot: wr_id as u32,
            generation: (wr_id >> 32) as u32,
        }
    }
}

/// The queue pairs by slot.
#[derive(Default)]
pub(super) struct QpSlots {
    /// Between calls of [`PacedSq`](super::PacedSq), a slot is `None` exactly if it is in `free`. During a call,
    /// the queue pair that it works on is taken out as well.
    pairs: Vec<Option<QpSendState>>,
    free: Vec<u32>,
    /// The generation that was given last. No queue pair has a later one.
    generation: u32,
}

impl QpSlots {
    /// Number of slots, free ones included.
    pub(super) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether a queue pair can be added without one more slot.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Adds a queue pair and returns its slot.
    pub(super) fn insert(&mut self, inner: Box<dyn QueuePair>, flags: QpFlags) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.pairs.push(None);
            (self.pairs.len() - 1) as u32
        });
        let sending = QpSendState {
            limit: inner.caps().max_send_wr,
            inner,
            queue: None,
            generation: self.next_generation(),
            max_rd_atomic: 0,
            flags,
        };
        self.put(slot, sending);
        slot
    }

    /// Makes the completions that the device still reports of a queue pair belong to nobody.
    pub(super) fn renew(&mut self, sending: &mut QpSendState) {
        sending.generation = self.next_generation();
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&QpSendState> {
        self.pairs.get(slot as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut QpSendState> {
        self.pairs.get_mut(slot as usize)?.as_mut()
    }

    /// Returns the queue pair, unless it is gone or was reset.
    #[inline]
    pub(super) fn identified(&mut self, id: QpId) -> Option<&mut QpSendState> {
        self.get_mut(id.slot)
            .filter(|sending| sending.generation == id.generation)
    }

    /// Takes a queue pair out, to be [put](Self::put) back or its slot [freed](Self::free).
    #[inline]
    pub(super) fn take(&mut self, slot: u32) -> Option<QpSendState> {
        self.pairs.get_mut(slot as usize)?.take()
    }

    #[inline]
    pub(super) fn put(&mut self, slot: u32, sending: QpSendState) {
        self.pairs[slot as usize] = Some(sending);
    }

    /// Frees the slot of a queue pair that was taken out.
    pub(super) fn free(&mut self, slot: u32) {
        self.free.push(slot);
    }
}
