//! The program on a sending host: a flow to the contended host, and a flow to an idle one.

use std::collections::VecDeque;

use headworks::daemon::link_rate::LinkRate;
use headworks::runtime::{Actor, ActorContext, ActorError, ActorInit, Step, WakeCondition};
use headworks::verbs::{
    Completion, Duration, Instant, Payload, RemoteAddr, SendFlags, SendOp, SendWr,
};
use headworks_baselines::{End, WordMemory};

use super::receiver::SIGNAL;
use super::{
    CONTENDED, DEPTH, MESSAGE, RECEIVE_MEMORY, Run, SENDERS_PER_IDLE_HOST, SLICE, VICTIM_DEPTH,
    VICTIM_MESSAGE, VICTIM_SHARE, idle_name, sizes_of,
};
use crate::error::WorkloadError;
use crate::latency::Histogram;
use crate::nic::requester::polled;
use crate::random::{Random, mix};

/// Senders begin at random times before this.
const BEGIN_BEFORE: Duration = Duration::from_micros(100);
/// How often the program polls a device that paces: requests leave when they are due and the program polls. The bytes
/// of the link in this time are fewer than pacing lets pass at once.
const POLLS_EVERY: Duration = Duration::from_micros(4);
/// Completions that it takes at a time.
const POLL: usize = 16;
/// Requests that a queue pair holds: all slices of its messages.
const REQUESTS: usize = 2 * DEPTH * MESSAGE / SLICE;
/// Bit of a request's identifier that says that it belongs to the victim flow.
const VICTIM: u64 = 1 << 32;

pub(super) struct Sender {
    run: Run,
    number: usize,
    end: End,
    memory: WordMemory,
    is_paced: bool,
    begins: Instant,
    contended: ContendedFlow,
    victim: VictimFlow,
    messages: Histogram,
    victim_messages: Histogram,
    /// Bytes of the contended flow that completed in the measured time.
    bytes: u64,
}

/// The flow to the contended host.
struct ContendedFlow {
    target: RemoteAddr,
    /// Bytes of the contended host's memory that this sender writes to, and the place of its next message there.
    area: usize,
    next_place: usize,
    /// Whether signals limit the rate of this flow.
    is_limited: bool,
    rate: LinkRate,
    /// When the message of each slot began. Slot *s* uses queue pair *s* modulo the number of ports.
    begun: Vec<Instant>,
    /// Slots without a message.
    free: Vec<usize>,
    /// Messages that are not posted as a whole: slot, place at the contended host, bytes that are posted.
    posting: VecDeque<(usize, usize, usize)>,
}

/// The flow to an idle host.
struct VictimFlow {
    target: RemoteAddr,
    every: Duration,
    due: Instant,
    /// When the message of each slot was due.
    begun: Vec<Instant>,
    free: VecDeque<usize>,
}

impl Sender {
    pub(super) fn new(run: Run, number: usize, part: &ActorInit) -> Result<Self, ActorError> {
        let opener = headworks::pace::opener(part.opener.clone());
        let name = part.device.as_ref();
        let name = name.ok_or_else(|| ActorError::new("a sender has no device"))?;
        let device = opener(name)?;
        let is_paced = headworks::pace::status(device.info()).is_some();
        let (ports, incast) = (run.ports(), &run.incast);
        let sizes = sizes_of(ports, REQUESTS);
        let mut end = End::open(device, &sizes)?;
        let memory = end.memory(MESSAGE)?;
        let mut random = Random::new(mix(run.machine.seed) ^ number as u64);
        let begins = Instant::from_nanos(random.below(BEGIN_BEFORE.nanos()));
        let area = (RECEIVE_MEMORY / incast.senders / MESSAGE).max(1) * MESSAGE;
        let contended = (CONTENDED, area * incast.senders);
        let contended = run.connect(&part.opener, &mut end, &sizes, contended)?;
        let victim_slots = VICTIM_DEPTH * ports;
        let idle_area = victim_slots * VICTIM_MESSAGE;
        let idle = idle_name(number % incast.idle_hosts());
        let idle = (idle.as_str(), SENDERS_PER_IDLE_HOST * idle_area);
        let victim = run.connect(&part.opener, &mut end, &sizes, idle)?;
        let slots = match incast.is_contended {
            true => DEPTH * ports,
            false => 0,
        };
        let demand = VICTIM_SHARE * run.preset().all_links_gbps();
        let every = (VICTIM_MESSAGE as f64 * 8.0 / demand) as u64;
        let share = number / incast.idle_hosts();
        Ok(Self {
            contended: ContendedFlow {
                target: contended.plus((number * area) as u64),
                area,
                next_place: 0,
                is_limited: incast.control.cuts_link,
                rate: LinkRate::default(),
                begun: vec![Instant::ZERO; slots],
                free: (0..slots).rev().collect(),
                posting: VecDeque::new(),
            },
            victim: VictimFlow {
                target: victim.plus((share * idle_area) as u64),
                every: Duration::from_nanos(every),
                due: begins + Duration::from_nanos(random.below(every)),
                begun: vec![Instant::ZERO; victim_slots],
                free: (0..victim_slots).collect(),
            },
            run,
            number,
            end,
            memory,
            is_paced,
            begins,
            messages: Histogram::default(),
            victim_messages: Histogram::default(),
            bytes: 0,
        })
    }

    /// Posts a WRITE of `len` bytes. It is signalled if it has an identifier.
    fn post(
        &mut self,
        qp: usize,
        (to, len): (RemoteAddr, usize),
        wr_id: Option<u64>,
    ) -> Result<(), ActorError> {
        let sges = [self.memory.region().sge(0, len as u32)];
        let wr = SendWr {
            wr_id: wr_id.unwrap_or_default(),
            op: SendOp::Write(to),
            payload: Payload::Gather(&sges),
            flags: match wr_id {
                Some(_) => SendFlags::SIGNALED,
                None => SendFlags::NONE,
            },
        };
        let posted = self.end.queue_pairs[qp].post_send(&[wr]);
        posted.map_err(|e| WorkloadError::at("posting", e).into())
    }

    /// Handles signals of the contended host.
    fn obey(&mut self, cx: &mut ActorContext<'_>, now: Instant) {
        while let Some(mail) = cx.receive() {
            if mail.bytes != SIGNAL {
                continue;
            }
            if self.run.incast.control.cuts_rnic {
                headworks::pace::cut_rate(self.end.device.info());
            }
            if self.contended.is_limited {
                self.contended.rate.slow_down(now);
            }
        }
    }

    /// Takes completions.
    fn complete(&mut self, now: Instant) -> Result<(), ActorError> {
        let measures = self.run.measures(now);
        let mut found = [Completion::default(); POLL];
        loop {
            let done = polled(&*self.end.send_cq, &mut found)?;
            for completion in done {
                let slot = (completion.wr_id & !VICTIM) as usize;
                let (begun, times) = match completion.wr_id & VICTIM {
                    0 => {
                        self.contended.free.push(slot);
                        self.bytes += if measures { MESSAGE as u64 } else { 0 };
                        (self.contended.begun[slot], &mut self.messages)
                    }
                    _ => {
                        self.victim.free.push_back(slot);
                        (self.victim.begun[slot], &mut self.victim_messages)
                    }
                };
                if measures {
                    times.record(now.since(begun));
                }
            }
            if done.len() < POLL {
                return Ok(());
            }
        }
    }

    /// Begins messages of the contended flow, and posts as much of them as its rate allows.
    fn send_contended(&mut self, now: Instant) -> Result<(), ActorError> {
        let flow = &mut self.contended;
        while let Some(slot) = flow.free.pop() {
            flow.begun[slot] = now;
            flow.posting.push_back((slot, flow.next_place, 0));
            flow.next_place = (flow.next_place + MESSAGE) % flow.area;
        }
        let most = match flow.is_limited {
            true => SLICE,
            false => MESSAGE,
        };
        while let Some((slot, place, posted)) = self.contended.posting.front().copied() {
            if self.contended.is_limited && !self.contended.rate.may_send(now) {
                break;
            }
            let len = most.min(MESSAGE - posted);
            let to = self.contended.target.plus((place + posted) as u64);
            let is_last = posted + len == MESSAGE;
            self.post(
                slot % self.run.ports(),
                (to, len),
                is_last.then_some(slot as u64),
            )?;
            self.contended.rate.sent(len as u32);
            match self.contended.posting.front_mut() {
                Some((_, _, posted)) if !is_last => *posted += len,
                _ => {
                    self.contended.posting.pop_front();
                }
            }
        }
        Ok(())
    }

    /// Posts the messages of the victim flow that are due.
    fn send_victim(&mut self, now: Instant) -> Result<(), ActorError> {
        let ports = self.run.ports();
        while self.victim.due <= now {
            let due = self.victim.due;
            self.victim.due += self.victim.every;
            let Some(slot) = self.victim.free.pop_front() else {
                continue;
            };
            self.victim.begun[slot] = due;
            let to = self.victim.target.plus((slot * VICTIM_MESSAGE) as u64);
            let wr_id = Some(VICTIM | slot as u64);
            self.post(ports + slot % ports, (to, VICTIM_MESSAGE), wr_id)?;
        }
        Ok(())
    }

    fn finish(&mut self) {
        let mut state = self.run.state();
        state.messages.add(&self.messages);
        state.victim_messages.add(&self.victim_messages);
        let count = self.run.incast.senders;
        state.by_sender.resize(count, 0.0);
        state.by_sender[self.number] = self.bytes as f64;
    }
}

impl Actor for Sender {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        if now < self.begins {
            return Ok(Step::At(self.begins));
        }
        // The contended host reads its last counters at the end, so the packets must not vanish before.
        let ends = self.run.measured.1 + Duration::from_micros(1);
        if now >= ends {
            self.finish();
            return Ok(Step::Done);
        }
        self.obey(cx, now);
        self.complete(now)?;
        self.send_victim(now)?;
        self.send_contended(now)?;
        let mut next = self.victim.due.min(ends);
        if let Some(due) = self.contended.rate.due() {
            next = next.min(due);
        }
        if self.is_paced {
            next = next.min(cx.now() + POLLS_EVERY);
        }
        Ok(Step::Wait(WakeCondition::memory().or_mail().until(next)))
    }
}
