//! Unreliable connections (UC): SENDs and WRITEs that nobody acknowledges. Their packets carry their bytes, because the
//! request ends, and its memory is free for other data, when the last packet has left. A message that the
//! responder cannot take is lost (InfiniBand specification, volume 1, sections 9.8.2 and 9.9.3).

use headworks_verbs::{Access, Opcode, RemoteAddr, SendOp, Status};

use super::packet_arrival::copy_from_sender;
use super::queues::NewCompletion;
use super::{Model, Piece, PieceKind, QpRef};
use crate::hardware_units::Ps;
use crate::registered_memory::{self, AccessRequest, Span};
use crate::wqe::{Wqe, cache_key};

/// Contents of packets of a message.
#[derive(Debug)]
pub(crate) struct UnreliablePart {
    op: SendOp,
    pub(super) bytes: Box<[u8]>,
    /// Bytes of the whole message.
    total: u32,
    solicited: bool,
}

/// Why packets of a message are not placed.
enum Loss {
    /// The message is lost; nothing else happens.
    Message,
    /// The receive cannot take the message, and fails the responder's queue pair.
    Receive(Status),
}

impl UnreliablePart {
    /// Returns where a WRITE's packets go, and the opcode and immediate value of the receive that the message completes,
    /// if it completes one.
    fn target(&self) -> (Option<RemoteAddr>, Option<(Opcode, Option<u32>)>) {
        match self.op {
            SendOp::Write(remote) => (Some(remote), None),
            SendOp::WriteImm(remote, imm) => {
                (Some(remote), Some((Opcode::RecvWriteImm, Some(imm))))
            }
            SendOp::SendImm(imm) => (None, Some((Opcode::Recv, Some(imm)))),
            _ => (None, Some((Opcode::Recv, None))),
        }
    }

    /// Returns where packets that begin at `offset` of the message go, if it is a WRITE.
    pub(super) fn remote(&self, offset: u32) -> Option<RemoteAddr> {
        self.target().0.map(|remote| remote.plus(offset.into()))
    }
}

impl Model {
    /// Returns what the packets of `len` bytes from `offset` of a request carry. `None` if the request's memory has
    /// just been deregistered.
    pub(super) fn unreliable_part(
        &self,
        from: QpRef,
        number: u64,
        (offset, len): (u32, u32),
    ) -> Option<Box<UnreliablePart>> {
        let (_, qp) = self.qps.get(from.index as usize)?;
        let qp = qp.as_deref()?;
        let wqe = qp.sq.get(number.checked_sub(qp.first)? as usize)?;
        let bytes = vec![0; len as usize].into_boxed_slice();
        let to = Span::of(&bytes);
        copy_from_sender(&self.regions, (qp, wqe), (offset, len), |done, span| {
            registered_memory::copy(to.part(done, span.len), span);
        })
        .ok()?;
        Some(Box::new(UnreliablePart {
            op: wqe.op,
            bytes,
            total: wqe.len,
            solicited: wqe.solicited,
        }))
    }

    /// Ends the first request of an unreliable queue pair, UC or UD, whose last packet leaves at `gone`. Returns the request.
    pub(super) fn end_unreliable(&mut self, from: QpRef, gone: Ps) -> Option<Wqe> {
        let qp = self.qp(from)?;
        let (host, index, qpn, cq) = (qp.host as usize, qp.index, qp.qpn, qp.send_cq);
        let wqe = qp.sq.pop_front()?;
        qp.first += 1;
        (qp.sending, qp.sent) = (qp.first, 0);
        qp.sent_bytes += u64::from(wqe.len);
        let retires = qp.first;
        self.hosts[host]
            .requests
            .forget(cache_key(index, retires - 1));
        if wqe.signaled {
            let ends = NewCompletion::of(&wqe, Status::Success, retires);
            self.complete(cq, (from, qpn), gone + self.cost.dma_write, ends);
        }
        Some(wqe)
    }

    /// Places arriving packets, or loses them.
    pub(super) fn take_unreliable(&mut self, piece: Piece) {
        let PieceKind::Unreliable(part) = &piece.kind else {
            return;
        };
        let Some(qp) = self.qp(piece.to) else {
            return;
        };
        if !qp.state.can_receive() {
            return;
        }
        if piece.offset == 0 {
            // The number of a message's first packet is taken as it comes. A message before it that is incomplete is lost,
            // and the receive that it had taken serves the next.
            qp.expected = piece.psn;
            if let Some(inbound) = &mut qp.inbound {
                (inbound.received, inbound.late) = (0, 0);
            }
        } else if piece.psn != qp.expected {
            // A packet before it was lost, and with it the rest of the message.
            return;
        }
        let (index, host) = (qp.index, qp.host);
        let (remote, completes) = part.target();
        let placed = match remote {
            Some(remote) => self.place_unreliable_write(&piece, part, remote),
            None => self.place_unreliable_send(&piece, part),
        };
        match placed {
            Ok(()) => {}
            Err(Loss::Message) => return,
            Err(Loss::Receive(status)) => return self.fail_receive(index, status),
        }
        if let Some(faults) = &mut self.faults {
            faults.run_digest.placed(&part.bytes);
        }
        if piece.last
            && let Some((opcode, imm)) = completes
            && !self.end_receive(&piece, opcode, imm, part.solicited)
        {
            return;
        }
        let now = self.now;
        if let Some(qp) = self.qp(piece.to) {
            qp.expected += u64::from(piece.packets);
        }
        self.note_change(host, now);
    }

    fn place_unreliable_write(
        &mut self,
        piece: &Piece,
        part: &UnreliablePart,
        remote: RemoteAddr,
    ) -> Result<(), Loss> {
        let Some(qp) = self.qp(piece.to) else {
            return Err(Loss::Message);
        };
        if !qp.connection.access.contains(Access::REMOTE_WRITE) {
            return Err(Loss::Message);
        }
        if let Some(inbound) = &mut qp.inbound {
            // Its receive is that of an incomplete SEND, and completes with this message's length.
            inbound.received = piece.offset + piece.len;
        }
        if piece.len == 0 {
            return Ok(());
        }
        let asks = AccessRequest {
            pd: qp.pd,
            host: qp.host,
            access: Access::REMOTE_WRITE,
        };
        let addr = remote.addr.wrapping_add(piece.offset.into());
        let target = self
            .regions
            .find(remote.rkey, addr, piece.len.into(), asks)
            .ok_or(Loss::Message)?;
        registered_memory::copy(target, Span::of(&part.bytes));
        Ok(())
    }

    fn place_unreliable_send(&mut self, piece: &Piece, part: &UnreliablePart) -> Result<(), Loss> {
        let Some(qp) = self.qp(piece.to) else {
            return Err(Loss::Message);
        };
        let (index, pd, host, is_shared) = (qp.index, qp.pd, qp.host, qp.srq.is_some());
        if qp.inbound.is_none() {
            // A receive that is too short is left for the next message (class D of 9.9.3). One of an SRQ ends with an error.
            let first = qp.receives.queue.front();
            if !is_shared && first.is_none_or(|receive| receive.room() < part.total.into()) {
                return Err(Loss::Message);
            }
            if !self.begin_message(index) {
                return Err(Loss::Message);
            }
        }
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return Err(Loss::Message);
        };
        let Some(inbound) = &mut qp.inbound else {
            return Err(Loss::Message);
        };
        let Some(receive) = &inbound.receive else {
            return Err(Loss::Message);
        };
        if receive.room() < part.total.into() {
            if is_shared {
                self.end_receive_in_error(index, Status::LocalLength);
            }
            return Err(Loss::Message);
        }
        inbound.received = piece.offset + piece.len;
        let asks = AccessRequest {
            pd,
            host,
            access: Access::LOCAL_WRITE,
        };
        let mut targets = Vec::with_capacity(1);
        let sges = receive.data.sges();
        self.regions
            .gather(sges, piece.offset.into(), piece.len.into(), asks, |span| {
                targets.push(span);
            })
            .map_err(Loss::Receive)?;
        let (from, mut done, mut late) = (Span::of(&part.bytes), 0, 0);
        for target in targets {
            late += self.touch_target(host, &target);
            late += self.place_late(host, target.in_memory());
            registered_memory::copy(target, from.part(done, target.len));
            done += target.len;
        }
        if let (_, Some(qp)) = &mut self.qps[index as usize]
            && let Some(inbound) = &mut qp.inbound
        {
            inbound.late += late;
        }
        Ok(())
    }
}
