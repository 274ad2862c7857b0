//! Runs targets as tests. Each target runs in a child process, so that the test can report any failure, even a
//! crash.

use std::env;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::runner::{self, RunOptions};
use crate::{SEED, Target};

/// Environment variable of the child process that runs the target: path of the file for the running input.
const KEPT: &str = "HEADWORKS_FUZZ_KEPT";

/// Runs the target called `name` in a child process. The calling test must have the same name. `scratch` is a
/// folder for the input of a failure.
///
/// # Panics
///
/// If the target fails. The message has the command that repeats the failure.
pub fn test(name: &str, scratch: &Path) {
    let target = crate::target(name).expect("each test has the name of its target");
    if let Some(kept) = env::var_os(KEPT) {
        let plan = plan(target, kept.into());
        let done = runner::run(target, &plan).expect("readable corpus, writable input file");
        println!(
            "{name}: {} inputs of the corpus, {} generated",
            done.corpus, done.made
        );
        assert!(done.corpus > 0, "{name} has no corpus");
        return;
    }
    let (scratch, kept) = scratch_for(name, scratch);
    let fabric = tempfile::tempdir().expect("a folder for the registry");
    let status = Command::new(env::current_exe().expect("this program's path"))
        .args([name, "--exact", "--nocapture"])
        .env(KEPT, &kept)
        .env("HEADWORKS_FABRIC", fabric.path().join("fabric"))
        .env("RUST_BACKTRACE", "1")
        .status()
        .expect("this program starts again");
    if status.success() {
        let _ = fs::remove_file(&kept);
        return;
    }
    let how = match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (_, code) => format!("exit code {}", code.unwrap_or_default()),
    };
    let again = match runner::read_kept_input(&kept) {
        Ok(input) => {
            let file = scratch.join(format!("{name}.failed"));
            fs::write(&file, &input).expect("the input is written");
            let file = file.display();
            format!(
                "the input of {} bytes is in {file}; to repeat:\n  \
                 cargo run -p headworks-fuzz -- replay {name} {file}",
                input.len()
            )
        }
        Err(error) => format!("the input is lost: {error}"),
    };
    panic!("{name} ended with {how}; {again}");
}

/// Returns the folder for a failed input, and the path of the file for the running input. The folder is
/// `scratch`, or the folder for temporary files if another user owns the build folder.
fn scratch_for(name: &str, scratch: &Path) -> (PathBuf, PathBuf) {
    let kept = scratch.join(format!("{name}.kept"));
    match fs::File::create(&kept) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let scratch = env::temp_dir();
            let kept = scratch.join(format!("{name}.{}.kept", std::process::id()));
            (scratch, kept)
        }
        _ => (scratch.to_owned(), kept),
    }
}

/// Returns the options of a run. By default they give the same inputs each time, unless the machine is so slow
/// that the time runs out. With `HEADWORKS_LONG` the run takes a minute, and `HEADWORKS_FUZZ_SEED` selects
/// other inputs.
fn plan(target: &Target, kept: PathBuf) -> RunOptions {
    let long = env::var_os("HEADWORKS_LONG").is_some();
    let seed = env::var("HEADWORKS_FUZZ_SEED").map_or(SEED, |seed| {
        let number = seed.parse();
        number.unwrap_or_else(|_| panic!("HEADWORKS_FUZZ_SEED={seed}: must be a whole number"))
    });
    let (time, inputs) = match long {
        true => (Duration::from_secs(60), u64::MAX),
        false => (Duration::from_secs(2), target.inputs),
    };
    RunOptions {
        seed,
        time,
        inputs,
        kept: Some(kept),
        grow: None,
    }
}
