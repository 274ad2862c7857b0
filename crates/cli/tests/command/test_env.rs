//! Helpers of the command's tests: a private fabric, the two sides of a pipe, conditions with deadlines.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headworks_shm::Registry;
use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for anything. It is far longer than the slowest machine needs, so that only a hang fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// Longest time until a side notices the other's death. Tests print the time it took.
pub(crate) const NOTICE: Duration = Duration::from_secs(10);

/// [`LIMIT`] for the program's own waits, in seconds; a little shorter.
pub(crate) const LONG_TIMEOUT_S: &str = "80";

/// A private fabric, and the program on it.
pub(crate) struct TestEnv {
    dir: tempfile::TempDir,
    /// Program, with arguments, that starts the command; empty if the test starts it directly.
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

    /// Starts the command through `launcher` from now on. `launcher` must replace itself by the command.
    pub(crate) fn with_launcher(mut self, launcher: &[&str]) -> Self {
        self.launcher = launcher.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Uses the file at `program` as the command from now on.
    pub(crate) fn with_program(mut self, program: PathBuf) -> Self {
        self.program = program;
        self
    }

    /// Returns the path of the registry, which exists only while it is used.
    pub(crate) fn registry(&self) -> PathBuf {
        self.dir.path().join("fabric")
    }

    /// Opens the registry for this process.
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
            // No configuration file of the machine may change how a daemon behaves.
            .env("XDG_CONFIG_HOME", self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// Starts a listener and waits until its name is taken.
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
        self.until_listening(name);
        side
    }

    /// Waits until a listener has taken this name.
    pub(crate) fn until_listening(&self, name: &str) {
        let socket = self.registry().join(format!("n.{name}"));
        until("the listener", || socket.exists());
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

    /// Checks that the next user of the fabric removes what the dead left, and leaves nothing itself.
    pub(crate) fn is_clean_after_next_user(&self) {
        let mut one = self.listen(&[], "next", Stdio::null(), Stdio::null());
        let mut other = self.connect(&[], "next", Stdio::null(), Stdio::null());
        assert_eq!(other.wait().code(), Some(0), "{}", other.stderr_line());
        assert_eq!(one.wait().code(), Some(0), "{}", one.stderr_line());
        self.is_clean();
    }

    /// Checks that the registry is empty and that no process uses this fabric any more.
    pub(crate) fn is_clean(&self) {
        let users = self.users();
        assert!(users.is_empty(), "processes left: {users:?}");
        let left: Vec<_> = std::fs::read_dir(self.registry())
            .map(|dir| dir.flatten().map(|entry| entry.file_name()).collect())
            .unwrap_or_default();
        assert!(left.is_empty(), "left in the registry: {left:?}");
    }

    /// Returns the processes whose environment names this fabric.
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

/// A process of the command, for example one side of a pipe. It is killed when dropped.
pub(crate) struct CommandProcess(pub(crate) Child);

impl CommandProcess {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("starts"))
    }

    /// Waits for the process to end, and fails if it takes too long.
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

    /// Returns its standard error. Call it after the end of the process.
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

    /// Returns field `at` of its `stat` file in /proc, numbered as in proc(5).
    pub(crate) fn stat(&self, at: usize) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).expect("stat");
        let rest = &text[text.rfind(')').expect("a name") + 2..];
        rest.split(' ').nth(at - 3).expect("a field").to_owned()
    }

    /// Processor time used so far, in ticks of 10 ms.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        [14, 15]
            .map(|at| self.stat(at).parse::<u64>().expect("a number"))
            .iter()
            .sum()
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.stat(3) == "S"
    }

    /// Number of bytes it has read from its standard input, which must be a file.
    pub(crate) fn bytes_read(&self) -> u64 {
        let path = format!("/proc/{}/fdinfo/0", self.0.id());
        let text = std::fs::read_to_string(path).expect("fdinfo");
        let position = text.lines().find_map(|line| line.strip_prefix("pos:"));
        let position = position.expect("a position").trim();
        position.parse().expect("a number")
    }

    /// Checks that it ends with this code, and returns its standard error: empty after a success, else one
    /// line.
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

/// Waits until a condition holds, and fails after [`LIMIT`].
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(
            began.elapsed() < LIMIT,
            "waited {LIMIT:?} in vain for {what}"
        );
        std::thread::yield_now();
    }
}

/// Kills the children of this process, which would otherwise outlive it.
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

/// Returns pseudo-random bytes.
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

/// Lets time pass: until a random moment, or between samples. No test depends on the exact time.
pub(crate) fn sleep_for(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::yield_now();
    }
}
