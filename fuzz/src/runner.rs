//! Runs a target on its corpus and then on inputs generated from the corpus.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Target;
use crate::coverage::{self, EdgeCoverage};
use crate::mutate::{Rng, next_input};

/// Time after which a running input counts as hung. An input that does not hang waits for a second at most, a
/// few times over.
const HANG: Duration = Duration::from_secs(120);

/// Options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Seed of the generated inputs. The same seed generates the same inputs.
    pub seed: u64,
    /// Time after which no further input is generated.
    pub time: Duration,
    /// Maximum number of generated inputs.
    pub inputs: u64,
    /// File that holds the running input, so that the input survives a crash.
    pub kept: Option<PathBuf>,
    /// Folder for inputs that reached new code.
    pub grow: Option<PathBuf>,
}

/// Summary of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunSummary {
    /// Number of inputs of the corpus.
    pub corpus: u64,
    /// Number of generated inputs.
    pub made: u64,
    /// Number of edges taken; 0 if the build counts no edges.
    pub edges: usize,
}

/// Number of inputs started, for the watchdog.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// Whether any thread has panicked.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Runs `target` as planned. If an input fails, the process exits at once, because the failed input may have
/// left objects in a state in which they cannot be dropped.
pub fn run(target: &Target, plan: &RunOptions) -> io::Result<RunSummary> {
    let mut runner = Runner::new(target, plan.kept.as_deref())?;
    let (mut done, mut seen) = (RunSummary::default(), EdgeCoverage::default());
    let mut known = Vec::new();
    for (name, input) in target.corpus()? {
        runner.run(&format!("corpus file {name}"), &input);
        seen.add();
        known.push(input);
        done.corpus += 1;
    }
    let (mut rng, began) = (Rng::new(plan.seed), Instant::now());
    let mut told = began;
    while done.made < plan.inputs && began.elapsed() < plan.time {
        let input = next_input(&mut rng, &known, target.longest);
        done.made += 1;
        let what = format!("input {} of seed {}", done.made, plan.seed);
        runner.run(&what, &input);
        if seen.add() {
            if let Some(folder) = &plan.grow {
                let name = format!("{:016x}", crate::hash(&input));
                fs::write(folder.join(name), &input)?;
            }
            known.push(input);
        }
        if plan.grow.is_some() && told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            let (made, edges, kept) = (done.made, seen.edges(), known.len());
            println!("{}: {made} inputs, {edges} edges, {kept} kept", target.name);
        }
    }
    done.edges = seen.edges();
    Ok(done)
}

/// Runs `target` on the input in `file`.
pub fn replay(target: &Target, file: &Path) -> io::Result<()> {
    let input = fs::read(file)?;
    Runner::new(target, None)?.run(&file.display().to_string(), &input);
    Ok(())
}

/// Returns those of `files` that reach new code. The files run in their order; code is new if no file before
/// reached it.
pub fn minimise_corpus<'f>(target: &Target, files: &[&'f str]) -> io::Result<Vec<&'f str>> {
    let mut runner = Runner::new(target, None)?;
    let (mut seen, mut new) = (EdgeCoverage::default(), Vec::new());
    for &file in files {
        runner.run(file, &fs::read(file)?);
        if seen.add() {
            new.push(file);
        }
    }
    Ok(new)
}

/// Reads the input that was running, from the file in [`RunOptions::kept`].
pub fn read_kept_input(file: &Path) -> io::Result<Vec<u8>> {
    let bytes = fs::read(file)?;
    let short = || io::Error::new(io::ErrorKind::UnexpectedEof, "no complete input");
    let (len, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
    let len = u64::from_le_bytes(*len) as usize;
    Ok(rest.get(..len).ok_or_else(short)?.to_vec())
}

struct Runner<'a> {
    target: &'a Target,
    kept: Option<File>,
}

impl<'a> Runner<'a> {
    fn new(target: &'a Target, kept: Option<&Path>) -> io::Result<Self> {
        let kept = kept.map(File::create).transpose()?;
        watch_panics();
        std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(watch)?;
        Ok(Self { target, kept })
    }

    /// Runs one input. If it fails, the process exits.
    fn run(&mut self, what: &str, input: &[u8]) {
        if let Some(file) = &self.kept {
            let mut bytes = (input.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(input);
            if let Err(error) = file.write_all_at(&bytes, 0) {
                eprintln!("cannot save the running input, so a crash would lose it: {error}");
            }
        }
        BEGUN.fetch_add(1, Ordering::Relaxed);
        if coverage::is_counted() {
            EdgeCoverage::start();
        }
        let ended = catch_unwind(AssertUnwindSafe(|| (self.target.run)(input)));
        // `PANICKED` also covers other threads, such as a device's progress thread.
        if ended.is_err() || PANICKED.load(Ordering::Acquire) {
            eprintln!("{}: a thread panicked in {what}", self.target.name);
            std::process::exit(101);
        }
    }
}

fn watch_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICKED.store(true, Ordering::Release);
        print(info);
    }));
}

/// Watchdog: ends the process when an input hangs.
fn watch() {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        std::thread::park_timeout(Duration::from_millis(500));
        let begun = BEGUN.load(Ordering::Relaxed);
        if begun != last {
            (last, since) = (begun, Instant::now());
        } else if since.elapsed() > HANG && begun > 0 {
            eprintln!("an input has run for {} s: it hangs", HANG.as_secs());
            std::process::exit(124);
        }
    }
}
