//! The integration steps. `.ci/run` prepares the machine and runs all of them; `cargo xtask ci`
//! runs all, `cargo xtask ci STEP…` some.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use failures::Failures;

use crate::root;

mod failures;
mod features;
mod manners;
mod rxe;
mod unprivileged;
mod verbs_programs;

/// An integration step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its name, as in `cargo xtask ci NAME`.
    pub name: &'static str,
    /// One line that says what it does.
    pub about: &'static str,
    /// Time budget on two cores with an empty build folder. A step that exceeds it is marked, but does not
    /// fail.
    pub budget: Duration,
    run: fn(&mut Run) -> Result<Ended, String>,
}

/// How a step ended without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The step passed.
    Passed,
    /// The step could not run here; the text is the reason.
    Skipped(String),
}

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// All steps, in order. Steps that run test programs come after the step that builds them.
pub const STEPS: &[Step] = &[
    Step {
        name: "format",
        about: "cargo fmt --check",
        budget: seconds(10),
        run: format,
    },
    Step {
        name: "spelling",
        about: "typos in texts and names (needs the program typos)",
        budget: seconds(10),
        run: spelling,
    },
    Step {
        name: "lints",
        about: "clippy on everything, with all features; warnings are errors",
        budget: seconds(120),
        run: lints,
    },
    Step {
        name: "features",
        about: "the crate headworks compiles with each of its features alone, and with none",
        budget: seconds(60),
        run: features::run,
    },
    Step {
        name: "docs",
        about: "rustdoc, warnings are errors",
        budget: seconds(90),
        run: docs,
    },
    Step {
        name: "other-architecture",
        about: "the workspace compiles for aarch64",
        budget: seconds(90),
        run: other_architecture,
    },
    Step {
        name: "tests",
        about: "cargo test, of all packages with all features",
        budget: seconds(1400),
        run: tests,
    },
    Step {
        name: "smoke",
        about: "the program runs: devices, the demo of the README, two quick experiments",
        budget: seconds(150),
        run: smoke,
    },
    Step {
        name: "verbs-programs",
        about: "programs of others on the drop-in libibverbs: does what the table says still work?",
        budget: seconds(300),
        run: verbs_programs::run,
    },
    Step {
        name: "manners",
        about: "the suites for devices of libibverbs on the drop-in library with each driver's manners",
        budget: seconds(420),
        run: manners::run,
    },
    Step {
        name: "rxe",
        about: "the verbs tests on the kernel's software RDMA devices, in a virtual machine",
        budget: seconds(600),
        run: rxe::run,
    },
    Step {
        name: "models",
        about: "the shared-memory algorithms under loom",
        budget: seconds(270),
        run: models,
    },
    Step {
        name: "instructions",
        about: "instructions that the libibverbs provider adds to a C program (needs valgrind)",
        budget: seconds(120),
        run: instructions,
    },
    Step {
        name: "unprivileged",
        about: "the test programs once more as user nobody (needs root)",
        budget: seconds(240),
        run: unprivileged::run,
    },
];

/// State of one run of some steps.
#[derive(Debug)]
struct Run {
    root: PathBuf,
    /// The test harness's result line of each suite.
    suites: Vec<String>,
    /// What the test harness reported about tests that failed.
    failures: Failures,
}

/// Runs the steps called `names`, or all steps if `names` is empty; `false` if one failed.
///
/// Every step runs, even after a failure, so that one run reports everything that is wrong.
pub fn run(names: &[String]) -> Result<bool, String> {
    for name in names {
        if !STEPS.iter().any(|step| step.name == name) {
            let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
            return Err(format!(
                "no step {name}: the steps are {}",
                known.join(", ")
            ));
        }
    }
    let mut run = Run {
        root: root(),
        suites: Vec::new(),
        failures: Failures::default(),
    };
    let (mut table, mut good) = (String::new(), true);
    let started = Instant::now();
    let chosen = |step: &&Step| names.is_empty() || names.iter().any(|name| name == step.name);
    for step in STEPS.iter().filter(chosen) {
        println!("\n=== {}: {}", step.name, step.about);
        let began = Instant::now();
        let ended = (step.run)(&mut run);
        let took = began.elapsed();
        let verdict = match &ended {
            Ok(Ended::Passed) => "passed".to_owned(),
            Ok(Ended::Skipped(why)) => format!("skipped: {why}"),
            Err(why) => format!("FAILED: {why}"),
        };
        good &= ended.is_ok();
        let over = if took > step.budget { " (over)" } else { "" };
        println!("=== {}: {verdict}", step.name);
        let _ = writeln!(
            table,
            "  {:<20} {:>6.1} s of {:>4} s{over:<7}  {verdict}",
            step.name,
            took.as_secs_f64(),
            step.budget.as_secs(),
        );
    }
    println!("\n{table}");
    println!("  all steps: {:.1} s\n", started.elapsed().as_secs_f64());
    if !run.suites.is_empty() {
        println!("{}", summary(&run.suites));
    }
    for line in run.failures.lines() {
        println!("{line}");
    }
    Ok(good)
}

impl Run {
    fn cargo(&self, args: &[&str]) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(args)
            .current_dir(&self.root)
            .stdin(Stdio::null());
        command
    }

    /// Runs tests, prints their output, and keeps the result line of each suite. Returns the reason of the
    /// last suite that was skipped as a whole, if any.
    fn pass_on(&mut self, command: &mut Command) -> Result<Option<String>, String> {
        let shown = show(command);
        println!("$ {shown}");
        let (status, skipped) = self.pass_on_quietly(command)?;
        match status.success() {
            true => Ok(skipped),
            false => Err(format!("{shown}: {status}")),
        }
    }

    /// Does the same without printing the command, and also returns its exit status.
    fn pass_on_quietly(
        &mut self,
        command: &mut Command,
    ) -> Result<(ExitStatus, Option<String>), String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |error: io::Error| format!("{program}: {error}");
        self.failures.command_begins();
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let errors = child.stderr.take().map(|errors| {
            thread::spawn(move || {
                let mut kept = failures::Errors::default();
                for line in BufReader::new(errors).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line).into_owned();
                    eprintln!("{line}");
                    kept.read(line.trim_end());
                }
                kept
            })
        });
        let mut skipped = None;
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).split(b'\n') {
                // A virtual machine's console may print bytes that are not UTF-8.
                let line = String::from_utf8_lossy(&line.map_err(failed)?).into_owned();
                println!("{line}");
                let line = line.trim_end().to_owned();
                self.failures.read(&line);
                if let Some(why) = line.strip_prefix("skipped: ") {
                    skipped = Some(why.to_owned());
                } else if line.starts_with("test result:") {
                    self.suites.push(line);
                }
            }
        }
        if let Some(kept) = errors.and_then(|reader| reader.join().ok()) {
            self.failures.append(kept);
        }
        Ok((child.wait().map_err(failed)?, skipped))
    }

    /// The folder that cargo builds in.
    fn target(&self) -> PathBuf {
        match std::env::var_os("CARGO_TARGET_DIR") {
            Some(dir) => self.root.join(dir),
            None => self.root.join("target"),
        }
    }
}

/// Runs a command to its end with this process's output streams.
fn finish(command: &mut Command) -> Result<Ended, String> {
    let shown = show(command);
    println!("$ {shown}");
    match command.status() {
        Ok(status) if status.success() => Ok(Ended::Passed),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut shown = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    for arg in command.get_args() {
        shown.push(' ');
        shown.push_str(&arg.to_string_lossy());
    }
    shown
}

fn format(run: &mut Run) -> Result<Ended, String> {
    finish(&mut run.cargo(&["fmt", "--all", "--check"]))
}

fn spelling(run: &mut Run) -> Result<Ended, String> {
    let mut typos = Command::new("typos");
    typos.current_dir(&run.root).args(["--format", "brief"]);
    match Command::new("typos").arg("--version").output() {
        Ok(_) => finish(&mut typos),
        Err(_) => Ok(Ended::Skipped(
            "the program typos is not here (python3 -m pip install typos)".to_owned(),
        )),
    }
}

fn lints(run: &mut Run) -> Result<Ended, String> {
    let args = ["clippy", "--workspace", "--all-targets", "--all-features"];
    finish(run.cargo(&args).args(["--locked", "--", "-D", "warnings"]))
}

fn docs(run: &mut Run) -> Result<Ended, String> {
    let args = [
        "doc",
        "--workspace",
        "--all-features",
        "--no-deps",
        "--locked",
    ];
    finish(run.cargo(&args).env("RUSTDOCFLAGS", "-D warnings"))
}

fn other_architecture(run: &mut Run) -> Result<Ended, String> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    let sysroot = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .map_err(|error| format!("rustc: {error}"))?;
    let libraries = String::from_utf8_lossy(&sysroot.stdout);
    if !sysroot.status.success() || !Path::new(libraries.trim()).is_dir() {
        let why =
            format!("the standard library of {TARGET} is missing (rustup target add {TARGET})");
        return Ok(Ended::Skipped(why));
    }
    // `cargo check` needs no linker for that architecture. Unlike the other steps, this one enables no
    // features.
    let args = ["check", "--workspace", "--lib", "--bins", "--locked"];
    finish(run.cargo(&args).args(["--target", TARGET]))
}

fn models(run: &mut Run) -> Result<Ended, String> {
    let target = run.target().join("loom");
    // One crate at a time, so that each is built with only its own features.
    for package in ["headworks-shm", "headworks-ring", "headworks-pacing"] {
        if !has_models(&run.root, package) {
            println!("{package} has no models");
            continue;
        }
        let mut command = run.cargo(&["test", "--release", "--lib", "--locked"]);
        command
            .args(["-p", package, "loom"])
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", &target);
        finish(&mut command)?;
    }
    Ok(Ended::Passed)
}

/// Whether a package has loom models: functions whose names begin with `loom_`.
fn has_models(root: &Path, package: &str) -> bool {
    fn any(folder: &Path) -> bool {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| {
            if path.is_dir() {
                return any(&path);
            }
            fs::read_to_string(&path).is_ok_and(|text| text.contains("fn loom_"))
        })
    }
    let name = package.trim_start_matches("headworks-");
    any(&root.join("crates").join(name).join("src"))
}

fn smoke(run: &mut Run) -> Result<Ended, String> {
    // The step `tests` has built the program with the same arguments, so that this builds nothing.
    let args = ["build", "--workspace", "--all-features", "--locked"];
    finish(run.cargo(&args).args(["--bin", "headworks"]))?;
    let program = run.target().join("debug/headworks");
    let scratch = run.target().join("smoke");
    // Remove the results of an earlier run, which would be mistaken for this run's.
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    let file = scratch.join("file");
    let bytes: Vec<u8> = (0..4u32 << 20).flat_map(u32::to_le_bytes).collect();
    fs::write(&file, bytes).map_err(|error| format!("{}: {error}", file.display()))?;
    let headworks = |args: &[&str]| {
        let mut command = Command::new(&program);
        command
            .args(args)
            .current_dir(&scratch)
            .env("HEADWORKS_FABRIC", scratch.join("fabric"))
            .stdin(Stdio::null());
        command
    };
    finish(&mut headworks(&["devices"]))?;
    finish(headworks(&["demo"]).arg(&file))?;
    // `rb2-case3` is the shortest experiment of the RB² paper.
    for name in ["ring-vs-peers", "rb2-case3"] {
        let quick = ["experiment", "run", name, "--quick"];
        finish(headworks(&quick).arg("--out").arg(scratch.join("results")))?;
        let summary = scratch.join("results").join(name).join("summary.json");
        if !summary.is_file() {
            return Err(format!("the experiment wrote no {}", summary.display()));
        }
    }
    Ok(Ended::Passed)
}

fn instructions(run: &mut Run) -> Result<Ended, String> {
    let args = [
        "bench",
        "-p",
        "headworks-ibverbs",
        "--bench",
        "instructions",
    ];
    let skipped = run.pass_on(run.cargo(&args).arg("--locked"))?;
    Ok(skipped.map_or(Ended::Passed, Ended::Skipped))
}

fn tests(run: &mut Run) -> Result<Ended, String> {
    let mut command = run.cargo(&unprivileged::SUITE);
    run.pass_on(command.arg("--no-fail-fast"))?;
    Ok(Ended::Passed)
}

/// Adds up the suites' results, in the format of the test harness.
fn summary(suites: &[String]) -> String {
    let count = |what: &str| -> u64 {
        let number = |line: &String| {
            let (before, _) = line.split_once(what)?;
            before.split_whitespace().last()?.parse::<u64>().ok()
        };
        suites.iter().filter_map(number).sum()
    };
    let (passed, failed, ignored) = (count(" passed;"), count(" failed;"), count(" ignored;"));
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    format!(
        "test result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; \
         in {} suites",
        suites.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suites_add_up() {
        let suites = [
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 4 filtered out",
        ]
        .map(str::to_owned);
        assert_eq!(
            summary(&suites),
            "test result: FAILED. 15 passed; 2 failed; 1 ignored; in 2 suites"
        );
    }

    #[test]
    fn an_unknown_step_is_refused_with_those_there_are() {
        let said = run(&["frobnicate".to_owned()]).unwrap_err();
        assert!(said.contains("frobnicate") && said.contains("lints"));
    }
}
