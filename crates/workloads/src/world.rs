//! The seam to the stage: a part as an actor, and a pair of parts as a play.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headworks::sim::{Figures, Usage, is_simulated};
use headworks::verbs::DeviceName;
use headworks_stage::{
    Actor, ActorError, Cast, Change, Cx, Event, Outcome, Part as StagePart, PartSpec, Play,
    Running, Step, World,
};

use crate::fanin;
use crate::nic::{self, Task};
use crate::observer::Looks;
use crate::pin::allowed_cpus;
use crate::study;
use crate::transports::connect::Role;
use crate::transports::cpu_cost::Prices;
use crate::transports::job::{Job, Report};
use crate::transports::part::{BEGIN, Part, part};
use crate::transports::{ArmError, Env, Turn};

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
    register_at(cast, None);
}

/// The same for a world of virtual time, where processors pay these prices.
pub fn register_simulated(cast: &mut Cast, prices: Prices) {
    register_at(cast, Some(prices));
}

fn register_at(cast: &mut Cast, prices: Option<Prices>) {
    cast.register(ACTOR, move |stage_part| {
        let role = role_of(stage_part);
        let job = Job::from_bytes(&stage_part.args)?;
        Ok(Box::new(Player {
            peer: peer_of(stage_part),
            prices,
            part: part(job, role, stage_part)?,
        }))
    });
    cast.register(STUDY_ACTOR, move |stage_part| {
        let role = role_of(stage_part);
        let task = study::Task::from_bytes(&stage_part.args)?;
        Ok(Box::new(Player {
            peer: peer_of(stage_part),
            prices,
            part: study::part(task, role, stage_part)?,
        }))
    });
    cast.register(NIC_ACTOR, move |stage_part| {
        let role = role_of(stage_part);
        let task = Task::from_bytes(&stage_part.args)?;
        Ok(Box::new(Player {
            peer: peer_of(stage_part),
            prices,
            part: nic::part(&task, role, stage_part)?,
        }))
    });
    cast.register(FANIN_ACTOR, move |stage_part| {
        let role = role_of(stage_part);
        let task = fanin::Task::from_bytes(&stage_part.args)?;
        Ok(Box::new(Player {
            peer: peer_of(stage_part),
            prices,
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
    prices: Option<Prices>,
    part: Box<dyn Part>,
}

impl Actor for Player {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        match self.part.step(&mut Desk {
            peer: &self.peer,
            prices: self.prices,
            cx,
        })? {
            Turn::Again => Ok(Step::Again),
            Turn::Wait => Ok(Step::OnChange(Change::mail().or_memory())),
            Turn::Idle => Ok(Step::OnChange(Change::mail())),
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
    prices: Option<Prices>,
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

    fn charge(&mut self, cost: headworks::verbs::Duration) {
        self.cx.charge(cost);
    }

    fn copied(&mut self, bytes: u64) {
        self.cx.copied(bytes);
    }

    fn prices(&self) -> Option<Prices> {
        self.prices
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
    /// What plays count, where time is virtual.
    pub figures: Option<Arc<Figures>>,
    /// What the last one counted while it was measured.
    pub counted: Arc<Mutex<Option<Usage>>>,
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
        one(self.run_tasks(task, 1)?)
    }

    /// Runs both parts of `task` in so many pairs at once; answers what the sender and the receiver of each
    /// report.
    pub fn run_tasks(&self, task: &Task, pairs: usize) -> Result<Vec<[Report; 2]>, ArmError> {
        let planned = task.run_ns.saturating_add(task.warm_ns);
        self.play(NIC_ACTOR, &task.to_bytes(), pairs, planned)
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

    /// Whether so many pairs have fewer processors than parts.
    pub fn is_crowded(&self, pairs: usize) -> bool {
        !self.is_simulated() && self.has_few_processors(pairs)
    }

    /// Whether time is virtual here, and processors are as many as there are parts.
    pub fn is_simulated(&self) -> bool {
        is_simulated(&self.devices[0])
    }

    fn has_few_processors(&self, pairs: usize) -> bool {
        self.cpus[0] == self.cpus[1] || 2 * pairs > allowed_cpus().len()
    }

    /// The processors of pair `pair`: its own two if there are so many.
    pub fn cpus_of(&self, pair: usize) -> [usize; 2] {
        if self.is_simulated() {
            return [pair; 2];
        }
        let allowed = allowed_cpus();
        match allowed.len() / 2 {
            0 | 1 => self.cpus,
            pairs => {
                let first = 2 * (pair % pairs);
                [allowed[first], allowed[first + 1]]
            }
        }
    }

    /// What the simulated machines counted while the last play was measured: `None` where there are none.
    pub fn usage(&self) -> Option<Usage> {
        self.counted().clone()
    }

    /// The same, which is then forgotten.
    pub fn take_usage(&self) -> Option<Usage> {
        self.counted().take()
    }

    fn counted(&self) -> MutexGuard<'_, Option<Usage>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device of the sending parts or of the receiving ones: simulated ones are on two hosts.
    fn device(&self, index: usize) -> DeviceName {
        let device = &self.devices[index];
        if !self.is_simulated() || device.option("host").is_some() {
            return device.clone();
        }
        let hosts = ["sender", "receiver"];
        let name = format!("{device},host={}", hosts[index]);
        name.parse().unwrap_or_else(|_| device.clone())
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
                .on(self.device(index))
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
        // On the world's own clock.
        let patience = allowed(Duration::from_nanos(planned_ns));
        let patience = headworks::verbs::Duration::from_nanos(patience.as_nanos() as u64);
        let deadline = running.now() + patience;
        let mut looks = Looks::default();
        *self.counted() = None;
        let mut ready = 0;
        let mut reports: Vec<Option<Report>> = vec![None; names.len()];
        while names.iter().any(|name| running.outcome(name).is_none()) {
            let mut pause = headworks::verbs::Duration::from_millis(50);
            if let Some(figures) = &self.figures {
                looks.look(figures);
                pause = headworks::verbs::Duration::from_nanos(looks.pause_ns());
            }
            match running.poll(pause) {
                Some(Event::Report { role, bytes }) => match Report::from_bytes(&bytes)? {
                    Report::Ready => {
                        ready += 1;
                        if ready == pairs {
                            begin(&mut *running, pairs)?;
                            // Nothing before is measured: looks are for what comes.
                            looks = Looks::default();
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
            if running.now() > deadline {
                return Err(ArmError("the pair did not finish in time".into()));
            }
        }
        // The last to end may have failed, and all be over before that was heard of.
        for name in &names {
            match running.outcome(name) {
                None | Some(Outcome::Done) => {}
                Some(outcome) => return Err(ArmError(format!("{name}: {outcome}"))),
            }
        }
        let reports: Option<Vec<Report>> = reports.into_iter().collect();
        let reports = reports.ok_or_else(|| ArmError("a part ended without a report".into()))?;
        if let Some(figures) = &self.figures {
            looks.look(figures);
            let (began, ended) = measured(&reports);
            *self.counted() = looks.between(began, ended);
        }
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

/// When all that reported a rate were measuring it, in nanoseconds; the whole time where none did.
fn measured(reports: &[Report]) -> (u64, u64) {
    let (mut from, mut until) = (0, u64::MAX);
    for report in reports {
        if let Report::Rate {
            nanos, began_ns, ..
        } = report
        {
            from = from.max(*began_ns);
            until = until.min(began_ns.saturating_add(*nanos));
        }
    }
    (from, until)
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
