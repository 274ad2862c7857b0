//! The world of virtual time does what every world does.

use std::sync::{Arc, Mutex};

use headworks_simnic::faults::{Rules, rules};
use headworks_simnic::{Preset, SimWorld};
use headworks_stage::testing::plays;
use headworks_stage::{Actor, ActorError, Cast, Change, Cx, PartSpec, Play, Step, World};
use headworks_verbs::{Duration, Instant};

#[test]
fn virtual_time_plays_as_every_world_does() {
    let preset = Preset::named("cx5-100g").expect("a preset");
    plays::all(&SimWorld::new(plays::cast(), preset, 1));
}

/// Rests twice for a second, as its clock says, and notes what that says.
struct Rests(Arc<Mutex<Vec<Instant>>>);

impl Actor for Rests {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let mut read = self.0.lock().expect("nobody panicked");
        read.push(cx.now());
        let then = cx.now() + Duration::from_secs(1);
        Ok(match read.len() {
            1 => Step::At(then),
            2 => Step::OnChange(Change::mail().until(then)),
            _ => Step::Done,
        })
    }
}

/// What the clock of an actor said, and how long it took.
fn rested(ppm: i32) -> (Vec<Instant>, Duration) {
    let read = Arc::new(Mutex::default());
    let own = read.clone();
    let mut cast = Cast::new();
    cast.register("rests", move |_| Ok(Box::new(Rests(own.clone()))));
    let preset = Preset::named("cx5-100g").expect("a preset");
    let rules = Rules::new(1).with(rules::drift("rests", ppm));
    let world = SimWorld::new(cast, preset, 1).with_rules(rules);
    let play = Play::of(vec![PartSpec::new("rests", "rests")]);
    let mut running = world.start(&play).expect("starts");
    while running.poll(Duration::from_millis(1)).is_none() {}
    let read = read.lock().expect("nobody panicked").clone();
    (read, running.now().since(Instant::ZERO))
}

#[test]
fn an_actor_reads_and_waits_by_the_clock_of_its_host() {
    for (ppm, took) in [(0, 2_000_000), (250_000, 1_600_000), (-200_000, 2_500_000)] {
        let (read, all) = rested(ppm);
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
