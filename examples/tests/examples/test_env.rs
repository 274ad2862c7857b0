//! A place to start examples at, and what they said.

use std::cell::Cell;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longer than anything honest takes.
const LIMIT: Duration = Duration::from_secs(120);

/// By which the processes of a [`TestEnv`] are known.
const AT: &str = "HEADWORKS_TEST_DESK";

/// Where an example is: `cargo test` puts it beside the folder of this test.
fn program(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this program");
    let target = this.ancestors().nth(2).expect("a target folder");
    let program = target.join("examples").join(name);
    assert!(
        program.exists(),
        "{}: run all of the package's tests",
        program.display()
    );
    program
}

/// A folder with a registry of its own, and what was said. Whoever is left is killed when it is dropped.
pub(crate) struct TestEnv {
    pub(crate) dir: TempDir,
    started: Cell<u32>,
}

impl TestEnv {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a folder"),
            started: Cell::new(0),
        }
    }

    pub(crate) fn registry(&self) -> PathBuf {
        self.dir.path().join("fabric")
    }

    pub(crate) fn start(&self, name: &str, args: &[&str]) -> ExampleProcess {
        self.start_with(name, args, |_| {})
    }

    /// Starts one; `change` is done to the command before.
    pub(crate) fn start_with(
        &self,
        name: &str,
        args: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> ExampleProcess {
        let number = self.started.get();
        self.started.set(number + 1);
        // Files: a pipe would be read for as long as any process has it.
        let said = ["out", "err"].map(|kind| self.dir.path().join(format!("{kind}.{number}")));
        let [out, err] = said
            .clone()
            .map(|file| File::create(file).expect("creates"));
        let mut command = Command::new(program(name));
        command
            .args(args)
            .env("HEADWORKS_FABRIC", self.registry())
            .env("TMPDIR", self.temporary())
            .env(AT, self.dir.path())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err);
        change(&mut command);
        let child = command.spawn().expect("starts");
        ExampleProcess { child, said }
    }

    /// Where temporary files are, while there are any.
    pub(crate) fn temporary(&self) -> PathBuf {
        let folder = self.dir.path().join("tmp");
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    /// The processes that were started here, and those that they started.
    pub(crate) fn users(&self) -> Vec<Pid> {
        let setting = format!("{AT}={}", self.dir.path().display());
        let is_told = |process: &PathBuf| {
            let environment = std::fs::read(process.join("environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == setting.as_bytes())
        };
        let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
        let told = processes.map(|process| process.path()).filter(is_told);
        told.filter_map(|process| Pid::from_raw(process.file_name()?.to_str()?.parse().ok()?))
            .collect()
    }

    /// The sockets that are listened on here, and those connected to them and not accepted.
    pub(crate) fn sockets(&self) -> usize {
        let all = std::fs::read_to_string("/proc/net/unix").expect("/proc");
        let registry = self.registry().display().to_string();
        all.lines().filter(|line| line.contains(&registry)).count()
    }

    /// Waits until nobody is left.
    pub(crate) fn assert_nobody_left(&self) {
        wait_until("the end of all processes", || self.users().is_empty());
    }

    /// Runs one to its end: exit code, standard output, standard error.
    pub(crate) fn run(&self, name: &str, args: &[&str]) -> (Option<i32>, String, String) {
        self.start(name, args).end()
    }

    /// A side that listens: its name is taken.
    pub(crate) fn listen(&self, name: &str, args: &[&str]) -> ExampleProcess {
        let side = self.start(name, &[&["listen", "here"], args].concat());
        self.until("a listener", |entries| {
            entries.iter().any(|entry| entry == "n.here")
        });
        side
    }

    /// Waits until the entries of the registry are as they should be.
    pub(crate) fn until(&self, what: &str, are: impl Fn(&[String]) -> bool) {
        wait_until(what, || {
            let entries = std::fs::read_dir(self.registry()).into_iter().flatten();
            let names = entries.flatten().map(|entry| entry.file_name());
            are(&names
                .map(|name| name.to_string_lossy().into_owned())
                .collect::<Vec<_>>())
        });
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        for user in self.users() {
            let _ = kill_process(user, Signal::KILL);
        }
    }
}

/// Waits for something, and no longer than [`LIMIT`].
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what} did not come");
        std::thread::yield_now();
    }
}

/// A process; killed when dropped.
pub(crate) struct ExampleProcess {
    pub(crate) child: Child,
    /// The files with its standard output and error.
    said: [PathBuf; 2],
}

impl ExampleProcess {
    /// Whether it waits for something.
    pub(crate) fn is_idle(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        // Behind the name, which may have anything in it.
        let state = stat.ok().and_then(|text| {
            text.rsplit_once(") ")
                .map(|(_, rest)| rest.starts_with('S'))
        });
        state.unwrap_or(false)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signals");
    }

    /// Its exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        wait_until("the end of a process", || {
            status = self.child.try_wait().expect("waits");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// What it said so far, and the processes that it started: standard output, standard error.
    pub(crate) fn output(&self) -> [String; 2] {
        [0, 1].map(|at| std::fs::read_to_string(&self.said[at]).expect("text"))
    }

    pub(crate) fn end(mut self) -> (Option<i32>, String, String) {
        let code = self.wait();
        let [out, complaint] = self.output();
        (code, out, complaint)
    }
}

impl Drop for ExampleProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
