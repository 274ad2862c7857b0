//! The sending end.

use std::os::fd::BorrowedFd;

use headworks_verbs::Sge;

use crate::config::{Framing, LINE, Mode, Settled};
use crate::endpoint::{Announcement, Posted, RingEndpoint, Signal, Usability};
use crate::error::{LengthError, RingError, SendError};
use crate::header::{Header, Kind, lap_of};
use crate::send_policy::{Due, Reserve, SendPolicy};
use crate::slot_array::Slots;

/// The sending end of a ring.
///
/// - *Sending*: [`Sender::try_send`] copies a message, [`Sender::try_reserve`] lends its place to
///   be filled. Both transmit and publish by themselves as α and β say, and publish everything when
///   they answer [`SendError::Full`].
/// - *Driving*: [`Sender::flush`] publishes what is held back; [`Sender::step`] does that too and
///   notices errors. Call it when there is nothing to send.
/// - *Sleeping* ([`Mode::Notify`]): [`Sender::arm`], then [`Sender::step`] once more, then wait on
///   [`Sender::fd`].
/// - *Asking*: what was delivered, also after an error.
pub struct Sender {
    ring: Settled,
    policy: SendPolicy,
    // The queue pair goes before the memory: a peer then finds nobody, not a key that is refused.
    endpoint: RingEndpoint,
    slots: Slots,
    usability: Usability,
    /// Length of the messages that may take the short way: those of fixed framing, while the ring
    /// is whole and nothing need be done with each.
    quiet_len: usize,
    /// Slots of the message that was refused last for lack of room, and the tail then: once the tail
    /// has moved, another message was taken.
    refused: u64,
    refused_at: u64,
    stats: SenderStats,
}

/// What a sender has done, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SenderStats {
    /// WRITEs of slots.
    pub data_writes: u64,
    /// WRITEs of the tail.
    pub tail_writes: u64,
    /// Publications that the elastic threshold deferred.
    pub deferred: u64,
}

impl Sender {
    pub(crate) fn new(ring: Settled, slots: Slots, endpoint: RingEndpoint) -> Self {
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

    /// Sends a copy of `message`, as far as α and β let it go now.
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

    /// Lends the place of a message of `len` bytes; [`Reservation::commit`] sends it, dropping the
    /// reservation does not.
    #[inline]
    pub fn try_reserve(&mut self, len: usize) -> Result<Reservation<'_>, SendError> {
        let at = self.admit(len)?;
        Ok(Reservation {
            sender: self,
            at,
            len,
        })
    }

    /// Stores this end's pointers in the cache line that the peer's WRITEs of its own go to, where
    /// nothing reads them. For measuring what it costs when pointers share a line (section IV-C).
    #[doc(hidden)]
    #[inline]
    pub fn store_pointers_beside_cursor(&self) {
        let policy = &self.policy;
        self.slots
            .store_beside_cursor([policy.tail(), policy.published(), policy.head()]);
    }

    /// Finds the place of a message.
    #[inline(always)]
    fn admit(&mut self, len: usize) -> Result<Place, SendError> {
        let legal = match self.ring.framing {
            Framing::Fixed(fixed) => len == fixed,
            Framing::Variable(longest) => len <= longest,
        };
        if !legal {
            return Err(self.illegal(len));
        }
        let count = self.ring.slots_of(len);
        if let Reserve::At(index) = self.policy.reserve(count)
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
    fn admit_slowly(&mut self, count: u64, len: usize) -> Result<Place, SendError> {
        self.usability.check()?;
        let (mut refreshed, mut flushed) = (false, false);
        loop {
            match self.policy.reserve(count) {
                Reserve::At(index) => return Ok(self.place(index, count, len)),
                Reserve::Skip { index, count } => self.skip(index, count)?,
                Reserve::Full if !refreshed => {
                    refreshed = true;
                    self.refresh()?;
                }
                // Still full: the receiver must see everything. Not before: a batch that is cut short
                // shifts all that follow, so that they wrap and take a WRITE more.
                Reserve::Full if !flushed => {
                    flushed = true;
                    self.flush()?;
                }
                Reserve::Full => {
                    self.refused = count;
                    self.refused_at = self.policy.tail();
                    return Err(SendError::Full);
                }
            }
        }
    }

    /// Where in the slots from `index` the message itself lies.
    #[inline(always)]
    fn place(&self, index: u64, count: u64, len: usize) -> Place {
        let start = self.slots.offset_of(index);
        let offset = match (self.ring.framing, self.ring.mode) {
            (_, Mode::Latency) if count > 1 => start + self.ring.slot_size,
            (_, Mode::Latency) => self.slots.last_word(index) - before_lap_word(len, &self.ring),
            (Framing::Fixed(_), _) => start,
            (Framing::Variable(_), _) => start + 8,
        };
        Place {
            index,
            count,
            offset,
        }
    }

    /// The message is in its place: frame it, send what is due.
    #[inline(always)]
    fn commit(&mut self, at: Place, len: usize) -> Result<(), SendError> {
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
            Due::Nothing => Ok(()),
            Due::Transmit => self.transmit(false),
            Due::Publish => self.publish_if_idle(),
        }
    }

    /// The α cadence: publishes unless an earlier publication is under way.
    #[inline]
    fn publish_if_idle(&mut self) -> Result<(), RingError> {
        if self.ring.elastic && self.policy.is_publishing() {
            self.poll()?;
        }
        let now = self.policy.attempt();
        self.stats.deferred += u64::from(!now);
        self.transmit(now)
    }

    /// Transmits everything filled, and publishes the tail behind it if asked to.
    #[inline]
    fn transmit(&mut self, publish: bool) -> Result<(), RingError> {
        let [first, second] = self.policy.untransmitted();
        if first.1.max(second.1) > self.ring.write_slots {
            return self.transmit_in_parts(publish);
        }
        let piece = |(index, count): (u64, u64)| -> (usize, Sge) {
            let offset = self.slots.offset_of(index);
            (
                offset,
                self.slots.sge(offset, count as usize * self.ring.slot_size),
            )
        };
        let tail = self.policy.tail();
        let signaled = publish && self.policy.must_signal(tail);
        if publish
            && first.1 != 0
            && second.1 == 0
            && let Some(posted) = self.endpoint.post_plainly(piece(first), tail, signaled)
        {
            return self.posted(posted, 1, publish, signaled);
        }
        let announcement = publish.then_some(Announcement::Cursor(tail));
        let signal = Signal {
            wr_id: tail,
            signaled,
        };
        let endpoint = &mut self.endpoint;
        let (writes, posted) = match (first.1, second.1) {
            (0, 0) if !publish => return Ok(()),
            (0, 0) => (0, endpoint.post(&[], announcement, signal)),
            (_, 0) => (1, endpoint.post(&[piece(first)], announcement, signal)),
            _ => {
                let pieces = [piece(first), piece(second)];
                (2, endpoint.post(&pieces, announcement, signal))
            }
        };
        self.posted(posted, writes, publish, signaled)
    }

    /// What [`Sender::transmit`] does where more slots lie side by side than the device's longest message
    /// holds: a WRITE for each part, and the rest as usual. A WRITE has a slot or more all the same, which
    /// is what the send queue was made for.
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
                Ok(Posted::All) => {
                    self.stats.data_writes += 1;
                    self.policy.transmitted_slots(count);
                }
                Ok(Posted::Part(_)) => return self.poll(),
                Err(error) => return Err(self.break_with(error)),
            }
        }
    }

    /// Notes what a chain of `writes` WRITEs of slots, and perhaps one of the tail, came to.
    #[inline(always)]
    fn posted(
        &mut self,
        posted: Result<Posted, RingError>,
        writes: u64,
        publish: bool,
        signaled: bool,
    ) -> Result<(), RingError> {
        match posted {
            Ok(Posted::All) => {
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
            // The send queue is full: what completed makes room, and the rest is posted later.
            // What was posted is not posted again: it would take the room of what is signalled.
            Ok(Posted::Part(count)) => {
                self.stats.data_writes += count as u64;
                self.policy.transmitted_pieces(count);
                self.poll()
            }
            Err(error) => Err(self.break_with(error)),
        }
    }

    /// Fills `count` slots up to the end of the array with nothing.
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

    /// Latency mode: one WRITE whose last word is the header with the lap. A long message goes
    /// first, into the slots that follow, and its header after it.
    #[inline]
    fn send_with_lap(&mut self, at: Place, len: usize) -> Result<(), SendError> {
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
            word_apart.then(|| Announcement::Word(self.slots.last_word(index), header.word()));
        let signal = Signal {
            wr_id: tail,
            signaled,
        };
        for again in [true, false] {
            match self.endpoint.post(pieces, announcement, signal) {
                Ok(Posted::All) => break,
                // What completed makes room; if nothing did, nothing has been announced.
                Ok(Posted::Part(_)) if again => self.poll()?,
                Ok(Posted::Part(_)) => return Err(SendError::Full),
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

    /// Publishes everything that was sent. Says whether nothing is held back any more (the device
    /// may have no room; call again).
    pub fn flush(&mut self) -> Result<bool, RingError> {
        self.usability.check()?;
        if !self.policy.is_flushed() {
            self.transmit(true)?;
        }
        Ok(self.policy.is_flushed())
    }

    /// Publishes everything, takes completions, looks at the peer's head and at the queue pair.
    /// Says whether something changed: what is consumed or published, or whether there is room.
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

    /// Learns what has completed and how far the peer has read.
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
            // The last head that the peer pushed says what it has consumed.
            let _ = self.policy.observe_head(self.slots.cursor());
        }
        self.usability.fail(error)
    }

    /// Slots sent, ever; see [`Sender::published`].
    pub fn sent(&self) -> u64 {
        self.policy.tail()
    }

    /// Slots announced to the receiver, ever. After an error: the receiver has seen at most this.
    pub fn published(&self) -> u64 {
        self.policy.published()
    }

    /// Slots that the receiver is known to have consumed, ever. After an error everything before
    /// was delivered: a replica can resume from here.
    pub fn consumed(&self) -> u64 {
        self.policy.head()
    }

    /// Whether everything that was sent has been consumed.
    pub fn is_drained(&self) -> bool {
        self.policy.head() == self.policy.tail()
    }

    /// Whether there is no room: for the message that was refused, as long as none was sent since, or
    /// for a single slot.
    pub fn is_full(&self) -> bool {
        let wanted = if self.refused_at == self.policy.tail() {
            self.refused.max(1)
        } else {
            1
        };
        self.policy.reserve(wanted) == Reserve::Full
    }

    /// Longest message, in bytes.
    pub fn max_message(&self) -> usize {
        self.ring.max_message
    }

    /// The ring's configuration, decided.
    pub fn ring(&self) -> &Settled {
        &self.ring
    }

    /// What it has done so far.
    pub fn stats(&self) -> SenderStats {
        self.stats
    }

    /// Readable when [`Sender::step`] may find something, after [`Sender::arm`]. `None` unless the
    /// ring was made to sleep on ([`Mode::Notify`]).
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.channel().map(|channel| channel.fd())
    }

    /// Asks for the descriptor to become readable; call [`Sender::step`] once more before sleeping.
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

/// Bytes from the start of a message to its lap word: the message ends at the word, and starts on
/// a line where the slot has room for that.
#[inline(always)]
pub(crate) fn before_lap_word(len: usize, ring: &Settled) -> usize {
    let room = ring.slot_size - 8;
    (len.next_multiple_of(LINE) + LINE - 8)
        .min(room)
        .max(len.next_multiple_of(8).min(room))
}

/// Copies a message into its place. One of a line, the most frequent length, is copied without a
/// call into the C library, which costs as much as the copy.
#[inline(always)]
fn copy(place: &mut [u8], message: &[u8]) {
    match <&[u8; LINE]>::try_from(message) {
        Ok(line) => place.copy_from_slice(line),
        Err(_) => place.copy_from_slice(message),
    }
}

/// Where a message goes.
#[derive(Clone, Copy)]
struct Place {
    index: u64,
    count: u64,
    /// Bytes from the start of the array.
    offset: usize,
}

/// The place of a message that is being filled; dereferences to its bytes, which hold whatever was
/// there before.
pub struct Reservation<'s> {
    sender: &'s mut Sender,
    at: Place,
    len: usize,
}

impl Reservation<'_> {
    /// Sends it, as far as α and β let it go now.
    #[inline]
    pub fn commit(self) -> Result<(), SendError> {
        self.owned()?;
        self.sender.commit(self.at, self.len)
    }

    /// After a fork the memory is the parent's, and may not even be here.
    #[inline(always)]
    fn owned(&self) -> Result<(), SendError> {
        match self.sender.usability.is_foreign() {
            true => Err(SendError::Broken(RingError::Forked)),
            false => Ok(()),
        }
    }

    /// Sends its first `len` bytes only, in no more slots than these need. Variable framing; the
    /// whole of it where `len` is larger, where messages have one length, or in latency mode, where
    /// a message lies where its length puts it.
    #[inline]
    pub fn commit_len(self, len: usize) -> Result<(), SendError> {
        let ring = &self.sender.ring;
        let movable = matches!(ring.framing, Framing::Variable(_)) && ring.mode != Mode::Latency;
        if !movable || len >= self.len {
            return self.commit();
        }
        self.owned()?;
        let at = Place {
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
