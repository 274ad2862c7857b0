//! Runs a fuzz target in a build that counts edges. New inputs are mutations of those that reached new edges.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::root;

/// Flags of a compiler pass that stable rustc has too. It adds a counter per edge, all in one section.
const COUNTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
                       -Cllvm-args=-sanitizer-coverage-inline-8bit-counters";

/// Runs `headworks-fuzz run` with `args`. Without `--into`, new inputs go to the build folder.
pub fn run(args: &[String]) -> Result<bool, String> {
    let name = known(args)?;
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    };
    let into = target.join("fuzz").join(name);
    let host = host()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["run", "-p", "headworks-fuzz", "--target", &host])
        // With `--target`, cargo does not apply RUSTFLAGS to build scripts. They have no code that collects
        // the counters.
        .env("RUSTFLAGS", COUNTED)
        .env("CARGO_TARGET_DIR", target.join("counted"))
        .args(["--", "run"])
        .args(args);
    if !args.iter().any(|arg| arg == "--into") {
        command.arg("--into").arg(&into);
        println!("new inputs go to {}", into.display());
    }
    let status = command
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    Ok(status.success())
}

/// The fuzz target that is the first of `args`.
fn known(args: &[String]) -> Result<&str, String> {
    let folder = root().join("fuzz/corpus");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    // Each target has a corpus folder; a test of the fuzz crate checks that.
    let mut all = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        all.push(
            entry
                .map_err(failed)?
                .file_name()
                .to_string_lossy()
                .into_owned(),
        );
    }
    all.sort();
    match args.first() {
        Some(name) if all.contains(name) => Ok(name),
        Some(name) => Err(format!(
            "fuzz {name}: no such target; the targets are {}",
            all.join(", ")
        )),
        None => Err(format!("fuzz: name a target: {}", all.join(", "))),
    }
}

/// The target triple of this machine.
fn host() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| PathBuf::from("rustc").into());
    let said = Command::new(rustc)
        .arg("-vV")
        .output()
        .map_err(|error| format!("rustc: {error}"))?;
    let said = String::from_utf8_lossy(&said.stdout);
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| "rustc -vV printed no host".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_target_is_taken_as_one() {
        let known = |args: &[&str]| {
            let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
            known(&args).map(str::to_owned)
        };
        assert_eq!(known(&["segment", "--seconds"]), Ok("segment".to_owned()));
        for args in [
            &["--seconds", "5"][..],
            &["nothing"],
            &["../corpus"],
            &[""],
            &[],
        ] {
            let why = known(args).unwrap_err();
            assert!(
                why.contains("slot_queue, softnic_bounce") && why.lines().count() == 1,
                "{why}"
            );
        }
    }
}
