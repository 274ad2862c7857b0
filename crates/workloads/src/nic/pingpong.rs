//! A message there and one back, by one verb: half of that is its latency, as perftest has it.
//!
//! A WRITE is seen by its last word, which is polled (perftest polls the last byte). On a device that places bytes out
//! of order that says no more than that this word came. SENDs and WRITEs with immediate are seen by their completions.

use std::sync::atomic::Ordering;

use headworks::verbs::{Completion, Duration, Instant};

use super::end::{self, connected, emit, parse};
use super::loaded::{self, Load};
use super::meter::Timed;
use super::source::{Source, polled, receive};
use super::{Task, What};
use crate::latency::{Histogram, Quantiles};
use crate::transports::connect::Role;
use crate::transports::job::Report;
use crate::transports::part::Part;
use crate::transports::{ArmError, Env, Turn};
use crate::world::{Handed, Place};

/// Receives that are posted at a time.
const RECEIVES: u32 = 16;
/// Sends that may be outstanding: their completions are taken while the answer is on its way.
const SENDS: u32 = 16;

/// Half the time from a message to its answer, over the second time after the first, of a verb that is not answered by
/// itself; `None` if there was none.
pub fn half_round_trip(
    load: &Load,
    place: &Place<'_>,
    times: (Duration, Duration),
) -> Result<Option<Quantiles>, ArmError> {
    let found = loaded::times(place, What::PingPong(*load), 1, times)?;
    Ok(found.first().copied())
}

/// The part of `load` that has `role`.
pub fn part(
    task: &Task,
    load: Load,
    role: Role,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    if load.verb.is_answered() || load.size < 8 || !load.size.is_multiple_of(8) {
        return Err(ArmError(format!("no ping-pong of {load}")));
    }
    let load = Load {
        queue_pairs: 1,
        ..load
    };
    let mut shape = loaded::loaded_shape(&load, SENDS.max(RECEIVES), RECEIVES);
    shape.caps.max_send_wr = SENDS;
    let end = end::open(handed, &shape)?;
    // What is sent, and where the other end's messages go.
    let memory = end.memory(2 * load.size)?;
    let payload = emit(&[memory.region().remote(load.size)]);
    let timed = Timed::new(task);
    connected(end, &payload, move |end, theirs| {
        let [target] = parse(theirs)?;
        let player = Player {
            role,
            source: Source::new(load, end, memory, target),
            sent: 0,
            seen: 0,
            outstanding: 0,
            timed,
            sent_at: Instant::ZERO,
            times: Histogram::default(),
        };
        for _ in 0..RECEIVES {
            player.receive()?;
        }
        Ok(player)
    })
}

/// Either end.
struct Player {
    role: Role,
    source: Source,
    /// Messages sent and seen, ever: the number of a message is its last word.
    sent: u64,
    seen: u64,
    outstanding: usize,
    timed: Timed,
    sent_at: Instant,
    times: Histogram,
}

impl Player {
    fn receive(&self) -> Result<(), ArmError> {
        let Source { end, memory, .. } = &self.source;
        let size = self.source.load.size;
        receive::<1>(end, memory, size, &[0], |_| size)
    }

    fn send(&mut self, env: &mut dyn Env) -> Result<(), ArmError> {
        let Load { size, inline, .. } = self.source.load;
        env.charge(self.source.load.work());
        self.sent += 1;
        match inline {
            true => self.source.bytes[size - 8..].copy_from_slice(&self.sent.to_ne_bytes()),
            false => {
                let last = self.source.memory.word(size - 8);
                last.store(self.sent, Ordering::Relaxed);
            }
        }
        self.source.post::<1>(0, self.sent, |_| 0, |_| true)?;
        self.outstanding += 1;
        Ok(())
    }

    /// Takes completions of what was sent; whether more may be.
    fn has_room(&mut self) -> Result<bool, ArmError> {
        if self.outstanding > 0 {
            self.outstanding -= self.source.completed()?;
        }
        Ok(self.outstanding < SENDS as usize)
    }

    /// Whether the next message has come.
    fn has_come(&self) -> Result<bool, ArmError> {
        let last = self.source.memory.word(2 * self.source.load.size - 8);
        let next = self.seen + 1;
        if self.source.end.srq.is_none() {
            return Ok(last.load(Ordering::Acquire) == next);
        }
        let mut found = [Completion::default()];
        if polled(&*self.source.end.recv_cq, &mut found)?.is_empty() {
            return Ok(false);
        }
        let number = last.load(Ordering::Acquire);
        match number == next {
            true => self.receive().map(|()| true),
            false => Err(ArmError(format!("message {next} reads {number}"))),
        }
    }
}

impl Part for Player {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        let leads = self.role == Role::Sender;
        if leads && self.sent == 0 {
            self.sent_at = env.now();
            self.send(env)?;
        }
        if self.has_room()? && self.has_come()? {
            let now = env.now();
            self.seen += 1;
            if self.timed.is_warm(now) {
                self.times.record(now.since(self.sent_at));
            }
            self.sent_at = now;
            if leads && self.timed.is_over(now) {
                return loaded::finished(env, Report::Latency(self.times.quantiles(0.5)));
            }
            self.send(env)?;
        }
        match !leads && env.mailed().is_some() {
            true => Ok(Turn::Done(Report::None)),
            false => Ok(Turn::Again),
        }
    }
}
