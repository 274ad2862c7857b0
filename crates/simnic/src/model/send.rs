//! The send path: carries a request from its doorbell to the wire.

use headworks_verbs::{Access, QpState, QpType, SendOp, Status};

use super::acknowledge::timer_due;
use super::receiving_side::paced;
use super::{Event, Model, Piece, PieceKind, QpRef};
use crate::faults::FaultPoint;
use crate::hardware_units::Ps;
use crate::registered_memory::AccessRequest;
use crate::wqe::cache_key;

impl Model {
    /// Rings the doorbell for the requests before `upto`. The doorbell reaches the RNIC at time `at`, but not
    /// before this queue pair's earlier doorbells.
    ///
    /// A doorbell is quiet if it carries its one request (`Wqe::pushed`) and the request cache is unlimited. The
    /// RNIC then fetches and caches nothing, so the doorbell needs no event. Its time is noted in the request
    /// (`Wqe::known_at`) and checked when the queue pair has nothing else to send. Every other doorbell is an
    /// event.
    pub(crate) fn ring(&mut self, index: u32, at: Ps, upto: u64) {
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return;
        };
        // A request that comes with its doorbell must not overtake one that is being fetched.
        let at = at.max(qp.rings_at);
        qp.rings_at = at;
        let is_ready = qp.is_ready;
        let last = qp.sq.back_mut().filter(|wqe| wqe.pushed);
        let is_quiet = match last {
            Some(wqe) if self.hosts[qp.host as usize].requests.is_endless() => {
                wqe.known_at = at;
                true
            }
            _ => false,
        };
        let qp = qp.reference();
        if self.instrumentation.is_some() {
            self.trace_doorbell(qp, upto, at);
        }
        if !is_quiet {
            self.event_queue.put(at, Event::Doorbell { qp, upto });
        } else if !is_ready {
            self.call(index);
        }
    }

    /// Schedules an event for the next quiet doorbell. Called when the queue pair has nothing to send before it.
    fn call(&mut self, index: u32) {
        let now = self.now;
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return;
        };
        qp.note_progress(now);
        let next = qp.wqe(qp.rung.max(qp.first)).map(|wqe| wqe.known_at);
        if let Some(at) = next.filter(|at| *at < Ps::MAX)
            && !std::mem::replace(&mut qp.is_called, true)
        {
            let qp = qp.reference();
            self.event_queue.put(at, Event::Called { qp });
        }
    }

    /// Handles the event of a quiet doorbell.
    pub(super) fn called(&mut self, reference: QpRef) {
        if let Some(qp) = self.qp(reference) {
            qp.is_called = false;
            self.make_ready(reference.index);
        }
    }

    /// Handles a doorbell: fetches the requests before `upto` and queues the queue pair for its unit.
    pub(super) fn rung(&mut self, reference: QpRef, upto: u64) {
        let now = self.now;
        let Some(qp) = self.qp(reference) else {
            return;
        };
        qp.note_progress(now);
        let (host, from) = (qp.host as usize, qp.rung.max(qp.first));
        qp.rung = qp.rung.max(upto.min(qp.posted()));
        let to = qp.rung;
        let is_pushed = qp.wqe(from).is_some_and(|wqe| wqe.pushed);
        let state = &mut self.hosts[host];
        if !is_pushed && to > from {
            let bytes = (to - from) * self.preset.wqe_bytes;
            state.dma_in.carry(now, self.cost.read(bytes));
        }
        if !state.requests.is_endless() {
            for number in from..to {
                state.requests.touch(cache_key(reference.index, number));
            }
        }
        self.make_ready(reference.index);
    }

    /// Queues a queue pair for its unit, if it has something to send.
    #[inline]
    pub(super) fn make_ready(&mut self, index: u32) {
        let now = self.now;
        let Some(qp) = self.qps[index as usize].1.as_deref_mut() else {
            return;
        };
        if qp.is_ready || qp.paused {
            return;
        }
        if next(qp, now).is_none() {
            return self.call(index);
        }
        if qp.not_before > now {
            qp.paused = true;
            let (at, qp) = (qp.not_before, qp.reference());
            self.event_queue.put(at, Event::Resume { qp });
            return;
        }
        qp.is_ready = true;
        let (host, unit, reference) = (qp.host, qp.unit, qp.reference());
        self.hosts[host as usize].tx[unit]
            .ready
            .push_back(reference);
        self.send_on(host, unit);
    }

    /// Lets a sending unit serve its waiting queue pairs if it is idle. If it is busy, schedules an event for the
    /// time at which it is idle.
    pub(super) fn send_on(&mut self, host: u32, unit: usize) {
        loop {
            let state = &mut self.hosts[host as usize].tx[unit];
            if state.ready.is_empty() || state.awaited {
                return;
            }
            if state.free_at > self.now {
                state.awaited = true;
                let at = state.free_at;
                self.event_queue.put(at, Event::Idle { host, unit });
                return;
            }
            // A queue pair that was destroyed or reset while it waited is skipped.
            if let Some(reference) = state.ready.pop_front()
                && self.qp(reference).is_some()
            {
                self.label_request(reference.index);
                self.send_part(host, unit, reference.index);
            }
        }
    }

    /// Handles the event that a sending unit may be idle.
    pub(super) fn idle(&mut self, host: u32, unit: usize) {
        self.hosts[host as usize].tx[unit].awaited = false;
        self.send_on(host, unit);
    }

    /// Sends a part of the queue pair's next request.
    fn send_part(&mut self, host: u32, unit: usize, index: u32) {
        let now = self.now;
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return;
        };
        qp.is_ready = false;
        if qp.not_before > now {
            // An RNR NAK arrived while the queue pair waited for its turn.
            return self.make_ready(index);
        }
        let Some(number) = next(qp, now) else {
            return self.make_ready(index);
        };
        qp.rung = qp.rung.max(number + 1);
        let reference = qp.reference();
        let datagram = match qp.qp_type {
            QpType::Ud => match self.datagram(reference, number) {
                Ok(bytes) => Some(bytes),
                Err(status) => return self.fails_here(reference, number, status),
            },
            _ => None,
        };
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return;
        };
        let qp = &mut **qp;
        let cost = &self.cost;
        let state = &mut self.hosts[host as usize];
        let Some(wqe) = qp.sq.get_mut((number - qp.first) as usize) else {
            return;
        };
        let (mtu, offset, reads) = (qp.connection.mtu, qp.sent, wqe.reads());
        // A READ that is retransmitted asks only for what is missing.
        let returned = wqe.returned;
        let is_inline = wqe.data.bytes().is_some();
        let part = match reads {
            true => 0,
            false => (wqe.len - offset).min(cost.burst.saturating_mul(mtu)),
        };
        let packets = match part <= mtu {
            true => 1,
            false => part.div_ceil(mtu),
        };
        let last = reads || offset + part == wqe.len;

        // The unit stalls for whatever it needs that is not on the chip.
        let mut stall = 0;
        if !state.icm.touch(qp.context) {
            state.counters.icm_misses += 1;
            stall += cost.dma_read;
        }
        let refetched = !state.requests.touch(cache_key(index, number));
        if refetched {
            state.counters.wqe_misses += 1;
            stall += cost.dma_read;
        }
        if !is_inline {
            let pd = qp.pd;
            let sges = wqe.data.sges();
            let waits = match reads {
                // The translations of its targets are looked up when the response arrives.
                true => {
                    let access = Access::LOCAL_WRITE;
                    let asks = AccessRequest { pd, host, access };
                    let all = self.regions.gather(sges, 0, wqe.len.into(), asks, |_| {});
                    all.map(|()| 0)
                }
                false => {
                    let access = Access::NONE;
                    let asks = AccessRequest { pd, host, access };
                    let piece = (sges, offset, part);
                    state.look_up(&self.regions, piece, asks, refetched, cost.dma_read)
                }
            };
            match waits {
                Ok(waits) => stall += waits,
                Err(status) => return self.fails_here(reference, number, status),
            }
        }
        let work = match offset {
            0 => cost.tx + cost.packet * Ps::from(packets - 1),
            _ => cost.packet * Ps::from(packets),
        };
        let worked = now + stall + work;
        let packet = u64::from(part.min(mtu));
        let tail = u64::from(part) - packet * u64::from(packets - 1);
        let out = worked + cost.tx_latency;
        // Packets are pipelined: the first leaves while the others are still read.
        let (first_at, last_at) = match part > 0 && !is_inline {
            true => {
                let through = state.dma_in.carry(out, cost.read(part.into())) + cost.dma_read;
                let first = state.dma_in.time(cost.read(packet));
                (out + cost.dma_read + first, through)
            }
            false => (out, out),
        };
        let extra = match wqe.op {
            SendOp::Write(_) | SendOp::WriteImm(..) if offset == 0 => cost.reth,
            _ if reads => cost.reth,
            _ => 0,
        };
        let wire = u64::from(part) + cost.header * u64::from(packets) + extra;
        let held_until = match &state.receiving {
            Some(side) => side.held_until(qp.port),
            None => 0,
        };
        let link = &mut state.ports.get(qp.port).link_out;
        let last_at = last_at + link.time(tail + cost.header);
        let first_at = first_at.max(qp.gone_at).max(held_until);
        let gone = link.carry_through(first_at, wire, last_at);
        qp.gone_at = gone;
        // Packets that cannot leave fill the transmit buffer, and then the unit waits.
        let end = worked.max(gone.saturating_sub(cost.ahead));
        state.tx[unit].serve(now, worked - now);
        state.tx[unit].wait(end);
        state.counters.stalls += stall;
        state.counters.packets_out += u64::from(packets);
        state.counters.bytes_out += u64::from(part);
        let psn = wqe.psn + u64::from(if offset == 0 { 0 } else { offset / mtu });
        if last {
            state.counters.requests += 1;
            (qp.sending, qp.sent) = (number + 1, 0);
            qp.reads += u32::from(reads);
        } else {
            qp.sent = offset + part;
        }
        if qp.timer.is_none() && qp.connection.timeout > 0 && qp.qp_type.is_reliable() {
            qp.timer = Some(qp.last_progress);
            let due = timer_due(gone, qp.connection.timeout);
            self.event_queue.put(due, Event::Timeout { qp: reference });
        }
        if qp.dcqcn.is_some() {
            let next = paced(qp, self.receiving.as_deref(), now, wire);
            qp.not_before = qp.not_before.max(next);
        }
        // A queue pair that has more to send joins the queue of its unit again.
        let is_told_to_wait = qp.not_before > now;
        let goes_on = !is_told_to_wait && next(qp, now).is_some();
        if goes_on {
            qp.is_ready = true;
            state.tx[unit].ready.push_back(reference);
        }
        let (to_host, to_qpn) = (qp.connection.host, qp.connection.qpn);
        let (from_qpn, port, qp_type) = (qp.qpn, qp.port, qp.qp_type);
        let arrives = gone + cost.wire;
        match datagram {
            Some(bytes) => self.send_datagram(reference, bytes, gone),
            None => {
                let kind = match qp_type {
                    QpType::Uc => self
                        .unreliable_part(reference, number, (offset, part))
                        .map(PieceKind::Unreliable),
                    _ if reads => Some(PieceKind::ReadRequest),
                    _ => Some(PieceKind::Bytes),
                };
                if let Some(kind) = kind {
                    let piece = Piece {
                        from: reference,
                        to: QpRef { index: 0, life: 0 },
                        wqe: number,
                        psn,
                        offset: if reads { returned } else { offset },
                        len: part,
                        packets: packets as u16,
                        kind,
                        last,
                        port,
                        received: 0,
                    };
                    let sender = (host, from_qpn, qp_type);
                    self.launch(piece, sender, (to_host, to_qpn), arrives);
                }
                if last && qp_type == QpType::Uc {
                    self.end_unreliable(reference, gone);
                }
            }
        }
        if is_told_to_wait {
            self.make_ready(index);
        } else if !goes_on {
            self.call(index);
        }
    }

    /// Sends a piece to queue pair `qpn` of `host`. The piece is lost if that queue pair does not exist, is not connected
    /// to the sender, or has another transport.
    fn launch(
        &mut self,
        mut piece: Piece,
        (from_host, from_qpn, from_type): (u32, u32, QpType),
        (host, qpn): (Option<u32>, u32),
        arrives: Ps,
    ) {
        if let Some(host) = host
            && let Some(there) = self.qp_of(host, qpn)
            && there.connection.host == Some(from_host)
            && there.connection.qpn == from_qpn
            && there.qp_type == from_type
        {
            piece.to = there.reference();
            let from = piece.from;
            if let Some(at) =
                self.arrival_of_packets(FaultPoint::Packets, from, host, piece.packets, arrives)
            {
                self.put_arrival(at, piece);
            }
        }
    }

    /// Fails a request that is invalid on this side, once the requests before it are done.
    #[cold]
    #[inline(never)]
    fn fails_here(&mut self, reference: QpRef, number: u64, status: Status) {
        let Some(qp) = self.qp(reference) else {
            return;
        };
        if qp.first == number {
            self.end_first(reference.index, status);
        } else {
            qp.failing = Some((number, status));
        }
    }
}

/// Returns the number of the request of which the queue pair can send a part now; `None` if it can send
/// nothing.
#[inline(always)]
fn next(qp: &mut super::Qp, now: Ps) -> Option<u64> {
    loop {
        let number = qp.sending;
        let sends = qp.state == QpState::Rts || (qp.state == QpState::Sqd && qp.drains_to > number);
        let (reads, most, begun) = (qp.reads, qp.connection.max_reads, qp.sent > 0);
        let stops = qp.failing.is_some_and(|(wrong, _)| number >= wrong);
        let is_rung = number < qp.rung;
        let wqe = qp.wqe(number)?;
        if wqe.answered && !begun {
            // This request was to be retransmitted, but its response arrived meanwhile.
            qp.sending += 1;
            continue;
        }
        let is_known = is_rung || wqe.known_at <= now;
        let is_held = wqe.waits && ((wqe.reads() && reads >= most) || (wqe.fenced && reads > 0));
        return (sends && is_known && !stops && !is_held).then_some(number);
    }
}
