//! Memory of connected queue pairs: the growth of heap and resident set, in both processes, from before the
//! queue pairs are made until each of them is connected and has executed a WRITE.

use std::sync::atomic::Ordering;

use headworks_baselines::kernel;

use super::endpoint::{self, acting};
use super::requester::{Requester, shape};
use super::{Made, Setup, Verb, VerbLoad};
use crate::actor_pair::{PairMail, Role, wait};
use crate::error::{Result, WorkloadError};
use crate::report::Report;
use headworks_runtime::{ActorError, Step};

/// Length of the WRITE, in bytes.
const SIZE: usize = 64;

/// Makes the actor of either role: both do the same.
pub(super) fn part(queue_pairs: usize, setup: &Setup<'_>) -> Made {
    let shape = |queue_pairs| shape(queue_pairs, 256);
    let mut end = endpoint::open(setup.pair, &shape(queue_pairs))?;
    let memory = end.memory(2 * SIZE)?;
    // One-time work is left to a first queue pair, so that it is not attributed to the others.
    end.populate(&shape(1))?;
    end.queue_pairs.clear();
    // The vector of handles belongs to the program, so it is not counted.
    end.queue_pairs.reserve_exact(queue_pairs);
    let mut source = Requester::new(VerbLoad::of(Verb::Write, SIZE), end, memory);
    let before = held()?;
    source.end.populate(&shape(queue_pairs))?;
    // The number that this end writes into the other end's memory.
    let number = match setup.pair.role {
        Role::Sender => 1,
        Role::Receiver => 2,
    };
    let offered = source.offer(SIZE);
    source.connect(offered, move |mut source| {
        let made = source.end.queue_pairs.len();
        if made != queue_pairs {
            let text = format!("only {made} of {queue_pairs} queue pairs were made");
            return Err(WorkloadError(text));
        }
        let mut after = None;
        acting(move |cx| {
            let Some(after) = after else {
                let word = source.memory.word(0);
                word.store(number, Ordering::Relaxed);
                // After one WRITE, a queue pair has looked up everything that it will.
                for at in 0..queue_pairs {
                    source.post::<1>(at, at as u64, |_| 0, |_| true)?;
                    source.wait()?;
                }
                after = Some(held()?);
                cx.send_mail(b"measured")?;
                return Ok(Step::Again);
            };
            if cx.receive_mail().is_none() {
                return Ok(wait());
            }
            let theirs = source.memory.word(SIZE).load(Ordering::Acquire);
            if theirs != 3 - number {
                let why = format!("the other end's WRITEs left {theirs}");
                return Err(ActorError::new(why));
            }
            let [heap, resident] = [0, 1].map(|at| after[at] - before[at]);
            cx.done(&Report::Grown { heap, resident })
        })
    })
}

/// Returns the bytes of heap in use, and the resident bytes.
fn held() -> Result<[i64; 2]> {
    let heap = kernel::heap_in_use();
    let heap =
        heap.ok_or_else(|| WorkloadError("this C library does not count its heap".into()))?;
    let status = std::fs::read_to_string("/proc/self/status");
    let status = status.map_err(|e| WorkloadError::at("/proc/self/status", e))?;
    let mut lines = status.lines();
    let resident = lines.find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|rest| rest.split_whitespace().next()?.parse::<i64>().ok());
    let resident = resident.ok_or_else(|| WorkloadError("no VmRSS in /proc/self/status".into()))?;
    Ok([heap as i64, resident << 10])
}
