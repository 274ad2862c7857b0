//! The sending end's loop, which all paper designs share.

use headworks_ring::config::{CheckedConfig, Framing};
use headworks_ring::endpoint::Usability;
use headworks_ring::send_policy::{ReserveOutcome, SendPolicy};
use headworks_ring::{LengthError, MessageSender, RingError, SendError};
use headworks_verbs::{RemoteAddr, Sge};

use super::connected_end::ConnectedEnd;
use super::setup::ARRAY;

/// The part of a sender that is specific to a design.
pub trait SendProtocol {
    /// Whether the application fills the sent memory in place. Otherwise its message is copied there.
    const IN_PLACE: bool;

    /// Whether the design permits sending a message now, given that the array has room for it.
    #[inline(always)]
    fn may_send(&self, _end: &SendEnd) -> bool {
        true
    }

    /// Frames and sends the message at `at`, or keeps it for a batch. Returns `Full`, without any effect, if
    /// the send queue has no room.
    fn commit(&mut self, end: &mut SendEnd, at: MessageLocation) -> Result<(), SendError>;

    /// Tells the receiver that the `at.count` slots up to the end of the array hold no message.
    fn skip(&mut self, end: &mut SendEnd, at: MessageLocation) -> Result<(), SendError>;

    /// Sends kept messages. Returns whether none is left.
    fn flush(&mut self, end: &mut SendEnd) -> Result<bool, RingError>;

    /// Polls completions and reads the receiver's head.
    fn refresh(&mut self, end: &mut SendEnd) -> Result<(), RingError> {
        end.poll()?;
        end.observe_head()
    }
}

/// Location of a message in the array.
#[derive(Clone, Copy, Debug)]
pub struct MessageLocation {
    /// First slot.
    pub index: u64,
    /// Number of slots.
    pub count: u64,
    /// Length of the message, in bytes.
    pub len: usize,
}

/// State that every design's sender has.
pub struct SendEnd {
    pub(super) ring: CheckedConfig,
    pub(super) policy: SendPolicy,
    pub(super) connected_end: ConnectedEnd,
}

impl SendEnd {
    /// Returns the byte offset of slot `index` in the memory.
    #[inline(always)]
    pub(super) fn offset_of(&self, index: u64) -> usize {
        ARRAY + index as usize * self.ring.slot_size
    }

    /// Returns the length of a message's header, in bytes.
    #[inline(always)]
    pub(super) fn header(&self) -> usize {
        match self.ring.framing {
            Framing::Fixed(_) => 0,
            Framing::Variable(_) => 8,
        }
    }

    /// Stores a message's header at `offset`.
    #[inline(always)]
    pub(super) fn set_word(&self, offset: usize, word: u64) {
        use std::sync::atomic::Ordering::Relaxed;
        // Relaxed suffices: only this end's own array changes, and the device reads it in posting order.
        self.connected_end.memory.word(offset).store(word, Relaxed);
    }

    /// Returns `len` bytes at `offset` as a gather entry, and the same place in the receiver's memory.
    #[inline(always)]
    pub(super) fn piece(&self, offset: usize, len: usize) -> (Sge, RemoteAddr) {
        let sge = self.connected_end.memory.sge(offset, len);
        (sge, self.connected_end.peer.plus(offset as u64))
    }

    /// Returns `count` slots from `index` as a gather entry, and the same place in the receiver's memory.
    #[inline(always)]
    pub(super) fn slots(&self, (index, count): (u64, u64)) -> (Sge, RemoteAddr) {
        self.piece(self.offset_of(index), count as usize * self.ring.slot_size)
    }

    /// Polls completions of requests whose `wr_id` is a tail.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<(), RingError> {
        let mut last = None;
        self.connected_end.poll_sends(|tail| last = Some(tail))?;
        match last {
            Some(tail) => Ok(self.policy.complete(tail)?),
            None => Ok(()),
        }
    }

    /// Reads the head that the receiver pushed.
    #[inline]
    pub(super) fn observe_head(&mut self) -> Result<(), RingError> {
        let head = self.connected_end.memory.cursor(0).observe();
        Ok(self.policy.observe_head(head)?)
    }
}

/// The sending end of a paper design.
pub struct BaselineSender<P> {
    protocol: P,
    end: SendEnd,
    /// Stands for the application's memory, in designs that copy from it.
    application: Vec<u8>,
    usability: Usability,
}

impl<P: SendProtocol> BaselineSender<P> {
    pub(super) fn new(protocol: P, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self {
        let mut policy = SendPolicy::new(&ring);
        policy.fit_queue(connected_end.depth());
        Self {
            protocol,
            application: vec![0; if P::IN_PLACE { 0 } else { ring.max_message }],
            end: SendEnd {
                ring,
                policy,
                connected_end,
            },
            usability: Usability::new(),
        }
    }

    /// Finds the place of a message of `len` bytes.
    #[inline(always)]
    fn admit(&mut self, len: usize) -> Result<MessageLocation, SendError> {
        let ring = &self.end.ring;
        let legal = match ring.framing {
            Framing::Fixed(fixed) => len == fixed,
            Framing::Variable(longest) => len <= longest,
        };
        if !legal {
            let (lowest, highest) = match ring.framing {
                Framing::Fixed(fixed) => (fixed, fixed),
                Framing::Variable(longest) => (0, longest),
            };
            return Err(SendError::Length(LengthError {
                len,
                lowest,
                highest,
            }));
        }
        let count = ring.slots_of(len);
        match self.end.policy.reserve(count) {
            ReserveOutcome::At(index)
                if self.usability.is_usable() && self.protocol.may_send(&self.end) =>
            {
                Ok(MessageLocation { index, count, len })
            }
            _ => self.admit_slowly(count, len),
        }
    }

    #[inline(never)]
    fn admit_slowly(&mut self, count: u64, len: usize) -> Result<MessageLocation, SendError> {
        self.usability.check()?;
        let (mut refreshed, mut flushed) = (false, false);
        loop {
            match self.end.policy.reserve(count) {
                ReserveOutcome::At(index) if self.protocol.may_send(&self.end) => {
                    return Ok(MessageLocation { index, count, len });
                }
                ReserveOutcome::Skip { index, count } => {
                    let at = MessageLocation {
                        index,
                        count,
                        len: 0,
                    };
                    let skipped = self.protocol.skip(&mut self.end, at);
                    skipped.map_err(|error| self.break_with(error))?;
                }
                ReserveOutcome::At(_) | ReserveOutcome::Full if !refreshed => {
                    refreshed = true;
                    self.refresh()?;
                }
                // Still full: the receiver must see everything. Flushing earlier would cut a batch short
                // and shift all later ones, so that they wrap and take one more WRITE.
                ReserveOutcome::At(_) | ReserveOutcome::Full if !flushed => {
                    flushed = true;
                    self.flush()?;
                }
                ReserveOutcome::At(_) | ReserveOutcome::Full => return Err(SendError::Full),
            }
        }
    }

    #[inline(always)]
    fn bytes_mut(&mut self, at: MessageLocation) -> &mut [u8] {
        let offset = self.end.offset_of(at.index) + self.end.header();
        self.end.connected_end.memory.lent_mut(offset, at.len)
    }

    #[inline(always)]
    fn commit(&mut self, at: MessageLocation) -> Result<(), SendError> {
        let committed = self.protocol.commit(&mut self.end, at);
        committed.map_err(|error| self.break_with(error))
    }

    fn refresh(&mut self) -> Result<(), RingError> {
        let refreshed = self.protocol.refresh(&mut self.end);
        refreshed.map_err(|error| self.usability.fail(error))
    }

    #[cold]
    fn break_with(&mut self, error: SendError) -> SendError {
        if let SendError::Broken(error) = error {
            self.usability.fail(error);
        }
        error
    }
}

impl<P: SendProtocol> MessageSender for BaselineSender<P> {
    #[inline]
    fn try_send(&mut self, message: &[u8]) -> Result<(), SendError> {
        let at = self.admit(message.len())?;
        self.bytes_mut(at).copy_from_slice(message);
        self.commit(at)
    }

    #[inline]
    fn try_send_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), SendError> {
        let at = self.admit(len)?;
        if P::IN_PLACE {
            fill(self.bytes_mut(at));
        } else {
            let mut application = std::mem::take(&mut self.application);
            fill(&mut application[..len]);
            self.bytes_mut(at).copy_from_slice(&application[..len]);
            self.application = application;
        }
        self.commit(at)
    }

    #[inline]
    fn flush(&mut self) -> Result<bool, RingError> {
        self.usability.check()?;
        let flushed = self.protocol.flush(&mut self.end);
        flushed.map_err(|error| self.usability.fail(error))
    }

    fn step(&mut self) -> Result<bool, RingError> {
        self.usability.check()?;
        let before = (self.consumed(), self.published());
        self.refresh()?;
        self.flush()?;
        if let Err(error) = self.end.connected_end.check() {
            return Err(self.usability.fail(error));
        }
        Ok(before != (self.consumed(), self.published()))
    }

    fn max_message(&self) -> usize {
        self.end.ring.max_message
    }

    fn sent(&self) -> u64 {
        self.end.policy.tail()
    }

    fn published(&self) -> u64 {
        self.end.policy.published()
    }

    fn consumed(&self) -> u64 {
        self.end.policy.head()
    }
}
