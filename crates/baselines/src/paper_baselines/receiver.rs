//! The receiving end of every paper design: the loop, without what makes a design.

use headworks_ring::config::{CheckedConfig, Framing};
use headworks_ring::endpoint::{ChainPosted, Usability, write_word};
use headworks_ring::header::{Header, Kind};
use headworks_ring::receive_policy::{ReceivePolicy, SIGNAL_EVERY};
use headworks_ring::{MessageReceiver, RingError};

use super::link::ConnectedEnd;
use super::setup::ARRAY;

/// Requests that a receiving end must be able to post.
pub(super) const PUSHES: u64 = 2 * SIGNAL_EVERY;

/// What a design's receiver does beyond handing out messages.
pub trait ReceiveProtocol {
    /// Whether messages are copied out before their space is freed; otherwise they are read where
    /// they lie.
    const COPIES_OUT: bool;

    /// Looks for messages when none is known of. Says whether there is one now.
    fn look(&mut self, end: &mut ReceiveEnd) -> Result<bool, RingError>;

    /// Whether a message that has one slot and calls for no WRITE of the head needs no more than
    /// [`passed_quietly`](Self::passed_quietly).
    fn is_quiet(&self) -> bool {
        false
    }

    /// A message was passed for which nothing else is to be done.
    #[inline(always)]
    fn passed_quietly(&mut self, _end: &mut ReceiveEnd) {}

    /// What the header of the next message says; see [`Found`].
    #[inline(always)]
    fn header(&mut self, end: &ReceiveEnd) -> Result<Found, RingError> {
        let word = end.word(end.offset_of(end.drain.index()));
        checked(&end.ring, &end.drain, word, end.drain.available())
    }

    /// The message at the next slot was read, or skipped: `len` bytes from its header on.
    fn clear(&mut self, _end: &mut ReceiveEnd, _index: u64, _len: usize) {}

    /// Tells the sender how far messages are read. Says whether it knows now.
    fn push(&mut self, end: &mut ReceiveEnd) -> Result<bool, RingError> {
        end.push_head()
    }

    /// Slots were freed: lazy by default.
    #[inline(always)]
    fn passed(&mut self, end: &mut ReceiveEnd) -> Result<(), RingError> {
        if end.drain.must_push() {
            self.push(end)?;
        }
        Ok(())
    }
}

/// The slots that a header says follow, and the length of the message, if it is one and no skip.
pub type Found = (u64, Option<usize>);

/// What every design's receiver works with.
pub struct ReceiveEnd {
    pub(super) ring: CheckedConfig,
    pub(super) drain: ReceivePolicy,
    pub(super) link: ConnectedEnd,
}

impl ReceiveEnd {
    #[inline(always)]
    pub(super) fn offset_of(&self, index: u64) -> usize {
        ARRAY + index as usize * self.ring.slot_size
    }

    /// The word at `offset`, which the peer writes.
    #[inline(always)]
    pub(super) fn word(&self, offset: usize) -> u64 {
        self.link.memory.cursor(offset).observe()
    }

    /// Looks at the tail that the sender wrote.
    #[inline(always)]
    pub(super) fn observe_tail(&mut self) -> Result<bool, RingError> {
        let tail = self.word(0);
        self.drain.observe_tail(tail)?;
        Ok(self.is_something())
    }

    /// Whether a message is known of. Where there is none, the next one's line can come along with what
    /// announces it: as the ring does, its receiver asks for it after a look in vain.
    #[inline(always)]
    fn is_something(&self) -> bool {
        if self.drain.available() > 0 {
            return true;
        }
        self.link.memory.expect(self.offset_of(self.drain.index()));
        false
    }

    /// Takes completions of WRITEs with immediate, each of which says how many slots it brought, and
    /// posts a receive for each.
    #[inline]
    pub(super) fn take_announced(&mut self) -> Result<bool, RingError> {
        let mut slots = 0;
        // Messages that came before a failure are handed out first.
        self.link.poll_receives(|imm| slots += u64::from(imm))?;
        if slots > 0 {
            let known = self.drain.next().wrapping_add(self.drain.available());
            self.drain.observe_tail(known.wrapping_add(slots))?;
        }
        Ok(self.is_something())
    }

    /// WRITEs the head to the sender.
    pub(super) fn push_head(&mut self) -> Result<bool, RingError> {
        if self.drain.unsynced() == 0 {
            return Ok(true);
        }
        let signaled = self.drain.must_signal();
        if signaled {
            self.link.poll_sends(|_| {})?;
        }
        let word = self.drain.head().to_ne_bytes();
        let request = write_word(&word, self.link.peer, 0, signaled);
        if self.link.post(&[request])? != ChainPosted::All {
            self.link.poll_sends(|_| {})?;
            return Ok(false);
        }
        self.drain.pushed();
        Ok(true)
    }
}

/// The receiving end of a paper design.
pub struct BaselineReceiver<P> {
    protocol: P,
    end: ReceiveEnd,
    /// The application's memory, for designs that copy into it.
    application: Vec<u8>,
    usability: Usability,
    /// Length of the messages that may take the short way, as the ring's do: those of fixed framing of a
    /// design that is quiet.
    quiet_len: Option<usize>,
}

impl<P: ReceiveProtocol> BaselineReceiver<P> {
    pub(super) fn new(protocol: P, ring: CheckedConfig, link: ConnectedEnd) -> Self {
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
                drain: ReceivePolicy::new(&ring),
                ring,
                link,
            },
        }
    }

    /// The next message: its slots, where it is and its length.
    #[inline(always)]
    fn find(&mut self) -> Result<Option<(u64, usize, usize)>, RingError> {
        loop {
            if self.end.drain.available() == 0 && !self.protocol.look(&mut self.end)? {
                return Ok(None);
            }
            let offset = self.end.offset_of(self.end.drain.index());
            if let Framing::Fixed(len) = self.end.ring.framing {
                return Ok(Some((1, offset, len)));
            }
            match self.protocol.header(&self.end)? {
                (count, Some(len)) => {
                    self.end.link.memory.expect_rest(offset, 8 + len);
                    return Ok(Some((count, offset + 8, len)));
                }
                (count, None) => self.pass(count, 8)?,
            }
        }
    }

    /// Frees the next `count` slots, of which `used` bytes were in use.
    #[inline(always)]
    fn pass(&mut self, count: u64, used: usize) -> Result<(), RingError> {
        let index = self.end.drain.index();
        self.protocol.clear(&mut self.end, index, used);
        self.end.drain.pass(count);
        match self.usability.broken() {
            None => self.protocol.passed(&mut self.end),
            Some(_) => Ok(()),
        }
    }

    #[inline(always)]
    fn receive<R>(&mut self, look: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, RingError> {
        if let Some(len) = self.quiet_len
            && let Some(index) = self.end.drain.quiet_index()
        {
            let offset = self.end.offset_of(index);
            let shown = look(self.end.link.memory.lent(offset, len));
            self.end.drain.pass_quietly();
            self.protocol.passed_quietly(&mut self.end);
            return Ok(Some(shown));
        }
        let Some((count, offset, len)) = self.find()? else {
            return Ok(None);
        };
        let header = offset - self.end.offset_of(self.end.drain.index());
        let message = self.end.link.memory.lent(offset, len);
        let shown = if P::COPIES_OUT {
            self.application[..len].copy_from_slice(message);
            look(&self.application[..len])
        } else {
            look(message)
        };
        // The message was received: that its space cannot be given back is said by the next call.
        if let Err(error) = self.pass(count, header + len) {
            self.usability.fail(error);
        }
        Ok(Some(shown))
    }

    fn progress(&mut self) -> Result<bool, RingError> {
        if self.end.drain.available() == 0 {
            self.protocol.look(&mut self.end)?;
        }
        self.protocol.passed(&mut self.end)?;
        if self.end.drain.available() == 0 {
            self.end.link.check()?;
        }
        Ok(self.end.drain.available() > 0)
    }

    fn unless_broken<R>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<R, RingError>,
    ) -> Result<R, RingError> {
        self.usability.check()?;
        run(self).map_err(|error| self.usability.fail(error))
    }
}

/// Slots that a header says follow, at most `most`, and the length of the message if it is one. Refused
/// if they are not possible here.
#[inline(always)]
pub(super) fn checked(
    ring: &CheckedConfig,
    drain: &ReceivePolicy,
    word: u64,
    most: u64,
) -> Result<Found, RingError> {
    let before_wrap = drain.before_wrap();
    let wrong = || RingError::Header(word);
    let header = Header::parse(word).ok_or_else(wrong)?;
    let len = header.len as usize;
    let (count, message) = match header.kind {
        // The array may have more units than a header can count: the skip ends where it does.
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
            // What came before the peer went is still there to be received.
            Some(error) if error.is_peer_gone() && !self.usability.is_foreign() => {
                match self.receive(look) {
                    Ok(Some(shown)) => Ok(Some(shown)),
                    // The first reason stays, whatever else the death left to be found.
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
        self.end.drain.head()
    }
}
