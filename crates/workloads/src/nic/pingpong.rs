//! A message there and one back, by one verb: half of that is its latency, as perftest has it.
//!
//! A WRITE is seen by its last word, which is polled (perftest polls the last byte): on a device that places bytes
//! out of order that says no more than that this word came. SENDs and WRITEs with immediate are seen by their
//! completions.

use std::sync::atomic::Ordering;

use headworks::verbs::{
    Completion, Duration, Instant, Payload, QpCaps, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr,
};
use headworks_baselines::Memory;

use super::end::{self, End, Shape, connected, emit, parse};
use super::loaded::{self, Load, Verb, polled};
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

/// Half the time from a message to its answer, over `run` after `warm`, of a verb that is not answered by itself;
/// `None` if there was none.
pub fn half_round_trip(
    load: &Load,
    place: &Place<'_>,
    times: (Duration, Duration),
) -> Result<Option<Quantiles>, ArmError> {
    let reports = loaded::play(place, What::PingPong(*load), 1, times)?;
    Ok(reports.into_iter().find_map(|[sent, _]| match sent {
        Report::Latency(found) if found.count > 0 => Some(found),
        _ => None,
    }))
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
    let shape = Shape {
        queue_pairs: 1,
        caps: QpCaps {
            max_send_wr: SENDS,
            max_recv_wr: 1,
            max_inline: if load.inline { load.size as u32 } else { 0 },
            ..QpCaps::default()
        },
        cq_depth: SENDS.max(RECEIVES),
        shared_receives: if load.verb.is_received() { RECEIVES } else { 0 },
        channel: false,
    };
    let mut end = end::open(handed, &shape)?;
    end.populate(&shape)?;
    // What is sent, and where what is sent here goes.
    let memory = end.memory(2 * load.size)?;
    let payload = emit(&[memory.region().remote(load.size)]);
    let warm = Duration::from_nanos(task.warm().nanos());
    let over = warm + Duration::from_nanos(task.run().nanos());
    connected(end, &payload, move |end, theirs| {
        let [target] = parse(theirs)?;
        let player = Player {
            load,
            role,
            end,
            memory,
            target,
            bytes: vec![0; load.size],
            sent: 0,
            seen: 0,
            outstanding: 0,
            warm,
            over,
            began: None,
            sent_at: Instant::ZERO,
            histogram: Histogram::default(),
        };
        for _ in 0..RECEIVES {
            player.receive()?;
        }
        Ok(player)
    })
}

/// Either end.
struct Player {
    load: Load,
    role: Role,
    end: End,
    memory: Memory,
    target: RemoteAddr,
    /// What goes inline.
    bytes: Vec<u8>,
    /// Messages sent and seen, ever: the number of a message is its last word.
    sent: u64,
    seen: u64,
    outstanding: usize,
    warm: Duration,
    over: Duration,
    began: Option<Instant>,
    sent_at: Instant,
    histogram: Histogram,
}

impl Player {
    fn receive(&self) -> Result<(), ArmError> {
        let Some(srq) = &self.end.srq else {
            return Ok(());
        };
        let Load { size, .. } = self.load;
        let sges = [self.memory.region().sge(size, size as u32)];
        let wr = RecvWr {
            wr_id: 0,
            sges: &sges,
        };
        let posted = srq.post_recv(&[wr]);
        posted.map_err(|e| ArmError::at("receives", e))
    }

    fn send(&mut self, env: &mut dyn Env) -> Result<(), ArmError> {
        env.charge(self.load.work());
        let Load {
            verb, size, inline, ..
        } = self.load;
        self.sent += 1;
        match inline {
            true => self.bytes[size - 8..].copy_from_slice(&self.sent.to_ne_bytes()),
            false => self
                .memory
                .word(size - 8)
                .store(self.sent, Ordering::Relaxed),
        }
        let sges = [self.memory.region().sge(0, size as u32)];
        let wr = SendWr {
            wr_id: self.sent,
            op: match verb {
                Verb::Send => SendOp::Send,
                Verb::WriteImm => SendOp::WriteImm(self.target, self.sent as u32),
                _ => SendOp::Write(self.target),
            },
            payload: match inline {
                true => Payload::Inline(&self.bytes),
                false => Payload::Gather(&sges),
            },
            flags: SendFlags::SIGNALED,
        };
        let posted = self.end.queue_pairs[0].post_send(&[wr]);
        posted.map_err(|e| ArmError::at("posting", e))?;
        self.outstanding += 1;
        Ok(())
    }

    /// Takes completions of what was sent; whether more may be.
    fn has_room(&mut self) -> Result<bool, ArmError> {
        let mut found = [Completion::default(); SENDS as usize];
        if self.outstanding > 0 {
            self.outstanding -= polled(&*self.end.send_cq, &mut found)?.len();
        }
        Ok(self.outstanding < SENDS as usize)
    }

    /// Whether the next message has come.
    fn has_come(&self) -> Result<bool, ArmError> {
        let last = self.memory.word(2 * self.load.size - 8);
        let next = self.seen + 1;
        if self.end.srq.is_none() {
            return Ok(last.load(Ordering::Acquire) == next);
        }
        let mut found = [Completion::default()];
        if polled(&*self.end.recv_cq, &mut found)?.is_empty() {
            return Ok(false);
        }
        let number = last.load(Ordering::Acquire);
        match number == next {
            true => self.receive().map(|()| true),
            false => Err(ArmError(format!("message {next} reads {number}"))),
        }
    }

    /// A message came; whether that is enough.
    fn came(&mut self, now: Instant) -> bool {
        self.seen += 1;
        let began = *self.began.get_or_insert(now);
        if now.since(began) >= self.warm {
            self.histogram.record(now.since(self.sent_at));
        }
        self.sent_at = now;
        now.since(began) >= self.over
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
            if self.came(now) && leads {
                env.mail(b"finished")?;
                return Ok(Turn::Done(Report::Latency(self.histogram.quantiles(0.5))));
            }
            self.send(env)?;
        }
        match !leads && env.mailed().is_some() {
            true => Ok(Turn::Done(Report::None)),
            false => Ok(Turn::Again),
        }
    }
}
