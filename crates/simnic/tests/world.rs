//! The world of virtual time passes the scenarios of every world.

use std::sync::{Arc, Mutex};

use headworks_runtime::testing::world_scenarios;
use headworks_runtime::{
    Actor, ActorContext, ActorError, ActorInit, ActorRegistry, ActorSpec, Scenario, Step,
    WakeCondition, World,
};
use headworks_runtime::{ActorOutcome, ScenarioEvent};
use headworks_simnic::faults::{Rules, Verdict, rules};
use headworks_simnic::{Preset, SimWorld};
use headworks_verbs::{Access, AllocRequest, Device, Duration, Instant, Region};

/// Polls for mail without end, and charges a fixed cost for each poll.
struct MailPoller(Duration);

impl Actor for MailPoller {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        cx.charge(self.0);
        Ok(match cx.receive() {
            None => Step::Again,
            Some(_) => Step::Done,
        })
    }
}

/// Returns the busy time of a core whose actor polls for 100 µs, in nanoseconds.
fn polling_steps(cost: Duration) -> u64 {
    let mut actors = ActorRegistry::new();
    actors.register("looks", move |_| Ok(Box::new(MailPoller(cost))));
    let preset = Preset::named("cx5-100g").expect("a preset");
    let world = SimWorld::new(actors, preset, 1);
    let play = Scenario::of(vec![ActorSpec::new("looks", "looks")]);
    let mut running = world.start(&play).expect("starts");
    while running.now() < Instant::ZERO + Duration::from_micros(100) {
        running.poll(Duration::from_micros(1));
    }
    let usage = world.usage_monitor().now().expect("a play");
    usage.actors[0].busy / 1_000
}

#[test]
fn a_charge_of_nothing_is_no_work_and_one_of_something_is() {
    let idle = polling_steps(Duration::ZERO);
    assert!(idle < 1_000, "{idle} ns of 100 us");
    let busy = polling_steps(Duration::from_nanos(1));
    assert!(busy > 90_000, "{busy} ns of 100 us");
}

#[test]
fn virtual_time_runs_the_scenarios_of_every_world() {
    let preset = Preset::named("cx5-100g").expect("a preset");
    world_scenarios::run_all(&SimWorld::new(world_scenarios::actors(), preset, 1));
}

/// Sleeps twice for a second of its clock, and notes the clock before each sleep and at the end.
struct Sleeper(Arc<Mutex<Vec<Instant>>>);

impl Actor for Sleeper {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        let mut read = self.0.lock().expect("nobody panicked");
        read.push(cx.now());
        let then = cx.now() + Duration::from_secs(1);
        Ok(match read.len() {
            1 => Step::At(then),
            2 => Step::Wait(WakeCondition::mail().until(then)),
            _ => Step::Done,
        })
    }
}

/// Returns what the actor's clock read, and how long it all took.
fn sleep_times(ppm: i32) -> (Vec<Instant>, Duration) {
    let read = Arc::new(Mutex::default());
    let own = read.clone();
    let mut actors = ActorRegistry::new();
    actors.register("rests", move |_| Ok(Box::new(Sleeper(own.clone()))));
    let preset = Preset::named("cx5-100g").expect("a preset");
    let rules = Rules::new(1).with(rules::clock_drift("rests", ppm));
    let world = SimWorld::new(actors, preset, 1).with_rules(rules);
    let play = Scenario::of(vec![ActorSpec::new("rests", "rests")]);
    let mut running = world.start(&play).expect("starts");
    while running.poll(Duration::from_millis(1)).is_none() {}
    let read = read.lock().expect("nobody panicked").clone();
    (read, running.now().since(Instant::ZERO))
}

#[test]
fn an_actor_reads_and_waits_by_the_clock_of_its_host() {
    for (ppm, took) in [(0, 2_000_000), (250_000, 1_600_000), (-200_000, 2_500_000)] {
        let (read, all) = sleep_times(ppm);
        let rests = [1, 2].map(|at| read[at].since(read[at - 1]).nanos());
        for rest in rests {
            assert!(
                (1_000_000_000..1_000_001_000).contains(&rest),
                "{ppm}: {rests:?}"
            );
        }
        let micros = all.nanos() / 1_000;
        assert!((took..took + 1_100).contains(&micros), "{ppm}: {micros}");
    }
}

/// Holds a region, and computes for `span` in its only step, which ends it or fails.
struct BusyActor {
    _region: Region,
    _device: Arc<dyn Device>,
    span: Duration,
    fails: bool,
}

impl BusyActor {
    fn new(part: &ActorInit, span: Duration, fails: bool) -> Result<Self, ActorError> {
        let device = part.open_device()?;
        let buffer = device.alloc(&AllocRequest::of(4096))?;
        Ok(Self {
            _region: device.alloc_pd()?.register(&buffer, Access::ALL)?,
            _device: device,
            span,
            fails,
        })
    }
}

impl Actor for BusyActor {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        cx.charge(self.span);
        match self.fails {
            true => Err(ActorError::new("on purpose")),
            false => Ok(Step::Done),
        }
    }
}

/// Returns a world, and a scenario with one actor of each name on a host of its own.
fn world(actors: ActorRegistry, rules: Rules, names: &[&str]) -> (SimWorld, Scenario) {
    let preset = Preset::named("cx5-100g").expect("a preset");
    let device = || "sim:cx5-100g".parse().expect("a name");
    let parts = names
        .iter()
        .map(|name| ActorSpec::new(*name, *name).on(device()));
    let play = Scenario::of(parts);
    (SimWorld::new(actors, preset, 1).with_rules(rules), play)
}

fn add_busy_actor(actors: &mut ActorRegistry, name: &'static str, span: Duration, fails: bool) {
    actors.register(name, move |part| {
        Ok(Box::new(BusyActor::new(part, span, fails)?))
    });
}

#[test]
fn actors_keep_their_objects_until_their_last_step_ends() {
    let micros = Duration::from_micros;
    for fails in [false, true] {
        let mut actors = ActorRegistry::new();
        add_busy_actor(&mut actors, "long", micros(1_000), fails);
        add_busy_actor(&mut actors, "short", micros(600), false);
        // The first actor to be stepped is the last to end.
        let (world, play) = world(actors, Rules::new(1), &["long", "short"]);
        let mut running = world.start(&play).expect("starts");
        assert_eq!(running.poll(micros(500)), None);
        assert_eq!(world.object_counts().regions, 2);
        let ended = |told| match told {
            Some(ScenarioEvent::Ended { role, outcome }) => (role, outcome == ActorOutcome::Done),
            other => panic!("{other:?}"),
        };
        assert_eq!(ended(running.poll(micros(300))), ("short".into(), true));
        assert_eq!(running.now(), Instant::ZERO + micros(600));
        assert_eq!(world.object_counts().regions, 1);
        // It still accepts mail, which nobody reads.
        running.send("long", b"late").expect("sent");
        assert_eq!(running.outcome("long"), None);
        assert_eq!(ended(running.poll(micros(500))), ("long".into(), !fails));
        assert_eq!(running.now(), Instant::ZERO + micros(1_000));
        assert!(world.object_counts().is_empty());
    }
}

#[test]
fn a_kill_in_an_actors_last_step_counts() {
    let mut actors = ActorRegistry::new();
    add_busy_actor(&mut actors, "long", Duration::from_micros(1_000), false);
    let at = Instant::ZERO + Duration::from_micros(400);
    let (world, play) = world(
        actors,
        Rules::new(1).with(rules::kill_actor("long", at)),
        &["long"],
    );
    let mut running = world.start(&play).expect("starts");
    let told = running.poll(Duration::from_secs(1));
    let Some(ScenarioEvent::Ended { outcome, .. }) = told else {
        panic!("{told:?}");
    };
    assert!(matches!(outcome, ActorOutcome::Died(_)), "{outcome:?}");
    assert_eq!(running.now(), at);
    assert_eq!(running.poll(Duration::from_secs(1)), None);
    assert!(world.object_counts().is_empty());
}

#[test]
fn an_endless_stall_lasts_and_delays_no_other_actor() {
    let ever = Duration::from_nanos(u64::MAX);
    let stall = |from| rules::stall_actors("stalled", Instant::ZERO + from, ever);
    for rules in [
        Rules::new(1).with(stall(Duration::ZERO)),
        Rules::new(1).with(rules::from_fn(|event, _| {
            let own = event.host == "stalled";
            own.then_some(Verdict::WaitFor(Duration::from_nanos(u64::MAX)))
        })),
    ] {
        let mut actors = ActorRegistry::new();
        add_busy_actor(&mut actors, "stalled", Duration::from_nanos(1), false);
        add_busy_actor(&mut actors, "busy", ever, false);
        add_busy_actor(&mut actors, "well", Duration::from_millis(3), false);
        let (world, play) = world(actors, rules, &["stalled", "busy", "well"]);
        let mut running = world.start(&play).expect("starts");
        let told = running.poll(Duration::from_millis(4));
        assert!(
            matches!(&told, Some(ScenarioEvent::Ended { role, outcome: ActorOutcome::Done }) if role == "well"),
            "{told:?}"
        );
        // It makes no difference how often and how long the coordinator polls.
        for span in [Duration::from_secs(1), ever, ever] {
            assert_eq!(running.poll(span), None);
        }
        assert_eq!(world.object_counts().regions, 2);
        for role in ["stalled", "busy"] {
            assert_eq!(running.outcome(role), None);
            running.kill(role).expect("killed");
        }
        assert!(world.object_counts().is_empty());
    }
}
