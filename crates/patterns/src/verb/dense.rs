//! WRITE with dense flags: the payload goes into a mailbox, and a second WRITE of one byte into an area that has
//! only flags, as in L5 (section 8). A receiver polls eight flags by one load and 512 by eight lines.
//!
//! A flag is not cleared. The sender writes 0 and 1 in turn, and the receiver compares with what it saw last: so the
//! receiver never stores to a line that senders write to, and one sender's flag cannot overwrite another's.
//! Only one sender may write to a flag, so this verb is for requests.

use std::sync::atomic::Ordering::Acquire;

use headworks_verbs::{DeviceInfo, Payload, SendOp};

use super::mailbox::check_order;
use super::{Arrival, Inbox, Places, Polled, PolledFlags, Verb};
use crate::config::stride;
use crate::error::PatternError;
use crate::message::WORD;
use crate::ports::{Ports, SendQueue};

/// Lowest bit of each byte of a word.
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

/// WRITE into a mailbox, with the flag in a dense area. It relies on
/// [`ordered_between_writes`](headworks_verbs::Promises::ordered_between_writes).
#[derive(Clone, Copy, Debug)]
pub struct DenseWrite;

impl Verb for DenseWrite {
    const NAME: &'static str = "Write";
    const IN_MAILBOX: bool = true;
    /// Only one sender may write to a flag, and several responders answer in one mailbox.
    const FOR_RESPONSES: bool = false;

    type Inbox = DenseMailboxes;

    fn check(device: &DeviceInfo, _: usize) -> Result<(), PatternError> {
        check_order(device, "Write with dense flags")
    }

    fn stride(len: usize) -> usize {
        stride(len)
    }

    fn area(places: usize, len: usize) -> usize {
        places * stride(len) + places.next_multiple_of(stride(WORD))
    }

    fn flag(places: usize, place: usize, len: usize) -> usize {
        places * stride(len) + place
    }

    #[inline(always)]
    fn send(
        queue: &mut SendQueue<'_>,
        place: usize,
        len: usize,
        payload: Payload<'_>,
    ) -> Result<bool, PatternError> {
        let mailbox = queue.area().messages.plus((place * stride(len)) as u64);
        queue.post_with_toggle(SendOp::Write(mailbox), payload, place)
    }
}

/// The mailboxes of a receiver with dense flags. It polls eight flags by one load.
#[derive(Clone, Debug)]
pub struct DenseMailboxes {
    base: usize,
    /// Offset of the first flag.
    flags: usize,
    len: usize,
    places: usize,
    per_peer: usize,
    /// The flags as they were seen last, eight in a word.
    seen: Vec<u64>,
    /// The word that is polled next.
    next: usize,
    /// Flags that changed and were not returned yet, as bits of word `changed_word`.
    changed: u64,
    changed_word: usize,
    polled: Polled,
}

impl Inbox for DenseMailboxes {
    fn open(_: &Ports, base: usize, places: Places, len: usize) -> Result<Self, PatternError> {
        Ok(Self {
            base,
            flags: base + DenseWrite::flag(places.total(), 0, len),
            len,
            places: places.total(),
            per_peer: places.per_peer,
            seen: vec![0; places.total().div_ceil(WORD)],
            next: 0,
            changed: 0,
            changed_word: 0,
            polled: Polled::default(),
        })
    }

    #[inline(always)]
    fn at(&self, place: usize) -> usize {
        self.base + place * stride(self.len)
    }

    fn flag_at(&self, place: usize) -> usize {
        self.flags + place
    }

    #[inline(always)]
    fn next(&mut self, ports: &mut Ports) -> Result<Option<Arrival>, PatternError> {
        if self.changed == 0 && !self.poll(ports) {
            return Ok(None);
        }
        let place = self.changed_word * WORD + self.changed.trailing_zeros() as usize / 8;
        if place >= self.places {
            // A flag behind the last, in the same word.
            return Err(PatternError::Protocol {
                what: "the mailbox of a message",
                value: place as u64,
                most: self.places as u64 - 1,
            });
        }
        self.changed &= self.changed - 1;
        self.polled.found += 1;
        Ok(Some(Arrival {
            peer: place / self.per_peer,
            place,
            at: self.at(place),
        }))
    }

    /// Does nothing: the sender sees from the response that the mailbox is free.
    #[inline(always)]
    fn release(&mut self, _: &mut Ports, _: Arrival) -> Result<(), PatternError> {
        Ok(())
    }

    fn polled(&self) -> Polled {
        self.polled
    }

    fn polled_flags(&self) -> Option<PolledFlags> {
        Some(PolledFlags {
            at: self.flags,
            stride: WORD,
            count: self.seen.len(),
            next: self.next,
            is_cleared: false,
        })
    }
}

impl DenseMailboxes {
    /// Polls each word of flags at most once. Returns whether flags have changed.
    #[inline(always)]
    fn poll(&mut self, ports: &Ports) -> bool {
        for _ in 0..self.seen.len() {
            let word = self.next;
            self.next = if word + 1 == self.seen.len() {
                0
            } else {
                word + 1
            };
            self.polled.loads += 1;
            self.polled.places += WORD as u64;
            // Acquire: the messages are read after their flags.
            let flags = ports.memory.word(self.flags + word * WORD).load(Acquire);
            let changed = (flags ^ self.seen[word]) & LOW_BITS;
            if changed != 0 {
                self.seen[word] ^= changed;
                (self.changed, self.changed_word) = (changed, word);
                return true;
            }
        }
        false
    }
}
