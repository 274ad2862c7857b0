//! Memory of connected queue pairs: what heap and resident set grow by from before they are made to when each has been
//! connected and has executed a WRITE, in both processes.

use std::sync::atomic::Ordering;

use headworks_baselines::kernel;

use super::end::{self, connected, emit, parse};
use super::loaded::{Load, Verb};
use super::source::{Source, shape};
use super::{Made, Setup};
use crate::error::WorkloadError;
use crate::pair::Role;
use crate::pair::{PairCx, wait};
use crate::report::Report;
use headworks_stage::{Actor, ActorError, Cx, Step};

/// Bytes of the WRITE.
const SIZE: usize = 64;

/// The part that has a role: both do the same.
pub(super) fn part(queue_pairs: usize, setup: &Setup<'_>) -> Made {
    let shape = |queue_pairs| shape(queue_pairs, 256);
    let mut end = end::open(setup.pair, &shape(queue_pairs))?;
    let memory = end.memory(2 * SIZE)?;
    // What is done once, by the first queue pair, is not any queue pair's.
    end.populate(&shape(1))?;
    end.queue_pairs.clear();
    // The list of handles is the program's.
    end.queue_pairs.reserve_exact(queue_pairs);
    let before = held()?;
    end.populate(&shape(queue_pairs))?;
    let payload = emit(&[memory.region().remote(SIZE)]);
    let role = setup.pair.role;
    connected(end, &payload, move |end, theirs| {
        let [target] = parse(theirs)?;
        if end.queue_pairs.len() != queue_pairs {
            let made = end.queue_pairs.len();
            return Err(WorkloadError(format!(
                "{made} of {queue_pairs} queue pairs"
            )));
        }
        Ok(Footprint {
            source: Source::new(Load::of(Verb::Write, SIZE), end, memory, target),
            number: match role {
                Role::Sender => 1,
                Role::Receiver => 2,
            },
            before,
            after: None,
        })
    })
}

/// Bytes of heap, and resident ones.
fn held() -> Result<[i64; 2], WorkloadError> {
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

struct Footprint {
    source: Source,
    /// What this end writes: 1 or 2.
    number: u64,
    before: [i64; 2],
    after: Option<[i64; 2]>,
}

impl Actor for Footprint {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let Some(after) = self.after else {
            let word = self.source.memory.word(0);
            word.store(self.number, Ordering::Relaxed);
            // With one WRITE each queue pair has looked up all that it will.
            for at in 0..self.source.end.queue_pairs.len() {
                self.source.post::<1>(at, at as u64, |_| 0, |_| true)?;
                self.source.wait()?;
            }
            self.after = Some(held()?);
            cx.mail(b"measured")?;
            return Ok(Step::Again);
        };
        if cx.mailed().is_none() {
            return Ok(wait());
        }
        let theirs = self.source.memory.word(SIZE).load(Ordering::Acquire);
        if theirs != 3 - self.number {
            let why = format!("the other end's WRITEs left {theirs}");
            return Err(ActorError::new(why));
        }
        let [heap, resident] = [0, 1].map(|at| after[at] - self.before[at]);
        cx.done(&Report::Grown { heap, resident })
    }
}
