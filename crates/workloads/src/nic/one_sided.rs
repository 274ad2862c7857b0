//! One end works on memory of the other, which sits and checks at the end what arrived: WRITEs over
//! one queue pair or spread over many, and WRITEs into memory that did not come from the device beside
//! the bare system call.

use std::sync::atomic::Ordering;

use headworks::verbs::memory::HeapBuffer;
use headworks::verbs::{
    Access, Buffer, Completion, Payload, QpCaps, RemoteAddr, SendFlags, SendOp, SendWr, Status,
};
use headworks_baselines::{Memory, kernel};

use super::end::{self, End, Shape, connected, emit, parse};
use super::meter::Meter;
use super::{Over, Task};
use crate::transports::connect::Role;
use crate::transports::job::Report;
use crate::transports::part::Part;
use crate::transports::{ArmError, Env, Turn};
use crate::world::Handed;

/// Bytes of a small WRITE.
pub const SIZE: usize = 64;
/// Small WRITEs go round so many places: with as many queue pairs each has one of its own.
pub const PLACES: usize = 1000;
/// One request in so many of a queue pair is signalled, not all queue pairs at the same time.
pub const SIGNAL_EVERY: u64 = 32;

/// Pieces of work in one step.
const BATCH: usize = 64;

/// A piece of the initiator's work, again and again.
trait Work: Send {
    /// Does it; says how many requests or calls that was.
    fn once(&mut self) -> Result<u64, ArmError>;
    /// Sees the last one done.
    fn finish(&mut self) -> Result<(), ArmError>;
}

/// WRITEs of [`SIZE`] bytes round robin over `queue_pairs`, in chains.
pub fn spread(
    task: &Task,
    (queue_pairs, chain): (usize, usize),
    role: Role,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    let shape = Shape {
        queue_pairs,
        caps: QpCaps {
            max_recv_wr: 1,
            ..QpCaps::default()
        },
        cq_depth: 4096,
        shared_receives: 0,
        channel: false,
    };
    let mut end = end::open(handed, &shape)?;
    end.populate(&shape)?;
    let memory = end.memory(PLACES * SIZE)?;
    let payload = emit(&[memory.region().remote(0)]);
    let meter = Meter::new(task, 4 * PLACES as u64 * SIGNAL_EVERY);
    match (role, chain) {
        (Role::Receiver, _) => connected(end, &payload, move |end, _| {
            Ok(Target {
                memory,
                holds: Holds::Places,
                _end: end,
            })
        }),
        (Role::Sender, 1) => connected(end, &payload, move |end, theirs| {
            Spread::<1>::over(end, memory, theirs).map(|work| Initiator::new(work, meter))
        }),
        (Role::Sender, 16) => connected(end, &payload, move |end, theirs| {
            Spread::<16>::over(end, memory, theirs).map(|work| Initiator::new(work, meter))
        }),
        _ => Err(ArmError(format!("chains of {chain} requests: 1 or 16"))),
    }
}

/// WRITEs of `size` bytes into memory that the other end did not get from its device, or as many bytes
/// by the bare system call.
pub fn foreign(
    task: &Task,
    (size, over): (usize, Over),
    role: Role,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    let shape = Shape {
        queue_pairs: 1,
        caps: QpCaps::default(),
        cq_depth: 256,
        shared_receives: 0,
        channel: false,
    };
    let mut end = end::open(handed, &shape)?;
    end.populate(&shape)?;
    // A system call takes so long that reading the clock beside it does not count.
    let meter = Meter::new(task, 1000);
    match role {
        Role::Receiver => {
            let buffer: std::sync::Arc<dyn Buffer> = HeapBuffer::new(size);
            let region = end
                .pd
                .register(&buffer, Access::ALL)
                .map_err(|e| ArmError::at("registering memory from elsewhere", e))?;
            if region.atomic_aligned_8() {
                return Err(ArmError("the memory is the device's own".into()));
            }
            let memory = Memory::over(region);
            let us = RemoteAddr {
                addr: 0,
                rkey: std::process::id(),
            };
            let payload = emit(&[memory.region().remote(0), us]);
            connected(end, &payload, move |end, _| {
                Ok(Target {
                    memory,
                    holds: Holds::Last(size),
                    _end: end,
                })
            })
        }
        Role::Sender => {
            let source = end.memory(size)?;
            connected(end, &[], move |end, theirs| {
                let [target, process] = parse(theirs)?;
                let (pid, number) = (process.rkey, 0);
                let work: Box<dyn Work> = match over {
                    Over::Verbs => Box::new(Across {
                        end,
                        source,
                        size,
                        target,
                        number,
                    }),
                    Over::SystemCall => Box::new(Bare {
                        _end: end,
                        source: vec![0; size],
                        target: target.addr,
                        pid,
                        number,
                        written: 0,
                    }),
                };
                Ok(Initiator::new(work, meter))
            })
        }
    }
}

impl Work for Box<dyn Work> {
    fn once(&mut self) -> Result<u64, ArmError> {
        (**self).once()
    }
    fn finish(&mut self) -> Result<(), ArmError> {
        (**self).finish()
    }
}

/// Takes the completions that are there; says how many.
fn completed(end: &End) -> Result<usize, ArmError> {
    let mut found = [Completion::default(); 16];
    let count = end
        .send_cq
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

/// What the last word of a place holds, before and after.
const fn last_word(place: usize) -> u64 {
    !(place as u64)
}

struct Spread<const CHAIN: usize> {
    end: End,
    source: Memory,
    target: RemoteAddr,
    /// WRITEs posted.
    posted: u64,
    /// Chains posted.
    chains: u64,
    /// Signalled ones that were not polled.
    open: u64,
    /// The queue pair that is next, and how often all of them had their turn.
    next: usize,
    turn: u64,
}

impl<const CHAIN: usize> Spread<CHAIN> {
    fn over(end: End, source: Memory, theirs: &[u8]) -> Result<Self, ArmError> {
        let [target] = parse(theirs)?;
        for place in 0..PLACES {
            let last = source.word(place * SIZE + SIZE - 8);
            last.store(last_word(place), Ordering::Relaxed);
        }
        Ok(Self {
            end,
            source,
            target,
            posted: 0,
            chains: 0,
            open: 0,
            next: 0,
            turn: 0,
        })
    }
}

impl<const CHAIN: usize> Work for Spread<CHAIN> {
    #[inline]
    fn once(&mut self) -> Result<u64, ArmError> {
        let first = self.posted;
        let place = |index: usize| (first as usize + index) % PLACES * SIZE;
        let sges: [_; CHAIN] =
            std::array::from_fn(|index| [self.source.region().sge(place(index), SIZE as u32)]);
        // The last of a chain, once in so many of its queue pair's, which are out of step.
        let chains = (SIGNAL_EVERY / CHAIN as u64).max(1);
        let signalled = (self.turn + self.next as u64 + 1).is_multiple_of(chains);
        let wrs: [_; CHAIN] = std::array::from_fn(|index| {
            let (number, place) = (first + index as u64, place(index));
            self.source.word(place).store(number, Ordering::Relaxed);
            SendWr {
                wr_id: number,
                op: SendOp::Write(self.target.plus(place as u64)),
                payload: Payload::Gather(&sges[index]),
                flags: match signalled && index + 1 == CHAIN {
                    true => SendFlags::SIGNALED,
                    false => SendFlags::NONE,
                },
            }
        });
        self.end.queue_pairs[self.next]
            .post_send(&wrs)
            .map_err(|e| ArmError::at("posting", e))?;
        self.posted += CHAIN as u64;
        self.chains += 1;
        self.next += 1;
        if self.next == self.end.queue_pairs.len() {
            self.next = 0;
            self.turn += 1;
        }
        self.open += u64::from(signalled);
        if self.chains.is_multiple_of(chains) {
            self.open -= completed(&self.end)? as u64;
        }
        Ok(CHAIN as u64)
    }

    fn finish(&mut self) -> Result<(), ArmError> {
        while self.open > 0 {
            self.open -= completed(&self.end)? as u64;
        }
        // Each has done its share.
        let all = self.end.queue_pairs.len() as u64;
        for (at, qp) in (0..).zip(&self.end.queue_pairs) {
            let chains = self.chains / all + u64::from(at < self.chains % all);
            let share = chains * CHAIN as u64;
            if let Some(counted) = qp.counters()
                && counted.sends_posted != share
            {
                let posted = counted.sends_posted;
                return Err(ArmError(format!(
                    "queue pair {at} of {all} posted {posted} of {share} WRITEs"
                )));
            }
        }
        Ok(())
    }
}

struct Across {
    end: End,
    source: Memory,
    size: usize,
    target: RemoteAddr,
    number: u64,
}

impl Across {
    fn post(&mut self, flags: SendFlags) -> Result<(), ArmError> {
        self.source.word(0).store(self.number, Ordering::Relaxed);
        let last = self.source.word(self.size - 8);
        last.store(self.number, Ordering::Relaxed);
        let sges = [self.source.region().sge(0, self.size as u32)];
        let wr = SendWr {
            wr_id: self.number,
            op: SendOp::Write(self.target),
            payload: Payload::Gather(&sges),
            flags,
        };
        let posted = self.end.queue_pairs[0].post_send(&[wr]);
        posted.map_err(|e| ArmError::at("posting", e))?;
        self.number += 1;
        Ok(())
    }
}

impl Work for Across {
    fn once(&mut self) -> Result<u64, ArmError> {
        if !self.number.is_multiple_of(SIGNAL_EVERY) {
            return self.post(SendFlags::NONE).map(|()| 1);
        }
        self.post(SendFlags::SIGNALED)?;
        while completed(&self.end)? == 0 {
            std::hint::spin_loop();
        }
        Ok(1)
    }

    fn finish(&mut self) -> Result<(), ArmError> {
        self.post(SendFlags::SIGNALED)?;
        while completed(&self.end)? == 0 {
            std::hint::spin_loop();
        }
        let posted = self.end.queue_pairs[0].counters().map(|c| c.sends_posted);
        match posted {
            Some(posted) if posted != self.number => Err(ArmError(format!(
                "{posted} of {} WRITEs were posted",
                self.number
            ))),
            _ => Ok(()),
        }
    }
}

struct Bare {
    source: Vec<u8>,
    target: u64,
    pid: u32,
    number: u64,
    /// Bytes, in all.
    written: u64,
    _end: End,
}

impl Work for Bare {
    fn once(&mut self) -> Result<u64, ArmError> {
        let number = self.number.to_ne_bytes();
        let size = self.source.len();
        self.source[..8].copy_from_slice(&number);
        self.source[size - 8..].copy_from_slice(&number);
        let wrote = kernel::write_across(self.pid, self.target, &self.source);
        if wrote.map_err(|e| ArmError::at("process_vm_writev", e))? != size {
            return Err(ArmError("process_vm_writev wrote a part".into()));
        }
        self.written += size as u64;
        self.number += 1;
        Ok(1)
    }

    fn finish(&mut self) -> Result<(), ArmError> {
        self.once()?;
        match self.written == self.number * self.source.len() as u64 {
            true => Ok(()),
            false => Err(ArmError(format!(
                "{} bytes were written by {} calls",
                self.written, self.number
            ))),
        }
    }
}

struct Initiator<W> {
    work: W,
    meter: Meter,
    count: u64,
    over: bool,
}

impl<W: Work> Initiator<W> {
    fn new(work: W, meter: Meter) -> Self {
        Self {
            work,
            meter,
            count: 0,
            over: false,
        }
    }
}

impl<W: Work> Part for Initiator<W> {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        if self.over {
            return Ok(match env.mailed() {
                Some(_) => Turn::Done(self.meter.report()),
                None => Turn::Wait,
            });
        }
        for _ in 0..BATCH {
            self.count += self.work.once()?;
        }
        self.over = self.meter.count(self.count, env);
        if self.over {
            self.work.finish()?;
            env.mail(&self.count.to_le_bytes())?;
        }
        Ok(Turn::Again)
    }
}

/// What the memory holds after so many.
#[derive(Clone, Copy)]
enum Holds {
    /// In each of [`PLACES`] the number of the last WRITE that went there, and the place's last word.
    Places,
    /// In the first and last of so many bytes the number of the last one of all, which came after
    /// those that were counted.
    Last(usize),
}

struct Target {
    memory: Memory,
    holds: Holds,
    _end: End,
}

impl Part for Target {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        let Some(mail) = env.mailed() else {
            return Ok(Turn::Wait);
        };
        let count = mail.try_into().map(u64::from_le_bytes);
        let count = count.map_err(|_| ArmError("no count in the mail".into()))?;
        let holds = |offset: usize, number: u64| {
            let found = self.memory.word(offset).load(Ordering::Acquire);
            match found == number {
                true => Ok(()),
                false => Err(ArmError(format!(
                    "{found} at byte {offset} after {count}, expected {number}"
                ))),
            }
        };
        match self.holds {
            Holds::Places => {
                for number in count.saturating_sub(PLACES as u64)..count {
                    let place = number as usize % PLACES;
                    holds(place * SIZE, number)?;
                    holds(place * SIZE + SIZE - 8, last_word(place))?;
                }
            }
            Holds::Last(size) => {
                holds(0, count)?;
                holds(size - 8, count)?;
            }
        }
        env.mail(b"checked")?;
        Ok(Turn::Done(Report::None))
    }
}
