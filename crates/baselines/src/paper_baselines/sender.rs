//! The sending end of every paper design: the loop, without what makes a design.

use headworks_ring::config::{CheckedConfig, Framing};
use headworks_ring::endpoint::Usability;
use headworks_ring::send_policy::{ReserveOutcome, SendPolicy};
use headworks_ring::{LengthError, MessageSender, RingError, SendError};
use headworks_verbs::{RemoteAddr, Sge};

use super::link::ConnectedEnd;
use super::setup::ARRAY;

/// What a design's sender does beyond finding a place.
pub trait SendProtocol {
    /// Whether the application fills the place that is sent from; otherwise its message is copied
    /// there.
    const IN_PLACE: bool;

    /// Whether a message may be sent now, where the array has room for one.
    #[inline(always)]
    fn may_send(&self, _end: &SendEnd) -> bool {
        true
    }

    /// The message is in its place: frame and send it, or keep it for a batch. `Full` if there is no
    /// room in the send queue; then nothing has happened.
    fn commit(&mut self, end: &mut SendEnd, at: MessageLocation) -> Result<(), SendError>;

    /// Nothing is in `at.count` slots up to the end of the array: tell the receiver.
    fn skip(&mut self, end: &mut SendEnd, at: MessageLocation) -> Result<(), SendError>;

    /// Sends what is kept. Says whether nothing is kept any more.
    fn flush(&mut self, end: &mut SendEnd) -> Result<bool, RingError>;

    /// Learns what has completed and how far the receiver has read.
    fn refresh(&mut self, end: &mut SendEnd) -> Result<(), RingError> {
        end.poll()?;
        end.observe_head()
    }
}

/// Where a message is: slots from `index`.
#[derive(Clone, Copy, Debug)]
pub struct MessageLocation {
    /// Its first slot.
    pub index: u64,
    /// Its slots.
    pub count: u64,
    /// Its bytes.
    pub len: usize,
}

/// What every design's sender works with.
pub struct SendEnd {
    pub(super) ring: CheckedConfig,
    pub(super) policy: SendPolicy,
    pub(super) link: ConnectedEnd,
}

impl SendEnd {
    /// Bytes from the start of the memory to slot `index`.
    #[inline(always)]
    pub(super) fn offset_of(&self, index: u64) -> usize {
        ARRAY + index as usize * self.ring.slot_size
    }

    /// Bytes of a message's header.
    #[inline(always)]
    pub(super) fn header(&self) -> usize {
        match self.ring.framing {
            Framing::Fixed(_) => 0,
            Framing::Variable(_) => 8,
        }
    }

    /// Stores a header in front of a message.
    #[inline(always)]
    pub(super) fn set_word(&self, offset: usize, word: u64) {
        use std::sync::atomic::Ordering::Relaxed;
        // Only this end's own copy: the device reads it in the order of posting.
        self.link.memory.word(offset).store(word, Relaxed);
    }

    /// `len` bytes at `offset`, and the same place in the receiver's memory.
    #[inline(always)]
    pub(super) fn piece(&self, offset: usize, len: usize) -> (Sge, RemoteAddr) {
        let sge = self.link.memory.sge(offset, len);
        (sge, self.link.peer.plus(offset as u64))
    }

    /// So many slots from `index`, and the same in the receiver's memory.
    #[inline(always)]
    pub(super) fn slots(&self, (index, count): (u64, u64)) -> (Sge, RemoteAddr) {
        self.piece(self.offset_of(index), count as usize * self.ring.slot_size)
    }

    /// Takes completions of requests whose `wr_id` is a tail.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<(), RingError> {
        let mut last = None;
        self.link.poll_sends(|tail| last = Some(tail))?;
        match last {
            Some(tail) => Ok(self.policy.complete(tail)?),
            None => Ok(()),
        }
    }

    /// Looks at the head that the receiver pushed.
    #[inline]
    pub(super) fn observe_head(&mut self) -> Result<(), RingError> {
        let head = self.link.memory.cursor(0).observe();
        Ok(self.policy.observe_head(head)?)
    }
}

/// The sending end of a paper design.
pub struct BaselineSender<P> {
    protocol: P,
    end: SendEnd,
    /// The application's memory, for designs that copy from it.
    application: Vec<u8>,
    usability: Usability,
}

impl<P: SendProtocol> BaselineSender<P> {
    pub(super) fn new(protocol: P, ring: CheckedConfig, link: ConnectedEnd) -> Self {
        let mut policy = SendPolicy::new(&ring);
        policy.fit_queue(link.depth());
        Self {
            protocol,
            application: vec![0; if P::IN_PLACE { 0 } else { ring.max_message }],
            end: SendEnd { ring, policy, link },
            usability: Usability::new(),
        }
    }

    /// Finds the place of a message.
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
                // Still full: the receiver must see everything. Not before: a batch that is cut short
                // shifts all that follow, so that they wrap and take a WRITE more.
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
        self.end.link.memory.lent_mut(offset, at.len)
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
        if let Err(error) = self.end.link.check() {
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
