//! An application's end of a connection. Any thread may use it, without the session, and each direction may
//! be used by a thread of its own.
//!
//! Methods that change shared state return a [`Wake`]: whether the daemon sleeps and the caller must wake it.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use headworks_shm::View;

use crate::control_block::{Arrived, ControlBlock, Reset, Room, Status, Transfer};
use crate::descriptors::KeptDescriptor;
use crate::direct::{DirectReceiver, DirectSender, DirectShared};
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
        direct: Option<(DirectSender, DirectReceiver)>,
    ) -> Result<Self, ContractError> {
        let (direct_sender, direct_receiver) = direct.unzip();
        let egress = EgressWriter::new(&slabs, block)?;
        let ingress = IngressReader::new(&slabs, block)?;
        let known = Arc::new(ConnectionShared {
            handle: end.handle,
            local: end.local,
            peer: end.peer,
            doorbell,
            block: block.clone(),
            direct: direct_receiver.as_ref().map(|one| one.shared.clone()),
        });
        Ok(Self {
            sending: SendHalf {
                known: known.clone(),
                slabs: slabs.clone(),
                egress,
                direct: direct_sender.map(Box::new),
            },
            receiving: ReceiveHalf {
                known,
                slabs,
                ingress,
                direct: direct_receiver.map(Box::new),
            },
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
#[derive(Debug)]
pub struct ConnectionShared {
    handle: u32,
    local: SocketAddr,
    peer: SocketAddr,
    doorbell: Doorbell,
    block: ControlBlock,
    direct: Option<Arc<DirectShared>>,
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

    /// Status of the connection.
    pub fn status(&self) -> Status {
        let told = self.block.status();
        match &self.direct {
            Some(direct) => direct.status(told),
            None => told,
        }
    }

    /// The direct path of the connection, if it has one.
    pub fn direct(&self) -> Option<&Arc<DirectShared>> {
        self.direct.as_ref()
    }

    /// Returns the number of bytes that have arrived, and the status. A poller compares them with those that it reported.
    pub fn arrived(&self) -> Arrived {
        // The status first: the end is published after the last byte.
        let status = self.status();
        let of = |block: &ControlBlock| (block.arrived(), block.consumed());
        let (mut bytes, consumed) = of(&self.block);
        let mut is_some = bytes != consumed;
        if let Some(direct) = &self.direct {
            let (direct, consumed) = of(direct.incoming());
            is_some |= direct != consumed;
            bytes = bytes.wrapping_add(direct);
        }
        Arrived {
            bytes,
            is_some,
            status,
        }
    }

    /// Returns the present room for sending. A poller compares it with [`SendHalf::room`].
    pub fn room_now(&self) -> Room {
        let mut room = self.block.room();
        if let Some(direct) = &self.direct {
            room.direct = direct.outgoing().consumed();
            room.direct_ring = self.block.offered_ring().0;
        }
        room
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
    known: Arc<ConnectionShared>,
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
    /// On the direct path: a thread of the peer sleeps on
    /// [`DirectShared::event_count_of_peer`], and the caller must wake it.
    PeerThread {
        /// Whether it waits for room.
        of_room: bool,
    },
    /// On the direct path: a thread of the peer sleeps on the socket of the pair, and the caller must wake it.
    PeerSocket,
}

impl Wake {
    /// Combines two wake-ups, of which one is [`Wake::No`] or both are equal.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match self {
            Self::No => other,
            some => some,
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
                self.slabs = slabs.clone();
            }

            /// The connection, as the daemon announced it.
            pub fn known(&self) -> &Arc<ConnectionShared> {
                &self.known
            }

            /// The slabs that this direction can access.
            pub fn slabs(&self) -> &Slabs {
                &self.slabs
            }
        }
    };
}

direction!(SendHalf);
direction!(ReceiveHalf);

/// The direction to the peer.
#[derive(Debug)]
pub struct SendHalf {
    known: Arc<ConnectionShared>,
    slabs: Slabs,
    egress: EgressWriter,
    direct: Option<Box<DirectSender>>,
}

impl SendHalf {
    /// Whether the latest call found no room because the next ring lies in a slab that the session has not read from its
    /// socket.
    pub fn is_withheld(&self) -> bool {
        self.egress.is_withheld()
    }

    /// Returns the room that the latest call found. If that call failed for lack of room, a poller waits for another value
    /// of [`ConnectionShared::room_now`].
    pub fn room(&self) -> Room {
        let mut room = self.egress.room_seen();
        if let Some(direct) = &self.direct {
            (room.direct, room.direct_ring) = direct.room_seen();
        }
        room
    }

    /// Status of the connection, as it concerns what is sent.
    pub fn status(&self) -> Status {
        let mut status = self.known.status();
        if let Some(direct) = &self.direct {
            if direct.was_diverted() {
                status.reset = status.reset.or_else(|| self.known.block.status().reset);
            }
            // A stream that this side has ended loses nothing by that.
            if direct.is_cut_off(self.is_ended()) {
                status.reset = status.reset.or(Some(Reset::ByPeer));
            }
        }
        status
    }

    /// Has the next bytes go through the daemons, until the peer has received them. Without an effect on a connection that
    /// has no direct path. For an export, which the session asks for: later bytes must not overtake it.
    pub fn divert(&mut self) {
        if let Some(direct) = self.direct_unless_ended() {
            direct.divert_next_byte();
        }
    }

    /// Has the record that follows, and everything behind it, go through the daemons.
    fn divert_record(&mut self) {
        if let Some(direct) = self.direct_unless_ended() {
            direct.divert();
        }
    }

    /// Returns the direct path, unless the stream was ended there: nothing follows the end.
    fn direct_unless_ended(&mut self) -> Option<&mut DirectSender> {
        self.direct
            .as_deref_mut()
            .filter(|direct| !direct.is_ended())
    }

    /// Whether the next bytes go through the daemons.
    fn is_diverted(&mut self) -> Result<bool, ContractError> {
        let egress = &mut self.egress;
        match &mut self.direct {
            // Nothing follows an end of the stream that went there.
            Some(direct) if !egress.is_ended() => direct.is_diverted(|| egress.is_drained()),
            _ => Ok(true),
        }
    }

    /// Whether the daemon carries what the application sends now. If the daemon is gone, the application cannot send.
    pub fn needs_daemon(&self) -> bool {
        self.direct
            .as_deref()
            .is_none_or(|direct| direct.was_diverted() || !direct.is_taken_by_peer())
    }

    /// Counts bytes that go through the daemons.
    fn count(&mut self, bytes: u64) {
        if let Some(direct) = &mut self.direct {
            direct.sent_there(bytes);
        }
    }

    /// Sends on the direct path.
    fn send_direct(&mut self, bytes: &[u8]) -> Result<(usize, Wake), ContractError> {
        let Some(direct) = &mut self.direct else {
            return Ok((0, Wake::No));
        };
        let block = &self.known.block;
        let (written, wake) = direct.write(bytes)?;
        if written > 0 || bytes.is_empty() || direct.is_ended() {
            return Ok((written, wake));
        }
        // The ring is full: a longer one may help.
        if let Some(left) = direct.left_ring()? {
            block.leave_rings(left);
        }
        let (number, ring) = block.offered_ring();
        if direct.take_ring(number, ring)? {
            return direct.write(bytes);
        }
        let Some((number, len)) = direct.wants_ring(bytes.len()) else {
            return Ok((0, Wake::No));
        };
        block.want_ring(number, len);
        Ok((0, self.known.nudge()))
    }

    /// Copies as many bytes as there is room for, and returns their number.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(usize, Wake), ContractError> {
        self.send_as(bytes, Transfer::Any)
    }

    /// Like [`send`](Self::send), with a way to carry these bytes: see [`EgressWriter::write_as`]. On the direct path there is
    /// only one way.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_as(
        &mut self,
        bytes: &[u8],
        transfer: Transfer,
    ) -> Result<(usize, Wake), ContractError> {
        if !self.is_diverted()? {
            return self.send_direct(bytes);
        }
        let written = self.egress.write_as(&self.slabs, bytes, transfer)?;
        self.count(written as u64);
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
        if self.is_ended() {
            return Ok((None, Wake::No));
        }
        self.divert_record();
        let lent = self.egress.lend_as(&self.slabs, extent, transfer)?;
        self.count(lent.map_or(0, |_| extent.len.into()));
        Ok((lent, self.nudge_if(lent.is_some())))
    }

    /// Asks the daemon to send memory of the session in place; see [`EgressWriter::lend`].
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn lend(&mut self, extent: Extent) -> Result<(Option<LendTicket>, Wake), ContractError> {
        self.lend_as(extent, Transfer::Any)
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
        if self.is_ended() {
            return Ok((None, Wake::No));
        }
        self.divert_record();
        let asked = self.egress.operate(&self.slabs, operation)?;
        Ok((asked, self.nudge_if(asked.is_some())))
    }

    /// Ends the stream to the peer. Returns whether it is ended. If not, the ring had no room for the record:
    /// call it again later.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn end(&mut self) -> Result<(bool, Wake), ContractError> {
        if self.is_ended() {
            return Ok((true, Wake::No));
        }
        if !self.is_diverted()?
            && let Some(direct) = &mut self.direct
        {
            return Ok((true, direct.end()));
        }
        let was_ended = self.egress.is_ended();
        let is_ended = self.egress.end(&self.slabs)?;
        if let Some(direct) = self.direct.as_mut().filter(|_| is_ended && !was_ended) {
            direct.note_end();
        }
        Ok((is_ended, self.nudge_if(is_ended && !was_ended)))
    }

    /// Whether this side has ended its stream.
    pub fn is_ended(&self) -> bool {
        let is_ended = |direct: &DirectSender| direct.is_ended();
        self.egress.is_ended() || self.direct.as_deref().is_some_and(is_ended)
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
    known: Arc<ConnectionShared>,
    slabs: Slabs,
    ingress: IngressReader,
    direct: Option<Box<DirectReceiver>>,
}

impl ReceiveHalf {
    /// Does what [`recv`](Self::recv) does if bytes have arrived on the direct path and lie in one ring, as most do. `None`:
    /// call that one.
    #[inline]
    pub fn recv_in_ring(&mut self, into: &mut [u8]) -> Option<(usize, Wake)> {
        let read = self.direct.as_mut()?.read_in_ring(into);
        (read > 0).then(|| (read, self.tell()))
    }

    /// Copies as many bytes as have arrived and as fit. Bytes that arrived before a reset can still be
    /// received.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn recv(&mut self, into: &mut [u8]) -> Result<(Received, Wake), ContractError> {
        if into.is_empty() {
            return Ok((Received::Bytes(0), Wake::No));
        }
        let read = self.read(into)?;
        if read > 0 {
            return Ok((Received::Bytes(read), self.tell()));
        }
        // Read the status before the last look for bytes: the end is published after the last byte, so that no byte is
        // missed.
        if self.is_withheld() || !self.status().is_ended {
            return Ok((Received::Nothing, Wake::No));
        }
        match self.read(into)? {
            0 => Ok((Received::Ended, Wake::No)),
            read => Ok((Received::Bytes(read), self.tell())),
        }
    }

    /// Copies the next bytes.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, ContractError> {
        let slabs = &self.slabs;
        if let Some(direct) = &mut self.direct {
            let read = direct.read_in_ring(into);
            if read > 0 {
                return Ok(read);
            }
            direct.select(&mut self.ingress, slabs)?;
            if !direct.is_there {
                return direct.reader.read(&direct.memory, into);
            }
        }
        self.ingress.read(slabs, into)
    }

    /// Returns the memory of the next contiguous bytes of the direct path; empty if there are none. The peer may change this
    /// memory at any time. `None` if the daemon brings the next bytes.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the peer broke the contract.
    pub fn peek_direct(&mut self) -> Result<Option<View>, ContractError> {
        let Some(direct) = &mut self.direct else {
            return Ok(None);
        };
        direct.select(&mut self.ingress, &self.slabs)?;
        if direct.is_there {
            return Ok(None);
        }
        let extent = direct.reader.peek(&direct.memory)?;
        direct.memory.view(extent).map(Some)
    }

    /// Whether bytes have arrived that cannot be read yet: they lie in a slab that the session has not received, or the
    /// daemon is moving them. The daemon has sent such a slab; the session must read its socket.
    pub fn is_withheld(&self) -> bool {
        self.ingress.is_withheld()
    }

    /// Memory of the next contiguous bytes that come through the daemons; empty if there are none.
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn peek(&mut self) -> Result<Extent, ContractError> {
        self.ingress.peek(&self.slabs)
    }

    /// Consumes bytes that were peeked at.
    pub fn consume(&mut self, bytes: u64) -> Wake {
        match &mut self.direct {
            Some(direct) if !direct.is_there => direct.reader.consume(bytes),
            _ => self.ingress.consume(bytes),
        }
        self.tell()
    }

    /// Consumes the next bytes if they lie in the receive pool, and keeps their memory until it is released: see
    /// [`IngressReader::keep`].
    ///
    /// # Errors
    ///
    /// [`ContractError`]: the daemon broke the contract.
    pub fn keep(&mut self) -> Result<(Option<(Extent, KeptMemory)>, Wake), ContractError> {
        if let Some(direct) = &mut self.direct {
            direct.select(&mut self.ingress, &self.slabs)?;
            if !direct.is_there {
                return Ok((None, Wake::No));
            }
        }
        let kept = self.ingress.keep(&self.slabs)?;
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

    /// Whether the daemon brings the next bytes. If the daemon is gone, the application receives nothing more.
    pub fn needs_daemon(&self) -> bool {
        self.known
            .direct
            .as_deref()
            .is_none_or(|direct| direct.is_diverted() || !direct.is_taken_by_peer())
    }

    /// Whether no further bytes can arrive in the receive pool until the application releases what it keeps: see
    /// [`IngressReader::is_blocked`].
    pub fn is_blocked(&self) -> bool {
        self.ingress.is_blocked()
    }

    /// Tells the daemon of consumed bytes, if that is due.
    fn tell(&mut self) -> Wake {
        if let Some(direct) = &mut self.direct {
            let wake = direct.consumed(self.ingress.consumed());
            if !direct.is_there {
                return wake;
            }
        }
        match self.ingress.notice() {
            ConsumeNotice::None => Wake::No,
            ConsumeNotice::Memory => self.known.nudge_for_memory(),
            ConsumeNotice::Window => self.nudge(),
        }
    }
}
