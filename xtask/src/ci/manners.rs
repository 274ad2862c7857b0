//! Runs the suites for devices of libibverbs on the drop-in library with each driver's manners (`docs/driver-manners.md`), so that our
//! loader meets what it would meet on hardware. Needs no root.
//!
//! [`ROWS`] says what devices of a driver lack, or that they are refused as a whole. Everything else must pass.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use super::unprivileged::{Suite, suites};
use super::{Ended, Run};

/// A driver whose manners the drop-in library has.
struct Row {
    name: &'static str,
    expects: Expects,
}

/// What is expected of a driver's devices.
enum Expects {
    /// Suites pass; the conformance suite leaves out what the devices lack, and nothing else.
    Lacks(&'static [&'static str]),
    /// Devices are refused, with this line.
    Refusal(&'static str),
}

use Expects::{Lacks, Refusal};

const INLINE: &str = "this device takes no payload inline";
const ATOMICS: &str = "this device has no atomics";
const DATAGRAMS: &str = "this device has no datagrams (UD)";
const SHARED: &str = "this device has no shared receive queues";
const UNRELIABLE: &str = "this device has no unreliable connections (UC)";

/// All drivers of `crates/libibverbs/src/manners.rs`.
const ROWS: &[Row] = &[
    row("mlx5", Lacks(&[])),
    row("mlx5-ib", Lacks(&[])),
    row("mlx5-relaxed", Lacks(&[])),
    row("mlx5-arm", Lacks(&[])),
    row("irdma", Lacks(&[ATOMICS, SHARED, UNRELIABLE])),
    row("bnxt_re", Lacks(&[UNRELIABLE])),
    row(
        "mana",
        Lacks(&[ATOMICS, DATAGRAMS, INLINE, SHARED, UNRELIABLE]),
    ),
    row(
        "efa",
        Refusal(
            "the device refuses reliable connections (RC): its driver, efa, has datagrams only",
        ),
    ),
    row("rxe", Lacks(&[])),
    row(
        "siw",
        Refusal("the device uses iWARP, which is not supported"),
    ),
];

const fn row(name: &'static str, expects: Expects) -> Row {
    Row { name, expects }
}

/// A test program that runs on every row that is not refused: the folder of its package, its name, a variable, and its arguments.
struct Job {
    folder: &'static str,
    program: &'static str,
    variable: Option<(&'static str, &'static str)>,
    args: &'static str,
    /// Tests that it has at least: a name that matches nothing would pass.
    least: usize,
}

/// The suites, by the files in `crates/FOLDER/tests`. Tests of daemons that use no device are left out, as in the step
/// `rxe`.
const JOBS: &[Job] = &[
    job(("ibverbs", "devices"), 3, ""),
    job(
        ("conformance", "ibv"),
        2,
        "--nocapture --test-threads=1 between_two_devices on_one_device",
    ),
    Job {
        variable: Some((
            "HEADWORKS_CASE",
            "deaths::,killed,transfers::,teardown::peer,matrix::remote_bad_key",
        )),
        ..job(("conformance", "ibv"), 1, "--nocapture between_processes")
    },
    job(
        ("ring", "rings"),
        15,
        "--test-threads=1 oracle:: threads:: sleeping_ends:: between_processes:: death:: --skip hostile",
    ),
    Job {
        variable: Some((
            "HEADWORKS_IBV",
            "ibv:rdma0,timeout=14,relaxed_ordering=yes;ibv:rdma1,timeout=14,relaxed_ordering=yes",
        )),
        ..job(
            ("ring", "rings"),
            12,
            "--test-threads=1 oracle:: threads:: tuning:: --skip hostile",
        )
    },
    job(("headworks", "pipe"), 8, "--test-threads=1"),
    job(
        ("cli", "command"),
        45,
        "--test-threads=1 daemon:: daemon_operation:: daemon_polling:: daemon_remote_memory:: daemon_datagrams:: kills:: \
         hostile_clients:: c_library::c_uses_memory c_library::c_sends_and_receives --skip pipe_kills:: --skip ::direct \
         --skip the_unit_is_one --skip the_service_manager --skip the_configuration_file --skip a_daemon_that_cannot_serve",
    ),
];

const fn job(
    (folder, program): (&'static str, &'static str),
    least: usize,
    args: &'static str,
) -> Job {
    Job {
        folder,
        program,
        variable: None,
        args,
        least,
    }
}

/// Rows that run at the same time. Most tests wait most of the time.
const AT_ONCE: usize = 4;
/// Time limit of one job, in seconds. The longest takes two minutes.
const LIMIT: &str = "400";
/// Two devices. The suites wait for silent peers often, so they use the shorter of the usual timeouts.
const DEVICES: &str = "ibv:rdma0,timeout=14;ibv:rdma1,timeout=14";

/// What a row's jobs printed.
#[derive(Default)]
struct Told {
    lines: Vec<String>,
    failed: Vec<String>,
}

/// Runs the step.
pub(super) fn run(run: &mut Run) -> Result<Ended, String> {
    let suites = suites(run)?;
    let library = library(&suites)?;
    let at_once = match has_namespaces() {
        true => AT_ONCE,
        false => {
            println!(
                "no network namespaces here: one driver after the other, because daemons of tests have fixed ports"
            );
            1
        }
    };
    let next = AtomicUsize::new(0);
    let told: Vec<Mutex<Told>> = ROWS.iter().map(|_| Mutex::default()).collect();
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(at) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < ROWS.len())
                {
                    let all = Place {
                        row: &ROWS[at],
                        suites: &suites,
                        library: &library,
                        has_namespace: at_once > 1,
                    };
                    let done = all.jobs();
                    if let Ok(mut told) = told[at].lock() {
                        *told = done;
                    }
                }
            });
        }
    });
    let mut failed = Vec::new();
    for (row, told) in ROWS.iter().zip(told) {
        let told = told
            .into_inner()
            .map_err(|_| format!("{}: a thread ended", row.name))?;
        run.failures.command_begins();
        for line in &told.lines {
            run.failures.read(line);
        }
        failed.extend(told.failed);
    }
    match failed.is_empty() {
        true => Ok(Ended::Passed),
        false => Err(failed.join("; ")),
    }
}

/// The drop-in library, beside the test programs.
fn library(suites: &[Suite]) -> Result<PathBuf, String> {
    let any = suites.first().ok_or("no test programs")?;
    let library = any.program.with_file_name("libibverbs.so");
    match library.is_file() {
        true => Ok(library),
        false => Err(format!("{} is missing", library.display())),
    }
}

/// A network of its own, so that fixed ports of tests are free.
const NAMESPACE: [&str; 6] = [
    "unshare",
    "--map-root-user",
    "--net",
    "sh",
    "-c",
    "ip link set lo up && exec \"$@\"",
];

fn has_namespaces() -> bool {
    let [program, args @ ..] = NAMESPACE;
    let tried = Command::new(program)
        .args(args)
        .args(["sh", "true"])
        .output();
    tried.is_ok_and(|done| done.status.success())
}

/// Where a row's jobs run.
struct Place<'a> {
    row: &'a Row,
    suites: &'a [Suite],
    library: &'a Path,
    has_namespace: bool,
}

impl Place<'_> {
    fn jobs(&self) -> Told {
        let mut told = Told::default();
        match self.row.expects {
            Lacks(lacks) => {
                let mut left_out = BTreeSet::new();
                for job in JOBS {
                    self.job(job, &mut told, &mut left_out);
                }
                let expected: BTreeSet<_> = lacks.iter().map(|lack| (*lack).to_owned()).collect();
                if left_out != expected {
                    told.failed.push(format!(
                        "{}: the conformance suite left out what needs {left_out:?}, and not {expected:?}",
                        self.row.name
                    ));
                }
            }
            Refusal(line) => self.refusal(line, &mut told),
        }
        told
    }

    fn job(&self, job: &Job, told: &mut Told, left_out: &mut BTreeSet<String>) {
        let what = format!("{}: {}/{}", self.row.name, job.folder, job.program);
        let found = self
            .suites
            .iter()
            .find(|suite| suite.is(job.folder, job.program));
        let Some(suite) = found else {
            told.failed
                .push(format!("{what}: there is no such test program"));
            return;
        };
        let began = Instant::now();
        let mut command = match self.command(&suite.program) {
            Ok(command) => command,
            Err(why) => {
                told.failed.push(format!("{what}: {why}"));
                return;
            }
        };
        command
            .0
            .args(job.args.split_whitespace())
            .current_dir(&suite.folder);
        command
            .0
            .env("CARGO_MANIFEST_DIR", &suite.folder)
            .envs(job.variable);
        let output = match command.0.output() {
            Ok(output) => output,
            Err(error) => {
                told.failed.push(format!("{what}: {error}"));
                return;
            }
        };
        let lines = lines(&output);
        left_out.extend(lines.iter().filter_map(|line| reason(line)));
        let took = began.elapsed().as_secs_f64();
        let result = lines.iter().rfind(|line| line.starts_with("test result:"));
        let result = result.map_or("no result", |line| line);
        let passed = passed(result);
        match output.status.success() && passed >= job.least {
            true => println!("{what}: {took:.1} s, {result}"),
            false => {
                println!(
                    "{what}: FAILED after {took:.1} s with {}:\n{}",
                    output.status,
                    lines.join("\n")
                );
                let least = job.least;
                told.failed.push(format!(
                    "{what}: {}, {passed} of {least} tests or more passed",
                    output.status
                ));
                told.lines.extend(lines);
            }
        }
    }

    /// Checks that a device is refused with `line`, by a command that needs it.
    fn refusal(&self, line: &str, told: &mut Told) {
        let what = format!("{}: headworks demo", self.row.name);
        let program = self.library.parent().and_then(Path::parent);
        let program = program
            .map(|folder| folder.join("headworks"))
            .unwrap_or_default();
        let done = self.command(&program).and_then(|mut command| {
            command.0.args(["demo", "--device", "ibv:rdma0"]);
            command.0.output().map_err(|error| error.to_string())
        });
        match done {
            Err(why) => told.failed.push(format!("{what}: {why}")),
            Ok(output) => {
                let lines = lines(&output);
                let is_there = lines.iter().any(|printed| printed.contains(line));
                match is_there && !output.status.success() {
                    true => println!("{what}: refused as it must be: {line}"),
                    false => {
                        println!("{what}: {}\n{}", output.status, lines.join("\n"));
                        told.failed
                            .push(format!("{what} is not refused with {line:?}"));
                    }
                }
            }
        }
    }

    /// A command that runs `program` with the library and this row's manners, in a registry that is removed with the result.
    fn command(&self, program: &Path) -> Result<(Command, tempfile::TempDir), String> {
        let folder = tempfile::tempdir().map_err(|error| format!("a folder: {error}"))?;
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", LIMIT]);
        if self.has_namespace {
            command.args(NAMESPACE).arg("sh");
        }
        command
            .arg(program)
            .env("LD_PRELOAD", self.library)
            .env("HEADWORKS_VERBS_MANNERS", self.row.name)
            .env("HEADWORKS_VERBS_DEVICES", "rdma0,rdma1")
            .env("HEADWORKS_FABRIC", folder.path().join("registry"))
            .env("HEADWORKS_IBV", DEVICES)
            .env("HEADWORKS_REQUIRE", "ibv")
            .stdin(Stdio::null());
        Ok((command, folder))
    }
}

fn lines(output: &Output) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    out.lines()
        .chain(errors.lines())
        .map(str::to_owned)
        .collect()
}

/// Reasons for which the conformance suite leaves cases out on every device of libibverbs. Numbers in them are left out.
const USUAL: [&str; 5] = [
    "hosts of this world cannot be killed",
    "an idle queue pair does not detect the death of its peer here",
    "WRITEs of this device keep no order: only their completions do",
    "regions are too many to make here",
    "address_handles are too many to make here",
];

/// Why the conformance suite left something out, if it says so in `line` and the reason is not a usual one.
fn reason(line: &str) -> Option<String> {
    let about = line
        .split_once(" skipped: ")
        .or_else(|| line.split_once(": section left out: "));
    let (_, why) = about?;
    // A section has its name in front.
    let lacks = ["this device has no ", "this device takes "];
    let lack = lacks.into_iter().find_map(|words| why.find(words));
    let why = lack.map_or(why, |at| &why[at..]);
    let why = why.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
    (!USUAL.contains(&why)).then(|| why.to_owned())
}

/// The number of tests that passed, from the result line of a test program.
fn passed(result: &str) -> usize {
    let words = result.split(" passed;").next();
    let number = words.and_then(|words| words.rsplit(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_are_those_of_the_library() {
        let table = crate::root().join("crates/libibverbs/src/manners.rs");
        let table = std::fs::read_to_string(table).unwrap();
        let named = table.lines().filter_map(|line| {
            let name = line.trim().strip_prefix("name: \"")?;
            name.strip_suffix("\",")
        });
        let named: Vec<_> = named.filter(|name| *name != "none").collect();
        let ours: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(named, ours);
    }

    #[test]
    fn what_is_left_out_is_read_from_the_lines_of_the_conformance_suite() {
        for (line, why) in [
            (
                "two devices: atomics::swap skipped: this device has no atomics",
                Some(ATOMICS),
            ),
            (
                "loopback: matrix::ok: section left out: CMP_SWAP: this device has no atomics",
                Some(ATOMICS),
            ),
            (
                "loopback: matrix::inline skipped: this device takes no payload inline",
                Some(INLINE),
            ),
            (
                "loopback: limits::all skipped: 16384 regions are too many to make here",
                None,
            ),
            (
                "loopback: long skipped: WRITEs of this device keep no order: only their completions do",
                None,
            ),
            ("loopback: cq::all skipped: not today", Some("not today")),
            ("thread panicked: this device has no atomics", None),
        ] {
            assert_eq!(reason(line).as_deref(), why, "{line}");
        }
        assert_eq!(passed("test result: ok. 47 passed; 1 failed"), 47);
        assert_eq!(passed("no result"), 0);
    }
}
