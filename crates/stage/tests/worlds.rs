//! The worlds of real time run the plays that every world does; those of processes also survive deaths.

use std::os::fd::OwnedFd;

use headworks_stage::testing::plays::{self, finish};
use headworks_stage::{
    Actor, ActorError, Cast, Change, Cx, Death, Event, InProcess, Outcome, Part, PartSpec, Play,
    Processes, Running, StageError, Step, World, child_entry_in_test, no_devices,
};
use headworks_verbs::Duration;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Runs only in the processes that the tests below start.
#[test]
fn plays_a_part() {
    child_entry_in_test(&cast(), no_devices());
}

fn cast() -> Cast {
    let mut cast = plays::cast();
    cast.register("boss", boss);
    cast
}

/// A play of a part that runs in a process of its own.
fn boss(part: &Part) -> Result<Box<dyn Actor>, ActorError> {
    let world = Processes::of_this_test("plays_a_part");
    let play = Play::of([PartSpec::new("x", "idle"), PartSpec::new("y", "busy")]);
    let running = world
        .start(&play)
        .map_err(|error| ActorError::context(&*part.role, error))?;
    Ok(Box::new(Boss(running, false)))
}

struct Boss(Box<dyn Running>, bool);

impl Actor for Boss {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if !std::mem::replace(&mut self.1, true) {
            for role in ["x", "y"] {
                let pid = self.0.pid(role).ok_or("no pid")?;
                cx.report(&pid.to_le_bytes())?;
            }
        }
        Ok(Step::OnChange(Change::mail()))
    }
}

fn processes() -> Processes {
    Processes::of_this_test("plays_a_part")
}

fn part(role: &str, actor: &str) -> PartSpec {
    PartSpec::new(role, actor)
}

#[test]
fn threads_play_as_every_world_does() {
    plays::all(&InProcess::new(cast(), no_devices()));
}

#[test]
fn processes_play_as_every_world_does() {
    plays::all(&processes());
}

/// The endings of a play that needs no direction.
fn endings(world: &dyn World, parts: impl IntoIterator<Item = PartSpec>) -> Vec<Outcome> {
    let running = world.start(&Play::of(parts)).expect("starts");
    finish(running)
        .into_iter()
        .map(|ending| ending.outcome)
        .collect()
}

fn pidfd(pid: u32) -> OwnedFd {
    let pid = Pid::from_raw(pid.cast_signed()).expect("an id");
    pidfd_open(pid, PidfdFlags::empty()).expect("alive")
}

/// Waits for a process to end; hangs if it does not.
fn await_end(pidfd: &OwnedFd) {
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None).expect("poll");
}

#[test]
fn nobody_survives_the_play() {
    let play = Play::of([part("i", "idle"), part("b", "busy"), part("s", "idle")]);
    let mut running = processes().start(&play).expect("starts");
    running.stop("s").expect("stops");
    let pidfds = ["i", "b", "s"].map(|role| pidfd(running.pid(role).expect("has a process")));
    drop(running);
    pidfds.iter().for_each(await_end);
}

#[test]
fn nobody_survives_the_director() {
    let mut running = processes()
        .start(&Play::of([part("boss", "boss")]))
        .expect("starts");
    let pidfds: Vec<_> = (0..2)
        .map(|_| match running.poll(Duration::from_secs(60)) {
            Some(Event::Report { bytes, .. }) => {
                pidfd(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
            }
            other => panic!("{other:?}"),
        })
        .collect();
    running.kill("boss").expect("kills");
    pidfds.iter().for_each(await_end);
}

#[test]
fn processes_that_are_no_parts_are_answered() {
    let shell = |script: &str| Processes::of("/bin/sh", ["-c".into(), script.into()]);
    let outcome = |script| endings(&shell(script), [part("x", "x")]).remove(0);
    assert_eq!(outcome("exit 7"), Outcome::Died(Death::Code(7)));
    assert_eq!(outcome("kill -ABRT $$"), Outcome::Died(Death::Signal(6)));
    let nonsense = outcome(r"printf '\377\377\377\377' >&0; exec sleep 1000").to_string();
    assert!(
        nonsense.starts_with("sent a message of 4294967295 bytes"),
        "{nonsense}"
    );
    let error = Processes::of("/no/such/program", [])
        .start(&Play::of([part("x", "x")]))
        .err();
    let text = error.expect("not there").to_string();
    assert!(
        text.starts_with("starting the process of \"x\": "),
        "{text}"
    );
}

#[test]
fn killing_needs_processes() {
    let world = InProcess::new(cast(), no_devices());
    assert!(!world.can_kill());
    let mut running = world.start(&Play::of([part("i", "idle")])).expect("starts");
    assert!(matches!(
        running.kill("i"),
        Err(StageError::NeedsProcesses(_))
    ));
    assert_eq!(running.pid("i"), None);
}
