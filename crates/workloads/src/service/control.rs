//! Child processes of this program that take commands and reply, one line of JSON each.

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Result, Role, failed};
use crate::error::WorkloadError;
use crate::subprocess::{Subprocess, child_program};

/// Name of the subcommand with which a child process runs a role.
pub(crate) const NAME: &str = "service";
/// How often a waiting parent checks whether it should stop.
const LOOK: Duration = Duration::from_millis(50);

/// A child process that runs a role. It is killed when this is dropped.
#[derive(Debug)]
pub struct ControlledChild {
    running: Option<Subprocess>,
    pid: Pid,
    tells: ChildStdin,
    says: Receiver<String>,
}

impl ControlledChild {
    /// Starts a process on processor `cpu`, with its own registry in `directory`.
    pub fn start(role: &Role, cpu: usize, directory: &Path) -> Result<Self> {
        let text = serde_json::to_string(role).map_err(failed("role"))?;
        let mut command = child_program(&[NAME, &text])?;
        command
            .env("HEADWORKS_FABRIC", directory.join("fabric"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut running = Subprocess::start(&mut command, Some(cpu))?;
        let (tells, says) = running.take_pipes().expect("both pipes were requested");
        let (give, lines) = channel();
        thread::spawn(move || {
            let mut said = BufReader::new(says).lines().map_while(|line| line.ok());
            said.try_for_each(|line| give.send(line))
        });
        Ok(Self {
            pid: running.pid(),
            running: Some(running),
            tells,
            says: lines,
        })
    }

    /// Returns the process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a command to the process.
    pub fn send(&mut self, what: &impl Serialize) -> Result<()> {
        write(&mut self.tells, what)
    }

    /// Waits until the process replies `what`; any other reply is an error.
    pub fn expect_reply<T>(&mut self, what: T, limit: Duration, stop: &AtomicBool) -> Result<()>
    where
        T: DeserializeOwned + Debug + PartialEq,
    {
        let said: T = self.receive(limit, stop)?;
        match said == what {
            true => Ok(()),
            false => Err(WorkloadError(format!(
                "a process replied {said:?} instead of {what:?}"
            ))),
        }
    }

    /// Waits at most `limit` for the next reply.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<T> {
        let deadline = Instant::now() + limit;
        loop {
            match self.says.recv_timeout(LOOK) {
                Ok(line) => return serde_json::from_str(&line).map_err(failed("process reply")),
                Err(RecvTimeoutError::Disconnected) => return Err(self.exit_error(stop)),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if stop.load(Ordering::Relaxed) {
                return Err(WorkloadError("interrupted".to_owned()));
            }
            if Instant::now() > deadline {
                return Err(WorkloadError(format!(
                    "a process did not reply within {limit:?}"
                )));
            }
        }
    }

    /// Returns why the process ended: the first line of its standard error.
    fn exit_error(&mut self, stop: &AtomicBool) -> WorkloadError {
        let ended = self.running.take();
        let ended = ended.map(|running| running.finish(Duration::from_secs(5), stop));
        let last = match ended {
            Some(Ok(finished)) => finished.err.lines().next().map(str::to_owned),
            Some(Err(error)) => Some(error.0),
            None => None,
        };
        WorkloadError(last.unwrap_or_else(|| "a process ended without an error message".to_owned()))
    }
}

/// Sends a reply to the process that started this one.
pub(super) fn reply(what: &impl Serialize) -> Result<()> {
    write(&mut std::io::stdout(), what)
}

fn write(to: &mut impl Write, what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what).map_err(failed("message"))?;
    line.push(b'\n');
    let written = to.write_all(&line).and_then(|()| to.flush());
    written.map_err(failed("sending to another process"))
}

/// Waits for the next command to this process. Returns `None` at the end of the input.
pub(super) fn next_command<T: DeserializeOwned>() -> Result<Option<T>> {
    let line = std::io::stdin().lock().lines().next().transpose();
    let line = line.map_err(failed("standard input"))?;
    let told = line.map(|line| serde_json::from_str(&line)).transpose();
    told.map_err(failed("command to this process"))
}
