//! Datagrams: unconnected, unacknowledged, and dropped if nobody can receive them.

use std::collections::HashMap;

use headworks_verbs::{
    Access, AhInit, Completion, CompletionFlags, Destination, GRH_BYTES, Grh, Opcode, QpState,
    QpType, Qpn, SendOp, Status,
};

use super::queues::NewCompletion;
use super::{Model, Piece, PieceKind, QpRef};
use crate::faults::FaultPoint;
use crate::hardware_units::Ps;
use crate::registered_memory::{self, AccessRequest, Span};
use crate::wqe::Wqe;

/// The address handles of all hosts, by key.
#[derive(Default)]
pub(crate) struct AddressHandles {
    live: HashMap<u32, (u32, AhInit)>,
    last: u32,
}

impl AddressHandles {
    /// Adds an address handle of a protection domain. Returns its key.
    pub(crate) fn enter(&mut self, pd: u32, init: &AhInit) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.live.contains_key(&self.last) {
                self.live.insert(self.last, (pd, *init));
                return self.last;
            }
        }
    }

    pub(crate) fn leave(&mut self, key: u32) {
        self.live.remove(&key);
    }

    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    fn get(&self, key: u32, pd: u32) -> Option<AhInit> {
        let (of, init) = self.live.get(&key)?;
        (*of == pd).then_some(*init)
    }
}

/// Contents of a datagram under way.
#[derive(Debug)]
pub(crate) struct DatagramHeader {
    /// GRH and payload, as they go to memory.
    pub(super) bytes: Box<[u8]>,
    qkey: u32,
    from: Qpn,
    imm: Option<u32>,
    solicited: bool,
}

/// Returns the destination of a datagram request.
fn destination(op: SendOp) -> Option<Destination> {
    match op {
        SendOp::SendTo(to) | SendOp::SendToImm(to, _) => Some(to),
        _ => None,
    }
}

impl Model {
    /// Returns a datagram's GRH and payload; `None` if it is not
    /// sent. An error is the status that the request ends with.
    #[inline(never)]
    pub(super) fn datagram(&mut self, qp: QpRef, number: u64) -> Result<Option<Box<[u8]>>, Status> {
        let (hosts, regions) = (&self.hosts, &self.regions);
        let Some((_, Some(qp))) = self.qps.get_mut(qp.index as usize) else {
            return Ok(None);
        };
        let (pd, host, mtu) = (qp.pd, qp.host, self.preset.mtu_bytes as u32);
        let Some(wqe) = qp.wqe(number) else {
            return Ok(None);
        };
        let to = destination(wqe.op).ok_or(Status::LocalQpOperation)?;
        let ah = self
            .handles
            .get(to.ah.0, pd)
            .ok_or(Status::LocalQpOperation)?;
        // C10-93.1.1: no packet of a message longer than the port's MTU is sent, and this is no error.
        if wqe.len > mtu {
            return Ok(None);
        }
        let sgid = hosts[host as usize].gid;
        let header = Grh::of_datagram(&ah, sgid, wqe.len.into(), wqe.imm().is_some());
        let mut bytes = Vec::with_capacity(GRH_BYTES + wqe.len as usize);
        bytes.extend_from_slice(&header.emit());
        bytes.resize(GRH_BYTES + wqe.len as usize, 0);
        copy_payload(wqe, regions, (pd, host), &mut bytes[GRH_BYTES..])?;
        Ok(Some(bytes.into()))
    }

    /// Completes the request of a datagram that has left, and sends the datagram to its destination.
    #[inline(never)]
    pub(super) fn send_datagram(&mut self, from: QpRef, bytes: Option<Box<[u8]>>, gone: Ps) {
        let Some(wqe) = self.end_unreliable(from, gone) else {
            return;
        };
        let Some(qp) = self.qp(from) else {
            return;
        };
        let (pd, own_key) = (qp.pd, qp.connection.qkey);
        let (index, qpn, port) = (qp.index, qp.qpn, qp.port);
        let Some(bytes) = bytes else {
            return;
        };
        let Some(to) = destination(wqe.op) else {
            return;
        };
        let Some(ah) = self.handles.get(to.ah.0, pd) else {
            return;
        };
        let there = self.hosts.iter().position(|host| host.gid == ah.dgid);
        let there = there.and_then(|host| self.qp_of(host as u32, to.qpn.raw()));
        let Some(there) = there.filter(|qp| qp.qp_type == QpType::Ud) else {
            return;
        };
        // If its highest bit is set, the sender's own Q_Key is used (10.2.5).
        let qkey = match to.qkey >> 31 {
            0 => to.qkey,
            _ => own_key,
        };
        let host_there = there.host;
        let piece = Piece {
            from: QpRef {
                index,
                life: from.life,
            },
            to: there.reference(),
            wqe: 0,
            psn: 0,
            offset: 0,
            len: wqe.len,
            packets: 1,
            kind: PieceKind::Datagram(Box::new(DatagramHeader {
                bytes,
                qkey,
                from: Qpn::new(qpn).unwrap_or_default(),
                imm: wqe.imm(),
                solicited: wqe.solicited,
            })),
            last: true,
            port,
            received: 0,
        };
        let arrives = gone + self.cost.wire;
        if let Some(at) = self.arrival_of_packets(FaultPoint::Packets, from, host_there, 1, arrives)
        {
            self.put_arrival(at, piece);
        }
    }

    /// Handles an arriving datagram: places it in a receive, or drops it.
    pub(super) fn take_datagram(&mut self, piece: Piece) {
        let PieceKind::Datagram(label) = &piece.kind else {
            return;
        };
        let bytes = &label.bytes[..];
        let Some(qp) = self.qp(piece.to) else {
            return;
        };
        let (index, pd, host, cq) = (qp.index, qp.pd, qp.host, qp.recv_cq);
        let reference = (qp.reference(), qp.qpn);
        if !qp.state.can_receive() || qp.connection.qkey != label.qkey {
            return;
        }
        let len = bytes.len() as u64;
        // A receive that is too short is left for the next datagram (class D of 9.9.3).
        let first = qp.receives.queue.front();
        if qp.srq.is_none() && first.is_none_or(|receive| receive.room() < len) {
            return;
        }
        let Some(receive) = self.take_receive(index) else {
            return;
        };
        let asks = AccessRequest {
            pd,
            host,
            access: Access::LOCAL_WRITE,
        };
        let from = Span::of(bytes);
        let mut targets = Vec::with_capacity(2);
        let placed = match receive.room() < len {
            // A receive of an SRQ that is too short ends with this error; its queue pair goes on (class E).
            true => Err(Status::LocalLength),
            false => self
                .regions
                .gather(receive.data.sges(), 0, len, asks, |span| targets.push(span)),
        };
        let (mut done, mut late) = (0, 0);
        if placed.is_ok() {
            for target in targets {
                late += self.touch_target(host, &target);
                late += self.place_late(host, target.in_memory());
                registered_memory::copy(target, from.part(done, target.len));
                done += target.len;
            }
        }
        let status = placed.err().unwrap_or(Status::Success);
        let ends = NewCompletion {
            completion: Completion {
                wr_id: receive.wr_id,
                status,
                opcode: Opcode::Recv,
                byte_len: len as u32,
                imm: label.imm,
                src_qpn: label.from,
                flags: CompletionFlags {
                    grh: true,
                    ..CompletionFlags::default()
                },
                ..Completion::default()
            },
            solicited: label.solicited,
            retires: receive.position,
        };
        let at = self.now + self.cost.dma_write + late;
        self.complete(cq, reference, at, ends);
        self.note_change(host, at);
        if status == Status::LocalProtection {
            self.fail(index, true);
        }
    }

    /// Moves an unreliable queue pair that cannot send a message to SQE: it sends no more, but still receives.
    pub(super) fn stop_sending(&mut self, index: u32) {
        let at = self.now + self.cost.dma_write;
        if let (_, Some(qp)) = &mut self.qps[index as usize]
            && matches!(qp.state, QpState::Rts | QpState::Sqd)
        {
            qp.state = QpState::Sqe;
            self.flush_sends(index, at);
        }
    }
}

/// Copies a request's payload to `to`.
fn copy_payload(
    wqe: &Wqe,
    regions: &registered_memory::Regions,
    (pd, host): (u32, u32),
    to: &mut [u8],
) -> Result<(), Status> {
    if let Some(bytes) = wqe.data.bytes() {
        to.copy_from_slice(bytes);
        return Ok(());
    }
    let asks = AccessRequest {
        pd,
        host,
        access: Access::NONE,
    };
    let target = Span::of_mut(to);
    let mut done = 0;
    regions.gather(wqe.data.sges(), 0, u64::from(wqe.len), asks, |span| {
        registered_memory::copy(target.part(done, span.len), span);
        done += span.len;
    })
}
