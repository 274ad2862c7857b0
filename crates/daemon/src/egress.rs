//! The sending half of a connection's end. It turns its application's records into frames, WRITEs, and offers
//! that the peer READs.

mod one_sided;

use std::collections::VecDeque;

use headworks_client::control_block::Transfer;
use headworks_client::{
    ContractError, EgressReader, Extent, Operation, Outcome, Outcomes, RecordKind, Vqpn,
};
use headworks_shm::ordered_copy::prefetch_read;
use headworks_verbs::RemoteAddr;

use crate::exports::ExportTable;
use crate::frame::{Header, Kind, Remote};
use crate::ingress::GROWTH;
use crate::limits::{Bulk, DaemonLimits};
use crate::qp_group::{QpGroup, QpRole};
use crate::send_queue::OnCompletion;
use crate::session_memory::SessionMemory;

/// Load, of 255, that this side has at least, and the peer at most, when bytes are offered to the peer to
/// READ.
const READS_FROM: u8 = 128;
const READS_TO: u8 = 250;
/// Most offers of a connection in flight with [`Bulk::ByLoad`]. The peer READs them as fast as it can, and
/// meanwhile this side WRITEs the rest.
const OFFERED: usize = 3;
/// Most atomics of a connection in flight.
const ATOMICS: u32 = 64;

/// A record that has not arrived completely.
#[derive(Clone, Debug)]
struct InFlightRecord {
    end: u64,
    /// Transfers in flight.
    pending: u32,
    /// Whether all of it was issued.
    is_issued: bool,
    /// The one-sided operation of the record, until it is done.
    operation: Option<PendingOperation>,
}

/// A one-sided operation that is not done.
#[derive(Clone, Debug)]
struct PendingOperation {
    /// Where its outcome is stored.
    outcomes: Outcomes,
    export_id: u32,
    is_atomic: bool,
    /// The outcome that is stored once nothing of it is in flight.
    outcome: Outcome,
}

/// A one-sided operation that was not issued completely.
#[derive(Clone, Copy, Debug)]
struct PartialOperation {
    operation: Operation,
    done: u32,
}

/// Memory that the peer was offered to READ.
#[derive(Clone, Copy, Debug)]
struct OfferedMemory {
    at: u64,
    len: u32,
    end: u64,
}

/// A ring of the peer, and the position from which it holds the stream.
#[derive(Clone, Copy, Debug)]
struct PeerRing {
    ring: Remote,
    from: u64,
}

/// The sending half of a connection's end.
pub(crate) struct EgressHalf {
    egress: EgressReader,
    /// A contract violation of the application. After it, no further record is read.
    wrong: Option<ContractError>,
    /// Rest of the record that is being sent.
    current: Option<Extent>,
    /// How the application asked for the current record to be carried.
    asked: Transfer,
    /// Rest of the operation that is being issued. It is `None` while `current` is set.
    asking: Option<PartialOperation>,
    flights: VecDeque<InFlightRecord>,
    /// Memory that the peer exports.
    pub(crate) imports: ExportTable,
    /// Atomics that were not answered.
    atomics: u32,
    /// Total number of operations that are done.
    done: u64,
    /// Exports of this end that the peer may not know of yet.
    exporting: u32,
    offered: VecDeque<OfferedMemory>,
    /// Bulk transfers and atomics in flight.
    bulk: u32,
    /// Bytes in the application's ring when the latest turn began, as last observed.
    crest: u64,
    /// Bytes sent, and the position up to which the peer has room.
    sent: u64,
    window: u64,
    target: PeerRing,
    next_target: Option<PeerRing>,
    is_ended: bool,
    /// Whether a frame of the other end arrived over the current group. Until then, the ring's memory may
    /// already be used for something else.
    is_met: bool,
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendStep {
    /// This many bytes were sent in a frame, which also told the peer of the window.
    Framed(u32),
    /// A transfer of this many bytes was started.
    Bulk(u32),
    /// A one-sided operation, or a piece of one, was issued or has failed. The turn cost about this many
    /// bytes.
    Asked(u32),
    /// Nothing can be sent now.
    Nothing,
    /// The group has no room or no credit.
    Blocked,
    /// The group has no room for another transfer, but may have room for frames.
    Full,
}

/// Information that is sent along with data: about the connection's other direction, and about this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PiggybackInfo {
    pub(crate) window: u64,
    pub(crate) load: u8,
}

/// Error: the peer named a record that is not in flight, or an impossible ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidRecord;

impl EgressHalf {
    /// Creates the half that sends the records written to `egress`.
    pub(crate) fn new(egress: EgressReader) -> Self {
        Self {
            egress,
            wrong: None,
            current: None,
            asked: Transfer::Any,
            asking: None,
            flights: VecDeque::new(),
            imports: ExportTable::default(),
            atomics: 0,
            done: 0,
            exporting: 0,
            offered: VecDeque::new(),
            bulk: 0,
            crest: 0,
            sent: 0,
            window: 0,
            target: PeerRing {
                ring: Remote {
                    len: 1,
                    ..Remote::default()
                },
                from: 0,
            },
            next_target: None,
            is_ended: false,
            is_met: false,
        }
    }

    /// Prefetches what a turn will touch.
    #[inline]
    pub(crate) fn expect(&self) {
        self.egress.expect();
        prefetch_read(self.flights.as_slices().0.as_ptr().cast());
    }

    /// Records that a frame of the other end has arrived.
    pub(crate) fn meet(&mut self) {
        self.is_met = true;
    }

    /// Sets the peer's first ring.
    pub(crate) fn connect(&mut self, ring: Remote) {
        self.target = PeerRing { ring, from: 0 };
        self.window = ring.len.into();
    }

    /// Takes the position up to which the peer has room. Returns whether that is more than before.
    pub(crate) fn widen(&mut self, window: u64) -> bool {
        // The distance is limited so that positions cannot wrap.
        let is_more = window > self.window && window - self.sent <= 1 << 40;
        if is_more {
            self.window = window;
        }
        is_more
    }

    /// Takes the ring in which the peer's stream continues, and the position from which it does.
    pub(crate) fn retarget(&mut self, ring: Remote, from: u64) -> Result<(), InvalidRecord> {
        self.pass();
        if self.next_target.is_some() || from < self.sent {
            return Err(InvalidRecord);
        }
        self.next_target = Some(PeerRing { ring, from });
        Ok(())
    }

    fn pass(&mut self) {
        let next = self.next_target.take_if(|next| next.from <= self.sent);
        if let Some(next) = next {
            self.target = next;
        }
    }

    /// Returns where the next bytes go, and how many of `len` can go there without a break.
    fn aim(&self, len: u32) -> (RemoteAddr, u32) {
        let until = self.next_target.map_or(u64::MAX, |next| next.from);
        let offset = (self.sent - self.target.from) & u64::from(self.target.ring.len - 1);
        let break_at = (u64::from(self.target.ring.len) - offset).min(until - self.sent);
        let remote = RemoteAddr {
            addr: self.target.ring.addr.wrapping_add(offset),
            rkey: self.target.ring.rkey,
        };
        (remote, u64::from(len).min(break_at) as u32)
    }

    /// Advances to the next record. Returns whether there is one. After a contract violation, each call
    /// returns it.
    fn advance(&mut self, memory: &SessionMemory) -> Result<bool, ContractError> {
        if self.current.is_some() || self.asking.is_some() {
            return Ok(true);
        }
        if self.is_ended {
            return Ok(false);
        }
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let read = self.read(memory);
        self.wrong = read.as_ref().err().copied();
        read
    }

    fn read(&mut self, memory: &SessionMemory) -> Result<bool, ContractError> {
        let Some(record) = self.egress.next(memory.slabs())? else {
            return Ok(false);
        };
        let mut flight = InFlightRecord {
            end: record.end,
            pending: 0,
            is_issued: false,
            operation: None,
        };
        self.asked = record.transfer;
        match record.what {
            RecordKind::Bytes(extent) => self.current = Some(extent),
            RecordKind::Operation(operation) => {
                let outcomes = Outcomes::at(memory.slabs(), operation.result)?;
                flight.operation = Some(PendingOperation {
                    outcomes,
                    export_id: operation.export_id,
                    is_atomic: operation.op.is_atomic(),
                    outcome: Outcome::Done,
                });
                self.asking = Some(PartialOperation { operation, done: 0 });
            }
            RecordKind::End => {
                self.is_ended = true;
                flight.is_issued = true;
            }
        }
        self.flights.push_back(flight);
        self.settle();
        Ok(!self.is_ended)
    }

    /// Counts an export that is to be announced to the peer. If `is_over`, its announcement was sent, and it is
    /// counted no more.
    pub(crate) fn exporting(&mut self, is_over: bool) {
        self.exporting = match is_over {
            false => self.exporting + 1,
            true => self.exporting.saturating_sub(1),
        };
    }

    /// Counts `bytes` of the current record as sent.
    fn issue(&mut self, bytes: u32) {
        self.sent += u64::from(bytes);
        let Some(extent) = self.current else { return };
        let rest = extent.part(bytes, extent.len - bytes);
        self.current = (rest.len > 0).then_some(rest);
        if self.current.is_none()
            && let Some(flight) = self.flights.back_mut()
        {
            flight.is_issued = true;
        }
    }

    /// Releases to the application the records that were sent, in order.
    fn settle(&mut self) {
        let mut end = None;
        while let Some(first) = self.flights.front() {
            if first.pending > 0 || !first.is_issued {
                break;
            }
            end = Some(first.end);
            self.flights.pop_front();
        }
        if let Some(end) = end {
            self.egress.release(end);
        }
    }

    /// Takes a turn: sends one frame, or starts one transfer.
    pub(crate) fn turn(
        &mut self,
        own: Vqpn,
        to: Vqpn,
        memory: &SessionMemory,
        group: &mut QpGroup,
        aside: PiggybackInfo,
        config: &DaemonLimits,
    ) -> Result<SendStep, ContractError> {
        self.pass();
        let is_there = self.advance(memory)?;
        self.crest = self.egress.backlog();
        if !is_there {
            return Ok(SendStep::Nothing);
        }
        if let Some(asking) = self.asking {
            return Ok(self.operate(asking, (own, to), memory, group, aside.load, config));
        }
        let sendable = self.sendable();
        if sendable == 0 {
            return Ok(SendStep::Nothing);
        }
        let transfer = match self.asked {
            Transfer::Any => self.egress.transfer(),
            asked => asked,
        };
        let is_short = match transfer {
            Transfer::Any => sendable < config.bulk_min,
            Transfer::Send => true,
            Transfer::Write | Transfer::Read => false,
        };
        // A frame that tells of an export must precede data that mentions the export.
        if is_short || !self.is_met || self.exporting > 0 {
            return self.frames(to, memory, group, aside, config);
        }
        if self.bulk >= config.bulk_each {
            // The next completion or answer schedules the connection again.
            return Ok(SendStep::Nothing);
        }
        let is_read = match (transfer, config.bulk) {
            (Transfer::Write, _) => false,
            (Transfer::Read, _) => true,
            (_, Bulk::Write) => false,
            (_, Bulk::Read) => true,
            (_, Bulk::ByLoad) => {
                let is_mine = aside.load < READS_FROM || group.peer_load > READS_TO;
                !is_mine && self.offered.len() < OFFERED
            }
        };
        Ok(match is_read {
            true => self.offer(to, memory, group, aside.load, config),
            false => self.write((own, to), memory, group, aside.load, config),
        })
    }

    /// Returns how many bytes of the current record the peer has room for.
    fn sendable(&self) -> u32 {
        let len = self.current.map_or(0, |extent| extent.len);
        (self.window - self.sent).min(len.into()) as u32
    }

    /// Returns the next bytes to send, at most as many as one transfer takes, and where they go. Returns
    /// `None` if there are none, or no room for them.
    fn piece(&mut self, config: &DaemonLimits) -> Option<(Extent, RemoteAddr)> {
        self.pass();
        let (extent, room) = (self.current?, self.window - self.sent);
        if room == 0 {
            return None;
        }
        let most = u64::from(extent.len).min(room).min(config.bulk_max.into()) as u32;
        let (remote, len) = self.aim(most);
        Some((extent.part(0, len), remote))
    }

    /// Offers the peer as much of the current record as one frame may announce.
    fn offer(
        &mut self,
        to: Vqpn,
        memory: &SessionMemory,
        group: &mut QpGroup,
        load: u8,
        config: &DaemonLimits,
    ) -> SendStep {
        let (Some(extent), room) = (self.current, self.window - self.sent) else {
            return SendStep::Nothing;
        };
        if !group.may_send() {
            return SendStep::Blocked;
        }
        let most = u64::from(config.bulk_max) * u64::from(config.bulk_announced);
        let len = u64::from(extent.len).min(room).min(most) as u32;
        let (view, at, _) = group.body();
        let offer = memory.remote(extent.part(0, len)).emit_offer();
        let written = view.write(at, &offer);
        debug_assert_eq!(written, Ok(()));
        let header = Header {
            at: self.sent,
            len,
            load,
            ..Header::of(Kind::Offer)
        };
        group.send(
            QpRole::Frames,
            to,
            header,
            offer.len(),
            OnCompletion::Nothing,
        );
        group.offers += 1;
        let end = self.begun();
        let at = self.sent;
        self.offered.push_back(OfferedMemory { at, len, end });
        self.issue(len);
        SendStep::Bulk(len)
    }

    /// WRITEs pieces of the current record, as many as one frame may announce, and sends that frame after
    /// them.
    fn write(
        &mut self,
        (own, to): (Vqpn, Vqpn),
        memory: &SessionMemory,
        group: &mut QpGroup,
        load: u8,
        config: &DaemonLimits,
    ) -> SendStep {
        if group.bulk.room() < 2 {
            return SendStep::Full;
        }
        if !group.credit.may_send() {
            return SendStep::Blocked;
        }
        let header = Header {
            at: self.sent,
            load,
            ..Header::of(Kind::Wrote)
        };
        let end = self.begun();
        let mut len = 0;
        for _ in 0..config.bulk_announced {
            // One request is reserved for the frame.
            if group.bulk.room() < 2 {
                break;
            }
            let Some((from, remote)) = self.piece(config) else {
                break;
            };
            group
                .bulk
                .write(memory.sge(from), remote, OnCompletion::Nothing);
            group.writes += 1;
            len += from.len;
            self.issue(from.len);
        }
        let header = Header { len, ..header };
        group.send(QpRole::Bulk, to, header, 0, OnCompletion::Sent(own, end));
        SendStep::Bulk(len)
    }

    /// Counts a transfer of the latest record as in flight. Returns the record's end.
    fn begun(&mut self) -> u64 {
        self.bulk += 1;
        let Some(flight) = self.flights.back_mut() else {
            return 0;
        };
        flight.pending += 1;
        flight.end
    }

    /// Fills a frame, from several records if they are short.
    fn frames(
        &mut self,
        to: Vqpn,
        memory: &SessionMemory,
        group: &mut QpGroup,
        aside: PiggybackInfo,
        config: &DaemonLimits,
    ) -> Result<SendStep, ContractError> {
        if !group.may_send() {
            return Ok(SendStep::Blocked);
        }
        let (body, body_at, fits) = group.body();
        let fits = (self.window - self.sent).min(fits as u64) as u32;
        let (at, mut filled) = (self.sent, 0);
        while let Some(extent) = self.current {
            let piece = extent.len.min(fits - filled);
            let slab = memory.slab(extent.slab);
            let slab = slab.ok_or(ContractError::Extent(extent))?;
            let from = extent.offset as usize;
            slab.copy(from, body, body_at + filled as usize, piece as usize)
                .map_err(|_| ContractError::Extent(extent))?;
            filled += piece;
            self.issue(piece);
            if filled == fits {
                break;
            }
            // An error in the next record is returned by the next turn, after the valid bytes before it.
            let is_short = |extent: Extent| extent.len < config.bulk_min;
            if !self.advance(memory).unwrap_or(false)
                || !self.current.is_some_and(is_short)
                || matches!(self.asked, Transfer::Write | Transfer::Read)
            {
                break;
            }
        }
        let header = Header {
            at,
            len: filled,
            window: aside.window,
            load: aside.load,
            ..Header::of(Kind::Data)
        };
        group.send(
            QpRole::Frames,
            to,
            header,
            filled as usize,
            OnCompletion::Nothing,
        );
        self.settle();
        Ok(SendStep::Framed(filled))
    }

    /// Handles the completion of a transfer from the record that ends at `end`.
    pub(crate) fn transferred(&mut self, end: u64) {
        self.retired(end, 0);
    }

    fn retired(&mut self, end: u64, before: u64) {
        self.bulk = self.bulk.saturating_sub(1);
        if let Some(at) = self.flights.iter().position(|flight| flight.end == end) {
            let pending = &mut self.flights[at].pending;
            *pending = pending.saturating_sub(1);
            self.conclude(at, before);
        }
        self.settle();
    }

    /// Handles the peer's message that it has READ an offer.
    pub(crate) fn fetched(&mut self, at: u64, len: u32) -> Result<(), InvalidRecord> {
        let found = self
            .offered
            .iter()
            .position(|offered| (offered.at, offered.len) == (at, len));
        let found = found.and_then(|at| self.offered.remove(at));
        self.transferred(found.ok_or(InvalidRecord)?.end);
        Ok(())
    }

    /// Withdraws everything that the peer was offered: it READs nothing more.
    pub(crate) fn withdraw(&mut self) {
        while let Some(offered) = self.offered.pop_front() {
            self.transferred(offered.end);
        }
        // The peer does not answer atomics any more either.
        for at in 0..self.flights.len() {
            let flight = &mut self.flights[at];
            let of = |operating: &&mut PendingOperation| operating.is_atomic;
            if let Some(operating) = flight.operation.as_mut().filter(of)
                && flight.pending > 0
            {
                operating.outcome = Outcome::Lost;
                flight.pending = 0;
                self.atomics -= 1;
                self.bulk = self.bulk.saturating_sub(1);
                self.conclude(at, 0);
            }
        }
        self.settle();
    }

    /// Ends sending: nothing is in flight any more, and all records are released to the application.
    pub(crate) fn abandon(&mut self) {
        self.offered.clear();
        for flight in self.flights.drain(..) {
            if let Some(operating) = flight.operation {
                operating.outcomes.set(Outcome::Lost, 0);
                self.done += 1;
            }
        }
        self.current = None;
        self.asking = None;
        self.atomics = 0;
        self.exporting = 0;
        self.bulk = 0;
        self.egress.release_all();
    }

    /// Whether no request of this side is in flight. The peer may still be READing what it was offered.
    pub(crate) fn is_idle(&self) -> bool {
        self.bulk as usize == self.offered.len() + self.atomics as usize
    }

    /// Whether everything that was sent has arrived.
    pub(crate) fn is_settled(&self) -> bool {
        self.bulk == 0
    }

    /// Position at which the stream ends, once everything before it was sent.
    pub(crate) fn end(&self) -> Option<u64> {
        self.is_ended.then_some(self.sent)
    }

    /// Bytes of records that were released to the application.
    pub(crate) fn released(&self) -> u64 {
        self.egress.released()
    }

    /// Whether the application has room in its ring, as last observed.
    pub(crate) fn has_room(&self) -> bool {
        self.egress.backlog() <= self.egress.ring_len() / 2
    }

    /// Number of rings published to the application.
    pub(crate) fn rings(&self) -> u64 {
        self.egress.rings()
    }

    /// Whether the application has nothing more to send, as last observed.
    pub(crate) fn is_drained(&self) -> bool {
        self.current.is_none() && self.asking.is_none() && self.egress.is_drained()
    }

    /// Ends the stream after what was written, because the application has closed the connection or exited.
    pub(crate) fn end_here(&mut self) {
        self.is_ended = true;
    }

    /// Offers the application a longer ring if it fills the current one, and frees a ring that it has left.
    pub(crate) fn grow(&mut self, memory: &mut SessionMemory, most: u32) {
        if let Some(left) = self.egress.left() {
            memory.give(left);
        }
        let len = self.egress.ring_len();
        if self.egress.has_offered() || len >= u64::from(most) {
            return;
        }
        // While a record waits for the peer, the records after it are not read. So read the tail here.
        let backlog = match self.current {
            Some(_) => self.egress.backlog_now(),
            None => self.egress.backlog(),
        };
        // The backlog at the turn's beginning counts too: a bursty writer is limited by the ring's size even
        // if the ring drains fast.
        if backlog < len / 2 && self.crest < len / 8 * 7 {
            return;
        }
        // Without memory for a longer ring, the ring stays as it is.
        let longer = (len as u32).saturating_mul(GROWTH).min(most);
        let Ok(extent) = memory.take_longer_ring(len as u32, longer) else {
            return;
        };
        if !matches!(self.egress.offer(memory.slabs(), extent), Ok(true)) {
            memory.give(extent);
        }
    }

    /// Returns all memory of the half.
    pub(crate) fn memory(&self) -> impl Iterator<Item = Extent> {
        self.egress.memory()
    }
}
