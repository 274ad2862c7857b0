//! Queue pairs, completion queues and receives: their state.

use std::collections::VecDeque;

use headworks_verbs::{
    Access, AsyncEvent, Completion, Opcode, QpCaps, QpState, QpType, Qpn, SrqId, Status,
};

use super::read_response::Response;
use super::{Event, Model, QpRef};
use crate::completion_channel::SimChannel;
use crate::congestion::dcqcn::Dcqcn;
use crate::hardware_units::Ps;
use crate::wqe::{ReceiveWqe, Wqe, cache_key};

/// Extra time of an empty poll outside of a world.
const IDLE: Ps = 1_000 * crate::hardware_units::NS;

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) index: u32,
    /// Part of its [`QpRef`]; a reset changes it, and packets for an earlier value are dropped.
    pub(crate) life: u32,
    pub(crate) qpn: u32,
    /// Index of the host's sending unit that serves it.
    pub(crate) unit: usize,
    /// Index of the host's port that it sends by.
    pub(crate) port: u8,
    /// Number of its context on the host.
    pub(crate) context: u64,
    pub(crate) host: u32,
    pub(crate) pd: u32,
    pub(crate) qp_type: QpType,
    pub(crate) state: QpState,
    pub(crate) caps: QpCaps,
    pub(crate) signal_all: bool,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<u32>,
    pub(crate) connection: QpConnection,

    /// Requests that are not done, and the number of the first.
    pub(crate) sq: VecDeque<Wqe>,
    pub(crate) first: u64,
    /// Requests before this number are known to the RNIC, as of the last look ([`Qp::note_progress`]).
    pub(crate) rung: u64,
    /// Time at which the last doorbell reaches the RNIC.
    pub(crate) rings_at: Ps,
    /// Whether an event is scheduled for the first quiet doorbell.
    pub(crate) is_called: bool,
    /// Requests before this number occupy no slot any more: a completion that covers them was polled.
    pub(crate) retired: u64,
    /// Number of the next request to send, and how many of its bytes were sent.
    pub(crate) sending: u64,
    pub(crate) sent: u32,
    pub(crate) next_psn: u64,
    /// Time at which its last packet has left; its packets leave in order.
    pub(crate) gone_at: Ps,
    /// Packets before this sequence number are acknowledged.
    pub(crate) acked: u64,
    /// Number of READs and atomics under way.
    pub(crate) reads: u32,
    /// A request that is invalid on this side, and its status. It fails once those before it are done.
    pub(crate) failing: Option<(u64, Status)>,
    /// In SQD: requests before this number were under way and are still sent.
    pub(crate) drains_to: u64,
    /// Whether it is queued for its unit.
    pub(crate) is_ready: bool,
    /// Earliest time of the next send, set by an RNR NAK.
    pub(crate) not_before: Ps,
    pub(crate) paused: bool,
    /// Its rate, once it was notified of congestion.
    pub(crate) dcqcn: Option<Box<Dcqcn>>,
    /// Earliest time at which its peer may be notified of congestion again.
    pub(crate) may_notify_at: Ps,
    pub(crate) retries: u8,
    pub(crate) rnr_tries: u8,
    /// The READ or atomic whose response was last found to have a gap, and the number of bytes before the gap.
    pub(crate) missed: Option<(u64, u32)>,
    /// Number of answers from the peer that showed progress.
    pub(crate) last_progress: u64,
    /// Value of `last_progress` when the timeout was set; `None` if no timeout is set.
    pub(crate) timer: Option<u64>,

    pub(crate) receives: Receives,
    /// The incoming message and its receive.
    pub(crate) inbound: Option<IncomingMessage>,
    pub(crate) expected: u64,
    /// Whether a NAK for missing packets was sent.
    pub(crate) gap_reported: bool,
    /// Times at which its last packets were received, their bytes were placed, and its last answer left.
    pub(crate) received_at: Ps,
    pub(crate) placed_at: Ps,
    pub(crate) answered_at: Ps,
    /// Sequence numbers and results of the last atomics, for duplicates.
    pub(crate) answers: VecDeque<(u64, u64)>,
    /// Responses to the peer's READs and atomics that are not completely sent.
    pub(crate) responses: VecDeque<Response>,
    /// Whether [`AsyncEvent::QpLastWqe`] was raised.
    pub(crate) settled: bool,
    pub(crate) events: u64,
    pub(crate) rnr: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) read_bytes: u64,
}

/// A queue pair's peer and the attributes of its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpConnection {
    pub(crate) access: Access,
    pub(crate) host: Option<u32>,
    pub(crate) qpn: u32,
    pub(crate) mtu: u32,
    pub(crate) max_reads: u32,
    pub(crate) max_dest_reads: u32,
    pub(crate) min_rnr: Ps,
    /// 0 means no timeout.
    pub(crate) timeout: Ps,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) qkey: u32,
}

/// An incoming message.
pub(crate) struct IncomingMessage {
    pub(crate) receive: Option<ReceiveWqe>,
    pub(crate) received: u32,
    /// Time that the lookups of its targets took.
    pub(crate) late: Ps,
}

/// Receives posted to a queue pair.
#[derive(Default)]
pub(crate) struct Receives {
    pub(crate) queue: VecDeque<ReceiveWqe>,
    pub(crate) posted: u64,
    pub(crate) retired: u64,
}

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) host: u32,
    /// Number of the device opening that made it.
    pub(crate) opened: u32,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) pd: u32,
    pub(crate) queue: VecDeque<ReceiveWqe>,
    pub(crate) limit: u32,
}

/// A completion in its queue.
pub(crate) struct Cqe {
    pub(crate) completion: Completion,
    pub(crate) at: Ps,
    pub(crate) qp: QpRef,
    /// Whether it wakes a queue that is armed for solicited
    /// completions only: it was solicited or is an error.
    pub(crate) solicited: bool,
    /// Requests, or receives that are the queue pair's own,
    /// before this number occupy no slot once it is polled.
    pub(crate) retires: u64,
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) host: u32,
    /// Distinguishes the uses of its id.
    pub(crate) life: u32,
    /// Number of the device opening that made it.
    pub(crate) opened: u32,
    pub(crate) depth: u32,
    pub(crate) queue: VecDeque<Cqe>,
    pub(crate) overrun: bool,
    pub(crate) timestamps: bool,
    pub(crate) channel: Option<SimChannel>,
    pub(crate) armed: Armed,
    /// Address of its owner's object. The id alone is not enough: other networks use the same ids.
    pub(crate) handle: usize,
    pub(crate) polled: u64,
    pub(crate) events: u64,
}

/// Completions that a queue is armed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Solicited,
    Any,
}

/// A completion to be added; [`Model::complete`] supplies the queue pair and the time.
pub(crate) struct NewCompletion {
    pub(crate) completion: Completion,
    pub(crate) solicited: bool,
    /// Requests, or receives that are the queue pair's own,
    /// before this number occupy no slot once it is polled.
    pub(crate) retires: u64,
}

impl NewCompletion {
    /// Completion of a send request.
    #[inline]
    pub(crate) fn of(wqe: &Wqe, status: Status, retires: u64) -> Self {
        let brings = status == Status::Success && wqe.reads();
        Self {
            completion: Completion {
                wr_id: wqe.wr_id,
                status,
                opcode: wqe.opcode(),
                byte_len: if brings { wqe.len } else { 0 },
                ..Completion::default()
            },
            solicited: false,
            retires,
        }
    }

    /// Completion of a receive.
    pub(crate) fn of_receive(receive: &ReceiveWqe, status: Status) -> Self {
        Self {
            completion: Completion {
                wr_id: receive.wr_id,
                status,
                opcode: Opcode::Recv,
                ..Completion::default()
            },
            solicited: false,
            retires: receive.position,
        }
    }
}

impl Qp {
    pub(crate) fn reference(&self) -> QpRef {
        QpRef {
            index: self.index,
            life: self.life,
        }
    }

    /// Returns the number that the next request gets.
    pub(crate) fn posted(&self) -> u64 {
        self.first + self.sq.len() as u64
    }

    /// Returns a request that is not done.
    #[inline]
    pub(crate) fn wqe(&mut self, number: u64) -> Option<&mut Wqe> {
        let at = number.checked_sub(self.first)?;
        self.sq.get_mut(at as usize)
    }

    /// Advances `rung` over the requests whose quiet doorbells came by `now`.
    pub(crate) fn note_progress(&mut self, now: Ps) {
        let mut rung = self.rung.max(self.first);
        while self.wqe(rung).is_some_and(|wqe| wqe.known_at <= now) {
            rung += 1;
        }
        self.rung = self.rung.max(rung);
    }

    /// Returns it to the reset state, without its connection and requests.
    pub(crate) fn reset(&mut self, life: u32) {
        self.life = life;
        self.state = QpState::Reset;
        self.connection = QpConnection::default();
        let posted = self.posted();
        self.sq.clear();
        (self.first, self.rung, self.retired, self.sending) = (posted, posted, posted, posted);
        (self.sent, self.next_psn, self.acked, self.reads) = (0, 0, 0, 0);
        (self.is_ready, self.paused, self.timer) = (false, false, None);
        (self.retries, self.rnr_tries, self.not_before) = (0, 0, 0);
        (self.dcqcn, self.may_notify_at) = (None, 0);
        (self.failing, self.drains_to) = (None, 0);
        self.receives.queue.clear();
        self.receives.retired = self.receives.posted;
        (self.inbound, self.expected, self.gap_reported) = (None, 0, false);
        (self.received_at, self.placed_at, self.answered_at) = (0, 0, 0);
        self.answers.clear();
        self.responses.clear();
        self.settled = false;
        self.is_called = false;
    }
}

impl Model {
    /// Adds a completion to a queue, where it becomes visible `at`.
    pub(crate) fn complete(
        &mut self,
        cq: u32,
        (qp, qpn): (QpRef, u32),
        at: Ps,
        mut ends: NewCompletion,
    ) {
        let Some(Some(queue)) = self.cqs.get_mut(cq as usize) else {
            return;
        };
        if queue.overrun {
            return;
        }
        let host = queue.host;
        if queue.queue.len() >= queue.depth as usize {
            return self.overruns(cq, host);
        }
        let at = queue.queue.back().map_or(at, |last| last.at.max(at));
        ends.completion.qpn = Qpn::new(qpn).unwrap_or_default();
        if queue.timestamps {
            ends.completion.timestamp = self.hosts[host as usize].clock(at);
        }
        if let Some(instrumentation) = &self.instrumentation {
            instrumentation.completion(host, at, &ends.completion);
        }
        if let Some(faults) = &mut self.faults {
            faults.run_digest.completed(at, &ends.completion);
        }
        let solicited = ends.solicited || ends.completion.status != Status::Success;
        queue.queue.push_back(Cqe {
            completion: ends.completion,
            at,
            qp,
            solicited,
            retires: ends.retires,
        });
        let wakes = match queue.armed {
            Armed::No => false,
            Armed::Solicited => solicited,
            Armed::Any => true,
        };
        if wakes && queue.channel.is_some() {
            queue.armed = Armed::No;
            queue.events += 1;
            let life = queue.life;
            self.event_queue.put(at, Event::Channel { cq, life });
        }
        self.note_change(host, at);
    }

    /// Breaks a queue that has no room for a completion, and fails all queue pairs that use it.
    #[cold]
    pub(super) fn overruns(&mut self, cq: u32, host: u32) {
        if let Some(Some(queue)) = self.cqs.get_mut(cq as usize) {
            queue.overrun = true;
        }
        self.raise_async_event(host, AsyncEvent::CqError(headworks_verbs::CqId(cq)));
        let users: Vec<u32> = self
            .qps
            .iter()
            .filter_map(|(_, qp)| qp.as_deref())
            .filter(|qp| qp.send_cq == cq || qp.recv_cq == cq)
            .map(|qp| qp.index)
            .collect();
        for index in users {
            self.fail_silently(index);
        }
    }

    /// Arms a queue for the next completion.
    pub(crate) fn arm(&mut self, cq: u32, solicited_only: bool) {
        self.catch_up();
        let time = self.time();
        let Some(Some(queue)) = self.cqs.get_mut(cq as usize) else {
            return;
        };
        queue.armed = match (solicited_only, queue.armed) {
            (true, Armed::No) => Armed::Solicited,
            (true, armed) => armed,
            (false, _) => Armed::Any,
        };
        // A completion that is not visible yet comes after the arming.
        let any = queue.armed == Armed::Any;
        let comes = |done: &&Cqe| done.at > time && (any || done.solicited);
        if let Some(at) = queue.queue.iter().find(comes).map(|done| done.at)
            && queue.channel.is_some()
        {
            queue.armed = Armed::No;
            queue.events += 1;
            let life = queue.life;
            self.event_queue.put(at, Event::Channel { cq, life });
        }
    }

    pub(crate) fn channel_event(&mut self, cq: u32, life: u32) {
        let Some(channel) = self.channel_of(cq, life) else {
            return;
        };
        channel.push(cq);
        let host = self.cqs[cq as usize].as_ref().map_or(0, |cq| cq.host);
        let at = self.now;
        self.note_change(host, at);
    }

    /// Takes the completions that are visible now.
    pub(crate) fn poll(
        &mut self,
        cq: u32,
        out: &mut [Completion],
    ) -> Result<usize, headworks_verbs::PollError> {
        self.catch_up();
        let time = self.time();
        let mut count = 0;
        let Some(Some(queue)) = self.cqs.get_mut(cq as usize) else {
            return Ok(0);
        };
        while count < out.len() {
            if queue.queue.front().is_none_or(|done| done.at > time) {
                break;
            }
            let Some(done) = queue.queue.pop_front() else {
                break;
            };
            out[count] = done.completion;
            count += 1;
            let (_, Some(qp)) = &mut self.qps[done.qp.index as usize] else {
                continue;
            };
            if qp.life == done.qp.life {
                let is_receive = done.completion.opcode.is_recv();
                let retired = match is_receive {
                    true => &mut qp.receives.retired,
                    false => &mut qp.retired,
                };
                *retired = (*retired).max(done.retires);
            }
        }
        queue.polled += count as u64;
        let broken = queue.overrun && queue.queue.is_empty() && count == 0;
        match count {
            0 => self.spend(self.cost.poll_empty),
            count => self.work(self.cost.poll_cqe * count as Ps),
        }
        if count == 0 && self.acting.is_none() {
            // A caller outside of a world that polls has nothing else to do, so let time pass.
            self.spend(IDLE);
        }
        match broken {
            true => Err(headworks_verbs::PollError::Overrun),
            false => Ok(count),
        }
    }

    /// Takes a receive for a queue pair's message, from its SRQ if it has one.
    pub(crate) fn take_receive(&mut self, index: u32) -> Option<ReceiveWqe> {
        let qp = self.qps[index as usize].1.as_deref_mut()?;
        let (host, srq) = (qp.host, qp.srq);
        if self.is_receive_refused(host) {
            return None;
        }
        let now = self.now;
        let Some(srq) = srq else {
            let qp = self.qps[index as usize].1.as_deref_mut()?;
            qp.receives
                .queue
                .front()
                .filter(|receive| receive.at <= now)?;
            return qp.receives.queue.pop_front();
        };
        let shared = self.srqs.get_mut(srq as usize)?.as_mut()?;
        shared.queue.front().filter(|receive| receive.at <= now)?;
        let receive = shared.queue.pop_front()?;
        if shared.limit > 0 && (shared.queue.len() as u32) < shared.limit {
            shared.limit = 0;
            let host = shared.host;
            self.raise_async_event(host, AsyncEvent::SrqLimit(SrqId(srq)));
        }
        Some(receive)
    }

    /// Flushes all requests and receives of a queue pair in the error state.
    pub(crate) fn flush(&mut self, index: u32) {
        let at = self.now.max(self.time());
        self.flush_sends(index, at);
        let Some(qp) = self.qps[index as usize].1.as_deref_mut() else {
            return;
        };
        let (cq, reference) = (qp.recv_cq, (qp.reference(), qp.qpn));
        let inbound = qp.inbound.take().and_then(|inbound| inbound.receive);
        let receives: Vec<_> = inbound
            .into_iter()
            .chain(std::mem::take(&mut qp.receives.queue))
            .collect();
        for receive in receives {
            let ends = NewCompletion::of_receive(&receive, Status::Flushed);
            self.complete(cq, reference, at, ends);
        }
    }

    /// Flushes the send requests that are not done.
    pub(crate) fn flush_sends(&mut self, index: u32, at: Ps) {
        let Some(qp) = self.qps[index as usize].1.as_deref_mut() else {
            return;
        };
        let (cq, reference, host) = (qp.send_cq, (qp.reference(), qp.qpn), qp.host);
        let first = qp.first;
        let wqes = std::mem::take(&mut qp.sq);
        qp.first += wqes.len() as u64;
        (qp.rung, qp.sending, qp.sent) = (qp.first, qp.first, 0);
        (qp.reads, qp.timer) = (0, None);
        for (number, wqe) in (first..).zip(wqes) {
            let key = cache_key(index, number);
            self.hosts[host as usize].requests.forget(key);
            let ends = NewCompletion::of(&wqe, Status::Flushed, number + 1);
            self.complete(cq, reference, at, ends);
        }
    }
}
