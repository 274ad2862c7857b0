//! Lines about failures in the output of tests. A run prints them once more at its end, because they are hard to find among
//! thousands of lines.

use std::collections::VecDeque;

/// Number of lines that are kept of either stream; of more, the last ones.
const KEPT: usize = 200;
/// Number of last lines that are kept of a test program that ends without a result.
const LAST: usize = 20;

/// The parts of the test harness's output that are about tests that failed, and about test programs that ended
/// in the middle.
#[derive(Debug, Default)]
pub(super) struct Failures {
    kept: Lines,
    /// Whether the last line read belongs to a list of failures.
    inside: bool,
    /// Last lines of the test program that runs, if one does.
    running: Option<Lines>,
    /// The same of test programs of this command that printed no result. Some are processes that a test started and killed, so
    /// they are kept only if the command failed.
    unfinished: Lines,
}

impl Failures {
    /// Reads one line of standard output.
    pub(super) fn read(&mut self, line: &str) {
        if line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test")) {
            self.program_ended_early();
            self.running = Some(Lines::default());
        }
        match line {
            "failures:" => self.inside = true,
            _ if line.starts_with("test result:") => {
                self.inside = false;
                self.running = None;
            }
            // A job in the virtual machine.
            _ if line.starts_with("rxe: ") && line.contains(": FAILED") => {
                self.kept.push(line, KEPT);
            }
            _ if self.inside && !line.is_empty() => self.kept.push(line, KEPT),
            _ => {}
        }
        if let Some(lines) = &mut self.running {
            lines.push(line, LAST);
        }
    }

    /// Takes over what the standard error stream of the same command said, after the command ended.
    pub(super) fn append(&mut self, errors: Errors) {
        self.program_ended_early();
        self.inside = false;
        if !errors.kept.0.is_empty() {
            self.keep_unfinished();
        }
        for line in errors.kept.0 {
            self.kept.push(&line, 2 * KEPT);
        }
    }

    /// Forgets the test programs without a result, before the next command.
    pub(super) fn command_begins(&mut self) {
        self.unfinished = Lines::default();
    }

    /// Keeps the last lines of the test programs without a result, because the command that ran them failed.
    pub(super) fn keep_unfinished(&mut self) {
        for line in std::mem::take(&mut self.unfinished).0 {
            self.kept.push(&line, 2 * KEPT);
        }
    }

    fn program_ended_early(&mut self) {
        let Some(lines) = self.running.take() else {
            return;
        };
        self.unfinished.push(
            "a test program ended without a result; its last lines:",
            KEPT,
        );
        for line in lines.0 {
            self.unfinished.push(&line, KEPT);
        }
    }

    /// The lines kept, in order.
    pub(super) fn lines(&self) -> impl Iterator<Item = &String> {
        self.kept.0.iter()
    }
}

/// Lines of cargo's standard error stream about targets that failed: their names, and how each ended.
#[derive(Debug, Default)]
pub(super) struct Errors {
    kept: Lines,
    /// Whether the last line read belongs to an error of cargo's.
    inside: bool,
}

impl Errors {
    /// Reads one line of standard error.
    pub(super) fn read(&mut self, line: &str) {
        self.inside = match line {
            _ if line.starts_with("error: ") => true,
            _ => {
                let goes_on = line.starts_with("  ") && !line.starts_with("   ");
                let goes_on = goes_on || line.starts_with("    `");
                self.inside && (goes_on || line.is_empty() || line == "Caused by:")
            }
        };
        if self.inside && !line.is_empty() {
            self.kept.push(line, KEPT);
        }
    }
}

/// The last lines of a text.
#[derive(Debug, Default)]
struct Lines(VecDeque<String>);

impl Lines {
    fn push(&mut self, line: &str, most: usize) {
        self.0.push_back(line.to_owned());
        if self.0.len() > most {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(output: &[&str], errors: &[&str]) -> Vec<String> {
        let (mut failures, mut reader) = (Failures::default(), Errors::default());
        for line in output {
            failures.read(line);
        }
        for line in errors {
            reader.read(line);
        }
        failures.append(reader);
        failures.lines().cloned().collect()
    }

    #[test]
    fn what_failed_is_kept_and_nothing_else() {
        let output = [
            "running 2 tests",
            "test a ... FAILED",
            "failures:",
            "",
            "---- a stdout ----",
            "panicked at x",
            "failures:",
            "    a",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored",
            "test b ... ok",
        ];
        assert_eq!(
            kept(&output, &[]),
            ["---- a stdout ----", "panicked at x", "    a"]
        );
    }

    #[test]
    fn a_process_that_a_test_killed_is_no_failure() {
        let output = ["running 1 test", "running 1 test", "test result: ok."];
        assert!(kept(&output, &["     Running tests/c.rs (target/c)"]).is_empty());
    }

    #[test]
    fn a_program_that_ends_in_the_middle_is_named() {
        let output = [
            "running 1 test",
            "test a ... ok",
            "test result: ok. 1 passed; 0 failed; 0 ignored",
            "running 2 tests",
            "test b ... ok",
        ];
        let errors = [
            "     Running tests/b.rs (target/b)",
            "error: test failed, to rerun pass `-p x --test b`",
            "",
            "Caused by:",
            "  process didn't exit successfully: `target/b` (signal: 11, SIGSEGV)",
            "     Running tests/c.rs (target/c)",
        ];
        assert_eq!(
            kept(&output, &errors),
            [
                "a test program ended without a result; its last lines:",
                "running 2 tests",
                "test b ... ok",
                errors[1],
                errors[3],
                errors[4],
            ]
        );
    }
}
