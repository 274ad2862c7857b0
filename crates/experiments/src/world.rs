//! The seam to the stage: a part as an actor, and a pair of parts as a play.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headworks::verbs::DeviceName;
use headworks_stage::{
    Actor, ActorError, Cast, Change, Cx, Event, Outcome, Part as StagePart, PartSpec, Play, Step,
    World,
};

use crate::arms::connect::Role;
use crate::arms::job::{Job, Report};
use crate::arms::part::{Part, part};
use crate::arms::{ArmError, Env, Turn};
use crate::fanin;
use crate::nic::{self, Task};

/// The actor that every part is that measures a channel of messages.
const ACTOR: &str = "experiment-part";
/// The actor that every part is that measures a device itself.
const NIC_ACTOR: &str = "experiment-nic-part";
/// The actor that every part is that measures many rings.
const FANIN_ACTOR: &str = "experiment-fanin-part";
/// Beyond the planned time, a pair has so long to connect and to report.
const PATIENCE: Duration = Duration::from_secs(20);

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
            role,
            part: part(job, role, stage_part)?,
        }))
    });
    cast.register(NIC_ACTOR, |stage_part| {
        let role = role_of(stage_part);
        let task = Task::from_bytes(&stage_part.args)?;
        Ok(Box::new(Player {
            role,
            part: nic::part(&task, role, stage_part)?,
        }))
    });
    cast.register(FANIN_ACTOR, |stage_part| {
        let role = role_of(stage_part);
        let task = fanin::Task::from_bytes(&stage_part.args)?;
        Ok(Box::new(Player {
            role,
            part: fanin::part(&task, role, stage_part)?,
        }))
    });
}

fn role_of(part: &StagePart) -> Role {
    match part.role.as_str() {
        "sender" => Role::Sender,
        _ => Role::Receiver,
    }
}

struct Player {
    role: Role,
    part: Box<dyn Part>,
}

impl Actor for Player {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        match self.part.step(&mut Desk {
            peer: self.role.other().name(),
            cx,
        })? {
            Turn::Again => Ok(Step::Again),
            Turn::Wait => Ok(Step::OnChange(Change::mail().or_memory())),
            Turn::Done(report) => {
                cx.report(&report.to_bytes())?;
                Ok(Step::Done)
            }
        }
    }
}

struct Desk<'a, 'b> {
    peer: &'static str,
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
        let planned = job.run_ns.saturating_add(job.warm_ns);
        self.play(ACTOR, &job.to_bytes(), planned)
    }

    /// Runs both parts of `task`; answers what the sender and the receiver report.
    pub fn run_task(&self, task: &Task) -> Result<[Report; 2], ArmError> {
        let planned = task.run_ns.saturating_add(task.warm_ns);
        self.play(NIC_ACTOR, &task.to_bytes(), planned)
    }

    /// Runs both parts of `task`; answers what the sender and the receiver report.
    pub fn run_fan_in(&self, task: &fanin::Task) -> Result<[Report; 2], ArmError> {
        let phases = fanin::Load::ALL.len() as u64;
        let planned = task.run_ns.saturating_add(task.warm_ns);
        self.play(
            FANIN_ACTOR,
            &task.to_bytes(),
            planned.saturating_mul(phases),
        )
    }

    fn play(&self, actor: &str, args: &[u8], planned_ns: u64) -> Result<[Report; 2], ArmError> {
        let spec = |role: Role, index: usize| {
            PartSpec::new(role.name(), actor)
                .on(self.devices[index].clone())
                .with_args(args)
                .pinned_to(self.cpus[index])
        };
        let play = Play::of([spec(Role::Sender, 0), spec(Role::Receiver, 1)]);
        let mut running = self
            .world
            .start(&play)
            .map_err(|e| ArmError::at("stage", e))?;
        let planned = planned_ns.saturating_mul(4);
        let deadline = Instant::now() + Duration::from_nanos(planned) + PATIENCE;
        let mut reports = [None, None];
        let index = |role: &str| usize::from(role == Role::Receiver.name());
        while [Role::Sender, Role::Receiver]
            .iter()
            .any(|r| running.outcome(r.name()).is_none())
        {
            match running.poll(headworks::verbs::Duration::from_millis(50)) {
                Some(Event::Report { role, bytes }) => {
                    reports[index(&role)] = Some(Report::from_bytes(&bytes)?);
                }
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
        match reports {
            [Some(sent), Some(got)] => Ok([sent, got]),
            _ => Err(ArmError("a part ended without a report".into())),
        }
    }
}

/// For constructors: what a part of the stage is handed.
pub(crate) type Handed = StagePart;
