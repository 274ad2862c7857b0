//! The receiving end.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_verbs::{Completion, Qpn, Status};

use crate::config::{Framing, Mode, Settled};
use crate::endpoint::{Announcement, Posted, RingEndpoint, Signal, Usability};
use crate::error::RingError;
use crate::header::{Header, Kind, lap_of};
use crate::receive_policy::ReceivePolicy;
use crate::sender::before_lap_word;
use crate::slot_array::Slots;

/// The receiving end of a ring.
///
/// - *Receiving*: [`Receiver::try_recv`] lends the next message where it lies; dropping it releases
///   it. [`Receiver::try_take`] hands out messages that are released later, in any order: space is
///   freed in the order of sending.
/// - *Driving*: [`Receiver::step`] notices errors; [`Receiver::push_head`] tells the sender of all
///   free space. Call `step` when there is nothing to receive.
/// - *Sleeping* ([`Mode::Notify`]): [`Receiver::arm`], then look once more, then wait on
///   [`Receiver::fd`].
pub struct Receiver {
    /// Different from that of every other receiver of this process: a [`Held`] names its own.
    id: u64,
    ring: Settled,
    drain: ReceivePolicy,
    // The queue pair goes before the memory: a peer then finds nobody, not a key that is refused.
    endpoint: RingEndpoint,
    slots: Slots,
    usability: Usability,
    /// Length of the messages that may take the short way: those of fixed framing, while the ring
    /// is whole and nothing need be done with each.
    quiet_len: Option<usize>,
}

/// What a receiver has done, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ReceiverStats {
    /// WRITEs of the head.
    pub head_writes: u64,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// A message found in the array.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    index: u64,
    count: u64,
    offset: usize,
    len: usize,
}

impl Receiver {
    pub(crate) fn new(ring: Settled, slots: Slots, endpoint: RingEndpoint) -> Self {
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            drain: ReceivePolicy::new(&ring),
            quiet_len: match (ring.framing, ring.mode) {
                (Framing::Fixed(len), Mode::Poll | Mode::Notify) => Some(len),
                _ => None,
            },
            ring,
            slots,
            endpoint,
            usability: Usability::new(),
        }
    }

    /// The next message, if one is there, where it lies. Dropping it releases its slots.
    ///
    /// Each look that finds nothing takes the tail's cache line from the sender for a moment. Who polls
    /// a stream, rather than for single messages, sends and receives more by looking less often after a
    /// look in vain; `PollInterval` in `headworks_net` says how often.
    #[inline(always)]
    pub fn try_recv(&mut self) -> Result<Option<Message<'_>>, RingError> {
        if let Some(len) = self.quiet_len
            && let Some(index) = self.drain.quiet_index()
            && !self.usability.is_foreign()
        {
            let offset = self.slots.offset_of(index);
            let found = Found {
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

    /// Stores this end's pointers in the cache line that the peer's WRITEs of its own go to, where
    /// nothing reads them. For measuring what it costs when pointers share a line (section IV-C).
    #[doc(hidden)]
    #[inline]
    pub fn store_pointers_beside_cursor(&self) {
        let drain = &self.drain;
        self.slots
            .store_beside_cursor([drain.next(), drain.head(), drain.unsynced()]);
    }

    /// For a group: where the next message is. [`Receiver::lend`] it next.
    #[inline(always)]
    pub(crate) fn look(&mut self) -> Result<Option<Found>, RingError> {
        if let Some(len) = self.quiet_len
            && let Some(index) = self.drain.quiet_index()
            && !self.usability.is_foreign()
        {
            let offset = self.slots.offset_of(index);
            let count = 1;
            return Ok(Some(Found {
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
    pub(crate) fn lend(&mut self, found: Found) -> Message<'_> {
        let receiver = self;
        Message { receiver, found }
    }

    /// For a group: a completion of this ring. Says whether the ring is to be looked at.
    pub(crate) fn hand_over(&mut self, completion: &Completion) -> bool {
        let failed = completion.status != Status::Success;
        if let Err(error) = self.endpoint.hand_over(completion) {
            self.break_with(error);
            return true;
        }
        if self.endpoint.is_notify() {
            return failed || completion.opcode.is_recv();
        }
        // A head that was due and had no room has some now; a failure breaks the ring.
        self.poll().and_then(|_| self.push_if_due()).is_err()
    }

    /// For a group: the ring is broken, for a reason that is not its own.
    pub(crate) fn fail(&mut self, error: RingError) {
        self.break_with(error);
    }

    /// What its completions name.
    pub(crate) fn qpn(&self) -> Qpn {
        self.endpoint.endpoint().qp().qpn()
    }

    /// The next message, if one is there, to be released later with [`Receiver::release`].
    pub fn try_take(&mut self) -> Result<Option<Held>, RingError> {
        let Some(found) = self.find()? else {
            return Ok(None);
        };
        let ticket = self.drain.hold(found.count);
        let receiver = self.id;
        Ok(Some(Held {
            found,
            ticket,
            receiver,
        }))
    }

    /// The bytes of a message taken.
    ///
    /// # Panics
    /// If another receiver handed it out.
    pub fn bytes(&self, held: &Held) -> &[u8] {
        self.assert_own(held);
        self.slots.bytes_at(held.found.offset, held.found.len)
    }

    /// Releases a message taken. Its space is free once those taken before it are released too.
    ///
    /// # Panics
    /// If another receiver handed it out.
    pub fn release(&mut self, held: Held) -> Result<(), RingError> {
        self.assert_own(&held);
        self.wipe(held.found);
        self.drain.release(held.ticket);
        self.push_if_due()
    }

    /// The slots of another ring's message are not ours to lend or to free.
    #[inline]
    fn assert_own(&self, held: &Held) {
        assert!(
            held.receiver == self.id,
            "the message was taken from another receiver: its bytes and its release are that one's"
        );
    }

    /// Looks for the next message; passes over skips.
    #[inline(always)]
    fn find(&mut self) -> Result<Option<Found>, RingError> {
        match self.usability.broken() {
            _ if self.usability.is_foreign() => Err(RingError::Forked),
            Some(error) => self.find_the_last(error),
            None => self.find_whole(),
        }
    }

    /// A ring whose peer is gone still hands out what was published before.
    #[cold]
    fn find_the_last(&mut self, error: RingError) -> Result<Option<Found>, RingError> {
        if !error.is_peer_gone() {
            return Err(error);
        }
        match self.find_whole() {
            Ok(None) => Err(error),
            found => found,
        }
    }

    #[inline(always)]
    fn find_whole(&mut self) -> Result<Option<Found>, RingError> {
        if self.ring.mode == Mode::Latency {
            return self.find_by_lap();
        }
        loop {
            if self.drain.available() == 0 && !self.look_at_tail()? {
                return Ok(None);
            }
            let index = self.drain.index();
            let offset = self.slots.offset_of(index);
            if let Framing::Fixed(len) = self.ring.framing {
                return Ok(Some(Found {
                    index,
                    count: 1,
                    offset,
                    len,
                }));
            }
            let word = self.slots.word(offset);
            match self.checked(word)? {
                (Kind::Skip, count, _) => self.pass(count)?,
                (_, count, len) => {
                    self.slots.expect_rest(offset, len + 8);
                    return Ok(Some(Found {
                        index,
                        count,
                        offset: offset + 8,
                        len,
                    }));
                }
            }
        }
    }

    /// Observes the peer's tail. Says whether there is something new.
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
        match self.drain.observe_tail(tail) {
            Ok(()) if self.drain.available() > 0 => Ok(true),
            Ok(()) => {
                // The next message's line can come along with the tail that announces it.
                self.slots.expect(self.slots.offset_of(self.drain.index()));
                Ok(false)
            }
            Err(error) => Err(self.break_with(error.into())),
        }
    }

    /// Kind, slots and length that a header says, refused if they are not possible here.
    #[inline]
    fn checked(&mut self, word: u64) -> Result<(Kind, u64, usize), RingError> {
        let before_wrap = self.drain.before_wrap();
        let checked = Header::parse(word).and_then(|header| {
            let len = header.len as usize;
            match header.kind {
                // A ring is never skipped whole.
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
        // Behind a published tail there is a message; in latency mode one that the sender had room
        // for.
        let behind = if self.ring.mode == Mode::Latency {
            self.drain.room()
        } else {
            self.drain.available()
        };
        match checked {
            Some(found) if found.1 <= behind => Ok(found),
            _ => Err(self.break_with(RingError::Header(word))),
        }
    }

    /// Latency mode: the last word of the next slot says whether a message of this lap is there.
    #[inline(always)]
    fn find_by_lap(&mut self) -> Result<Option<Found>, RingError> {
        loop {
            let index = self.drain.index();
            let last = self.slots.last_word(index);
            let word = self.slots.word(last);
            if word >> 34 != lap_of(self.drain.next(), self.ring.slots) {
                // When the message comes, it comes on two lines where one does not hold it and the
                // word: let the first be on its way by the time the second is here.
                self.slots.expect(self.slots.offset_of(index));
                return Ok(None);
            }
            let (kind, count, len) = self.checked(word)?;
            self.drain.found(count);
            let offset = match kind {
                Kind::Skip => {
                    self.pass(count)?;
                    continue;
                }
                Kind::Message => last - before_lap_word(len, &self.ring),
                Kind::Long => self.slots.offset_of(index + 1),
            };
            self.slots.expect_rest(offset, len);
            return Ok(Some(Found {
                index,
                count,
                offset,
                len,
            }));
        }
    }

    /// Hands out and releases `count` slots in one go.
    #[inline(always)]
    fn pass(&mut self, count: u64) -> Result<(), RingError> {
        self.drain.pass(count);
        self.push_if_due()
    }

    /// Latency mode: no slot may hold what could be taken for a lap word later.
    #[inline(always)]
    fn wipe(&mut self, found: Found) {
        if self.ring.mode == Mode::Latency && !self.usability.is_foreign() {
            for index in found.index + 1..found.index + found.count {
                self.slots.set_word(self.slots.last_word(index), 0);
            }
        }
    }

    #[inline(always)]
    fn push_if_due(&mut self) -> Result<(), RingError> {
        if self.drain.must_push() && !self.usability.is_deserted() {
            self.push_head().map(drop)
        } else {
            Ok(())
        }
    }

    /// Tells the sender how far everything is released. Says whether it knows now.
    pub fn push_head(&mut self) -> Result<bool, RingError> {
        self.usability.check()?;
        if self.drain.unsynced() == 0 {
            return Ok(true);
        }
        let signaled = self.drain.must_signal();
        if signaled && !self.endpoint.is_notify() {
            self.poll()?;
        }
        let head = self.drain.head();
        let signal = Signal {
            wr_id: head,
            signaled,
        };
        let announcement = Some(Announcement::Cursor(head));
        match self.endpoint.post(&[], announcement, signal) {
            Ok(Posted::All) => {
                self.drain.pushed();
                Ok(true)
            }
            // No room: what completed makes some, and the next release or step tries again.
            Ok(Posted::Part(_)) if !self.endpoint.is_notify() => self.poll().map(|_| false),
            Ok(Posted::Part(_)) => Ok(false),
            Err(error) => Err(self.break_with(error)),
        }
    }

    /// Takes completions, pushes a head that is due, looks at the queue pair. Says whether messages
    /// may be waiting.
    pub fn step(&mut self) -> Result<bool, RingError> {
        match self.progress() {
            // What was published before the peer went is still there to be received.
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
        if self.drain.available() == 0
            && let Err(error) = self.endpoint.endpoint().check()
        {
            return Err(self.break_with(error));
        }
        Ok(self.drain.available() > 0)
    }

    /// Takes completions; the peer's tail if one came by immediate.
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

    /// Slots consumed, ever.
    pub fn consumed(&self) -> u64 {
        self.drain.head()
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
    pub fn stats(&self) -> ReceiverStats {
        ReceiverStats {
            head_writes: self.drain.pushes(),
        }
    }

    /// Readable when something may have come, after [`Receiver::arm`]. `None` unless the ring was
    /// made to sleep on ([`Mode::Notify`]).
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.endpoint.channel().map(|channel| channel.fd())
    }

    /// Asks for the descriptor to become readable; look for a message once more before sleeping.
    pub fn arm(&mut self) {
        if !self.usability.is_foreign() {
            self.endpoint.arm();
        }
    }

    /// Takes the events that made the descriptor readable.
    pub fn drain_events(&mut self) {
        // After a fork the events are the parent's.
        if self.usability.is_foreign() {
            return;
        }
        if let Some(channel) = self.endpoint.channel() {
            while let Ok(Some(_)) = channel.next_event() {}
        }
    }
}

/// A message where it lies in the ring; released when dropped.
pub struct Message<'r> {
    receiver: &'r mut Receiver,
    found: Found,
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
        if receiver.quiet_len.is_none() || !receiver.drain.pass_quietly() {
            receiver.wipe(self.found);
            // A failed push breaks the ring, which the next call reports.
            let _ = receiver.pass(self.found.count);
        }
    }
}

/// A message taken out of order of release; see [`Receiver::try_take`].
#[must_use = "a message that is never released holds its slots for ever"]
pub struct Held {
    found: Found,
    ticket: u64,
    /// Who handed it out.
    receiver: u64,
}

impl Held {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.found.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.found.len == 0
    }
}
