//! The bare ring: RB²'s data movement without verbs.
//!
//! It does only what the ring does to memory. The sender copies a message into a slot of its own array,
//! copies groups of β slots into the receiver's array with plain `memcpy`, and stores its tail every
//! α slots. The receiver reads the slot in place and stores its head every γ slots. Each message takes
//! one slot. There are no headers, wrap-around skips or errors.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use headworks_ring::{MessageReceiver, MessageSender, RingError, SendError};
use headworks_shm::cursor::{Consumer, Cursor, Producer};
use headworks_shm::{
    DescriptorClient, DescriptorRequest, DescriptorSource, HugePages, Member, ProcessId, Registry,
    RegistryError, SegmentError, SegmentRequest, SharedSegment, View,
};
use serde::{Deserialize, Serialize};

/// Bytes in front of the array: one cache line each for tail and head.
const LINES: usize = 128;
const TAIL: usize = 0;
const HEAD: usize = 64;

/// The shared memory of a bare ring: two cursors and the receiver's array.
#[derive(Clone, Debug)]
pub struct BareSegment {
    segment: Arc<SharedSegment>,
    view: View,
    slots: usize,
    slot_size: usize,
    offered: Option<Arc<OfferedSegment>>,
}

/// Where another process finds a bare ring; valid as long as the [`BareSegment`] that offered it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BareOffer {
    slot: u32,
    generation: u64,
    object: u64,
}

/// A segment that this process hands out.
#[derive(Debug)]
struct OfferedSegment {
    segment: Arc<SharedSegment>,
    _member: Arc<Member>,
}

impl DescriptorSource for OfferedSegment {
    fn descriptors(&self, _: DescriptorRequest) -> io::Result<Option<Vec<OwnedFd>>> {
        Ok(Some(vec![self.segment.fd().try_clone_to_owned()?]))
    }
}

/// The sending end. It owns the sender's array.
pub struct BareSender {
    shared: BareSegment,
    own: View,
    producer: Producer,
    index: usize,
    sent: usize,
    untransmitted: usize,
    unpublished: u64,
    beta: usize,
    alpha: u64,
}

/// The receiving end.
pub struct BareReceiver {
    shared: BareSegment,
    consumer: Consumer,
    index: usize,
    available: u64,
    unpushed: u64,
    gamma: u64,
    /// Bytes of each message, for [`MessageReceiver`].
    len: usize,
}

impl BareSegment {
    /// Bytes of shared memory for `slots` slots of `slot_size` bytes.
    pub fn bytes(slots: usize, slot_size: usize) -> usize {
        LINES + slots * slot_size
    }

    /// Creates a ring in a new segment. The segment is returned too, to be handed to the other process.
    pub fn create(
        slots: usize,
        slot_size: usize,
    ) -> Result<(Self, Arc<SharedSegment>), SegmentError> {
        let segment = Arc::new(segment(Self::bytes(slots, slot_size))?);
        Ok((Self::over(segment.clone(), slots, slot_size), segment))
    }

    /// Returns the ring in a segment that the other process created.
    ///
    /// # Panics
    ///
    /// If the segment is too small.
    pub fn over(segment: Arc<SharedSegment>, slots: usize, slot_size: usize) -> Self {
        assert!(
            segment.len() >= Self::bytes(slots, slot_size),
            "the segment is too small"
        );
        Self {
            view: View::from(segment.clone()),
            segment,
            slots,
            slot_size,
            offered: None,
        }
    }

    /// Offers the ring to another process of the user, which calls [`BareSegment::join`].
    ///
    /// # Errors
    ///
    /// Those of the registry.
    pub fn offer(&mut self) -> Result<BareOffer, RegistryError> {
        static OBJECTS: AtomicU64 = AtomicU64::new(1);
        let member = Registry::open_default()?.join()?;
        let ProcessId { slot, generation } = member.id();
        // Contexts and common segments have other objects.
        let object = 1 << 62 | OBJECTS.fetch_add(1, Ordering::Relaxed);
        let offered = Arc::new(OfferedSegment {
            segment: self.segment.clone(),
            _member: member.clone(),
        });
        let source: Weak<OfferedSegment> = Arc::downgrade(&offered);
        member.serve(object, source)?;
        self.offered = Some(offered);
        Ok(BareOffer {
            slot,
            generation,
            object,
        })
    }

    /// Opens a ring that another process offers. Both ends must use the same slot count and slot size.
    ///
    /// # Errors
    ///
    /// The other process is dead or has ended its offer, and the errors of the registry.
    pub fn join(offer: BareOffer, slots: usize, slot_size: usize) -> Result<Self, RegistryError> {
        let failed = |source| RegistryError::Segment {
            what: "another process's bare ring".to_owned(),
            source,
        };
        let process = ProcessId {
            slot: offer.slot,
            generation: offer.generation,
        };
        let mut client = DescriptorClient::connect(&Registry::open_default()?, process)?;
        let found = match &mut client {
            Some(client) => client.descriptors(offer.object, DescriptorRequest::default())?,
            None => None,
        };
        let fd = found.and_then(|all| all.into_iter().next());
        let fd = fd.ok_or_else(|| failed(SegmentError::Foreign("it is not offered any more")))?;
        let segment = SharedSegment::attach(fd).map_err(failed)?;
        Ok(Self::over(Arc::new(segment), slots, slot_size))
    }

    fn cursor(&self, offset: usize) -> &Cursor {
        self.view.cursor(offset).expect("the lines are in the view")
    }

    fn array(&self, offset: usize, len: usize) -> *mut u8 {
        self.view
            .ptr_at(LINES + offset, len)
            .expect("slots are in the view")
    }
}

fn segment(len: usize) -> Result<SharedSegment, SegmentError> {
    SharedSegment::create(&SegmentRequest {
        name: "bare-ring",
        len,
        huge_pages: HugePages::No,
        numa_node: None,
        is_sealed: false,
    })
}

impl BareSender {
    /// Creates the sending end with the paper's α and β. Fails if its own array cannot be allocated.
    pub fn new(shared: BareSegment, alpha: u64, beta: usize) -> Result<Self, SegmentError> {
        let own = View::from(Arc::new(segment(shared.slots * shared.slot_size)?));
        let producer = Producer::new(shared.slots as u64 - 1, 0);
        Ok(Self {
            shared,
            own,
            producer,
            index: 0,
            sent: 0,
            untransmitted: 0,
            unpublished: 0,
            beta,
            alpha,
        })
    }

    /// Sends a copy of `message`, which must fit a slot. Returns whether there was room.
    #[inline]
    pub fn try_send(&mut self, message: &[u8]) -> bool {
        let Some(slot) = self.slot(message.len()) else {
            return false;
        };
        // SAFETY: `slot` is in our own array, which nobody else writes or reads.
        unsafe { slot.copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        self.commit();
        true
    }

    /// Sends a message of `len` bytes that `fill` writes in place. Returns whether there was room.
    #[inline]
    pub fn try_send_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let Some(slot) = self.slot(len) else {
            return false;
        };
        // SAFETY: `slot` is in our own array, which nobody else uses.
        fill(unsafe { std::slice::from_raw_parts_mut(slot, len) });
        self.commit();
        true
    }

    #[inline(always)]
    fn slot(&mut self, len: usize) -> Option<*mut u8> {
        // The producer does not count unpublished messages yet, so they are added here.
        let want = self.unpublished + 1;
        let head = self.shared.cursor(HEAD);
        if self.producer.acquire(head, want).ok()? < want {
            self.flush();
            return None;
        }
        self.own.ptr_at(self.index * self.shared.slot_size, len)
    }

    #[inline(always)]
    fn commit(&mut self) {
        self.index += 1;
        self.untransmitted += 1;
        self.unpublished += 1;
        if self.index == self.shared.slots {
            // One `memcpy` must not cross the end of the array.
            self.transmit();
            self.index = 0;
            self.sent = 0;
        }
        if self.unpublished >= self.alpha {
            self.flush();
        } else if self.untransmitted >= self.beta {
            self.transmit();
        }
    }

    #[inline(always)]
    fn transmit(&mut self) {
        let len = self.untransmitted * self.shared.slot_size;
        let offset = self.sent * self.shared.slot_size;
        if len == 0 {
            return;
        }
        let from = self.own.ptr_at(offset, len).expect("slots are in the view");
        // SAFETY: both ranges are in bounds. The receiver does not read these slots before the tail
        // covers them.
        unsafe {
            self.shared
                .array(offset, len)
                .copy_from_nonoverlapping(from, len)
        };
        self.sent += self.untransmitted;
        self.untransmitted = 0;
    }

    /// Transmits and publishes all sent messages.
    #[inline]
    pub fn flush(&mut self) {
        self.transmit();
        if self.unpublished > 0 {
            self.producer
                .release(self.shared.cursor(TAIL), self.unpublished);
            self.unpublished = 0;
        }
    }
}

impl BareReceiver {
    /// Creates the receiving end with the paper's γ.
    pub fn new(shared: BareSegment, gamma: u64) -> Self {
        let consumer = Consumer::new(shared.slots as u64 - 1, 0);
        Self {
            len: shared.slot_size,
            shared,
            consumer,
            index: 0,
            available: 0,
            unpushed: 0,
            gamma,
        }
    }

    /// Sets the length of each message, which is the slot size by default.
    #[must_use]
    pub fn of_length(self, len: usize) -> Self {
        Self { len, ..self }
    }

    /// Passes the next message of `len` bytes to `f` in place, if there is one.
    #[inline]
    pub fn try_recv<R>(&mut self, len: usize, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        if self.available == 0 {
            let known = self
                .consumer
                .acquire(self.shared.cursor(TAIL), self.unpushed + 1)
                .ok()?;
            self.available = known - self.unpushed;
            if self.available == 0 {
                return None;
            }
        }
        let slot = self.shared.array(self.index * self.shared.slot_size, len);
        // SAFETY: the slot is in bounds. The sender has published it and does not write it before our
        // head passes it.
        let result = f(unsafe { std::slice::from_raw_parts(slot, len) });
        self.index += 1;
        if self.index == self.shared.slots {
            self.index = 0;
        }
        self.available -= 1;
        self.unpushed += 1;
        if self.unpushed >= self.gamma {
            self.consumer
                .release(self.shared.cursor(HEAD), self.unpushed);
            self.unpushed = 0;
        }
        Some(result)
    }
}

impl MessageSender for BareSender {
    #[inline(always)]
    fn try_send(&mut self, message: &[u8]) -> Result<(), SendError> {
        self.try_send(message).then_some(()).ok_or(SendError::Full)
    }

    #[inline(always)]
    fn try_send_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SendError> {
        let sent = self.try_send_with(len, fill);
        sent.then_some(()).ok_or(SendError::Full)
    }

    #[inline(always)]
    fn flush(&mut self) -> Result<bool, RingError> {
        self.flush();
        Ok(true)
    }

    fn step(&mut self) -> Result<bool, RingError> {
        Ok(false)
    }

    fn max_message(&self) -> usize {
        self.shared.slot_size
    }

    fn sent(&self) -> u64 {
        self.producer.position() + self.unpublished
    }

    fn published(&self) -> u64 {
        self.producer.position()
    }

    fn consumed(&self) -> u64 {
        self.shared.cursor(HEAD).observe()
    }
}

impl MessageReceiver for BareReceiver {
    #[inline(always)]
    fn try_recv_with<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, RingError> {
        Ok(self.try_recv(self.len, look))
    }

    fn step(&mut self) -> Result<bool, RingError> {
        Ok(false)
    }

    /// Does nothing: the head is stored every γ slots only. Returns whether the sender knows it.
    fn push_head(&mut self) -> Result<bool, RingError> {
        Ok(self.unpushed == 0)
    }

    fn consumed(&self) -> u64 {
        self.consumer.position() + self.unpushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_once_in_order() {
        for (slots, alpha, beta, gamma) in [(128, 32, 16, 32), (4, 1, 1, 1), (5, 3, 2, 4)] {
            let (shared, segment) = BareSegment::create(slots, 64).unwrap();
            let mut sender = BareSender::new(shared, alpha, beta).unwrap();
            let other = BareSegment::over(segment, slots, 64);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    for n in 0..10_000u64 {
                        while !sender.try_send(&n.to_le_bytes()) {
                            std::thread::yield_now();
                        }
                    }
                    sender.flush();
                });
                let mut receiver = BareReceiver::new(other, gamma);
                for n in 0..10_000u64 {
                    loop {
                        match receiver.try_recv(8, |bytes| bytes.to_vec()) {
                            Some(bytes) => break assert_eq!(bytes, n.to_le_bytes()),
                            None => std::thread::yield_now(),
                        }
                    }
                }
            });
        }
    }
}
