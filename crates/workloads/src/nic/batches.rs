//! Requests in batches on one queue pair, each rung by itself, with pauses between the batches: how long each takes
//! from its doorbell to its completion. A batch of one is the latency of a request.

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

/// Completions that one look takes, as perftest does.
const BATCH: usize = 16;

/// Batches of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Batches {
    /// Of what: a batch has as many requests as it is deep, all on the first queue pair.
    pub load: Load,
    /// From the last doorbell of a batch to the next batch, in nanoseconds; that does not begin before the one before
    /// it has ended.
    pub pause_ns: u64,
}

impl Batches {
    /// From the doorbell to the completion, of each request in a batch, over the second time after the first; none if
    /// no batch ended.
    pub fn delays(
        &self,
        place: &Place<'_>,
        times: (Duration, Duration),
    ) -> Result<Vec<Quantiles>, ArmError> {
        let reports = loaded::play(place, What::Batches(*self), 1, times)?;
        let delays = reports.into_iter().filter_map(|report| match report {
            Report::Delays(delays) => Some(delays),
            _ => None,
        });
        Ok(delays.flatten().filter(|each| each.count > 0).collect())
    }
}

/// The part of `batches` that has `role`.
pub fn part(
    task: &Task,
    Batches { load, pause_ns }: Batches,
    role: Role,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    let timed = Timed::new(task);
    loaded::pair(load, role, handed, move |source| Batcher {
        source,
        pause: Duration::from_nanos(pause_ns),
        timed,
        resumes: Instant::ZERO,
        posted: Vec::with_capacity(load.depth),
        done: 0,
        delays: vec![Histogram::default(); load.depth],
    })
}

struct Batcher {
    source: Source,
    pause: Duration,
    timed: Timed,
    /// When the next batch begins.
    resumes: Instant,
    /// When the requests of this batch were posted.
    posted: Vec<Instant>,
    /// How many of them are done.
    done: usize,
    delays: Vec<Histogram>,
}

impl Batcher {
    fn take(&mut self, env: &mut dyn Env) -> Result<(), ArmError> {
        let mut found = [Completion::default(); BATCH];
        let count = self.source.poll(&mut found)?.len();
        if count == 0 {
            return Ok(());
        }
        let now = env.now();
        for _ in 0..count {
            // A batch is measured if it began in the measured time. Requests of one queue pair end in order.
            if self.timed.is_warm(self.posted[0]) {
                self.delays[self.done].record(now.since(self.posted[self.done]));
            }
            self.done += 1;
        }
        if self.done == self.source.load.depth {
            self.posted.clear();
            self.done = 0;
        }
        Ok(())
    }
}

impl Part for Batcher {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        let now = env.now();
        // A busy machine may have taken all that time: one batch is measured in any case.
        let is_enough = self.delays.iter().all(|each| !each.is_empty());
        if self.timed.is_over(now) && self.posted.is_empty() && is_enough {
            let delays = self.delays.iter().map(|each| each.quantiles(1.0));
            return loaded::finished(env, Report::Delays(delays.collect()));
        }
        if self.posted.len() < self.source.load.depth && now >= self.resumes {
            self.posted.push(now);
            if self.posted.len() == self.source.load.depth {
                self.resumes = now + self.pause;
            }
            self.source.post_on(0)?;
            env.charge(self.source.load.work());
        }
        if !self.posted.is_empty() {
            self.take(env)?;
        }
        Ok(Turn::Again)
    }
}
