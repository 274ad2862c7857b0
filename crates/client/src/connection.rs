//! An application's end of a connection. Any thread may use it, without the session, and each direction may
//! be used by a thread of its own.
//!
//! Methods that change shared state return a [`Wake`]: whether the daemon sleeps and the caller must wake it.

use std::net::SocketAddr;
use std::ops::Deref;

use crate::control_block::{ControlBlock, Room, Status, Transfer};
use crate::descriptors::KeptDescriptor;
use crate::doorbell::Doorbell;
use crate::egress::{EgressWriter, LendTicket};
use crate::error::ContractError;
use crate::ingress::{ConsumeNotice, IngressReader};
use crate::one_sided::Operation;
use crate::slabs::{Extent, Slabs};
use crate::socket_message::End;
use crate::wake_set::WakeSet;

/// Both directions of a connection.
#[derive(Debug)]
pub struct Connection {
    /// The direction to the peer.
    pub sending: SendHalf,
    /// The direction from the peer.
    pub receiving: ReceiveHalf,
}

impl Connection {
    /// Creates the application's end of a connection that the daemon announced.
    ///
    /// # Errors
    ///
    /// [`ContractError::Extent`], [`ContractError::ControlBlock`].
    pub(crate) fn new(
        end: End,
        slabs: Slabs,
        doorbell: Doorbell,
        block: &ControlBlock,
    ) -> Result<Self, ContractError> {
        let egress = EgressWriter::new(&slabs, block)?;
        let ingress = IngressReader::new(&slabs, block)?;
        let known = ConnectionShared {
            handle: end.handle,
            local: end.local,
            peer: end.peer,
            slabs,
            doorbell,
            block: block.clone(),
        };
        Ok(Self {
            sending: SendHalf {
                known: known.clone(),
                egress,
            },
            receiving: ReceiveHalf { known, ingress },
        })
    }

    /// Adds the slabs that the session has received since the last call, for both directions.
    pub fn refresh(&mut self, slabs: &Slabs) {
        self.sending.refresh(slabs);
        self.receiving.refresh(slabs);
    }
}

impl Deref for Connection {
    type Target = ConnectionShared;

    fn deref(&self) -> &ConnectionShared {
        &self.sending
    }
}

/// State that both directions share.
#[derive(Clone, Debug)]
pub struct ConnectionShared {
    handle: u32,
    local: SocketAddr,
    peer: SocketAddr,
    slabs: Slabs,
    doorbell: Doorbell,
    block: ControlBlock,
}

impl ConnectionShared {
    /// Handle of the connection in the session.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// This end's address and port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Address and port of the other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Its control block. A thread that is about to sleep arms an event count in it.
    pub fn block(&self) -> &ControlBlock {
        &self.block
    }

    /// Status of the connection, as the daemon published it.
    pub fn status(&self) -> Status {
        self.block.status()
    }

    /// The slabs that this direction can access.
    pub fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    /// The connections of its session, by handle, that have news for a poller. `None` if the daemon does not speak
    /// [version 6](crate::socket_message::VERSION).
    pub fn ready(&self) -> Option<&WakeSet> {
        self.doorbell.ready()
    }

    /// Asks the daemon to look at the connection again. A thread that polls for room in a ring calls it.
    pub fn nudge(&self) -> Wake {
        match self.doorbell.touch(self.handle) {
            true => Wake::Needed,
            false => Wake::No,
        }
    }

    /// Tells the daemon that memory was released. It need not look at once if it does not wait for memory.
    fn nudge_for_memory(&self) -> Wake {
        match self.doorbell.touch_for_memory(self.handle) {
            true => Wake::Needed,
            false => Wake::No,
        }
    }

    /// Nudges the daemon if something has `changed` for it.
    fn nudge_if(&self, changed: bool) -> Wake {
        match changed {
            true => self.nudge(),
            false => Wake::No,
        }
    }
}

/// Memory of the receive pool that an application keeps until it releases it. Release it before the connection is closed:
/// after that, the words of the connection belong to another.
#[derive(Debug)]
#[must_use = "the memory stays in use until it is released"]
pub struct KeptMemory {
    descriptor: KeptDescriptor,
    known: ConnectionShared,
}

impl KeptMemory {
    /// Releases the memory, which must not be accessed any more.
    pub fn release(self) -> Wake {
        self.descriptor.release();
        self.known.nudge_for_memory()
    }
}

/// Tells a caller whether it must wake the daemon ([`Session::wake`](crate::Session::wake)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The daemon is awake, or has nothing to do for this call.
    No,
    /// The daemon sleeps: the caller must wake it.
    Needed,
}

impl Wake {
    /// Whether the daemon must be woken for this or for `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match self {
            Self::Needed => Self::Needed,
            Self::No => other,
        }
    }
}

/// Implements what both directions have in common.
macro_rules! direction {
    ($name:ident) => {
        impl Deref for $name {
            type Target = ConnectionShared;

            fn deref(&self) -> &ConnectionShared {
                &self.known
            }
        }

        impl $name {
            /// Adds the slabs that the session has received since the last call. Call it before waiting, and when
            /// bytes have arrived in a slab that this direction does not have.
            pub fn refresh(&mut self, slabs: &Slabs) {
                self.known.slabs = slabs.clone();
            }
        }
    };
}

direction!(SendHalf);
direction!(ReceiveHalf);

/// The direction to the peer.
#[derive(Debug)]
pub struct SendHalf {
    known: ConnectionShared,
    egress: EgressWriter,
}

impl SendHalf {
    /// Whether the latest call found no room because the next ring lies in a slab that the session has not read from its
    /// socket.
    pub fn is_withheld(&self) -> bool {
        self.egress.is_withheld()
    }

    /// What the latest call that found no room saw of the room: for a poller.
    pub fn room(&self) -> Room {
        self.egress.room_seen()
    }

    /// Copies as many bytes as there is room for, and returns their number.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(usize, Wake), ContractError> {
        let written = self.egress.write(&self.known.slabs, bytes)?;
        Ok((written, self.nudge_if(written > 0)))
    }

    /// Like [`send`](Self::send), with a way to carry these bytes: see [`EgressWriter::write_as`].
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_as(
        &mut self,
        bytes: &[u8],
        transfer: Transfer,
    ) -> Result<(usize, Wake), ContractError> {
        let written = self.egress.write_as(&self.known.slabs, bytes, transfer)?;
        Ok((written, self.nudge_if(written > 0)))
    }

    /// Like [`lend`](Self::lend), with a way to carry these bytes: see [`EgressWriter::lend_as`].
    ///
    /// # Errors
    ///
    /// As [`lend`](Self::lend).
    pub fn lend_as(
        &mut self,
        extent: Extent,
        transfer: Transfer,
    ) -> Result<(Option<LendTicket>, Wake), ContractError> {
        let lent = self.egress.lend_as(&self.known.slabs, extent, transfer)?;
        Ok((lent, self.nudge_if(lent.is_some())))
    }

    /// Asks the daemon to send memory of the session in place; see [`EgressWriter::lend`].
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn lend(&mut self, extent: Extent) -> Result<(Option<LendTicket>, Wake), ContractError> {
        let lent = self.egress.lend(&self.known.slabs, extent)?;
        Ok((lent, self.nudge_if(lent.is_some())))
    }

    /// Sets how bytes are carried from now on.
    pub fn set_transfer(&self, transfer: Transfer) {
        self.known.block.set_transfer(transfer);
    }

    /// Whether memory that was lent belongs to the application again.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn is_returned(&mut self, lent: LendTicket) -> Result<bool, ContractError> {
        self.egress.is_returned(lent)
    }

    /// Prefetches the cache lines that the next send accesses. With thousands of connections they are in no
    /// cache. A caller that prefetches for several connections before it sends overlaps the cache misses.
    #[inline]
    pub fn expect(&self) {
        self.egress.expect();
    }

    /// Asks for a one-sided operation on memory that the peer has exported; see [`EgressWriter::operate`].
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn operate(
        &mut self,
        operation: &Operation,
    ) -> Result<(Option<LendTicket>, Wake), ContractError> {
        let asked = self.egress.operate(&self.known.slabs, operation)?;
        Ok((asked, self.nudge_if(asked.is_some())))
    }

    /// Ends the stream to the peer. Returns whether it is ended. If not, the ring had no room for the record:
    /// call it again later.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn end(&mut self) -> Result<(bool, Wake), ContractError> {
        let was_ended = self.egress.is_ended();
        let is_ended = self.egress.end(&self.known.slabs)?;
        Ok((is_ended, self.nudge_if(is_ended && !was_ended)))
    }

    /// Whether this side has ended its stream.
    pub fn is_ended(&self) -> bool {
        self.egress.is_ended()
    }
}

/// Result of [`ReceiveHalf::recv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Number of bytes copied. At least 1, or 0 if the caller's buffer is empty.
    Bytes(usize),
    /// No bytes can be read: none has arrived, or the next ones cannot be read yet.
    /// [`ReceiveHalf::is_withheld`] tells the two apart.
    Nothing,
    /// The stream has ended.
    Ended,
}

/// The direction from the peer.
#[derive(Debug)]
pub struct ReceiveHalf {
    known: ConnectionShared,
    ingress: IngressReader,
}

impl ReceiveHalf {
    /// Copies as many bytes as have arrived and as fit. Bytes that arrived before a reset can still be
    /// received.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn recv(&mut self, into: &mut [u8]) -> Result<(Received, Wake), ContractError> {
        // Read the status before the last look for bytes: the daemon publishes the end after the last byte,
        // so that no byte is missed.
        let is_empty =
            self.ingress.available(&self.known.slabs)? == 0 && !self.ingress.is_withheld();
        let is_ended = is_empty && self.status().is_ended;
        let read = self.ingress.read(&self.known.slabs, into)?;
        let wake = self.tell();
        let received = match read {
            0 if into.is_empty() => Received::Bytes(0),
            0 if is_ended => Received::Ended,
            0 => Received::Nothing,
            read => Received::Bytes(read),
        };
        Ok((received, wake))
    }

    /// Whether bytes have arrived that cannot be read yet: they lie in a slab that the session has not received, or the
    /// daemon is moving them. The daemon has sent such a slab; the session must read its socket.
    pub fn is_withheld(&self) -> bool {
        self.ingress.is_withheld()
    }

    /// Memory of the next contiguous bytes; empty if there are none.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn peek(&mut self) -> Result<Extent, ContractError> {
        self.ingress.peek(&self.known.slabs)
    }

    /// Consumes bytes that were peeked at.
    pub fn consume(&mut self, bytes: u64) -> Wake {
        self.ingress.consume(bytes);
        self.tell()
    }

    /// Consumes the next bytes if they lie in the receive pool, and keeps their memory until it is released: see
    /// [`IngressReader::keep`].
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn keep(&mut self) -> Result<(Option<(Extent, KeptMemory)>, Wake), ContractError> {
        let kept = self.ingress.keep(&self.known.slabs)?;
        let wake = self.tell();
        let kept = kept.map(|(extent, descriptor)| {
            let kept = KeptMemory {
                descriptor,
                known: self.known.clone(),
            };
            (extent, kept)
        });
        Ok((kept, wake))
    }

    /// Whether no further bytes can arrive in the receive pool until the application releases what it keeps: see
    /// [`IngressReader::is_blocked`].
    pub fn is_blocked(&self) -> bool {
        self.ingress.is_blocked()
    }

    /// Tells the daemon of consumed bytes, if that is due.
    fn tell(&mut self) -> Wake {
        match self.ingress.notice() {
            ConsumeNotice::None => Wake::No,
            ConsumeNotice::Memory => self.known.nudge_for_memory(),
            ConsumeNotice::Window => self.nudge(),
        }
    }
}
