//! The sending half of a connection's end. It turns its application's records into frames, and into transfers that it
//! announces and the peer READs.

mod one_sided;

use std::collections::VecDeque;

use headworks_client::control_block::Transfer;
use headworks_client::{
    ContractError, EgressReader, Extent, Operation, Outcome, Outcomes, RecordKind, Vqpn,
};
use headworks_shm::ordered_copy::prefetch_read;

use crate::copy_log::CopyLog;
use crate::exports::ExportTable;
use crate::frame::{Header, Kind};
use crate::ingress::{GROWTH, TRANSFER_MAX};
use crate::limits::DaemonLimits;
use crate::qp_group::{QpGroup, QpRole};
use crate::send_queue::OnCompletion;
use crate::session_memory::SessionMemory;

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

/// Transfer that was announced to the peer.
#[derive(Clone, Copy, Debug)]
struct AnnouncedTransfer {
    /// Position of its end in the stream.
    until: u64,
    /// End of its record.
    end: u64,
}

/// The sending half of a connection's end.
pub(crate) struct EgressHalf {
    egress: EgressReader,
    /// A contract violation of the application. After it, no further record is read.
    wrong: Option<ContractError>,
    /// Rest of the record that is being sent.
    current: Option<Extent>,
    /// Whether the current record travels in frames, once that is decided.
    is_short: Option<bool>,
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
    announced: VecDeque<AnnouncedTransfer>,
    /// Transfers, one-sided operations and atomics in flight.
    bulk: u32,
    /// Bytes in the application's ring when the latest turn began, as last observed.
    crest: u64,
    /// Bytes sent or announced.
    sent: u64,
    /// Bytes sent in line, and those that the peer has room for.
    in_line: u64,
    window: u64,
    is_ended: bool,
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendStep {
    /// This many bytes were sent in a frame, which also told the peer of the window.
    Framed(u32),
    /// A transfer of this many bytes was announced.
    Announced(u32),
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
    pub(crate) is_short: bool,
}

/// Error: the peer named a transfer or a record that is not in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidRecord;

impl EgressHalf {
    /// Creates the half that sends the records written to `egress`.
    pub(crate) fn new(egress: EgressReader) -> Self {
        Self {
            egress,
            wrong: None,
            current: None,
            is_short: None,
            asked: Transfer::Any,
            asking: None,
            flights: VecDeque::new(),
            imports: ExportTable::default(),
            atomics: 0,
            done: 0,
            exporting: 0,
            announced: VecDeque::new(),
            bulk: 0,
            crest: 0,
            sent: 0,
            in_line: 0,
            window: 0,
            is_ended: false,
        }
    }

    /// Prefetches what a turn will touch.
    #[inline]
    pub(crate) fn expect(&self) {
        self.egress.expect();
        prefetch_read(self.flights.as_slices().0.as_ptr().cast());
    }

    /// Sets the window of the peer's first ring.
    pub(crate) fn connect(&mut self, window: u32) {
        self.window = window.into();
    }

    /// Takes how many bytes in line, from the first on, the peer has room for. Returns whether that is more than before.
    pub(crate) fn widen(&mut self, window: u64) -> bool {
        // The distance is limited so that positions cannot wrap.
        let is_more = window > self.window && window - self.in_line <= 1 << 40;
        if is_more {
            self.window = window;
        }
        is_more
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
            RecordKind::Bytes(extent) => {
                self.current = Some(extent);
                self.is_short = None;
            }
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
        (own, to): (Vqpn, Vqpn),
        memory: &SessionMemory,
        group: &mut QpGroup,
        aside: PiggybackInfo,
        config: &DaemonLimits,
        copies: &mut CopyLog,
    ) -> Result<SendStep, ContractError> {
        let is_there = self.advance(memory)?;
        self.crest = self.egress.backlog();
        if !is_there {
            return Ok(SendStep::Nothing);
        }
        if let Some(asking) = self.asking {
            return Ok(self.operate(asking, (own, to), memory, group, aside.is_short, config));
        }
        let Some(extent) = self.current else {
            return Ok(SendStep::Nothing);
        };
        let transfer = match self.asked {
            Transfer::Any => self.egress.transfer(),
            asked => asked,
        };
        let is_short = match transfer {
            // A record keeps its way, whatever becomes of the peer's pool meanwhile.
            Transfer::Any => *self
                .is_short
                .get_or_insert_with(|| extent.len < config.border(group.is_peer_short)),
            Transfer::Send => true,
            Transfer::Read => false,
        };
        // A frame that tells of an export must precede data that mentions the export.
        if is_short || self.exporting > 0 {
            return self.frames(to, memory, group, aside, config, copies);
        }
        if self.bulk >= config.bulk_each {
            // The next answer schedules the connection again.
            return Ok(SendStep::Nothing);
        }
        Ok(self.announce(extent, to, memory, group, aside.is_short))
    }

    /// Announces the rest of the current record to the peer, which READs it.
    fn announce(
        &mut self,
        extent: Extent,
        to: Vqpn,
        memory: &SessionMemory,
        group: &mut QpGroup,
        is_short: bool,
    ) -> SendStep {
        if !group.may_send() {
            return SendStep::Blocked;
        }
        let len = extent.len.min(TRANSFER_MAX);
        let (view, at, _) = group.body();
        let announced = memory.remote(extent.part(0, len)).emit_memory();
        let written = view.write(at, &announced);
        debug_assert_eq!(written, Ok(()));
        let header = Header {
            at: self.sent,
            len,
            is_short,
            ..Header::of(Kind::Announce)
        };
        let then = OnCompletion::Nothing;
        group.send(QpRole::Frames, to, header, announced.len(), then);
        group.announced += 1;
        let end = self.begun();
        self.issue(len);
        let until = self.sent;
        self.announced.push_back(AnnouncedTransfer { until, end });
        SendStep::Announced(len)
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
        copies: &mut CopyLog,
    ) -> Result<SendStep, ContractError> {
        if !group.may_send() {
            return Ok(SendStep::Blocked);
        }
        let (body, body_at, fits) = group.body();
        let fits = (self.window - self.in_line).min(fits as u64) as u32;
        if fits == 0 {
            // A frame of the peer that widens the window schedules the connection again.
            return Ok(SendStep::Nothing);
        }
        let (at, mut filled) = (self.sent, 0);
        while let Some(extent) = self.current {
            let piece = extent.len.min(fits - filled);
            let slab = memory.slab(extent.slab);
            let slab = slab.ok_or(ContractError::Extent(extent))?;
            let from = (slab, extent.offset as usize);
            copies
                .copy(from, (body, body_at + filled as usize), piece as usize)
                .map_err(|_| ContractError::Extent(extent))?;
            filled += piece;
            self.issue(piece);
            if filled == fits {
                break;
            }
            // An error in the next record is returned by the next turn, after the valid bytes before it.
            let border = config.border(group.is_peer_short);
            let is_short = |extent: Extent| extent.len < border;
            if !self.advance(memory).unwrap_or(false)
                || !self.current.is_some_and(is_short)
                || self.asked == Transfer::Read
            {
                break;
            }
        }
        self.in_line += u64::from(filled);
        let header = Header {
            at,
            len: filled,
            window: aside.window,
            is_short: aside.is_short,
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

    /// Handles the peer's message that it has READ all transfers up to position `until`. Returns whether there were any.
    pub(crate) fn fetched(&mut self, until: u64) -> Result<(), InvalidRecord> {
        let is_end = |one: &AnnouncedTransfer| one.until == until;
        if !self.announced.iter().any(is_end) {
            return Err(InvalidRecord);
        }
        while let Some(first) = self.announced.front().copied()
            && first.until <= until
        {
            self.announced.pop_front();
            self.transferred(first.end);
        }
        Ok(())
    }

    /// Withdraws everything that was announced to the peer: it READs nothing more.
    pub(crate) fn withdraw(&mut self) {
        while let Some(announced) = self.announced.pop_front() {
            self.transferred(announced.end);
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
        self.announced.clear();
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

    /// Whether no request of this side is in flight. The peer may still be READing what was announced to it.
    pub(crate) fn is_idle(&self) -> bool {
        self.bulk as usize == self.announced.len() + self.atomics as usize
    }

    /// Whether everything that was sent has arrived.
    pub(crate) fn is_settled(&self) -> bool {
        self.bulk == 0
    }

    /// Position at which the stream ends, once everything before it was sent.
    pub(crate) fn end(&self) -> Option<u64> {
        self.is_ended.then_some(self.sent)
    }

    /// Whether the application ended the stream itself, and did not only close the connection.
    pub(crate) fn is_end_written(&self) -> bool {
        self.egress.is_ended()
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
