//! `cargo xtask verbs-programs`: runs programs of others on the drop-in libibverbs, and keeps a table of what works.
//!
//! | module | contents |
//! |---|---|
//! | `declared` | the programs and their sets of options, as a table |
//! | `run` | runs them |
//! | `python_tests.py` | unpacks and runs the tests of pyverbs |
//! | `outputs` | reads what programs print: pure |
//! | `table` | the table as Markdown, and its comparison with the documentation: pure |
//!
//! The table is in `docs/unmodified-verbs-programs.md`, between two lines that name the command.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use declared::PROGRAMS;
use outputs::{Outcome, PythonTests};
use run::DropIn;
use table::{Row, Section};

use crate::{root, rxe};

mod declared;
mod outputs;
mod run;
mod table;

/// The document with the table.
const DOCUMENT: &str = "docs/unmodified-verbs-programs.md";
/// Time limit of the virtual machine. The tests of pyverbs take half a minute there.
const RXE_SECONDS: u32 = 600;

/// Help text of `cargo xtask verbs-programs`.
pub const USAGE: &str = "usage: cargo xtask verbs-programs [--check | --write] [PROGRAM…]
       cargo xtask verbs-programs --rxe [--write]

Runs programs of others on the drop-in libibverbs, with many sets of options, and prints a table of what works:
the tests of pyverbs, the programs of ibverbs-utils, perftest, qperf, ucx_perftest.
PROGRAM is a word that the program's row begins with; without it, all programs run. That takes some minutes.
A program that is not installed has a row that says so.

  --check  fail if a program works with fewer sets than docs/unmodified-verbs-programs.md says. Missing programs do not
           count, unless HEADWORKS_REQUIRE has the word verbs-programs
  --write  write the table into that document
  --rxe    run the tests of pyverbs also on the kernel's device rxe0 (cargo xtask rxe), and print the tests that pass
           there and not on the drop-in library

Debian's packages: ibverbs-utils perftest python3-pyverbs qperf ucx-utils
";

/// What the command is to do.
#[derive(Debug, Default, PartialEq, Eq)]
struct Args {
    check: bool,
    write: bool,
    rxe: bool,
    programs: Vec<String>,
}

impl Args {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut parsed = Self::default();
        for arg in args {
            match arg.as_str() {
                "--check" => parsed.check = true,
                "--write" => parsed.write = true,
                "--rxe" => parsed.rxe = true,
                option if option.starts_with('-') => {
                    return Err(format!("no option {option}\n{USAGE}"));
                }
                program => parsed.programs.push(program.to_owned()),
            }
        }
        let known = |word: &&String| PROGRAMS.iter().any(|row| row.title.starts_with(*word));
        if let Some(unknown) = parsed.programs.iter().find(|word| !known(word)) {
            let titles: Vec<_> = PROGRAMS.iter().map(|program| program.title).collect();
            return Err(format!(
                "no program {unknown}: there are {}",
                titles.join("; ")
            ));
        }
        if parsed.check && (parsed.write || parsed.rxe) {
            return Err("--check goes with neither --write nor --rxe".to_owned());
        }
        if !parsed.programs.is_empty() && (parsed.write || parsed.check || parsed.rxe) {
            return Err("--check, --write and --rxe run all programs: name none".to_owned());
        }
        Ok(parsed)
    }

    fn chooses(&self, title: &str) -> bool {
        self.programs.is_empty() || self.programs.iter().any(|word| title.starts_with(word))
    }
}

/// Runs the command with `args`; `false` if the table in the documentation differs.
pub fn run(args: &[String]) -> Result<bool, String> {
    let args = Args::parse(args)?;
    let build = [
        "build",
        "--locked",
        "-p",
        "headworks-cli",
        "-p",
        "headworks-libibverbs",
    ];
    let drop_in = drop_in(&build)?;
    if args.rxe {
        let compared = compare_with_rxe(&drop_in)?;
        print!("{compared}");
        if args.write {
            write(&table::RXE, &compared)?;
        }
        return Ok(true);
    }
    let rows = rows(&drop_in, &args)?;
    print!("{}", table::markdown(&rows));
    if args.write {
        write(&table::PROGRAMS, &table::markdown(&rows))?;
    }
    match args.check {
        true => {
            let missing = check(&rows)?;
            if !missing.is_empty() {
                println!("skipped: {}", install(&missing));
            }
            Ok(true)
        }
        false => Ok(true),
    }
}

/// Builds the drop-in library and `headworks` with these arguments of cargo, runs all programs, and compares the table with the
/// documentation. Returns the programs that are not installed.
pub(crate) fn build_and_check(build: &[&str]) -> Result<Vec<String>, String> {
    let rows = rows(&drop_in(build)?, &Args::default())?;
    print!("{}", table::markdown(&rows));
    check(&rows)
}

fn drop_in(build: &[&str]) -> Result<DropIn, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(build).current_dir(root()).stdin(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("cargo {}: {status}", build.join(" "))),
        Err(error) => return Err(format!("cargo: {error}")),
    }
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(DropIn {
        headworks: root().join(target).join("debug/headworks"),
    })
}

fn rows(drop_in: &DropIn, args: &Args) -> Result<Vec<Row>, String> {
    let chosen = PROGRAMS
        .iter()
        .filter(|program| args.chooses(program.title));
    let mut tell = |line: &str| println!("does not work: {line}");
    chosen
        .map(|program| {
            let began = Instant::now();
            let row = drop_in.row(program, &mut tell);
            println!("{}: {:.1} s", program.title, began.elapsed().as_secs_f64());
            row
        })
        .collect()
}

/// Compares the rows with the documentation. Returns the packages that are not installed.
fn check(rows: &[Row]) -> Result<Vec<String>, String> {
    let document = read_document()?;
    let wrong = table::differences(rows, table::PROGRAMS.of(&document)?);
    if !wrong.is_empty() {
        return Err(format!(
            "{}\nIf this is intended: cargo xtask verbs-programs --write",
            wrong.join("\n")
        ));
    }
    let mut missing: Vec<_> = rows
        .iter()
        .filter(|row| row.count.is_none())
        .map(|row| row.package.clone())
        .collect();
    missing.dedup();
    let required = env::var("HEADWORKS_REQUIRE").unwrap_or_default();
    if !missing.is_empty() && required.split(',').any(|word| word == "verbs-programs") {
        return Err(format!(
            "verbs-programs are required: {}",
            install(&missing)
        ));
    }
    Ok(missing)
}

/// Says how the missing packages are installed.
pub(crate) fn install(missing: &[String]) -> String {
    format!("missing: apt-get install {} (Debian)", missing.join(" "))
}

/// Runs the tests of pyverbs here and in the virtual machine, and describes which pass only there.
fn compare_with_rxe(drop_in: &DropIn) -> Result<String, String> {
    rxe::missing_programs()?;
    let here = drop_in.python_tests()?;
    let mut said = String::new();
    let status = rxe::run_script(&run::python_tests_on_rxe(), RXE_SECONDS, &[], |command| {
        let done = command
            .output()
            .map_err(|error| format!("timeout: {error}"))?;
        said = String::from_utf8_lossy(&done.stdout).into_owned();
        Ok(done.status)
    })?;
    let rxe = PythonTests::read(said.lines());
    match rxe.has_ended {
        true => Ok(comparison(&here, &rxe)),
        false => Err(format!(
            "the tests did not end in the machine ({status}):\n{said}"
        )),
    }
}

/// The comparison as Markdown.
fn comparison(here: &PythonTests, rxe: &PythonTests) -> String {
    let mut text =
        "| device | tests | passed | skipped | failed |\n|---|---|---|---|---|\n".to_owned();
    let devices = [
        ("the drop-in library".to_owned(), here),
        (format!("rxe of Linux {}", rxe.kernel), rxe),
    ];
    for (device, tests) in devices {
        let failed: Vec<_> = tests
            .failed()
            .map(|(name, _)| format!("`{}`", short(name)))
            .collect();
        let failed = match failed.is_empty() {
            true => "none".to_owned(),
            false => failed.join(", "),
        };
        let (all, passed, skipped) = (tests.tests.len(), tests.passed(), tests.skipped());
        let _ = writeln!(
            text,
            "| {device} | {all} | {passed} | {skipped} | {failed} |"
        );
    }
    let mut list = |here: &PythonTests, there: &PythonTests, what: &str, on: &str| {
        let tests = here.passed_only_in(there);
        let _ = writeln!(text, "\n{what}: {}.\n", tests.len());
        if !tests.is_empty() {
            let _ = writeln!(text, "| test | {on} |\n|---|---|");
        }
        for test in tests {
            let outcome = match &test.outcome {
                Outcome::Passed => "passed".to_owned(),
                Outcome::Skipped(why) => format!("skipped: {why}"),
                Outcome::Failed(why) => format!("failed: {why}"),
            };
            let _ = writeln!(
                text,
                "| `{}` | {} |",
                short(&test.name),
                outcome.replace('|', "/")
            );
        }
    };
    let only_rxe = "Tests that pass on rxe and not on the drop-in library";
    list(here, rxe, only_rxe, "on the drop-in library");
    let only_here = "Tests that pass on the drop-in library and not on rxe";
    list(rxe, here, only_here, "on rxe");
    text
}

/// The name of a test without the package.
fn short(name: &str) -> &str {
    name.strip_prefix("tests.").unwrap_or(name)
}

fn document() -> PathBuf {
    root().join(Path::new(DOCUMENT))
}

fn read_document() -> Result<String, String> {
    fs::read_to_string(document()).map_err(|error| format!("{DOCUMENT}: {error}"))
}

fn write(section: &Section, text: &str) -> Result<(), String> {
    let replaced = section.replaced(&read_document()?, text)?;
    fs::write(document(), replaced).map_err(|error| format!("{DOCUMENT}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Args, String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        Args::parse(&words)
    }

    #[test]
    fn programs_are_chosen_by_the_words_that_their_rows_begin_with() {
        let all = parse(&[]).unwrap();
        assert!(PROGRAMS.iter().all(|program| all.chooses(program.title)));
        let some = parse(&["ib_write", "qperf"]).unwrap();
        assert!(some.chooses("ib_write_lat") && some.chooses("qperf"));
        assert!(!some.chooses("ib_read_bw"));
        assert!(parse(&["frobnicate"]).unwrap_err().contains("ib_write_bw"));
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        assert!(parse(&["--rxe", "--write"]).unwrap().rxe);
        assert!(parse(&["--check", "--write"]).is_err());
        assert!(parse(&["--check", "--rxe"]).is_err());
        assert!(parse(&["--write", "qperf"]).is_err());
        assert!(parse(&["--frobnicate"]).unwrap_err().contains("--check"));
    }

    #[test]
    fn the_comparison_lists_the_tests_that_pass_only_on_one_device() {
        let tests = |text: &str| PythonTests::read(text.lines());
        let here = tests(
            "pyverbs: skipped tests.test_mr.MWTest.a: no MW\npyverbs: passed tests.test_x.X.b\n",
        );
        let rxe = tests(
            "pyverbs: kernel 6.1.0\npyverbs: passed tests.test_mr.MWTest.a\npyverbs: failed tests.test_x.X.b: broken\n",
        );
        let text = comparison(&here, &rxe);
        for line in [
            "| the drop-in library | 2 | 1 | 1 | none |",
            "| rxe of Linux 6.1.0 | 2 | 1 | 0 | `test_x.X.b` |",
            "| `test_mr.MWTest.a` | skipped: no MW |",
            "| `test_x.X.b` | failed: broken |",
        ] {
            assert!(text.lines().any(|there| there == line), "{line}:\n{text}");
        }
    }

    #[test]
    fn the_document_has_a_row_for_each_program() {
        let document = read_document().unwrap();
        let section = table::PROGRAMS.of(&document).unwrap();
        for program in PROGRAMS {
            let begins = format!("| {} | {} |", program.title, program.package);
            assert!(
                section.contains(&begins),
                "{begins}: cargo xtask verbs-programs --write"
            );
        }
        assert!(table::RXE.of(&document).unwrap().contains("rxe of Linux"));
    }
}
