//! A world whose hosts are processes that can be killed.
//!
//! Each process runs one actor. Calls travel to it as mail, replies come back as its reports.

use std::sync::Arc;

use headworks_runtime::{
    Actor, ActorContext, ActorError, ActorInit, ActorRegistry, ActorSpec, DeviceOpener, Processes,
    RunningScenario, Scenario, ScenarioEvent, Step, WakeCondition, World as _,
};
use headworks_verbs::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::{WorldLayout, in_process};
use crate::call::{Call, Refusal, Reply};
use crate::deviation::KnownDeviations;
use crate::executor::{CallExecutor, DeviceNames};
use crate::time_source::{RealTimeSource, TimeSource};
use crate::world::{DeviceBehaviour, HostId, HostRole, World};

/// Name of the actor that runs a host.
const ACTOR: &str = "executor";
/// Role of that actor in its scenario.
const ROLE: &str = "host";
/// Default time a call may take before its host counts as stuck.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// World whose hosts are processes.
pub struct ProcessWorld {
    processes: Processes,
    place: String,
    layout: WorldLayout,
    call_timeout: Duration,
    hosts: Vec<Host>,
}

struct Host {
    running: Box<dyn RunningScenario>,
    /// Was killed, or executes a call whose reply is not awaited.
    is_lost: bool,
}

/// Mail to a host: the calls to execute concurrently.
#[derive(Serialize, Deserialize)]
struct CallBatch(Vec<Call>);

/// Arguments of a host: device names by role, behaviour, and the place for which its opener is created.
#[derive(Serialize, Deserialize)]
struct HostSetup {
    names: Vec<(HostRole, String)>,
    behaviour: DeviceBehaviour,
    place: String,
}

/// Adds the actor that runs a host to `actors`. `opener` is called with the place that
/// [`ProcessWorld::new`] was given.
pub fn register(
    actors: &mut ActorRegistry,
    opener: impl Fn(&str) -> DeviceOpener + Send + Sync + 'static,
) {
    actors.register(ACTOR, move |part: &ActorInit| {
        let setting: HostSetup = serde_json::from_slice(&part.args)?;
        let mut names = DeviceNames::new();
        for (end, name) in setting.names {
            names.insert(end, name.parse()?);
        }
        let executor = CallExecutor::new(
            opener(&setting.place),
            names,
            setting.behaviour,
            Arc::new(RealTimeSource),
        );
        Ok(Box::new(HostActor { executor }))
    });
}

/// Actor that runs a host.
struct HostActor {
    executor: CallExecutor,
}

impl Actor for HostActor {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let Some(mail) = cx.receive() else {
            let is_over = cx.interrupted();
            return Ok(if is_over {
                Step::Done
            } else {
                Step::Wait(WakeCondition::mail())
            });
        };
        let CallBatch(mut calls) = serde_json::from_slice(&mail.bytes)?;
        let replies = match calls.len() {
            1 => calls.iter().map(|call| self.executor.call(call)).collect(),
            _ => {
                let calls = calls.drain(..).map(|call| (Some(&self.executor), call));
                in_process::call_on_threads(calls.collect())
            }
        };
        cx.report(&serde_json::to_vec(&replies)?)?;
        Ok(Step::Again)
    }
}

impl ProcessWorld {
    /// Returns a world whose hosts `processes` starts. Those processes must have [`register`]ed the host
    /// actor. `place` is passed to the opener that was registered.
    pub fn new(processes: Processes, place: impl Into<String>, layout: WorldLayout) -> Self {
        Self {
            processes,
            place: place.into(),
            layout,
            call_timeout: CALL_TIMEOUT,
            hosts: Vec::new(),
        }
    }

    /// Sets the time after which a host that has not answered a call counts as stuck and is killed. The
    /// default is one minute.
    #[must_use]
    pub fn with_call_timeout(mut self, call_timeout: Duration) -> Self {
        self.call_timeout = call_timeout;
        self
    }

    fn order(&mut self, host: HostId, calls: Vec<Call>) -> Result<(), String> {
        let Some(host) = self.hosts.get_mut(host.0 as usize) else {
            return Err("no such host".to_owned());
        };
        if host.is_lost {
            return Err("the host is gone or busy".to_owned());
        }
        let order = serde_json::to_vec(&CallBatch(calls)).map_err(|error| error.to_string())?;
        let sent = host.running.send(ROLE, &order);
        sent.map_err(|error| error.to_string())
    }

    fn replies(&mut self, host: HostId, count: usize) -> Vec<Reply> {
        let Some(host) = self.hosts.get_mut(host.0 as usize) else {
            return vec![Reply::Gone; count];
        };
        match host.running.poll(self.call_timeout) {
            Some(ScenarioEvent::Report { bytes, .. }) => {
                let replies = serde_json::from_slice(&bytes);
                replies.unwrap_or_else(|error| {
                    vec![Reply::No(Refusal::mistake(error.to_string())); count]
                })
            }
            // A host that failed by itself has printed the reason on standard error.
            Some(ScenarioEvent::Ended { outcome, .. }) => {
                host.is_lost = true;
                let text = format!("the host has ended: {outcome}");
                vec![Reply::No(Refusal::mistake(text)); count]
            }
            // A late reply would be taken for the reply to another call.
            None => {
                host.is_lost = true;
                let killed = host.running.kill(ROLE);
                let text = match killed {
                    Ok(()) => "the host did not answer in time and was killed".to_owned(),
                    Err(error) => format!("the host does not answer and cannot be killed: {error}"),
                };
                vec![Reply::No(Refusal::mistake(text)); count]
            }
        }
    }
}

impl Drop for ProcessWorld {
    /// Lets hosts that are not lost close their devices; kills the others.
    fn drop(&mut self) {
        let mut hosts: Vec<_> = self.hosts.drain(..).filter(|host| !host.is_lost).collect();
        hosts.iter_mut().for_each(|host| host.running.interrupt());
        for mut host in hosts {
            while let Some(ScenarioEvent::Report { .. }) = host.running.poll(CALL_TIMEOUT) {}
        }
    }
}

impl World for ProcessWorld {
    fn host(&mut self, end: HostRole) -> Result<HostId, String> {
        if self.layout.one_device {
            return Err("processes do not share an opened device".to_owned());
        }
        let names = self.layout.names.iter();
        let setting = HostSetup {
            names: names.map(|(end, name)| (*end, name.to_string())).collect(),
            behaviour: self.layout.behaviour,
            place: self.place.clone(),
        };
        let args = serde_json::to_vec(&setting).map_err(|error| error.to_string())?;
        let scenario = Scenario::of([ActorSpec::new(ROLE, ACTOR).with_args(args)]);
        let running = self.processes.start(&scenario);
        let running = running.map_err(|error| format!("host at {end:?}: {error}"))?;
        self.hosts.push(Host {
            running,
            is_lost: false,
        });
        Ok(HostId(self.hosts.len() as u32 - 1))
    }

    fn call(&mut self, host: HostId, call: Call) -> Reply {
        match self.order(host, vec![call]) {
            Ok(()) => self.replies(host, 1).pop().unwrap_or(Reply::Gone),
            Err(_) => Reply::Gone,
        }
    }

    fn call_concurrently(&mut self, calls: Vec<(HostId, Call)>) -> Vec<Reply> {
        let mut by_host: Vec<(HostId, Vec<usize>, Vec<Call>)> = Vec::new();
        let count = calls.len();
        for (index, (host, call)) in calls.into_iter().enumerate() {
            match by_host.iter_mut().find(|(found, ..)| *found == host) {
                Some((_, indices, calls)) => {
                    indices.push(index);
                    calls.push(call);
                }
                None => by_host.push((host, vec![index], vec![call])),
            }
        }
        let mut replies = vec![Reply::Gone; count];
        let mut ordered = Vec::new();
        for (host, indices, calls) in by_host {
            if self.order(host, calls).is_ok() {
                ordered.push((host, indices));
            }
        }
        for (host, indices) in ordered {
            let found = self.replies(host, indices.len());
            for (index, reply) in indices.into_iter().zip(found) {
                replies[index] = reply;
            }
        }
        replies
    }

    fn begin_unanswered(&mut self, host: HostId, call: Call) -> Result<(), String> {
        self.order(host, vec![call])?;
        self.hosts[host.0 as usize].is_lost = true;
        Ok(())
    }

    fn advance(&mut self) {
        RealTimeSource.advance();
    }

    fn now(&self) -> Instant {
        RealTimeSource.now()
    }

    fn behaviour(&self) -> DeviceBehaviour {
        self.layout.behaviour
    }

    fn known_deviations(&self) -> KnownDeviations {
        self.layout.known_deviations
    }

    fn can_kill(&self) -> bool {
        true
    }

    fn kill(&mut self, host: HostId) -> Result<(), String> {
        let host = self.hosts.get_mut(host.0 as usize).ok_or("no such host")?;
        host.is_lost = true;
        host.running.kill(ROLE).map_err(|error| error.to_string())
    }
}
