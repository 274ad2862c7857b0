//! Acknowledgements, retries, and the end of a request.

use headworks_verbs::{Opcode, QpState, Status};

use super::queues::NewCompletion;
use super::{Acknowledge, Event, Model, Piece, QpRef};
use crate::faults::FaultPoint;
use crate::hardware_units::{NS, Ps};
use crate::wqe::cache_key;

/// Returns the time at which an acknowledgement is overdue.
pub(super) fn timer_due(gone: Ps, timeout: Ps) -> Ps {
    gone.saturating_add(timeout)
}

impl Model {
    /// Sends an acknowledgement or a NAK for packets.
    pub(super) fn send_acknowledge(&mut self, piece: &Piece, psn: u64, answer: Acknowledge) {
        let (_, Some(qp)) = &mut self.qps[piece.to.index as usize] else {
            return;
        };
        if qp.life != piece.to.life || !qp.qp_type.is_reliable() {
            return;
        }
        let at = (piece.received + self.cost.ack).max(qp.answered_at);
        // It does not queue for the link, because it fits between other packets.
        let gone = at + self.cost.ack_time;
        qp.answered_at = gone;
        let mut arrives = gone + self.cost.wire;
        let qp = piece.from;
        if self.faults.is_some() {
            let Some(to) = self.qp(qp).map(|qp| qp.host) else {
                return;
            };
            let to = self.arrival_of_packets(
                FaultPoint::Acknowledge,
                piece.to,
                to,
                1,
                arrives.max(self.now),
            );
            match to {
                Some(at) => arrives = at,
                None => return,
            }
        }
        // It must not arrive before the bytes are placed, which is now.
        match arrives > self.now {
            true => self
                .event_queue
                .put(arrives, Event::Acknowledge { qp, psn, answer }),
            false => self.on_acknowledge(qp, psn, answer),
        }
    }

    /// Handles an acknowledgement or a NAK at the requester.
    pub(super) fn on_acknowledge(&mut self, reference: QpRef, psn: u64, answer: Acknowledge) {
        let now = self.now;
        let index = reference.index;
        let Some(qp) = self.qp(reference) else {
            return;
        };
        if qp.state == QpState::Error {
            return;
        }
        let host = qp.host;
        if psn > qp.acked {
            qp.acked = psn;
            (qp.retries, qp.rnr_tries) = (0, 0);
            qp.last_progress += 1;
        } else if matches!(answer, Acknowledge::SequenceNak | Acknowledge::RnrNak(_)) {
            // A NAK for packets that were acknowledged since is stale.
            if psn < qp.acked {
                return;
            }
            qp.last_progress += 1;
            qp.retries = 0;
        }
        match answer {
            Acknowledge::Ack => {}
            Acknowledge::SequenceNak => self.retransmit(index, psn),
            Acknowledge::RnrNak(pause) => {
                let (_, Some(qp)) = &mut self.qps[index as usize] else {
                    return;
                };
                self.hosts[host as usize].counters.not_ready += 1;
                if qp.connection.rnr_retry != 7 && qp.rnr_tries >= qp.connection.rnr_retry {
                    return self.end_refused(index, psn, Status::RnrRetryExceeded);
                }
                qp.rnr_tries = qp.rnr_tries.saturating_add(1);
                qp.not_before = now + Ps::from(pause) * NS;
                qp.rnr += 1;
                self.retransmit(index, psn);
            }
            Acknowledge::Nak(status) => return self.end_refused(index, psn, status),
        }
        self.end_requests(index);
        self.make_ready(index);
    }

    /// Ends a pause after an RNR NAK.
    pub(super) fn resume(&mut self, reference: QpRef) {
        let Some(qp) = self.qp(reference) else {
            return;
        };
        qp.paused = false;
        self.make_ready(reference.index);
    }

    /// Goes back to this packet: everything from it on is sent again.
    pub(super) fn retransmit(&mut self, index: u32, psn: u64) {
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return;
        };
        let (sending, host) = (qp.sending, qp.host as usize);
        let at = qp.sq.iter().position(|wqe| wqe.end() > psn);
        let Some(at) = at else {
            return;
        };
        let number = qp.first + at as u64;
        let mtu = qp.connection.mtu;
        if number > sending {
            return;
        }
        let wqe = &qp.sq[at];
        let within = match wqe.reads() {
            true => 0,
            false => (psn.saturating_sub(wqe.psn) as u32).saturating_mul(mtu),
        };
        let mut again = 0;
        for wqe in qp.sq.iter().skip(at).take((sending - number) as usize) {
            if wqe.reads() && !wqe.answered {
                qp.reads = qp.reads.saturating_sub(1);
            }
            again += u64::from(wqe.packets);
        }
        (qp.sending, qp.sent) = (number, within);
        self.hosts[host].counters.sent_again += again;
    }

    /// Checks whether an acknowledgement is overdue.
    pub(super) fn on_timeout(&mut self, reference: QpRef) {
        let now = self.now;
        let Some(qp) = self.qp(reference) else {
            return;
        };
        let Some(then) = qp.timer.take() else {
            return;
        };
        let index = qp.index;
        let under_way = qp.sending > qp.first || qp.sent > 0;
        // Sending a long message may take longer than the timeout.
        let is_sent = qp.sending > qp.first;
        if !under_way || qp.state == QpState::Error {
            return;
        }
        if qp.last_progress > then || qp.not_before > now || !is_sent {
            qp.timer = Some(qp.last_progress);
            let due = timer_due(now, qp.connection.timeout);
            self.event_queue.put(due, Event::Timeout { qp: reference });
            return;
        }
        if qp.retries >= qp.connection.retry_count {
            return self.end_first(index, Status::RetryExceeded);
        }
        qp.retries += 1;
        qp.timer = Some(qp.last_progress);
        // A READ's response may be lost although packets behind its request are acknowledged.
        let asks = qp.sq.front().filter(|wqe| wqe.reads());
        let psn = asks.map_or(qp.acked, |wqe| wqe.psn.min(qp.acked));
        let due = timer_due(now, qp.connection.timeout);
        self.event_queue.put(due, Event::Timeout { qp: reference });
        self.retransmit(index, psn);
        self.make_ready(index);
    }

    /// Ends requests that are acknowledged, in order.
    pub(super) fn end_requests(&mut self, index: u32) {
        let at = self.now + self.cost.dma_write;
        self.end_requests_at(index, at);
    }

    /// Ends requests that are acknowledged, in order. Their completions become visible `at`.
    pub(super) fn end_requests_at(&mut self, index: u32, at: Ps) {
        loop {
            let (_, Some(qp)) = &mut self.qps[index as usize] else {
                return;
            };
            if let Some((number, status)) = qp.failing
                && number == qp.first
            {
                qp.failing = None;
                return self.end_first(index, status);
            }
            let acked = qp.acked;
            let Some(wqe) = qp.sq.front() else {
                return;
            };
            let done = match wqe.reads() {
                true => wqe.answered,
                false => wqe.end() <= acked,
            };
            if !done || qp.first >= qp.rung {
                return;
            }
            match wqe.opcode() {
                Opcode::Send | Opcode::Write => qp.sent_bytes += u64::from(wqe.len),
                _ => qp.read_bytes += u64::from(wqe.len),
            }
            let number = qp.first;
            qp.first += 1;
            let ends = wqe
                .signaled
                .then(|| NewCompletion::of(wqe, Status::Success, qp.first));
            qp.sq.pop_front();
            if qp.sending < qp.first {
                // This request was being retransmitted.
                (qp.sending, qp.sent) = (qp.first, 0);
            }
            let (cq, reference) = (qp.send_cq, (qp.reference(), qp.qpn));
            // The RNIC looks up a request once more when it ends, and must fetch it if it has left the chip.
            let state = &mut self.hosts[qp.host as usize];
            let mut at = at;
            if !state.requests.forget(cache_key(index, number)) {
                let read = self.cost.dma_read;
                state.counters.wqe_misses += 1;
                state.counters.stalls += read;
                at += state.tx[qp.unit].serve(self.now, read) - self.now;
            }
            if let Some(ends) = ends {
                self.complete(cq, reference, at, ends);
            }
        }
    }

    /// Fails the request of a refused packet, and its queue pair with it. The requests before it end first;
    /// some may be READs that still wait for the rest of their responses.
    fn end_refused(&mut self, index: u32, psn: u64, status: Status) {
        self.end_requests(index);
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return;
        };
        if let Some(at) = qp.sq.iter().position(|wqe| wqe.end() > psn) {
            let number = qp.first + at as u64;
            self.end_request(index, number, status);
        }
    }

    /// Fails the first request, and its queue pair with it.
    pub(super) fn end_first(&mut self, index: u32, status: Status) {
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return;
        };
        let number = qp.first;
        self.end_request(index, number, status);
    }

    /// Fails a request, and its queue pair with it. On an unreliable one, UC or UD, only sending stops.
    pub(super) fn end_request(&mut self, index: u32, number: u64, status: Status) {
        let at = self.now + self.cost.dma_write;
        let (_, Some(qp)) = &mut self.qps[index as usize] else {
            return;
        };
        if number != qp.first {
            // The requests before it must end first.
            qp.failing = Some((number, status));
            return;
        }
        let (cq, reference) = (qp.send_cq, (qp.reference(), qp.qpn));
        let host = qp.host as usize;
        let is_reliable = qp.qp_type.is_reliable();
        if let Some(wqe) = qp.sq.pop_front() {
            qp.first += 1;
            let retires = qp.first;
            self.hosts[host].requests.forget(cache_key(index, number));
            let ends = NewCompletion::of(&wqe, status, retires);
            self.complete(cq, reference, at, ends);
        }
        match is_reliable {
            true => self.fail_silently(index),
            false => self.stop_sending(index),
        }
    }
}
