//! A load that is watched while it runs: how much is done, and what the pacing of the RNIC says, from time to time.

use headworks::verbs::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::loaded::{self, Load, Poster};
use super::{Made, Setup, What};
use crate::transports::job::Report;
use crate::transports::part::Part;
use crate::transports::{ArmError, Env, Turn};
use crate::world::Place;

/// A load, and how often it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Watched {
    /// What each pair does.
    pub load: Load,
    /// Between two looks, in nanoseconds: at multiples of that, or as soon after as the part is stepped.
    pub every_ns: u64,
}

/// What was seen at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// When, on the clock that all parts share.
    pub at_ns: u64,
    /// Requests that have ended so far.
    pub done: u64,
    /// What the pacing says; `None` where there is none.
    pub pacing: Option<Pacing>,
}

/// What the pacing of an RNIC said.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pacing {
    /// Bytes a second.
    pub rate: f64,
    /// The average delay, in nanoseconds.
    pub delay_ns: f64,
    /// How many base delays that is beyond the first.
    pub ratio: f64,
    /// The rate rises up to that many, and falls from that many on.
    pub thresholds: (f64, f64),
    /// Active queue pairs.
    pub active: u32,
}

impl Watched {
    /// What each of so many pairs saw from its first step on, until `run` was over after `warm`.
    pub fn looks(
        &self,
        place: &Place<'_>,
        pairs: usize,
        times: (Duration, Duration),
    ) -> Result<Vec<Vec<Look>>, ArmError> {
        let reports = loaded::play(place, What::Watched(*self), pairs, times)?;
        let looks = reports.into_iter().filter_map(|report| match report {
            Report::Looks(looks) => Some(looks),
            _ => None,
        });
        Ok(looks.collect())
    }

    /// The part that has a role.
    pub(super) fn part(self, setup: &Setup<'_>) -> Made {
        let poster = loaded::poster(setup.task, &self.load);
        loaded::pair(self.load, setup, move |source| Watcher {
            poster: poster(source),
            every: self.every_ns.max(1),
            next: Instant::ZERO,
            looks: Vec::new(),
        })
    }
}

struct Watcher {
    poster: Poster,
    every: u64,
    /// When the next look is due.
    next: Instant,
    looks: Vec<Look>,
}

impl Watcher {
    fn look(&mut self, now: Instant) {
        let pacing = headworks::pace::look(self.poster.device());
        self.looks.push(Look {
            at_ns: now.nanos(),
            done: self.poster.done(),
            pacing: pacing.map(|status| Pacing {
                rate: status.rate_bytes_per_s as f64,
                delay_ns: status.delay.nanos() as f64,
                ratio: status.ratio,
                thresholds: (status.raise_below, status.lower_above),
                active: status.active,
            }),
        });
        let next = (now.nanos() / self.every + 1) * self.every;
        self.next = Instant::from_nanos(next);
    }
}

impl Part for Watcher {
    fn step(&mut self, env: &mut dyn Env) -> Result<Turn, ArmError> {
        let turn = self.poster.step(env)?;
        let now = env.now();
        if now >= self.next {
            self.look(now);
        }
        Ok(match turn {
            Turn::Done(_) => Turn::Done(Report::Looks(std::mem::take(&mut self.looks))),
            turn => turn,
        })
    }
}
