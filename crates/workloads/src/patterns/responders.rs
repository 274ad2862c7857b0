//! The actor of a responder.

use std::sync::Arc;

use headworks::runtime::{Actor, ActorContext, ActorError, ActorInit, Step};
use headworks::verbs::Device;
use headworks_patterns::Responder;
use headworks_patterns::verb::Verb;

use super::design::{Connections, WithVerbs, with_verbs};
use super::load::{Counts, RunPhases};
use super::mail_connect::MailConnect;
use super::prices::PatternPrices;
use super::task::{PatternRole, PatternTask, inlines};
use crate::error::{Result, WorkloadError};
use crate::seeds::bring_up_seed;

/// Bytes of memory that a load of a flag reads.
const FLAG_BYTES: usize = 8;

/// Makes the actor of a responder.
pub(super) fn actor(
    part: &ActorInit,
    task: PatternTask,
    prices: Option<PatternPrices>,
) -> Result<Box<dyn Actor>> {
    let design = task.design;
    let device = part.open_device();
    let device = device.map_err(|e| WorkloadError::at("device", e))?;
    let inline = inlines(&task, task.response, &*device);
    let make = Make {
        device,
        task,
        prices,
    };
    with_verbs(design, inline, make)
}

struct Make {
    device: Arc<dyn Device>,
    task: PatternTask,
    prices: Option<PatternPrices>,
}

impl WithVerbs for Make {
    type Output = Result<Box<dyn Actor>>;

    fn with<Request: Verb, Response: Verb, const INLINE: bool>(self) -> Self::Output {
        let device = self.device;
        let seed = bring_up_seed(device.info());
        let task = &self.task;
        let mut responder =
            Responder::<Request, Response, INLINE>::open(device, task.config(), task.peers())?;
        let areas: Vec<_> = (0..task.peers())
            .map(|peer| responder.request_area(peer))
            .collect();
        let mut connect = MailConnect::new();
        connect.add_side(responder.ports(), seed, |peer| areas[peer])?;
        for at in 0..task.requester_actors() {
            let (role, peers) = match task.design.connections {
                Connections::Private => {
                    let first = at * task.per_actor;
                    let peers = first..first + task.played_by(at);
                    (PatternRole::Requester(at), peers)
                }
                Connections::Dispatcher => (PatternRole::Dispatcher(at), at..at + 1),
            };
            connect.add_remote(role.name(), peers.map(|peer| (0, peer)).collect());
        }
        Ok(Box::new(RespondingActor {
            responder,
            connect,
            phases: RunPhases::new(task, self.prices),
        }))
    }
}

struct RespondingActor<Request: Verb, Response: Verb, const INLINE: bool> {
    responder: Responder<Request, Response, INLINE>,
    connect: MailConnect,
    phases: RunPhases,
}

impl<Request: Verb, Response: Verb, const INLINE: bool> Actor
    for RespondingActor<Request, Response, INLINE>
{
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if self.phases.is_connecting() {
            if !self.connect.step(&mut [self.responder.ports()], cx)? {
                return Ok(self.phases.next(0, None));
            }
            self.phases.connected(cx)?;
        }
        let counts = Counts {
            messages: self.responder.answered(),
            polled: self.responder.polled(),
        };
        if !self.phases.look(counts, None, cx)? {
            return Ok(self.phases.rest());
        }
        if self.phases.is_ending() {
            return self.phases.finish(cx);
        }
        let mut progress = 0;
        for _ in 0..self.phases.burst {
            let (prices, responder) = (&self.phases.prices, &mut self.responder);
            let flags = prices
                .as_ref()
                .and_then(|_| Some((responder.polled_flags()?, responder.memory_begin())));
            let is_answered = responder.answer_next(|loads, is_taken| {
                let Some(prices) = prices else {
                    return;
                };
                // The flags go through the cache of the simulated host, if its preset has one.
                for load in 0..loads {
                    let Some((flags, memory)) = flags else {
                        break;
                    };
                    let flag = memory.wrapping_add(flags.offset(load));
                    cx.reads(flag, FLAG_BYTES);
                    if is_taken && load + 1 == loads && flags.is_cleared {
                        cx.writes(flag, FLAG_BYTES);
                    }
                }
                match (Request::IN_MAILBOX, is_taken) {
                    (true, _) => cx.charge(prices.scan(loads)),
                    // The completion of a receive, and the receive that is posted again.
                    (false, true) => cx.charge(prices.srq_lock.times(2)),
                    (false, false) => {}
                }
                if is_taken {
                    cx.charge(prices.message + prices.respond);
                }
            })?;
            progress += u32::from(is_answered);
        }
        if self.phases.is_check_due(progress) {
            self.responder.check()?;
        }
        Ok(self.phases.next(progress, None))
    }
}
