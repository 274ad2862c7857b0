//! Runs the administrator's commands that lower and restore the RNIC's threshold for congestion marks, on a thread of its
//! own. [`EcnControl`] decides when.
//!
//! A command runs without a shell, in a process group of its own, with no input. What is left of the group is killed when
//! the command takes too long. The last line of its standard error goes to the log if it fails.

use std::fmt;
use std::io;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use headworks_net::{EventFd, clock};
use headworks_verbs::{DeviceName, Duration, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::ServerError;
use crate::ecn::{EcnCommand, EcnControl, PoolLevel};
use crate::ecn_settings::{EcnHook, Placeholder};
use crate::snapshot::EcnSnapshot;

/// Bytes of a command's standard error that are kept.
const TAIL: usize = 1024;
/// Most characters of the line that is logged.
const LINE: usize = 200;
/// How long a killed command may take to end.
const KILLED: Duration = Duration::from_secs(1);
/// Where the kernel lists RDMA devices.
const SYSFS: &str = "/sys/class/infiniband";

/// The commands with the names of a device.
#[derive(Clone, Debug)]
pub(super) struct EcnCommands {
    lower: Vec<String>,
    restore: Vec<String>,
    interval: Duration,
    time_limit: Duration,
}

impl EcnCommands {
    /// Fills the templates with the names of `device`, and checks that the programs can be run.
    ///
    /// # Errors
    ///
    /// [`ServerError::Ecn`]: the device does not have a name that a template asks for, or a program does not exist or is
    /// not executable.
    pub(super) fn of(hook: &EcnHook, device: &DeviceName) -> Result<Self, ServerError> {
        let fill = |command: EcnCommand| {
            let name = |placeholder| name_of(device, Path::new(SYSFS), placeholder);
            let filled = hook.template(command).fill(name);
            let checked = filled.and_then(|words| {
                words.first().map_or(Ok(()), |program| check(program))?;
                Ok(words)
            });
            checked.map_err(|why| ServerError::Ecn {
                key: command.key(),
                why,
            })
        };
        Ok(Self {
            lower: fill(EcnCommand::Lower)?,
            restore: fill(EcnCommand::Restore)?,
            interval: hook.interval,
            time_limit: hook.time_limit,
        })
    }

    fn words(&self, command: EcnCommand) -> &[String] {
        match command {
            EcnCommand::Lower => &self.lower,
            EcnCommand::Restore => &self.restore,
        }
    }
}

/// Refuses a program that does not exist, is no file, or that this process may not execute.
fn check(program: &str) -> Result<(), String> {
    let wrong = |why: &dyn fmt::Display| {
        format!("{program:?} {why}; name a program that the daemon's user may execute")
    };
    let of_file = std::fs::metadata(program);
    let of_file = of_file.map_err(|error| wrong(&format_args!("cannot be run: {error}")))?;
    if !of_file.is_file() {
        return Err(wrong(&"is no file"));
    }
    access(program, Access::EXEC_OK).map_err(|_| wrong(&"is not executable"))
}

/// Returns the name of a device that a placeholder stands for, or why it has none. `sysfs` lists the RDMA devices.
fn name_of(device: &DeviceName, sysfs: &Path, placeholder: Placeholder) -> Result<String, String> {
    let missing = |why: &str| format!("{placeholder}: {device} {why}; write the name in its place");
    let name = device.name().ok_or_else(|| missing("names no device"))?;
    let at = sysfs.join(name).join("device");
    match placeholder {
        Placeholder::Device => Ok(name.to_owned()),
        _ if device.kind() != "ibv" => Err(missing("is no RNIC")),
        Placeholder::Pci => {
            let target = std::fs::read_link(&at);
            let target = target.map_err(|error| missing(&format!("is not in sysfs: {error}")))?;
            let address = target.file_name().and_then(|name| name.to_str());
            // A software device of the kernel has no address on a bus.
            let address = address.filter(|address| address.matches(':').count() == 2);
            Ok(address
                .ok_or_else(|| missing("is no PCI device"))?
                .to_owned())
        }
        Placeholder::Netdev => {
            let entries = std::fs::read_dir(at.join("net"));
            let entries = entries.map_err(|_| missing("has no network device"))?;
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            match &names.collect::<Vec<_>>()[..] {
                [] => Err(missing("has no network device")),
                [one] => Ok(one.clone()),
                _ => Err(missing("has several network devices")),
            }
        }
    }
}

/// The thread that runs the commands. Dropping the value restores the threshold, if it may be lowered, and ends the thread.
pub(super) struct EcnThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    has_changed: Condvar,
    /// Signalled when the daemon ends.
    end: EventFd,
}

struct State {
    control: EcnControl,
    snapshot: EcnSnapshot,
    /// The failure that was logged last, if the last command failed.
    failure: Option<String>,
}

impl EcnThread {
    /// Starts the thread, which first restores the threshold.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(super) fn start(commands: EcnCommands) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                control: EcnControl::new(commands.interval),
                snapshot: EcnSnapshot::default(),
                failure: None,
            }),
            has_changed: Condvar::new(),
            end: EventFd::new()?,
        });
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("headworks-ecn".to_owned());
        let thread = thread.spawn(move || own.run(&commands))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Notes the level of the host's pools.
    pub(super) fn set_level(&self, level: PoolLevel) {
        self.shared.lock().control.set_level(level);
        self.shared.has_changed.notify_one();
    }

    /// Returns the state of the commands.
    pub(super) fn snapshot(&self) -> EcnSnapshot {
        let state = self.shared.lock();
        EcnSnapshot {
            is_lowered: state.control.is_lowered(),
            ..state.snapshot
        }
    }
}

impl Drop for EcnThread {
    fn drop(&mut self) {
        self.shared.lock().control.end();
        self.shared.end.signal();
        self.shared.has_changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs commands until the daemon has ended and the threshold is restored.
    fn run(&self, commands: &EcnCommands) {
        let mut runner = Runner::default();
        let mut state = self.lock();
        while !state.control.is_over() {
            if let Some(command) = state.control.begin(clock::now()) {
                drop(state);
                let words = commands.words(command);
                // Lowering the threshold is of no use any more when the daemon ends.
                let cancel = (command == EcnCommand::Lower).then_some(&self.end);
                let done = runner.run(words, commands.time_limit, cancel);
                state = self.lock();
                state.control.ended(done.is_ok(), clock::now());
                let lines = state.note(command, done);
                // Writing a log line may block. The event loop takes this lock, so the lines are logged without it.
                drop(state);
                lines.into_iter().for_each(LogLine::log);
                state = self.lock();
                continue;
            }
            let waits =
                |at: Instant| std::time::Duration::from_nanos(at.since(clock::now()).nanos());
            state = match state.control.deadline() {
                Some(at) => {
                    let waited = self.has_changed.wait_timeout(state, waits(at));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.has_changed.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

/// A line to log.
enum LogLine {
    Warn(String),
    Info(String),
}

impl LogLine {
    fn log(self) {
        match self {
            Self::Warn(line) => tracing::warn!("{line}"),
            Self::Info(line) => tracing::info!("{line}"),
        }
    }
}

impl State {
    /// Counts a run. Returns what is to be logged: a failure unless it is the same as the last one.
    fn note(&mut self, command: EcnCommand, done: Result<(), CommandError>) -> Vec<LogLine> {
        let mut lines = Vec::new();
        self.snapshot.runs += 1;
        self.snapshot.is_failing = done.is_err();
        match done {
            Ok(()) => {
                if self.failure.take().is_some() {
                    let line = format!("{}: the command works again", command.key());
                    lines.push(LogLine::Warn(line));
                }
                let line = format!("{}: the command was run", command.key());
                lines.push(LogLine::Info(line));
            }
            Err(error) => {
                self.snapshot.failures += 1;
                let failure = format!("{}: {error}", command.key());
                if self.failure.as_ref() != Some(&failure) {
                    lines.push(LogLine::Warn(failure.clone()));
                }
                self.failure = Some(failure);
            }
        }
        lines
    }
}

/// Error of a command.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error("{program} cannot be run: {source}")]
    Start { program: String, source: io::Error },
    #[error("{program} cannot be watched, and was killed: {source}")]
    Watch { program: String, source: io::Error },
    #[error("{program} was killed {}{}", reason(*.ended, *.limit), says(.line))]
    Killed {
        program: String,
        ended: Ended,
        limit: Duration,
        line: String,
    },
    #[error("{program}: {status}{}", says(.line))]
    Failed {
        program: String,
        status: ExitStatus,
        line: String,
    },
    #[error("{program} is not run: the command before was killed, and has not ended")]
    Stuck { program: String },
}

fn reason(ended: Ended, limit: Duration) -> String {
    match ended {
        Ended::Cancelled => "because the daemon ends".to_owned(),
        _ => format!("after {} ms", limit.nanos() / 1_000_000),
    }
}

fn says(line: &str) -> String {
    match line {
        "" => String::new(),
        line => format!(": {line}"),
    }
}

/// How a command's time ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The command ended by itself.
    Itself,
    /// The time limit passed.
    TimeLimit,
    /// The daemon ends, and does not wait for it.
    Cancelled,
}

/// Runs one command at a time.
#[derive(Default)]
struct Runner {
    /// A command that was killed and has not ended: it waits in the kernel.
    stuck: Option<Child>,
}

impl Runner {
    /// Runs a command, which takes as long as `limit` at most and then little longer. A signal at `cancel` ends it early.
    fn run(
        &mut self,
        words: &[String],
        limit: Duration,
        cancel: Option<&EventFd>,
    ) -> Result<(), CommandError> {
        // A template has a program.
        let (program, arguments) = words
            .split_first()
            .map_or(("", words), |(program, rest)| (&**program, rest));
        let program = program.to_owned();
        if let Some(stuck) = &mut self.stuck
            && matches!(stuck.try_wait(), Ok(None))
        {
            return Err(CommandError::Stuck { program });
        }
        self.stuck = None;
        let mut command = Command::new(&program);
        command.args(arguments).current_dir("/").process_group(0);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(source) => return Err(CommandError::Start { program, source }),
        };
        let mut tail = Tail::default();
        let watched = watch(&mut child, &mut tail, limit, cancel);
        let ended = match watched {
            Ok((ended, true)) => ended,
            Ok((ended, false)) => {
                self.stuck = Some(child);
                return Err(CommandError::Killed {
                    program,
                    ended,
                    limit,
                    line: tail.line(),
                });
            }
            Err(source) => {
                kill(&child);
                self.stuck = Some(child);
                return Err(CommandError::Watch { program, source });
            }
        };
        let line = tail.line();
        match child.wait() {
            _ if ended != Ended::Itself => Err(CommandError::Killed {
                program,
                ended,
                limit,
                line,
            }),
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(CommandError::Failed {
                program,
                status,
                line,
            }),
            Err(source) => Err(CommandError::Watch { program, source }),
        }
    }
}

/// Waits for a child, and kills it if it takes too long. Returns how its time ended, and whether it is gone.
fn watch(
    child: &mut Child,
    tail: &mut Tail,
    limit: Duration,
    cancel: Option<&EventFd>,
) -> io::Result<(Ended, bool)> {
    let stderr = child.stderr.take();
    let mut watched = Watched::new(child, stderr)?;
    let ended = watched.wait(tail, clock::now() + limit, cancel)?;
    if ended == Ended::Itself {
        return Ok((ended, true));
    }
    kill(child);
    let last = watched.wait(tail, clock::now() + KILLED, None)?;
    Ok((ended, last == Ended::Itself))
}

/// Kills the process group of a child that was not waited for, so that its number is still its own.
fn kill(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// A child that runs.
struct Watched {
    pidfd: OwnedFd,
    /// `None` once it is closed.
    stderr: Option<ChildStderr>,
}

impl Watched {
    fn new(child: &Child, stderr: Option<ChildStderr>) -> io::Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        if let Some(stderr) = &stderr {
            rustix::io::ioctl_fionbio(stderr, true)?;
        }
        Ok(Self { pidfd, stderr })
    }

    /// Reads what the child writes until it ends, or `until`, or until `cancel` is signalled.
    fn wait(
        &mut self,
        tail: &mut Tail,
        until: Instant,
        cancel: Option<&EventFd>,
    ) -> io::Result<Ended> {
        loop {
            let left = until.since(clock::now()).nanos();
            let timeout = Timespec {
                tv_sec: (left / 1_000_000_000) as i64,
                tv_nsec: (left % 1_000_000_000) as i64,
            };
            let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
            fds.extend(
                cancel.map(|cancel| PollFd::from_borrowed_fd(cancel.as_fd(), PollFlags::IN)),
            );
            if let Some(stderr) = &self.stderr {
                fds.push(PollFd::from_borrowed_fd(stderr.as_fd(), PollFlags::IN));
            }
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let has_ended = !fds[0].revents().is_empty();
            let is_cancelled = cancel.is_some() && !fds[1].revents().is_empty();
            if let Some(stderr) = &mut self.stderr
                && tail.read(stderr)
            {
                self.stderr = None;
            }
            match (has_ended, is_cancelled) {
                (true, _) => return Ok(Ended::Itself),
                (false, true) => return Ok(Ended::Cancelled),
                (false, false) if left == 0 => return Ok(Ended::TimeLimit),
                (false, false) => {}
            }
        }
    }
}

/// The end of what a command wrote to its standard error.
#[derive(Default)]
struct Tail(Vec<u8>);

impl Tail {
    /// Reads what is there, at most as much as a pipe holds. Returns whether nothing more will come.
    fn read(&mut self, from: &mut ChildStderr) -> bool {
        let mut bytes = [0; 4096];
        for _ in 0..16 {
            match from.read(&mut bytes) {
                Ok(0) => return true,
                Ok(read) => {
                    self.0.extend_from_slice(&bytes[..read]);
                    let more = self.0.len().saturating_sub(TAIL);
                    self.0.drain(..more);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
        false
    }

    /// Returns the last line that is not empty.
    fn line(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let line = text
            .lines()
            .rev()
            .map(str::trim)
            .find(|line| !line.is_empty());
        let plain = line.unwrap_or("").chars().filter(|c| !c.is_control());
        plain.take(LINE).collect()
    }
}

#[cfg(test)]
#[path = "ecn_command/tests.rs"]
mod tests;
