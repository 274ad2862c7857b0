//! The actor of one requester, or of several that take turns in one thread.

use std::sync::Arc;

use headworks::runtime::{Actor, ActorContext, ActorError, ActorInit, Step};
use headworks::verbs::Device;
use headworks_patterns::Requester;
use headworks_patterns::message::REQUEST;
use headworks_patterns::topology::{OneResponder, RandomResponder, Topology};
use headworks_patterns::verb::{Polled, Verb};

use super::design::{WithVerbs, with_verbs};
use super::load::{ActiveLoad, Counts, RequesterLoad, RunPhases};
use super::mail_connect::MailConnect;
use super::prices::PatternPrices;
use super::task::{PatternRole, PatternTask, inlines};
use crate::error::{Result, WorkloadError};
use crate::latency::Histogram;
use crate::random::mix;
use crate::seeds::bring_up_seed;

/// Makes requester actor number `at`.
pub(super) fn actor(
    part: &ActorInit,
    task: PatternTask,
    prices: Option<PatternPrices>,
    at: usize,
) -> Result<Box<dyn Actor>> {
    let device = part.open_device();
    let device = device.map_err(|e| WorkloadError::at("device", e))?;
    let (design, inline) = (task.design, inlines(&task, REQUEST, &*device));
    let make = Make {
        device,
        task,
        prices,
        at,
    };
    with_verbs(design, inline, make)
}

struct Make {
    device: Arc<dyn Device>,
    task: PatternTask,
    prices: Option<PatternPrices>,
    at: usize,
}

impl WithVerbs for Make {
    type Output = Result<Box<dyn Actor>>;

    fn with<Request: Verb, Response: Verb, const INLINE: bool>(self) -> Self::Output {
        match self.task.responders {
            1 => self.make::<Request, Response, _, INLINE>(|_| OneResponder),
            responders => self.make::<Request, Response, _, INLINE>(move |number| {
                RandomResponder::new(responders, mix(number as u64 ^ 0x5eed))
            }),
        }
    }
}

impl Make {
    fn make<Request: Verb, Response: Verb, T: Topology + 'static, const INLINE: bool>(
        self,
        topology: impl Fn(usize) -> T,
    ) -> Result<Box<dyn Actor>> {
        let device = self.device;
        let seed = bring_up_seed(device.info());
        let first = self.at * self.task.per_actor;
        let config = self.task.config();
        let mut requesters = Vec::new();
        let mut connect = MailConnect::new();
        for number in first..first + self.task.played_by(self.at) {
            let mut requester = Requester::<Request, Response, T, INLINE>::open(
                device.clone(),
                config,
                self.task.responders,
                topology(number),
            )?;
            let area = requester.response_area();
            connect.add_side(requester.ports(), seed, |_| area)?;
            let load = RequesterLoad::new(&self.task, config.outstanding as usize, number);
            requesters.push((requester, load));
        }
        for responder in 0..self.task.responders {
            let queue_pairs = (0..requesters.len())
                .map(|side| (side, responder))
                .collect();
            connect.add_remote(PatternRole::Responder(responder).name(), queue_pairs);
        }
        Ok(Box::new(Requesters {
            requesters,
            connect,
            phases: RunPhases::new(&self.task, self.prices),
            latencies: Histogram::default(),
        }))
    }
}

/// Requesters that take turns.
struct Requesters<Request: Verb, Response: Verb, T: Topology, const INLINE: bool> {
    requesters: Vec<(Requester<Request, Response, T, INLINE>, RequesterLoad)>,
    connect: MailConnect,
    phases: RunPhases,
    latencies: Histogram,
}

impl<Request: Verb, Response: Verb, T: Topology, const INLINE: bool>
    Requesters<Request, Response, T, INLINE>
{
    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (requester, _) in &self.requesters {
            counts.messages += requester.answered();
            add(&mut counts.polled, requester.polled());
        }
        counts
    }
}

/// Adds what was polled.
pub(super) fn add(all: &mut Polled, one: Polled) {
    all.places += one.places;
    all.found += one.found;
    all.loads += one.loads;
}

impl<Request: Verb, Response: Verb, T: Topology, const INLINE: bool> Actor
    for Requesters<Request, Response, T, INLINE>
{
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if self.phases.is_connecting() {
            let mut ports: Vec<_> = self.requesters.iter_mut().map(|(r, _)| r.ports()).collect();
            if !self.connect.step(&mut ports, cx)? {
                return Ok(self.phases.next(0, None));
            }
            self.phases.connected(cx)?;
        }
        let counts = self.counts();
        if !self.phases.look(counts, Some(&self.latencies), cx)? {
            return Ok(self.phases.rest());
        }
        let mut progress = 0;
        for _ in 0..self.phases.burst {
            for (requester, load) in &mut self.requesters {
                let before = requester.polled().loads;
                let mut active = ActiveLoad {
                    load,
                    phases: &self.phases,
                    latencies: &mut self.latencies,
                    cx: &mut *cx,
                };
                progress += requester.step(&mut active)?;
                if let Some(prices) = &self.phases.prices
                    && Response::IN_MAILBOX
                {
                    cx.charge(prices.scan(requester.polled().loads - before));
                }
            }
        }
        if self.phases.is_check_due(progress) {
            for (requester, _) in &mut self.requesters {
                requester.check()?;
            }
        }
        if self.phases.is_ending() && self.requesters.iter().all(|(r, _)| r.outstanding() == 0) {
            return self.phases.finish(cx);
        }
        let now = cx.now();
        let waits = self
            .requesters
            .iter()
            .filter_map(|(_, load)| load.waits_until(now));
        Ok(self.phases.next(progress, waits.min()))
    }
}
