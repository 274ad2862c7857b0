//! Running a task in a world, and its result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use headworks::sim::{Usage, UsageMonitor, is_simulated};
use headworks::verbs::{DeviceName, Duration};
use headworks_runtime::{ActorOutcome, ActorSpec, RunningScenario, Scenario, ScenarioEvent, World};
use serde::{Deserialize, Serialize};

use super::design::Connections;
use super::load::{BEGIN, CLOSE, END, PatternReport};
use super::task::{ACTOR, PatternRole, PatternTask};
use crate::cpu_affinity::allowed_cpus;
use crate::error::{Result, WorkloadError};
use crate::latency::{Histogram, Quantiles};
use crate::rnic_counters::{self, RnicCounters};
use crate::thread_counters::HardwareCounts;

/// Time that the actors have to connect, and to report after the measured time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which the coordinator looks at the interrupt flag.
const PAUSE: Duration = Duration::from_millis(20);

/// Where a run takes place.
#[derive(Clone)]
pub struct PatternBed {
    /// The world of the actors.
    pub world: Arc<dyn World>,
    /// Device of the requesters, and of the responders.
    pub devices: [DeviceName; 2],
    /// Requester actors on a simulated host, or all workers of one dispatcher.
    pub actors_per_host: usize,
    /// Simulated hosts, each with an RNIC, on which the responders are, in turn.
    pub responder_hosts: usize,
    /// Monitor of the world's machines, if the result is to have their usage.
    pub usage_monitor: Option<Arc<UsageMonitor>>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct PatternResult {
    /// Responses received per second, by all requesters.
    pub per_second: f64,
    /// Bytes of responses received per second.
    pub bytes_per_second: f64,
    /// Latencies of requests: from when a requester begins to prepare one until it has the response.
    pub latencies: Histogram,
    /// Share of polled mailboxes that were empty, at the responders. `None` if requests travel by SEND.
    pub empty_polls: Option<f64>,
    /// Share of mailboxes without a request under way: one minus the mean number of requests under way at a responder
    /// over the number of its mailboxes.
    pub empty_mailboxes: f64,
    /// Requests answered per second and responder.
    pub per_responder: f64,
    /// Queue pairs of all responders.
    pub queue_pairs: usize,
    /// What the requesters' threads, with their dispatchers', executed for each response received. `None` where
    /// hardware does not count it.
    pub requester_work: Option<MessageWork>,
    /// What the responders' threads executed for each request answered.
    pub responder_work: Option<MessageWork>,
    /// What the counters of this machine's RDMA NICs grew by during the run, warm-up included.
    pub rnic_counters: RnicCounters,
    /// What the simulated machines counted in the measured time, if the bed has a monitor.
    pub measured_usage: Option<Usage>,
    /// Whether there are more actors than processors.
    pub is_oversubscribed: bool,
}

/// Instructions and cycles of a side for each message, in user space. They include polls that find nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageWork {
    /// Instructions for each message.
    pub instructions: f64,
    /// Cycles for each message.
    pub cycles: f64,
}

/// Sums of the threads of one side.
#[derive(Clone, Copy, Debug, Default)]
struct SideWork {
    messages: u64,
    counts: HardwareCounts,
    /// A thread's counts are missing.
    is_incomplete: bool,
}

impl SideWork {
    fn add(&mut self, messages: u64, counts: Option<HardwareCounts>) {
        self.messages += messages;
        self.is_incomplete |= counts.is_none();
        self.counts.add(counts.unwrap_or_default());
    }

    fn per_message(self) -> Option<MessageWork> {
        if self.is_incomplete || self.messages == 0 {
            return None;
        }
        let mean = |sum: u64| sum as f64 / self.messages as f64;
        Some(MessageWork {
            instructions: mean(self.counts.instructions),
            cycles: mean(self.counts.cycles),
        })
    }
}

impl PatternResult {
    /// Returns the quantiles of the latencies.
    pub fn latency(&self) -> Quantiles {
        self.latencies.quantiles(1.0)
    }
}

impl PatternBed {
    /// Returns whether time is virtual here.
    pub fn is_simulated(&self) -> bool {
        is_simulated(&self.devices[0])
    }

    /// Makes the specification of the actor of `role`. It is number `index` of the scenario.
    fn spec(&self, role: PatternRole, task: &PatternTask, index: usize) -> Result<ActorSpec> {
        let (side, host) = match role {
            PatternRole::Responder(at) => (1, format!("responders{}", at % self.responder_hosts)),
            PatternRole::Requester(at) => (0, format!("requesters{}", at / self.actors_per_host)),
            PatternRole::Dispatcher(at) => (0, format!("requesters{at}")),
            PatternRole::Worker(at) => (0, format!("requesters{}", at / task.per_actor)),
        };
        let mut device = self.devices[side].clone();
        if self.is_simulated() {
            let name = format!("{device},host={host}");
            device = name
                .parse()
                .map_err(|e| WorkloadError::at("a device's name", e))?;
        }
        let spec = ActorSpec::new(role.name(), ACTOR)
            .on(device)
            .with_args(task.to_bytes());
        if self.is_simulated() {
            return Ok(spec);
        }
        let cpus = allowed_cpus();
        Ok(spec.pinned_to(cpus[index % cpus.len()]))
    }

    fn scenario(&self, task: &PatternTask) -> Result<Vec<ActorSpec>> {
        let mut roles: Vec<_> = (0..task.responders).map(PatternRole::Responder).collect();
        match task.design.connections {
            Connections::Private => {
                roles.extend((0..task.requester_actors()).map(PatternRole::Requester));
            }
            Connections::Dispatcher => {
                roles.extend((0..task.requester_actors()).map(PatternRole::Dispatcher));
                roles.extend((0..task.requesters).map(PatternRole::Worker));
            }
        }
        let roles = roles.into_iter().enumerate();
        roles
            .map(|(index, role)| self.spec(role, task, index))
            .collect()
    }
}

/// Runs `task`. Setting `stop` ends it early, with an error.
///
/// # Errors
///
/// The task is not legal or not for this device, an actor failed or died, or the run was interrupted or does not end.
pub fn run(task: &PatternTask, bed: &PatternBed, stop: &AtomicBool) -> Result<PatternResult> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    task.check()?;
    let task = PatternTask {
        nonce: RUNS.fetch_add(1, Ordering::Relaxed),
        ..task.clone()
    };
    let parts = bed.scenario(&task)?;
    let roles: Vec<String> = parts.iter().map(|part| part.role.clone()).collect();
    let is_oversubscribed = !bed.is_simulated() && roles.len() > allowed_cpus().len();
    let running = bed.world.start(&Scenario::of(parts));
    let mut coordinator = Coordinator {
        running: running.map_err(|e| WorkloadError::at("scenario", e))?,
        roles,
        ready: 0,
        reports: BTreeMap::new(),
        finished: 0,
        ended: 0,
        stop,
    };
    let limit = PATIENCE + task.warm() + task.run();
    coordinator.until(limit, |all| all.ready == all.roles.len())?;
    let before = rnic_counters::read(&bed.devices);
    coordinator.tell(|_| true, BEGIN)?;
    let usage = || bed.usage_monitor.as_ref().and_then(|monitor| monitor.now());
    if bed.usage_monitor.is_some() {
        let from = coordinator.running.now() + task.warm();
        coordinator.polling(task.warm(), limit, |all| all.running.now() >= from)?;
    }
    let first = usage();
    coordinator.until(limit, |all| all.reports.len() == all.roles.len())?;
    let last = usage();
    let rnic_counters = rnic_counters::growth(&before, &rnic_counters::read(&bed.devices));
    let answers = |role: &str| matches!(PatternRole::of(role), Some(PatternRole::Responder(_)));
    let dispatches = |role: &str| matches!(PatternRole::of(role), Some(PatternRole::Dispatcher(_)));
    // Requesters finish what is outstanding before those end that they need for it, and all have ended their work
    // before one closes its device.
    let requesters = coordinator.tell(|role| !answers(role) && !dispatches(role), END)?;
    coordinator.until(limit, |all| all.finished == requesters)?;
    coordinator.tell(|role| answers(role) || dispatches(role), END)?;
    coordinator.until(limit, |all| all.finished == all.roles.len())?;
    coordinator.tell(|_| true, CLOSE)?;
    coordinator.until(limit, |all| all.ended == all.roles.len())?;
    Ok(PatternResult {
        rnic_counters,
        measured_usage: last.zip(first).map(|(last, first)| last.since(&first)),
        ..coordinator.result(&task, is_oversubscribed)
    })
}

/// A running scenario, and what its actors have reported.
struct Coordinator<'a> {
    running: Box<dyn RunningScenario>,
    roles: Vec<String>,
    ready: usize,
    reports: BTreeMap<String, PatternReport>,
    finished: usize,
    ended: usize,
    stop: &'a AtomicBool,
}

impl Coordinator<'_> {
    /// Mails `bytes` to each actor that `whom` selects. Returns how many there are.
    fn tell(&mut self, whom: impl Fn(&str) -> bool, bytes: &[u8]) -> Result<usize> {
        let mut count = 0;
        for role in self.roles.iter().filter(|role| whom(role)) {
            let sent = self.running.send(role, bytes);
            sent.map_err(|e| WorkloadError::at("scenario", e))?;
            count += 1;
        }
        Ok(count)
    }

    /// Takes events until `is_over`.
    fn until(&mut self, limit: Duration, is_over: impl Fn(&Self) -> bool) -> Result<()> {
        self.polling(PAUSE, limit, is_over)
    }

    /// Takes events until `is_over`, and waits for at most `pause` in each poll.
    fn polling(
        &mut self,
        pause: Duration,
        limit: Duration,
        is_over: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let deadline = self.running.now() + limit;
        while !is_over(self) {
            match self.running.poll(pause) {
                Some(ScenarioEvent::Report { role, bytes }) => {
                    match PatternReport::from_bytes(&bytes)? {
                        PatternReport::Ready => self.ready += 1,
                        PatternReport::Finished => self.finished += 1,
                        report => drop(self.reports.insert(role, report)),
                    }
                }
                Some(ScenarioEvent::Ended {
                    outcome: ActorOutcome::Done,
                    ..
                }) => self.ended += 1,
                Some(ScenarioEvent::Ended { role, outcome }) => {
                    return Err(WorkloadError(format!("{role}: {outcome}")));
                }
                None => {}
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(WorkloadError("interrupted".into()));
            }
            if self.running.now() > deadline {
                let why = format!(
                    "the run does not end: {} of {} actors are ready, {} reported, {} ended",
                    self.ready,
                    self.roles.len(),
                    self.reports.len(),
                    self.ended
                );
                return Err(WorkloadError(why));
            }
        }
        Ok(())
    }

    fn result(self, task: &PatternTask, is_oversubscribed: bool) -> PatternResult {
        let mut result = PatternResult {
            per_second: 0.0,
            bytes_per_second: 0.0,
            latencies: Histogram::default(),
            empty_polls: None,
            empty_mailboxes: 0.0,
            per_responder: 0.0,
            queue_pairs: task.responders * task.peers(),
            requester_work: None,
            responder_work: None,
            rnic_counters: RnicCounters::new(),
            measured_usage: None,
            is_oversubscribed,
        };
        let (mut places_polled, mut requests_found) = (0, 0);
        let (mut requesters, mut responders) = (SideWork::default(), SideWork::default());
        for (role, report) in &self.reports {
            let PatternReport::Measured {
                messages,
                nanos,
                polled: [places, found, _],
                latencies,
                hardware,
            } = report
            else {
                continue;
            };
            let per_second = *messages as f64 * 1e9 / (*nanos).max(1) as f64;
            match PatternRole::of(role) {
                Some(PatternRole::Requester(_) | PatternRole::Worker(_)) => {
                    result.per_second += per_second;
                    result.latencies.add_recorded(latencies);
                    requesters.add(*messages, *hardware);
                }
                Some(PatternRole::Responder(_)) => {
                    result.per_responder += per_second / task.responders as f64;
                    places_polled += places;
                    requests_found += found;
                    responders.add(*messages, *hardware);
                }
                Some(PatternRole::Dispatcher(_)) => requesters.add(0, *hardware),
                None => {}
            }
        }
        result.requester_work = requesters.per_message();
        result.responder_work = responders.per_message();
        result.bytes_per_second = result.per_second * task.response as f64;
        if task.design.request == super::MessageVerb::Write && places_polled > 0 {
            result.empty_polls = Some(1.0 - requests_found as f64 / places_polled as f64);
        }
        let under_way = result.per_second * result.latency().mean_ns / 1e9;
        let mailboxes = task.responders * (task.requesters * task.outstanding as usize);
        result.empty_mailboxes = 1.0 - under_way / mailboxes as f64;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_a_side_is_known_only_if_all_its_threads_are_counted() {
        let counts = |instructions| {
            Some(HardwareCounts {
                instructions,
                cycles: 2 * instructions,
            })
        };
        let mut side = SideWork::default();
        assert_eq!(side.per_message(), None);
        side.add(10, counts(1_000));
        // A dispatcher works for others' messages.
        side.add(0, counts(500));
        let expected = MessageWork {
            instructions: 150.0,
            cycles: 300.0,
        };
        assert_eq!(side.per_message(), Some(expected));
        side.add(10, None);
        assert_eq!(side.per_message(), None);
    }
}
