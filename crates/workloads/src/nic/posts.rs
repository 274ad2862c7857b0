//! WRITEs of 64 bytes by one queue pair, each call timed by itself: from its posting to its completions' being polled.

use headworks::verbs::{Completion, Duration};
use headworks_baselines::Memory;

use super::end::{self, End, connected, emit, parse};
use super::loaded::{self, Load, Verb};
use super::meter::Timed;
use super::source::{Source, shape};
use super::{Task, What, bad_chain};
use crate::latency::{Histogram, Quantiles};
use crate::transports::connect::Role;
use crate::transports::job::Report;
use crate::transports::part::Part;
use crate::transports::{ArmError, Env, Turn};
use crate::world::{Handed, Place};

/// Bytes of a WRITE.
const SIZE: usize = 64;
/// Places that are written in turn.
const PLACES: usize = 64;
/// Requests of a call, at most.
pub const CHAIN_MAX: usize = 16;
/// Calls of a step.
const CALLS: usize = 64;

/// What a call of `chain` requests (1 or [`CHAIN_MAX`]) takes with all that is polled of it, over the second time after
/// the first; `None` if there was none.
pub fn call(
    place: &Place<'_>,
    chain: usize,
    times: (Duration, Duration),
) -> Result<Option<Quantiles>, ArmError> {
    let found = loaded::times(place, What::Posts { chain }, 1, times)?;
    Ok(found.first().copied())
}

/// The part that has `role`: the receiver's memory is written, and it does nothing.
pub fn part(
    task: &Task,
    chain: usize,
    role: Role,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    let mut shape = shape(1, CHAIN_MAX as u32);
    shape.caps.max_send_wr = CHAIN_MAX as u32;
    let end = end::open(handed, &shape)?;
    let memory = end.memory(SIZE * PLACES)?;
    let payload = emit(&[memory.region().remote(0)]);
    let timed = Timed::new(task);
    match (role, chain) {
        (Role::Receiver, _) => connected(end, &payload, move |end, _| {
            Ok(Bystander {
                _end: end,
                _memory: memory,
            })
        }),
        (Role::Sender, 1) => connected(end, &payload, move |end, theirs| {
            Poster::<1>::new(end, memory, theirs, timed)
        }),
        (Role::Sender, CHAIN_MAX) => connected(end, &payload, move |end, theirs| {
            Poster::<CHAIN_MAX>::new(end, memory, theirs, timed)
        }),
        (Role::Sender, _) => Err(bad_chain(chain)),
    }
}

/// Is written to, and sleeps: polling would slow down the end that posts where both share a core.
struct Bystander {
    _end: End,
    _memory: Memory,
}

impl Part for Bystander {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        match env.mailed().is_some() {
            true => Ok(Turn::Done(Report::None)),
            false => Ok(Turn::Idle),
        }
    }
}

/// Writes, in chains.
struct Poster<const CHAIN: usize> {
    source: Source,
    timed: Timed,
    posted: u64,
    times: Histogram,
}

impl<const CHAIN: usize> Poster<CHAIN> {
    fn new(end: End, memory: Memory, theirs: &[u8], timed: Timed) -> Result<Self, ArmError> {
        let [target] = parse(theirs)?;
        Ok(Self {
            source: Source::new(Load::of(Verb::Write, SIZE), end, memory, target),
            timed,
            posted: 0,
            times: Histogram::default(),
        })
    }

    fn call(&mut self) -> Result<(), ArmError> {
        let place = |number| number as usize % PLACES * SIZE;
        self.source.post::<CHAIN>(0, self.posted, place, |_| true)?;
        let end = self.posted + CHAIN as u64;
        let mut found = [Completion::default(); CHAIN];
        while self.posted < end {
            for done in self.source.poll(&mut found)? {
                if done.wr_id != self.posted {
                    let (expected, wr_id) = (self.posted, done.wr_id);
                    return Err(ArmError(format!("request {expected} ended as {wr_id}")));
                }
                self.posted += 1;
            }
        }
        Ok(())
    }
}

impl<const CHAIN: usize> Part for Poster<CHAIN> {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        let mut before = env.now();
        self.timed.begin(before);
        for _ in 0..CALLS {
            self.call()?;
            let after = env.now();
            if self.timed.is_warm(after) {
                self.times.record(after.since(before));
            }
            before = after;
        }
        match self.timed.is_over(before) {
            true => loaded::finished(env, Report::Latency(self.times.quantiles(1.0))),
            false => Ok(Turn::Again),
        }
    }
}
