//! Every host is a process of its own, which can be killed.
//!
//! Calls travel as mail to the one actor of each process, replies as its reports.

use std::sync::Arc;

use headworks_runtime::{
    Actor, ActorContext, ActorError, ActorInit, ActorRegistry, ActorSpec, DeviceOpener, Processes,
    RunningScenario, Scenario, ScenarioEvent, Step, WakeCondition, World as _,
};
use headworks_verbs::{Duration, Instant};
use serde::{Deserialize, Serialize};

use super::{Layout, local};
use crate::call::{Call, Refusal, Reply};
use crate::deviation::Knowledge;
use crate::puppet::{Names, Puppet};
use crate::time::{RealTime, Time};
use crate::world::{End, HostId, Manners, World};

/// The actor of a host.
const ACTOR: &str = "puppet";
/// Its role in the play of its own.
const ROLE: &str = "host";
/// How long a call may take before its host counts as stuck, where not told otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// A world of processes.
pub struct Apart {
    processes: Processes,
    place: String,
    layout: Layout,
    patience: Duration,
    hosts: Vec<Host>,
}

struct Host {
    running: Box<dyn RunningScenario>,
    /// Began something that nobody waits for, or was killed.
    is_lost: bool,
}

/// What a host is told to do: these calls, at once.
#[derive(Serialize, Deserialize)]
struct Order(Vec<Call>);

/// What a host is made from: names by end, manners, and the place that its opener is made for.
#[derive(Serialize, Deserialize)]
struct Setting {
    names: Vec<(End, String)>,
    manners: Manners,
    place: String,
}

/// Adds the actor of a host to `cast`. `opener` makes one for the place that [`Apart::new`] was
/// told.
pub fn register(
    cast: &mut ActorRegistry,
    opener: impl Fn(&str) -> DeviceOpener + Send + Sync + 'static,
) {
    cast.register(ACTOR, move |part: &ActorInit| {
        let setting: Setting = serde_json::from_slice(&part.args)?;
        let mut names = Names::new();
        for (end, name) in setting.names {
            names.insert(end, name.parse()?);
        }
        let puppet = Puppet::new(
            opener(&setting.place),
            names,
            setting.manners,
            Arc::new(RealTime),
        );
        Ok(Box::new(Hand { puppet }))
    });
}

/// The actor of a host.
struct Hand {
    puppet: Puppet,
}

impl Actor for Hand {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let Some(mail) = cx.receive() else {
            let is_over = cx.interrupted();
            return Ok(if is_over {
                Step::Done
            } else {
                Step::Wait(WakeCondition::mail())
            });
        };
        let Order(mut calls) = serde_json::from_slice(&mail.bytes)?;
        let replies = match calls.len() {
            1 => calls.iter().map(|call| self.puppet.call(call)).collect(),
            _ => {
                let calls = calls.drain(..).map(|call| (Some(&self.puppet), call));
                local::on_threads(calls.collect())
            }
        };
        cx.report(&serde_json::to_vec(&replies)?)?;
        Ok(Step::Again)
    }
}

impl Apart {
    /// Hosts in processes that `processes` starts, whose cast has [`register`]ed theirs; `place` is
    /// handed to that.
    pub fn new(processes: Processes, place: impl Into<String>, layout: Layout) -> Self {
        Self {
            processes,
            place: place.into(),
            layout,
            patience: PATIENCE,
            hosts: Vec::new(),
        }
    }

    /// The same, where a host counts as stuck, and is killed, that has not answered a call within
    /// `patience`; a minute unless told.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    fn order(&mut self, host: HostId, calls: Vec<Call>) -> Result<(), String> {
        let Some(host) = self.hosts.get_mut(host.0 as usize) else {
            return Err("no such host".to_owned());
        };
        if host.is_lost {
            return Err("the host is gone or busy".to_owned());
        }
        let order = serde_json::to_vec(&Order(calls)).map_err(|error| error.to_string())?;
        let sent = host.running.send(ROLE, &order);
        sent.map_err(|error| error.to_string())
    }

    fn replies(&mut self, host: HostId, count: usize) -> Vec<Reply> {
        let Some(host) = self.hosts.get_mut(host.0 as usize) else {
            return vec![Reply::Gone; count];
        };
        match host.running.poll(self.patience) {
            Some(ScenarioEvent::Report { bytes, .. }) => {
                let replies = serde_json::from_slice(&bytes);
                replies.unwrap_or_else(|error| {
                    vec![Reply::No(Refusal::mistake(error.to_string())); count]
                })
            }
            // A host that failed by itself has said why on standard error.
            Some(ScenarioEvent::Ended { outcome, .. }) => {
                host.is_lost = true;
                let text = format!("the host has ended: {outcome}");
                vec![Reply::No(Refusal::mistake(text)); count]
            }
            // What it says later would be taken for the answer to another call.
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

impl Drop for Apart {
    /// Lets those that are not lost close their devices; the others are killed.
    fn drop(&mut self) {
        let mut hosts: Vec<_> = self.hosts.drain(..).filter(|host| !host.is_lost).collect();
        hosts.iter_mut().for_each(|host| host.running.interrupt());
        for mut host in hosts {
            while let Some(ScenarioEvent::Report { .. }) = host.running.poll(PATIENCE) {}
        }
    }
}

impl World for Apart {
    fn host(&mut self, end: End) -> Result<HostId, String> {
        if self.layout.one_device {
            return Err("processes do not share an opened device".to_owned());
        }
        let names = self.layout.names.iter();
        let setting = Setting {
            names: names.map(|(end, name)| (*end, name.to_string())).collect(),
            manners: self.layout.manners,
            place: self.place.clone(),
        };
        let args = serde_json::to_vec(&setting).map_err(|error| error.to_string())?;
        let play = Scenario::of([ActorSpec::new(ROLE, ACTOR).with_args(args)]);
        let running = self.processes.start(&play);
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

    fn at_once(&mut self, calls: Vec<(HostId, Call)>) -> Vec<Reply> {
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

    fn begin(&mut self, host: HostId, call: Call) -> Result<(), String> {
        self.order(host, vec![call])?;
        self.hosts[host.0 as usize].is_lost = true;
        Ok(())
    }

    fn advance(&mut self) {
        RealTime.advance();
    }

    fn now(&self) -> Instant {
        RealTime.now()
    }

    fn manners(&self) -> Manners {
        self.layout.manners
    }

    fn knowledge(&self) -> Knowledge {
        self.layout.knowledge
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
