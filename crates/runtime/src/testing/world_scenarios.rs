//! Scenarios that every world must run alike, for the tests of each world.
//!
//! [`actors`] registers the actors; a world of processes needs them in its processes as well. [`run_all`]
//! runs every scenario.

use headworks_verbs::{Duration, Instant};

use crate::actor::{
    Actor, ActorContext, ActorError, COORDINATOR, MAIL_MAX, MailError, Step, WakeCondition,
};
use crate::world::{
    ActorOutcome, ActorResult, ProcessExit, RunningScenario, ScenarioError, ScenarioEvent, World,
};
use crate::{ActorRegistry, ActorSpec, Scenario};

/// Number of the signal SIGKILL.
const KILL: i32 = 9;

/// Registers the actors of the scenarios.
pub fn actors() -> ActorRegistry {
    let mut actors = ActorRegistry::new();
    actors.register("ping", |part| {
        Ok(Box::new(Ping {
            left: part.args[0],
            started: false,
        }))
    });
    actors.register("pong", |_| Ok(Box::new(Pong)));
    actors.register("flood", |_| Ok(Box::new(Flood { sent: 0 })));
    actors.register("basin", |_| {
        Ok(Box::new(Basin {
            got: 0,
            unreported: None,
        }))
    });
    actors.register("idle", |_| {
        Ok(Box::new(Endless(|| Step::Wait(WakeCondition::mail()))))
    });
    actors.register("busy", |_| Ok(Box::new(Endless(|| Step::Again))));
    actors.register("polls", |_| {
        Ok(Box::new(Endless(|| Step::Wait(WakeCondition::memory()))))
    });
    actors.register("fails", |_| Err(MailError::NoCoordinator.into()));
    actors.register("panics", |part| panic!("as told: {}", part.args.len()));
    actors.register("timer", |_| Ok(Box::new(Timer { until: None })));
    actors
}

/// Runs every scenario in this world.
///
/// # Panics
///
/// If the world behaves differently from what is expected of every world.
pub fn run_all(world: &dyn World) {
    for (name, scenario) in SCENARIOS {
        println!("{name}");
        scenario(world);
    }
    if world.can_kill() {
        a_killed_actor_is_reported_and_the_others_go_on(world);
        a_stopped_actor_continues_after_resume(world);
    }
}

type Check = fn(&dyn World);

const SCENARIOS: &[(&str, Check)] = &[
    ("two actors play ping pong", two_actors_play_ping_pong),
    (
        "failures say why and others go on",
        failures_give_a_reason_and_others_go_on,
    ),
    (
        "an interruption reaches sleepers and pollers alike",
        an_interruption_reaches_sleepers_and_pollers_alike,
    ),
    (
        "the deadline ends those that do not",
        the_deadline_ends_those_that_do_not,
    ),
    (
        "a flood is held back and arrives in order",
        a_flood_is_held_back_and_arrives_in_order,
    ),
    (
        "coordinators mail goes to actors that are there",
        coordinators_mail_goes_to_actors_that_are_there,
    ),
];

/// Finishes a scenario, with ample time on its own clock, and returns the results.
pub fn finish(running: Box<dyn RunningScenario>) -> Vec<ActorResult> {
    let soon = running.now() + Duration::from_secs(60);
    running.finish(soon)
}

fn part(role: &str, actor: &str) -> ActorSpec {
    ActorSpec::new(role, actor)
}

fn two_actors_play_ping_pong(world: &dyn World) {
    let scenario = Scenario::of([
        part("a", "ping").with_args([100]).pinned_to(0),
        part("b", "pong"),
    ]);
    let endings = finish(world.start(&scenario).expect("starts"));
    assert_eq!(
        endings.iter().map(|e| e.role.as_str()).collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert!(
        endings.iter().all(|e| e.outcome == ActorOutcome::Done),
        "{endings:?}"
    );
    assert_eq!(endings[0].reports, [b"played".to_vec()]);
}

fn failures_give_a_reason_and_others_go_on(world: &dyn World) {
    let parts = [
        part("f", "fails"),
        part("p", "panics"),
        part("u", "unknown"),
        part("t", "timer"),
    ];
    let outcomes = finish(world.start(&Scenario::of(parts)).expect("starts"));
    let outcomes: Vec<_> = outcomes.into_iter().map(|ending| ending.outcome).collect();
    let texts: Vec<_> = outcomes.iter().map(ActorOutcome::to_string).collect();
    assert_eq!(texts[0], "the coordinator is gone");
    assert_eq!(texts[1], "panicked: as told: 0");
    assert!(
        texts[2].starts_with("no actor \"unknown\": basin, b"),
        "{}",
        texts[2]
    );
    assert_eq!(outcomes[3], ActorOutcome::Done);
}

fn an_interruption_reaches_sleepers_and_pollers_alike(world: &dyn World) {
    let scenario = Scenario::of([part("i", "idle"), part("p", "polls"), part("b", "busy")]);
    let mut running = world.start(&scenario).expect("starts");
    running.interrupt();
    let endings = finish(running);
    assert!(
        endings.iter().all(|e| e.outcome == ActorOutcome::Done),
        "{endings:?}"
    );
}

fn the_deadline_ends_those_that_do_not(world: &dyn World) {
    let running = world
        .start(&Scenario::of([part("i", "idle"), part("b", "busy")]))
        .expect("starts");
    let now = running.now();
    for ending in running.finish(now) {
        assert_eq!(
            ending.outcome.to_string(),
            "was still running at the deadline"
        );
    }
}

fn a_flood_is_held_back_and_arrives_in_order(world: &dyn World) {
    let scenario = Scenario::of([part("flood", "flood"), part("basin", "basin")]);
    let mut running = world.start(&scenario).expect("starts");
    running.interrupt();
    let endings = finish(running);
    assert!(
        endings
            .iter()
            .all(|ending| ending.outcome == ActorOutcome::Done),
        "{endings:?}"
    );
    let order = endings[1].reports.iter().map(|report| u32::from(report[0]));
    assert!(order.eq(0..FLOOD));
}

fn coordinators_mail_goes_to_actors_that_are_there(world: &dyn World) {
    let mut running = world
        .start(&Scenario::of([part("b", "pong")]))
        .expect("starts");
    let error = running.send("c", b"").expect_err("nobody");
    assert_eq!(error.to_string(), "no actor is called \"c\"");
    assert!(running.send("b", &vec![0; MAIL_MAX + 1]).is_err());
    running.send("b", &[0]).expect("is there");
    assert_eq!(finish(running)[0].outcome, ActorOutcome::Done);
    assert!(
        world
            .start(&Scenario::of([part(COORDINATOR, "pong")]))
            .is_err()
    );
}

fn a_killed_actor_is_reported_and_the_others_go_on(world: &dyn World) {
    let scenario = Scenario::of([
        part("a", "ping").with_args([9]),
        part("b", "pong"),
        part("c", "idle"),
    ]);
    let mut running = world.start(&scenario).expect("starts");
    running.kill("c").expect("kills");
    let mut ended = Vec::new();
    while let Some(event) = running.poll(Duration::from_secs(60)) {
        if let ScenarioEvent::Ended { role, outcome } = event {
            if role == "c" {
                assert!(matches!(running.kill("c"), Err(ScenarioError::Ended(_))));
                assert!(matches!(
                    running.send("c", b""),
                    Err(ScenarioError::Ended(_))
                ));
            }
            ended.push((role, outcome));
        }
    }
    ended.sort_by(|one, other| one.0.cmp(&other.0));
    let died = ActorOutcome::Died(ProcessExit::Signal(KILL));
    let all = [
        ("a", ActorOutcome::Done),
        ("b", ActorOutcome::Done),
        ("c", died),
    ];
    assert_eq!(ended, all.map(|(role, outcome)| (role.to_owned(), outcome)));
    assert!(
        finish(running)
            .iter()
            .all(|ending| ending.reports.is_empty())
    );
}

fn a_stopped_actor_continues_after_resume(world: &dyn World) {
    // The actor ends by itself as soon as it sees the interruption, and not before.
    let scenario = Scenario::of([part("a", "idle")]);
    let mut running = world.start(&scenario).expect("starts");
    running.stop("a").expect("stops");
    running.interrupt();
    running.cont("a").expect("continues");
    assert!(
        finish(running)
            .iter()
            .all(|ending| ending.outcome == ActorOutcome::Done)
    );
}

/// Runs until it is interrupted.
struct Endless(fn() -> Step);

impl Actor for Endless {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        Ok(if cx.interrupted() {
            Step::Done
        } else {
            (self.0)()
        })
    }
}

struct Ping {
    left: u8,
    started: bool,
}

impl Actor for Ping {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if !self.started {
            self.started = true;
            cx.send("b", &[self.left])?;
        }
        let Some(mail) = cx.receive() else {
            return Ok(Step::Wait(WakeCondition::mail()));
        };
        assert_eq!(
            (mail.from.as_str(), mail.bytes.as_slice()),
            ("b", [self.left].as_slice())
        );
        self.left -= 1;
        cx.send("b", &[self.left])?;
        if self.left > 0 {
            return Ok(Step::Again);
        }
        cx.report(b"played")?;
        assert_eq!(
            cx.send("nobody", b"").unwrap_err(),
            MailError::NoSuchRole("nobody".into())
        );
        Ok(Step::Done)
    }
}

struct Pong;

impl Actor for Pong {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let Some(mail) = cx.receive() else {
            return Ok(Step::Wait(WakeCondition::mail()));
        };
        if mail.bytes == [0] {
            return Ok(Step::Done);
        }
        cx.send(&mail.from, &mail.bytes)?;
        Ok(Step::Again)
    }
}

const FLOOD: u32 = 60;

/// Sends far more mail than may wait.
struct Flood {
    sent: u32,
}

impl Actor for Flood {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let mut bytes = vec![0; MAIL_MAX];
        bytes[..4].copy_from_slice(&self.sent.to_le_bytes());
        match cx.send("basin", &bytes) {
            Ok(()) => self.sent += 1,
            Err(MailError::Full(_)) => return Ok(Step::At(cx.now() + Duration::from_micros(300))),
            Err(error) => return Err(error.into()),
        }
        Ok(if self.sent == FLOOD {
            Step::Done
        } else {
            Step::Again
        })
    }
}

/// Reads nothing until it is interrupted, and then reports everything to the coordinator.
struct Basin {
    got: u32,
    unreported: Option<Vec<u8>>,
}

impl Actor for Basin {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if !cx.interrupted() {
            return Ok(Step::At(Instant::FAR_FUTURE));
        }
        if self.unreported.is_none() {
            let Some(mail) = cx.receive() else {
                return Ok(Step::Wait(WakeCondition::mail()));
            };
            if mail.bytes.len() != MAIL_MAX || mail.bytes[..4] != self.got.to_le_bytes() {
                return Err(ActorError::new(format!("out of order at {}", self.got)));
            }
            self.got += 1;
            self.unreported = Some(mail.bytes);
        }
        match cx.report(self.unreported.as_deref().unwrap_or_default()) {
            Ok(()) => self.unreported = None,
            Err(MailError::Full(_)) => return Ok(Step::At(cx.now() + Duration::from_micros(300))),
            Err(error) => return Err(error.into()),
        }
        Ok(if self.got == FLOOD {
            Step::Done
        } else {
            Step::Again
        })
    }
}

/// Fails if it is stepped before the time it asked for.
struct Timer {
    until: Option<Instant>,
}

impl Actor for Timer {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        match self.until {
            None => {
                let at = cx.now() + Duration::from_micros(700);
                self.until = Some(at);
                Ok(Step::At(at))
            }
            Some(at) if cx.now() < at => Err(ActorError::new("stepped early")),
            Some(at) => {
                self.until = Some(at);
                Ok(Step::Done)
            }
        }
    }
}
