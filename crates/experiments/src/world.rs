//! The seam to the stage: a part as an actor, and a pair of parts as a play.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headworks::verbs::DeviceName;
use headworks_stage::{
    Actor, ActorError, Cast, Change, Cx, Event, Outcome, Part as StagePart, PartSpec, Play,
    Running, Step, World,
};

use crate::arms::connect::Role;
use crate::arms::job::{Job, Report};
use crate::arms::part::{BEGIN, Part, part};
use crate::arms::{ArmError, Env, Turn};
use crate::fanin;
use crate::nic::{self, Task};
use crate::pin::allowed_cpus;
use crate::study;

/// The actor that every part is that measures a channel of messages.
const ACTOR: &str = "experiment-part";
/// The actor that every part is that measures a device itself.
const NIC_ACTOR: &str = "experiment-nic-part";
/// The actor that every part is that measures many rings.
const FANIN_ACTOR: &str = "experiment-fanin-part";
/// The actor that every side of an application is.
const STUDY_ACTOR: &str = "experiment-study-part";
/// Beyond the planned time, a pair has so long to connect and to report.
const PATIENCE: Duration = Duration::from_secs(20);
/// And three times as long as planned, but no longer than this, where a machine is busy.
const DELAY_MAX: Duration = Duration::from_secs(60);

impl Role {
    /// The part's name in its play.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }
}

/// Adds the experiments' actors to `cast`.
pub fn register(cast: &mut Cast) {
    cast.register(ACTOR, |stage_part| {
        let role = role_of(stage_part);
        let job = Job::from_bytes(&stage_part.args)?;
        Ok(Box::new(Player {
            peer: peer_of(stage_part),
            part: part(job, role, stage_part)?,
        }))
    });
    cast.register(STUDY_ACTOR, |stage_part| {
        let role = role_of(stage_part);
        let task = study::Task::from_bytes(&stage_part.args)?;
        Ok(Box::new(Player {
            peer: peer_of(stage_part),
            part: study::part(task, role, stage_part)?,
        }))
    });
    cast.register(NIC_ACTOR, |stage_part| {
        let role = role_of(stage_part);
        let task = Task::from_bytes(&stage_part.args)?;
        Ok(Box::new(Player {
            peer: peer_of(stage_part),
            part: nic::part(&task, role, stage_part)?,
        }))
    });
    cast.register(FANIN_ACTOR, |stage_part| {
        let role = role_of(stage_part);
        let task = fanin::Task::from_bytes(&stage_part.args)?;
        Ok(Box::new(Player {
            peer: peer_of(stage_part),
            part: fanin::part(&task, role, stage_part)?,
        }))
    });
}

/// A part's role is in its name: `sender`, or `sender.3` where there are several pairs.
fn role_of(part: &StagePart) -> Role {
    match part.role.split('.').next() {
        Some("sender") => Role::Sender,
        _ => Role::Receiver,
    }
}

/// The name of the part with `role` in pair `pair`.
fn name_of(role: Role, pair: usize) -> String {
    match pair {
        0 => role.name().to_owned(),
        _ => format!("{}.{pair}", role.name()),
    }
}

/// The other part of the same pair.
fn peer_of(part: &StagePart) -> String {
    let other = role_of(part).other().name();
    match part.role.split_once('.') {
        Some((_, pair)) => format!("{other}.{pair}"),
        None => other.to_owned(),
    }
}

struct Player {
    peer: String,
    part: Box<dyn Part>,
}

impl Actor for Player {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        match self.part.step(&mut Desk {
            peer: &self.peer,
            cx,
        })? {
            Turn::Again => Ok(Step::Again),
            Turn::Wait => Ok(Step::OnChange(Change::mail().or_memory())),
            Turn::Report(report) => {
                cx.report(&report.to_bytes())?;
                Ok(Step::Again)
            }
            Turn::Done(report) => {
                cx.report(&report.to_bytes())?;
                Ok(Step::Done)
            }
        }
    }
}

struct Desk<'a, 'b> {
    peer: &'a str,
    cx: &'a mut Cx<'b>,
}

impl Env for Desk<'_, '_> {
    fn now(&mut self) -> headworks::verbs::Instant {
        self.cx.now()
    }

    fn mail(&mut self, bytes: &[u8]) -> Result<(), ArmError> {
        self.cx
            .send(self.peer, bytes)
            .map_err(|e| ArmError::at("mail", e))
    }

    fn mailed(&mut self) -> Option<Vec<u8>> {
        self.cx.receive().map(|mail| mail.bytes)
    }
}

/// Where pairs run: a world, the hosts' devices and processors, and what ends it early.
#[derive(Clone)]
pub struct Place<'a> {
    /// The world.
    pub world: Arc<dyn World>,
    /// Of the sender and of the receiver.
    pub devices: [DeviceName; 2],
    /// Of the sender and of the receiver.
    pub cpus: [usize; 2],
    /// Set by an interrupt.
    pub stop: &'a AtomicBool,
}

impl Place<'_> {
    /// Runs both parts of `job`; answers what the sender and the receiver report.
    pub fn run_pair(&self, job: &Job) -> Result<[Report; 2], ArmError> {
        one(self.run_pairs(job, 1)?)
    }

    /// Runs `pairs` pairs at once; answers what the sender and the receiver of each report. The pairs
    /// take turns in the processors. They begin together if the job has it so: all that connects is
    /// connected before the first message is sent.
    pub fn run_pairs(&self, job: &Job, pairs: usize) -> Result<Vec<[Report; 2]>, ArmError> {
        let planned = job.run_ns.saturating_add(job.warm_ns);
        self.play(ACTOR, &job.to_bytes(), pairs, planned)
    }

    /// Runs both parts of `task`; answers what the sender and the receiver report.
    pub fn run_task(&self, task: &Task) -> Result<[Report; 2], ArmError> {
        let planned = task.run_ns.saturating_add(task.warm_ns);
        one(self.play(NIC_ACTOR, &task.to_bytes(), 1, planned)?)
    }

    /// Runs both parts of `task`; answers what the sender and the receiver report.
    pub fn run_fan_in(&self, task: &fanin::Task) -> Result<[Report; 2], ArmError> {
        let phases = fanin::Load::ALL.len() as u64;
        let planned = task.run_ns.saturating_add(task.warm_ns);
        let planned = planned.saturating_mul(phases);
        one(self.play(FANIN_ACTOR, &task.to_bytes(), 1, planned)?)
    }

    /// Runs both sides of the application that `task` names, which is expected to take `planned`.
    pub fn run_study(
        &self,
        task: &study::Task,
        planned: Duration,
    ) -> Result<[Report; 2], ArmError> {
        let planned = planned.as_nanos() as u64;
        one(self.play(STUDY_ACTOR, &task.to_bytes(), 1, planned)?)
    }

    /// An outcome that begins with where the two parts run, which `pinning` says, and with what there is
    /// to say where they share a processor.
    pub fn outcome(&self, pinning: String) -> crate::outcome::Outcome {
        let mut outcome = crate::outcome::Outcome::pinned(pinning);
        if self.cpus[0] == self.cpus[1] {
            let why =
                "There is one processor only: both ends share it, and no figure here means much.";
            outcome.notes.push(why.into());
        }
        outcome
    }

    /// Whether so many pairs have fewer processors than parts.
    pub fn is_crowded(&self, pairs: usize) -> bool {
        self.cpus[0] == self.cpus[1] || 2 * pairs > allowed_cpus().len()
    }

    /// The processors of pair `pair`: its own two if there are so many.
    pub fn cpus_of(&self, pair: usize) -> [usize; 2] {
        let allowed = allowed_cpus();
        match allowed.len() / 2 {
            0 | 1 => self.cpus,
            pairs => {
                let first = 2 * (pair % pairs);
                [allowed[first], allowed[first + 1]]
            }
        }
    }

    fn play(
        &self,
        actor: &str,
        args: &[u8],
        pairs: usize,
        planned_ns: u64,
    ) -> Result<Vec<[Report; 2]>, ArmError> {
        let spec = |pair: usize, role: Role, index: usize| {
            PartSpec::new(name_of(role, pair), actor)
                .on(self.devices[index].clone())
                .with_args(args)
                .pinned_to(self.cpus_of(pair)[index])
        };
        let roles = [Role::Sender, Role::Receiver];
        let parts: Vec<PartSpec> = (0..pairs)
            .flat_map(|pair| [spec(pair, roles[0], 0), spec(pair, roles[1], 1)])
            .collect();
        let names: Vec<String> = parts.iter().map(|part| part.role.clone()).collect();
        let mut running = self
            .world
            .start(&Play::of(parts))
            .map_err(|e| ArmError::at("stage", e))?;
        let deadline = Instant::now() + allowed(Duration::from_nanos(planned_ns));
        let mut ready = 0;
        let mut reports: Vec<Option<Report>> = vec![None; names.len()];
        while names.iter().any(|name| running.outcome(name).is_none()) {
            match running.poll(headworks::verbs::Duration::from_millis(50)) {
                Some(Event::Report { role, bytes }) => match Report::from_bytes(&bytes)? {
                    Report::Ready => {
                        ready += 1;
                        if ready == pairs {
                            begin(&mut *running, pairs)?;
                        }
                    }
                    report => {
                        if let Some(at) = names.iter().position(|name| *name == role) {
                            reports[at] = Some(report);
                        }
                    }
                },
                Some(Event::Ended {
                    outcome: Outcome::Done,
                    ..
                })
                | None => {}
                Some(Event::Ended { role, outcome }) => {
                    return Err(ArmError(format!("{role}: {outcome}")));
                }
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(ArmError("interrupted".into()));
            }
            if Instant::now() > deadline {
                return Err(ArmError("the pair did not finish in time".into()));
            }
        }
        let reports: Option<Vec<Report>> = reports.into_iter().collect();
        let reports = reports.ok_or_else(|| ArmError("a part ended without a report".into()))?;
        let (pairs, _) = reports.as_chunks::<2>();
        Ok(pairs.to_vec())
    }
}

/// Tells all sending parts to begin.
fn begin(running: &mut dyn Running, pairs: usize) -> Result<(), ArmError> {
    for pair in 0..pairs {
        let told = running.send(&name_of(Role::Sender, pair), BEGIN);
        told.map_err(|e| ArmError::at("stage", e))?;
    }
    Ok(())
}

/// How long what is planned to take `planned` may take.
fn allowed(planned: Duration) -> Duration {
    let delay = planned.saturating_mul(3).min(DELAY_MAX);
    planned.saturating_add(delay).saturating_add(PATIENCE)
}

/// The only pair of a play.
fn one(mut reports: Vec<[Report; 2]>) -> Result<[Report; 2], ArmError> {
    let pair = reports.pop();
    pair.ok_or_else(|| ArmError("nobody reported".into()))
}

/// For constructors: what a part of the stage is handed.
pub(crate) type Handed = StagePart;
