//! One end works on memory of the other, which sits and checks at the end what arrived: WRITEs over one queue pair or
//! spread over many, and WRITEs into memory that did not come from the device beside the bare system call.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headworks::verbs::memory::HeapBuffer;
use headworks::verbs::{Access, Buffer, RemoteAddr};
use headworks_baselines::{Memory, kernel};

use super::end::{End, connected, emit, parse};
use super::loaded::{Load, Verb};
use super::meter::Meter;
use super::source::{Source, shape};
use super::work::{Work, Worker};
use super::{Made, Over, Setup, bad_chain};
use crate::error::WorkloadError;
use crate::pair::Role;
use crate::pair::{PairCx, wait};
use crate::report::Report;
use headworks_stage::{Actor, ActorError, Cx, Step};

/// Bytes of a small WRITE.
pub const SIZE: usize = 64;
/// Small WRITEs go round so many places: with as many queue pairs each has one of its own.
pub const PLACES: usize = 1000;
/// One request in so many of a queue pair is signalled, not all queue pairs at the same time.
pub const SIGNAL_EVERY: u64 = 32;

/// WRITEs of [`SIZE`] bytes round robin over `queue_pairs`, in chains.
pub(super) fn spread(queue_pairs: usize, chain: usize, setup: &Setup<'_>) -> Made {
    let end = setup.open(&shape(queue_pairs, 4096))?;
    let memory = end.memory(PLACES * SIZE)?;
    let payload = emit(&[memory.region().remote(0)]);
    let meter = Meter::new(setup.task, 4 * PLACES as u64 * SIGNAL_EVERY);
    match (setup.pair.role, chain) {
        (Role::Receiver, _) => connected(end, &payload, move |end, _| {
            Ok(Target {
                memory,
                holds: Holds::Places,
                _end: end,
            })
        }),
        (Role::Sender, 1) => connected(end, &payload, move |end, theirs| {
            Spread::<1>::over(end, memory, theirs).map(|work| Worker::new(work, meter))
        }),
        (Role::Sender, 16) => connected(end, &payload, move |end, theirs| {
            Spread::<16>::over(end, memory, theirs).map(|work| Worker::new(work, meter))
        }),
        (Role::Sender, _) => Err(bad_chain(chain)),
    }
}

/// WRITEs of `size` bytes into memory that the other end did not get from its device, or as many bytes by the bare system
/// call.
pub(super) fn foreign(size: usize, over: Over, setup: &Setup<'_>) -> Made {
    let end = setup.open(&shape(1, 256))?;
    // A system call takes so long that reading the clock beside it does not count.
    let meter = Meter::new(setup.task, 1000);
    match setup.pair.role {
        Role::Receiver => {
            let buffer: Arc<dyn Buffer> = HeapBuffer::new(size);
            let region = end.pd.register(&buffer, Access::ALL);
            let region =
                region.map_err(|e| WorkloadError::at("registering memory from elsewhere", e))?;
            if region.atomic_aligned_8() {
                return Err(WorkloadError("the memory is the device's own".into()));
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
            let memory = end.memory(size)?;
            connected(end, &[], move |end, theirs| {
                let [target, process] = parse(theirs)?;
                let load = Load::of(Verb::Write, size);
                let source = Source::new(load, end, memory, target);
                let work: Box<dyn Work> = match over {
                    Over::Verbs => Box::new(Across { source, number: 0 }),
                    Over::SystemCall => Box::new(Bare {
                        source,
                        pid: process.rkey,
                        number: 0,
                    }),
                };
                Ok(Worker::new(work, meter))
            })
        }
    }
}

/// What the last word of a place holds, before and after.
const fn last_word(place: usize) -> u64 {
    !(place as u64)
}

struct Spread<const CHAIN: usize> {
    source: Source,
    /// Chains posted.
    chains: u64,
    /// Signalled ones that were not polled.
    open: u64,
    /// The queue pair that is next, and how often all of them had their turn.
    next: usize,
    turn: u64,
}

impl<const CHAIN: usize> Spread<CHAIN> {
    fn over(end: End, memory: Memory, theirs: &[u8]) -> Result<Self, WorkloadError> {
        let [target] = parse(theirs)?;
        for place in 0..PLACES {
            let last = memory.word(place * SIZE + SIZE - 8);
            last.store(last_word(place), Ordering::Relaxed);
        }
        Ok(Self {
            source: Source::new(Load::of(Verb::Write, SIZE), end, memory, target),
            chains: 0,
            open: 0,
            next: 0,
            turn: 0,
        })
    }
}

impl<const CHAIN: usize> Work for Spread<CHAIN> {
    #[inline]
    fn once(&mut self) -> Result<u64, WorkloadError> {
        let first = self.chains * CHAIN as u64;
        let place = |number: u64| number as usize % PLACES * SIZE;
        for number in first..first + CHAIN as u64 {
            let word = self.source.memory.word(place(number));
            word.store(number, Ordering::Relaxed);
        }
        // The last of a chain, once in so many of its queue pair's, which are out of step.
        let chains = (SIGNAL_EVERY / CHAIN as u64).max(1);
        let signalled = (self.turn + self.next as u64 + 1).is_multiple_of(chains);
        let last = first + CHAIN as u64 - 1;
        let is_signalled = |number| signalled && number == last;
        self.source
            .post::<CHAIN>(self.next, first, place, is_signalled)?;
        self.chains += 1;
        self.next += 1;
        if self.next == self.source.end.queue_pairs.len() {
            self.next = 0;
            self.turn += 1;
        }
        self.open += u64::from(signalled);
        if self.chains.is_multiple_of(chains) {
            self.open -= self.source.completed()? as u64;
        }
        Ok(CHAIN as u64)
    }

    fn finish(&mut self) -> Result<(), WorkloadError> {
        while self.open > 0 {
            self.open -= self.source.completed()? as u64;
        }
        // Each has done its share.
        let all = self.source.end.queue_pairs.len() as u64;
        for at in 0..all {
            let chains = self.chains / all + u64::from(at < self.chains % all);
            posted(&self.source, at as usize, chains * CHAIN as u64)?;
        }
        Ok(())
    }
}

/// Checks what a queue pair has counted, if it counts.
fn posted(source: &Source, at: usize, expected: u64) -> Result<(), WorkloadError> {
    let counters = source.end.queue_pairs[at].counters();
    match counters.map(|counted| counted.sends_posted) {
        Some(posted) if posted != expected => Err(WorkloadError(format!(
            "queue pair {at} posted {posted} of {expected} WRITEs"
        ))),
        _ => Ok(()),
    }
}

/// Number `number` in the first and in the last word of what is written.
fn stamp(source: &Source, number: u64) {
    for word in [0, source.load.size - 8] {
        source.memory.word(word).store(number, Ordering::Relaxed);
    }
}

struct Across {
    source: Source,
    number: u64,
}

impl Across {
    fn post(&mut self, signalled: bool) -> Result<u64, WorkloadError> {
        stamp(&self.source, self.number);
        self.source
            .post::<1>(0, self.number, |_| 0, |_| signalled)?;
        if signalled {
            self.source.wait()?;
        }
        self.number += 1;
        Ok(1)
    }
}

impl Work for Across {
    fn once(&mut self) -> Result<u64, WorkloadError> {
        self.post(self.number.is_multiple_of(SIGNAL_EVERY))
    }

    fn finish(&mut self) -> Result<(), WorkloadError> {
        self.post(true)?;
        posted(&self.source, 0, self.number)
    }
}

struct Bare {
    source: Source,
    pid: u32,
    number: u64,
}

impl Work for Bare {
    fn once(&mut self) -> Result<u64, WorkloadError> {
        let number = self.number.to_ne_bytes();
        let bytes = &mut self.source.bytes;
        let size = bytes.len();
        bytes[..8].copy_from_slice(&number);
        bytes[size - 8..].copy_from_slice(&number);
        let wrote = kernel::write_across(self.pid, self.source.target.addr, bytes);
        if wrote.map_err(|e| WorkloadError::at("process_vm_writev", e))? != size {
            return Err(WorkloadError("process_vm_writev wrote a part".into()));
        }
        self.number += 1;
        Ok(1)
    }

    fn finish(&mut self) -> Result<(), WorkloadError> {
        self.once().map(drop)
    }
}

/// What the memory holds after so many.
#[derive(Clone, Copy)]
enum Holds {
    /// In each of [`PLACES`] the number of the last WRITE that went there, and the place's last word.
    Places,
    /// In the first and last of so many bytes the number of the last one of all, which came after those that were
    /// counted.
    Last(usize),
}

struct Target {
    memory: Memory,
    holds: Holds,
    _end: End,
}

impl Actor for Target {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let Some(mail) = cx.mailed() else {
            return Ok(wait());
        };
        let count = super::number(mail)?;
        let holds = |offset: usize, number: u64| {
            let found = self.memory.word(offset).load(Ordering::Acquire);
            match found == number {
                true => Ok(()),
                false => Err(WorkloadError(format!(
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
        cx.mail(b"checked")?;
        cx.done(&Report::None)
    }
}
