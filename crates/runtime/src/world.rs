//! The interface of every world to its caller, the coordinator.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use headworks_verbs::{Duration, Instant};

use crate::actor::{MAIL_MAX, MailError};
use crate::scenario::{ACTORS_MAX, Scenario};

/// An environment that runs scenarios.
pub trait World: Send + Sync {
    /// Starts all actors of a scenario.
    fn start(&self, scenario: &Scenario) -> Result<Box<dyn RunningScenario>, ScenarioError>;

    /// Whether [`RunningScenario::kill`], [`RunningScenario::stop`] and [`RunningScenario::cont`] work here.
    fn can_kill(&self) -> bool;
}

/// A running scenario. Dropping it ends every actor, and returns when they are gone.
pub trait RunningScenario: Send {
    /// The roles, in the order of the scenario.
    fn roles(&self) -> &[String];

    /// The current time of the clock that deadlines and timeouts refer to.
    fn now(&self) -> Instant;

    /// Returns the next event, waiting up to `timeout` for it. Returns `None` at once if no actor runs any
    /// more.
    fn poll(&mut self, timeout: Duration) -> Option<ScenarioEvent>;

    /// Mails an actor, as [`COORDINATOR`](crate::actor::COORDINATOR).
    fn send(&mut self, role: &str, bytes: &[u8]) -> Result<(), ScenarioError>;

    /// Asks every actor to end early.
    fn interrupt(&mut self);

    /// Kills an actor's process, at whatever instruction it is. A world that owns no processes refuses this, and the
    /// next two.
    fn kill(&mut self, _role: &str) -> Result<(), ScenarioError> {
        Err(ScenarioError::NeedsProcesses("killing an actor"))
    }

    /// Stops an actor's process until [`RunningScenario::cont`].
    fn stop(&mut self, _role: &str) -> Result<(), ScenarioError> {
        Err(ScenarioError::NeedsProcesses("stopping an actor"))
    }

    /// Lets a stopped process continue.
    fn cont(&mut self, _role: &str) -> Result<(), ScenarioError> {
        Err(ScenarioError::NeedsProcesses("continuing an actor"))
    }

    /// Process id of an actor, if it has a process of its own.
    fn pid(&self, _role: &str) -> Option<u32> {
        None
    }

    /// Waits until every actor has ended or `deadline` has passed. Actors that still run are then ended and
    /// count as failed. The results are in the scenario's order. Reports that [`RunningScenario::poll`]
    /// returned before are not repeated; outcomes are.
    fn finish(mut self: Box<Self>, deadline: Instant) -> Vec<ActorResult> {
        let mut reports: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
        loop {
            let left = deadline.since(self.now());
            match self.poll(left) {
                Some(ScenarioEvent::Report { role, bytes }) => {
                    reports.entry(role).or_default().push(bytes);
                }
                Some(ScenarioEvent::Ended { .. }) => {}
                None => {
                    // A world may return nothing for want of time, or because it returns to its caller now
                    // and then.
                    let is_over = self.roles().iter().all(|role| self.outcome(role).is_some());
                    if is_over || self.now() >= deadline {
                        break;
                    }
                }
            }
        }
        let late = || ActorOutcome::Failed("was still running at the deadline".to_owned());
        let ending = |role: &String| ActorResult {
            role: role.clone(),
            outcome: self.outcome(role).unwrap_or_else(late),
            reports: reports.remove(role).unwrap_or_default(),
        };
        self.roles().iter().map(ending).collect()
    }

    /// The outcome of an actor, once [`RunningScenario::poll`] has returned it.
    fn outcome(&self, role: &str) -> Option<ActorOutcome>;
}

/// An event that the coordinator receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScenarioEvent {
    /// An actor reported.
    Report {
        /// Role of the actor.
        role: String,
        /// The report.
        bytes: Vec<u8>,
    },
    /// An actor ended, after all its reports. If it had a process of its own, the process is gone.
    Ended {
        /// Role of the actor.
        role: String,
        /// How the actor ended.
        outcome: ActorOutcome,
    },
}

/// How an actor ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActorOutcome {
    /// It returned [`Step::Done`](crate::Step::Done).
    Done,
    /// It returned an error, panicked, or could not be constructed: one line of text.
    Failed(String),
    /// Its process died.
    Died(ProcessExit),
}

/// How a process died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    /// Killed by this signal.
    Signal(i32),
    /// Exited with this code, without having reported a failure.
    Code(i32),
}

/// An actor's outcome, and its reports until then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActorResult {
    /// Role of the actor.
    pub role: String,
    /// How it ended.
    pub outcome: ActorOutcome,
    /// Its reports that had not been polled, oldest first.
    pub reports: Vec<Vec<u8>>,
}

impl fmt::Display for ActorOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Failed(why) => f.write_str(why),
            Self::Died(ProcessExit::Signal(signal)) => write!(f, "died of signal {signal}"),
            Self::Died(ProcessExit::Code(code)) => write!(f, "exited with code {code}"),
        }
    }
}

/// A scenario could not be started or controlled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// Too few or too many actors.
    #[error("a scenario of {0} actors: 1 to {ACTORS_MAX} are allowed")]
    ActorCount(usize),
    /// A role or actor name is not legal.
    #[error(
        "role {0:?} of actor {1:?}: names are 1 to 64 of [A-Za-z0-9._-], and not \"coordinator\""
    )]
    BadName(String, String),
    /// Two actors have the same role.
    #[error("two actors have the role {0:?}")]
    DuplicateRole(String),
    /// An actor's arguments are too long.
    #[error("arguments of actor {0:?} are {1} bytes: at most {MAIL_MAX} are allowed")]
    ArgsTooLong(String, usize),
    /// Mail was not accepted.
    #[error(transparent)]
    Mail(#[from] MailError),
    /// This world does not support the operation.
    #[error("{0} needs a process for each actor")]
    NeedsProcesses(&'static str),
    /// The world has fewer ranks than the scenario has actors.
    #[error("the scenario has {actors} actors, and there are {ranks} ranks: start more ranks")]
    TooFewRanks {
        /// Number of actors.
        actors: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// The actor has ended.
    #[error("actor {0:?} has ended")]
    Ended(String),
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl ScenarioError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            what: what.into(),
            source: source.into(),
        }
    }
}
