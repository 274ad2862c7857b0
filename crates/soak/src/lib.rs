//! Rings on simulated RNICs on which things go wrong, by a seed, and whether they keep what they promise.
//!
//! A seed says everything: the machines, the ring's configuration, how its ends are used, what goes wrong
//! (`plan`). The ends are actors (`sender`, `receiver`; `crossing`, which is both) of a world of virtual time; a ledger of what they did is
//! judged when all have ended (`ledger`): no message lost, doubled, overtaken or changed; none that waits for
//! ever; nothing left behind; after an error, what the ends say was delivered was. The same seed and program
//! do the same, to the event.
//!
//! It is a library's, so that a test runs a batch of seeds and `headworks sim soak` as many as there is time for.

mod actor;
mod crossing;
mod ledger;
mod messages;
mod plan;
mod promised;
mod receiver;
#[cfg(test)]
mod sabotage;
mod sender;
mod single;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use headworks::sim::{Preset, SimWorld};
use headworks::stage::world::{Event, Outcome};
use headworks::stage::{Actor, ActorError, Cast, PartSpec, Play, World};
use headworks::verbs::{DeviceName, Duration, Instant};

use actor::Calling;
use ledger::Ledger;
use plan::{Plan, RECEIVER};

/// How long nothing may happen to a ring that is to go on, in virtual time: ten times what a peer that says
/// nothing is given up after.
const PATIENCE: Duration = Duration::from_secs(6);
/// How often it is looked whether anything did.
const LOOK: Duration = Duration::from_millis(50);
/// Looks after which nothing may be under way any more once all ends have what they wanted: longer than anything is
/// retried.
const LOOKS: u32 = 100;
/// Events of a seed at most: five times those of as many packets as a plan's messages are expected to take.
const EVENTS_MAX: u64 = 20_000_000;

/// What a seed came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Messages that were received.
    pub messages: u64,
    /// Rings, and how many of them broke, as they were meant to.
    pub rings: usize,
    /// See above.
    pub broken: usize,
    /// How long it took, in virtual time.
    pub took: Duration,
    /// Packets that were sent again.
    pub sent_again: u64,
    /// Of all that happened: the same in every run.
    pub history: u64,
    /// How much that was.
    pub events: u64,
}

/// A seed with which a promise was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub seed: u64,
    /// What it stands for.
    pub plan: String,
    /// What was wrong.
    pub what: Vec<String>,
}

impl Violation {
    /// The command that runs it again.
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
/// What was not as promised; a panic, wherever it was, is not either.
pub fn run(seed: u64) -> Result<Ran, Box<Violation>> {
    guarded(seed, || Arc::new(Plan::of(seed)))
}

/// Runs what `plan` makes, and catches what panics.
fn guarded(seed: u64, plan: impl FnOnce() -> Arc<Plan>) -> Result<Ran, Box<Violation>> {
    let panicked = |plan: String, why: Box<dyn Any + Send>| {
        let text = why.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| why.downcast_ref::<&str>().copied());
        let what = vec![format!("panicked: {}", text.unwrap_or("without words"))];
        Box::new(Violation { seed, plan, what })
    };
    let plan = catch_unwind(AssertUnwindSafe(plan))
        .map_err(|why| panicked("no plan was made".to_owned(), why))?;
    catch_unwind(AssertUnwindSafe(|| run_plan(&plan)))
        .unwrap_or_else(|why| Err(panicked(plan.to_string(), why)))
}

fn run_plan(plan: &Arc<Plan>) -> Result<Ran, Box<Violation>> {
    let seed = plan.seed;
    let ledger = Arc::new(Mutex::new(Ledger::new(plan.rings)));
    let violated = |what: Vec<String>| {
        let plan = plan.to_string();
        Box::new(Violation { seed, plan, what })
    };
    let (cast, play) = cast(plan, &ledger);
    let world = SimWorld::new(cast, machine(plan), seed).with_rules(plan.rules.clone());
    let mut wrong = Vec::new();
    let took = match direct(&world, &play, plan, &ledger, &mut wrong) {
        Ok(took) => took,
        Err(error) => return Err(violated(vec![error.to_string()])),
    };
    let ledger = lock(&ledger);
    wrong.extend(ledger.judge(plan));
    let mut left = world.census();
    if !plan.lingers {
        // What was on its way when everybody had gone never came: no time has passed since.
        left.packets = 0;
    }
    if !left.is_empty() {
        wrong.push(format!("left behind: {left:?}"));
    }
    if !wrong.is_empty() {
        return Err(violated(wrong));
    }
    let (history, events) = world.history().unwrap_or_default();
    Ok(Ran {
        messages: ledger.rings.iter().map(|ring| ring.received).sum(),
        rings: plan.rings,
        broken: ledger.rings.iter().filter(|ring| ring.is_broken()).count(),
        took,
        sent_again: sent_again(&world),
        history,
        events,
    })
}

/// What the RNICs counted.
fn sent_again(world: &SimWorld) -> u64 {
    let usage = world.figures().last();
    let hosts = usage.iter().flat_map(|usage| &usage.hosts);
    hosts.map(|host| host.counters.sent_again).sum()
}

fn lock(ledger: &Mutex<Ledger>) -> std::sync::MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The machines that a plan names.
fn machine(plan: &Plan) -> Preset {
    let named = Preset::named(plan.preset);
    // The plan names presets that there are.
    let mut preset = named.unwrap_or_else(|| unreachable!("no preset {}", plan.preset));
    for (key, value) in &plan.constants {
        if let Err(error) = preset.set(key, value) {
            unreachable!("a plan's constant: {error}");
        }
    }
    preset
}

fn cast(plan: &Arc<Plan>, ledger: &Arc<Mutex<Ledger>>) -> (Cast, Play) {
    let mut cast = Cast::new();
    let device: DeviceName = match format!("sim:{}{}", plan.preset, plan.pacing).parse() {
        Ok(name) => name,
        Err(error) => unreachable!("{error}"),
    };
    let mut parts = vec![PartSpec::new(RECEIVER, RECEIVER).on(device.clone())];
    let (own_plan, own_ledger) = (plan.clone(), ledger.clone());
    cast.register(RECEIVER, move |part| {
        let (plan, ledger) = (own_plan.clone(), own_ledger.clone());
        let is_paced = plan.is_paced();
        let actor = match plan.crosses {
            true => crossing::new(part, 1, plan, ledger),
            false => receiver::new(part, plan, ledger),
        };
        calling(is_paced, actor?)
    });
    for (ring, role) in plan.senders().into_iter().enumerate() {
        let (plan, ledger) = (plan.clone(), ledger.clone());
        let on = match plan.senders_host {
            None => device.clone(),
            Some(host) => match format!("{device},host={host}").parse() {
                Ok(name) => name,
                Err(error) => unreachable!("{error}"),
            },
        };
        parts.push(PartSpec::new(&role, &role).on(on));
        cast.register(&role, move |part| {
            let (plan, ledger) = (plan.clone(), ledger.clone());
            let is_paced = plan.is_paced();
            let actor = match plan.crosses {
                true => crossing::new(part, 0, plan, ledger),
                false => sender::new(part, ring, plan, ledger),
            };
            calling(is_paced, actor?)
        });
    }
    (cast, Play::of(parts))
}

fn calling(is_paced: bool, actor: Box<dyn Actor>) -> Result<Box<dyn Actor>, ActorError> {
    Ok(match is_paced {
        true => Box::new(Calling(actor)),
        false => actor,
    })
}

/// Runs the play: tells those who go on of who died, and ends it if nothing moves any more. How long it took.
fn direct(
    world: &SimWorld,
    play: &Play,
    plan: &Plan,
    ledger: &Mutex<Ledger>,
    wrong: &mut Vec<String>,
) -> Result<Duration, headworks::stage::world::StageError> {
    let mut running = world.start(play)?;
    let (mut moved, mut since) = (0, Instant::ZERO);
    let (mut looks, mut is_looked_at) = (0, false);
    let roles = running.roles().to_vec();
    while roles.iter().any(|role| running.outcome(role).is_none()) {
        match running.poll(LOOK) {
            Some(Event::Ended { role, outcome }) => {
                match &outcome {
                    Outcome::Done => {}
                    Outcome::Died(_) if plan.may_die(&role) => {}
                    outcome => wrong.push(format!("{role}: {outcome}")),
                }
                if outcome == Outcome::Done {
                    continue;
                }
                for other in roles.iter().filter(|other| **other != role) {
                    if running.outcome(other).is_none() {
                        running.send(other, role.as_bytes())?;
                    }
                }
            }
            Some(Event::Report { .. }) => {}
            None => {
                let (so_far, now) = (lock(ledger).moved, running.now());
                if so_far != moved {
                    (moved, since) = (so_far, now);
                }
                let alive = roles.iter().filter(|role| running.outcome(role).is_none());
                let alive: Vec<&String> = alive.collect();
                let expected = lock(ledger).held_by(&alive);
                if let Some(expected) = expected
                    && !is_looked_at
                {
                    looks += 1;
                    since = now;
                    // What was lost is sent again.
                    let found = world.census();
                    if found.packets > 0 && looks < LOOKS {
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
                let (_, events) = world.history().unwrap_or_default();
                if events > EVENTS_MAX {
                    let at = now.since(Instant::ZERO);
                    wrong.push(format!("no end after {events} events, at {at}"));
                    break;
                }
                if now.since(since) > PATIENCE {
                    wrong.push(format!(
                        "nothing moves after {}",
                        since.since(Instant::ZERO)
                    ));
                    break;
                }
            }
        }
    }
    Ok(running.now().since(Instant::ZERO))
}
