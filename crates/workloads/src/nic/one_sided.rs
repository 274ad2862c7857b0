//! One end writes to memory of the other, which is passive and checks at the end what arrived. There are
//! WRITEs over one queue pair or spread over many, and WRITEs into memory that did not come from the device,
//! compared with the bare system call.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use headworks::verbs::memory_region::HeapBuffer;
use headworks::verbs::{Access, Buffer};
use headworks_baselines::{WordMemory, kernel};

use super::endpoint::acting;
use super::rate_meter::RateMeter;
use super::repeated_work::{RepeatedWork, repeating};
use super::requester::{Requester, shape};
use super::{Made, RemoteWritePath, Setup, Verb, VerbLoad, bad_chain};
use crate::actor_pair::{PairMail, Role, wait};
use crate::error::{Result, WorkloadError};
use crate::report::Report;

/// Length of a small WRITE, in bytes.
pub const SIZE: usize = 64;
/// Number of places that small WRITEs go to in turn: with as many queue pairs, each has a place of its own.
pub const PLACES: usize = 1000;
/// One of this many requests of a queue pair is signalled. The queue pairs are out of step with each other.
pub const SIGNAL_EVERY: u64 = 32;

/// Makes the actor for WRITEs of [`SIZE`] bytes, round robin over `queue_pairs` queue pairs, in chains.
pub(super) fn spread(queue_pairs: usize, chain: usize, setup: &Setup<'_>) -> Made {
    let load = VerbLoad::of(Verb::Write, SIZE);
    let source = setup.source(load, &shape(queue_pairs, 4096), PLACES * SIZE)?;
    let meter = RateMeter::new(setup.task, 4 * PLACES as u64 * SIGNAL_EVERY);
    let offered = source.offer(0);
    match (setup.pair.role, chain) {
        (Role::Receiver, _) => source.connect(offered, |source| target(source, holds_places)),
        (_, 1) => source.connect(offered, |source| {
            repeating(Spread::<1>::over(source), meter)
        }),
        (_, 16) => source.connect(offered, |source| {
            repeating(Spread::<16>::over(source), meter)
        }),
        _ => Err(bad_chain(chain)),
    }
}

/// Makes the actor for WRITEs of `size` bytes into memory that the other end did not get from its device, or
/// for as many bytes by the bare system call.
pub(super) fn foreign(size: usize, over: RemoteWritePath, setup: &Setup<'_>) -> Made {
    let mut source = setup.source(VerbLoad::of(Verb::Write, size), &shape(1, 256), size)?;
    let meter = RateMeter::new(setup.task, 1000);
    if setup.pair.role == Role::Sender {
        let (offered, number) = (source.offer(0), 0);
        return source.connect(offered, move |source| {
            let across = RemoteCopy {
                source,
                over,
                number,
            };
            repeating(across, meter)
        });
    }
    let buffer: Arc<dyn Buffer> = HeapBuffer::new(size);
    let region = source.end.pd.register(&buffer, Access::ALL);
    let region = region.map_err(|e| WorkloadError::at("registering memory from elsewhere", e))?;
    if region.atomic_aligned_8() {
        return Err(WorkloadError("the memory is the device's own".into()));
    }
    source.memory = WordMemory::over(region);
    let mut offered = source.offer(0);
    if over == RemoteWritePath::SystemCall {
        // The system call takes the process id in place of the key.
        offered.rkey = std::process::id();
    }
    source.connect(offered, |source| target(source, holds_last))
}

/// Returns the constant that the last word of a place holds, in the source and in the target.
const fn last_word(place: usize) -> u64 {
    !(place as u64)
}

struct Spread<const CHAIN: usize> {
    source: Requester,
    /// Number of chains posted.
    chains: u64,
    /// Number of signalled chains whose completion was not polled.
    open: u64,
    /// Index of the next queue pair; `turn` counts the completed rounds over all queue pairs.
    next: usize,
    turn: u64,
}

impl<const CHAIN: usize> Spread<CHAIN> {
    fn over(source: Requester) -> Self {
        for place in 0..PLACES {
            let last = source.memory.word(place * SIZE + SIZE - 8);
            last.store(last_word(place), Ordering::Relaxed);
        }
        Self {
            source,
            chains: 0,
            open: 0,
            next: 0,
            turn: 0,
        }
    }
}

impl<const CHAIN: usize> RepeatedWork for Spread<CHAIN> {
    #[inline]
    fn once(&mut self) -> Result<u64> {
        let first = self.chains * CHAIN as u64;
        let place = |number: u64| number as usize % PLACES * SIZE;
        for number in first..first + CHAIN as u64 {
            let word = self.source.memory.word(place(number));
            word.store(number, Ordering::Relaxed);
        }
        // The last request of every `chains`th chain of a queue pair is signalled. The queue pairs are out of
        // step.
        let chains = (SIGNAL_EVERY / CHAIN as u64).max(1);
        let signalled = (self.turn + self.next as u64 + 1).is_multiple_of(chains);
        let last = first + CHAIN as u64 - 1;
        let is_signalled = |number| signalled && number == last;
        self.source
            .write::<CHAIN>(self.next, first, place, is_signalled)?;
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

    fn finish(&mut self) -> Result<()> {
        while self.open > 0 {
            self.open -= self.source.completed()? as u64;
        }
        // Each queue pair must have posted its share.
        let all = self.source.end.queue_pairs.len() as u64;
        for at in 0..all {
            let chains = self.chains / all + u64::from(at < self.chains % all);
            posted(&self.source, at as usize, chains * CHAIN as u64)?;
        }
        Ok(())
    }
}

/// Checks how many requests a queue pair has counted, if it has counters.
fn posted(source: &Requester, at: usize, expected: u64) -> Result<()> {
    let counters = source.end.queue_pairs[at].counters();
    match counters.map(|counted| counted.sends_posted) {
        Some(posted) if posted != expected => Err(WorkloadError(format!(
            "queue pair {at} posted {posted} of {expected} WRITEs"
        ))),
        _ => Ok(()),
    }
}

/// Writes to one place. The first and the last word hold the number of the write.
struct RemoteCopy {
    source: Requester,
    over: RemoteWritePath,
    number: u64,
}

impl RemoteCopy {
    fn write(&mut self, signalled: bool) -> Result<u64> {
        let (number, source) = (self.number, &mut self.source);
        let last = source.load.size - 8;
        self.number += 1;
        match self.over {
            RemoteWritePath::Verbs => {
                for word in [0, last] {
                    source.memory.word(word).store(number, Ordering::Relaxed);
                }
                source.post::<1>(0, number, |_| 0, |_| signalled)?;
                if signalled {
                    source.wait()?;
                }
            }
            RemoteWritePath::SystemCall => {
                for word in [0, last] {
                    source.bytes[word..][..8].copy_from_slice(&number.to_ne_bytes());
                }
                let to = source.target;
                let wrote = kernel::write_across(to.rkey, to.addr, &source.bytes);
                let wrote = wrote.map_err(|e| WorkloadError::at("process_vm_writev", e))?;
                if wrote != source.bytes.len() {
                    return Err(WorkloadError("process_vm_writev wrote only a part".into()));
                }
            }
        }
        Ok(1)
    }
}

impl RepeatedWork for RemoteCopy {
    #[inline]
    fn once(&mut self) -> Result<u64> {
        self.write(self.number.is_multiple_of(SIGNAL_EVERY))
    }

    fn finish(&mut self) -> Result<()> {
        self.write(true)?;
        match self.over {
            RemoteWritePath::Verbs => posted(&self.source, 0, self.number),
            RemoteWritePath::SystemCall => Ok(()),
        }
    }
}

/// Makes the end that is written to. Once the other end has mailed how many WRITEs it counted, `holds` checks
/// the memory.
fn target(source: Requester, holds: fn(&Requester, u64) -> Result<()>) -> Made {
    acting(move |cx| {
        let Some(mail) = cx.receive_mail() else {
            return Ok(wait());
        };
        holds(&source, super::number(mail)?)?;
        cx.send_mail(b"checked")?;
        cx.done(&Report::None)
    })
}

/// Checks a word of the target's memory after `count` WRITEs.
fn check(source: &Requester, count: u64, offset: usize, expected: u64) -> Result<()> {
    let found = source.memory.word(offset).load(Ordering::Acquire);
    match found == expected {
        true => Ok(()),
        false => Err(WorkloadError(format!(
            "{found} at byte {offset} after {count}, expected {expected}"
        ))),
    }
}

/// Checks that each of [`PLACES`] places holds the number of the last WRITE to it, and its last word.
fn holds_places(source: &Requester, count: u64) -> Result<()> {
    for number in count.saturating_sub(PLACES as u64)..count {
        let place = number as usize % PLACES;
        check(source, count, place * SIZE, number)?;
        check(source, count, place * SIZE + SIZE - 8, last_word(place))?;
    }
    Ok(())
}

/// Checks that the first and the last word hold the number of the final WRITE, which follows the `count`
/// counted ones.
fn holds_last(source: &Requester, count: u64) -> Result<()> {
    check(source, count, 0, count)?;
    check(source, count, source.load.size - 8, count)
}
