//! An actor's process as seen by the coordinator: start, read, reap.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::processes::child_main::CHILD_VARIABLE;
use crate::processes::protocol::{FromChild, MESSAGE_MAX};
use crate::world::{ActorOutcome, ProcessExit};
use headworks_net::framing::{FrameDecoder, FrameError};
use headworks_net::waiting::ready_events;

/// Longest line of standard error that is not split.
const LINE_MAX: usize = 8 << 10;

/// An actor's process. Dropping this kills and reaps it.
pub(crate) struct ChildProcess {
    pub(crate) role: String,
    pub(crate) socket: OwnedFd,
    pub(crate) pidfd: Arc<OwnedFd>,
    pub(crate) stderr: Option<StderrForwarder>,
    /// A message that waits for room at its receiver. Nothing is read meanwhile.
    pub(crate) blocked: Option<FromChild>,
    pub(crate) ended: bool,
    process: Child,
    deframer: FrameDecoder,
    final_outcome: Option<ActorOutcome>,
}

impl ChildProcess {
    pub(crate) fn start(program: &Path, args: &[OsString], role: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let inode = fstat(&theirs)?.st_ino;
        let mut command = Command::new(program);
        if let Some(name) = std::env::args_os().next() {
            command.arg0(name);
        }
        let mut process = command
            .args(args)
            .env(CHILD_VARIABLE, format!("{inode}:{}", std::process::id()))
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let stderr = process.stderr.take();
        // The process is not reaped yet, so the id is still its own.
        let opened = pidfd_open(Pid::from_child(&process), PidfdFlags::empty());
        let pidfd = match opened {
            Ok(pidfd) => Arc::new(pidfd),
            Err(error) => {
                end(&mut process);
                return Err(error.into());
            }
        };
        let mut child = Self {
            role: role.to_owned(),
            socket: ours,
            pidfd,
            stderr: None,
            blocked: None,
            ended: false,
            process,
            deframer: FrameDecoder::new(MESSAGE_MAX),
            final_outcome: None,
        };
        child.stderr = stderr
            .map(|pipe| StderrForwarder::new(pipe, role))
            .transpose()?;
        Ok(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Reads what is there, up to a bound. Returns whether there may be more.
    pub(crate) fn read(&mut self) -> bool {
        let mut bytes = [0; 64 << 10];
        match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((got, _)) => {
                self.deframer.feed(&bytes[..got]);
                got > 0
            }
            Err(error) => error == rustix::io::Errno::INTR,
        }
    }

    /// The next message from the process.
    pub(crate) fn next(&mut self) -> Result<Option<FromChild>, FrameError> {
        match self.deframer.next_message()? {
            Some(message) => FromChild::parse(&message).map(Some),
            None => Ok(None),
        }
    }

    /// Records the outcome that the process announced.
    pub(crate) fn final_outcome(&mut self, why: Option<String>) {
        self.final_outcome
            .get_or_insert_with(|| why.map_or(ActorOutcome::Done, ActorOutcome::Failed));
    }

    /// Kills the process because it sent an illegal message.
    pub(crate) fn refuse(&mut self, error: &FrameError) {
        tracing::warn!(role = self.role, %error, "killing an actor's process that sent an illegal message");
        self.final_outcome = Some(ActorOutcome::Failed(format!("sent a {error}")));
        let _ = self.process.kill();
    }

    /// Reaps the process, whose pidfd is readable.
    pub(crate) fn reap(&mut self) -> ActorOutcome {
        self.ended = true;
        if let Some(stderr) = &mut self.stderr {
            stderr.forward_rest();
        }
        let status = match self.process.wait() {
            Ok(status) => status,
            Err(error) => return ActorOutcome::Failed(format!("cannot be reaped: {error}")),
        };
        match self.final_outcome.take() {
            Some(ActorOutcome::Done) if !status.success() => ActorOutcome::Died(death(status)),
            Some(outcome) => outcome,
            None => ActorOutcome::Died(death(status)),
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if !self.ended {
            end(&mut self.process);
        }
    }
}

fn end(process: &mut Child) {
    // This fails only if the process has ended.
    let _ = process.kill();
    let _ = process.wait();
}

fn death(status: ExitStatus) -> ProcessExit {
    match status.signal() {
        Some(signal) => ProcessExit::Signal(signal),
        None => ProcessExit::Code(status.code().unwrap_or_default()),
    }
}

/// Copies an actor's standard error to ours, line by line, with the role in front.
pub(crate) struct StderrForwarder {
    pipe: ChildStderr,
    role: String,
    line: Vec<u8>,
}

impl StderrForwarder {
    fn new(pipe: ChildStderr, role: &str) -> io::Result<Self> {
        let flags = fcntl_getfl(&pipe)?;
        fcntl_setfl(&pipe, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            pipe,
            role: role.to_owned(),
            line: Vec::new(),
        })
    }

    /// Forwards what is there, up to a bound. Returns whether there may be more.
    pub(crate) fn forward(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match self.pipe.read(&mut bytes) {
            Ok(0) => false,
            Ok(got) => {
                for &byte in &bytes[..got] {
                    if byte == b'\n' || self.line.len() == LINE_MAX {
                        self.print();
                    }
                    if byte != b'\n' {
                        self.line.push(byte);
                    }
                }
                true
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    fn forward_rest(&mut self) {
        // A pipe holds no more than this. Without a bound, a process that the actor started could write for
        // ever.
        for _ in 0..(1 << 20) / 4096 {
            if ready_events(self.pipe.as_fd(), PollFlags::IN).is_empty() || !self.forward() {
                break;
            }
        }
        if !self.line.is_empty() {
            self.print();
        }
    }

    fn print(&mut self) {
        // An error means that our own standard error is closed; then nobody reads it.
        let line = String::from_utf8_lossy(&self.line);
        let _ = writeln!(io::stderr(), "[{}] {line}", self.role);
        self.line.clear();
    }
}

impl AsFd for StderrForwarder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
