//! FaRM's message buffers ("FaRM: Fast Remote Memory", NSDI 2014, section 4.2), as the RB² paper
//! changed them for RNICs that place the bytes of a WRITE in any order (section V-A): one WRITE carries the
//! message, and a second WRITE after it carries the length.
//!
//! Only the receiver has an array, so messages cannot be gathered into one WRITE. The receiver polls the
//! word where the next message's length will be. That word must be zero until the message arrives. As a
//! message may end at any word, the receiver clears every message that it has read.
//!
//! There are two senders. In place of the application's registered memory, each has an array as large as
//! the receiver's.
//!
//! - [`Farm`] is faster: the application fills the memory that is sent, and the sender does not wait for
//!   completions.
//! - [`FarmAsPublished`] is the design of the RB² paper's Table I and section III-A (C4). It has no zero
//!   copy, so the sender copies the message. Each WRITE blocks the sender until it completes. It prefers
//!   huge pages.

use headworks_ring::config::{CheckedConfig, LINE};
use headworks_ring::endpoint::{ChainPosted, write, write_word};
use headworks_ring::header::{Header, Kind};
use headworks_ring::{RingError, SendError, SetupError};
use headworks_verbs::Pages;

use super::connected_end::ConnectedEnd;
use super::receiver::{BaselineReceiver, Found, PUSHES, ReceiveEnd, ReceiveProtocol, checked};
use super::sender::{BaselineSender, MessageLocation, SendEnd, SendProtocol};
use super::setup::{Depths, Design, Plan};

/// FaRM's design, with a sender that never waits for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Farm(pub Plan);

/// FaRM's design as the RB² paper describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarmAsPublished(pub Plan);

/// FaRM's sender. With `BLOCKS` it copies each message and waits for it to complete.
#[derive(Debug, Default)]
pub struct FarmSend<const BLOCKS: bool> {
    /// Length word of the last message, if the send queue had no room for it after the message's bytes.
    owed: Option<LengthWord>,
}

/// The word that tells the receiver that a message is there.
#[derive(Clone, Copy, Debug)]
struct LengthWord {
    offset: usize,
    word: [u8; 8],
    signaled: bool,
}

/// FaRM's receiver.
#[derive(Debug, Default)]
pub struct FarmReceive {
    /// Header by which the next message was found.
    found: Option<Found>,
}

/// Returns a header word that is never zero.
fn word(kind: Kind, len: u32) -> u64 {
    Header { lap: 1, kind, len }.word()
}

impl Design for Farm {
    type Sender = BaselineSender<FarmSend<false>>;
    type Receiver = BaselineReceiver<FarmReceive>;

    fn tag(&self) -> u8 {
        1
    }

    fn settle(&self) -> Result<CheckedConfig, SetupError> {
        Ok(self.0.packed()?)
    }

    fn depths(&self, _: &CheckedConfig) -> Depths {
        Depths {
            sends: 8 * u64::from(self.0.messages) + 16,
            pushes: PUSHES,
            receives: 0,
        }
    }

    fn sender(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self::Sender {
        BaselineSender::new(FarmSend::default(), ring, connected_end)
    }

    fn receiver(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self::Receiver {
        BaselineReceiver::new(FarmReceive::default(), ring, connected_end)
    }
}

impl Design for FarmAsPublished {
    type Sender = BaselineSender<FarmSend<true>>;
    type Receiver = BaselineReceiver<FarmReceive>;

    fn tag(&self) -> u8 {
        5
    }

    fn pages(&self) -> Pages {
        Pages::PreferHuge
    }

    fn settle(&self) -> Result<CheckedConfig, SetupError> {
        Farm(self.0).settle()
    }

    fn depths(&self, ring: &CheckedConfig) -> Depths {
        Farm(self.0).depths(ring)
    }

    fn sender(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self::Sender {
        BaselineSender::new(FarmSend::default(), ring, connected_end)
    }

    fn receiver(&self, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self::Receiver {
        Farm(self.0).receiver(ring, connected_end)
    }
}

impl<const BLOCKS: bool> FarmSend<BLOCKS> {
    /// Posts the message's bytes, if it has any, and after them the length word that announces them.
    #[inline(always)]
    fn send(
        &mut self,
        end: &mut SendEnd,
        at: MessageLocation,
        kind: Kind,
    ) -> Result<(), SendError> {
        if self.owed.is_some() && !self.pay(end)? {
            return Err(SendError::Full);
        }
        let offset = end.offset_of(at.index);
        let tail = end.policy.tail().wrapping_add(at.count);
        let length = LengthWord {
            offset,
            word: word(kind, at.len as u32).to_ne_bytes(),
            signaled: BLOCKS || end.policy.must_signal(tail),
        };
        let mut posted = self.post(end, at, &length, tail)?;
        if posted == ChainPosted::Part(0) {
            end.poll()?;
            posted = self.post(end, at, &length, tail)?;
        }
        if posted == ChainPosted::Part(0) {
            return Err(SendError::Full);
        }
        end.policy.advance(at.count);
        end.policy.transmitted();
        match posted {
            ChainPosted::All => self.announced(end, length.signaled),
            // The posted bytes may cover the next length word, so the message cannot be withdrawn.
            ChainPosted::Part(_) => self.owed = Some(length),
        }
        Ok(())
    }

    #[inline(always)]
    fn post(
        &self,
        end: &mut SendEnd,
        at: MessageLocation,
        length: &LengthWord,
        tail: u64,
    ) -> Result<ChainPosted, RingError> {
        let remote = end.connected_end.peer.plus(length.offset as u64);
        let last = write_word(&length.word, remote, tail, length.signaled);
        if at.len == 0 {
            return end.connected_end.post(&[last]);
        }
        let (sge, remote) = end.piece(length.offset + 8, at.len);
        end.connected_end.post(&[write(&sge, remote), last])
    }

    /// Posts the owed length word. Returns whether the send queue had room.
    #[cold]
    fn pay(&mut self, end: &mut SendEnd) -> Result<bool, RingError> {
        let Some(length) = self.owed else {
            return Ok(true);
        };
        end.poll()?;
        let remote = end.connected_end.peer.plus(length.offset as u64);
        let last = write_word(&length.word, remote, end.policy.tail(), length.signaled);
        if end.connected_end.post(&[last])? != ChainPosted::All {
            return Ok(false);
        }
        self.owed = None;
        self.announced(end, length.signaled);
        Ok(true)
    }

    #[inline(always)]
    fn announced(&self, end: &mut SendEnd, signaled: bool) {
        end.policy.publish();
        if signaled {
            end.policy.signal(end.policy.tail());
        }
    }
}

impl<const BLOCKS: bool> SendProtocol for FarmSend<BLOCKS> {
    const IN_PLACE: bool = !BLOCKS;

    #[inline(always)]
    fn may_send(&self, end: &SendEnd) -> bool {
        !BLOCKS || !(self.owed.is_some() || end.policy.is_publishing())
    }

    #[inline(always)]
    fn commit(&mut self, end: &mut SendEnd, at: MessageLocation) -> Result<(), SendError> {
        self.send(end, at, Kind::Message)
    }

    fn skip(&mut self, end: &mut SendEnd, at: MessageLocation) -> Result<(), SendError> {
        self.send(end, at, Kind::Skip)
    }

    fn flush(&mut self, end: &mut SendEnd) -> Result<bool, RingError> {
        self.pay(end)
    }
}

impl ReceiveProtocol for FarmReceive {
    const COPIES_OUT: bool = true;

    #[inline(always)]
    fn look(&mut self, end: &mut ReceiveEnd) -> Result<bool, RingError> {
        let offset = end.offset_of(end.receive_policy.index());
        let word = end.word(offset);
        if word == 0 {
            // This line arrives with the length, as it was just read. Only the next line is prefetched.
            end.connected_end.memory.expect(offset + LINE);
            return Ok(false);
        }
        let found = checked(
            &end.ring,
            &end.receive_policy,
            word,
            end.receive_policy.room(),
        )?;
        end.receive_policy.found(found.0);
        self.found = Some(found);
        Ok(true)
    }

    /// Returns the header that `look` has read and checked.
    #[inline(always)]
    fn header(&mut self, _: &ReceiveEnd) -> Result<Found, RingError> {
        self.found.ok_or(RingError::Header(0))
    }

    #[inline(always)]
    fn clear(&mut self, end: &mut ReceiveEnd, index: u64, len: usize) {
        let offset = end.offset_of(index);
        end.connected_end.memory.lent_mut(offset, len).fill(0);
    }
}
