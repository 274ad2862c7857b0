//! What the tests of the command share: a private fabric, both sides of a pipe, conditions with deadlines.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headworks_shm::Registry;
use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take: far longer than it does on the slowest machine, so that only what hangs fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// How long a side may take to notice that the other is dead; the time it took is printed.
pub(crate) const NOTICE: Duration = Duration::from_secs(10);

/// The same as [`LIMIT`] for the program's own waits, in seconds.
pub(crate) const LONG_TIMEOUT_S: &str = "80";

/// A fabric of its own, and the program on it.
pub(crate) struct TestEnv {
    dir: tempfile::TempDir,
    /// What the program is started by: nothing, or another program and its arguments.
    pub(crate) launcher: Vec<String>,
    program: PathBuf,
}

impl TestEnv {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a directory"),
            launcher: Vec::new(),
            program: env!("CARGO_BIN_EXE_headworks").into(),
        }
    }

    /// The program is started by `launcher` from now on, as the process that `launcher` was.
    pub(crate) fn with_launcher(mut self, launcher: &[&str]) -> Self {
        self.launcher = launcher.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// The program is the file at `program` from now on.
    pub(crate) fn with_program(mut self, program: PathBuf) -> Self {
        self.program = program;
        self
    }

    /// Where the registry is, while there is one.
    pub(crate) fn registry(&self) -> PathBuf {
        self.dir.path().join("fabric")
    }

    /// The registry, for this process to join.
    pub(crate) fn open_registry(&self) -> Arc<Registry> {
        Registry::open_at(self.registry()).expect("a registry")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn headworks(&self, args: &[&str]) -> Command {
        let mut words = self.launcher.iter().map(OsStr::new);
        let mut command = match words.next() {
            None => Command::new(&self.program),
            Some(launcher) => {
                let mut command = Command::new(launcher);
                command.args(words).arg(&self.program);
                command
            }
        };
        command
            .args(args)
            .env("HEADWORKS_FABRIC", self.registry())
            // Nobody's file says how a daemon is to be.
            .env("XDG_CONFIG_HOME", self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// A listener that is there: its name is taken.
    pub(crate) fn listen(
        &self,
        args: &[&str],
        name: &str,
        stdin: Stdio,
        stdout: Stdio,
    ) -> CommandProcess {
        let all: Vec<_> = ["pipe", "listen", name]
            .iter()
            .chain(args)
            .copied()
            .collect();
        let side = CommandProcess::start(self.headworks(&all).stdin(stdin).stdout(stdout));
        let socket = self.registry().join(format!("n.{name}"));
        until("the listener", || socket.exists());
        side
    }

    pub(crate) fn connect(
        &self,
        args: &[&str],
        name: &str,
        stdin: Stdio,
        stdout: Stdio,
    ) -> CommandProcess {
        let all: Vec<_> = ["pipe", "connect", name, "--timeout", LONG_TIMEOUT_S]
            .iter()
            .chain(args)
            .copied()
            .collect();
        CommandProcess::start(self.headworks(&all).stdin(stdin).stdout(stdout))
    }

    /// The next user cleans what the dead left, and leaves nothing of its own.
    pub(crate) fn is_clean_after_next_user(&self) {
        let mut one = self.listen(&[], "next", Stdio::null(), Stdio::null());
        let mut other = self.connect(&[], "next", Stdio::null(), Stdio::null());
        assert_eq!(other.wait().code(), Some(0), "{}", other.stderr_line());
        assert_eq!(one.wait().code(), Some(0), "{}", one.stderr_line());
        self.is_clean();
    }

    /// Nothing is left in the registry, and no process that used it.
    pub(crate) fn is_clean(&self) {
        let users = self.users();
        assert!(users.is_empty(), "processes left: {users:?}");
        let left: Vec<_> = std::fs::read_dir(self.registry())
            .map(|dir| dir.flatten().map(|entry| entry.file_name()).collect())
            .unwrap_or_default();
        assert!(left.is_empty(), "left in the registry: {left:?}");
    }

    /// The processes that were told to use this fabric.
    fn users(&self) -> Vec<String> {
        let setting = format!("HEADWORKS_FABRIC={}", self.registry().display());
        let told = |process: &Path| {
            let environment = std::fs::read(process.join("environ")).unwrap_or_default();
            environment
                .split(|&byte| byte == 0)
                .any(|variable| variable == setting.as_bytes())
        };
        let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
        processes
            .map(|process| process.path())
            .filter(|process| told(process))
            .map(|process| process.display().to_string())
            .collect()
    }
}

/// One side of a pipe; killed when dropped.
pub(crate) struct CommandProcess(pub(crate) Child);

impl CommandProcess {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("starts"))
    }

    /// Its end, which must come in time.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the end of a process", || {
            status = self.0.try_wait().expect("waits");
            status.is_some()
        });
        status.expect("ended")
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("waits").is_some()
    }

    /// What it said on standard error; after its end.
    pub(crate) fn stderr_line(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut text).expect("reads");
        }
        text
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("signals");
    }

    /// Field `at` of its line in /proc, counted as proc(5) does.
    pub(crate) fn stat(&self, at: usize) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).expect("stat");
        let rest = &text[text.rfind(')').expect("a name") + 2..];
        rest.split(' ').nth(at - 3).expect("a field").to_owned()
    }

    /// Processor time so far, in ticks of 10 ms.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        [14, 15]
            .map(|at| self.stat(at).parse::<u64>().expect("a number"))
            .iter()
            .sum()
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.stat(3) == "S"
    }

    /// How many bytes of its standard input, a file, it has read.
    pub(crate) fn bytes_read(&self) -> u64 {
        let path = format!("/proc/{}/fdinfo/0", self.0.id());
        let text = std::fs::read_to_string(path).expect("fdinfo");
        let position = text.lines().find_map(|line| line.strip_prefix("pos:"));
        let position = position.expect("a position").trim();
        position.parse().expect("a number")
    }

    /// Its end with this code, and what it said: nothing after a success, else one line.
    pub(crate) fn expect_exit(&mut self, code: i32) -> String {
        let status = self.wait();
        let complaint = self.stderr_line();
        assert_eq!(status.code(), Some(code), "{status}: {complaint}");
        let lines = usize::from(code != 0);
        assert_eq!(complaint.lines().count(), lines, "{complaint}");
        complaint
    }
}

impl Drop for CommandProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for a condition, and no longer than [`LIMIT`].
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what} did not come in {LIMIT:?}");
        std::thread::yield_now();
    }
}

/// Kills what this process has started, which would outlive it otherwise.
pub(crate) fn kill_children() {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    for task in tasks.flatten() {
        let children = std::fs::read_to_string(task.path().join("children"));
        let children = children.unwrap_or_default();
        let pids = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        for pid in pids.filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Pseudo-random bytes.
pub(crate) fn bytes(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64 ^ len as u64;
    let mut bytes = vec![0; len];
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    bytes
}

pub(crate) fn open(path: &Path) -> Stdio {
    File::open(path).expect("opens").into()
}

pub(crate) fn create(path: &Path) -> Stdio {
    File::create(path).expect("creates").into()
}

/// Lets time pass: for a random moment or the interval of a sample. No test depends on how much.
pub(crate) fn sleep_for(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::yield_now();
    }
}
