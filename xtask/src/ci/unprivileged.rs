//! Runs the test programs that the step `tests` built once more, as the unprivileged user nobody.
//!
//! Root is refused almost nothing, so a root run does not find code that works only for root. Only the
//! packages that ask the operating system for something are run ([`ASKING`]), because the others build on
//! those. Of these packages, tests that ask for nothing of their own are left out ([`ALIKE`]). Doc tests are
//! not run, because cargo keeps no programs of them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::{Ended, Run, show, summary};

/// The user id of nobody and the group id of nogroup.
const NOBODY: u32 = 65534;
/// Command that runs a program as nobody.
const AS_NOBODY: [&str; 5] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
];
/// Words of `HEADWORKS_REQUIRE` that need root; they are not required of nobody.
const ROOTS: [&str; 3] = ["tmpfs", "other-user", "unprivileged"];

/// Folders of the packages that ask the operating system for something it may refuse: memory, files of other
/// processes, devices, sockets.
const ASKING: [&str; 9] = [
    "shm",
    "net",
    "runtime",
    "softnic",
    "ibverbs",
    "conformance",
    "headworks",
    "cli",
    "examples",
];

/// Tests of those packages that another user cannot make end otherwise: the folder of the package, the test
/// program, and the part of the names of the tests (all tests of the program if it is empty). They run in
/// virtual time, or they repeat what other tests of the same program ask the operating system for, with other
/// requests, seeds or moments.
const ALIKE: &[(&str, &str, &str)] = &[
    ("conformance", "differential", ""),
    ("conformance", "doc_tables", ""),
    ("conformance", "paced", ""),
    ("conformance", "sim", ""),
    ("conformance", "soft", "between_hostile_"),
    ("cli", "command", "demo::ctrl_c_in_each_measurement"),
    ("cli", "command", "experiment_reproducibility::"),
];

/// Arguments of `cargo` that build the programs of the step `tests`.
pub(super) const SUITE: [&str; 4] = ["test", "--workspace", "--all-features", "--locked"];

/// A test program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Suite {
    pub(super) program: PathBuf,
    /// The folder that cargo would run it in: that of its package.
    pub(super) folder: PathBuf,
}

impl Suite {
    /// Whether it is the program `program` of the package in `folder`.
    pub(super) fn is(&self, folder: &str, program: &str) -> bool {
        let name = self.program.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let of_package = self.folder.file_name().unwrap_or_default() == folder;
        // Cargo appends a hash to the program's name.
        of_package
            && name
                .rsplit_once('-')
                .is_some_and(|(stem, _)| stem == program)
    }
}

/// Runs the step.
pub(super) fn run(run: &mut Run) -> Result<Ended, String> {
    if !is_root()? {
        let why = "not root: the step `tests` ran unprivileged already";
        return Ok(Ended::Skipped(why.to_owned()));
    }
    let mut suites = suites(run)?;
    suites.retain(|suite| {
        let name = suite.folder.file_name().unwrap_or_default();
        ASKING.iter().any(|asking| name == *asking)
    });
    let temporary = std::env::temp_dir();
    let places = suites.iter().map(|suite| &suite.program);
    if let Err(why) = places.chain([&temporary]).try_for_each(reaches) {
        return skipped(why);
    }
    let home = Home::new(&temporary)?;
    let required = required_of_nobody(&std::env::var("HEADWORKS_REQUIRE").unwrap_or_default());
    // Set the results aside, so that the summary of the whole run counts no test twice.
    let counted = std::mem::take(&mut run.suites);
    let mut failed = Vec::new();
    for suite in &suites {
        let Some(skips) = skips(suite) else {
            continue;
        };
        let mut command = as_nobody(&suite.program);
        command
            .args(skips)
            .current_dir(&suite.folder)
            .env("CARGO_MANIFEST_DIR", &suite.folder)
            .env("HOME", home.0.join("home"))
            .env("TMPDIR", home.0.join("tmp"))
            .env("HEADWORKS_REQUIRE", &required)
            .env_remove("HEADWORKS_FABRIC")
            .env_remove("XDG_RUNTIME_DIR");
        if let Err(how) = run.pass_on(&mut command) {
            failed.push(how);
        }
        if let Err(why) = home.is_clean() {
            failed.push(format!("{} {why}", suite.program.display()));
        }
    }
    let told = std::mem::replace(&mut run.suites, counted);
    println!("as nobody: {}", summary(&told));
    if !failed.is_empty() {
        return Err(format!("as nobody: {}", failed.join(", ")));
    }
    Ok(Ended::Passed)
}

/// The arguments that leave out the tests in [`ALIKE`], or `None` if they are all of the program's.
fn skips(suite: &Suite) -> Option<Vec<&'static str>> {
    let mut args = Vec::new();
    for (folder, program, tests) in ALIKE {
        if suite.is(folder, program) {
            match tests.is_empty() {
                true => return None,
                false => args.extend(["--skip", tests]),
            }
        }
    }
    Some(args)
}

/// Whether this process runs as root.
fn is_root() -> Result<bool, String> {
    let us = fs::metadata("/proc/self").map_err(|error| format!("/proc/self: {error}"))?;
    Ok(us.uid() == 0)
}

/// Skips the step because of `why`, or fails if `HEADWORKS_REQUIRE` demands the step.
fn skipped(why: String) -> Result<Ended, String> {
    let required = std::env::var("HEADWORKS_REQUIRE").unwrap_or_default();
    match required.split(',').any(|word| word == "unprivileged") {
        true => Err(format!("unprivileged is required: {why}")),
        false => Ok(Ended::Skipped(why)),
    }
}

fn as_nobody(program: &Path) -> Command {
    let [setpriv, args @ ..] = AS_NOBODY;
    let mut command = Command::new(setpriv);
    command.args(args).arg(program).stdin(Stdio::null());
    command
}

/// Checks that nobody can execute and read `program`. The kernel shows what it knows of a process to root
/// only, if its program can be executed but not read.
fn reaches(program: &PathBuf) -> Result<(), String> {
    for may in ["-x", "-r"] {
        let tried = as_nobody(Path::new("test")).arg(may).arg(program).status();
        match tried {
            Ok(status) if status.success() => {}
            Ok(_) => {
                return Err(format!(
                    "the user nobody cannot reach {}",
                    program.display()
                ));
            }
            Err(error) => return Err(format!("setpriv: {error}")),
        }
    }
    Ok(())
}

/// The words of `HEADWORKS_REQUIRE` without those that need root.
fn required_of_nobody(required: &str) -> String {
    let words = required.split(',').filter(|word| !ROOTS.contains(word));
    words.collect::<Vec<_>>().join(",")
}

/// Builds the test programs, unless the step `tests` has built them already, and lists them.
pub(super) fn suites(run: &Run) -> Result<Vec<Suite>, String> {
    let mut command = run.cargo(&SUITE);
    command.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let shown = show(&command);
    println!("$ {shown}");
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{shown}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{shown}: {}", output.status));
    }
    let suites = suites_in(&String::from_utf8_lossy(&output.stdout));
    match suites.is_empty() {
        true => Err(format!("{shown} names no program")),
        false => Ok(suites),
    }
}

/// The test programs in cargo's messages, one message per line.
fn suites_in(messages: &str) -> Vec<Suite> {
    #[derive(Deserialize)]
    struct Message {
        executable: Option<PathBuf>,
        manifest_path: Option<PathBuf>,
        profile: Option<Profile>,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok());
    messages
        .filter(|message| message.profile.as_ref().is_some_and(|profile| profile.test))
        .filter_map(|message| {
            Some(Suite {
                program: message.executable?,
                folder: message.manifest_path?.parent()?.to_owned(),
            })
        })
        .collect()
}

/// Temporary folders owned by nobody. Dropping the value removes them.
struct Home(PathBuf);

impl Home {
    fn new(below: &Path) -> Result<Self, String> {
        let home = Self(below.join(format!("headworks-nobody.{}", std::process::id())));
        let made = || -> std::io::Result<()> {
            fs::create_dir(&home.0)?;
            fs::set_permissions(&home.0, fs::Permissions::from_mode(0o755))?;
            for name in ["home", "tmp"] {
                let folder = home.0.join(name);
                fs::create_dir(&folder)?;
                chown(&folder, Some(NOBODY), Some(NOBODY))?;
                fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
            }
            Ok(())
        };
        let done = made();
        done.map_err(|error| format!("{}: {error}", home.0.display()))?;
        Ok(home)
    }

    /// Checks that a test program left no files behind. Removes those it finds, so that no other program is
    /// blamed for them.
    fn is_clean(&self) -> Result<(), String> {
        let mut left = Vec::<PathBuf>::new();
        for name in ["home", "tmp"] {
            let entries = fs::read_dir(self.0.join(name)).into_iter().flatten();
            for path in entries.flatten().map(|entry| entry.path()) {
                let inside = fs::read_dir(&path).into_iter().flatten();
                left.extend(inside.flatten().map(|entry| entry.path()));
                let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
                left.push(path);
            }
        }
        match left.is_empty() {
            true => Ok(()),
            false => Err(format!("left behind {left:?}")),
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_among_cargos_messages() {
        let messages = r#"
            {"reason":"compiler-artifact","executable":"/t/deps/a-1","manifest_path":"/r/a/Cargo.toml","profile":{"test":true}}
            {"reason":"compiler-artifact","executable":"/t/a","manifest_path":"/r/a/Cargo.toml","profile":{"test":false}}
            {"reason":"compiler-artifact","executable":null,"manifest_path":"/r/a/Cargo.toml","profile":{"test":true}}
            {"reason":"build-finished","success":true}
            something else"#;
        let suite = Suite {
            program: "/t/deps/a-1".into(),
            folder: "/r/a".into(),
        };
        assert_eq!(suites_in(messages), [suite]);
    }

    #[test]
    fn tests_that_another_user_cannot_change_are_left_out() {
        let suite = |program: &str, folder: &str| Suite {
            program: format!("/t/debug/deps/{program}-1").into(),
            folder: format!("/r/crates/{folder}").into(),
        };
        assert_eq!(skips(&suite("sim", "conformance")), None);
        assert_eq!(
            skips(&suite("soft", "conformance")),
            Some(vec!["--skip", "between_hostile_"])
        );
        assert_eq!(skips(&suite("command", "fuzz")), Some(Vec::new()));
    }

    /// A test that was renamed would run again, or another one would be left out.
    #[test]
    fn what_is_left_out_exists() {
        for (folder, program, tests) in ALIKE {
            let crates = crate::root().join("crates").join(folder).join("tests");
            let (module, test) = tests.rsplit_once("::").unwrap_or(("", tests));
            let file = match module {
                "" => crates.join(format!("{program}.rs")),
                module => crates.join(program).join(format!("{module}.rs")),
            };
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.contains(&format!("fn {test}")), "{folder}: {tests}");
        }
    }

    #[test]
    fn root_only_requirements_are_dropped_when_unprivileged() {
        assert_eq!(required_of_nobody("tmpfs,ucx,other-user"), "ucx");
        assert_eq!(required_of_nobody(""), "");
    }
}
