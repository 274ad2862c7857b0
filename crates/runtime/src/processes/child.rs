//! One part's process as its coordinator holds it: started, read, reaped.

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

/// Longest line of standard error that is kept together.
const LINE_MAX: usize = 8 << 10;

/// A part's process. Killed and reaped when dropped.
pub(crate) struct ChildProcess {
    pub(crate) role: String,
    pub(crate) socket: OwnedFd,
    pub(crate) pidfd: Arc<OwnedFd>,
    pub(crate) stderr: Option<StderrForwarder>,
    /// A message that waits for room where it is going; nothing is read meanwhile.
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
        // Not reaped yet, so the id is still its own.
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

    /// Reads what is there, up to a bound, and says whether there may be more.
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

    /// The next message that it sent.
    pub(crate) fn next(&mut self) -> Result<Option<FromChild>, FrameError> {
        match self.deframer.next_message()? {
            Some(message) => FromChild::parse(&message).map(Some),
            None => Ok(None),
        }
    }

    /// It has said how it ends.
    pub(crate) fn final_outcome(&mut self, why: Option<String>) {
        self.final_outcome
            .get_or_insert_with(|| why.map_or(ActorOutcome::Done, ActorOutcome::Failed));
    }

    /// What it sends is not to be believed: it is killed.
    pub(crate) fn refuse(&mut self, error: &FrameError) {
        tracing::warn!(role = self.role, %error, "killing a part that sends nonsense");
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
    // Fails only for one that has ended.
    let _ = process.kill();
    let _ = process.wait();
}

fn death(status: ExitStatus) -> ProcessExit {
    match status.signal() {
        Some(signal) => ProcessExit::Signal(signal),
        None => ProcessExit::Code(status.code().unwrap_or_default()),
    }
}

/// Copies a part's standard error to ours, line by line, with the role in front.
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

    /// Forwards what is there, up to a bound, and says whether there will be more.
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
        // What a pipe holds at most; a process that it has started may write for ever.
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
        // Where our own standard error is closed, nobody wants to know.
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
