//! A load that is watched while it runs: how much is done, and what the pacing of the RNIC says, from time to time.

use headworks::verbs::Instant;
use serde::{Deserialize, Serialize};

pub use crate::report::{Look, Pacing};

use super::loaded::{self, Load, Poster};
use super::{Made, Setup};
use crate::pair::PairCx;
use crate::report::Report;
use headworks_stage::{Actor, ActorError, Cx, Step};

/// A load, and how often it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Watched {
    /// What each pair does.
    pub load: Load,
    /// Between two looks, in nanoseconds: at multiples of that, or as soon after as the part is stepped.
    pub every_ns: u64,
}

impl Watched {
    /// The actor that has a role.
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

impl Actor for Watcher {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let step = self.poster.advance(cx)?;
        let now = cx.now();
        if now >= self.next {
            self.look(now);
        }
        match step {
            Step::Done => cx.done(&Report::Looks(std::mem::take(&mut self.looks))),
            step => Ok(step),
        }
    }
}
