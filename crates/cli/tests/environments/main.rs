//! Processes in the environments that containers make: namespaces of their own, no `/proc`, system calls that
//! are forbidden, little shared memory. Each environment meets a plain one, and another like itself. Every process
//! has forked a child that lives longer, and every death must be noticed all the same.
//!
//! The outcomes are the table of `docs/containers.md`, which `HEADWORKS_WRITE=1` writes.

#[path = "roles.rs"]
mod roles;
#[path = "sandbox.rs"]
mod sandbox;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use roles::Role;
use sandbox::{Environment, Place, SandboxedProcess};

/// How long a process has to take its next step.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a death may go unnoticed on a machine that does several other things; the test prints how long it did.
const NOTICE: Duration = Duration::from_secs(10);

/// A group of programs that the test runs in each environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    Pipe,
    Ring,
    Application,
    TwoDaemons,
    Doctor,
}

impl Trial {
    const ALL: [Self; 5] = [
        Self::Pipe,
        Self::Ring,
        Self::Application,
        Self::TwoDaemons,
        Self::Doctor,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Pipe => "pipe",
            Self::Ring => "ring",
            Self::Application => "daemon and application",
            Self::TwoDaemons => "two daemons",
            Self::Doctor => "`headworks doctor`",
        }
    }
}

/// The end of a trial.
type Outcome = Result<(), String>;

/// Runs a trial with the first process in `one` and the second in `other`.
fn run(trial: Trial, one: &Environment, other: &Environment) -> Outcome {
    let place = Place::new();
    match trial {
        Trial::Pipe => {
            let mut listener = place.start(one, Role::PipeListen)?;
            listener.expect("ready")?;
            let connector = place.start(other, Role::PipeConnect)?;
            expect_all(vec![connector, listener])
        }
        Trial::Ring => {
            let mut receiver = place.start(one, Role::RingReceive)?;
            receiver.expect("ready")?;
            let mut sender = place.start(other, Role::RingSend)?;
            sender.expect("ok")?;
            receiver.expect("ok")?;
            notices(&mut sender, &mut receiver)
        }
        Trial::Application => {
            let mut daemon = place.start(one, Role::Daemon(1))?;
            daemon.expect("ready")?;
            let mut listener = place.start(other, Role::AppListen(1))?;
            listener.expect("ready")?;
            let mut connector = place.start(other, Role::AppConnect(1, 1))?;
            connector.expect("ok")?;
            listener.expect("ok")?;
            notices(&mut connector, &mut listener)
        }
        Trial::Doctor => {
            // The registry exists, as when a pipe connects.
            let mut listener = place.start(one, Role::PipeListen)?;
            listener.expect("ready")?;
            place.start(other, Role::Doctor)?.expect("ok")
        }
        Trial::TwoDaemons => {
            // The first one makes the registry.
            let mut first = place.start(one, Role::Daemon(1))?;
            first.expect("ready")?;
            let mut second = place.start(other, Role::Daemon(2))?;
            second.expect("ready")?;
            let mut listener = place.start(one, Role::AppListen(1))?;
            listener.expect("ready")?;
            let mut connector = place.start(other, Role::AppConnect(2, 1))?;
            connector.expect("ok")?;
            listener.expect("ok")?;
            notices(&mut connector, &mut listener)
        }
    }
}

fn expect_all(mut processes: Vec<SandboxedProcess>) -> Outcome {
    processes
        .iter_mut()
        .try_for_each(|process| process.expect("ok"))
}

/// Kills `victim`, whose forked child lives on, and checks that `survivor` notices.
fn notices(survivor: &mut SandboxedProcess, victim: &mut SandboxedProcess) -> Outcome {
    let killed = victim.kill_role();
    survivor.expect("gone")?;
    let took = killed.elapsed();
    println!("a death was noticed after {took:?}");
    match took < NOTICE {
        true => Ok(()),
        false => Err(format!("the death was noticed after {took:?}")),
    }
}

/// Returns the text of a table's cell.
fn cell(trial: Trial, outcome: &Outcome) -> String {
    let (works, fails) = match trial {
        Trial::Doctor => ("says so", "says"),
        _ => ("works", "refused"),
    };
    match outcome {
        Ok(()) => works.to_owned(),
        Err(why) => format!("{fails}: {}", why.replace('|', "\\|")),
    }
}

/// Checks that the doctor's verdict is what then happens to a pipe.
fn agrees(title: &str, pipe: &Outcome, doctor: &Outcome) {
    let reason = |outcome: &Outcome| {
        let said = outcome.as_ref().err()?;
        // Without the name of the device, and without what helps.
        let (_, reason) = said.split_once(": ")?;
        Some(reason.split(": set ").next()?.to_owned())
    };
    let does = match reason(pipe) {
        None => doctor.is_ok(),
        Some(reason) => doctor.as_ref().is_err_and(|said| said.contains(&reason)),
    };
    assert!(does, "{title}: the pipe: {pipe:?}, the doctor: {doctor:?}");
}

/// The rows by environment: a cell for each trial beside a plain process, and beside one like itself.
fn table(rows: &BTreeMap<usize, Vec<[String; 2]>>) -> String {
    let mut text = String::from("| environment |");
    for trial in Trial::ALL {
        let _ = write!(text, " {} |", trial.title());
    }
    text.push_str("\n|---|---|---|---|---|---|\n");
    for (row, cells) in rows {
        let _ = write!(text, "| {} |", sandbox::ALL[*row].title);
        for [mixed, alike] in cells {
            match mixed == alike {
                true => {
                    let _ = write!(text, " {mixed} |");
                }
                false => {
                    let _ = write!(text, " {mixed}; two alike: {alike} |");
                }
            }
        }
        text.push('\n');
    }
    text
}

const BEGIN: &str = "<!-- environments: begin -->\n";
const END: &str = "<!-- environments: end -->\n";

#[test]
fn processes_work_or_are_refused_in_words_in_every_environment() {
    let mut rows = BTreeMap::new();
    for (row, environment) in sandbox::ALL.iter().enumerate() {
        if let Err(why) = environment.check() {
            println!("skipped: {}: {why}", environment.title);
            let required = std::env::var("HEADWORKS_REQUIRE").unwrap_or_default();
            let required = required.split(',').any(|word| word == "environments");
            assert!(!required, "environments is required: {why}");
            continue;
        }
        let outcomes = Trial::ALL.map(|trial| {
            let mixed = run(trial, environment.beside, environment);
            let alike = run(trial, environment, environment);
            println!(
                "{}: {}: {mixed:?} {alike:?}",
                environment.title,
                trial.title()
            );
            [mixed, alike]
        });
        let of = |trial| Trial::ALL.iter().position(|one| *one == trial);
        let (pipe, doctor) = (of(Trial::Pipe), of(Trial::Doctor));
        let (pipe, doctor) = (&outcomes[pipe.unwrap()], &outcomes[doctor.unwrap()]);
        for (pipe, doctor) in pipe.iter().zip(doctor) {
            agrees(environment.title, pipe, doctor);
        }
        let cells = Trial::ALL.iter().zip(&outcomes);
        let cells = cells.map(|(trial, both)| both.each_ref().map(|one| cell(*trial, one)));
        let cells: Vec<[String; 2]> = cells.collect();
        rows.insert(row, cells);
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/containers.md");
    let text = std::fs::read_to_string(&page).expect("the page");
    let begin = text.find(BEGIN).expect("the mark of the table") + BEGIN.len();
    let end = text.find(END).expect("the mark of the table's end");
    if std::env::var_os("HEADWORKS_WRITE").is_some() {
        let written = format!("{}{}{}", &text[..begin], table(&rows), &text[end..]);
        std::fs::write(&page, written).expect("written");
        return;
    }
    // An environment that could not be made here keeps its line.
    let committed: Vec<&str> = text[begin..end].lines().collect();
    for line in table(&rows).lines().skip(2) {
        assert!(committed.contains(&line), "not in the page: {line}");
    }
}

#[test]
#[ignore = "is the program of a process of another test"]
fn role_process() {
    roles::run();
}
