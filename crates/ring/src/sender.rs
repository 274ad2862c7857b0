//! The sending end.

use std::os::fd::BorrowedFd;

use headworks_verbs::Sge;

use crate::config::{CheckedConfig, Framing, LINE, Mode};
use crate::endpoint::{ChainPosted, RingEndpoint, Signal, TrailingWrite, Usability};
use crate::error::{LengthError, RingError, SendError};
use crate::header::{Header, Kind, lap_of};
use crate::send_policy::{PostAction, ReserveOutcome, SendPolicy};
use crate::slot_array::SlotArray;

/// The sending end of a ring.
///
/// - *Sending*: [`Sender::try_send`] copies a message; [`Sender::try_reserve`] lends its place for
///   the caller to fill. Both transmit every β and publish every α slots, and publish everything
///   before they return [`SendError::Full`].
/// - *Driving*: [`Sender::flush`] publishes what is held back. [`Sender::step`] also does that, and
///   detects errors. Call it when there is nothing to send.
/// - *Sleeping* ([`Mode::Notify`]): call [`Sender::arm`], then [`Sender::step`] once more, then wait
///   on [`Sender::fd`].
/// - *Progress*: [`Sender::published`] and [`Sender::consumed`] bound what was delivered, also after
///   an error.
pub struct Sender {
    ring: CheckedConfig,
    policy: SendPolicy,
    // Dropped before the memory: a late WRITE of the peer then finds no queue pair, instead of a key
    // that is refused.
    endpoint: RingEndpoint,
    slots: SlotArray,
    usability: Usability,
    /// Length of the messages that may take the short path: the length of fixed framing, while the
    /// ring is not broken. `usize::MAX` where no message may, as in latency mode.
    quiet_len: usize,
    /// Slots of the message that was last refused for lack of room.
    refused: u64,
    /// The tail when that message was refused. Once the tail has moved, another message was accepted.
    refused_at: u64,
    stats: SenderStats,
}

/// Counters of a sender, since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SenderStats {
    /// Number of WRITEs of slots.
    pub data_writes: u64,
    /// Number of WRITEs of the tail.
    pub tail_writes: u64,
    /// Number of publications that the elastic threshold deferred.
    pub deferred: u64,
}

/// Returns where a range of slots (first slot, count) begins in the array, and its scatter/gather entry.
#[inline(always)]
fn piece_of(slots: &SlotArray, (index, count): (u64, u64), slot_size: usize) -> (usize, Sge) {
    let offset = slots.offset_of(index);
    (offset, slots.sge(offset, count as usize * slot_size))
}

impl Sender {
    pub(crate) fn new(ring: CheckedConfig, slots: SlotArray, endpoint: RingEndpoint) -> Self {
        let mut policy = SendPolicy::new(&ring);
        policy.fit_queue(endpoint.endpoint().depth());
        Self {
            policy,
            refused: 0,
            refused_at: 0,
            quiet_len: match (ring.framing, ring.mode) {
                (Framing::Fixed(len), Mode::Poll | Mode::Notify) => len,
                _ => usize::MAX,
            },
            ring,
            slots,
            endpoint,
            usability: Usability::new(),
            stats: SenderStats::default(),
        }
    }

    /// Sends a copy of `message`. α and β decide when it is transmitted and published.
    #[inline]
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), SendError> {
        if message.len() == self.quiet_len
            && let Some(index) = self.policy.quiet_index()
            && !self.usability.is_foreign()
        {
            let offset = self.slots.offset_of(index);
            copy(self.slots.bytes_mut(offset, message.len()), message);
            self.policy.take_quietly();
            return Ok(());
        }
        let at = self.admit(message.len())?;
        copy(self.slots.bytes_mut(at.offset, message.len()), message);
        self.commit(at, message.len())
    }

    /// Lends the place of a message of `len` bytes. [`Reservation::commit`] sends the message;
    /// dropping the reservation does not.
    #[inline]
    pub fn try_reserve(&mut self, len: usize) -> Result<Reservation<'_>, SendError> {
        let at = self.admit(len)?;
        Ok(Reservation {
            sender: self,
            at,
            len,
        })
    }

    /// Stores this end's counters in the cache line that the peer WRITEs its cursor to. Nothing reads
    /// them there: they serve to measure the cost of counters that share a line (section IV-C).
    #[doc(hidden)]
    #[inline]
    pub fn store_pointers_beside_cursor(&self) {
        let policy = &self.policy;
        self.slots
            .store_beside_cursor([policy.tail(), policy.published(), policy.head()]);
    }

    /// Finds the place of a message of `len` bytes.
    #[inline(always)]
    fn admit(&mut self, len: usize) -> Result<MessageLocation, SendError> {
        let legal = match self.ring.framing {
            Framing::Fixed(fixed) => len == fixed,
            Framing::Variable(longest) => len <= longest,
        };
        if !legal {
            return Err(self.illegal(len));
        }
        let count = self.ring.slots_of(len);
        if let ReserveOutcome::At(index) = self.policy.reserve(count)
            && self.usability.is_usable()
        {
            return Ok(self.place(index, count, len));
        }
        self.admit_slowly(count, len)
    }

    #[cold]
    fn illegal(&self, len: usize) -> SendError {
        let (lowest, highest) = match self.ring.framing {
            Framing::Fixed(fixed) => (fixed, fixed),
            Framing::Variable(longest) => (0, longest),
        };
        let error = LengthError {
            len,
            lowest,
            highest,
        };
        error.into()
    }

    #[inline(never)]
    fn admit_slowly(&mut self, count: u64, len: usize) -> Result<MessageLocation, SendError> {
        self.usability.check()?;
        let (mut refreshed, mut flushed) = (false, false);
        loop {
            match self.policy.reserve(count) {
                ReserveOutcome::At(index) => return Ok(self.place(index, count, len)),
                ReserveOutcome::Skip { index, count } => self.skip(index, count)?,
                ReserveOutcome::Full if !refreshed => {
                    refreshed = true;
                    self.refresh()?;
                }
                // Still full: the receiver must see every message to free slots. Flushing earlier would
                // cut a batch short and shift all later ones: they would wrap and need one more WRITE.
                ReserveOutcome::Full if !flushed => {
                    flushed = true;
                    self.flush()?;
                }
                ReserveOutcome::Full => {
                    // If all requests have completed, none will report that the queue pair has failed since.
                    if let Err(error) = self.endpoint.endpoint().check() {
                        return Err(self.break_with(error).into());
                    }
                    self.refused = count;
                    self.refused_at = self.policy.tail();
                    return Err(SendError::Full);
                }
            }
        }
    }

    /// Returns where in the slots from `index` the message itself lies.
    #[inline(always)]
    fn place(&self, index: u64, count: u64, len: usize) -> MessageLocation {
        let start = self.slots.offset_of(index);
        let offset = match (self.ring.framing, self.ring.mode) {
            (_, Mode::Latency) if count > 1 => start + self.ring.slot_size,
            (_, Mode::Latency) => self.slots.last_word(index) - before_lap_word(len, &self.ring),
            (Framing::Fixed(_), _) => start,
            (Framing::Variable(_), _) => start + 8,
        };
        MessageLocation {
            index,
            count,
            offset,
        }
    }

    /// Frames the message in its place, and transmits or publishes if that is due.
    #[inline(always)]
    fn commit(&mut self, at: MessageLocation, len: usize) -> Result<(), SendError> {
        if self.ring.mode == Mode::Latency {
            return self.send_with_lap(at, len);
        }
        if let Framing::Variable(_) = self.ring.framing {
            let header = Header {
                lap: 0,
                kind: Kind::Message,
                len: len as u32,
            };
            self.slots
                .set_word(self.slots.offset_of(at.index), header.word());
        }
        self.advance(at.count)?;
        self.policy.settle();
        Ok(())
    }

    #[inline(always)]
    fn advance(&mut self, count: u64) -> Result<(), RingError> {
        match self.policy.advance(count) {
            PostAction::Nothing => Ok(()),
            PostAction::Transmit => self.transmit(false),
            PostAction::Publish => self.publish_if_idle(),
        }
    }

    /// Publishes at the cadence of α, unless an earlier publication is in flight.
    #[inline]
    fn publish_if_idle(&mut self) -> Result<(), RingError> {
        if self.ring.elastic && self.policy.is_publishing() {
            self.poll()?;
        }
        let now = self.policy.attempt();
        self.stats.deferred += u64::from(!now);
        self.transmit(now)
    }

    /// Transmits all filled slots and, if `publish`, publishes the tail after them.
    #[inline]
    fn transmit(&mut self, publish: bool) -> Result<(), RingError> {
        let [first, second] = self.policy.untransmitted();
        if first.1.max(second.1) > self.ring.write_slots {
            return self.transmit_in_parts(publish);
        }
        let piece = |range| piece_of(&self.slots, range, self.ring.slot_size);
        let tail = self.policy.tail();
        let signaled = publish && self.policy.must_signal(tail);
        if publish
            && first.1 != 0
            && second.1 == 0
            && let Some(posted) = self.endpoint.post_plainly(piece(first), tail, signaled)
        {
            return self.posted(posted, 1, publish, signaled);
        }
        self.transmit_otherwise(publish)
    }

    /// Does the same as [`Sender::transmit`] where the usual path does not apply.
    #[inline(never)]
    fn transmit_otherwise(&mut self, publish: bool) -> Result<(), RingError> {
        let [first, second] = self.policy.untransmitted();
        let piece = |range| piece_of(&self.slots, range, self.ring.slot_size);
        let tail = self.policy.tail();
        let signaled = publish && self.policy.must_signal(tail);
        let announcement = publish.then_some(TrailingWrite::Cursor(tail));
        let signal = Signal {
            wr_id: tail,
            signaled,
        };
        let endpoint = &mut self.endpoint;
        let (writes, posted) = match (first.1, second.1) {
            (0, 0) if !publish => return Ok(()),
            (0, 0) => (0, endpoint.post(&[], announcement, signal)),
            (_, 0) if first.1 as usize * self.ring.slot_size <= endpoint.inline_up_to() => {
                let (offset, sge) = piece(first);
                let bytes = self.slots.bytes_at(offset, sge.len as usize);
                (
                    1,
                    endpoint.post_inline((offset, bytes), announcement, signal),
                )
            }
            (_, 0) => (1, endpoint.post(&[piece(first)], announcement, signal)),
            _ => {
                let pieces = [piece(first), piece(second)];
                (2, endpoint.post(&pieces, announcement, signal))
            }
        };
        self.posted(posted, writes, publish, signaled)
    }

    /// Does the same as [`Sender::transmit`] where a range of slots is longer than the device's longest
    /// message: posts a WRITE for each part, and the rest as usual. Each WRITE still carries at least one
    /// slot, which the size of the send queue relies on.
    #[cold]
    fn transmit_in_parts(&mut self, publish: bool) -> Result<(), RingError> {
        loop {
            let [(index, first), (_, second)] = self.policy.untransmitted();
            if first.max(second) <= self.ring.write_slots {
                return self.transmit(publish);
            }
            let count = first.min(self.ring.write_slots);
            let offset = self.slots.offset_of(index);
            let bytes = count as usize * self.ring.slot_size;
            let piece = (offset, self.slots.sge(offset, bytes));
            match self.endpoint.post(&[piece], None, Signal::NONE) {
                Ok(ChainPosted::All) => {
                    self.stats.data_writes += 1;
                    self.policy.transmitted_slots(count);
                }
                Ok(ChainPosted::Part(_)) => return self.poll(),
                Err(error) => return Err(self.break_with(error)),
            }
        }
    }

    /// Accounts for a posted chain of `writes` WRITEs of slots and, if `publish`, one of the tail.
    #[inline(always)]
    fn posted(
        &mut self,
        posted: Result<ChainPosted, RingError>,
        writes: u64,
        publish: bool,
        signaled: bool,
    ) -> Result<(), RingError> {
        match posted {
            Ok(ChainPosted::All) => {
                self.stats.data_writes += writes;
                self.policy.transmitted();
                if publish {
                    self.stats.tail_writes += 1;
                    self.policy.publish();
                }
                if signaled {
                    self.policy.signal(self.policy.tail());
                }
                Ok(())
            }
            // The send queue is full. Completions make room, and the rest is posted later. The sender
            // does not post the first part again: it would take the room that signalled requests need.
            Ok(ChainPosted::Part(count)) => {
                self.stats.data_writes += count as u64;
                self.policy.transmitted_pieces(count);
                self.poll()
            }
            Err(error) => Err(self.break_with(error)),
        }
    }

    /// Fills `count` slots up to the end of the array with a skip.
    fn skip(&mut self, index: u64, count: u64) -> Result<(), SendError> {
        let mut header = Header {
            lap: 0,
            kind: Kind::Skip,
            len: count as u32,
        };
        if self.ring.mode == Mode::Latency {
            header.lap = lap_of(self.policy.tail(), self.ring.slots);
            return self.send_lap_word(index, count, header, &[], true);
        }
        self.slots
            .set_word(self.slots.offset_of(index), header.word());
        Ok(self.advance(count)?)
    }

    /// Latency mode: sends one WRITE whose last word is the header with the lap. A message that takes
    /// several slots goes into those after the first; its header follows in a second WRITE.
    #[inline]
    fn send_with_lap(&mut self, at: MessageLocation, len: usize) -> Result<(), SendError> {
        let lap = lap_of(self.policy.tail(), self.ring.slots);
        let len32 = len as u32;
        if at.count > 1 {
            let header = Header {
                lap,
                kind: Kind::Long,
                len: len32,
            };
            let piece = (at.offset, self.slots.sge(at.offset, len));
            return self.send_lap_word(at.index, at.count, header, &[piece], true);
        }
        let word = self.slots.last_word(at.index);
        self.slots.set_word(
            word,
            Header {
                lap,
                kind: Kind::Message,
                len: len32,
            }
            .word(),
        );
        let piece = (at.offset, self.slots.sge(at.offset, word + 8 - at.offset));
        self.send_lap_word(
            at.index,
            at.count,
            Header {
                lap,
                kind: Kind::Message,
                len: len32,
            },
            &[piece],
            false,
        )
    }

    #[inline]
    fn send_lap_word(
        &mut self,
        index: u64,
        count: u64,
        header: Header,
        pieces: &[(usize, Sge)],
        word_apart: bool,
    ) -> Result<(), SendError> {
        let tail = self.policy.tail().wrapping_add(count);
        let signaled = self.policy.must_signal(tail);
        let announcement =
            word_apart.then(|| TrailingWrite::Word(self.slots.last_word(index), header.word()));
        let signal = Signal {
            wr_id: tail,
            signaled,
        };
        for again in [true, false] {
            let posted = match pieces {
                [(offset, sge)] if sge.len as usize <= self.endpoint.inline_up_to() => {
                    let bytes = self.slots.bytes_at(*offset, sge.len as usize);
                    self.endpoint
                        .post_inline((*offset, bytes), announcement, signal)
                }
                _ => self.endpoint.post(pieces, announcement, signal),
            };
            match posted {
                Ok(ChainPosted::All) => break,
                // Completions make room. If none came, nothing has been announced: the caller retries.
                Ok(ChainPosted::Part(_)) if again => self.poll()?,
                Ok(ChainPosted::Part(_)) => return Err(SendError::Full),
                Err(error) => return Err(self.break_with(error).into()),
            }
        }
        if signaled {
            self.policy.signal(tail);
        }
        self.stats.data_writes += 1;
        self.policy.advance(count);
        self.policy.transmitted();
        self.policy.publish();
        Ok(())
    }

    /// Publishes everything that was sent. Returns whether nothing is held back any more; if something
    /// is, the device had no room: call again.
    pub fn flush(&mut self) -> Result<bool, RingError> {
        self.usability.check()?;
        if !self.policy.is_flushed() {
            self.transmit(true)?;
        }
        Ok(self.policy.is_flushed())
    }

    /// Publishes everything, takes completions, reads the peer's head and checks the queue pair.
    /// Returns whether something changed: what is consumed or published, or whether there is room.
    pub fn step(&mut self) -> Result<bool, RingError> {
        self.usability.check()?;
        let before = self.policy.news();
        self.refresh()?;
        self.flush()?;
        if let Err(error) = self.endpoint.endpoint().check() {
            return Err(self.break_with(error));
        }
        Ok(before != self.policy.news())
    }

    /// Takes completions and reads the peer's head.
    fn refresh(&mut self) -> Result<(), RingError> {
        self.poll()?;
        if !self.endpoint.is_notify() {
            let head = self.slots.cursor();
            self.policy
                .observe_head(head)
                .map_err(|error| self.break_with(error.into()))?;
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self) -> Result<(), RingError> {
        let polled = match self.endpoint.poll() {
            Ok(polled) => polled,
            Err(error) => return Err(self.break_with(error)),
        };
        if let Some(tail) = polled.sent {
            self.policy
                .complete(tail)
                .map_err(|error| self.break_with(error.into()))?;
        }
        if let Some(head) = polled.cursor {
            self.policy
                .observe_head(head)
                .map_err(|error| self.break_with(error.into()))?;
        }
        Ok(())
    }

    #[cold]
    fn break_with(&mut self, error: RingError) -> RingError {
        self.quiet_len = usize::MAX;
        let is_first = self.usability.broken().is_none();
        if is_first && error.is_peer_gone() && !self.endpoint.is_notify() {
            // The last head that the peer pushed shows what the peer has consumed.
            let _ = self.policy.observe_head(self.slots.cursor());
        }
        self.usability.fail(error)
    }

    /// Number of slots sent since the ring was made, published or not.
    pub fn sent(&self) -> u64 {
        self.policy.tail()
    }

    /// Number of slots published since the ring was made. After an error: the receiver has seen at
    /// most these.
    pub fn published(&self) -> u64 {
        self.policy.published()
    }

    /// Number of slots that the receiver is known to have consumed since the ring was made. After an
    /// error, everything before was delivered: a replica can resume from here.
    pub fn consumed(&self) -> u64 {
        self.policy.head()
    }

    /// Returns whether the receiver has consumed everything that was sent.
    pub fn is_drained(&self) -> bool {
        self.policy.head() == self.policy.tail()
    }

    /// Returns whether there is no room for the message that was last refused or, if a message was
    /// sent since, for a single slot.
    pub fn is_full(&self) -> bool {
        let wanted = if self.refused_at == self.policy.tail() {
            self.refused.max(1)
        } else {
            1
        };
        self.policy.reserve(wanted) == ReserveOutcome::Full
    }

    /// Longest message, in bytes.
    pub fn max_message(&self) -> usize {
        self.ring.max_message
    }

    /// The ring's checked configuration.
    pub fn ring(&self) -> &CheckedConfig {
        &self.ring
    }

    /// Counters since the ring was made.
    pub fn stats(&self) -> SenderStats {
        self.stats
    }

    /// Descriptor that is readable when [`Sender::step`] may find something, after [`Sender::arm`].
    /// `None` unless the ring can sleep ([`Mode::Notify`]).
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.channel().map(|channel| channel.fd())
    }

    /// Arms the descriptor: the next event makes it readable. Call [`Sender::step`] once more before
    /// sleeping.
    pub fn arm(&mut self) {
        self.endpoint.arm();
    }

    /// Takes the events that made the descriptor readable.
    pub fn drain_events(&mut self) {
        if let Some(channel) = self.endpoint.channel() {
            while let Ok(Some(_)) = channel.next_event() {}
        }
    }
}

/// Returns the distance from the start of a message to its lap word, in bytes. One WRITE carries both
/// and ends with the word. The message starts on a cache line if the slot has room for that.
#[inline(always)]
pub(crate) fn before_lap_word(len: usize, ring: &CheckedConfig) -> usize {
    let room = ring.slot_size - 8;
    (len.next_multiple_of(LINE) + LINE - 8)
        .min(room)
        .max(len.next_multiple_of(8).min(room))
}

/// Copies a message into its place. A message of one cache line, the most frequent length, is copied
/// without a call into the C library: the call costs as much as the copy.
#[inline(always)]
fn copy(place: &mut [u8], message: &[u8]) {
    match <&[u8; LINE]>::try_from(message) {
        Ok(line) => place.copy_from_slice(line),
        Err(_) => place.copy_from_slice(message),
    }
}

/// Location of a message in the array.
#[derive(Clone, Copy)]
struct MessageLocation {
    index: u64,
    count: u64,
    /// Start of the message, in bytes from the start of the array.
    offset: usize,
}

/// The lent place of a message that the caller fills. Dereferences to its bytes, which hold stale
/// data at first.
pub struct Reservation<'s> {
    sender: &'s mut Sender,
    at: MessageLocation,
    len: usize,
}

impl Reservation<'_> {
    /// Sends the message. α and β decide when it is transmitted and published.
    #[inline]
    pub fn commit(self) -> Result<(), SendError> {
        self.owned()?;
        self.sender.commit(self.at, self.len)
    }

    /// Refuses a forked child: the memory is the parent's, and may not be mapped in this process.
    #[inline(always)]
    fn owned(&self) -> Result<(), SendError> {
        match self.sender.usability.is_foreign() {
            true => Err(SendError::Broken(RingError::Forked)),
            false => Ok(()),
        }
    }

    /// Sends only the first `len` bytes, in no more slots than these need. Sends the whole message if
    /// `len` is larger, if framing is fixed, or in latency mode, where a message's length decides where
    /// it lies.
    #[inline]
    pub fn commit_len(self, len: usize) -> Result<(), SendError> {
        let ring = &self.sender.ring;
        let movable = matches!(ring.framing, Framing::Variable(_)) && ring.mode != Mode::Latency;
        if !movable || len >= self.len {
            return self.commit();
        }
        self.owned()?;
        let at = MessageLocation {
            count: ring.slots_of(len),
            ..self.at
        };
        self.sender.commit(at, len)
    }
}

impl std::ops::Deref for Reservation<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.sender.slots.bytes_at(self.at.offset, self.len)
    }
}

impl std::ops::DerefMut for Reservation<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.sender.slots.bytes_mut(self.at.offset, self.len)
    }
}
