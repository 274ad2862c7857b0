//! Ranks in threads of this process: every scenario, ranks that are missing, and ranks that die.

use std::thread;

use super::*;
use crate::no_device_opener;
use crate::testing::world_scenarios;
use crate::{Actor, ActorContext, ActorError, Step, WakeCondition};

/// Makes a socket at a free port of the loopback interface.
fn loopback_listener() -> io::Result<TcpListener> {
    TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))
}

/// Time that ranks have to come.
const LIMIT: Wall = Wall::from_secs(20);

/// Runs `act` in a world of `ranks` ranks.
fn with_ranks(ranks: usize, act: impl FnOnce(&Ranks)) {
    with_actors(world_scenarios::actors, ranks, act);
}

/// As [`with_ranks`], with the actors that `actors` returns.
fn with_actors(actors: fn() -> ActorRegistry, ranks: usize, act: impl FnOnce(&Ranks)) {
    let listener = loopback_listener().unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        for rank in 0..ranks {
            scope.spawn(move || serve_rank(address, rank, &actors(), &no_device_opener(), LIMIT));
        }
        let world = Ranks::on(&listener, ranks, LIMIT).unwrap();
        assert_eq!(world.len(), ranks);
        act(&world);
    });
}

#[test]
fn ranks_run_every_scenario() {
    with_ranks(4, |world| world_scenarios::run_all(world));
}

/// Sends a mail to `second` in its first step, and ends.
struct Sender;

impl Actor for Sender {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        cx.send("second", b"at once")?;
        Ok(Step::Done)
    }
}

/// Ends with its first mail.
struct Receiver;

impl Actor for Receiver {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        Ok(match cx.receive() {
            Some(_) => Step::Done,
            None => Step::Wait(WakeCondition::mail()),
        })
    }
}

#[test]
fn mail_does_not_overtake_the_start_of_its_receiver() {
    fn actors() -> ActorRegistry {
        let mut actors = ActorRegistry::new();
        actors.register("sender", |_: &ActorInit| Ok(Box::new(Sender)));
        actors.register("receiver", |_: &ActorInit| Ok(Box::new(Receiver)));
        actors
    }
    with_actors(actors, 2, |world| {
        for run in 0..300 {
            let parts = [("first", "sender"), ("second", "receiver")];
            let parts = parts.map(|(role, actor)| ActorSpec::new(role, actor));
            let mut running = world.start(&Scenario::of(parts)).unwrap();
            while running.outcome("second").is_none() {
                let event = running.poll(Duration::from_secs(10));
                assert!(event.is_some(), "run {run}: the mail is lost");
            }
        }
    });
}

#[test]
fn a_scenario_with_more_actors_than_ranks_is_refused() {
    with_ranks(1, |world| {
        let parts = ["a", "b"].map(|role| ActorSpec::new(role, "idle"));
        let refused = world.start(&Scenario::of(parts)).err().unwrap().to_string();
        assert!(
            refused.contains("2 actors") && refused.contains("1 ranks"),
            "{refused}"
        );
    });
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let listener = loopback_listener().unwrap();
    let address = listener.local_addr().unwrap();
    let come = |rank: u64| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .write_all(&[&GREETING[..], &rank.to_le_bytes()].concat())
            .unwrap();
        stream
    };
    let here = [come(0), come(2)];
    // Something that is no rank is hung up.
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let missing = Ranks::on(&listener, 3, Wall::from_millis(200))
        .err()
        .unwrap();
    assert!(
        missing.to_string().starts_with("rank 1 did not come")
            && missing.to_string().contains("2 of 3"),
        "{missing}"
    );
    drop(here);
}

#[test]
fn a_rank_that_dies_ends_its_actor_with_an_error() {
    let listener = loopback_listener().unwrap();
    let address = listener.local_addr().unwrap();
    let mut dying = TcpStream::connect(address).unwrap();
    dying
        .write_all(&[&GREETING[..], &0u64.to_le_bytes()].concat())
        .unwrap();
    let world = Ranks::on(&listener, 1, LIMIT).unwrap();
    let mut running = world
        .start(&Scenario::of([ActorSpec::new("a", "idle")]))
        .unwrap();
    drop(dying);
    let outcome = loop {
        running.poll(Duration::from_millis(50));
        if let Some(outcome) = running.outcome("a") {
            break outcome;
        }
    };
    assert!(outcome.to_string().contains("rank 0 is gone"), "{outcome}");
    drop(running);
    let mut again = world
        .start(&Scenario::of([ActorSpec::new("a", "idle")]))
        .unwrap();
    again.poll(Duration::from_secs(5));
    assert!(again.outcome("a").is_some());
}
