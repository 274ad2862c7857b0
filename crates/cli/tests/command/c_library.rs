//! The C library, used by C and C++ programs: the tests in `crates/capi/tests`, and the examples.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use rustix::process::Signal;

use crate::daemon::{Daemons, DataPath, locked};
use crate::test_env::{CommandProcess, until};

/// The strictest flags of C and C++ compilers.
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// A compiler, and the version of the language that it compiles.
#[derive(Clone, Copy)]
struct Compiler {
    program: &'static str,
    standard: &'static str,
}

const C: Compiler = Compiler {
    program: "cc",
    standard: "-std=c11",
};

/// `headworks.hpp` needs this version of C++.
const CPP: Compiler = Compiler {
    program: "c++",
    standard: "-std=c++17",
};

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi")
}

/// Whether `program` is installed. If not, prints that the test is skipped; fails if `HEADWORKS_REQUIRE`
/// names it.
pub(crate) fn there_is(program: &str) -> bool {
    let mut asked = Command::new(program);
    asked.arg("--version").stdout(Stdio::null());
    let Err(error) = asked.status() else {
        return true;
    };
    println!("skipped: {program}: {error}");
    let required = std::env::var("HEADWORKS_REQUIRE").unwrap_or_default();
    let required = required.split(',').any(|word| word == program);
    assert!(!required, "{program} is required: {error}");
    false
}

/// Returns the directory of the library, or `None` if it cannot be built.
fn library() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| built_library("headworks-capi", "libheadworks.so"));
    built.as_deref()
}

/// Returns the directory of the library `file` of a package, which is at least as recent as this test's `headworks`. Cargo builds
/// a `cdylib` for no other package, because none can depend on it. So the test has cargo build it here, with
/// the same target directory and profile.
pub(crate) fn built_library(package: &str, file: &str) -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_headworks"));
    let folder = program.parent().expect("a profile's folder");
    let target = folder.parent().expect("the target folder");
    let profile = folder.file_name().and_then(OsStr::to_str);
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--offline", "-p", package])
        .arg("--target-dir")
        .arg(target)
        .arg("--profile")
        .arg(match profile {
            Some("debug") | None => "dev",
            Some(other) => other,
        })
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    match build.output() {
        Ok(built) if built.status.success() => Some(folder.to_owned()),
        // With only the built tests, or a directory that cannot be written, the library built before is
        // used.
        failed if folder.join(file).exists() => {
            println!("the library is not built anew: {failed:?}");
            Some(folder.to_owned())
        }
        failed => {
            println!("skipped: the library cannot be built: {failed:?}");
            let required = std::env::var("HEADWORKS_REQUIRE").unwrap_or_default();
            let required = required.split(',').any(|word| word == "cargo");
            assert!(!required, "cargo is required: {failed:?}");
            None
        }
    }
}

/// Returns the standard output of a program that must have succeeded.
fn good(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// A directory for programs, with the library under the name that they load it by.
struct Programs {
    folder: tempfile::TempDir,
    library: &'static Path,
    compiler: Compiler,
}

impl Programs {
    /// Returns `None` without the compiler or the library.
    fn new(compiler: Compiler) -> Option<Self> {
        let library = there_is(compiler.program).then(library)??;
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("libheadworks.so.0");
        std::os::unix::fs::symlink(library.join("libheadworks.so"), link).expect("links");
        Some(Self {
            folder,
            library,
            compiler,
        })
    }

    /// Compiles `source`, a path relative to [`sources`].
    fn compile(&self, source: &str) -> PathBuf {
        let name = source.replace(['/', '.'], "-");
        let program = self.folder.path().join(name);
        let compiled = Command::new(self.compiler.program)
            .arg(self.compiler.standard)
            .args(STRICT)
            .arg("-I")
            .arg(sources().join("include"))
            .arg("-o")
            .arg(&program)
            .arg(sources().join(source))
            .arg("-L")
            .arg(self.library)
            .args(["-lheadworks", "-pthread"])
            .output();
        good(compiled.expect("starts"));
        program
    }

    /// Returns a command for a program, which finds the library.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.folder.path())
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        command
    }
}

/// Runs the C test `name` between two daemons that carry all bytes, and between two that make direct connections. The test
/// has its own time limit.
fn passes(name: &str) {
    for path in DataPath::BOTH {
        passes_while(name, path, |_, _| {});
    }
}

/// Does what [`passes`] does, with a test in C++.
fn passes_in_cpp(name: &str) {
    for path in DataPath::BOTH {
        passes_between(CPP, &format!("{name}.cpp"), path, |_, _| {});
    }
}

/// Does what [`passes`] does on one path, while `does` acts on the daemons and on the program's standard input and output.
fn passes_while(name: &str, path: DataPath, does: impl FnOnce(&mut Daemons, &mut Child)) {
    passes_between(C, &format!("{name}.c"), path, does);
}

fn passes_between(
    compiler: Compiler,
    source: &str,
    path: DataPath,
    does: impl FnOnce(&mut Daemons, &mut Child),
) {
    let Some(programs) = Programs::new(compiler) else {
        return;
    };
    let program = programs.compile(&format!("tests/{source}"));
    let _one = locked();
    let mut daemons = Daemons::start_on(path);
    let is_direct = match path {
        DataPath::Daemons => "0",
        DataPath::Direct => "1",
    };
    let mut test = CommandProcess::start(
        programs
            .command(&program)
            .env("HW_ONE", daemons.socket(0))
            .env("HW_OTHER", daemons.socket(1))
            .env("HW_DIRECT", is_direct)
            .env("HW_VERSION", env!("CARGO_PKG_VERSION"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    does(&mut daemons, &mut test.0);
    let ended = test.wait();
    let complaint = test.stderr_line();
    assert!(ended.success(), "{source}: {ended}: {complaint}");
    daemons.end();
}

#[test]
fn messages_sent_from_c_are_echoed_whole() {
    passes("echo");
}

#[test]
fn streams_end_for_c_as_they_do_elsewhere() {
    passes("ends");
}

#[test]
fn c_waits_no_longer_than_it_says() {
    passes("waits");
}

#[test]
fn misuse_from_c_fails_with_the_documented_errno() {
    passes("wrong");
}

#[test]
fn c_sends_and_receives_without_copies() {
    passes("zero_copy");
}

#[test]
fn c_uses_memory_of_the_other_ends() {
    passes("remote");
}

#[test]
fn children_of_c_disturb_nothing() {
    passes("forks");
}

#[test]
fn c_sends_messages_to_many() {
    passes("messages");
}

#[test]
fn threads_of_c_share_descriptors() {
    passes("threads");
}

#[test]
fn pollers_of_c_report_what_is_ready() {
    passes("poller");
}

#[test]
fn programs_written_for_sockets_find_what_they_rely_on() {
    passes("as_sockets");
}

#[test]
fn c_is_attached_once_and_again_to_a_daemon_that_came_back() {
    for path in DataPath::BOTH {
        passes_while("attach", path, |daemons, program| {
            let mut said = [0];
            let stdout = program.stdout.as_mut().expect("piped");
            if stdout.read_exact(&mut said).is_err() {
                // The program reports on standard error what went wrong.
                return;
            }
            for (host, signal) in [Signal::KILL, Signal::TERM].into_iter().enumerate() {
                daemons.sides[host].signal(signal);
                daemons.sides[host].wait();
                daemons.sides[host] = daemons.daemon(host);
            }
            let stdin = program.stdin.as_mut().expect("piped");
            stdin.write_all(b"1").expect("it waits for that");
        });
    }
}

#[test]
fn objects_of_cpp_own_what_they_stand_for() {
    passes_in_cpp("wrapper");
}

#[test]
fn every_test_in_c_and_cpp_is_run() {
    let text = include_str!("c_library.rs");
    for entry in std::fs::read_dir(sources().join("tests")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let runs: &[&str] = match path.extension().and_then(OsStr::to_str) {
            Some("c") => &["passes(", "passes_while("],
            Some("cpp") => &["passes_in_cpp("],
            _ => continue,
        };
        let name = path.file_stem().and_then(OsStr::to_str).expect("a name");
        let is_run = |runs: &&str| text.contains(&format!("{runs}\"{name}\""));
        assert!(runs.iter().any(is_run), "{}", path.display());
    }
}

#[test]
fn the_example_in_c_echoes() {
    let complaint = "echo: connecting: connection refused\n";
    example_echoes(C, "examples/echo.c", complaint);
}

#[test]
fn the_example_in_cpp_echoes() {
    let complaint = "echo: hw_connect: connection refused: Connection refused\n";
    example_echoes(CPP, "examples/echo.cpp", complaint);
}

/// An example serves and asks. With no server at the port, it prints `complaint`.
fn example_echoes(compiler: Compiler, source: &str, complaint: &str) {
    let Some(programs) = Programs::new(compiler) else {
        return;
    };
    let program = programs.compile(source);
    let _one = locked();
    let daemons = Daemons::start();
    let said = programs.folder.path().join("said");
    let file = std::fs::File::create(&said).expect("creates");
    let server = programs
        .command(&program)
        .arg("7000")
        .env("HEADWORKS_DAEMON", daemons.socket(1))
        .stdout(file)
        .spawn();
    let server = CommandProcess(server.expect("starts"));
    until("the server", || {
        std::fs::read_to_string(&said).is_ok_and(|text| text == "serving\n")
    });
    let ask = |port: &str| {
        let mut command = programs.command(&program);
        command
            .args(["127.0.0.2", port, "over the weir"])
            .env("HEADWORKS_DAEMON", daemons.socket(0));
        command.output().expect("starts")
    };
    assert_eq!(good(ask("7000")), "over the weir");
    let refused = ask("7001");
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&refused.stderr), complaint);
    drop(server);
    daemons.end();
}

#[test]
fn the_example_with_a_poller_echoes_for_many() {
    let Some(programs) = Programs::new(C) else {
        return;
    };
    let server = programs.compile("examples/echo_poller.c");
    let client = programs.compile("examples/echo.c");
    let _one = locked();
    for path in DataPath::BOTH {
        let daemons = Daemons::start_on(path);
        let said = programs.folder.path().join("said");
        let file = std::fs::File::create(&said).expect("creates");
        let serves = programs
            .command(&server)
            .arg("7000")
            .env("HEADWORKS_DAEMON", daemons.socket(1))
            .stdout(file)
            .spawn();
        let serves = CommandProcess(serves.expect("starts"));
        until("the server", || {
            std::fs::read_to_string(&said).is_ok_and(|text| text == "serving\n")
        });
        let asks = |number: usize| {
            let mut command = programs.command(&client);
            command
                .args(["127.0.0.2", "7000", &format!("over the weir {number}")])
                .env("HEADWORKS_DAEMON", daemons.socket(0))
                .stdout(Stdio::piped());
            command.spawn().expect("starts")
        };
        // All are asked at the same time.
        let asked: Vec<Child> = (0..20).map(asks).collect();
        for (number, child) in asked.into_iter().enumerate() {
            let output = child.wait_with_output().expect("it ends");
            assert_eq!(good(output), format!("over the weir {number}"));
        }
        drop(serves);
        daemons.end();
    }
}

#[test]
fn the_guide_shows_tested_code_and_every_errno() {
    let guide = include_str!("../../../../docs/c.md");
    let c = include_str!("../../../capi/examples/echo.c");
    let cpp = include_str!("../../../capi/examples/echo.cpp");
    for (language, example) in [("c", c), ("cpp", cpp)] {
        let begin = format!("```{language}\n");
        let shown = guide.split(&begin).nth(1).expect("an example");
        let shown = shown.split("```").next().expect("its end");
        assert!(example.contains(shown), "not in echo.{language}:\n{shown}");
    }
    let errors = include_str!("../../../capi/src/error.rs");
    let code = errors.split("#[cfg(test)]").next().expect("code");
    for rest in code.split("c::E").skip(1) {
        let end = rest.find(|letter: char| !letter.is_ascii_uppercase());
        let name = format!("`E{}`", &rest[..end.unwrap_or(rest.len())]);
        // These are passed on under another name, or mean the same as another one.
        let is_inner = ["`EINTR`", "`ENFILE`"].contains(&&*name);
        assert!(is_inner || guide.contains(&name), "{name}");
    }
}

#[test]
fn the_c_library_exports_only_declared_symbols() {
    let Some(programs) = Programs::new(C) else {
        return;
    };
    let header = std::fs::read_to_string(sources().join("include/headworks.h")).expect("reads");
    let code = header.split("*/").map(|part| part.split("/*").next());
    let code: String = code.flatten().collect();
    // Names of types are no symbols.
    let code = code.replace("struct hw_", "struct ");
    let name = |word: &str| word.starts_with("hw_").then(|| word.to_owned());
    let words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let mut declared: Vec<_> = words.filter_map(name).collect();
    declared.sort();
    declared.dedup();
    if !there_is("nm") {
        return;
    }
    let file = programs.library.join("libheadworks.so");
    let listed = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(file)
        .output();
    let listed = good(listed.expect("starts"));
    let names = listed
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    let mut exported: Vec<_> = names.map(str::to_owned).collect();
    exported.sort();
    assert_eq!(exported, declared);
}

#[test]
fn both_headers_compile_as_cpp() {
    let folder = tempfile::tempdir().expect("a folder");
    for (header, standard) in [
        ("headworks.h", "-std=c++11"),
        ("headworks.hpp", CPP.standard),
    ] {
        let source = folder.path().join("header.cpp");
        let text =
            format!("#include <{header}>\nint main() {{ return hw_version() == nullptr; }}\n");
        std::fs::write(&source, text).expect("writes");
        for compiler in ["c++", "clang++"] {
            if !there_is(compiler) {
                continue;
            }
            let compiled = Command::new(compiler)
                .arg(standard)
                .args(STRICT)
                .args(["-fsyntax-only", "-I"])
                .arg(sources().join("include"))
                .arg(&source)
                .output();
            good(compiled.expect("starts"));
        }
    }
}
