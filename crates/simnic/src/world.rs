//! A world in virtual time: steps actors on the cores of simulated hosts, one at a time.
//!
//! Each actor has its own host, named after its role, unless its device's name says `host=NAME`. A step
//! occupies a core for as long as its device calls and
//! [`ActorContext::charge`](headworks_runtime::ActorContext::charge) cost. The model computes what happens in
//! the network meanwhile when an actor looks. The same scenario and seed give the same result to the byte:
//! there is one thread, and no clock but the model's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use headworks_runtime::{
    Actor, ActorContext, MESSAGE_OVERHEAD, Step, WakeCondition, WakeFd, catch_failure,
};
use headworks_runtime::{ActorInit, ActorRegistry, DeviceOpener, Scenario};
use headworks_runtime::{
    ActorOutcome, ProcessExit, RunningScenario, ScenarioError, ScenarioEvent, World,
};
use headworks_runtime::{Mail, MailError};
use headworks_verbs::{DeviceName, Duration};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::device::SharedModel;
use crate::event_queue::EventQueue;
use crate::faults::Rules;
use crate::hardware_units::{NS, Ps, ns};
use crate::model::{ActingActor, ActorTime, Model, ObjectCounts};
use crate::preset::Preset;
use crate::provider::{self, SimDeviceOptions};
use crate::trace::Tracer;
use crate::usage_monitor::UsageMonitor;

mod context;
mod running_scenario;

use context::SimContext;

/// Minimum duration of a step; no step takes zero time.
const STEP_COST_MIN: Ps = NS;
/// Longest step that counts as an idle spin: it did no work and returned [`Step::Again`].
const SPIN: Ps = 30 * NS;
/// Assumed interval at which a spinning actor reads the clock, on that clock.
const SPIN_CLOCK_INTERVAL: Duration = Duration::from_nanos(500);
/// Maximum number of steps and events that one call of `poll` processes.
const POLL_BUDGET: u64 = 1 << 16;

/// Runs scenarios in virtual time.
pub struct SimWorld {
    actors: ActorRegistry,
    preset: Preset,
    seed: u64,
    usage_monitor: Arc<UsageMonitor>,
    tracer: Option<Tracer>,
    rules: Option<Rules>,
    /// Antagonists of single hosts, in GB/s.
    antagonists: Vec<(String, f64)>,
    /// The model of the scenario that was started last.
    latest: Mutex<Option<SharedModel>>,
}

impl SimWorld {
    /// Creates a world of these actors, on machines of this preset. The seed determines every random choice.
    pub fn new(actors: ActorRegistry, preset: Preset, seed: u64) -> Self {
        Self {
            actors,
            preset,
            seed,
            usage_monitor: Arc::default(),
            tracer: None,
            rules: None,
            antagonists: Vec::new(),
            latest: Mutex::default(),
        }
    }

    /// Returns this world with a tracer, which records all
    /// scenarios started from now on, one after the other.
    #[must_use]
    pub fn traced(self, tracer: Tracer) -> Self {
        Self {
            tracer: Some(tracer),
            ..self
        }
    }

    /// Returns the counts of this world's scenarios. Of scenarios
    /// that run concurrently, it shows the one that started last.
    pub fn usage_monitor(&self) -> Arc<UsageMonitor> {
        self.usage_monitor.clone()
    }

    /// Returns this world with faults injected by `rules`. It then also keeps a digest of each run
    /// ([`SimWorld::run_digest`]).
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        let rules = Some(rules);
        Self { rules, ..self }
    }

    /// Returns this world with an antagonist on the host called `host`. Alone, it would use `gb_per_s` GB/s of
    /// that host's memory bandwidth. This replaces the preset's `host.antagonist` on that host. It has no effect
    /// if the preset does not model the memory of hosts.
    #[must_use]
    pub fn with_antagonist(mut self, host: impl Into<String>, gb_per_s: f64) -> Self {
        self.antagonists.push((host.into(), gb_per_s));
        self
    }

    /// Counts the objects that the scenario started last has now.
    pub fn object_counts(&self) -> ObjectCounts {
        self.ask_latest(|model| model.object_counts())
            .unwrap_or_default()
    }

    /// Returns a digest of every event of the scenario started last, and the number of entries in it. Both
    /// are equal for equal scenario, preset, seed and rules. `None` in a world without rules.
    pub fn run_digest(&self) -> Option<(u64, u64)> {
        self.ask_latest(|model| model.run_digest()).flatten()
    }

    fn ask_latest<T>(&self, ask: impl FnOnce(&Model) -> T) -> Option<T> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.as_ref().map(|model| ask(&model.lock()))
    }
}

impl World for SimWorld {
    fn start(&self, play: &Scenario) -> Result<Box<dyn RunningScenario>, ScenarioError> {
        let roles = play.check()?;
        let mut model = Model::new(self.preset.clone(), self.seed);
        let mut moments = VecDeque::new();
        if let Some(rules) = &self.rules {
            let all = rules.moments();
            moments.extend(all.into_iter().map(|at| at.nanos().saturating_mul(NS)));
            model.set_fault_rules(rules.clone());
        }
        model.has_actors = true;
        for (host, gb_per_s) in &self.antagonists {
            let host = model.host(host).map_err(no_host)?;
            model.replace_antagonist(host, *gb_per_s);
        }
        let model = SharedModel::new(model);
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(model.clone());
        if let Some(tracer) = &self.tracer {
            model.lock().trace_to(tracer.clone());
        }
        self.usage_monitor.begin(&model);
        let mut scenario = SimScenario {
            model,
            usage_monitor: self.usage_monitor.clone(),
            roles,
            actors: Vec::new(),
            wakes: EventQueue::default(),
            cores: BTreeMap::new(),
            parked: BTreeMap::new(),
            unread_events: VecDeque::new(),
            outcomes: BTreeMap::new(),
            interrupted: false,
            moments,
            now: 0,
        };
        for spec in &play.actors {
            let host_name = host_of(spec.device.as_ref(), &spec.role);
            let host = scenario.model.lock().host(&host_name);
            let host = host.map_err(no_host)?;
            let part = ActorInit {
                spec: spec.clone(),
                opener: opener(&scenario.model, &spec.role),
            };
            scenario.add_actor(&self.actors, part, host);
        }
        Ok(Box::new(scenario))
    }

    fn can_kill(&self) -> bool {
        true
    }
}

/// Makes the error of a host that could not be created.
fn no_host(source: std::io::Error) -> ScenarioError {
    ScenarioError::System {
        what: "a simulated host".to_owned(),
        source,
    }
}

/// Returns the name of the host that an actor runs on.
fn host_of(device: Option<&DeviceName>, role: &str) -> String {
    let named = device.and_then(|device| device.option("host")).flatten();
    named.unwrap_or(role).to_owned()
}

/// Returns the function that opens devices on an actor's host.
fn opener(model: &SharedModel, role: &str) -> DeviceOpener {
    let (model, role) = (model.clone(), role.to_owned());
    Arc::new(move |name| {
        let host = host_of(Some(name), &role);
        // This only checks the name: the world, not the name, decides the preset and the seed.
        SimDeviceOptions::of(name)?;
        provider::open(&model, name, &host)
    })
}

/// A running scenario: its actors, and what each waits for.
struct SimScenario {
    model: SharedModel,
    usage_monitor: Arc<UsageMonitor>,
    roles: Vec<String>,
    actors: Vec<ScheduledActor>,
    /// Actor indices and turns by wake-up time. An entry is stale if the actor's turn number differs.
    wakes: EventQueue<(usize, u64)>,
    /// Time from which each core is free, by host and core.
    cores: BTreeMap<(u32, usize), Ps>,
    /// Actors that wait for memory or a descriptor, by host.
    parked: BTreeMap<u32, BTreeSet<usize>>,
    unread_events: VecDeque<ScenarioEvent>,
    outcomes: BTreeMap<String, ActorOutcome>,
    interrupted: bool,
    /// Times at which the rules are asked which actors they kill, in order.
    moments: VecDeque<Ps>,
    now: Ps,
}

struct ScheduledActor {
    role: String,
    host: u32,
    core: usize,
    /// `None` once the actor has ended.
    actor: Option<Box<dyn Actor>>,
    /// End of the last step and the outcome. Until then the actor and its objects exist.
    ending: Option<(Ps, ActorOutcome)>,
    turn: u64,
    stopped: bool,
    /// Condition that it waits for; `None` while it does not wait.
    waits: Option<WakeCondition>,
    /// Latest time of its next step; `Ps::MAX` if it waits without a deadline.
    wakes_at: Ps,
    mail: VecDeque<(Ps, Mail)>,
    waiting: usize,
}

impl ScheduledActor {
    fn has_ended(&self) -> bool {
        self.actor.is_none()
    }

    /// Whether it has ended or is in its last step.
    fn is_leaving(&self) -> bool {
        self.has_ended() || self.ending.is_some()
    }
}

impl SimScenario {
    /// Constructs an actor, at time zero.
    fn add_actor(&mut self, actors: &ActorRegistry, part: ActorInit, host: u32) {
        let index = self.actors.len();
        let cores = self.model.lock().preset.cores as usize;
        let before = self
            .actors
            .iter()
            .filter(|scheduled| scheduled.host == host);
        let core = part.cpu.unwrap_or_else(|| before.count()) % cores.max(1);
        self.model.lock().actors.push(ActorTime {
            role: part.role.clone(),
            host,
            core: core as u32,
            busy: 0,
            until: 0,
        });
        self.begin_acting(host, 0);
        let made = catch_failure(|| actors.construct(&part));
        let (end, _) = self.end_acting();
        let (actor, ended) = match made {
            Ok(actor) => (Some(actor), None),
            Err(outcome) => (None, Some(outcome)),
        };
        self.actors.push(ScheduledActor {
            role: part.role.clone(),
            host,
            core,
            actor,
            ending: None,
            turn: 0,
            stopped: false,
            waits: None,
            wakes_at: Ps::MAX,
            mail: VecDeque::new(),
            waiting: 0,
        });
        match ended {
            None => self.wake(index, end),
            Some(outcome) => self.end_actor(index, outcome),
        }
    }

    /// Marks an actor on this host as acting from `now` on.
    fn begin_acting(&mut self, host: u32, now: Ps) {
        let limit = self.wakes.next_at().unwrap_or(Ps::MAX);
        let mut model = self.model.lock();
        model.acting = Some(ActingActor {
            host,
            now,
            limit: limit.max(now),
            has_worked: false,
        });
    }

    /// Ends the acting. Returns its time, and whether the actor did any work.
    fn end_acting(&self) -> (Ps, bool) {
        let acting = self.model.lock().acting.take();
        acting.map_or((0, false), |acting| (acting.now, acting.has_worked))
    }

    /// Schedules a step at that time and cancels any wait.
    fn wake(&mut self, index: usize, at: Ps) {
        self.actors[index].waits = None;
        self.wake_by(index, at);
    }

    /// Schedules a step at that time; the actor keeps waiting and may be woken earlier.
    fn wake_by(&mut self, index: usize, at: Ps) {
        let scheduled = &mut self.actors[index];
        scheduled.turn += 1;
        scheduled.wakes_at = at;
        let turn = scheduled.turn;
        self.wakes.put(at, (index, turn));
    }

    /// Ends an actor at the end of its last step, after every event that happens before.
    fn schedule_end(&mut self, index: usize, at: Ps, outcome: ActorOutcome) {
        self.actors[index].ending = Some((at, outcome));
        self.wake(index, at);
    }

    fn end_actor(&mut self, index: usize, outcome: ActorOutcome) {
        // Dropping the actor drops its objects, whose calls take place at the current time.
        let (host, now) = (self.actors[index].host, self.current_time());
        self.begin_acting(host, now);
        self.actors[index].actor = None;
        self.end_acting();
        let scheduled = &mut self.actors[index];
        scheduled.turn += 1;
        scheduled.waits = None;
        scheduled.mail.clear();
        let role = scheduled.role.clone();
        self.outcomes.insert(role.clone(), outcome.clone());
        self.unread_events
            .push_back(ScenarioEvent::Ended { role, outcome });
    }

    /// Returns the earliest time at which anything can still happen.
    fn current_time(&self) -> Ps {
        self.now.max(self.model.lock().now)
    }

    fn is_over(&self) -> bool {
        self.actors.iter().all(ScheduledActor::has_ended)
    }

    /// Processes the next event or step, if it is due by `limit`. Returns whether there was one.
    fn run_next(&mut self, limit: Ps) -> bool {
        let next = self.wakes.next_at().unwrap_or(Ps::MAX).min(limit);
        let moment = self.moments.front().copied();
        let next = moment.map_or(next, |moment| next.min(moment));
        let (now, seen) = {
            let mut model = self.model.lock();
            model.run_until_change(next);
            (model.now, std::mem::take(&mut model.changed_hosts))
        };
        if !seen.is_empty() {
            self.now = self.now.max(now);
            for (host, at) in seen {
                self.wake_parked(host, at);
            }
            return true;
        }
        if moment == Some(next) && self.moments.pop_front().is_some() {
            self.now = self.now.max(next);
            self.kill_by_rules();
            return true;
        }
        let Some((at, (index, turn))) = self.wakes.take(limit) else {
            return false;
        };
        self.now = self.now.max(at);
        let scheduled = &self.actors[index];
        if scheduled.turn != turn || scheduled.has_ended() || scheduled.stopped {
            return true;
        }
        match scheduled.ending.clone() {
            None => self.step(index, at),
            Some((end, outcome)) if end <= at => self.end_actor(index, outcome),
            Some((end, _)) => self.wake(index, end),
        }
        true
    }

    /// Kills the actors that the rules choose at the current time.
    fn kill_by_rules(&mut self) {
        for index in 0..self.actors.len() {
            let scheduled = &self.actors[index];
            if scheduled.has_ended() {
                continue;
            }
            let dies = self
                .model
                .lock()
                .is_killed(scheduled.host, &scheduled.role, self.now);
            if dies {
                self.end_actor(index, ActorOutcome::Died(ProcessExit::Signal(9)));
            }
        }
    }

    /// Wakes the actors that wait for a visible change on this host.
    fn wake_parked(&mut self, host: u32, at: Ps) {
        let wake = ns(self.model.lock().preset.wake_ns);
        for index in self.parked.remove(&host).unwrap_or_default() {
            let scheduled = &self.actors[index];
            let (Some(change), latest) = (&scheduled.waits, scheduled.wakes_at) else {
                continue;
            };
            // Waking takes time; the actor's deadline or mail may wake it earlier.
            if change.on_memory() {
                self.wake(index, at.min(latest));
            } else if is_readable(change.fds()) {
                self.wake(index, (at + wake).min(latest));
            } else {
                self.park(host, index);
            }
        }
    }

    fn park(&mut self, host: u32, index: usize) {
        self.parked.entry(host).or_default().insert(index);
        self.model.lock().watch_for_changes(host);
    }

    /// Steps an actor, once its core is free.
    fn step(&mut self, index: usize, at: Ps) {
        let (host, core) = (self.actors[index].host, self.actors[index].core);
        let free = self.cores.get(&(host, core)).copied().unwrap_or(0);
        if free > at {
            return self.wake(index, free);
        }
        let stalled = {
            let role = &self.actors[index].role;
            self.model.lock().stall_end(host, role, at)
        };
        if let Some(until) = stalled {
            return self.wake(index, until);
        }
        let scheduled = &mut self.actors[index];
        let Some(mut actor) = scheduled.actor.take() else {
            return;
        };
        let (inbox, waiting) = (std::mem::take(&mut scheduled.mail), scheduled.waiting);
        self.begin_acting(host, at);
        let mut context = SimContext {
            scenario: self,
            index,
            inbox,
            waiting,
            outbox: Vec::new(),
            reports: Vec::new(),
        };
        let step = catch_failure(|| actor.step(&mut ActorContext::new(&mut context)));
        let (inbox, waiting) = (context.inbox, context.waiting);
        let (outbox, reports) = (context.outbox, context.reports);
        let scheduled = &mut self.actors[index];
        (scheduled.actor, scheduled.mail, scheduled.waiting) = (Some(actor), inbox, waiting);
        let (end, has_worked) = self.end_acting();
        let end = end.max(at + STEP_COST_MIN);
        self.model.lock().record_step(index, (at, end));
        self.cores.insert((host, core), end);
        self.model.lock().note_step(index, at, end);
        for bytes in reports {
            let role = self.actors[index].role.clone();
            self.unread_events
                .push_back(ScenarioEvent::Report { role, bytes });
        }
        if !outbox.is_empty() {
            let way = ns(self.model.lock().preset.mail_ns);
            for (to, mail) in outbox {
                self.deliver(&to, mail, end + way);
            }
        }
        match step {
            Ok(Step::Again) if !has_worked && end - at <= SPIN => {
                // The step found nothing to do, so the actor polls
                // memory or the clock. Wait for either instead.
                let now = self.model.lock().clock_of(host, end.next_multiple_of(NS));
                let until = now + SPIN_CLOCK_INTERVAL;
                let change = WakeCondition::memory().or_mail().until(until);
                self.wait(index, (at, end), change);
            }
            Ok(Step::Again) => self.wake(index, end),
            Ok(Step::At(when)) => {
                let when = self.model.lock().time_of_clock(host, when);
                self.wake(index, end.max(when));
            }
            Ok(Step::Wait(change)) => self.wait(index, (at, end), change),
            Ok(Step::Done) => self.schedule_end(index, end, ActorOutcome::Done),
            Err(outcome) => self.schedule_end(index, end, outcome),
        }
    }

    /// Has an actor wait, or schedules its next step if what it waits for is already there.
    fn wait(&mut self, index: usize, (began, end): (Ps, Ps), change: WakeCondition) {
        let host = self.actors[index].host;
        let changed = self.model.lock().hosts[host as usize]
            .change_times
            .after(began);
        let mail = self.actors[index].mail.front().map(|(at, _)| *at);
        let deadline = change.deadline();
        let until = deadline.map(|at| self.model.lock().time_of_clock(host, at));
        // The actor may not have seen what arrived during its step.
        let memory = changed.filter(|_| change.on_memory());
        let mail = mail.filter(|_| change.on_mail());
        let readable = is_readable(change.fds()).then_some(end);
        let first = [until, memory, mail, readable].into_iter().flatten().min();
        let sleeps = change.on_memory() || !change.fds().is_empty();
        let at_once = first.is_some_and(|first| first <= end);
        if let Some(first) = first {
            self.wake(index, first.max(end));
        } else {
            self.actors[index].turn += 1;
            self.actors[index].wakes_at = Ps::MAX;
        }
        self.actors[index].waits = (!at_once).then_some(change);
        if sleeps && self.actors[index].waits.is_some() {
            self.park(host, index);
        }
    }

    fn deliver(&mut self, to: &str, mail: Mail, at: Ps) {
        let Some(index) = self
            .actors
            .iter()
            .position(|scheduled| scheduled.role == to)
        else {
            return;
        };
        let scheduled = &mut self.actors[index];
        if scheduled.is_leaving() {
            return;
        }
        scheduled.waiting += mail.bytes.len() + MESSAGE_OVERHEAD;
        let at = scheduled.mail.back().map_or(at, |(last, _)| at.max(*last));
        scheduled.mail.push_back((at, mail));
        let is_waited_for = scheduled.waits.as_ref().is_some_and(WakeCondition::on_mail);
        if is_waited_for && at < scheduled.wakes_at {
            self.wake_by(index, at);
        }
    }

    fn index(&self, role: &str) -> Result<usize, ScenarioError> {
        let found = self
            .actors
            .iter()
            .position(|scheduled| scheduled.role == role);
        let index = found.ok_or_else(|| MailError::NoSuchRole(role.to_owned()))?;
        match self.actors[index].has_ended() {
            false => Ok(index),
            true => Err(ScenarioError::Ended(role.to_owned())),
        }
    }
}

impl Drop for SimScenario {
    fn drop(&mut self) {
        self.usage_monitor.end(&self.model);
    }
}

/// Whether one of these descriptors is readable.
fn is_readable(fds: &[WakeFd]) -> bool {
    if fds.is_empty() {
        return false;
    }
    let mut fds: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
        .collect();
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
}
