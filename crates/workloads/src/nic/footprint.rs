//! Memory of connected queue pairs: what heap and resident set grow by from before they are made to
//! when each has been connected and has executed a WRITE, in both processes.

use headworks::verbs::{
    Completion, Payload, QpCaps, RemoteAddr, SendFlags, SendOp, SendWr, Status,
};
use headworks_baselines::{Memory, kernel};

use super::end::{self, End, Shape, connected, emit, parse};
use crate::transports::connect::Role;
use crate::transports::job::Report;
use crate::transports::part::Part;
use crate::transports::{ArmError, Env, Turn};
use crate::world::Handed;

/// Bytes of the WRITE.
const SIZE: usize = 64;

/// The part that has `role`: both do the same.
pub fn part(queue_pairs: usize, role: Role, handed: &Handed) -> Result<Box<dyn Part>, ArmError> {
    let shape = Shape {
        queue_pairs,
        caps: QpCaps {
            max_recv_wr: 1,
            ..QpCaps::default()
        },
        cq_depth: 256,
        shared_receives: 0,
        channel: false,
    };
    let mut end = end::open(handed, &shape)?;
    let memory = end.memory(2 * SIZE)?;
    // What is done once, by the first queue pair, is not any queue pair's.
    let one = Shape {
        queue_pairs: 1,
        ..shape
    };
    end.populate(&one)?;
    end.queue_pairs.clear();
    // The list of handles is the program's.
    end.queue_pairs.reserve_exact(queue_pairs);
    let before = Held::now()?;
    end.populate(&shape)?;
    let payload = emit(&[memory.region().remote(SIZE)]);
    connected(end, &payload, move |end, theirs| {
        let [target] = parse(theirs)?;
        let number = match role {
            Role::Sender => 1,
            Role::Receiver => 2,
        };
        if end.queue_pairs.len() != queue_pairs {
            let made = end.queue_pairs.len();
            return Err(ArmError(format!("{made} of {queue_pairs} queue pairs")));
        }
        Ok(Footprint {
            memory,
            target,
            number,
            before,
            after: None,
            end,
        })
    })
}

/// Bytes of heap, and resident ones.
#[derive(Clone, Copy)]
struct Held {
    heap: i64,
    resident: i64,
}

impl Held {
    fn now() -> Result<Self, ArmError> {
        let heap = kernel::heap_in_use()
            .ok_or_else(|| ArmError("this C library does not count its heap".into()))?;
        let status = std::fs::read_to_string("/proc/self/status")
            .map_err(|e| ArmError::at("/proc/self/status", e))?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<i64>().ok())
            .ok_or_else(|| ArmError("no VmRSS in /proc/self/status".into()))?;
        Ok(Self {
            heap: heap as i64,
            resident: resident << 10,
        })
    }
}

struct Footprint {
    memory: Memory,
    target: RemoteAddr,
    number: u64,
    before: Held,
    after: Option<Held>,
    end: End,
}

impl Footprint {
    /// One WRITE on every queue pair: with it each has looked up all that it will.
    fn write(&mut self) -> Result<(), ArmError> {
        let word = self.memory.word(0);
        word.store(self.number, std::sync::atomic::Ordering::Relaxed);
        let sges = [self.memory.region().sge(0, SIZE as u32)];
        for qp in &mut self.end.queue_pairs {
            let wr = SendWr {
                wr_id: self.number,
                op: SendOp::Write(self.target),
                payload: Payload::Gather(&sges),
                flags: SendFlags::SIGNALED,
            };
            qp.post_send(&[wr])
                .map_err(|e| ArmError::at("posting", e))?;
            let mut found = [Completion::default()];
            while self
                .end
                .send_cq
                .poll(&mut found)
                .map_err(|e| ArmError::at("polling", e))?
                == 0
            {
                std::hint::spin_loop();
            }
            if found[0].status != Status::Success || found[0].qpn != qp.qpn() {
                return Err(ArmError(format!("a WRITE completed as {:?}", found[0])));
            }
        }
        Ok(())
    }
}

impl Part for Footprint {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        let Some(after) = self.after else {
            self.write()?;
            self.after = Some(Held::now()?);
            env.mail(b"measured")?;
            return Ok(Turn::Again);
        };
        if env.mailed().is_none() {
            return Ok(Turn::Wait);
        }
        let theirs = self.memory.word(SIZE);
        let theirs = theirs.load(std::sync::atomic::Ordering::Acquire);
        if theirs != 3 - self.number {
            return Err(ArmError(format!("the other end's WRITEs left {theirs}")));
        }
        Ok(Turn::Done(Report::Grown {
            heap: after.heap - self.before.heap,
            resident: after.resident - self.before.resident,
        }))
    }
}
