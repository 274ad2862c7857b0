//! What every world offers to the one who runs a play: the coordinator.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use headworks_verbs::{Duration, Instant};

use crate::actor::{MAIL_MAX, MailError};
use crate::scenario::{ACTORS_MAX, Scenario};

/// A place where plays run.
pub trait World: Send + Sync {
    /// Starts every part.
    fn start(&self, scenario: &Scenario) -> Result<Box<dyn RunningScenario>, ScenarioError>;

    /// Whether [`RunningScenario::kill`], [`RunningScenario::stop`] and [`RunningScenario::cont`] work here.
    fn can_kill(&self) -> bool;
}

/// A play that runs. Dropping it ends every part, and returns when they are gone.
pub trait RunningScenario: Send {
    /// The roles, in the order of the play.
    fn roles(&self) -> &[String];

    /// The clock that deadlines and timeouts are measured on.
    fn now(&self) -> Instant;

    /// The next event, waiting up to `timeout` for it. `None` at once when nobody runs any more.
    fn poll(&mut self, timeout: Duration) -> Option<ScenarioEvent>;

    /// Mails a part, as [`COORDINATOR`](crate::actor::COORDINATOR).
    fn send(&mut self, role: &str, bytes: &[u8]) -> Result<(), ScenarioError>;

    /// Asks every part to end early.
    fn interrupt(&mut self);

    /// Kills a part's process at whatever instruction it is at.
    fn kill(&mut self, role: &str) -> Result<(), ScenarioError>;

    /// Stops a part's process until [`RunningScenario::cont`].
    fn stop(&mut self, role: &str) -> Result<(), ScenarioError>;

    /// Lets a stopped process go on.
    fn cont(&mut self, role: &str) -> Result<(), ScenarioError>;

    /// The process of a part, where it has one of its own.
    fn pid(&self, role: &str) -> Option<u32>;

    /// Waits until every part has ended or `deadline` has passed, and ends those that still run, as
    /// failed. In the play's order; reports and endings that [`RunningScenario::poll`] returned before are not in
    /// it again (the outcome of such a part is [`ActorOutcome::Done`] if it was, and so on).
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
                    // Nothing may have been told for want of time, or because a world looks up now and then.
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

    /// How a part ended, once [`RunningScenario::poll`] has said so.
    fn outcome(&self, role: &str) -> Option<ActorOutcome>;
}

/// Something that the coordinator learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScenarioEvent {
    /// A part reported.
    Report {
        /// Which part.
        role: String,
        /// What it said.
        bytes: Vec<u8>,
    },
    /// A part ended, after all its reports; with a process of its own, that is gone.
    Ended {
        /// Which part.
        role: String,
        /// How the actor ended.
        outcome: ActorOutcome,
    },
}

/// How a part ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActorOutcome {
    /// It said so.
    Done,
    /// Its actor returned an error or panicked, or could not be made: one line.
    Failed(String),
    /// Its process died.
    Died(ProcessExit),
}

/// How a process died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    /// By this signal.
    Signal(i32),
    /// With this exit code, without having said why.
    Code(i32),
}

/// A part's end and what it reported until then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActorResult {
    /// Which part.
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

/// A play could not be started or directed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// Too few or too many parts.
    #[error("a scenario of {0} actors: 1 to {ACTORS_MAX} can run")]
    ActorCount(usize),
    /// A role or actor name is not legal.
    #[error(
        "role {0:?} of actor {1:?}: names are 1 to 64 of [A-Za-z0-9._-], and not \"coordinator\""
    )]
    BadName(String, String),
    /// A role is there twice.
    #[error("role {0:?} is there twice")]
    DuplicateRole(String),
    /// A part's arguments are too long.
    #[error("arguments of actor {0:?} are {1} bytes: at most {MAIL_MAX}")]
    ArgsTooLong(String, usize),
    /// Mail was not taken.
    #[error(transparent)]
    Mail(#[from] MailError),
    /// The world cannot do that.
    #[error("{0} needs a process for each actor")]
    NeedsProcesses(&'static str),
    /// The part has ended.
    #[error("actor {0:?} has ended")]
    Ended(String),
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// Why it failed.
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
