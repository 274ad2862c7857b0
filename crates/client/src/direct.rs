//! The direct path: two applications of one machine exchange bytes through memory that both have mapped, without their
//! daemons.
//!
//! Two sessions that have direct connections with each other are a *pair*. Each direction of a pair has memory of its own,
//! which the sender's daemon makes. So each daemon allocates, counts and limits the memory of its own applications, also where
//! the two have different daemons. The memory of a connection is free again once both applications have left the connection,
//! because a session may open many in its life.
//!
//! The memory of a direction begins with two [wake sets](WakeSet): the connections on which bytes arrived, for the receiver's
//! poller, and those on which room was made, for the sender's. Behind them lie the control blocks and the rings of the
//! connections. A block has the layout of a [control block](crate::control_block), with the sender in the place of the daemon,
//! and ends before the descriptors:
//!
//! | offset | written by | what |
//! |---|---|---|
//! | 32 | sender | bytes that it received in the other direction, for its daemon's statistics; the receiver never looks at this line |
//! | 128 to 152, 192, 256, 264, 320 | both | as in a control block: tail, status and rings of the bytes, head, event counts |
//! | 160 | sender | number of changes between the direct path and the daemons, see below |
//! | 168 | sender | whether its application has connected or accepted the connection; until then the connection needs the daemons |
//! | 176 | sender | whether it has closed the connection |
//! | 200 | receiver | bytes that it received through the daemons |
//!
//! The receiver knows the first ring of a connection from [`DirectPlace::ring`]. So the block may already announce the third one in its
//! place.
//!
//! Every direct connection also is a connection through the daemons. What needs a daemon goes there: memory that is lent,
//! one-sided operations, exports, and the bytes behind them. The sender counts such a change at offset 160, so an odd
//! number means that bytes go through the daemons. It changes back when the receiver has received all that went there. So
//! direct bytes are always the next ones, and a receiver looks for bytes through the daemons only if there are none.
//!
//! The other application may write anything into the memory at any time. Everything that is read there is checked.
//! At worst a connection of the pair delivers wrong bytes, or ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks_shm::{EventCountRef, View, WakeBy};
use headworks_wire::{Decoder, Encoder, Field, Malformed, Output};

use crate::connection::Wake;
use crate::control_block::{ControlBlock, Reset, Status};
use crate::egress::DATA_MAX;
use crate::error::ContractError;
use crate::ingress::{IngressReader, IngressWriter};
use crate::slabs::{Extent, Slabs};
use crate::wake_set::WakeSet;

/// Maximum number of connections of a pair, in each direction.
pub const PAIR_CONNECTIONS: u32 = 2048;
/// Bytes at the beginning of a direction's memory, before the first block.
pub const HEADER_BYTES: u32 = 1024;
const ROOM_SET: usize = 512;
const _: () = assert!(WakeSet::bytes(PAIR_CONNECTIONS as usize) <= ROOM_SET);

/// The two wake sets at the beginning of a direction's memory.
#[derive(Clone, Debug)]
pub struct DirectSets {
    /// Connections, by their number in this direction, on which bytes arrived. The sender inserts.
    pub arrived: WakeSet,
    /// Connections on which room was made. The receiver inserts.
    pub room: WakeSet,
}

impl DirectSets {
    /// The sets of a direction whose memory is slab 0 of `slabs`.
    ///
    /// # Errors
    ///
    /// [`ContractError::Slab`], [`ContractError::ControlBlock`].
    pub fn of(slabs: &Slabs) -> Result<Self, ContractError> {
        let view = slabs.slab(0).ok_or(ContractError::Slab(0))?;
        let count = PAIR_CONNECTIONS as usize;
        Ok(Self {
            arrived: WakeSet::at(view, 0, count)?,
            room: WakeSet::at(view, ROOM_SET, count)?,
        })
    }
}

/// Where a direct connection lies in one direction's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectPlace {
    /// Its number in this direction, less than [`PAIR_CONNECTIONS`].
    pub number: u32,
    /// Its block.
    pub block: Extent,
    /// Its first ring.
    pub ring: Extent,
}

impl Field for DirectPlace {
    fn encode<O: Output>(&self, to: Encoder<O>) -> Encoder<O> {
        to.u32(self.number).field(&self.block).field(&self.ring)
    }

    fn decode(of: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            number: of.u32()?,
            block: of.field()?,
            ring: of.field()?,
        })
    }
}

/// A direct connection, as its application is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectEnd {
    /// Number of the pair in the session.
    pub pair: u32,
    /// Where the direction to the peer lies.
    pub outgoing: DirectPlace,
    /// Where the direction from the peer lies.
    pub incoming: DirectPlace,
}

impl Field for DirectEnd {
    fn encode<O: Output>(&self, to: Encoder<O>) -> Encoder<O> {
        to.u32(self.pair)
            .field(&self.outgoing)
            .field(&self.incoming)
    }

    fn decode(of: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            pair: of.u32()?,
            outgoing: of.field()?,
            incoming: of.field()?,
        })
    }
}

/// Memory of one direction of a pair.
#[derive(Clone, Debug, Default)]
pub struct PairDirection {
    /// The memory, which is slab 0.
    memory: Slabs,
    /// The sets in it, if it has room for them.
    sets: Option<Arc<DirectSets>>,
}

impl PairDirection {
    /// The direction with this memory.
    pub fn of(memory: &Slabs) -> Self {
        Self {
            sets: DirectSets::of(memory).ok().map(Arc::new),
            memory: memory.clone(),
        }
    }

    /// Adds its memory.
    ///
    /// # Errors
    ///
    /// [`ContractError::Slab`]: it has some.
    pub(crate) fn add(&mut self, view: View) -> Result<(), ContractError> {
        self.memory.add(0, view)?;
        *self = Self::of(&self.memory);
        Ok(())
    }
}

/// A pair, as one of its applications has it.
#[derive(Clone, Debug, Default)]
pub struct Pair {
    /// Memory of the direction to the peer.
    pub outgoing: PairDirection,
    /// Memory of the direction from the peer.
    pub incoming: PairDirection,
    /// Whether the peer's process has ended. Whoever listens at the pair's socket sets it.
    pub is_peer_gone: Arc<AtomicBool>,
    /// Whether a file of the pair could not be received or used, so that no connection of it can be direct.
    pub(crate) is_lost: bool,
}

/// Writes the first words of a direct connection in its sender's memory, which the sender's daemon does before either
/// application knows of the connection.
///
/// # Errors
///
/// [`ContractError::Extent`], [`ContractError::ControlBlock`].
pub fn prepare(memory: &Slabs, place: &DirectPlace) -> Result<ControlBlock, ContractError> {
    let block = ControlBlock::direct_at(memory, place.block)?;
    block.clear();
    IngressWriter::without_reserve(memory, &block, place.ring)?;
    Ok(block)
}

/// State that both halves of a direct connection share.
#[derive(Clone, Debug)]
pub struct DirectShared {
    /// Number of the pair in the session.
    pair: u32,
    outgoing: Side,
    incoming: Side,
    /// Block of the connection through the daemons.
    there: ControlBlock,
    is_peer_gone: Arc<AtomicBool>,
}

/// One direction of a connection.
#[derive(Clone, Debug)]
struct Side {
    number: u32,
    block: ControlBlock,
    sets: Arc<DirectSets>,
}

impl Side {
    /// Notifies the peer of arrived bytes or of room.
    #[inline]
    fn notify(&self, of_room: bool) -> Wake {
        let (event_count, set) = match of_room {
            true => (self.block.room_event_count(), &self.sets.room),
            false => (self.block.event_count(), &self.sets.arrived),
        };
        match event_count.notify_waiter() {
            None => Wake::No,
            Some(WakeBy::Word) => Wake::PeerThread { of_room },
            Some(WakeBy::Message) => Wake::PeerSocket,
            Some(WakeBy::Set) => match set.touch(self.number) {
                true => Wake::PeerSocket,
                false => Wake::No,
            },
        }
    }
}

impl DirectShared {
    /// Number of the pair in the session.
    pub fn pair(&self) -> u32 {
        self.pair
    }

    /// Event count on which a thread of the peer sleeps, for [`Wake::PeerThread`].
    pub fn event_count_of_peer(&self, of_room: bool) -> EventCountRef {
        match of_room {
            true => self.incoming.block.event_count_ref(true),
            false => self.outgoing.block.event_count_ref(false),
        }
    }

    /// Block of the direction from the peer: a thread that waits for bytes arms its event count.
    pub fn incoming(&self) -> &ControlBlock {
        &self.incoming.block
    }

    /// Block of the direction to the peer: a thread that waits for room arms its event count for room.
    pub fn outgoing(&self) -> &ControlBlock {
        &self.outgoing.block
    }

    /// The set that names this connection when bytes arrive, and its number there.
    pub fn arrived(&self) -> (&WakeSet, u32) {
        (&self.incoming.sets.arrived, self.incoming.number)
    }

    /// The set that names this connection when room is made, and its number there.
    pub fn room(&self) -> (&WakeSet, u32) {
        (&self.outgoing.sets.room, self.outgoing.number)
    }

    /// Status of the connection, whose status through the daemons is `told`.
    ///
    /// A daemon that fails ends a direct connection only while the peer sends through the daemons, and until the peer has
    /// accepted the connection. Otherwise only the other application, its death, or this application's own daemon for its own
    /// reasons end it.
    pub(crate) fn status(&self, told: Status) -> Status {
        let is_taken = self.is_taken_by_peer();
        let own = |reset: &Reset| {
            !is_taken || matches!(reset, Reset::ByPeer | Reset::Misuse | Reset::Kept)
        };
        // Read before the status of the stream: the process may have ended the stream before it ended.
        let is_gone = self.is_peer_gone.load(Ordering::Acquire);
        let block = &self.incoming.block;
        // Read before the number of changes: a peer that closes the connection while its bytes go through the daemons has
        // counted that change before.
        let here = block.status();
        if !self.is_diverted() {
            let is_refused = !is_taken && told.is_ended;
            let is_reset = here.reset.is_some() || is_gone || is_refused;
            let by_peer = is_reset.then_some(Reset::ByPeer);
            return Status {
                is_ended: here.is_ended,
                reset: told.reset.filter(own).or(by_peer),
            };
        }
        // The daemons bring the rest of a connection that the peer has closed, and its end. If they fail, the rest is lost.
        let is_lost = is_gone && !block.is_closed();
        let is_reset = here.reset.is_some() && told.is_ended;
        let by_peer = (is_lost || is_reset).then_some(Reset::ByPeer);
        Status {
            is_ended: told.is_ended && (here.is_ended || !is_reset),
            reset: told.reset.or(by_peer),
        }
    }

    /// Whether the peer sends through the daemons.
    pub fn is_diverted(&self) -> bool {
        self.incoming.block.diversions() % 2 == 1
    }

    /// Whether this application sends through the daemons.
    pub fn sends_through_daemons(&self) -> bool {
        self.outgoing.block.diversions() % 2 == 1
    }

    /// Tells the peer that this application has the connection: it has connected, or has accepted it.
    pub fn take(&self) {
        self.outgoing.block.take();
    }

    /// Whether the peer's application has the connection. Until then it may never get it: a daemon may fail.
    pub fn is_taken_by_peer(&self) -> bool {
        self.incoming.block.is_taken()
    }

    /// Whether the peer has closed the connection, so that it receives nothing more.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        self.incoming.block.is_closed()
    }

    /// Ends the connection for the peer: this application closes it. If it leaves received bytes unread, the peer sees a reset
    /// in place of the end of the stream, after everything that was sent. Returns how to wake the peer.
    pub fn close(&self) -> [Wake; 2] {
        let incoming = &self.incoming.block;
        let is_unread = |block: &ControlBlock| block.arrived() != block.consumed();
        let is_unread = is_unread(incoming) || is_unread(&self.there);
        let before = self.outgoing.block.status();
        let reset = is_unread.then_some(Reset::ByPeer);
        self.outgoing.block.close();
        self.outgoing.block.set_status(Status {
            // Bytes through the daemons are followed by their end there.
            is_ended: before.is_ended || reset.is_none(),
            reset: before.reset.or(reset),
        });
        [self.outgoing.notify(false), self.incoming.notify(true)]
    }
}

/// The direction to the peer.
#[derive(Debug)]
pub(crate) struct DirectSender {
    shared: Arc<DirectShared>,
    writer: IngressWriter,
    memory: Slabs,
    /// Number of changes of path.
    diversions: u64,
    /// Bytes that went through the daemons.
    through_daemons: u64,
    /// Whether the next byte goes through the daemons, although they have nothing else to carry.
    must_carry: bool,
    is_ended: bool,
    /// Whether the peer had closed the connection before the stream was ended.
    is_ended_late: bool,
    /// Number of the ring that was asked for, and of the latest one that the daemon was seen to hand out.
    wanted: u64,
    offered: u64,
    /// Bytes sent when it was asked for.
    wanted_at: u64,
}

impl DirectSender {
    /// Whether bytes go through the daemons. `is_drained` tells whether the daemon has sent everything of this
    /// application.
    pub(crate) fn is_diverted(
        &mut self,
        is_drained: impl FnOnce() -> Result<bool, ContractError>,
    ) -> Result<bool, ContractError> {
        if self.diversions.is_multiple_of(2) {
            return Ok(false);
        }
        let consumed = self
            .shared
            .outgoing
            .block
            .consumed_there()
            .load(Ordering::Acquire);
        if self.must_carry || consumed != self.through_daemons || !is_drained()? {
            return Ok(true);
        }
        self.diversions += 1;
        self.shared.outgoing.block.set_diversions(self.diversions);
        Ok(false)
    }

    /// Has everything from now on go through the daemons, until the receiver has received all that went there. The receiver
    /// is woken by what arrives there.
    pub(crate) fn divert(&mut self) {
        if self.diversions.is_multiple_of(2) {
            self.diversions += 1;
            self.shared.outgoing.block.set_diversions(self.diversions);
        }
    }

    /// Does what [`divert`](Self::divert) does, and has at least one byte go there. For what the daemons carry without a
    /// record of this sender.
    pub(crate) fn divert_next_byte(&mut self) {
        self.divert();
        self.must_carry = true;
    }

    /// Whether the peer has received the connection: see [`DirectShared::is_taken_by_peer`].
    pub(crate) fn is_taken_by_peer(&self) -> bool {
        self.shared.is_taken_by_peer()
    }

    /// Whether the sender used the daemons at its last call.
    pub(crate) fn was_diverted(&self) -> bool {
        !self.diversions.is_multiple_of(2)
    }

    /// Counts bytes that go through the daemons.
    pub(crate) fn sent_there(&mut self, bytes: u64) {
        self.through_daemons += bytes;
        self.must_carry &= bytes == 0;
    }

    /// Copies as many bytes as there is room for. Returns their number, and how to wake the receiver.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(usize, Wake), ContractError> {
        let mut written = 0;
        while written < bytes.len() && !self.is_ended {
            let want = (bytes.len() - written).min(DATA_MAX);
            let len = self.room(want)?.min(want);
            if len == 0 {
                break;
            }
            self.writer.write(&bytes[written..written + len]);
            self.writer.publish(self.writer.come() + len as u64);
            written += len;
            // The receiver takes the first bytes while the next ones are copied.
            let wake = self.shared.outgoing.notify(false);
            if wake != Wake::No {
                return Ok((written, wake));
            }
        }
        Ok((written, Wake::No))
    }

    /// Number of bytes that may be written: `want`, or fewer if there is not room for as many; 0 if it is not worth it.
    fn room(&mut self, want: usize) -> Result<usize, ContractError> {
        let room = |writer: &IngressWriter| (writer.limit() - writer.placed()) as usize;
        let mut free = room(&self.writer);
        if free < want {
            self.writer.look()?;
            free = room(&self.writer);
        }
        let longest = self.writer.rings().map(|ring| ring.len()).max();
        let least = want.min(longest.unwrap_or(0) as usize / 4);
        Ok(if free < least { 0 } else { free })
    }

    /// Decides whether to ask the daemon for a longer ring, for `bytes` that found no room. Returns the number of that ring and
    /// its length: once for each ring, and again now and then, because the daemon may have had no memory.
    pub(crate) fn wants_ring(&mut self, bytes: usize) -> Option<(u64, u32)> {
        let number = self.writer.number() + 1;
        let len = self.writer.rings().last().map_or(0, |ring| ring.len());
        let is_short = (bytes as u64 * 4 > len && len < u64::from(RING_MAX)) || len < HOLDS;
        let is_asked =
            self.wanted == number && self.writer.come() - self.wanted_at < ASKED_EVERY * len;
        if !is_short || !self.writer.can_extend() || is_asked {
            return None;
        }
        (self.wanted, self.wanted_at) = (number, self.writer.come());
        let least = if len < SECOND { SECOND } else { HOLDS };
        let want = (len * 4).max(bytes as u64).clamp(least, RING_MAX.into());
        Some((number, (want as u32).next_power_of_two()))
    }

    /// Takes the longer ring that the daemon has handed out last, number `number`, if that is the next one.
    pub(crate) fn take_ring(&mut self, number: u64, ring: Extent) -> Result<bool, ContractError> {
        self.offered = number;
        match number == self.writer.number() + 1 {
            true => self.writer.extend(&self.memory, ring),
            false => Ok(false),
        }
    }

    /// Number of the first ring that is in use, after the receiver has left earlier ones.
    pub(crate) fn left_ring(&mut self) -> Result<Option<u64>, ContractError> {
        self.writer.look()?;
        let mut first = None;
        while self.writer.left().is_some() {
            first = Some(self.writer.first_number());
        }
        Ok(first)
    }

    /// Ends the stream, while bytes do not go through the daemons.
    pub(crate) fn end(&mut self) -> Wake {
        self.is_ended = true;
        self.note_end();
        self.shared.outgoing.notify(false)
    }

    /// Marks the stream as ended. If the end went through the daemons, the receiver learns of it from its daemon.
    pub(crate) fn note_end(&mut self) {
        self.is_ended_late = self.shared.is_closed_by_peer();
        let block = &self.shared.outgoing.block;
        block.set_status(Status {
            is_ended: true,
            ..block.status()
        });
    }

    /// Whether the peer has closed the connection before the stream was ended, of which `is_ended` tells.
    pub(crate) fn is_cut_off(&self, is_ended: bool) -> bool {
        self.shared.is_closed_by_peer() && (!is_ended || self.is_ended_late)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Returns the room that the sender read last: the bytes that the receiver has consumed, and the number of the latest
    /// ring that the daemon handed out.
    pub(crate) fn room_seen(&self) -> (u64, u64) {
        (self.writer.consumed(), self.offered)
    }
}

/// Length of the longest ring of a direct connection, in bytes.
pub const RING_MAX: u32 = 1 << 20;
/// Length of the shortest ring that is asked for after bytes found no room in the first one.
const SECOND: u64 = 8 << 10;
/// Length of the shortest ring that is asked for after that. An application that sends much before it receives relies on
/// room for it: two that do so at the same time would wait for each other.
const HOLDS: u64 = 64 << 10;
/// Rings full of bytes that are sent before a ring that the daemon did not hand out is asked for again.
const ASKED_EVERY: u64 = 64;

/// The direction from the peer.
#[derive(Debug)]
pub(crate) struct DirectReceiver {
    pub(crate) shared: Arc<DirectShared>,
    pub(crate) reader: IngressReader,
    pub(crate) memory: Slabs,
    /// Whether the last call of `select` found bytes that came through the daemons.
    pub(crate) is_there: bool,
}

impl DirectReceiver {
    /// Finds out where the next bytes come from. `there` is the reader of what comes through the daemons.
    ///
    /// Bytes that are here are always the next ones: the sender sends some only after everything that went through the daemons
    /// was received.
    #[inline]
    pub(crate) fn select(
        &mut self,
        there: &mut IngressReader,
        slabs: &Slabs,
    ) -> Result<(), ContractError> {
        self.is_there = false;
        if self.reader.available(&self.memory)? == 0
            && (there.available(slabs)? > 0 || there.is_withheld())
        {
            // The daemons publish their bytes after the sender published its direct ones. So this second read of the direct
            // tail finds all direct bytes that precede those of the daemons.
            self.is_there = self.reader.available(&self.memory)? == 0;
        }
        Ok(())
    }

    /// Copies and consumes bytes that lie in one ring, as most do. Returns 0 if there are none, or if
    /// [`select`](Self::select) must decide.
    #[inline]
    pub(crate) fn read_in_ring(&mut self, into: &mut [u8]) -> usize {
        let read = self.reader.read_in_ring(into);
        if read > 0 {
            // Bytes here are always the next ones.
            self.is_there = false;
        }
        read
    }

    /// Tells the sender what was consumed. Returns how to wake it, if it waits for room.
    pub(crate) fn consumed(&mut self, there: u64) -> Wake {
        // Only statistics read this one.
        let received = self.shared.outgoing.block.received();
        received.store(self.reader.consumed() + there, Ordering::Relaxed);
        if self.is_there {
            let consumed = self.shared.incoming.block.consumed_there();
            consumed.store(there, Ordering::Release);
            return Wake::No;
        }
        // Nobody waits for a message of this notice.
        let _ = self.reader.notice();
        self.shared.incoming.notify(true)
    }
}

/// Makes both directions of a direct connection, whose block through the daemons is `there`.
pub(crate) fn connect(
    end: &DirectEnd,
    pair: &Pair,
    there: &ControlBlock,
) -> Result<(DirectSender, DirectReceiver), ContractError> {
    let side = |of: &PairDirection, place: &DirectPlace| -> Result<Side, ContractError> {
        if place.number >= PAIR_CONNECTIONS {
            return Err(ContractError::Message("a number beyond the upper bound"));
        }
        Ok(Side {
            number: place.number,
            block: ControlBlock::direct_at(&of.memory, place.block)?,
            sets: of.sets.clone().ok_or(ContractError::Slab(0))?,
        })
    };
    let shared = Arc::new(DirectShared {
        pair: end.pair,
        outgoing: side(&pair.outgoing, &end.outgoing)?,
        incoming: side(&pair.incoming, &end.incoming)?,
        there: there.clone(),
        is_peer_gone: pair.is_peer_gone.clone(),
    });
    let (to, from) = (&pair.outgoing.memory, &pair.incoming.memory);
    let (outgoing, incoming) = (&shared.outgoing.block, &shared.incoming.block);
    let sender = DirectSender {
        writer: IngressWriter::without_reserve(to, outgoing, end.outgoing.ring)?,
        memory: to.clone(),
        diversions: 0,
        through_daemons: 0,
        must_carry: false,
        is_ended: false,
        is_ended_late: false,
        wanted: 1,
        offered: 0,
        wanted_at: 0,
        shared: shared.clone(),
    };
    let receiver = DirectReceiver {
        reader: IngressReader::of_ring_at(from, incoming, end.incoming.ring)?,
        memory: from.clone(),
        is_there: false,
        shared,
    };
    Ok((sender, receiver))
}

#[cfg(test)]
mod tests;
