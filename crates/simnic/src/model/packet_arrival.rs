//! A packet from the wire to memory.

use headworks_verbs::{Access, Opcode, QpState, RemoteAddr, SendOp, Status};

use super::queues::{IncomingMessage, NewCompletion};
use super::read_response::{ReadRequest, Response, ResponseSource};
use super::{Acknowledge, Event, Model, Piece, PieceId, PieceKind, Qp, QpRef, Qps};
use crate::hardware_units::{NS, Ps};
use crate::registered_memory::{self, AccessRequest, Regions, Span};
use crate::wqe::Wqe;

impl Model {
    /// Handles packets that reach a host: the switch's port, a receiving unit and the bus.
    pub(super) fn on_packets(&mut self, id: PieceId) {
        let Some(piece) = self.pieces.get_mut(id.place()) else {
            return;
        };
        let (_, found) = &self.qps[piece.to.index as usize];
        let Some(qp) = found.as_deref().filter(|qp| qp.life == piece.to.life) else {
            self.pieces.remove(id.place());
            return;
        };
        let cost = &self.cost;
        let mut slowed = None;
        let state = &mut self.hosts[qp.host as usize];
        let wire = u64::from(piece.len) + cost.header * u64::from(piece.packets);
        let link = &mut state.ports.get(piece.port).link_in;
        let through = match state.receiving.as_deref_mut() {
            None => {
                let begin = self.now.saturating_sub(link.time(wire));
                link.carry(begin, wire).max(self.now)
            }
            Some(side) => {
                let bytes = (piece.len.into(), wire, piece.packets.into());
                let arrival = side.arrive(self.now, (piece.port, link), bytes);
                if arrival.notifies || arrival.holds_until.is_some() {
                    slowed = Some(arrival);
                }
                match arrival.through {
                    Some(through) => through,
                    None => {
                        let (ends, port) = ((piece.from, piece.to), piece.port);
                        self.pieces.remove(id.place());
                        return self.slow_down(ends, port, arrival);
                    }
                }
            }
        };
        let mut stall = 0;
        if !state.icm.touch(qp.context) {
            state.counters.icm_misses += 1;
            stall += cost.dma_read;
        }
        if !state.translates_at_once() {
            let misses = target_of(&self.qps, &self.regions, piece, qp, |target| {
                state.translate(&target)
            });
            stall += misses * cost.dma_read;
        }
        state.counters.stalls += stall;
        let work = cost.rx + cost.packet * Ps::from(piece.packets - 1) + stall;
        let received = (state.rx.serve(through, work) + cost.rx_latency).max(qp.received_at);
        state.counters.packets_in += u64::from(piece.packets);
        let placed = match piece.len {
            0 => received,
            len => {
                // All packets but the last cross the bus while the last one arrives.
                let bytes = cost.write(len.into());
                let tail = match piece.packets {
                    1 => bytes,
                    packets => bytes / u64::from(packets),
                };
                let begin = received.saturating_sub(state.dma_out.time(bytes - tail));
                let last = received + state.dma_out.time(tail);
                let written = match state.receiving.as_deref_mut() {
                    None => state.dma_out.carry_through(begin, bytes, last),
                    Some(side) => {
                        let mut targets = Vec::with_capacity(1);
                        target_of(&self.qps, &self.regions, piece, qp, |target| {
                            targets.push(target.in_memory());
                            0
                        });
                        let (bus, times) = (&mut state.dma_out, (begin, last));
                        let bytes = (piece.len.into(), bytes);
                        side.host
                            .place(self.now, bus, times, bytes, targets.into_iter())
                    }
                };
                written + cost.dma_write
            }
        };
        let placed = placed.max(qp.placed_at);
        piece.received = received;
        if let (_, Some(qp)) = &mut self.qps[piece.to.index as usize] {
            (qp.received_at, qp.placed_at) = (received, placed);
        }
        let (ends, port) = ((piece.from, piece.to), piece.port);
        self.event_queue.put(placed, Event::Place(id));
        if let Some(arrival) = slowed {
            self.slow_down(ends, port, arrival);
        }
    }

    /// Places the bytes of packets in memory.
    pub(super) fn place(&mut self, piece: Piece) {
        let Some((host, expected)) = self.qp(piece.to).map(|qp| (qp.host, qp.expected)) else {
            return;
        };
        let is_in_order = !matches!(piece.kind, PieceKind::Bytes) || piece.psn == expected;
        if is_in_order {
            self.hosts[host as usize].counters.bytes_in += u64::from(piece.len);
        }
        match piece.kind {
            PieceKind::Response(_) => return self.response(piece),
            PieceKind::Datagram(_) => return self.take_datagram(piece),
            PieceKind::Unreliable(_) => return self.take_unreliable(piece),
            PieceKind::Bytes | PieceKind::ReadRequest => {}
        }
        let Some(qp) = self.qp(piece.to) else {
            return;
        };
        if !qp.state.can_receive() {
            return;
        }
        if piece.psn != qp.expected {
            return self.out_of_order(piece);
        }
        match piece.kind {
            PieceKind::Bytes => self.take_bytes(piece),
            _ => self.on_read_request(piece),
        }
    }

    /// Handles unexpected packets: requests missing ones with a NAK, acknowledges duplicates again.
    fn out_of_order(&mut self, piece: Piece) {
        let Some(qp) = self.qp(piece.to) else {
            return;
        };
        let expected = qp.expected;
        if piece.psn > expected {
            if !std::mem::replace(&mut qp.gap_reported, true) {
                self.send_acknowledge(&piece, expected, Acknowledge::SequenceNak);
            }
            return;
        }
        match piece.kind {
            PieceKind::Bytes => self.send_acknowledge(&piece, expected, Acknowledge::Ack),
            // The response was lost. A READ is executed again; an atomic only repeats its result.
            _ => self.execute_read_request(piece),
        }
    }

    fn take_bytes(&mut self, piece: Piece) {
        let part = (self.offset_of(&piece), piece.len);
        let Some(asked) = asked(&self.qps, &piece) else {
            return;
        };
        let (_, wqe) = asked;
        let solicited = wqe.solicited;
        let imm = match wqe.op {
            SendOp::Write(_) => None,
            SendOp::WriteImm(_, imm) => Some((Opcode::RecvWriteImm, Some(imm))),
            SendOp::SendImm(imm) => Some((Opcode::Recv, Some(imm))),
            _ => Some((Opcode::Recv, None)),
        };
        let done = match wqe.op {
            SendOp::Write(remote) | SendOp::WriteImm(remote, _) => {
                self.take_write(&piece, asked, remote, part)
            }
            _ => self.take_send(&piece),
        };
        match done {
            Ok(()) => {}
            Err(Refusal::NotReady) => {
                let (expected, pause) = match self.qp(piece.to) {
                    Some(qp) => (qp.expected, qp.connection.min_rnr),
                    None => return,
                };
                return self.send_acknowledge(
                    &piece,
                    expected,
                    Acknowledge::RnrNak((pause / NS) as u32),
                );
            }
            Err(Refusal::Status(status)) => return self.refuse(piece, status),
            Err(Refusal::Lost) => return,
        }
        self.note_bytes(&piece, part);
        if piece.last
            && let Some((opcode, imm)) = imm
            && !self.end_receive(&piece, opcode, imm, solicited)
        {
            let Some(qp) = self.qp(piece.to) else { return };
            let (expected, pause) = (qp.expected, qp.connection.min_rnr);
            return self.send_acknowledge(
                &piece,
                expected,
                Acknowledge::RnrNak((pause / NS) as u32),
            );
        }
        let at = self.now;
        let Some(qp) = self.qp(piece.to) else {
            return;
        };
        let host = qp.host;
        qp.expected += u64::from(piece.packets);
        qp.gap_reported = false;
        let expected = qp.expected;
        self.note_change(host, at);
        if piece.last {
            self.send_acknowledge(&piece, expected, Acknowledge::Ack);
        }
    }

    #[inline]
    fn take_write(
        &self,
        piece: &Piece,
        asked: (&Qp, &Wqe),
        remote: RemoteAddr,
        part: (u32, u32),
    ) -> Result<(), Refusal> {
        let (_, Some(to)) = &self.qps[piece.to.index as usize] else {
            return Err(Refusal::Lost);
        };
        if !to.connection.access.contains(Access::REMOTE_WRITE) {
            return Err(Refusal::Status(Status::RemoteInvalidRequest));
        }
        if piece.len == 0 {
            return Ok(());
        }
        let asks = AccessRequest {
            pd: to.pd,
            host: to.host,
            access: Access::REMOTE_WRITE,
        };
        let addr = remote.addr.wrapping_add(u64::from(part.0));
        let target = self
            .regions
            .find(remote.rkey, addr, u64::from(piece.len), asks);
        let target = target.ok_or(Refusal::Status(Status::RemoteAccess))?;
        copy_from_sender(&self.regions, asked, part, |done, from| {
            registered_memory::copy(target.part(done, from.len), from);
        })
    }

    /// Takes a receive for the message that begins to arrive. Returns false if there is none.
    pub(super) fn begin_message(&mut self, index: u32) -> bool {
        let receive = self.take_receive(index);
        let has_receive = receive.is_some();
        if let (_, Some(qp)) = &mut self.qps[index as usize]
            && has_receive
        {
            qp.inbound = Some(IncomingMessage {
                receive,
                received: 0,
                late: 0,
            });
        }
        has_receive
    }

    fn take_send(&mut self, piece: &Piece) -> Result<(), Refusal> {
        let Some(qp) = self.qp(piece.to) else {
            return Err(Refusal::Lost);
        };
        let (index, pd, host) = (qp.index, qp.pd, qp.host);
        if qp.inbound.is_none() && !self.begin_message(index) {
            return Err(Refusal::NotReady);
        }
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return Err(Refusal::Lost);
        };
        let Some(inbound) = &mut qp.inbound else {
            return Err(Refusal::Lost);
        };
        let Some(receive) = inbound.receive.take() else {
            return Err(Refusal::Lost);
        };
        let offset = u64::from(piece.offset);
        inbound.received = piece.offset + piece.len;
        let asks = AccessRequest {
            pd,
            host,
            access: Access::LOCAL_WRITE,
        };
        let mut targets = Vec::with_capacity(1);
        let found = match receive.room() < u64::from(inbound.received) {
            true => Err(Status::LocalLength),
            false => self.regions.gather(
                receive.data.sges(),
                offset,
                u64::from(piece.len),
                asks,
                |span| targets.push(span),
            ),
        };
        inbound.receive = Some(receive);
        if let Err(status) = found {
            self.fail_receive(index, status);
            let far = match status {
                Status::LocalLength => Status::RemoteInvalidRequest,
                _ => Status::RemoteOperation,
            };
            return Err(Refusal::Status(far));
        }
        let late: Ps = targets
            .iter()
            .map(|target| {
                self.touch_target(host, target) + self.place_late(host, target.in_memory())
            })
            .sum();
        if let (_, Some(qp)) = &mut self.qps[index as usize]
            && let Some(inbound) = &mut qp.inbound
        {
            inbound.late += late;
        }
        let asked = asked(&self.qps, piece).ok_or(Refusal::Lost)?;
        let part = (piece.offset, piece.len);
        copy_from_sender(&self.regions, asked, part, |mut done, mut from| {
            // The lists of both sides are split at different bytes.
            for target in &targets {
                if done >= target.len {
                    done -= target.len;
                    continue;
                }
                let len = (target.len - done).min(from.len);
                registered_memory::copy(target.part(done, len), from.part(0, len));
                from = from.part(len, from.len - len);
                if from.len == 0 {
                    break;
                }
                done = 0;
            }
        })
    }

    /// Looks up the translations of a target. Returns how long that takes.
    pub(super) fn touch_target(&mut self, host: u32, target: &Span) -> Ps {
        let state = &mut self.hosts[host as usize];
        let waits = state.translate(target) * self.cost.dma_read;
        state.counters.stalls += waits;
        waits
    }

    /// Completes the receive of a whole message. Returns false if there is no receive.
    pub(super) fn end_receive(
        &mut self,
        piece: &Piece,
        opcode: Opcode,
        imm: Option<u32>,
        solicited: bool,
    ) -> bool {
        let Some(qp) = self.qp(piece.to) else {
            return true;
        };
        let (index, reference, cq) = (qp.index, (qp.reference(), qp.qpn), qp.recv_cq);
        let inbound = qp.inbound.take();
        let (receive, len, late) = match inbound {
            Some(IncomingMessage {
                receive: Some(receive),
                received,
                late,
            }) => (receive, received, late),
            _ => match self.take_receive(index) {
                Some(receive) => (receive, piece.offset + piece.len, 0),
                None => return false,
            },
        };
        let mut ends = NewCompletion::of_receive(&receive, Status::Success);
        ends.solicited = solicited;
        let completion = &mut ends.completion;
        (completion.opcode, completion.byte_len, completion.imm) = (opcode, len, imm);
        // The bytes were placed before, so only an empty message still needs the write's latency.
        let at = match len {
            0 => self.now + self.cost.dma_write,
            _ => self.now + late,
        };
        self.complete(cq, reference, at, ends);
        true
    }

    /// Completes the incoming message's receive with an error, and fails its queue pair.
    pub(super) fn fail_receive(&mut self, index: u32, status: Status) {
        self.end_receive_in_error(index, status);
        self.fail(index, true);
    }

    /// Completes the incoming message's receive with an error.
    pub(super) fn end_receive_in_error(&mut self, index: u32, status: Status) {
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return;
        };
        let (reference, cq) = ((qp.reference(), qp.qpn), qp.recv_cq);
        if let Some(IncomingMessage {
            receive: Some(receive),
            ..
        }) = qp.inbound.take()
        {
            let ends = NewCompletion::of_receive(&receive, status);
            let at = self.now + self.cost.dma_write;
            self.complete(cq, reference, at, ends);
        }
    }

    fn refuse(&mut self, piece: Piece, status: Status) {
        self.send_acknowledge(&piece, piece.psn, Acknowledge::Nak(status));
        // The error ends the connection on the responder's side as well.
        self.fail(piece.to.index, true);
    }

    fn on_read_request(&mut self, piece: Piece) {
        let (from, number) = (piece.from, piece.wqe);
        let packets = self
            .qp(from)
            .and_then(|qp| qp.wqe(number))
            .map(|wqe| wqe.packets);
        let Some(packets) = packets else {
            return;
        };
        let Some(qp) = self.qp(piece.to) else {
            return;
        };
        qp.expected += u64::from(packets);
        qp.gap_reported = false;
        self.execute_read_request(piece);
    }

    /// Executes a READ or an atomic, and queues the response.
    fn execute_read_request(&mut self, piece: Piece) {
        let (from, number) = (piece.from, piece.wqe);
        let asked = self
            .qp(from)
            .and_then(|qp| qp.wqe(number))
            .map(|wqe| (wqe.op, wqe.len));
        let Some((op, len)) = asked else {
            return;
        };
        let Some(qp) = self.qp(piece.to) else {
            return;
        };
        let (pd, host, may, psn) = (qp.pd, qp.host, qp.connection.access, piece.psn);
        let holds = qp.connection.max_dest_reads > 0;
        let (remote, access) = match op {
            SendOp::Read(remote) => (remote, Access::REMOTE_READ),
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
                (remote, Access::REMOTE_ATOMIC)
            }
            _ => return,
        };
        if !holds || !may.contains(access) {
            return self.refuse(piece, Status::RemoteInvalidRequest);
        }
        let asks = AccessRequest { pd, host, access };
        let is_atomic = access == Access::REMOTE_ATOMIC;
        if is_atomic && !remote.addr.is_multiple_of(8) {
            return self.refuse(piece, Status::RemoteInvalidRequest);
        }
        let target = match self
            .regions
            .find(remote.rkey, remote.addr, u64::from(len), asks)
        {
            Some(target) => target,
            None if len == 0 => Span::of(&[]),
            None => return self.refuse(piece, Status::RemoteAccess),
        };
        let mut ready = self.now + self.cost.respond;
        let found = match is_atomic {
            true => {
                let old = self.atomic(piece.to, psn, op, &target);
                let locks = &mut self.hosts[host as usize].locks;
                let lock = (target.place() / 8) as usize % locks.len();
                let done = locks[lock].max(self.now) + self.cost.atomic + self.cost.dma_read;
                locks[lock] = done;
                ready = done + self.cost.respond;
                self.note_change(host, self.now);
                ResponseSource::Value(old)
            }
            false => ResponseSource::At(remote),
        };
        let read_request = ReadRequest {
            from,
            wqe: number,
            psn,
        };
        let response = Response::new(read_request, found, (piece.offset, len), ready);
        self.queue_response(piece.to, response);
    }

    /// Executes an atomic, and returns the value it found.
    /// A duplicate is not executed; it gets the kept value.
    fn atomic(&mut self, to: QpRef, psn: u64, op: SendOp, target: &Span) -> u64 {
        let before = self.qp(to).and_then(|qp| {
            let found = qp.answers.iter().find(|(number, _)| *number == psn);
            found.map(|(_, old)| *old)
        });
        if let Some(old) = before {
            return old;
        }
        let old = match op {
            SendOp::CompareSwap { expect, swap, .. } => {
                target.fetch_update(|old| if old == expect { swap } else { old })
            }
            SendOp::FetchAdd { add, .. } => target.fetch_update(|old| old.wrapping_add(add)),
            _ => 0,
        };
        if let Some(qp) = self.qp(to) {
            qp.answers.push_back((psn, old));
            if qp.answers.len() > qp.connection.max_dest_reads.max(1) as usize {
                qp.answers.pop_front();
            }
        }
        old
    }

    /// Handles a part of a response at the requester.
    fn response(&mut self, piece: Piece) {
        let Some(qp) = self.qp(piece.to) else {
            return;
        };
        let (index, pd, host, state) = (qp.index, qp.pd, qp.host, qp.state);
        if state == QpState::Error {
            return;
        }
        // Responses come in order. If one is missing, its request is sent
        // again (9.7.5.1.3, implied NAK). Accepting a later one first would
        // allow more requests under way than the responder keeps results for.
        let Some(at) = qp.sq.iter().position(|wqe| wqe.reads() && !wqe.answered) else {
            return;
        };
        let (wanted, psn) = (qp.first + at as u64, qp.sq[at].psn);
        if wanted > piece.wqe {
            return;
        }
        let is_missing = wanted < piece.wqe || qp.sq[at].returned < piece.offset;
        if is_missing {
            // Parts behind the missing one may still arrive, so it is asked for once.
            let missed = Some((wanted, qp.sq[at].returned));
            if wanted < qp.sending && qp.missed != missed {
                qp.missed = missed;
                self.retransmit(index, psn);
                self.make_ready(index);
            }
            return;
        }
        // A duplicate of an earlier part.
        if qp.sq[at].returned != piece.offset {
            return;
        }
        let asks = AccessRequest {
            pd,
            host,
            access: Access::LOCAL_WRITE,
        };
        let from = Span::of(piece.payload_bytes());
        let mut done = 0;
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return;
        };
        let Some(wqe) = qp.wqe(piece.wqe) else {
            return;
        };
        let placed = self.regions.gather(
            wqe.data.sges(),
            u64::from(piece.offset),
            u64::from(piece.len),
            asks,
            |span| {
                registered_memory::copy(span, from.part(done, span.len));
                done += span.len;
            },
        );
        wqe.returned += piece.len;
        if piece.last {
            wqe.answered = true;
            let end = wqe.end();
            // A request that is about to be retransmitted does not count as under way.
            qp.reads -= u32::from(piece.wqe < qp.sending);
            qp.acked = qp.acked.max(end);
        }
        (qp.retries, qp.rnr_tries) = (0, 0);
        qp.last_progress += 1;
        let at = self.now;
        self.note_change(host, at);
        match placed {
            Err(status) => self.end_request(index, piece.wqe, status),
            // The bytes were placed before, so the completion is visible at once.
            Ok(()) if piece.last => self.end_requests_at(index, at),
            Ok(()) => {}
        }
        self.make_ready(index);
    }
}

/// Returns the queue pair that sent a piece, and the request that the piece belongs to.
#[inline]
pub(super) fn asked<'a>(qps: &'a Qps, piece: &Piece) -> Option<(&'a Qp, &'a Wqe)> {
    let (_, qp) = qps.get(piece.from.index as usize)?;
    let qp = qp.as_deref().filter(|qp| qp.life == piece.from.life)?;
    let at = piece.wqe.checked_sub(qp.first)?;
    Some((qp, qp.sq.get(at as usize)?))
}

/// Calls `copy` for each span of a part `(offset, length)` of a request's bytes at the sender. `copy` also
/// gets the number of bytes before the span.
#[inline]
pub(super) fn copy_from_sender(
    regions: &Regions,
    (qp, wqe): (&Qp, &Wqe),
    (skip, len): (u32, u32),
    mut copy: impl FnMut(u64, Span),
) -> Result<(), Refusal> {
    let asks = AccessRequest {
        pd: qp.pd,
        host: qp.host,
        access: Access::NONE,
    };
    let (skip, len) = (u64::from(skip), u64::from(len));
    if let Some(bytes) = wqe.data.bytes() {
        copy(0, Span::of(bytes).part(skip, len));
        return Ok(());
    }
    let mut done = 0;
    let copied = regions.gather(wqe.data.sges(), skip, len, asks, |span| {
        copy(done, span);
        done += span.len;
    });
    // The sender deregistered the memory meanwhile: these packets are lost.
    copied.map_err(|_| Refusal::Lost)
}

/// Calls `look` for the target of a WRITE or of a response, or for the first byte that a READ or an atomic
/// asks for. Returns the sum of its results.
fn target_of(
    qps: &Qps,
    regions: &Regions,
    piece: &Piece,
    to: &Qp,
    mut look: impl FnMut(Span) -> u64,
) -> u64 {
    let (pd, host, access) = (to.pd, to.host, Access::NONE);
    let asks = AccessRequest { pd, host, access };
    let (skip, len) = (u64::from(piece.offset), u64::from(piece.len));
    if let PieceKind::Response(_) = piece.kind {
        let at = piece.wqe.checked_sub(to.first);
        let wqe = at.and_then(|at| to.sq.get(at as usize));
        let mut sum = 0;
        if let Some(wqe) = wqe {
            // Errors are reported when the bytes are placed.
            let _ = regions.gather(wqe.data.sges(), skip, len, asks, |span| sum += look(span));
        }
        return sum;
    }
    if let PieceKind::Unreliable(part) = &piece.kind {
        // A SEND's receive is not known before the bytes are placed.
        let found = part.remote(piece.offset);
        let found = found.and_then(|remote| regions.find(remote.rkey, remote.addr, len, asks));
        return found.map_or(0, look);
    }
    let Some((_, wqe)) = asked(qps, piece) else {
        return 0;
    };
    let (remote, len) = match (&piece.kind, wqe.op) {
        (PieceKind::Bytes, SendOp::Write(remote) | SendOp::WriteImm(remote, _)) => (remote, len),
        (
            PieceKind::ReadRequest,
            SendOp::Read(remote)
            | SendOp::CompareSwap { remote, .. }
            | SendOp::FetchAdd { remote, .. },
        ) => (remote, wqe.len.min(1).into()),
        _ => return 0,
    };
    let addr = remote.addr.wrapping_add(skip);
    regions.find(remote.rkey, addr, len, asks).map_or(0, look)
}

/// Reasons to refuse packets.
pub(super) enum Refusal {
    /// A queue pair or the sender's memory no longer exists; the packets are dropped silently.
    Lost,
    /// There is no receive.
    NotReady,
    /// The request is invalid; the requester gets a NAK with this status.
    Status(Status),
}
