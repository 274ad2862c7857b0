//! The actors of a dispatcher and of its workers. They share memory, so they are in one process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use headworks::runtime::{Actor, ActorContext, ActorError, ActorInit, Step, WakeCondition};
use headworks::verbs::{Device, Duration};
use headworks_patterns::message::REQUEST;
use headworks_patterns::topology::RandomResponder;
use headworks_patterns::verb::Verb;
use headworks_patterns::{Dispatcher, Worker};

use super::design::{WithVerbs, with_verbs};
use super::load::{ActiveLoad, Counts, RequesterLoad, RunPhases};
use super::mail_connect::MailConnect;
use super::prices::PatternPrices;
use super::task::{PatternRole, PatternTask, inlines};
use crate::error::{Result, WorkloadError};
use crate::latency::Histogram;
use crate::random::mix;
use crate::seeds::bring_up_seed;

/// How often an idle actor of a simulated server looks at memory that its neighbours write. The simulated world wakes
/// actors for the RNIC's writes only.
const LOOK: Duration = Duration::from_nanos(40);

/// A worker, made by its dispatcher.
type MadeWorker = Box<dyn WorkerStep>;

/// Workers on their way from the dispatchers, which make them, to the actors that step them: by run and number.
#[derive(Clone, Default)]
pub(super) struct WorkerHandOver(Arc<Mutex<BTreeMap<(u64, usize), MadeWorker>>>);

impl WorkerHandOver {
    fn put(&self, run: u64, number: usize, worker: MadeWorker) {
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        workers.insert((run, number), worker);
    }

    fn take(&self, run: u64, number: usize) -> Option<MadeWorker> {
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        workers.remove(&(run, number))
    }
}

/// A worker of any design.
trait WorkerStep: Send {
    /// See [`Worker::step`]. Returns the number of responses taken, and whether a request was handed over.
    fn step(
        &mut self,
        load: &mut ActiveLoad<'_, '_>,
    ) -> Result<(u32, bool), headworks_patterns::PatternError>;
    fn answered(&self) -> u64;
    fn is_outstanding(&self) -> bool;
    /// Whether the RNIC writes the response into the worker's own mailbox.
    fn has_mailbox(&self) -> bool;
}

impl<Response: Verb> WorkerStep for Worker<Response, RandomResponder> {
    fn step(
        &mut self,
        load: &mut ActiveLoad<'_, '_>,
    ) -> Result<(u32, bool), headworks_patterns::PatternError> {
        let was = Self::is_outstanding(self);
        let taken = Self::step(self, load)?;
        let is = Self::is_outstanding(self);
        Ok((taken.into(), is && (taken || !was)))
    }

    fn answered(&self) -> u64 {
        Self::answered(self)
    }

    fn is_outstanding(&self) -> bool {
        Self::is_outstanding(self)
    }

    fn has_mailbox(&self) -> bool {
        Response::IN_MAILBOX
    }
}

/// Makes the dispatcher of server `at`, and its workers.
pub(super) fn dispatcher(
    part: &ActorInit,
    task: PatternTask,
    prices: Option<PatternPrices>,
    at: usize,
    workers: &WorkerHandOver,
) -> Result<Box<dyn Actor>> {
    let device = part.open_device();
    let device = device.map_err(|e| WorkloadError::at("device", e))?;
    let (design, inline) = (task.design, inlines(&task, REQUEST, &*device));
    let make = Make {
        device,
        task,
        prices,
        at,
        workers,
    };
    with_verbs(design, inline, make)
}

struct Make<'a> {
    device: Arc<dyn Device>,
    task: PatternTask,
    prices: Option<PatternPrices>,
    at: usize,
    workers: &'a WorkerHandOver,
}

impl WithVerbs for Make<'_> {
    type Output = Result<Box<dyn Actor>>;

    fn with<Request: Verb, Response: Verb, const INLINE: bool>(self) -> Self::Output {
        let device = self.device;
        let seed = bring_up_seed(device.info());
        let task = &self.task;
        let mut dispatcher =
            Dispatcher::<Request, Response, INLINE>::open(device, task.config(), task.responders)?;
        let area = dispatcher.response_area();
        let mut connect = MailConnect::new();
        connect.add_side(dispatcher.ports(), seed, |_| area)?;
        for responder in 0..task.responders {
            let role = PatternRole::Responder(responder).name();
            connect.add_remote(role, vec![(0, responder)]);
        }
        for slot in 0..task.played_by(self.at) {
            let number = self.at * task.per_actor + slot;
            let topology = RandomResponder::new(task.responders, mix(number as u64 ^ 0x5eed));
            let worker = dispatcher.worker(slot as u32, topology);
            self.workers.put(task.nonce, number, Box::new(worker));
        }
        Ok(Box::new(DispatchingActor {
            dispatcher,
            connect,
            workers: task.played_by(self.at) as u64,
            sent: 0,
            phases: RunPhases::new(task, self.prices),
        }))
    }
}

struct DispatchingActor<Request: Verb, Response: Verb, const INLINE: bool> {
    dispatcher: Dispatcher<Request, Response, INLINE>,
    connect: MailConnect,
    workers: u64,
    sent: u64,
    phases: RunPhases,
}

impl<Request: Verb, Response: Verb, const INLINE: bool> Actor
    for DispatchingActor<Request, Response, INLINE>
{
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if self.phases.is_connecting() {
            if !self.connect.step(&mut [self.dispatcher.ports()], cx)? {
                return Ok(self.phases.next(0, None));
            }
            self.phases.connected(cx)?;
        }
        let counts = Counts {
            messages: self.sent,
            ..Counts::default()
        };
        if !self.phases.look(counts, None, cx)? {
            return Ok(self.phases.rest());
        }
        if self.phases.is_ending() {
            return self.phases.finish(cx);
        }
        let mut progress = 0;
        for _ in 0..self.phases.burst {
            let sent = self.dispatcher.step()?;
            if let Some(prices) = &self.phases.prices {
                // Each local mailbox is read; those that a worker wrote come from its core, and so does each response
                // that is handed over.
                cx.charge(prices.scan(self.workers) + prices.line.times(sent.into()));
                if !Response::IN_MAILBOX {
                    cx.charge(prices.scan(self.workers));
                }
            }
            progress += sent;
        }
        self.sent += u64::from(progress);
        if self.phases.is_check_due(progress) {
            self.dispatcher.check()?;
        }
        Ok(match self.phases.prices {
            Some(_) if progress == 0 => Step::Wait(local_look(cx)),
            _ => self.phases.next(progress, None),
        })
    }
}

/// Waits for the RNIC, and a short time for neighbours.
fn local_look(cx: &mut ActorContext<'_>) -> WakeCondition {
    let until = cx.now() + LOOK;
    WakeCondition::mail().or_memory().until(until)
}

/// Makes the actor of worker number `at`.
pub(super) fn worker(
    _: &ActorInit,
    task: PatternTask,
    prices: Option<PatternPrices>,
    at: usize,
    workers: &WorkerHandOver,
) -> Result<Box<dyn Actor>> {
    Ok(Box::new(WorkingActor {
        worker: None,
        workers: workers.clone(),
        run: task.nonce,
        number: at,
        load: RequesterLoad::new(&task, task.config().outstanding as usize, at),
        phases: RunPhases::new(&task, prices),
        latencies: Histogram::default(),
    }))
}

struct WorkingActor {
    worker: Option<MadeWorker>,
    workers: WorkerHandOver,
    run: u64,
    number: usize,
    load: RequesterLoad,
    phases: RunPhases,
    latencies: Histogram,
}

impl Actor for WorkingActor {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if self.worker.is_none() {
            self.worker = self.workers.take(self.run, self.number);
        }
        let Some(worker) = &mut self.worker else {
            // The dispatcher's thread has not made it yet.
            return Ok(Step::Wait(WakeCondition::memory()));
        };
        if self.phases.is_connecting() {
            self.phases.connected(cx)?;
        }
        let counts = Counts {
            messages: worker.answered(),
            ..Counts::default()
        };
        if !self.phases.look(counts, Some(&self.latencies), cx)? {
            return Ok(self.phases.rest());
        }
        let mut progress = 0;
        for _ in 0..self.phases.burst {
            let mut active = ActiveLoad {
                load: &mut self.load,
                phases: &self.phases,
                latencies: &mut self.latencies,
                cx: &mut *cx,
            };
            let (taken, is_handed_over) = worker.step(&mut active)?;
            if let Some(prices) = &self.phases.prices {
                // The local mailbox's line comes from the dispatcher's core, and so does a response by SEND.
                let lines =
                    u64::from(is_handed_over) + u64::from(taken) * u64::from(!worker.has_mailbox());
                cx.charge(prices.scan(1) + prices.line.times(lines));
            }
            progress += taken + u32::from(is_handed_over);
        }
        if self.phases.is_ending() && !worker.is_outstanding() {
            return self.phases.finish(cx);
        }
        let now = cx.now();
        Ok(match self.phases.prices {
            Some(_) if progress == 0 && !worker.has_mailbox() => Step::Wait(local_look(cx)),
            _ => self.phases.next(progress, self.load.waits_until(now)),
        })
    }
}
