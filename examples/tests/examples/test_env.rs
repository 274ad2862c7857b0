//! A folder to run examples in, and their output.

use std::cell::Cell;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longer than any correct run takes.
const LIMIT: Duration = Duration::from_secs(120);

/// Environment variable that marks the processes of a [`TestEnv`].
const AT: &str = "HEADWORKS_TEST_DESK";

/// The path of an example. `cargo test` puts it beside the folder of this test.
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

/// A folder with a registry of its own and the output files. Dropping it kills the remaining processes.
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

    /// Starts an example; `change` adjusts its command first.
    pub(crate) fn start_with(
        &self,
        name: &str,
        args: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> ExampleProcess {
        let number = self.started.get();
        self.started.set(number + 1);
        // Output goes to files, because reading a pipe ends only when every process has closed it.
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

    /// The folder for temporary files. It is created if necessary.
    pub(crate) fn temporary(&self) -> PathBuf {
        let folder = self.dir.path().join("tmp");
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    /// The running processes that were started here, and their descendants.
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

    /// Number of sockets that listen under names, plus the connections to them that are not accepted. Those where
    /// processes hand out descriptors do not count.
    pub(crate) fn sockets(&self) -> usize {
        let all = std::fs::read_to_string("/proc/net/unix").expect("/proc");
        let registry = self.registry().display().to_string();
        let named = |line: &&str| line.contains(&registry) && !line.contains("/d.");
        all.lines().filter(named).count()
    }

    /// Waits until all processes have ended.
    pub(crate) fn assert_nobody_left(&self) {
        wait_until("the end of all processes", || self.users().is_empty());
    }

    /// Runs an example to its end. Returns exit code, standard output and standard error.
    pub(crate) fn run(&self, name: &str, args: &[&str]) -> (Option<i32>, String, String) {
        self.start(name, args).end()
    }

    /// Starts a listening side and waits until its name is registered.
    pub(crate) fn listen(&self, name: &str, args: &[&str]) -> ExampleProcess {
        let side = self.start(name, &[&["listen", "here"], args].concat());
        self.until("a listener", |entries| {
            entries.iter().any(|entry| entry == "n.here")
        });
        side
    }

    /// Waits until `are` accepts the entries of the registry.
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

/// Waits until `holds` returns `true`; fails after [`LIMIT`].
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what} did not come");
        std::thread::yield_now();
    }
}

/// A running example. Dropping it kills the process.
pub(crate) struct ExampleProcess {
    pub(crate) child: Child,
    /// The files with its standard output and error.
    said: [PathBuf; 2],
}

impl ExampleProcess {
    /// Whether the process sleeps.
    pub(crate) fn is_idle(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        // The state follows the name, which may contain any characters.
        let state = stat.ok().and_then(|text| {
            text.rsplit_once(") ")
                .map(|(_, rest)| rest.starts_with('S'))
        });
        state.unwrap_or(false)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signals");
    }

    /// Waits for its end and returns its exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        wait_until("the end of a process", || {
            status = self.child.try_wait().expect("waits");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// Standard output and standard error so far, of the process and of those that it started.
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
