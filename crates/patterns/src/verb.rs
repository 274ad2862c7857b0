//! Sending and receiving a message by WRITE or by SEND: the building blocks of section 4.1.

use headworks_baselines::WordMemory;
use headworks_verbs::{DeviceInfo, Payload};

use crate::error::PatternError;
use crate::ports::{Ports, SendQueue};

mod dense;
mod mailbox;
mod tagged;

pub use dense::{DenseMailboxes, DenseWrite};
pub use mailbox::{FlagPlacement, InMessage, Mailboxes, SecondWrite, Write};
pub use tagged::{OwnReceives, ReceiveQueue, Send, SharedReceives, TaggedReceives};

/// A verb, with the protocol by which its receiver learns of a message.
pub trait Verb: Sized + std::marker::Send + 'static {
    /// Its name: `Write` or `Send`.
    const NAME: &'static str;

    /// Whether a worker behind a dispatcher finds its response by itself; else the dispatcher hands it over.
    const IN_MAILBOX: bool;

    /// Whether responses may travel by it. Requests may by every verb.
    const FOR_RESPONSES: bool = true;

    /// The receiver's state.
    type Inbox: Inbox;

    /// Fails if the device does not promise what messages of `len` bytes rely on.
    fn check(device: &DeviceInfo, len: usize) -> Result<(), PatternError>;

    /// Distance between places for messages of `len` bytes in the receiver's memory.
    fn stride(len: usize) -> usize;

    /// Bytes of a receiver's area of `places` places for messages of `len` bytes.
    fn area(places: usize, len: usize) -> usize {
        places * Self::stride(len)
    }

    /// Offset of the flag of place `place` in an area of `places` places, where flags are apart from the messages;
    /// else the offset of the place.
    fn flag(_places: usize, place: usize, len: usize) -> usize {
        place * Self::stride(len)
    }

    /// Number of places in a requester's area for responses, with `outstanding` requests and `peers` responders.
    /// By default, a place for each outstanding request, whichever responder answers it.
    fn places(outstanding: usize, _peers: usize) -> usize {
        outstanding
    }

    /// Receives of the receiver's shared receive queue, and of each queue pair's own queue, for `places` messages
    /// from each of `peers` senders.
    /// By default there are none: messages arrive in mailboxes.
    fn receives(_places: usize, _peers: usize) -> (u32, u32) {
        (0, 0)
    }

    /// Sends `payload`, a message of `len` bytes, to place `place` of the area that the peer of `queue` gave to this
    /// side. Returns false if the send queue has no room: poll the sends, and call again.
    fn send(
        queue: &mut SendQueue<'_>,
        place: usize,
        len: usize,
        payload: Payload<'_>,
    ) -> Result<bool, PatternError>;
}

/// Sends the `len` bytes at `at` by `V` to place `place` at `peer`. With `INLINE` the payload, at most `MAX` bytes,
/// travels in the request. Returns false if the send queue has no room.
#[inline(always)]
pub(crate) fn send_from_memory<V: Verb, const INLINE: bool, const MAX: usize>(
    ports: &mut Ports,
    peer: usize,
    place: usize,
    at: usize,
    len: usize,
) -> Result<bool, PatternError> {
    if INLINE {
        let mut copy = [0; MAX];
        ports.memory.read(at, &mut copy[..len]);
        let payload = Payload::Inline(&copy[..len]);
        return V::send(&mut ports.send_queue(peer)?, place, len, payload);
    }
    let sges = [ports.memory.sge(at, len)];
    V::send(
        &mut ports.send_queue(peer)?,
        place,
        len,
        Payload::Gather(&sges),
    )
}

/// A message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Index of the sender; of a message in a mailbox that several senders share, 0.
    pub peer: usize,
    /// Number of the place, for [`Inbox::release`].
    pub place: usize,
    /// Offset of the message in this side's memory.
    pub at: usize,
}

/// The places of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Places of each sender.
    pub per_peer: usize,
    /// Number of senders.
    pub peers: usize,
    /// Places that no sender uses. They are polled like the others, where messages arrive in mailboxes.
    pub idle: usize,
}

impl Places {
    /// Number of all places.
    pub const fn total(self) -> usize {
        self.per_peer * self.peers + self.idle
    }
}

/// Counts of a receiver's polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Places that were polled: mailboxes, or polls of a completion queue.
    pub places: u64,
    /// Messages that were found.
    pub found: u64,
    /// Loads that it took, or polls of a completion queue.
    pub loads: u64,
}

/// Flags that are polled in turn. A caller in virtual time passes them through the cache of a simulated host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolledFlags {
    /// Offset of the first flag in the receiver's memory.
    pub at: usize,
    /// Distance between two flags that are read by separate loads.
    pub stride: usize,
    /// Number of loads that read all flags once, at least 1.
    pub count: usize,
    /// Number of the load that the next poll begins with.
    pub next: usize,
    /// Whether the receiver clears the flag of a message that it took.
    pub is_cleared: bool,
}

impl PolledFlags {
    /// Returns the offset of the flag that load number `load` reads, counted from the next poll on.
    pub fn offset(self, load: u64) -> usize {
        self.at + (self.next + load as usize) % self.count * self.stride
    }
}

/// Where messages arrive.
pub trait Inbox: std::marker::Send {
    /// Sets up the places for messages of `len` bytes, from offset `base` of the memory on. Call it before the queue
    /// pairs are connected, so that no message comes too early.
    fn open(ports: &Ports, base: usize, places: Places, len: usize) -> Result<Self, PatternError>
    where
        Self: Sized;

    /// Offset of place `place` in the memory.
    fn at(&self, place: usize) -> usize;

    /// Offset of the flag of place `place`, where messages arrive in mailboxes. Of a verb for responses, the offset of
    /// a word whose highest byte is not 0 once the message is whole.
    fn flag_at(&self, place: usize) -> usize;

    /// Makes all free places ready for messages, as far as the device has room. Call it before the first message is
    /// asked for.
    fn prepare(&mut self, _ports: &mut Ports) -> Result<(), PatternError> {
        Ok(())
    }

    /// Takes a message that arrived whole, if there is one: has `read` read it, and frees its place. The work of a
    /// call is bounded by the number of places.
    ///
    /// # Errors
    ///
    /// The device failed, the peer broke the protocol, or `read` refused the message.
    #[inline(always)]
    fn take<R>(
        &mut self,
        ports: &mut Ports,
        read: impl FnOnce(&WordMemory, Arrival) -> Result<R, PatternError>,
    ) -> Result<Option<R>, PatternError> {
        let Some(arrival) = self.next(ports)? else {
            return Ok(None);
        };
        let found = read(&ports.memory, arrival)?;
        self.release(ports, arrival)?;
        Ok(Some(found))
    }

    /// Returns a message that arrived whole, if there is one. The work of a call is bounded by the number of places.
    fn next(&mut self, ports: &mut Ports) -> Result<Option<Arrival>, PatternError>;

    /// Frees the place of a message. The sender may use it again.
    fn release(&mut self, ports: &mut Ports, arrival: Arrival) -> Result<(), PatternError>;

    /// Counts of polls so far. They give the share of empty mailboxes (Fig. 9b).
    fn polled(&self) -> Polled;

    /// Returns which memory the next polls read; `None` if they poll a completion queue.
    fn polled_flags(&self) -> Option<PolledFlags> {
        None
    }
}
