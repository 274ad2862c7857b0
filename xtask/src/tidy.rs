//! Rules about source text that the compiler does not check. Each finding says what to do.

use std::fs;
use std::io;
use std::path::Path;

mod prose;

/// Largest number of lines of a source file.
const LINES_MAX: usize = 800;

/// Where unsafe code is allowed, apart from tests: files, or folders with a slash at the end. All other code
/// is safe Rust, so that a memory error can come from few places.
const UNSAFE: &[&str] = &[
    "crates/capi/src/exports.rs",
    "crates/capi/src/raw.rs",
    "crates/headworks/src/service/shared_memory.rs",
    "crates/verbs/src/memory_region.rs",
    "crates/shm/",
    "crates/softnic/src/table/arena.rs",
    "crates/softnic/src/datapath/copy.rs",
    "crates/softnic/src/datapath/cq.rs",
    "crates/softnic/src/datapath/cross_process_copy.rs",
    "crates/softnic/src/control/buffer.rs",
    "crates/softnic/src/table/peer.rs",
    "crates/softnic/src/datapath/srq.rs",
    "crates/softnic/src/table/rows.rs",
    "crates/softnic/src/datapath/mr_key_check.rs",
    "crates/softnic/src/datapath/bounce.rs",
    "crates/simnic/src/registered_memory.rs",
    "crates/verbs-abi/src/device.rs",
    "crates/verbs-abi/src/extended.rs",
    "crates/libibverbs/src/calls/",
    "crates/libibverbs/src/objects.rs",
    "crates/libibverbs/src/registration.rs",
    "crates/libibverbs/src/shared_memory.rs",
    "crates/libibverbs/src/symbols.rs",
    "crates/libibverbs/src/system.rs",
    "crates/ibverbs/src/post_chain.rs",
    "crates/ibverbs/src/cm/abi.rs",
    "crates/ibverbs/src/cm/raw.rs",
    "crates/ibverbs/src/library.rs",
    "crates/ibverbs/src/buffer.rs",
    "crates/ibverbs/src/poll.rs",
    "crates/ibverbs/src/raw.rs",
    "crates/ibverbs/src/raw/",
    "crates/net/src/qp_stream/region_copy.rs",
    "crates/net/src/signals.rs",
    "crates/net/src/standard_streams.rs",
    "crates/ring/src/model.rs",
    "crates/ring/src/slot_array.rs",
    "crates/baselines/src/bare.rs",
    "crates/baselines/src/kernel.rs",
    "crates/baselines/src/word_memory.rs",
    "crates/headworks/src/asynchronous/waiter.rs",
    "crates/conformance/src/buffer_access.rs",
    "fuzz/src/coverage.rs",
    "fuzz/src/targets/slot_queue.rs",
    "fuzz/src/targets/softnic_peer/guarded_buffer.rs",
];

/// Code that takes the time as an argument and reads no clock.
const CLOCKLESS: &[&str] = &[
    "crates/verbs/src/",
    "crates/ring/src/",
    "crates/client/src/",
    "crates/daemon/src/",
    "crates/baselines/src/",
];

/// Folders and files that are not checked.
const SKIPPED: &[&str] = &["target", "results", ".git"];

/// A rule broken in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its path below the root.
    pub file: String,
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
    /// Description of the fault, and the remedy.
    pub what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// All broken rules below `root`.
pub fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    visit(root, root, &mut findings)?;
    Ok(findings)
}

fn visit(root: &Path, folder: &Path, findings: &mut Vec<Finding>) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        // Applies to files as well: `.git` is a file in a second working tree.
        if SKIPPED.contains(&&*name) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            visit(root, &path, findings)?;
            continue;
        }
        let Ok(below) = path.strip_prefix(root) else {
            continue;
        };
        // A file that is not UTF-8 text is not checked.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        check_file(&below.to_string_lossy(), &text, findings);
    }
    Ok(())
}

/// Checks one file, whose path below the root is `file`.
fn check_file(file: &str, text: &str, findings: &mut Vec<Finding>) {
    let mut find = |line: usize, what: String| {
        let file = file.to_owned();
        findings.push(Finding { file, line, what });
    };
    prose::check(file, text, &mut find);
    if let Some((line, folder)) = absolute_path(text) {
        find(
            line,
            format!("{folder}… is an absolute path of one machine: use a relative path"),
        );
    }
    if file.ends_with(".toml") {
        for (at, line) in text.lines().enumerate() {
            let key = line.trim_start();
            if key.starts_with("[source.") || key.starts_with("replace-with") {
                let why = "package sources are configured on each machine, not in the repository";
                find(at + 1, why.to_owned());
            }
        }
    }
    if file == "Cargo.lock" {
        for (at, line) in text.lines().enumerate() {
            let elsewhere = line.starts_with("source = ")
                && !line.starts_with("source = \"registry+https://github.com/rust-lang/");
            if elsewhere {
                find(
                    at + 1,
                    "the package does not come from crates.io".to_owned(),
                );
            }
        }
    }
    if !file.ends_with(".rs") {
        return;
    }
    // In tests/ a `mod.rs` is needed, because cargo would build `common.rs` as a test of its own.
    if file.ends_with("/mod.rs") && !file.contains("/tests/") {
        find(0, "no mod.rs: use foo.rs beside foo/".to_owned());
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        let what = format!("{lines} lines: at most {LINES_MAX} are allowed, split the file");
        find(0, what);
    }
    let is_test = file.contains("/tests/") || file.ends_with("tests.rs");
    let may_be_unsafe = is_test || is_in(file, UNSAFE);
    for (at, line) in text.lines().enumerate() {
        let code = code_of(line);
        if !may_be_unsafe && has_word(&code, "unsafe") {
            find(
                at + 1,
                "unsafe code outside the files named in xtask/src/tidy.rs".to_owned(),
            );
        }
        let asks = ["Instant::now(", "SystemTime::now("];
        if !is_test && is_in(file, CLOCKLESS) && asks.iter().any(|ask| code.contains(ask)) {
            find(
                at + 1,
                "no clock may be read here: take the time as an argument".to_owned(),
            );
        }
        if is_test && code.contains("thread::sleep(") {
            find(
                at + 1,
                "tests must not sleep: wait for the event".to_owned(),
            );
        }
    }
}

fn is_in(file: &str, places: &[&str]) -> bool {
    places
        .iter()
        .any(|place| file == *place || place.ends_with('/') && file.starts_with(place))
}

/// The line without string literals and comments, approximately.
fn code_of(line: &str) -> String {
    let unquoted: String = line.split('"').step_by(2).collect();
    let code = unquoted.split("//").next().unwrap_or_default();
    code.to_owned()
}

fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|token| token == word)
}

/// The first absolute path to a personal folder: its line, and the folder.
fn absolute_path(text: &str) -> Option<(usize, &'static str)> {
    const FOLDERS: [&str; 3] = [
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
    ];
    text.lines().enumerate().find_map(|(at, line)| {
        let folder = FOLDERS.iter().find(|folder| {
            line.match_indices(*folder).any(|(start, _)| {
                // A match after a path character is the middle of a relative path.
                !line[..start].ends_with(|c: char| c.is_alphanumeric() || "._-/~…".contains(c))
            })
        })?;
        Some((at + 1, *folder))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check_file(file, text, &mut findings);
        findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn unsafe_code_stays_in_its_files() {
        let code = "fn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(found("crates/ring/src/sender.rs", code).len(), 1);
        assert_eq!(found("crates/ring/src/slot_array.rs", code).len(), 0);
        assert_eq!(found("crates/shm/src/slot_queue/claims.rs", code).len(), 0);
        let words = "#![deny(unsafe_code)] // unsafe is not here\n";
        assert_eq!(found("crates/ring/src/sender.rs", words).len(), 0);
    }

    #[test]
    fn long_files_clocks_sleeps_and_machine_paths_are_found() {
        let long = "\n".repeat(LINES_MAX + 1);
        assert_eq!(found("crates/cli/src/main.rs", &long).len(), 1);
        let clock = "let now = Instant::now();";
        assert_eq!(found("crates/ring/src/window.rs", clock).len(), 1);
        assert_eq!(found("crates/cli/src/main.rs", clock).len(), 0);
        let sleep = "std::thread::sleep(second);";
        assert_eq!(found("crates/ring/tests/oracle.rs", sleep).len(), 1);
        let path = concat!("see /ho", "me/me/x");
        assert_eq!(found("README.md", path).len(), 1);
        let relative = concat!("target/wo", "rk/x and ~/ho", "me/x");
        assert_eq!(found("README.md", relative).len(), 0);
    }

    #[test]
    fn package_sources_are_not_replaced() {
        let replaced = "[source.mirror]\n";
        assert_eq!(found(".cargo/config.toml", replaced).len(), 1);
        let other = "source = \"git+https://example.org/x\"\n";
        assert_eq!(found("Cargo.lock", other).len(), 1);
    }
}
