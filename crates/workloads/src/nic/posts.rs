//! WRITEs of 64 bytes by one queue pair, each call timed by itself: from its posting to its completions' being polled.

use headworks::verbs::{Completion, Payload, QpCaps, RemoteAddr, SendFlags, SendOp, SendWr};
use headworks_baselines::Memory;

use super::end::{self, End, Shape, connected, emit, parse};
use super::loaded::{self, polled};
use super::{Task, What};
use crate::latency::{Histogram, Quantiles};
use crate::transports::connect::Role;
use crate::transports::job::Report;
use crate::transports::part::Part;
use crate::transports::{ArmError, Env, Turn};
use crate::world::{Handed, Place};
use headworks::verbs::{Duration, Instant};

/// Bytes of a WRITE.
const SIZE: usize = 64;
/// Places that are written in turn.
const PLACES: usize = 64;
/// Requests of a call, at most.
pub const CHAIN_MAX: usize = 16;
/// Calls of a step.
const CALLS: usize = 64;

/// What a call of `chain` requests takes with all that is polled of it, over `run` after `warm`; `None` if there
/// was none.
pub fn call(
    place: &Place<'_>,
    chain: usize,
    times: (Duration, Duration),
) -> Result<Option<Quantiles>, ArmError> {
    let reports = loaded::play(place, What::Posts { chain }, 1, times)?;
    Ok(reports.into_iter().find_map(|[sent, _]| match sent {
        Report::Latency(found) if found.count > 0 => Some(found),
        _ => None,
    }))
}

/// The part that has `role`: the receiver's memory is written, and it does nothing.
pub fn part(
    task: &Task,
    chain: usize,
    role: Role,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    if !(1..=CHAIN_MAX).contains(&chain) {
        return Err(ArmError(format!("a chain of {chain}: 1 to {CHAIN_MAX}")));
    }
    let shape = Shape {
        queue_pairs: 1,
        caps: QpCaps {
            max_send_wr: CHAIN_MAX as u32,
            max_recv_wr: 1,
            ..QpCaps::default()
        },
        cq_depth: CHAIN_MAX as u32,
        shared_receives: 0,
        channel: false,
    };
    let mut end = end::open(handed, &shape)?;
    end.populate(&shape)?;
    let memory = end.memory(SIZE * PLACES)?;
    let payload = emit(&[memory.region().remote(0)]);
    let (warm, run) = (task.warm().nanos(), task.run().nanos());
    match role {
        Role::Receiver => connected(end, &payload, move |end, _| {
            Ok(Bystander {
                _end: end,
                _memory: memory,
            })
        }),
        Role::Sender => connected(end, &payload, move |end, theirs| {
            let [target] = parse(theirs)?;
            Ok(Poster {
                end,
                memory,
                target,
                chain,
                warm: Duration::from_nanos(warm),
                over: Duration::from_nanos(warm + run),
                began: None,
                posted: 0,
                histogram: Histogram::default(),
            })
        }),
    }
}

/// Is written to, and sleeps: if it looked around, who posts would be slower where both share a core.
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

/// Writes.
struct Poster {
    end: End,
    memory: Memory,
    target: RemoteAddr,
    chain: usize,
    warm: Duration,
    over: Duration,
    began: Option<Instant>,
    posted: u64,
    histogram: Histogram,
}

impl Poster {
    fn call(&mut self) -> Result<(), ArmError> {
        let sges = [self.memory.region().sge(0, SIZE as u32)];
        let (first, target) = (self.posted, self.target);
        let wr = |at: usize| {
            let number = first + at as u64;
            SendWr {
                wr_id: number,
                op: SendOp::Write(target.plus(number % PLACES as u64 * SIZE as u64)),
                payload: Payload::Gather(&sges),
                flags: SendFlags::SIGNALED,
            }
        };
        let qp = &mut self.end.queue_pairs[0];
        let posted = match self.chain {
            1 => qp.post_send(&[wr(0)]),
            chain => {
                let all: [SendWr<'_>; CHAIN_MAX] = std::array::from_fn(wr);
                qp.post_send(&all[..chain])
            }
        };
        posted.map_err(|e| ArmError::at("posting", e))?;
        let mut found = [Completion::default(); CHAIN_MAX];
        let mut seen = 0;
        while seen < self.chain {
            for done in polled(&*self.end.send_cq, &mut found)? {
                let expected = first + seen as u64;
                if done.wr_id != expected {
                    let wr_id = done.wr_id;
                    return Err(ArmError(format!("request {expected} ended as {wr_id}")));
                }
                seen += 1;
            }
        }
        self.posted += self.chain as u64;
        Ok(())
    }
}

impl Part for Poster {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        let mut before = env.now();
        let began = *self.began.get_or_insert(before);
        for _ in 0..CALLS {
            self.call()?;
            let after = env.now();
            if after.since(began) >= self.warm {
                self.histogram.record(after.since(before));
            }
            before = after;
        }
        if before.since(began) < self.over {
            return Ok(Turn::Again);
        }
        env.mail(b"finished")?;
        Ok(Turn::Done(Report::Latency(self.histogram.quantiles(1.0))))
    }
}
