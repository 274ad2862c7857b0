//! A process: it repeats the operation, READs messages of the other host, and copies what it gets.

use std::collections::{HashMap, VecDeque};
use std::mem::take;

use headworks::runtime::{Actor, ActorContext, ActorError, ActorInit, Step};
use headworks::verbs::{Access, AllocRequest, Duration, Instant, Pages, QpCaps};
use headworks_baselines::{End, EndSizes, WordMemory};
use headworks_rxpool::admission::Class;
use headworks_rxpool::config::PoolConfig;
use headworks_rxpool::holdings::{AppId, HeldExtent};
use headworks_rxpool::pool::AppLimits;
use headworks_rxpool::receiver::{Announcement, LinkId, Receiver, ReceiverEvent, TransferId};
use headworks_rxpool::units::UNIT;

use super::{LOCAL, Message, MessageId, POOL, PROCESSES, READ_DEPTH, READS, ReceiveWay, Run};
use crate::error::WorkloadError;
use crate::nic::storage::receive_memory;
use crate::random::{Random, mix};

/// Time until a process knows what another one tells it.
const TELL: Duration = Duration::from_nanos(4_000);
/// How often an idle process polls.
const POLL_EVERY: Duration = Duration::from_nanos(500);
/// Processes begin an operation at random times before this.
const BEGIN_WITHIN_NS: u64 = 1_000;
/// Units of 4 KiB that a process copies between two polls.
const COPIES: u32 = 4;
/// Processor time for taking or releasing receive memory.
const EVENT: Duration = Duration::from_nanos(40);

/// Bytes that are there and must be copied.
struct Piece {
    message: MessageId,
    reduces: bool,
    /// Address of the bytes in this program, and their place in the buffer of the operation.
    from: usize,
    place: u64,
    len: u32,
    /// Bytes that are copied.
    copied: u32,
    /// Receive memory to release; `None` for a message of a process on the same host.
    held: Option<HeldExtent>,
}

/// A part of a message that is READ.
struct Part {
    message: MessageId,
    reduces: bool,
    /// Place of the first byte in the buffer of the operation.
    place: u64,
}

pub(super) struct Process {
    run: Run,
    rank: usize,
    /// Keeps the device open.
    _end: End,
    buffer: WordMemory,
    receiver: Receiver,
    app: AppId,
    /// Links to a process of the other host: one for each port.
    links: HashMap<usize, Vec<LinkId>>,
    random: Random,
    parts: HashMap<TransferId, Part>,
    pieces: VecDeque<Piece>,
    /// Number of the operation, begin of the operation, and step.
    operation: usize,
    begun: Option<Instant>,
    step: usize,
    /// Whether the messages of this step were announced.
    is_announced: bool,
    /// Messages of this step that were not begun, and those that must still come or be taken.
    waiting: Vec<usize>,
    /// Bytes of messages of this step that are to come.
    missing: HashMap<usize, u64>,
    sent: Vec<usize>,
}

impl Process {
    pub(super) fn new(run: Run, rank: usize, part: &ActorInit) -> Result<Self, ActorError> {
        let device = part.open_device()?;
        let ports = run.ports();
        let peers = PROCESSES - LOCAL;
        let sizes = EndSizes {
            queue_pairs: ports * peers,
            caps: QpCaps {
                max_send_wr: READ_DEPTH,
                max_recv_wr: 1,
                ..QpCaps::default()
            },
            cq_depth: ports as u32 * peers as u32 * READ_DEPTH,
            shared_receives: 0,
            channel: false,
        };
        let mut end = End::open(device, &sizes)?;
        let collective = run.collective;
        let pattern = collective.pattern;
        let block = pattern.block_bytes(PROCESSES, collective.bytes);
        let buffer = end.memory_as(&huge(pattern.buffer_blocks(PROCESSES) as u64 * block))?;
        let config = memory_config(collective.way, collective.bytes, peers as u64);
        let memory = u64::from(config.memory_units()) * u64::from(UNIT);
        let memory = end.device.alloc(&huge(memory))?;
        let region = end.pd.register(&memory, Access::LOCAL_WRITE)?;
        let receiver = Receiver::new(&config, region.into(), end.send_cq.clone());
        let mut receiver = receiver.map_err(|e| WorkloadError::at("receive memory", e))?;
        let app = receiver.add_app(AppLimits {
            class: Class::Normal,
            quota: u32::MAX,
        });
        end.populate(&sizes)?;
        let mut queue_pairs = take(&mut end.queue_pairs).into_iter();
        let mut state = run.state();
        for peer in run.remotes(rank) {
            let of = queue_pairs.by_ref().take(ports).collect();
            state.queue_pairs.insert((rank, peer), of);
        }
        run.connect(&end.device, &mut state, rank)?;
        let (remote, here) = (buffer.region().remote(0), buffer.region().buffer().as_ptr());
        state.buffers.insert(rank, (remote, here as usize));
        drop(state);
        let random = Random::new(mix(run.machine.seed) ^ rank as u64);
        Ok(Self {
            run,
            rank,
            _end: end,
            buffer,
            receiver,
            app,
            links: HashMap::new(),
            random,
            parts: HashMap::new(),
            pieces: VecDeque::new(),
            operation: 0,
            begun: None,
            step: 0,
            is_announced: false,
            waiting: Vec::new(),
            missing: HashMap::new(),
            sent: Vec::new(),
        })
    }

    /// Takes the queue pairs once all processes are there.
    fn take_links(&mut self) {
        let mut state = self.run.state();
        for peer in self.run.remotes(self.rank) {
            let queue_pairs = state.queue_pairs.remove(&(self.rank, peer));
            let links = queue_pairs.into_iter().flatten();
            let links = links.map(|qp| self.receiver.add_link(qp, READ_DEPTH));
            self.links.insert(peer, links.collect());
        }
    }

    fn block_bytes(&self) -> u64 {
        let collective = &self.run.collective;
        collective.pattern.block_bytes(PROCESSES, collective.bytes)
    }

    fn bytes_of(&self, message: &Message) -> u64 {
        message.blocks as u64 * self.block_bytes()
    }

    /// Announces the messages that this process sends in this step.
    fn announce(&mut self, now: Instant) {
        let run = self.run.clone();
        let mut state = run.state();
        for (index, message) in run.steps[self.step].iter().enumerate() {
            if message.from == self.rank {
                let id = (self.operation, self.step, index);
                state.announced.insert(id, now + TELL);
                self.sent.push(index);
            }
            if message.to == self.rank {
                self.waiting.push(index);
                self.missing.insert(index, self.bytes_of(message));
            }
        }
        self.is_announced = true;
    }

    /// Begins messages that were announced. Returns their number.
    fn begin_messages(&mut self, now: Instant) -> Result<u64, ActorError> {
        let run = self.run.clone();
        let mut count = 0;
        for index in take(&mut self.waiting) {
            let id = (self.operation, self.step, index);
            let state = run.state();
            let is_there = state.announced.get(&id).is_some_and(|at| *at <= now);
            let message = &run.steps[self.step][index];
            let source = state.buffers.get(&message.from).copied();
            drop(state);
            let (true, Some(source)) = (is_there, source) else {
                self.waiting.push(index);
                continue;
            };
            run.state().announced.remove(&id);
            count += 1;
            let block = self.block_bytes();
            let (from, place) = (message.source as u64 * block, message.target as u64 * block);
            let bytes = self.bytes_of(message);
            if run.host_of(message.from) == run.host_of(self.rank) {
                self.pieces.push_back(Piece {
                    message: id,
                    reduces: message.reduces,
                    from: source.1 + from as usize,
                    place,
                    len: bytes as u32,
                    copied: 0,
                    held: None,
                });
                continue;
            }
            let links = &self.links[&message.from];
            // A part for each port, in whole units.
            let each = bytes.div_ceil(links.len() as u64);
            let each = each.next_multiple_of(u64::from(UNIT));
            let mut at = 0;
            for link in links {
                let len = each.min(bytes - at);
                if len == 0 {
                    break;
                }
                let announced = self.receiver.announce(Announcement {
                    link: *link,
                    app: self.app,
                    from: source.0.plus(from + at),
                    len,
                });
                let transfer = announced.map_err(|e| WorkloadError::at("announcing", e))?;
                let part = Part {
                    message: id,
                    reduces: message.reduces,
                    place: place + at,
                };
                self.parts.insert(transfer, part);
                at += len;
            }
        }
        Ok(count)
    }

    /// Handles what was READ. Returns the number of events.
    fn receive(&mut self, now: Instant) -> Result<u64, ActorError> {
        let stepped = self.receiver.step(now);
        stepped.map_err(|e| WorkloadError::at("receive memory", e))?;
        let mut count = 0;
        while let Some(event) = self.receiver.event() {
            count += 1;
            match event {
                ReceiverEvent::Arrived {
                    transfer,
                    at,
                    held,
                    len,
                } => {
                    let Some(part) = self.parts.get(&transfer) else {
                        continue;
                    };
                    let memory = self.receiver.region().buffer().as_ptr() as usize;
                    let piece = Piece {
                        message: part.message,
                        reduces: part.reduces,
                        from: memory + held.extent.offset() as usize,
                        place: part.place + at,
                        len,
                        copied: 0,
                        held: Some(held),
                    };
                    if self.run.collective.way == ReceiveWay::AreasFreeCopies && !part.reduces {
                        self.release(&piece, 0, held.extent.units, now)?;
                        self.got(piece.message, u64::from(len), now);
                        continue;
                    }
                    self.pieces.push_back(piece);
                }
                ReceiverEvent::Done(transfer) => {
                    self.parts.remove(&transfer);
                }
                ReceiverEvent::Failed { why, .. } => {
                    return Err(WorkloadError::at("READs", why).into());
                }
                ReceiverEvent::Copy(_) | ReceiverEvent::Overdue(_) | ReceiverEvent::Signal => {}
            }
        }
        Ok(count)
    }

    fn release(
        &mut self,
        piece: &Piece,
        from: u32,
        units: u32,
        now: Instant,
    ) -> Result<(), ActorError> {
        if let Some(held) = piece.held {
            let released = self.receiver.release(self.app, held, from, units, now);
            released.map_err(|e| WorkloadError::at("releasing", e))?;
        }
        Ok(())
    }

    /// Notes that bytes of a message are where they belong.
    fn got(&mut self, (operation, step, index): MessageId, bytes: u64, now: Instant) {
        let Some(missing) = self.missing.get_mut(&index) else {
            return;
        };
        *missing = missing.saturating_sub(bytes);
        if *missing == 0 {
            self.missing.remove(&index);
            let mut state = self.run.state();
            state.taken.insert((operation, step, index), now + TELL);
        }
    }

    /// Copies a few units of what is there. Returns whether there was something to copy.
    fn copy(&mut self, cx: &mut ActorContext<'_>) -> Result<bool, ActorError> {
        let mut count = 0;
        while count < COPIES
            && let Some(mut piece) = self.pieces.pop_front()
        {
            let (done, len) = (piece.copied, (piece.len - piece.copied).min(UNIT));
            let from = (piece.from + done as usize) as *const u8;
            let to = self.buffer.region().buffer().as_ptr();
            let to = to.wrapping_add((piece.place + u64::from(done)) as usize);
            cx.reads(from, len as usize);
            if piece.reduces {
                cx.reads(to, len as usize);
            }
            cx.writes(to, len as usize);
            cx.copied(len.into());
            piece.copied += len;
            count += 1;
            let now = cx.now();
            let is_over = piece.copied == piece.len;
            if self.run.collective.by_slices {
                self.release(&piece, done / UNIT, 1, now)?;
            } else if is_over {
                self.release(&piece, 0, piece.len.div_ceil(UNIT), now)?;
            }
            self.got(piece.message, len.into(), now);
            if !is_over {
                self.pieces.push_front(piece);
            }
        }
        Ok(count > 0)
    }

    /// Ends the step if all of it is done, and the operation with its last step.
    fn end_step(&mut self, now: Instant) {
        if !self.waiting.is_empty() || !self.missing.is_empty() {
            return;
        }
        let (operation, step) = (self.operation, self.step);
        let run = self.run.clone();
        let mut state = run.state();
        self.sent.retain(|index| {
            let id = (operation, step, *index);
            let is_taken = state.taken.get(&id).is_some_and(|at| *at <= now);
            if is_taken {
                state.taken.remove(&id);
            }
            !is_taken
        });
        if !self.sent.is_empty() {
            return;
        }
        self.is_announced = false;
        self.step += 1;
        if self.step < run.steps.len() {
            return;
        }
        self.step = 0;
        self.operation += 1;
        let begun = self.begun.take().unwrap_or(now);
        if !state.readings.is_empty() {
            if state.arrived == 0 {
                state.times.push(Vec::new());
            }
            if let Some(times) = state.times.last_mut() {
                times.push(now.since(begun).nanos());
            }
        }
        state.arrived += 1;
        if state.arrived == PROCESSES {
            self.barrier(&mut state, now);
        }
    }

    /// Lets all processes begin the next operation, or end: this was the last process in the current one.
    fn barrier(&self, state: &mut super::RunState, now: Instant) {
        let next = now + TELL;
        state.arrived = 0;
        state.current = (self.operation, next);
        let usage = || self.run.monitor.get().and_then(|monitor| monitor.now());
        if state.readings.is_empty() {
            if next >= self.run.measured.0 {
                state.readings.extend(usage());
            }
        } else if next >= self.run.measured.1 {
            state.readings.extend(usage());
            state.is_over = true;
        }
    }
}

/// Returns a request for memory on huge pages.
fn huge(bytes: u64) -> AllocRequest {
    AllocRequest {
        pages: Pages::PreferHuge,
        ..AllocRequest::of(bytes as usize)
    }
}

/// Returns the configuration of the receive memory of a process with this many peers on the other host.
fn memory_config(way: ReceiveWay, message: u64, peers: u64) -> PoolConfig {
    let here = LOCAL as u32;
    match way {
        ReceiveWay::Pool => PoolConfig {
            reads: READS / here,
            read_bytes: POOL / u64::from(here),
            ..receive_memory(POOL / u64::from(here), true, true)
        },
        ReceiveWay::Areas | ReceiveWay::AreasFreeCopies => {
            receive_memory(peers * message, false, false)
        }
    }
}

impl Actor for Process {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let now = cx.now();
        if self.links.is_empty() {
            self.take_links();
        }
        let begun = match self.begun {
            Some(begun) => begun,
            None => {
                let state = self.run.state();
                let ((current, begins), is_over) = (state.current, state.is_over);
                drop(state);
                if is_over {
                    return Ok(Step::Done);
                }
                if current != self.operation {
                    return Ok(Step::At(now + POLL_EVERY));
                }
                let jitter = Duration::from_nanos(self.random.below(BEGIN_WITHIN_NS));
                *self.begun.insert(begins + jitter)
            }
        };
        if now < begun {
            return Ok(Step::At(begun));
        }
        if !self.is_announced {
            self.announce(now);
        }
        let mut events = self.begin_messages(now)?;
        events += self.receive(now)?;
        cx.charge(EVENT.times(events));
        let has_copied = self.copy(cx)?;
        let now = cx.now();
        self.end_step(now);
        match has_copied || events > 0 {
            true => Ok(Step::Again),
            false => Ok(Step::At(now + POLL_EVERY)),
        }
    }
}
