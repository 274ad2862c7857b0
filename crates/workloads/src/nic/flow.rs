//! Messages of 64 bytes one way, in two ways that differ in nothing else: WRITEs into memory that the
//! receiver polls, and SENDs into receives that it posts to an SRQ.
//!
//! In both the sender fills a slot of its own registered memory (first and last word), posts it (one
//! request a call, or a chain of them) and signals one in [`SIGNAL_EVERY`]; at most [`DEPTH`] messages
//! are under way, going by a head that the receiver WRITEs back every [`PUSH_EVERY`] messages. The
//! receiver reads and checks the first and the last word of every message where it lies.

use std::sync::atomic::Ordering;

use headworks::verbs::{
    Completion, CompletionQueue, Opcode, Payload, QpCaps, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendWr, Status,
};
use headworks_baselines::Memory;

use super::end::{self, End, Shape, connected, emit, parse};
use super::meter::Meter;
use super::{Task, Way};
use crate::transports::connect::Role;
use crate::transports::job::Report;
use crate::transports::part::Part;
use crate::transports::{ArmError, Env, Turn};
use crate::world::Handed;

/// Bytes of a message.
pub const SIZE: usize = 64;
/// Messages under way at most: slots of the polled memory, receives of the SRQ.
pub const DEPTH: usize = 128;
/// One request in so many is signalled.
pub const SIGNAL_EVERY: u64 = 32;
/// The receiver tells how far it is after so many messages.
pub const PUSH_EVERY: u64 = DEPTH as u64 / 4;

/// Offset of a message's last word.
const LAST: usize = SIZE - 8;
/// Tries in one step.
const TRIES: usize = 256;

/// The part of `task` that has `role`.
pub fn part(
    task: &Task,
    way: Way,
    chain: usize,
    role: Role,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    match chain {
        1 => part_of::<1>(task, way, role, handed),
        16 => part_of::<16>(task, way, role, handed),
        _ => Err(ArmError(format!("chains of {chain} requests: 1 or 16"))),
    }
}

fn part_of<const CHAIN: usize>(
    task: &Task,
    way: Way,
    role: Role,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    let shared = way == Way::SharedReceives && role == Role::Receiver;
    let shape = Shape {
        queue_pairs: 1,
        caps: QpCaps::default(),
        cq_depth: 2 * DEPTH as u32,
        shared_receives: if shared { DEPTH as u32 } else { 0 },
        channel: false,
    };
    let mut end = end::open(handed, &shape)?;
    end.populate(&shape)?;
    let promised = end.device.info().promises.in_order_within_write;
    if way == Way::PolledMemory && (promised as usize) < SIZE {
        return Err(ArmError(format!(
            "the device places {promised} bytes of a WRITE in order, polling its last word needs {SIZE}"
        )));
    }
    match role {
        Role::Sender => {
            let (source, head) = (end.memory(DEPTH * SIZE)?, end.memory(SIZE)?);
            let payload = emit(&[head.region().remote(0)]);
            connected(end, &payload, move |end, theirs| {
                let [target] = parse(theirs)?;
                Ok(Sender::<CHAIN> {
                    end,
                    source,
                    head,
                    target: (way == Way::PolledMemory).then_some(target),
                    next: 0,
                    taken: 0,
                    stopped: false,
                })
            })
        }
        Role::Receiver => {
            let memory = end.memory(DEPTH * SIZE)?;
            let payload = emit(&[memory.region().remote(0)]);
            let meter = Meter::new(task, 2 * DEPTH as u64);
            let end = posted(end, &memory)?;
            connected(end, &payload, move |end, theirs| {
                let [head] = parse(theirs)?;
                Ok(Receiver::<CHAIN> {
                    end,
                    memory,
                    head,
                    next: 0,
                    pushed: 0,
                    pushes: 0,
                    meter,
                    over: false,
                    total: None,
                })
            })
        }
    }
}

/// Posts every receive of the SRQ, if there is one.
fn posted(end: End, memory: &Memory) -> Result<End, ArmError> {
    if let Some(srq) = &end.srq {
        for slot in 0..DEPTH {
            let sges = [memory.region().sge(slot * SIZE, SIZE as u32)];
            srq.post_recv(&[RecvWr {
                wr_id: slot as u64,
                sges: &sges,
            }])
            .map_err(|e| ArmError::at("posting receives", e))?;
        }
    }
    Ok(end)
}

struct Sender<const CHAIN: usize> {
    end: End,
    source: Memory,
    /// The receiver stores here how many messages it has taken.
    head: Memory,
    /// The polled memory; receives are nowhere.
    target: Option<RemoteAddr>,
    next: u64,
    taken: u64,
    stopped: bool,
}

impl<const CHAIN: usize> Sender<CHAIN> {
    /// Sends a chain if there is room for it.
    #[inline(always)]
    fn send(&mut self) -> Result<bool, ArmError> {
        let first = self.next;
        let room = |taken: u64| first + CHAIN as u64 - taken <= DEPTH as u64;
        if !room(self.taken) {
            let taken = self.head.word(0).load(Ordering::Acquire);
            if taken < self.taken || taken > first {
                return Err(ArmError(format!(
                    "a head of {taken} after {first} messages"
                )));
            }
            self.taken = taken;
            if !room(taken) {
                return Ok(false);
            }
        }
        let slot = |index: usize| (first as usize + index) % DEPTH * SIZE;
        let sges: [_; CHAIN] =
            std::array::from_fn(|index| [self.source.region().sge(slot(index), SIZE as u32)]);
        let signalled = |number: u64| (number + 1).is_multiple_of(SIGNAL_EVERY);
        let wrs: [_; CHAIN] = std::array::from_fn(|index| {
            let (number, slot) = (first + index as u64, slot(index));
            self.source.word(slot).store(number, Ordering::Relaxed);
            let last = self.source.word(slot + LAST);
            last.store(number + 1, Ordering::Relaxed);
            SendWr {
                wr_id: number,
                op: match self.target {
                    Some(target) => SendOp::Write(target.plus(slot as u64)),
                    None => SendOp::Send,
                },
                payload: Payload::Gather(&sges[index]),
                flags: match signalled(number) {
                    true => SendFlags::SIGNALED,
                    false => SendFlags::NONE,
                },
            }
        });
        self.end.queue_pairs[0]
            .post_send(&wrs)
            .map_err(|e| ArmError::at("posting", e))?;
        self.next += CHAIN as u64;
        if self.next % SIGNAL_EVERY < CHAIN as u64 {
            completed(&*self.end.send_cq)?;
        }
        Ok(true)
    }
}

/// Takes the send completions that are there.
#[inline]
fn completed(cq: &dyn CompletionQueue) -> Result<usize, ArmError> {
    let mut found = [Completion::default(); 16];
    let count = cq
        .poll(&mut found)
        .map_err(|e| ArmError::at("polling", e))?;
    match found[..count].iter().find(|c| c.status != Status::Success) {
        None => Ok(count),
        Some(failed) => Err(ArmError(format!(
            "request {} ended: {}",
            failed.wr_id, failed.status
        ))),
    }
}

impl<const CHAIN: usize> Part for Sender<CHAIN> {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        let mail = env.mailed();
        if self.stopped {
            // Requests that wait are carried on by polling.
            completed(&*self.end.send_cq)?;
            return Ok(match mail {
                Some(_) => Turn::Done(Report::None),
                None => Turn::Wait,
            });
        }
        if mail.is_some() {
            env.mail(&self.next.to_le_bytes())?;
            self.stopped = true;
            return Ok(Turn::Again);
        }
        for _ in 0..TRIES {
            if !self.send()? {
                std::hint::spin_loop();
            }
        }
        Ok(Turn::Again)
    }
}

struct Receiver<const CHAIN: usize> {
    end: End,
    /// What is polled, or what receives are filled into.
    memory: Memory,
    head: RemoteAddr,
    next: u64,
    pushed: u64,
    pushes: u64,
    meter: Meter,
    over: bool,
    /// How many the sender says that it sent.
    total: Option<u64>,
}

impl<const CHAIN: usize> Receiver<CHAIN> {
    /// Takes what is there, up to a chain; says how many.
    #[inline(always)]
    fn take(&mut self) -> Result<usize, ArmError> {
        let taken = match self.end.srq {
            None => self.look()?,
            Some(_) => self.receive()?,
        };
        if self.next - self.pushed >= PUSH_EVERY {
            self.push()?;
        }
        Ok(taken)
    }

    /// Polls the memory.
    #[inline(always)]
    fn look(&mut self) -> Result<usize, ArmError> {
        let mut taken = 0;
        while taken < CHAIN {
            let slot = self.next as usize % DEPTH * SIZE;
            if self.memory.word(slot + LAST).load(Ordering::Acquire) != self.next + 1 {
                break;
            }
            self.next = check(&self.memory, slot, self.next)?;
            taken += 1;
        }
        Ok(taken)
    }

    /// Polls the CQ, and posts the receives again.
    #[inline(always)]
    fn receive(&mut self) -> Result<usize, ArmError> {
        let Some(srq) = &self.end.srq else {
            return Ok(0);
        };
        let mut found = [Completion::default(); CHAIN];
        let count = self
            .end
            .recv_cq
            .poll(&mut found)
            .map_err(|e| ArmError::at("polling", e))?;
        if count == 0 {
            return Ok(0);
        }
        for completion in &found[..count] {
            let whole = completion.status == Status::Success
                && completion.opcode == Opcode::Recv
                && completion.byte_len as usize == SIZE;
            if !whole {
                return Err(ArmError(format!("a receive ended as {completion:?}")));
            }
            let slot = completion.wr_id as usize % DEPTH * SIZE;
            self.next = check(&self.memory, slot, self.next)?;
        }
        let sges: [_; CHAIN] = std::array::from_fn(|index| {
            let slot = found[index].wr_id as usize % DEPTH;
            [self.memory.region().sge(slot * SIZE, SIZE as u32)]
        });
        let wrs: [_; CHAIN] = std::array::from_fn(|index| RecvWr {
            wr_id: found[index].wr_id,
            sges: &sges[index],
        });
        srq.post_recv(&wrs[..count])
            .map_err(|e| ArmError::at("posting receives", e))?;
        Ok(count)
    }

    /// Tells the sender how far this end is.
    fn push(&mut self) -> Result<(), ArmError> {
        self.pushes += 1;
        let signalled = self.pushes.is_multiple_of(SIGNAL_EVERY);
        self.end.queue_pairs[0]
            .post_send(&[SendWr {
                wr_id: self.pushes,
                op: SendOp::Write(self.head),
                payload: Payload::Inline(&self.next.to_ne_bytes()),
                flags: match signalled {
                    true => SendFlags::SIGNALED,
                    false => SendFlags::NONE,
                },
            }])
            .map_err(|e| ArmError::at("pushing the head", e))?;
        self.pushed = self.next;
        if signalled {
            completed(&*self.end.send_cq)?;
        }
        Ok(())
    }
}

/// Reads message `number` in `slot`; the number of the one after it.
#[inline(always)]
fn check(memory: &Memory, slot: usize, number: u64) -> Result<u64, ArmError> {
    let first = memory.word(slot).load(Ordering::Relaxed);
    let last = memory.word(slot + LAST).load(Ordering::Relaxed);
    if first != number || last != number + 1 {
        return Err(ArmError(format!(
            "message {number} reads {first} and {last}"
        )));
    }
    Ok(number + 1)
}

impl<const CHAIN: usize> Part for Receiver<CHAIN> {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        for _ in 0..TRIES {
            if self.take()? == 0 {
                std::hint::spin_loop();
            }
        }
        if !self.over {
            self.over = self.meter.count(self.next, env);
            if self.over {
                env.mail(b"enough")?;
            }
            return Ok(Turn::Again);
        }
        if let (None, Some(mail)) = (self.total, env.mailed()) {
            let bytes = mail.try_into();
            let bytes = bytes.map_err(|_| ArmError("no count in the mail".into()))?;
            self.total = Some(u64::from_le_bytes(bytes));
        }
        if self.total != Some(self.next) {
            return Ok(Turn::Again);
        }
        env.mail(b"taken")?;
        Ok(Turn::Done(self.meter.report()))
    }
}
