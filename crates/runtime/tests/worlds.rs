//! The worlds of real time run the scenarios that every world must run. Worlds of processes also survive
//! deaths.

use std::os::fd::OwnedFd;

use headworks_runtime::testing::world_scenarios::{self, finish};
use headworks_runtime::{
    Actor, ActorContext, ActorError, ActorInit, ActorOutcome, ActorRegistry, ActorSpec, InProcess,
    ProcessExit, Processes, RunningScenario, Scenario, ScenarioError, ScenarioEvent, Step,
    WakeCondition, World, child_entry_in_test, no_device_opener,
};
use headworks_verbs::Duration;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Does something only in the processes that the tests below start.
#[test]
fn child_process_entry() {
    child_entry_in_test(&cast(), no_device_opener());
}

fn cast() -> ActorRegistry {
    let mut actors = world_scenarios::actors();
    actors.register("nested_scenario", nested_scenario);
    actors
}

/// Runs a scenario in processes from within an actor that has a process of its own.
fn nested_scenario(part: &ActorInit) -> Result<Box<dyn Actor>, ActorError> {
    let world = Processes::of_this_test("child_process_entry");
    let scenario = Scenario::of([ActorSpec::new("x", "idle"), ActorSpec::new("y", "busy")]);
    let running = world
        .start(&scenario)
        .map_err(|error| ActorError::context(&*part.role, error))?;
    Ok(Box::new(NestedScenario(running, false)))
}

struct NestedScenario(Box<dyn RunningScenario>, bool);

impl Actor for NestedScenario {
    fn step(&mut self, cx: &mut ActorContext<'_>) -> Result<Step, ActorError> {
        if !std::mem::replace(&mut self.1, true) {
            for role in ["x", "y"] {
                let pid = self.0.pid(role).ok_or("no pid")?;
                cx.report(&pid.to_le_bytes())?;
            }
        }
        Ok(Step::Wait(WakeCondition::mail()))
    }
}

fn processes() -> Processes {
    Processes::of_this_test("child_process_entry")
}

fn part(role: &str, actor: &str) -> ActorSpec {
    ActorSpec::new(role, actor)
}

#[test]
fn threads_run_the_scenarios_of_every_world() {
    world_scenarios::run_all(&InProcess::new(cast(), no_device_opener()));
}

#[test]
fn processes_run_the_scenarios_of_every_world() {
    world_scenarios::run_all(&processes());
}

/// The outcomes of a scenario that needs no control while it runs.
fn endings(world: &dyn World, parts: impl IntoIterator<Item = ActorSpec>) -> Vec<ActorOutcome> {
    let running = world.start(&Scenario::of(parts)).expect("starts");
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
fn no_process_survives_the_scenario() {
    let scenario = Scenario::of([part("i", "idle"), part("b", "busy"), part("s", "idle")]);
    let mut running = processes().start(&scenario).expect("starts");
    running.stop("s").expect("stops");
    let pidfds = ["i", "b", "s"].map(|role| pidfd(running.pid(role).expect("has a process")));
    drop(running);
    pidfds.iter().for_each(await_end);
}

#[test]
fn no_process_survives_the_coordinator() {
    let mut running = processes()
        .start(&Scenario::of([part("nested_scenario", "nested_scenario")]))
        .expect("starts");
    let pidfds: Vec<_> = (0..2)
        .map(|_| match running.poll(Duration::from_secs(60)) {
            Some(ScenarioEvent::Report { bytes, .. }) => {
                pidfd(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
            }
            other => panic!("{other:?}"),
        })
        .collect();
    running.kill("nested_scenario").expect("kills");
    pidfds.iter().for_each(await_end);
}

#[test]
fn programs_that_are_no_actors_are_reported() {
    let shell = |script: &str| Processes::of("/bin/sh", ["-c".into(), script.into()]);
    let outcome = |script| endings(&shell(script), [part("x", "x")]).remove(0);
    assert_eq!(outcome("exit 7"), ActorOutcome::Died(ProcessExit::Code(7)));
    assert_eq!(
        outcome("kill -ABRT $$"),
        ActorOutcome::Died(ProcessExit::Signal(6))
    );
    let nonsense = outcome(r"printf '\377\377\377\377' >&0; exec sleep 1000").to_string();
    assert!(
        nonsense.starts_with("sent a message of 4294967295 bytes"),
        "{nonsense}"
    );
    let error = Processes::of("/no/such/program", [])
        .start(&Scenario::of([part("x", "x")]))
        .err();
    let text = error.expect("not there").to_string();
    assert!(
        text.starts_with("starting the process of \"x\": "),
        "{text}"
    );
}

#[test]
fn killing_needs_processes() {
    let world = InProcess::new(cast(), no_device_opener());
    assert!(!world.can_kill());
    let mut running = world
        .start(&Scenario::of([part("i", "idle")]))
        .expect("starts");
    assert!(matches!(
        running.kill("i"),
        Err(ScenarioError::NeedsProcesses(_))
    ));
    assert_eq!(running.pid("i"), None);
}
