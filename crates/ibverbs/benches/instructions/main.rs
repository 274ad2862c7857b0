//! Counts the instructions that this crate adds to a C program on libibverbs, per request posted and per
//! completion polled: `cargo bench -p headworks-ibverbs --bench instructions`.
//!
//! Two programs make the same requests from the same values and post them to the same device, a stand-in for
//! libibverbs that walks the chain and discards it (`tests/stand_in/libibverbs.c`). One is `program` below.
//! The other is the loop that one writes by hand: it fills a chain of `ibv_send_wr` in place, links it, and
//! posts it with one call (`tests/stand_in/reference.c`). Callgrind counts the instructions of each case
//! separately. It measures no time, so every run of the same binaries gives the same numbers. Both programs
//! make the requests and look at the completions.
//!
//! Fails on x86-64 if more than [`MOST`] are added in slices of 16 and more. Needs a C compiler and valgrind.
//! Without them it is skipped with the reason, unless `HEADWORKS_REQUIRE` names `valgrind`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

mod program;

/// Most instructions that may be added per request or completion.
const MOST: f64 = 40.0;
/// Number of calls of each case.
const ROUNDS: usize = 200;
/// Numbers of requests or completions of one call. A single one may exceed [`MOST`], because it bears the
/// whole call.
const SLICES: [usize; 3] = [1, 16, 32];
/// Names of the cases, in the order of both programs.
const CASES: [&str; 14] = [
    "WRITE",
    "WRITE, inline",
    "WRITE with immediate",
    "SEND",
    "SEND, inline",
    "SEND with immediate",
    "READ",
    "compare-and-swap",
    "fetch-and-add",
    "datagram",
    "datagram with immediate",
    "receive",
    "poll, of sends",
    "poll, of receives",
];

/// Instructions per request, for each case and slice.
type Counts = Vec<[f64; SLICES.len()]>;

fn main() -> ExitCode {
    // With this argument, the program runs under callgrind.
    if std::env::args().nth(1).as_deref() == Some("program") {
        program::run(ROUNDS);
        return ExitCode::SUCCESS;
    }
    if let Some(why) = lacking() {
        let is_required = headworks_runtime::testing::is_required("valgrind");
        let verdict = if is_required { "FAILED" } else { "skipped" };
        println!("{verdict}: {why}");
        return ExitCode::from(u8::from(is_required));
    }
    match counted() {
        Ok([ours, c]) => report(&ours, &c),
        Err(why) => {
            println!("FAILED: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The requirement that is missing.
fn lacking() -> Option<String> {
    if cfg!(debug_assertions) {
        return Some("not optimised: run it with cargo bench".to_owned());
    }
    let tools = [("cc", "gcc"), ("valgrind", "valgrind")];
    tools.iter().find_map(|(program, package)| {
        let asked = Command::new(program).arg("--version").output();
        let is_there = asked.is_ok_and(|asked| asked.status.success());
        (!is_there).then(|| format!("{program} is not installed: apt-get install {package}"))
    })
}

/// Counts of this program and of the C program.
fn counted() -> Result<[Counts; 2], String> {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("instructions");
    std::fs::create_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in");
    let library = scratch.join("libibverbs.so.1");
    compile(&[
        &"-shared",
        &"-fPIC",
        &"-o",
        &library,
        &sources.join("libibverbs.c"),
    ])?;
    let reference = scratch.join("reference");
    compile(&[&"-o", &reference, &sources.join("reference.c"), &library])?;
    let ours = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok([
        under_callgrind(&scratch, &ours, "program")?,
        under_callgrind(&scratch, &reference, &ROUNDS.to_string())?,
    ])
}

fn compile(args: &[&dyn AsRef<std::ffi::OsStr>]) -> Result<(), String> {
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-Werror"])
        .args(args.iter().map(|arg| arg.as_ref()));
    run(&mut cc)
}

fn run(command: &mut Command) -> Result<(), String> {
    let ended = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    Err(format!("{command:?}: {}\n{said}", ended.status))
}

/// Runs `program` under callgrind, with the stand-in as its library, and returns its counts.
fn under_callgrind(scratch: &Path, program: &Path, arg: &str) -> Result<Counts, String> {
    let out: PathBuf = scratch.join(format!("callgrind.{arg}"));
    // Callgrind would append to an existing file.
    let _ = std::fs::remove_file(&out);
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args([
            "--tool=callgrind",
            "--dump-before=getppid",
            "--combine-dumps=yes",
        ])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .arg(arg)
        .env("LD_LIBRARY_PATH", scratch);
    run(&mut valgrind)?;
    let text =
        std::fs::read_to_string(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let parts: Vec<u64> = text
        .lines()
        .filter_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
        .collect();
    // The parts are: before the first case, the case, between two cases, the next case, and after the last.
    let expected = 2 * CASES.len() * SLICES.len() + 1;
    if parts.len() != expected {
        return Err(format!(
            "{} parts in {}, not {expected}",
            parts.len(),
            out.display()
        ));
    }
    let cases: Vec<_> = parts.chunks_exact(2).map(|pair| pair[1]).collect();
    let per_request =
        |case: &[u64]| std::array::from_fn(|at| case[at] as f64 / (ROUNDS * SLICES[at]) as f64);
    Ok(cases.chunks_exact(SLICES.len()).map(per_request).collect())
}

fn report(ours: &Counts, c: &Counts) -> ExitCode {
    println!("instructions per request or completion, in slices of {SLICES:?}: ours, C, added");
    let mut worst: f64 = 0.0;
    for (case, (ours, c)) in CASES.iter().zip(ours.iter().zip(c)) {
        print!("{case:<26}");
        for (slice, (ours, c)) in SLICES.iter().zip(ours.iter().zip(c)) {
            let added = ours - c;
            print!("  {ours:7.1} {c:6.1} {added:+7.1}");
            if *slice > 1 {
                worst = worst.max(added);
            }
        }
        println!();
    }
    if !cfg!(target_arch = "x86_64") {
        println!("at most {worst:.1} are added; the limit applies to x86-64 only");
        return ExitCode::SUCCESS;
    }
    if worst > MOST {
        println!("FAILED: {worst:.1} are added in a slice of 16 or more; {MOST} are allowed");
        return ExitCode::FAILURE;
    }
    println!("at most {worst:.1} are added in slices of 16 and more; {MOST} are allowed");
    ExitCode::SUCCESS
}
