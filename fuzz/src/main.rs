//! `headworks-fuzz`: replays inputs, or searches for new ones for a given time.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use headworks_fuzz::runner::{self, RunOptions};
use headworks_fuzz::{SEED, TARGETS, Target, coverage, target};

const USAGE: &str = "\
usage: headworks-fuzz list
       headworks-fuzz replay TARGET FILE…
       headworks-fuzz distil TARGET FILE…
       headworks-fuzz run TARGET [--seconds N] [--seed N] [--into FOLDER]

`run` replays the committed corpus, then runs generated inputs. With --into, it saves the inputs that reach
new code in FOLDER. `distil` prints those of the files that reach code that no file before them reached. Both
need a build that counts edges; this command makes one and runs it:
  cargo xtask fuzz TARGET [--seconds N] [--into FOLDER]";

/// Environment variable with the path of the registry.
const FABRIC: &str = "HEADWORKS_FABRIC";
/// Environment variable that [`alone`] sets for the process that it starts. Its value is the path of the
/// registry that `alone` made. `FABRIC` alone would not be enough: it may name a registry of the user, and
/// some targets empty the registry.
const OWN: &str = "HEADWORKS_FUZZ_OWN";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let own = env::var_os(OWN);
    let ended = match own.is_some() && own == env::var_os(FABRIC) {
        true => begin(&args).map(|()| ExitCode::SUCCESS),
        false => alone(&args),
    };
    ended.unwrap_or_else(|why| {
        eprintln!("headworks-fuzz: {why}");
        ExitCode::from(2)
    })
}

/// Runs this program again as a child process with a new registry. Some targets open devices by name, and the
/// devices find the registry by the environment variable.
fn alone(args: &[&str]) -> Result<ExitCode, String> {
    let failed = |error: std::io::Error| error.to_string();
    let folder = tempfile::tempdir().map_err(failed)?;
    let fabric = folder.path().join("fabric");
    let status = Command::new(env::current_exe().map_err(failed)?)
        .args(args)
        .env(FABRIC, &fabric)
        .env(OWN, &fabric)
        .status()
        .map_err(failed)?;
    if let Some(signal) = status.signal() {
        eprintln!("headworks-fuzz: ended with signal {signal}");
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(101)))
}

fn begin(args: &[&str]) -> Result<(), String> {
    match args {
        ["list"] => {
            for target in TARGETS {
                println!("{:16} {}", target.name, target.about);
            }
            Ok(())
        }
        ["replay", name, files @ ..] if !files.is_empty() => {
            let target = known(name)?;
            for file in files {
                let shown = |error| format!("{file}: {error}");
                runner::replay(target, Path::new(file)).map_err(shown)?;
                println!("{file}: passed");
            }
            Ok(())
        }
        ["distil", name, files @ ..] if !files.is_empty() => {
            if !coverage::is_counted() {
                return Err("this build counts no edges; distil needs the program that cargo xtask fuzz builds".to_owned());
            }
            let new =
                runner::minimise_corpus(known(name)?, files).map_err(|error| error.to_string())?;
            new.iter().for_each(|file| println!("{file}"));
            Ok(())
        }
        ["run", name, options @ ..] => run(known(name)?, options),
        _ => Err(format!("unknown command\n{USAGE}")),
    }
}

fn known(name: &str) -> Result<&'static Target, String> {
    let all: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    target(name).ok_or_else(|| format!("unknown target {name}; targets: {}", all.join(", ")))
}

fn run(target: &Target, options: &[&str]) -> Result<(), String> {
    let mut plan = RunOptions {
        seed: SEED,
        time: Duration::from_secs(60),
        inputs: u64::MAX,
        kept: None,
        grow: None,
    };
    let number = |key: &str, value: &str| {
        let wrong = |_| format!("{key} {value}: must be a whole number");
        value.parse::<u64>().map_err(wrong)
    };
    for pair in options.chunks(2) {
        match pair {
            [key @ "--seconds", value] => plan.time = Duration::from_secs(number(key, value)?),
            [key @ "--seed", value] => plan.seed = number(key, value)?,
            ["--into", folder] => plan.grow = Some(PathBuf::from(folder)),
            _ => return Err(format!("unknown option {}\n{USAGE}", pair.join(" "))),
        }
    }
    if !coverage::is_counted() {
        println!("this build counts no edges: inputs are generated from the corpus alone");
    }
    if let Some(folder) = &plan.grow {
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        plan.kept = Some(folder.join(".kept"));
    }
    let done = runner::run(target, &plan).map_err(|error| error.to_string())?;
    let (corpus, made, edges) = (done.corpus, done.made, done.edges);
    println!(
        "{}: {corpus} inputs of the corpus, {made} generated, {edges} edges",
        target.name
    );
    Ok(())
}
