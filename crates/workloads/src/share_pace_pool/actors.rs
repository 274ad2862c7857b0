//! The programs: threads of the server that send or receive, the programs on the other hosts, and one that reads the
//! counters.
//!
//! They poll at fixed intervals. A program that waited for its memory to change would be woken by every message of
//! every other program of its host.

use headworks::runtime::{Actor, ActorContext, ActorError, Step};
use headworks::verbs::{
    Completion, Duration, Instant, Payload, RemoteAddr, SendFlags, SendOp, SendWr,
};

use super::server::{PeerPart, ReceivingPart, SLOTS, SendingPart};
use super::{IN_MESSAGE, PEER_PROGRAMS, RING, Run};
use crate::error::WorkloadError;
use crate::nic::requester::polled;

/// How often the server's threads poll.
const POLL_EVERY: Duration = Duration::from_nanos(500);
/// Completions that a thread takes at a time.
const POLL: usize = 32;
/// Requests that a thread posts in one step while it fills its queue pairs. It is few, so that pacing sees all threads.
const AT_ONCE: usize = 4;
/// Number of hosts for which a peer polls every microsecond. A peer's messages take longer the more hosts there are.
const HOSTS_PER_MICROSECOND: usize = 128;

type Made = Result<Box<dyn Actor>, ActorError>;

fn missing() -> ActorError {
    ActorError::new("the objects of this program are missing")
}

/// The program runs until the counters were read for the last time.
fn is_over(run: &Run, now: Instant) -> bool {
    now >= run.measured.1 + Duration::from_micros(1)
}

/// Posts a request.
fn posted(qp: &mut dyn headworks::verbs::QueuePair, wr: SendWr<'_>) -> Result<(), WorkloadError> {
    let posted = qp.post_send(&[wr]);
    posted.map_err(|e| WorkloadError::at("posting", e))
}

/// Makes sending thread number `thread` of the server.
pub(super) fn sender(run: &Run, thread: usize) -> Made {
    let mut state = run.state();
    let part = state.objects.as_mut();
    let part = part.and_then(|objects| objects.sending[thread].take());
    Ok(Box::new(Sender {
        run: run.clone(),
        part: part.ok_or_else(missing)?,
        filling: 0,
    }))
}

/// A thread that keeps its queue pairs filled with WRITEs.
struct Sender {
    run: Run,
    part: SendingPart,
    /// The queue pair that is filled next. Queue pairs are filled in turn, a request at a time.
    filling: usize,
}

impl Sender {
    fn post(&mut self, at: usize) -> Result<(), WorkloadError> {
        let sges = [self.part.source];
        let to = &mut self.part.queue_pairs[at];
        let wr = SendWr {
            wr_id: at as u64,
            op: SendOp::Write(to.target),
            payload: Payload::Gather(&sges),
            flags: SendFlags::SIGNALED,
        };
        posted(&mut *to.qp, wr)
    }

    /// Posts some of the first requests. Returns their number.
    fn fill(&mut self) -> Result<usize, WorkloadError> {
        let count = self.part.queue_pairs.len();
        let depth = self.run.load.depth();
        for done in 0..AT_ONCE {
            if count == 0 || self.part.queue_pairs[self.filling].filled == depth {
                return Ok(done);
            }
            self.part.queue_pairs[self.filling].filled += 1;
            self.post(self.filling)?;
            self.filling = (self.filling + 1) % count;
        }
        Ok(AT_ONCE)
    }
}

impl Actor for Sender {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        if is_over(&self.run, now) || self.part.queue_pairs.is_empty() {
            return Ok(Step::Done);
        }
        let mut count = self.fill()?;
        let is_filling = count > 0;
        let mut found = [Completion::default(); POLL];
        let done = polled(&*self.part.cq, &mut found)?;
        for completion in done {
            self.post(completion.wr_id as usize)?;
        }
        let is_behind = done.len() == POLL;
        count += done.len();
        let pacing = Duration::from_nanos(self.run.load.pacing_ns);
        cx.charge(pacing.times(count as u64));
        Ok(match is_filling || is_behind {
            true => Step::Again,
            false => Step::At(cx.now().max(now + POLL_EVERY)),
        })
    }
}

/// Makes receiving thread number `thread` of the server.
pub(super) fn receiver(run: &Run, thread: usize) -> Made {
    let mut state = run.state();
    let part = state.objects.as_mut();
    let part = part.and_then(|objects| objects.receiving[thread].take());
    Ok(Box::new(Receiver {
        run: run.clone(),
        part: part.ok_or_else(missing)?,
    }))
}

/// A thread that consumes messages.
struct Receiver {
    run: Run,
    part: ReceivingPart,
}

impl Actor for Receiver {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        if is_over(&self.run, now) || self.part.hosts.is_empty() {
            return Ok(Step::Done);
        }
        let mut found = [Completion::default(); POLL];
        let done = polled(&*self.part.cq, &mut found)?;
        let mut state = self.run.state();
        for completion in done {
            let host = self.part.hosts.get(&completion.qpn).ok_or_else(missing)?;
            let place = completion.imm.unwrap_or_default() as usize * IN_MESSAGE;
            let memory = state.objects.as_mut().map(|objects| &mut objects.memory);
            let memory = memory.ok_or_else(missing)?;
            memory.consume(completion.wr_id as usize, place, now, |begin, len| {
                cx.reads(begin, len);
            })?;
            state.consumed[*host] += 1;
        }
        Ok(match done.len() {
            POLL => Step::Again,
            _ => Step::At(cx.now().max(now + POLL_EVERY)),
        })
    }
}

/// Makes the program that plays the hosts `first`, `first` + [`PEER_PROGRAMS`] and so on.
pub(super) fn peers(run: &Run, first: usize) -> Made {
    let mut state = run.state();
    let load = &run.load;
    let objects = state.objects.as_mut().ok_or_else(missing)?;
    let mut peers = Vec::new();
    for host in (first..load.hosts).step_by(PEER_PROGRAMS) {
        peers.push(Peer {
            host,
            part: objects.peers[host].take().ok_or_else(missing)?,
            connections: load.connections / load.hosts,
            sent: 0,
        });
    }
    let micros = (load.hosts / HOSTS_PER_MICROSECOND).max(1);
    Ok(Box::new(Peers {
        run: run.clone(),
        peers,
        every: Duration::from_micros(micros as u64),
    }))
}

/// The programs of some hosts.
struct Peers {
    run: Run,
    peers: Vec<Peer>,
    every: Duration,
}

/// A program that sends messages to the server, over its connections in turn.
struct Peer {
    host: usize,
    part: PeerPart,
    connections: usize,
    sent: u64,
}

impl Peer {
    fn send(&mut self) -> Result<(), WorkloadError> {
        let number = self.sent as usize;
        let (connection, slot) = (number % self.connections, number / self.connections % SLOTS);
        let offset = connection * RING + slot * IN_MESSAGE;
        // The number of the message's place in the server's rings.
        let place = self.host * self.connections * SLOTS + offset / IN_MESSAGE;
        let op = match self.part.rings {
            Some(rings) => {
                let to: RemoteAddr = rings.plus(offset as u64);
                SendOp::WriteImm(to, place as u32)
            }
            None => SendOp::SendImm(place as u32),
        };
        let sges = [self.part.memory.region().sge(0, IN_MESSAGE as u32)];
        let queue_pairs = &mut self.part.end.queue_pairs;
        let at = connection % queue_pairs.len();
        let wr = SendWr {
            wr_id: 0,
            op,
            payload: Payload::Gather(&sges),
            flags: SendFlags::SIGNALED,
        };
        posted(&mut *queue_pairs[at], wr)?;
        self.sent += 1;
        Ok(())
    }
}

impl Actor for Peers {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        if is_over(&self.run, now) {
            return Ok(Step::Done);
        }
        for peer in &mut self.peers {
            let mut found = [Completion::default(); POLL];
            while polled(&*peer.part.end.send_cq, &mut found)?.len() == POLL {}
            let consumed = self.run.state().consumed[peer.host];
            while peer.sent - consumed < self.run.load.window() as u64 {
                peer.send()?;
            }
        }
        Ok(Step::At(cx.now().max(now + self.every)))
    }
}

/// Makes the program that reads the counters.
#[expect(clippy::unnecessary_wraps, reason = "as the other programs are made")]
pub(super) fn counter(run: &Run) -> Made {
    Ok(Box::new(Counter {
        run: run.clone(),
        readings: 0,
    }))
}

/// Reads the counters at the begin, in the middle and at the end of the measured time.
struct Counter {
    run: Run,
    readings: usize,
}

impl Actor for Counter {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let (from, until) = self.run.measured;
        let half = Duration::from_nanos(until.since(from).nanos() / 2);
        let times = [from, from + half, until];
        let now = cx.now();
        if let Some(next) = times.get(self.readings) {
            if now < *next {
                return Ok(Step::At(*next));
            }
            self.readings += 1;
            let usage = self.run.monitor.get().and_then(|monitor| monitor.now());
            self.run.state().readings.extend(usage);
            return Ok(Step::Again);
        }
        Ok(Step::Done)
    }
}
