//! Running pairs of actors, in real or virtual time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks::sim::{Usage, UsageMonitor, is_simulated};
use headworks::verbs::{DeviceName, Duration};
use headworks_runtime::{
    ActorOutcome, ActorRegistry, ActorSpec, InProcess, Scenario, ScenarioEvent, World,
};

use crate::actor_pair::{BEGIN, Role};
use crate::cpu_affinity::allowed_cpus;
use crate::error::{Result, WorkloadError};
use crate::report::Report;
use crate::task::{ACTOR, Task};
use crate::usage_samples::UsageSamples;

/// Time beyond the planned time that a pair has to connect and to report.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum time added for a busy machine. Up to this, three times the planned time is added.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// Where pairs run: a world, the devices and processors of both hosts, and a flag that stops a run.
#[derive(Clone)]
pub struct Testbed<'a> {
    /// The world.
    pub world: Arc<dyn World>,
    /// Devices of the sender and of the receiver.
    pub devices: [DeviceName; 2],
    /// Processors of the sender and of the receiver.
    pub cpus: [usize; 2],
    /// Set by an interrupt: ends a run.
    pub stop: &'a AtomicBool,
    /// Monitor of the simulated machines' usage, where time is virtual.
    pub usage_monitor: Option<Arc<UsageMonitor>>,
    /// Usage over the measured time of the last scenario.
    pub measured_usage: Arc<Mutex<Option<Usage>>>,
}

/// Makes a directory for the names of one measurement.
pub fn private_dir() -> Result<tempfile::TempDir> {
    let dir = tempfile::Builder::new().prefix("headworks-").tempdir();
    dir.map_err(|why| WorkloadError::at("private directory", why))
}

impl Testbed<'_> {
    /// Makes the same testbed with all actors in threads of this process. Not for virtual time.
    #[must_use]
    pub fn in_threads(&self) -> Self {
        let mut actors = ActorRegistry::new();
        crate::task::register(&mut actors, None);
        let world = Arc::new(InProcess::new(actors, headworks::opener()));
        Self {
            world,
            ..self.clone()
        }
    }

    /// Runs one pair of `task`. Returns the reports of the sender and of the receiver.
    pub fn run_pair(&self, task: impl Into<Task>) -> Result<[Report; 2]> {
        let pair = self.run(task, 1)?.pop();
        pair.ok_or_else(|| WorkloadError("no pair ran".into()))
    }

    /// Returns whether `pairs` pairs have fewer processors than actors. Simulated hosts have enough.
    pub fn is_crowded(&self, pairs: usize) -> bool {
        let is_short = self.cpus[0] == self.cpus[1] || 2 * pairs > allowed_cpus().len();
        is_short && !self.is_simulated()
    }

    /// Returns whether time is virtual here.
    pub fn is_simulated(&self) -> bool {
        is_simulated(&self.devices[0])
    }

    /// Returns the processors of pair `pair`. Pairs have two processors each, and share them in turn if there
    /// are too few. The first pair has `cpus`.
    pub fn cpus_of(&self, pair: usize) -> [usize; 2] {
        if self.is_simulated() {
            return [pair; 2];
        }
        let allowed = allowed_cpus();
        match pair % (allowed.len() / 2).max(1) {
            0 => self.cpus,
            pair => [allowed[2 * pair], allowed[2 * pair + 1]],
        }
    }

    /// Returns the usage of the simulated machines over the measured time of the last scenario; `None`
    /// without them.
    pub fn usage(&self) -> Option<Usage> {
        self.measured_usage().clone()
    }

    /// Takes what [`usage`](Self::usage) returns.
    pub fn take_usage(&self) -> Option<Usage> {
        self.measured_usage().take()
    }

    fn measured_usage(&self) -> MutexGuard<'_, Option<Usage>> {
        self.measured_usage
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the device of the sending or of the receiving actors. Simulated devices are on two hosts.
    fn device(&self, index: usize) -> DeviceName {
        let device = &self.devices[index];
        if !self.is_simulated() || device.option("host").is_some() {
            return device.clone();
        }
        let hosts = ["sender", "receiver"];
        let name = format!("{device},host={}", hosts[index]);
        name.parse().unwrap_or_else(|_| device.clone())
    }

    /// Runs `pairs` pairs of `task` at once. Returns the reports of the sender and of the receiver of each
    /// pair. The pairs share the processors in turn. If the task says so, they begin together: all are
    /// connected before the first message is sent.
    pub fn run(&self, task: impl Into<Task>, pairs: usize) -> Result<Vec<[Report; 2]>> {
        self.run_each(&vec![task.into(); pairs])
    }

    /// As [`run`](Self::run), with a task for each pair. Either all tasks say that the pairs begin together, or none.
    pub fn run_each(&self, tasks: &[Task]) -> Result<Vec<[Report; 2]>> {
        let pairs = tasks.len();
        let args: Vec<Vec<u8>> = tasks.iter().map(Task::to_bytes).collect();
        let spec = |pair: usize, role: Role| {
            let index = role as usize;
            ActorSpec::new(role.name_in(pair), ACTOR)
                .on(self.device(index))
                .with_args(&*args[pair])
                .pinned_to(self.cpus_of(pair)[index])
        };
        let parts: Vec<ActorSpec> = (0..pairs)
            .flat_map(|pair| Role::BOTH.map(|role| spec(pair, role)))
            .collect();
        let names: Vec<String> = parts.iter().map(|part| part.role.clone()).collect();
        let running = self.world.start(&Scenario::of(parts));
        let mut running = running.map_err(|e| WorkloadError::at("scenario", e))?;
        // The deadline is on the world's own clock.
        let planned = tasks.iter().map(Task::planned_ns).max();
        let deadline = running.now() + allowed(planned.unwrap_or(0));
        let mut readings = UsageSamples::default();
        *self.measured_usage() = None;
        let mut ready = 0;
        let mut reports: Vec<Option<Report>> = vec![None; names.len()];
        while names.iter().any(|name| running.outcome(name).is_none()) {
            let mut pause = Duration::from_millis(50);
            if let Some(usage_monitor) = &self.usage_monitor {
                readings.sample(usage_monitor);
                pause = Duration::from_nanos(readings.pause_ns());
            }
            match running.poll(pause) {
                Some(ScenarioEvent::Report { role, bytes }) => match Report::from_bytes(&bytes)? {
                    Report::Ready => {
                        ready += 1;
                        if ready == pairs {
                            for pair in 0..pairs {
                                let told = running.send(&Role::Sender.name_in(pair), BEGIN);
                                told.map_err(|e| WorkloadError::at("scenario", e))?;
                            }
                            // The measured time begins later, so earlier samples are dropped.
                            readings = UsageSamples::default();
                        }
                    }
                    report => {
                        if let Some(at) = names.iter().position(|name| *name == role) {
                            reports[at] = Some(report);
                        }
                    }
                },
                Some(ScenarioEvent::Ended {
                    outcome: ActorOutcome::Done,
                    ..
                })
                | None => {}
                Some(ScenarioEvent::Ended { role, outcome }) => {
                    return Err(WorkloadError(format!("{role}: {outcome}")));
                }
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(WorkloadError("interrupted".into()));
            }
            if running.now() > deadline {
                return Err(WorkloadError("the pair did not finish in time".into()));
            }
        }
        // The last actor to end may have failed, and the loop above ended before it polled that event.
        for name in &names {
            match running.outcome(name) {
                None | Some(ActorOutcome::Done) => {}
                Some(outcome) => return Err(WorkloadError(format!("{name}: {outcome}"))),
            }
        }
        let reports: Option<Vec<Report>> = reports.into_iter().collect();
        let reports =
            reports.ok_or_else(|| WorkloadError("an actor ended without a report".into()))?;
        if let Some(usage_monitor) = &self.usage_monitor {
            readings.sample(usage_monitor);
            let (began, ended) = measured(&reports);
            *self.measured_usage() = readings.between(began, ended);
        }
        let (pairs, _) = reports.as_chunks::<2>();
        Ok(pairs.to_vec())
    }
}

/// Returns the interval, in nanoseconds, in which all actors that reported a rate were measuring; the whole
/// time if there are none.
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

/// Returns how long a task may take that is planned to take `planned_ns` nanoseconds.
fn allowed(planned_ns: u64) -> Duration {
    let delay = planned_ns.saturating_mul(3).min(DELAY_MAX.nanos());
    Duration::from_nanos(
        planned_ns
            .saturating_add(delay)
            .saturating_add(PATIENCE.nanos()),
    )
}
