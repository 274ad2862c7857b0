//! Runs rings on simulated RNICs under injected faults, from a seed, and checks that the rings keep their
//! promises.
//!
//! A seed determines everything: the machines, the ring's configuration, how its ends are used, and which
//! faults occur (`plan`). The sides are actors (`ring_actor`) in a world of virtual time. A record of
//! what they did is judged when all have ended (`oracle`). No message may be lost, duplicated, reordered
//! or changed, and none may wait for ever. Nothing may be left behind. After an error, messages that the
//! ends report as delivered must have been delivered. The same seed and program produce the same run,
//! event by event.
//!
//! The crate is a library, so that a test can run a batch of seeds and `headworks sim soak` as many as
//! time allows.

mod message_contents;
#[cfg(test)]
mod mutation_tests;
mod oracle;
mod plan;
mod ring_actor;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use headworks::runtime::{ActorOutcome, ScenarioError, ScenarioEvent};
use headworks::runtime::{ActorRegistry, ActorSpec, Scenario, World};
use headworks::sim::{Preset, SimWorld};
use headworks::verbs::{DeviceName, Duration, Instant};

use oracle::SoakRun;
use plan::{Plan, RECEIVER};

/// Maximum virtual time without progress while rings should make progress: ten times the time after which a
/// connection's retries give up on a silent peer.
const STALL_TIMEOUT: Duration = Duration::from_secs(6);
/// How often the coordinator checks for progress.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of checks that may find packets in flight after all ends have everything. The checks take
/// longer than any retry.
const QUIESCE_POLLS_MAX: u32 = 100;
/// Maximum number of events of a seed: five times the events of the packets that a plan's messages may take.
const EVENTS_MAX: u64 = 20_000_000;

/// Result of a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedResult {
    /// Number of messages received.
    pub messages: u64,
    /// Number of rings.
    pub rings: usize,
    /// Number of rings that broke, as they were expected to.
    pub broken: usize,
    /// Number of packets that were retransmitted.
    pub sent_again: u64,
    /// What congestion did, on machines that model it.
    pub congestion: Congestion,
    /// Digest of all events. Every run of a seed has the same digest.
    pub run_digest: u64,
    /// Number of events.
    pub events: u64,
}

/// Effects of congestion on all hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Congestion {
    /// Number of packets that were dropped for lack of room.
    pub dropped: u64,
    /// Number of notifications (CNP) that reached senders.
    pub notified: u64,
    /// Time for which links were paused (PFC), in nanoseconds.
    pub paused_nanos: u64,
    /// Bytes that antagonists moved to or from memory.
    pub antagonist_bytes: u64,
}

/// A seed whose run broke a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// The plan of the seed, as text.
    pub plan: String,
    /// The broken promises, one a line.
    pub what: Vec<String>,
}

impl Violation {
    /// Returns the command that runs the seed again.
    pub fn replay(&self) -> String {
        format!(
            "headworks sim soak --seeds {}..{}",
            self.seed,
            self.seed + 1
        )
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.plan)?;
        for line in &self.what {
            writeln!(f, "  {line}")?;
        }
        write!(f, "  again: {}", self.replay())
    }
}

/// Runs one seed to its end.
///
/// # Errors
///
/// Returns the broken promises. A panic anywhere counts as one.
pub fn run(seed: u64) -> Result<SeedResult, Box<Violation>> {
    guarded(seed, || Plan::of(seed))
}

/// Runs the plan that `plan` makes, and catches panics.
fn guarded(seed: u64, plan: impl FnOnce() -> Plan) -> Result<SeedResult, Box<Violation>> {
    let violated = |plan: String, what: Vec<String>| Box::new(Violation { seed, plan, what });
    let panicked = |why: Box<dyn Any + Send>| {
        let text = why.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| why.downcast_ref::<&str>().copied());
        vec![format!("panicked: {}", text.unwrap_or("no message"))]
    };
    let plan = catch_unwind(AssertUnwindSafe(plan))
        .map_err(|why| violated("no plan was made".to_owned(), panicked(why)))?;
    let said = format!("{plan:?}");
    catch_unwind(AssertUnwindSafe(|| run_plan(plan)))
        .unwrap_or_else(|why| Err(panicked(why)))
        .map_err(|what| violated(said, what))
}

fn run_plan(plan: Plan) -> Result<SeedResult, Vec<String>> {
    let run = Arc::new(SoakRun::new(plan));
    let plan = &run.plan;
    let (actors, scenario) = scenario_of(&run);
    let world = SimWorld::new(actors, machine(plan), plan.seed).with_rules(plan.rules.clone());
    let mut wrong = Vec::new();
    coordinate(&world, &scenario, &run, &mut wrong).map_err(|error| vec![error.to_string()])?;
    let observations = run.observations();
    wrong.extend(observations.judge(plan));
    let mut left = world.object_counts();
    if !plan.lingers {
        // Packets in flight when the last actor left never arrived, since virtual time stopped then.
        left.packets = 0;
    }
    if !left.is_empty() {
        wrong.push(format!("left behind: {left:?}"));
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let (run_digest, events) = world.run_digest().unwrap_or_default();
    let usage = world.usage_monitor().last();
    let hosts = usage.iter().flat_map(|usage| &usage.hosts);
    let mut congestion = Congestion::default();
    for counters in hosts.clone().filter_map(|host| host.receiving) {
        congestion.dropped += counters.dropped;
        congestion.notified += counters.notifications_received;
        congestion.paused_nanos += (counters.paused + counters.held) / 1_000;
        congestion.antagonist_bytes += counters.memory_antagonist;
    }
    Ok(SeedResult {
        messages: observations.rings.iter().map(|ring| ring.received).sum(),
        rings: plan.rings,
        broken: observations
            .rings
            .iter()
            .filter(|ring| ring.is_broken())
            .count(),
        sent_again: hosts.map(|host| host.counters.sent_again).sum(),
        congestion,
        run_digest,
        events,
    })
}

/// Returns the preset of a plan, with its constants applied.
fn machine(plan: &Plan) -> Preset {
    let named = Preset::named(plan.preset);
    // Plans name only presets that exist.
    let mut preset = named.unwrap_or_else(|| unreachable!("no preset {}", plan.preset));
    for (key, value) in &plan.constants {
        if let Err(error) = preset.set(key, value) {
            unreachable!("a plan's constant: {error}");
        }
    }
    preset
}

fn scenario_of(run: &Arc<SoakRun>) -> (ActorRegistry, Scenario) {
    let (mut actors, mut parts, plan) = (ActorRegistry::new(), Vec::new(), &run.plan);
    let device = format!("sim:{}{}", plan.preset, plan.pacing);
    let sending = match plan.senders_host {
        Some(host) => format!("{device},host={host}"),
        None => device.clone(),
    };
    let senders = (0..plan.rings).map(|ring| (plan.sender(ring), Some(ring)));
    let senders = senders.take(if plan.crosses { 1 } else { plan.rings });
    for (role, sends) in std::iter::once((RECEIVER.to_owned(), None)).chain(senders) {
        let on = if sends.is_some() { &sending } else { &device };
        let on: Result<DeviceName, _> = on.parse();
        let on = on.unwrap_or_else(|error| unreachable!("{error}"));
        parts.push(ActorSpec::new(&role, &role).on(on));
        let run = run.clone();
        actors.register(&role, move |part| ring_actor::new(part, sends, run.clone()));
    }
    (actors, Scenario::of(parts))
}

/// Runs the scenario. Tells the other actors when one died, and stops the run when nothing moves any more.
fn coordinate(
    world: &SimWorld,
    scenario: &Scenario,
    run: &SoakRun,
    wrong: &mut Vec<String>,
) -> Result<(), ScenarioError> {
    let mut running = world.start(scenario)?;
    let (mut moved, mut since) = (0, Instant::ZERO);
    let (mut looks, mut is_looked_at) = (0, false);
    let roles = running.roles().to_vec();
    loop {
        let alive = roles.iter().filter(|role| running.outcome(role).is_none());
        let alive: Vec<&String> = alive.collect();
        if alive.is_empty() {
            break;
        }
        match running.poll(POLL_INTERVAL) {
            Some(ScenarioEvent::Ended { role, outcome }) => {
                match &outcome {
                    ActorOutcome::Done => continue,
                    ActorOutcome::Died(_) if run.plan.may_die(&role) => {}
                    outcome => wrong.push(format!("{role}: {outcome}")),
                }
                for other in alive.into_iter().filter(|other| **other != role) {
                    if running.outcome(other).is_none() {
                        running.send(other, role.as_bytes())?;
                    }
                }
            }
            Some(ScenarioEvent::Report { .. }) => {}
            None => {
                let (so_far, now) = (run.observations().moved, running.now());
                if so_far != moved {
                    (moved, since) = (so_far, now);
                }
                let expected = run.observations().held_by(&alive);
                if let Some(expected) = expected.filter(|_| !is_looked_at) {
                    looks += 1;
                    since = now;
                    // Lost packets are retransmitted, so wait until none is in flight.
                    let found = world.object_counts();
                    if found.packets > 0 && looks < QUIESCE_POLLS_MAX {
                        continue;
                    }
                    if found != expected {
                        wrong.push(format!("there are {found:?} in place of {expected:?}"));
                    }
                    for role in alive {
                        running.send(role, &[])?;
                    }
                    is_looked_at = true;
                }
                let (_, events) = world.run_digest().unwrap_or_default();
                let at = |instant: Instant| instant.since(Instant::ZERO);
                if events > EVENTS_MAX {
                    wrong.push(format!("no end after {events} events, at {}", at(now)));
                    break;
                }
                if now.since(since) > STALL_TIMEOUT {
                    wrong.push(format!("nothing moves after {}", at(since)));
                    break;
                }
            }
        }
    }
    Ok(())
}
