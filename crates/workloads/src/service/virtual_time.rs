//! The service in virtual time, compared with plain verbs: the daemon's core and its applications on
//! simulated hosts, and threads that have queue pairs of their own or share some under a lock (RaaS, section
//! VI).
//!
//! | module | what |
//! |---|---|
//! | `native_callers` | callers on plain verbs, and the lock |
//! | `daemon_host` | a host's daemon |
//! | `one_sided_apps` | applications that make and serve requests, and an application's side of the service |
//! | `message_apps` | applications that send each other messages |

mod daemon_host;
mod message_apps;
mod native_callers;
mod one_sided_apps;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks::runtime::{
    Actor, ActorError, ActorInit, ActorRegistry, ActorSpec, Scenario, Step, World,
};
use headworks::sim::{Counters, Preset, SimWorld, UsageMonitor};
use headworks::verbs::{DeviceName, Duration, Instant};

pub use super::one_sided::{MessageWay, OneSidedLoad, OneSidedOp};
use super::one_sided::{RequestCounts, RequestGenerator};
use super::{Result, failed};
use crate::error::WorkloadError;
use crate::latency::Quantiles;
use crate::random::{Random, mix};
use crate::virtual_run::{Drive, DriveEvent};

/// Path that carries the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestPath {
    /// Each caller has its own queue pairs, one for each connection.
    Native,
    /// This many callers share each queue pair under a lock.
    Locked(usize),
    /// The service: each caller is an application.
    Service,
    /// The service, with this many workers on the callers' host. If these are several, each has a core of its own.
    Workers(u16),
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadResult {
    /// Requests completed per second.
    pub per_second: f64,
    /// Bytes received by the callers' RNIC per second. Correct even if long answers are incomplete at the
    /// end.
    pub bytes_per_second: f64,
    /// Time of each request, from when its caller begins to prepare it until the caller has seen that it is
    /// over.
    pub latency: Quantiles,
    /// Number of queue pairs on the callers' host.
    pub queue_pairs: usize,
    /// Misses of the request cache of the callers' RNIC, for each request that the RNIC sent while measuring. `None` if
    /// it sent none.
    pub wqe_misses: Option<f64>,
    /// Number of requests completed in the whole run. Each request that was made completed with the right
    /// answer.
    pub ended: u64,
}

/// The simulated machines.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Preset of every machine.
    pub preset: Preset,
    /// Seed of everything random.
    pub seed: u64,
}

impl Machine {
    /// Returns the device of a host. The callers are on host 0.
    fn device(&self, host: usize) -> Result<DeviceName> {
        let name = format!("sim:{},host=h{host}", self.preset.name);
        name.parse().map_err(failed("a device's name"))
    }
}

/// Converts a constant of a preset, in nanoseconds.
fn nanos(nanos: f64) -> Duration {
    Duration::from_nanos(nanos as u64)
}

/// Name of the callers' host.
const CALLERS: &str = "h0";
/// How long a run may take in addition to warm-up and measurement.
const PATIENCE: Duration = Duration::from_secs(2);

impl OneSidedLoad {
    /// Runs the load on such machines for `times`: warm-up and measurement, in virtual time. A wrong or
    /// missing answer is an error.
    pub fn measure(
        &self,
        arm: RequestPath,
        machine: &Machine,
        times: (Duration, Duration),
        stop: &AtomicBool,
    ) -> Result<LoadResult> {
        let mut scenario = ScenarioBuilder {
            shared_run: SharedRun {
                load: *self,
                machine: machine.clone(),
                times,
                state: Arc::default(),
            },
            actors: ActorRegistry::new(),
            parts: Vec::new(),
        };
        match arm {
            RequestPath::Native => native_callers::add(&mut scenario, 1)?,
            RequestPath::Locked(sharing) => native_callers::add(&mut scenario, sharing)?,
            RequestPath::Service => daemon_host::add(&mut scenario, 1)?,
            RequestPath::Workers(workers) => daemon_host::add(&mut scenario, workers)?,
        };
        let ScenarioBuilder {
            shared_run,
            actors,
            parts,
        } = scenario;
        let count = parts.len();
        let world = SimWorld::new(actors, machine.preset.clone(), machine.seed);
        let mut running = world
            .start(&Scenario::of(parts))
            .map_err(failed("scenario"))?;
        let usage_monitor = world.usage_monitor();
        // Counters of the callers' RNIC when the measurement began, and when it ended.
        let mut readings = Vec::new();
        let drive = Drive {
            actors: count,
            limit: Instant::ZERO + times.0 + times.1 + PATIENCE,
            every: Duration::from_micros(100),
            stop,
        };
        drive.to_end(&mut *running, |running, event| {
            let interval = shared_run.interval();
            let next = interval.and_then(|interval| interval.get(readings.len()).copied());
            let now = running.now();
            if matches!(event, DriveEvent::Turn) && next.is_some_and(|next| next <= now) {
                readings.push((now, counted(&usage_monitor)));
            }
            Ok(())
        })?;
        if readings.len() == 1 {
            // All callers were done before the second reading.
            readings.push((running.now(), counted(&usage_monitor)));
        }
        drop(running);
        let [(from, before), (until, after)] = readings[..] else {
            return Err(WorkloadError("the run ended before measuring".to_owned()));
        };
        let state = shared_run.state();
        let counts = &state.counts;
        if counts.asked != counts.ended {
            let why = format!("{} of {} requests ended", counts.ended, counts.asked);
            return Err(WorkloadError(why));
        }
        if let (OneSidedOp::Adds { .. }, Some(sum)) = (self.what, state.sum)
            && sum != counts.asked
        {
            let why = format!("{} were added, but the counters say {sum}", counts.asked);
            return Err(WorkloadError(why));
        }
        Ok(LoadResult {
            per_second: counts.measured as f64 / times.1.as_secs_f64(),
            bytes_per_second: (after.bytes_in - before.bytes_in) as f64
                / until.since(from).as_secs_f64(),
            latency: counts.latencies.quantiles(1.0),
            queue_pairs: state.queue_pairs,
            wqe_misses: quotient(
                (after.wqe_misses - before.wqe_misses) as f64,
                (after.requests - before.requests) as f64,
            ),
            ended: counts.ended,
        })
    }
}

/// Returns `count` over `of`; `None` if `of` is 0.
pub(crate) fn quotient(count: f64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| count / of)
}

/// Returns the counters of the callers' RNIC.
fn counted(usage_monitor: &UsageMonitor) -> Counters {
    let usage = usage_monitor.now();
    let mut hosts = usage.iter().flat_map(|usage| &usage.hosts);
    let of = hosts.find(|host| host.host == CALLERS);
    of.map_or_else(Counters::default, |host| host.counters)
}

/// Time from when the last caller is ready until all begin.
const LEAD: Duration = Duration::from_micros(2);
/// How often a caller checks whether all are ready.
const SOON: Duration = Duration::from_micros(1);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The actors of a scenario.
struct ScenarioBuilder {
    shared_run: SharedRun,
    actors: ActorRegistry,
    parts: Vec<ActorSpec>,
}

impl ScenarioBuilder {
    /// Adds an actor on a host.
    fn add<A: Actor + 'static>(
        &mut self,
        host: usize,
        role: String,
        make: impl Fn(&ActorInit) -> Result<A, ActorError> + Send + Sync + 'static,
    ) -> Result<()> {
        let make = move |part: &ActorInit| Ok(Box::new(make(part)?) as Box<dyn Actor>);
        self.actors.register(&role, make);
        let device = self.shared_run.machine.device(host)?;
        self.parts
            .push(ActorSpec::new(role.clone(), role).on(device));
        Ok(())
    }
}

#[derive(Clone)]
struct SharedRun {
    load: OneSidedLoad,
    machine: Machine,
    /// Durations of warm-up and measurement.
    times: (Duration, Duration),
    state: Arc<Mutex<RunState>>,
}

#[derive(Default)]
struct RunState {
    ready: usize,
    /// When all begin.
    begin: Option<Instant>,
    done: usize,
    counts: RequestCounts,
    /// Sum of all counters at the end, if there are any.
    sum: Option<u64>,
    /// Number of queue pairs on the callers' host.
    queue_pairs: usize,
}

impl SharedRun {
    fn state(&self) -> MutexGuard<'_, RunState> {
        locked(&self.state)
    }

    /// Returns whether all callers are done.
    fn is_over(&self) -> bool {
        self.state().done == self.load.callers
    }

    /// Returns start and end of the measurement, once they are known.
    fn interval(&self) -> Option<[Instant; 2]> {
        let from = self.state().begin? + self.times.0;
        Some([from, from + self.times.1])
    }

    /// Returns the share of caller `who`.
    fn share(&self, who: usize) -> CallerRun {
        let random = Random::new(mix(self.machine.seed) ^ who as u64);
        CallerRun {
            work: RequestGenerator::new(self.load, false, random),
            shared_run: self.clone(),
            is_ready: false,
        }
    }
}

/// One caller's work in a run.
struct CallerRun {
    shared_run: SharedRun,
    work: RequestGenerator,
    is_ready: bool,
}

impl CallerRun {
    /// Reports the caller ready. Returns what it does until all begin; `None` once they have.
    fn wait_for_start(&mut self, now: Instant) -> Option<Step> {
        if !std::mem::replace(&mut self.is_ready, true) {
            let mut state = self.shared_run.state();
            state.ready += 1;
            if state.ready == self.shared_run.load.callers {
                state.begin = Some(now + LEAD);
            }
        }
        let begin = self.shared_run.state().begin;
        let (Some(begin), Some([from, until])) = (begin, self.shared_run.interval()) else {
            return Some(Step::At(now + SOON));
        };
        self.work.interval = from..until;
        (begin > now).then_some(Step::At(begin))
    }

    /// Adds the caller's counts to those of the run, and marks the caller done.
    fn finish(&mut self) {
        let mut state = self.shared_run.state();
        state.counts.add(&self.work.counts);
        state.done += 1;
    }
}

#[cfg(test)]
mod tests;
