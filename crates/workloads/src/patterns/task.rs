//! One point to measure, which every actor of a run receives, and the roles of the actors.

use headworks::verbs::time::Duration;
use headworks::verbs::{Device, DeviceInfo};
use headworks_patterns::ports::INLINE_MAX;
use headworks_patterns::verb::Verb;
use headworks_patterns::{PatternConfig, PatternError};
use headworks_runtime::{Actor, ActorInit, ActorRegistry};
use serde::{Deserialize, Serialize};

use super::design::{Connections, Design, WithVerbs, with_verbs};
use super::prices::PatternPrices;
use super::{dispatchers, requesters, responders};
use crate::error::{Result, WorkloadError};

/// Name of the actor that plays any role of a [`PatternTask`].
pub const ACTOR: &str = "pattern";

/// A point to measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PatternTask {
    /// The design.
    pub design: Design,
    /// Bytes of a response.
    pub response: usize,
    /// Number of requesters.
    pub requesters: usize,
    /// Number of responders. Each request goes to a random one.
    pub responders: usize,
    /// Requesters that one actor plays: connections of one thread, or workers of one dispatcher.
    pub per_actor: usize,
    /// Requests that a requester has outstanding. The paper has 1.
    pub outstanding: u32,
    /// Whether requests travel inline.
    pub inline: bool,
    /// One send request in this many is signalled.
    pub signal_every: u32,
    /// Whether memory is on huge pages.
    pub huge_pages: bool,
    /// Items in a responder's region.
    pub items: u64,
    /// Mailboxes of a responder that no requester uses.
    pub idle_mailboxes: usize,
    /// Share of a requester's turns in which it waits for `idle_ns` instead of sending a request (Fig. 9b).
    pub idle_share: f64,
    /// Time of such a wait, in nanoseconds.
    pub idle_ns: u64,
    /// One request in this many is timed.
    pub time_every: u64,
    /// Warm-up time, in nanoseconds.
    pub warm_ns: u64,
    /// Measured time, in nanoseconds.
    pub run_ns: u64,
    /// Distinguishes runs of one process, whose actors share memory.
    pub nonce: u64,
}

impl PatternTask {
    /// The paper's workload: one request outstanding per requester, selective signalling, inline requests.
    pub fn paper(design: Design, response: usize, requesters: usize, responders: usize) -> Self {
        Self {
            design,
            response,
            requesters,
            responders,
            per_actor: 1,
            outstanding: 1,
            inline: true,
            signal_every: 16,
            huge_pages: false,
            items: 64,
            idle_mailboxes: 0,
            idle_share: 0.0,
            idle_ns: 8_000,
            time_every: 1,
            warm_ns: 100_000,
            run_ns: 1_000_000,
            nonce: 0,
        }
    }

    /// Encodes the task as an actor's arguments.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data has a JSON form")
    }

    /// Decodes the task from an actor's arguments, and checks its counts.
    ///
    /// # Errors
    ///
    /// The bytes are no task, or a count is not legal.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let task: Self =
            serde_json::from_slice(bytes).map_err(|e| WorkloadError::at("pattern task", e))?;
        task.check()?;
        Ok(task)
    }

    /// Checks the counts. Sizes are checked against the device when it is open.
    ///
    /// # Errors
    ///
    /// A count is not legal.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str, value: String, legal: &str| {
            Err(WorkloadError(format!("{what} is {value}: {legal}")))
        };
        if self.requesters == 0 || self.responders == 0 || self.per_actor == 0 {
            let counts = format!(
                "{} / {} / {}",
                self.requesters, self.responders, self.per_actor
            );
            return wrong(
                "requesters / responders / per_actor",
                counts,
                "at least 1 each",
            );
        }
        if !(0.0..1.0).contains(&self.idle_share) {
            return wrong(
                "idle_share",
                self.idle_share.to_string(),
                "0 or more, and below 1",
            );
        }
        if self.time_every == 0 || self.run_ns == 0 {
            let values = format!("{} / {}", self.time_every, self.run_ns);
            return wrong("time_every / run_ns", values, "at least 1 each");
        }
        if self.design.connections == Connections::Dispatcher && self.outstanding != 1 {
            return wrong(
                "outstanding",
                self.outstanding.to_string(),
                "1 with dispatchers",
            );
        }
        Ok(())
    }

    /// Checks that `device` promises what the design relies on, and that the sizes are legal there.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn check_device(&self, device: &DeviceInfo) -> Result<()> {
        struct Check<'a>(PatternConfig, &'a DeviceInfo);
        impl WithVerbs for Check<'_> {
            type Output = std::result::Result<(), PatternError>;
            fn with<Request: Verb, Response: Verb, const INLINE: bool>(self) -> Self::Output {
                self.0.check::<Request, Response>(self.1)
            }
        }
        let check = Check(self.config(), device);
        Ok(with_verbs(self.design, self.inline, check)?)
    }

    /// Returns the sizes of the building blocks. The workers of a dispatcher are its outstanding requests.
    pub fn config(&self) -> PatternConfig {
        let outstanding = match self.design.connections {
            Connections::Private => self.outstanding,
            Connections::Dispatcher => self.per_actor as u32,
        };
        let busiest = 2 * self.signal_every.max(2 * outstanding) as u64;
        PatternConfig {
            response: self.response,
            outstanding,
            items: self.items.max(outstanding.into()),
            signal_every: self.signal_every,
            send_depth: busiest.next_power_of_two().max(64) as u32,
            idle_mailboxes: self.idle_mailboxes,
            huge_pages: self.huge_pages,
        }
    }

    /// Returns the number of actors that play requesters, or of dispatchers.
    pub fn requester_actors(&self) -> usize {
        self.requesters.div_ceil(self.per_actor)
    }

    /// Returns the number of all actors: responders, requesters' threads, and the workers of dispatchers.
    pub fn actors(&self) -> usize {
        let workers = match self.design.connections {
            Connections::Private => 0,
            Connections::Dispatcher => self.requesters,
        };
        self.requester_actors()
            .saturating_add(self.responders)
            .saturating_add(workers)
    }

    /// Returns how many requesters actor `actor` plays. The last may have fewer.
    pub fn played_by(&self, actor: usize) -> usize {
        let first = actor * self.per_actor;
        self.per_actor.min(self.requesters.saturating_sub(first))
    }

    /// Returns the number of a responder's peers: requesters, or dispatchers.
    pub fn peers(&self) -> usize {
        match self.design.connections {
            Connections::Private => self.requesters,
            Connections::Dispatcher => self.requester_actors(),
        }
    }

    /// Returns the measured time.
    pub fn run(&self) -> Duration {
        Duration::from_nanos(self.run_ns)
    }

    /// Returns the warm-up time before that.
    pub fn warm(&self) -> Duration {
        Duration::from_nanos(self.warm_ns)
    }
}

/// Role of an actor in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatternRole {
    /// Plays `per_actor` requesters.
    Requester(usize),
    /// A responder.
    Responder(usize),
    /// The dispatcher of a server.
    Dispatcher(usize),
    /// A worker of a dispatcher.
    Worker(usize),
}

impl PatternRole {
    /// Returns the actor's name in its scenario.
    pub(super) fn name(self) -> String {
        match self {
            Self::Requester(at) => format!("requester.{at}"),
            Self::Responder(at) => format!("responder.{at}"),
            Self::Dispatcher(at) => format!("dispatcher.{at}"),
            Self::Worker(at) => format!("worker.{at}"),
        }
    }

    /// Returns the role of the actor called `name`.
    pub(super) fn of(name: &str) -> Option<Self> {
        let (role, at) = name.split_once('.')?;
        let at = at.parse().ok()?;
        match role {
            "requester" => Some(Self::Requester(at)),
            "responder" => Some(Self::Responder(at)),
            "dispatcher" => Some(Self::Dispatcher(at)),
            "worker" => Some(Self::Worker(at)),
            _ => None,
        }
    }
}

/// Adds the actor of every role to `actors`. In virtual time, work is charged at `prices`.
pub fn register(actors: &mut ActorRegistry, prices: Option<PatternPrices>) {
    let workers = dispatchers::WorkerHandOver::default();
    actors.register(ACTOR, move |part| {
        Ok(actor(part, prices, &workers).map_err(|why| why.0)?)
    });
}

fn actor(
    part: &ActorInit,
    prices: Option<PatternPrices>,
    workers: &dispatchers::WorkerHandOver,
) -> Result<Box<dyn Actor>> {
    let task = PatternTask::from_bytes(&part.args)?;
    let role = PatternRole::of(&part.role);
    let role = role.ok_or_else(|| WorkloadError(format!("no role is called {:?}", part.role)))?;
    match role {
        PatternRole::Requester(at) => requesters::actor(part, task, prices, at),
        PatternRole::Responder(_) => responders::actor(part, task, prices),
        PatternRole::Dispatcher(at) => dispatchers::dispatcher(part, task, prices, at, workers),
        PatternRole::Worker(at) => dispatchers::worker(part, task, prices, at, workers),
    }
}

/// Returns whether messages of `len` bytes travel inline: if the task wants it and the device takes as many bytes.
pub(super) fn inlines(task: &PatternTask, len: usize, device: &dyn Device) -> bool {
    let most = INLINE_MAX.min(device.info().limits.max_inline as usize);
    task.inline && len <= most
}

#[cfg(test)]
mod tests {
    use super::super::design::MessageVerb;
    use super::*;

    #[test]
    fn roles_are_parsed_as_they_are_named() {
        for role in [
            PatternRole::Requester(0),
            PatternRole::Responder(7),
            PatternRole::Dispatcher(3),
            PatternRole::Worker(90),
        ] {
            assert_eq!(PatternRole::of(&role.name()), Some(role));
        }
        assert_eq!(PatternRole::of("sender"), None);
    }

    #[test]
    fn impossible_tasks_are_refused_with_the_field() {
        let design = Design::of(MessageVerb::Write, MessageVerb::Write);
        let task = PatternTask::paper(design, 64, 4, 1);
        assert_eq!(PatternTask::from_bytes(&task.to_bytes()).unwrap(), task);
        let says = |task: PatternTask| task.check().unwrap_err().to_string();
        assert!(
            says(PatternTask {
                requesters: 0,
                ..task.clone()
            })
            .contains("requesters")
        );
        assert!(
            says(PatternTask {
                idle_share: 1.0,
                ..task.clone()
            })
            .contains("idle_share is 1")
        );
        assert!(
            says(PatternTask {
                design: design.dispatched(),
                outstanding: 2,
                ..task
            })
            .contains("1 with dispatchers")
        );
    }
}
