//! Queue pairs, completion queues, receives: what they hold.

use std::collections::VecDeque;

use headworks_verbs::{
    Access, AsyncEvent, Completion, Opcode, QpCaps, QpState, QpType, Qpn, SrqId, Status,
};

use super::read_response::Response;
use super::{Event, Model, QpRef};
use crate::completion_channel::SimChannel;
use crate::hardware_units::Ps;
use crate::wqe::{ReceiveWqe, Wqe, cache_key};

/// What a poll that finds nothing takes outside of a world.
const IDLE: Ps = 1_000 * crate::hardware_units::NS;

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) index: u32,
    /// Which connection of it this is: packets of an earlier one are lost.
    pub(crate) life: u32,
    pub(crate) qpn: u32,
    /// Which of its host's units sends for it.
    pub(crate) unit: usize,
    /// Which of its host's contexts it has.
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
    /// Requests that the RNIC knows of, as far as somebody looked ([`Qp::note_progress`]).
    pub(crate) rung: u64,
    /// When it hears of the last doorbell.
    pub(crate) rings_at: Ps,
    /// There is an event for the first doorbell of those that have none of their own.
    pub(crate) is_called: bool,
    /// Requests that need no room any more: a completion that covers them was polled.
    pub(crate) retired: u64,
    /// The request that is sent next, and how much of it was.
    pub(crate) sending: u64,
    pub(crate) sent: u32,
    pub(crate) next_psn: u64,
    /// When the last of its packets has left: they leave in order.
    pub(crate) gone_at: Ps,
    /// All before it is acknowledged.
    pub(crate) acked: u64,
    /// READs and atomics under way.
    pub(crate) reads: u32,
    /// A request that is wrong on this side, and how: it ends so once those before it are done.
    pub(crate) failing: Option<(u64, Status)>,
    /// In SQD: what was under way then, and is carried out yet.
    pub(crate) drains_to: u64,
    /// It waits for its turn.
    pub(crate) is_ready: bool,
    /// Not to be sent before this.
    pub(crate) not_before: Ps,
    pub(crate) paused: bool,
    pub(crate) retries: u8,
    pub(crate) rnr_tries: u8,
    /// The READ or atomic whose answer was missing last.
    pub(crate) missed: Option<u64>,
    /// How often something was heard of the other side that says that it goes on.
    pub(crate) last_progress: u64,
    /// Whether an overdue acknowledgement is looked for, and what was heard when that began.
    pub(crate) timer: Option<u64>,

    pub(crate) receives: Receives,
    /// The receive of the message that comes.
    pub(crate) inbound: Option<IncomingMessage>,
    pub(crate) expected: u64,
    /// It was said that packets are missing.
    pub(crate) gap_reported: bool,
    /// What was done last on this side of the connection, and when it could be answered.
    pub(crate) received_at: Ps,
    pub(crate) placed_at: Ps,
    pub(crate) answered_at: Ps,
    pub(crate) answers: VecDeque<(u64, u64)>,
    /// What READs and atomics of the other side asked for, and has not all gone.
    pub(crate) responses: VecDeque<Response>,
    /// Its program knows that it takes no more of its SRQ.
    pub(crate) settled: bool,
    pub(crate) events: u64,
    pub(crate) rnr: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) read_bytes: u64,
}

/// Where a queue pair is connected to, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpConnection {
    pub(crate) access: Access,
    pub(crate) host: Option<u32>,
    pub(crate) qpn: u32,
    pub(crate) mtu: u32,
    pub(crate) max_reads: u32,
    pub(crate) max_dest_reads: u32,
    pub(crate) min_rnr: Ps,
    /// 0 waits for ever.
    pub(crate) timeout: Ps,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) qkey: u32,
}

/// A message that comes.
pub(crate) struct IncomingMessage {
    pub(crate) receive: Option<ReceiveWqe>,
    pub(crate) received: u32,
    /// What looking up where its bytes go took.
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
    /// Which opening of the device made it.
    pub(crate) opened: u32,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) pd: u32,
    pub(crate) queue: VecDeque<ReceiveWqe>,
    pub(crate) limit: u32,
}

/// A completion, and what it is of.
pub(crate) struct Cqe {
    pub(crate) completion: Completion,
    pub(crate) at: Ps,
    pub(crate) qp: QpRef,
    /// It wakes whoever waits for such only: it was asked for, or says that something failed.
    pub(crate) solicited: bool,
    /// How many sends, or receives of the queue pair's own, need no room once it is polled.
    pub(crate) retires: u64,
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) host: u32,
    /// Which use of its number it is.
    pub(crate) life: u32,
    /// Which opening of the device made it.
    pub(crate) opened: u32,
    pub(crate) depth: u32,
    pub(crate) queue: VecDeque<Cqe>,
    pub(crate) overrun: bool,
    pub(crate) timestamps: bool,
    pub(crate) channel: Option<SimChannel>,
    pub(crate) armed: Armed,
    /// Where what its owner has is in memory: numbers are those of other networks, too.
    pub(crate) handle: usize,
    pub(crate) polled: u64,
    pub(crate) events: u64,
}

/// What a completion queue was asked to tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Solicited,
    Any,
}

/// A completion on its way. Which queue pair it is of, and when it was, are seen to where it goes.
pub(crate) struct NewCompletion {
    pub(crate) completion: Completion,
    pub(crate) solicited: bool,
    /// How many requests, or receives of the queue pair's own, need no room once it is polled.
    pub(crate) retires: u64,
}

impl NewCompletion {
    /// A send request ends like this, after so many.
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

    /// A receive ends like this.
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

    /// The number of the next request.
    pub(crate) fn posted(&self) -> u64 {
        self.first + self.sq.len() as u64
    }

    /// A request that is not done.
    #[inline]
    pub(crate) fn wqe(&mut self, number: u64) -> Option<&mut Wqe> {
        let at = number.checked_sub(self.first)?;
        self.sq.get_mut(at as usize)
    }

    /// Hears of those requests whose doorbells are no events, up to `now`.
    pub(crate) fn note_progress(&mut self, now: Ps) {
        let mut rung = self.rung.max(self.first);
        while self.wqe(rung).is_some_and(|wqe| wqe.known_at <= now) {
            rung += 1;
        }
        self.rung = self.rung.max(rung);
    }

    /// Back to where it was made, but for what it is.
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
    /// A completion goes to a queue, where it can be seen `at`.
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

    /// A completion finds no room: the queue is broken, and all that use it.
    #[cold]
    fn overruns(&mut self, cq: u32, host: u32) {
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

    /// Has a queue tell of the next completion.
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
        // One that is on its way to memory comes after this.
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

    /// Takes completions that can be seen now.
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
            // Who waits outside of a world has nothing else to do.
            self.spend(IDLE);
        }
        match broken {
            true => Err(headworks_verbs::PollError::Overrun),
            false => Ok(count),
        }
    }

    /// A receive for a message of a queue pair.
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

    /// What is posted to a queue pair that is in error ends: flushed.
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

    /// Send requests that are not done end: flushed.
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
