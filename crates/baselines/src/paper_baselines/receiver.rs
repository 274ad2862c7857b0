//! The receiving end's loop, which all paper designs share.

use headworks_ring::config::{CheckedConfig, Framing};
use headworks_ring::endpoint::{ChainPosted, Usability, write_word};
use headworks_ring::header::{Header, Kind};
use headworks_ring::receive_policy::{ReceivePolicy, SIGNAL_EVERY};
use headworks_ring::{MessageReceiver, RingError};

use super::connected_end::ConnectedEnd;
use super::setup::ARRAY;

/// Send requests that a receiving end must be able to post, for pushing heads.
pub(super) const PUSHES: u64 = 2 * SIGNAL_EVERY;

/// The part of a receiver that is specific to a design.
pub trait ReceiveProtocol {
    /// Whether messages are copied out before their space is freed. Otherwise they are read in place.
    const COPIES_OUT: bool;

    /// Looks for messages when no message is available. Returns whether one is now.
    fn look(&mut self, end: &mut ReceiveEnd) -> Result<bool, RingError>;

    /// Whether a one-slot message after which no head must be pushed needs no work except
    /// [`passed_quietly`](Self::passed_quietly).
    fn is_quiet(&self) -> bool {
        false
    }

    /// Called after a message was passed that needs nothing else done.
    #[inline(always)]
    fn passed_quietly(&mut self, _end: &mut ReceiveEnd) {}

    /// Reads and checks the header of the next message.
    #[inline(always)]
    fn header(&mut self, end: &ReceiveEnd) -> Result<Found, RingError> {
        let word = end.word(end.offset_of(end.receive_policy.index()));
        checked(
            &end.ring,
            &end.receive_policy,
            word,
            end.receive_policy.available(),
        )
    }

    /// Called after the message at slot `index` was read or skipped. `len` counts bytes from its header on.
    fn clear(&mut self, _end: &mut ReceiveEnd, _index: u64, _len: usize) {}

    /// Tells the sender how far messages are read. Returns whether the sender knows now.
    fn push(&mut self, end: &mut ReceiveEnd) -> Result<bool, RingError> {
        end.push_head()
    }

    /// Called after slots were freed. By default pushes the head lazily, when the receive policy demands it.
    #[inline(always)]
    fn passed(&mut self, end: &mut ReceiveEnd) -> Result<(), RingError> {
        if end.receive_policy.must_push() {
            self.push(end)?;
        }
        Ok(())
    }
}

/// A checked header: the number of its slots, and the message's length, or `None` for a skip.
pub type Found = (u64, Option<usize>);

/// State that every design's receiver has.
pub struct ReceiveEnd {
    pub(super) ring: CheckedConfig,
    pub(super) receive_policy: ReceivePolicy,
    pub(super) connected_end: ConnectedEnd,
}

impl ReceiveEnd {
    #[inline(always)]
    pub(super) fn offset_of(&self, index: u64) -> usize {
        ARRAY + index as usize * self.ring.slot_size
    }

    /// Reads the word at `offset`, which the peer writes.
    #[inline(always)]
    pub(super) fn word(&self, offset: usize) -> u64 {
        self.connected_end.memory.cursor(offset).observe()
    }

    /// Reads the tail that the sender wrote. Returns whether a message is available.
    #[inline(always)]
    pub(super) fn observe_tail(&mut self) -> Result<bool, RingError> {
        let tail = self.word(0);
        self.receive_policy.observe_tail(tail)?;
        Ok(self.is_something())
    }

    /// Returns whether a message is available. If none is, prefetches the next message's cache line, as the
    /// ring does, so that it arrives together with what announces the message.
    #[inline(always)]
    fn is_something(&self) -> bool {
        if self.receive_policy.available() > 0 {
            return true;
        }
        self.connected_end
            .memory
            .expect(self.offset_of(self.receive_policy.index()));
        false
    }

    /// Polls completions of WRITEs with immediate, each of which carries the number of its slots, and posts
    /// a receive for each. Returns whether a message is available.
    #[inline]
    pub(super) fn take_announced(&mut self) -> Result<bool, RingError> {
        let mut slots = 0;
        // Messages that arrived before a failure are handed out first.
        self.connected_end
            .poll_receives(|imm| slots += u64::from(imm))?;
        if slots > 0 {
            let known = self
                .receive_policy
                .next()
                .wrapping_add(self.receive_policy.available());
            self.receive_policy
                .observe_tail(known.wrapping_add(slots))?;
        }
        Ok(self.is_something())
    }

    /// WRITEs the head to the sender. Returns whether it was posted, or had been before.
    pub(super) fn push_head(&mut self) -> Result<bool, RingError> {
        if self.receive_policy.unsynced() == 0 {
            return Ok(true);
        }
        let signaled = self.receive_policy.must_signal();
        if signaled {
            self.connected_end.poll_sends(|_| {})?;
        }
        let word = self.receive_policy.head().to_ne_bytes();
        let request = write_word(&word, self.connected_end.peer, 0, signaled);
        if self.connected_end.post(&[request])? != ChainPosted::All {
            self.connected_end.poll_sends(|_| {})?;
            return Ok(false);
        }
        self.receive_policy.pushed();
        Ok(true)
    }
}

/// The receiving end of a paper design.
pub struct BaselineReceiver<P> {
    protocol: P,
    end: ReceiveEnd,
    /// Stands for the application's memory, in designs that copy into it.
    application: Vec<u8>,
    usability: Usability,
    /// Length of messages that take the short path, as the ring's do. Set for fixed framing in a quiet
    /// design that reads in place.
    quiet_len: Option<usize>,
}

impl<P: ReceiveProtocol> BaselineReceiver<P> {
    pub(super) fn new(protocol: P, ring: CheckedConfig, connected_end: ConnectedEnd) -> Self {
        let quiet_len = match ring.framing {
            Framing::Fixed(len) if protocol.is_quiet() && !P::COPIES_OUT => Some(len),
            _ => None,
        };
        Self {
            protocol,
            quiet_len,
            usability: Usability::new(),
            application: vec![0; if P::COPIES_OUT { ring.max_message } else { 0 }],
            end: ReceiveEnd {
                receive_policy: ReceivePolicy::new(&ring),
                ring,
                connected_end,
            },
        }
    }

    /// Finds the next message. Returns its slot count, offset and length.
    #[inline(always)]
    fn find(&mut self) -> Result<Option<(u64, usize, usize)>, RingError> {
        loop {
            if self.end.receive_policy.available() == 0 && !self.protocol.look(&mut self.end)? {
                return Ok(None);
            }
            let offset = self.end.offset_of(self.end.receive_policy.index());
            if let Framing::Fixed(len) = self.end.ring.framing {
                return Ok(Some((1, offset, len)));
            }
            match self.protocol.header(&self.end)? {
                (count, Some(len)) => {
                    self.end.connected_end.memory.expect_rest(offset, 8 + len);
                    return Ok(Some((count, offset + 8, len)));
                }
                (count, None) => self.pass(count, 8)?,
            }
        }
    }

    /// Frees the next `count` slots, in which `used` bytes were in use.
    #[inline(always)]
    fn pass(&mut self, count: u64, used: usize) -> Result<(), RingError> {
        let index = self.end.receive_policy.index();
        self.protocol.clear(&mut self.end, index, used);
        self.end.receive_policy.pass(count);
        match self.usability.broken() {
            None => self.protocol.passed(&mut self.end),
            Some(_) => Ok(()),
        }
    }

    #[inline(always)]
    fn receive<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, RingError> {
        if let Some(len) = self.quiet_len
            && let Some(index) = self.end.receive_policy.quiet_index()
        {
            let offset = self.end.offset_of(index);
            let shown = look(self.end.connected_end.memory.lent(offset, len));
            self.end.receive_policy.pass_quietly();
            self.protocol.passed_quietly(&mut self.end);
            return Ok(Some(shown));
        }
        let Some((count, offset, len)) = self.find()? else {
            return Ok(None);
        };
        let header = offset - self.end.offset_of(self.end.receive_policy.index());
        let message = self.end.connected_end.memory.lent(offset, len);
        let shown = if P::COPIES_OUT {
            self.application[..len].copy_from_slice(message);
            look(&self.application[..len])
        } else {
            look(message)
        };
        // The message was received. The next call reports that its space could not be freed.
        if let Err(error) = self.pass(count, header + len) {
            self.usability.fail(error);
        }
        Ok(Some(shown))
    }

    fn progress(&mut self) -> Result<bool, RingError> {
        if self.end.receive_policy.available() == 0 {
            self.protocol.look(&mut self.end)?;
        }
        self.protocol.passed(&mut self.end)?;
        if self.end.receive_policy.available() == 0 {
            self.end.connected_end.check()?;
        }
        Ok(self.end.receive_policy.available() > 0)
    }

    fn unless_broken<R>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<R, RingError>,
    ) -> Result<R, RingError> {
        self.usability.check()?;
        run(self).map_err(|error| self.usability.fail(error))
    }
}

/// Checks a header word: its slots must be at most `most` and end before the array does, and a message
/// must not be longer than the longest allowed. Anything else is an error.
#[inline(always)]
pub(super) fn checked(
    ring: &CheckedConfig,
    receive_policy: &ReceivePolicy,
    word: u64,
    most: u64,
) -> Result<Found, RingError> {
    let before_wrap = receive_policy.before_wrap();
    let wrong = || RingError::Header(word);
    let header = Header::parse(word).ok_or_else(wrong)?;
    let len = header.len as usize;
    let (count, message) = match header.kind {
        // A skip ends where the array does: the array may have more units than a header can count.
        Kind::Skip if before_wrap < ring.slots => (before_wrap, None),
        Kind::Message if len <= ring.max_message => (ring.slots_of(len), Some(len)),
        _ => return Err(wrong()),
    };
    if count > before_wrap || count > most {
        return Err(wrong());
    }
    Ok((count, message))
}

impl<P: ReceiveProtocol> MessageReceiver for BaselineReceiver<P> {
    #[inline]
    fn try_recv_with<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, RingError> {
        match self.usability.broken() {
            None => self.unless_broken(|receiver| receiver.receive(look)),
            // Messages that arrived before the peer was gone can still be received.
            Some(error) if error.is_peer_gone() && !self.usability.is_foreign() => {
                match self.receive(look) {
                    Ok(Some(shown)) => Ok(Some(shown)),
                    // The first error stays, whatever other errors the peer's death causes.
                    Ok(None) | Err(_) => Err(error),
                }
            }
            Some(error) => Err(error),
        }
    }

    fn step(&mut self) -> Result<bool, RingError> {
        self.unless_broken(Self::progress)
    }

    fn push_head(&mut self) -> Result<bool, RingError> {
        self.unless_broken(|receiver| receiver.protocol.push(&mut receiver.end))
    }

    fn consumed(&self) -> u64 {
        self.end.receive_policy.head()
    }
}
