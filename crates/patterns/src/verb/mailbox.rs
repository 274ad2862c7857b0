//! WRITE into a mailbox: a place in the receiver's memory for one sender, whose flag the receiver polls.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Acquire, Release};

use headworks_verbs::{DeviceInfo, RemoteAddr, SendOp};

use super::{Arrival, Inbox, Places, Polled, Verb};
use crate::config::stride;
use crate::error::PatternError;
use crate::message::{FLAG, WORD};
use crate::ports::{Flag, Ports};

/// Position of a mailbox's flag, and the way in which it is written.
pub trait FlagPlacement: Send + 'static {
    /// Offset of the word that holds the flag, in a mailbox for messages of `len` bytes.
    fn word(len: usize) -> usize;

    /// Distance between mailboxes for messages of `len` bytes.
    fn stride(len: usize) -> usize;

    /// Fails if the device does not promise what this placement relies on.
    fn check(device: &DeviceInfo, len: usize) -> Result<(), PatternError>;

    /// Sends the message and its flag. Returns false if there was no room for the message.
    fn send<const INLINE: bool>(
        ports: &mut Ports,
        peer: usize,
        mailbox: RemoteAddr,
        at: usize,
        len: usize,
    ) -> Result<bool, PatternError>;
}

/// The flag is the last byte of the message, which the device places last: the paper's mailbox. It relies on
/// [`in_order_within_write`](headworks_verbs::Promises::in_order_within_write).
#[derive(Clone, Copy, Debug)]
pub struct InMessage;

impl FlagPlacement for InMessage {
    #[inline(always)]
    fn word(len: usize) -> usize {
        len - WORD
    }

    fn stride(len: usize) -> usize {
        stride(len)
    }

    fn check(device: &DeviceInfo, len: usize) -> Result<(), PatternError> {
        let promises = &device.promises;
        if promises.in_order_within_write as usize >= len && promises.atomic_aligned_8 {
            return Ok(());
        }
        Err(PatternError::Promise {
            device: device.name.to_string(),
            promise: "in_order_within_write (for the response's size) and atomic_aligned_8",
            verb: "Write with the flag in the message",
            instead: "a flag by a second WRITE",
        })
    }

    #[inline(always)]
    fn send<const INLINE: bool>(
        ports: &mut Ports,
        peer: usize,
        mailbox: RemoteAddr,
        at: usize,
        len: usize,
    ) -> Result<bool, PatternError> {
        ports.post::<INLINE>(peer, SendOp::Write(mailbox), at, len)
    }
}

/// Fails unless the device promises that a later WRITE follows an earlier one, which `verb` relies on.
pub(super) fn check_order(device: &DeviceInfo, verb: &'static str) -> Result<(), PatternError> {
    match device.promises.ordered_between_writes && device.promises.atomic_aligned_8 {
        true => Ok(()),
        false => Err(PatternError::Promise {
            device: device.name.to_string(),
            promise: "ordered_between_writes and atomic_aligned_8",
            verb,
            instead: "Send",
        }),
    }
}

/// The flag is a word of its own behind the message, written by a second WRITE. It relies on
/// [`ordered_between_writes`](headworks_verbs::Promises::ordered_between_writes).
#[derive(Clone, Copy, Debug)]
pub struct SecondWrite;

impl FlagPlacement for SecondWrite {
    #[inline(always)]
    fn word(len: usize) -> usize {
        stride(len)
    }

    fn stride(len: usize) -> usize {
        stride(len) + stride(WORD)
    }

    fn check(device: &DeviceInfo, _: usize) -> Result<(), PatternError> {
        check_order(device, "Write with the flag by a second WRITE")
    }

    #[inline(always)]
    fn send<const INLINE: bool>(
        ports: &mut Ports,
        peer: usize,
        mailbox: RemoteAddr,
        at: usize,
        len: usize,
    ) -> Result<bool, PatternError> {
        let flag = Flag {
            to: mailbox.plus(Self::word(len) as u64),
            word: FLAG,
            len: WORD,
        };
        ports.post_with_flag::<INLINE>(peer, SendOp::Write(mailbox), flag, at, len)
    }
}

/// WRITE into a mailbox, with the flag where `F` places it.
#[derive(Clone, Copy, Debug)]
pub struct Write<F>(PhantomData<F>);

impl<F: FlagPlacement> Verb for Write<F> {
    const NAME: &'static str = "Write";
    const IN_MAILBOX: bool = true;

    type Inbox = Mailboxes<F>;

    fn check(device: &DeviceInfo, len: usize) -> Result<(), PatternError> {
        F::check(device, len)
    }

    fn stride(len: usize) -> usize {
        F::stride(len)
    }

    #[inline(always)]
    fn send<const INLINE: bool>(
        ports: &mut Ports,
        peer: usize,
        place: usize,
        at: usize,
        len: usize,
    ) -> Result<bool, PatternError> {
        let area = ports.peer_area(peer).messages;
        let mailbox = area.plus((place * F::stride(len)) as u64);
        F::send::<INLINE>(ports, peer, mailbox, at, len)
    }
}

/// The mailboxes of a receiver. It polls one after the other, in turn.
#[derive(Clone, Copy, Debug)]
pub struct Mailboxes<F> {
    base: usize,
    places: usize,
    per_peer: usize,
    /// Offset of the flag in a mailbox, and the distance to the next mailbox.
    flag_offset: usize,
    stride: usize,
    /// The mailbox that is polled next.
    next: usize,
    polled: Polled,
    flag: PhantomData<F>,
}

impl<F: FlagPlacement> Inbox for Mailboxes<F> {
    fn open(_: &Ports, base: usize, places: Places, len: usize) -> Result<Self, PatternError> {
        Ok(Self {
            base,
            places: places.total(),
            per_peer: places.per_peer,
            flag_offset: F::word(len),
            stride: F::stride(len),
            next: 0,
            polled: Polled::default(),
            flag: PhantomData,
        })
    }

    #[inline(always)]
    fn at(&self, place: usize) -> usize {
        self.base + place * self.stride
    }

    #[inline(always)]
    fn flag_at(&self, place: usize) -> usize {
        self.at(place) + self.flag_offset
    }

    #[inline(always)]
    fn next(&mut self, ports: &mut Ports) -> Result<Option<Arrival>, PatternError> {
        let (mut place, mut polled) = (self.next, 0);
        while polled < self.places {
            polled += 1;
            // Acquire: the message is read after its flag.
            let flag = ports.memory.word(self.flag_at(place)).load(Acquire);
            let found = place;
            place += 1;
            if place == self.places {
                place = 0;
            }
            if flag >> 56 != 0 {
                self.next = place;
                self.count(polled, 1);
                let peer = match self.per_peer {
                    1 => found,
                    places => found / places,
                };
                let at = self.at(found);
                return Ok(Some(Arrival {
                    peer,
                    place: found,
                    at,
                }));
            }
        }
        self.count(polled, 0);
        Ok(None)
    }

    #[inline(always)]
    fn release(&mut self, ports: &mut Ports, arrival: Arrival) -> Result<(), PatternError> {
        // Release: the message was read before its flag is cleared. The sender uses the mailbox again when it
        // has the response, or, of responses, when its next request has gone out.
        ports
            .memory
            .word(arrival.at + self.flag_offset)
            .store(0, Release);
        Ok(())
    }

    fn polled(&self) -> Polled {
        self.polled
    }
}

impl<F> Mailboxes<F> {
    /// Counts mailboxes that were polled, and the message that was found.
    #[inline(always)]
    fn count(&mut self, places: usize, found: u64) {
        self.polled.places += places as u64;
        self.polled.loads += places as u64;
        self.polled.found += found;
    }
}
