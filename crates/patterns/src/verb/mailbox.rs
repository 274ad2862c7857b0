//! WRITE into a mailbox: a place in the receiver's memory for one sender, whose flag the receiver polls.

use std::marker::PhantomData;
use std::num::NonZero;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use headworks_baselines::WordMemory;
use headworks_verbs::{DeviceInfo, Payload, RemoteAddr, SendOp};

use super::{Arrival, Inbox, Places, Polled, PolledFlags, Verb};
use crate::config::stride;
use crate::error::PatternError;
use crate::message::{FLAG, WORD};
use crate::ports::{Flag, Ports, SendQueue};

/// Position of a mailbox's flag, and the way in which it is written.
pub trait FlagPlacement: Send + 'static {
    /// Offset of the word that holds the flag, in a mailbox for messages of `len` bytes.
    fn word(len: usize) -> usize;

    /// Distance between mailboxes for messages of `len` bytes.
    fn stride(len: usize) -> usize;

    /// Fails if the device does not promise what this placement relies on.
    fn check(device: &DeviceInfo, len: usize) -> Result<(), PatternError>;

    /// Sends the message and its flag. Returns false if there was no room for the message.
    fn send(
        queue: &mut SendQueue<'_>,
        mailbox: RemoteAddr,
        len: usize,
        payload: Payload<'_>,
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
    fn send(
        queue: &mut SendQueue<'_>,
        mailbox: RemoteAddr,
        _: usize,
        payload: Payload<'_>,
    ) -> Result<bool, PatternError> {
        queue.post(SendOp::Write(mailbox), payload)
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
    fn send(
        queue: &mut SendQueue<'_>,
        mailbox: RemoteAddr,
        len: usize,
        payload: Payload<'_>,
    ) -> Result<bool, PatternError> {
        let flag = Flag {
            to: mailbox.plus(Self::word(len) as u64),
            word: FLAG,
            len: WORD,
        };
        queue.post_with_flag(SendOp::Write(mailbox), payload, flag)
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
    fn send(
        queue: &mut SendQueue<'_>,
        place: usize,
        len: usize,
        payload: Payload<'_>,
    ) -> Result<bool, PatternError> {
        let area = queue.area().messages;
        F::send(
            queue,
            area.plus((place * F::stride(len)) as u64),
            len,
            payload,
        )
    }
}

/// The mailboxes of a receiver. It polls one after the other, in turn.
#[derive(Clone, Copy, Debug)]
pub struct Mailboxes<F> {
    base: usize,
    places: usize,
    per_peer: NonZero<usize>,
    /// Offset of the flag in a mailbox, and the distance to the next mailbox.
    flag_offset: usize,
    stride: usize,
    /// The mailbox that is polled next.
    next: usize,
    /// Mailboxes polled that were empty, and that were full.
    empty: u64,
    found: u64,
    flag: PhantomData<F>,
}

impl<F: FlagPlacement> Inbox for Mailboxes<F> {
    fn open(_: &Ports, base: usize, places: Places, len: usize) -> Result<Self, PatternError> {
        Ok(Self {
            base,
            places: places.total(),
            per_peer: NonZero::new(places.per_peer).unwrap_or(NonZero::<usize>::MIN),
            flag_offset: F::word(len),
            stride: F::stride(len),
            next: 0,
            empty: 0,
            found: 0,
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
    fn take<R>(
        &mut self,
        ports: &mut Ports,
        read: impl FnOnce(&WordMemory, Arrival) -> Result<R, PatternError>,
    ) -> Result<Option<R>, PatternError> {
        let Some((arrival, flag)) = self.poll(&ports.memory) else {
            return Ok(None);
        };
        let found = read(&ports.memory, arrival)?;
        clear(flag);
        Ok(Some(found))
    }

    #[inline(always)]
    fn next(&mut self, ports: &mut Ports) -> Result<Option<Arrival>, PatternError> {
        Ok(self.poll(&ports.memory).map(|(arrival, _)| arrival))
    }

    #[inline(always)]
    fn release(&mut self, ports: &mut Ports, arrival: Arrival) -> Result<(), PatternError> {
        clear(ports.memory.word(arrival.at + self.flag_offset));
        Ok(())
    }

    fn polled(&self) -> Polled {
        let polled = self.empty + self.found;
        Polled {
            places: polled,
            found: self.found,
            loads: polled,
        }
    }

    fn polled_flags(&self) -> Option<PolledFlags> {
        Some(PolledFlags {
            at: self.flag_at(0),
            stride: self.stride,
            count: self.places,
            next: self.next,
            is_cleared: true,
        })
    }
}

impl<F> Mailboxes<F> {
    /// Polls each mailbox at most once. Returns a message that arrived, and its flag.
    #[inline(always)]
    fn poll<'a>(&mut self, memory: &'a WordMemory) -> Option<(Arrival, &'a AtomicU64)> {
        let mut place = self.next;
        let mut at = self.base + place * self.stride;
        let mut flag = memory.word(at + self.flag_offset);
        // Acquire: the message is read after its flag.
        if flag.load(Acquire) >> 56 == 0 {
            place = self.scan(memory)?;
            at = self.base + place * self.stride;
            flag = memory.word(at + self.flag_offset);
        }
        self.next = match place + 1 == self.places {
            true => 0,
            false => place + 1,
        };
        self.found += 1;
        let peer = match self.per_peer {
            NonZero::<usize>::MIN => place,
            places => place / places,
        };
        Some((Arrival { peer, place, at }, flag))
    }

    /// Polls the mailboxes behind `next`, which is empty, and then those before it. Returns the place of a message that
    /// arrived.
    #[inline(never)]
    fn scan(&mut self, memory: &WordMemory) -> Option<usize> {
        let first = self.base + self.flag_offset;
        let next = self.next;
        self.empty += 1;
        for places in [next + 1..self.places, 0..next] {
            let mut flag = first + places.start * self.stride;
            for place in places.clone() {
                if memory.word(flag).load(Acquire) >> 56 != 0 {
                    self.empty += (place - places.start) as u64;
                    return Some(place);
                }
                flag += self.stride;
            }
            self.empty += places.len() as u64;
        }
        None
    }
}

/// Frees a mailbox.
#[inline(always)]
fn clear(flag: &AtomicU64) {
    // Release: the message was read before its flag is cleared. The sender uses the mailbox again when it has the
    // response, or, of responses, when its next request has gone out.
    flag.store(0, Release);
}
