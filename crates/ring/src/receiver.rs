//! The receiving end.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_verbs::{Completion, Qpn, Status};

use crate::config::{CheckedConfig, Framing, Mode};
use crate::endpoint::{ChainPosted, RingEndpoint, Signal, TrailingWrite, Usability};
use crate::error::RingError;
use crate::header::{Header, Kind, lap_of};
use crate::receive_policy::ReceivePolicy;
use crate::sender::before_lap_word;
use crate::slot_array::SlotArray;

/// The receiving end of a ring.
///
/// - *Receiving*: [`Receiver::try_recv`] lends the next message where it lies; dropping it releases
///   it. [`Receiver::try_take`] hands out messages that the caller releases later, in any order.
///   Their space is freed in the order of sending.
/// - *Driving*: [`Receiver::step`] detects errors. Call it when there is nothing to receive.
///   [`Receiver::push_head`] tells the sender of all free space. A head that is due and has no room in the
///   send queue is pushed by a later release, step or receive that finds nothing.
/// - *Sleeping* ([`Mode::Notify`]): call [`Receiver::arm`], then look for a message once more, then
///   wait on [`Receiver::fd`].
pub struct Receiver {
    /// Number unique among the receivers of this process. A [`HeldMessage`] names its receiver by it.
    id: u64,
    ring: CheckedConfig,
    receive_policy: ReceivePolicy,
    // Dropped before the memory: a late WRITE of the peer then finds no queue pair, instead of a key
    // that is refused.
    endpoint: RingEndpoint,
    slots: SlotArray,
    usability: Usability,
    /// Length of the messages that may take the short path: the length of fixed framing, while the
    /// ring is not broken. `None` where no message may, as in latency mode.
    quiet_len: Option<usize>,
    /// Whether a head that was due found no room in the send queue. It follows from the policy; a receive that finds nothing, which
    /// programs call all the time, looks at this flag only.
    head_waits: bool,
}

/// Counters of a receiver, since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ReceiverStats {
    /// Number of WRITEs of the head.
    pub head_writes: u64,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// A message found in the array.
#[derive(Clone, Copy)]
pub(crate) struct FoundMessage {
    index: u64,
    count: u64,
    offset: usize,
    len: usize,
}

impl Receiver {
    pub(crate) fn new(ring: CheckedConfig, slots: SlotArray, endpoint: RingEndpoint) -> Self {
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            receive_policy: ReceivePolicy::new(&ring),
            quiet_len: match (ring.framing, ring.mode) {
                (Framing::Fixed(len), Mode::Poll | Mode::Notify) => Some(len),
                _ => None,
            },
            head_waits: false,
            ring,
            slots,
            endpoint,
            usability: Usability::new(),
        }
    }

    /// Returns the next message, if there is one, where it lies. Dropping it releases its slots.
    ///
    /// Each call that finds nothing takes the tail's cache line from the sender for a moment. Where
    /// messages stream, both ends are faster if the receiver waits a little after an empty call.
    /// `PollInterval` in `headworks_net` says how long.
    #[inline(always)]
    pub fn try_recv(&mut self) -> Result<Option<Message<'_>>, RingError> {
        if let Some(len) = self.quiet_len
            && let Some(index) = self.receive_policy.quiet_index()
            && !self.usability.is_foreign()
        {
            let offset = self.slots.offset_of(index);
            let found = FoundMessage {
                index,
                count: 1,
                offset,
                len,
            };
            return Ok(Some(Message {
                receiver: self,
                found,
            }));
        }
        match self.find()? {
            Some(found) => Ok(Some(Message {
                receiver: self,
                found,
            })),
            None => Ok(None),
        }
    }

    /// Stores this end's counters in the cache line that the peer WRITEs its cursor to. Nothing reads
    /// them there: they serve to measure the cost of counters that share a line (section IV-C).
    #[doc(hidden)]
    #[inline]
    pub fn store_pointers_beside_cursor(&self) {
        let receive_policy = &self.receive_policy;
        self.slots.store_beside_cursor([
            receive_policy.next(),
            receive_policy.head(),
            receive_policy.unsynced(),
        ]);
    }

    /// For a group: finds the next message, which the group then lends with [`Receiver::lend`].
    #[inline(always)]
    pub(crate) fn look(&mut self) -> Result<Option<FoundMessage>, RingError> {
        if let Some(len) = self.quiet_len
            && let Some(index) = self.receive_policy.quiet_index()
            && !self.usability.is_foreign()
        {
            let offset = self.slots.offset_of(index);
            let count = 1;
            return Ok(Some(FoundMessage {
                index,
                count,
                offset,
                len,
            }));
        }
        self.find()
    }

    /// For a group: lends the message that [`Receiver::look`] found.
    #[inline(always)]
    pub(crate) fn lend(&mut self, found: FoundMessage) -> Message<'_> {
        let receiver = self;
        Message { receiver, found }
    }

    /// For a group: takes a completion of this ring. Returns whether the group must look at the ring.
    pub(crate) fn hand_over(&mut self, completion: &Completion) -> bool {
        let failed = completion.status != Status::Success;
        if let Err(error) = self.endpoint.hand_over(completion) {
            self.break_with(error);
            return true;
        }
        if self.endpoint.is_notify() {
            return failed || completion.opcode.is_recv();
        }
        // A head that was due may have had no room in the send queue until now. A failure breaks the
        // ring.
        self.poll().and_then(|_| self.push_if_due()).is_err()
    }

    /// For a group: returns whether the head has moved since it was last pushed.
    #[inline(always)]
    pub(crate) fn has_unpushed(&self) -> bool {
        self.receive_policy.unsynced() > 0
    }

    /// For a group: breaks the ring because of an error that is not the ring's own.
    pub(crate) fn fail(&mut self, error: RingError) {
        self.break_with(error);
    }

    /// Queue pair number that the ring's completions carry.
    pub(crate) fn qpn(&self) -> Qpn {
        self.endpoint.endpoint().qp().qpn()
    }

    /// Takes the next message, if there is one. [`Receiver::release`] releases it later.
    pub fn try_take(&mut self) -> Result<Option<HeldMessage>, RingError> {
        let Some(found) = self.find()? else {
            return Ok(None);
        };
        let ticket = self.receive_policy.hold(found.count);
        let receiver = self.id;
        Ok(Some(HeldMessage {
            found,
            ticket,
            receiver,
        }))
    }

    /// Returns the bytes of a message that was taken.
    ///
    /// # Panics
    /// If another receiver handed it out.
    pub fn bytes(&self, held: &HeldMessage) -> &[u8] {
        self.assert_own(held);
        self.slots.bytes_at(held.found.offset, held.found.len)
    }

    /// Releases a message that was taken. Its space is free once all messages taken before it are
    /// released too.
    ///
    /// # Panics
    /// If another receiver handed it out.
    pub fn release(&mut self, held: HeldMessage) -> Result<(), RingError> {
        self.assert_own(&held);
        self.wipe(held.found);
        self.receive_policy.release(held.ticket);
        self.push_if_due()
    }

    /// Panics if another receiver handed out the message: this one may not read or free its slots.
    #[inline]
    fn assert_own(&self, held: &HeldMessage) {
        assert!(
            held.receiver == self.id,
            "the message was taken from another receiver: only that one can read or release it"
        );
    }

    /// Finds the next message, and passes over skips.
    #[inline(always)]
    fn find(&mut self) -> Result<Option<FoundMessage>, RingError> {
        match self.usability.broken() {
            _ if self.usability.is_foreign() => Err(RingError::Forked),
            Some(error) => self.find_the_last(error),
            None => self.find_whole(),
        }
    }

    /// Finds the next message of a broken ring. If the peer is gone, the receiver still hands out what
    /// the peer published before.
    #[cold]
    fn find_the_last(&mut self, error: RingError) -> Result<Option<FoundMessage>, RingError> {
        if !error.is_peer_gone() {
            return Err(error);
        }
        match self.find_whole() {
            Ok(None) => Err(error),
            found => found,
        }
    }

    #[inline(always)]
    fn find_whole(&mut self) -> Result<Option<FoundMessage>, RingError> {
        if self.ring.mode == Mode::Latency {
            return self.find_by_lap();
        }
        loop {
            if self.receive_policy.available() == 0 && !self.look_at_tail()? {
                return self.nothing_found();
            }
            let index = self.receive_policy.index();
            let offset = self.slots.offset_of(index);
            if let Framing::Fixed(len) = self.ring.framing {
                return Ok(Some(FoundMessage {
                    index,
                    count: 1,
                    offset,
                    len,
                }));
            }
            let word = self.slots.word(offset);
            match self.checked(word)? {
                (Kind::Skip, count, _) => self.pass_skip(count)?,
                (_, count, len) => {
                    self.slots.expect_rest(offset, len + 8);
                    return Ok(Some(FoundMessage {
                        index,
                        count,
                        offset: offset + 8,
                        len,
                    }));
                }
            }
        }
    }

    /// Returns that there is no message, after pushing a head that had no room when it was due: the sender may need it before it
    /// can send the next message.
    #[inline(always)]
    fn nothing_found(&mut self) -> Result<Option<FoundMessage>, RingError> {
        match self.head_waits {
            true => self.push_waiting_head(),
            false => Ok(None),
        }
    }

    #[cold]
    #[inline(never)]
    fn push_waiting_head(&mut self) -> Result<Option<FoundMessage>, RingError> {
        self.head_waits = false;
        match self.push_if_due() {
            // The peer may have published a message since the tail was read.
            Err(error) if error.is_peer_gone() => self.find_the_last(error),
            pushed => pushed.map(|()| None),
        }
    }

    /// Passes over a skip. A peer that is gone is reported by the next call that finds nothing.
    #[inline(always)]
    fn pass_skip(&mut self, count: u64) -> Result<(), RingError> {
        match self.pass(count) {
            Err(error) if error.is_peer_gone() => Ok(()),
            passed => passed,
        }
    }

    /// Reads the peer's tail. Returns whether something new is published.
    #[inline(always)]
    fn look_at_tail(&mut self) -> Result<bool, RingError> {
        let tail = if self.endpoint.is_notify() {
            match self.poll()? {
                Some(tail) => tail,
                None => return Ok(false),
            }
        } else {
            self.slots.cursor()
        };
        match self.receive_policy.observe_tail(tail) {
            Ok(()) if self.receive_policy.available() > 0 => Ok(true),
            Ok(()) => {
                // Prefetched, so that the next message's line comes along with the tail that announces it.
                self.slots
                    .expect(self.slots.offset_of(self.receive_policy.index()));
                Ok(false)
            }
            Err(error) => Err(self.break_with(error.into())),
        }
    }

    /// Returns the kind, slots and length in a header. An impossible header breaks the ring.
    #[inline]
    fn checked(&mut self, word: u64) -> Result<(Kind, u64, usize), RingError> {
        let before_wrap = self.receive_policy.before_wrap();
        let checked = Header::parse(word).and_then(|header| {
            let len = header.len as usize;
            match header.kind {
                // A skip never covers the whole array.
                Kind::Skip
                    if u64::from(header.len) == before_wrap && before_wrap < self.ring.slots =>
                {
                    Some((Kind::Skip, before_wrap, 0))
                }
                Kind::Skip => None,
                kind => {
                    let count = self.ring.slots_of(len);
                    let expected = if self.ring.mode == Mode::Latency && count > 1 {
                        Kind::Long
                    } else {
                        Kind::Message
                    };
                    let fits = len <= self.ring.max_message && count <= before_wrap;
                    (fits && kind == expected).then_some((kind, count, len))
                }
            }
        });
        // A message lies before the published tail. In latency mode, the sender must have had room for
        // it.
        let behind = if self.ring.mode == Mode::Latency {
            self.receive_policy.room()
        } else {
            self.receive_policy.available()
        };
        match checked {
            Some(found) if found.1 <= behind => Ok(found),
            _ => Err(self.break_with(RingError::Header(word))),
        }
    }

    /// Latency mode: looks at the last word of the next slot, which tells whether a message of this lap
    /// is there.
    #[inline(always)]
    fn find_by_lap(&mut self) -> Result<Option<FoundMessage>, RingError> {
        loop {
            let index = self.receive_policy.index();
            let last = self.slots.last_word(index);
            let word = self.slots.word(last);
            if word >> 34 != lap_of(self.receive_policy.next(), self.ring.slots) {
                // A message that does not fit in one line with its word comes on two lines. The first is
                // prefetched, so that it is under way when the second arrives.
                self.slots.expect(self.slots.offset_of(index));
                return self.nothing_found();
            }
            let (kind, count, len) = self.checked(word)?;
            self.receive_policy.found(count);
            let offset = match kind {
                Kind::Skip => {
                    self.pass_skip(count)?;
                    continue;
                }
                Kind::Message => last - before_lap_word(len, &self.ring),
                Kind::Long => self.slots.offset_of(index + 1),
            };
            self.slots.expect_rest(offset, len);
            return Ok(Some(FoundMessage {
                index,
                count,
                offset,
                len,
            }));
        }
    }

    /// Hands out `count` slots and releases them at once.
    #[inline(always)]
    fn pass(&mut self, count: u64) -> Result<(), RingError> {
        self.receive_policy.pass(count);
        self.push_if_due()
    }

    /// Latency mode: clears the last word of the message's slots after the first, because no slot may
    /// hold message bytes that could be taken for a lap word later.
    #[inline(always)]
    fn wipe(&mut self, found: FoundMessage) {
        if self.ring.mode == Mode::Latency && !self.usability.is_foreign() {
            for index in found.index + 1..found.index + found.count {
                self.slots.set_word(self.slots.last_word(index), 0);
            }
        }
    }

    #[inline(always)]
    fn push_if_due(&mut self) -> Result<(), RingError> {
        if self.receive_policy.must_push() && !self.usability.is_deserted() {
            self.push_head().map(drop)
        } else {
            Ok(())
        }
    }

    /// Pushes the head, which tells the sender of everything released. Returns whether all of it has
    /// been pushed. If not, the send queue had no room: call again.
    pub fn push_head(&mut self) -> Result<bool, RingError> {
        self.usability.check()?;
        if self.receive_policy.unsynced() == 0 {
            return Ok(true);
        }
        let signaled = self.receive_policy.must_signal();
        if signaled && !self.endpoint.is_notify() {
            self.poll()?;
        }
        let head = self.receive_policy.head();
        let signal = Signal {
            wr_id: head,
            signaled,
        };
        let announcement = Some(TrailingWrite::Cursor(head));
        for again in [true, false] {
            match self.endpoint.post(&[], announcement, signal) {
                Ok(ChainPosted::All) => {
                    self.receive_policy.pushed();
                    return Ok(true);
                }
                // The send queue is full. Completions make room. In Notify mode they are polled with the tails.
                Ok(ChainPosted::Part(_)) if again && !self.endpoint.is_notify() => {
                    self.poll()?;
                }
                Ok(ChainPosted::Part(_)) => break,
                Err(error) => return Err(self.break_with(error)),
            }
        }
        // If the head is due, the next release, step or receive that finds nothing tries again.
        self.head_waits = self.receive_policy.must_push();
        Ok(false)
    }

    /// Takes completions, pushes a head that is due and checks the queue pair. Returns whether messages
    /// may be waiting.
    pub fn step(&mut self) -> Result<bool, RingError> {
        match self.progress() {
            // The receiver still hands out what the peer published before it was gone.
            Err(error) if error.is_peer_gone() && self.find_the_last(error)?.is_some() => Ok(true),
            other => other,
        }
    }

    fn progress(&mut self) -> Result<bool, RingError> {
        self.usability.check()?;
        if self.endpoint.is_notify() {
            self.look_at_tail()?;
        } else {
            self.poll()?;
        }
        self.push_if_due()?;
        if self.receive_policy.available() == 0
            && let Err(error) = self.endpoint.endpoint().check()
        {
            return Err(self.break_with(error));
        }
        Ok(self.receive_policy.available() > 0)
    }

    /// Takes completions. Returns the peer's tail if one came by immediate.
    #[inline]
    fn poll(&mut self) -> Result<Option<u64>, RingError> {
        match self.endpoint.poll() {
            Ok(polled) => Ok(polled.cursor),
            Err(error) => Err(self.break_with(error)),
        }
    }

    #[cold]
    fn break_with(&mut self, error: RingError) -> RingError {
        self.quiet_len = None;
        self.usability.fail(error)
    }

    /// Number of slots consumed since the ring was made.
    pub fn consumed(&self) -> u64 {
        self.receive_policy.head()
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
    pub fn stats(&self) -> ReceiverStats {
        ReceiverStats {
            head_writes: self.receive_policy.pushes(),
        }
    }

    /// Descriptor that is readable when something may have come, after [`Receiver::arm`]. `None` unless
    /// the ring can sleep ([`Mode::Notify`]).
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.channel().map(|channel| channel.fd())
    }

    /// Arms the descriptor: the next event makes it readable. Look for a message once more before
    /// sleeping.
    pub fn arm(&mut self) {
        if !self.usability.is_foreign() {
            self.endpoint.arm();
        }
    }

    /// Takes the events that made the descriptor readable.
    pub fn drain_events(&mut self) {
        // In a forked child the events are the parent's.
        if self.usability.is_foreign() {
            return;
        }
        if let Some(channel) = self.endpoint.channel() {
            while let Ok(Some(_)) = channel.next_event() {}
        }
    }
}

/// A message where it lies in the ring. Dropping it releases its slots.
pub struct Message<'r> {
    receiver: &'r mut Receiver,
    found: FoundMessage,
}

impl Deref for Message<'_> {
    type Target = [u8];
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.receiver
            .slots
            .bytes_at(self.found.offset, self.found.len)
    }
}

impl Drop for Message<'_> {
    #[inline]
    fn drop(&mut self) {
        let receiver = &mut *self.receiver;
        if receiver.quiet_len.is_none() || !receiver.receive_policy.pass_quietly() {
            receiver.wipe(self.found);
            // A failed push breaks the ring, and the next call reports that.
            let _ = receiver.pass(self.found.count);
        }
    }
}

/// A message that was taken, to be released in any order; see [`Receiver::try_take`].
#[must_use = "a message that is never released holds its slots for ever"]
pub struct HeldMessage {
    found: FoundMessage,
    ticket: u64,
    /// The `id` of the receiver that handed it out.
    receiver: u64,
}

impl HeldMessage {
    /// Length of the message, in bytes.
    pub fn len(&self) -> usize {
        self.found.len
    }

    /// Returns whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.found.len == 0
    }
}
