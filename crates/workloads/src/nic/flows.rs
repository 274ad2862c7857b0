//! Flows: so many requests over some queue pairs, and how long it takes from the first doorbell until all have ended.

use std::collections::BTreeMap;

use headworks::verbs::{Completion, Duration, Instant};
use serde::{Deserialize, Serialize};

use super::loaded::{self, Load, Source};
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
    /// How long flows took that began within `run` after `warm`, of each of so many pairs; one of each at least.
    pub fn times(
        &self,
        place: &Place<'_>,
        pairs: usize,
        times: (Duration, Duration),
    ) -> Result<Vec<Quantiles>, ArmError> {
        let reports = loaded::play(place, What::Flows(*self), pairs, times)?;
        let found = reports.into_iter().filter_map(|[sent, _]| match sent {
            Report::Latency(found) => Some(found),
            _ => None,
        });
        Ok(found.collect())
    }
}

/// The part of `flows` that has `role`.
pub fn part(
    task: &Task,
    flows: Flows,
    role: Role,
    handed: &Handed,
) -> Result<Box<dyn Part>, ArmError> {
    let warm = Duration::from_nanos(task.warm().nanos());
    let over = warm + Duration::from_nanos(task.run().nanos());
    let Flows { load, requests } = flows;
    loaded::pair(load, role, handed, move |source| Flow {
        numbers: source.numbers(),
        outstanding: vec![0; load.queue_pairs],
        source,
        requests: requests.max(1),
        warm,
        over,
        first: None,
        began: Instant::ZERO,
        posted: 0,
        done: 0,
        times: Histogram::default(),
    })
}

struct Flow {
    source: Source,
    /// Which queue pair has that number.
    numbers: BTreeMap<u32, usize>,
    /// Requests outstanding of each.
    outstanding: Vec<usize>,
    requests: usize,
    /// From the first flow on: measured after that, and until then.
    warm: Duration,
    over: Duration,
    first: Option<Instant>,
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
        let mut count = 0;
        while count < BATCH && self.posted < self.requests {
            let at = self.posted % load.queue_pairs;
            if self.outstanding[at] == load.depth {
                break;
            }
            self.source.post(at)?;
            env.charge(Duration::from_nanos(load.work_ns));
            self.outstanding[at] += 1;
            self.posted += 1;
            count += 1;
        }
        Ok(())
    }

    fn take(&mut self) -> Result<(), ArmError> {
        let mut found = [Completion::default(); BATCH];
        for done in self.source.poll(&mut found)? {
            self.done += 1;
            if let Some(at) = self.numbers.get(&done.qpn.raw()) {
                self.outstanding[*at] -= 1;
            }
        }
        Ok(())
    }
}

impl Part for Flow {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        if self.posted == 0 {
            self.began = env.now();
        }
        let first = *self.first.get_or_insert(self.began);
        self.post(env)?;
        self.take()?;
        if self.done < self.requests {
            return Ok(Turn::Again);
        }
        let now = env.now();
        if self.began.since(first) >= self.warm {
            self.times.record(now.since(self.began));
        }
        (self.posted, self.done) = (0, 0);
        if now.since(first) < self.over || self.times.is_empty() {
            return Ok(Turn::Again);
        }
        env.mail(b"finished")?;
        Ok(Turn::Done(Report::Latency(self.times.quantiles(1.0))))
    }
}
