//! Flows: so many requests over some queue pairs, and how long it takes from the first doorbell until all have ended.

use headworks::verbs::{Completion, Duration, Instant};
use serde::{Deserialize, Serialize};

use super::loaded::{self, Load};
use super::meter::Timed;
use super::source::Source;
use super::{Task, What};
use crate::latency::{Histogram, Quantiles};
use crate::transports::connect::Role;
use crate::transports::job::Report;
use crate::transports::part::Part;
use crate::transports::{ArmError, Env, Turn};
use crate::world::{Handed, Place};

/// Requests that one step posts, and completions that it takes: few, as [`Gait::Apart`](loaded::Gait) has it.
const BATCH: usize = 4;

/// Flows, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Flows {
    /// Of what, over which queue pairs; they take turns.
    pub load: Load,
    /// Requests of a flow.
    pub requests: usize,
}

impl Flows {
    /// How long flows took that began within the second time after the first, of each of so many pairs; one of each at
    /// least.
    pub fn times(
        &self,
        place: &Place<'_>,
        pairs: usize,
        times: (Duration, Duration),
    ) -> Result<Vec<Quantiles>, ArmError> {
        loaded::times(place, What::Flows(*self), pairs, times)
    }
}

/// The part of `flows` that has `role`.
pub fn part(
    task: &Task,
    Flows { load, requests }: Flows,
    role: Role,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    let timed = Timed::new(task);
    loaded::pair(load, role, handed, move |source| Flow {
        outstanding: vec![0; load.queue_pairs],
        source,
        requests: requests.max(1),
        timed,
        began: Instant::ZERO,
        posted: 0,
        done: 0,
        times: Histogram::default(),
    })
}

struct Flow {
    source: Source,
    /// Requests outstanding of each queue pair.
    outstanding: Vec<usize>,
    requests: usize,
    timed: Timed,
    /// When this flow began, and how far it is.
    began: Instant,
    posted: usize,
    done: usize,
    times: Histogram,
}

impl Flow {
    /// Posts what there is room for, the queue pairs in turn.
    fn post(&mut self, env: &mut dyn Env) -> Result<(), ArmError> {
        let load = self.source.load;
        for _ in 0..BATCH.min(self.requests - self.posted) {
            let at = self.posted % load.queue_pairs;
            if self.outstanding[at] == load.depth {
                break;
            }
            self.source.post_on(at)?;
            env.charge(load.work());
            self.outstanding[at] += 1;
            self.posted += 1;
        }
        Ok(())
    }

    fn take(&mut self) -> Result<(), ArmError> {
        let mut found = [Completion::default(); BATCH];
        for done in self.source.poll(&mut found)? {
            self.done += 1;
            self.outstanding[done.wr_id as usize] -= 1;
        }
        Ok(())
    }
}

impl Part for Flow {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        if self.posted == 0 {
            self.began = env.now();
        }
        let is_measured = self.timed.is_warm(self.began);
        self.post(env)?;
        self.take()?;
        if self.done < self.requests {
            return Ok(Turn::Again);
        }
        let now = env.now();
        if is_measured {
            self.times.record(now.since(self.began));
        }
        (self.posted, self.done) = (0, 0);
        if !self.timed.is_over(now) || self.times.is_empty() {
            return Ok(Turn::Again);
        }
        loaded::finished(env, Report::Latency(self.times.quantiles(1.0)))
    }
}
