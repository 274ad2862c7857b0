//! Every world runs the same plays; those of processes also survive deaths.

use std::os::fd::OwnedFd;

use headworks_stage::actor::DIRECTOR;
use headworks_stage::{
    Actor, ActorError, Cast, Change, Cx, Death, Event, InProcess, MAIL_MAX, MailError, Outcome,
    Part, PartSpec, Play, Processes, Running, StageError, Step, World, child_entry_in_test, clock,
    no_devices,
};
use headworks_verbs::{Duration, Instant};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

/// Runs only in the processes that the tests below start.
#[test]
fn plays_a_part() {
    child_entry_in_test(&cast(), no_devices());
}

fn cast() -> Cast {
    let mut cast = Cast::new();
    cast.register("ping", |part| {
        Ok(Box::new(Ping {
            left: part.args[0],
            started: false,
        }))
    });
    cast.register("pong", |_| Ok(Box::new(Pong)));
    cast.register("flood", |_| Ok(Box::new(Flood { sent: 0 })));
    cast.register("basin", |_| {
        Ok(Box::new(Basin {
            got: 0,
            unreported: None,
        }))
    });
    cast.register("idle", |_| {
        Ok(Box::new(Endless(|| Step::OnChange(Change::mail()))))
    });
    cast.register("busy", |_| Ok(Box::new(Endless(|| Step::Again))));
    cast.register("polls", |_| {
        Ok(Box::new(Endless(|| Step::OnChange(Change::memory()))))
    });
    cast.register("fails", |_| Err(MailError::NoDirector.into()));
    cast.register("panics", |part| panic!("as told: {}", part.args.len()));
    cast.register("timer", |_| Ok(Box::new(Timer { until: None })));
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

/// Goes on until it is interrupted.
struct Endless(fn() -> Step);

impl Actor for Endless {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
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
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if !self.started {
            self.started = true;
            cx.send("b", &[self.left])?;
        }
        let Some(mail) = cx.receive() else {
            return Ok(Step::OnChange(Change::mail()));
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
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        let Some(mail) = cx.receive() else {
            return Ok(Step::OnChange(Change::mail()));
        };
        if mail.bytes == [0] {
            return Ok(Step::Done);
        }
        cx.send(&mail.from, &mail.bytes)?;
        Ok(Step::Again)
    }
}

const FLOOD: u32 = 60;

/// Sends far more than may wait.
struct Flood {
    sent: u32,
}

impl Actor for Flood {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
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

/// Reads nothing until it is interrupted, and sends all on to the director.
struct Basin {
    got: u32,
    unreported: Option<Vec<u8>>,
}

impl Actor for Basin {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
        if !cx.interrupted() {
            return Ok(Step::At(Instant::FAR_FUTURE));
        }
        if self.unreported.is_none() {
            let Some(mail) = cx.receive() else {
                return Ok(Step::OnChange(Change::mail()));
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

/// Is never late by being early.
struct Timer {
    until: Option<Instant>,
}

impl Actor for Timer {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, ActorError> {
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

fn processes() -> Processes {
    Processes::of_this_test("plays_a_part")
}

fn each_world(test: impl Fn(&dyn World)) {
    test(&InProcess::new(cast(), no_devices()));
    test(&processes());
}

fn soon() -> Instant {
    clock::now() + Duration::from_secs(60)
}

fn part(role: &str, actor: &str) -> PartSpec {
    PartSpec::new(role, actor)
}

/// The endings of a play that needs no direction.
fn endings(world: &dyn World, parts: impl IntoIterator<Item = PartSpec>) -> Vec<Outcome> {
    let running = world.start(&Play::of(parts)).expect("starts");
    running
        .finish(soon())
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
fn two_parts_play_ping_pong() {
    each_world(|world| {
        let play = Play::of([
            part("a", "ping").with_args([100]).pinned_to(0),
            part("b", "pong"),
        ]);
        let endings = world.start(&play).expect("starts").finish(soon());
        assert_eq!(
            endings.iter().map(|e| e.role.as_str()).collect::<Vec<_>>(),
            ["a", "b"]
        );
        assert!(
            endings.iter().all(|e| e.outcome == Outcome::Done),
            "{endings:?}"
        );
        assert_eq!(endings[0].reports, [b"played".to_vec()]);
    });
}

#[test]
fn failures_say_why_and_others_go_on() {
    each_world(|world| {
        let parts = [
            part("f", "fails"),
            part("p", "panics"),
            part("u", "unknown"),
            part("t", "timer"),
        ];
        let outcomes = endings(world, parts);
        let texts: Vec<_> = outcomes.iter().map(Outcome::to_string).collect();
        assert_eq!(texts[0], "the director is gone");
        assert_eq!(texts[1], "panicked: as told: 0");
        assert!(
            texts[2].starts_with("no actor \"unknown\": basin, boss"),
            "{}",
            texts[2]
        );
        assert_eq!(outcomes[3], Outcome::Done);
    });
}

#[test]
fn an_interruption_reaches_sleepers_and_pollers_alike() {
    each_world(|world| {
        let play = Play::of([part("i", "idle"), part("p", "polls"), part("b", "busy")]);
        let mut running = world.start(&play).expect("starts");
        running.interrupt();
        let endings = running.finish(soon());
        assert!(
            endings.iter().all(|e| e.outcome == Outcome::Done),
            "{endings:?}"
        );
    });
}

#[test]
fn the_deadline_ends_those_that_do_not() {
    each_world(|world| {
        let running = world
            .start(&Play::of([part("i", "idle"), part("b", "busy")]))
            .expect("starts");
        for ending in running.finish(clock::now()) {
            assert_eq!(
                ending.outcome.to_string(),
                "was still running at the deadline"
            );
        }
    });
}

#[test]
fn a_flood_is_held_back_and_arrives_in_order() {
    each_world(|world| {
        let play = Play::of([part("flood", "flood"), part("basin", "basin")]);
        let mut running = world.start(&play).expect("starts");
        running.interrupt();
        let endings = running.finish(soon());
        assert!(
            endings.iter().all(|ending| ending.outcome == Outcome::Done),
            "{endings:?}"
        );
        let order = endings[1].reports.iter().map(|report| u32::from(report[0]));
        assert!(order.eq(0..FLOOD));
    });
}

#[test]
fn a_killed_part_is_reported_and_the_others_go_on() {
    let play = Play::of([
        part("a", "ping").with_args([9]),
        part("b", "pong"),
        part("c", "idle"),
    ]);
    let mut running = processes().start(&play).expect("starts");
    running.kill("c").expect("kills");
    let mut ended = Vec::new();
    while let Some(event) = running.poll(Duration::from_secs(60)) {
        if let Event::Ended { role, outcome } = event {
            if role == "c" {
                assert!(matches!(running.kill("c"), Err(StageError::Ended(_))));
                assert!(matches!(running.send("c", b""), Err(StageError::Ended(_))));
            }
            ended.push((role, outcome));
        }
    }
    ended.sort_by(|one, other| one.0.cmp(&other.0));
    let died = Outcome::Died(Death::Signal(Signal::KILL.as_raw()));
    let all = [("a", Outcome::Done), ("b", Outcome::Done), ("c", died)];
    assert_eq!(ended, all.map(|(role, outcome)| (role.to_owned(), outcome)));
    assert!(
        running
            .finish(soon())
            .iter()
            .all(|ending| ending.reports.is_empty())
    );
}

#[test]
fn a_stopped_part_goes_on_when_told_to() {
    let play = Play::of([part("a", "ping").with_args([50]), part("b", "pong")]);
    let mut running = processes().start(&play).expect("starts");
    running.stop("a").expect("stops");
    running.cont("a").expect("continues");
    assert!(
        running
            .finish(soon())
            .iter()
            .all(|ending| ending.outcome == Outcome::Done)
    );
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
fn directors_mail_goes_to_parts_that_are_there() {
    each_world(|world| {
        let mut running = world.start(&Play::of([part("b", "pong")])).expect("starts");
        let error = running.send("c", b"").expect_err("nobody");
        assert_eq!(error.to_string(), "no part is called \"c\"");
        assert!(running.send("b", &vec![0; MAIL_MAX + 1]).is_err());
        running.send("b", &[0]).expect("is there");
        assert_eq!(running.finish(soon())[0].outcome, Outcome::Done);
        assert!(world.start(&Play::of([part(DIRECTOR, "pong")])).is_err());
    });
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
