//! What a READ or an atomic brings: it goes back in parts, as the link takes them, one answer of a queue pair after
//! the other.

use headworks_verbs::{Access, RemoteAddr, Status};

use super::{Acknowledge, Event, Model, Piece, PieceKind, QpRef};
use crate::faults::FaultPoint;
use crate::hardware_units::Ps;
use crate::registered_memory::{self, AccessRequest, Span};

/// Whose question it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadRequest {
    /// Who asked.
    pub(super) from: QpRef,
    /// Which request of its.
    pub(super) wqe: u64,
    pub(super) psn: u64,
}

/// What is to go back.
#[derive(Clone, Copy, Debug)]
pub(super) enum ResponseSource {
    /// What an atomic found.
    Value(u64),
    /// What is in memory from there on, read when it goes.
    At(RemoteAddr),
}

/// An answer that goes, or that waits for those before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    read_request: ReadRequest,
    found: ResponseSource,
    len: u32,
    /// What of it has gone.
    offset: u32,
    /// Not before this.
    ready: Ps,
}

impl Response {
    pub(super) fn new(
        read_request: ReadRequest,
        found: ResponseSource,
        len: u32,
        ready: Ps,
    ) -> Self {
        Self {
            read_request,
            found,
            len,
            offset: 0,
            ready,
        }
    }

    /// Who asked, and by which request.
    pub(super) fn asked(&self) -> (QpRef, u64) {
        (self.read_request.from, self.read_request.wqe)
    }
}

impl Model {
    /// An answer goes after those that a queue pair still has to give.
    pub(super) fn queue_response(&mut self, to: QpRef, response: Response) {
        let (now, ahead) = (self.now, self.cost.ahead);
        let Some(qp) = self.qp(to) else {
            return;
        };
        let same = |other: &Response| other.read_request == response.read_request;
        if qp.responses.iter().any(same) {
            // It was asked for again before it was all gone.
            return;
        }
        qp.responses.push_back(response);
        if qp.responses.len() == 1 {
            // Bytes are read while those before them wait for the link, as many as the buffer has room for.
            let at = response.ready.max(qp.answered_at.saturating_sub(ahead));
            self.event_queue.put(at.max(now), Event::Respond { qp: to });
        }
    }

    /// The next part of the first answer goes.
    pub(super) fn respond(&mut self, to: QpRef) {
        let now = self.now;
        let most = self.cost.burst;
        let Some(qp) = self.qp(to) else {
            return;
        };
        let Some(response) = qp.responses.front().copied() else {
            return;
        };
        let (host, pd, mtu, answered) = (qp.host, qp.pd, qp.connection.mtu, qp.answered_at);
        let len = (response.len - response.offset).min(most.saturating_mul(mtu));
        let asks = AccessRequest {
            pd,
            host,
            access: Access::REMOTE_READ,
        };
        let Some((bytes, stall)) = self.found(&response, len, asks) else {
            return self.refuse_read_request(to, response.read_request);
        };
        let is_value = matches!(response.found, ResponseSource::Value(_));
        let last = response.offset + len == response.len;
        let packets = len.div_ceil(mtu).max(1);
        let cost = &self.cost;
        let state = &mut self.hosts[host as usize];
        let out = now + stall + cost.tx_latency;
        let tail = u64::from(len) - u64::from(mtu) * u64::from(packets - 1);
        let (first_at, last_at) = match is_value || len == 0 {
            true => (out, out),
            false => {
                let through = state.dma_in.carry(out, cost.read(len.into())) + cost.dma_read;
                let first = cost.read(len.min(mtu).into());
                (out + cost.dma_read + state.dma_in.time(first), through)
            }
        };
        let wire = u64::from(len) + cost.header * u64::from(packets);
        let last_at = last_at + state.link_out.time(tail + cost.header);
        // What was answered before left before.
        let gone = state
            .link_out
            .carry_through(first_at, wire, last_at.max(answered));
        state.counters.packets_out += u64::from(packets);
        state.counters.bytes_out += u64::from(len);
        let (arrives, ahead) = (gone + cost.wire, cost.ahead);
        let ReadRequest { from, wqe, psn } = response.read_request;
        let part = Piece {
            from: to,
            to: from,
            wqe,
            psn: psn + u64::from(response.offset / mtu),
            offset: response.offset,
            len,
            packets: packets as u16,
            kind: PieceKind::Response(bytes),
            last,
            received: 0,
        };
        let back = self.qp(from).map_or(0, |qp| qp.host);
        if let Some(at) =
            self.arrival_of_packets(FaultPoint::Packets, to, back, packets as u16, arrives)
        {
            self.put_arrival(at, part);
        }
        let Some(qp) = self.qp(to) else {
            return;
        };
        qp.answered_at = gone;
        match qp.responses.front_mut() {
            Some(front) if !last => front.offset += len,
            _ => {
                qp.responses.pop_front();
            }
        }
        if let Some(next) = qp.responses.front() {
            let at = next.ready.max(gone.saturating_sub(ahead)).max(now);
            self.event_queue.put(at, Event::Respond { qp: to });
        }
    }

    /// The next bytes of an answer, and what looking up where they are takes; `None` where they may not be read any
    /// more.
    fn found(
        &mut self,
        response: &Response,
        len: u32,
        asks: AccessRequest,
    ) -> Option<(Box<[u8]>, Ps)> {
        let remote = match response.found {
            ResponseSource::Value(old) => return Some((Box::new(old.to_ne_bytes()), 0)),
            ResponseSource::At(remote) => remote,
        };
        let mut bytes = vec![0; len as usize].into_boxed_slice();
        if len == 0 {
            return Some((bytes, 0));
        }
        let addr = remote.addr.wrapping_add(response.offset.into());
        let from = self.regions.find(remote.rkey, addr, len.into(), asks)?;
        registered_memory::copy(Span::of_mut(&mut bytes), from);
        Some((bytes, self.touch_target(asks.host, &from)))
    }

    /// Its memory is gone.
    fn refuse_read_request(&mut self, to: QpRef, read_request: ReadRequest) {
        let piece = Piece {
            from: read_request.from,
            to,
            wqe: read_request.wqe,
            psn: read_request.psn,
            offset: 0,
            len: 0,
            packets: 0,
            kind: PieceKind::ReadRequest,
            last: true,
            received: self.now,
        };
        let refused = Acknowledge::Nak(Status::RemoteAccess);
        self.send_acknowledge(&piece, read_request.psn, refused);
        self.fail_silently(to.index);
    }
}
