//! Responses to READs and atomics. A queue pair sends its responses
//! one after the other, in parts, as fast as the link takes them.

use headworks_verbs::{Access, RemoteAddr, Status};

use super::receiving_side::paced;
use super::{Acknowledge, Event, Model, Piece, PieceKind, QpRef};
use crate::faults::FaultPoint;
use crate::hardware_units::Ps;
use crate::registered_memory::{self, AccessRequest, Span};

/// The READ or atomic that a response belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadRequest {
    /// The queue pair that asked.
    pub(super) from: QpRef,
    /// Number of its request.
    pub(super) wqe: u64,
    pub(super) psn: u64,
}

/// Source of a response's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum ResponseSource {
    /// The value that an atomic found.
    Value(u64),
    /// Memory from this address on, read when each part is sent.
    At(RemoteAddr),
}

/// A response that is being sent or waits for earlier ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    read_request: ReadRequest,
    found: ResponseSource,
    len: u32,
    /// Number of bytes sent.
    offset: u32,
    /// Earliest time of its first part.
    ready: Ps,
}

impl Response {
    pub(super) fn new(
        read_request: ReadRequest,
        found: ResponseSource,
        (offset, len): (u32, u32),
        ready: Ps,
    ) -> Self {
        Self {
            read_request,
            found,
            len,
            offset,
            ready,
        }
    }

    /// Returns the queue pair that asked, and the number of its request.
    pub(super) fn asked(&self) -> (QpRef, u64) {
        (self.read_request.from, self.read_request.wqe)
    }
}

impl Model {
    /// Queues a response behind those that the queue pair still has to send.
    pub(super) fn queue_response(&mut self, to: QpRef, response: Response) {
        let (now, ahead) = (self.now, self.cost.ahead);
        let Some(qp) = self.qp(to) else {
            return;
        };
        let same = |other: &Response| other.read_request == response.read_request;
        if let Some(queued) = qp.responses.iter_mut().find(|other| same(other)) {
            // A duplicate request, whose response is still queued. It goes back to the first part that is missing.
            queued.offset = queued.offset.min(response.offset);
            return;
        }
        qp.responses.push_back(response);
        if qp.responses.len() == 1 {
            // Bytes are read while earlier packets wait for the link, as far as the transmit buffer has room.
            let at = response.ready.max(qp.answered_at.saturating_sub(ahead));
            let at = at.max(qp.dcqcn.as_ref().map_or(0, |dcqcn| dcqcn.next_at()));
            self.event_queue.put(at.max(now), Event::Respond { qp: to });
        }
    }

    /// Sends the next part of the first response.
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
        let port = qp.port;
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
        let held_until = match &state.receiving {
            Some(side) => side.held_until(port),
            None => 0,
        };
        let link = &mut state.ports.get(port).link_out;
        let last_at = last_at + link.time(tail + cost.header);
        // It leaves after the queue pair's earlier responses.
        let last_at = last_at.max(answered);
        let gone = link.carry_through(first_at.max(held_until), wire, last_at);
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
            port,
            received: 0,
        };
        let back = self.qp(from).map_or(0, |qp| qp.host);
        if let Some(at) =
            self.arrival_of_packets(FaultPoint::Packets, to, back, packets as u16, arrives)
        {
            self.put_arrival(at, part);
        }
        let (_, Some(qp)) = &mut self.qps[to.index as usize] else {
            return;
        };
        let paced_until = match qp.dcqcn.is_some() {
            true => paced(qp, self.receiving.as_deref(), now, wire),
            false => 0,
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
            let at = at.max(paced_until);
            self.event_queue.put(at, Event::Respond { qp: to });
        }
    }

    /// Returns the next bytes of a response, and the time that looking up their translations takes; `None` if
    /// the memory may not be read any more.
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

    /// Refuses a READ whose memory was deregistered meanwhile, and fails the queue pair.
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
            // This piece is only answered; it is not sent.
            port: 0,
            received: self.now,
        };
        let refused = Acknowledge::Nak(Status::RemoteAccess);
        self.send_acknowledge(&piece, read_request.psn, refused);
        self.fail_silently(to.index);
    }
}
