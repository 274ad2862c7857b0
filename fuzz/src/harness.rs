//! Targets as tests: each in a process of its own, so that whatever an input does there can be told.

use std::env;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::runner::{self, RunOptions};
use crate::{SEED, Target};

/// Set for the process that runs the target: where it keeps the input under way.
const KEPT: &str = "HEADWORKS_FUZZ_KEPT";

/// Runs the target of the calling test, which has its name. `scratch` is a folder for what is left
/// of a failure.
///
/// # Panics
///
/// If the target fails, with how to do it again.
pub fn test(name: &str, scratch: &Path) {
    let target = crate::target(name).expect("tests are called as their targets");
    if let Some(kept) = env::var_os(KEPT) {
        let plan = plan(target, kept.into());
        let done = runner::run(target, &plan).expect("its corpus is read, its inputs are kept");
        println!(
            "{name}: {} inputs of the corpus, {} made",
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
                "the input of {} bytes is in {file}; once more:\n  \
                 cargo run -p headworks-fuzz -- replay {name} {file}",
                input.len()
            )
        }
        Err(error) => format!("its input is lost: {error}"),
    };
    panic!("{name} ended with {how}; {again}");
}

/// The folder for what is left of a failure, and the file there for the input under way. Where the
/// build folder is another user's, that is the one for temporary files.
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

/// By default the same inputs each time, unless the machine is slow; with `HEADWORKS_LONG` set for a
/// minute, and then by `HEADWORKS_FUZZ_SEED` others each time.
fn plan(target: &Target, kept: PathBuf) -> RunOptions {
    let long = env::var_os("HEADWORKS_LONG").is_some();
    let seed = env::var("HEADWORKS_FUZZ_SEED").map_or(SEED, |seed| {
        let number = seed.parse();
        number.unwrap_or_else(|_| panic!("HEADWORKS_FUZZ_SEED={seed}: a whole number is wanted"))
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
